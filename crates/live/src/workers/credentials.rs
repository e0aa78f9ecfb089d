//! Changes of user and groups, which Terrace's threads make with the program's.
//!
//! To the kernel they concern one thread. The C library has every thread make the change that it
//! knows of, by a signal that it lets nobody block, and does not know of ours. So ours get the same
//! signal from here, afterwards, with a handler of ours in the place of the C library's for as long as
//! that takes: whoever changes its user takes turns, and the C library's has done its work.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::*};

use crate::pager::Pager;
use crate::sys;
use crate::sys::spin::SpinLock;
use crate::workers::idle_priority;

/// The signal (`SIGSETXID` in glibc's `internal-signals.h`).
pub const SIGNAL: c_int = 33;

/// The system call that is made: its number, and its arguments.
static CALL: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
/// 1 until the thread that was asked has answered.
static LEFT: AtomicU32 = AtomicU32::new(0);
/// The error of one that could not.
static ERROR: AtomicI32 = AtomicI32::new(0);
/// Held by the thread that changes its user, from before the program's change to after ours.
static TURN: SpinLock<()> = SpinLock::new(());

/// `struct sigaction` as the kernel has it on `x86_64`.
#[repr(C)]
struct Action {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

const WAKE: usize = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
const SA_RESTORER: usize = 0x0400_0000;

/// In one of our threads. System calls only.
extern "C" fn make(_: c_int, _: *const c_void, _: *const c_void) {
    let [number, a, b, c] = [0, 1, 2, 3].map(|i| CALL[i].load(Acquire));
    idle_priority::leave();
    // SAFETY: the change that the program has made; a list of groups is in memory of ours.
    let result = unsafe { sys::raw(number as libc::c_long, [a, b, c, 0, 0, 0]) };
    if result < 0 {
        ERROR.store(-result as i32, Release);
    }
    idle_priority::assess();
    LEFT.store(0, Release);
    // SAFETY: wakes who waits; the word is a static. Leaves the interrupted code's `errno` alone.
    unsafe { sys::raw(libc::SYS_futex, [LEFT.as_ptr() as usize, WAKE, 1, 0, 0, 0]) };
}

/// Returns from a handler, as the C library's function of that name does.
#[unsafe(naked)]
unsafe extern "C" fn restorer() {
    core::arch::naked_asm!("mov eax, 15", "syscall", "ud2");
}

/// Makes a change of the program's, and then has the threads of a pager make it.
///
/// `change` gives the program's result. `call` is the system call, whose arguments point to nothing
/// that is the program's. The pager is asked for after the change: all of its threads
/// that there are by then may be as before it.
pub fn change(
    call: [usize; 4],
    change: impl FnOnce() -> c_int,
    pager: impl FnOnce() -> Option<&'static Pager>,
) -> c_int {
    // A handler of the program's might fork, or change its user, too.
    let mask = sys::block_signals();
    let turn = TURN.lock();
    // Afterwards nobody might be able to call them back.
    let known = idle_priority::suspend();
    let result = change();
    let error = sys::errno();
    match (result == 0).then(pager).flatten() {
        // Each of them assesses anew.
        Some(pager) => follow(pager, call),
        None => idle_priority::resume(known),
    }
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
    drop(turn);
    sys::restore_signals(mask);
    result
}

fn follow(pager: &Pager, call: [usize; 4]) {
    for (to, argument) in CALL.iter().zip(call) {
        to.store(argument, Release);
    }
    ERROR.store(0, Release);
    let ours = Action {
        handler: make as *const () as usize,
        flags: SA_RESTORER | (libc::SA_RESTART | libc::SA_SIGINFO) as usize,
        restorer: restorer as *const () as usize,
        mask: u64::MAX,
    };
    let mut before = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
    if set_action(&ours, &raw mut before).is_err() {
        return sys::complain(&[NOT_FOLLOWED]);
    }
    for worker in &pager.workers {
        let tid = worker.tid.load(Acquire);
        if tid == 0 {
            continue;
        }
        LEFT.store(1, Release);
        let (pid, signal) = (sys::pid() as usize, SIGNAL as usize);
        // SAFETY: a thread of ours, of which the handler is.
        let sent = unsafe { sys::raw(libc::SYS_tgkill, [pid, tid as usize, signal, 0, 0, 0]) };
        if sent != 0 {
            // It has ended.
            continue;
        }
        // However long that takes: later it would find the C library's handler, or none.
        while LEFT.load(Acquire) != 0 && sys::is_thread(tid) {
            idle_priority::call_all();
            sys::futex_wait(&LEFT, 1, Some(1_000_000), false);
        }
    }
    let _ = set_action(&before, core::ptr::null_mut());
    // One that came to be meanwhile has the new user already, and may have lost the right to ask
    // for it again.
    if !matches!(ERROR.load(Acquire), 0 | libc::EPERM) {
        sys::complain(&[NOT_FOLLOWED]);
    }
}

const NOT_FOLLOWED: &str =
    "a thread of Terrace's could not change its user or groups with the program";

fn set_action(action: &Action, before: *mut Action) -> Result<(), i32> {
    let action = core::ptr::from_ref(action) as usize;
    // SAFETY: two structures as the kernel expects them, or none.
    let result = unsafe {
        sys::raw(libc::SYS_rt_sigaction, [SIGNAL as usize, action, before as usize, 8, 0, 0])
    };
    if result < 0 { Err(-result as i32) } else { Ok(()) }
}

/// Takes the turn for the thread that forks: no thread changes its user while the copy is made.
pub fn hold() {
    core::mem::forget(TURN.lock());
}

/// Gives it back, in whichever process.
///
/// # Safety
/// Once after [`hold`], in the same thread.
pub unsafe fn let_go() {
    // SAFETY: the caller's.
    unsafe { TURN.force_unlock() };
}
