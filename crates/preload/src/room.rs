//! When the program gets no memory: what Terrace has is given back before it hears of that.
//!
//! A limit (`ulimit -v`, `ulimit -d`, `vm.max_map_count`) counts what Terrace maps like what the program does. So a
//! request may be refused that would succeed without Terrace. First go blocks that the program has
//! freed and the allocator keeps. If that is not enough, the program is put on plain memory for
//! good, which is told, and what managing took is unmapped; and the request is made once more.

use core::sync::atomic::{AtomicU32, Ordering::*};

use terrace_live::failsafe::give_up::Retires;
use terrace_live::sys;
use terrace_live::sys::limits;
use terrace_live::workers::{idle_priority, threads};

use crate::{malloc, state};

const NOTHING: u32 = 0;
const UNDER_WAY: u32 = 1;
const DONE: u32 = 2;

/// Whether what managing takes was given back.
static GIVEN_BACK: AtomicU32 = AtomicU32::new(NOTHING);

/// Makes a request for so many bytes, and makes it again as long as it is refused and what Terrace
/// has may be the reason.
pub(crate) fn ask<T>(
    len: usize,
    mut request: impl FnMut() -> T,
    is_refused: impl Fn(&T) -> bool,
) -> T {
    let before = GIVEN_BACK.load(Acquire);
    let mut result = request();
    // First for the blocks that are kept, and then for the rest.
    for rest in [false, true] {
        if !is_refused(&result) {
            break;
        }
        if make(len, before, rest) {
            result = request();
        }
    }
    result
}

/// The same of what returns a pointer, null if it is refused.
pub(crate) fn for_block(
    len: usize,
    request: impl FnMut() -> *mut core::ffi::c_void,
) -> *mut core::ffi::c_void {
    // A heap grows by more than what is asked for.
    const STEP: usize = 2 << 20;
    ask(len.saturating_add(STEP), request, |block| block.is_null() && sys::errno() == libc::ENOMEM)
}

/// Gives blocks that are kept back, or the rest, of a program that needs so much; false if there is
/// nothing, or it would not help.
fn make(len: usize, before: u32, rest: bool) -> bool {
    // Where it may be killed for the calls that this takes, it is not asked for them.
    if !state::is_configured()
        || threads::is_ours()
        || idle_priority::is_left_alone()
        || !state::is_owner()
    {
        return false;
    }
    let error = sys::errno();
    let made = state::signals_blocked(|| {
        if rest {
            return before != DONE && give_back(len);
        }
        // Most of what is refused no limit has refused.
        limits::is_short_of(len as u64) && malloc::give_freed_back()
    });
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
    made
}

/// Gives back what managing takes.
fn give_back(len: usize) -> bool {
    match GIVEN_BACK.load(Acquire) {
        NOTHING => {}
        // Another thread's, since this one was refused.
        DONE => return true,
        _ => {
            while GIVEN_BACK.load(Acquire) == UNDER_WAY {
                sys::sleep(100_000);
            }
            return GIVEN_BACK.load(Acquire) == DONE;
        }
    }
    // What another thread begins with has been mapped, and is not there to be given back yet.
    state::await_start();
    if state::pager_even_if_broken().is_none() {
        return false;
    }
    let because = if limits::would_fit_without_us(len as u64) {
        Retires::Limit
    } else if limits::has_all_mappings() {
        Retires::Mappings
    } else {
        return false;
    };
    if GIVEN_BACK.compare_exchange(NOTHING, UNDER_WAY, AcqRel, Acquire).is_err() {
        return give_back(len);
    }
    state::retire(because);
    let done = state::give_memory_back();
    GIVEN_BACK.store(DONE, Release);
    done
}

/// In a forked child, which has one thread: another of the parent's may have been at it. What it
/// has by itself it can give back.
pub(crate) fn reset() {
    let _ = GIVEN_BACK.compare_exchange(UNDER_WAY, NOTHING, Relaxed, Relaxed);
}
