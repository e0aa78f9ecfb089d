//! `mmap`, `munmap`, `mprotect`: large private anonymous mappings go into the window, or
//! are managed where the program wants them: at a fixed address, or where the kernel puts them
//! by a hint.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use libc::{c_int, c_long};
use terrace_live::fork::Covered;
use terrace_live::fork::wiped::Range;
use terrace_live::huge::collapse::MADV_COLLAPSE;
use terrace_live::space::advised::{self, whole_pages};
use terrace_live::space::proc_maps::{self, MayDo};
use terrace_live::space::regions::{CHUNK, WINDOW_LEN, in_window, window};
use terrace_live::space::reservations;
use terrace_live::sys::limits::with_more_descriptors;
use terrace_live::sys::spin::SpinLock;
use terrace_live::sys::{self, MADV_GUARD_INSTALL, PAGE};
use terrace_live::workers::command::Command;
use terrace_live::workers::{idle_priority, threads};

use crate::malloc::{BLOCKS, blocks};
use crate::sanitizers::hand_on;
use crate::{
    attributes, collapse, malloc, mapped, places, populate, remap, room, seals, state, wiped,
    wipes, words,
};

/// Mappings are placed in the lower half of the window, the allocator's large
/// blocks in the upper.
static MAPPINGS: Half = Half::new(0);
static LARGE_BLOCKS: Half = Half::new(BLOCKS);

/// One half of the window. It is filled upwards; parts that were unmapped are
/// used again.
struct Half {
    /// Where in the window it begins, and up to where it was handed out.
    start: usize,
    next: AtomicUsize,
    freed: SpinLock<Freed>,
}

struct Freed {
    /// First address and chunks.
    runs: [(usize, usize); 256],
    count: usize,
}

/// Flags that say that a mapping is not ordinary memory.
const SPECIAL: c_int = libc::MAP_SHARED
    | libc::MAP_STACK
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | libc::MAP_32BIT;

/// Flags by which a mapping's address is not ours to choose.
const FIXED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

/// No program has more addresses: the kernel refuses what is longer.
pub(crate) const ADDRESSES: usize = 1 << 56;

/// What is mapped at the place of the program's choice, where we would map, is gone past in so many
/// steps, each twice as long as the one before.
const STEPS: u32 = 20;

