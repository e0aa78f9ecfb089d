//! Faults off the hot path: while the books are frozen, of a child that has no pager yet, outside of
//! every region that is known, and where everything is brought in.

use core::sync::atomic::Ordering::*;

use libc::{EEXIST, ENOENT};

use crate::fault::content::{damaged, zeros};
use crate::fault::serve::Served;
use crate::space::page_state::{BUSY, PageState};
use crate::space::proc_maps;
use crate::store::codec::PageBytes;
use crate::sys::uffd::Uffd;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

impl Worker<'_> {
    /// Serves a fault from the frozen books, if they still are.
    pub(crate) fn serve_while_frozen(&mut self, address: usize) -> Served {
        let pager = self.pager;
        // The freeze does not end while this is held.
        let _reading = pager.reading.lock();
        if !pager.freeze.is_on() {
            return Served::Retry;
        }
        if pager.freeze.deferred.lock().is_torn() {
            // The page's content may be where it came from or where it went: who brings
            // everything in looks at both.
            let over = pager.phase.is_over();
            return if over { Served::Done } else { Served::Retry };
        }
        self.serve_frozen(pager.uffd(), address)
    }

    /// Serves a fault without changing anything of ours: a child is being
    /// given a copy of it. While frozen, with the lock for reading held.
    pub(crate) fn serve_frozen(&mut self, uffd: Uffd, address: usize) -> Served {
        // The books are as they were when the freeze began; the address may
        // have moved or been discarded since.
        let origin = self.pager.freeze.deferred.lock().origin(address);
        self.serve_from(uffd, address, origin)
    }

    /// The same for a page of a child, of which it is settled which of the deferred events hold
    /// for it.
    pub(crate) fn serve_child_page(&mut self, child: (usize, Uffd), address: usize) -> Served {
        let (number, uffd) = child;
        if self.pager.is_wiped(address) {
            return fill_zeros(uffd, address);
        }
        let origin = self.pager.freeze.deferred.lock().origin_in(Some(number), address);
        self.serve_from(uffd, address, origin)
    }

    /// Fills in a page from an address of the books; zeros, if from none.
    pub(crate) fn serve_from(
        &mut self,
        uffd: Uffd,
        address: usize,
        origin: Option<usize>,
    ) -> Served {
        let pager = self.pager;
        let own = uffd == pager.uffd();
        let Some(origin) = origin else {
            if own {
                pager.freeze.brought_in.lock().push(address);
            }
            return fill_zeros(uffd, address);
        };
        let Some(place) = pager.regions.find(origin) else {
            return if own { self.serve_unknown(address) } else { fill_zeros(uffd, address) };
        };
        let word = place.word.load(Acquire);
        let state = PageState::of(word);
        let from = match state {
            PageState::Fresh | PageState::Gone => zeros(),
            PageState::Resident => {
                if own && self.pagemap.is_present(address) != Some(false) {
                    let _ = uffd.wake(address, PAGE);
                    return Served::Done;
                }
                if word & BUSY != 0 {
                    // Its owner broke, perhaps after it had moved out: who
                    // brings everything in knows.
                    return if pager.phase.is_over() { Served::Done } else { Served::Retry };
                }
                zeros()
            }
            PageState::Staged(slot) => pager.evict.staging.address(slot),
            _ => {
                if !self.unpack(state) {
                    damaged();
                }
                self.buffer.0.as_ptr() as usize
            }
        };
        match uffd.copy(address, from, PAGE).1 {
            0 => {
                if own {
                    pager.freeze.brought_in.lock().push(address);
                }
                Served::Done
            }
            EEXIST => {
                let _ = uffd.wake(address, PAGE);
                Served::Done
            }
            e => not_served_by(uffd, address, e),
        }
    }

    /// Fills in a page that is absent, from where its content is.
    pub(crate) fn fill_in(&mut self, address: usize, state: PageState) -> Served {
        let from = if let PageState::Staged(slot) = state {
            self.pager.evict.staging.address(slot)
        } else {
            if !self.unpack(state) {
                damaged();
            }
            self.buffer.0.as_ptr() as usize
        };
        match self.pager.uffd().copy(address, from, PAGE).1 {
            0 | EEXIST => Served::Done,
            e => not_served_by(self.pager.uffd(), address, e),
        }
    }

    /// In a process that nobody serves: whether a page that we hold still is what
    /// we hold, or, if it is absent, can be (with `fill`: has been) made so.
    pub(crate) fn restore(&mut self, state: PageState, address: usize, fill: bool) -> bool {
        if let PageState::Staged(slot) = state {
            // SAFETY: the slot holds a page; in a child it is a copy of its own.
            let content: &PageBytes =
                unsafe { &*(self.pager.evict.staging.address(slot) as *const PageBytes) };
            self.buffer.0.copy_from_slice(content);
        } else if !self.unpack(state) {
            return false;
        }
        if self.pagemap.is_present(address) != Some(false) {
            let mut now = [0u8; PAGE];
            // What is not mapped any more is nobody's loss.
            return !sys::read_memory(address, &mut now) || now == self.buffer.0;
        }
        !fill || sys::write_memory(address, &self.buffer.0)
    }

    /// A fault outside of every region we know: a mapping that grew in place
    /// without telling us. Enters it.
    pub(crate) fn serve_unknown(&mut self, address: usize) -> Served {
        let pager = self.pager;
        if pager.evict.staging.contains(address) {
            return self.refuse_slot(address);
        }
        let mut found = None;
        let is_told = proc_maps::for_each_mapping(|m| {
            if m.start <= address && address < m.end {
                found = Some(m);
            }
        });
        if !is_told {
            // In another root nobody says how far it goes. To wake its thread would have it fault for
            // ever; nothing is held of it, so zeros are right.
            return fill_zeros(pager.uffd(), address);
        }
        let Some(mapping) = found else {
            // Unmapped meanwhile: let the thread find out.
            let _ = pager.uffd().wake(address, PAGE);
            return Served::Done;
        };
        if pager.freeze.is_on() {
            return fill_zeros(pager.uffd(), address);
        }
        let _changes = pager.reading.lock();
        if pager.regions.find(address).is_some() {
            return Served::Retry;
        }
        // All of it that no region has: it may be walked through backwards.
        let start = pager.regions.last_end(address).map_or(mapping.start, |e| e.max(mapping.start));
        let end = pager.regions.next_start(address).map_or(mapping.end, |s| s.min(mapping.end));
        let Err(why) = pager.enter_region(start, end) else { return Served::Retry };
        // Plain memory from now on, and the statistics say so. The kernel wakes whoever waits.
        pager.stats().unmanaged.enter(why, start, end);
        match pager.uffd().unregister(start, end - start) {
            Ok(()) => Served::Done,
            Err(_) => fill_zeros(pager.uffd(), address),
        }
    }

    /// An empty slot of the staging ring was looked at: `mlockall` tries to have all pages, and debuggers
    /// read all memory. Nobody is to wait for a frame there, and none is to come: it is an error.
    fn refuse_slot(&self, address: usize) -> Served {
        let pager = self.pager;
        let uffd = pager.uffd();
        match uffd.poison(address, PAGE) {
            Ok(()) => {
                pager.evict.staging.mark();
                Served::Done
            }
            // A page has moved there meanwhile, or another thread was told already.
            Err(EEXIST) => {
                let _ = uffd.wake(address, PAGE);
                Served::Done
            }
            // Unknown to this kernel. A frame is in the way of the next page there, and dropped then.
            Err(libc::EINVAL) => fill_zeros(uffd, address),
            Err(error) => not_served_by(uffd, address, error),
        }
    }
}

