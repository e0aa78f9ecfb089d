//! Physical frames: a buddy allocator for each tier.
//!
//! Physical memory is one range of frame numbers; each tier has a part of it,
//! fastest first. A block of order *n* is 2^n frames, aligned; a free block
//! whose buddy is free too is merged with it, as in Linux.

use terrace_core::{Bytes, TierId};

/// The largest order: 1 GiB.
pub const MAX_ORDER: u32 = 18;
const ORDERS: usize = MAX_ORDER as usize + 1;
/// log2 of a frame's size.
const FRAME: u32 = 12;

/// The frames of one tier.
#[derive(Clone, Debug)]
struct Buddies {
    /// First frame, aligned to the largest order.
    first: u64,
    frames: u64,
    free: u64,
    /// How many blocks of each order are free.
    counts: [u64; ORDERS],
    /// Free blocks by order, as they came; entries that no longer hold are
    /// found out by the bits.
    lists: [Vec<u32>; ORDERS],
    /// One bit for each block of each order: it is free, as a whole.
    bits: [Vec<u64>; ORDERS],
}

/// The frames of all tiers.
#[derive(Clone, Debug)]
pub struct Frames {
    tiers: Vec<Buddies>,
}

impl Buddies {
    fn new(first: u64, frames: u64) -> Self {
        let mut tier = Self {
            first,
            frames,
            free: frames,
            counts: [0; ORDERS],
            lists: [const { Vec::new() }; ORDERS],
            bits: core::array::from_fn(|order| vec![0; (frames >> order) as usize / 64 + 1]),
        };
        // From the end, so that low addresses are handed out first.
        let mut end = frames;
        while end > 0 {
            let order = end.trailing_zeros().min(MAX_ORDER);
            end -= 1 << order;
            tier.set_free(end, order);
        }
        tier
    }

    fn is_free(&self, frame: u64, order: u32) -> bool {
        let block = frame >> order;
        self.bits[order as usize]
            .get(block as usize / 64)
            .is_some_and(|word| word >> (block % 64) & 1 != 0)
    }

    fn set_free(&mut self, frame: u64, order: u32) {
        let block = frame >> order;
        self.bits[order as usize][block as usize / 64] |= 1 << (block % 64);
        self.counts[order as usize] += 1;
        self.lists[order as usize].push(block as u32);
    }

    fn set_used(&mut self, frame: u64, order: u32) {
        let block = frame >> order;
        self.bits[order as usize][block as usize / 64] &= !(1 << (block % 64));
        self.counts[order as usize] -= 1;
    }

    fn take(&mut self, order: u32) -> Option<u64> {
        for from in order..=MAX_ORDER {
            while let Some(block) = self.lists[from as usize].pop() {
                let frame = u64::from(block) << from;
                if !self.is_free(frame, from) {
                    continue;
                }
                self.set_used(frame, from);
                // The upper halves go back.
                for half in (order..from).rev() {
                    self.set_free(frame + (1 << half), half);
                }
                self.free -= 1 << order;
                return Some(frame);
            }
        }
        None
    }

    /// The free block that a frame is part of.
    fn block_of(&self, frame: u64) -> Option<(u64, u32)> {
        (0..=MAX_ORDER)
            .map(|order| (frame >> order << order, order))
            .find(|&(first, order)| self.is_free(first, order))
    }

    fn take_at(&mut self, frame: u64, order: u32) -> bool {
        let Some((mut first, from)) = self.block_of(frame) else { return false };
        if from < order {
            return false;
        }
        self.set_used(first, from);
        // Of each half that is split, the one without the frame goes back.
        for half in (order..from).rev() {
            let upper = first + (1 << half);
            if frame < upper {
                self.set_free(upper, half);
            } else {
                self.set_free(first, half);
                first = upper;
            }
        }
        self.free -= 1 << order;
        true
    }

    fn give(&mut self, mut frame: u64, mut order: u32) {
        self.free += 1 << order;
        while order < MAX_ORDER {
            let buddy = frame ^ 1 << order;
            if buddy + (1 << order) > self.frames || !self.is_free(buddy, order) {
                break;
            }
            self.set_used(buddy, order);
            frame = frame.min(buddy);
            order += 1;
        }
        self.set_free(frame, order);
    }
}

impl Frames {
    /// Frames for tiers of these capacities, all of them free.
    pub fn new(capacities: &[Bytes]) -> Self {
        let mut first = 0;
        let tiers = capacities
            .iter()
            .map(|capacity| {
                let tier = Buddies::new(first, capacity.get() >> FRAME);
                first = (first + tier.frames).next_multiple_of(1 << MAX_ORDER);
                tier
            })
            .collect();
        Self { tiers }
    }

    /// Takes a block out of a tier; `None` if it has none of that order.
    pub fn take(&mut self, tier: TierId, order: u32) -> Option<u64> {
        let tier = &mut self.tiers[tier.index()];
        tier.take(order).map(|frame| tier.first + frame)
    }

    /// Takes the very block that begins with a frame; false if not all of it is free.
    pub fn take_at(&mut self, frame: u64, order: u32) -> bool {
        let tier = self.tier_of(frame);
        let tier = &mut self.tiers[tier.index()];
        tier.take_at(frame - tier.first, order)
    }

    /// Whether a frame is free.
    pub fn is_free(&self, frame: u64) -> bool {
        let tier = &self.tiers[self.tier_of(frame).index()];
        tier.block_of(frame - tier.first).is_some()
    }