/// What may be read and written, and what is only reserved.
const ACCESSIBLE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Maps memory for a large block of the allocator's.
pub(crate) fn place_block(len: usize) -> Option<usize> {
    place(&LARGE_BLOCKS, len, ACCESSIBLE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
}

/// Maps ordinary memory in the window; `None` if it cannot be placed there.
fn place(half: &Half, len: usize, prot: c_int, flags: c_int) -> Option<usize> {
    let chunks = len.div_ceil(CHUNK);
    // Populating what exceeds the budget would only be undone. What fits is populated once it is
    // managed.
    let flags = (flags & !libc::MAP_POPULATE) | libc::MAP_FIXED_NOREPLACE;
    for step in 0..STEPS {
        let at = half.take(chunks)?;
        // SAFETY: NOREPLACE: a mapping is made only where nothing is.
        match unsafe { sys::mmap(at, len, prot, flags, -1, 0) } {
            Ok(got) if got == at => {
                wiped::mapped_anew((at, at + len));
                return Some(at);
            }
            Ok(elsewhere) => {
                // A kernel that does not know the flag took it as a hint.
                // SAFETY: our own fresh mapping.
                let _ = unsafe { sys::munmap(elsewhere, len) };
                return None;
            }
            Err(libc::EEXIST) => half.skip(at, chunks, 1 << step),
            Err(_) => {
                half.untake(at, len);
                return None;
            }
        }
    }
    None
}

impl Half {
    const fn new(start: usize) -> Self {
        Self {
            start,
            next: AtomicUsize::new(start),
            freed: SpinLock::new(Freed { runs: [(0, 0); 256], count: 0 }),
        }
    }

    fn take(&self, chunks: usize) -> Option<usize> {
        if let Some(mut freed) = self.freed.try_lock() {
            let count = freed.count;
            if let Some(i) = freed.runs[..count].iter().position(|&(_, n)| n == chunks) {
                let (at, _) = freed.runs[i];
                freed.count -= 1;
                freed.runs[i] = freed.runs[count - 1];
                return Some(at);
            }
        }
        let after = |at: usize| at.checked_add(chunks * CHUNK).filter(|&next| next <= self.end());
        let offset = self.next.fetch_update(Relaxed, Relaxed, after).ok()?;
        Some(window() + offset)
    }

    fn end(&self) -> usize {
        self.start + WINDOW_LEN / 2
    }

    /// Something is mapped at a place that was taken: the next one is so many chunks further up, unless
    /// another was taken meanwhile.
    fn skip(&self, at: usize, chunks: usize, more: usize) {
        let end = at - window() + chunks * CHUNK;
        let next = (end + more * CHUNK).min(self.end());
        let _ = self.next.compare_exchange(end, next, Relaxed, Relaxed);
    }

    /// A place that was taken is not used after all. Mostly it is the last one: then the next one begins
    /// there, however long it is.
    fn untake(&self, at: usize, len: usize) {
        let offset = at - window();
        let end = offset + len.next_multiple_of(CHUNK);
        if self.next.compare_exchange(end, offset, Relaxed, Relaxed).is_err() {
            gave_back(at, len);
        }
    }
}

/// In a forked child, which has one thread.
pub(crate) fn reset() {
    for half in [&MAPPINGS, &LARGE_BLOCKS] {
        // SAFETY: nobody else exists. Half changed, the list has a run less or one twice, and a
        // mapping is made only where nothing is.
        unsafe { half.freed.force_unlock() };
    }
}

/// A range of the window is unmapped; remembers its chunks if it began one. Not of a place that was never
/// handed out: there the program maps at addresses of its own choice, and may do so again.
fn gave_back(at: usize, len: usize) {
    let half = if at < blocks() { &MAPPINGS } else { &LARGE_BLOCKS };
    if at.is_multiple_of(CHUNK)
        && at - window() < half.next.load(Relaxed)
        && let Some(mut freed) = half.freed.try_lock()
        && freed.count < freed.runs.len()
    {
        let count = freed.count;
        freed.runs[count] = (at, len.div_ceil(CHUNK));
        freed.count += 1;
    }
}

/// What a mapping in the window is of.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// The program's.
    Mapping,
    /// A large block of the allocator's.
    Block,
}

