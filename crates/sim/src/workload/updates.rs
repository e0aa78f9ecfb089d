//! The GUPS family: random updates (load, change, store) of eight bytes, access
//! by access.
//!
//! The four members differ in where the updates go, which is what tells
//! tiering policies apart:
//!
//! - **hot set**: most go to the memory's first part;
//! - **shifting**: the same, and the hot part moves on by a quarter of itself
//!   from time to time;
//! - **warm**: a hot part, a warm part twice as large, and the rest;
//! - **sparse**: the hot set is one line in each of many 4 KiB pages, strewn over
//!   the memory, so that huge pages are hot by a small part of them.
//!
//! What is read decides nothing, so the memory has no content.

use rand_xoshiro::rand_core::Rng;
use terrace_core::Bytes;

use super::SimRng;
use super::observed::{Kernel, Observer, Span, Step};
use super::share::generators;

/// Which member of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A hot part at the beginning.
    HotSet,
    /// A hot part that moves on after so many updates.
    Shifting {
        /// Updates between two moves.
        every: u64,
    },
    /// A hot part, and a warm one after it.
    Warm,
    /// Hot lines strewn over the memory.
    Sparse,
}

/// Random updates.
pub struct Updates {
    memory: Span,
    pattern: Pattern,
    hot: u64,
    percent: u64,
    done: u64,
    /// The step that strews hot lines over pages.
    stride: u64,
    /// One a thread.
    rngs: Vec<SimRng>,
}

/// A random number below `n`.
pub(crate) fn below(rng: &mut SimRng, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}

