//! The part of a machine file about sockets whose memory lies behind a hardware-managed cache of
//! DRAM (Optane's Memory Mode).
//!
//! The two tiers of such a machine are what one socket's processors see: their own socket's memory,
//! then the other socket's. What the tiers say of latency and bandwidth is said of the memory behind
//! the cache; both sockets have a cache of this size.
//!
//! ```toml
//! [dram-cache]
//! capacity = { value = "16GiB", source = "…" }
//! latency = { value = "81ns", source = "…" }
//! bandwidth = { value = "21GB/s", source = "…" }
//! link-bandwidth = { value = "20GB/s", source = "…" }
//! ```

use serde::{Deserialize, Serialize};

use crate::machine::{Sourced, TierFile};
use crate::units::{Bytes, BytesPerSecond, Nanos};

/// A cache of DRAM in front of each socket's memory: direct-mapped, lines of 64 B, written back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DramCache {
    /// What one socket's cache holds.
    pub capacity: Sourced<Bytes>,
    /// Idle latency of a load that the own socket's cache has.
    pub latency: Sourced<Nanos>,
    /// Bandwidth of one socket's cache, reads and writes together.
    pub bandwidth: Sourced<BytesPerSecond>,
    /// Bandwidth of the link between the sockets, in each direction.
    pub link_bandwidth: Sourced<BytesPerSecond>,
}

impl DramCache {
    /// Checks what the types cannot: returns the field and what is wrong with it.
    pub(crate) fn validate(&self, tiers: &[TierFile]) -> Result<(), (String, String)> {
        let bad =
            |field: &str, message: &str| Err((format!("dram-cache.{field}"), message.to_owned()));
        let [near, far] = tiers else {
            return bad(
                "capacity",
                "such a machine has two tiers: the near socket's, the far one's",
            );
        };
        if self.capacity.value < Bytes::kib(4) {
            return bad("capacity", "must be at least one page");
        }
        if near.capacity.value < self.capacity.value || far.capacity.value < self.capacity.value {
            return bad("capacity", "must not be above the memory behind the cache");
        }
        if far.read_latency.value < near.read_latency.value {
            return bad(
                "latency",
                "the far socket's memory must not be nearer than the near one's",
            );
        }
        for (field, bandwidth) in
            [("bandwidth", &self.bandwidth), ("link-bandwidth", &self.link_bandwidth)]
        {
            if bandwidth.value.get() <= 0.0 {
                return bad(field, "must be above zero");
            }
        }
        Ok(())
    }
}
