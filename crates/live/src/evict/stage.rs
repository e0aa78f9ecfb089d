//! Staging: the policy's victims move out of the program's mapping into the staging ring.

use core::cmp::Ordering::{Equal, Greater, Less};
use core::sync::atomic::Ordering::*;

use libc::{EAGAIN, EEXIST, EINVAL, ENOENT};
use terrace_core::{Abort, Action, Bytes, Done, Outcome, Proposal};

use crate::decide::notes::Note;
use crate::evict::pinned_pages::PINNED;
use crate::evict::quiet_window::Window;
use crate::evict::reclaim::{BATCH, Pace};
use crate::evict::staging::{self, NOBODY, Purpose, StagingRing, owner};
use crate::evict::unshare::note_shared;
use crate::failsafe::inject::{self, Point};
use crate::pager::{MANAGER, Pager};
use crate::space::page_state::PageState;
use crate::space::regions::Place;
use crate::sys::spin::{SharedGuard, backoff};
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Separate runs of neighbours moved in one round while a fault waits for it,
/// outside of a quiet window: each costs a flush of the TLBs of all processors
/// (decision 0002).
const RUNS: usize = 4;
/// A quiet window pays for so many runs of neighbours: it costs as much as
/// some moves with an interrupt each.
const WORTHWHILE: usize = 4;
/// Pages that leave in one quiet window while a fault waits for room: what it costs to open
/// one is shared by all of them. It lasts some 500 µs.
pub(crate) const WINDOW: usize = 256;
/// The same where room is made ahead of faults, by a processor that is spare: a window
/// lasts some 220 µs, and so do the longest waits of the program. Not fewer pages: where one
/// access in 13 misses, windows would be met by more than one access in a thousand.
pub(crate) const BACKGROUND_WINDOW: usize = 112;

/// Locked pages that are tried before a round is in vain: where many are, they come one after the other,
/// in the order in which they were locked. It takes about a millisecond.
const LOCKED: u64 = 512;

/// A page that is about to move.
pub(crate) struct Victim {
    /// Whether it was made ours alone.
    pub(super) unshared: bool,
    /// Whether it did not move at once.
    refused: bool,
    address: usize,
    id: u32,
    page: u32,
    pub(super) proposal: Proposal,
}

#[cfg(test)]
impl Victim {
    /// Of a proposal that was not looked up.
    pub(super) fn of(proposal: Proposal) -> Self {
        Self { unshared: false, refused: false, address: 0, id: 0, page: 0, proposal }
    }
}

/// What became of consecutive pages.
struct Moved {
    /// The first of the slots that were taken for them, and how many that were.
    first: u32,
    slots: usize,
    /// Pages that have moved.
    pages: usize,
    /// Why not all of them have.
    error: i32,
}

/// How the runs of a batch leave.
enum Leaves<'q> {
    /// Each is timed; if one interrupts others, a quiet window is opened.
    Timed,
    Quietly(#[expect(dead_code, reason = "open until it is dropped")] Window<'q>),
    /// A window would pay and did not open: runs up to this one leave, the rest waits.
    UpTo(usize),
}

/// How many pages at the beginning are neighbours.
fn run_length(batch: &[Option<Victim>]) -> usize {
    let neighbours =
        |w: &[Option<Victim>]| matches!(w, [Some(a), Some(b)] if a.address + PAGE == b.address);
    batch.windows(2).take_while(|w| neighbours(w)).count() + 1
}

/// Whether there are at least so many runs of neighbours.
fn has_runs(mut batch: &[Option<Victim>], count: usize) -> bool {
    for _ in 0..count {
        if batch.is_empty() {
            return false;
        }
        batch = &batch[run_length(batch)..];
    }
    true
}

