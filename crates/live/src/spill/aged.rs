//! Stored pages in the order in which they came: the oldest go to the file.
//!
//! A ring with one writer, whoever makes room, and one reader, the spill file's
//! thread. A hint and no more: an entry whose page has another word by now is
//! worth nothing, and what found no room is found by looking through the pages.

use core::sync::atomic::{AtomicU64, Ordering::*};

use crate::sys;

/// Pages that the ring has room for. A power of two.
const LEN: u64 = if cfg!(miri) { 8 << 10 } else { 512 << 10 };
const ENTRY: usize = 16;
/// Memory is given back in blocks of so many entries, once they are read.
const BLOCK: u64 = 4096;

/// The ring.
pub struct Aged {
    at: AtomicU64,
    head: AtomicU64,
    tail: AtomicU64,
}

impl Aged {
    /// A ring without memory, which holds nothing.
    pub const fn new() -> Self {
        Self { at: AtomicU64::new(0), head: AtomicU64::new(0), tail: AtomicU64::new(0) }
    }

    /// Takes address space; memory as it is used.
    pub fn open(&self) {
        if self.at.load(Acquire) == 0
            && let Ok(at) = sys::map_private(LEN as usize * ENTRY)
        {
            self.at.store(at as u64, Release);
        }
    }

    /// Gives the addresses back.
    ///
    /// # Safety
    /// Nobody is looking at an entry.
    pub(crate) unsafe fn give_back(&self) {
        let at = self.at.swap(0, AcqRel) as usize;
        if at != 0 {
            // SAFETY: the mapping of `open`; the caller's.
            let _ = unsafe { sys::munmap(at, LEN as usize * ENTRY) };
        }
    }

    fn entry(&self, n: u64) -> Option<&[AtomicU64; 2]> {
        let at = self.at.load(Acquire) as usize;
        // SAFETY: the mapping has `LEN` entries, is zeroed and never unmapped.
        (at != 0).then(|| unsafe { &*((at + (n % LEN) as usize * ENTRY) as *const _) })
    }

    /// A page is stored, with this word. By one thread at a time.
    pub fn push(&self, owner: u64, word: u64) {
        let head = self.head.load(Relaxed);
        if head - self.tail.load(Acquire) < LEN
            && let Some(entry) = self.entry(head)
        {
            entry[0].store(owner, Relaxed);
            entry[1].store(word, Relaxed);
            self.head.store(head + 1, Release);
        }
    }

    /// The oldest. By one thread.
    pub fn pop(&self) -> Option<(u64, u64)> {
        let tail = self.tail.load(Relaxed);
        if tail == self.head.load(Acquire) {
            return None;
        }
        let entry = self.entry(tail)?;
        let found = (entry[0].load(Relaxed), entry[1].load(Relaxed));
        self.tail.store(tail + 1, Release);
        if (tail + 1).is_multiple_of(BLOCK) {
            let from = self.at.load(Acquire) as usize + ((tail + 1 - BLOCK) % LEN) as usize * ENTRY;
            // What a writer that is a whole round ahead has just put there is lost.
            // SAFETY: our own mapping, of atomics: it reads as zeros.
            let _ = unsafe { sys::madvise(from, BLOCK as usize * ENTRY, libc::MADV_DONTNEED) };
        }
        Some(found)
    }
}

impl Default for Aged {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_comes_first_and_what_does_not_fit_is_left_out() {
        let aged = Aged::new();
        aged.push(1, 1);
        assert_eq!(aged.pop(), None, "no memory yet");
        aged.open();
        for n in 0..LEN + 5 {
            aged.push(n, n + 1);
        }
        for n in 0..LEN {
            assert_eq!(aged.pop(), Some((n, n + 1)));
        }
        assert_eq!(aged.pop(), None);
        aged.push(7, 8);
        assert_eq!(aged.pop(), Some((7, 8)), "round the ring's end");
    }

    #[test]
    fn nothing_is_lost_between_two_threads() {
        const COUNT: u64 = LEN / 5;
        let aged = Aged::new();
        aged.open();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..COUNT).for_each(|n| aged.push(n, !n)));
            let mut next = 0;
            while next < COUNT {
                if let Some((owner, word)) = aged.pop() {
                    assert_eq!((owner, word), (next, !next));
                    next += 1;
                }
            }
        });
    }
}
