//! Order of use: which entry of a full set has to go.
//!
//! Whatever the rule, it is one 64-bit word a set. For LRU and FIFO that is a
//! permutation of the ways, four bits each, most recent first; for tree-PLRU the
//! tree's bits; for SRRIP two bits a way.

#![allow(clippy::inline_always)] // measured: a call on the hot path costs more than the work

use terrace_core::{Replacement, Xorshift};

/// Order words of a set in which nothing was used yet: way 0 last.
const UNUSED: u64 = 0x0123_4567_89ab_cdef;
const NIBBLES: u64 = 0x1111_1111_1111_1111;

/// Order of use and choice of victims, with what the choice needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) replacement: Replacement,
    pub(super) ways: u32,
    /// Where the last way's number is in an order word.
    pub(super) last: u32,
    /// Bits of an order word that are in use.
    pub(super) mask: u64,
}

impl Rule {
    pub(super) fn new(replacement: Replacement, ways: u32) -> Self {
        Self { replacement, ways, last: 4 * (ways - 1), mask: u64::MAX >> (64 - 4 * ways) }
    }
}

/// The word of a set that holds nothing.
pub(super) fn unused(rule: &Rule) -> u64 {
    match rule.replacement {
        Replacement::Lru | Replacement::Fifo => UNUSED_OF[rule.ways as usize],
        Replacement::Srrip => u64::MAX,
        Replacement::Random | Replacement::TreePlru => 0,
    }
}

/// A victim where it is not simply the last in the order; with the new order.
#[cold]
pub(super) fn other_victim(
    mut order: u64,
    empty: Option<u32>,
    rule: &Rule,
    random: &mut Xorshift,
) -> (u32, u64) {
    let ways = rule.ways;
    let any = (((random.draw() >> 32) * u64::from(ways)) >> 32) as u32;
    let way = match rule.replacement {
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
    (way, order)
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
pub(super) fn split(order: u64, way: u32) -> (u64, u64) {
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
pub(super) fn tree_touch(mut bits: u64, way: u32, ways: u32) -> u64 {
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
