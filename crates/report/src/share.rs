//! Times that several threads, processors or processes spend at once, as people read them: the
//! share never exceeds what it is a share of.

use terrace_core::Nanos;

/// From so many threads on, waits are told as a share of all threads' time.
const SEVERAL: f64 = 1.05;

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Processor time spent while so much time passed: a share of one processor, or so many processors.
pub fn processors(time: Nanos, elapsed: Nanos) -> String {
    if elapsed.is_zero() {
        return time.to_string();
    }
    match time / elapsed {
        share if share < 1.0 => format!("{time}, {} of one processor", percent(share)),
        many => format!("{time}, {many:.2} processors on average"),
    }
}

/// Time that a program's threads waited while so much time passed, of so many threads that ran or
/// waited on average ([`crate::Slowdown::threads`]).
pub fn of_threads(time: Nanos, elapsed: Nanos, threads: f64) -> String {
    if elapsed.is_zero() {
        return time.to_string();
    }
    let run = time / elapsed;
    if threads < SEVERAL && run <= 1.0 {
        return format!("{time}, {} of the run", percent(run));
    }
    // Nobody waits in more threads than there are.
    let threads = threads.max(run);
    format!("{time}, {} of the time of {threads:.1} threads", percent(run / threads))
}

/// Time for which something was the case in a run's processes while so much time passed; `several`
/// says that it was the case in more than one of them.
pub fn of_processes(time: Nanos, elapsed: Nanos, several: bool) -> String {
    if elapsed.is_zero() {
        return time.to_string();
    }
    let run = time / elapsed;
    if several || run > 1.0 {
        format!("{time} of several processes, {run:.2} of them at a time")
    } else {
        format!("{time}, {} of the run", percent(run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Nanos = Nanos::seconds(10);

    #[test]
    fn processors_are_counted_when_one_is_not_enough() {
        assert_eq!(processors(Nanos::seconds(5), RUN), "5.00 s, 50.0 % of one processor");
        assert_eq!(processors(Nanos::seconds(11), RUN), "11.0 s, 1.10 processors on average");
        assert_eq!(processors(Nanos::seconds(1), Nanos::ZERO), "1.00 s");
    }

    #[test]
    fn waits_of_many_threads_are_a_share_of_their_time() {
        assert_eq!(of_threads(Nanos::seconds(6), RUN, 1.0), "6.00 s, 60.0 % of the run");
        let told = of_threads(Nanos::seconds(20), RUN, 4.0);
        assert_eq!(told, "20.0 s, 50.0 % of the time of 4.0 threads");
        // More than the threads that are known of can have waited.
        let told = of_threads(Nanos::seconds(20), RUN, 1.0);
        assert_eq!(told, "20.0 s, 100.0 % of the time of 2.0 threads");
    }

    #[test]
    fn what_happens_in_several_processes_is_no_share_of_the_run() {
        assert_eq!(of_processes(Nanos::seconds(6), RUN, false), "6.00 s, 60.0 % of the run");
        let told = of_processes(Nanos::seconds(12), RUN, true);
        assert_eq!(told, "12.0 s of several processes, 1.20 of them at a time");
    }
}
