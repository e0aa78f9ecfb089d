//! A set-associative array of tags: what caches, TLBs and page-walk caches
//! have in common.
//!
//! Built for speed. The tags of a set lie together, with what else it has in one
//! or two lines of the host, and are compared four at a time. The order of use is one 64-bit word a set: a permutation of the ways,
//! four bits each, most recent first. A number's set is its low bits, and for
//! the odd factor of the number of sets (the slices of a last-level cache) a
//! hash of the others, as in the hardware.

#![allow(clippy::inline_always)] // measured: a call here costs more than the work

use terrace_core::Replacement;

/// No entry.
const NONE: u32 = u32::MAX;
/// Order words of a set in which nothing was used yet: way 0 last.
const UNUSED: u64 = 0x0123_4567_89ab_cdef;
const NIBBLES: u64 = 0x1111_1111_1111_1111;

/// Where an entry is: for arrays that lie beside the tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u32);

impl Slot {
    /// Its index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What had to go for a new entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Its number.
    pub number: u64,
    /// Whether it was dirty.
    pub dirty: bool,
}

/// A set-associative array.
#[derive(Debug)]
pub struct Sets {
    /// A block for each set: its tags, two in a word, a word of order, a word
    /// with a dirty bit for each way.
    words: Vec<u64>,
    /// Index in `words` of the first block, so that blocks begin at host lines.
    base: usize,
    /// How many sets.
    count: usize,
    ways: u32,
    /// Tags in a block: `ways` rounded up to what is compared at once.
    lanes: usize,
    /// Distance of blocks.
    stride: usize,
    /// Low bits of a number that select a set.
    low_bits: u32,
    /// Odd factor of the number of sets.
    slices: u32,
    replacement: Replacement,
    random: u64,
}

impl Clone for Sets {
    /// The copy's blocks begin at host lines too.
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.count as u64, self.ways, self.replacement);
        let len = self.count * self.stride;
        copy.words[copy.base..][..len].copy_from_slice(&self.words[self.base..][..len]);
        copy.random = self.random;
        copy
    }
}

/// The words of one set.
struct Block<'a> {
    words: &'a mut [u64],
    /// Words of tags.
    pairs: usize,
}

impl Block<'_> {
    #[inline(always)]
    fn order(&self) -> u64 {
        self.words[self.pairs]
    }
    #[inline(always)]
    fn set_order(&mut self, order: u64) {
        self.words[self.pairs] = order;
    }
    #[inline(always)]
    fn dirty(&mut self) -> &mut u64 {
        &mut self.words[self.pairs + 1]
    }
    /// The way that holds a tag.
    #[inline(always)]
    fn way(&self, tag: u32) -> Option<u32> {
        way(self.words, self.pairs, tag)
    }
    /// Puts a tag into a way, and returns the one before.
    #[inline(always)]
    fn replace(&mut self, way: u32, tag: u32) -> u32 {
        let word = &mut self.words[way as usize / 2];
        let shift = way % 2 * 32;
        let old = (*word >> shift) as u32;
        *word ^= u64::from(old ^ tag) << shift;
        old
    }
}

/// The way of a block that holds a tag.
#[inline(always)]
fn way(words: &[u64], pairs: usize, tag: u32) -> Option<u32> {
    let mut mask = equal(words[0], words[1], tag);
    if pairs > 2 {
        mask |= equal(words[2], words[3], tag) << 4;
        if pairs > 4 {
            mask |= equal(words[4], words[5], tag) << 8;
            if pairs > 6 {
                mask |= equal(words[6], words[7], tag) << 12;
            }
        }
    }
    (mask != 0).then(|| mask.trailing_zeros())
}

