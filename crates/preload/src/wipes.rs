//! Which memory a child is to find empty (`MADV_WIPEONFORK`), in turns with the copies that forks
//! make.
//!
//! Whoever brings a child's memory in leaves out what the child is to find empty, and has that from
//! a list. The kernel has it from its mappings, as they were when the copy was made. Both are the
//! same only if nothing changes from the copy until the child has its memory: a range that was
//! listed in between read as zeros in a child that was to have its content.

use core::sync::atomic::{AtomicU32, Ordering::*};

use libc::c_long;
use terrace_live::sys;
use terrace_live::sys::spin::backoff;

use crate::state;

/// Forks of which the child may not have its memory yet.
static COPIES: AtomicU32 = AtomicU32::new(0);
/// Threads that are at a change.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// From here on nothing changes. With signals blocked: a handler's change would wait for its own
/// thread.
pub(crate) fn begin_copy() {
    COPIES.fetch_add(1, SeqCst);
    await_none(&CHANGES);
}

/// A child has its memory, or there is none.
pub(crate) fn end_copy() {
    COPIES.fetch_sub(1, SeqCst);
}

/// Makes a change when no copy is under way. With signals blocked: a handler's fork would wait for
/// its own thread.
pub(crate) fn change<T>(work: impl FnOnce() -> T) -> T {
    loop {
        CHANGES.fetch_add(1, SeqCst);
        if COPIES.load(SeqCst) == 0 {
            break;
        }
        CHANGES.fetch_sub(1, SeqCst);
        await_none(&COPIES);
    }
    let result = work();
    CHANGES.fetch_sub(1, SeqCst);
    result
}

fn await_none(number: &AtomicU32) {
    let mut spins = 0;
    while number.load(SeqCst) != 0 {
        backoff(&mut spins);
    }
}

/// In a forked child: who is at it is not here.
pub(crate) fn reset() {
    COPIES.store(0, SeqCst);
    CHANGES.store(0, SeqCst);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_changes_while_a_copy_is_made() {
        begin_copy();
        let changed = AtomicU32::new(0);
        std::thread::scope(|threads| {
            let other = threads.spawn(|| change(|| changed.store(1, SeqCst)));
            std::thread::yield_now();
            assert_eq!(changed.load(SeqCst), 0);
            // A second fork does not wait for who waits.
            begin_copy();
            end_copy();
            assert_eq!(changed.load(SeqCst), 0);
            end_copy();
            other.join().expect("no panic");
        });
        assert_eq!(changed.load(SeqCst), 1);
    }
}
