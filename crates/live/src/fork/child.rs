//! A fork from the child's side: it takes over what it was given a copy of, or is put on
//! plain memory.

use core::sync::atomic::Ordering::*;

use super::DESCRIPTORS;
use super::handover::{CHILD_PLAIN, CHILD_READY, NOTHING, RELEASED};
use crate::decide::event_ring;
use crate::fork::wiped;
use crate::pager::{MANAGER, Pager};
use crate::space::page_state::{BUSY, PageState};
use crate::stats::process_page::{ProcessPage, State, Text};
use crate::sys::uffd::Uffd;
use crate::sys::{self, MADV_GUARD_INSTALL, limits};
use crate::workers::worker::Worker;

impl Pager {
    /// In the child: whether the thread that forked is under a filter on system calls that is not ours.
    /// Then [`Pager::after_fork_in_child`] asks the kernel for nothing.
    pub fn is_forked_under_filter(&self) -> bool {
        self.fork.filtered.load(Acquire)
    }

    /// In the child: waits until the parent has let go of our memory, and
    /// forgets the parent's threads. Touches nothing that is managed. False if
    /// the child may not manage itself; it is on plain memory then.
    ///
    /// # Safety
    /// Only in a child of a fork that [`Pager::before_fork`] announced, before
    /// it has any other thread.
    pub unsafe fn after_fork_in_child(&self) -> bool {
        if self.is_forked_under_filter() {
            self.await_memory();
            return false;
        }
        self.count_apart();
        // A process that has dropped its rights may not.
        let able = limits::with_more_descriptors(|| {
            Uffd::open().is_ok_and(|(probe, _)| {
                probe.close();
                limits::descriptor_limit() >= DESCRIPTORS
            })
        });
        let parent = self.fork.parent.load(Relaxed);
        let able = able && limits::with_more_descriptors(|| self.adopt_spilled(parent));
        let request = if able { CHILD_READY } else { CHILD_PLAIN };
        let orphaned = self.await_release(request);
        // SAFETY: the caller's.
        unsafe { self.guard_again() };
        // SAFETY: the caller's.
        unsafe { self.freeze.deferred.force_unlock() };
        let events = self.fork.handover().events();
        if let Some(events) = events {
            self.freeze.deferred.lock().take_over(events);
        }
        // Without, it has all its memory, and books that are not true of it.
        let filled = !orphaned && events.is_none();
        self.fork.keep_apart();
        self.fork.forget_handover();
        // A parent that broke has brought everything in, unless it was killed before.
        let stays_plain = !able || filled || self.is_stopped();
        if orphaned {
            self.check_orphan(stays_plain);
        }
        if stays_plain {
            return false;
        }
        // Before anything is told again: the parent writes to these rings.
        event_ring::forked();
        // SAFETY: the caller's.
        unsafe { self.reset() };
        // Nothing of the child's is registered any more, and nobody else runs in it: if
        // something of ours breaks here, it is put on plain memory here.
        let caught_up = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.carry_out_deferred();
            for (start, end) in wiped::marked() {
                self.discarded(start, end);
            }
            // Who covered them in the parent is not here.
            for range in core::mem::take(&mut *self.fork.covered.lock()) {
                self.discarded(range.start, range.end);
            }
        }));
        if caught_up.is_err() {
            self.restore_alone();
        }
        caught_up.is_ok()
    }

    /// In a child that has its memory: installs guards again that its parent was installing. Until the books
    /// know of them, content may come back over guards. The parent takes that away by installing them once more,
    /// but a copy may have been made before.
    ///
    /// # Safety
    /// In a child, by its only thread.
    pub unsafe fn guard_again(&self) {
        // SAFETY: who looked at the list in the parent is not here, and nobody changed it.
        unsafe { self.fork.covered.force_unlock() };
        for range in self.fork.covered.lock().iter().filter(|range| range.by_guards) {
            // SAFETY: what lay there is discarded, as the kernel has done before. It refuses only where the
            // program has unmapped some of it meanwhile.
            let _ =
                unsafe { sys::madvise(range.start, range.end - range.start, MADV_GUARD_INSTALL) };
        }
    }

    /// In a child under a filter on system calls: waits until it has all its memory. Makes no
    /// call itself, which might be its last.
    fn await_memory(&self) {
        let handover = self.fork.handover();
        if handover.step.compare_exchange(NOTHING, CHILD_PLAIN, AcqRel, Acquire).is_err() {
            return;
        }
        while handover.step.load(Acquire) != RELEASED {
            if handover.parent_died() && handover.step.load(Acquire) != RELEASED {
                orphan_lost();
            }
            core::hint::spin_loop();
        }
    }

    /// In a child that cannot be managed after all, and of which nothing is registered.
    pub fn stay_plain(&self, why: &str) {
        self.restore_alone();
        let stats = self.stats();
        stats.state.store(State::Failed as u32, Relaxed);
        stats.set_text(Text::Failure, why);
    }

    /// In a child that will have no pager: brings in what is absent, from books of which the
    /// deferred events are not carried out, or one of them in part.
    fn restore_alone(&self) {
        let mut worker = Worker::new(self, MANAGER);
        for (state, origin) in self.absent_pages(|| true) {
            let Some(address) = self.freeze.deferred.lock().destination(origin) else { continue };
            // What is there is newer than what we hold.
            if self.is_wiped(address) || worker.pagemap.is_present(address) == Some(true) {
                continue;
            }
            if !worker.restore(state, address, true) {
                sys::complain(&["a page cannot be brought in in a child; it cannot go on"]);
                std::process::abort();
            }
        }
    }

    /// In the child, while the parent is frozen: counts on a page of its own from here
    /// on, which begins with what is true of both. Later the parent's page says what
    /// has become of the parent's memory, and what the child does would be entered there.
    fn count_apart(&self) {
        if let Ok(page) = ProcessPage::anonymous() {
            page.inherit(self.stats());
            let parents = core::ptr::from_ref(self.stats()).cast_mut();
            self.fork.inherited.store(parents, Relaxed);
            self.set_stats(page);
            self.fork.interim.store(core::ptr::from_ref(page).cast_mut(), Relaxed);
        }
    }

    /// In the child, before it has any other thread: counts on the page that others can
    /// see.
    pub fn count_on(&self, page: &'static ProcessPage) {
        page.inherit(self.stats());
        self.set_stats(page);
        for page in [&self.fork.interim, &self.fork.inherited] {
            let page = page.swap(core::ptr::null_mut(), Relaxed);
            if !page.is_null() {
                // SAFETY: nobody in this process counts there any more.
                let _ = unsafe { sys::munmap(page as usize, size_of::<ProcessPage>()) };
            }
        }
    }

    /// In the child: tells the parent, and waits for it. True if the parent
    /// died instead.
    fn await_release(&self, request: u32) -> bool {
        let handover = self.fork.handover();
        // A parent that lost its patience has let go already.
        if handover.step.compare_exchange(NOTHING, request, AcqRel, Acquire).is_err() {
            return false;
        }
        sys::futex_wake(&handover.step, true);
        while handover.step.load(Acquire) != RELEASED {
            if handover.parent_died() {
                return handover.step.load(Acquire) != RELEASED;
            }
            sys::futex_wait(&handover.step, request, Some(20_000_000), true);
        }
        false
    }

    /// In a child whose parent was killed in the middle of the handover. What
    /// was touched since may have been served by the kernel, with zeros: then
    /// the content is lost, and the child cannot go on. With `fill`, brings
    /// everything in.
    fn check_orphan(&self, fill: bool) {
        if self.is_stopped() && self.is_any_busy() {
            orphan_lost();
        }
        let mut worker = Worker::new(self, MANAGER);
        for (state, address) in self.absent_pages(|| true) {
            if !worker.restore(state, address, fill) {
                orphan_lost();
            }
        }
    }

    /// Whether a page was in somebody's hands: of what a thread that broke was at, the books say
    /// nothing certain.
    fn is_any_busy(&self) -> bool {
        self.regions.iter().any(|(_, region)| {
            (0..region.pages()).any(|page| region.word(page).load(Acquire) & BUSY != 0)
        })
    }

    /// The spill file is the parent's: brings what we have in it into RAM. False if the
    /// file may not be opened (the parent has dropped its rights, say), or there is no memory
    /// for it.
    fn adopt_spilled(&self, parent: i32) -> bool {
        if !self.spill.is_open() {
            return true;
        }
        if self.spill.used().is_zero() {
            self.spill.abandon();
            return true;
        }
        let manager = self.workers[MANAGER].tid.load(Relaxed);
        if !self.spill.reopen(parent, manager) {
            return false;
        }
        let mut reader = crate::spill::reader::Reader::new();
        for (_, region) in self.regions.iter() {
            for page in 0..region.pages() {
                let word = region.word(page);
                let PageState::Spilled(at) = PageState::of(word.load(Acquire)) else { continue };
                self.fork.handover().progress.fetch_add(1, Release);
                let bytes = reader.read(&self.spill, at, true);
                let was_read = bytes.is_ok();
                let Some(blob) = bytes.ok().and_then(|bytes| self.store.put(bytes)) else {
                    if self.fork.handover().step.load(Acquire) == RELEASED {
                        // The parent has lost its patience, and has brought it in.
                        word.store(PageState::Fresh.word(), Release);
                        continue;
                    }
                    if was_read {
                        return false;
                    }
                    sys::complain(&["a spilled page cannot be read in a child; it cannot go on"]);
                    std::process::abort();
                };
                let (raw, len) = (at.is_raw(), at.len());
                let counters = &self.stats().counters;
                counters.stored_pages.fetch_add(1, Relaxed);
                counters.blob_bytes.fetch_add(len as u64, Relaxed);
                let state =
                    if raw { PageState::Raw(blob.0) } else { PageState::Compressed(blob.0) };
                if raw {
                    counters.incompressible.fetch_add(1, Relaxed);
                }
                word.store(state.word(), Release);
            }
        }
        reader.give_back();
        self.spill.forget();
        true
    }
}

