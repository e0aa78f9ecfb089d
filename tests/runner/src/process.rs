//! A child with a deadline: its output, its use of memory, and, when it does not
//! end in time, what every thread of it was doing.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};
use terrace_core::Bytes;
use terrace_sampler::ProcStat;

/// How a child ended.
#[derive(Clone, Debug)]
pub enum Ending {
    /// By itself.
    Exited(ExitStatus),
    /// It had to be killed; the text says what its threads were doing.
    Hung(String),
}

/// What a child did.
#[derive(Clone, Debug)]
pub struct Finished {
    /// How it ended.
    pub ending: Ending,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: String,
    /// How long it ran.
    pub elapsed: Duration,
    /// The most memory that it, or the largest of the descendants it waited for,
    /// had resident at once.
    pub peak: Bytes,
}

impl Finished {
    /// Whether it ended by itself with status 0.
    pub fn succeeded(&self) -> bool {
        matches!(self.ending, Ending::Exited(status) if status.success())
    }

    /// Its exit status, unless it was killed.
    pub fn code(&self) -> Option<i32> {
        match self.ending {
            Ending::Exited(status) => status.code(),
            Ending::Hung(_) => None,
        }
    }

    /// What is wrong with it, for a test's failure message.
    pub fn complaint(&self) -> String {
        let mut text = match &self.ending {
            Ending::Exited(status) => format!("{status} after {:.2?}", self.elapsed),
            Ending::Hung(state) => {
                format!("did not end within {:.2?}; its threads:\n{state}", self.elapsed)
            }
        };
        if !self.stderr.trim().is_empty() {
            let _ = write!(text, "\n{}", self.stderr.trim_end());
        }
        text
    }
}

/// Runs a command with a deadline, in a process group of its own. Output goes to
/// files in `directory` (not pipes: a daemon that outlives its parent would keep
/// a pipe open).
pub fn run(command: &mut Command, directory: &Path, limit: Duration) -> io::Result<Finished> {
    start(command, directory)?.wait(limit)
}

/// Starts a command as [`run`] does.
pub fn start(command: &mut Command, directory: &Path) -> io::Result<Started> {
    let (out, err) = (directory.join("stdout"), directory.join("stderr"));
    let started = Instant::now();
    let child = command
        .process_group(0)
        .stdout(Stdio::from(File::create(&out)?))
        .stderr(Stdio::from(File::create(&err)?))
        .spawn()?;
    Ok(Started { pid: Pid::from_child(&child), at: started, out, err })
}

/// A command under way.
#[derive(Debug)]
pub struct Started {
    pid: Pid,
    at: Instant,
    out: PathBuf,
    err: PathBuf,
}

impl Started {
    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for its end; kills it with its descendants when the time is over.
    pub fn wait(self, limit: Duration) -> io::Result<Finished> {
        finish(&self, limit)
    }
}

