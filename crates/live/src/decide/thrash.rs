//! Thrashing: the program uses more memory, all of the time, than it may have.
//!
//! A program that misses much is not thrashing yet: it may be reading what it has not
//! read for long. What tells is that pages come back that have *just* left, and that the
//! program gets little else done. Both are counted anyway (refault distance by time, see
//! [`crate::decide::ping_pong`], and stall time, as the kernel's `full` pressure), so detecting it
//! costs a few loads in a tick.
//!
//! No policy can help such a program; a larger budget can. So it is told to people, and
//! nothing is throttled.

use core::sync::atomic::Ordering::Relaxed;

use terrace_core::Nanos;

use crate::stats::process_page::ProcessPage;

/// How long is looked at together: long enough for some hundred faults where one takes a
/// millisecond, and short enough to see a phase of the program of a second.
const WINDOW: Nanos = Nanos::millis(250);
/// Fewer faults than so many in a window say nothing.
const LEAST: u64 = 32;

/// Counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    at: Nanos,
    /// Faults on pages that had left.
    absent: u64,
    /// Of these, on pages that had just left.
    back: u64,
    /// Time that threads waited.
    stalled: Nanos,
}

impl Moment {
    fn read(stats: &ProcessPage, now: Nanos) -> Self {
        let c = &stats.counters;
        let (absent, back) = (c.faults_absent.load(Relaxed), c.ping_pongs.load(Relaxed));
        Self { at: now, absent, back, stalled: stats.waited() }
    }

    /// Whether the program thrashed from then to now: half of the pages that it missed had
    /// just left, and it waited for half of the time.
    fn thrashes_since(&self, before: &Self) -> bool {
        // Saturating: a forked child's counters begin anew.
        let absent = self.absent.saturating_sub(before.absent);
        let back = self.back.saturating_sub(before.back);
        let stalled = self.stalled - before.stalled;
        absent >= LEAST && 2 * back >= absent && 2 * stalled.get() >= (self.at - before.at).get()
    }
}

/// Watches a process.
#[derive(Debug, Default)]
pub(crate) struct Thrash {
    /// When the window that is open began; `None` before the first look.
    window: Option<Moment>,
}

impl Thrash {
    /// Looks at the counters, as often as one likes; counts the time that was lost.
    pub(crate) fn look(&mut self, stats: &ProcessPage, now: Nanos) {
        self.advance(Moment::read(stats, now), |time| {
            stats.counters.thrash_ns.fetch_add(time.get(), Relaxed);
        });
    }

    fn advance(&mut self, moment: Moment, count: impl FnOnce(Nanos)) {
        let before = *self.window.get_or_insert(moment);
        if moment.at - before.at >= WINDOW {
            if moment.thrashes_since(&before) {
                count(moment.at - before.at);
            }
            self.window = Some(moment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time counted over two seconds with so much of everything a second.
    fn counted(absent: u64, back: u64, stalled: Nanos) -> Nanos {
        let mut thrash = Thrash::default();
        let mut total = Nanos::ZERO;
        for tick in 0..=200 {
            let moment = Moment {
                at: Nanos::millis(tick * 10),
                absent: absent * tick / 100,
                back: back * tick / 100,
                stalled: stalled * tick / 100,
            };
            thrash.advance(moment, |time| total += time);
        }
        total
    }

    #[test]
    fn pages_that_come_back_at_once_and_are_waited_for_are_thrashing() {
        assert_eq!(counted(10_000, 8_000, Nanos::millis(800)), Nanos::seconds(2));
    }

    /// Each alone is something else: a scan of cold memory, a fast device, a rare miss.
    #[test]
    fn one_sign_alone_is_not() {
        assert_eq!(counted(10_000, 2_000, Nanos::millis(800)), Nanos::ZERO, "cold pages");
        assert_eq!(counted(10_000, 8_000, Nanos::millis(300)), Nanos::ZERO, "little waiting");
        assert_eq!(counted(40, 40, Nanos::millis(800)), Nanos::ZERO, "few faults");
    }

    #[test]
    fn counters_that_begin_anew_are_no_thrashing() {
        fn never(time: Nanos) {
            panic!("{time} was counted");
        }
        let mut thrash = Thrash::default();
        let moment = |at, n| Moment { at, absent: n, back: n, stalled: Nanos::millis(n) };
        thrash.advance(moment(Nanos::ZERO, 5_000), never);
        thrash.advance(moment(Nanos::seconds(1), 10), never);
    }
}
