//! Bringing pages in ahead of a walking program: see [`crate::fault::streams`].
//!
//! It is an extra before a fault is served, and may be left off at any point:
//! a page that somebody has, or whose address space is changing, stays where it is.

use core::sync::atomic::Ordering::*;

use terrace_core::{Access, FaultKind};

use crate::decide::decider::Work;
use crate::decide::notes::Note;
use crate::evict::reclaim::{Pace, Progress};
use crate::fault::content::{damaged, unpack, zeros};
use crate::fault::streams::{Ahead, MOST};
use crate::fault::walks_pay::Kind;
use crate::pager::Pager;
use crate::space::page_state::PageState;
use crate::space::regions::Place;
use crate::spill::reader::{Reader, Window};
use crate::store::codec::PageBytes;
use crate::sys::spin::{SharedGuard, backoff};
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// How often the lock for reading is tried before the pages are left alone: its
/// holder may be waiting for one of them.
const TRIES: u32 = 16;

/// How often to look whether another has made room, instead of going without.
const PATIENCE: u32 = 256;

/// A page that is taken, to be filled in.
#[derive(Clone, Copy)]
struct Taken {
    page: u32,
    word: u64,
}

/// Room for the contents of [`MOST`] pages.
pub(crate) struct Batch {
    /// Address, or 0 if there is no memory for it.
    at: usize,
}

impl Batch {
    /// Memory of ours that takes no frame before it is used.
    pub(crate) fn new() -> Self {
        Self { at: sys::map_private(MOST * PAGE).unwrap_or(0) }
    }

    /// In a forked child, of a worker of its parent's.
    pub(crate) fn give_back(&mut self) {
        let at = core::mem::take(&mut self.at);
        if at != 0 {
            // SAFETY: mapped by `new`, and nobody uses it any more.
            let _ = unsafe { sys::munmap(at, MOST * PAGE) };
        }
    }

    fn address(&self, n: usize) -> usize {
        self.at + n * PAGE
    }

