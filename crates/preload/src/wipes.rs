//! Changes that the kernel does not tell of, in turns with the copies that forks make: which memory a
//! child is to find empty (`MADV_WIPEONFORK`), and guards (`MADV_GUARD_INSTALL`).
//!
//! Whoever brings a child's memory in leaves out what the child is to find empty, and has that from
//! a list. The kernel has it from its mappings, as they were when the copy was made. Both are the
//! same only if nothing changes from the copy until the child has its memory: a range that was
//! listed in between read as zeros in a child that was to have its content. Under guards, a child
//! whose books did not know of them had content where the kernel had discarded it.

use core::sync::atomic::{AtomicU32, Ordering::*};

use libc::c_long;
use terrace_live::fork::turns::Turns;
use terrace_live::sys::{self, PAGE};
use terrace_live::workers::idle_priority;

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
/// of ours. Returns in the parent when it has it: one that ended before would take them along. In the child,
/// too: until then memory of its own is registered, and who brings it in does not see what it is marked as.
pub(crate) fn fork_unannounced(make: impl FnOnce() -> c_long) -> c_long {
    if state::config().is_none() {
        return make();
    }
    let mask = sys::block_signals();
    // Under a filter the program might be killed for it.
    let may_wait = !idle_priority::is_left_alone() && state::pager_even_if_broken().is_some();
    let filled = may_wait.then(Filled::new).flatten();
    let parent = sys::pid();
    begin_copy();
    let result = make();
    if result != 0 {
        if let Some(pager) = state::any_pager() {
            pager.await_handles();
        }
        end_copy();
        filled.inspect(Filled::tell);
    } else if let Some(filled) = &filled {
        filled.wait(parent);
        if let Some(pager) = state::any_pager() {
            // SAFETY: the child has no other thread.
            unsafe { pager.guard_again() };
        }
    }
    sys::restore_signals(mask);
    result
}

/// A word that a parent and its child share: whether the child has its memory.
struct Filled(&'static AtomicU32);

impl Filled {
    /// `None` without memory for it.
    fn new() -> Option<Self> {
        let page = sys::map_shared(PAGE).ok()?;
        // SAFETY: a page of ours, of zeros, which each of both unmaps when it is done with it.
        Some(Self(unsafe { &*(page as *const AtomicU32) }))
    }

    /// In the parent.
    fn tell(&self) {
        self.0.store(1, Release);
        sys::futex_wake(self.0, true);
    }

    /// In the child, for as long as its parent lives.
    fn wait(&self, parent: i32) {
        /// How often (ns) is looked whether it does.
        const LOOKS: u64 = 100_000_000;
        // SAFETY: asks for a number.
        while self.0.load(Acquire) == 0 && unsafe { libc::getppid() } == parent {
            sys::futex_wait(self.0, 0, Some(LOOKS), true);
        }
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        // SAFETY: as above; whose copy of it is unmapped here does not look at it any more.
        let _ = unsafe { sys::munmap(self.0.as_ptr() as usize, PAGE) };
    }
}
