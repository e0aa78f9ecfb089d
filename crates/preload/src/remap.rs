//! `mremap`: what grows is managed as what it was a part of, and begins to be once it is large.
//!
//! Once memory is managed, the kernel tells the pager of moves, and what grows stays registered
//! (`Worker::serve_unknown`): nobody has to be asked, or waited for. But nobody would notice a program
//! that has mapped little, and has made it large since.

use core::ffi::c_void;

use libc::{c_int, c_long};
use terrace_live::space::advised;
use terrace_live::space::dormant::has_become_large;
use terrace_live::space::proc_maps;
use terrace_live::space::regions::in_window;
use terrace_live::sys::limits::with_more_descriptors;
use terrace_live::sys::{self, PAGE};
use terrace_live::workers::{idle_priority, threads};

use crate::sanitizers::hand_on;
use crate::{attributes, halves, mapping, places, room, seals, state, wiped};

/// Changes a mapping's size, or moves it: `mremap(2)`.
///
/// # Safety
/// As of the C library's. There it takes its last argument only where the flags ask for it; the
/// calling conventions of `x86_64` and `aarch64` pass it in the same register, which is
/// looked at only then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    hand_on!(
        c"mremap", old => *mut c_void, len => usize, new_len => usize, flags => c_int,
        to => *mut c_void; *mut c_void
    );
    // For memory that stays mapped at its old place newer C libraries take it, too, and older ones pass
    // whatever the register holds.
    let to = if flags & libc::MREMAP_FIXED == 0 { core::ptr::null_mut() } else { to };
    // SAFETY: the caller's.
    unsafe { change(old, len, new_len, flags, to) }
}

/// The same for whoever asks by `syscall(2)`: no other library's, nor the program's function of the name
/// comes first.
///
/// # Safety
/// As of [`mremap`].
pub(crate) unsafe fn change(
    old: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    attributes::changed(old as usize, len);
    if flags & libc::MREMAP_FIXED != 0 {
        attributes::changed(to as usize, new_len);
    }
    let error = sys::errno();
    // SAFETY: the caller's.
    let at = unsafe { resize(old, len, new_len, flags, to) };
    if at != libc::MAP_FAILED {
        // What was tried first may have been refused.
        // SAFETY: this thread's own variable.
        unsafe { *libc::__errno_location() = error };
    }
    at
}

