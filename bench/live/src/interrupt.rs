//! Children, and signals: who stops a benchmark stops its children, and what was
//! changed on the machine is undone on the way out.
//!
//! A handler cannot undo anything by itself. It tells the child that runs to end, so
//! that whoever waits for it fails and everything is dropped in order; until the
//! next child, which is refused. A child may have something to undo itself, as `terrace run` has: it
//! is killed only if it takes too long for that, or if the same signal comes again.

use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use terrace_core::{Bytes, Nanos};

/// The signals that have come: bit n stands for signal n.
static INTERRUPTED: AtomicU32 = AtomicU32::new(0);
/// The process groups of the children that run; 0 where there is none, and [`COMING`] where one is
/// about to be.
static GROUPS: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];

/// No group, and no place for another one.
const COMING: i32 = -1;

extern "C" fn interrupted(signal: libc::c_int) {
    let bit = 1 << signal;
    // A terminal signals this process and its script, which hands another one on to it.
    let is_again = INTERRUPTED.fetch_or(bit, SeqCst) & bit != 0;
    let is_over = is_again || signal == libc::SIGALRM;
    let signal = if is_over { libc::SIGKILL } else { libc::SIGTERM };
    for group in &GROUPS {
        signal_group(group, signal);
    }
    if !is_over {
        // SAFETY: has no memory effects, and may be called in a signal handler.
        unsafe { libc::alarm(GRACE.as_secs() as libc::c_uint) };
    }
}

fn signal_group(group: &AtomicI32, signal: libc::c_int) {
    let group = group.load(SeqCst);
    if group > 0 {
        // SAFETY: has no memory effects, and may be called in a signal handler.
        unsafe { libc::kill(-group, signal) };
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP end the program in order.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGALRM] {
        // SAFETY: the handler only touches atomics and calls `kill` and `alarm`. Without
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
    if INTERRUPTED.load(SeqCst) != 0 {
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
    /// What of it was the kernel's, and for what.
    pub usage: Usage,
}

/// What a process took of the kernel, and those that it waited for.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Processor time in the kernel.
    pub kernel: Nanos,
    /// Page faults that the kernel served at once.
    pub minor: u64,
    /// Page faults that had to be tried again: because something was read for them, or because a pager
    /// in user space served them.
    pub major: u64,
}

/// A child in a process group of its own; ended when it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    /// Where a signal's handler finds it.
    group: &'static AtomicI32,
    over: bool,
    /// What is done when it takes too long.
    bounds: Vec<Bound>,
}

/// How long one that was told to end may take for that.
const GRACE: Duration = Duration::from_secs(20);

/// How soon what has started nothing yet that could be told to end is looked at again.
const AGAIN: Duration = Duration::from_millis(20);

