//! What the kernel tells about the address space: unmapped, moved, discarded.
//!
//! Carried out by the worker that read the message, while it still holds the
//! lock for reading: so every fault that is read later is served after it.

use core::sync::atomic::Ordering::*;

use crate::decide::notes::Note;
use crate::evict::staging::{ORPHAN, owner};
use crate::failsafe::give_up;
use crate::failsafe::inject::{self, Point};
use crate::fault::overhead;
use crate::pager::Pager;
use crate::pager::freeze::Why;
use crate::space::page_state::{BUSY, PageState};
use crate::space::regions::{FRESH, Place, Region};
use crate::space::unmanaged::Unmanaged;
use crate::stats::freed_regions::Freed;
use crate::sys::uffd::Message;
use crate::sys::{self, PAGE};

/// From so many pages on, pages that were never touched are skipped in bulk, and
/// a region that loses so many is not kept for what remains of it.
const SPARSE: u32 = 1 << 16;

/// Why a program is not managed any more of which memory has moved to where no region can be.
fn no_region(why: Unmanaged) -> &'static str {
    match why {
        Unmanaged::TableFull => "more parts of its memory have moved than can be managed",
        _ => {
            "memory has moved, and the kernel gives none for what is kept of each page (ulimit -v, ulimit -d, vm.max_map_count?)"
        }
    }
}

/// An event that is being carried out. Dropped only if its thread breaks: content of pages
/// has moved then that our books still have at the old place, or half of it.
struct UnderWay<'a> {
    pager: &'a Pager,
    event: Message,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // Before the lock for reading is let go of, under which the next one would serve a
        // page that has moved from where it has moved to, where nothing was yet.
        self.pager.freeze.begin(Why::Torn);
        self.pager.freeze.deferred.lock().tear(self.event);
    }
}

impl Pager {
    /// Carries out what the kernel told. With the lock for reading.
    pub fn carry_out(&self, event: Message) {
        let under_way = UnderWay { pager: self, event };
        inject::at(Point::Event);
        match event {
            Message::Remove { start, end } => self.discarded(start, end),
            Message::Unmap { start, end } => self.unmapped(start, end),
            Message::Remap { from, to, len } => self.moved(from, to, len),
            Message::Fault { .. } | Message::Fork { .. } => {}
        }
        core::mem::forget(under_way);
    }

    /// Carries out what had to wait for a fork.
    pub fn carry_out_deferred(&self) {
        let next = || self.freeze.deferred.lock().pop();
        while let Some(event) = next() {
            self.carry_out(event);
        }
    }

    /// Content of a range is discarded: the next touch finds zeros.
    pub fn discarded(&self, start: usize, end: usize) {
        self.for_each_part(start, end, |id, region, first, count| {
            self.clear_pages(id, region, first, count, PageState::Fresh);
            self.note(Note::Discard(Self::page_range(id, first, count)));
        });
    }

    /// A range is no longer mapped.
    pub fn unmapped(&self, start: usize, end: usize) {
        self.for_each_part(start, end, |id, region, first, count| {
            let pages = region.pages();
            if count >= SPARSE
                && pages - count <= count / 2
                && self.unmapped_mostly(id, region, first, count)
            {
                return;
            }
            let newly = self.clear_pages(id, region, first, count, PageState::Gone);
            self.no_longer_mapped(newly);
            if newly > 0 && region.count_gone(newly) {
                self.note(Note::Free(Self::page_range(id, 0, pages)));
                self.take_out(id, region);
            } else {
                self.note(Note::Discard(Self::page_range(id, first, count)));
            }
        });
        let _ = self
            .regions
            .heap_end
            .fetch_update(AcqRel, Relaxed, |heap| (start < heap && heap <= end).then_some(start));
    }

