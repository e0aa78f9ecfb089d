//! Threads of ours at *idle priority*: they run only where nobody else wants to
//! (`SCHED_IDLE`), and so may be put off at any point, with a fault in hand or
//! a lock held.
//!
//! Who then waits for them, and sees that others run meanwhile, calls them
//! back: they go on as ordinary threads until they have done what they were
//! doing. It is what priority inheritance does for locks, for everything that
//! one thread of ours can hold up another with.
//!
//! To become an ordinary thread again takes a right: `CAP_SYS_NICE`, or a limit on niceness
//! (`RLIMIT_NICE`) that users do not have as a rule. Whoever has not got it would stay at idle priority
//! for good, and hold up the program for seconds where others want the processors. So nobody begins
//! without the way back.
//!
//! An ordinary thread may not get its processor, either. Where the scheduler shares processors
//! between groups (control groups, sessions), the group's part of a processor on which it had
//! only threads of idle priority was seen to be withheld for a second and more (Linux 6.18).
//! So who waits on has those whom he waits for brought to his own processor, which he gives up
//! to them.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use crate::pager::MAX_WORKERS;
use crate::sys;
use crate::workers::{processors, threads};

/// By worker: the thread's number while it has idle priority, negative when it was
/// called back, else 0.
static IDLE: [AtomicI32; MAX_WORKERS] = [const { AtomicI32::new(0) }; MAX_WORKERS];

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
/// Whether there is a way back: not known yet, yes, or no.
static WAY_BACK: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const YES: u32 = 1;
const NO: u32 = 2;
/// Whether threads of the program's may be forbidden to call ours back.
static LEFT_ALONE: AtomicBool = AtomicBool::new(false);

/// Whether a thread of ours at idle priority could become an ordinary one again.
pub fn has_way_back() -> bool {
    WAY_BACK.load(SeqCst) != NO
}

/// Finds that out for the calling thread's user, by system calls only.
pub fn assess() {
    WAY_BACK.store(if may_come_back() { YES } else { NO }, SeqCst);
}

/// Whether the calling thread could leave idle priority, as `kernel/sched/syscalls.c` decides
/// (`is_nice_reduction`, or else `CAP_SYS_NICE`).
fn may_come_back() -> bool {
    let process = libc::PRIO_PROCESS as usize;
    // SAFETY: numbers only. The kernel gives 20 less the niceness: the limit that it takes.
    let needed = unsafe { sys::raw(libc::SYS_getpriority, [process, 0, 0, 0, 0, 0]) };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let (resource, at) = (libc::RLIMIT_NICE as usize, (&raw mut limit) as usize);
    // SAFETY: writes a plain structure.
    unsafe { sys::raw(libc::SYS_prlimit64, [0, resource, 0, at, 0, 0]) };
    if limit_allows(limit.rlim_cur, needed) {
        return true;
    }
    let nice = 20 - needed;
    if nice == MOST_URGENT {
        return has_right();
    }
    // Whoever may lower it below that has the right: also where the capability is only of a user
    // namespace, which is not enough.
    // SAFETY: numbers only.
    let set = |nice: i64| unsafe {
        sys::raw(libc::SYS_setpriority, [process, 0, nice as usize, 0, 0, 0])
    };
    let may = set(nice - 1) == 0;
    if may {
        set(nice);
    }
    may
}

/// Whether the limit on niceness (`RLIMIT_NICE`) allows that of which the kernel gives this, 20 less it.
const fn limit_allows(limit: u64, needed: i64) -> bool {
    limit >= needed.cast_unsigned()
}

/// The least niceness.
const MOST_URGENT: i64 = -20;

/// Whether `CAP_SYS_NICE` is effective in the calling thread.
fn has_right() -> bool {
    let mut sets = [0u32; 6];
    let (header, at) = (CAPABILITIES.as_ptr() as usize, (&raw mut sets) as usize);
    // SAFETY: reads two numbers, and writes twice three sets.
    let got = unsafe { sys::raw(libc::SYS_capget, [header, at, 0, 0, 0, 0]) };
    got == 0 && sets[0] & CAP_SYS_NICE != 0
}

/// Of the calling thread, in the third version (`linux/capability.h`).
const CAPABILITIES: [u32; 2] = [0x2008_0522, 0];
/// In the first word of a set.
const CAP_SYS_NICE: u32 = 1 << 23;

/// The program is about to change its user, after which it may not be able to call threads back:
/// nobody has idle priority until [`assess`] has said anew who may come back. Gives what was known.
pub(super) fn suspend() -> u32 {
    let known = WAY_BACK.swap(NO, SeqCst);
    call_all();
    known
}

/// It did not.
pub(super) fn resume(known: u32) {
    WAY_BACK.store(known, SeqCst);
}

