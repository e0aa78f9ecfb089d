//! Graph500 beside its searches: the list of edges is generated, a graph is made of it, and
//! searches are validated against it.
//!
//! An instance holds the list of edges for all of its life, as the reference code does; it is
//! touched first. What an edge's ends are is a function of its number, so that the list takes
//! no memory here.

use serde::Serialize;
use terrace_core::Bytes;

use super::bfs::Bfs;
use super::kronecker::EDGE_FACTOR;
use super::observed::{Array, Kernel, Observer, Program, Span, Step};
use super::sssp::Sssp;
use crate::exact::Access;

/// Bytes of an edge in the list: two vertices of eight bytes, as Dapper counts them.
const EDGE: u64 = 16;

/// A phase of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The list of edges is generated.
    Generation,
    /// The graph is made of the list.
    Construction,
    /// Breadth-first searches.
    Bfs,
    /// Shortest paths.
    Sssp,
    /// Distances are compared with the list.
    Validation,
}

impl Phase {
    /// All of them, in the order in which the benchmark runs them.
    pub const ALL: [Self; 5] =
        [Self::Generation, Self::Construction, Self::Bfs, Self::Sssp, Self::Validation];

    /// The name that is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Generation => "generation",
            Self::Construction => "construction",
            Self::Bfs => "BFS",
            Self::Sssp => "SSSP",
            Self::Validation => "validation",
        }
    }

    /// This phase on 2^`scale` vertices, with so many accesses after the memory was initialised.
    pub fn build(self, scale: u32, accesses: u64, seed: u64) -> Program {
        let mut observer = Observer::default();
        let see = &mut observer;
        let edges = see.allocate(EDGE * (EDGE_FACTOR << scale));
        // What the searches take for a graph of this scale.
        let kernel: Box<dyn Kernel> = match self {
            Self::Bfs => {
                Box::new(Bfs::new(Bytes((16 + 2 * EDGE_FACTOR * 4) << scale), seed, 1, see))
            }
            Self::Sssp => {
                Box::new(Sssp::new(Bytes((28 + 2 * EDGE_FACTOR * 8) << scale), seed, 1, see))
            }
            phase => Box::new(List::new(phase, edges, scale, seed, see)),
        };
        Program::new(kernel, observer, accesses)
    }
}

/// The list of edges, and what is made of it.
struct List {
    phase: Phase,
    edges: Span,
    scale: u32,
    seed: u64,
    /// Construction: how many edges a vertex has, then where its next neighbour goes.
    ends: Array<u32>,
    neighbours: Span,
    /// Validation: distances.
    distances: Span,
    edge: u64,
    /// Construction: whether neighbours are entered already.
    enters: bool,
}

impl List {
    fn new(phase: Phase, edges: Span, scale: u32, seed: u64, observer: &mut Observer) -> Self {
        let vertices = 1_u64 << scale;
        Self {
            phase,
            edges,
            scale,
            seed,
            ends: observer.array(vec![0; vertices as usize]),
            neighbours: observer.allocate(2 * EDGE_FACTOR * vertices * 4),
            distances: observer.allocate(vertices * 4),
            edge: 0,
            enters: false,
        }
    }

