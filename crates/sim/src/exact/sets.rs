//! A set-associative array of tags: what caches, TLBs and page-walk caches
//! have in common.
//!
//! Built for speed. A set is a block of 64-bit words in one or two lines of the
//! host: the order of use, dirty bits, and tags of 32 bits, which are compared
//! four at a time. The order is a permutation of the ways, four bits each, most
//! recent first. A number's set is its low bits, and for the odd factor of the
//! number of sets (the slices of a last-level cache) a hash of the others, as
//! in the hardware.
//!
//! What depends on the number of ways is compiled for each number of words: see
//! `each_size`.

#![allow(clippy::inline_always)] // measured: a call here costs more than the work

use terrace_core::{Replacement, Xorshift};

use super::host_arrays::{HugeArray, prefetch};
use super::replacement::{Rule, other_victim, split, tree_touch, unused};

/// No entry.
const NONE: u32 = u32::MAX;
/// Words of a block before its tags: order, dirty bits.
const ORDER: usize = 0;
const DIRTY: usize = 1;
const TAGS: usize = 2;
/// Where victims that are drawn begin.
const RANDOM: Xorshift = Xorshift::new(0x9e37_79b9_7f4a_7c15);

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

/// What became of a number that was to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// It was there.
    Hit,
    /// It is there now, and something else may have had to go.
    Filled(Option<Evicted>),
}

/// A set-associative array.
#[derive(Debug)]
pub struct Sets {
    /// A block for each set.
    words: HugeArray,
    /// How many sets.
    count: usize,
    rule: Rule,
    /// Tags in a block: the ways rounded up to what is compared at once.
    lanes: usize,
    /// log2 of the distance of blocks.
    stride_bits: u32,
    /// Low bits of a number that select a set.
    low_bits: u32,
    /// Odd factor of the number of sets.
    slices: u32,
    random: Xorshift,
}

impl Clone for Sets {
    fn clone(&self) -> Self {
        Self { words: self.words.clone(), random: self.random.clone(), ..*self }
    }
}

/// The words of one set: `W` of them, a power of two, with `4 * Q` tags.
struct Block<'a, const W: usize, const Q: usize>(&'a mut [u64; W]);

impl<const W: usize, const Q: usize> Block<'_, W, Q> {
    /// The way that holds a tag.
    #[inline(always)]
    fn way(&self, tag: u32) -> Option<u32> {
        let mut mask = 0;
        for quad in 0..Q {
            let at = TAGS + 2 * quad;
            mask |= equal(self.0[at], self.0[at + 1], tag) << (4 * quad);
        }
        (mask != 0).then(|| mask.trailing_zeros())
    }

    /// Puts a tag into a way, and returns the one before.
    #[inline(always)]
    fn replace(&mut self, way: u32, tag: u32) -> u32 {
        let word = &mut self.0[(TAGS + way as usize / 2) % W];
        let shift = way % 2 * 32;
        let old = (*word >> shift) as u32;
        *word ^= u64::from(old ^ tag) << shift;
        old
    }

    /// Marks a way as used.
    #[inline(always)]
    fn touch(&mut self, way: u32, rule: &Rule) {
        let order = self.0[ORDER];
        self.0[ORDER] = match rule.replacement {
            Replacement::Lru => {
                let (before, after) = split(order, way);
                before << 4 | after | u64::from(way)
            }
            Replacement::Fifo | Replacement::Random => return,
            Replacement::TreePlru => tree_touch(order, way, rule.ways),
            Replacement::Srrip => order & !(3 << (2 * way)),
        };
    }

    /// The way that a new entry takes, marked as used.
    #[inline(always)]
    fn victim(&mut self, rule: &Rule, random: &mut Xorshift) -> u32 {
        let order = self.0[ORDER];
        if let Replacement::Lru | Replacement::Fifo = rule.replacement {
            let way = order >> rule.last & 15;
            // What is shifted out past the last way is `way` itself.
            self.0[ORDER] = (order << 4 | way) & rule.mask;
            return way as u32;
        }
        let empty = self.way(NONE).filter(|&way| way < rule.ways);
        let (way, order) = other_victim(order, empty, rule, random);
        self.0[ORDER] = order;
        way
    }

    /// Enters a tag that is not there; returns its way, and what had to go.
    #[inline(always)]
    fn fill(
        &mut self,
        tag: u32,
        dirty: bool,
        rule: &Rule,
        random: &mut Xorshift,
    ) -> (u32, u32, bool) {
        let way = self.victim(rule, random);
        let old = self.replace(way, tag);
        let bits = self.0[DIRTY];
        self.0[DIRTY] = bits & !(1 << way) | u64::from(dirty) << way;
        (way, old, bits >> way & 1 != 0)
    }

    #[inline(always)]
    fn set_dirty(&mut self, way: u32, dirty: bool) {
        self.0[DIRTY] |= u64::from(dirty) << way;
    }

    /// Takes a way's dirty bit away; says whether it was set.
    #[inline(always)]
    fn take_dirty(&mut self, way: u32) -> bool {
        let bits = self.0[DIRTY];
        self.0[DIRTY] = bits & !(1 << way);
        bits >> way & 1 != 0
    }

    /// Takes a way out: it is the next to be filled.
    #[inline(always)]
    fn empty(&mut self, way: u32, rule: &Rule) {
        self.replace(way, NONE);
        let order = self.0[ORDER];
        self.0[ORDER] = match rule.replacement {
            Replacement::Lru | Replacement::Fifo => {
                let (before, after) = split(order, way);
                before | after >> 4 | u64::from(way) << rule.last
            }
            Replacement::Srrip => order | 3 << (2 * way),
            Replacement::Random | Replacement::TreePlru => return,
        };
    }
}

