//! Threads of ours that *stand aside*: they run only where nobody else wants to
//! (`SCHED_IDLE`), and so may be put off at any point, with a fault in hand or
//! a lock held.
//!
//! Who then waits for them, and sees that others run meanwhile, calls them
//! back: they go on as ordinary threads until they have done what they were
//! doing. It is what priority inheritance does for locks, for everything that
//! one thread of ours can hold up another with.

use core::sync::atomic::{AtomicBool, AtomicI32, Ordering::*};

use crate::pager::MAX_WORKERS;
use crate::sys;

/// By worker: the thread's number while it stands aside, negative when it was
/// called back, else 0.
static ASIDE: [AtomicI32; MAX_WORKERS] = [const { AtomicI32::new(0) }; MAX_WORKERS];

/// The process whose threads these are, and whether it ends.
static OWNER: AtomicI32 = AtomicI32::new(0);
static ENDING: AtomicBool = AtomicBool::new(false);
/// Whether threads of the program's may be forbidden to call ours back.
static LEFT_ALONE: AtomicBool = AtomicBool::new(false);

/// The calling thread, a worker's, stands aside.
pub fn step(worker: usize, tid: i32) {
    if ENDING.load(SeqCst) {
        return;
    }
    OWNER.store(sys::pid(), SeqCst);
    ASIDE[worker].store(tid, SeqCst);
    sys::schedule(0, true);
    if ENDING.load(SeqCst) {
        // Whoever ends the process may have looked before.
        call(worker);
    }
}

/// It does so no longer.
pub fn back(worker: usize) {
    sys::schedule(0, false);
    ASIDE[worker].store(0, SeqCst);
}

/// Whether a worker that stands aside was called back. It is to stand aside
/// again when it holds nothing.
pub fn was_called(worker: usize) -> bool {
    ASIDE[worker].load(Relaxed) < 0
}

/// Whether any thread stands aside.
pub fn any() -> bool {
    ASIDE.iter().any(|slot| slot.load(Relaxed) != 0)
}

/// Calls a worker back, if it stands aside.
pub fn call(worker: usize) {
    let slot = &ASIDE[worker];
    let tid = slot.load(SeqCst);
    if tid > 0 {
        // In this order: who is called back late, when it stands aside again
        // already, sees that it has to do so once more.
        sys::schedule(tid, false);
        let _ = slot.compare_exchange(tid, -tid, SeqCst, SeqCst);
    }
}

/// Calls all of them back.
pub fn call_all() {
    for worker in 0..MAX_WORKERS {
        call(worker);
    }
}

/// The process ends: calls all of them back, for good. The last thread to die
/// gives the process's memory back, and must not have to wait for a processor
/// that nobody wants.
pub fn end() {
    if LEFT_ALONE.load(SeqCst) {
        return;
    }
    // A child that shares this memory (`vfork`) ends itself only.
    if OWNER.load(SeqCst) == sys::pid() {
        ENDING.store(true, SeqCst);
        call_all();
    }
}

/// From now on who ends the process leaves our threads as they are: a filter on system calls
/// might have it killed for calling them back. `terrace run` does ([`crate::dying`]).
pub fn leave_alone() {
    LEFT_ALONE.store(true, SeqCst);
}

/// In a forked child, which has no threads of ours yet.
pub fn reset() {
    for slot in &ASIDE {
        slot.store(0, SeqCst);
    }
    OWNER.store(0, SeqCst);
    ENDING.store(false, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> i32 {
        // SAFETY: has no memory effects.
        unsafe { libc::sched_getscheduler(0) }
    }

    /// A thread that stayed an ordinary one would take the program's processor
    /// while it polls; one that stayed aside would hold others up.
    #[test]
    fn who_is_called_runs_like_others_and_stands_aside_again() {
        const WORKER: usize = MAX_WORKERS - 1;
        // SAFETY: has no memory effects.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        call_all();
        assert!(!was_called(WORKER) && policy() == libc::SCHED_OTHER, "nobody to call");
        step(WORKER, tid);
        assert!(any() && !was_called(WORKER));
        assert_eq!(policy(), libc::SCHED_IDLE);
        std::thread::spawn(call_all).join().expect("no panic");
        assert!(was_called(WORKER));
        assert_eq!(policy(), libc::SCHED_OTHER);
        step(WORKER, tid);
        assert_eq!((was_called(WORKER), policy()), (false, libc::SCHED_IDLE));
        back(WORKER);
        assert_eq!((any(), policy()), (false, libc::SCHED_OTHER));
        step(WORKER, tid);
        end();
        assert_eq!(policy(), libc::SCHED_OTHER);
        step(WORKER, tid);
        assert_eq!(policy(), libc::SCHED_OTHER, "for good");
        reset();
        step(WORKER, tid);
        assert_eq!(policy(), libc::SCHED_IDLE, "but not in a child");
        back(WORKER);
    }
}
