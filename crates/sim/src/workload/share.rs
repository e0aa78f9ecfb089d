//! Dividing an algorithm's work over threads.

use core::ops::Range;

use rand_xoshiro::rand_core::SeedableRng;

use super::SimRng;

/// A generator of random numbers for each thread; the first is that of a single
/// thread.
pub(super) fn generators(seed: u64, threads: usize) -> Vec<SimRng> {
    const APART: u64 = 0x9e37_79b9_7f4a_7c15;
    let seed = |thread: usize| seed.wrapping_add((thread as u64).wrapping_mul(APART));
    (0..threads).map(|thread| SimRng::seed_from_u64(seed(thread))).collect()
}

/// A thread's part of so many items, in one piece.
pub(super) fn part(items: u64, thread: usize, threads: usize) -> Range<u64> {
    let (thread, threads) = (thread as u64, threads as u64);
    items * thread / threads..items * (thread + 1) / threads
}

/// Items that threads take by turns, in blocks; all threads wait when they are done.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// Items of a block.
    block: usize,
    /// Each thread's next item.
    next: Vec<usize>,
    /// Threads that have done theirs.
    done: usize,
}

impl Turns {
    /// From the first item on.
    pub(super) fn new(threads: usize, block: usize) -> Self {
        let mut turns = Self { block, next: vec![0; threads], done: 0 };
        turns.restart();
        turns
    }

    fn restart(&mut self) {
        self.done = 0;
        for (thread, next) in self.next.iter_mut().enumerate() {
            *next = thread * self.block;
        }
    }

    /// How many threads there are.
    pub(super) fn threads(&self) -> usize {
        self.next.len()
    }

    /// A thread's next item, of so many.
    pub(super) fn item(&self, thread: usize, items: usize) -> Option<usize> {
        Some(self.next[thread]).filter(|&next| next < items)
    }

    /// A thread has done so many items from its next one on, within their block.
    pub(super) fn pass(&mut self, thread: usize, items: usize) {
        let others = self.threads() - 1;
        let next = &mut self.next[thread];
        *next += items;
        if next.is_multiple_of(self.block) {
            *next += others * self.block;
        }
    }

    /// A thread has done its items; says whether it is the last one, for whom the
    /// items begin anew.
    pub(super) fn end(&mut self) -> bool {
        self.done += 1;
        let last = self.done == self.threads();
        if last {
            self.restart();
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_has_one_thread() {
        for threads in 1..5 {
            let mut turns = Turns::new(threads, 8);
            let mut times = [0; 100];
            for thread in 0..threads {
                while let Some(item) = turns.item(thread, 100) {
                    times[item] += 1;
                    turns.pass(thread, 1);
                }
                assert_eq!(turns.end(), thread + 1 == threads);
            }
            assert_eq!(times, [1; 100], "{threads} threads");
            let parts: Vec<u64> = (0..threads).flat_map(|t| part(100, t, threads)).collect();
            assert_eq!(parts, (0..100).collect::<Vec<_>>());
        }
    }
}