/// Moves a mapping of the window to another place in it where it can be longer; `None`, and nothing has
/// changed, if that fails.
pub(crate) fn move_block(start: usize, len: usize, new_len: usize, kind: Kind) -> Option<usize> {
    let half = match kind {
        Kind::Mapping => &MAPPINGS,
        Kind::Block => &LARGE_BLOCKS,
    };
    // Only reserved: memory that both places may have at once could be refused.
    let to = place(half, new_len, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // `realloc` comes here without the hook of `mremap`.
    state::await_child();
    // Whoever begins to manage just now may have looked before it moves.
    let is_registered = state::pager().is_some();
    // SAFETY: moves what the caller owns onto a fresh mapping of ours. Content in
    // other tiers follows: the kernel tells the pager of the move before the
    // call returns.
    let moved = unsafe { remap::moved(start, len, new_len, flags, to) };
    if moved == -1 {
        unreserve(half, to, new_len);
        return None;
    }
    forget(start, len.next_multiple_of(PAGE));
    match kind {
        // Registered as it was: who grows by little often does not wait for the pager, nor for
        // another thread that forks.
        Kind::Mapping if is_registered => {}
        Kind::Mapping | Kind::Block => state::mapped(to, new_len),
    }
    Some(to)
}

/// Gives back a place that was reserved to move something to, which the kernel has refused. It may have
/// unmapped the place before, and what lies in front of it may have grown into it since: that is another
/// thread's memory, and stays. Where nobody may ask, the place stays reserved, which takes nothing but
/// addresses.
fn unreserve(half: &Half, start: usize, len: usize) {
    // The program might be killed for the calls that this takes where it is under a filter.
    if idle_priority::is_left_alone() {
        return;
    }
    let mut is_reserved = false;
    let is_told = with_more_descriptors(|| {
        is_reserved = false;
        proc_maps::for_each_mapping(|m| {
            let whole = m.start <= start && start + len <= m.end;
            is_reserved |= whole && m.anonymous && m.access == MayDo::Nothing;
        })
    });
    // SAFETY: our own mapping, which nobody else knows of.
    if is_told && (!is_reserved || unsafe { sys::munmap(start, len) }.is_ok()) {
        half.untake(start, len);
    }
}

/// A range is no longer mapped that was to be managed.
pub(crate) fn forget(start: usize, len: usize) {
    if in_window(start) {
        gave_back(start, len);
        places::forget_left_out(start, start + len);
    } else {
        places::unmapped(start, start + len);
    }
    state::unmapped(len);
}

/// Fails with an error, as a call that maps memory does.
pub(crate) fn fail(error: i32) -> *mut c_void {
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
    libc::MAP_FAILED
}

/// Maps memory: `mmap(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    hand_on!(
        c"mmap", at => *mut c_void, len => usize, prot => c_int, flags => c_int, fd => c_int,
        offset => i64; *mut c_void
    );
    let ordinary = flags & (libc::MAP_ANONYMOUS | libc::MAP_PRIVATE)
        == libc::MAP_ANONYMOUS | libc::MAP_PRIVATE
        && flags & SPECIAL == 0
        // The kernel refuses what is no number of pages.
        && (offset as usize).is_multiple_of(PAGE)
        && !threads::is_ours();
    let managed = ordinary
        && matches!(prot, ACCESSIBLE | libc::PROT_NONE)
        && state::config().is_some_and(|config| len as u64 >= config.min_region.get())
        && len < if prot == libc::PROT_NONE { ADDRESSES } else { WINDOW_LEN / 2 };
    // What is too long to be rounded up the kernel refuses.
    let pages = len.checked_next_multiple_of(PAGE).unwrap_or(len);
    // Who asks for a place may count on it. Programs that make code at run time ask for places near
    // their own, and may give back whatever lies elsewhere, and ask again, without end.
    let anywhere =
        flags & FIXED == 0 && at.is_null() && (prot == ACCESSIBLE || pages < reservations::LARGE);
    if managed
        && anywhere
        && let Some(placed) = place(&MAPPINGS, pages, prot, flags)
    {
        if prot == ACCESSIBLE {
            state::mapped(placed, pages);
            populate::mapped(placed, pages, flags);
        } else {
            state::reserved(placed, pages);
        }
        return placed as *mut c_void;
    }
    if flags & libc::MAP_FIXED != 0 {
        let request =
            [at as usize, len, prot as usize, flags as usize, fd as usize, offset as usize];
        // SAFETY: the caller's.
        if let Some(error) = unsafe { refused_over(request) } {
            return fail(error);
        }
        // The kernel unmaps what lies there.
        state::await_child();
    }
    // As in the window.
    let is_populated = flags & FIXED != 0 || !managed;
    let asked = flags;
    let flags = if is_populated { flags } else { flags & !libc::MAP_POPULATE };
    // SAFETY: the caller's.
    let map = || unsafe { sys::mmap(at as usize, len, prot, flags, fd, offset) };
    let map = || {
        let over = flags & libc::MAP_FIXED != 0;
        if over { wiped::unmapped(whole_pages(at as usize, len), map) } else { map() }
    };
    let mapped = match room::ask(pages, map, |mapped| *mapped == Err(libc::ENOMEM)) {
        Ok(mapped) => mapped,
        Err(error) => return fail(error),
    };
    let end = mapped + pages;
    if flags & libc::MAP_FIXED == 0 {
        wiped::mapped_anew((mapped, end));
    }
    let chosen = flags & FIXED != 0 || !at.is_null();
    let is_ours = managed || ordinary && chosen && is_piece_of_managed(mapped, end);
    match prot {
        ACCESSIBLE if is_ours => {
            mapped::count_roughly();
            places::mapped(mapped, end);
            state::accessible(pages);
            if !is_populated {
                populate::mapped(mapped, pages, asked);
            }
        }
        libc::PROT_NONE if is_ours => {
            mapped::count_roughly();
            places::reserved(mapped, end);
        }
        _ => {
            if flags & FIXED != 0 && in_window(mapped) {
                // When it is unmapped, it is counted as what is managed there.
                mapped::count_roughly();
            }
            if flags & libc::MAP_FIXED != 0 {
                places::unmapped(mapped, end);
            }
            // It may be accessible one day.
            if is_ours && state::pager().is_some() {
                places::mapped(mapped, end);
            }
        }
    }
    mapped as *mut c_void
}

