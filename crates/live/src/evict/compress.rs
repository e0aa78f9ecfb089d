//! The second step of an eviction: the oldest pages of the staging ring are compressed into the store.

use core::sync::atomic::Ordering::*;

use libc::{EBUSY, EEXIST};
use terrace_core::{Abort, Done};

use crate::decide::decider;
use crate::decide::notes::Note;
use crate::evict::staging::{NOBODY, ORPHAN, Purpose, StagingRing, owner};
use crate::failsafe::inject::{self, Point};
use crate::space::page_state::{BUSY, PageState};
use crate::space::regions::Place;
use crate::store::codec::{Effort, Packed, PageBytes};
use crate::sys::spin::backoff;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Frames of pages that have left are given back so many at once: it flushes the TLBs of
/// all processors.
const FRAMES: u32 = 128;

impl Worker<'_> {
    /// Deals with up to `count` of the oldest slots; returns how many.
    pub(crate) fn compress_oldest(&mut self, ring: &mut StagingRing, count: usize) -> usize {
        let count = (ring.waiting() as usize).min(count);
        let settled = (0..count as u32)
            .take_while(|&i| {
                let (slot, purpose, _) = ring.at(i);
                self.compress_slot(slot, purpose)
            })
            .count();
        ring.mark_done(settled as u32);
        if ring.done() >= FRAMES.min(self.pager.staging_slots() / 8) {
            ring.drop_done(&self.pager.evict.staging, self.pager.uffd());
        }
        settled
    }

    /// Compresses the page in a slot, or puts it back. Its frame may go
    /// afterwards. False if the page has to stay for now.
    fn compress_slot(&mut self, slot: u32, purpose: Purpose) -> bool {
        let pager = self.pager;
        let start = sys::now();
        let mut spins = 0;
        let (place, region);
        loop {
            let who = pager.evict.staging.owner_of(slot).load(Acquire);
            if who == ORPHAN {
                pager.release(1);
                self.cancelled(purpose, Abort::Stale);
                return true;
            }
            if who == NOBODY {
                self.cancelled(purpose, Abort::Touched);
                return true;
            }
            let (id, page) = ((who >> 32) as u32, who as u32);
            let Some(r) = pager.regions.get(id).filter(|r| page < r.pages()) else {
                // Being moved or unmapped by another worker; it will name the
                // new owner; unless that one is no more.
                if pager.is_stopped() {
                    return false;
                }
                backoff(&mut spins);
                continue;
            };
            let p = Place { id, region: r, page, word: r.word(page) };
            if pager.try_lock_page(&p, PageState::Staged(slot)) {
                (place, region) = (p, r);
                break;
            }
            let word = p.word.load(Acquire);
            let elsewhere = word & BUSY == 0 && PageState::of(word) != PageState::Staged(slot);
            if elsewhere && pager.evict.staging.owner_of(slot).load(Acquire) == who {
                // The page's content is not here; what is, is an old copy.
                self.cancelled(purpose, Abort::Stale);
                return true;
            }
            // Whoever had it locked may have broken down with it.
            if pager.is_stopped() {
                return false;
            }
            backoff(&mut spins);
        }
        if matches!(purpose, Purpose::Armed) {
            let back = self.put_back(&place, slot);
            pager.stats().counters.sampling_ns.fetch_add(sys::now() - start, Relaxed);
            return back;
        }
        let at = pager.evict.staging.address(slot);
        // SAFETY: the slot holds a whole page, and the page is ours: nobody
        // maps it elsewhere or takes it away.
        let bytes: &PageBytes = unsafe { &*(at as *const PageBytes) };
        let Some(state) = self.pack(bytes) else {
            let back = self.put_back(&place, slot);
            if back {
                let counters = &pager.stats().counters;
                counters.demotions_refused.fetch_add(1, Relaxed);
                counters.store_refused.fetch_add(1, Relaxed);
                self.cancelled(purpose, Abort::NoMemory);
                pager.spill_sooner();
            }
            return back;
        };
        inject::at(Point::Settle);
        pager.evict.staging.owner_of(slot).store(NOBODY, Release);
        place.word.store(state.word(), Release);
        pager.stored(owner(place.id, place.page), state);
        region.resident.fetch_sub(1, Relaxed);
        pager.release(1);
        let took = sys::now() - start;
        let counters = &pager.stats().counters;
        counters.demotions.fetch_add(1, Relaxed);
        counters.compressed.fetch_add(1, Relaxed);
        counters.compress_ns.fetch_add(took, Relaxed);
        if let Purpose::Demote(proposal) = purpose {
            let outcome = decider::completed(pager, took, 1);
            pager.note(Note::Done(Done { proposal, outcome }));
        }
        true
    }

    /// Moves a page from its slot back into the mapping; false if the address
    /// space is changing just now, or what has become of it is being read. The page is ours.
    pub(crate) fn put_back(&mut self, place: &Place<'_>, slot: u32) -> bool {
        let pager = self.pager;
        let from = pager.evict.staging.address(slot);
        let Some(reading) = self.reading_if_free() else {
            place.word.store(PageState::Staged(slot).word(), Release);
            return false;
        };
        let (_, mut error) = self.move_frames(pager.uffd(), place.address(), from, PAGE);
        if error == EBUSY || error == libc::EINVAL {
            // Shared with a forked child: copy it.
            error = pager.uffd().copy(place.address(), from, PAGE).1;
        }
        drop(reading);
        match error {
            0 | EEXIST => {
                pager.evict.staging.owner_of(slot).store(NOBODY, Release);
                place.word.store(PageState::Resident.word(), Release);
                true
            }
            _ => {
                place.word.store(PageState::Staged(slot).word(), Release);
                false
            }
        }
    }

    /// A demotion that did not happen.
    fn cancelled(&self, purpose: Purpose, why: Abort) {
        if let Purpose::Demote(proposal) = purpose {
            if why == Abort::Touched {
                self.pager.stats().counters.demotions_cancelled.fetch_add(1, Relaxed);
            }
            self.aborted(proposal, why);
        }
    }

    /// Compresses a page into the store; `None` if there is no memory for it.
    fn pack(&mut self, bytes: &PageBytes) -> Option<PageState> {
        let pager = self.pager;
        let counters = &pager.stats().counters;
        let tight = pager.evict.density.choose(pager, &mut self.codec, bytes);
        let (raw, content): (bool, &[u8]) = match self.codec.pack(bytes, tight) {
            Packed::Same(0) => {
                counters.same_pages.fetch_add(1, Relaxed);
                return Some(PageState::Same(0));
            }
            Packed::Same(word) => {
                let blob = pager.store.put(&word.to_ne_bytes())?;
                counters.same_pages.fetch_add(1, Relaxed);
                return Some(PageState::Same(blob.0));
            }
            Packed::Compressed(n) => {
                let tight = u64::from(tight == Effort::Tight);
                counters.packed_tightly.fetch_add(tight, Relaxed);
                (false, self.codec.output(n))
            }
            Packed::Raw => (true, bytes),
        };
        let blob = pager.store.put(content)?;
        counters.stored_pages.fetch_add(1, Relaxed);
        counters.blob_bytes.fetch_add(content.len() as u64, Relaxed);
        counters.store_bytes.store(pager.store.occupied(), Relaxed);
        counters.store_peak_bytes.fetch_max(pager.store.occupied(), Relaxed);
        pager.note_held();
        if raw {
            counters.incompressible.fetch_add(1, Relaxed);
        }
        Some(if raw { PageState::Raw(blob.0) } else { PageState::Compressed(blob.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::reclaim::Pace;
    use crate::evict::staging::owner;
    use crate::fault::content;
    use crate::pager::Pager;
    use crate::pager::fixture::{demotion, pager, place, state, touch};

    /// Moves a resident page into the ring, with this content, as [`Worker::stage`] does.
    fn stage(
        pager: &Pager,
        ring: &mut StagingRing,
        page: usize,
        content: impl Fn(usize) -> u8,
    ) -> u32 {
        let purpose = Purpose::Demote(demotion(pager, page));
        let slot = ring.push(purpose, 1);
        // SAFETY: a slot that nobody uses; its memory can be written.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(pager.evict.staging.address(slot) as *mut u8, PAGE)
        };
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = content(i);
        }
        let place = place(pager, page);
        pager.evict.staging.give(slot, owner(place.id, place.page), purpose);
        place.word.store(PageState::Staged(slot).word(), Release);
        slot
    }

    #[test]
    fn the_oldest_is_compressed_and_its_content_can_be_had_again() {
        let pager = pager(4);
        let mut worker = Worker::new(pager, 0);
        let mut ring = pager.evict.ring.lock();
        let content = |i: usize| if i % 8 < 2 { (i / 64) as u8 } else { 0 };
        for page in 0..2 {
            touch(pager, page);
        }
        stage(pager, &mut ring, 0, content);
        stage(pager, &mut ring, 1, |_| 0);
        assert_eq!(pager.resident(), 2, "what waits is still counted");

        assert_eq!(worker.compress_oldest(&mut ring, 1), 1);
        let PageState::Compressed(_) = state(pager, 0) else { panic!("{:?}", state(pager, 0)) };
        assert!(matches!(state(pager, 1), PageState::Staged(_)), "it came later");
        assert_eq!(pager.resident(), 1);
        let mut page = [1; PAGE];
        assert!(content::unpack(pager, state(pager, 0), &mut page, &mut worker.reader, false));
        assert!(page.iter().enumerate().all(|(i, byte)| *byte == content(i)));

        assert_eq!(worker.compress_oldest(&mut ring, 8), 1);
        assert_eq!(state(pager, 1), PageState::Same(0), "zeros take no room");
        assert_eq!(pager.stats().counters.demotions.load(Relaxed), 2);
    }

    #[test]
    fn a_page_that_was_touched_meanwhile_is_not_compressed() {
        let pager = pager(2);
        let mut worker = Worker::new(pager, 0);
        let mut ring = pager.evict.ring.lock();
        touch(pager, 0);
        let slot = stage(pager, &mut ring, 0, |i| i as u8);
        // As a fault that moved it back.
        pager.evict.staging.owner_of(slot).store(NOBODY, Release);
        place(pager, 0).word.store(PageState::Resident.word(), Release);

        assert_eq!(worker.compress_oldest(&mut ring, 1), 1);
        assert_eq!((state(pager, 0), pager.resident()), (PageState::Resident, 1));
        assert_eq!(pager.stats().counters.demotions_cancelled.load(Relaxed), 1);
    }

    #[test]
    fn the_room_of_a_page_that_was_unmapped_meanwhile_is_free() {
        let pager = pager(2);
        let mut worker = Worker::new(pager, 0);
        let mut ring = pager.evict.ring.lock();
        touch(pager, 0);
        let slot = stage(pager, &mut ring, 0, |i| i as u8);
        pager.evict.staging.owner_of(slot).store(ORPHAN, Release);

        assert_eq!(worker.compress_oldest(&mut ring, 1), 1);
        assert_eq!(pager.resident(), 0);
        assert_eq!(pager.stats().counters.demotions.load(Relaxed), 0);
    }

    /// The program might have discarded it, or moved it away: its content would come to where it is no
    /// more. After one of 150 moves with `MREMAP_DONTUNMAP` a page read as zeros where it had moved to.
    #[test]
    fn a_page_is_put_back_at_no_moment_at_which_a_change_is_being_read() {
        use crate::pager::MANAGER;
        use crate::pager::fixture::Memory;
        let memory = Memory::new();
        memory.map(0..1, Memory::USABLE);
        memory.enter(0..1);
        let Some(_registered) = memory.register() else {
            println!("there is no userfaultfd for this user: NOT shown");
            return;
        };
        memory.fill(0, 7);
        let pager = memory.pager;
        let mut worker = Worker::new(pager, MANAGER);
        let mut ring = pager.evict.ring.lock();
        ring.victims.push_back(memory.demotion(0));
        assert_eq!(worker.stage(&mut ring, 8, Pace::BATCH), 1);
        let (slot, place) = (ring.at(0).0, memory.place(0));
        let staged = PageState::Staged(slot);

        let reading = pager.reading.lock();
        assert!(pager.try_lock_page(&place, staged));
        assert!(!worker.put_back(&place, slot));
        drop(reading);

        assert_eq!(worker.pagemap.is_present(place.address()), Some(false));
        assert!(pager.try_lock_page(&place, staged), "it is nobody's, and where it was");
        assert!(worker.put_back(&place, slot));
        assert_eq!(worker.pagemap.is_present(place.address()), Some(true));
        assert_eq!(PageState::of(place.word.load(Acquire)), PageState::Resident);
    }
}
