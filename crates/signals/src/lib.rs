//! The signals that this process was started with ignored or blocked, and its environment. The
//! programs that it starts inherit them, as if they had been started in its place: [`spawn`].
//!
//! A process inherits both from whoever starts it: `nohup` ignores SIGHUP, a script's
//! background jobs ignore SIGINT and SIGQUIT, and some who start a server ignore SIGPIPE. Before
//! `main` Rust's runtime ignores SIGPIPE; the command then handles the signals that it hands
//! on. Thus they are noted before either.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::c_int;

mod environment;
mod queued;

pub use self::environment::Environment;
pub use self::queued::{RealTime, RealTimeSignal};

/// Bit n - 1 stands for signal n.
static IGNORED: AtomicU64 = AtomicU64::new(0);
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// All signals that there are, those that the C library keeps for itself included.
const ALL: std::ops::RangeInclusive<c_int> = 1..=64;

/// Runs when the process starts, before Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    let ignored = ALL.filter(|&signal| is_ignored(signal)).map(bit).sum();
    IGNORED.store(ignored, Relaxed);
    let blocked = mask(libc::SIG_BLOCK, 0);
    BLOCKED.store(blocked, Relaxed);
}

fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// What the kernel does at a signal: the address of a handler or one of two numbers, flags, and,
/// in an order that differs between architectures, what a handler needs.
type Action = [usize; 4];

/// Sets what the kernel does at a signal, if that is given; returns what it did before. Not by
/// the C library's function, which refuses the signals that it keeps for itself.
fn action(signal: c_int, new: Option<&Action>) -> Action {
    let mut before: Action = [0; 4];
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a structure that the kernel reads, and one that it writes. What is set is no
    // handler (`dispose`). For signals that cannot be changed it fails.
    unsafe {
        let before = &raw mut before;
        libc::syscall(libc::SYS_rt_sigaction, signal, new, before, size_of::<u64>());
    }
    before
}

fn is_ignored(signal: c_int) -> bool {
    action(signal, None)[0] == libc::SIG_IGN
}

/// Changes which signals the calling thread blocks; returns which it blocked before.
fn mask(how: c_int, signals: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: the kernel's signal set is 8 bytes. The C library's function would have to be
    // asked for each signal.
    unsafe {
        let (signals, before) = (&raw const signals, &raw mut before);
        libc::syscall(libc::SYS_rt_sigprocmask, how, signals, before, size_of::<u64>());
    }
    before
}

/// Has every signal be ignored, or have its default action.
fn dispose(ignored: u64) {
    for signal in ALL {
        let what = if ignored & bit(signal) == 0 { libc::SIG_DFL } else { libc::SIG_IGN };
        action(signal, Some(&[what, 0, 0, 0]));
    }
}

/// Whether the process was started with a signal ignored.
pub fn was_ignored(signal: c_int) -> bool {
    IGNORED.load(Relaxed) & bit(signal) != 0
}

/// Whether a command that runs until it is stopped is to stop at a signal: not at a hang-up where
/// that was ignored (`nohup`). SIGINT is ignored in a script's background job, which is stopped
/// by it all the same.
pub fn may_stop(signal: c_int) -> bool {
    signal != libc::SIGHUP || !was_ignored(signal)
}

/// Has the kernel tell of this process's children how they have ended. Where it was started
/// with SIGCHLD ignored, it would not.
pub fn await_children() {
    if was_ignored(libc::SIGCHLD) {
        action(libc::SIGCHLD, Some(&[libc::SIG_DFL, 0, 0, 0]));
    }
}

/// Takes signals in the calling thread, and in those that it creates, although they may have
/// been blocked when the process was started.
pub fn unblock(signals: &[c_int]) {
    mask(libc::SIG_UNBLOCK, signals.iter().copied().map(bit).fold(0, |set, bit| set | bit));
}

/// The real-time signals that programs may use: those that the C library leaves them.
pub fn real_time() -> std::ops::RangeInclusive<c_int> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

/// Sends a signal, of whichever number, to the process that a handle refers to.
///
/// # Errors
/// The kernel's: `ESRCH` where the process has ended.
pub fn send(process: BorrowedFd<'_>, signal: c_int) -> io::Result<()> {
    // SAFETY: a handle that is open, and no structure to read.
    let sent = unsafe {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), signal, no_info, 0)
    };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Starts a program that ignores and blocks what this process was started with, in an environment.
///
/// # Errors
/// The program could not be started, or the command sets variables by itself (`InvalidInput`):
/// then the program would find others than these.
pub fn spawn(command: &mut Command, environment: &Environment) -> io::Result<Child> {
    if command.get_envs().next().is_some() {
        let what = "variables are set by the environment, not by the command";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let (ignored, blocked) = (IGNORED.load(Relaxed), BLOCKED.load(Relaxed));
    let environment = environment.installer();
    let restore = move || {
        environment.install();
        dispose(ignored);
        mask(libc::SIG_SETMASK, blocked);
        Ok(())
    };
    // SAFETY: it makes system calls, which a forked child may, and sets a pointer of its own copy.
    unsafe { command.pre_exec(restore) };
    // A handler of ours must not run in the child before it has become the program.
    let before = mask(libc::SIG_SETMASK, u64::MAX);
    let child = command.spawn();
    mask(libc::SIG_SETMASK, before);
    child
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `SigIgn` and `SigBlk` of a process that is started from here.
    fn status(start: impl FnOnce(&mut Command) -> io::Result<Child>) -> [u64; 2] {
        let mut command = Command::new("cat");
        command.arg("/proc/self/status").stdout(std::process::Stdio::piped());
        let output = start(&mut command).unwrap().wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let set = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        [set("SigIgn:"), set("SigBlk:")]
    }

    #[test]
    fn a_program_ignores_and_blocks_what_this_process_was_started_with() {
        let started = [IGNORED.load(Relaxed), BLOCKED.load(Relaxed)];
        let ignores = action(libc::SIGUSR2, Some(&[libc::SIG_IGN, 0, 0, 0]));
        let before = mask(libc::SIG_BLOCK, bit(libc::SIGUSR1));

        let environment = Environment::inherited();
        assert_eq!(status(|command| spawn(command, &environment)), started);
        // What the test is worth: another way to start one hands both on.
        let changed = [started[0] | bit(libc::SIGUSR2), started[1] | bit(libc::SIGUSR1)];
        let [ignored, blocked] = status(Command::spawn);
        let kept = !(bit(libc::SIGPIPE) | bit(33));
        assert_eq!([ignored & kept, blocked], [changed[0] & kept, changed[1]]);

        unblock(&[libc::SIGUSR1]);
        assert_eq!(mask(libc::SIG_SETMASK, before), before & !bit(libc::SIGUSR1));
        action(libc::SIGUSR2, Some(&ignores));
    }
}
