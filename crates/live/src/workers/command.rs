//! Requests of the program's threads to the manager.
//!
//! The userfaultfd and all other descriptors live in the table of Terrace's
//! own threads, where the program cannot close them by mistake; so a hook that
//! needs one asks the manager and waits. One request at a time.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

use crate::failsafe::sharers;
use crate::pager::Pager;
use crate::sys;
use crate::sys::spin::backoff;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Command {
    /// Manage the range `[a, b)`.
    Manage = 1,
    /// The content of `[a, b)` is discarded, in a way that the kernel does not
    /// tell us of.
    Discard = 3,
    /// A fork is about to begin: keep everything as it is.
    ForkBegins = 2,
    /// Put the program on plain memory: our threads are to leave.
    Retire = 4,
    /// The range `[a, b)` has been made huge pages, as the program wished.
    Collapsed = 5,
    /// The program ends: put it on plain memory if another process goes on with its memory
    /// ([`crate::failsafe::sharers`]).
    Leave = 6,
    /// The range `[a, b)` is no longer mapped as it was, in a way that the kernel does not tell us of.
    Unmapped = 7,
}

impl Command {
    /// The command of a number; `None` if no command has it.
    const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Manage,
            2 => Self::ForkBegins,
            3 => Self::Discard,
            4 => Self::Retire,
            5 => Self::Collapsed,
            6 => Self::Leave,
            7 => Self::Unmapped,
            _ => return None,
        })
    }
}

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const ANSWERED: u32 = 2;
/// Nobody answers any more.
const STOPPED: u32 = 3;

/// How often (ns) a thread that waits for an answer looks whether the manager is still there.
const LOOKS: u64 = 500_000_000;

/// The one request in progress.
pub struct Commands {
    turn: AtomicU32,
    state: AtomicU32,
    command: AtomicU32,
    a: AtomicUsize,
    b: AtomicUsize,
    answer: AtomicUsize,
}

impl Commands {
    /// No request.
    pub const fn new() -> Self {
        Self {
            turn: AtomicU32::new(0),
            state: AtomicU32::new(IDLE),
            command: AtomicU32::new(0),
            a: AtomicUsize::new(0),
            b: AtomicUsize::new(0),
            answer: AtomicUsize::new(0),
        }
    }

    /// Asks, and waits for the answer. Called by the program's threads, with
    /// signals blocked: a handler that asked in turn would wait for ever.
    pub fn ask(&self, pager: &Pager, command: Command, a: usize, b: usize) -> usize {
        let mut spins = 0;
        while self.turn.swap(1, Acquire) != 0 {
            backoff(&mut spins);
            // Whoever asked died with the manager.
            if pager.is_left_behind() && self.state.load(Acquire) == ASKED {
                sys::sleep(LOOKS);
                sharers::is_lost();
            }
        }
        self.command.store(command as u32, Relaxed);
        self.a.store(a, Relaxed);
        self.b.store(b, Relaxed);
        let asked = self.state.compare_exchange(IDLE, ASKED, AcqRel, Acquire).is_ok();
        pager.ring();
        while asked && self.state.load(Acquire) == ASKED {
            sys::futex_wait(&self.state, ASKED, Some(LOOKS), false);
            // A thread of a process that ends, which it shares with the manager, does not come back
            // from the second wait.
            if pager.is_left_behind() && self.state.load(Acquire) == ASKED {
                sys::futex_wait(&self.state, ASKED, Some(LOOKS), false);
                if self.state.load(Acquire) == ASKED {
                    sharers::is_lost();
                }
            }
        }
        // Without an answer if nobody gives any.
        let answered = self.state.compare_exchange(ANSWERED, IDLE, AcqRel, Acquire).is_ok();
        let answer = if answered { self.answer.load(Relaxed) } else { 0 };
        self.turn.store(0, Release);
        answer
    }

    /// Lets whoever waits go on without an answer, now and from now on.
    pub fn stop(&self) {
        self.state.store(STOPPED, Release);
        sys::futex_wake(&self.state, false);
    }

    /// The request that waits, if any. One that no command has the number of is answered as one
    /// that could not be carried out.
    pub fn pending(&self) -> Option<(Command, usize, usize)> {
        if self.state.load(Acquire) != ASKED {
            return None;
        }
        let Some(command) = Command::from_number(self.command.load(Relaxed)) else {
            self.answer(0);
            return None;
        };
        Some((command, self.a.load(Relaxed), self.b.load(Relaxed)))
    }

    /// Answers it.
    pub fn answer(&self, answer: usize) {
        self.answer.store(answer, Relaxed);
        if self.state.compare_exchange(ASKED, ANSWERED, AcqRel, Acquire).is_err() {
            return;
        }
        sys::futex_wake(&self.state, false);
    }

    /// For a forked child: who asked is not here.
    pub fn reset(&self) {
        self.state.store(IDLE, Relaxed);
        self.turn.store(0, Release);
    }
}

impl Default for Commands {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_one_number_and_no_other_number_is_a_command() {
        for command in [
            Command::Manage,
            Command::Discard,
            Command::ForkBegins,
            Command::Retire,
            Command::Collapsed,
            Command::Leave,
            Command::Unmapped,
        ] {
            assert_eq!(Command::from_number(command as u32), Some(command));
        }
        for number in [0, 8, 9, u32::MAX] {
            assert_eq!(Command::from_number(number), None, "{number}");
        }
    }

    /// It was taken for the beginning of a fork, and everything stood still for a child that
    /// never came.
    #[test]
    fn a_request_of_no_command_is_refused_and_the_next_is_served() {
        let commands = Commands::new();
        commands.command.store(99, Relaxed);
        commands.answer.store(7, Relaxed);
        commands.state.store(ASKED, Release);

        assert_eq!(commands.pending(), None);
        assert_eq!(commands.state.load(Acquire), ANSWERED);
        assert_eq!(commands.answer.load(Relaxed), 0);

        commands.command.store(Command::Discard as u32, Relaxed);
        commands.state.store(ASKED, Release);
        assert_eq!(commands.pending(), Some((Command::Discard, 0, 0)));
    }
}