fn finish(run: &Started, limit: Duration) -> io::Result<Finished> {
    let Started { pid, at, out, err } = run;
    let pid = *pid;
    let hung = !ends_within(pid, limit)?;
    let state = hung.then(|| {
        let state = describe(pid);
        for descendant in family(pid) {
            let _ = kill_process(descendant, Signal::KILL);
        }
        state
    });
    if hung {
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let (status, peak) = reap(pid)?;
    Ok(Finished {
        ending: state.map_or(Ending::Exited(status), Ending::Hung),
        stdout: fs::read(out)?,
        stderr: String::from_utf8_lossy(&fs::read(err)?).into_owned(),
        elapsed: at.elapsed(),
        peak,
    })
}

/// Waits for the process to end, not longer than `limit`.
fn ends_within(pid: Pid, limit: Duration) -> io::Result<bool> {
    let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let mut polled = [PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Collects an ended child with its peak of resident memory, which the standard
/// library's wait does not tell.
pub(crate) fn reap(pid: Pid) -> io::Result<(ExitStatus, Bytes)> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    loop {
        // SAFETY: both pointers are valid for writes; the kernel fills them.
        let waited = unsafe {
            libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, usage.as_mut_ptr())
        };
        if waited != -1 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: zero is a valid rusage, and the kernel has written it.
    let usage = unsafe { usage.assume_init() };
    Ok((ExitStatus::from_raw(status), Bytes::kib(usage.ru_maxrss as u64)))
}

/// The process and everything that descends from it or shares its group.
fn family(root: Pid) -> Vec<Pid> {
    let root = root.as_raw_nonzero().get();
    let all: Vec<(i32, i32, i32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let stat = ProcStat::parse(&stat)?;
            Some((pid, i32::try_from(stat.parent()?).ok()?, stat.group()?))
        })
        .collect();
    let mut members = vec![root];
    loop {
        let before = members.len();
        for &(pid, parent, group) in &all {
            if !members.contains(&pid) && (group == root || members.contains(&parent)) {
                members.push(pid);
            }
        }
        if members.len() == before {
            return members.into_iter().filter_map(Pid::from_raw).collect();
        }
    }
}

/// What every thread of the process and its descendants is doing: one line each,
/// innermost kernel function first. The launcher itself only waits; it is left out
/// when it has descendants.
fn describe(root: Pid) -> String {
    let mut text = String::new();
    let family = family(root);
    let launcher = family.len() > 1;
    for pid in family.into_iter().skip(usize::from(launcher)) {
        let pid = pid.as_raw_nonzero();
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let path = thread.path();
            let read = |name| fs::read_to_string(path.join(name)).unwrap_or_default();
            let state = read("status")
                .lines()
                .find_map(|line| line.strip_prefix("State:").map(|s| s.trim().to_owned()))
                .unwrap_or_default();
            let stack = read("stack");
            let frames: Vec<&str> = stack
                .lines()
                .filter_map(|line| line.split_whitespace().nth(1)?.split('+').next())
                .take(9)
                .collect();
            // ns (`sched-stats.rst`): whether it hangs or only waits for a processor.
            let times: Vec<u64> =
                read("schedstat").split_whitespace().filter_map(|ns| ns.parse().ok()).collect();
            let times = match times[..] {
                [ran, waited, ..] => {
                    let (ran, waited) = (ran / 1_000_000, waited / 1_000_000);
                    format!("ran {ran} ms, waited {waited} ms for a processor")
                }
                _ => "schedstat cannot be read".to_owned(),
            };
            let _ = writeln!(
                text,
                "  {pid}/{} ({}) {state}; {times}; syscall {}; {}",
                thread.file_name().to_string_lossy(),
                read("comm").trim(),
                read("syscall").trim(),
                frames.join(" < "),
            );
        }
        if std::env::var_os("HAZARD_GDB").is_some() {
            text.push_str(&backtraces(pid.get()));
        }
    }
    text
}

/// User-space stacks, for whoever has gdb and asks for them.
fn backtraces(pid: i32) -> String {
    let output = Command::new("gdb")
        .args(["-p", &pid.to_string(), "-batch", "-nx", "-ex", "thread apply all bt 24"])
        .output();
    match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => format!("  gdb: {error}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_ends_is_reported_with_its_output_and_memory() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);

        let finished = run(&mut command, directory.path(), Duration::from_secs(20)).unwrap();

        assert_eq!(finished.code(), Some(3));
        assert_eq!(finished.stdout, b"out\n");
        assert_eq!(finished.stderr, "err\n");
        assert!(finished.peak > Bytes::kib(100), "{}", finished.peak);
    }

    #[test]
    fn a_child_that_hangs_is_killed_with_its_children_and_described() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]);

        let started = start(&mut command, directory.path()).unwrap();
        let sleeps = |pid: &Pid| {
            let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
            name.is_ok_and(|name| name == "sleep\n")
        };
        let deadline = Instant::now() + Duration::from_mins(1);
        while !family(started.pid()).iter().any(sleeps) {
            assert!(Instant::now() < deadline, "the child has no child");
            std::thread::sleep(Duration::from_millis(5));
        }
        let finished = started.wait(Duration::from_millis(1)).unwrap();

        let Ending::Hung(state) = &finished.ending else { panic!("{}", finished.complaint()) };
        let said = ["(sleep)", "syscall", "for a processor"];
        assert!(said.iter().all(|said| state.contains(said)), "{state}");
        let sleeper = String::from_utf8(finished.stdout).unwrap();
        let status = Path::new("/proc").join(sleeper.trim()).join("status");
        let gone = |()| match fs::read_to_string(&status) {
            Err(_) => true,
            Ok(text) => text.contains("State:\tZ"),
        };
        let deadline = Instant::now() + Duration::from_mins(1);
        while !gone(()) {
            assert!(Instant::now() < deadline, "the child's child lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
