//! A set of addresses as ordered ranges, for any number of them.
//!
//! It allocates: where that cannot be, or ranges are few, [`Ranges`](super::ranges::Ranges) has room of its
//! own.

use std::collections::BTreeMap;

/// Addresses, from the first to behind the last.
pub type Range = (usize, usize);

/// Ranges without overlap, in order; those that touch are one. With `n` of them, a question takes
/// time with log `n`, and a change with log `n` for each range that it touches.
#[derive(Debug, Default)]
pub struct OrderedRanges {
    /// By its first address, the one behind a range's last.
    ends: BTreeMap<usize, usize>,
}

impl OrderedRanges {
    /// None.
    pub const fn new() -> Self {
        Self { ends: BTreeMap::new() }
    }

    /// Adds a range. What is in the set already stays.
    pub fn insert(&mut self, (mut start, mut end): Range) {
        if start >= end {
            return;
        }
        while let Some(last) = self.last_from_below(end.saturating_add(1))
            && last.1 >= start
        {
            self.ends.remove(&last.0);
            (start, end) = (start.min(last.0), end.max(last.1));
        }
        self.ends.insert(start, end);
    }

    /// Takes a range out, and returns what of it was in the set, in order.
    pub fn remove(&mut self, range: Range) -> Vec<Range> {
        let mut taken = Vec::new();
        while let Some(last) = self.last_from_below(range.1)
            && let Some(both) = overlap(last, range)
        {
            self.ends.remove(&last.0);
            // What remains lies outside of the range, and is not looked at again.
            for rest in [(last.0, both.0), (both.1, last.1)] {
                if rest.0 < rest.1 {
                    self.ends.insert(rest.0, rest.1);
                }
            }
            taken.push(both);
        }
        taken.reverse();
        taken
    }

    /// Whether anything of a range is in the set.
    pub fn overlaps(&self, range: Range) -> bool {
        self.last_from_below(range.1).is_some_and(|last| overlap(last, range).is_some())
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range> {
        self.ends.iter().map(|(&start, &end)| (start, end))
    }

    /// The last range that begins below an address.
    fn last_from_below(&self, address: usize) -> Option<Range> {
        self.ends.range(..address).next_back().map(|(&start, &end)| (start, end))
    }
}

fn overlap(a: Range, b: Range) -> Option<Range> {
    let both = (a.0.max(b.0), a.1.min(b.1));
    (both.0 < both.1).then_some(both)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(ranges: &[Range]) -> OrderedRanges {
        let mut set = OrderedRanges::new();
        for &range in ranges {
            set.insert(range);
        }
        set
    }

    fn list(set: &OrderedRanges) -> Vec<Range> {
        set.iter().collect()
    }

    #[test]
    fn a_range_is_taken_out_of_those_that_it_overlaps() {
        let mut set = of(&[(50, 60), (10, 20), (30, 40)]);
        assert_eq!(set.remove((15, 55)), [(15, 20), (30, 40), (50, 55)]);
        assert_eq!(list(&set), [(10, 15), (55, 60)]);
        assert_eq!(set.remove((20, 50)), []);
        assert_eq!(set.remove((11, 12)), [(11, 12)]);
        assert_eq!(list(&set), [(10, 11), (12, 15), (55, 60)]);
    }

    #[test]
    fn what_touches_is_one_and_what_is_empty_is_nothing() {
        assert_eq!(list(&of(&[(10, 20), (30, 40), (20, 30)])), [(10, 40)]);
        assert_eq!(list(&of(&[(12, 15), (10, 20), (15, 25)])), [(10, 25)]);
        assert_eq!(list(&of(&[(10, 20), (15, 15), (40, 30)])), [(10, 20)]);
        let mut set = of(&[(10, 20)]);
        assert_eq!((set.remove((15, 15)), set.remove((18, 12))), (vec![], vec![]));
        assert_eq!((list(&set), set.overlaps((15, 15))), (vec![(10, 20)], false));
    }

    #[test]
    fn addresses_may_be_the_last_that_there_are() {
        let mut set = of(&[(usize::MAX - 9, usize::MAX), (0, 10)]);
        assert!(set.overlaps((usize::MAX - 1, usize::MAX)) && set.overlaps((0, 1)));
        assert_eq!(set.remove((5, usize::MAX)), [(5, 10), (usize::MAX - 9, usize::MAX)]);
        assert_eq!(list(&set), [(0, 5)]);
    }

    const ADDRESSES: usize = 48;

    /// The ranges of a plain list that says of each address whether it is in.
    fn ranges_of(is_in: &[bool]) -> Vec<Range> {
        let mut ranges: Vec<Range> = Vec::new();
        for (at, _) in is_in.iter().enumerate().filter(|(_, is_in)| **is_in) {
            match ranges.last_mut() {
                Some(last) if last.1 == at => last.1 = at + 1,
                _ => ranges.push((at, at + 1)),
            }
        }
        ranges
    }

    proptest! {
        #[test]
        fn it_has_what_a_plain_list_of_addresses_has(
            changes in proptest::collection::vec(
                (any::<bool>(), 0..ADDRESSES, 0..ADDRESSES / 2),
                0..60,
            ),
            question in (0..ADDRESSES, 0..ADDRESSES),
        ) {
            let (mut set, mut plain) = (OrderedRanges::new(), [false; ADDRESSES]);
            for (is_added, start, len) in changes {
                let end = ADDRESSES.min(start + len);
                if is_added {
                    set.insert((start, end));
                } else {
                    let mut taken = [false; ADDRESSES];
                    taken[start..end].copy_from_slice(&plain[start..end]);
                    prop_assert_eq!(set.remove((start, end)), ranges_of(&taken));
                }
                plain[start..end].fill(is_added);
                prop_assert_eq!(list(&set), ranges_of(&plain));
            }
            let (start, end) = question;
            let expected = start < end && plain[start..end].contains(&true);
            prop_assert_eq!(set.overlaps(question), expected);
        }
    }
}
