//! The nodes by turns.
//!
//! The paper looks at one node after the other (section 4.3.2), so that a node
//! that keeps asking does not take what the next one needs.

use crate::view::NodeId;

/// Hands out nodes by turns.
#[derive(Clone, Debug)]
pub struct Rotation {
    nodes: Vec<NodeId>,
    first: usize,
}

impl Rotation {
    /// Begins with the first of these nodes.
    pub fn new(nodes: Vec<NodeId>) -> Self {
        Self { nodes, first: 0 }
    }

    /// All nodes once; each call begins with the node after the one that the call before began
    /// with.
    pub fn turn(&mut self) -> impl Iterator<Item = NodeId> + use<> {
        let first = self.first;
        self.first = (first + 1) % self.nodes.len().max(1);
        let (before, from) = self.nodes.split_at(first);
        [from, before].concat().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_is_first_in_its_turn() {
        let mut rotation = Rotation::new(vec![NodeId(1), NodeId(2), NodeId(3)]);
        let mut firsts = Vec::new();
        for _ in 0..4 {
            let turn: Vec<_> = rotation.turn().collect();
            assert_eq!(turn.len(), 3);
            firsts.push(turn[0].0);
        }
        assert_eq!(firsts, [1, 2, 3, 1]);
        assert_eq!(Rotation::new(Vec::new()).turn().count(), 0);
    }
}
