//! Serving faults: a thread waits for a page, a worker brings it in.
//!
//! The hot path is [`Worker::serve`]: take room, take the page, decompress,
//! hand it to the kernel, which wakes the thread. It neither allocates nor
//! logs, and waits only for other workers that hold a page or the ring for a
//! bounded piece of work.

use core::sync::atomic::Ordering::*;

use libc::EEXIST;
use terrace_core::{FaultKind, Nanos};

use crate::decide::decider::access;
use crate::decide::notes::Note;
use crate::failsafe::inject::{self, Point};
use crate::fault::content::{damaged, zeros};
use crate::fault::slow_path::not_served_by;
use crate::pager::Pager;
use crate::space::page_state::{BUSY, PageState};
use crate::space::regions::Place;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Whether a fault is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The thread runs again.
    Done,
    /// The address space is changing; try again after reading messages.
    Retry,
    /// The kernel does not take the page, now or later (an error number): a filter on
    /// system calls covers this thread, say.
    Refused(i32),
}

impl Worker<'_> {
    /// Serves a fault at a page's address, with which it began at `start` (`CLOCK_MONOTONIC`, ns).
    pub fn serve(&mut self, address: usize, write: bool, start: u64) -> Served {
        inject::at(Point::Fault);
        let pager = self.pager;
        if !pager.enter(self.id) {
            pager.leave(self.id);
            return self.serve_while_frozen(address);
        }
        let Some(place) = pager.regions.find(address) else {
            pager.leave(self.id);
            return self.serve_unknown(address);
        };
        let ahead = self.look_ahead(&place, write);
        let mut room = ahead.count;
        // The region may be taken away while room is made: it is looked up once more then.
        let mut found = Some(place);
        if !pager.try_reserve(1 + u64::from(room)) {
            // Leave first: making room must not hold up a fork, and must not
            // be waited for by one.
            pager.leave(self.id);
            let short = sys::now();
            self.reserve(1);
            room = self.reserve_ahead(room);
            let counters = &pager.stats().counters;
            counters.direct_reclaim_ns.fetch_add(sys::now() - short, Relaxed);
            if !pager.enter(self.id) {
                pager.leave(self.id);
                pager.release(1 + u64::from(room));
                return self.serve_while_frozen(address);
            }
            found = pager.regions.find(address).filter(|again| again.id == place.id);
        }
        let served = if let Some(place) = found {
            place.region.count_fault(place.page);
            if room > 0 {
                self.bring_ahead(&place, ahead, room);
            }
            let fresh = PageState::of(place.word.load(Relaxed)) == PageState::Fresh;
            let served = self.serve_reserved(&place, write, start);
            if fresh && ahead.stride == 1 && served == Served::Done {
                self.back_ahead(&place, place.page + 1 + room);
            }
            served
        } else {
            pager.release(1 + u64::from(room));
            Served::Retry
        };
        pager.leave(self.id);
        served
    }

    /// Serves a fault for which one page of room is taken.
    fn serve_reserved(&mut self, place: &Place<'_>, write: bool, start: u64) -> Served {
        let pager = self.pager;
        let word = pager.lock_page(place);
        let state = PageState::of(word);
        if pager.is_stopped() {
            // It may have been taken from one who broke: the word is not to be
            // trusted, and stays marked.
            place.word.store(word | BUSY, Release);
            pager.release(1);
            return Served::Retry;
        }
        inject::at(Point::Promote);
        let (error, kind, woken) = match state {
            PageState::Fresh | PageState::Gone => {
                return self.first_touch(place, state, write, start);
            }
            PageState::Resident => {
                pager.release(1);
                return self.serve_resident(place);
            }
            PageState::Staged(slot) => {
                self.armed = pager.evict.staging.is_armed(slot);
                let error = self.unstage(place, slot);
                (error, FaultKind::Hint(access(write)), sys::now())
            }
            PageState::Compressed(_)
            | PageState::Raw(_)
            | PageState::Same(_)
            | PageState::Spilled(_) => {
                let (error, woken) = self.decompress(place, state);
                (error, FaultKind::Absent(access(write)), woken)
            }
        };
        match error {
            // Present already: what is there is newer than what we hold.
            0 | EEXIST => {
                inject::at(Point::Promoted);
                if error == EEXIST {
                    let _ = pager.uffd().wake(place.address(), PAGE);
                }
                let ring = matches!(state, PageState::Staged(_));
                if ring {
                    pager.huge.probes.touched(place.address());
                    // Its room was never given up.
                    pager.release(1);
                } else {
                    place.region.resident.fetch_add(1, Relaxed);
                }
                pager.note(Note::Fault { page: Pager::page_ref(place), kind });
                place.word.store(PageState::Resident.word(), Release);
                // Afterwards, so that in a core dump no word names what is half freed.
                pager.drop_content(state);
                let counters = &pager.stats().counters;
                if ring {
                    counters.faults_hint.fetch_add(1, Relaxed);
                } else {
                    counters.faults_absent.fetch_add(1, Relaxed);
                    counters.promotions.fetch_add(1, Relaxed);
                }
                self.count(if ring { 2 } else { 1 }, Nanos(woken - start));
                self.after_fault();
                Served::Done
            }
            _ => {
                place.word.store(word, Release);
                pager.release(1);
                self.not_served(place.address(), error)
            }
        }
    }

    /// A page that the program never touched, or discarded: zeros.
    fn first_touch(
        &mut self,
        place: &Place<'_>,
        state: PageState,
        write: bool,
        start: u64,
    ) -> Served {
        let pager = self.pager;
        let uffd = pager.uffd();
        let error = if write {
            uffd.copy(place.address(), zeros(), PAGE).1
        } else {
            // A program that only reads keeps sharing the kernel's zero page.
            uffd.zero(place.address(), PAGE).err().unwrap_or(0)
        };
        let woken = sys::now();
        if error != 0 && error != EEXIST {
            place.word.store(state.word(), Release);
            pager.release(1);
            return self.not_served(place.address(), error);
        }
        if state == PageState::Gone {
            pager.mapped_again(place.region);
        }
        if error == EEXIST {
            let _ = uffd.wake(place.address(), PAGE);
        }
        place.region.resident.fetch_add(1, Relaxed);
        let kind = FaultKind::FirstTouch(access(write));
        pager.note(Note::Fault { page: Pager::page_ref(place), kind });
        place.word.store(PageState::Resident.word(), Release);
        pager.stats().counters.faults_first_touch.fetch_add(1, Relaxed);
        self.count(0, Nanos(woken - start));
        self.after_fault();
        Served::Done
    }

    /// The page is ours and said to be resident, yet somebody waits for it.
    fn serve_resident(&mut self, place: &Place<'_>) -> Served {
        let pager = self.pager;
        let here = self.pagemap.is_present(place.address());
        let error = if here == Some(false) {
            // Only the program can have made it go away: `madvise` or the like.
            pager.uffd().copy(place.address(), zeros(), PAGE).1
        } else {
            // Somebody else brought it in while the message was under way.
            let _ = pager.uffd().wake(place.address(), PAGE);
            0
        };
        place.word.store(PageState::Resident.word(), Release);
        pager.stats().counters.faults_spurious.fetch_add(1, Relaxed);
        match error {
            0 | EEXIST => Served::Done,
            e => self.not_served(place.address(), e),
        }
    }

    /// Decompresses a page and fills it in; says when (ns) that was done.
    fn decompress(&mut self, place: &Place<'_>, state: PageState) -> (i32, u64) {
        let start = sys::now();
        if !self.unpack(state) {
            damaged();
        }
        let counters = &self.pager.stats().counters;
        counters.decompressed.fetch_add(1, Relaxed);
        let unpacked = sys::now();
        counters.decompress_ns.fetch_add(unpacked - start, Relaxed);
        let (at, content) = (place.address(), self.buffer.0.as_ptr() as usize);
        let error = self.bring_back(at, || self.pager.uffd().copy_unwoken(at, content, PAGE).1);
        let woken = sys::now();
        counters.copy_ns.fetch_add(woken - unpacked, Relaxed);
        (error, woken)
    }

    fn not_served(&self, address: usize, error: i32) -> Served {
        not_served_by(self.pager.uffd(), address, error)
    }

    fn count(&mut self, kind: usize, took: Nanos) {
        self.counted = took;
        self.pager.stats().latency[kind].record(self.counted);
    }

    /// Lets the background know when memory is getting short.
    fn after_fault(&self) {
        let pager = self.pager;
        if pager.resident() + pager.headroom() / 2 > pager.budget()
            && pager.bell.is_asleep()
            && pager.fault.handlers.has_spare_processor()
        {
            pager.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::{START, hold, pager, place, state, touch};

    /// What a fault must not change that the kernel did not take: the fixture's takes none.
    fn books(pager: &Pager, page: usize) -> (PageState, u64, u64, u64) {
        let counters = &pager.stats().counters;
        (
            state(pager, page),
            pager.resident(),
            counters.stored_pages.load(Relaxed),
            counters.promotions.load(Relaxed),
        )
    }

    #[test]
    fn a_page_that_the_kernel_does_not_take_stays_where_it_is_and_its_room_is_given_back() {
        let pager = pager(4);
        hold(pager, 1, 7);
        let mut worker = Worker::new(pager, 0);
        for page in [0, 1] {
            let before = books(pager, page);
            let served = worker.serve(START + page * PAGE, true, sys::now());
            assert_eq!(served, Served::Refused(libc::EBADF), "page {page}");
            assert_eq!(books(pager, page), before, "page {page}");
            let word = place(pager, page).word.load(Relaxed);
            assert_eq!(word & BUSY, 0, "somebody else may try");
        }
    }

    /// It might have been discarded, or have moved away: its content would come to where it is no more.
    #[test]
    fn content_comes_back_at_no_moment_at_which_a_change_is_being_read() {
        let pager = pager(4);
        hold(pager, 1, 7);
        let mut worker = Worker::new(pager, 0);
        let before = books(pager, 1);
        let mut serve = || worker.serve(START + PAGE, true, sys::now());
        let reading = pager.reading.lock();
        assert_eq!(serve(), Served::Retry);
        drop(reading);
        // The fixture's kernel was not asked before.
        assert_eq!(serve(), Served::Refused(libc::EBADF));
        assert_eq!(books(pager, 1), before);
    }

    /// A message that was under way when another brought the page in.
    #[test]
    fn a_fault_on_a_resident_page_takes_no_room() {
        let pager = pager(2);
        touch(pager, 0);
        let before = pager.resident();
        let mut worker = Worker::new(pager, 0);
        worker.serve(START, false, sys::now());
        assert_eq!((state(pager, 0), pager.resident()), (PageState::Resident, before));
        assert_eq!(pager.stats().counters.faults_spurious.load(Relaxed), 1);
    }

    /// Whoever held the page may have broken in the middle: the word is not to be trusted.
    #[test]
    fn once_something_of_ours_broke_a_page_is_left_marked_for_who_brings_everything_in() {
        let pager = pager(2);
        let held = hold(pager, 0, 9);
        pager.stop();
        let before = pager.resident();
        let mut worker = Worker::new(pager, 0);
        assert_eq!(worker.serve(START, false, sys::now()), Served::Retry);
        assert_eq!(place(pager, 0).word.load(Relaxed), held.word() | BUSY);
        assert_eq!(pager.resident(), before);
    }

    #[test]
    fn while_a_fork_copies_the_books_a_fault_changes_nothing_in_them() {
        let pager = pager(2);
        hold(pager, 0, 9);
        let before = books(pager, 0);
        pager.freeze.begin(crate::pager::freeze::Why::Fork);
        let mut worker = Worker::new(pager, 0);
        worker.serve(START, false, sys::now());
        assert_eq!(books(pager, 0), before);
        assert_eq!(pager.workers[0].busy.load(Relaxed), 0, "a fork does not wait for it");
    }
}