    /// Takes a region out of the table. What it was is left in the statistics page.
    fn take_out(&self, id: u32, region: &Region) {
        let freed = Freed {
            start: region.start() as u64,
            len: u64::from(region.pages()) * PAGE as u64,
            faults: region.faults.load(Relaxed),
            parts: core::array::from_fn(|i| region.parts[i].load(Relaxed)),
            times: 1,
            at_ns: sys::now(),
        };
        // What Terrace measures its own faults on is nothing of the program's.
        if self.regions.remove(id) && !overhead::is_probed(freed.start as usize) {
            self.stats().freed.enter(&freed);
        }
    }

    /// Most of a large region is no longer mapped. What remains becomes regions
    /// of its own: to mark every page that is gone would take longer, and more
    /// memory, than the program ever used of it. False if there is no room for more regions:
    /// then the region stays, with what could not be handed over.
    fn unmapped_mostly(&self, id: u32, region: &Region, first: u32, count: u32) -> bool {
        let pages = region.pages();
        let mapped = region.mapped();
        let mut kept = 0;
        let mut regions = [None; 2];
        for (new, (from, pages)) in
            regions.iter_mut().zip([(0, first), (first + count, pages - first - count)])
        {
            if pages == 0 {
                continue;
            }
            let Some((new_id, mapped)) = self.split_off(id, region, from, pages) else {
                // Of the other part, whose pages are mapped elsewhere in our books.
                region.count_gone(kept);
                return false;
            };
            *new = Some(new_id);
            kept += mapped;
        }
        region.for_each_touched(first, count, |first, count| {
            self.clear_run(id, region, first, count, PageState::Gone);
        });
        self.no_longer_mapped(mapped.saturating_sub(kept));
        self.note(Note::Free(Self::page_range(id, 0, pages)));
        self.take_out(id, region);
        for new in regions.into_iter().flatten() {
            self.regions.index(new);
        }
        true
    }

    /// Makes a region of a part of one; returns it with the pages that are
    /// mapped in it, or `None` if there is no room for it.
    fn split_off(&self, id: u32, old: &Region, first: u32, count: u32) -> Option<(u32, u32)> {
        let start = old.start() + first as usize * PAGE;
        let new_id = self.insert_region(start, count).ok()?;
        let new = self.regions.get(new_id)?;
        self.note(Note::Alloc(Self::region_of(new_id, count), start));
        let mut gone = 0;
        for page in 0..count {
            let from = Place { id, region: old, page: first + page, word: old.word(first + page) };
            let to = Place { id: new_id, region: new, page, word: new.word(page) };
            gone += u32::from(self.transfer(&from, &to) == PageState::Gone);
        }
        new.count_gone(gone);
        self.note(Note::Discard(Self::page_range(id, first, count)));
        Some((new_id, count - gone))
    }

    /// Hands a page over from one region to another; returns its state.
    fn transfer(&self, from: &Place<'_>, to: &Place<'_>) -> PageState {
        self.lock_page(to);
        let word = self.lock_page(from);
        let state = PageState::of(word);
        if let PageState::Resident | PageState::Staged(_) = state {
            from.region.resident.fetch_sub(1, Relaxed);
            to.region.resident.fetch_add(1, Relaxed);
            let kind = terrace_core::FaultKind::FirstTouch(terrace_core::Access::Write);
            self.note(Note::Fault { page: Self::page_ref(to), kind });
        }
        if let PageState::Staged(slot) = state {
            self.evict.staging.owner_of(slot).store(owner(to.id, to.page), Release);
        }
        to.word.store(word, Release);
        from.word.store(PageState::Gone.word(), Release);
        state
    }

    /// Mapped memory moved; pages keep their content.
    pub fn moved(&self, from: usize, to: usize, len: usize) {
        let mut at = from;
        // Part by part: the range may cover several regions.
        while at < from + len {
            let Some(place) = self.regions.find(at) else {
                at += PAGE;
                continue;
            };
            let old = place.region;
            let first = place.page;
            let count = (old.pages() - first).min(((from + len - at) / PAGE) as u32);
            self.move_part(place.id, old, first, count, to + (at - from));
            at += count as usize * PAGE;
        }
    }

