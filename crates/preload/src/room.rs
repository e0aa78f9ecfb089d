//! When the program gets no memory: what Terrace has is given back before it hears of that.
//!
//! A limit (`ulimit -v`, `ulimit -d`, `vm.max_map_count`) counts what Terrace maps like what the program does. So a
//! request may be refused that would succeed without Terrace. First go blocks that the program has
//! freed and the allocator keeps. If that is not enough, the program is put on plain memory for
//! good, which is told, and what managing took is unmapped; and the request is made once more.

use terrace_live::failsafe::give_up::Retires;
use terrace_live::failsafe::hand_back::GivenBack;
use terrace_live::sys;
use terrace_live::sys::limits;
use terrace_live::workers::{idle_priority, threads};

use crate::{malloc, state};

/// Whether what managing takes was given back.
static GIVEN_BACK: GivenBack = GivenBack::new();

/// Makes a request for so many bytes, and makes it again as long as it is refused and what Terrace
/// has may be the reason.
pub(crate) fn ask<T>(
    len: usize,
    mut request: impl FnMut() -> T,
    is_refused: impl Fn(&T) -> bool,
) -> T {
    let was_done = GIVEN_BACK.is_done();
    let mut result = request();
    // First for the blocks that are kept, and then for the rest.
    for rest in [false, true] {
        if !is_refused(&result) {
            break;
        }
        if make(len, was_done, rest) {
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
fn make(len: usize, was_done: bool, rest: bool) -> bool {
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
            return !was_done && give_back(len);
        }
        // Most of what is refused no limit has refused.
        limits::is_short_of(len as u64) && malloc::give_freed_back()
    });
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
    made
}

/// Gives back what managing takes, if so many bytes fit then.
fn give_back(len: usize) -> bool {
    let give = |because| {
        state::retire(because);
        state::give_memory_back()
    };
    GIVEN_BACK.once(|| reason(len), give)
}

/// Why that helps a program that is refused so many bytes, if it does.
fn reason(len: usize) -> Option<Retires> {
    // What another thread begins with has been mapped, and is not there to be given back yet.
    state::await_start();
    state::pager_even_if_broken()?;
    if limits::would_fit_without_us(len as u64) {
        Some(Retires::Limit)
    } else if limits::has_all_mappings() {
        Some(Retires::Mappings)
    } else {
        None
    }
}

/// In a forked child, which has one thread.
pub(crate) fn reset() {
    GIVEN_BACK.reset();
}
