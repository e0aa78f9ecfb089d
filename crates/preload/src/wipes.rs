//! Changes that the kernel does not tell of, in turns with the copies that forks make: which memory a
//! child is to find empty (`MADV_WIPEONFORK`), and guards (`MADV_GUARD_INSTALL`).
//!
//! Whoever brings a child's memory in leaves out what the child is to find empty, and has that from
//! a list. The kernel has it from its mappings, as they were when the copy was made. Both are the
//! same only if nothing changes from the copy until the child has its memory: a range that was
//! listed in between read as zeros in a child that was to have its content. Under guards, a child
//! whose books did not know of them had content where the kernel had discarded it.

use libc::c_long;
use terrace_live::fork::turns::Turns;
use terrace_live::sys;

use crate::state;

static TURNS: Turns = Turns::new();

/// From here on nothing changes. With signals blocked. Whether no copy that began before is under way.
pub(crate) fn begin_copy() -> bool {
    TURNS.begin_copy()
}

/// A child has its memory, or there is none.
pub(crate) fn end_copy() {
    TURNS.end_copy();
}

/// Makes a change when no copy is under way. With signals blocked.
pub(crate) fn change<T>(work: impl FnOnce() -> T) -> T {
    TURNS.change(work)
}

/// In a forked child: who is at it is not here.
pub(crate) fn reset() {
    TURNS.reset();
}

/// Makes a process by a system call of the program's own, which is given all its memory by threads
/// of ours. Returns in the parent when it has it: one that ended before would take them along.
pub(crate) fn fork_unannounced(make: impl FnOnce() -> c_long) -> c_long {
    if state::config().is_none() {
        return make();
    }
    let mask = sys::block_signals();
    begin_copy();
    let result = make();
    if result != 0 {
        if let Some(pager) = state::any_pager() {
            pager.await_handles();
        }
        end_copy();
    }
    sys::restore_signals(mask);
    result
}