    fn mixed(value: u64) -> u64 {
        let value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let value = (value ^ (value >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        value ^ (value >> 32)
    }

    /// Both ends of an edge: Kronecker's quadrants with 0.57, 0.19, 0.19, labels mixed.
    fn ends_of(&self, edge: u64) -> [u64; 2] {
        let (mut from, mut to, mut random) = (0_u64, 0_u64, Self::mixed(edge ^ self.seed));
        for level in 0..self.scale {
            if level % 4 == 0 {
                random = Self::mixed(random.wrapping_add(u64::from(level)));
            }
            let dice = random >> (16 * (level % 4)) & 0xffff;
            let (a, b, c) = (37_355, 49_807, 62_259);
            from = from << 1 | u64::from(dice >= b);
            to = to << 1 | u64::from((a..b).contains(&dice) || dice >= c);
        }
        let mask = (1_u64 << self.scale) - 1;
        // An odd factor permutes the labels.
        [from, to].map(|vertex| vertex.wrapping_mul(0x9e37_79b1).wrapping_add(self.seed) & mask)
    }

    fn generate(&mut self, observer: &mut Observer) {
        // A few instructions a level, and a random number for four of them.
        observer.work(u64::from(self.scale) * 8);
        self.edges.store(self.edge * EDGE, observer);
        self.edges.store(self.edge * EDGE + 8, observer);
    }

    fn construct(&mut self, observer: &mut Observer) {
        let ends = self.ends_of(self.edge);
        for (half, at) in (0..2_u64).zip([0, 8]) {
            self.edges.load(self.edge * EDGE + at, observer);
            let vertex = ends[half as usize] as usize;
            let count = self.ends.follow(vertex, observer);
            self.ends.set(vertex, count + 1, observer);
            observer.work(3);
            if self.enters {
                self.neighbours.store((u64::from(count) * 4) & !7, observer);
            }
        }
    }

    fn validate(&mut self, observer: &mut Observer) {
        for (vertex, at) in self.ends_of(self.edge).into_iter().zip([0, 8]) {
            self.edges.load(self.edge * EDGE + at, observer);
            let distance = self.distances.address(vertex * 4);
            observer.access(Access::load(distance & !7).dependent());
        }
        observer.work(8);
    }

    /// Counts become the places where each vertex's neighbours begin.
    fn sum(&mut self) {
        let mut sum = 0;
        for count in self.ends.unseen_mut() {
            sum += std::mem::replace(count, sum);
        }
    }
}

impl Kernel for List {
    fn describe(&self) -> String {
        format!("graph500 {}, scale {}", self.phase.name(), self.scale)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        match self.phase {
            Phase::Generation => self.generate(observer),
            Phase::Construction => self.construct(observer),
            _ => self.validate(observer),
        }
        self.edge += 1;
        if self.edge < EDGE_FACTOR << self.scale {
            return Step::More;
        }
        self.edge = 0;
        if self.phase == Phase::Construction && !self.enters {
            self.sum();
            self.enters = true;
            return Step::More;
        }
        Step::Over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(phase: Phase, scale: u32) -> (List, Observer) {
        let mut observer = Observer::default();
        let edges = observer.allocate(EDGE * (EDGE_FACTOR << scale));
        (List::new(phase, edges, scale, 7, &mut observer), observer)
    }

    #[test]
    fn construction_enters_each_end_of_each_edge_once() {
        let (mut list, mut observer) = list(Phase::Construction, 8);
        let mut degrees = vec![0_u32; 256];
        for edge in 0..EDGE_FACTOR << 8 {
            list.ends_of(edge).into_iter().for_each(|vertex| degrees[vertex as usize] += 1);
        }
        while list.step(0, &mut observer) == Step::More {}
        // Each vertex's place has moved on to where the next one's began.
        let mut sum = 0;
        for (degree, place) in degrees.iter().zip(list.ends.unseen()) {
            sum += degree;
            assert_eq!(*place, sum);
        }
        assert_eq!(u64::from(sum), (2 * EDGE_FACTOR) << 8);
        let mut sorted = degrees;
        sorted.sort_unstable();
        let top: u32 = sorted[230..].iter().sum();
        assert!(top * 2 > sum, "a tenth of the vertices has {top} of {sum} ends");
    }

    #[test]
    fn every_phase_reads_or_writes_the_list_or_searches_what_came_of_it() {
        use crate::exact::{Batch, Source};
        for phase in Phase::ALL {
            let mut program = phase.build(8, 50_000, 3);
            let (mut batch, mut count) = (Batch::default(), 0);
            let mut maps = Vec::new();
            while program.next(&mut batch).expect("no input") {
                for event in &batch.events {
                    if let crate::exact::SpaceEvent::Map { start, len } = *event {
                        maps.push((start, len));
                    }
                }
                for access in &batch.accesses {
                    let address = access.address();
                    let inside = |&(start, len): &(u64, u64)| address.wrapping_sub(start) < len;
                    assert!(maps.iter().any(inside), "{}: {address:x}", phase.name());
                }
                count += batch.accesses.len();
            }
            assert!(count > 8000, "{}: {count}", phase.name());
            assert_eq!(maps[0].1, EDGE * (EDGE_FACTOR << 8), "the list comes first");
        }
    }
}
