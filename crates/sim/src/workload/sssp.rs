//! Single-source shortest paths by delta-stepping (Meyer and Sanders), the
//! second kernel of Graph500: a Kronecker graph with weights between 0 and 1,
//! from one random root after the other.

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_core::Bytes;

use super::SimRng;
use super::kronecker::Graph;
use super::observed::{Array, Kernel, Observer, Span};
use super::updates::below;

/// Width of a bucket. Assumed: a quarter of the largest weight.
const DELTA: f32 = 0.25;

/// A graph, distances, and buckets of vertices to be settled.
pub struct Sssp {
    offsets: Array<u64>,
    targets: Array<u32>,
    weights: Array<f32>,
    distances: Array<f32>,
    /// Where entries of buckets lie: each is written and read once, in a ring.
    entries: Span,
    next_entry: u64,
    buckets: Vec<Vec<(u32, u64)>>,
    bucket: usize,
    /// Vertices that still have to be set to infinity.
    clearing: usize,
    rng: SimRng,
    roots: u64,
}

impl Sssp {
    /// A Kronecker graph of about so many bytes, buckets included.
    pub fn new(size: Bytes, seed: u64, observer: &mut Observer) -> Self {
        let scale = Graph::scale_within(size.get(), 8 + 4 + 16, 8);
        let graph = Graph::kronecker(scale, seed);
        let vertices = graph.offsets.len() - 1;
        let mut rng = SimRng::seed_from_u64(seed ^ 0x5353_5350);
        let unit = |rng: &mut SimRng| (rng.next_u64() >> 40) as f32 / (1u64 << 24) as f32;
        // Both directions of an edge weigh the same: the weight is a function of its ends.
        let salt = rng.next_u64();
        let mut weights = Vec::with_capacity(graph.targets.len());
        for v in 0..vertices {
            let row = graph.offsets[v] as usize..graph.offsets[v + 1] as usize;
            for &w in &graph.targets[row] {
                let ends = (v as u64).min(u64::from(w)) << 32 | (v as u64).max(u64::from(w));
                weights.push(unit(&mut SimRng::seed_from_u64(ends ^ salt)));
            }
        }
        Self {
            offsets: observer.array(graph.offsets),
            targets: observer.array(graph.targets),
            weights: observer.array(weights),
            distances: observer.array(vec![f32::INFINITY; vertices]),
            entries: observer.allocate(vertices as u64 * 16),
            next_entry: 0,
            buckets: Vec::new(),
            bucket: 0,
            clearing: vertices,
            rng,
            roots: 0,
        }
    }

    fn push(&mut self, vertex: u32, distance: f32, observer: &mut Observer) {
        let bucket = (distance / DELTA) as usize;
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, Vec::new());
        }
        let offset = self.next_entry * 8 % self.entries.bytes();
        self.next_entry += 1;
        self.entries.store(offset, observer);
        self.buckets[bucket].push((vertex, offset));
    }

    /// Begins at another root, one with edges.
    fn begin(&mut self, observer: &mut Observer) {
        let vertices = self.distances.len() as u64;
        let root = loop {
            let root = below(&mut self.rng, vertices) as usize;
            let offsets = self.offsets.unseen();
            if offsets[root] != offsets[root + 1] {
                break root;
            }
        };
        self.roots += 1;
        self.distances.set(root, 0.0, observer);
        self.push(root as u32, 0.0, observer);
    }

    fn relax(&mut self, vertex: usize, observer: &mut Observer) {
        let distance = self.distances.follow(vertex, observer);
        observer.work(3);
        // Settled in an earlier bucket: an entry that is out of date.
        if distance < self.bucket as f32 * DELTA {
            return;
        }
        let from = self.offsets.get(vertex, observer) as usize;
        let to = self.offsets.get(vertex + 1, observer) as usize;
        for i in from..to {
            let target = self.targets.get(i, observer) as usize;
            let reached = distance + self.weights.get(i, observer);
            let known = self.distances.follow(target, observer);
            observer.work(4);
            if reached < known {
                self.distances.set(target, reached, observer);
                self.push(target as u32, reached, observer);
            }
        }
    }
}

impl Kernel for Sssp {
    fn describe(&self) -> String {
        let (vertices, edges) = (self.distances.len(), self.targets.len() / 2);
        format!("sssp, Kronecker graph of {vertices} vertices and {edges} edges")
    }

    fn step(&mut self, _thread: u32, observer: &mut Observer) -> bool {
        if self.clearing < self.distances.len() {
            // A line of distances at a time.
            let end = (self.clearing + 16).min(self.distances.len());
            for v in self.clearing..end {
                self.distances.set(v, f32::INFINITY, observer);
            }
            self.clearing = end;
            if end == self.distances.len() {
                self.begin(observer);
            }
            return true;
        }
        while self.bucket < self.buckets.len() {
            let Some((vertex, offset)) = self.buckets[self.bucket].pop() else {
                self.bucket += 1;
                continue;
            };
            self.entries.load(offset, observer);
            self.relax(vertex as usize, observer);
            return true;
        }
        self.buckets.clear();
        self.bucket = 0;
        if self.roots == 0 {
            self.begin(observer);
        } else {
            self.clearing = 0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_bellman_and_ford() {
        let mut observer = Observer::default();
        let mut kernel = Sssp::new(Bytes::mib(1), 5, &mut observer);
        assert!(kernel.step(0, &mut observer));
        while kernel.buckets[kernel.bucket.min(kernel.buckets.len() - 1)..]
            .iter()
            .any(|bucket| !bucket.is_empty())
        {
            kernel.step(0, &mut observer);
        }
        let root = kernel.distances.unseen().iter().position(|&d| d == 0.0).expect("a root");
        let (offsets, targets) = (kernel.offsets.unseen(), kernel.targets.unseen());
        let mut distances = vec![f32::INFINITY; offsets.len() - 1];
        distances[root] = 0.0;
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for v in 0..distances.len() {
                for i in offsets[v] as usize..offsets[v + 1] as usize {
                    let reached = distances[v] + kernel.weights.unseen()[i];
                    if reached < distances[targets[i] as usize] {
                        distances[targets[i] as usize] = reached;
                        changed = true;
                    }
                }
            }
        }
        for (v, (ours, theirs)) in kernel.distances.unseen().iter().zip(&distances).enumerate() {
            let same = (ours - theirs).abs() < 1e-4 || ours.is_infinite() && theirs.is_infinite();
            assert!(same, "vertex {v}: {ours} instead of {theirs}");
        }
        assert!(distances.iter().filter(|d| d.is_finite()).count() > 1000);
    }
}