/// The same, but for the error number where it succeeds.
///
/// # Safety
/// As of [`mremap`].
unsafe fn resize(
    old: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let is_fixed = flags & libc::MREMAP_FIXED != 0;
    // What stays mapped at its old place may have a new one that is only wished for.
    let has_place = is_fixed || flags & libc::MREMAP_DONTUNMAP != 0;
    let to = if has_place { to as usize } else { 0 };
    if is_fixed && to != 0 && mapping::is_taken(to, new_len) {
        return mapping::fail(libc::ENOMEM);
    }
    if let Some(error) = seals::refuse_move(old as usize, len, new_len, flags, to) {
        return mapping::fail(error);
    }
    state::await_child();
    let remap = |flags: c_int, to: usize| {
        // SAFETY: the caller's.
        (unsafe { moved(old as usize, len, new_len, flags, to) }) as *mut c_void
    };
    let Some(config) = state::config().filter(|_| !threads::is_ours()) else {
        return remap(flags, to);
    };
    // What is too long to be rounded up the kernel refuses.
    let whole_pages = |len: usize| len.wrapping_add(PAGE - 1) & !(PAGE - 1);
    let (start, pages, new_pages) = (old as usize, whole_pages(len), whole_pages(new_len));
    let end = start.saturating_add(pages);
    let ours = pages != 0 && (places::contains(start, end) || state::is_managed(start, end));
    if ours {
        // For the kernel it would be several mappings, of which it moves one.
        places::take_back(start, end);
    }
    // Before anything changes: whoever begins to manage just now may have looked by then.
    let is_registered = state::pager().is_some();

    if ours && in_window(start) && new_pages > pages && flags == libc::MREMAP_MAYMOVE {
        // Where it goes is ours to choose.
        let at = remap(0, 0);
        if at != libc::MAP_FAILED {
            is_larger(end, start + new_pages, is_registered);
            return at;
        }
        if sys::errno() == libc::ENOMEM
            && let Some(at) = mapping::move_block(start, len, new_pages, mapping::Kind::Mapping)
        {
            return at as *mut c_void;
        }
    }

    // The kernel moves several mappings at once, but none that is registered.
    let may_be_parts = ours
        && is_fixed
        && pages == new_pages
        // Of a place that overlaps the kernel refuses all, and parts of it would not.
        && (to >= end || to.saturating_add(pages) <= start)
        && start.is_multiple_of(PAGE);
    // To find them takes calls for which the program might be killed where it is under a filter.
    let by_parts = may_be_parts && !idle_priority::is_left_alone() && is_mapped(start);
    let is_refused = |&at: &*mut c_void| at == libc::MAP_FAILED && sys::errno() == libc::ENOMEM;
    // Whoever asks for a fixed place loses what is there also where the request is refused.
    let at = if flags & libc::MREMAP_FIXED == 0 {
        room::ask(new_pages.saturating_sub(pages), || remap(flags, to), is_refused)
    } else if by_parts
        && flags & libc::MREMAP_DONTUNMAP != 0
        && !is_one_mapping(start, end)
        && would_move(start, end)
    {
        // Of a move that the kernel breaks off nobody could tell what has moved: it would still be
        // mapped where it was.
        move_parts(start, end, flags, to)
    } else {
        let at = remap(flags, to);
        let broke_off = at == libc::MAP_FAILED && sys::errno() == libc::EFAULT;
        if by_parts && broke_off {
            if would_move(start, end) { move_parts(start, end, flags, to) } else { not_moved() }
        } else if may_be_parts && broke_off && halves::apply(flags) {
            halves::move_parts(start, end, flags, to)
        } else {
            at
        }
    };
    if at == libc::MAP_FAILED {
        return at;
    }
    let now = (at as usize, at as usize + new_pages);
    if now.0 == start {
        if ours && new_pages < pages {
            places::unmapped(now.1, start + pages);
            state::unmapped(pages - new_pages);
        } else if ours && new_pages > pages {
            is_larger(start + pages, now.1, is_registered);
        }
    } else {
        if flags & libc::MREMAP_DONTUNMAP == 0 && ours {
            mapping::forget(start, pages);
        }
        places::unmapped(now.0, now.1);
        if ours {
            is_larger(now.0, now.1, is_registered);
        }
    }
    if !ours && has_become_large(pages, new_pages, config.min_region.get()) && is_ordinary(now) {
        begin_to_manage(now.0, now.1);
    }
    at
}

/// Asks the kernel to move memory; sets `errno` as the C library does.
///
/// # Safety
/// As of the system call.
pub(crate) unsafe fn moved(
    old: usize,
    len: usize,
    new_len: usize,
    flags: c_int,
    to: usize,
) -> c_long {
    let ask = || {
        // SAFETY: the caller's.
        unsafe { sys::mremap(old, len, new_len, flags, to) }
    };
    let stays = flags & libc::MREMAP_DONTUNMAP != 0;
    let from = advised::whole_pages(old, len);
    let onto = (flags & libc::MREMAP_FIXED != 0).then(|| advised::whole_pages(to, new_len));
    let moved = wiped::moved(from, new_len, onto, stays, ask);
    moved.map_or_else(|error| mapping::fail(error) as c_long, |at| at as c_long)
}

/// Whether anything is mapped at a page.
pub(crate) fn is_mapped(page: usize) -> bool {
    let mut resident = 0u8;
    // SAFETY: writes one byte.
    unsafe { libc::mincore(page as *mut c_void, PAGE, &raw mut resident) == 0 }
}

/// Whether a range lies in one mapping. True if the kernel does not say: then it is to decide.
fn is_one_mapping(start: usize, end: usize) -> bool {
    let mut is_one = false;
    !with_more_descriptors(|| {
        proc_maps::for_each_mapping(|m| is_one |= m.start <= start && end <= m.end)
    }) || is_one
}