/// The calling thread, one of ours, is about to have another user: it is an ordinary one from now on.
/// By a system call only.
pub fn leave() {
    let none = libc::sched_param { sched_priority: 0 };
    let at = (&raw const none) as usize;
    // SAFETY: reads a plain structure, and asks for a number.
    let (left, tid) = unsafe {
        let ordinary = libc::SCHED_OTHER as usize;
        let left = sys::raw(libc::SYS_sched_setscheduler, [0, ordinary, at, 0, 0, 0]);
        (left == 0, sys::raw(libc::SYS_gettid, [0; 6]) as i32)
    };
    if left {
        for slot in &IDLE {
            let _ = slot.compare_exchange(tid, -tid, SeqCst, SeqCst);
        }
    }
}

/// The calling thread, a worker's, runs at idle priority from now on, if it can come back from it.
pub fn begin(worker: usize, tid: i32) {
    // Another user would be given to it in between, by a signal.
    let mask = sys::block_all_signals();
    if !ENDING.load(SeqCst) && has_way_back() {
        OWNER.store(sys::pid(), SeqCst);
        IDLE[worker].store(tid, SeqCst);
        rest(worker);
        sys::schedule(0, true);
        if ENDING.load(SeqCst) || !has_way_back() {
            // Whoever ends the process, or changes its user, may have looked before.
            call(worker);
        }
    }
    sys::restore_signals(mask);
}

/// It does so no longer.
pub fn end(worker: usize) {
    sys::schedule(0, false);
    IDLE[worker].store(0, SeqCst);
    rest(worker);
}