/// What the child's memory was is not known any more: rather no child than one that reads zeros.
fn orphan_lost() -> ! {
    sys::complain(&["the parent was killed while it forked; its child cannot go on"]);
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::Covered;
    use crate::pager::fixture::{pager, place};
    use crate::sys::PAGE;

    /// Its owner was not copied: nothing certain is known of the page.
    #[test]
    fn a_page_that_was_in_somebodys_hands_is_found() {
        let pager = pager(3);
        assert!(!pager.is_any_busy());
        place(pager, 2).word.fetch_or(BUSY, AcqRel);
        assert!(pager.is_any_busy());
    }

    /// What holds of both it has from the parent; what the parent did, the parent has counted.
    #[test]
    fn a_child_counts_from_what_it_has_and_not_on_its_parents_page() {
        let pager = pager(1);
        let parents = pager.stats();
        parents.counters.stored_pages.store(5, Relaxed);
        parents.counters.promotions.store(7, Relaxed);
        pager.count_apart();
        pager.stats().counters.stored_pages.fetch_add(1, Relaxed);
        assert_eq!(parents.counters.stored_pages.load(Relaxed), 5);
        let seen = ProcessPage::anonymous().expect("memory");
        // From here on the parent's page and the one in between are gone.
        pager.count_on(seen);
        assert_eq!(seen.counters.stored_pages.load(Relaxed), 6);
        assert_eq!(seen.counters.promotions.load(Relaxed), 0);
        assert!(core::ptr::eq(pager.stats(), seen));
    }

    /// The parent was between installing them and taking away what had come back over them.
    #[test]
    #[cfg_attr(miri, ignore = "advice that nobody takes")]
    fn content_over_guards_that_a_parent_was_installing_is_no_childs() {
        const MADV_GUARD_REMOVE: i32 = 103;
        let pager = pager(1);
        let at = sys::map_private(3 * PAGE).expect("address space");
        let byte = |page: usize| (at + page * PAGE) as *mut u8;
        (0..3).for_each(|page| {
            // SAFETY: within the mapping.
            unsafe { byte(page).write(1) };
            let (start, end) = (at + page * PAGE, at + (page + 1) * PAGE);
            pager.fork.covered.lock().push(Covered { start, end, by_guards: page == 1 });
        });
        // Whoever holds it in the parent is not here.
        core::mem::forget(pager.fork.covered.lock());
        // SAFETY: nobody else has this pager.
        unsafe { pager.guard_again() };
        // SAFETY: within the mapping; takes guards away, if there are any.
        if unsafe { sys::madvise(at + PAGE, PAGE, MADV_GUARD_REMOVE) }.is_err() {
            println!("this kernel has no guards: NOT shown");
            return;
        }
        // SAFETY: within the mapping, without guards.
        let left = [0, 1, 2].map(|page| unsafe { byte(page).read() });
        assert_eq!(left, [1, 0, 1], "shared memory stays");
        // SAFETY: ours.
        unsafe { sys::munmap(at, 3 * PAGE) }.expect("unmapped");
    }

    #[test]
    fn a_child_waits_until_its_parent_has_let_go_and_not_if_it_has_already() {
        let pager = pager(1);
        let page = pager.fork.take_one().expect("memory");
        pager.fork.handover.store(page, Release);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while pager.fork.handover().step.load(Acquire) != CHILD_READY {
                    std::thread::yield_now();
                }
                pager.fork.handover().release();
            });
            assert!(!pager.await_release(CHILD_READY), "the parent lives");
        });
        assert!(!pager.await_release(CHILD_PLAIN), "what it asks for now comes too late");
        assert_eq!(pager.fork.handover().step.load(Acquire), RELEASED);
    }
}
