//! How far management of this process has come.
//!
//! *Dormant* while everything fits into its share of the budget: nothing is
//! registered, no thread runs, and a mapping costs an addition. *Active* from the
//! moment on at which what the program has mapped exceeds the share. *Off* if there is
//! no configuration, or something failed.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::*,
};

use terrace_core::Bytes;
use terrace_live::broker::member;
use terrace_live::command::Command;
use terrace_live::config::{RunConfig, VARIABLE};
use terrace_live::give_up::Retires;
use terrace_live::inject;
use terrace_live::pager::Pager;
use terrace_live::shared::{ProcessPage, State, Text};
use terrace_live::spin::SpinLock;
use terrace_live::sys::PAGE;
use terrace_live::{activate, aside, prepared, sys, threads};

use crate::{places, sanitizers};

const OFF: u8 = 0;
const DORMANT: u8 = 1;
const STARTING: u8 = 2;
const ACTIVE: u8 = 3;

static PHASE: AtomicU8 = AtomicU8::new(OFF);
static CONFIG: AtomicPtr<RunConfig> = AtomicPtr::new(core::ptr::null_mut());
static PAGER: AtomicPtr<Pager> = AtomicPtr::new(core::ptr::null_mut());
static STATS: AtomicPtr<ProcessPage> = AtomicPtr::new(core::ptr::null_mut());
/// The process that all this is about: in memory that the kernel empties in a
/// child. So a child that was not made by our `fork`, and has none of our
/// threads, is told from one that shares our memory (`vfork`, `CLONE_VM`).
static OWNER: AtomicPtr<AtomicI32> = AtomicPtr::new(core::ptr::null_mut());
/// Bytes that are accessible in the window and in places that the program chose.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Reads the configuration.
pub(crate) fn init() {
    let Some(text) = std::env::var_os(VARIABLE) else { return };
    match text.to_str().map(RunConfig::decode) {
        Some(Ok(config)) => {
            // Nothing is managed beside a sanitizer, and what binding has the loader allocate would
            // look like leaks to it.
            let is_checked = sanitizers::look();
            if !is_checked {
                crate::imports::bind();
            }
            if !claim() {
                sys::complain(&["no memory; running unmanaged"]);
                return;
            }
            member::init(&config);
            QUIET.store(config.quiet, Relaxed);
            CONFIG.store(Box::leak(Box::new(config)), Release);
            std::panic::set_hook(Box::new(|info| sys::complain(&[&info.to_string()])));
            if is_checked {
                if let Some(stats) = config_even_if_off().and_then(stats) {
                    stats.state.store(State::Failed as u32, Relaxed);
                    stats.set_text(Text::Failure, sanitizers::WHY);
                }
                return;
            }
            terrace_live::threads::init();
            crate::malloc::init();
            crate::forking::init();
            if let Ok(text) = std::env::var(inject::VARIABLE)
                && !inject::arm(&text)
            {
                sys::complain(&["`", &text, "` of ", inject::VARIABLE, " is not a fault"]);
            }
            PHASE.store(DORMANT, Release);
        }
        Some(Err(error)) => sys::complain(&[&error.to_string(), "; running unmanaged"]),
        None => sys::complain(&[VARIABLE, " is not text; running unmanaged"]),
    }
}

/// Whether nothing is to be said of a program that is not managed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Says why the program is not managed, unless that is not wanted.
fn explain(parts: &[&str]) {
    if !QUIET.load(Relaxed) {
        sys::complain(parts);
    }
}

/// Makes this process the owner.
fn claim() -> bool {
    let mut at = OWNER.load(Acquire);
    if at.is_null() {
        let Ok(page) = sys::map_private(PAGE) else { return false };
        // SAFETY: a page of ours.
        if unsafe { sys::madvise(page, PAGE, libc::MADV_WIPEONFORK) }.is_err() {
            return false;
        }
        at = page as *mut AtomicI32;
        OWNER.store(at, Release);
    }
    // SAFETY: never unmapped; the call asks for this process's number.
    unsafe { (*at).store(libc::getpid(), Release) };
    true
}

