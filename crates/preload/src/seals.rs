//! `mseal`: memory that stays mapped where it is, for good (Linux 6.10).
//!
//! The kernel refuses (`EPERM`) to unmap a range of which a part is sealed, to map over it, and to move
//! something there. Since Linux 6.12 it comes to the sealed part on its way (`vms_gather_munmap_vmas` in
//! `mm/vma.c`). It changes nothing then, but it has prepared to tell the userfaultfd that the whole range is
//! unmapped, and tells so. In our books all of it would be gone, content and all. Where a heap is to become
//! shorter (`brk`), it does not even tell: for the userfaultfd the address space is changing from then on,
//! and no page comes in any more.
//!
//! So our hooks refuse in its place, and do not ask it. What it refuses by other calls (`madvise`,
//! `mprotect`, `shmat`), it tells rightly, or has nothing to tell.

use core::ffi::{c_ulong, c_void};

use libc::{c_int, c_long};
use terrace_live::space::advised::whole_pages;
use terrace_live::space::proc_maps;
use terrace_live::space::sealed::{Found, SEALED};
use terrace_live::sys::limits::with_more_descriptors;
use terrace_live::sys::{self, PAGE};
use terrace_live::workers::idle_priority;

use crate::sanitizers::hand_on;
use crate::{attributes, mapping, room, state, words};

/// Seals memory: `mseal(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mseal(at: *mut c_void, len: usize, flags: c_ulong) -> c_int {
    hand_on!(c"mseal", at => *mut c_void, len => usize, flags => c_ulong; c_int);
    // SAFETY: the caller's.
    (unsafe { seal([at as usize, len, flags as usize, 0, 0, 0]) }) as c_int
}

/// The same for whoever asks by `syscall(2)`: what the kernel is given.
///
/// # Safety
/// As of [`mseal`].
pub(crate) unsafe fn seal(arguments: [usize; 6]) -> c_long {
    let [at, len, ..] = arguments;
    attributes::changed(at, len);
    let ask = || {
        // Between copies: a child is to inherit both the seal and what we know of it.
        mapping::between_copies(|| {
            // SAFETY: the caller's.
            let result = unsafe { sys::raw(libc::SYS_mseal, arguments) };
            note(at, len, result);
            result
        })
    };
    // To seal a part of a mapping makes several of it.
    let is_refused = |&result: &c_long| result == -c_long::from(libc::ENOMEM);
    words::returned(room::ask(0, ask, is_refused))
}

/// The kernel has answered to a seal.
fn note(at: usize, len: usize, result: c_long) {
    let (start, end) = whole_pages(at, len);
    if result == 0 {
        // Where there is no room for it, only the kernel knows it from now on.
        let _ = SEALED.add(start, end);
    } else if result == -c_long::from(libc::ENOMEM) && len > 0 && is_sealed(start) {
        // It may have sealed what lies in front, and have had no memory for the rest.
        SEALED.add_unsure(start, end);
    }
}

/// Whether the mapping at a page is sealed: then the kernel refuses to give it the length that it has.
fn is_sealed(page: usize) -> bool {
    // A program under a filter might be killed for another call than the one that it has made.
    !idle_priority::is_left_alone() && page_answers(page) == Err(libc::EPERM)
}

/// What the kernel says to a change of a page's mapping that changes nothing.
fn page_answers(page: usize) -> Result<usize, i32> {
    // SAFETY: as long as it is, where it is.
    unsafe { sys::mremap(page, PAGE, PAGE, 0, 0) }
}

/// Whether the kernel would refuse to unmap a range since a part of it is sealed.
fn refuses(start: usize, end: usize) -> bool {
    // Without management nobody is told of anything.
    if !SEALED.is_any() || state::config().is_none() {
        return false;
    }
    match SEALED.find(start, end) {
        Found::Nothing => false,
        // Under a filter nobody asks, and it most likely is.
        Found::At(_) if idle_priority::is_left_alone() => true,
        // A child may not have it (`MADV_DONTFORK`), and other memory at its place.
        Found::At(page) => is_sealed(page) || is_any_sealed(start, end),
        Found::Perhaps => is_any_sealed(start, end),
    }
}

