//! Changes that the kernel and our books are to agree on in a child, in turns with the copies that
//! forks make.
//!
//! Threads of the program's make such changes in hooks: first the kernel makes it, then our books.
//! A child whose memory was copied in between would have one of both.

use crate::atomic::{AtomicU32, Ordering::*};
use crate::sys::spin::backoff;

/// Whose turn it is: that of copies, or that of changes. There may be several of either at once.
pub struct Turns {
    /// Forks of which the child may not have its memory yet.
    copies: AtomicU32,
    /// Threads that are at a change.
    changes: AtomicU32,
}

impl Turns {
    /// Nobody's.
    pub const fn new() -> Self {
        Self { copies: AtomicU32::new(0), changes: AtomicU32::new(0) }
    }

    /// From here on nothing changes. With signals blocked: a handler's change would wait for its own
    /// thread. Whether no copy that began before is under way.
    pub fn begin_copy(&self) -> bool {
        let is_first = self.copies.fetch_add(1, SeqCst) == 0;
        await_none(&self.changes);
        is_first
    }

    /// A child has its memory, or there is none.
    pub fn end_copy(&self) {
        self.copies.fetch_sub(1, SeqCst);
    }

    /// Makes a change when no copy is under way. With signals blocked: a handler's fork would wait for
    /// its own thread.
    pub fn change<T>(&self, work: impl FnOnce() -> T) -> T {
        loop {
            self.changes.fetch_add(1, SeqCst);
            if self.copies.load(SeqCst) == 0 {
                break;
            }
            self.changes.fetch_sub(1, SeqCst);
            await_none(&self.copies);
        }
        let result = work();
        self.changes.fetch_sub(1, SeqCst);
        result
    }

    /// In a forked child: who is at it is not here.
    pub fn reset(&self) {
        self.copies.store(0, SeqCst);
        self.changes.store(0, SeqCst);
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

fn await_none(number: &AtomicU32) {
    let mut spins = 0;
    while number.load(SeqCst) != 0 {
        backoff(&mut spins);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_changes_while_a_copy_is_made() {
        let turns = Turns::new();
        let changed = AtomicU32::new(0);
        assert!(turns.begin_copy());
        std::thread::scope(|threads| {
            let other = threads.spawn(|| turns.change(|| changed.store(1, SeqCst)));
            std::thread::yield_now();
            assert_eq!(changed.load(SeqCst), 0);
            // A second fork does not wait for who waits.
            assert!(!turns.begin_copy());
            turns.end_copy();
            assert_eq!(changed.load(SeqCst), 0);
            turns.end_copy();
            other.join().expect("no panic");
        });
        assert_eq!(changed.load(SeqCst), 1);
    }

    #[test]
    fn who_is_not_in_a_child_keeps_nobody_waiting_there() {
        let turns = Turns::new();
        turns.begin_copy();
        turns.reset();
        assert_eq!(turns.change(|| 7), 7);
        assert!(turns.begin_copy());
    }
}
