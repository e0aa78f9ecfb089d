//! The end of a freeze: what happened meanwhile enters the books.

use core::sync::atomic::Ordering::*;

use terrace_core::FaultKind;

use crate::decide::notes::Note;
use crate::evict::staging::NOBODY;
use crate::pager::Pager;
use crate::pager::freeze::Why;
use crate::space::page_state::PageState;
use crate::space::proc_maps::Pagemap;
use crate::space::regions::Place;
use crate::sys::spin::give_way;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

impl Worker<'_> {
    /// Ends a freeze: carries out what happened meanwhile, and brings the pages
    /// that were served into the books, before anyone else uses them.
    pub(crate) fn thaw(&mut self) {
        let pager = self.pager;
        if pager.is_stopped() {
            // The books are left as they are, for who brings everything in.
            pager.freeze.end(Why::Fork);
            return;
        }
        // Whoever serves a fault from the frozen books holds this lock, too.
        let reading = pager.reading.lock();
        // Of what has moved, it is not known where it was brought in.
        let moved = pager.freeze.deferred.lock().has_moved();
        pager.carry_out_deferred();
        let mut brought_in = pager.freeze.brought_in.lock();
        let (pages, overflow) = brought_in.take();
        let pagemap = Pagemap::open();
        let mut doubtful = Vec::new();
        for &address in pages {
            if let Some(place) = pager.regions.find(address)
                && adopt(pager, &place, &pagemap) == Adopted::Unknown
            {
                note(&mut doubtful, address);
            }
        }
        if overflow || moved {
            for address in self.adopt_present() {
                note(&mut doubtful, address);
            }
        }
        drop(brought_in);
        pager.freeze.end(Why::Fork);
        drop(reading);
        self.adopt_doubtful(doubtful, &pagemap);
    }

    /// Brings every present page into the books; returns those of which it cannot be told yet
    /// whether they are ours.
    pub(crate) fn adopt_present(&mut self) -> Vec<usize> {
        let pager = self.pager;
        let pagemap = Pagemap::open();
        let mut doubtful = Vec::new();
        for (_, region) in pager.regions.iter() {
            pagemap.for_each_present(region.start(), region.end(), |start, count| {
                for i in 0..count {
                    if let Some(place) = pager.regions.find(start + i * PAGE)
                        && adopt(pager, &place, &pagemap) == Adopted::Unknown
                    {
                        note(&mut doubtful, place.address());
                    }
                }
            });
        }
        doubtful
    }

    /// Tries pages again of which the kernel did not say whether they are ours, now that others
    /// read what it has to tell. Those of which it still does not say stay out of the books: they
    /// are not counted, and do not leave.
    fn adopt_doubtful(&self, mut pages: Vec<usize>, pagemap: &Pagemap) {
        let pager = self.pager;
        let until = sys::now() + DOUBT;
        while !pages.is_empty() && sys::now() < until {
            while pager.uffd().is_changing() && sys::now() < until {
                give_way();
            }
            pages.retain(|&address| {
                if !pager.enter(self.id) {
                    pager.leave(self.id);
                    return true;
                }
                let place = pager.regions.find(address);
                let adopted =
                    place.map_or(Adopted::No, |place| match pagemap.is_present(address) {
                        Some(true) => adopt(pager, &place, pagemap),
                        _ => Adopted::No,
                    });
                pager.leave(self.id);
                adopted == Adopted::Unknown
            });
        }
    }
}

/// Of so many pages it is tried again at most whether they are ours, after a look at all of them.
const DOUBTFUL: usize = 16_384;
/// For how long (ns) at most.
const DOUBT: u64 = 1_000_000;

/// Notes a page to be tried again, if there is room for it. A thread that forks waits meanwhile, so
/// nothing may fail: a page that is not noted stays out of the books, like one that stays in doubt.
fn note(doubtful: &mut Vec<usize>, address: usize) {
    if doubtful.len() < DOUBTFUL && doubtful.try_reserve(1).is_ok() {
        doubtful.push(address);
    }
}

/// Whether a present page has entered the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Adopted {
    /// It has, or was in them.
    Yes,
    /// It is not ours, or what we hold of it is all that there is.
    No,
    /// The address space is changing, and whether it is ours cannot be told.
    Unknown,
}

