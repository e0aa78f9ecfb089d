//! Sorting all rotations of a block of text, as 401.bzip2 does before it packs it: by doubling
//! prefixes, with counting sorts.

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::Bytes;

use crate::workload::SimRng;
use crate::workload::observed::{Array, Kernel, Observer, Span, Step};
use crate::workload::updates::below;

/// Bytes of a block: bzip2's largest.
const BLOCK: usize = 900_000;

/// What is done with each place of the block, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The text is read.
    Read,
    /// How often each rank occurs is counted.
    Count,
    /// Places go where their ranks say.
    Place,
    /// Ranks of twice the length.
    Rank,
}

/// A block of the text, and its rotations.
pub struct BlockSort {
    text: Span,
    at_text: u64,
    ranks: Array<u32>,
    order: Array<u32>,
    counts: Array<u32>,
    others: Array<u32>,
    phase: Phase,
    at: usize,
    length: usize,
    /// Whether the second half of the prefix has been sorted by already.
    second: bool,
    distinct: u32,
    rng: SimRng,
}

impl BlockSort {
    /// Text of about so many bytes, what a block needs included.
    pub fn new(size: Bytes, seed: u64, observer: &mut Observer) -> Self {
        let block = BLOCK.min(size.get() as usize / 20).max(64);
        let text = size.get().saturating_sub(block as u64 * 16).max(block as u64);
        Self {
            text: observer.allocate(text),
            at_text: 0,
            ranks: observer.array(vec![0; block]),
            order: observer.array((0..block as u32).collect()),
            counts: observer.array(vec![0; block.max(256) + 1]),
            others: observer.array(vec![0; block]),
            phase: Phase::Read,
            at: 0,
            length: 1,
            second: false,
            distinct: 256,
            rng: SimRng::seed_from_u64(seed),
        }
    }

    /// The place whose rank a place is sorted by.
    fn key(&self, place: u32) -> usize {
        let block = self.ranks.len();
        let shift = if self.second { 0 } else { self.length };
        (place as usize + shift) % block
    }

    fn next_phase(&mut self) {
        let block = self.ranks.len();
        self.at = 0;
        self.phase = match self.phase {
            Phase::Read => {
                (self.length, self.second, self.distinct) = (1, false, 256);
                Phase::Count
            }
            Phase::Count => {
                // Sums from below: where each rank begins.
                let mut sum = 0;
                for count in self.counts.unseen_mut() {
                    sum += std::mem::replace(count, sum);
                }
                Phase::Place
            }
            Phase::Place if !self.second => {
                std::mem::swap(&mut self.order, &mut self.others);
                self.second = true;
                self.counts.unseen_mut().fill(0);
                Phase::Count
            }
            Phase::Place => {
                std::mem::swap(&mut self.order, &mut self.others);
                self.distinct = 0;
                Phase::Rank
            }
            Phase::Rank => {
                std::mem::swap(&mut self.ranks, &mut self.others);
                self.counts.unseen_mut().fill(0);
                self.length *= 2;
                self.second = false;
                if self.distinct as usize == block || self.length >= block {
                    Phase::Read
                } else {
                    Phase::Count
                }
            }
        };
    }
}

impl Kernel for BlockSort {
    fn describe(&self) -> String {
        format!("rotations of blocks of {} bytes", self.ranks.len())
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        let at = self.at;
        match self.phase {
            Phase::Read => {
                if at.is_multiple_of(8) {
                    self.text.load(self.at_text & !7, observer);
                }
                self.at_text = (self.at_text + 1) % self.text.bytes();
                // Letters of different frequency, as in a language.
                let letter = below(&mut self.rng, 64) * below(&mut self.rng, 64) / 64;
                self.ranks.set(at, letter as u32, observer);
                observer.work(3);
                if at == 0 {
                    self.counts.unseen_mut().fill(0);
                }
                self.order.unseen_mut()[at] = at as u32;
            }
            Phase::Count => {
                let place = self.order.get(at, observer);
                let rank = self.ranks.follow(self.key(place), observer) as usize;
                let count = self.counts.follow(rank, observer);
                self.counts.set(rank, count + 1, observer);
                observer.work(3);
            }
            Phase::Place => {
                let place = self.order.get(at, observer);
                let rank = self.ranks.follow(self.key(place), observer) as usize;
                let to = self.counts.follow(rank, observer);
                self.counts.set(rank, to + 1, observer);
                self.others.set(to as usize, place, observer);
                observer.work(3);
            }
            Phase::Rank => {
                let block = self.ranks.len();
                let place = self.order.get(at, observer) as usize;
                let far = (place + self.length) % block;
                let pair = (self.ranks.follow(place, observer), self.ranks.follow(far, observer));
                let before = self.order.unseen()[at.saturating_sub(1)] as usize;
                let ranks = self.ranks.unseen();
                let differs = pair != (ranks[before], ranks[(before + self.length) % block]);
                if at == 0 || differs {
                    self.distinct += 1;
                }
                self.others.set(place, self.distinct - 1, observer);
                observer.work(6);
            }
        }
        self.at += 1;
        if self.at == self.ranks.len() {
            self.next_phase();
        }
        Step::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_come_out_in_order() {
        let mut observer = Observer::default();
        let mut kernel = BlockSort::new(Bytes::kib(16), 7, &mut observer);
        while kernel.phase == Phase::Read {
            kernel.step(0, &mut observer);
        }
        let text: Vec<u32> = kernel.ranks.unseen().to_vec();
        while kernel.phase != Phase::Read {
            kernel.step(0, &mut observer);
        }
        let rotation = |from: u32| {
            let (before, after) = text.split_at(from as usize);
            [after, before].concat()
        };
        let order = kernel.order.unseen();
        for pair in order.windows(2) {
            assert!(rotation(pair[0]) <= rotation(pair[1]), "{pair:?}");
        }
    }
}
