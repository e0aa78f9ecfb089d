//! What a program changes of its memory that stays with the mapping: what may be done with it, what a
//! child has of it, whether it is locked, what else is mapped in its midst.
//!
//! The allocator's large blocks are kept when they are freed, and handed out again as they are. The C
//! library unmaps its own, and whoever is given the next one has a new mapping. So from the first such
//! change of a block on, blocks that are freed are unmapped, too. Which one was changed is not noted:
//! few programs do that, and those mostly with all of theirs.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering::*};

use libc::{c_int, c_long, c_uint};
use terrace_live::space::regions::WINDOW_LEN;
use terrace_live::sys;
use terrace_live::workers::idle_priority;

use crate::malloc::{self, blocks};
use crate::sanitizers::hand_on;
use crate::{mapping, populate, state, words};

/// Whether any of a large block was ever changed. Who frees a block that another thread has changed was
/// told of it since: no order is needed here.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// Whether large blocks are to be unmapped when they are freed.
pub(crate) fn are_changed() -> bool {
    CHANGED.load(Relaxed)
}

/// The program is about to change a range.
pub(crate) fn changed(start: usize, len: usize) {
    let (first, end) = (blocks(), blocks() + WINDOW_LEN / 2);
    if start < end && first < start.saturating_add(len) {
        CHANGED.store(true, Relaxed);
    }
}

/// It is about to change what may be done with a range.
pub(crate) fn protected(start: usize, len: usize, access: c_int) {
    // So a block is from the beginning.
    if access != libc::PROT_READ | libc::PROT_WRITE {
        changed(start, len);
    }
}

/// It is about to advise the kernel on a range.
pub(crate) fn advised(start: usize, len: usize, advice: c_int) {
    // Not what makes huge pages of it: programs that ask for that do so for every large block (NumPy does),
    // and nothing that a block holds depends on it.
    let stays = matches!(
        advice,
        libc::MADV_DONTFORK
            | libc::MADV_WIPEONFORK
            | libc::MADV_DONTDUMP
            | libc::MADV_MERGEABLE
            | libc::MADV_NOHUGEPAGE
            | libc::MADV_HWPOISON
            | sys::MADV_GUARD_INSTALL
    );
    if stays {
        changed(start, len);
    }
}

/// It is about to lock a range: each page when it is touched, where the flags of `mlock2` say so.
pub(crate) fn locked(start: usize, len: usize, flags: c_uint) {
    changed(start, len);
    populate::locks(flags & libc::MLOCK_ONFAULT != 0);
}

/// It is about to lock all memory, or all that it will map. Blocks that are kept are neither its own nor new.
pub(crate) fn all_changed() {
    CHANGED.store(true, Relaxed);
    // A program under a filter might be killed for another call than the one that it has made.
    if state::config().is_some() && !idle_priority::is_left_alone() {
        state::signals_blocked(malloc::unmap_kept);
    }
}

/// Locks memory: `mlock(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(at: *const c_void, len: usize) -> c_int {
    hand_on!(c"mlock", at => *const c_void, len => usize; c_int);
    locked(at as usize, len, 0);
    // SAFETY: what the program asked for.
    let result = unsafe { sys::raw(libc::SYS_mlock, [at as usize, len, 0, 0, 0, 0]) };
    words::returned(result) as c_int
}

/// Locks memory, perhaps each page when it is touched: `mlock2(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(at: *const c_void, len: usize, flags: c_uint) -> c_int {
    hand_on!(c"mlock2", at => *const c_void, len => usize, flags => c_uint; c_int);
    if flags == 0 {
        // By the other call, as the C library does.
        // SAFETY: the caller's.
        return unsafe { mlock(at, len) };
    }
    locked(at as usize, len, flags);
    // SAFETY: as above.
    let result = unsafe { sys::raw(libc::SYS_mlock2, [at as usize, len, flags as usize, 0, 0, 0]) };
    words::returned(result) as c_int
}

/// Changes what may be done with memory, and by which key: `pkey_mprotect(2)`.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(
    at: *mut c_void,
    len: usize,
    access: c_int,
    key: c_int,
) -> c_int {
    hand_on!(
        c"pkey_mprotect", at => *mut c_void, len => usize, access => c_int, key => c_int; c_int
    );
    if key == -1 {
        // No key: the C library calls its `mprotect` then.
        // SAFETY: the caller's.
        return unsafe { mapping::mprotect(at, len, access) };
    }
    // SAFETY: the caller's.
    (unsafe { protect_by_key([at as usize, len, access as usize, key as usize, 0, 0]) }) as c_int
}

/// The same for whoever asks by `syscall(2)`: what the kernel is given.
///
/// # Safety
/// As of [`pkey_mprotect`].
pub(crate) unsafe fn protect_by_key(arguments: [usize; 6]) -> c_long {
    let [at, len, access, key, ..] = arguments;
    changed(at, len);
    // SAFETY: what the program asked for.
    let result = unsafe { sys::raw(libc::SYS_pkey_mprotect, arguments) };
    // Pages with another key than that of all memory do not leave.
    if result == 0 && matches!(key as c_int, -1 | 0) {
        mapping::was_protected(at, len, access as c_int);
    }
    if result == 0 {
        populate::protected(at, len, access as c_int);
    }
    words::returned(result)
}