/// A page was present a moment ago: brings that into the books, whatever we held
/// of it. Unless it is gone again: another worker may have made it leave in the
/// meantime, and then what we hold is all there is of it.
///
/// And unless we have nothing to do with it: where memory was unmapped that a region still has in
/// its midst, the program may have mapped other memory, too little to be managed, say. That is
/// registered with nobody. In the books, it would be made to leave like all other memory, and as
/// nobody would hear of the next touch, the program would find zeros. If it is
/// unmapped right after the kernel was asked, the event is carried out after we have let go of
/// the page.
pub(crate) fn adopt(pager: &Pager, place: &Place<'_>, pagemap: &Pagemap) -> Adopted {
    let word = pager.lock_page(place);
    let state = PageState::of(word);
    if state == PageState::Gone {
        let ours = pager.uffd().knows_registered(place.address());
        if ours != Some(true) {
            place.word.store(word, Release);
            return if ours.is_none() { Adopted::Unknown } else { Adopted::No };
        }
    }
    // Of a fresh page nothing is held that could be lost.
    if state.is_held() && pagemap.is_present(place.address()) != Some(true) {
        place.word.store(word, Release);
        return Adopted::No;
    }
    match state {
        PageState::Resident => {}
        PageState::Staged(slot) => {
            // The slot's frame is an old copy; the tail drops it. Its room
            // passes to the present page.
            pager.evict.staging.owner_of(slot).store(NOBODY, Release);
        }
        other => {
            if other == PageState::Gone {
                pager.mapped_again(place.region);
            }
            pager.reserve_over(1);
            place.region.resident.fetch_add(1, Relaxed);
            let kind = match other {
                PageState::Fresh | PageState::Gone => {
                    FaultKind::FirstTouch(terrace_core::Access::Write)
                }
                _ => FaultKind::Absent(terrace_core::Access::Write),
            };
            pager.note(Note::Fault { page: Pager::page_ref(place), kind });
        }
    }
    place.word.store(PageState::Resident.word(), Release);
    // Afterwards, as in `serve`.
    pager.drop_content(state);
    Adopted::Yes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::{pager, place, state};
    use crate::pager::freeze::Why;

    #[test]
    fn what_came_while_frozen_is_in_the_books_and_counted_once() {
        let pager = pager(4);
        let pagemap = Pagemap::open();
        for _ in 0..2 {
            adopt(pager, &place(pager, 1), &pagemap);
        }
        assert_eq!((state(pager, 1), pager.resident()), (PageState::Resident, 1));
        assert_eq!(place(pager, 1).region.resident.load(Relaxed), 1);
    }

    #[test]
    fn what_is_held_of_a_page_that_is_gone_again_stays() {
        let pager = pager(4);
        place(pager, 2).word.store(PageState::Same(0).word(), Release);
        // Nothing is mapped there.
        adopt(pager, &place(pager, 2), &Pagemap::open());
        assert_eq!((state(pager, 2), pager.resident()), (PageState::Same(0), 0));
    }

    /// Other memory may be mapped there by now. It was made to leave, and read zeros.
    #[test]
    fn where_memory_is_gone_what_is_not_registered_stays_out_of_the_books() {
        let pager = pager(4);
        place(pager, 1).word.store(PageState::Gone.word(), Release);
        // The fixture's handle has nothing registered.
        assert_eq!(adopt(pager, &place(pager, 1), &Pagemap::open()), Adopted::No);
        assert_eq!((state(pager, 1), pager.resident()), (PageState::Gone, 0));
        assert_eq!(place(pager, 1).region.resident.load(Relaxed), 0);
    }

    #[test]
    fn the_freeze_ends_after_the_deferred_events_and_what_broke_leaves_the_books_alone() {
        use crate::pager::fixture::START;
        use crate::sys::uffd::Message;
        let discard = Message::Remove { start: START, end: START + PAGE };
        for broken in [false, true] {
            let pager = pager(4);
            place(pager, 0).word.store(PageState::Same(0).word(), Release);
            pager.freeze.begin(Why::Fork);
            pager.freeze.deferred.lock().push(discard);
            if broken {
                pager.stop();
            }
            Worker::new(pager, 0).thaw();
            assert!(!pager.freeze.is_on());
            let expected = if broken { PageState::Same(0) } else { PageState::Fresh };
            assert_eq!(state(pager, 0), expected);
        }
    }
}
