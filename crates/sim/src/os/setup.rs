//! Nodes, distances, and settings of the kernel.

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Machine, Nanos};
use terrace_provision::NodeId;

use super::watermarks::MarkSettings;
use crate::error::SimError;

/// What pages a zone may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ZoneKind {
    /// Anything, objects of the kernel too: its blocks may never leave again.
    Normal,
    /// Pages of programs only: its blocks can leave.
    Movable,
}

/// Where the descriptors of memory lie that comes online.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageDescriptors {
    /// In memory that is online already, by the fallback list of the node: Linux's default. Where
    /// slow memory joins a zone for anything, that is the slow memory before it.
    #[default]
    Elsewhere,
    /// In memory of nodes with processors: the paper's wish, as descriptors are written often.
    Dram,
    /// In the memory itself (`memmap_on_memory`).
    Itself,
}

/// A node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSetup {
    /// Its number.
    pub node: NodeId,
    /// Processors.
    pub processors: u32,
    /// Memory that is there from the start, in a zone for anything.
    pub booted: Bytes,
    /// Memory that is hidden at the start.
    pub hidden: Bytes,
}

/// A machine and how its kernel is set.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The nodes, in ascending order of their numbers.
    pub nodes: Vec<NodeSetup>,
    /// Distances between nodes by their places in `nodes`, as the firmware's table has them.
    pub distance: Vec<Vec<u32>>,
    /// What comes online and goes offline at a time.
    pub block: Bytes,
    /// What the kernel keeps of each base page.
    pub page_descriptor: Bytes,
    /// Where descriptors of hidden memory lie when it is online.
    pub page_descriptors: PageDescriptors,
    /// The zone that hidden memory joins.
    pub zone: ZoneKind,
    /// Watermarks.
    pub marks: MarkSettings,
    /// What the kernel holds of each node's booted memory, beside page descriptors.
    pub kernel: Bytes,
    /// Whether pages of programs leave DRAM for slow memory where the kernel is short
    /// (`demotion_enabled`).
    pub demotion: bool,
    /// What it takes to bring a block online.
    pub online: Nanos,
    /// What it takes to take an empty block offline; pages in it are copied beside that.
    pub offline: Nanos,
    /// How fast pages are copied out of a block that leaves.
    pub copy: terrace_core::BytesPerSecond,
}

impl Setup {
    /// The machine of a machine file with a part `[numa]`: nodes with processors and DRAM first,
    /// then the nodes of slow memory in the same order, all of it hidden.
    pub fn of(machine: &Machine) -> Result<Self, SimError> {
        let Some(numa) = &machine.numa else {
            let message = format!(
                "`{}` has no [numa] about nodes, which the simulation of an operating system needs",
                machine.name
            );
            return Err(SimError::parameter("machine", message));
        };
        let sockets = numa.nodes.value;
        let node = |number: u32| {
            let has_processors = number < sockets;
            let [dram, slow] = [0, 1].map(|tier: usize| machine.tiers[tier].capacity.value);
            NodeSetup {
                node: NodeId(number),
                processors: if has_processors { machine.cpu.cores.value } else { 0 },
                booted: if has_processors { dram } else { Bytes::ZERO },
                hidden: if has_processors { Bytes::ZERO } else { slow },
            }
        };
        let distance = |a: u32, b: u32| match (a == b, a % sockets == b % sockets) {
            (true, _) => 10,
            (_, true) => numa.near_slow_distance.value,
            // Between two nodes of slow memory nothing allocates; the larger one.
            _ if a >= sockets || b >= sockets => numa.far_slow_distance.value,
            _ => numa.far_distance.value,
        };
        let all = 0..2 * sockets;
        Ok(Self {
            nodes: all.clone().map(node).collect(),
            distance: all.clone().map(|a| all.clone().map(|b| distance(a, b)).collect()).collect(),
            block: numa.block.value,
            page_descriptor: numa.page_descriptor.value,
            page_descriptors: PageDescriptors::default(),
            zone: ZoneKind::Movable,
            marks: MarkSettings::default(),
            kernel: Bytes::ZERO,
            demotion: false,
            online: numa.online.value,
            offline: numa.offline.value,
            copy: machine.costs.copy_bandwidth.value,
        })
    }

    /// The node of slow memory near a node with processors.
    pub fn slow_near(&self, node: NodeId) -> Option<NodeId> {
        let at = self.place(node)?;
        let slow = (0..self.nodes.len()).filter(|&other| self.nodes[other].processors == 0);
        slow.min_by_key(|&other| (self.distance[at][other], other)).map(|at| self.nodes[at].node)
    }

    /// A node's place in `nodes`.
    pub(super) fn place(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|other| other.node == node)
    }

    /// What is wrong with it.
    pub(super) fn check(&self) -> Result<(), SimError> {
        let bad = |message: String| Err(SimError::parameter("nodes", message));
        let count = self.nodes.len();
        if count == 0 || count > 64 {
            return bad("there must be 1 to 64 nodes".into());
        }
        if self.distance.len() != count || self.distance.iter().any(|row| row.len() != count) {
            return bad(format!("the table of distances must have {count} rows and columns"));
        }
        if self.block.is_zero() || !self.block.get().is_multiple_of(super::system::PAGE.get()) {
            return bad("a block must be whole pages".into());
        }
        for node in &self.nodes {
            for amount in [node.booted, node.hidden] {
                if !amount.get().is_multiple_of(self.block.get()) {
                    return bad(format!("{}: {amount} are not whole blocks", node.node));
                }
            }
        }
        if self.nodes.iter().all(|node| node.booted.is_zero()) {
            return bad("some node must have memory from the start".into());
        }
        Ok(())
    }
}