/// Whether the calling process is the owner, and does not only borrow its memory.
pub(crate) fn is_owner() -> bool {
    owner() == sys::pid()
}

/// The owner: 0 in a child that was not made by our `fork`.
fn owner() -> i32 {
    // SAFETY: null, or a page that is never unmapped.
    unsafe { OWNER.load(Acquire).as_ref() }.map_or(0, |owner| owner.load(Acquire))
}

/// Whether there is a configuration.
pub(crate) fn is_configured() -> bool {
    !CONFIG.load(Acquire).is_null()
}

/// The configuration, unless management is off. It is in a child that was not made by a fork
/// that we know of: what it has inherited of ours may be in the middle of anything.
pub(crate) fn config() -> Option<&'static RunConfig> {
    if PHASE.load(Acquire) == OFF || owner() == 0 {
        return None;
    }
    config_even_if_off()
}

fn config_even_if_off() -> Option<&'static RunConfig> {
    // SAFETY: set once before the phase, from a leaked box.
    unsafe { CONFIG.load(Acquire).as_ref() }
}

/// The pager, once there is one.
pub(crate) fn pager() -> Option<&'static Pager> {
    pager_even_if_broken().filter(|pager| !pager.is_stopped())
}

/// The same, also if something of ours has broken: it may still be bringing in what the
/// program needs.
pub(crate) fn pager_even_if_broken() -> Option<&'static Pager> {
    if PHASE.load(Acquire) != ACTIVE || owner() == 0 {
        return None;
    }
    // SAFETY: set once before the phase; a pager is never freed.
    unsafe { PAGER.load(Acquire).as_ref() }
}

/// The pager, once there is one, whatever has become of it.
pub(crate) fn any_pager() -> Option<&'static Pager> {
    // SAFETY: as above.
    unsafe { PAGER.load(Acquire).as_ref() }
}

/// In a thread of the program's that is about to change the address space. Those of ours do not wait
/// for one another.
pub(crate) fn await_child() {
    if let Some(pager) = pager()
        && !threads::is_ours()
    {
        pager.await_child();
    }
}

/// Whether any of a range is managed now.
pub(crate) fn is_managed(start: usize, end: usize) -> bool {
    pager()
        .is_some_and(|pager| pager.regions.iter().any(|(_, r)| r.start() < end && start < r.end()))
}

/// Runs something with all signals blocked: a signal handler of the program's
/// must not enter Terrace in its middle.
pub(crate) fn signals_blocked<T>(work: impl FnOnce() -> T) -> T {
    let before = sys::block_signals();
    let result = work();
    sys::restore_signals(before);
    result
}

/// The statistics page, made when it is first needed.
fn stats(config: &RunConfig) -> Option<&'static ProcessPage> {
    // SAFETY: only set from `&'static`.
    if let Some(page) = unsafe { STATS.load(Acquire).as_ref() } {
        return Some(page);
    }
    let page = activate::statistics(config)?;
    let _ = STATS.compare_exchange(
        core::ptr::null_mut(),
        core::ptr::from_ref(page).cast_mut(),
        AcqRel,
        Relaxed,
    );
    Some(page)
}

/// A mapping was made in the window.
pub(crate) fn mapped(start: usize, len: usize) {
    MAPPED.fetch_add(len, AcqRel);
    if let Some(pager) = pager() {
        signals_blocked(|| pager.commands.ask(pager, Command::Manage, start, start + len));
    } else {
        wake_up_if_needed();
    }
}

