//! Helping killed programs to their end.
//!
//! Threads of ours at idle priority ([`crate::workers::idle_priority`]) run only where nobody else
//! wants to. Who ends a program calls them back first; but nobody does when it is
//! killed. All of its other threads are gone at once then, and its memory, which the
//! last thread gives back, stays until a processor is spare: for minutes on a busy
//! machine, in which the kernel, looking for memory, kills somebody else as well.
//!
//! So `terrace run` looks at its programs' main threads from time to time. Where one has
//! ended, those that are left and are dying, too, run like others. A program may also
//! go on without its main thread; then none of its threads is dying.
//!
//! Rejected: waiting for a handle of the main thread (`PIDFD_THREAD`). Since Linux 6.15
//! it tells of nothing before the last thread of the process has ended.

use std::fs;

use terrace_sampler::{ProcStat, proc_text};

use crate::sys;

/// The kernel's `PF_EXITING` (`include/linux/sched.h`), in `/proc/PID/task/TID/stat`.
const EXITING: u64 = 0x4;

/// What is left of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing, or nothing but what its parent collects.
    Nothing,
    /// Threads that are on their way to their end.
    Dying,
    /// Threads that live.
    Living,
}

/// Makes a process's dying threads run like others, if its main thread has ended.
pub fn hasten(pid: u32) -> Left {
    let Ok(stat) = proc_text(format!("/proc/{pid}/stat")) else { return Left::Nothing };
    if !ProcStat::parse(&stat).is_some_and(|stat| stat.has_ended()) {
        return Left::Living;
    }
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Left::Nothing };
    let mut left = Left::Nothing;
    for task in tasks.flatten() {
        let read = |name| proc_text(task.path().join(name)).unwrap_or_default();
        match Thread::parse(&read("stat"), &read("status")) {
            None | Some(Thread { ended: true, .. }) => {}
            Some(Thread { dying: true, idle, .. }) => {
                if left == Left::Nothing {
                    left = Left::Dying;
                }
                if let Some(tid) = task.file_name().to_str().and_then(|tid| tid.parse().ok())
                    && idle
                {
                    sys::schedule(tid, false);
                }
            }
            Some(Thread { dying: false, .. }) => left = Left::Living,
        }
    }
    left
}

/// What `/proc` says of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thread {
    /// It is a zombie.
    ended: bool,
    /// It is ending, or is to and has not run since.
    dying: bool,
    /// It runs only where nobody else wants to.
    idle: bool,
}