    fn page(&mut self, n: usize) -> &mut PageBytes {
        debug_assert!(n < MOST && self.at != 0);
        // SAFETY: `n` is within the mapping, which is ours alone, page-aligned
        // and not unmapped while this lives; the borrow of `self` is exclusive.
        unsafe { &mut *(self.address(n) as *mut PageBytes) }
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// How often the spill file is read for pages that nobody waits for, while somebody
/// waits for another.
const READS: u32 = 1;

/// Whether a page's content is held by us, in memory.
fn is_stored(state: PageState) -> bool {
    matches!(state, PageState::Compressed(_) | PageState::Raw(_) | PageState::Same(_))
}

impl Worker<'_> {
    /// What to bring in with a page that was asked for, by the faults so far. To
    /// be called once a fault.
    pub(crate) fn look_ahead(&self, place: &Place<'_>, write: bool) -> Ahead {
        let (streams, pays) = (&self.pager.fault.streams, &self.pager.fault.pays);
        // It is behind where its walk is.
        if pays.is_left_out(place.id, place.page) {
            return Ahead::default();
        }
        let state = PageState::of(place.word.load(Relaxed));
        // Reading what was never touched shares the kernel's zero page.
        let watched = match state {
            PageState::Fresh => write,
            other => is_stored(other) || matches!(other, PageState::Spilled(_)),
        };
        if !watched {
            return Ahead::default();
        }
        // A small budget is not to be filled with guesses.
        let most = u32::try_from(self.pager.own_budget() / 64).unwrap_or(u32::MAX);
        let is_resident = |page| {
            let word = place.region.get(page);
            word.is_some_and(|word| PageState::of(word.load(Relaxed)) == PageState::Resident)
        };
        let ahead = streams.fault(place.id, place.page, most, is_resident);
        let kind = Kind::of(state == PageState::Fresh);
        if ahead.count == 0 || pays.is_open(kind) {
            return ahead;
        }
        streams.hold(place.id, place.page, ahead);
        // One page would have been there if the walk had been gone ahead of.
        if pays.ask(kind, 1).0.is_some() {
            self.wait_for_one(place, ahead, kind);
        }
        Ahead { count: 0, ..ahead }
    }

    /// Of a walk that is not gone ahead of, one page is waited for that would have come.
    fn wait_for_one(&self, place: &Place<'_>, ahead: Ahead, kind: Kind) {
        // In the middle, as the mean page of a window is.
        let away = i64::from(ahead.stride) * i64::from(ahead.count / 2 + 1);
        let page = u32::try_from(i64::from(place.page) + away).ok();
        let would_come = |page: &u32| {
            let word = place.region.get(*page);
            word.is_some_and(|word| match PageState::of(word.load(Relaxed)) {
                PageState::Fresh => kind == Kind::Fresh,
                PageState::Spilled(_) => kind == Kind::Stored,
                other => kind == Kind::Stored && is_stored(other),
            })
        };
        if let Some(page) = page.filter(would_come) {
            self.pager.fault.pays.leave_out(kind, place.id, page);
        }
    }

    /// Takes room for pages that nobody waits for yet; how many pages. It makes
    /// room as a fault would, but not beyond the budget.
    pub(crate) fn reserve_ahead(&mut self, count: u32) -> u32 {
        let pager = self.pager;
        // Taking no room at all would fail, too, where the budget is exceeded.
        if count == 0 || pager.try_reserve(u64::from(count)) {
            return count;
        }
        let mut spins = 0;
        for _ in 0..PATIENCE {
            pager.throttle();
            if let Some(ring) = pager.evict.ring.try_lock() {
                let progress = self.make_room(ring, Pace::BATCH);
                if matches!(progress, Progress::Nothing | Progress::Changing) {
                    break;
                }
            } else {
                // Another makes room just now; its batch is worth waiting for.
                backoff(&mut spins);
            }
            if pager.try_reserve(u64::from(count)) {
                return count;
            }
        }
        let some = [count, count / 2, count / 4];
        some.into_iter().find(|&n| n > 0 && pager.try_reserve(u64::from(n))).unwrap_or(0)
    }

    /// Brings in the pages that follow one that was asked for; room is taken for
    /// `room` of them, and given back as far as it is not used.
    pub(crate) fn bring_ahead(&mut self, place: &Place<'_>, ahead: Ahead, room: u32) {
        let pager = self.pager;
        let fresh = PageState::of(place.word.load(Relaxed)) == PageState::Fresh;
        let (kind, pays) = (Kind::of(fresh), &pager.fault.pays);
        let (leave, first) = pays.ask(kind, room);
        if first {
            // It asks the economist.
            pager.ring();
        }
        let work = pays.begins_window(kind).then(Work::begin);
        let mut taken = [Taken { page: 0, word: 0 }; MOST];
        let count = if self.batch.at == 0 { 0 } else { (room as usize).min(MOST) };
        let count = take(pager, place, ahead, fresh, leave, &self.reader, &mut taken[..count]);
        let taken = &mut taken[..count];
        let filled = self.fill(place, taken, fresh);
        pays.came(kind, filled, work.map(|work| work.took()));
        pager.release(u64::from(room) - u64::from(filled));
    }

    /// Fills fresh pages with zeros; room is taken for all of them. Returns how many.
    pub(crate) fn fill_fresh(&mut self, place: &Place<'_>, first: u32, count: u32) -> u32 {
        let mut filled = 0;
        for page in (first..first + count).step_by(MOST) {
            let mut taken = [Taken { page: 0, word: 0 }; MOST];
            let mut n = 0;
            for page in page..(page + MOST as u32).min(first + count) {
                let Some(word) = place.region.get(page) else { break };
                let fresh = PageState::Fresh;
                if self.pager.try_lock_page(&Place { page, word, ..*place }, fresh) {
                    taken[n] = Taken { page, word: fresh.word() };
                    n += 1;
                }
            }
            filled += self.fill(place, &mut taken[..n], true);
        }
        filled
    }

    /// Fills in pages, stored or fresh; returns how many.
    fn fill(&mut self, place: &Place<'_>, taken: &mut [Taken], fresh: bool) -> u32 {
        if taken.is_empty() {
            return 0;
        }
        let pager = self.pager;
        // Neighbours go in one call, in the order of their addresses.
        taken.sort_unstable_by_key(|t| t.page);
        let start = sys::now();
        for (i, t) in taken.iter().enumerate().filter(|_| !fresh) {
            if !unpack(pager, PageState::of(t.word), self.batch.page(i), &mut self.reader, true) {
                damaged();
            }
        }
        let unpacked = sys::now();
        // Else old content could come back to life.
        let reading = self.reading_if_free();
        let mut filled = 0;
        for run in runs(taken) {
            let at = place.region.start() + taken[run.start].page as usize * PAGE;
            let from = if fresh { zeros() } else { self.batch.address(run.start) };
            let done = match &reading {
                Some(_) => pager.uffd().copy(at, from, run.len() * PAGE).0 / PAGE,
                None => 0,
            };
            for (i, t) in taken[run].iter().enumerate() {
                let word = place.region.word(t.page);
                if i >= done {
                    word.store(t.word, Release);
                    continue;
                }
                let kind =
                    if fresh { FaultKind::FirstTouch(Access::Write) } else { FaultKind::Ahead };
                let at = Place { page: t.page, word, ..*place };
                pager.note(Note::Fault { page: Pager::page_ref(&at), kind });
                word.store(PageState::Resident.word(), Release);
                // Afterwards, as in `serve`. Of a fresh page nothing is held.
                pager.drop_content(PageState::of(t.word));
                filled += 1;
            }
        }
        drop(reading);
        place.region.resident.fetch_add(filled, Relaxed);
        let counters = &pager.stats().counters;
        counters.ahead.fetch_add(u64::from(filled), Relaxed);
        if !fresh {
            counters.decompressed.fetch_add(taken.len() as u64, Relaxed);
            counters.decompress_ns.fetch_add(unpacked - start, Relaxed);
            counters.copy_ns.fetch_add(sys::now() - unpacked, Relaxed);
            counters.promotions.fetch_add(u64::from(filled), Relaxed);
        }
        filled
    }

    /// The lock for reading, unless its holder needs long: he may be waiting for
    /// a page that we have.
    ///
    /// To be held by whoever puts content of a page that he has taken where the program can see it. The thread
    /// that discards memory, or moves it and leaves its old place mapped, runs on as soon as that is read; who reads it
    /// then waits for the page. Content that came in after that would be where the program has
    /// discarded it, or moved it away from.
    pub(crate) fn reading_if_free(&self) -> Option<SharedGuard<'_>> {
        self.reading_within(TRIES)
    }