impl Sets {
    /// An empty array of `sets` sets of 1 to 16 `ways`.
    pub fn new(sets: u64, ways: u32, replacement: Replacement) -> Self {
        assert!(sets > 0 && (1..=16).contains(&ways), "{sets} sets of {ways} ways");
        let lanes = ways.next_multiple_of(4) as usize;
        let stride = (lanes / 2 + 2).next_power_of_two();
        let low_bits = sets.trailing_zeros();
        let mut words = vec![u64::MAX; sets as usize * stride + 8];
        let base = (64 - words.as_ptr().addr() % 64) % 64 / size_of::<u64>();
        let order = match replacement {
            Replacement::Lru | Replacement::Fifo => UNUSED_OF[ways as usize],
            Replacement::Srrip => u64::MAX,
            Replacement::Random | Replacement::TreePlru => 0,
        };
        for block in words[base..].chunks_exact_mut(stride).take(sets as usize) {
            let mut block = Block { words: block, pairs: lanes / 2 };
            block.set_order(order);
            *block.dirty() = 0;
        }
        Self {
            words,
            base,
            count: sets as usize,
            ways,
            lanes,
            stride,
            low_bits,
            slices: (sets >> low_bits) as u32,
            replacement,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// How many sets there are.
    pub fn sets(&self) -> usize {
        self.count
    }

    /// How many slots there are, for arrays that lie beside this one.
    pub fn slots(&self) -> usize {
        self.count * self.lanes
    }

    /// A number's set and tag.
    #[inline(always)]
    fn locate(&self, number: u64) -> (usize, u32) {
        let low = number & ((1 << self.low_bits) - 1);
        let tag = (number >> self.low_bits) as u32;
        if self.slices == 1 { (low as usize, tag) } else { (self.sliced(low, tag), tag) }
    }

    #[inline]
    fn sliced(&self, low: u64, tag: u32) -> usize {
        let hash = (tag.wrapping_mul(0x9e37_79b1) ^ (low as u32).wrapping_mul(0x85eb_ca6b))
            .wrapping_mul(0xc2b2_ae35);
        let slice = (u64::from(hash) * u64::from(self.slices)) >> 32;
        ((slice << self.low_bits) | low) as usize
    }

    /// The number of a tag in a set.
    #[inline]
    fn number(&self, set: usize, tag: u32) -> u64 {
        u64::from(tag) << self.low_bits | (set as u64 & ((1 << self.low_bits) - 1))
    }

    #[inline(always)]
    fn slot(&self, set: usize, way: u32) -> Slot {
        Slot(set as u32 * self.lanes as u32 + way)
    }

    #[inline(always)]
    fn block(&mut self, set: usize) -> Block<'_> {
        let begin = self.base + set * self.stride;
        Block { words: &mut self.words[begin..begin + self.stride], pairs: self.lanes / 2 }
    }

    /// Looks a number up and marks it as used.
    #[inline(always)]
    pub fn hit(&mut self, number: u64) -> Option<Slot> {
        let (set, tag) = self.locate(number);
        let (replacement, ways) = (self.replacement, self.ways);
        let mut block = self.block(set);
        let way = block.way(tag)?;
        touch(&mut block, way, replacement, ways);
        Some(self.slot(set, way))
    }

    /// Looks a number up for a load or a store, and marks it as used.
    #[inline(always)]
    pub fn access(&mut self, number: u64, store: bool) -> bool {
        let (set, tag) = self.locate(number);
        let (replacement, ways) = (self.replacement, self.ways);
        let mut block = self.block(set);
        let Some(way) = block.way(tag) else { return false };
        touch(&mut block, way, replacement, ways);
        if store {
            *block.dirty() |= 1 << way;
        }
        true
    }

    /// Marks an entry as dirty without using it; false if it is not there.
    #[inline]
    pub fn mark_dirty(&mut self, number: u64) -> bool {
        let (set, tag) = self.locate(number);
        let mut block = self.block(set);
        let Some(way) = block.way(tag) else { return false };
        *block.dirty() |= 1 << way;
        true
    }

    /// Marks an entry as clean without using it; says whether it was dirty.
    pub fn clean(&mut self, number: u64) -> bool {
        let (set, tag) = self.locate(number);
        let mut block = self.block(set);
        let Some(way) = block.way(tag) else { return false };
        let bits = block.dirty();
        let dirty = *bits & 1 << way != 0;
        *bits &= !(1 << way);
        dirty
    }

    /// Where an entry is; changes nothing.
    #[inline]
    pub fn find(&self, number: u64) -> Option<Slot> {
        let (set, tag) = self.locate(number);
        let begin = self.base + set * self.stride;
        way(&self.words[begin..begin + self.stride], self.lanes / 2, tag)
            .map(|way| self.slot(set, way))
    }

    /// Whether an entry is there; changes nothing.
    pub fn contains(&self, number: u64) -> bool {
        self.find(number).is_some()
    }

    /// Enters a number that is not there.
    #[inline]
    pub fn insert(&mut self, number: u64, dirty: bool) -> (Slot, Option<Evicted>) {
        let (set, tag) = self.locate(number);
        let way = self.victim(set);
        let mut block = self.block(set);
        let old = block.replace(way, tag);
        let bit = 1u64 << way;
        let bits = block.dirty();
        let was_dirty = *bits & bit != 0;
        *bits = *bits & !bit | u64::from(dirty) << way;
        let evicted =
            (old != NONE).then(|| Evicted { number: self.number(set, old), dirty: was_dirty });
        (self.slot(set, way), evicted)
    }

    /// Takes an entry out; says whether it was dirty, `None` if it was not there.
    #[inline]
    pub fn remove(&mut self, number: u64) -> Option<bool> {
        let (set, tag) = self.locate(number);
        let (replacement, ways) = (self.replacement, self.ways);
        let mut block = self.block(set);
        let way = block.way(tag)?;
        block.replace(way, NONE);
        let bits = block.dirty();
        let dirty = *bits & 1 << way != 0;
        *bits &= !(1 << way);
        let order = block.order();
        match replacement {
            // An empty way is the next to be filled.
            Replacement::Lru | Replacement::Fifo => {
                let (before, after) = split(order, way);
                block.set_order(before | after >> 4 | u64::from(way) << (4 * (ways - 1)));
            }
            Replacement::Srrip => block.set_order(order | 3 << (2 * way)),
            Replacement::Random | Replacement::TreePlru => {}
        }
        Some(dirty)
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        *self = Self::new(self.count as u64, self.ways, self.replacement);
    }

    /// The way that a new entry takes, marked as used.
    #[inline]
    fn victim(&mut self, set: usize) -> u32 {
        let ways = self.ways;
        if let Replacement::Lru | Replacement::Fifo = self.replacement {
            let mut block = self.block(set);
            let order = block.order();
            let way = (order >> (4 * (ways - 1)) & 15) as u32;
            // What is shifted out past the last way is `way` itself.
            let kept = if ways == 16 { u64::MAX } else { (1 << (4 * ways)) - 1 };
            block.set_order((order << 4 | u64::from(way)) & kept);
            return way;
        }
        self.other_victim(set)
    }

    #[cold]
    fn other_victim(&mut self, set: usize) -> u32 {
        let (ways, replacement) = (self.ways, self.replacement);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let any = (((self.random >> 32) * u64::from(ways)) >> 32) as u32;
        let mut block = self.block(set);
        let empty = block.way(NONE).filter(|&way| way < ways);
        let mut order = block.order();
        let way = match replacement {
            Replacement::Lru | Replacement::Fifo => (order & 15) as u32,
            Replacement::Random => empty.unwrap_or(any),
            Replacement::TreePlru => {
                let way = empty.unwrap_or_else(|| tree_victim(order, ways));
                order = tree_touch(order, way, ways);
                way
            }
            Replacement::Srrip => {
                let way = empty.unwrap_or_else(|| srrip_victim(&mut order, ways));
                order = order & !(3 << (2 * way)) | 2 << (2 * way);
                way
            }
        };
        block.set_order(order);
        way
    }

    /// What would have to go for a number, if that is known without choosing.
    #[inline]
    pub(crate) fn next_victim(&self, number: u64) -> Option<u64> {
        let (set, _) = self.locate(number);
        let begin = self.base + set * self.stride;
        let words = &self.words[begin..begin + self.stride];
        let way = words[self.lanes / 2] >> (4 * (self.ways - 1)) & 15;
        let tag = (words[way as usize / 2] >> (way % 2 * 32)) as u32;
        (tag != NONE).then(|| self.number(set, tag))
    }

    /// Asks the host to bring a number's set near. Changes nothing.
    #[inline]
    pub(crate) fn prefetch(&self, number: u64) {
        let (set, _) = self.locate(number);
        let begin = self.base + set * self.stride;
        prefetch(&self.words, begin);
        if self.stride > 8 {
            prefetch(&self.words, begin + 8);
        }
    }
}

#[inline(always)]
fn touch(block: &mut Block<'_>, way: u32, replacement: Replacement, ways: u32) {
    let order = block.order();
    match replacement {
        Replacement::Lru => {
            let way = u64::from(way);
            if order & 15 == way {
                return;
            }
            if order >> 4 & 15 == way {
                block.set_order(order & !0xff | (order & 15) << 4 | way);
            } else {
                let (before, after) = split(order, way as u32);
                block.set_order(before << 4 | after | way);
            }
        }
        Replacement::Fifo | Replacement::Random => {}
        Replacement::TreePlru => block.set_order(tree_touch(order, way, ways)),
        Replacement::Srrip => block.set_order(order & !(3 << (2 * way))),
    }
}

/// Order words with `ways` ways of which none was used: way 0 is filled first.
const UNUSED_OF: [u64; 17] = {
    let mut words = [0; 17];
    let mut ways = 1;
    while ways <= 16 {
        let mut word = 0;
        let mut place = 0;
        while place < ways {
            word |= ((ways - 1 - place) as u64) << (4 * place);
            place += 1;
        }
        words[ways] = word;
        ways += 1;
    }
    assert!(words[16] == UNUSED);
    words
};

/// The parts of an order word before and after a way, each at its place, the
/// way itself left out.
#[inline(always)]
fn split(order: u64, way: u32) -> (u64, u64) {
    // The lowest nibble that equals the way: found as a zero in the difference.
    let difference = order ^ (u64::from(way) * NIBBLES);
    let zeros = difference.wrapping_sub(NIBBLES) & !difference & (NIBBLES << 3);
    let place = zeros.trailing_zeros() & !3;
    let before = order & ((1 << place) - 1);
    let after = order & (!0xf << place);
    (before, after)
}

/// Turns the tree's bits on a way's path away from it. Node `n`'s children are
/// `2n` and `2n + 1`; a set bit points to the latter.
fn tree_touch(mut bits: u64, way: u32, ways: u32) -> u64 {
    let mut node = 1;
    let mut half = ways / 2;
    while half > 0 {
        let right = way & half != 0;
        bits = bits & !(1 << node) | u64::from(!right) << node;
        node = 2 * node + u32::from(right);
        half /= 2;
    }
    bits
}

fn tree_victim(bits: u64, ways: u32) -> u32 {
    let mut node = 1;
    while node < ways {
        node = 2 * node + (bits >> node & 1) as u32;
    }
    node - ways
}

/// The first way that is predicted to be used last; ages all until there is one.
fn srrip_victim(order: &mut u64, ways: u32) -> u32 {
    loop {
        if let Some(way) = (0..ways).find(|way| *order >> (2 * way) & 3 == 3) {
            return way;
        }
        (0..ways).for_each(|way| *order += 1 << (2 * way));
    }
}

/// One bit for each of four tags that equals `tag`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn equal(low: u64, high: u64, tag: u32) -> u32 {
    use core::arch::x86_64::{
        _mm_castsi128_ps, _mm_cmpeq_epi32, _mm_movemask_ps, _mm_set_epi64x, _mm_set1_epi32,
    };
    // SAFETY: these instructions are in every x86-64 processor, and none of
    // them touches memory.
    unsafe {
        let quad = _mm_set_epi64x(high as i64, low as i64);
        let equal = _mm_cmpeq_epi32(quad, _mm_set1_epi32(tag as i32));
        _mm_movemask_ps(_mm_castsi128_ps(equal)) as u32
    }
}

