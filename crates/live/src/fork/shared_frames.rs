//! Frames in common: after a fork parent and child have the same frames, until one of them
//! writes. What one lets go of frees nothing as long as the other has it, and each that does
//! packs the same content anew. So such frames count once for the whole family
//! ([`crate::broker::share::Pool`]), and each process is to let go of others first.
//!
//! Which they are only the kernel knows. The manager reads the page map from time to time, in
//! pieces, while there are relatives (after a fork, whoever needs room first), and has the policy
//! forget what is in common: its queues would be full of pages that are not worth taking. What has
//! become this process's alone, or has to leave although others have it, comes back to the policy
//! as if it had just been touched.

use core::sync::atomic::Ordering::*;

use terrace_core::{Access, FaultKind};

use crate::broker::member::CHILDHOOD;
use crate::decide::notes::Note;
use crate::pager::Pager;
use crate::space::page_state::{BUSY, PageState};
use crate::space::proc_maps::Pagemap;
use crate::space::regions::{Place, Region};
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Pages that are looked at in one step: some 150 µs.
const STEP: u32 = 4096;
/// After a step that took so long, the next waits so many times as long: 3 % of a processor.
const PACE: u64 = 32;
/// After so many writes to what may be in common, and so long (ns) after a round, the next begins.
const MANY_WRITES: u64 = 64;
const SOON: u64 = 20_000_000;
/// How long (ns) to wait where another worker has the lock.
const RETRY: u64 = 1_000_000;
/// How long (ns) to wait after all was seen: at least, and at most, as it doubles while nothing
/// changes.
const REST: (u64, u64) = (200_000_000, 10_000_000_000);

/// What has been looked at.
#[derive(Debug)]
pub(crate) struct Commons {
    /// When (ns) there is something to do.
    due: u64,
    /// The fork that was the last when this round began.
    fork: u64,
    rest: u64,
    /// Where the round goes on: region and page.
    next: (u32, u32),
    /// Pages in common that this round has found, and that the policy has been told to forget.
    found: u64,
    apart: u64,
    /// Pages in common that have to leave nevertheless, and that this round has yet to find: the
    /// policy is to know of the first ones.
    leaving: u64,
    /// What the last round found, and what the process had done when it ended.
    before: (u64, u64),
    /// When (ns) that was, and how often the kernel had served a fault by itself.
    ended: (u64, u64),
}

impl Commons {
    pub(crate) const fn new() -> Self {
        Self {
            due: 0,
            fork: 0,
            rest: REST.0,
            next: (0, 0),
            found: 0,
            apart: 0,
            leaving: 0,
            before: (0, 0),
            ended: (0, 0),
        }
    }

    /// Begins anew after a fork. A child that ends soon, or begins another program, is not
    /// worth a look, unless it needs room.
    fn follow_forks(&mut self, forked_at: u64) {
        if forked_at != self.fork {
            *self = Self { due: forked_at + CHILDHOOD, fork: forked_at, ..Self::new() };
        }
    }

    /// Whether so much was written since the last round that much of what was in common then
    /// may be no longer: the kernel tells nobody of the copies that it makes.
    fn is_stale(&self, now: u64) -> bool {
        let few = MANY_WRITES.max(self.before.0 / 32);
        self.next == (0, 0)
            && self.ended.0 != 0
            && now >= self.ended.0 + SOON
            && sys::minor_faults().saturating_sub(self.ended.1) > few
    }
}