/// The same, found by asking the kernel of each mapping.
fn is_any_sealed(start: usize, end: usize) -> bool {
    /// How many pages are asked of at most where mappings are not told: some tenths of a second.
    const PAGES: usize = 1 << 20;
    if idle_priority::is_left_alone() {
        return false;
    }
    let mut is_any = false;
    let are_told = with_more_descriptors(|| {
        proc_maps::for_each_mapping(|m| {
            let first = m.start.max(start);
            is_any = is_any || first < m.end.min(end) && is_sealed(first);
        })
    });
    // They are out of reach (in another root, say): then of each page.
    is_any || !are_told && (start..end).step_by(PAGE).take(PAGES).any(is_sealed)
}

/// Whether the kernel would refuse to unmap what a program gives it, or to map over it, for a seal. Whatever
/// else is wrong with the range it says first.
pub(crate) fn keep(at: usize, len: usize) -> bool {
    SEALED.is_any() && {
        let (start, end) = whole_pages(at, len);
        is_range(start, end) && start < end && refuses(start, end)
    }
}

/// Whether it begins with a page, and lies where memory may be.
fn is_range(start: usize, end: usize) -> bool {
    start.is_multiple_of(PAGE) && end <= mapping::ADDRESSES
}

/// The error by which the kernel refuses to map over a range that is sealed in part. Whatever else is wrong
/// with the request it says first; it is asked for the same where nothing may be replaced.
///
/// # Safety
/// As of the call of `mmap(2)` with these.
pub(crate) unsafe fn refuse_mapping(arguments: [usize; 6]) -> c_int {
    let [at, len, access, flags, fd, offset] = arguments;
    let flags = (flags as c_int & !libc::MAP_FIXED) | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing.
    match unsafe { sys::mmap(at, len, access as c_int, flags, fd as c_int, offset as i64) } {
        // Something is there: what is sealed.
        Err(libc::EEXIST) => libc::EPERM,
        Err(error) => error,
        Ok(elsewhere) => {
            // SAFETY: a fresh mapping, which nobody knows of.
            let _ = unsafe { sys::munmap(elsewhere, len) };
            libc::EPERM
        }
    }
}

/// The error by which the kernel would refuse a move, or to make a mapping shorter, and tell of memory that
/// it leaves as it is. (Up to Linux 6.11 it looks at all of what is to move, as is done here; later it may
/// have moved a part before it comes to what is sealed.) `None` where it may be asked.
pub(crate) fn refuse_move(
    old: usize,
    len: usize,
    new_len: usize,
    flags: c_int,
    to: usize,
) -> Option<c_int> {
    const KNOWN: c_int = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    if !SEALED.is_any() || flags & !KNOWN != 0 {
        return None;
    }
    let (from, short) = (whole_pages(old, len), whole_pages(old, new_len));
    if !is_range(from.0, from.1) || !is_range(short.0, short.1) || short.1 == old {
        return None;
    }
    let is_kept = if flags & libc::MREMAP_FIXED != 0 {
        let onto = whole_pages(to, new_len);
        let is_valid = flags & libc::MREMAP_MAYMOVE != 0
            && is_range(onto.0, onto.1)
            && (onto.1 <= from.0 || from.1 <= onto.0)
            && (flags & libc::MREMAP_DONTUNMAP == 0 || from.1 == short.1);
        is_valid && (refuses(onto.0, onto.1) || refuses(from.0, from.1))
    } else {
        flags & libc::MREMAP_DONTUNMAP == 0 && refuses(short.1, from.1)
    };
    // Where nothing is mapped at the beginning it says that first. It is asked by the program's own call.
    is_kept.then(|| match page_answers(old) {
        Err(libc::EFAULT) => libc::EFAULT,
        _ => libc::EPERM,
    })
}
