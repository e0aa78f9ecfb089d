//! `PageRank` by pulling, as the GAP benchmark suite has it (Beamer et al., `pr.cc`):
//! each vertex sums the contributions of its neighbours, until scores settle.

use terrace_core::Bytes;

use super::kronecker::Graph;
use super::observed::{Array, Kernel, Observer, Step};
use super::share::Turns;

const DAMPING: f32 = 0.85;
/// GAP's tolerance and most iterations.
const TOLERANCE: f64 = 1e-4;
const ITERATIONS: u32 = 20;
/// Vertices that a thread takes at a time.
const BLOCK: usize = 1024;

/// Where the loops are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Contribute,
    Pull,
}

/// A graph and its scores.
pub struct PageRank {
    offsets: Array<u64>,
    neighbours: Array<u32>,
    scores: Array<f32>,
    contributions: Array<f32>,
    phase: Phase,
    /// How threads share the vertices of a phase.
    vertices: Turns,
    iteration: u32,
    error: f64,
}

impl PageRank {
    /// A Kronecker graph of about so many bytes, offsets and scores included.
    pub fn new(size: Bytes, seed: u64, threads: usize, observer: &mut Observer) -> Self {
        let graph = Graph::kronecker(Graph::scale_within(size.get(), 16, 4), seed);
        let vertices = graph.offsets.len() - 1;
        Self {
            offsets: observer.array(graph.offsets),
            neighbours: observer.array(graph.targets),
            scores: observer.array(vec![1.0 / vertices as f32; vertices]),
            contributions: observer.array(vec![0.0; vertices]),
            phase: Phase::Contribute,
            vertices: Turns::new(threads, BLOCK),
            iteration: 0,
            error: 0.0,
        }
    }

    fn contribute(&mut self, v: usize, observer: &mut Observer) {
        let degree = self.offsets.get(v + 1, observer) - self.offsets.get(v, observer);
        let score = self.scores.get(v, observer);
        observer.work(4);
        self.contributions.set(v, score / degree.max(1) as f32, observer);
    }

    fn pull(&mut self, v: usize, observer: &mut Observer) {
        let from = self.offsets.get(v, observer) as usize;
        let to = self.offsets.get(v + 1, observer) as usize;
        let mut sum = 0.0;
        for i in from..to {
            let neighbour = self.neighbours.get(i, observer) as usize;
            sum += self.contributions.follow(neighbour, observer);
            observer.work(3);
        }
        let old = self.scores.get(v, observer);
        let new = (1.0 - DAMPING) / self.scores.len() as f32 + DAMPING * sum;
        self.error += f64::from((new - old).abs());
        observer.work(5);
        self.scores.set(v, new, observer);
    }
}

impl Kernel for PageRank {
    fn describe(&self) -> String {
        let (vertices, edges) = (self.scores.len(), self.neighbours.len() / 2);
        format!("pagerank, Kronecker graph of {vertices} vertices and {edges} edges")
    }

    fn threads(&self) -> usize {
        self.vertices.threads()
    }

    fn step(&mut self, thread: usize, observer: &mut Observer) -> Step {
        if self.iteration == ITERATIONS {
            return Step::Over;
        }
        let all = self.scores.len();
        if let Some(vertex) = self.vertices.item(thread, all) {
            match self.phase {
                Phase::Contribute => self.contribute(vertex, observer),
                Phase::Pull => self.pull(vertex, observer),
            }
            self.vertices.pass(thread, 1);
        }
        if self.vertices.item(thread, all).is_some() {
            return Step::More;
        }
        if self.vertices.end() {
            if self.phase == Phase::Pull {
                self.iteration += 1;
                if self.error < TOLERANCE {
                    self.iteration = ITERATIONS;
                }
                self.error = 0.0;
            }
            self.phase = match self.phase {
                Phase::Contribute => Phase::Pull,
                Phase::Pull => Phase::Contribute,
            };
        }
        Step::Barrier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wrong scores would mean that something else was observed than `PageRank`.
    #[test]
    fn scores_settle_where_pagerank_has_its_fixed_point() {
        for threads in [1, 3] {
            settle(threads);
        }
    }

    fn settle(threads: usize) {
        let mut observer = Observer::default();
        let mut kernel = PageRank::new(Bytes::mib(1), 3, threads, &mut observer);
        while kernel.iteration < ITERATIONS {
            for thread in 0..threads {
                while kernel.step(thread, &mut observer) == Step::More {}
            }
        }
        let (offsets, neighbours) = (kernel.offsets.unseen(), kernel.neighbours.unseen());
        let scores = kernel.scores.unseen();
        let degree = |v: usize| (offsets[v + 1] - offsets[v]).max(1) as f32;
        let mut error = 0.0f32;
        for v in 0..scores.len() {
            let row = &neighbours[offsets[v] as usize..offsets[v + 1] as usize];
            let sum: f32 = row.iter().map(|&w| scores[w as usize] / degree(w as usize)).sum();
            let fixed = (1.0 - DAMPING) / scores.len() as f32 + DAMPING * sum;
            error += (fixed - scores[v]).abs();
        }
        assert!(error < 2e-4, "{error}");
        let isolated = (0..scores.len()).filter(|&v| offsets[v] == offsets[v + 1]).count();
        let total: f32 = scores.iter().sum();
        // What isolated vertices would pass on is lost, as in GAP.
        assert!(total <= 1.01 && total > 0.9 - isolated as f32 / scores.len() as f32, "{total}");
    }
}
