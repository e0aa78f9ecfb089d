//! Whose the accesses of a region are: whom DAMON found, told by who was seen stored to.
//!
//! DAMON looks at one page of a region at a time, another one each time, and says how often that
//! one was in use. A third of the looks is a region whose pages are all used once in three looks,
//! or one in which every third page is used all the time. Soft-dirty bits tell the second from
//! the first if the pages in use are stored to: they name pages, though not how much each is used.
//!
//! | | |
//! |---|---|
//! | [`Stores`] | which pages were stored to, as the last look at their bits said |
//! | [`Finds`] | what DAMON found, given to the pages of a region |

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pages that were stored to, by processes: what one sampler sees and another wants to know.
#[derive(Clone, Debug, Default)]
pub struct Stores(Arc<Mutex<BTreeMap<u32, Vec<Range<u64>>>>>);

impl Stores {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<Range<u64>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a look at a process has found, by addresses in order, in place of what the look
    /// before it had.
    pub fn replace(&self, process: u32, stored: Vec<Range<u64>>) {
        self.lock().insert(process, stored);
    }

    /// Keeps what is known of these processes, and forgets all others.
    pub fn retain(&self, mut keep: impl FnMut(u32) -> bool) {
        self.lock().retain(|process, _| keep(*process));
    }

    /// Calls `use_it` with what is known of a process: nothing if nobody has looked.
    pub(crate) fn of<T>(&self, process: u32, use_it: impl FnOnce(&[Range<u64>]) -> T) -> T {
        use_it(self.lock().get(&process).map_or(&[], Vec::as_slice))
    }
}

/// Those of some ranges, which are in order, that have a part of these bytes.
pub(crate) fn within<'a>(ranges: &'a [Range<u64>], bytes: &Range<u64>) -> &'a [Range<u64>] {
    let first = ranges.partition_point(|range| range.end <= bytes.start);
    let ranges = &ranges[first..];
    &ranges[..ranges.partition_point(|range| range.start < bytes.end)]
}

/// Goes through ranges in the order of their addresses, with questions in the same order.
pub(crate) struct Cursor<'a>(&'a [Range<u64>]);

impl<'a> Cursor<'a> {
    /// Begins at the first of these ranges.
    pub(crate) fn new(ranges: &'a [Range<u64>]) -> Self {
        Self(ranges)
    }

    /// Whether any of these bytes is in a range. What lies before them is not asked for again.
    pub(crate) fn touches(&mut self, bytes: &Range<u64>) -> bool {
        while let [first, rest @ ..] = self.0 {
            if first.end > bytes.start {
                return first.start < bytes.end;
            }
            self.0 = rest;
        }
        false
    }
}

/// In how many of a picture's looks a page would have been found in use, had each look been at it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Finds {
    /// Each page that was stored to.
    pub(crate) stored: f64,
    /// Each other one.
    pub(crate) others: f64,
}

impl Finds {
    /// Gives what was found of a region, in `found` of `looks`, to those of its pages that were
    /// `stored` to ([`within`] it), as far as these can have been found so often; and what they
    /// do not explain to the others.
    ///
    /// A look is at any page of the region alike. So if each page had been looked at so often, some
    /// `found` times the number of pages would have been found altogether. That sum is kept, and
    /// no page has more than `looks`. What is assumed is that of two pages the one that was stored
    /// to is in use and the other is not, unless there must be more: of a region in which some
    /// pages are stored to once in a while, and others only loaded from at every look, the former
    /// are taken for the latter, until DAMON has divided it.
    pub(crate) fn of(found: u32, looks: u32, region: &Range<u64>, stored: &[Range<u64>]) -> Self {
        let all = (region.end - region.start) as f64;
        let part = |range: &Range<u64>| range.end.min(region.end) - range.start.max(region.start);
        let stored = stored.iter().map(part).sum::<u64>() as f64;
        let (found, looks) = (f64::from(found.min(looks)), f64::from(looks));
        if stored == 0.0 || stored >= all {
            return Self { stored: found, others: found };
        }
        let each = (found * all / stored).min(looks);
        let rest = (found * all - each * stored).max(0.0);
        Self { stored: each, others: (rest / (all - stored)).min(looks) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    /// Pages side by side that were stored to, as ranges.
    fn ranges(pages: &[bool]) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (i, _) in pages.iter().enumerate().filter(|(_, stored)| **stored) {
            let start = i as u64 * PAGE;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = start + PAGE,
                _ => ranges.push(start..start + PAGE),
            }
        }
        ranges
    }

