//! What each thread does next.

use std::collections::VecDeque;

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_core::Nanos;

use crate::kernel::Call;
use crate::workload::SimRng;

/// Calls that are made up but not made yet, by thread, and randomness.
#[derive(Debug)]
pub(super) struct Queues {
    queues: Vec<VecDeque<Call>>,
    rng: SimRng,
}

impl Queues {
    pub(super) fn new(threads: usize, seed: u64) -> Self {
        let queues = (0..threads).map(|_| VecDeque::new()).collect();
        Self { queues, rng: SimRng::seed_from_u64(seed) }
    }

    pub(super) fn pop(&mut self, thread: usize) -> Option<Call> {
        self.queues[thread].pop_front()
    }

    pub(super) fn has(&self, thread: usize) -> bool {
        !self.queues[thread].is_empty()
    }

    pub(super) fn push(&mut self, thread: usize, call: Call) {
        self.queues[thread].push_back(call);
    }

    /// A call before all that wait: it is made at once.
    pub(super) fn push_first(&mut self, thread: usize, call: Call) {
        self.queues[thread].push_front(call);
    }

    pub(super) fn compute(&mut self, thread: usize, time: Nanos) {
        self.push(thread, Call::Compute { time });
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.rng.next_u64()) * u128::from(n.max(1))) >> 64) as u64
    }

    pub(super) fn chance(&mut self, share: f64) -> bool {
        (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 <= share
    }
}

/// The range of a thread's share of `all`, divided evenly.
pub(super) fn share(all: u64, threads: u64, thread: u64) -> core::ops::Range<u64> {
    all * thread / threads..all * (thread + 1) / threads
}
