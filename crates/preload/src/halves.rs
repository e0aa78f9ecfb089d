//! One `mremap` of several mappings under a filter on system calls: nobody may ask the kernel which there
//! are, so the range is moved by that call alone, in parts that are halved until one lies in a mapping.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering::*};

use libc::c_int;
use terrace_live::sys::{self, PAGE};
use terrace_live::workers::idle_priority;

use crate::{remap, state};

/// Whether the kernel moves several mappings at once, as far as that is known.
static SEVERAL: AtomicBool = AtomicBool::new(false);

/// How many calls are made at most, one for each page of a hole: some tenths of a second.
const CALLS: usize = 1 << 20;

/// The program is about to forbid itself system calls: later nobody may find out what the kernel does.
pub(crate) fn before_filter() {
    if state::config().is_some() && !idle_priority::is_left_alone() {
        SEVERAL.store(remap::are_several_moved(), Relaxed);
    }
}

/// Whether a range is to be moved in parts of which the kernel has not moved the whole.
pub(crate) fn apply(flags: c_int) -> bool {
    // What stays mapped at its old place would be moved twice where the kernel has moved a part: the
    // second time it is empty.
    idle_priority::is_left_alone() && flags & libc::MREMAP_DONTUNMAP == 0 && SEVERAL.load(Relaxed)
}

/// Moves what is mapped of a range, and leaves as much room in between as was there. Fails where nothing is
/// mapped at its beginning; or as the kernel does at a part that it does not move. Before it broke off, the
/// kernel may have moved mappings at the beginning that were not registered. Then nothing is there, either,
/// and the rest stays: nobody may ask which of the two it was.
pub(crate) fn move_parts(start: usize, end: usize, flags: c_int, to: usize) -> *mut c_void {
    let moves = |at: usize, len: usize| {
        // SAFETY: a part of what the caller of `mremap` moves.
        (unsafe { remap::moved(at, len, len, flags, to + (at - start)) }) != -1
    };
    if !moves(start, PAGE) {
        return libc::MAP_FAILED;
    }
    let (mut at, mut len) = (start + PAGE, end - start);
    for _ in 0..CALLS {
        len = len.min(end - at);
        if len == 0 {
            return to as *mut c_void;
        }
        if moves(at, len) {
            at += len;
            len = len.saturating_mul(2);
        } else if sys::errno() != libc::EFAULT {
            return libc::MAP_FAILED;
        } else if len > PAGE {
            len = (len / 2).next_multiple_of(PAGE);
        } else {
            // A hole.
            at += PAGE;
        }
    }
    remap::not_moved()
}
