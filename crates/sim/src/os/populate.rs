//! Programs that fill their memory side by side.
//!
//! All are started at once and share a node's processors evenly, whether they still fill their
//! memory or compute already, as a fair scheduler does. A page that is touched first takes the
//! kernel's fault and the clearing of the page.

use terrace_core::{Nanos, Pages};

use super::daemon::Daemon;
use super::system::{OutOfMemory, ProcessId, System};

/// A program.
#[derive(Clone, Copy, Debug)]
pub struct Instance {
    /// Its process.
    pub process: ProcessId,
    /// What it fills.
    pub memory: Pages,
}

/// How programs share processors, and what a page takes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Processors that they share.
    pub processors: u32,
    /// What a page takes that is touched for the first time.
    pub page: Nanos,
    /// How long each runs before the next one's turn.
    pub turn: Nanos,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Populated {
    /// When the last program had filled its memory.
    pub took: Nanos,
    /// Programs that ended for want of memory, and what they were told.
    pub killed: Vec<(ProcessId, OutOfMemory)>,
}

/// Lets programs fill their memory, while a daemon provides some.
pub fn populate(
    system: &mut System,
    daemon: &mut Daemon,
    instances: &[Instance],
    pace: Pace,
) -> Populated {
    let share = (f64::from(pace.processors) / instances.len().max(1) as f64).min(1.0);
    let each = (pace.turn.as_f64() * share / pace.page.as_f64()).max(1.0);
    let mut left: Vec<(Instance, f64)> = instances.iter().map(|one| (*one, 0.0)).collect();
    let mut result = Populated::default();
    let begun = system.now();
    while !left.is_empty() {
        daemon.run(system, system.now() + pace.turn);
        let killed = &mut result.killed;
        left.retain_mut(|(one, credit)| {
            *credit += each;
            let has = system.held(one.process).0;
            let some = (*credit as u64).min(one.memory.0 - has);
            *credit -= some as f64;
            if let Err(why) = system.touch(one.process, Pages(some)) {
                system.end(one.process);
                killed.push((one.process, why));
                return false;
            }
            has + some < one.memory.0
        });
    }
    result.took = system.now() - begun;
    result
}