    fn move_part(&self, old_id: u32, old: &Region, first: u32, count: u32, to: usize) {
        // Something of ours may have been mapped there: it is gone.
        self.unmapped(to, to + count as usize * PAGE);
        if let Err(why) = self.cover(to, to + count as usize * PAGE) {
            give_up::break_off(no_region(why));
        }
        let mut gone = 0;
        for i in 0..count {
            let page = first + i;
            let from = Place { id: old_id, region: old, page, word: old.word(page) };
            let Some(to) = self.regions.find(to + i as usize * PAGE) else { continue };
            if self.transfer(&from, &to) == PageState::Gone {
                gone += 1;
                // Mapped memory of which we believed that it was not.
                to.word.store(PageState::Fresh.word(), Release);
            }
        }
        let pages = old.pages();
        self.no_longer_mapped(count - gone);
        if old.count_gone(count - gone) {
            self.note(Note::Free(Self::page_range(old_id, 0, pages)));
            self.take_out(old_id, old);
        } else {
            self.note(Note::Discard(Self::page_range(old_id, first, count)));
        }
    }

    /// Makes sure that every page of a mapped range belongs to a region, fresh
    /// if it was gone; or says why it cannot be, and then some of the pages may. With the lock
    /// for reading.
    pub fn cover(&self, start: usize, end: usize) -> Result<(), Unmanaged> {
        // Where one region alone has any of it, that one has the pages that follow, too: to look
        // each of them up takes longer than all the rest outside of the window, where a part of a
        // heap is given back and taken again.
        let mut regions = 0;
        if end - start > PAGE {
            self.regions.for_each_in(start, end, |_, _| regions += 1);
        }
        let mut at = start;
        while at < end {
            if let Some(place) = self.regions.find(at) {
                let until = if regions == 1 { place.region.end().min(end) } else { 0 };
                let count = (until.max(at + PAGE) - at) / PAGE;
                for page in place.page..place.page + count as u32 {
                    self.cover_page(&Place { page, word: place.region.word(page), ..place });
                }
                at += count * PAGE;
                continue;
            }
            let next = self.regions.next_start_in(at, end);
            self.enter_region(at, next)?;
            at = next;
        }
        Ok(())
    }

    /// A page is mapped, perhaps again, inside a region of which other parts remain.
    fn cover_page(&self, place: &Place<'_>) {
        let word = self.lock_page(place);
        let gone = PageState::of(word) == PageState::Gone;
        if gone {
            self.mapped_again(place.region);
        }
        place.word.store(if gone { FRESH } else { word }, Release);
    }

    /// Makes a region of a mapped range of which no page belongs to one, or says why it cannot
    /// be. With the lock for reading.
    pub fn enter_region(&self, start: usize, end: usize) -> Result<(), Unmanaged> {
        let pages = (end - start) / PAGE;
        let pages = u32::try_from(pages).map_err(|_| Unmanaged::NoMemory)?;
        let id = self.insert_region(start, pages)?;
        self.note(Note::Alloc(Self::region_of(id, pages), start));
        self.newly_mapped(pages);
        Ok(())
    }

    /// Makes plain memory of what no region has in a range that is registered. With the lock for
    /// reading.
    pub fn unregister_gaps(&self, start: usize, end: usize) {
        let mut at = start;
        while at < end {
            if let Some(place) = self.regions.find(at) {
                at = place.region.end();
                continue;
            }
            let next = self.regions.next_start_in(at, end);
            let _ = self.uffd().unregister(at, next - at);
            at = next;
        }
    }

    /// Enters a region, in place of those that were taken out if it has to be: a program that
    /// maps and unmaps all the time may never come to the manager's tick, which frees them.
    fn insert_region(&self, start: usize, pages: u32) -> Result<u32, Unmanaged> {
        if self.regions.has_many_retired() {
            self.regions.reclaim(self.oldest_epoch());
        }
        self.regions.insert(start, pages).or_else(|why| {
            self.regions.reclaim(self.oldest_epoch());
            self.regions.insert(start, pages).map_err(|_| why)
        })
    }