impl Worker<'_> {
    /// Moves a batch of victims, at most `room`, into the staging ring; returns how many.
    pub(crate) fn stage(&mut self, ring: &mut StagingRing, room: usize, pace: Pace) -> usize {
        let pager = self.pager;
        let slots = &pager.evict.staging;
        if !slots.is_ready(pager.uffd()) {
            return 0;
        }
        ring.clear_marks(slots, pager.uffd());
        let mut locked = 0;
        loop {
            let before = pager.budget.locked();
            // Others are not held for pages that are locked like the last ones.
            let moved = self.stage_some(ring, room, pace, locked == 0);
            if moved > 0 {
                pager.budget.found_unlocked();
                return moved;
            }
            let more = pager.budget.locked() - before;
            locked += more;
            let changing = pager.freeze.is_on() || pager.uffd().is_changing();
            if more == 0 || locked >= LOCKED || changing {
                return 0;
            }
        }
    }

    /// Moves what of the next victims moves, in a quiet window if that pays and may be; returns how
    /// many pages.
    fn stage_some(
        &mut self,
        ring: &mut StagingRing,
        room: usize,
        pace: Pace,
        may_hold: bool,
    ) -> usize {
        let pager = self.pager;
        let pays = pager.evict.quiet.pays();
        let most = room.min(if pays { pace.window } else { BATCH });
        let victims = ring.victims.len() + ring.unshared.len();
        // A window for the few that are left of the last would cost as much as a full one.
        if victims < most.min(BACKGROUND_WINDOW) {
            self.ask(ring, WINDOW - victims);
        }
        let mut staged = core::mem::take(&mut self.staged);
        self.choose(ring, &mut staged, most);
        let batch = &mut staged[..];
        // Neighbours leave in one call, with one flush of the TLBs.
        batch.sort_unstable_by_key(|s| s.as_ref().map_or(0, |s| s.address));
        if pays && pace.warms && has_runs(batch, WORTHWHILE) {
            self.warm(batch);
        }
        let now = sys::now();
        let mut moved = self.move_batch(ring, batch, now, may_hold);
        for staged in batch {
            if staged.as_ref().is_some_and(|s| s.refused) {
                moved += self.stage_one(ring, staged, now);
            }
        }
        staged.clear();
        self.staged = staged;
        moved
    }

    /// Asks the policy for so many victims more.
    pub(crate) fn ask(&self, ring: &mut StagingRing, pages: usize) {
        let (pager, victims) = (self.pager, &mut ring.victims);
        let bytes = Bytes((pages * PAGE) as u64);
        pager.decide.decider.lock().pressure(pager, bytes, |p| victims.push_back(p));
    }

    /// Has the kernel look at pages that are about to move. What it keeps of a page, in its page
    /// table and for its frame, is then in this processor's caches, and a page takes 1.4 µs
    /// instead of 2 within the window, in which the program stands still. Of neighbours, which
    /// leave in one call and lie side by side there, too, the first will do.
    fn warm(&self, mut batch: &[Option<Victim>]) {
        while let Some(first) = batch.first() {
            if let Some(staged) = first {
                let _ = self.pagemap.is_present(staged.address);
            }
            batch = &batch[run_length(batch)..];
        }
    }

    /// Looks the next victims up, at most so many.
    pub(super) fn choose(
        &self,
        ring: &mut StagingRing,
        batch: &mut Vec<Option<Victim>>,
        most: usize,
    ) {
        let many = self.id == MANAGER || self.pager.evict.quiet.pays();
        let (mut runs, mut end) = (0, 0);
        while batch.len() < most && (many || runs < RUNS) {
            let unshared = ring.unshared.pop_front();
            let Some(proposal) = unshared.or_else(|| ring.victims.pop_front()) else { break };
            if let Some(mut staged) = self.find_victim(proposal) {
                staged.unshared = unshared.is_some();
                runs += usize::from(staged.address != end);
                end = staged.address + PAGE;
                batch.push(Some(staged));
            }
        }
    }

    /// Moves what of a sorted batch moves at once, in a quiet window if that
    /// pays; returns how many pages. Those that did not move are marked. Where a window
    /// would pay and does not open, most of them wait for the next round.
    fn move_batch(
        &self,
        ring: &mut StagingRing,
        batch: &mut [Option<Victim>],
        now: u64,
        may_hold: bool,
    ) -> usize {
        // Before the window: within it, nobody else might give the lock back.
        let mut reading = self.no_events();
        if reading.is_none() {
            for staged in batch.iter().flatten() {
                self.aborted(staged.proposal, Abort::Busy);
            }
            return 0;
        }
        let quiet = &self.pager.evict.quiet;
        let mut leaves = Leaves::Timed;
        let (mut runs, mut tries, mut i, mut moved) = (0, 0, 0, 0);
        let mut longest = usize::MAX;
        let mut pays = quiet.is_known_to_pay();
        while i < batch.len() && !matches!(leaves, Leaves::UpTo(most) if runs >= most) {
            let untried = matches!(leaves, Leaves::Timed);
            if pays && untried && has_runs(&batch[i..], WORTHWHILE) {
                let window = if may_hold { quiet.window() } else { None };
                leaves = window.map_or(Leaves::UpTo(runs + RUNS), Leaves::Quietly);
            }
            let quietly = matches!(leaves, Leaves::Quietly(_));
            if !quietly && tries > 0 && tries % RUNS == 0 {
                // No fault is read either while it is held.
                drop(reading);
                reading = self.no_events();
                if reading.is_none() {
                    break;
                }
            }
            let run = run_length(&batch[i..batch.len().min(i.saturating_add(longest))]);
            let began = if quietly { 0 } else { sys::now() };
            let (got, tried, error) = self.move_run(ring, &mut batch[i..i + run], now);
            if tried == 0 {
                break;
            }
            // Either all of them are locked, or they do not lie in one mapping of the kernel's.
            longest = if error == EINVAL { 1 } else { longest.saturating_mul(2) };
            i += tried;
            moved += got;
            tries += 1;
            // What does not move interrupts nobody.
            runs += usize::from(got > 0);
            if !quietly && got > 0 {
                pays = quiet.moved(sys::now() - began);
            }
        }
        drop(leaves);
        drop(reading);
        for staged in batch[i..].iter_mut().rev().filter_map(Option::take) {
            let queue = if staged.unshared { &mut ring.unshared } else { &mut ring.victims };
            queue.push_front(staged.proposal);
        }
        moved
    }

    /// Moves consecutive pages into consecutive slots, as far as that goes
    /// without ado; returns how many were moved, how many are dealt with (none if the
    /// address space is changing, and no page leaves), and what stopped the move.
    fn move_run(
        &self,
        ring: &mut StagingRing,
        run: &mut [Option<Victim>],
        now: u64,
    ) -> (usize, usize, i32) {
        let moved = self.move_pages(ring, run, now);
        if moved.slots == 0 {
            if let Some(staged) = &run[0] {
                self.aborted(staged.proposal, Abort::Stale);
            }
            return (0, 1, 0);
        }
        if moved.pages == moved.slots {
            return (moved.pages, moved.pages, 0);
        }
        if moved.pages == 0 && moved.error == EAGAIN && self.pager.uffd().is_changing() {
            if let Some(staged) = &run[0] {
                self.set_word(staged, PageState::Resident);
            }
            return (0, 0, EAGAIN);
        }
        if let Some(staged) = &mut run[moved.pages] {
            if moved.slots == 1 && moved.error == EINVAL {
                // It would not move alone either.
                self.refuse(staged, EINVAL);
            } else {
                self.set_word(staged, PageState::Resident);
                staged.refused = true;
            }
        }
        (moved.pages, moved.pages + 1, moved.error)
    }

    /// Moves consecutive pages into consecutive slots. The page that stopped the move stays ours;
    /// those behind it are nobody's, and so are the slots that were not filled.
    ///
    /// With the lock for reading held: nobody reads an event between the taking of the pages and
    /// the move. The thread that unmapped a page runs on as soon as its event is read, and may
    /// have mapped other memory there by now, which is not ours to take. In that
    /// order, because who carries out an event waits for pages. And while anything is
    /// unread, the kernel refuses the move: see [`crate::evict::staging`].
    fn move_pages(&self, ring: &mut StagingRing, run: &[Option<Victim>], now: u64) -> Moved {
        let pager = self.pager;
        let (first, slots) = self.take_run(ring, run, now);
        let Some(from) = run[0].as_ref().map(|s| s.address).filter(|_| slots > 0) else {
            return Moved { first, slots: 0, pages: 0, error: 0 };
        };
        let to = pager.evict.staging.address(first);
        let (bytes, error) = self.move_frames(pager.uffd(), to, from, slots as usize * PAGE);
        inject::at(Point::Stage);
        let pages = bytes / PAGE;
        for (i, staged) in run[..slots as usize].iter().flatten().enumerate() {
            match i.cmp(&pages) {
                Less => self.set_word(staged, PageState::Staged(first + i as u32)),
                Equal => {}
                Greater => self.set_word(staged, PageState::Resident),
            }
        }
        for slot in (first + pages as u32..first + slots).rev() {
            pager.evict.staging.owner_of(slot).store(NOBODY, Release);
            ring.unpush();
        }
        Moved { first, slots: slots as usize, pages, error }
    }

    /// Takes possession of consecutive pages, and consecutive slots for them:
    /// up to the end of the ring, or to a page that somebody else has. Returns
    /// the first slot, and how many there are.
    fn take_run(&self, ring: &mut StagingRing, run: &[Option<Victim>], now: u64) -> (u32, u32) {
        let pager = self.pager;
        let (mut first, mut slots) = (0, 0u32);
        for staged in run.iter().flatten() {
            if !self.take_victim(staged) {
                break;
            }
            let purpose = Purpose::Demote(staged.proposal);
            let slot = ring.push(purpose, now);
            if slots > 0 && slot != first + slots {
                ring.unpush();
                self.set_word(staged, PageState::Resident);
                break;
            }
            if slots == 0 {
                first = slot;
            }
            pager.evict.staging.give(slot, owner(staged.id, staged.page), purpose);
            pager.splits(staged.address);
            pager.departs(staged.address);
            slots += 1;
        }
        (first, slots)
    }

    /// Looks a victim up; `None` if it is not resident or somebody has it.
    fn find_victim(&self, proposal: Proposal) -> Option<Victim> {
        let Action::Demote { page, .. } = proposal.action else { return None };
        let pager = self.pager;
        let region = pager.regions.get(page.region.0)?;
        if page.page.0 >= region.pages() {
            return None;
        }
        let word = region.word(page.page.0);
        let place = Place { id: page.region.0, region, page: page.page.0, word };
        // The policy may have chosen it before it was told to forget it.
        let apart = region.is_apart(page.page.0);
        if word.load(Relaxed) != PageState::Resident.word()
            || apart
            || PINNED.contains(place.address())
        {
            self.aborted(proposal, Abort::Stale);
            if apart {
                pager.budget.share.met_apart();
                pager.note(Note::Discard(Pager::page_range(place.id, place.page, 1)));
            }
            return None;
        }
        Some(Victim {
            unshared: false,
            refused: false,
            address: place.address(),
            id: place.id,
            page: place.page,
            proposal,
        })
    }

    /// Takes possession of a victim.
    fn take_victim(&self, staged: &Victim) -> bool {
        let Some(region) = self.pager.regions.get(staged.id) else { return false };
        let word = region.word(staged.page);
        let place = Place { id: staged.id, region, page: staged.page, word };
        !PINNED.contains(staged.address) && self.pager.try_lock_page(&place, PageState::Resident)
    }

    /// Moves a page that did not move at once, with whatever that takes; returns how many moved.
    fn stage_one(&self, ring: &mut StagingRing, page: &mut Option<Victim>, now: u64) -> usize {
        loop {
            let reading = self.no_events();
            let Some(staged) = page else { return 0 };
            if reading.is_none() {
                self.aborted(staged.proposal, Abort::Busy);
                return 0;
            }
            let moved = self.move_pages(ring, core::slice::from_ref(page), now);
            drop(reading);
            let Some(staged) = page else { return 0 };
            if moved.slots == 0 {
                self.aborted(staged.proposal, Abort::Stale);
                return 0;
            }
            if moved.pages == 1 {
                return 1;
            }
            if moved.error == EEXIST {
                // A frame was left in the slot (its page had to be copied out).
                let (slots, uffd) = (&self.pager.evict.staging, self.pager.uffd());
                if staging::drop_frames(slots, uffd, &[(moved.first, 1)]) {
                    self.set_word(staged, PageState::Resident);
                    continue;
                }
            } else if note_shared(ring, staged, moved.error) {
                self.set_word(staged, PageState::Resident);
                return 0;
            }
            self.refuse(staged, moved.error);
            return 0;
        }
    }

    /// Keeps events from being read; `None` if a fork begins, which is read by
    /// one who then waits for us.
    pub(crate) fn no_events(&self) -> Option<SharedGuard<'_>> {
        let mut spins = 0;
        loop {
            if let Some(guard) = self.pager.reading.try_share() {
                return Some(guard);
            }
            if self.pager.freeze.is_on() {
                return None;
            }
            backoff(&mut spins);
        }
    }

    /// Gives a page of ours its new word.
    fn set_word(&self, staged: &Victim, state: PageState) {
        if let Some(region) = self.pager.regions.get(staged.id) {
            region.word(staged.page).store(state.word(), Release);
        }
    }

    /// A page that could not be moved.
    fn refuse(&self, staged: &Victim, error: i32) {
        let pager = self.pager;
        let Some(region) = pager.regions.get(staged.id) else { return };
        let word = region.word(staged.page);
        let is_guard = error == libc::EFAULT && self.pagemap.is_guard(staged.address);
        if error == ENOENT || is_guard {
            // The program discarded it; the next touch finds zeros, or a guard that was in no book.
            region.resident.fetch_sub(1, Relaxed);
            pager.release(1);
            word.store(PageState::Fresh.word(), Release);
            self.aborted(staged.proposal, Abort::Stale);
            pager.note(Note::Discard(Pager::page_range(staged.id, staged.page, 1)));
            return;
        }
        word.store(PageState::Resident.word(), Release);
        if error == EINVAL {
            // Pages do not move between locked memory and other memory.
            pager.budget.found_locked();
        }
        pager.stats().counters.demotions_refused.fetch_add(1, Relaxed);
        self.aborted(staged.proposal, Abort::Busy);
    }

    pub(crate) fn aborted(&self, proposal: Proposal, why: Abort) {
        self.pager.note(Note::Done(Done { proposal, outcome: Outcome::Aborted(why) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::messages::Pending;
    use crate::pager::fixture::{Memory, Registered, START, demotion, pager, place, touch};

    fn batch(worker: &Worker<'_>, pages: &[usize]) -> Vec<Option<Victim>> {
        let found = |&page: &usize| worker.find_victim(demotion(worker.pager, page));
        let batch: Vec<_> = pages.iter().map(found).collect();
        assert!(batch.iter().all(Option::is_some));
        batch
    }

    #[test]
    fn neighbours_are_one_run() {
        let pager = pager(16);
        (0..16).for_each(|page| touch(pager, page));
        let worker = Worker::new(pager, MANAGER);
        let batch = batch(&worker, &[1, 2, 3, 7, 9, 10]);
        assert_eq!(run_length(&batch), 3);
        assert_eq!(run_length(&batch[3..]), 1);
        assert!(has_runs(&batch, 3) && !has_runs(&batch, 4));
    }

    #[test]
    fn only_a_resident_page_that_may_leave_is_a_victim() {
        let pager = pager(4);
        let worker = Worker::new(pager, MANAGER);
        assert!(worker.find_victim(demotion(pager, 0)).is_none(), "it was never touched");
        touch(pager, 0);
        let found = worker.find_victim(demotion(pager, 0)).expect("a resident page");
        assert_eq!(found.address, START);
        place(pager, 0).region.set_apart(0, true);
        assert!(worker.find_victim(demotion(pager, 0)).is_none(), "relatives have it, too");
    }

    #[test]
    fn a_run_ends_at_a_page_that_somebody_has_and_its_slots_lie_side_by_side() {
        let pager = pager(8);
        (0..8).for_each(|page| touch(pager, page));
        let worker = Worker::new(pager, MANAGER);
        let batch = batch(&worker, &[0, 1, 2, 3]);
        assert!(pager.try_lock_page(&place(pager, 2), PageState::Resident));
        let mut ring = pager.evict.ring.lock();
        assert_eq!(worker.take_run(&mut ring, &batch, 5), (0, 2));
        assert_eq!((ring.taken(), ring.at(1).0), (2, 1));
        let owners = [0, 1].map(|slot| pager.evict.staging.owner_of(slot).load(Relaxed));
        let id = place(pager, 0).id;
        assert_eq!(owners, [owner(id, 0), owner(id, 1)]);
    }

    /// Says that a test shows nothing: the kernel gives us no userfaultfd, or none that moves pages.
    const NOT_SHOWN: &str = "there is no userfaultfd for this user: NOT shown";

    /// Has so many pages of its own, registered as a program's; `None` where the kernel does not let us.
    fn registered(memory: &Memory, pages: usize) -> Option<Registered> {
        memory.map(0..pages, Memory::USABLE);
        memory.enter(0..pages);
        let registered = memory.register();
        if registered.is_none() {
            println!("{NOT_SHOWN}");
        }
        registered
    }

    fn state(memory: &Memory, page: usize) -> PageState {
        PageState::of(memory.place(page).word.load(Acquire))
    }

    /// Of the first pages in the staging ring.
    fn first_bytes<const N: usize>(memory: &Memory, ring: &StagingRing) -> [u8; N] {
        let at = |i: usize| memory.pager.evict.staging.address(ring.at(i as u32).0);
        // SAFETY: slots with a page in each.
        core::array::from_fn(|i| unsafe { (at(i) as *const u8).read() })
    }

    /// The frame at the address of a page that has been unmapped is another's, which has moved there. It
    /// went to the old page's slot, and was dropped with it: the program read zeros.
    #[test]
    fn a_page_does_not_leave_while_what_has_become_of_its_address_is_unread() {
        let memory = Memory::new();
        let Some(_registered) = registered(&memory, 8) else { return };
        (0..4).for_each(|page| memory.fill(page, 1));
        (4..8).for_each(|page| memory.fill(page, 2));
        let pager = memory.pager;
        let mut worker = Worker::new(pager, MANAGER);
        let mut ring = pager.evict.ring.lock();
        ring.victims.extend((0..4).map(|page| memory.demotion(page)));
        let (from, to) = (memory.at(4), memory.at(0));
        let (left, waited, moved_to) = std::thread::scope(|threads| {
            // Waits in the kernel until all of it is read.
            let mover = threads.spawn(move || {
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                let len = 4 * PAGE;
                // SAFETY: memory of this test's, moved over other memory of its own.
                unsafe { libc::syscall(libc::SYS_mremap, from, len, len, flags, to) as usize }
            });
            while !pager.uffd().is_changing() && !mover.is_finished() {
                std::thread::yield_now();
            }
            let left = worker.stage(&mut ring, 8, Pace::BATCH);
            let waited = !mover.is_finished();
            let mut pending = Pending::new();
            while !mover.is_finished() {
                worker.take_messages(&mut pending);
                std::thread::yield_now();
            }
            (left, waited, mover.join().expect("no panic"))
        });
        assert_eq!((left, waited, moved_to), (0, true, to));
        assert!((0..4).all(|page| state(&memory, page) == PageState::Resident));
        assert!((4..8).all(|page| state(&memory, page) == PageState::Gone));

        assert_eq!(worker.stage(&mut ring, 8, Pace::BATCH), 4, "it goes on afterwards");
        assert!((0..4).all(|page| matches!(state(&memory, page), PageState::Staged(_))));
        assert_eq!(first_bytes(&memory, &ring), [2; 4]);
    }

    /// The kernel tells of what is discarded where it tells of the program's memory, and waits until
    /// that is read: by the thread that discards, perhaps.
    #[test]
    fn the_frames_of_pages_that_have_left_go_without_a_message_and_others_come() {
        let memory = Memory::new();
        let Some(_registered) = registered(&memory, 4) else { return };
        let (pager, uffd) = (memory.pager, memory.pager.uffd());
        let mut worker = Worker::new(pager, MANAGER);
        let mut ring = pager.evict.ring.lock();
        // Some slots are used twice.
        let slots = pager.evict.staging.slots() as usize;
        for round in 0..=slots {
            (0..2).for_each(|page| memory.fill(page, round as u8));
            ring.victims.extend((0..2).map(|page| memory.demotion(page)));
            assert_eq!(worker.stage(&mut ring, 8, Pace::BATCH), 2);
            assert_eq!(first_bytes(&memory, &ring), [round as u8; 2]);
            let slot = ring.at(0).0;
            for page in 0..2 {
                let place = memory.place(page);
                place.word.store(PageState::Fresh.word(), Release);
                place.region.resident.fetch_sub(1, Relaxed);
                pager.release(1);
            }
            ring.mark_done(2);
            ring.drop_done(&pager.evict.staging, uffd);
            assert_eq!(uffd.read(), None);
            assert_eq!(worker.pagemap.is_present(pager.evict.staging.address(slot)), Some(false));
        }
        assert!(uffd.is_registered(pager.evict.staging.base()));
    }

    /// `mlockall` tries to have a frame in each.
    #[test]
    fn who_looks_at_an_empty_slot_gets_an_error_and_pages_come_there_afterwards() {
        let memory = Memory::new();
        let Some(_registered) = registered(&memory, 4) else { return };
        let pager = memory.pager;
        let mut worker = Worker::new(pager, MANAGER);
        let at = pager.evict.staging.base();
        let is_read = std::thread::scope(|threads| {
            let reader = threads.spawn(move || sys::read_memory(at, &mut [0; 8]));
            let mut pending = Pending::new();
            while !reader.is_finished() {
                worker.serve_messages(&mut pending);
                std::thread::yield_now();
            }
            reader.join().expect("no panic")
        });
        assert!(!is_read);
        assert!(pager.regions.find(at).is_none(), "it is no memory of the program's");
        (0..2).for_each(|page| memory.fill(page, 3));
        let mut ring = pager.evict.ring.lock();
        ring.victims.extend((0..2).map(|page| memory.demotion(page)));
        assert_eq!(worker.stage(&mut ring, 8, Pace::BATCH), 2);
        assert_eq!(first_bytes(&memory, &ring), [3; 2]);
    }

    /// They lie one after the other, and a search that was not past them at its end had nobody look for
    /// room for a while.
    #[test]
    fn a_round_goes_on_past_locked_pages_and_counts_them_until_one_leaves() {
        let memory = Memory::new();
        let Some(_registered) = registered(&memory, 8) else { return };
        (0..8).for_each(|page| memory.fill(page, 1));
        let lock = |page: usize, pages: usize| {
            // SAFETY: memory of this test's.
            unsafe { libc::mlock(memory.at(page) as *const libc::c_void, pages * PAGE) == 0 }
        };
        if !lock(0, 4) {
            println!("this user may lock no memory: NOT shown");
            return;
        }
        let pager = memory.pager;
        let mut worker = Worker::new(pager, MANAGER);
        let mut ring = pager.evict.ring.lock();
        ring.victims.extend((0..8).map(|page| memory.demotion(page)));
        assert_eq!(worker.stage(&mut ring, 2, Pace::BATCH), 2);
        assert!((0..4).all(|page| state(&memory, page) == PageState::Resident));
        assert!((4..6).all(|page| matches!(state(&memory, page), PageState::Staged(_))));
        assert_eq!(pager.stats().counters.demotions_refused.load(Relaxed), 4);
        assert_eq!(pager.budget.locked(), 0);

        assert!(lock(6, 2));
        assert_eq!(worker.stage(&mut ring, 2, Pace::BATCH), 0);
        assert!((6..8).all(|page| state(&memory, page) == PageState::Resident));
        assert!(pager.budget.locked() >= 2);
    }

    #[test]
    fn nothing_is_chosen_while_a_fork_reads_events() {
        let pager = pager(2);
        let worker = Worker::new(pager, MANAGER);
        assert!(worker.no_events().is_some());
        let _reading = pager.reading.lock();
        pager.freeze.begin(crate::pager::freeze::Why::Fork);
        assert!(worker.no_events().is_none(), "the fork waits for us");
    }
}