/// The calling thread is this worker, and is kept on one processor, or none.
pub fn enlist(worker: usize, tid: i32, cpu: Option<u32>) {
    if WAY_BACK.load(Relaxed) == UNKNOWN {
        assess();
    }
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

/// Whether a worker of idle priority was called back. It is to go back to that
/// again when it holds nothing.
pub fn was_called(worker: usize) -> bool {
    IDLE[worker].load(Relaxed) < 0
}

/// Whether this worker, a thread of this number, has idle priority and was not called back.
pub fn is_idle(worker: usize, tid: i32) -> bool {
    tid > 0 && IDLE[worker].load(Relaxed) == tid
}

/// Whether any thread has idle priority.
pub fn any() -> bool {
    IDLE.iter().any(|slot| slot.load(Relaxed) != 0)
}

/// Calls a worker back, if it has idle priority.
pub fn call(worker: usize) {
    let slot = &IDLE[worker];
    let tid = slot.load(SeqCst);
    if tid > 0 {
        // In this order: who is called back late, when it has idle priority again
        // already, sees that it has to do so once more. A thread of the program's may lack the right
        // to call it (`capset`): others have it.
        if sys::schedule(tid, false) {
            let _ = slot.compare_exchange(tid, -tid, SeqCst, SeqCst);
        }
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
pub fn end_process() {
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
/// might have it killed for calling them back. `terrace run` does ([`crate::failsafe::dying`]).
pub fn leave_alone() {
    LEFT_ALONE.store(true, SeqCst);
}

/// Whether threads of the program's may be forbidden system calls that it did not make itself.
pub fn is_left_alone() -> bool {
    LEFT_ALONE.load(Relaxed)
}

/// In a forked child, which has no threads of ours yet.
pub fn reset() {
    for slot in IDLE.iter().chain(&THREAD) {
        slot.store(0, SeqCst);
    }
    for called in &CALLED {
        called.store(0, SeqCst);
    }
    OWNER.store(0, SeqCst);
    ENDING.store(false, SeqCst);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Tests share what is known of each worker. So do those of `sys::spin`, in which threads wait
    /// for a lock for long: whoever does calls workers back. A lock of their own would not do.
    pub(crate) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

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

            begin(WORKER, tid);
            wait_there(0);
            assert_eq!(run_on(), [home], "called, and not yet in vain");
            wait_there(2 * IN_VAIN);
            assert_eq!(run_on(), [other]);
            begin(WORKER, tid);
            assert_eq!(run_on(), [home], "it is idle where it was");
            wait_there(2 * IN_VAIN);
            assert_eq!(run_on(), [home], "called for the first time since");
            end(WORKER);
        })
        .join()
        .expect("no panic");
        enlist(WORKER, 0, None);
    }

    fn policy() -> i32 {
        // SAFETY: has no memory effects.
        unsafe { libc::sched_getscheduler(0) }
    }

    /// What a forked child says, which makes system calls and writes to statics of its own only.
    fn in_child(is_right: impl FnOnce() -> bool) -> bool {
        // SAFETY: nothing is run at the child's end.
        let child = unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(i32::from(!is_right()));
            }
            child
        };
        let mut status = 0;
        // SAFETY: writes one number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status == 0
    }

    /// An ordinary user whose limit on niceness is just enough. To have one takes a right that tests may
    /// lack.
    #[test]
    fn who_may_have_its_niceness_again_comes_back() {
        assert!(limit_allows(20, 20) && limit_allows(1, 1) && limit_allows(u64::MAX, 40));
        assert!(!limit_allows(19, 20) && !limit_allows(0, 1));
    }

    /// Others would call back who is an ordinary thread, and may be one for good.
    #[test]
    fn who_left_says_so() {
        const WORKER: usize = MAX_WORKERS - 3;
        let _alone = ALONE.lock();
        assert!(in_child(|| {
            // SAFETY: has no memory effects.
            let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
            begin(WORKER, tid);
            let was_idle = policy() == libc::SCHED_IDLE && is_idle(WORKER, tid);
            leave();
            was_idle && policy() == libc::SCHED_OTHER && was_called(WORKER) && !is_idle(WORKER, tid)
        }));
    }

    /// Others would call them back in vain, once the program has its new user.
    #[test]
    fn nobody_is_idle_while_the_program_changes_its_user() {
        const WORKER: usize = MAX_WORKERS - 3;
        let _alone = ALONE.lock();
        assert!(in_child(|| {
            // SAFETY: has no memory effects.
            let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
            begin(WORKER, tid);
            let was_idle = policy() == libc::SCHED_IDLE;
            let known = suspend();
            let is_ordinary = policy() == libc::SCHED_OTHER && was_called(WORKER);
            begin(WORKER, tid);
            let stays = policy() == libc::SCHED_OTHER;
            resume(known);
            begin(WORKER, tid);
            was_idle && is_ordinary && stays && policy() == libc::SCHED_IDLE
        }));
    }

    /// The manager, which may have the right, would take it for called, and leave it idle.
    #[test]
    fn who_may_not_call_does_not_say_that_it_has() {
        const WORKER: usize = MAX_WORKERS - 3;
        let _alone = ALONE.lock();
        assert!(in_child(|| {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            let mut sets = [0u32; 6];
            let (header, at) = (CAPABILITIES.as_ptr() as usize, (&raw mut sets) as usize);
            // SAFETY: as the kernel expects them; for the rest it has no memory effects.
            let tid = unsafe {
                libc::setrlimit(libc::RLIMIT_NICE, &raw const none);
                sys::raw(libc::SYS_capget, [header, at, 0, 0, 0, 0]);
                libc::syscall(libc::SYS_gettid) as i32
            };
            begin(WORKER, tid);
            let fewer = [sets[0] & !CAP_SYS_NICE, sets[1], sets[2], sets[3], sets[4], sets[5]];
            let at = fewer.as_ptr() as usize;
            // SAFETY: as above.
            let dropped = unsafe { sys::raw(libc::SYS_capset, [header, at, 0, 0, 0, 0]) } == 0;
            call(WORKER);
            dropped
                && !has_right()
                && !may_come_back()
                && policy() == libc::SCHED_IDLE
                && !was_called(WORKER)
        }));
    }

    /// A user who may not leave idle priority: a database's server had single faults take five seconds
    /// beside a busy machine.
    #[test]
    fn who_could_not_come_back_does_not_begin() {
        const WORKER: usize = MAX_WORKERS - 3;
        const NOBODY: u32 = 65534;
        assert!(in_child(|| {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: system calls without memory effects.
            let tid = unsafe {
                libc::setrlimit(libc::RLIMIT_NICE, &raw const none);
                libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY);
                libc::syscall(libc::SYS_gettid) as i32
            };
            assess();
            begin(WORKER, tid);
            !has_way_back() && policy() == libc::SCHED_OTHER
        }));
    }

    /// A thread that stayed an ordinary one would take the program's processor
    /// while it polls; one that stayed idle would hold others up.
    #[test]
    fn who_is_called_runs_like_others_and_is_idle_again() {
        const WORKER: usize = MAX_WORKERS - 1;
        let _alone = ALONE.lock();
        // SAFETY: has no memory effects.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        call_all();
        assert!(!was_called(WORKER) && policy() == libc::SCHED_OTHER, "nobody to call");
        begin(WORKER, tid);
        assert!(any() && !was_called(WORKER));
        assert_eq!(policy(), libc::SCHED_IDLE);
        std::thread::spawn(call_all).join().expect("no panic");
        assert!(was_called(WORKER));
        assert_eq!(policy(), libc::SCHED_OTHER);
        begin(WORKER, tid);
        assert_eq!((was_called(WORKER), policy()), (false, libc::SCHED_IDLE));
        end(WORKER);
        assert_eq!((any(), policy()), (false, libc::SCHED_OTHER));
        begin(WORKER, tid);
        end_process();
        assert_eq!(policy(), libc::SCHED_OTHER);
        begin(WORKER, tid);
        assert_eq!(policy(), libc::SCHED_OTHER, "for good");
        reset();
        begin(WORKER, tid);
        assert_eq!(policy(), libc::SCHED_IDLE, "but not in a child");
        end(WORKER);
    }
}