/// A part of what is to be managed was unmapped. While active, the kernel has told the
/// pager already.
pub(crate) fn unmapped(len: usize) {
    if config().is_none() {
        return;
    }
    if counts_roughly() && pager().is_none() {
        // How much of it was accessible, nobody has counted.
        if let Some(bytes) = places::accessible() {
            MAPPED.store(bytes, Release);
        }
        return;
    }
    let _ = MAPPED.fetch_update(AcqRel, Relaxed, |m| Some(m.saturating_sub(len)));
    if pager().is_none() {
        member::shrank(MAPPED.load(Acquire) + crate::malloc::heap_size());
    }
}

/// Whether the program has reserved memory, or mapped some over other: then what we
/// count as accessible may be too much, and what is unmapped may not have been.
static ROUGHLY: AtomicBool = AtomicBool::new(false);

/// From now on it is counted roughly, and again when it matters.
pub(crate) fn count_roughly() {
    ROUGHLY.store(true, Release);
}

/// Whether it is.
pub(crate) fn counts_roughly() -> bool {
    ROUGHLY.load(Acquire)
}

/// Memory without access was mapped in the window. It counts once it is accessible.
pub(crate) fn reserved(start: usize, len: usize) {
    count_roughly();
    if let Some(pager) = pager() {
        signals_blocked(|| pager.commands.ask(pager, Command::Manage, start, start + len));
    }
}

/// Memory has become accessible that is to be managed, and is known to be.
pub(crate) fn accessible(len: usize) {
    if pager().is_none() {
        MAPPED.fetch_add(len, AcqRel);
        wake_up_if_needed();
    }
}

/// What a forked child is to find empty; kept here until there is a pager.
static WIPED: SpinLock<Vec<(usize, usize)>> = SpinLock::new(Vec::new());

/// Takes the lists for the thread that forks: no other changes them while the copy is made.
pub(crate) fn hold() {
    core::mem::forget(WIPED.lock());
    if let Some(pager) = any_pager() {
        core::mem::forget(pager.wiped.lock());
    }
}

/// Gives them back, in whichever process.
///
/// # Safety
/// Once after [`hold`], in the same thread, before the fork is over ([`enter_fork`]).
pub(crate) unsafe fn let_go() {
    // SAFETY: the caller's. No pager comes to be while somebody forks.
    unsafe {
        if let Some(pager) = any_pager() {
            pager.wiped.force_unlock();
        }
        WIPED.force_unlock();
    }
}

/// A forked child is to find a range empty, or no longer.
pub(crate) fn wiped(range: (usize, usize), wiped: bool) {
    if config().is_none() {
        return;
    }
    let mut list = pager().map_or_else(|| WIPED.lock(), |p| p.wiped.lock());
    // What remains of ranges that overlap this one.
    let rest: Vec<_> = list
        .iter()
        .flat_map(|&(s, e)| [(s, e.min(range.0)), (s.max(range.1), e)])
        .filter(|(s, e)| s < e)
        .collect();
    *list = rest;
    if wiped {
        list.push(range);
    }
}

/// Begins to manage if what is mapped no longer fits.
pub(crate) fn wake_up_if_needed() {
    let Some(config) = config() else { return };
    // A process that only borrows our memory for a while must not become the
    // home of our threads, nor have a share.
    // SAFETY: asks for this process's number.
    if PHASE.load(Acquire) == ACTIVE || owner() != unsafe { libc::getpid() } {
        return;
    }
    if !is_enough(member::fits) {
        start(config);
    }
}

/// Whether something holds of what is mapped, which is counted again if it does not.
fn is_enough(fits: fn(usize) -> bool) -> bool {
    let fits = || signals_blocked(|| fits(MAPPED.load(Acquire) + crate::malloc::heap_size()));
    if fits() {
        return true;
    }
    // What is made accessible time and again has been counted as often.
    if counts_roughly()
        && let Some(bytes) = places::accessible()
    {
        MAPPED.store(bytes, Release);
        return fits();
    }
    false
}

/// There is more than can be noted without a pager: begins to manage whether or not what is
/// mapped fits.
pub(crate) fn begin_early() {
    if let Some(config) = config()
        && owner() == sys::pid()
    {
        start(config);
    }
}

