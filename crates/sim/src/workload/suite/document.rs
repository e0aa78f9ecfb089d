//! A walk through a document's tree from its root, with the text of each node looked at:
//! 483.xalancbmk; with larger nodes and several passes the trees of a compiler, 403.gcc.

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::Bytes;

use crate::exact::Access;
use crate::workload::SimRng;
use crate::workload::observed::{Kernel, Observer, Span, Step};
use crate::workload::updates::below;

/// Children of a node.
const CHILDREN: u64 = 4;
/// Nodes that were allocated beside each other lie together, but for one in so many. Assumed:
/// memory that was freed in between is used again.
const STREWN: u64 = 4;

/// A tree, and the walk.
pub struct Document {
    nodes: Span,
    /// Bytes of a node with its text.
    node: u64,
    /// Instructions for a node.
    work: u64,
    /// Where each node lies.
    places: Vec<u32>,
    /// Nodes that are still to be looked at.
    stack: Vec<u64>,
}

impl Document {
    /// A tree of about so many bytes with nodes of so many, and instructions for each.
    pub fn new(size: Bytes, node: u64, work: u64, seed: u64, observer: &mut Observer) -> Self {
        let count = (size.get() / node).max(64);
        let mut rng = SimRng::seed_from_u64(seed);
        let mut places: Vec<u32> = (0..count as u32).collect();
        for i in 0..places.len() {
            if below(&mut rng, STREWN) == 0 {
                places.swap(i, below(&mut rng, count) as usize);
            }
        }
        let nodes = observer.allocate(count * node);
        Self { nodes, node, work, places, stack: vec![0] }
    }
}

impl Kernel for Document {
    fn describe(&self) -> String {
        format!("a tree of {} nodes of {} bytes", self.places.len(), self.node)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        let Some(node) = self.stack.pop() else {
            self.stack.push(0);
            return Step::More;
        };
        let place = u64::from(self.places[node as usize]) * self.node;
        // Its kind and its first child, by a pointer; then name and text.
        observer.access(Access::load(self.nodes.address(place)).dependent());
        self.nodes.load(place + 8, observer);
        let mut at = 64;
        while at < self.node {
            self.nodes.load(place + at, observer);
            self.nodes.load(place + at + 8, observer);
            observer.work(self.work / 8);
            at += 64;
        }
        observer.work(self.work);
        let first = node * CHILDREN + 1;
        let last = (first + CHILDREN).min(self.places.len() as u64);
        // The next brother is read from the node before it.
        self.stack.extend((first..last).rev());
        Step::More
    }
}
