//! A pointer chase: a cycle through all lines of the memory in random order,
//! followed one pointer after the other. Nothing can be overlapped: the time of
//! a step is the latency of memory, walks included.

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::Bytes;

use super::SimRng;
use super::observed::{Kernel, Observer, Span};
use super::updates::below;
use crate::full::Access;

/// Bytes of an element: a line.
const ELEMENT: u64 = 64;

/// A chase through memory.
pub struct Chase {
    memory: Span,
    /// The element after each.
    next: Vec<u32>,
    at: u32,
}

impl Chase {
    /// A single cycle through all lines of so much memory, by Sattolo's algorithm.
    pub fn new(size: Bytes, seed: u64, observer: &mut Observer) -> Self {
        let memory = observer.allocate(size.get());
        let elements = (memory.bytes() / ELEMENT).min(u64::from(u32::MAX)) as u32;
        let mut rng = SimRng::seed_from_u64(seed);
        let mut next: Vec<u32> = (0..elements).collect();
        for i in (1..next.len()).rev() {
            next.swap(i, below(&mut rng, i as u64) as usize);
        }
        Self { memory, next, at: 0 }
    }
}

impl Kernel for Chase {
    fn describe(&self) -> String {
        format!("chase, {}", Bytes(self.memory.bytes()))
    }

    fn step(&mut self, _thread: u32, observer: &mut Observer) -> bool {
        let address = self.memory.address(u64::from(self.at) * ELEMENT);
        observer.access(Access::load(address).dependent());
        self.at = self.next[self.at as usize];
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A permutation with several cycles would leave memory untouched.
    #[test]
    fn the_cycle_comes_to_every_line_before_it_closes() {
        let chase = Chase::new(Bytes::mib(1), 3, &mut Observer::default());
        let mut seen = vec![false; chase.next.len()];
        let mut at = 0;
        for _ in 0..chase.next.len() {
            assert!(!std::mem::replace(&mut seen[at], true), "line {at} twice");
            at = chase.next[at] as usize;
        }
        assert_eq!(at, 0);
    }
}
