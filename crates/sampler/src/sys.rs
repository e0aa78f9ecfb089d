//! Clocks, and the processor time of a process of the kernel.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::proc_stat::{ProcStat, proc_text};
use terrace_core::Nanos;

fn clock(id: libc::clockid_t) -> Nanos {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into `t`.
    unsafe { libc::clock_gettime(id, &raw mut t) };
    Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// Processor time of the calling thread.
pub(crate) fn thread_cpu() -> Nanos {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor time of a kernel thread.
///
/// What the scheduler says is in nanoseconds. A kernel without its accounts has ticks alone, a
/// hundredth of a second each: more than a look at a program costs.
#[derive(Debug)]
pub(crate) struct KernelThread {
    thread: u32,
    /// Kept open: it is asked many times a second.
    scheduled: Option<File>,
}

impl KernelThread {
    /// A thread that may be gone.
    pub(crate) fn new(thread: u32) -> Self {
        Self { thread, scheduled: File::open(format!("/proc/{thread}/schedstat")).ok() }
    }

    /// What it has used so far; zero if it is gone.
    pub(crate) fn cpu(&self) -> Nanos {
        let mut text = [0; 64];
        let read = self.scheduled.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = read.and_then(|length| std::str::from_utf8(text.get(..length)?).ok());
        let run = text.and_then(|text| text.split(' ').next()?.parse().ok());
        run.map_or_else(|| ticks_of(self.thread), Nanos)
    }
}

/// User and system time of a process, in whole ticks; zero if it is gone.
pub fn ticks_of(pid: u32) -> Nanos {
    let Ok(stat) = proc_text(format!("/proc/{pid}/stat")) else { return Nanos::ZERO };
    // SAFETY: reads a constant of the system.
    let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    let ticks = ProcStat::parse(&stat).and_then(|stat| stat.cpu_ticks()).unwrap_or(0);
    Nanos(ticks * (1_000_000_000 / hertz))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With ticks alone a burst of a hundred microseconds is nothing or ten milliseconds.
    #[test]
    fn processor_time_is_told_finer_than_in_ticks() {
        // SAFETY: no argument, a number.
        let thread = KernelThread::new(unsafe { libc::gettid() } as u32);
        let mut times = std::collections::BTreeSet::new();
        while times.len() < 5 {
            times.insert(thread.cpu().get() % 1_000_000);
        }
        assert!(times.iter().any(|rest| *rest != 0), "{times:?}");
    }
}