    /// Finds in a region of `pages`, of which the first `stored` were stored to.
    fn finds(found: u32, looks: u32, pages: u64, stored: u64) -> Finds {
        let stored = 0..stored * PAGE;
        Finds::of(found, looks, &(0..pages * PAGE), std::slice::from_ref(&stored))
    }

    /// What all this is for. Spread over all, a page in use and its idle neighbours were as hot
    /// as each other, and a third of what was moved up was hot.
    #[test]
    fn where_every_third_page_is_in_use_and_stored_to_those_have_all_the_finds() {
        assert_eq!(finds(7, 21, 300, 100), Finds { stored: 21.0, others: 0.0 });
    }

    /// A hot set that is only loaded from must be found as before: alone, and with a page amid it
    /// that is stored to.
    #[test]
    fn what_pages_that_were_stored_to_cannot_explain_is_the_others() {
        assert_eq!(finds(20, 20, 300, 0), Finds { stored: 20.0, others: 20.0 });
        assert_eq!(finds(20, 20, 300, 3), Finds { stored: 20.0, others: 20.0 });
        assert_eq!(finds(10, 20, 300, 100), Finds { stored: 20.0, others: 5.0 });
    }

    /// Pages that are stored to once in a while must not look as if they were in use at every look.
    #[test]
    fn many_pages_that_were_stored_to_share_few_finds() {
        assert_eq!(finds(1, 20, 300, 100), Finds { stored: 3.0, others: 0.0 });
        assert_eq!(finds(5, 20, 300, 300), Finds { stored: 5.0, others: 5.0 }, "of all alike");
    }

    proptest! {
        /// If finds came from nowhere, or got lost, regions with stores would be hotter or colder
        /// than others for that alone.
        #[test]
        fn the_sum_is_kept_and_no_page_has_more_finds_than_looks(
            looks in 1u32..=20, found in 0u32..=20, pages in prop::collection::vec(any::<bool>(), 1..200),
        ) {
            let (found, all) = (found.min(looks), pages.len() as f64);
            let stored = pages.iter().filter(|stored| **stored).count() as f64;
            let region = 0..pages.len() as u64 * PAGE;

            let finds = Finds::of(found, looks, &region, &ranges(&pages));

            let sum = finds.stored * stored + finds.others * (all - stored);
            prop_assert!((sum - f64::from(found) * all).abs() < 1e-6 * (1.0 + sum), "{finds:?}");
            for each in [finds.stored, finds.others] {
                prop_assert!((0.0..=f64::from(looks)).contains(&each), "{finds:?}");
            }
            prop_assert!(finds.stored >= f64::from(found) && f64::from(found) >= finds.others);
            let as_before = (finds.others - f64::from(found)).abs() < 1e-9;
            prop_assert!(stored > 0.0 || as_before, "{finds:?}");
        }

        /// A region has the stores of its own bytes alone, and a page those of its own: if a
        /// neighbour's were counted, that page's accesses would go to the wrong one.
        #[test]
        fn every_page_is_told_from_its_neighbours(
            pages in prop::collection::vec(any::<bool>(), 1..200), from in 0usize..200, count in 0usize..200,
        ) {
            let stored = ranges(&pages);
            let (from, to) = (from.min(pages.len()), (from + count).min(pages.len()));
            let region = from as u64 * PAGE..to.max(from) as u64 * PAGE;

            let mut cursor = Cursor::new(within(&stored, &region));

            for (page, is) in pages.iter().enumerate().take(to).skip(from) {
                let at = page as u64 * PAGE;
                prop_assert_eq!(cursor.touches(&(at..at + PAGE)), *is, "page {}", page);
            }
        }
    }

    /// A part of a range that sticks out of a region is somebody else's.
    #[test]
    fn of_a_range_across_the_border_the_part_within_counts() {
        let stored = 0..150 * PAGE;
        let finds = Finds::of(10, 20, &(100 * PAGE..200 * PAGE), std::slice::from_ref(&stored));
        assert_eq!(finds, Finds { stored: 20.0, others: 0.0 });
    }

    #[test]
    fn what_was_seen_last_counts_and_what_is_gone_is_forgotten() {
        let stores = Stores::default();
        stores.replace(7, ranges(&[true]));
        stores.replace(8, ranges(&[true]));
        stores.replace(7, ranges(&[false, true]));
        assert_eq!(stores.of(7, <[_]>::to_vec), ranges(&[false, true]));
        stores.retain(|process| process == 7);
        assert_eq!(stores.of(8, <[_]>::len), 0);
        assert_eq!(stores.of(7, <[_]>::len), 1);
    }
}
