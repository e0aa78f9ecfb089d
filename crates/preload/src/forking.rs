//! `fork`: the child gets a pager of its own.
//!
//! What has to be done just before the copy is made, and just after it in both processes, is
//! done in handlers (`pthread_atfork`). The program's come before ours on the way in, so that
//! nobody waits for Terrace who has to let go of something that they wait for, and after ours on
//! the way out. Forks that the C library makes for the program (`daemon`, `forkpty`) go the same way.
//! Others, by a system call of the program's own or `_Fork`, do not: their children run
//! on plain memory, and without Terrace.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::*};

use libc::c_int;
use terrace_live::failsafe::give_up::Retires;
use terrace_live::fork::Announced;
use terrace_live::pager::Pager;
use terrace_live::sys;
use terrace_live::sys::spin::SpinLock;
use terrace_live::workers::{credentials, stack};

use crate::words::real;
use crate::{arenas, fork_reset, places, state, wipes};

type Fork = unsafe extern "C" fn() -> libc::pid_t;
type Handler = Option<extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// Whether the C library calls our handlers.
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Held by the thread that forks, from its first handler to its second, in both processes.
static TURN: SpinLock<()> = SpinLock::new(());
/// What is under way: a [`Kind`].
static KIND: AtomicU8 = AtomicU8::new(Kind::Dormant as u8);
/// The signals that the thread that forks had blocked.
static MASK: AtomicU64 = AtomicU64::new(0);

/// What a fork is for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// There is no pager, or one that has put the program on plain memory.
    Dormant,
    /// The pager knows of it, and the child will have one.
    Announced,
    /// The pager could not be told: its threads give the child all its memory, and the child is on
    /// its own.
    Unannounced,
    /// The process that forks is itself the child of a fork that we do not know of: it has no pager, and
    /// what it has inherited of one is of no use to its child either.
    Unknown,
}

impl Kind {
    fn under_way() -> Self {
        match KIND.load(Acquire) {
            1 => Self::Announced,
            2 => Self::Unannounced,
            3 => Self::Unknown,
            _ => Self::Dormant,
        }
    }
}

pub(crate) fn init() {
    register();
}

fn real_register() -> Option<Register> {
    real!(c"__register_atfork", Register)
}

/// Registers our handlers, unless that was done.
fn register() {
    if !REGISTERED.load(Acquire)
        && let Some(register) = real_register()
        // SAFETY: functions that are there as long as the process is; of no library that is closed.
        && unsafe { register(Some(prepare), Some(parent), Some(child), core::ptr::null_mut()) } == 0
    {
        REGISTERED.store(true, Release);
    }
}

/// Registers the program's handlers: what `pthread_atfork(3)` calls. Hooked so that ours are the
/// first to be registered, and so the last to be called before the copy is made: what theirs
/// wait for may be held by a thread that waits for us.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    library: *mut c_void,
) -> c_int {
    register();
    let Some(real) = real_register() else { return libc::ENOMEM };
    // SAFETY: the caller's.
    unsafe { real(prepare, parent, child, library) }
}

/// In the thread that forks, just before.
extern "C" fn prepare() {
    if !state::is_configured() {
        return;
    }
    let mask = sys::block_signals();
    core::mem::forget(TURN.lock());
    MASK.store(mask, Relaxed);
    credentials::hold();
    state::enter_fork();
    let begin = || state::pager_even_if_broken().map(Pager::before_fork);
    let announced = match begin() {
        Some(Err(libc::EMFILE)) => {
            state::retire(Retires::Descriptors);
            begin()
        }
        announced => announced,
    };
    let kind = match announced {
        Some(Ok(Announced::Yes)) => Kind::Announced,
        Some(Err(_)) => Kind::Unannounced,
        None if !state::has_owner() => Kind::Unknown,
        Some(Ok(Announced::Unneeded)) | None => {
            state::forks_dormant();
            Kind::Dormant
        }
    };
    KIND.store(kind as u8, Release);
    // What threads of the program's may be changing in a hook.
    places::hold();
    // Of another child that is being made, its parent does not know what was read before its copy.
    if wipes::begin_copy()
        && kind == Kind::Announced
        && let Some(pager) = state::any_pager()
    {
        pager.copy_is_made();
    }
    crate::OWN.hold();
}

/// Gives back what [`prepare`] took, in whichever process.
///
/// # Safety
/// In the thread that took it, after the fork.
unsafe fn let_go() {
    // SAFETY: the caller's.
    unsafe {
        crate::OWN.let_go();
        places::let_go();
        credentials::let_go();
    }
}

/// In the parent, just after, whether or not there is a child.
extern "C" fn parent() {
    if !state::is_configured() {
        return;
    }
    let error = sys::errno();
    // SAFETY: `prepare` was called by this thread.
    unsafe { let_go() };
    state::leave_fork();
    match (Kind::under_way(), state::any_pager()) {
        (Kind::Announced, Some(pager)) => pager.after_fork_in_parent(),
        (Kind::Unannounced, Some(pager)) => pager.await_handles(),
        _ => {}
    }
    wipes::end_copy();
    let mask = MASK.load(Relaxed);
    // SAFETY: as above.
    unsafe {
        TURN.force_unlock();
        *libc::__errno_location() = error;
    }
    sys::restore_signals(mask);
}

/// In the child, just after.
extern "C" fn child() {
    if !state::is_configured() {
        return;
    }
    fork_reset::reset();
    // SAFETY: `prepare` was called by this thread, which is the only one.
    unsafe { let_go() };
    state::fork_is_over();
    match (Kind::under_way(), state::any_pager()) {
        // Nothing is asked of the kernel, not even memory.
        (Kind::Announced, Some(pager)) if pager.is_forked_under_filter() => take_over(pager),
        // The calling thread's may be small.
        (Kind::Announced, Some(pager)) => stack::with_own(|| take_over(pager)),
        (Kind::Dormant, _) => state::forked_dormant(),
        _ => state::switch_off(),
    }
    let mask = MASK.load(Relaxed);
    // SAFETY: as above.
    unsafe { TURN.force_unlock() };
    sys::restore_signals(mask);
}

/// In the child of an announced fork: manages what it was given a copy of, or leaves it on plain memory.
fn take_over(pager: &'static Pager) {
    // SAFETY: the fork was announced, and this thread is alone.
    if unsafe { pager.after_fork_in_child() } {
        state::forked(pager);
        arenas::manage_all();
        places::manage_all();
    } else {
        state::switch_off();
    }
}

/// Forks: `fork(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    let Some(real) = real!(c"fork", Fork) else { return -1 };
    state::before_fork();
    // Without handlers, their work is done around the call.
    let registered = REGISTERED.load(Acquire);
    if !registered {
        prepare();
    }
    // SAFETY: the C library's own.
    let pid = unsafe { real() };
    if !registered {
        let after = if pid == 0 { child } else { parent };
        after();
    }
    let error = sys::errno();
    state::after_fork();
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
    pid
}

/// Forks without handlers: `_Fork(2)`. Its child is one of a system call of the program's own.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    let Some(real) = real!(c"_Fork", Fork) else { return -1 };
    // SAFETY: the C library's own.
    wipes::fork_unannounced(|| unsafe { real() }.into()) as libc::pid_t
}
