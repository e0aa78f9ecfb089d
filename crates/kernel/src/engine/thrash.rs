//! Thrashing: what leaves comes back at once, and is waited for. That is a program that uses more memory,
//! all of the time, than it may have (`docs/observability.md`).
//!
//! It is the same as with the pager (`terrace_live`, `decide/thrash.rs`), by what can be seen from outside.
//! The kernel tells of each page that comes back, and not when that had left. But a page that comes
//! back for the second time in a few seconds has left in between. A scan of memory that was put out long
//! ago brings each page back once.

use std::collections::HashSet;

use terrace_core::Nanos;

use super::RECENT;

/// How long is looked at together.
const WINDOW: Nanos = Nanos::millis(250);
/// Fewer pages of the sample than so many in a window say nothing.
const LEAST: u64 = 8;
/// Of a page's mixed number so many bits are zero if it is in the sample: one page of 64. Several hundred
/// thousand may come back in a second.
const SAMPLE: u32 = 6;

/// What is known at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// When.
    pub(super) at: Nanos,
    /// How long threads have waited for pages, as far as that follows from their number.
    pub(super) waited: Nanos,
    /// The same as the kernel has measured it, where it does.
    pub(super) stalled: Option<Nanos>,
}

/// Watches a run.
#[derive(Debug, Default)]
pub(super) struct Thrash {
    /// Pages of the sample that came back lately, and in the time before that.
    seen: [HashSet<u64>; 2],
    /// When the former began.
    turned: Nanos,
    /// When the window that is open began; `None` before the first look.
    window: Option<Moment>,
    /// Pages of the sample that came back in it, and of these, those that had come back lately.
    came_back: (u64, u64),
}

impl Thrash {
    /// A page has come back.
    pub(super) fn fault(&mut self, process: u32, address: u64) {
        // No two pages of any process are the same number.
        let page = (u64::from(process) << 40) ^ (address >> 12);
        let mixed = page.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        if mixed.leading_zeros() < SAMPLE {
            return;
        }
        let [lately, before] = &mut self.seen;
        let again = !lately.insert(mixed) || before.contains(&mixed);
        self.came_back.0 += 1;
        self.came_back.1 += u64::from(again);
    }

    /// Whether a window is over, so that [`Thrash::look`] has something to say.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.window.is_none_or(|window| now >= window.at + WINDOW)
    }

    /// Looks at a moment. At the end of a window in which the run thrashed it returns the window's length,
    /// and zero otherwise. A run thrashes if half of the pages that came back had just left, and its
    /// threads together waited for half of the time.
    pub(super) fn look(&mut self, moment: Moment) -> Nanos {
        if moment.at >= self.turned + RECENT {
            self.turned = moment.at;
            self.seen.swap(0, 1);
            self.seen[0].clear();
        }
        if !self.is_due(moment.at) {
            return Nanos::ZERO;
        }
        let window = self.window.replace(moment);
        let (came_back, again) = std::mem::take(&mut self.came_back);
        let Some(begin) = window else { return Nanos::ZERO };
        let time = moment.at - begin.at;
        let stalled = moment.stalled.unwrap_or_default() - begin.stalled.unwrap_or_default();
        // The kernel does not count short faults on compressed memory as waits at times, and the number of
        // faults does not say what a disk takes.
        let waited = (moment.waited - begin.waited).max(stalled);
        let thrashes = came_back >= LEAST && again * 2 >= came_back && waited * 2 >= time;
        if thrashes { time } else { Nanos::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// Time that is counted over four seconds in which so many pages come back in each 10 ms, in turn of
    /// a number of them, and so much is waited for in a second.
    fn counted(pages: u64, each: u64, waited: Nanos, stalled: Option<Nanos>) -> Nanos {
        let mut thrash = Thrash::default();
        let mut total = Nanos::ZERO;
        for tick in 0..=400 {
            for n in tick * each..(tick + 1) * each {
                thrash.fault(7, (n % pages) * PAGE);
            }
            let so_far = |a_second: Nanos| a_second * tick / 100;
            total += thrash.look(Moment {
                at: Nanos::seconds(9) + Nanos::millis(tick * 10),
                waited: so_far(waited),
                stalled: stalled.map(so_far),
            });
        }
        total
    }

    #[test]
    fn pages_that_come_back_again_at_once_and_are_waited_for_are_thrashing() {
        let much = Nanos::millis(800);
        // Twenty thousand pages, each about three times a second; the first time nobody knows.
        let all = counted(20_000, 600, much, None);
        assert!((Nanos::millis(3_250)..Nanos::seconds(4)).contains(&all), "{all}");
        assert_eq!(counted(20_000, 600, Nanos::ZERO, Some(much)), all, "as the kernel has it");
    }

    /// Each alone is something else: a scan of cold memory, a fast device, a rare miss.
    #[test]
    fn one_sign_alone_is_not() {
        let (much, little) = (Nanos::millis(800), Nanos::millis(300));
        assert_eq!(counted(1_000_000, 600, much, None), Nanos::ZERO, "cold pages");
        assert_eq!(counted(20_000, 600, little, Some(little)), Nanos::ZERO, "little waiting");
        assert_eq!(counted(20, 1, much, None), Nanos::ZERO, "few faults");
    }

    #[test]
    fn the_same_address_of_another_process_is_another_page() {
        let mut thrash = Thrash::default();
        thrash.look(Moment::default());
        for process in 1..40 {
            (0..1_000).for_each(|page| thrash.fault(process, page * PAGE));
        }
        let (came_back, again) = thrash.came_back;
        assert!(came_back > 300 && again == 0, "{came_back} {again}");
    }
}
