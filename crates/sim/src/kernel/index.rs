//! Which pages of a file are cached: nodes of 64 slots, as in the kernel's `xarray`.

use super::memory::NONE;
use super::slab::Object;

/// Slots of a node (`XA_CHUNK_SIZE`).
const SLOTS: u32 = 64;

/// A node.
#[derive(Clone, Debug)]
struct Node {
    pages: [u32; SLOTS as usize],
    used: u8,
    object: Object,
}

/// Nodes of all files.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    unused: Vec<u32>,
}

/// A file's nodes, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    nodes: Vec<u32>,
    /// Pages in it.
    pub(super) cached: u32,
}

impl Nodes {
    /// The page at a place of a file, and the object of its node.
    pub(super) fn get(&self, index: &Index, at: u32) -> Option<(u32, Object)> {
        let node = self.node(index, at)?;
        let page = node.pages[(at % SLOTS) as usize];
        (page != NONE).then_some((page, node.object))
    }

    /// The object of the node that a place has, if there is one.
    pub(super) fn object(&self, index: &Index, at: u32) -> Option<Object> {
        Some(self.node(index, at)?.object)
    }

    fn node(&self, index: &Index, at: u32) -> Option<&Node> {
        let number = *index.nodes.get((at / SLOTS) as usize)?;
        self.nodes.get(number as usize)
    }

    /// Adds a node for a place that has none.
    pub(super) fn grow(&mut self, index: &mut Index, at: u32, object: Object) {
        let node = Node { pages: [NONE; SLOTS as usize], used: 0, object };
        let number = if let Some(number) = self.unused.pop() {
            self.nodes[number as usize] = node;
            number
        } else {
            // Doubling would have half of the state lie idle.
            if self.nodes.len() == self.nodes.capacity() {
                self.nodes.reserve_exact(self.nodes.len() / 16 + 16);
            }
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        };
        let place = (at / SLOTS) as usize;
        if index.nodes.len() <= place {
            index.nodes.resize(place + 1, NONE);
        }
        index.nodes[place] = number;
    }

    /// Enters a page; its place has a node.
    pub(super) fn insert(&mut self, index: &mut Index, at: u32, page: u32) {
        let node = &mut self.nodes[index.nodes[(at / SLOTS) as usize] as usize];
        debug_assert_eq!(node.pages[(at % SLOTS) as usize], NONE);
        node.pages[(at % SLOTS) as usize] = page;
        node.used += 1;
        index.cached += 1;
    }

    /// Takes a page out; gives the object of its node if that is empty and gone.
    pub(super) fn remove(&mut self, index: &mut Index, at: u32) -> Option<Object> {
        let number = index.nodes[(at / SLOTS) as usize];
        let node = &mut self.nodes[number as usize];
        node.pages[(at % SLOTS) as usize] = NONE;
        node.used -= 1;
        index.cached -= 1;
        if node.used > 0 {
            return None;
        }
        index.nodes[(at / SLOTS) as usize] = NONE;
        self.unused.push(number);
        Some(node.object)
    }

    /// All pages of a file, in order.
    pub(super) fn pages(&self, index: &Index) -> Vec<u32> {
        let nodes = index.nodes.iter().filter(|&&number| number != NONE);
        nodes
            .flat_map(|&number| self.nodes[number as usize].pages)
            .filter(|&page| page != NONE)
            .collect()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.unused.capacity() * 4
    }
}

impl Index {
    pub(super) fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * 4
    }
}