    /// The block that [`take`](Self::take) would give now.
    pub fn next(&self, tier: TierId, order: u32) -> Option<u64> {
        let tier = &self.tiers[tier.index()];
        (order..=MAX_ORDER).find_map(|from| {
            let blocks = tier.lists[from as usize].iter().rev();
            let frame =
                blocks.map(|&block| u64::from(block) << from).find(|&f| tier.is_free(f, from));
            frame.map(|frame| tier.first + frame)
        })
    }

    /// A tier's first frame.
    pub fn first(&self, tier: TierId) -> u64 {
        self.tiers[tier.index()].first
    }

    /// Gives a block back.
    pub fn give(&mut self, frame: u64, order: u32) {
        let tier = self.tier_of(frame);
        let tier = &mut self.tiers[tier.index()];
        tier.give(frame - tier.first, order);
    }

    /// How many tiers there are.
    pub fn tiers(&self) -> usize {
        self.tiers.len()
    }

    /// The tier that a frame belongs to.
    #[inline]
    pub fn tier_of(&self, frame: u64) -> TierId {
        let mut tier = 0;
        for later in &self.tiers[1..] {
            tier += u8::from(frame >= later.first);
        }
        TierId(tier)
    }

    /// What is free in a tier.
    pub fn free(&self, tier: TierId) -> Bytes {
        Bytes(self.tiers[tier.index()].free << FRAME)
    }

    /// What a tier holds.
    pub fn capacity(&self, tier: TierId) -> Bytes {
        Bytes(self.tiers[tier.index()].frames << FRAME)
    }

    /// What is free in a tier in blocks of at least an order.
    pub fn free_in(&self, tier: TierId, order: u32) -> Bytes {
        let counts = &self.tiers[tier.index()].counts;
        let frames: u64 = (order..=MAX_ORDER).map(|o| counts[o as usize] << o).sum();
        Bytes(frames << FRAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Two pages in one frame would share cache lines; a lost frame would
        /// make memory shrink while a program runs.
        #[test]
        fn blocks_never_overlap_and_all_come_back(
            ops in prop::collection::vec((0u32..10, prop::bool::ANY, 0usize..64), 1..200),
        ) {
            let mut frames = Frames::new(&[Bytes::mib(3), Bytes::mib(10)]);
            let mut held: Vec<(u64, u32)> = Vec::new();
            for (order, take, pick) in ops {
                if take {
                    let tier = TierId((pick % 2) as u8);
                    let next = frames.next(tier, order);
                    if let Some(frame) = frames.take(tier, order) {
                        prop_assert_eq!(next, Some(frame));
                        prop_assert_eq!(frames.tier_of(frame), tier);
                        prop_assert!(frame.is_multiple_of(1 << order));
                        for &(other, size) in &held {
                            prop_assert!(frame + (1 << order) <= other || other + (1 << size) <= frame);
                        }
                        held.push((frame, order));
                    } else {
                        prop_assert!(frames.free_in(tier, order).is_zero());
                    }
                } else if !held.is_empty() {
                    let (frame, order) = held.swap_remove(pick % held.len());
                    frames.give(frame, order);
                }
            }
            for (frame, order) in held.drain(..) {
                frames.give(frame, order);
            }
            for tier in [TierId(0), TierId(1)] {
                prop_assert_eq!(frames.free(tier), frames.capacity(tier));
            }
            // Everything merged again: the largest blocks are there.
            prop_assert!(frames.take(TierId(1), 11).is_some());
        }
    }

    proptest! {
        /// Compaction takes targets by their place: what it takes must have been free, what it
        /// leaves must stay free, and everything must merge again.
        #[test]
        fn a_block_is_taken_from_where_it_lies(
            picks in prop::collection::vec((0u64..2560, prop::sample::select(vec![0u32, 0, 3, 9])), 1..120),
        ) {
            let mut frames = Frames::new(&[Bytes::mib(10)]);
            let mut free = vec![true; 2560];
            let mut held = Vec::new();
            for (at, order) in picks {
                let first = at >> order << order;
                let range = first as usize..(first as usize + (1 << order));
                // A part of a free block can be taken, and nothing else.
                let all_free = free[range.clone()].iter().all(|&free| free);
                let taken = frames.take_at(first, order);
                prop_assert_eq!(taken, all_free);
                if taken {
                    free[range].fill(false);
                    held.push((first, order));
                }
            }
            for (frame, &is_free) in free.iter().enumerate() {
                prop_assert_eq!(frames.is_free(frame as u64), is_free);
            }
            let count = free.iter().filter(|&&free| free).count() as u64;
            prop_assert_eq!(frames.free(TierId(0)), Bytes(count << FRAME));
            for (frame, order) in held {
                frames.give(frame, order);
            }
            prop_assert!(frames.take(TierId(0), 11).is_some());
        }
    }

    #[test]
    fn low_addresses_come_first() {
        let mut frames = Frames::new(&[Bytes::gib(2)]);
        assert_eq!(frames.take(TierId(0), 0), Some(0));
        assert_eq!(frames.take(TierId(0), 0), Some(1));
        assert_eq!(frames.take(TierId(0), 9), Some(512));
        assert_eq!(frames.take(TierId(0), MAX_ORDER), Some(1 << MAX_ORDER));
    }
}
