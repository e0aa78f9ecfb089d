//! Ranges that the program has sealed (`mseal`, Linux 6.10): they stay mapped where they are, for good.
//!
//! Nothing is ever taken out, so the ranges only grow, each in single steps: they are noted and looked
//! up without a lock, also by a process that only borrows the memory.

use core::sync::atomic::{AtomicUsize, Ordering::*};

/// Ranges that there is room for. Each is looked at whenever the program unmaps memory.
const MOST: usize = 256;

/// A range that only grows. Empty ones overlap nothing.
struct Growing {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Growing {
    const fn none() -> Self {
        Self { start: AtomicUsize::new(usize::MAX), end: AtomicUsize::new(0) }
    }

    /// What lies between a range and this one counts from now on, too.
    fn reach(&self, start: usize, end: usize) {
        self.start.fetch_min(start, AcqRel);
        self.end.fetch_max(end, AcqRel);
    }

    fn bounds(&self) -> (usize, usize) {
        (self.start.load(Acquire), self.end.load(Acquire))
    }

    /// Whether a range overlaps it, or lies beside it.
    fn touches(&self, start: usize, end: usize) -> bool {
        let (s, e) = self.bounds();
        s < e && s <= end && start <= e
    }

    /// The first address that a range shares with it.
    fn first_shared(&self, start: usize, end: usize) -> Option<usize> {
        let (s, e) = self.bounds();
        (s < end && start < e && start < end).then(|| s.max(start))
    }
}

/// Sealed ranges.
pub struct SealedRanges {
    ranges: [Growing; MOST],
    count: AtomicUsize,
    /// From the first to the last of those that there was no room for, or of which nobody knows how far
    /// they go. Only parts of it are sealed.
    unsure: Growing,
}

/// What is known of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// None of it is sealed.
    Nothing,
    /// This address in it was sealed.
    At(usize),
    /// A part of it may be: only the kernel knows.
    Perhaps,
}

/// This process's. A child inherits it, as it inherits seals.
pub static SEALED: SealedRanges = SealedRanges::new();

impl SealedRanges {
    /// None.
    pub const fn new() -> Self {
        Self {
            ranges: [const { Growing::none() }; MOST],
            count: AtomicUsize::new(0),
            unsure: Growing::none(),
        }
    }

    /// Whether there may be any.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.count.load(Relaxed) != 0 || self.unsure.end.load(Relaxed) != 0
    }

    /// Notes a range that is sealed; false if there is no room for it, and only the kernel knows it.
    pub fn add(&self, start: usize, end: usize) -> bool {
        if start >= end {
            return true;
        }
        if let Some(beside) = self.noted().iter().find(|range| range.touches(start, end)) {
            beside.reach(start, end);
            return true;
        }
        let place = self.count.fetch_update(AcqRel, Acquire, |n| (n < MOST).then_some(n + 1));
        if let Ok(at) = place {
            self.ranges[at].reach(start, end);
        } else {
            self.add_unsure(start, end);
        }
        place.is_ok()
    }

    /// Notes a range of which a part may be sealed.
    pub fn add_unsure(&self, start: usize, end: usize) {
        self.unsure.reach(start, end);
    }

    /// What is known of a range.
    pub fn find(&self, start: usize, end: usize) -> Found {
        let mut shared = self.noted().iter().filter_map(|range| range.first_shared(start, end));
        match shared.next() {
            Some(at) => Found::At(at),
            None if self.unsure.first_shared(start, end).is_some() => Found::Perhaps,
            None => Found::Nothing,
        }
    }

    fn noted(&self) -> &[Growing] {
        &self.ranges[..self.count.load(Acquire)]
    }
}

impl Default for SealedRanges {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shares_a_page_with_a_sealed_range_is_found_and_nothing_else() {
        let sealed = SealedRanges::new();
        assert!(!sealed.is_any());
        assert_eq!(sealed.find(0, usize::MAX), Found::Nothing);
        assert!(sealed.add(0x5000, 0x7000) && sealed.is_any());
        assert_eq!(sealed.find(0x1000, 0x5000), Found::Nothing);
        assert_eq!(sealed.find(0x7000, 0x9000), Found::Nothing);
        assert_eq!(sealed.find(0x1000, 0x6000), Found::At(0x5000));
        assert_eq!(sealed.find(0x6000, 0x9000), Found::At(0x6000));
        assert_eq!(sealed.find(0x6000, 0x6000), Found::Nothing, "an empty range");
    }

    #[test]
    fn neighbours_take_one_place_and_so_does_what_is_sealed_again() {
        let sealed = SealedRanges::new();
        for _ in 0..2 {
            for page in [4, 5, 3, 6] {
                assert!(sealed.add(page << 12, (page + 1) << 12));
            }
        }
        assert_eq!(sealed.noted().len(), 1);
        assert_eq!(sealed.find(0, 0x4000), Found::At(0x3000));
        assert_eq!(sealed.find(0x6000, 0x9000), Found::At(0x6000));
        assert_eq!(sealed.find(0x7000, 0x9000), Found::Nothing);
    }

    #[test]
    fn what_there_is_no_room_for_may_be_anywhere_between_the_first_and_the_last() {
        let sealed = SealedRanges::new();
        assert!((1..=MOST).all(|i| sealed.add(i << 16, (i << 16) + 0x1000)));
        let beyond = (MOST + 1) << 16;
        assert!(!sealed.add(beyond, beyond + 0x1000));
        assert!(!sealed.add(beyond + 0x8000, beyond + 0x9000));
        assert_eq!(sealed.find(beyond + 0x2000, beyond + 0x3000), Found::Perhaps);
        assert_eq!(sealed.find(beyond + 0x9000, beyond + 0xa000), Found::Nothing);
        assert_eq!(
            sealed.find(MOST << 16, usize::MAX),
            Found::At(MOST << 16),
            "what is known first"
        );
        assert!(sealed.add(0x1_1000, 0x1_2000), "beside what there is");
    }
}
