//! A freeze: while it lasts, faults are served and nothing of ours changes, so that a consistent picture
//! of it can be copied into a child, or brought in. Several reasons can hold at once.

use core::sync::atomic::{AtomicU32, Ordering::*};

use crate::space::deferred::Deferred;
use crate::sys::spin::SpinLock;

/// Why a freeze began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Why {
    /// A fork through our wrapper is under way: from the announcement to the thaw.
    Fork = 1,
    /// A fork that was not announced: its child's memory is brought in. One at a time, under the
    /// lock for reading.
    RawFork = 1 << 1,
    /// A change of the address space broke off in the middle: it never ends.
    Torn = 1 << 2,
    /// Something of ours broke: it never ends.
    Broken = 1 << 3,
}

/// The reasons that hold now, and what is kept for their end.
pub(crate) struct Freeze {
    /// Bits of [`Why`]. A core dump's reader looks whether there are any.
    reasons: AtomicU32,
    /// Pages that were brought in meanwhile.
    pub(crate) brought_in: SpinLock<BroughtIn>,
    /// Address-space events read meanwhile, to be carried out afterwards.
    pub(crate) deferred: SpinLock<Deferred>,
}

impl Freeze {
    /// None.
    pub(crate) fn new() -> Self {
        Self {
            reasons: AtomicU32::new(0),
            brought_in: SpinLock::new(BroughtIn::new()),
            deferred: SpinLock::new(Deferred::new()),
        }
    }
    /// Begins for a reason. Work that began before may go on: see [`crate::pager::Pager::wait_quiet`].
    pub(crate) fn begin(&self, why: Why) {
        self.reasons.fetch_or(why as u32, SeqCst);
    }
    /// A reason does not hold any more.
    pub(crate) fn end(&self, why: Why) {
        self.reasons.fetch_and(!(why as u32), SeqCst);
    }
    /// Whether one lasts.
    pub(crate) fn is_on(&self) -> bool {
        self.reasons.load(SeqCst) != 0
    }
    /// Whether it lasts for this reason alone.
    pub(crate) fn is_only(&self, why: Why) -> bool {
        self.reasons.load(SeqCst) == why as u32
    }
    /// Where the reasons are, for who reads a core dump.
    pub(crate) fn reasons(&self) -> &AtomicU32 {
        &self.reasons
    }
    /// In a forked child, which has none of its parent's reasons.
    ///
    /// # Safety
    /// Only the calling thread may exist.
    pub(crate) unsafe fn reset(&self) {
        // SAFETY: the caller's: who held it is not here.
        unsafe { self.brought_in.force_unlock() };
        let _ = self.brought_in.lock().take();
        self.reasons.store(0, Release);
    }
    /// Gives the memory for what is kept back, of a program that is on plain memory for good.
    pub(crate) fn give_back(&self) {
        *self.brought_in.lock() = BroughtIn::none();
        *self.deferred.lock() = Deferred::none();
    }
}

/// Pages that were brought in while frozen, as addresses.
pub(crate) struct BroughtIn {
    pages: Box<[usize]>,
    count: usize,
}

impl BroughtIn {
    /// An empty list.
    pub(crate) fn new() -> Self {
        Self { pages: vec![0; 16_384].into(), count: 0 }
    }
    /// A list without room.
    pub(crate) fn none() -> Self {
        Self { pages: Box::new([]), count: 0 }
    }
    /// Notes a page.
    pub(crate) fn push(&mut self, page: usize) {
        if let Some(slot) = self.pages.get_mut(self.count) {
            *slot = page;
        }
        self.count += 1;
    }
    /// The pages noted, and whether there were more than fit.
    pub(crate) fn take(&mut self) -> (&[usize], bool) {
        let count = core::mem::take(&mut self.count);
        (&self.pages[..count.min(self.pages.len())], count > self.pages.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freeze_lasts_until_its_last_reason_ends() {
        let freeze = Freeze::new();
        assert!(!freeze.is_on());
        freeze.begin(Why::Fork);
        freeze.begin(Why::RawFork);
        assert!(!freeze.is_only(Why::RawFork));
        freeze.end(Why::Fork);
        assert!(freeze.is_on() && freeze.is_only(Why::RawFork));
        freeze.end(Why::RawFork);
        assert!(!freeze.is_on());
    }

    #[test]
    fn what_broke_is_frozen_for_good_whatever_forks_end() {
        let freeze = Freeze::new();
        freeze.begin(Why::Fork);
        freeze.begin(Why::Broken);
        freeze.begin(Why::RawFork);
        freeze.end(Why::RawFork);
        freeze.end(Why::Fork);
        assert!(freeze.is_on());
    }

    #[test]
    fn pages_that_were_brought_in_are_listed_once_and_too_many_are_told() {
        let mut list = BroughtIn::new();
        list.push(0x1000);
        list.push(0x2000);
        assert_eq!(list.take(), (&[0x1000, 0x2000][..], false));
        assert_eq!(list.take(), (&[][..], false));
        let mut full = BroughtIn::none();
        full.push(0x1000);
        assert_eq!(full.take(), (&[][..], true), "nothing fits, and that is said");
    }
}
