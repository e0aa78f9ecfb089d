//! The brake of a run in a group of version 1: processor time, taken away at once.
//!
//! Two use it: the engine, which looks every now and then, and the guard, which the kernel wakes. It
//! is on as long as either wants it.

use std::io;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

use terrace_core::Nanos;
use terrace_live::sys;

use crate::setup::group::{Group, Pace};

/// How often and for how long a run was slowed down, by whoever wanted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Braked {
    /// Times that it began.
    pub times: u64,
    /// How long it was in all.
    pub time: Nanos,
}

/// Counts that. Two who brake at the same time slow the run down once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slowed {
    counted: Braked,
    /// Since when it is slowed down and not counted yet.
    since: Option<Nanos>,
}

impl Slowed {
    /// From now on it is slowed down, or is not.
    pub(super) fn set(&mut self, on: bool, now: Nanos) {
        match (self.since, on) {
            (None, true) => {
                self.counted.times += 1;
                self.since = Some(now);
            }
            (Some(since), false) => {
                self.counted.time += now.saturating_sub(since);
                self.since = None;
            }
            _ => {}
        }
    }

    /// What has come since the last call, up to now.
    pub(super) fn take(&mut self, now: Nanos) -> Braked {
        if let Some(since) = &mut self.since {
            self.counted.time += now.saturating_sub(*since);
            *since = now;
        }
        std::mem::take(&mut self.counted)
    }
}

/// Who wants the brake on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The engine.
    Engine,
    /// The guard.
    Guard,
}

/// The brake.
#[derive(Debug)]
pub(super) struct Brake {
    group: Group,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the engine and the guard want.
    wanted: [Option<Pace>; 2],
    /// What is in force.
    applied: Option<Pace>,
    slowed: Slowed,
}

impl Brake {
    /// That of a group, not on.
    pub(super) fn new(group: Group) -> Self {
        Self { group, state: Mutex::default() }
    }

    /// Whether there is one.
    pub(super) fn is_there(&self) -> bool {
        self.group.can_brake()
    }

    /// Has it on at a pace, or off, as far as this holder is concerned. Whether it has become
    /// stronger.
    ///
    /// # Errors
    /// The system's; it is as it was then.
    pub(super) fn set(&self, holder: Holder, pace: Option<Pace>) -> io::Result<bool> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = state.wanted;
        wanted[holder as usize] = pace;
        let slowest = wanted.into_iter().flatten().max();
        if slowest != state.applied {
            match slowest {
                Some(pace) => self.group.slow_down(pace)?,
                None => self.group.release_brake()?,
            }
        }
        let stronger = slowest > state.applied;
        state.slowed.set(slowest.is_some(), Nanos(sys::now()));
        (state.wanted, state.applied) = (wanted, slowest);
        Ok(stronger)
    }

    /// How the run was slowed down since the last call.
    pub(super) fn take(&self) -> Braked {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.slowed.take(Nanos(sys::now()))
    }
}

/// Processors beyond which the kernel's own clock has to do: each visit costs some 20 µs.
const VISITED: usize = 16;

/// Has every processor look now whether what runs on it may go on. A quota is looked at when the
/// clock ticks (each 4 ms with `CONFIG_HZ=250`) or when another thread takes the processor; so a
/// thread that runs before all ordinary ones goes round.
pub(super) fn visit_processors() {
    // SAFETY: a set of processors is plain data; the calls read and write whole ones.
    unsafe {
        let mut allowed = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        if libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed) != 0 {
            return;
        }
        if libc::CPU_COUNT(&allowed) as usize > VISITED {
            return;
        }
        for processor in (0..libc::CPU_SETSIZE as usize).filter(|&i| libc::CPU_ISSET(i, &allowed)) {
            let mut one = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
            libc::CPU_SET(processor, &mut one);
            libc::sched_setaffinity(0, size_of_val(&one), &raw const one);
        }
        libc::sched_setaffinity(0, size_of_val(&allowed), &raw const allowed);
    }
}

/// Has the calling thread run before all ordinary ones when it wakes up (`SCHED_FIFO`, the lowest
/// of its priorities); false without the right to it.
pub(super) fn run_first() -> bool {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads a plain structure.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the report tells it: time that the program lost.
    #[test]
    fn time_in_which_two_brake_counts_once() {
        let mut slowed = Slowed::default();
        let at = Nanos::millis;
        // The engine from 0 to 10 ms, the guard from 5 to 15.
        slowed.set(true, at(0));
        slowed.set(true, at(5));
        assert_eq!(slowed.take(at(8)), Braked { times: 1, time: at(8) }, "what is still on");
        slowed.set(true, at(10));
        slowed.set(false, at(15));
        assert_eq!(slowed.take(at(20)), Braked { times: 0, time: at(7) });
        slowed.set(false, at(30));
        assert_eq!(slowed.take(at(30)), Braked::default());
    }
}
