//! How far management of this process has come.
//!
//! *Dormant* while everything fits into its share of the budget: nothing is
//! registered, no thread runs, and a mapping costs an addition. *Active* from the
//! moment on at which what the program has mapped exceeds the share. *Off* if there is
//! no configuration, or something failed.

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering::*, fence,
};

use terrace_core::Bytes;
use terrace_live::activate;
use terrace_live::broker::{ending, member};
use terrace_live::config::{ProfileFrom, RunConfig, VARIABLE};
use terrace_live::failsafe::give_up::Retires;
use terrace_live::failsafe::{inject, valgrind};
use terrace_live::pager::Pager;
use terrace_live::space::regions::{CHUNK, Regions, is_gone};
use terrace_live::space::unmanaged::Unmanaged;
use terrace_live::stats::process_page::{ProcessPage, State, Text};
use terrace_live::sys;
use terrace_live::sys::PAGE;
use terrace_live::sys::addresses;
use terrace_live::sys::limits;
use terrace_live::workers::command::Command;
use terrace_live::workers::{early_handles, idle_priority, stack, threads};

use crate::{mapped, places, sanitizers};

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

/// Reads the configuration.
pub(crate) fn init() {
    // Valgrind notes for each byte of what is mapped whether it may be used: to look for a place of some
    // TiB takes it a minute and GiBs. Nothing is managed there.
    if !valgrind::runs_us() {
        addresses::choose();
    }
    let Some(text) = std::env::var_os(VARIABLE) else { return };
    match text.to_str().map(RunConfig::decode) {
        Some(Ok(config)) => {
            // Nothing is managed beside a checker, and what binding has the loader allocate would
            // look like leaks to it.
            let unmanaged = sanitizers::look();
            if unmanaged.is_none() {
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
            if let Some(why) = unmanaged {
                if let Some(stats) = config_even_if_off().and_then(stats) {
                    stats.state.store(State::Failed as u32, Relaxed);
                    stats.set_text(Text::Failure, why);
                }
                return;
            }
            terrace_live::workers::threads::init();
            crate::malloc::init();
            crate::forking::init();
            if let Ok(text) = std::env::var(inject::VARIABLE)
                && !inject::arm(&text)
            {
                sys::complain(&["`", &text, "` of ", inject::VARIABLE, " is not a fault"]);
            }
            PHASE.store(DORMANT, Release);
        }
        // A command of another version has a library of this one loaded where that has replaced its own.
        Some(Err(_)) if text.to_str().is_some_and(RunConfig::is_quiet) => {}
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

/// Whether the calling process only borrows its memory (`vfork`). It takes no lock and no turn of ours: it may
/// be killed with them, and whose memory it is would wait for ever. Not asked for under a filter, where
/// the question might be a program's end.
pub(crate) fn borrows() -> bool {
    !idle_priority::is_left_alone() && !is_owner()
}

/// Whether this is not a child that was made by a fork that we do not know of. Asks the kernel for nothing.
pub(crate) fn has_owner() -> bool {
    owner() != 0
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

/// In a thread of the program's that is about to change the address space: a child may need its
/// memory first, or the program itself, where something of ours has broken. Threads of ours do not
/// wait for one another.
pub(crate) fn await_child() {
    if let Some(pager) = pager_even_if_broken()
        && !threads::is_ours()
    {
        pager.await_child();
    }
}

/// Threads of the program's that look at the regions.
static LOOKING: AtomicU32 = AtomicU32::new(0);

/// Looks at the regions, which stay meanwhile; `None` where nothing is managed.
pub(crate) fn regions<T>(look: impl FnOnce(&Regions) -> T) -> Option<T> {
    LOOKING.fetch_add(1, SeqCst);
    fence(SeqCst);
    let found = pager().map(|pager| look(&pager.regions));
    LOOKING.fetch_sub(1, SeqCst);
    found
}

/// In a forked child: who looked is not here, at the lists neither. Nobody changed them.
pub(crate) fn reset() {
    LOOKING.store(0, SeqCst);
    // SAFETY: nobody else exists, in a child.
    unsafe {
        if let Some(pager) = any_pager() {
            pager.fork.covered.force_unlock();
        }
    }
}

/// Whether any of a range is managed now.
pub(crate) fn is_managed(start: usize, end: usize) -> bool {
    let managed =
        |regions: &Regions| regions.iter().any(|(_, r)| r.start() < end && start < r.end());
    regions(managed) == Some(true)
}

/// Whether an address is managed now.
pub(crate) fn is_in_region(address: usize) -> bool {
    regions(|regions: &Regions| regions.find(address).is_some()) == Some(true)
}

/// Whether a range lies in a region, or just before or behind memory that is managed.
pub(crate) fn touches_managed(start: usize, end: usize) -> bool {
    let touches = |regions: &Regions| {
        let is_managed = |at: usize| regions.find(at).is_some_and(|place| !is_gone(&place));
        let before = start.checked_sub(PAGE);
        regions.find(start).is_some() || before.is_some_and(is_managed) || is_managed(end)
    };
    regions(touches) == Some(true)
}

/// Whether any page of a range that is managed was ever touched.
pub(crate) fn is_touched(start: usize, end: usize) -> bool {
    regions(|regions: &Regions| regions.is_touched(start, end)) == Some(true)
}

/// Gives back what managing took, of a program that was put on plain memory ([`retire`]) by this
/// thread; false if somebody is still at it.
pub(crate) fn give_memory_back() -> bool {
    /// How long (ns) who looks at the regions may take.
    const PATIENCE: u64 = 1_000_000_000;
    let Some(pager) = any_pager() else { return false };
    fence(SeqCst);
    let deadline = sys::now() + PATIENCE;
    while LOOKING.load(SeqCst) != 0 {
        if sys::now() > deadline {
            return false;
        }
        sys::sleep(50_000);
    }
    // SAFETY: whoever looks at the regions from now on finds that nothing is managed.
    unsafe { pager.give_back_memory() }
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
    manage(start, len);
    accessible(len);
}

/// Has the pager manage a mapping in the window, if there is one. One that begins just now may have
/// looked before the mapping was there.
fn manage(start: usize, len: usize) {
    await_start();
    if let Some(pager) = pager() {
        signals_blocked(|| pager.commands.ask(pager, Command::Manage, start, start + len));
    }
}

/// A part of what is to be managed was unmapped. While active, the kernel has told the
/// pager already; and once something of ours has broken, nobody counts any more.
pub(crate) fn unmapped(len: usize) {
    if config().is_some() && counts() && mapped::remove(len) {
        member::shrank(mapped::bytes());
    }
}

/// Whether what is mapped is counted: until there is a pager.
fn counts() -> bool {
    PHASE.load(Acquire) != ACTIVE
}

/// Whether something of ours has broken: nothing is managed any more.
pub(crate) fn is_broken() -> bool {
    pager_even_if_broken().is_some_and(Pager::is_stopped)
}

/// Memory without access was mapped in the window. It counts once it is accessible.
pub(crate) fn reserved(start: usize, len: usize) {
    mapped::count_roughly();
    manage(start, len);
}

/// Memory has become accessible that is to be managed, and is known to be.
pub(crate) fn accessible(len: usize) {
    if counts() {
        mapped::add(len);
        wake_up_if_needed();
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
    // What a profile says has to be done before memory is touched, whether it fits or not, if that pays.
    let guided = config.profile.is_some()
        && config.profile_from == ProfileFrom::FirstMapping
        && mapped::without_heap() >= CHUNK;
    if guided || !is_enough(member::is_within, member::fits) {
        start(config);
    }
}

/// Whether what is mapped fits. Where it is counted roughly, more precisely if it does not by itself:
/// others are not asked for room for what is not there.
fn is_enough(fits_by_itself: fn(usize) -> bool, fits: fn(usize) -> bool) -> bool {
    signals_blocked(|| {
        if mapped::is_rough() && (mapped::is_look_due() || !fits_by_itself(mapped::bytes())) {
            mapped::look();
        }
        fits(mapped::bytes())
    })
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

/// A range is to be managed once there is a pager, and can be noted nowhere: the statistics say so.
pub(crate) fn not_noted(start: usize, end: usize) {
    let Some(config) = config() else { return };
    signals_blocked(|| {
        if let Some(stats) = stats(config) {
            stats.unmanaged.enter(Unmanaged::NotNoted, start, end);
        }
    });
}

/// A thread of the program's is about to forbid itself system calls: begins to manage
/// whether or not what is mapped fits, for later it may be too late.
pub(crate) fn begin() {
    if let Some(config) = config()
        && owner() == sys::pid()
    {
        start_after_forks(config);
        idle_priority::leave_alone();
    }
}

/// The program is about to change its user, its capabilities or its user namespace, and may lose the
/// rights that managing takes.
pub(crate) fn before_rights_change() {
    let Some(config) = config() else { return };
    if PHASE.load(Acquire) != DORMANT || owner() != sys::pid() {
        return;
    }
    signals_blocked(|| {
        if early_handles::prepare(config) {
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

/// What is told where the program's processor time is limited.
const COUNTED: &str = "a limit of processor time (ulimit -t) counts what Terrace's threads use, too: the \
                       program may reach it earlier";

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
    // A handler of the program's that maps memory would wait for the thread that it interrupts.
    if !signals_blocked(|| start_now(config)) {
        await_start();
    }
}

/// The same with signals blocked; false if that was begun or is over.
fn start_now(config: &RunConfig) -> bool {
    if PHASE.load(Acquire) != DORMANT {
        return false;
    }
    let mapped = mapped::counted();
    if PHASE.compare_exchange(DORMANT, STARTING, SeqCst, Acquire).is_err() {
        return false;
    }
    if FORKS.load(SeqCst) != 0 {
        // Whoever forks looks once more afterwards. To wait here might be to wait for who waits
        // for this thread.
        SKIPPED.store(true, Relaxed);
        PHASE.store(DORMANT, SeqCst);
        return true;
    }
    // The calling thread's may be small.
    stack::with_own(|| {
        let mapped = Bytes(mapped as u64);
        let has_space = activate::has_address_space(config.fast, mapped);
        let started = stats(config).ok_or(libc::ENOMEM).and_then(|stats| {
            let started = if has_space {
                activate::activate(config.clone(), stats)
            } else {
                Err(libc::ENOMEM)
            };
            started.inspect_err(|&error| {
                stats.state.store(State::Failed as u32, Relaxed);
                let userfaultfd = || format!("userfaultfd could not be set up: {}", reason(error));
                let why = if has_space { userfaultfd() } else { NO_SPACE.to_owned() };
                stats.set_text(Text::Failure, &why);
            })
        });
        match started {
            Ok(pager) => {
                PAGER.store(core::ptr::from_ref(pager).cast_mut(), Release);
                PHASE.store(ACTIVE, Release);
                crate::arenas::manage_all();
                places::manage_all();
                // Our threads have them in a table of their own.
                early_handles::forget();
                if limits::processor_time_limit().is_some() {
                    explain(&[COUNTED]);
                }
            }
            Err(error) => {
                PHASE.store(OFF, Release);
                let why = reason(error);
                let why = if has_space { &why } else { NO_SPACE };
                explain(&["memory cannot be managed here: ", why, "; running unmanaged"]);
            }
        }
    });
    true
}

/// In a forked child, after the pager has been taken over.
pub(crate) fn forked(pager: &'static Pager) {
    claim();
    let Some(config) = config() else { return };
    STATS.store(core::ptr::null_mut(), Release);
    // A ring for its decisions comes with its statistics.
    if let Some(page) = stats(config) {
        pager.count_on(page);
    }
    pager.tell_places();
    pager.budget.share.forked(pager);
    if let Err(failed) = terrace_live::workers::threads::resume(pager) {
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
        // What gives memory back is not left alone: others may just have been refused some, too.
        if !because.gives_back() {
            idle_priority::leave_alone();
        }
        if let Some(stats) = stats(config) {
            stats.state.store(State::Failed as u32, Relaxed);
            stats.set_text(Text::Failure, because.why());
        }
        explain(&[because.why(), ": the program goes on without Terrace"]);
    });
}

/// The process is about to end: leaves others that share its memory with all of it, and without
/// hooks of ours. Asks the kernel for nothing unless such a process was ever made.
pub(crate) fn leave_memory() {
    if !terrace_live::failsafe::sharers::any() {
        return;
    }
    if idle_priority::is_left_alone() {
        // Under a filter it makes no call itself, which might be its last.
        if pager_even_if_broken().is_some_and(Pager::leave_memory_silently) {
            switch_off();
        }
        return;
    }
    if is_owner() {
        await_start();
        signals_blocked(|| {
            if pager_even_if_broken().is_some_and(Pager::leave_memory) {
                switch_off();
            }
        });
    }
}

/// In a forked child that may not manage itself.
pub(crate) fn switch_off() {
    PHASE.store(OFF, Release);
}

/// The process ends: says what it has. Not where a filter on system calls might have it killed.
pub(crate) fn tell_ending() {
    // Under a filter nothing is asked of the kernel, not even who this is.
    if config_even_if_off().is_none()
        || idle_priority::is_left_alone()
        || !is_owner()
        || threads::is_ours()
    {
        return;
    }
    match PHASE.load(Acquire) {
        ACTIVE => ending::tell(State::Active, 0),
        OFF => ending::tell(State::Failed, 0),
        _ => {
            ending::tell(State::Dormant, mapped::counted());
        }
    }
}

/// A program is about to fork that may have no pager: it had better have one if parent and child
/// may not fit together.
pub(crate) fn before_fork() {
    let Some(config) = config() else { return };
    await_start();
    if PHASE.load(Acquire) != DORMANT || owner() != sys::pid() {
        return;
    }
    if !is_enough(member::fork_fits, member::fork_fits) {
        start(config);
    }
}

/// A program forks that has no pager, or may have none.
pub(crate) fn forks_dormant() {
    if config().is_some() && pager_even_if_broken().is_none() && owner() == sys::pid() {
        member::forks_unmanaged(mapped::counted());
    }
}

/// In a forked child that has no pager yet: its statistics are its own.
pub(crate) fn forked_dormant() {
    claim();
    if config().is_none() {
        return;
    }
    member::forked_unmanaged(mapped::bytes());
    let parents = STATS.swap(core::ptr::null_mut(), AcqRel);
    terrace_live::decide::event_ring::forked();
    early_handles::forget();
    // SAFETY: null, or a page that is never unmapped here.
    if let Some(parents) = unsafe { parents.as_ref() }
        && parents.unmanaged.ranges().next().is_some()
        && let Some(page) = config().and_then(stats)
    {
        // What cannot be noted of the parent's memory is not noted here either.
        page.unmanaged.inherit(&parents.unmanaged);
    }
}
