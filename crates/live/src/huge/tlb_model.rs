//! How often base pages are visited, and how many page walks that takes.
//!
//! Where no processor counts page walks, they follow from two things. *How often a page is
//! visited* is known from pages that were made to fault: a visit is the touch that ends
//! the wait, so a burst of accesses is one visit, as it is at most one walk. *Which visits
//! find the TLB without the page* is Che's approximation of an LRU cache (Che, Tung and
//! Wang, 2002): there is a time `T` within which as many different pages are visited as
//! the TLB has entries, and a visit misses if the one before was longer ago. Visits taken
//! to be at random moments, a page visited `r` times a second misses `r · e^(-r·T)` times
//! a second.

use crate::huge::prezero::BASES;

/// Entries of a second-level TLB for data: 2048 in Golden Cove and Zen 3, 1536 before,
/// 3072 in Zen 4. Too many rather than too few: fewer walks, less benefit. Pages of both
/// sizes share them.
const ENTRIES: f64 = 2048.0;
/// Looks that are remembered: they stand for all base pages.
const LOOKS: usize = 64;

/// What became of pages that were made to fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Pages that were touched.
    pub touched: u32,
    /// For how long they could have been, all together (ns).
    pub exposed: u64,
}

impl Look {
    /// Visits of a page a second: of what comes at random, as many as were seen in the
    /// time in which they could have been.
    pub(crate) fn rate(&self) -> f64 {
        f64::from(self.touched) * 1e9 / self.exposed.max(1) as f64
    }
}

/// The latest looks.
#[derive(Clone, Debug)]
pub(crate) struct Visits {
    looks: [Look; LOOKS],
    seen: usize,
}

impl Visits {
    /// Nothing seen yet.
    pub(crate) const fn new() -> Self {
        Self { looks: [Look { touched: 0, exposed: 0 }; LOOKS], seen: 0 }
    }

    /// Takes in what a look at a range gave.
    pub(crate) fn note(&mut self, look: Look) {
        self.looks[self.seen % LOOKS] = look;
        self.seen += 1;
    }

    fn rates(&self) -> impl Iterator<Item = f64> + Clone + '_ {
        self.looks[..self.seen.min(LOOKS)].iter().map(Look::rate)
    }

    /// Page walks a second that a range saves as one huge page, whose base pages are
    /// visited so often each, among `pages` base pages of which the looks are typical.
    pub(crate) fn saved(&self, rate: f64, pages: f64) -> f64 {
        let bases = f64::from(BASES);
        let now = bases * misses(rate, self.time_to_fill(1.0, pages));
        // All of them may become huge pages: then these compete for the same entries.
        let then = misses(rate * bases, self.time_to_fill(bases, pages));
        (now - then).max(0.0)
    }

    /// Page walks a second of all these base pages.
    pub(crate) fn walks(&self, pages: f64) -> f64 {
        let time = self.time_to_fill(1.0, pages);
        let looks = self.seen.clamp(1, LOOKS) as f64;
        pages * self.rates().map(|rate| misses(rate, time)).sum::<f64>() / looks
    }

    /// In what time (s) as many different pages are visited as the TLB has entries, where
    /// one entry holds so many base pages; infinite if that never happens.
    fn time_to_fill(&self, bases: f64, pages: f64) -> f64 {
        let looks = self.seen.clamp(1, LOOKS) as f64;
        let visited = |time: f64| {
            let shares = self.rates().map(|rate| -(-rate * bases * time).exp_m1());
            pages / bases * shares.sum::<f64>() / looks
        };
        // Between a nanosecond and an hour; beyond, nobody visits anything.
        let (mut short, mut long) = (1e-9f64, 3600.0f64);
        if visited(long) <= ENTRIES {
            return f64::INFINITY;
        }
        while long / short > 1.01 {
            let middle = (short * long).sqrt();
            if visited(middle) < ENTRIES { short = middle } else { long = middle }
        }
        (short * long).sqrt()
    }
}

impl Default for Visits {
    fn default() -> Self {
        Self::new()
    }
}

/// Visits a second that come longer than `time` (s) after the one before.
fn misses(rate: f64, time: f64) -> f64 {
    if rate > 0.0 { rate * (-rate * time).exp() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn look(per_second: u32) -> Look {
        Look { touched: per_second, exposed: SECOND }
    }

    #[test]
    fn uniform_visits_miss_as_often_as_the_tlb_has_no_entry_for_them() {
        let mut visits = Visits::new();
        (0..10).for_each(|_| visits.note(look(50)));
        // In LRU order of uniform visits, the chance to be held is entries / pages.
        for (pages, misses) in [(4096.0, 0.5), (20_480.0, 0.9), (262_144.0, 1.0 - 1.0 / 128.0)] {
            let walks = visits.walks(pages);
            let expected = 50.0 * pages * misses;
            assert!((walks / expected - 1.0).abs() < 0.02, "{pages}: {walks} {expected}");
            let saved = visits.saved(50.0, pages);
            let share = expected * f64::from(BASES) / pages;
            assert!((saved / share - 1.0).abs() < 0.02, "{pages}: {saved} {share}");
        }
    }

    #[test]
    fn what_the_tlb_holds_takes_no_walks() {
        let mut visits = Visits::new();
        visits.note(look(1000));
        assert!(visits.walks(2000.0) <= 0.0);
        assert!(visits.saved(1000.0, 2000.0) <= 0.0);
        assert!(Visits::new().walks(1e6) <= 0.0, "and nobody knows of any");
    }

    #[test]
    fn hot_pages_are_held_and_lukewarm_ones_are_not() {
        // An eighth of the pages, fewer than there are entries, is visited a thousand times
        // as often as the rest.
        let mut visits = Visits::new();
        visits.note(look(10_000));
        (0..7).for_each(|_| visits.note(look(10)));
        let pages = 8192.0;
        let hot = visits.saved(10_000.0, pages) / 10_000.0;
        let lukewarm = visits.saved(10.0, pages) / 10.0;
        assert!(hot < lukewarm / 10.0, "a visit: {hot} {lukewarm}");
    }

    #[test]
    fn huge_pages_beyond_the_reach_of_the_tlb_save_less() {
        let mut visits = Visits::new();
        visits.note(look(50));
        let reach = ENTRIES * f64::from(BASES);
        let within = visits.saved(50.0, reach / 2.0);
        let beyond = visits.saved(50.0, reach * 100.0);
        assert!(within > 0.99 * 50.0 * f64::from(BASES) && beyond < 0.02 * within);
    }

    #[test]
    fn touches_count_against_the_time_in_which_there_could_have_been_some() {
        assert!((Look { touched: 4, exposed: SECOND / 10 }.rate() - 40.0).abs() < 1e-9);
        assert!(Look { touched: 0, exposed: SECOND }.rate() <= 0.0);
        assert!(Look { touched: 4, exposed: 0 }.rate().is_finite());
    }
}
