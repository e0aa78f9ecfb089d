//! Pages that stay: the kernel changes words in them by itself, at moments at
//! which it waits for nobody.
//!
//! When a thread ends, the kernel clears a word and wakes who waits for it,
//! and marks the robust mutexes that the thread held; a priority-inheriting
//! mutex is handed on. If such a word is absent then, the kernel gives up
//! silently, and somebody waits for ever. So these pages are not demoted.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use crate::sys::PAGE;

/// Pages that can be kept. Each is asked for at every demotion.
const MOST: usize = 256;

/// A set of pages that only grows.
pub struct PinnedPages {
    pages: [AtomicUsize; MOST],
    count: AtomicUsize,
}

/// This process's. A child inherits it.
pub static PINNED: PinnedPages = PinnedPages::new();

impl PinnedPages {
    /// An empty set.
    pub const fn new() -> Self {
        Self { pages: [const { AtomicUsize::new(0) }; MOST], count: AtomicUsize::new(0) }
    }

    /// Whether a page is kept.
    pub fn contains(&self, page: usize) -> bool {
        let count = self.count.load(Acquire);
        count != 0 && self.pages[..count].iter().any(|p| p.load(Acquire) == page)
    }

    /// Adds the pages of `len` bytes; false if not all of them fit. The
    /// pages that are on their way out already are not stopped.
    pub fn add(&self, start: usize, len: usize) -> bool {
        let mut page = start & !(PAGE - 1);
        while page < start + len {
            if !self.contains(page) && !self.push(page) {
                return false;
            }
            page += PAGE;
        }
        true
    }

    fn push(&self, page: usize) -> bool {
        // An entry becomes valid with its value: zero is no page of anyone's.
        let at = self.count.fetch_update(AcqRel, Relaxed, |n| (n < MOST).then_some(n + 1));
        at.map(|at| self.pages[at].store(page, SeqCst)).is_ok()
    }
}

impl Default for PinnedPages {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_across_two_pages_keeps_both_and_only_once() {
        let kept = PinnedPages::new();
        for _ in 0..MOST {
            assert!(kept.add(0x1fff, 2));
        }
        assert!(kept.contains(0x1000) && kept.contains(0x2000));
        assert!(!kept.contains(0) && !kept.contains(0x3000));
    }

    #[test]
    fn a_full_set_says_so_and_keeps_what_it_has() {
        let kept = PinnedPages::new();
        assert!(kept.add(PAGE, MOST * PAGE));
        assert!(!kept.add(0x1000_0000, 1));
        assert!(kept.contains(MOST * PAGE));
    }
}