/// A thread of the program's is about to forbid itself system calls: begins to manage
/// whether or not what is mapped fits, for later it may be too late.
pub(crate) fn begin() {
    if let Some(config) = config()
        && owner() == sys::pid()
    {
        start_after_forks(config);
        aside::leave_alone();
    }
}

/// The program is about to change its user, and may lose the rights that managing takes.
pub(crate) fn before_user_changes() {
    let Some(config) = config() else { return };
    if PHASE.load(Acquire) != DORMANT || owner() != sys::pid() {
        return;
    }
    signals_blocked(|| {
        if prepared::prepare(config) {
            let _ = stats(config);
        }
    });
}

/// The program is about to change its root: what managing begins with would be out of reach.
pub(crate) fn before_root_changes() {
    // SAFETY: asks for this process's user. Others may not do it.
    let may = unsafe { libc::geteuid() } == 0;
    if let Some(config) = config()
        && may
        && owner() == sys::pid()
    {
        start_after_forks(config);
    }
}

/// An error in words, and what it takes where rights are missing.
fn reason(error: i32) -> String {
    let why = std::io::Error::from_raw_os_error(error).to_string();
    if error != libc::EPERM {
        return why;
    }
    format!("{why}; userfaultfd that reports forks is for root and CAP_SYS_PTRACE")
}

/// Why a program is not managed whose address space is limited.
const NO_SPACE: &str = "too little address space is left for it (ulimit -v, ulimit -d)";

/// Forks under way, while which management does not begin: a child would be in the middle of it,
/// and have no thread that goes on.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Whether it would have begun, but for a fork.
static SKIPPED: AtomicBool = AtomicBool::new(false);

/// In a thread that is about to fork: management has begun, or does not begin until it has.
pub(crate) fn enter_fork() {
    loop {
        FORKS.fetch_add(1, SeqCst);
        if PHASE.load(SeqCst) != STARTING {
            return;
        }
        FORKS.fetch_sub(1, SeqCst);
        await_start();
    }
}

/// It has forked.
pub(crate) fn leave_fork() {
    FORKS.fetch_sub(1, SeqCst);
}

/// In a forked child: so have all other threads, for there are none.
pub(crate) fn fork_is_over() {
    FORKS.store(0, SeqCst);
}

/// After a fork, in whichever process: begins what would have begun meanwhile.
pub(crate) fn after_fork() {
    if SKIPPED.load(Relaxed) && SKIPPED.swap(false, Relaxed) {
        wake_up_if_needed();
    }
}

/// Begins to manage as soon as nobody forks.
fn start_after_forks(config: &RunConfig) {
    loop {
        start(config);
        if PHASE.load(Acquire) != DORMANT {
            return;
        }
        sys::yield_now();
    }
}

/// Another thread may be beginning: what this one has mapped is found or reported by then.
pub(crate) fn await_start() {
    while PHASE.load(Acquire) == STARTING {
        sys::yield_now();
    }
}