/// The program is about to map something at a fixed place: why that cannot be, of what the kernel would say
/// too late or would not say.
///
/// # Safety
/// As of the call of `mmap(2)` with these.
unsafe fn refused_over(request: [usize; 6]) -> Option<c_int> {
    let [at, len, _, flags, ..] = request;
    attributes::changed(at, len);
    // What replaces nothing is refused without a loss.
    if flags as c_int & FIXED == libc::MAP_FIXED && seals::keep(at, len) {
        // SAFETY: the caller's.
        return Some(unsafe { seals::refuse_mapping(request) });
    }
    is_taken(at, len).then_some(libc::ENOMEM)
}

/// Maps something at a fixed place for whoever asks by `syscall(2)`. It is the kernel's mapping, and not
/// ours to manage or to place; but what lay there ends as with [`mmap`].
///
/// # Safety
/// As of [`mmap`].
pub(crate) unsafe fn map_over(request: [usize; 6]) -> c_long {
    // SAFETY: the caller's.
    if let Some(error) = unsafe { refused_over(request) } {
        return words::returned(-c_long::from(error));
    }
    state::await_child();
    let [at, len, ..] = request;
    let map = || {
        // SAFETY: the caller's.
        let mapped = unsafe { sys::raw(libc::SYS_mmap, request) };
        if (-4095..0).contains(&mapped) { Err(mapped) } else { Ok(mapped) }
    };
    match wiped::unmapped(whole_pages(at, len), map) {
        Ok(mapped) => {
            if in_window(at) {
                // When it is unmapped, it is counted as what is managed there.
                mapped::count_roughly();
            }
            mapped
        }
        Err(error) => words::returned(error),
    }
}

/// Whether a program is about to map over memory of Terrace's own, which it cannot know of: nothing is
/// there without Terrace. To let it would be its end, at a moment that nobody could make sense of.
pub(crate) fn is_taken(start: usize, len: usize) -> bool {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let is_taken = state::is_configured() && !threads::is_ours() && sys::is_own_in(start, len);
    if is_taken && !TOLD.swap(true, Relaxed) && !idle_priority::is_left_alone() {
        sys::complain(&[
            "the program maps memory at an address where Terrace has its own: refused (ENOMEM)",
        ]);
    }
    is_taken
}

/// Whether private anonymous memory, however small, is mapped in the middle of managed memory, or
/// beside some. The kernel keeps what is registered apart from what is not: each piece would be a
/// mapping of its own, of which a process may have 65,530, and `mremap` takes one at a time.
fn is_piece_of_managed(start: usize, end: usize) -> bool {
    state::config().is_some()
        && (places::contains(start, end) || state::touches_managed(start, end))
}

/// Maps memory: `mmap64`, the same on 64-bit systems.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { mmap(at, len, prot, flags, fd, offset) }
}

/// Unmaps memory: `munmap(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(at: *mut c_void, len: usize) -> c_int {
    hand_on!(c"munmap", at => *mut c_void, len => usize; c_int);
    attributes::changed(at as usize, len);
    // SAFETY: the caller's.
    unsafe { give_up(at, len) }
}

