//! What slow memory a machine has, and whether it is hidden.
//!
//! Everything is read below a root directory, so that tests and reports of
//! other machines need no such hardware. Memory is told by its node and its
//! distance; device numbers do not follow node numbers.
//!
//! | file | concept |
//! |---|---|
//! | `files` | small files of sysfs and procfs, read |
//! | `memory` | the kernel's memory blocks |
//! | `devices` | DAX devices and namespaces that could become memory |
//! | [`advice`] | what stands in the way, with its remedy |

pub mod advice;
mod devices;
mod files;
mod memory;

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use thiserror::Error;

pub use self::devices::{Device, DeviceKind};
use self::files::Files;
use crate::blocks::{BlockState, Pool};
use crate::view::{NodeId, NodeView};
use crate::zoneinfo::{NodeMemory, ZoneInfo, ZoneInfoError};

/// Why a machine's files cannot be read.
#[derive(Debug, Error)]
pub enum DiscoverError {
    /// A file that every Linux machine with memory hotplug has is missing or unreadable.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file's content is not what the kernel writes there.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// `/proc/zoneinfo` is not what the kernel writes there.
    #[error("{}: {error}", path.display())]
    Zones {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: ZoneInfoError,
    },
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub node: NodeId,
    /// Whether it has processors.
    pub has_cpu: bool,
    /// What the page allocator manages of it.
    pub memory: NodeMemory,
    /// Distances to nodes, by the firmware's table (SLIT); 10 is local.
    pub distance: Vec<(NodeId, u32)>,
}

/// Settings of the kernel that decide how memory that comes in is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelSettings {
    /// `/sys/kernel/mm/numa/demotion_enabled`; `None` where the kernel has no such file.
    pub demotion: Option<bool>,
    /// `vm.watermark_scale_factor`, in ten thousandths of a zone.
    pub watermark_scale_factor: Option<u64>,
    /// `vm.overcommit_memory`.
    pub overcommit: Option<u64>,
    /// Whether page descriptors may lie in the memory that they describe.
    pub memmap_on_memory: Option<bool>,
    /// What the kernel does with new blocks: `offline`, `online_movable`, …
    pub auto_online: Option<String>,
    /// Whether the kernel tells of memory pressure (`/proc/pressure/memory`).
    pub pressure: bool,
}

/// A machine's slow memory, and what else the policies need.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// Size of a memory block.
    pub block: Bytes,
    /// Nodes, in ascending order.
    pub nodes: Vec<Node>,
    /// Memory blocks that may come and go.
    pub pools: Vec<Pool>,
    /// Devices that could become memory.
    pub devices: Vec<Device>,
    /// The kernel's settings.
    pub settings: KernelSettings,
}

impl Machine {
    /// Reads the machine whose procfs and sysfs are below `root`; `page` is the size of a base
    /// page.
    pub fn discover(root: &Path, page: Bytes) -> Result<Self, DiscoverError> {
        let files = Files::below(root);
        let block = files.hex("sys/devices/system/memory/block_size_bytes").map(Bytes)?;
        let zones = files.text("proc/zoneinfo")?;
        let zones = ZoneInfo::parse(&zones)
            .map_err(|error| DiscoverError::Zones { path: files.path("proc/zoneinfo"), error })?;
        let nodes = nodes(&files, &zones, page)?;
        let devices = devices::devices(&files)?;
        let pools = memory::pools(&files, block, &nodes)?;
        Ok(Self { block, nodes, pools, devices, settings: settings(&files)? })
    }

    /// The node with processors that a node's memory is nearest to; the lowest of several.
    fn nearest_to(&self, target: NodeId) -> Option<NodeId> {
        let far = |node: &&Node| (self.distance(node.node, target).unwrap_or(u32::MAX), node.node);
        let with_cpu = self.nodes.iter().filter(|node| node.has_cpu);
        with_cpu.min_by_key(far).map(|node| node.node)
    }

