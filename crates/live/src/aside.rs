//! Threads of ours that *stand aside*: they run only where nobody else wants to
//! (`SCHED_IDLE`), and so may be put off at any point, with a fault in hand or
//! a lock held.
//!
//! Who then waits for them, and sees that others run meanwhile, calls them
//! back: they go on as ordinary threads until they have done what they were
//! doing. It is what priority inheritance does for locks, for everything that
//! one thread of ours can hold up another with.
//!
//! An ordinary thread may not get its processor, either. Where the scheduler shares processors
//! between groups (control groups, sessions), the group's part of a processor on which it had
//! only threads that stood aside was seen to be withheld for a second and more (Linux 6.18).
//! So who waits on has those whom he waits for brought to his own processor, which he gives up
//! to them.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::*};

use crate::pager::MAX_WORKERS;
use crate::{processors, sys, threads};

/// By worker: the thread's number while it stands aside, negative when it was
/// called back, else 0.
static ASIDE: [AtomicI32; MAX_WORKERS] = [const { AtomicI32::new(0) }; MAX_WORKERS];

/// By worker: the thread's number.
static THREAD: [AtomicI32; MAX_WORKERS] = [const { AtomicI32::new(0) }; MAX_WORKERS];
/// By worker: the processor that it is kept on, plus one; 0 if it is kept on none.
static HOME: [AtomicI32; MAX_WORKERS] = [const { AtomicI32::new(0) }; MAX_WORKERS];
/// By worker: since when (ns) it is waited for, and has not come to rest; 0 if it is not.
static CALLED: [AtomicU64; MAX_WORKERS] = [const { AtomicU64::new(0) }; MAX_WORKERS];
/// In its place: it was moved to another processor.
const MOVED: u64 = u64::MAX;
/// Who is still waited for after so long (ns) does not get its processor. The scheduler's slices
/// are of some ms.
const IN_VAIN: u64 = 5_000_000;

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
    rest(worker);
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
    rest(worker);
}

/// The calling thread is this worker, and is kept on one processor, or none.
pub fn enlist(worker: usize, tid: i32, cpu: Option<u32>) {
    HOME[worker].store(cpu.map_or(0, |cpu| cpu.cast_signed() + 1), Relaxed);
    THREAD[worker].store(tid, SeqCst);
}

/// The calling thread, a worker's, holds nothing that others wait for: it goes back to the
/// processor that it was taken away from, if it was.
#[inline]
pub fn rest(worker: usize) {
    if CALLED[worker].load(Relaxed) != 0 {
        go_home(worker);
    }
}

#[cold]
fn go_home(worker: usize) {
    let called = CALLED[worker].swap(0, SeqCst);
    let home = HOME[worker].load(Relaxed);
    if called == MOVED && home != 0 {
        processors::pin(0, home.cast_unsigned() - 1);
    }
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
    let thread = THREAD[worker].load(SeqCst);
    if thread != 0 {
        bring(worker, thread);
    }
}

/// Has a worker that is waited for in vain go on on the caller's processor.
fn bring(worker: usize, thread: i32) {
    let (called, now) = (CALLED[worker].load(Relaxed), sys::now());
    if called == MOVED || called != 0 && now.saturating_sub(called) < IN_VAIN {
        return;
    }
    let next = if called == 0 { now } else { MOVED };
    if CALLED[worker].compare_exchange(called, next, SeqCst, SeqCst).is_err() || next == now {
        return;
    }
    let (here, home) = (processors::current(), HOME[worker].load(Relaxed));
    if home == 0 {
        processors::bring(thread, here);
    } else if home != here.cast_signed() + 1 {
        processors::pin(thread, here);
    }
}

/// Calls all of them back.
pub fn call_all() {
    // One of the program's might be killed for it.
    if LEFT_ALONE.load(Relaxed) && !threads::is_ours() {
        return;
    }
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
    for slot in ASIDE.iter().chain(&THREAD) {
        slot.store(0, SeqCst);
    }
    for called in &CALLED {
        called.store(0, SeqCst);
    }
    OWNER.store(0, SeqCst);
    ENDING.store(false, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests share what is known of each worker.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// A handler that held a lock once had its processor taken by another program for 1.8 s after
    /// it was called back, and everybody waited.
    #[test]
    fn who_was_called_in_vain_goes_on_where_it_is_waited_for_and_then_home() {
        const WORKER: usize = MAX_WORKERS - 2;
        let _alone = ALONE.lock();
        let all: Vec<u32> = processors::Processors::allowed().iter().collect();
        let [home, other, ..] = all[..] else {
            terrace_shown::is_missing("a second processor");
            return;
        };
        let run_on = || processors::Processors::allowed().iter().collect::<Vec<_>>();
        let wait_there = move |how_long| {
            std::thread::spawn(move || {
                processors::pin_to(other);
                std::thread::sleep(std::time::Duration::from_nanos(how_long));
                call_all();
            })
            .join()
            .expect("no panic");
        };
        std::thread::spawn(move || {
            // SAFETY: has no memory effects.
            let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
            assert!(processors::pin_to(home));
            enlist(WORKER, tid, Some(home));

            step(WORKER, tid);
            wait_there(0);
            assert_eq!(run_on(), [home], "called, and not yet in vain");
            wait_there(2 * IN_VAIN);
            assert_eq!(run_on(), [other]);
            step(WORKER, tid);
            assert_eq!(run_on(), [home], "it stands aside where it did");
            wait_there(2 * IN_VAIN);
            assert_eq!(run_on(), [home], "called for the first time since");
            back(WORKER);
        })
        .join()
        .expect("no panic");
        enlist(WORKER, 0, None);
    }

    fn policy() -> i32 {
        // SAFETY: has no memory effects.
        unsafe { libc::sched_getscheduler(0) }
    }

    /// A thread that stayed an ordinary one would take the program's processor
    /// while it polls; one that stayed aside would hold others up.
    #[test]
    fn who_is_called_runs_like_others_and_stands_aside_again() {
        const WORKER: usize = MAX_WORKERS - 1;
        let _alone = ALONE.lock();
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