/// Begins to manage, unless that was begun or is over. Not while somebody forks.
fn start(config: &RunConfig) {
    if PHASE.compare_exchange(DORMANT, STARTING, SeqCst, Acquire).is_err() {
        return await_start();
    }
    if FORKS.load(SeqCst) != 0 {
        // Whoever forks looks once more afterwards. To wait here might be to wait for who waits
        // for this thread.
        SKIPPED.store(true, Relaxed);
        PHASE.store(DORMANT, SeqCst);
        return;
    }
    signals_blocked(|| {
        let mapped = Bytes((MAPPED.load(Acquire) + crate::malloc::heap_size()) as u64);
        let has_space = activate::has_address_space(config.fast, mapped);
        let started = stats(config).ok_or(libc::ENOMEM).and_then(|stats| {
            let started = if has_space {
                activate::activate(config.clone(), stats)
            } else {
                Err(libc::ENOMEM)
            };
            started.inspect_err(|_| {
                stats.state.store(State::Failed as u32, Relaxed);
                let userfaultfd = "userfaultfd could not be set up";
                stats.set_text(Text::Failure, if has_space { userfaultfd } else { NO_SPACE });
            })
        });
        match started {
            Ok(pager) => {
                PAGER.store(core::ptr::from_ref(pager).cast_mut(), Release);
                *pager.wiped.lock() = core::mem::take(&mut *WIPED.lock());
                PHASE.store(ACTIVE, Release);
                crate::arenas::manage_all();
                places::manage_all();
                // Our threads have them in a table of their own.
                prepared::forget();
            }
            Err(error) => {
                PHASE.store(OFF, Release);
                let why = reason(error);
                let why = if has_space { &why } else { NO_SPACE };
                explain(&["memory cannot be managed here: ", why, "; running unmanaged"]);
            }
        }
    });
}

/// In a forked child, after the pager has been taken over.
pub(crate) fn forked(pager: &'static Pager) {
    claim();
    let Some(config) = config() else { return };
    STATS.store(core::ptr::null_mut(), Release);
    terrace_live::event_ring::forked();
    if let Some(page) = stats(config) {
        pager.count_on(page);
    }
    pager.share.forked(pager);
    if let Err(failed) = terrace_live::threads::resume(pager) {
        // Absent pages would read as zeros.
        pager.stay_plain(failed.why);
        switch_off();
        let error = reason(failed.error);
        explain(&[failed.why, ": ", &error, "; the program goes on without Terrace"]);
    }
}

/// Puts the program on plain memory, and has our threads leave, before it forbids them what
/// they need.
pub(crate) fn retire(because: Retires) {
    let Some(config) = config() else { return };
    // A process that only borrows our memory filters itself.
    if owner() != sys::pid() {
        return;
    }
    signals_blocked(|| {
        loop {
            match PHASE.load(Acquire) {
                DORMANT => {
                    if PHASE.compare_exchange(DORMANT, OFF, AcqRel, Acquire).is_ok() {
                        break;
                    }
                }
                STARTING => sys::yield_now(),
                ACTIVE => {
                    if let Some(pager) = pager_even_if_broken() {
                        pager.retire(because);
                    }
                    if PHASE.swap(OFF, AcqRel) == ACTIVE {
                        break;
                    }
                    return;
                }
                _ => return,
            }
        }
        aside::leave_alone();
        if let Some(stats) = stats(config) {
            stats.state.store(State::Failed as u32, Relaxed);
            stats.set_text(Text::Failure, because.why());
        }
        explain(&[because.why(), ": the program goes on without Terrace"]);
    });
}

/// In a forked child that may not manage itself.
pub(crate) fn switch_off() {
    PHASE.store(OFF, Release);
}

/// A program is about to fork that may have no pager: it had better have one if parent and child
/// may not fit together.
pub(crate) fn before_fork() {
    let Some(config) = config() else { return };
    await_start();
    if PHASE.load(Acquire) != DORMANT || owner() != sys::pid() {
        return;
    }
    if !is_enough(member::fork_fits) {
        start(config);
    }
}

/// A program forks that has no pager, or may have none.
pub(crate) fn forks_dormant() {
    if config().is_some() && pager_even_if_broken().is_none() && owner() == sys::pid() {
        member::forks_unmanaged(MAPPED.load(Acquire) + crate::malloc::heap_size());
    }
}

/// In a forked child that has no pager yet: its statistics are its own.
pub(crate) fn forked_dormant() {
    claim();
    if config().is_none() {
        return;
    }
    member::forked_unmanaged(MAPPED.load(Acquire) + crate::malloc::heap_size());
    STATS.store(core::ptr::null_mut(), Release);
    terrace_live::event_ring::forked();
    prepared::forget();
}