/// A thread that does something after some time, unless it is dropped before.
#[derive(Debug)]
struct Bound {
    /// Closed to call it off.
    calls_off: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Bound {
    /// `act` is given what waits so long, and says whether it is to go on then.
    fn new(act: impl FnOnce(&dyn Fn(Duration) -> bool) + Send + 'static) -> Self {
        let (sender, called_off) = channel::<()>();
        let thread = std::thread::spawn(move || {
            act(&|wait| called_off.recv_timeout(wait) == Err(RecvTimeoutError::Timeout));
        });
        Self { calls_off: Some(sender), thread: Some(thread) }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.calls_off = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Running {
    /// Starts a command. Two at a time at most.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        check()?;
        let free = |group: &&AtomicI32| group.compare_exchange(0, COMING, SeqCst, SeqCst).is_ok();
        let group =
            GROUPS.iter().find(free).ok_or_else(|| io::Error::other("two children run already"))?;
        // SAFETY: does nothing.
        unsafe {
            // With something to do before the program begins, the child is a copy of this
            // process. Otherwise the two share memory until then, and the kernel enters
            // the most that this process *ever* had into the child's `ru_maxrss`.
            command.pre_exec(|| Ok(()));
        }
        let child = command.process_group(0).spawn().inspect_err(|_| group.store(0, SeqCst))?;
        group.store(child.id() as i32, SeqCst);
        let running = Self { child, group, over: false, bounds: Vec::new() };
        // A signal before the group was known has killed nobody.
        check()?;
        Ok(running)
    }

    /// Has it told to end after so long, and killed if it does not.
    pub fn bound(&mut self, limit: Duration) {
        let group = self.child.id() as i32;
        self.bounds.push(Bound::new(move |passes| {
            for (wait, signal) in [(limit, libc::SIGTERM), (GRACE, libc::SIGKILL)] {
                if !passes(wait) {
                    return;
                }
                // SAFETY: has no memory effects. The leader was not collected yet, so the number
                // is still this group's.
                unsafe { libc::kill(-group, signal) };
            }
        }));
    }

    /// Has what it has started itself told to end after so long; it goes on, and ends in its own way. A
    /// recorder writes then what it has.
    pub fn cut(&mut self, after: Duration) {
        let leader = self.child.id();
        self.bounds.push(Bound::new(move |passes| {
            let mut wait = after;
            // It may not have come to start anything by then.
            while passes(wait) && !tell_children(leader) {
                wait = AGAIN;
            }
        }));
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
        let kernel = time(usage.ru_stime);
        Ok(Finished {
            status,
            stdout,
            peak: Bytes::kib(usage.ru_maxrss as u64),
            cpu: time(usage.ru_utime) + kernel,
            usage: Usage { kernel, minor: usage.ru_minflt as u64, major: usage.ru_majflt as u64 },
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

    /// Waits until it has ended, and leaves it to be collected.
    fn await_end(&self) {
        // SAFETY: zero is a valid siginfo, which the kernel may overwrite.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOWAIT;
            while libc::waitid(libc::P_PID, self.child.id(), &raw mut info, flags) != 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }

    fn reap(&mut self) -> io::Result<(ExitStatus, libc::rusage)> {
        if !self.bounds.is_empty() {
            // Nobody may be told to end by a number that is somebody else's by then.
            self.await_end();
            self.bounds.clear();
        }
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
        if self.over {
            return;
        }
        let until = Instant::now() + GRACE;
        signal_group(self.group, libc::SIGTERM);
        while self.is_alive() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Itself, or what it has left behind: until it is collected the number is this group's.
        signal_group(self.group, libc::SIGKILL);
        let _ = self.reap();
    }
}

/// Tells the children of a process to end. Whether it had any. (Not every kernel lists them.)
fn tell_children(parent: u32) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let mut told = false;
    for process in processes.flatten() {
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let stat = std::fs::read_to_string(process.path().join("stat"));
        if stat.is_ok_and(|stat| parent_in(&stat) == Some(parent)) {
            // SAFETY: has no memory effects.
            unsafe { libc::kill(id, libc::SIGTERM) };
            told = true;
        }
    }
    told
}

/// The parent by a process's `stat`: two fields after the name, in which anything can be.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Runs a command to its end, with its standard output.
pub fn run(command: &mut Command) -> io::Result<Finished> {
    Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?.wait()
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Two children run at a time at most; tests run at the same time.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn one_that_takes_too_long_is_told_to_end() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new("sleep");
        let mut running = Running::start(command.arg("1000")).unwrap();

        running.bound(Duration::from_millis(20));

        assert_eq!(running.wait().unwrap().status.signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn one_that_ends_before_its_time_is_told_nothing() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running = Running::start(&mut Command::new("true")).unwrap();

        running.bound(Duration::from_hours(1));

        assert!(running.wait().unwrap().status.success());
    }

    /// A recorder has to write what it has recorded.
    #[test]
    fn what_a_child_has_started_is_cut_and_the_child_goes_on() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000; echo went on"]).stdout(Stdio::piped());
        let mut running = Running::start(&mut command).unwrap();

        running.cut(Duration::from_millis(20));

        let finished = running.wait().unwrap();
        assert!(finished.status.success(), "{}", finished.status);
        assert_eq!(finished.stdout, b"went on\n");
    }

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent_in("12 (sh) S 34 12 12 0 -1"), Some(34));
        assert_eq!(parent_in("12 (a) R 9 ) (b) S 34 12 12 0 -1"), Some(34));
        assert_eq!(parent_in("12 (sh"), None);
    }

    #[test]
    fn page_faults_are_counted() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = Running::start(&mut Command::new("true")).unwrap().wait().unwrap().usage;
        assert!(usage.minor > 0, "{usage:?}");
    }

    /// `terrace run` has a device and a group to take away.
    #[test]
    fn a_child_that_is_dropped_may_undo_what_it_has_done() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let script =
            "trap 'sleep 0.1; rm made; exit' TERM; >made; echo; while :; do sleep 0.01; done";
        command.args(["-c", script]).current_dir(&directory).stdout(Stdio::piped());
        let mut running = Running::start(&mut command).unwrap();
        let mut line = [0; 1];
        running.child.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert!(directory.path().join("made").exists());
        drop(running);
        assert!(!directory.path().join("made").exists());
    }

    #[test]
    fn a_child_that_is_dropped_is_gone_with_its_own_children() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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