/// One bit for each of four tags that equals `tag`.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn equal(low: u64, high: u64, tag: u32) -> u32 {
    [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
        .iter()
        .rev()
        .fold(0, |mask, &t| mask << 1 | u32::from(t == tag))
}

/// Asks the host to bring an element near.
#[inline]
pub(crate) fn prefetch<T>(array: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = array.get(index) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing architecturally, and the address is
        // that of an element of the array.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (array, index);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// LRU by packed permutations must be LRU: against a plain queue a set,
        /// with entries taken out in between.
        #[test]
        fn lru_is_a_queue(
            ways in 1u32..=16,
            sets in prop::sample::select(vec![1u64, 4, 6]),
            ops in prop::collection::vec((0u64..80, 0u8..10), 1..400),
        ) {
            let mut array = Sets::new(sets, ways, Replacement::Lru);
            let mut model: Vec<VecDeque<(u64, bool)>> = vec![VecDeque::new(); sets as usize];
            for (number, op) in ops {
                let set = &mut model[array.locate(number).0];
                let at = set.iter().position(|e| e.0 == number);
                if op == 0 {
                    let expected = at.and_then(|i| set.remove(i)).map(|e| e.1);
                    prop_assert_eq!(array.remove(number), expected);
                    continue;
                }
                let store = op < 4;
                prop_assert_eq!(array.access(number, store), at.is_some());
                if let Some(i) = at {
                    let entry = set.remove(i).expect("it was found");
                    set.push_front((number, entry.1 | store));
                } else {
                    let full = set.len() == ways as usize;
                    let expected = if full { set.pop_back() } else { None }
                        .map(|(number, dirty)| Evicted { number, dirty });
                    prop_assert_eq!(array.insert(number, store).1, expected);
                    set.push_front((number, store));
                }
            }
        }

        /// No policy may lose an entry that it did not report as evicted, or
        /// hold more than there is room for.
        #[test]
        fn what_goes_in_stays_until_it_is_evicted(
            replacement in prop::sample::select(vec![
                Replacement::Lru, Replacement::Fifo, Replacement::Random,
                Replacement::TreePlru, Replacement::Srrip,
            ]),
            ways in prop::sample::select(vec![1u32, 2, 4, 8, 16]),
            numbers in prop::collection::vec(0u64..200, 1..400),
        ) {
            let mut array = Sets::new(4, ways, replacement);
            let mut held = std::collections::BTreeSet::new();
            for number in numbers {
                prop_assert_eq!(array.access(number, false), held.contains(&number));
                if held.insert(number)
                    && let Some(evicted) = array.insert(number, false).1
                {
                    prop_assert!(held.remove(&evicted.number));
                }
                prop_assert!(held.len() <= 4 * ways as usize);
                prop_assert!(held.iter().all(|&n| array.contains(n)));
            }
        }
    }

    #[test]
    fn fifo_ignores_use_and_lru_does_not() {
        for (replacement, evicted) in [(Replacement::Fifo, 0), (Replacement::Lru, 1)] {
            let mut array = Sets::new(1, 2, replacement);
            array.insert(0, false);
            array.insert(1, false);
            assert!(array.access(0, false));
            let (_, gone) = array.insert(2, false);
            assert_eq!(gone, Some(Evicted { number: evicted, dirty: false }));
        }
    }

    /// A scan that is longer than the set must not displace what is used again
    /// and again: that is what re-reference prediction is for.
    #[test]
    fn srrip_keeps_what_is_reused_through_a_scan() {
        let hits = |replacement| {
            let mut array = Sets::new(1, 8, replacement);
            let mut hits = 0;
            for round in 0..200u64 {
                for number in (0..4).chain(0..4).chain(1000 + round * 6..1006 + round * 6) {
                    if array.access(number, false) {
                        hits += 1;
                    } else {
                        array.insert(number, false);
                    }
                }
            }
            hits
        };
        assert!(hits(Replacement::Srrip) > 8 * 180, "{}", hits(Replacement::Srrip));
        assert_eq!(hits(Replacement::Lru), 4 * 200, "only the second use of each round hits");
    }
}