/// Does something with the block of a set, compiled for each size of block: the
/// number of ways of an array never changes, so the branch is foreseen.
macro_rules! each_size {
    ($array:expr, $set:expr, |$block:ident| $body:expr) => {
        match $array.lanes {
            4 => one_size!($array, $set, 4, 1, |$block| $body),
            8 => one_size!($array, $set, 8, 2, |$block| $body),
            12 => one_size!($array, $set, 8, 3, |$block| $body),
            _ => one_size!($array, $set, 16, 4, |$block| $body),
        }
    };
}

macro_rules! one_size {
    ($array:expr, $set:expr, $words:literal, $quads:literal, |$block:ident| $body:expr) => {{
        let begin = $set << $array.stride_bits;
        let words = &mut $array.words.as_mut()[begin..begin + $words];
        let mut block = Block::<$words, $quads>(words.try_into().expect("it is as long"));
        let $block = &mut block;
        $body
    }};
}

impl Sets {
    /// An empty array of `sets` sets of 1 to 16 `ways`.
    pub fn new(sets: u64, ways: u32, replacement: Replacement) -> Self {
        assert!(sets > 0 && (1..=16).contains(&ways), "{sets} sets of {ways} ways");
        let lanes = ways.next_multiple_of(4) as usize;
        let stride_bits = (lanes / 2 + TAGS).next_power_of_two().trailing_zeros();
        let low_bits = sets.trailing_zeros();
        let mut array = Self {
            words: HugeArray::new((sets as usize) << stride_bits),
            count: sets as usize,
            rule: Rule::new(replacement, ways),
            lanes,
            stride_bits,
            low_bits,
            slices: (sets >> low_bits) as u32,
            random: RANDOM,
        };
        array.clear();
        array
    }

    /// How many sets there are.
    pub fn sets(&self) -> usize {
        self.count
    }

    /// How many entries a set has.
    pub fn ways(&self) -> u32 {
        self.rule.ways
    }

    /// Exchanges the two entries of a set that were used last, where the order
    /// is LRU.
    #[inline(always)]
    pub(super) fn swap_recent(&mut self, set: usize) {
        let order = &mut self.words.as_mut()[(set << self.stride_bits) + ORDER];
        *order = *order & !0xff | (*order & 15) << 4 | *order >> 4 & 15;
    }

