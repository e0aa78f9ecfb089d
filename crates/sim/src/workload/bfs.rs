//! Breadth-first search as in Graph500: from random roots through a Kronecker
//! graph, top down, with an array of parents and a queue.

use core::ops::Range;

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::Bytes;

use super::SimRng;
use super::kronecker::Graph;
use super::observed::{Array, Kernel, Observer, Step};
use super::share::Turns;
use super::updates::below;

/// A vertex that was not reached.
const NOBODY: u32 = u32::MAX;
/// Searches of a run: Graph500's.
const ROOTS: u32 = 64;
/// Parents that are reset in a step.
const RESET: usize = 64;

/// A graph and a search through it.
pub struct Bfs {
    offsets: Array<u64>,
    neighbours: Array<u32>,
    parents: Array<u32>,
    queue: Array<u32>,
    /// Vertices of the queue whose neighbours are looked at: one level of the
    /// search. `None` while parents are reset.
    level: Option<Range<usize>>,
    tail: usize,
    /// How threads share parents to reset, and a level.
    turns: Turns,
    root: u32,
    searches: u32,
    rng: SimRng,
}

impl Bfs {
    /// A Kronecker graph of about so many bytes, parents and queue included.
    pub fn new(size: Bytes, seed: u64, threads: usize, observer: &mut Observer) -> Self {
        let graph = Graph::kronecker(Graph::scale_within(size.get(), 16, 4), seed);
        let vertices = graph.offsets.len() - 1;
        Self {
            offsets: observer.array(graph.offsets),
            neighbours: observer.array(graph.targets),
            parents: observer.array(vec![NOBODY; vertices]),
            queue: observer.array(vec![0; vertices]),
            level: None,
            tail: 0,
            turns: Turns::new(threads, RESET),
            root: 0,
            searches: 0,
            rng: SimRng::seed_from_u64(seed ^ 0xbf5),
        }
    }

    /// Resets some parents; the last thread begins a search.
    fn prepare(&mut self, thread: usize, observer: &mut Observer) -> Step {
        let all = self.parents.len();
        if let Some(first) = self.turns.item(thread, all) {
            for v in first..(first + RESET).min(all) {
                self.parents.set(v, NOBODY, observer);
                observer.work(1);
            }
            self.turns.pass(thread, RESET);
        }
        if self.turns.item(thread, all).is_some() {
            return Step::More;
        }
        if self.turns.end() {
            self.begin(observer);
        }
        Step::Barrier
    }

    fn begin(&mut self, observer: &mut Observer) {
        // Graph500 takes roots that have an edge.
        let offsets = self.offsets.unseen();
        let vertices = self.parents.len() as u64;
        self.root = loop {
            let v = below(&mut self.rng, vertices) as usize;
            if offsets[v] < offsets[v + 1] {
                break v as u32;
            }
        };
        self.parents.set(self.root as usize, self.root, observer);
        self.queue.set(0, self.root, observer);
        (self.level, self.tail) = (Some(0..1), 1);
    }

    /// Looks at the neighbours of a vertex of the queue.
    fn visit(&mut self, place: usize, observer: &mut Observer) {
        let v = self.queue.get(place, observer);
        let from = self.offsets.follow(v as usize, observer) as usize;
        let to = self.offsets.get(v as usize + 1, observer) as usize;
        for i in from..to {
            let neighbour = self.neighbours.get(i, observer);
            observer.work(3);
            if self.parents.follow(neighbour as usize, observer) == NOBODY {
                self.parents.set(neighbour as usize, v, observer);
                self.queue.set(self.tail, neighbour, observer);
                self.tail += 1;
            }
        }
    }
}

impl Kernel for Bfs {
    fn describe(&self) -> String {
        let (vertices, edges) = (self.parents.len(), self.neighbours.len() / 2);
        format!("bfs, Kronecker graph of {vertices} vertices and {edges} edges")
    }

    fn threads(&self) -> usize {
        self.turns.threads()
    }

    fn step(&mut self, thread: usize, observer: &mut Observer) -> Step {
        if self.searches == ROOTS {
            return Step::Over;
        }
        let Some(level) = self.level.clone() else { return self.prepare(thread, observer) };
        if let Some(item) = self.turns.item(thread, level.len()) {
            self.visit(level.start + item, observer);
            self.turns.pass(thread, 1);
        }
        if self.turns.item(thread, level.len()).is_some() {
            return Step::More;
        }
        if self.turns.end() {
            self.level = Some(level.end..self.tail).filter(|next| !next.is_empty());
            self.searches += u32::from(self.level.is_none());
        }
        Step::Barrier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Graph500's own checks of a result: edges of the tree are edges of the
    /// graph, and everything that can be reached is in the tree, at its distance.
    #[test]
    fn a_search_finds_everything_at_its_distance() {
        for threads in [1, 3] {
            search(threads);
        }
    }

    fn search(threads: usize) {
        let mut observer = Observer::default();
        let mut kernel = Bfs::new(Bytes::mib(1), 5, threads, &mut observer);
        while kernel.searches == 0 {
            for thread in 0..threads {
                while kernel.step(thread, &mut observer) == Step::More {}
            }
        }
        let (offsets, neighbours) = (kernel.offsets.unseen(), kernel.neighbours.unseen());
        let parents = kernel.parents.unseen();
        let row = |v: usize| &neighbours[offsets[v] as usize..offsets[v + 1] as usize];
        let mut depth = vec![usize::MAX; parents.len()];
        depth[kernel.root as usize] = 0;
        let mut level = vec![kernel.root as usize];
        for distance in 1.. {
            let mut next = Vec::new();
            for &v in &level {
                for &w in row(v) {
                    if depth[w as usize] == usize::MAX {
                        depth[w as usize] = distance;
                        next.push(w as usize);
                    }
                }
            }
            if next.is_empty() {
                break;
            }
            level = next;
        }
        let mut reached = 0;
        for v in 0..parents.len() {
            assert_eq!(depth[v] == usize::MAX, parents[v] == NOBODY, "vertex {v}");
            if v as u32 == kernel.root || parents[v] == NOBODY {
                continue;
            }
            reached += 1;
            assert!(row(v).contains(&parents[v]), "{v} is no neighbour of its parent");
            assert_eq!(depth[parents[v] as usize] + 1, depth[v]);
        }
        assert!(reached > parents.len() / 4, "{reached} of {}", parents.len());
    }
}
