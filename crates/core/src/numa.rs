//! The part of a machine file about several sockets: nodes, distances, memory that can be hidden,
//! and what memory draws.
//!
//! The tiers of such a machine are what one socket's processors see: DRAM and slow memory of their
//! own node, then DRAM and slow memory of another one, in this order. All nodes are alike.
//!
//! ```toml
//! [numa]
//! nodes = { value = 4, source = "…" }
//! block = { value = "128MiB", source = "…" }
//! # …
//! [power]
//! module = { value = "16GiB", source = "…" }
//! # …
//! ```

use serde::{Deserialize, Serialize};

use crate::machine::Sourced;
use crate::units::{Bytes, Nanos};

/// How many tiers a machine with [`Numa`] has: DRAM and slow memory, near and far.
pub const NUMA_TIERS: usize = 4;

/// Nodes, and how their slow memory comes and goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Numa {
    /// Sockets; each has the processors, the DRAM and the slow memory that the file describes.
    pub nodes: Sourced<u32>,
    /// Distance to the slow memory near a socket, by the firmware's table (SLIT); 10 is local.
    pub near_slow_distance: Sourced<u32>,
    /// Distance to another socket's DRAM.
    pub far_distance: Sourced<u32>,
    /// Distance to the slow memory near another socket.
    pub far_slow_distance: Sourced<u32>,
    /// What comes online and goes offline at a time: the kernel's memory block.
    pub block: Sourced<Bytes>,
    /// What the kernel keeps of each base page that it manages (`struct page`).
    pub page_descriptor: Sourced<Bytes>,
    /// What it takes to bring a block online.
    pub online: Sourced<Nanos>,
    /// What it takes to take a block offline that nobody uses.
    pub offline: Sourced<Nanos>,
}

/// What a machine draws, in watts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Power {
    /// Capacity of a memory module.
    pub module: Sourced<Bytes>,
    /// A module that nobody accesses, in watts.
    pub module_idle: Sourced<f64>,
    /// A module under load, in watts.
    pub module_busy: Sourced<f64>,
    /// A socket's processors while idle, in watts.
    pub socket_idle: Sourced<f64>,
    /// A socket's processors under load, in watts.
    pub socket_busy: Sourced<f64>,
    /// Everything else (fans, boards, disks, losses of the supply), in watts.
    pub rest: Sourced<f64>,
}

impl Numa {
    /// Checks what the types cannot: returns the field and what is wrong with it.
    pub(crate) fn validate(&self, tiers: usize) -> Result<(), (String, String)> {
        let bad = |field: &str, message: &str| Err((format!("numa.{field}"), message.to_owned()));
        if !(2..=64).contains(&self.nodes.value) {
            return bad("nodes", "must be 2 to 64");
        }
        if tiers != NUMA_TIERS {
            return bad(
                "nodes",
                "such a machine has four tiers: DRAM and slow memory, near and far",
            );
        }
        for (field, distance) in [
            ("near-slow-distance", &self.near_slow_distance),
            ("far-distance", &self.far_distance),
            ("far-slow-distance", &self.far_slow_distance),
        ] {
            // 10 is a node's distance from itself, and 255 means unreachable (ACPI).
            if !(11..=254).contains(&distance.value) {
                return bad(field, "must be 11 to 254");
            }
        }
        let block = self.block.value.get();
        if !block.is_power_of_two() || block < 1 << 22 {
            return bad("block", "must be a power of two, and at least 4 MiB");
        }
        if !(1..=4096).contains(&self.page_descriptor.value.get()) {
            return bad("page-descriptor", "must be 1 to 4096 bytes");
        }
        Ok(())
    }
}

impl Power {
    /// Checks what the types cannot: returns the field and what is wrong with it.
    pub(crate) fn validate(&self) -> Result<(), (String, String)> {
        if self.module.value.is_zero() {
            return Err(("power.module".into(), "must be above zero".into()));
        }
        let pairs = [
            ("module-idle", self.module_idle.value, self.module_busy.value),
            ("socket-idle", self.socket_idle.value, self.socket_busy.value),
            ("rest", self.rest.value, f64::INFINITY),
        ];
        for (field, idle, busy) in pairs {
            if idle < 0.0 || idle > busy {
                let message = "must be at least 0, and what is idle at most what is busy";
                return Err((format!("power.{field}"), message.into()));
            }
        }
        Ok(())
    }
}
