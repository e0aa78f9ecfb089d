//! How long threads can have waited in faults, at most.
//!
//! A handler knows how long it served a fault, not how long that took to reach it, nor when
//! the thread ran again: often before the handler was through, which then did not get its
//! processor back until the next fault. So each fault is counted as what it is said to take
//! ([`crate::fault::wait`]), which under load may be several times too much. But a thread that runs
//! does not wait: what it waited is at most what has passed less what it ran. Faults name
//! their thread, and every now and then what was counted for a thread is compared with that.

use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};

use terrace_core::Nanos;

use crate::sys;

/// Threads that are looked at in one round. Of more, those that fault first; what is counted
/// for the others stays.
const THREADS: usize = 64;
/// How long a round takes. The last one of a program is never settled, so it is to be short;
/// its beginning and end are each wrong by a fault, so it is to be long to these.
const ROUND: Nanos = Nanos::millis(100);
/// Fewer faults of a thread than so many say nothing in a round.
const LEAST: u64 = 8;

/// What a thread was counted for in this round.
#[derive(Default)]
struct Entry {
    /// The thread; 0 if nobody has the entry.
    thread: AtomicI32,
    /// When its first fault of the round had been served (`CLOCK_MONOTONIC`, ns), and what it
    /// had run by then, ns.
    since: AtomicU64,
    ran: AtomicU64,
    /// Its faults since, and what was counted for them, ns.
    faults: AtomicU64,
    counted: AtomicU64,
}

/// The threads that fault.
pub(crate) struct Stalls {
    entries: [Entry; THREADS],
    /// When the round began (`CLOCK_MONOTONIC`, ns).
    began: AtomicU64,
}

impl Default for Stalls {
    fn default() -> Self {
        Self { entries: core::array::from_fn(|_| Entry::default()), began: AtomicU64::new(0) }
    }
}

impl Stalls {
    /// A fault of this thread has been served, and so much was counted for it.
    pub(crate) fn count(&self, thread: i32, counted: Nanos) {
        self.count_by(thread, counted, Clocks::at_first);
    }

    fn count_by(&self, thread: i32, counted: Nanos, clocks: impl FnOnce(i32) -> Option<Clocks>) {
        let entry = &self.entries[thread as usize % THREADS];
        let seen = entry.thread.load(Acquire);
        if seen == thread {
            entry.faults.fetch_add(1, Relaxed);
            entry.counted.fetch_add(counted.get(), Relaxed);
        } else if seen == 0
            && let Some(now) = clocks(thread)
        {
            // Two that find it free write what is right for either, or spoil one thread's
            // round: there is no telling them apart by then.
            entry.since.store(now.at.get(), Relaxed);
            entry.ran.store(now.ran.get(), Relaxed);
            entry.faults.store(0, Relaxed);
            entry.counted.store(0, Relaxed);
            entry.thread.store(thread, Release);
        }
    }

    /// What was counted in a round, if one is over, beyond what can have been. A fault takes
    /// `own` of the thread's own processor time: that is waiting, too.
    pub(crate) fn settle(&self, own: Nanos) -> Nanos {
        let now = sys::now();
        if now.saturating_sub(self.began.load(Relaxed)) < ROUND.get() {
            return Nanos::ZERO;
        }
        self.began.store(now, Relaxed);
        self.settle_by(own, Clocks::at_last)
    }

    fn settle_by(&self, own: Nanos, clocks: impl Fn(i32) -> Option<Clocks>) -> Nanos {
        let mut beyond = Nanos::ZERO;
        for entry in &self.entries {
            let thread = entry.thread.load(Acquire);
            if thread == 0 {
                continue;
            }
            let (faults, counted) = (entry.faults.load(Relaxed), entry.counted.load(Relaxed));
            // A thread that has ended has no clock any more.
            if faults >= LEAST
                && let Some(now) = clocks(thread)
            {
                let passed = now.at - Nanos(entry.since.load(Relaxed));
                let ran = now.ran - Nanos(entry.ran.load(Relaxed));
                // Saturating, all of it. Of what it ran, faults cannot have taken more than all.
                beyond += Nanos(counted) - (passed - ran + (own * faults).min(ran));
            }
            entry.thread.store(0, Release);
        }
        beyond
    }

    /// In a forked child, whose threads are others.
    pub(crate) fn reset(&self) {
        for entry in &self.entries {
            entry.thread.store(0, Relaxed);
        }
    }
}

/// What the clock on the wall says, and a thread's own. Who reads them may be put off in
/// between; what has passed between two readings is never to seem shorter by that, nor what
/// the thread ran longer.
struct Clocks {
    at: Nanos,
    ran: Nanos,
}

