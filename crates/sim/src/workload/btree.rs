//! A B+ tree: look-ups of random keys, with updates and short scans, as in the
//! index of a database.
//!
//! A node is 256 B, sixteen keys and sixteen children or values; the leaves are
//! chained by their order. The tree is built bottom up from sorted keys, as an
//! index is created.

use terrace_core::Bytes;

use super::SimRng;
use super::observed::{Array, Kernel, Observer, Step};
use super::share::generators;
use super::updates::below;

/// Keys of a node.
const KEYS: usize = 16;
/// Words of a node: keys, then children or values.
const WORDS: usize = 2 * KEYS;
/// Leaves of a scan.
const SCAN: usize = 4;

/// A tree.
pub struct BTree {
    nodes: Array<u64>,
    root: usize,
    /// Levels above the leaves.
    height: u32,
    leaves: usize,
    keys: u64,
    /// One a thread.
    rngs: Vec<SimRng>,
}

impl BTree {
    /// A tree of about so many bytes; key `n` is `2 n`, so that every other
    /// look-up between two keys could miss.
    pub fn new(size: Bytes, seed: u64, threads: usize, observer: &mut Observer) -> Self {
        let all = (size.get() as usize / (WORDS * 8)).max(2);
        // Inner nodes are about one in sixteen.
        let leaves = (all * (KEYS - 1) / KEYS).max(1);
        let keys = (leaves * KEYS) as u64;
        let mut words: Vec<u64> = Vec::with_capacity(all * WORDS);
        for leaf in 0..leaves as u64 {
            let first = leaf * KEYS as u64;
            words.extend((0..KEYS as u64).map(|i| (first + i) * 2));
            words.extend((0..KEYS as u64).map(|i| first + i));
        }
        // Each level: the first keys of the nodes below, and where those are.
        let (mut level, mut height): (Vec<(u64, u64)>, u32) =
            ((0..leaves as u64).map(|leaf| (leaf * KEYS as u64 * 2, leaf)).collect(), 0);
        while level.len() > 1 {
            height += 1;
            let mut above = Vec::with_capacity(level.len().div_ceil(KEYS));
            for children in level.chunks(KEYS) {
                above.push((children[0].0, (words.len() / WORDS) as u64));
                let padded = |i: usize| children.get(i).copied();
                // Keys that are not there are larger than all.
                words.extend((0..KEYS).map(|i| padded(i).map_or(u64::MAX, |child| child.0)));
                words.extend((0..KEYS).map(|i| padded(i).map_or(0, |child| child.1)));
            }
            level = above;
        }
        let root = level[0].1 as usize;
        let rngs = generators(seed, threads);
        Self { nodes: observer.array(words), root, height, leaves, keys, rngs }
    }

    /// The last key of a node that is not above a key, by bisection.
    fn slot(&self, node: usize, key: u64, observer: &mut Observer) -> usize {
        let (mut low, mut high) = (0, KEYS);
        let mut first = true;
        while high - low > 1 {
            let middle = usize::midpoint(low, high);
            let word = node * WORDS + middle;
            // Which node came from the load before; its keys do not depend on each other.
            let found = if first {
                self.nodes.follow(word, observer)
            } else {
                self.nodes.get(word, observer)
            };
            first = false;
            observer.work(3);
            if found <= key { low = middle } else { high = middle }
        }
        low
    }

    /// The leaf and the slot of a key.
    fn find(&self, key: u64, observer: &mut Observer) -> (usize, usize) {
        let mut node = self.root;
        for _ in 0..self.height {
            let slot = self.slot(node, key, observer);
            node = self.nodes.get(node * WORDS + KEYS + slot, observer) as usize;
        }
        (node, self.slot(node, key, observer))
    }
}

impl Kernel for BTree {
    fn describe(&self) -> String {
        let bytes = Bytes((self.nodes.len() * 8) as u64);
        format!("btree, {} keys in {bytes}, {} levels", self.keys, self.height + 1)
    }

    fn threads(&self) -> usize {
        self.rngs.len()
    }

    fn step(&mut self, thread: usize, observer: &mut Observer) -> Step {
        let rng = &mut self.rngs[thread];
        let dice = below(rng, 100);
        let key = below(rng, self.keys) * 2;
        observer.work(12);
        let (leaf, slot) = self.find(key, observer);
        match dice {
            // 80 % look-ups, 15 % updates, 5 % scans.
            0..80 => {
                self.nodes.get(leaf * WORDS + KEYS + slot, observer);
            }
            80..95 => {
                let place = leaf * WORDS + KEYS + slot;
                let value = self.nodes.get(place, observer);
                self.nodes.set(place, value.wrapping_add(1), observer);
            }
            _ => {
                for next in leaf..(leaf + SCAN).min(self.leaves) {
                    for i in 0..KEYS {
                        self.nodes.get(next * WORDS + KEYS + i, observer);
                        observer.work(1);
                    }
                }
            }
        }
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wrong turn would still be a plausible stream of accesses.
    #[test]
    fn every_key_is_found_where_it_is() {
        let mut observer = Observer::default();
        let tree = BTree::new(Bytes::mib(1), 1, 1, &mut observer);
        assert!(tree.height >= 2);
        for n in (0..tree.keys).step_by(7) {
            for key in [n * 2, n * 2 + 1] {
                let (leaf, slot) = tree.find(key, &mut observer);
                let nodes = tree.nodes.unseen();
                assert_eq!(nodes[leaf * WORDS + slot], n * 2, "key {key}");
                assert_eq!(nodes[leaf * WORDS + KEYS + slot], n);
            }
        }
    }
}
