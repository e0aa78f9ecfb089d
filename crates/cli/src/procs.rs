//! What `/proc` says of processes, and what a fault costs without us.

use std::fs;
use std::hint::black_box;

use terrace_core::Nanos;
use terrace_sampler::{ProcStat, proc_text};

/// A process's line in `/proc/PID/stat`, as far as it is used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Its processor time, in user and kernel mode.
    pub(crate) cpu: Nanos,
    /// The same of all children that it has waited for.
    pub(crate) children_cpu: Nanos,
    /// Whether it has ended but was not waited for.
    pub(crate) zombie: bool,
}

impl Stat {
    /// Reads a process's line; `None` if there is no such process (any more).
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::parse(&proc_text(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        let stat = ProcStat::parse(line)?;
        let tick = Nanos::SECOND / rustix::param::clock_ticks_per_second().max(1);
        Some(Self {
            cpu: tick * stat.cpu_ticks()?,
            children_cpu: tick * stat.children_cpu_ticks()?,
            zombie: stat.has_ended(),
        })
    }
}

/// Whether a process runs. It goes on without its main thread, which is a zombie then, for as long
/// as it has another.
pub(crate) fn is_alive(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|main| !main.zombie || has_living_thread(pid))
}

fn has_living_thread(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| Stat::parse(&proc_text(thread.path().join("stat")).ok()?))
        .any(|stat| !stat.zombie)
}

/// Processor time of this process with all its threads, from its start.
pub(crate) fn own_cpu() -> Nanos {
    Nanos(terrace_clocks::process_time().as_nanos() as u64)
}

/// What the first touch of a base page takes here now, without Terrace: the least of several
/// measurements, as whatever else the machine does makes them longer.
pub(crate) fn plain_fault() -> Nanos {
    const PAGE: usize = 4096;
    const PAGES: usize = 128;
    /// Pages of one measurement: enough to hide what the clock itself takes.
    const PART: usize = 16;
    // Half a MiB: larger than what allocators recycle, smaller than a huge page.
    let mut memory = vec![0u8; PAGE * PAGES];
    let parts = memory.chunks_exact_mut(PAGE * PART).map(|part| {
        // Of this thread alone: while others have the processor it takes no fault.
        let start = terrace_live::sys::thread_cpu();
        for page in part.chunks_exact_mut(PAGE) {
            page[0] = 1;
            black_box(&mut *page);
        }
        terrace_live::sys::thread_cpu().saturating_sub(start) / PART as u64
    });
    parts.min().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_process_is_called() {
        let line = "42 (a) R 1 (b) S 1 42 42 0 -1 4194304 100 0 0 0 7 3 20 10 20 0 1 0 999 0 0";

        let stat = Stat::parse(line).unwrap();

        let tick = Nanos::SECOND / rustix::param::clock_ticks_per_second();
        let expected = Stat { cpu: tick * 10, children_cpu: tick * 30, zombie: false };
        assert_eq!(stat, expected);
        assert!(Stat::parse("42 (a) Z 1 42").is_none());
    }

    #[test]
    fn our_own_process_is_alive_and_a_number_beyond_the_limit_is_not() {
        assert!(is_alive(std::process::id()));
        assert!(!is_alive(u32::MAX));
    }

    /// A thread that spins, as a quiet window's keeper does, is in it as long as it runs.
    #[test]
    fn own_processor_time_is_that_of_all_threads() {
        let before = own_cpu();

        let spent = std::thread::spawn(|| {
            while terrace_clocks::thread_time() < std::time::Duration::from_millis(20) {
                std::hint::spin_loop();
            }
        });
        spent.join().unwrap();

        assert!(own_cpu() - before >= Nanos::millis(20));
    }

    #[test]
    fn a_plain_fault_takes_between_a_cache_miss_and_a_millisecond() {
        let cost = plain_fault();

        assert!(cost > Nanos(20) && cost < Nanos::millis(1), "{cost}");
    }
}
