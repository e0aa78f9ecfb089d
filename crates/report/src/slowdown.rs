//! How much slower a program ran than it would have on plain memory.
//!
//! An estimate, because the program ran once: the time that its threads stood
//! still for us is taken away from the time that it ran. Four assumptions go
//! into that (`docs/observability.md` says more), and the figures that they rest on are kept
//! beside the result:
//!
//! 1. Stalls are spread evenly over the threads that were at work: with `k`
//!    threads running or waiting for us on average, a second of stall makes the
//!    run `1/k` seconds longer. `k` is (processor time + stall time) / run
//!    time (what is both, counted once), and at least 1, so that a program that
//!    sleeps for other reasons has its stalls counted in full.
//! 2. On plain memory each first touch would have cost what the kernel takes
//!    for it on this machine now, in base pages.
//! 3. A thread waits for a fault as long as serving it took, and what reaching the handler and
//!    running again took at the start; but not longer than it did not run ([`Figures::waited`]).
//! 4. What Terrace's threads do while nobody waits for them (compressing,
//!    planning, keeping processors still) is free: it takes processors that would
//!    otherwise be idle. Where all are busy, the estimate is too low.
//!
//! Of a program that does hardly anything but wait, the second figure of that difference is not
//! known well enough. But what its threads ran, in faults or not, is measured: on plain memory it
//! would have taken no longer than that, its sleep and its first touches. So there is a least
//! slowdown, too.

use serde::{Deserialize, Serialize};
use terrace_core::Nanos;

use crate::run::{FaultClass, Figures, Usage};

/// The estimate, and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slowdown {
    /// Run time by estimated run time on plain memory; `None` if the stalls
    /// leave nothing of the run (more threads waited than the model knows of), or less than its
    /// first touches would have taken.
    pub factor: Option<f64>,
    /// The least that it can have been: as if all processor time of the program were its own
    /// work, none of it in faults.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// The estimated run time on plain memory; `None` where there is no factor.
    pub without: Option<Nanos>,
    /// Time that threads stood still for us, all together.
    pub stalled: Nanos,
    /// What the same first touches would have taken on plain memory.
    pub plain_faults: Nanos,
    /// Processor time of the program without Terrace's threads.
    pub program_cpu: Nanos,
    /// Threads that ran or waited for us, on average.
    pub threads: f64,
}

/// Processor time of the program is known in steps of the kernel's ticks.
const TICK: Nanos = Nanos::millis(10);
/// An estimate that lies further above the least one, by this factor, is told as an interval.
const APART: f64 = 2.0;

impl Slowdown {
    /// Estimates from a run's figures.
    pub fn estimate(elapsed: Nanos, total: &Figures, usage: &Usage) -> Self {
        let stalled = total.waited;
        let first_touches = total
            .faults
            .iter()
            .filter(|fault| fault.kind == FaultClass::FirstTouch)
            .map(|fault| fault.count)
            .sum::<u64>();
        let plain_faults = usage.plain_fault * first_touches;
        let program_cpu = usage.cpu - total.own_cpu;
        let at_work = program_cpu + stalled - total.waited_running;
        let threads = if elapsed.is_zero() { 1.0 } else { (at_work / elapsed).max(1.0) };
        let excess = (stalled - plain_faults).get() as f64 / threads;
        let left = elapsed - Nanos(excess as u64);
        // What is left has the first touches in it. If it is less than they are, it is what the
        // errors of the other figures left, and nothing can be said of it.
        let known = !left.is_zero() && spread(plain_faults, threads) <= left;
        let without = known.then_some(left);
        let factor = without.map(|without| elapsed / without);
        // Where nothing is known of more than one thread, what is left of the run it slept.
        let slept = elapsed - at_work;
        let busy = spread(program_cpu + slept + plain_faults, threads) + TICK;
        let at_least = (!elapsed.is_zero()).then(|| elapsed / busy.min(elapsed));
        Self { factor, at_least, without, stalled, plain_faults, program_cpu, threads }
    }

    /// The part of the run time on plain memory that first touches would have been.
    pub fn first_touches(&self) -> Nanos {
        spread(self.plain_faults, self.threads)
    }

    /// The factor in words, without what it rests on.
    pub fn factor_in_words(&self) -> String {
        match (self.factor, self.at_least) {
            (Some(factor), Some(least)) if factor > least * APART => {
                format!("{least:.1} to {factor:.1} x")
            }
            (Some(factor), _) => format!("{factor:.2} x"),
            (None, Some(least)) => format!("at least {least:.1} x"),
            (None, None) => "unknown".to_owned(),
        }
    }
}

