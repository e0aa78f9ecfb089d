//! Processes that share the program's memory without being its threads (`clone` with `CLONE_VM`).
//!
//! Such a process may outlive the one that made it, and with it Terrace's threads: what was absent
//! then would read as zeros, and a request to the manager would wait for ever. So a program that
//! ends while one of them lives is put on plain memory first.
//!
//! The program's threads only note what they make. They may be under a filter on system calls that
//! kills for what the program does not ask for itself; so it is the manager, which is under none, that
//! looks whether they live. Whether the manager lives is said by a word that the kernel clears
//! ([`crate::workers::worker::WorkerSlot::lives`]).

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::*};

use libc::c_int;

use crate::failsafe::give_up::{self, Retires};
use crate::pager::{MANAGER, Pager};
use crate::sys;
use crate::workers::command::Command;

/// Processes that share our memory, or did, by their numbers; 0 where there is none.
static KNOWN: [AtomicI32; 64] = [const { AtomicI32::new(0) }; 64];
/// Threads that are making one.
static MAKING: AtomicU32 = AtomicU32::new(0);
/// Whether there may be others: made by a system call of the program's own, or more than fit.
pub static OTHERS: AtomicBool = AtomicBool::new(false);

/// Whether a thread waits for what [`Command::Leave`] does, and may not call the kernel.
static SILENT: AtomicU32 = AtomicU32::new(NOTHING);
const NOTHING: u32 = 0;
const ASKED: u32 = 1;

/// With one of these a process is a thread of ours, or its parent waits until it leaves our memory.
pub const NONE: c_int = libc::CLONE_THREAD | libc::CLONE_VFORK;

/// Makes a process, or a thread, with these flags, and notes it. Asks the kernel for nothing else.
pub fn make(flags: c_int, make: impl FnOnce() -> c_int) -> c_int {
    if flags & libc::CLONE_VM == 0 || flags & NONE != 0 {
        return make();
    }
    MAKING.fetch_add(1, SeqCst);
    let process = make();
    let free = |known: &AtomicI32| known.compare_exchange(0, process, AcqRel, Acquire).is_ok();
    if process > 0 && !KNOWN.iter().any(free) {
        OTHERS.store(true, Release);
    }
    MAKING.fetch_sub(1, SeqCst);
    process
}

/// Whether any was ever made.
pub fn any() -> bool {
    let known = || KNOWN.iter().any(|known| known.load(Acquire) != 0);
    MAKING.load(SeqCst) != 0 || OTHERS.load(Acquire) || known()
}

/// Whether one lives, as far as the kernel tells. Forgets those that do not.
fn do_any_live() -> bool {
    let mut live = MAKING.load(SeqCst) != 0 || OTHERS.load(Acquire);
    for known in &KNOWN {
        let process = known.load(Acquire);
        if process != 0 && !shares_memory(process) {
            let _ = known.compare_exchange(process, 0, AcqRel, Acquire);
        } else {
            live |= process != 0;
        }
    }
    live
}

/// Forgets those that have ended, once many are known: others could not be noted.
pub(crate) fn forget_dead() {
    if KNOWN.iter().filter(|known| known.load(Acquire) != 0).count() >= KNOWN.len() / 2 {
        do_any_live();
    }
}

/// Whether a process shares the calling one's memory. What cannot be found out counts as if it did.
fn shares_memory(process: c_int) -> bool {
    /// `KCMP_VM` (`linux/kcmp.h`): whether two processes share their address space.
    const KCMP_VM: usize = 1;
    // SAFETY: has no memory effects.
    let same = unsafe {
        sys::raw(libc::SYS_kcmp, [sys::pid() as usize, process as usize, KCMP_VM, 0, 0, 0])
    };
    match same {
        0 => true,
        1.. => false,
        error if error == -i64::from(libc::ESRCH) => false,
        // SAFETY: signal 0 is none.
        _ => unsafe { libc::kill(process, 0) == 0 || sys::errno() != libc::ESRCH },
    }
}