    /// The same, with so many tries.
    pub(crate) fn reading_within(&self, tries: u32) -> Option<SharedGuard<'_>> {
        let mut spins = 0;
        for _ in 0..tries {
            if let Some(guard) = self.pager.reading.try_share() {
                return Some(guard);
            }
            backoff(&mut spins);
        }
        None
    }
}

/// Takes the pages that are to come in: those that are of the same kind as the
/// one that was asked for, and that nobody has, but for one of them that is to be left out. Returns
/// how many.
fn take(
    pager: &Pager,
    place: &Place<'_>,
    ahead: Ahead,
    fresh: bool,
    leave: Option<u32>,
    reader: &Reader,
    taken: &mut [Taken],
) -> usize {
    let mut would_come = 0;
    let mut file = File { pager, reader, window: None, reads: 0 };
    let mut count = 0;
    let mut page = i64::from(place.page);
    for _ in 0..ahead.count {
        page += i64::from(ahead.stride);
        let Some(page) = u32::try_from(page).ok().filter(|&page| page < place.region.pages())
        else {
            break;
        };
        if count == taken.len() {
            break;
        }
        let word = place.region.word(page);
        let state = PageState::of(word.load(Relaxed));
        let at = Place { page, word, ..*place };
        let wanted = match state {
            PageState::Spilled(_) => !fresh,
            other if fresh => other == PageState::Fresh,
            other => is_stored(other),
        };
        let wanted = wanted && file.has(state);
        if wanted {
            would_come += 1;
            if leave == Some(would_come - 1) {
                pager.fault.pays.leave_out(Kind::of(fresh), place.id, page);
                continue;
            }
        }
        if wanted && pager.try_lock_page(&at, state) {
            taken[count] = Taken { page, word: state.word() };
            count += 1;
        } else if fresh {
            break;
        }
    }
    count
}

/// What of the spill file is, or is to be, in a reader's buffer.
struct File<'r> {
    pager: &'r Pager,
    reader: &'r Reader,
    window: Option<Window>,
    reads: u32,
}

impl File<'_> {
    /// Whether a page can be had without reading the file once more than is allowed.
    fn has(&mut self, state: PageState) -> bool {
        let PageState::Spilled(location) = state else { return true };
        let spill = &self.pager.spill;
        if spill.mapping.is_open() {
            return true;
        }
        let window = self.reader.window_for(spill, self.window, location);
        if self.window != Some(window) && !self.reader.has(&window) {
            if self.reads == READS {
                return false;
            }
            self.reads += 1;
        }
        self.window = Some(window);
        true
    }
}

