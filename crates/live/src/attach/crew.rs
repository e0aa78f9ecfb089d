//! How many threads move pages at once.
//!
//! One, as a rule: it keeps up with the default limit, and copies in the kernel compete
//! with the program for memory and for locks. One more is tried when moving takes more than
//! half of the time, and stays only if it brings half of what it could at best; threads that
//! are not needed any more go again.

use terrace_core::Nanos;

/// A thread's share of a call is at least so many pages, or starting it might take as long as
/// it helps (assumed, not measured: some tens of µs to start, a few to move a page).
const SHARE: usize = 64;
/// Calls of which the rate is compared.
const COMPARED: u32 = 16;
/// Calls between two trials at first, and at most: it doubles while trials fail.
const REST: (u32, u32) = (64, 4096);
/// Moving is what limits, and is not, above and below these shares of the time.
const BUSY: (f64, f64) = (0.5, 0.2);

/// Pages, and the time in which they were moved.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    calls: u32,
    pages: u64,
    time: Nanos,
    /// When the first of these calls began.
    since: Option<Nanos>,
}

impl Moved {
    fn add(&mut self, end: Nanos, pages: usize, took: Nanos) {
        self.calls += 1;
        self.pages += pages as u64;
        self.time += took;
        self.since.get_or_insert(end.saturating_sub(took));
    }
    fn rate(&self) -> f64 {
        self.pages as f64 / self.time.as_f64().max(1.0)
    }
    /// The share of the time until a moment.
    fn busy(&self, now: Nanos) -> f64 {
        let elapsed = now.saturating_sub(self.since.unwrap_or(now));
        self.time.as_f64() / elapsed.as_f64().max(1.0)
    }
}

/// The threads that move pages.
#[derive(Clone, Debug)]
pub(super) struct Crew {
    most: u32,
    threads: u32,
    /// The last calls by that many; and by one more, while that is tried.
    now: Moved,
    trial: Option<Moved>,
    /// Calls until the next trial, and between trials.
    wait: u32,
    rest: u32,
}

impl Crew {
    /// At most so many threads; `None` for a quarter of the processors, four at most.
    pub(super) fn new(most: Option<u32>) -> Self {
        let processors = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let most = most.unwrap_or_else(|| (processors() / 4).clamp(1, 4));
        let (now, trial) = (Moved::default(), None);
        Self { most, threads: 1, now, trial, wait: REST.0, rest: REST.0 }
    }

    /// How many are at work.
    pub(super) fn threads(&self) -> u32 {
        self.threads + u32::from(self.trial.is_some())
    }

    /// How many are to move so many pages.
    pub(super) fn for_pages(&self, pages: usize) -> u32 {
        self.threads().min((pages / SHARE) as u32).max(1)
    }

    /// So many pages were moved at once, by as many threads as they are worth.
    pub(super) fn moved(&mut self, end: Nanos, pages: usize, took: Nanos) {
        if pages < SHARE * self.most as usize {
            // Too few to tell anything about more threads.
            return;
        }
        if let Some(trial) = &mut self.trial {
            trial.add(end, pages, took);
            if trial.calls == COMPARED {
                self.judge();
            }
            return;
        }
        self.now.add(end, pages, took);
        self.wait = self.wait.saturating_sub(1);
        if self.now.calls < COMPARED {
            return;
        }
        let busy = self.now.busy(end);
        if busy < BUSY.1 && self.threads > 1 {
            self.threads -= 1;
        } else if busy > BUSY.0 && self.threads < self.most && self.wait == 0 {
            self.trial = Some(Moved::default());
            return;
        }
        self.now = Moved::default();
    }

    /// Ends a trial.
    fn judge(&mut self) {
        let Some(trial) = self.trial.take() else { return };
        let gain = trial.rate() / self.now.rate();
        if gain >= 1.0 + 0.5 / f64::from(self.threads) {
            self.threads += 1;
            self.rest = REST.0;
        } else {
            self.rest = (self.rest * 2).min(REST.1);
        }
        self.wait = self.rest;
        self.now = Moved::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has a crew move pages at a rate that depends on how many they are, resting for so many
    /// times as long as a call takes; how many calls each number of threads made.
    fn work(crew: &mut Crew, calls: usize, rest: u64, speed: impl Fn(u32) -> f64) -> [usize; 5] {
        let mut made = [0; 5];
        let mut now = Nanos(1);
        for _ in 0..calls {
            let threads = crew.threads();
            let pages = 512 * threads as usize;
            assert_eq!(crew.for_pages(pages), threads);
            let took = Nanos::from_f64(pages as f64 * 2_000.0 / speed(threads));
            now += took;
            crew.moved(now, pages, took);
            now += took * rest;
            made[threads as usize] += 1;
        }
        made
    }

    #[test]
    fn threads_that_pay_are_taken_and_no_more_than_these() {
        let mut crew = Crew::new(Some(4));
        // A third one brings a tenth of what it could.
        let made = work(&mut crew, 4_000, 0, |threads| [0.0, 1.0, 1.9, 2.0, 2.0][threads as usize]);
        assert_eq!(crew.threads(), 2);
        assert!(made[2] > 3_500, "{made:?}");
        // When there is little to move they go again.
        work(&mut crew, 200, 20, f64::from);
        assert_eq!(crew.threads(), 1);
    }

    #[test]
    fn where_copying_does_not_scale_there_is_one_but_for_rare_trials() {
        let mut crew = Crew::new(Some(4));
        let made = work(&mut crew, 10_000, 0, |_| 1.0);
        assert!(made[2] < 500 && made[3] == 0, "{made:?}");
    }

    #[test]
    fn one_that_keeps_up_stays_alone_and_so_does_one_that_may_have_no_others() {
        let made = work(&mut Crew::new(Some(4)), 2_000, 2, f64::from);
        assert_eq!(made[1], 2_000, "{made:?}");
        let made = work(&mut Crew::new(Some(1)), 2_000, 0, f64::from);
        assert_eq!(made[1], 2_000, "{made:?}");
        assert_eq!(Crew::new(Some(4)).for_pages(3), 1, "few pages are for one");
    }
}
