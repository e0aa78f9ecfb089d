//! What a policy is told about one processor's node.

use core::fmt;

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};

/// Number of a NUMA node, as the kernel counts them.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// The three watermarks of a node's zones, summed.
///
/// The kernel wakes its reclaim below `low`, stops it above `high`, and lets
/// only privileged allocations below `min`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Watermarks {
    /// Below this, an allocation reclaims memory itself.
    pub min: Bytes,
    /// Below this, background reclaim is woken.
    pub low: Bytes,
    /// Above this, background reclaim sleeps.
    pub high: Bytes,
}

/// One processor's node at one moment, with the slow memory that is near it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// The node whose processors allocate.
    pub node: NodeId,
    /// When this was true, on the world's clock.
    pub now: Nanos,
    /// Capacity of the node's own DRAM that the kernel manages.
    pub dram: Bytes,
    /// Free DRAM of the node.
    pub dram_free: Bytes,
    /// Slow memory near this node that is online.
    pub integrated: Bytes,
    /// The free part of it.
    pub integrated_free: Bytes,
    /// Slow memory near this node that is hidden and could be brought online.
    pub hidden: Bytes,
    /// Granularity of changes: the kernel's memory block.
    pub block: Bytes,
    /// Watermarks of the node's zones.
    pub watermarks: Watermarks,
}

impl NodeView {
    /// Free local memory: what the paper calls the free pages on Link1.
    pub fn local_free(&self) -> Bytes {
        self.dram_free + self.integrated_free
    }

    /// Slow memory near the node, hidden or not.
    pub fn installed(&self) -> Bytes {
        self.integrated + self.hidden
    }

    /// An amount rounded down to whole blocks.
    pub fn blocks_down(&self, amount: Bytes) -> Bytes {
        if self.block.is_zero() { Bytes::ZERO } else { Bytes(amount.0 - amount.0 % self.block.0) }
    }

    /// An amount rounded up to whole blocks.
    pub fn blocks_up(&self, amount: Bytes) -> Bytes {
        self.blocks_down(amount + self.block - Bytes(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded_to_whole_blocks() {
        let view = NodeView {
            node: NodeId(0),
            now: Nanos::ZERO,
            dram: Bytes::gib(4),
            dram_free: Bytes::gib(1),
            integrated: Bytes::ZERO,
            integrated_free: Bytes::ZERO,
            hidden: Bytes::gib(8),
            block: Bytes::mib(128),
            watermarks: Watermarks::default(),
        };
        assert_eq!(view.blocks_down(Bytes::mib(300)), Bytes::mib(256));
        assert_eq!(view.blocks_up(Bytes::mib(300)), Bytes::mib(384));
        assert_eq!(view.blocks_up(Bytes::mib(256)), Bytes::mib(256));
        assert_eq!(view.blocks_up(Bytes::ZERO), Bytes::ZERO);
        assert_eq!(view.installed(), Bytes::gib(8));
    }
}
