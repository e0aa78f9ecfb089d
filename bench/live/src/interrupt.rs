//! Children, and signals: who stops a benchmark stops its children, and what was
//! changed on the machine is undone on the way out.
//!
//! A handler cannot undo anything by itself. It kills the child that runs, so
//! that whoever waits for it fails and everything is dropped in order; until the
//! next child, which is refused.

use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

use terrace_core::{Bytes, Nanos};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// The process groups of the children that run; 0 where there is none.
static GROUPS: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];

extern "C" fn interrupted(_signal: libc::c_int) {
    INTERRUPTED.store(true, SeqCst);
    GROUPS.iter().for_each(kill_group);
}

fn kill_group(group: &AtomicI32) {
    let group = group.load(SeqCst);
    if group > 0 {
        // SAFETY: has no memory effects, and may be called in a signal handler.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP end the program in order.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only touches atomics and calls `kill`. Without
        // SA_RESTART, so that waiting ends, too.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = interrupted as extern "C" fn(libc::c_int) as usize;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// An error once a signal has come.
pub fn check() -> io::Result<()> {
    if INTERRUPTED.load(SeqCst) {
        return Err(io::Error::other("interrupted"));
    }
    Ok(())
}

/// What a child did.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// The most memory that it, or the largest of those it waited for, had resident; at
    /// least what this process had when it started it, of which it was a copy at first.
    pub peak: Bytes,
    /// Processor time, the kernel's part included, of it and of those it waited for.
    pub cpu: Nanos,
}

/// A child in a process group of its own; killed when it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Where a signal's handler finds it.
    group: &'static AtomicI32,
    over: bool,
}

impl Running {
    /// Starts a command. Two at a time at most.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        check()?;
        let group = GROUPS.iter().find(|group| group.load(SeqCst) == 0);
        let group = group.ok_or_else(|| io::Error::other("two children run already"))?;
        // SAFETY: does nothing.
        unsafe {
            // With something to do before the program begins, the child is a copy of this
            // process. Otherwise the two share memory until then, and the kernel enters
            // the most that this process *ever* had into the child's `ru_maxrss`.
            command.pre_exec(|| Ok(()));
        }
        let child = command.process_group(0).spawn()?;
        group.store(child.id() as i32, SeqCst);
        let running = Self { child, group, over: false };
        // A signal before the group was known has killed nobody.
        check()?;
        Ok(running)
    }

    /// Its standard input and output, if they are pipes and were not taken before.
    pub fn pipes(&mut self) -> Option<(ChildStdin, ChildStdout)> {
        self.child.stdin.take().zip(self.child.stdout.take())
    }

    /// Waits for its end. Fails if a signal has come.
    pub fn wait(mut self) -> io::Result<Finished> {
        let mut stdout = Vec::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_end(&mut stdout)?;
        }
        let (status, usage) = self.reap()?;
        check()?;
        let time =
            |t: libc::timeval| Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000);
        Ok(Finished {
            status,
            stdout,
            peak: Bytes::kib(usage.ru_maxrss as u64),
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
        })
    }

    /// Whether it runs still.
    pub fn is_alive(&self) -> bool {
        // SAFETY: zero is a valid siginfo, which the kernel may overwrite.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            // It stays for `reap` to collect.
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.child.id(), &raw mut info, flags) == 0
                && info.si_pid() == 0
        }
    }

    fn reap(&mut self) -> io::Result<(ExitStatus, libc::rusage)> {
        let mut status = 0;
        // SAFETY: zero is a valid rusage, which the kernel overwrites.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let waited = loop {
            // SAFETY: both pointers are valid for writes.
            let waited =
                unsafe { libc::wait4(self.child.id() as i32, &raw mut status, 0, &raw mut usage) };
            let error = io::Error::last_os_error();
            if waited != -1 || error.kind() != io::ErrorKind::Interrupted {
                break if waited == -1 { Err(error) } else { Ok(()) };
            }
        };
        self.group.store(0, SeqCst);
        self.over = true;
        waited?;
        Ok((ExitStatus::from_raw(status), usage))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over {
            kill_group(self.group);
            let _ = self.reap();
        }
    }
}

/// Runs a command to its end, with its standard output.
pub fn run(command: &mut Command) -> io::Result<Finished> {
    Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?.wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_is_dropped_is_gone_with_its_own_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; sleep 1000"]).stdout(Stdio::piped());
        let mut running = Running::start(&mut command).unwrap();
        let mut line = [0; 32];
        let n = running.child.stdout.as_mut().unwrap().read(&mut line).unwrap();
        let grandchild: u32 = String::from_utf8_lossy(&line[..n]).trim().parse().unwrap();
        drop(running);
        // It is killed; who adopted it may not have collected it yet.
        let stat = std::fs::read_to_string(format!("/proc/{grandchild}/stat"));
        let alive = |stat: String| !stat.contains(") Z") && !stat.contains(") X");
        for _ in 0..500 {
            if !std::fs::read_to_string(format!("/proc/{grandchild}/stat")).is_ok_and(alive) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{stat:?}");
    }
}