/// The same for whoever asks by `syscall(2)`.
///
/// # Safety
/// As of [`munmap`].
pub(crate) unsafe fn give_up(at: *mut c_void, len: usize) -> c_int {
    if seals::keep(at as usize, len) {
        fail(libc::EPERM);
        return -1;
    }
    state::await_child();
    // SAFETY: the caller's.
    let unmap = || unsafe { sys::munmap(at as usize, len) };
    let unmap = || wiped::unmapped(whole_pages(at as usize, len), unmap);
    // A hole makes two mappings of one.
    match room::ask(0, unmap, |unmapped| *unmapped == Err(libc::ENOMEM)) {
        Ok(()) => {
            was_unmapped(at as usize, len);
            malloc::unmap_refused();
            0
        }
        Err(error) => {
            fail(error);
            -1
        }
    }
}

/// Unmaps what the program has given up and the kernel has refused to unmap before; false if it refuses
/// that again. Leaves the error number as it is.
pub(crate) fn unmap_again(start: usize, len: usize) -> bool {
    let error = sys::errno();
    // SAFETY: nobody has it any more.
    let unmapped = unsafe { sys::munmap(start, len) }.is_ok();
    if unmapped {
        was_unmapped(start, len);
    }
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
    unmapped
}

fn was_unmapped(start: usize, len: usize) {
    if places::contains(start, start + len) {
        forget(start, len.next_multiple_of(PAGE));
    }
}

/// Changes what may be done with memory: `mprotect(2)`. Hooked since reserved memory
/// becomes accessible by it.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(at: *mut c_void, len: usize, prot: c_int) -> c_int {
    hand_on!(c"mprotect", at => *mut c_void, len => usize, prot => c_int; c_int);
    // SAFETY: the caller's.
    (unsafe { protect(at as usize, len, prot) }) as c_int
}

/// The same for whoever asks by `syscall(2)`.
///
/// # Safety
/// As of [`mprotect`].
pub(crate) unsafe fn protect(at: usize, len: usize, prot: c_int) -> c_long {
    attributes::protected(at, len, prot);
    // SAFETY: the caller's.
    let change = || unsafe { sys::raw(libc::SYS_mprotect, [at, len, prot as usize, 0, 0, 0]) };
    let result = room::ask(len, change, |&result| result == -c_long::from(libc::ENOMEM));
    if result == 0 {
        was_protected(at, len, prot);
        populate::protected(at, len, prot);
    }
    words::returned(result)
}

/// The kernel has changed what may be done with a range.
pub(crate) fn was_protected(start: usize, len: usize, prot: c_int) {
    if prot & libc::PROT_WRITE != 0 && mapped::is_rough() {
        let pages = len.next_multiple_of(PAGE);
        if places::contains(start, start + pages) {
            places::now_accessible(start, start + pages);
            state::accessible(pages);
        }
    }
}

/// Advises on memory: `madvise(2)`. Hooked for the two kinds of advice that
/// discard content without the kernel telling a userfaultfd, here (guards) or in children, and for
/// the one that it refuses where content is absent.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    hand_on!(c"madvise", at => *mut c_void, len => usize, advice => c_int; c_int);
    // SAFETY: the caller's.
    unsafe { heed(at, len, advice) }
}

/// The same for whoever asks by `syscall(2)`.
///
/// # Safety
/// As of [`madvise`].
pub(crate) unsafe fn heed(at: *mut c_void, len: usize, advice: c_int) -> c_int {
    state::await_child();
    let at = at as usize;
    attributes::advised(at, len, advice);
    // SAFETY: the caller's.
    let advise = || unsafe { sys::madvise(at, len, advice) };
    // SAFETY: of what the caller gives, and once more.
    let again = |part: Range| unsafe { sys::madvise(part.0, part.1 - part.0, advice) };
    let advised: Result<(), i32> = match advice {
        libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => between_copies(|| {
            let advised = advise();
            if state::config().is_some() && !state::borrows() {
                let parts = advised::parts((at, len), advised, again);
                wiped::advised(&parts, advice == libc::MADV_WIPEONFORK);
            }
            advised
        }),
        MADV_GUARD_INSTALL => install_guards((at, len), advise, again),
        MADV_COLLAPSE => collapse::after(at, len, advise()),
        _ => advise(),
    };
    match advised {
        Ok(()) => 0,
        Err(error) => {
            fail(error);
            -1
        }
    }
}

