//! What happened, on its way to the policy: a bounded queue of notes.
//!
//! Fault handlers must not wait for the policy's lock, so they leave notes;
//! whoever holds the policy reads them in order before asking it anything.
//! Bounded, lock-free, many writers, one reader at a time (D. Vyukov's queue).

use core::cell::UnsafeCell;

use crate::atomic::{AtomicUsize, Ordering::*};
use terrace_core::{Done, FaultKind, PageRange, PageRef, Region};

/// Notes that fit; a writer that finds the queue full empties it itself.
const CAPACITY: usize = 4096;

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// A region is managed now, from this address on.
    Alloc(Region, usize),
    /// A page was placed in DRAM because the program touched it.
    Fault {
        /// The page.
        page: PageRef,
        /// Why.
        kind: FaultKind,
    },
    /// Pages were placed in DRAM before the program touched them for the first time.
    Filled(PageRange),
    /// Pages hold nothing any more.
    Discard(PageRange),
    /// A region is no longer managed.
    Free(PageRange),
    /// An action came to its end.
    Done(Done),
}

struct Cell {
    turn: AtomicUsize,
    note: UnsafeCell<Note>,
}

/// The queue.
pub struct Queue {
    cells: Box<[Cell]>,
    head: AtomicUsize,
    tail: AtomicUsize,
}

// SAFETY: a cell's `turn` says whose it is; only that thread touches the note.
unsafe impl Sync for Queue {}

impl Queue {
    /// An empty queue.
    pub fn new() -> Self {
        let empty = Note::Discard(PageRange {
            region: terrace_core::RegionId(0),
            start: terrace_core::PageNo(0),
            count: 0,
        });
        Self {
            cells: (0..CAPACITY)
                .map(|i| Cell { turn: AtomicUsize::new(i), note: UnsafeCell::new(empty) })
                .collect(),
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
        }
    }

    /// Leaves a note; false if there is no room.
    #[must_use]
    pub fn push(&self, note: Note) -> bool {
        let mut at = self.head.load(Relaxed);
        loop {
            let cell = &self.cells[at % CAPACITY];
            let turn = cell.turn.load(Acquire);
            // Less: still unread; more: another writer was faster.
            if turn == at {
                match self.head.compare_exchange_weak(at, at + 1, Relaxed, Relaxed) {
                    Ok(_) => {
                        // SAFETY: winning `head` made the cell ours until `turn` moves on.
                        unsafe { *cell.note.get() = note };
                        cell.turn.store(at + 1, Release);
                        return true;
                    }
                    Err(now) => at = now,
                }
                continue;
            }
            if turn < at {
                return false;
            }
            at = self.head.load(Relaxed);
        }
    }

    /// Takes the oldest note. One reader at a time.
    pub fn pop(&self) -> Option<Note> {
        let at = self.tail.load(Relaxed);
        let cell = &self.cells[at % CAPACITY];
        if cell.turn.load(Acquire) != at + 1 {
            return None;
        }
        // SAFETY: the writer has released the cell, and we are the only reader.
        let note = unsafe { *cell.note.get() };
        cell.turn.store(at + CAPACITY, Release);
        self.tail.store(at + 1, Relaxed);
        Some(note)
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::{PageNo, RegionId};

    fn note(n: u32) -> Note {
        Note::Discard(PageRange { region: RegionId(n), start: PageNo(0), count: 1 })
    }

    const WRITERS: usize = 4;
    const NOTES: usize = if cfg!(miri) { 50 } else { 10_000 };

    /// A note lost is a page that the policy will never demote again.
    #[test]
    fn no_note_is_lost_or_doubled_between_threads() {
        let queue = Queue::new();
        let mut seen = vec![0u32; WRITERS * NOTES];
        std::thread::scope(|scope| {
            for t in 0..WRITERS {
                let queue = &queue;
                scope.spawn(move || {
                    for i in 0..NOTES {
                        while !queue.push(note((t * NOTES + i) as u32)) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut last = [None; WRITERS];
            let mut got = 0;
            while got < WRITERS * NOTES {
                let Some(Note::Discard(range)) = queue.pop() else {
                    std::thread::yield_now();
                    continue;
                };
                let n = range.region.0;
                seen[n as usize] += 1;
                let writer = n as usize / NOTES;
                assert!(last[writer] < Some(n), "a writer's notes arrive in order");
                last[writer] = Some(n);
                got += 1;
            }
        });
        assert!(seen.iter().all(|&n| n == 1));
    }

    #[test]
    fn a_full_queue_says_so() {
        let queue = Queue::new();
        while queue.push(note(1)) {}
        assert!(queue.pop().is_some());
        assert!(queue.push(note(2)));
        assert!(!queue.push(note(3)));
    }
}
