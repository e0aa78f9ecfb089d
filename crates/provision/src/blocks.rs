//! Which memory blocks serve an amount, nearest first.
//!
//! The kernel takes memory online and offline by blocks (128 MiB on most
//! x86-64 machines). A pool is a set of blocks that behave alike: the same
//! node, the same distance. Pools are chosen by distance, never by the number
//! of a device: device numbers do not follow node numbers.

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;

use crate::view::NodeId;

/// Index of a pool in the list that discovery made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PoolId(pub usize);

/// Whether the kernel manages a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockState {
    /// Not in use.
    Hidden,
    /// In use, and can leave again.
    Movable,
    /// In use by the kernel itself: it never leaves.
    Kernel,
    /// In use; the kernel refused to give it back.
    Stuck,
    /// Not in use; the kernel refused to take it.
    Refused,
}

impl BlockState {
    /// Whether the kernel manages a block in this state.
    pub fn is_online(self) -> bool {
        matches!(self, Self::Movable | Self::Kernel | Self::Stuck)
    }
}

/// One memory block of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The kernel's number of the block.
    pub number: u64,
    /// Whether the kernel manages it.
    pub state: BlockState,
}

/// Blocks of slow memory that behave alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// What people call it: a DAX device, a range, a virtio-mem device.
    pub name: String,
    /// The node that the memory belongs to once it is online.
    pub target_node: NodeId,
    /// Its distance from a processor's node, by the firmware's table (SLIT); 10 is local.
    pub distance: Vec<(NodeId, u32)>,
    /// Size of a block.
    pub block: Bytes,
    /// The blocks, in ascending order of their numbers.
    pub blocks: Vec<Block>,
}

impl Pool {
    /// Distance from a node; `None` where the firmware names none.
    pub fn distance_from(&self, node: NodeId) -> Option<u32> {
        self.distance.iter().find(|(from, _)| *from == node).map(|(_, distance)| *distance)
    }

    /// Memory of the blocks in a state.
    pub fn amount(&self, is: impl Fn(BlockState) -> bool) -> Bytes {
        self.block * self.blocks.iter().filter(|block| is(block.state)).count() as u64
    }
}

/// A block of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The pool.
    pub pool: PoolId,
    /// Number of the block.
    pub block: u64,
}

/// The pools that a node may use, nearest first. Those without a known distance come last.
fn by_distance(pools: &[Pool], node: NodeId) -> Vec<PoolId> {
    let mut order: Vec<PoolId> = (0..pools.len()).map(PoolId).collect();
    order.sort_by_key(|id| (pools[id.0].distance_from(node).unwrap_or(u32::MAX), id.0));
    order
}

/// Hidden blocks that serve `amount` for a node: nearest pool first, lowest number first.
///
/// The last block may bring more than is left to serve. Fewer blocks are
/// returned where fewer are hidden.
pub fn to_integrate(pools: &[Pool], node: NodeId, amount: Bytes) -> Vec<Chosen> {
    let mut left = amount;
    let mut chosen = Vec::new();
    for pool in by_distance(pools, node) {
        let Pool { block: size, blocks, .. } = &pools[pool.0];
        for block in blocks.iter().filter(|block| block.state == BlockState::Hidden) {
            if left.is_zero() {
                return chosen;
            }
            chosen.push(Chosen { pool, block: block.number });
            left = left.saturating_sub(*size);
        }
    }
    chosen
}

/// Online blocks that may leave and together are at most `amount`: farthest pool first, highest
/// number first. What was brought in last leaves first.
pub fn to_remove(pools: &[Pool], node: NodeId, amount: Bytes) -> Vec<Chosen> {
    let mut left = amount;
    let mut chosen = Vec::new();
    for pool in by_distance(pools, node).into_iter().rev() {
        let Pool { block: size, blocks, .. } = &pools[pool.0];
        for block in blocks.iter().rev().filter(|block| block.state == BlockState::Movable) {
            if left < *size {
                break;
            }
            chosen.push(Chosen { pool, block: block.number });
            left = left.saturating_sub(*size);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use BlockState::*;

    fn pool(node: u32, distances: &[(u32, u32)], states: &[BlockState]) -> Pool {
        Pool {
            name: format!("pool{node}"),
            target_node: NodeId(node),
            distance: distances.iter().map(|&(node, far)| (NodeId(node), far)).collect(),
            block: Bytes::mib(128),
            blocks: states
                .iter()
                .enumerate()
                .map(|(i, &state)| Block { number: u64::from(node) * 100 + i as u64, state })
                .collect(),
        }
    }

    fn numbers(chosen: &[Chosen]) -> Vec<u64> {
        chosen.iter().map(|chosen| chosen.block).collect()
    }

    #[test]
    fn the_nearest_pool_serves_first_whatever_its_place_in_the_list() {
        let far = pool(3, &[(0, 28), (1, 17)], &[Hidden, Hidden]);
        let near = pool(2, &[(0, 17), (1, 28)], &[Hidden, Kernel, Hidden]);
        let pools = [far, near];
        assert_eq!(numbers(&to_integrate(&pools, NodeId(0), Bytes::mib(300))), [200, 202, 300]);
        assert_eq!(numbers(&to_integrate(&pools, NodeId(1), Bytes::mib(1))), [300]);
        assert_eq!(to_integrate(&pools, NodeId(0), Bytes::gib(9)).len(), 4, "all there is");
        assert!(to_integrate(&pools, NodeId(0), Bytes::ZERO).is_empty());
    }

    #[test]
    fn the_farthest_leaves_first_and_what_cannot_leave_stays() {
        let near = pool(2, &[(0, 17)], &[Movable, Stuck, Movable]);
        let far = pool(3, &[(0, 28)], &[Kernel, Movable]);
        let unknown = pool(4, &[], &[Movable]);
        let pools = [near, far, unknown];
        assert_eq!(numbers(&to_remove(&pools, NodeId(0), Bytes::gib(1))), [400, 301, 202, 200]);
        assert_eq!(numbers(&to_remove(&pools, NodeId(0), Bytes::mib(255))), [400], "whole blocks");
    }
}
