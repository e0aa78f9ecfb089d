//! A search for where a block of a picture came from in the one before: 464.h264ref.

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::Bytes;

use crate::workload::SimRng;
use crate::workload::observed::{Kernel, Observer, Span, Step};
use crate::workload::updates::below;

/// Width of a picture, of a block, and how far a block may have moved. Assumed: the pictures of
/// 512 by 320 of its reference input, blocks and range of the standard's first profiles.
const WIDTH: u64 = 512;
const HEIGHT: u64 = 320;
const BLOCK: u64 = 16;
const RANGE: u64 = 16;
/// Instructions for eight points of a row: differences, absolute values, sum.
const WORK: u64 = 24;

/// Pictures, one after the other.
pub struct Motion {
    pictures: Span,
    count: u64,
    picture: u64,
    block: u64,
    rng: SimRng,
}

impl Motion {
    /// As many pictures as fit into so many bytes.
    pub fn new(size: Bytes, seed: u64, observer: &mut Observer) -> Self {
        let count = (size.get() / (WIDTH * HEIGHT)).max(2);
        let pictures = observer.allocate(count * WIDTH * HEIGHT);
        Self { pictures, count, picture: 1, block: 0, rng: SimRng::seed_from_u64(seed) }
    }
}

impl Kernel for Motion {
    fn describe(&self) -> String {
        format!("blocks that moved, {} pictures", self.count)
    }

    fn step(&mut self, _thread: usize, observer: &mut Observer) -> Step {
        let across = WIDTH / BLOCK;
        let (x, y) = (self.block % across * BLOCK, self.block / across * BLOCK);
        let (now, before) = (self.picture * WIDTH * HEIGHT, (self.picture - 1) * WIDTH * HEIGHT);
        // One candidate of the range; the search tries 32.
        for _ in 0..32 {
            let place = |from: u64, most: u64, random: u64| {
                (from + random).saturating_sub(RANGE).min(most - BLOCK)
            };
            let cx = place(x, WIDTH, below(&mut self.rng, 2 * RANGE));
            let cy = place(y, HEIGHT, below(&mut self.rng, 2 * RANGE));
            for row in 0..BLOCK {
                for half in [0, 8] {
                    self.pictures.load(now + (y + row) * WIDTH + x + half, observer);
                    self.pictures.load(before + (cy + row) * WIDTH + cx + half, observer);
                    observer.work(WORK);
                }
            }
        }
        self.block += 1;
        if self.block == across * (HEIGHT / BLOCK) {
            self.block = 0;
            self.picture = if self.picture + 1 == self.count { 1 } else { self.picture + 1 };
        }
        Step::More
    }
}
