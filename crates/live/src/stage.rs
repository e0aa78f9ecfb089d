//! Staging: the policy's victims move out of the program's mapping into limbo.

use core::sync::atomic::Ordering::*;

use libc::{EBUSY, EEXIST, ENOENT};
use terrace_core::{Abort, Action, Bytes, Done, Outcome, Proposal};

use crate::inject::{self, Point};
use crate::kept::KEPT;
use crate::limbo::{self, Limbo, NOBODY, Purpose, owner};
use crate::page_state::PageState;
use crate::pager::{HANDLERS, MANAGER, Pager};
use crate::queue::Note;
use crate::quiet::Window;
use crate::reclaim::{BATCH, Pace};
use crate::regions::Place;
use crate::serve::Worker;
use crate::spin::{SharedGuard, backoff};
use crate::sys::{self, PAGE};

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
pub(crate) const SPARE_WINDOW: usize = 112;

/// A page that is about to move.
pub(crate) struct Staged {
    /// Whether it was made ours alone.
    unshared: bool,
    /// Whether it did not move at once.
    refused: bool,
    address: usize,
    id: u32,
    page: u32,
    proposal: Proposal,
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
fn run_length(batch: &[Option<Staged>]) -> usize {
    let neighbours =
        |w: &[Option<Staged>]| matches!(w, [Some(a), Some(b)] if a.address + PAGE == b.address);
    batch.windows(2).take_while(|w| neighbours(w)).count() + 1
}

/// Whether there are at least so many runs of neighbours.
fn has_runs(mut batch: &[Option<Staged>], count: usize) -> bool {
    for _ in 0..count {
        if batch.is_empty() {
            return false;
        }
        batch = &batch[run_length(batch)..];
    }
    true
}

impl Worker<'_> {
    /// Moves a batch of victims, at most `room`, into limbo; returns how many.
    pub(crate) fn stage(&mut self, limbo: &mut Limbo, room: usize, pace: Pace) -> usize {
        let pager = self.pager;
        let pays = pager.quiet.pays();
        let most = room.min(if pays { pace.window } else { BATCH });
        let victims = limbo.victims.len();
        // A window for the few that are left of the last would cost as much as a full one.
        if victims < most.min(SPARE_WINDOW) {
            self.ask(limbo, WINDOW - victims);
        }
        let mut staged = core::mem::take(&mut self.staged);
        self.choose(limbo, &mut staged, most);
        let batch = &mut staged[..];
        // Neighbours leave in one call, with one flush of the TLBs.
        batch.sort_unstable_by_key(|s| s.as_ref().map_or(0, |s| s.address));
        if pays && pace.warms && has_runs(batch, WORTHWHILE) {
            self.warm(batch);
        }
        let now = sys::now();
        let mut moved = self.move_batch(limbo, batch, now);
        for staged in batch {
            if staged.as_ref().is_some_and(|s| s.refused) {
                moved += self.stage_run(limbo, core::slice::from_mut(staged), now);
            }
        }
        staged.clear();
        self.staged = staged;
        moved
    }

    /// Asks the policy for so many victims more.
    pub(crate) fn ask(&self, limbo: &mut Limbo, pages: usize) {
        let (pager, victims) = (self.pager, &mut limbo.victims);
        let bytes = Bytes((pages * PAGE) as u64);
        pager.mind.lock().pressure(pager, bytes, |p| victims.push_back(p));
    }

    /// Has the kernel look at pages that are about to move. What it keeps of a page, in its page
    /// table and for its frame, is then in this processor's caches, and a page takes 1.4 µs
    /// instead of 2 within the window, in which the program stands still. Of neighbours, which
    /// leave in one call and lie side by side there, too, the first will do.
    fn warm(&self, mut batch: &[Option<Staged>]) {
        while let Some(first) = batch.first() {
            if let Some(staged) = first {
                let _ = self.pagemap.is_present(staged.address);
            }
            batch = &batch[run_length(batch)..];
        }
    }

    /// Looks the next victims up, at most so many.
    fn choose(&self, limbo: &mut Limbo, batch: &mut Vec<Option<Staged>>, most: usize) {
        let many = self.id == MANAGER || self.pager.quiet.pays();
        let (mut runs, mut end) = (0, 0);
        while batch.len() < most && (many || runs < RUNS) {
            let Some(proposal) = limbo.victims.pop_front() else { break };
            if let Some(staged) = self.find_victim(proposal) {
                runs += usize::from(staged.address != end);
                end = staged.address + PAGE;
                batch.push(Some(staged));
            }
        }
    }