    /// The entry of a set that was used last, where the order is LRU, is dirty
    /// from now on.
    #[inline(always)]
    pub(super) fn dirty_last(&mut self, set: usize) {
        let begin = set << self.stride_bits;
        let words = self.words.as_mut();
        let way = words[begin + ORDER] & 15;
        words[begin + DIRTY] |= 1 << way;
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
    #[inline(always)]
    fn number(&self, set: usize, tag: u32) -> u64 {
        u64::from(tag) << self.low_bits | (set as u64 & ((1 << self.low_bits) - 1))
    }

    #[inline(always)]
    fn slot(&self, set: usize, way: u32) -> Slot {
        Slot(set as u32 * self.lanes as u32 + way)
    }

    #[inline(always)]
    fn evicted(&self, set: usize, tag: u32, dirty: bool) -> Option<Evicted> {
        (tag != NONE).then(|| Evicted { number: self.number(set, tag), dirty })
    }

    /// Looks a number up and marks it as used.
    #[inline(always)]
    pub fn hit(&mut self, number: u64) -> Option<Slot> {
        let (set, tag) = self.locate(number);
        let way = each_size!(self, set, |block| {
            let way = block.way(tag)?;
            block.touch(way, &self.rule);
            way
        });
        Some(self.slot(set, way))
    }

    /// Looks a number up for a load or a store, and marks it as used.
    #[inline(always)]
    pub fn access(&mut self, number: u64, store: bool) -> bool {
        let (set, tag) = self.locate(number);
        each_size!(self, set, |block| {
            let Some(way) = block.way(tag) else { return false };
            block.touch(way, &self.rule);
            block.set_dirty(way, store);
        });
        true
    }

    /// Looks a number up for a load or a store, and enters it if it is not
    /// there.
    #[inline(always)]
    pub fn access_or_insert(&mut self, number: u64, store: bool) -> Touched {
        let (set, tag) = self.locate(number);
        let (_, old, dirty) = each_size!(self, set, |block| {
            if let Some(way) = block.way(tag) {
                block.touch(way, &self.rule);
                block.set_dirty(way, store);
                return Touched::Hit;
            }
            block.fill(tag, store, &self.rule, &mut self.random)
        });
        Touched::Filled(self.evicted(set, old, dirty))
    }

    /// Marks an entry as dirty without using it; false if it is not there.
    #[inline(always)]
    pub fn mark_dirty(&mut self, number: u64) -> bool {
        let (set, tag) = self.locate(number);
        each_size!(self, set, |block| {
            let Some(way) = block.way(tag) else { return false };
            block.set_dirty(way, true);
        });
        true
    }

    /// Marks an entry as clean without using it; says whether it was dirty.
    pub fn clean(&mut self, number: u64) -> bool {
        let (set, tag) = self.locate(number);
        each_size!(self, set, |block| {
            let Some(way) = block.way(tag) else { return false };
            block.take_dirty(way)
        })
    }

    /// Where an entry is; changes nothing.
    #[inline]
    pub fn find(&self, number: u64) -> Option<Slot> {
        let (set, tag) = self.locate(number);
        let begin = (set << self.stride_bits) + TAGS;
        let tags = &self.words.as_ref()[begin..begin + self.lanes / 2];
        let quads = tags.chunks_exact(2).enumerate();
        let mask = quads.fold(0, |mask, (i, quad)| mask | equal(quad[0], quad[1], tag) << (4 * i));
        (mask != 0).then(|| self.slot(set, mask.trailing_zeros()))
    }

    /// Whether an entry is there; changes nothing.
    pub fn contains(&self, number: u64) -> bool {
        self.find(number).is_some()
    }

    /// Enters a number that is not there.
    #[inline(always)]
    pub fn insert(&mut self, number: u64, dirty: bool) -> (Slot, Option<Evicted>) {
        let (set, tag) = self.locate(number);
        let (way, old, was_dirty) =
            each_size!(self, set, |block| block.fill(tag, dirty, &self.rule, &mut self.random));
        (self.slot(set, way), self.evicted(set, old, was_dirty))
    }

    /// Takes an entry out; says whether it was dirty, `None` if it was not there.
    #[inline(always)]
    pub fn remove(&mut self, number: u64) -> Option<bool> {
        let (set, tag) = self.locate(number);
        each_size!(self, set, |block| {
            let way = block.way(tag)?;
            block.empty(way, &self.rule);
            Some(block.take_dirty(way))
        })
    }

    /// Takes everything out.
    pub fn clear(&mut self) {
        let order = unused(&self.rule);
        for block in self.words.as_mut().chunks_exact_mut(1 << self.stride_bits) {
            block.fill(u64::MAX);
            block[ORDER] = order;
            block[DIRTY] = 0;
        }
        self.random = RANDOM;
    }

    /// What would have to go for a number, where the last in the order has to.
    #[inline(always)]
    pub(super) fn next_victim(&self, number: u64) -> Option<u64> {
        let (set, _) = self.locate(number);
        let begin = set << self.stride_bits;
        let words = self.words.as_ref();
        let way = (words[begin + ORDER] >> self.rule.last & 15) as usize;
        let tag = (words[begin + TAGS + way / 2] >> (way % 2 * 32)) as u32;
        (tag != NONE).then(|| self.number(set, tag))
    }

    /// Asks the host to bring a number's set near. Changes nothing.
    #[inline(always)]
    pub(crate) fn prefetch(&self, number: u64) {
        let (set, _) = self.locate(number);
        let begin = set << self.stride_bits;
        prefetch(self.words.as_ref(), begin);
        if self.stride_bits > 3 {
            prefetch(self.words.as_ref(), begin + 8);
        }
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