fn coprime(mut a: u64, mut b: u64) -> bool {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

/// Bytes of a line, and of a page.
const LINE: u64 = 64;
const PAGE: u64 = 4096;

impl Updates {
    /// Updates in so much memory, `percent` of them in the hot part.
    pub fn new(
        pattern: Pattern,
        size: Bytes,
        hot: Bytes,
        percent: u64,
        (seed, threads): (u64, usize),
        observer: &mut Observer,
    ) -> Self {
        let memory = observer.allocate(size.get().max(PAGE));
        let hot = hot.get().clamp(LINE, memory.bytes());
        let pages = memory.bytes() / PAGE;
        let stride = (pages * 5 / 8..pages).find(|&step| coprime(step, pages)).unwrap_or(1);
        let rngs = generators(seed, threads);
        Self { memory, pattern, hot, percent: percent.min(100), done: 0, stride, rngs }
    }

    /// Where the next update goes.
    fn offset(&mut self, thread: usize) -> u64 {
        let size = self.memory.bytes();
        let rng = &mut self.rngs[thread];
        let dice = below(rng, 100);
        let hot = dice < self.percent;
        let spot = below(rng, if hot { self.hot } else { size });
        let warm = self.pattern == Pattern::Warm && dice.is_multiple_of(2);
        let spot = match self.pattern {
            _ if !(hot || warm) => spot,
            Pattern::HotSet => spot,
            Pattern::Shifting { every } => {
                let moved = self.done / every.max(1) * (self.hot / 4);
                (spot + moved) % size
            }
            // Half of what does not go to the hot part goes to the warm one.
            Pattern::Warm if hot => spot,
            Pattern::Warm => {
                let warm = (self.hot * 2).min(size - self.hot).max(LINE);
                (self.hot + spot % warm) % size
            }
            Pattern::Sparse => {
                // Steps that have no factor in common with the number of pages
                // come to each page before they come to one again.
                let pages = size / PAGE;
                let page = spot / LINE % pages * self.stride % pages;
                page * PAGE + (page % (PAGE / LINE)) * LINE + spot % LINE
            }
        };
        spot.min(size - 8) & !7
    }
}

impl Kernel for Updates {
    fn describe(&self) -> String {
        let name = match self.pattern {
            Pattern::HotSet => "gups".to_owned(),
            Pattern::Shifting { every } => format!("gups-shifting every {every} updates"),
            Pattern::Warm => "gups-warm".to_owned(),
            Pattern::Sparse => "gups-sparse".to_owned(),
        };
        let (size, hot) = (Bytes(self.memory.bytes()), Bytes(self.hot));
        format!("{name}, {size}, {} % of the updates in {hot}", self.percent)
    }

    fn threads(&self) -> usize {
        self.rngs.len()
    }

    fn step(&mut self, thread: usize, observer: &mut Observer) -> Step {
        let offset = self.offset(thread);
        // The random number: a shift, an exclusive or and a multiplication, some times.
        observer.work(8);
        self.memory.load(offset, observer);
        observer.work(1);
        self.memory.store(offset, observer);
        self.done += 1;
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::{Batch, Source};
    use crate::workload::observed::Program;

    /// Shares of the updates by the parts of the memory.
    fn shares(pattern: Pattern, parts: usize) -> Vec<f64> {
        let mut observer = Observer::default();
        let (size, hot) = (Bytes::mib(16), Bytes::mib(2));
        let kernel = Updates::new(pattern, size, hot, 80, (1, 1), &mut observer);
        let start = kernel.memory.address(0);
        let mut program = Program::new(Box::new(kernel), observer, 200_000);
        let mut counts = vec![0u64; parts];
        let (mut batch, mut seen) = (Batch::default(), 0);
        while program.next(&mut batch).expect("no input") {
            for access in &batch.accesses {
                seen += 1;
                if seen > program.initial() {
                    let part = (access.address() - start) * parts as u64 / size.get();
                    counts[part as usize] += 1;
                }
            }
        }
        let all: u64 = counts.iter().sum();
        counts.iter().map(|&n| n as f64 / all as f64).collect()
    }

    #[test]
    fn the_hot_set_gets_its_share_and_the_rest_is_even() {
        let shares = shares(Pattern::HotSet, 8);
        assert!((shares[0] - (0.8 + 0.2 / 8.0)).abs() < 0.01, "{shares:?}");
        assert!(shares[1..].iter().all(|share| (share - 0.2 / 8.0).abs() < 0.005), "{shares:?}");
    }

    #[test]
    fn the_warm_part_gets_half_of_what_is_left() {
        let shares = shares(Pattern::Warm, 8);
        // 10 % to two eighths, and 10 % to all eight.
        for share in &shares[1..3] {
            assert!((share - (0.05 + 0.1 / 8.0)).abs() < 0.01, "{shares:?}");
        }
        assert!(shares[3..].iter().all(|share| (share - 0.1 / 8.0).abs() < 0.005), "{shares:?}");
    }

    #[test]
    fn a_shifting_hot_set_leaves_where_it_was() {
        // 100 000 updates, a move of 0.5 MiB every 10 000: ten moves, through 7 MiB.
        let shares = shares(Pattern::Shifting { every: 10_000 }, 8);
        assert!(shares[0] < 0.4 && shares[1] > 0.1 && shares[2] > 0.1, "{shares:?}");
        assert!(shares[7] < 0.05, "{shares:?}");
    }

    #[test]
    fn a_sparse_hot_set_heats_every_part_and_few_lines() {
        let shares = shares(Pattern::Sparse, 8);
        assert!(shares.iter().all(|share| (share - 0.125).abs() < 0.02), "{shares:?}");
        let mut observer = Observer::default();
        let mut kernel = Updates::new(
            Pattern::Sparse,
            Bytes::mib(16),
            Bytes::kib(128),
            100,
            (1, 1),
            &mut observer,
        );
        let lines: std::collections::HashSet<u64> =
            (0..20_000).map(|_| kernel.offset(0) / LINE).collect();
        let pages: std::collections::HashSet<u64> =
            lines.iter().map(|line| line / (PAGE / LINE)).collect();
        assert!(lines.len() <= 2048 && lines.len() > 2000, "{} lines of 2048", lines.len());
        assert_eq!(pages.len(), lines.len(), "one line a page");
    }
}