    /// Moves what of a sorted batch moves at once, in a quiet window if that
    /// pays; returns how many pages. Those that did not move are marked. Where a window
    /// would pay and does not open, most of them wait for the next round.
    fn move_batch(&self, limbo: &mut Limbo, batch: &mut [Option<Staged>], now: u64) -> usize {
        // Before the window: within it, nobody else might give the lock back.
        let mut reading = self.no_events();
        if reading.is_none() {
            for staged in batch.iter().flatten() {
                self.aborted(staged.proposal, Abort::Busy);
            }
            return 0;
        }
        let quiet = &self.pager.quiet;
        let mut leaves = Leaves::Timed;
        let (mut runs, mut i, mut moved) = (0, 0, 0);
        let mut pays = quiet.is_known_to_pay();
        while i < batch.len() && !matches!(leaves, Leaves::UpTo(most) if runs >= most) {
            let untried = matches!(leaves, Leaves::Timed);
            if pays && untried && has_runs(&batch[i..], WORTHWHILE) {
                leaves = quiet.window().map_or(Leaves::UpTo(runs + RUNS), Leaves::Quietly);
            }
            let quietly = matches!(leaves, Leaves::Quietly(_));
            if !quietly && runs > 0 && runs % RUNS == 0 {
                // No fault is read either while it is held.
                drop(reading);
                reading = self.no_events();
                if reading.is_none() {
                    break;
                }
            }
            let run = run_length(&batch[i..]);
            let began = if quietly { 0 } else { sys::now() };
            let (got, tried) = self.move_run(limbo, &mut batch[i..i + run], now);
            i += tried;
            moved += got;
            runs += 1;
            if !quietly && got > 0 {
                pays = quiet.moved(sys::now() - began);
            }
        }
        drop(leaves);
        drop(reading);
        for staged in batch[i..].iter_mut().rev().filter_map(Option::take) {
            limbo.victims.push_front(staged.proposal);
        }
        moved
    }

    /// Moves consecutive pages into consecutive slots, as far as that goes
    /// without ado; returns how many were moved, and how many are dealt with.
    /// With the lock for reading held, see `stage_run`.
    fn move_run(&self, limbo: &mut Limbo, run: &mut [Option<Staged>], now: u64) -> (usize, usize) {
        let pager = self.pager;
        let Some(from) = run[0].as_ref().map(|s| s.address) else { return (0, 1) };
        let (first, slots) = self.take_run(limbo, run, now);
        if slots == 0 {
            if let Some(staged) = &run[0] {
                self.aborted(staged.proposal, Abort::Stale);
            }
            return (0, 1);
        }
        let to = pager.staging.address(first);
        let (bytes, _) = self.mv(pager.fork.staging_uffd(), to, from, slots as usize * PAGE);
        inject::at(Point::Stage);
        let got = bytes / PAGE;
        for (i, staged) in run[..slots as usize].iter().flatten().enumerate() {
            let state =
                if i < got { PageState::Limbo(first + i as u32) } else { PageState::Resident };
            self.set_word(staged, state);
        }
        for slot in (first + got as u32..first + slots).rev() {
            pager.staging.owner_of(slot).store(NOBODY, Release);
            limbo.unpush();
        }
        if got == slots as usize {
            return (got, got);
        }
        if let Some(staged) = &mut run[got] {
            staged.refused = true;
        }
        (got, got + 1)
    }

    /// Takes possession of consecutive pages, and consecutive slots for them:
    /// up to the end of the ring, or to a page that somebody else has. Returns
    /// the first slot, and how many there are.
    fn take_run(&self, limbo: &mut Limbo, run: &[Option<Staged>], now: u64) -> (u32, u32) {
        let pager = self.pager;
        let (mut first, mut slots) = (0, 0u32);
        for staged in run.iter().flatten() {
            if !self.take_victim(staged) {
                break;
            }
            let purpose = Purpose::Demote(staged.proposal);
            let slot = limbo.push(purpose, now);
            if slots > 0 && slot != first + slots {
                limbo.unpush();
                self.set_word(staged, PageState::Resident);
                break;
            }
            if slots == 0 {
                first = slot;
            }
            pager.staging.give(slot, owner(staged.id, staged.page), purpose);
            pager.splits(staged.address);
            pager.departs(staged.address);
            slots += 1;
        }
        (first, slots)
    }

    /// Looks a victim up; `None` if it is not resident or somebody has it.
    fn find_victim(&self, proposal: Proposal) -> Option<Staged> {
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
            || KEPT.contains(place.address())
        {
            self.aborted(proposal, Abort::Stale);
            if apart {
                pager.share.met_apart();
                pager.note(Note::Discard(Pager::page_range(place.id, place.page, 1)));
            }
            return None;
        }
        Some(Staged {
            unshared: false,
            refused: false,
            address: place.address(),
            id: place.id,
            page: place.page,
            proposal,
        })
    }

    /// Takes possession of a victim.
    fn take_victim(&self, staged: &Staged) -> bool {
        let Some(region) = self.pager.regions.get(staged.id) else { return false };
        let word = region.word(staged.page);
        let place = Place { id: staged.id, region, page: staged.page, word };
        !KEPT.contains(staged.address) && self.pager.try_lock_page(&place, PageState::Resident)
    }

