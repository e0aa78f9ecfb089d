//! The page cache's lists, and which pages leave.
//!
//! As Linux has it without generations: a page comes to the inactive list, a second use brings
//! it to the active one, reclaim takes the end of the inactive list and refills that from the
//! active one's when it is low. Linux also remembers when a page left, and has one that comes back
//! soon begin as active (`mm/workingset.c`); that is not modelled.

use super::memory::{ACTIVE, NONE, ObjectMemory, REFERENCED};

/// One list, youngest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    fn push(&mut self, memory: &mut ObjectMemory, page: u32) {
        let entry = memory.page_mut(page);
        (entry.prev, entry.next) = (NONE, self.head);
        match self.head {
            NONE => self.tail = page,
            head => memory.page_mut(head).prev = page,
        }
        self.head = page;
        self.len += 1;
    }

    fn remove(&mut self, memory: &mut ObjectMemory, page: u32) {
        let (prev, next) = (memory.page(page).prev, memory.page(page).next);
        match prev {
            NONE => self.head = next,
            prev => memory.page_mut(prev).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => memory.page_mut(next).prev = prev,
        }
        self.len -= 1;
    }
}

/// Which pages of files leave when memory is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileReplacement {
    /// As Linux without generations: a second use brings a page to the active list.
    #[default]
    TwoLists,
    /// What came first leaves first, however often it was used: a kernel that is wrong, for
    /// comparisons that have to see it.
    FirstCome,
    /// What was used twice never leaves, however long ago that was: wrong in the other direction.
    HotStays,
}

/// Both lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lists {
    active: List,
    inactive: List,
    replacement: FileReplacement,
}

impl Lists {
    pub(super) const fn new(replacement: FileReplacement) -> Self {
        Self { active: List::EMPTY, inactive: List::EMPTY, replacement }
    }

    pub(super) fn len(&self) -> u32 {
        self.active.len() + self.inactive.len()
    }

    /// A page comes into the page cache.
    pub(super) fn add(&mut self, memory: &mut ObjectMemory, page: u32) {
        self.inactive.push(memory, page);
    }

    /// A page leaves it.
    pub(super) fn remove(&mut self, memory: &mut ObjectMemory, page: u32) {
        let active = memory.page(page).has(ACTIVE);
        let list = if active { &mut self.active } else { &mut self.inactive };
        list.remove(memory, page);
    }

    /// A page was used (`folio_mark_accessed`).
    pub(super) fn used(&mut self, memory: &mut ObjectMemory, page: u32) {
        if self.replacement == FileReplacement::FirstCome {
            return;
        }
        let entry = memory.page_mut(page);
        if !entry.has(REFERENCED) || entry.has(ACTIVE) {
            entry.flags |= REFERENCED;
            return;
        }
        entry.flags = (entry.flags | ACTIVE) & !REFERENCED;
        self.inactive.remove(memory, page);
        self.active.push(memory, page);
    }

    /// The oldest inactive page.
    pub(super) fn oldest(&self) -> u32 {
        self.inactive.tail
    }

    /// A page that cannot go now is the youngest again.
    pub(super) fn rotate(&mut self, memory: &mut ObjectMemory, page: u32) {
        self.inactive.remove(memory, page);
        self.inactive.push(memory, page);
    }

    /// Moves pages from the active list's end while the inactive list is low
    /// (`inactive_is_low`: the active list may be longer by the root of ten times both in GiB).
    pub(super) fn balance(&mut self, memory: &mut ObjectMemory) {
        if self.replacement == FileReplacement::HotStays {
            return;
        }
        let gib = self.len() >> 18;
        let ratio = if gib == 0 { 1 } else { (10 * gib).isqrt() };
        while self.inactive.len().saturating_mul(ratio) < self.active.len() {
            let page = self.active.tail;
            self.active.remove(memory, page);
            memory.page_mut(page).flags &= !(ACTIVE | REFERENCED);
            self.inactive.push(memory, page);
        }
    }
}