    /// A page that was gone is mapped again.
    pub fn mapped_again(&self, region: &Region) {
        region.count_back();
        self.newly_mapped(1);
    }

    fn newly_mapped(&self, pages: u32) {
        let counters = &self.stats().counters;
        let len = u64::from(pages) * PAGE as u64;
        let mapped = counters.mapped_bytes.fetch_add(len, Relaxed) + len;
        counters.mapped_peak_bytes.fetch_max(mapped, Relaxed);
    }

    fn no_longer_mapped(&self, pages: u32) {
        let len = u64::from(pages) * PAGE as u64;
        self.stats().counters.mapped_bytes.fetch_sub(len, Relaxed);
    }

    /// The parts of a range that lie in regions: region, first page, pages.
    fn for_each_part(
        &self,
        start: usize,
        end: usize,
        mut each: impl FnMut(u32, &Region, u32, u32),
    ) {
        if start >= end {
            return;
        }
        self.regions.for_each_in(start, end, |id, region| {
            let (from, to) = (start.max(region.start()), end.min(region.end()));
            if from < to {
                let first = (from - region.start()) / PAGE;
                let count = (to - from).div_ceil(PAGE);
                each(id, region, first as u32, count as u32);
            }
        });
    }

    /// Drops the content of pages and puts them into a state; returns how many
    /// were not in it before.
    fn clear_pages(&self, id: u32, region: &Region, first: u32, count: u32, to: PageState) -> u32 {
        if count < SPARSE || to != PageState::Fresh {
            return self.clear_run(id, region, first, count, to);
        }
        let mut changed = 0;
        region.for_each_touched(first, count, |first, count| {
            changed += self.clear_run(id, region, first, count, to);
        });
        changed
    }