/// The kernel did not take the page.
pub(crate) fn not_served_by(uffd: Uffd, address: usize, error: i32) -> Served {
    match error {
        // The mapping is gone (or its process): the thread will see.
        ENOENT | libc::ESRCH | libc::EINVAL => {
            let _ = uffd.wake(address, PAGE);
            Served::Done
        }
        // EAGAIN: the address space is changing. ENOMEM: the kernel is
        // looking for memory. Both pass. Nothing else does.
        libc::EAGAIN | libc::ENOMEM | libc::EINTR => Served::Retry,
        refused => Served::Refused(refused),
    }
}

fn fill_zeros(uffd: Uffd, address: usize) -> Served {
    match uffd.copy(address, zeros(), PAGE).1 {
        0 => Served::Done,
        EEXIST => {
            let _ = uffd.wake(address, PAGE);
            Served::Done
        }
        e => not_served_by(uffd, address, e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_tried_again_and_what_does_not_is_told() {
        let served = |error| not_served_by(Uffd::from_raw(-1), 0x1000, error);
        for passes in [libc::EAGAIN, libc::ENOMEM, libc::EINTR] {
            assert_eq!(served(passes), Served::Retry);
        }
        for gone in [ENOENT, libc::ESRCH, libc::EINVAL] {
            assert_eq!(served(gone), Served::Done, "the thread will see");
        }
        assert_eq!(served(libc::EPERM), Served::Refused(libc::EPERM));
    }

    /// It was entered as memory of the program's, which nobody has unmapped.
    #[test]
    fn a_fault_at_an_empty_slot_changes_nothing_in_the_books() {
        use crate::pager::fixture::pager;
        let pager = pager(1);
        let mut worker = Worker::new(pager, 0);
        let slot = pager.evict.staging.address(1);
        // The fixture's kernel takes nothing.
        assert_eq!(worker.serve(slot, true, sys::now()), Served::Refused(libc::EBADF));
        assert!(pager.regions.find(slot).is_none());
    }

    #[test]
    fn nothing_is_served_from_frozen_books_that_are_frozen_no_more() {
        use crate::pager::fixture::{START, pager};
        let pager = pager(1);
        let mut worker = Worker::new(pager, 0);
        assert_eq!(worker.serve_while_frozen(START), Served::Retry);
    }
}