/// What `mremap` says of a range that it cannot move as a whole.
pub(crate) fn not_moved() -> *mut c_void {
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = libc::EFAULT };
    libc::MAP_FAILED
}

/// Whether the kernel moves several mappings at once, as it does since Linux 6.17.
pub(crate) fn are_several_moved() -> bool {
    const PAGES: usize = 2 * PAGE;
    let Ok(at) = sys::map_private(2 * PAGES) else { return false };
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: a new mapping of ours, of which a half is moved over the other; then all of it is
    // unmapped.
    unsafe {
        sys::raw(libc::SYS_mprotect, [at, PAGE, libc::PROT_READ as usize, 0, 0, 0]);
        let moved = sys::mremap(at, PAGES, PAGES, flags, at + PAGES);
        let _ = sys::munmap(at, 2 * PAGES);
        moved.is_ok()
    }
}

/// Whether the kernel would move a range at once if none of it were registered: its mappings may
/// be as many, or are alike and lie side by side, and would be one.
fn would_move(start: usize, end: usize) -> bool {
    if are_several_moved() {
        return true;
    }
    let mut until = start;
    let mut access = None;
    let are_told = with_more_descriptors(|| {
        (until, access) = (start, None);
        proc_maps::for_each_mapping(|m| {
            let is_next = m.start <= until && until < m.end && m.anonymous;
            if is_next && access.is_none_or(|a| a == m.access) {
                (until, access) = (m.end, Some(m.access));
            }
        })
    });
    are_told && until >= end
}

/// Moves the mappings of a range one by one, as far as they are still there, and leaves as much
/// room between them as was there: what the kernel does since Linux 6.17. Fails where the kernel
/// does not say what is mapped, or moves less than that.
fn move_parts(start: usize, end: usize, flags: c_int, to: usize) -> *mut c_void {
    /// Mappings that are looked up at once.
    const SOME: usize = 32;
    let mut at = start;
    while at < end {
        let mut parts = [(0, 0); SOME];
        let mut count = 0;
        let are_told = with_more_descriptors(|| {
            count = 0;
            proc_maps::for_each_mapping(|m| {
                let part = (m.start.max(at), m.end.min(end));
                if part.0 < part.1 && count < SOME {
                    parts[count] = part;
                    count += 1;
                }
            })
        });
        // There was something at the beginning.
        if !are_told || at == start && count == 0 {
            return not_moved();
        }
        for &(from, until) in &parts[..count] {
            let len = until - from;
            // SAFETY: a part of what the caller of `mremap` moves.
            if unsafe { moved(from, len, len, flags, to + (from - start)) } == -1 {
                return not_moved();
            }
            at = until;
        }
        if count < SOME {
            break;
        }
    }
    to as *mut c_void
}

/// A range belongs to what is managed, or will be. What belongs to memory that was registered is registered
/// as well.
fn is_larger(start: usize, end: usize, is_registered: bool) {
    if !is_registered {
        begin_to_manage(start, end);
    }
}

fn begin_to_manage(start: usize, end: usize) {
    if in_window(start) {
        return state::mapped(start, end - start);
    }
    places::mapped(start, end);
    state::accessible(end - start);
}

/// Whether a range is ordinary memory. If the kernel does not say, it stays unmanaged, and looks like
/// what nobody was asked for.
fn is_ordinary(range: (usize, usize)) -> bool {
    let mut ordinary = false;
    let look = || {
        proc_maps::for_each_mapping(|m| {
            ordinary |= m.start <= range.0 && range.1 <= m.end && m.is_ordinary() && !m.heap;
        })
    };
    // To raise a limit takes calls for which the program might be killed where it is under a filter.
    let is_told = with_more_descriptors_unless(idle_priority::is_left_alone(), look);
    is_told && ordinary
}

fn with_more_descriptors_unless(left_alone: bool, mut work: impl FnMut() -> bool) -> bool {
    if left_alone { work() } else { with_more_descriptors(work) }
}
