//! What is done to memory: one step at a time, in a form that is kept.

use core::fmt;

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;

use crate::blocks::{self, Block, BlockState, Chosen, Pool};
use crate::decision::Change;
use crate::discover::advice::metadata;
use crate::discover::{Device, Machine};
use crate::view::NodeId;

/// What the kernel may put into memory that comes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// Pages of programs, which can be moved: the memory can leave again.
    #[default]
    Movable,
    /// Anything, objects of the kernel's own included: the memory never leaves.
    Kernel,
}

/// A setting of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// Whether the kernel moves cold pages to slower memory when it runs short.
    Demotion,
    /// How much of each zone the kernel keeps free, in ten thousandths.
    WatermarkScaleFactor,
    /// What the kernel does with blocks that are new.
    AutoOnline,
    /// Whether programs may ask for more memory than there is.
    Overcommit,
}

impl Setting {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Demotion, Self::WatermarkScaleFactor, Self::AutoOnline, Self::Overcommit];

    /// The file of procfs or sysfs that holds it, below the root.
    pub fn path(self) -> &'static str {
        match self {
            Self::Demotion => "sys/kernel/mm/numa/demotion_enabled",
            Self::WatermarkScaleFactor => "proc/sys/vm/watermark_scale_factor",
            Self::AutoOnline => "sys/devices/system/memory/auto_online_blocks",
            Self::Overcommit => "proc/sys/vm/overcommit_memory",
        }
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Action {
    /// Bring a memory block online.
    Online {
        /// The kernel's number of the block.
        block: u64,
        /// The node that its memory belongs to.
        node: NodeId,
        /// Its size.
        size: Bytes,
        /// What may lie in it.
        r#use: Use,
    },
    /// Take a memory block offline.
    Offline {
        /// The kernel's number of the block.
        block: u64,
        /// The node that its memory belongs to.
        node: NodeId,
        /// Its size.
        size: Bytes,
    },
    /// Make a DAX device memory blocks, which are offline at first. What it holds is lost.
    Bind {
        /// The kernel's name of the device.
        device: String,
        /// The driver that it has now.
        driver: Option<String>,
        /// How much memory it becomes.
        size: Bytes,
        /// Whether its page descriptors are to lie in itself.
        memmap_on_memory: bool,
    },
    /// Make a DAX device a device again, all of whose blocks are offline: DRAM gets the room of
    /// its page descriptors back.
    Unbind {
        /// The kernel's name of the device.
        device: String,
        /// Its blocks.
        blocks: Vec<u64>,
        /// How much memory it was.
        size: Bytes,
    },
    /// Give a virtual machine more or less memory.
    Resize {
        /// The device's name in QEMU.
        device: String,
        /// What it has now.
        from: Bytes,
        /// What it is to have.
        to: Bytes,
    },
    /// Change a setting of the kernel.
    Set {
        /// Which.
        setting: Setting,
        /// Its value from now on.
        to: String,
    },
}

/// What a step is about: steps that fail are left alone for a while by this.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A memory block.
    Block(u64),
    /// A device.
    Device(String),
    /// A setting.
    Setting(Setting),
}

impl Action {
    /// What the step is about.
    pub fn target(&self) -> Target {
        match self {
            Self::Online { block, .. } | Self::Offline { block, .. } => Target::Block(*block),
            Self::Bind { device, .. }
            | Self::Unbind { device, .. }
            | Self::Resize { device, .. } => Target::Device(device.clone()),
            Self::Set { setting, .. } => Target::Setting(*setting),
        }
    }

    /// Whether it takes memory away that programs may use.
    pub fn takes(&self) -> bool {
        match self {
            Self::Offline { .. } => true,
            Self::Resize { from, to, .. } => to < from,
            Self::Online { .. } | Self::Bind { .. } | Self::Unbind { .. } | Self::Set { .. } => {
                false
            }
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Online { block, node, size, r#use } => {
                write!(f, "bring memory block {block} of {node} online ({size}")?;
                f.write_str(if *r#use == Use::Kernel { ", for the kernel, too)" } else { ")" })
            }
            Self::Offline { block, node, size } => {
                write!(f, "take memory block {block} of {node} offline ({size})")
            }
            Self::Bind { device, size, memmap_on_memory, .. } => {
                write!(f, "make {device} memory ({size}")?;
                f.write_str(if *memmap_on_memory {
                    ", its page descriptors in itself)"
                } else {
                    ")"
                })
            }
            Self::Unbind { device, size, .. } => {
                write!(f, "make {device} a device again ({size})")
            }
            Self::Resize { device, from, to } => {
                write!(f, "change {device} from {from} to {to}")
            }
            Self::Set { setting, to } => write!(f, "write {to} to /{}", setting.path()),
        }
    }
}

/// How slow memory is brought in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// What may lie in it.
    pub r#use: Use,
    /// Whether page descriptors of DAX devices are to lie in themselves.
    pub memmap_on_memory: bool,
    /// Whether one block near each node is for the kernel, too.
    pub kernel_block: bool,
}