impl Thread {
    /// From the files `stat` and `status`.
    fn parse(stat: &str, status: &str) -> Option<Self> {
        let stat = ProcStat::parse(stat)?;
        let (flags, policy) = (stat.flags()?, stat.policy()?);
        // Whom the kernel kills finds SIGKILL among his own signals.
        let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
        let pending = u64::from_str_radix(pending?.trim(), 16).ok()?;
        let killed = pending & (1 << (libc::SIGKILL - 1)) != 0;
        Some(Self {
            ended: stat.has_ended(),
            dying: flags & EXITING != 0 || killed,
            idle: policy == libc::SCHED_IDLE,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    /// A line of `stat` as Linux 6.18 writes it, with these fields.
    fn stat(state: &str, flags: u64, policy: i32) -> String {
        format!(
            "77 (a) b ( c) {state} 1 77 77 0 -1 {flags} 10 0 0 0 1 2 0 0 20 0 5 0 900 10000 50 \
             184467 1 1 0 0 0 0 0 4096 0 0 0 0 17 1 0 {policy} 0 0 0 0 0 0 0 0 0 0 0"
        )
    }

    #[test]
    fn a_thread_that_is_killed_and_has_not_run_since_is_dying() {
        let killed = "Name:\tx\nSigQ:\t0/9\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n";
        let spared = killed.replace("0000000000000100", "0000000000004000");

        let thread = Thread::parse(&stat("S", 0x40_0040, libc::SCHED_IDLE), killed).unwrap();
        assert_eq!(thread, Thread { ended: false, dying: true, idle: true });
        let thread = Thread::parse(&stat("R", 0x40_0040, libc::SCHED_IDLE), &spared).unwrap();
        assert_eq!(thread, Thread { ended: false, dying: false, idle: true });
        let thread = Thread::parse(&stat("R", 0x40_0044, libc::SCHED_OTHER), &spared).unwrap();
        assert_eq!(thread, Thread { ended: false, dying: true, idle: false });
        let thread = Thread::parse(&stat("Z", 0x40_0044, libc::SCHED_OTHER), &spared).unwrap();
        assert!(thread.ended);
        assert_eq!(Thread::parse("77 (a) R", killed), None);
    }

    #[test]
    fn what_is_alive_is_left_alone_and_what_is_gone_is_nothing() {
        assert_eq!(hasten(std::process::id()), Left::Living);
        let mut child = Command::new("true").spawn().unwrap();
        while hasten(child.id()) != Left::Nothing {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(hasten(child.id()), Left::Nothing);
    }

    /// Has the calling thread run on one processor only, the first that it may.
    fn stay_on_one_processor() {
        // SAFETY: zero is an empty set, which the kernel fills.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
            let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &set));
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(first.expect("a processor"), &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        }
    }

    /// Gives the calling thread a priority; whether it may have that.
    fn prioritise(nice: i32) -> bool {
        // SAFETY: has no memory effects.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) == 0 }
    }

    /// Which part a process of the last test plays.
    const PART: &str = "TERRACE_TEST_DYING";

    #[test]
    #[ignore = "part of the next test"]
    fn part() {
        match std::env::var(PART).as_deref() {
            Ok("victim") => {
                std::thread::spawn(|| {
                    stay_on_one_processor();
                    // However kindly the tests are run.
                    prioritise(0);
                    sys::schedule(0, true);
                    println!("ready");
                    // As threads that look for faults do: it has its turn, and then
                    // nothing for long.
                    loop {
                        std::hint::spin_loop();
                    }
                });
                loop {
                    std::thread::park();
                }
            }
            Ok("busy") => {
                stay_on_one_processor();
                let first = prioritise(-20);
                println!("{}", if first { "ready" } else { "refused" });
                if !first {
                    return;
                }
                loop {
                    std::hint::spin_loop();
                }
            }
            _ => {}
        }
    }

    struct Part(Child);

    impl Part {
        /// Starts a part; whether it is what it is to be.
        fn start(name: &str) -> (Self, bool) {
            let mut command = Command::new(std::env::current_exe().unwrap());
            // A test is named by its module, without the crate.
            let module = module_path!().split_once("::").expect("it lies in a crate").1;
            let test = format!("{module}::part");
            command.args(["--ignored", "--exact", "--nocapture", &test]);
            command.env(PART, name).stdout(Stdio::piped());
            let mut part = Self(command.spawn().unwrap());
            let mut lines = BufReader::new(part.0.stdout.take().unwrap()).lines();
            let said = lines.find_map(|line| {
                let line = line.unwrap();
                ["ready", "refused"].into_iter().find(|word| line.ends_with(word))
            });
            (part, said.expect("it says what it could do") == "ready")
        }

        /// Processor time that it has used in user mode.
        fn seconds(&self) -> f64 {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
            // SAFETY: has no memory effects.
            let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
            ProcStat::parse(&stat).unwrap().field::<f64>(14).unwrap() / ticks
        }
    }

    impl Drop for Part {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Beside a thread of the highest priority one of idle priority has to wait for
    /// its next turn for a minute and a half after one of 3 ms: 3 ms / 3 * 88761, by the
    /// weights of the kernel's `sched_prio_to_weight`. Like others it waits for a quarter
    /// of a second. What is bounded is the other's processor time, whatever else runs.
    #[test]
    fn a_killed_process_does_not_wait_until_nobody_wants_the_processor() {
        let (busy, first) = Part::start("busy");
        if !first {
            terrace_shown::is_missing("the right to raise a priority");
            return;
        }
        let (mut victim, _) = Part::start("victim");
        // It has had its turn by then.
        let ready = busy.seconds();
        while busy.seconds() < ready + 0.5 {
            std::thread::sleep(Duration::from_millis(20));
        }

        let before = busy.seconds();
        victim.0.kill().unwrap();

        while hasten(victim.0.id()) != Left::Nothing {
            let used = busy.seconds() - before;
            assert!(used < 10.0, "{used} s later it is still there");
            std::thread::sleep(Duration::from_millis(5));
        }

        assert!(victim.0.try_wait().unwrap().is_some(), "its parent can collect it");
    }
}