impl Worker<'_> {
    /// Looks at some more pages, if it is time for it; when (ns) it is again. The manager's to
    /// call.
    pub(crate) fn look_at_commons(&mut self) -> u64 {
        let pager = self.pager;
        let share = &pager.budget.share;
        if share.forked_at() == 0 {
            return u64::MAX;
        }
        let start = sys::now();
        let Some(mut ring) = pager.evict.ring.try_lock() else { return start + RETRY };
        let c = &mut ring.commons;
        c.follow_forks(share.forked_at());
        if start < c.due && !c.is_stale(start) {
            return c.due;
        }
        if c.next == (0, 0) && !share.has_relatives() && !share.has_apart() {
            return start + REST.0;
        }
        if pager.enter(self.id) {
            self.look_at_some(c);
        }
        pager.leave(self.id);
        let now = sys::now();
        c.due = c.due.max(now + (now - start) * PACE);
        c.due
    }

    /// Somebody needs room, and it may not be known what is in common: looks at some more pages.
    pub(crate) fn learn_commons(&self, c: &mut Commons) {
        let share = &self.pager.budget.share;
        if share.should_learn() {
            c.follow_forks(share.forked_at());
            self.look_at_some(c);
        }
    }

    /// With the lock that who lets pages leave holds: what is resident stays so.
    fn look_at_some(&self, c: &mut Commons) {
        let pager = self.pager;
        let share = &pager.budget.share;
        if c.next == (0, 0) {
            (c.found, c.apart) = (0, 0);
            c.leaving = share.excess();
            share.begin_round();
        }
        let mut left = STEP;
        while left > 0 {
            let (id, page) = c.next;
            let Some((id, region)) = pager.regions.iter_from(id).next() else {
                return self.end_commons(c);
            };
            let first = if id == c.next.0 { page } else { 0 };
            let count = left.min(region.pages().saturating_sub(first));
            if count > 0 && !look(pager, &self.pagemap, (id, region), (first, count), c) {
                // The kernel does not say: nothing is in common, as far as we know.
                return share.found_common(0);
            }
            c.next = if first + count < region.pages() { (id, first + count) } else { (id + 1, 0) };
            left -= count;
        }
    }

    /// All pages have been seen.
    fn end_commons(&self, c: &mut Commons) {
        let share = &self.pager.budget.share;
        c.next = (0, 0);
        share.set_apart(c.apart > 0);
        if share.has_relatives() {
            share.found_common(c.found);
        }
        let found = (c.found, self.activity());
        let changed = found.0.abs_diff(c.before.0) > found.0 / 64 || found.1 != c.before.1;
        c.before = found;
        c.rest = if changed { REST.0 } else { (c.rest * 2).min(REST.1) };
        c.ended = (sys::now(), sys::minor_faults());
        c.due = c.ended.0 + c.rest;
    }
}

