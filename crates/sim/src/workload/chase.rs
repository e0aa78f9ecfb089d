//! A pointer chase: a cycle through all lines of the memory in random order,
//! followed one pointer after the other. Nothing can be overlapped: the time of
//! a step is the latency of memory, walks included.

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::Bytes;

use super::SimRng;
use super::observed::{Kernel, Observer, Span, Step};
use super::share::part;
use super::updates::below;
use crate::exact::Access;

/// Bytes of an element: a line.
const ELEMENT: u64 = 64;

/// A chase through memory.
pub struct Chase {
    memory: Span,
    /// The element after each.
    next: Vec<u32>,
    /// Where each thread is on the cycle.
    at: Vec<u32>,
}

impl Chase {
    /// A single cycle through all lines of so much memory, by Sattolo's algorithm.
    pub fn new(size: Bytes, seed: u64, threads: usize, observer: &mut Observer) -> Self {
        let memory = observer.allocate(size.get());
        let elements = (memory.bytes() / ELEMENT).min(u64::from(u32::MAX)) as u32;
        let mut rng = SimRng::seed_from_u64(seed);
        let mut next: Vec<u32> = (0..elements).collect();
        for i in (1..next.len()).rev() {
            next.swap(i, below(&mut rng, i as u64) as usize);
        }
        let at = |thread| part(u64::from(elements), thread, threads).start as u32;
        Self { memory, next, at: (0..threads).map(at).collect() }
    }
}

impl Kernel for Chase {
    fn describe(&self) -> String {
        format!("chase, {}", Bytes(self.memory.bytes()))
    }

    fn threads(&self) -> usize {
        self.at.len()
    }

    fn step(&mut self, thread: usize, observer: &mut Observer) -> Step {
        let at = &mut self.at[thread];
        let address = self.memory.address(u64::from(*at) * ELEMENT);
        observer.access(Access::load(address).dependent());
        *at = self.next[*at as usize];
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A permutation with several cycles would leave memory untouched.
    #[test]
    fn the_cycle_comes_to_every_line_before_it_closes() {
        let chase = Chase::new(Bytes::mib(1), 3, 1, &mut Observer::default());
        let mut seen = vec![false; chase.next.len()];
        let mut at = 0;
        for _ in 0..chase.next.len() {
            assert!(!std::mem::replace(&mut seen[at], true), "line {at} twice");
            at = chase.next[at] as usize;
        }
        assert_eq!(at, 0);
    }
}
