//! Processor time, of a thread and of a process: what they have used of a processor, in contrast to the
//! time that has passed. What other programs do meanwhile is not in it.
//!
//! A measurement takes the difference of two readings. The pager reads clocks by itself
//! (`terrace_live::sys`): within a program it calls nothing that others may replace.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What the calling thread has used.
pub fn thread_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// What this process has used since its start, with all its threads, also those that have ended.
pub fn process_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever waits uses no processor, and the process has used what its threads have.
    #[test]
    fn a_thread_has_what_it_used_itself_and_a_process_what_all_its_threads_did() {
        const WORK: Duration = Duration::from_millis(20);
        let (thread, process) = (thread_time(), process_time());

        let spent = std::thread::spawn(|| {
            let begun = thread_time();
            while thread_time().saturating_sub(begun) < WORK {
                std::hint::spin_loop();
            }
        });
        spent.join().unwrap();

        assert!(process_time().saturating_sub(process) >= WORK);
        assert!(thread_time().saturating_sub(thread) < WORK, "it has only waited");
    }
}