/// The runs of neighbours in pages in order.
fn runs(taken: &[Taken]) -> impl Iterator<Item = core::ops::Range<usize>> + use<> {
    let mut ends = [0; MOST];
    let mut n = 0;
    for i in 1..=taken.len() {
        if i == taken.len() || taken[i].page != taken[i - 1].page + 1 {
            ends[n] = i;
            n += 1;
        }
    }
    let mut start = 0;
    ends.into_iter().take(n).map(move |end| {
        let run = start..end;
        start = end;
        run
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::{START, hold, pager, place, state, touch};

    #[test]
    fn neighbours_are_one_run() {
        let taken = [3, 4, 5, 7, 9, 10].map(|page| Taken { page, word: 0 });
        let found: Vec<_> = runs(&taken).map(|run| (run.start, run.end)).collect();
        assert_eq!(found, [(0, 3), (3, 4), (4, 6)]);
        assert_eq!(runs(&[]).count(), 0);
    }

    /// What is taken: pages of the same kind, in the direction of the walk, that nobody has.
    #[test]
    fn stored_pages_of_the_walk_are_taken_and_others_left_alone() {
        let pager = pager(10);
        for page in [2, 3, 5, 6] {
            hold(pager, page, page as u8);
        }
        touch(pager, 4);
        let busy = place(pager, 5);
        assert!(pager.try_lock_page(&busy, state(pager, 5)), "somebody has it");
        let worker = Worker::new(pager, 0);
        let ahead = Ahead { stride: 1, count: 6 };
        let mut taken = [Taken { page: 0, word: 0 }; MOST];
        let count = take(pager, &place(pager, 2), ahead, false, None, &worker.reader, &mut taken);
        let pages: Vec<_> = taken[..count].iter().map(|taken| taken.page).collect();
        assert_eq!(pages, [3, 6], "4 is resident, 5 is another's, 7 and 8 hold nothing");
    }

    /// What became of it says what the others are worth.
    #[test]
    fn a_page_that_is_left_out_does_not_come_and_is_waited_for() {
        for fresh in [false, true] {
            let pager = pager(10);
            if !fresh {
                for page in 2..8 {
                    hold(pager, page, page as u8);
                }
            }
            let worker = Worker::new(pager, 0);
            let ahead = Ahead { stride: 1, count: 4 };
            let mut taken = [Taken { page: 0, word: 0 }; MOST];
            let count =
                take(pager, &place(pager, 2), ahead, fresh, Some(1), &worker.reader, &mut taken);
            let pages: Vec<_> = taken[..count].iter().map(|taken| taken.page).collect();
            assert_eq!(pages, [3, 5, 6], "fresh: {fresh}");
            let id = place(pager, 4).id;
            assert!(!pager.fault.pays.is_left_out(id, 5));
            assert!(pager.fault.pays.is_left_out(id, 4), "fresh: {fresh}");
        }
    }

    /// Its thread has asked for a page that was left out: the walk is elsewhere by now.
    #[test]
    fn a_fault_on_a_page_that_was_left_out_brings_in_nothing_else() {
        let pager = pager(40);
        (0..40).for_each(|page| _ = hold(pager, page, 1));
        let worker = Worker::new(pager, 0);
        let look = |page| worker.look_ahead(&place(pager, page), false);
        assert_eq!([look(10).count, look(11).count], [0, 4]);
        pager.fault.pays.leave_out(Kind::Stored, place(pager, 14).id, 14);
        assert_eq!(look(14), Ahead::default());
        assert_eq!(look(16), Ahead { stride: 1, count: 8 });
    }

    /// The fixture's kernel takes no page: what was taken is as it was, and the room is free again.
    #[test]
    fn what_the_kernel_does_not_take_stays_and_its_room_is_given_back() {
        let pager = pager(8);
        let states: Vec<_> = (0..4).map(|page| hold(pager, page, 1)).collect();
        let mut worker = Worker::new(pager, 0);
        assert!(pager.try_reserve(3));
        worker.bring_ahead(&place(pager, 0), Ahead { stride: 1, count: 3 }, 3);
        assert_eq!(pager.resident(), 0);
        for (page, before) in states.iter().enumerate() {
            assert_eq!(place(pager, page).word.load(Relaxed), before.word(), "page {page}");
        }
        assert_eq!(pager.stats().counters.ahead.load(Relaxed), 0);
        assert_eq!(place(pager, 0).address(), START);
    }
}