/// In a forked child: nobody shares its memory.
pub(crate) fn reset() {
    MAKING.store(0, Release);
    OTHERS.store(false, Release);
    SILENT.store(NOTHING, Release);
    for known in &KNOWN {
        known.store(0, Release);
    }
}

/// Whether a thread waits for an answer that may not call the kernel.
pub(crate) fn are_asked_for() -> bool {
    SILENT.load(Acquire) == ASKED
}

/// It is answered.
pub(crate) fn answer() {
    SILENT.store(NOTHING, Release);
}

/// The calling process has lost memory with the one that it shared it with, and can only end.
pub(crate) fn is_lost() -> ! {
    sys::complain(&["the process whose memory this one shares (CLONE_VM) was killed; \
         it cannot go on without what was absent"]);
    std::process::abort();
}

impl Pager {
    /// In a thread of the program's that is about to end it, in the process whose memory this is:
    /// leaves others that share it with all of it. Whether the program is on plain memory now.
    pub fn leave_memory(&self) -> bool {
        if !self.is_stopped() {
            self.commands.ask(self, Command::Leave, 0, 0);
        }
        if self.is_stopped() {
            self.await_plain_memory();
        }
        self.is_stopped()
    }

    /// The same for a thread under a filter on system calls, which may be killed for any: it makes
    /// none. The manager sees at its next look that it waits. A process that borrows this memory
    /// cannot be told from its owner without a call, so that the end of one is taken for the
    /// program's. No lock is taken: a signal's handler may end the program while it waits here.
    pub fn leave_memory_silently(&self) -> bool {
        if !self.is_stopped() {
            SILENT.store(ASKED, Release);
        }
        while !self.phase.is_over() && (are_asked_for() || self.is_stopped()) {
            if self.is_left_behind() {
                return false;
            }
            core::hint::spin_loop();
        }
        self.is_stopped()
    }

    /// In the manager: brings all memory in if another process goes on with it; false if none does.
    pub(crate) fn leave_to_sharers(&self) -> bool {
        if !do_any_live() {
            return false;
        }
        if !self.config.quiet {
            sys::complain(&[Retires::Sharers.why(), ": the program goes on without Terrace"]);
        }
        give_up::give_up(self, MANAGER, Retires::Sharers.why());
        self.leave_program();
        true
    }

    /// Whether the calling process only shares the memory of one that has ended, and our threads
    /// with it.
    pub(crate) fn is_left_behind(&self) -> bool {
        let manager = &self.workers[MANAGER];
        manager.tid.load(Acquire) != 0 && manager.lives.load(Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn wait(pipe: *mut libc::c_void) -> c_int {
        let mut byte = 0u8;
        // SAFETY: reads a byte from the test's pipe into the stack; ends this process only.
        unsafe {
            libc::read(*pipe.cast::<c_int>(), (&raw mut byte).cast(), 1);
            libc::syscall(libc::SYS_exit, 0);
        }
        0
    }

    #[test]
    fn who_shares_memory_is_told_from_who_has_ended() {
        let mut stack = vec![0u128; 4 << 10];
        let mut pipe = [0 as c_int; 2];
        // SAFETY: two descriptors of the test's.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        let top = stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: the stack and the pipe outlive it: it is waited for.
        let sharer = unsafe { libc::clone(wait, top, flags, pipe.as_mut_ptr().cast()) };
        assert!(sharer > 0);

        assert!(shares_memory(sharer));

        // SAFETY: the pipe is the test's, as is the child.
        unsafe {
            assert_eq!(libc::write(pipe[1], [0u8].as_ptr().cast(), 1), 1);
            let mut information: libc::siginfo_t = core::mem::zeroed();
            let ended = libc::WEXITED | libc::WNOWAIT;
            libc::waitid(libc::P_PID, sharer as u32, &raw mut information, ended);
        }
        assert!(!shares_memory(sharer), "nobody has collected it yet");
        // SAFETY: as above.
        unsafe {
            libc::waitpid(sharer, core::ptr::null_mut(), 0);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
        }
        assert!(!shares_memory(sharer));
    }
}