    /// Distance between two nodes; `None` where the firmware names none.
    pub fn distance(&self, from: NodeId, to: NodeId) -> Option<u32> {
        let from = self.nodes.iter().find(|node| node.node == from)?;
        from.distance.iter().find(|(node, _)| *node == to).map(|(_, far)| *far)
    }

    /// The devices that a node with processors is nearest to.
    pub fn devices_of(&self, node: NodeId) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(move |device| {
            device.target_node.is_some_and(|target| self.nearest_to(target) == Some(node))
        })
    }

    /// What a policy is told about a node with processors.
    pub fn view(&self, node: &Node, now: Nanos) -> NodeView {
        let near = |target: NodeId| self.nearest_to(target) == Some(node.node);
        let pools = || self.pools.iter().filter(|pool| near(pool.target_node));
        let online: Bytes = pools().map(|pool| pool.amount(|s| s != BlockState::Hidden)).sum();
        let hidden: Bytes = pools().map(|pool| pool.amount(|s| s == BlockState::Hidden)).sum();
        let bindable: Bytes = self.devices_of(node.node).map(|device| device.size).sum();
        // Memory of a node without processors is slow memory; of the node itself the kernel does
        // not say which part is.
        let apart = |pool: &&Pool| pool.target_node != node.node;
        let far = pools().filter(apart).map(|pool| pool.target_node);
        let free: Bytes = far
            .filter_map(|target| self.nodes.iter().find(|node| node.node == target))
            .map(|node| node.memory.free)
            .sum();
        let own: Bytes = pools()
            .filter(|pool| pool.target_node == node.node)
            .map(|pool| pool.amount(|s| s != BlockState::Hidden))
            .sum();
        NodeView {
            node: node.node,
            now,
            dram: node.memory.managed.saturating_sub(own),
            dram_free: node.memory.free,
            integrated: online,
            integrated_free: free,
            hidden: hidden + bindable,
            block: self.block,
            watermarks: node.memory.watermarks,
        }
    }
}

fn nodes(files: &Files, zones: &ZoneInfo, page: Bytes) -> Result<Vec<Node>, DiscoverError> {
    let directory = "sys/devices/system/node";
    let numbers = files.numbered(directory, "node")?;
    let mut nodes = Vec::new();
    for &number in &numbers {
        let node = NodeId(number as u32);
        let here = format!("{directory}/node{number}");
        let distance = files.text(&format!("{here}/distance"))?;
        let distance = distance
            .split_whitespace()
            .zip(&numbers)
            .map(|(far, &to)| {
                let far = far.parse().map_err(|_| {
                    files.content(&format!("{here}/distance"), format!("`{far}` is no distance"))
                })?;
                Ok((NodeId(to as u32), far))
            })
            .collect::<Result<_, DiscoverError>>()?;
        let has_cpu = !files.text(&format!("{here}/cpulist"))?.trim().is_empty();
        nodes.push(Node { node, has_cpu, memory: zones.memory(node, page), distance });
    }
    Ok(nodes)
}

fn settings(files: &Files) -> Result<KernelSettings, DiscoverError> {
    let yes = |text: String| matches!(text.trim(), "1" | "Y" | "y" | "true");
    let number = |path: &str| -> Result<Option<u64>, DiscoverError> {
        let Some(text) = files.optional(path)? else { return Ok(None) };
        let parsed = text.trim().parse();
        parsed.map(Some).map_err(|_| files.content(path, format!("`{}`", text.trim())))
    };
    Ok(KernelSettings {
        demotion: files.optional("sys/kernel/mm/numa/demotion_enabled")?.map(yes),
        watermark_scale_factor: number("proc/sys/vm/watermark_scale_factor")?,
        overcommit: number("proc/sys/vm/overcommit_memory")?,
        memmap_on_memory: files
            .optional("sys/module/memory_hotplug/parameters/memmap_on_memory")?
            .map(yes),
        auto_online: files
            .optional("sys/devices/system/memory/auto_online_blocks")?
            .map(|text| text.trim().to_owned()),
        pressure: files.optional("proc/pressure/memory")?.is_some(),
    })
}

#[cfg(test)]
mod tests;
