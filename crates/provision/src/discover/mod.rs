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
//! | [`firmware`] | memory for a special purpose that the firmware tells of, and whether a driver has it |
//! | [`advice`] | what stands in the way, with its remedy |

pub mod advice;
mod devices;
mod files;
pub mod firmware;
mod memory;

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use thiserror::Error;

pub use self::devices::{Device, DeviceKind, KMEM};
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
    /// DAX devices that are memory: their blocks are among the pools'.
    pub bound: Vec<Device>,
    /// Memory for a special purpose that the firmware tells of.
    pub firmware: Vec<firmware::Range>,
    /// The kernel's settings.
    pub settings: KernelSettings,
}

impl Machine {
    /// Reads the machine whose procfs and sysfs are below `root`; `page` is the size of a base
    /// page.
    pub fn discover(root: &Path, page: Bytes) -> Result<Self, DiscoverError> {
        let files = Files::below(root);
        let block = files.hex("sys/devices/system/memory/block_size_bytes").map(Bytes)?;
        let zones = zones(&files)?;
        let nodes = nodes(&files, &zones, page)?;
        let (devices, bound) = devices::devices(&files, block)?;
        let pools = memory::pools(&files, block, &nodes)?;
        let firmware = firmware::ranges(&files)?;
        Ok(Self { block, nodes, pools, devices, bound, firmware, settings: settings(&files)? })
    }

    /// Reads anew how much memory each node has, which is far less work than everything.
    pub fn refresh_memory(&mut self, root: &Path, page: Bytes) -> Result<(), DiscoverError> {
        let files = Files::below(root);
        let zones = zones(&files)?;
        for node in &mut self.nodes {
            node.memory = zones.memory(node.node, page);
        }
        Ok(())
    }

    /// Numbers of all memory blocks of a node, in use or not.
    pub fn blocks_of(&self, root: &Path, node: NodeId) -> Result<Vec<u64>, DiscoverError> {
        let (files, directory) = (Files::below(root), "sys/devices/system/memory");
        let mut found = Vec::new();
        for number in files.numbered(directory, "memory")? {
            let nodes = files.numbered(&format!("{directory}/memory{number}"), "node")?;
            found.extend(nodes.contains(&u64::from(node.0)).then_some(number));
        }
        Ok(found)
    }

    /// Leaves slow memory of other nodes than these alone.
    pub fn keep_only(&mut self, nodes: &[NodeId]) {
        self.pools.retain(|pool| nodes.contains(&pool.target_node));
        let is_kept = |d: &Device| d.target_node.is_some_and(|target| nodes.contains(&target));
        self.devices.retain(is_kept);
        self.bound.retain(is_kept);
    }

    /// The node with processors that a node's memory is nearest to; the lowest of several.
    pub fn nearest_to(&self, target: NodeId) -> Option<NodeId> {
        let far = |node: &&Node| (self.distance(node.node, target).unwrap_or(u32::MAX), node.node);
        let with_cpu = self.nodes.iter().filter(|node| node.has_cpu);
        with_cpu.min_by_key(far).map(|node| node.node)
    }

    /// The node with processors whose slow memory a node is; `None` for one with processors.
    pub fn slow_of(&self, node: NodeId) -> Option<NodeId> {
        let has_cpu = self.nodes.iter().any(|other| other.node == node && other.has_cpu);
        if has_cpu { None } else { self.nearest_to(node) }
    }

    /// Distance between two nodes; `None` where the firmware names none.
    pub fn distance(&self, from: NodeId, to: NodeId) -> Option<u32> {
        let from = self.nodes.iter().find(|node| node.node == from)?;
        from.distance.iter().find(|(node, _)| *node == to).map(|(_, far)| *far)
    }

    /// The devices that a node with processors is nearest to.
    pub fn devices_of(&self, node: NodeId) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(move |device| {
            device.kind == DeviceKind::Dax && self.place_of(device) == Some(node)
        })
    }

    /// The node with processors that a device is nearest to. A node that has had no memory yet has
    /// no distances; then it is the one that the kernel names as nearest.
    pub fn place_of(&self, device: &Device) -> Option<NodeId> {
        let target = device.target_node?;
        if self.nodes.iter().any(|node| node.node == target) {
            return self.nearest_to(target);
        }
        let mut with_cpu = self.nodes.iter().filter(|node| node.has_cpu).map(|node| node.node);
        match device.near {
            Some(near) => with_cpu.find(|node| *node == near),
            // Where there is but one, that is it.
            None => with_cpu.next().filter(|_| with_cpu.next().is_none()),
        }
    }

    /// Whether there is slow memory that could come or go: a memory block or a DAX device. A
    /// namespace is none before it is made a DAX device.
    pub fn has_any(&self) -> bool {
        let mut devices = self.devices.iter().chain(&self.bound);
        !self.pools.is_empty() || devices.any(|device| device.kind == DeviceKind::Dax)
    }

    /// What a policy is told about a node with processors.
    pub fn view(&self, node: &Node, now: Nanos) -> NodeView {
        let near = |target: NodeId| self.nearest_to(target) == Some(node.node);
        let pools = || self.pools.iter().filter(|pool| near(pool.target_node));
        let online: Bytes = pools().map(|pool| pool.amount(BlockState::is_online)).sum();
        let hidden: Bytes = pools().map(|pool| pool.amount(|s| s == BlockState::Hidden)).sum();
        let bindable: Bytes = self.devices_of(node.node).map(|d| d.memory(self.block)).sum();
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
            .map(|pool| pool.amount(BlockState::is_online))
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

fn zones(files: &Files) -> Result<ZoneInfo, DiscoverError> {
    let path = "proc/zoneinfo";
    let wrong = |error| DiscoverError::Zones { path: files.path(path), error };
    ZoneInfo::parse(&files.text(path)?).map_err(wrong)
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
        let has_cpu = files.any_processor(&format!("{here}/cpulist"))?;
        nodes.push(Node { node, has_cpu, memory: zones.memory(node, page), distance });
    }
    Ok(nodes)
}

fn settings(files: &Files) -> Result<KernelSettings, DiscoverError> {
    let number = |path: &str| -> Result<Option<u64>, DiscoverError> {
        let Some(text) = files.optional(path)? else { return Ok(None) };
        let parsed = text.trim().parse();
        parsed.map(Some).map_err(|_| files.content(path, format!("`{}`", text.trim())))
    };
    Ok(KernelSettings {
        demotion: files.switch("sys/kernel/mm/numa/demotion_enabled")?,
        watermark_scale_factor: number("proc/sys/vm/watermark_scale_factor")?,
        overcommit: number("proc/sys/vm/overcommit_memory")?,
        memmap_on_memory: files.switch("sys/module/memory_hotplug/parameters/memmap_on_memory")?,
        auto_online: files
            .optional("sys/devices/system/memory/auto_online_blocks")?
            .map(|text| text.trim().to_owned()),
        pressure: files.optional("proc/pressure/memory")?.is_some(),
    })
}

#[cfg(test)]
mod tests;