    fn clear_run(&self, id: u32, region: &Region, first: u32, count: u32, to: PageState) -> u32 {
        let mut changed = 0;
        self.regions.no_longer_huge(region.start() + first as usize * PAGE, count);
        for page in first..first + count {
            let word = region.word(page);
            // Most pages of a large mapping were never touched.
            if word.load(Acquire) == FRESH && to == PageState::Fresh {
                continue;
            }
            let place = Place { id, region, page, word };
            let old = PageState::of(self.lock_page(&place));
            // What is gone stays so until it is mapped again.
            let new = if old == PageState::Gone { old } else { to };
            match old {
                PageState::Resident => {
                    region.resident.fetch_sub(1, Relaxed);
                    self.release(1);
                }
                PageState::Staged(slot) => {
                    region.resident.fetch_sub(1, Relaxed);
                    // Its frame is still in the slot, and still counted.
                    self.evict.staging.owner_of(slot).store(ORPHAN, Release);
                }
                _ => {}
            }
            changed += u32::from(old != new);
            debug_assert_eq!(new.word() & BUSY, 0);
            word.store(new.word(), Release);
            // Afterwards, as in `serve`.
            self.drop_content(old);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::{START, pager, place, state, touch};

    const AT: fn(usize) -> usize = |page| START + page * PAGE;

    #[test]
    fn what_is_discarded_is_fresh_and_its_room_is_free() {
        let pager = pager(8);
        for page in 0..4 {
            touch(pager, page);
        }
        pager.carry_out(Message::Remove { start: AT(1), end: AT(3) });
        assert_eq!(
            [0, 1, 2, 3].map(|page| state(pager, page) == PageState::Fresh),
            [false, true, true, false]
        );
        assert_eq!(pager.resident(), 2);
        assert_eq!(place(pager, 0).region.resident.load(Relaxed), 2);
        assert_eq!(place(pager, 0).region.mapped(), 8, "it is still mapped");
    }

    #[test]
    fn what_is_unmapped_is_gone_and_the_last_page_takes_the_region_with_it() {
        let pager = pager(8);
        touch(pager, 5);
        pager.carry_out(Message::Unmap { start: AT(5), end: AT(6) });
        assert_eq!(state(pager, 5), PageState::Gone);
        assert_eq!((pager.resident(), place(pager, 0).region.mapped()), (0, 7));
        pager.carry_out(Message::Remove { start: AT(5), end: AT(6) });
        assert_eq!(state(pager, 5), PageState::Gone, "what is gone stays so");
        pager.carry_out(Message::Unmap { start: AT(0), end: AT(8) });
        assert!(pager.regions.find(AT(0)).is_none());
        assert_eq!(pager.stats().counters.mapped_bytes.load(Relaxed), 0);
    }

    /// Of each page one region has it, whichever had it before.
    #[test]
    fn what_is_mapped_again_is_fresh_where_no_other_region_has_it() {
        let pager = pager(8);
        let (all, fresh) = (8 * PAGE as u64, PageState::Fresh);
        let mapped = || pager.stats().counters.mapped_bytes.load(Relaxed);
        pager.carry_out(Message::Unmap { start: AT(2), end: AT(6) });
        assert_eq!(mapped(), all / 2);

        pager.cover(AT(1), AT(6)).expect("room");
        assert!((2..6).all(|page| state(pager, page) == fresh));
        assert_eq!((mapped(), place(pager, 0).region.mapped()), (all, 8));

        // Two of them come back in a region of their own, and one of these is touched.
        pager.carry_out(Message::Unmap { start: AT(2), end: AT(6) });
        pager.enter_region(AT(3), AT(5)).expect("room");
        touch(pager, 3);
        pager.cover(AT(2), AT(6)).expect("room");
        let states = [2, 3, 4, 5].map(|page| state(pager, page));
        assert_eq!(states, [fresh, PageState::Resident, fresh, fresh]);
        let in_first = [2, 3, 4, 5].map(|page| place(pager, page).id == place(pager, 0).id);
        assert_eq!(in_first, [true, false, false, true]);
        assert_eq!((mapped(), place(pager, 0).region.mapped()), (all, 6));
    }

    /// Of 16 TiB, the number of pages was taken for none.
    #[test]
    fn a_range_of_more_pages_than_can_be_numbered_is_no_region() {
        let pager = pager(1);
        let start = 0x3000_0000_0000;
        assert_eq!(pager.enter_region(start, start + (16 << 40)), Err(Unmanaged::NoMemory));
        assert!(pager.regions.find(start).is_none());
    }

    #[test]
    fn pages_that_move_keep_what_is_held_of_them() {
        let pager = pager(8);
        touch(pager, 2);
        place(pager, 3).word.store(PageState::Same(0).word(), Release);
        let to = START + (1 << 30);
        pager.carry_out(Message::Remap { from: AT(2), to, len: 2 * PAGE });
        let moved =
            |n| PageState::of(pager.regions.find(to + n * PAGE).unwrap().word.load(Relaxed));
        assert_eq!([moved(0), moved(1)], [PageState::Resident, PageState::Same(0)]);
        assert_eq!([2, 3].map(|page| state(pager, page)), [PageState::Gone; 2]);
        assert_eq!(pager.resident(), 1);
        assert_eq!(pager.stats().counters.mapped_bytes.load(Relaxed), 8 * PAGE as u64);
    }

    #[test]
    fn a_page_that_waits_in_a_slot_leaves_its_frame_to_nobody_when_it_is_unmapped() {
        let pager = pager(4);
        touch(pager, 1);
        let at = place(pager, 1);
        pager.evict.staging.owner_of(7).store(owner(at.id, at.page), Release);
        at.word.store(PageState::Staged(7).word(), Release);
        pager.carry_out(Message::Unmap { start: AT(1), end: AT(2) });
        assert_eq!(pager.evict.staging.owner_of(7).load(Relaxed), ORPHAN);
        assert_eq!(pager.resident(), 1, "its frame is still there, and counted");
    }
}