/// Looks at pages of a region; false if the kernel does not say whose they are.
fn look(
    pager: &Pager,
    pagemap: &Pagemap,
    (id, region): (u32, &Region),
    (first, count): (u32, u32),
    c: &mut Commons,
) -> bool {
    let relatives = pager.budget.share.has_relatives();
    // Consecutive pages that the policy is to forget.
    let (mut from, mut run) = (0, 0);
    let forget = |from: u32, run: u32| {
        if run > 0 {
            pager.note(Note::Discard(Pager::page_range(id, from, run)));
        }
    };
    let start = region.start() + first as usize * PAGE;
    let known = pagemap.for_each_frame(start, count as usize, |i, exclusive| {
        let page = first + i as u32;
        let word = region.word(page);
        let apart = region.is_apart(page);
        match word.load(Acquire) {
            // Somebody has it: the next round will see.
            held if held & BUSY != 0 => {
                c.apart += u64::from(apart);
                return;
            }
            word if PageState::of(word) != PageState::Resident => {
                if apart {
                    region.set_apart(page, false);
                }
                return;
            }
            _ => {}
        }
        let common = relatives && !exclusive;
        c.found += u64::from(common);
        let stays = common && c.leaving == 0;
        c.leaving = c.leaving.saturating_sub(u64::from(common));
        c.apart += u64::from(stays);
        if stays && !apart {
            region.set_apart(page, true);
            if run > 0 && from + run == page {
                run += 1;
            } else {
                forget(from, run);
                (from, run) = (page, 1);
            }
        } else if apart && !stays {
            region.set_apart(page, false);
            let place = Place { id, region, page, word };
            let kind = FaultKind::FirstTouch(Access::Write);
            pager.note(Note::Fault { page: Pager::page_ref(&place), kind });
        }
    });
    forget(from, run);
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::Memory;

    /// Eight pages: written 0 to 2, read 3 to 5 (the kernel's page of zeros, which many have, as
    /// relatives have each other's frames), never touched 6 and 7; all in the books.
    fn memory() -> Memory {
        let memory = Memory::new();
        memory.map(0..8, Memory::USABLE);
        memory.enter(0..8);
        for page in 0..6 {
            let at = memory.at(page) as *mut u8;
            // SAFETY: mapped just now.
            unsafe {
                if page < 3 { at.write_volatile(1) } else { assert_eq!(at.read_volatile(), 0) }
            };
            memory.set(page, PageState::Resident);
        }
        while memory.pager.decide.notes.pop().is_some() {}
        memory
    }

    /// Looks at all of it; what the policy is told: pages that it is to forget, and pages that it
    /// is to know of again.
    fn looked(memory: &Memory, c: &mut Commons) -> (Vec<(u32, u32)>, Vec<u32>) {
        (c.found, c.apart) = (0, 0);
        let place = memory.place(0);
        let region = (place.id, place.region);
        assert!(look(memory.pager, &Pagemap::open(), region, (0, 8), c));
        let (mut forgotten, mut known) = (Vec::new(), Vec::new());
        while let Some(note) = memory.pager.decide.notes.pop() {
            match note {
                Note::Discard(range) => forgotten.push((range.start.0, range.count)),
                Note::Fault { page, .. } => known.push(page.page.0),
                other => panic!("{other:?}"),
            }
        }
        (forgotten, known)
    }

    #[test]
    fn the_policy_forgets_frames_in_common_once_and_hears_of_those_that_are_no_longer() {
        let memory = memory();
        let mut c = Commons::new();
        assert_eq!(looked(&memory, &mut c), (vec![], vec![]), "without relatives nothing is");
        assert_eq!(c.found, 0);
        memory.pager.budget.share.join(1);
        assert_eq!(looked(&memory, &mut c), (vec![(3, 3)], vec![]));
        assert_eq!((c.found, c.apart), (3, 3));
        assert_eq!(looked(&memory, &mut c), (vec![], vec![]), "it was told");
        assert_eq!((c.found, c.apart), (3, 3), "and they still are");
        // A copy of its own.
        // SAFETY: mapped.
        unsafe { (memory.at(4) as *mut u8).write_volatile(1) };
        assert_eq!(looked(&memory, &mut c), (vec![], vec![4]));
        assert_eq!((c.found, c.apart), (2, 2));
        assert_eq!(looked(&memory, &mut c), (vec![], vec![]));
    }

    #[test]
    fn of_frames_in_common_that_have_to_leave_the_policy_keeps_the_first() {
        let memory = memory();
        memory.pager.budget.share.join(1);
        let mut c = Commons { leaving: 2, ..Commons::new() };
        assert_eq!(looked(&memory, &mut c), (vec![(5, 1)], vec![]));
        assert_eq!((c.found, c.apart, c.leaving), (3, 1, 0));
        // The limit has fallen since.
        c.leaving = 3;
        assert_eq!(looked(&memory, &mut c), (vec![], vec![5]));
        assert_eq!((c.found, c.apart), (3, 0));
    }

    #[test]
    fn pages_in_somebodys_hands_or_on_their_way_out_are_not_judged() {
        let memory = memory();
        memory.pager.budget.share.join(1);
        let mut c = Commons::new();
        memory.place(3).word.fetch_or(BUSY, Relaxed);
        memory.set(5, PageState::Same(0));
        assert_eq!(looked(&memory, &mut c), (vec![(4, 1)], vec![]));
        // One that has left is new to the policy when it comes back; of one that is held the next
        // round will see.
        memory.place(4).word.fetch_or(BUSY, Relaxed);
        memory.place(5).region.set_apart(5, true);
        assert_eq!(looked(&memory, &mut c), (vec![], vec![]));
        assert_eq!((c.found, c.apart), (0, 1));
        assert!(memory.place(4).region.is_apart(4) && !memory.place(5).region.is_apart(5));
    }

    #[test]
    fn a_fork_begins_a_round_after_the_childhood_of_its_child() {
        let mut c = Commons { next: (3, 4), found: 5, ..Commons::new() };
        c.follow_forks(1000);
        assert_eq!((c.due, c.next, c.found), (1000 + CHILDHOOD, (0, 0), 0));
        c.next = (1, 1);
        c.follow_forks(1000);
        assert_eq!(c.next, (1, 1), "the same fork changes nothing");
    }
}
