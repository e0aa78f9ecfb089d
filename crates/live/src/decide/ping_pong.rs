//! Pages that left for nothing: demoted, and wanted again at once.
//!
//! Counted apart from promotions and demotions, because it is what a policy
//! that does its work badly does a lot of, while a program that needs more than
//! its budget makes any policy promote and demote.
//!
//! A fixed table, one entry for several pages: a page that another one has
//! pushed out is not counted when it comes back, so the count is never too
//! high by more than one in 65,536, and too low where far more pages leave
//! within [`SOON`] than the table has entries.

use terrace_core::{Nanos, PageRef};

/// A page that is back after so short a time should not have left: the room
/// that it made cannot have been worth two trips.
pub(crate) const SOON: Nanos = Nanos::SECOND;

const ENTRIES: usize = 1 << 16;
/// Times are kept in units of 2^24 ns (17 ms), which come around after 18 min.
const SHIFT: u32 = 24;

/// When which page left.
pub(crate) struct PingPong {
    /// The page's tag above, when it left below; 0 where none left.
    entries: Box<[u32]>,
}

impl PingPong {
    /// No page has left.
    pub(crate) fn new() -> Self {
        Self { entries: vec![0; ENTRIES].into() }
    }

    /// A page's demotion was completed.
    pub(crate) fn left(&mut self, page: PageRef, now: Nanos) {
        let (entry, tag) = place(page);
        self.entries[entry] = tag << 16 | time(now);
    }

    /// Whether a page that comes up left only [`SOON`] ago. Counts it once.
    pub(crate) fn is_back(&mut self, page: PageRef, now: Nanos) -> bool {
        let (entry, tag) = place(page);
        let there = self.entries[entry];
        if there == 0 || there >> 16 != tag {
            return false;
        }
        self.entries[entry] = 0;
        let away = time(now).wrapping_sub(there) & 0xffff;
        u64::from(away) << SHIFT < SOON.get()
    }
}

impl Default for PingPong {
    fn default() -> Self {
        Self::new()
    }
}

fn time(now: Nanos) -> u32 {
    (now.get() >> SHIFT) as u32 & 0xffff
}

/// A page's entry and its tag, which is not zero.
fn place(page: PageRef) -> (usize, u32) {
    let key = u64::from(page.region.0) << 32 | u64::from(page.page.0);
    // Fibonacci hashing: the high bits of a product with 2^64 / φ.
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((hash >> 48) as usize, ((hash >> 32) as u32 & 0xffff).max(1))
}

#[cfg(test)]
mod tests {
    use terrace_core::{PageNo, RegionId};

    use super::*;

    fn page(page: u32) -> PageRef {
        PageRef { region: RegionId(3), page: PageNo(page) }
    }

    #[test]
    fn a_page_counts_once_and_only_if_it_is_back_soon() {
        let mut pages = PingPong::new();
        pages.left(page(1), Nanos::seconds(5));
        pages.left(page(2), Nanos::seconds(5));

        assert!(pages.is_back(page(1), Nanos::millis(5_500)));
        assert!(!pages.is_back(page(1), Nanos::millis(5_600)), "counted twice");
        assert!(!pages.is_back(page(2), Nanos::millis(6_100)), "a second is not soon");
        assert!(!pages.is_back(page(3), Nanos::millis(5_500)), "never left");
    }

    /// Neighbours must not share entries: a walk through memory would hide
    /// all but the last of them.
    #[test]
    fn neighbours_are_told_apart() {
        let mut pages = PingPong::new();
        (0..10_000).for_each(|n| pages.left(page(n), Nanos::seconds(1)));

        let back = (0..10_000).filter(|&n| pages.is_back(page(n), Nanos::seconds(1))).count();

        assert!(back > 9_000, "{back} of 10000");
    }
}
