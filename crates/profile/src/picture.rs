//! The address space drawn with its benefit: a line for each region, a sign for each part.

use terrace_core::{Bytes, Cycles};

use crate::profile::{PAGES, Region, SLOT};

/// Signs for a part's benefit a huge page: each stands for ten times the one before. A dot is
/// memory that was touched without any, a space memory that was not touched.
pub const SIGNS: [char; 6] = ['1', '2', '3', '4', '5', '6'];

/// The sign of a benefit of one huge page.
pub fn sign(averted: Cycles, touched: bool) -> char {
    match averted.get() {
        0 if touched => '.',
        0 => ' ',
        cycles => {
            // 1: below 10 K cycles, which no huge page is worth; 6: from 100 M.
            let digits = cycles.ilog10().saturating_sub(3) as usize;
            SIGNS[digits.min(SIGNS.len() - 1)]
        }
    }
}

/// What each sign stands for.
pub const LEGEND: &str = "cycles of page walks averted a huge page: 1 below 10 K, 2 below 100 K, \
     3 below 1 M, 4 below 10 M, 5 below 100 M, 6 more; . touched, none averted";

/// A part of a region as a picture has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// First byte in the region.
    pub offset: Bytes,
    /// What a huge page averts in it, on the mean.
    pub averted: Cycles,
    /// The share that is touched.
    pub touched: f64,
}

/// A region in at most `width` parts.
pub fn parts(region: &Region, width: usize) -> Vec<Part> {
    let slots = region.len.get().div_ceil(SLOT.get()).max(1);
    let width = (width.max(1) as u64).min(slots);
    let mut parts = Vec::with_capacity(width as usize);
    let mut ranges = region.ranges.iter().peekable();
    for part in 0..width {
        let (from, to) = (part * slots / width, (part + 1) * slots / width);
        while ranges.next_if(|range| range.end().get() / SLOT.get() <= from).is_some() {}
        let (mut averted, mut touched) = (Cycles::ZERO, 0.0);
        for range in ranges.clone() {
            let first = range.offset.get() / SLOT.get();
            if first >= to {
                break;
            }
            let common = (first + range.slots()).min(to) - first.max(from);
            averted += range.averted * common;
            touched += f64::from(range.touched) / f64::from(PAGES) * common as f64;
        }
        let n = (to - from).max(1);
        parts.push(Part { offset: SLOT * from, averted: averted / n, touched: touched / n as f64 });
    }
    parts
}

/// A region as a line of signs.
pub fn line(region: &Region, width: usize) -> String {
    parts(region, width).iter().map(|part| sign(part.averted, part.touched > 0.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::example;

    #[test]
    fn a_picture_shows_where_benefit_is() {
        let profile = example();
        assert_eq!(line(&profile.regions[0], 80), "44 2 ", "1 M twice, a hole, 10 K, the end");
        assert_eq!(line(&profile.regions[1], 8), "11111111");
        assert_eq!(line(&profile.regions[1], 1000).len(), 64, "a sign for each huge page at most");
    }

    #[test]
    fn a_narrow_picture_has_the_mean_of_each_part() {
        let profile = example();
        let whole = parts(&profile.regions[0], 1);
        assert_eq!(whole.len(), 1);
        assert_eq!(whole[0].averted, Cycles((2_000_000 + 10_000) / 5));
    }

    #[test]
    fn signs_are_a_factor_of_ten_apart() {
        let of = |cycles| sign(Cycles(cycles), true);
        assert_eq!([of(0), of(1), of(9_999), of(10_000), of(99_999)], ['.', '1', '1', '2', '2']);
        assert_eq!([of(100_000), of(1_000_000), of(u64::MAX)], ['3', '4', '6']);
        assert_eq!(sign(Cycles::ZERO, false), ' ');
    }
}