impl Clocks {
    /// The first of two readings; `None` if there is no such thread.
    fn at_first(thread: i32) -> Option<Self> {
        let at = sys::now();
        let ran = sys::cpu_of_thread(thread);
        (ran != 0).then_some(Self { at: Nanos(at), ran: Nanos(ran) })
    }

    /// The second.
    fn at_last(thread: i32) -> Option<Self> {
        let ran = sys::cpu_of_thread(thread);
        (ran != 0).then(|| Self { at: Nanos(sys::now()), ran: Nanos(ran) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: u64, ran: u64) -> impl Fn(i32) -> Option<Clocks> {
        move |_| Some(Clocks { at: Nanos::micros(at), ran: Nanos::micros(ran) })
    }

    fn faults(stalls: &Stalls, thread: i32, n: u64, each: Nanos) {
        for _ in 0..n {
            stalls.count_by(thread, each, at(1_000, 500));
        }
    }

    #[test]
    fn a_thread_cannot_have_waited_while_it_ran() {
        let stalls = Stalls::default();

        // The first begins the round: 10 are counted.
        faults(&stalls, 7, 11, Nanos::micros(40));

        // Of 300 us it ran 180.
        assert_eq!(stalls.settle_by(Nanos::ZERO, at(1_300, 680)), Nanos::micros(400 - 120));
    }

    #[test]
    fn what_can_have_been_is_believed() {
        let stalls = Stalls::default();

        faults(&stalls, 7, 11, Nanos::micros(40));

        assert_eq!(
            stalls.settle_by(Nanos::ZERO, at(1_500, 600)),
            Nanos::ZERO,
            "400 us it did not run"
        );
    }

    #[test]
    fn what_a_fault_takes_of_the_thread_s_own_time_is_waiting() {
        let stalls = Stalls::default();

        faults(&stalls, 7, 11, Nanos::micros(40));

        let own = Nanos::micros(2);
        assert_eq!(stalls.settle_by(own, at(1_300, 680)), Nanos::micros(400 - 120 - 20));
    }

    /// What a fault takes of the thread's own time is measured once, on a machine that may
    /// have been busy.
    #[test]
    fn a_thread_cannot_have_waited_for_longer_than_has_passed() {
        let stalls = Stalls::default();

        faults(&stalls, 7, 11, Nanos::micros(40));

        let own = Nanos::micros(30);
        assert_eq!(stalls.settle_by(own, at(1_300, 680)), Nanos::micros(400 - 300));
    }

    /// A thread that sleeps for other reasons has no tight bound; it must not loosen or
    /// tighten that of another.
    #[test]
    fn each_thread_has_a_bound_of_its_own() {
        let stalls = Stalls::default();

        faults(&stalls, 7, 11, Nanos::micros(40));
        faults(&stalls, 8, 11, Nanos::micros(40));

        let clocks = |thread| if thread == 7 { at(1_300, 680)(7) } else { at(1_300, 500)(8) };
        assert_eq!(stalls.settle_by(Nanos::ZERO, clocks), Nanos::micros(400 - 120 + 400 - 300));
    }

    #[test]
    fn rounds_begin_anew_and_threads_that_ended_are_left_out() {
        let stalls = Stalls::default();
        faults(&stalls, 7, 11, Nanos::micros(40));
        assert_eq!(stalls.settle_by(Nanos::ZERO, |_| None), Nanos::ZERO, "it has ended");

        faults(&stalls, 7, 2, Nanos::seconds(1));

        assert_eq!(
            stalls.settle_by(Nanos::ZERO, at(1_001, 501)),
            Nanos::ZERO,
            "one fault says nothing"
        );
    }

    #[test]
    fn threads_beyond_those_that_there_is_room_for_stay_as_counted() {
        let stalls = Stalls::default();

        faults(&stalls, 7, 11, Nanos::micros(40));
        faults(&stalls, 7 + THREADS as i32, 11, Nanos::micros(40));

        assert_eq!(
            stalls.settle_by(Nanos::ZERO, at(1_300, 680)),
            Nanos::micros(280),
            "one of the two"
        );
    }

    /// The clocks that it is made for: this thread's, which does nothing but run.
    #[test]
    fn a_thread_that_only_runs_has_waited_for_nothing() {
        let stalls = Stalls::default();
        // SAFETY: no arguments.
        let me = unsafe { libc::gettid() };
        stalls.count(me, Nanos::ZERO);
        let began = sys::thread_cpu();
        while sys::thread_cpu() - began < ROUND * 2 {
            for _ in 0..LEAST {
                stalls.count(me, Nanos::seconds(1));
            }
        }

        let beyond = stalls.settle(Nanos::ZERO);

        assert!(beyond > Nanos::seconds(1), "{beyond}");
    }
}
