//! Single-source shortest paths by delta-stepping (Meyer and Sanders), the
//! second kernel of Graph500: a Kronecker graph with weights between 0 and 1,
//! from one random root after the other.

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_core::Bytes;

use super::SimRng;
use super::kronecker::Graph;
use super::observed::{Array, Kernel, Observer, Span, Step};
use super::share::Turns;
use super::updates::below;

/// Width of a bucket. Assumed: a quarter of the largest weight.
const DELTA: f32 = 0.25;
/// Distances that are cleared at once: a line of them.
const CLEARED: usize = 16;

/// What threads are at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A search begins.
    Begin,
    /// Distances are cleared before it.
    Clear,
    /// Vertices of a bucket are looked at.
    Relax,
}

/// A graph, distances, and buckets of vertices to be settled.
pub struct Sssp {
    offsets: Array<u64>,
    targets: Array<u32>,
    weights: Array<f32>,
    distances: Array<f32>,
    /// Where entries of buckets lie: each is written and read once, in a ring.
    entries: Span,
    next_entry: u64,
    /// Each thread's, by distance.
    buckets: Vec<Vec<Vec<(u32, u64)>>>,
    /// The one that is looked at.
    bucket: usize,
    /// What several threads have of it. What they find to be as near goes into their
    /// buckets, and is dealt out when all have done theirs.
    dealt: Vec<Vec<(u32, u64)>>,
    phase: Phase,
    /// How threads share distances to clear.
    turns: Turns,
    rng: SimRng,
}

impl Sssp {
    /// A Kronecker graph of about so many bytes, buckets included.
    pub fn new(size: Bytes, seed: u64, threads: usize, observer: &mut Observer) -> Self {
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
            buckets: vec![Vec::new(); threads],
            bucket: 0,
            dealt: vec![Vec::new(); threads],
            phase: Phase::Begin,
            turns: Turns::new(threads, CLEARED),
            rng,
        }
    }

    /// Notes a vertex's distance in a thread's bucket.
    fn push(&mut self, thread: usize, vertex: u32, distance: f32, observer: &mut Observer) {
        let buckets = &mut self.buckets[thread];
        let bucket = (distance / DELTA) as usize;
        if buckets.len() <= bucket {
            buckets.resize(bucket + 1, Vec::new());
        }
        let offset = self.next_entry * 8 % self.entries.bytes();
        self.next_entry += 1;
        self.entries.store(offset, observer);
        buckets[bucket].push((vertex, offset));
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
        self.distances.set(root, 0.0, observer);
        self.push(0, root as u32, 0.0, observer);
        self.phase = Phase::Relax;
        self.next_bucket();
    }

    fn relax(&mut self, thread: usize, vertex: usize, observer: &mut Observer) {
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
                self.push(thread, target as u32, reached, observer);
            }
        }
    }

    /// Every thread has done what it has of the bucket: what the next one that holds
    /// anything holds is dealt out. If none does, the search is over.
    fn next_bucket(&mut self) {
        let last = self.buckets.iter().map(Vec::len).max().unwrap_or(0);
        let holds = |own: &[Vec<(u32, u64)>], bucket: usize| {
            own.get(bucket).is_some_and(|entries| !entries.is_empty())
        };
        let next =
            (self.bucket..last).find(|&next| self.buckets.iter().any(|own| holds(own, next)));
        let Some(next) = next else {
            self.buckets.iter_mut().for_each(Vec::clear);
            (self.bucket, self.phase) = (0, Phase::Clear);
            return;
        };
        self.bucket = next;
        if self.buckets.len() > 1 {
            let taken = self.buckets.iter_mut().filter_map(|own| own.get_mut(next));
            let entries: Vec<_> = taken.flat_map(std::mem::take).collect();
            let threads = self.buckets.len();
            for (i, entry) in entries.into_iter().enumerate() {
                self.dealt[i % threads].push(entry);
            }
        }
    }
}

impl Kernel for Sssp {
    fn describe(&self) -> String {
        let (vertices, edges) = (self.distances.len(), self.targets.len() / 2);
        format!("sssp, Kronecker graph of {vertices} vertices and {edges} edges")
    }

    fn threads(&self) -> usize {
        self.turns.threads()
    }

    fn step(&mut self, thread: usize, observer: &mut Observer) -> Step {
        match self.phase {
            Phase::Begin => {}
            Phase::Clear => {
                let all = self.distances.len();
                if let Some(first) = self.turns.item(thread, all) {
                    for v in first..(first + CLEARED).min(all) {
                        self.distances.set(v, f32::INFINITY, observer);
                    }
                    self.turns.pass(thread, CLEARED);
                }
                if self.turns.item(thread, all).is_some() {
                    return Step::More;
                }
            }
            Phase::Relax => {
                let own = if self.dealt.len() > 1 {
                    Some(&mut self.dealt[thread])
                } else {
                    self.buckets[thread].get_mut(self.bucket)
                };
                if let Some((vertex, offset)) = own.and_then(Vec::pop) {
                    self.entries.load(offset, observer);
                    self.relax(thread, vertex as usize, observer);
                    return Step::More;
                }
            }
        }
        if self.turns.end() {
            match self.phase {
                Phase::Begin | Phase::Clear => self.begin(observer),
                Phase::Relax => self.next_bucket(),
            }
        }
        Step::Barrier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_bellman_and_ford() {
        for threads in [1, 3] {
            search(threads);
        }
    }

    fn search(threads: usize) {
        let mut observer = Observer::default();
        let mut kernel = Sssp::new(Bytes::mib(1), 5, threads, &mut observer);
        while kernel.phase != Phase::Clear {
            for thread in 0..threads {
                while kernel.step(thread, &mut observer) == Step::More {}
            }
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