    /// Moves consecutive pages into consecutive slots.
    ///
    /// Nobody reads an event between the taking of the pages and the move: the
    /// thread that unmapped a page runs on as soon as its event is read, and may
    /// have mapped other memory there by now, which is not ours to take. In that
    /// order, because who carries out an event waits for pages.
    fn stage_run(&mut self, limbo: &mut Limbo, run: &mut [Option<Staged>], now: u64) -> usize {
        let pager = self.pager;
        let mut done = 0;
        let mut moved = 0;
        while done < run.len() {
            let Some(from) = run[done].as_ref().map(|s| s.address) else { return moved };
            let Some(reading) = self.no_events() else {
                for staged in run[done..].iter().flatten() {
                    self.aborted(staged.proposal, Abort::Busy);
                }
                return moved;
            };
            let (first, slots) = self.take_run(limbo, &run[done..], now);
            if slots == 0 {
                drop(reading);
                if let Some(staged) = &run[done] {
                    self.aborted(staged.proposal, Abort::Stale);
                }
                done += 1;
                continue;
            }
            let to = pager.staging.address(first);
            let (bytes, error) =
                self.mv(pager.fork.staging_uffd(), to, from, slots as usize * PAGE);
            drop(reading);
            inject::at(Point::Stage);
            let got = bytes / PAGE;
            for (i, staged) in run[done..done + slots as usize].iter().flatten().enumerate() {
                if i < got {
                    self.set_word(staged, PageState::Limbo(first + i as u32));
                } else if i > got {
                    self.set_word(staged, PageState::Resident);
                }
            }
            moved += got;
            done += got;
            if got == slots as usize {
                continue;
            }
            // Give back the slots that were not filled, refuse the page that
            // stopped the move, and go on behind it.
            for slot in (first + got as u32..first + slots).rev() {
                pager.staging.owner_of(slot).store(NOBODY, Release);
                limbo.unpush();
            }
            let Some(staged) = &mut run[done] else { return moved };
            if error == EEXIST {
                // A frame was left in the slot (its page had to be copied out).
                if limbo::drop_frames(&pager.staging, first + got as u32, 1) {
                    self.set_word(staged, PageState::Resident);
                    continue;
                }
            } else if self.unshare(staged, error) {
                continue;
            }
            self.refuse(staged, error);
            done += 1;
        }
        moved
    }

    /// Keeps events from being read; `None` if a fork begins, which is read by
    /// one who then waits for us.
    pub(crate) fn no_events(&self) -> Option<SharedGuard<'_>> {
        let mut spins = 0;
        loop {
            if let Some(guard) = self.pager.reading.try_share() {
                return Some(guard);
            }
            if self.pager.frozen.load(SeqCst) != 0 {
                return None;
            }
            backoff(&mut spins);
        }
    }

    /// Gives a page of ours its new word.
    fn set_word(&self, staged: &Staged, state: PageState) {
        if let Some(region) = self.pager.regions.get(staged.id) {
            region.word(staged.page).store(state.word(), Release);
        }
    }

    /// A page that could not be moved.
    fn refuse(&self, staged: &Staged, error: i32) {
        let pager = self.pager;
        let Some(region) = pager.regions.get(staged.id) else { return };
        let word = region.word(staged.page);
        if error == ENOENT {
            // The program discarded it; the next touch finds zeros.
            region.resident.fetch_sub(1, Relaxed);
            pager.release(1);
            word.store(PageState::Fresh.word(), Release);
            self.aborted(staged.proposal, Abort::Stale);
            pager.note(Note::Discard(Pager::page_range(staged.id, staged.page, 1)));
            return;
        }
        word.store(PageState::Resident.word(), Release);
        pager.stats().counters.demotions_refused.fetch_add(1, Relaxed);
        self.aborted(staged.proposal, Abort::Busy);
    }

    /// A page that is shared since a fork, perhaps before we managed, does not move. A
    /// write fault makes it ours alone: a copy, or nothing if the child is
    /// gone. True if it is worth trying again; the page is nobody's then.
    fn unshare(&self, staged: &mut Staged, error: i32) -> bool {
        let pager = self.pager;
        if error != EBUSY || staged.unshared {
            return false;
        }
        // If the program discards the page at this very moment, the fault is
        // an ordinary one, and somebody else has to serve it.
        let handlers =
            pager.workers[1..=HANDLERS].iter().filter(|w| w.tid.load(Relaxed) != 0).count();
        if self.id != MANAGER && (handlers < 2 || pager.unsharing.swap(1, AcqRel) != 0) {
            return false;
        }
        staged.unshared = true;
        self.set_word(staged, PageState::Resident);
        // SAFETY: changes no content.
        if unsafe { sys::madvise(staged.address, PAGE, libc::MADV_POPULATE_WRITE) }.is_ok() {
            pager.share.unshared();
        }
        if self.id != MANAGER {
            pager.unsharing.store(0, Release);
        }
        true
    }

    pub(crate) fn aborted(&self, proposal: Proposal, why: Abort) {
        self.pager.note(Note::Done(Done { proposal, outcome: Outcome::Aborted(why) }));
    }
}