impl Machine {
    /// The steps of a change near a node, in their order; `may` leaves out what is not to be
    /// touched now. They may be less than the change: blocks of a device are known when it is
    /// memory.
    pub fn steps(
        &self,
        node: NodeId,
        change: Change,
        how: How,
        may: impl Fn(&Target) -> bool,
    ) -> Vec<Action> {
        let near: Vec<Pool> = self
            .pools
            .iter()
            .filter(|pool| self.nearest_to(pool.target_node) == Some(node))
            .map(|pool| {
                let mut pool = pool.clone();
                pool.blocks.retain(|block| may(&Target::Block(block.number)));
                pool
            })
            .collect();
        let of = |chosen: &Chosen| near[chosen.pool.0].target_node;
        let size = self.block;
        match change {
            Change::Nothing => Vec::new(),
            Change::Remove(amount) => blocks::to_remove(&near, node, amount)
                .iter()
                .map(|chosen| Action::Offline { block: chosen.block, node: of(chosen), size })
                .collect(),
            Change::Integrate(amount) => {
                let chosen = blocks::to_integrate(&near, node, amount);
                let mut left = amount.saturating_sub(size * chosen.len() as u64);
                let is_kernel = |block: &Block| block.state == BlockState::Kernel;
                let has_one = near.iter().any(|pool| pool.blocks.iter().any(is_kernel));
                let lacks_one = how.kernel_block && !has_one;
                let mut steps: Vec<Action> = chosen
                    .iter()
                    .enumerate()
                    .map(|(at, chosen)| {
                        let (block, node) = (chosen.block, of(chosen));
                        let r#use = if lacks_one && at == 0 { Use::Kernel } else { how.r#use };
                        Action::Online { block, node, size, r#use }
                    })
                    .collect();
                let devices = self.devices_of(node).filter(|device| {
                    let is_large_enough = !device.memory(size).is_zero();
                    is_large_enough && may(&Target::Device(device.name.clone()))
                });
                for device in devices {
                    if left.is_zero() && !self.can_be_ahead(node, device, how) {
                        continue;
                    }
                    left -= device.memory(size);
                    steps.push(bind(device, size, how));
                }
                steps
            }
        }
    }
}

/// Page descriptors of a device may take this part of a node's free DRAM before it is needed.
const AHEAD: u64 = 8;

impl Machine {
    /// Whether a device is made memory ahead of need, while its node is short for the first time.
    /// When it is needed, DRAM is full, and there is no room for its page descriptors.
    fn can_be_ahead(&self, node: NodeId, device: &Device, how: How) -> bool {
        let free = self.nodes.iter().find(|other| other.node == node).map(|n| n.memory.free);
        let metadata = if how.memmap_on_memory { Bytes::ZERO } else { metadata(device.size) };
        free.is_some_and(|free| metadata <= free / AHEAD)
    }
}

fn bind(device: &Device, block: Bytes, how: How) -> Action {
    Action::Bind {
        device: device.name.clone(),
        driver: device.driver.clone(),
        size: device.memory(block),
        memmap_on_memory: how.memmap_on_memory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    fn steps(fixture: &Fixture, mib: u64, how: How) -> Vec<String> {
        let machine = fixture.machine().unwrap();
        let change = Change::Integrate(Bytes::mib(mib));
        let steps = machine.steps(NodeId(0), change, how, |_| true);
        steps.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn blocks_come_before_devices_and_devices_ahead_of_need_where_that_is_cheap() {
        let fixture = Fixture::new();
        fixture.device();
        let online = |block| format!("bring memory block {block} of node 2 online (128 MiB)");
        let device = "make dax1.0 memory (256 MiB)".to_owned();
        let with_device = [online(41), online(42), device];
        assert_eq!(steps(&fixture, 300, How::default()), with_device);
        // 4 MiB of page descriptors, and 1 GiB of DRAM is free.
        assert_eq!(steps(&fixture, 200, How::default()), with_device);
        let zones = fixture.read("proc/zoneinfo").replace("free     262144", "free     8000");
        fixture.write("proc/zoneinfo", &zones);
        assert_eq!(steps(&fixture, 200, How::default()), [online(41), online(42)]);
        let inside = How { memmap_on_memory: true, ..How::default() };
        let last = "make dax1.0 memory (256 MiB, its page descriptors in itself)";
        assert_eq!(steps(&fixture, 200, inside)[2], last);
    }

    #[test]
    fn one_block_for_the_kernel_is_enough() {
        let fixture = Fixture::new();
        let how = How { kernel_block: true, ..How::default() };
        let first = "bring memory block 41 of node 2 online (128 MiB, for the kernel, too)";
        assert_eq!(steps(&fixture, 128, how), [first]);
        fixture.block(41, 2, "online", "Normal");
        assert_eq!(steps(&fixture, 128, how), ["bring memory block 42 of node 2 online (128 MiB)"]);
    }

    #[test]
    fn what_is_left_alone_is_in_no_step() {
        let machine = Fixture::new().machine().unwrap();
        let change = Change::Integrate(Bytes::mib(256));
        let may = |target: &Target| *target != Target::Block(41);
        let steps = machine.steps(NodeId(0), change, How::default(), may);
        assert!(matches!(steps[..], [Action::Online { block: 42, .. }]), "{steps:?}");
    }
}