/// The part of the run that a time of all threads is.
fn spread(time: Nanos, threads: f64) -> Nanos {
    Nanos((time.as_f64() / threads.max(1.0)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::FaultReport;

    fn figures(stalled: Nanos, first_touches: u64) -> Figures {
        let fault = FaultReport {
            kind: FaultClass::FirstTouch,
            count: first_touches,
            p50: Nanos::ZERO,
            p99: Nanos::ZERO,
            p999: Nanos::ZERO,
            max: Nanos::ZERO,
            total: Nanos::ZERO,
            histogram: Vec::new(),
        };
        Figures { waited: stalled, faults: vec![fault], ..Figures::default() }
    }

    fn usage(cpu: Nanos) -> Usage {
        Usage { cpu, plain_fault: Nanos::micros(1), ..Usage::default() }
    }

    #[test]
    fn one_thread_s_stalls_are_taken_from_the_run_but_for_what_plain_memory_takes() {
        let total = figures(Nanos::seconds(6), 1_000_000);

        let slowdown = Slowdown::estimate(Nanos::seconds(10), &total, &usage(Nanos::seconds(4)));

        // 10 s less 6 s of stalls of which 1 s would have been there anyway.
        assert_eq!(slowdown.without, Some(Nanos::seconds(5)));
        assert_eq!(slowdown.factor, Some(2.0));
    }

    #[test]
    fn stalls_of_threads_side_by_side_do_not_add_up() {
        let total = figures(Nanos::seconds(10), 0);

        let slowdown = Slowdown::estimate(Nanos::seconds(10), &total, &usage(Nanos::seconds(30)));

        assert!((slowdown.threads - 4.0).abs() < 1e-9);
        assert_eq!(slowdown.without, Some(Nanos::millis(7500)));
    }

    /// A thread that waits in the kernel runs there, for a part of the time: it is still one.
    #[test]
    fn waiting_that_is_processor_time_as_well_counts_once() {
        let mut total = figures(Nanos::seconds(8), 0);
        total.waited_running = Nanos::seconds(2);

        let slowdown = Slowdown::estimate(Nanos::seconds(10), &total, &usage(Nanos::seconds(4)));

        assert!((slowdown.threads - 1.0).abs() < 1e-9);
        assert_eq!(slowdown.without, Some(Nanos::seconds(2)));
    }

    #[test]
    fn a_program_that_sleeps_has_its_stalls_counted_in_full() {
        let total = figures(Nanos::seconds(1), 0);

        let slowdown = Slowdown::estimate(Nanos::seconds(10), &total, &usage(Nanos::ZERO));

        assert_eq!(slowdown.without, Some(Nanos::seconds(9)));
    }

    #[test]
    fn a_run_that_was_all_stall_has_no_factor_rather_than_an_infinite_one() {
        let total = figures(Nanos::seconds(10), 0);

        let slowdown = Slowdown::estimate(Nanos::seconds(10), &total, &usage(Nanos::ZERO));

        assert_eq!(slowdown.factor, None);
    }

    /// "Unknown" was all that a program was told that ran for a second.
    #[test]
    fn of_a_run_that_was_all_stall_the_least_slowdown_is_known() {
        let mut total = figures(Nanos::millis(1_100), 0);
        total.waited_running = Nanos::millis(100);

        let slowdown = Slowdown::estimate(Nanos::seconds(1), &total, &usage(Nanos::millis(90)));

        assert_eq!(slowdown.factor, None);
        assert!((slowdown.at_least.unwrap() - 10.0).abs() < 1.0, "{slowdown:?}");
        assert_eq!(
            slowdown.factor_in_words(),
            format!("at least {:.1} x", slowdown.at_least.unwrap())
        );
    }

    /// 18 ms of first touches are no part of a run of 2 ms: "5.3 to 2229.7 x" said nothing.
    #[test]
    fn what_is_less_than_its_first_touches_is_no_estimate() {
        let mut total = figures(Nanos::millis(3_696), 18_000);
        total.waited_running = Nanos::millis(690);

        let usage = usage(Nanos::millis(672));
        let slowdown = Slowdown::estimate(Nanos::millis(3_680), &total, &usage);

        assert_eq!((slowdown.factor, slowdown.without), (None, None), "{slowdown:?}");
        let least = slowdown.at_least.expect("the least is known");
        assert!((5.0..6.0).contains(&least), "{slowdown:?}");
        assert_eq!(slowdown.factor_in_words(), format!("at least {least:.1} x"));
    }

    /// First touches of threads side by side are a part of the run, not their sum.
    #[test]
    fn first_touches_are_never_more_than_the_run_that_they_are_a_part_of() {
        let total = figures(Nanos::seconds(10), 8_000_000);

        let slowdown = Slowdown::estimate(Nanos::seconds(10), &total, &usage(Nanos::seconds(30)));

        assert_eq!(slowdown.without, Some(Nanos::millis(9_500)));
        assert_eq!(slowdown.first_touches(), Nanos::seconds(2));
        for first_touches in (0..40).map(|n| n * 500_000) {
            let total = figures(Nanos::seconds(9), first_touches);
            let usage = usage(Nanos::seconds(1));
            let slowdown = Slowdown::estimate(Nanos::seconds(10), &total, &usage);
            let first = slowdown.first_touches();
            assert!(slowdown.without.is_none_or(|whole| first <= whole), "{slowdown:?}");
        }
    }

    #[test]
    fn an_estimate_that_rests_on_little_is_an_interval() {
        let mut total = figures(Nanos::millis(9_900), 0);
        total.waited_running = Nanos::seconds(1);

        let slowdown = Slowdown::estimate(Nanos::seconds(10), &total, &usage(Nanos::millis(1_090)));

        assert_eq!(slowdown.factor_in_words(), "9.0 to 100.0 x");
    }

    #[test]
    fn the_least_slowdown_is_never_above_the_estimate_nor_below_one() {
        for (stalled, running, cpu) in [(6, 0, 4), (10, 2, 30), (0, 0, 0), (8, 3, 5), (1, 0, 0)] {
            let mut total = figures(Nanos::seconds(stalled), 1_000);
            total.waited_running = Nanos::seconds(running);
            let usage = usage(Nanos::seconds(cpu));
            let slowdown = Slowdown::estimate(Nanos::seconds(10), &total, &usage);
            let least = slowdown.at_least.unwrap();
            assert!(least >= 1.0, "{slowdown:?}");
            assert!(slowdown.factor.is_none_or(|factor| least <= factor + 1e-9), "{slowdown:?}");
        }
    }
}
