//! Under which number `terrace run` and the broker know this process.
//!
//! In a PID namespace of its own (`unshare --pid`, a container within the run) a process has
//! another number than it has for those who have begun the run. For them that would be somebody
//! else's: of a slot, of a statistics page, of a file's name. Nothing that a process can look up by
//! itself says what it is called outside. But the kernel tells whoever holds a socket which process is
//! at its other end, by the number that it has for the one who asks. So such a process asks the
//! broker, at its socket; others ask nobody.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::path::PathBuf;
use std::sync::OnceLock;

use super::control;
use crate::config::RunConfig;
use crate::stats::process_page::process_namespace;
use crate::sys;
use crate::workers::idle_priority;

/// Where this process belongs to; nothing in a process that is no run's.
static RUN: OnceLock<Run> = OnceLock::new();
/// Whether this process is in another namespace than those who have begun the run.
static ELSEWHERE: AtomicBool = AtomicBool::new(false);
/// What was found out: the number that the process knows itself by, and in the lower half the one
/// that it is known by; 0 if that cannot be had.
static KNOWN: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Run {
    /// The PID namespace of `terrace run`; 0 if that is not known.
    namespace: u64,
    /// Where the broker listens.
    socket: Option<PathBuf>,
}

/// At the start of a program.
pub(super) fn init(config: &RunConfig) {
    let socket = config.broker.as_ref().map(|page| page.with_file_name(control::SOCKET));
    // Once in a process.
    let _ = RUN.set(Run { namespace: config.pid_namespace, socket });
}

/// In a forked child: it has another number.
pub(crate) fn forked() {
    KNOWN.store(0, Release);
}

/// The number that this process is known by; `None` in another namespace if nobody could be asked.
pub(crate) fn own() -> Option<u32> {
    let pid = sys::pid() as u32;
    let Some(run) = RUN.get() else { return Some(pid) };
    let known = KNOWN.load(Acquire);
    if (known >> 32) as u32 == pid {
        return Some(known as u32).filter(|&number| number != 0);
    }
    let number = look_up(run, pid);
    KNOWN.store(u64::from(pid) << 32 | u64::from(number.unwrap_or(0)), Release);
    number
}

/// The same; the number that it knows itself by if nobody could be asked.
pub(crate) fn shown() -> u32 {
    own().unwrap_or_else(|| sys::pid() as u32)
}

/// That number, and of which namespace it is; 0 if that is not known.
pub(crate) fn with_namespace() -> (u32, u64) {
    let namespace = match (own(), RUN.get()) {
        (Some(_), Some(run)) if is_elsewhere() => run.namespace,
        _ => process_namespace(),
    };
    (shown(), namespace)
}

/// What a file of this process's alone is called by: one that is not known by any number may have
/// that of another.
pub(crate) fn name() -> String {
    own().map_or_else(
        || format!("{}-in-{}", sys::pid(), process_namespace()),
        |number| number.to_string(),
    )
}

/// Whether this process is in another namespace, as far as it has been looked up.
pub(crate) fn is_elsewhere() -> bool {
    ELSEWHERE.load(Acquire)
}

fn look_up(run: &Run, pid: u32) -> Option<u32> {
    let mut elsewhere = is_elsewhere();
    if idle_priority::is_left_alone() {
        // Under a filter on system calls it looks at nothing, and asks nobody.
        return (!elsewhere && pid != FIRST).then_some(pid);
    }
    // Children are where their parent is, or further away.
    elsewhere = elsewhere || is_another(run.namespace, process_namespace(), pid);
    if !elsewhere {
        return Some(pid);
    }
    ELSEWHERE.store(true, Release);
    control::own_number(run.socket.as_ref()?).ok()
}

/// The number of the first process of a namespace. In that of `terrace run` no program has it.
const FIRST: u32 = 1;

/// Whether a process is in another namespace than `terrace run`: by both of them, or where one is not
/// known, by its number.
fn is_another(of_run: u64, own: u64, pid: u32) -> bool {
    if of_run == 0 || own == 0 { pid == FIRST } else { of_run != own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_told_by_its_number_or_by_its_first_process() {
        assert!(!is_another(7, 7, 1) && is_another(7, 8, 900));
        for (of_run, own) in [(0, 8), (7, 0), (0, 0)] {
            assert!(is_another(of_run, own, 1), "without `/proc`");
            assert!(!is_another(of_run, own, 900));
        }
    }

    /// `terrace run` itself, and whatever else uses this crate.
    #[test]
    fn a_process_that_is_no_runs_has_the_number_that_it_knows_itself_by() {
        let pid = std::process::id();
        assert_eq!((own(), shown(), name()), (Some(pid), pid, pid.to_string()));
        assert_eq!(with_namespace(), (pid, process_namespace()));
        assert!(!is_elsewhere());
    }
}