/// Has the kernel install guards. It discards what lay there, and does not tell of that, so the pager is
/// asked to. A child of which the copy is made before the pager has done so finds the range in a list, and
/// installs its guards again.
/// (A thread that waits for the pager must not keep a fork waiting, for which the pager may wait.)
fn install_guards(
    range: (usize, usize),
    install: impl Fn() -> Result<(), i32>,
    again: impl Fn(Range) -> Result<(), i32>,
) -> Result<(), i32> {
    let covered = |&(start, end): &Range| Covered { start, end, by_guards: true };
    // A handler that leaves by a jump would leave the ranges in the list.
    state::signals_blocked(|| {
        let (installed, parts, pager) = between_copies(|| {
            let installed = install();
            let parts = advised::parts(range, installed, &again);
            let pager = state::pager_even_if_broken();
            if let Some(pager) = pager {
                pager.fork.covered.lock().extend(parts.iter().map(covered));
            }
            (installed, parts, pager)
        });
        let Some(pager) = pager.filter(|_| !parts.is_empty()) else { return installed };
        for &(start, end) in &parts {
            pager.commands.ask(pager, Command::Discard, start, end);
        }
        between_copies(|| {
            let mut list = pager.fork.covered.lock();
            for part in parts.iter().map(covered) {
                if let Some(i) = list.iter().position(|listed| *listed == part) {
                    list.swap_remove(i);
                }
            }
            drop(list);
            // Until the pager knew of them, content may have been brought in over the guards, and all of
            // it where nobody answers, for the program was given up. This takes it away again.
            install()
        })
    })
}

/// Makes a change that the kernel and our books are to agree on in a child: no copy is made meanwhile.
/// A fork may wait for it, so it waits for nothing of ours, but for a message to be read.
pub(crate) fn between_copies<T>(change: impl FnOnce() -> T) -> T {
    match state::config() {
        Some(_) if !state::borrows() => state::signals_blocked(|| wipes::change(change)),
        // A child without Terrace may have been copied while others were at a change.
        _ => change(),
    }
}

/// Locks all memory: `mlockall(2)`. What is locked does not leave DRAM, since
/// pages do not move between locked and unlocked memory; so the place that
/// they would move to must not be locked with the rest, and neither must a spill file
/// that is mapped: it would be read into RAM.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    hand_on!(c"mlockall", flags => c_int; c_int);
    // SAFETY: the caller's.
    (unsafe { lock_all(flags as usize) }) as c_int
}

/// The same for whoever asks by `syscall(2)`.
///
/// # Safety
/// As of [`mlockall`].
pub(crate) unsafe fn lock_all(flags: usize) -> c_long {
    attributes::all_changed();
    populate::locks(flags as c_int & libc::MCL_ONFAULT != 0);
    // SAFETY: the caller's.
    let result = unsafe { sys::raw(libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]) };
    // What another thread begins with just now was locked with the rest.
    state::await_start();
    if let Some(pager) = state::pager() {
        let error = sys::errno();
        let staging = &pager.evict.staging;
        sys::munlock(staging.base(), staging.slots() as usize * PAGE);
        pager.spill.mapping.unlock();
        let brings_in = libc::MCL_CURRENT | libc::MCL_ONFAULT;
        if result == 0 && flags as c_int & brings_in == libc::MCL_CURRENT {
            bring_back();
        }
        // SAFETY: this thread's own variable.
        unsafe { *libc::__errno_location() = error };
    }
    words::returned(result)
}

/// All memory is locked: brings back what is managed. As long as the kernel brought it in, page after page,
/// the place that pages move to was locked, too, and so some could leave again. None can any more.
fn bring_back() {
    // A program under a filter might be killed for another call than the one that it has made.
    if idle_priority::is_left_alone() {
        return;
    }
    with_more_descriptors(|| {
        proc_maps::for_each_mapping(|m| {
            if m.anonymous && m.access != MayDo::Nothing && state::is_managed(m.start, m.end) {
                // What it says of memory that may not be read is nobody's concern, as with `mlockall`.
                // SAFETY: changes no content.
                let _ = unsafe { sys::madvise(m.start, m.end - m.start, libc::MADV_POPULATE_READ) };
            }
        })
    });
}
