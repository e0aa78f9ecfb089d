//! The budget: how many pages may be resident, and are. Room is taken before a page comes in, and given
//! back after it has left.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::broker::member::{FLOOR, Share};
use crate::config::Counted;
use crate::pager::Pager;
use crate::sys::{self, PAGE};

/// Where what is compressed counts, too: the part of what is granted that pages in DRAM
/// keep however much is compressed, one of so many. What does not compress would
/// otherwise drive everything out for nothing.
const LEAST_PART: u64 = 8;

/// After rounds without success, for how long (ns) the next ones do not even try, at first: what
/// is resident is locked or pinned. Twice as long each time, up to so many times as long.
const PINNED_FOR: u64 = 5_000_000;
const PINNED_FOR_MOST: u64 = 50 * PINNED_FOR;
/// So many pages may come in meanwhile, or a 32nd of the budget, at first: what has come can leave. As
/// many times as many where the rest is longer, for what has come may be locked, too.
const PINNED_UP_TO: u64 = 64;
/// So many searches in a row may take long before it is believed that nothing can leave, although
/// not all pages were tried. Where others want the processors, each takes as long as they like.
const LATE_MOST: u32 = 16;

/// What the process may have resident, and has.
pub struct Budget {
    /// What the broker grants.
    pub share: Share,
    /// Pages that may be resident, compressed ones included where these count.
    granted: AtomicU64,
    resident: AtomicU64,
    /// Until when (ns) nothing need be tried: all that is resident is pinned.
    nothing_leaves: AtomicU64,
    /// Unless more pages than this are resident by then.
    pinned_up_to: AtomicU64,
    /// How long that will be the next time (ns).
    pinned_for: AtomicU64,
    /// Searches that ended because they took long, since one has found something.
    late: AtomicU32,
    /// Pages that were tried and are locked, since one has left. Whoever holds the staging ring
    /// counts them.
    locked: AtomicU64,
}

impl Budget {
    /// Of so many pages.
    pub(crate) fn new(share: Share, pages: u64) -> Self {
        Self {
            share,
            granted: AtomicU64::new(pages),
            resident: AtomicU64::new(0),
            nothing_leaves: AtomicU64::new(0),
            pinned_up_to: AtomicU64::new(0),
            pinned_for: AtomicU64::new(0),
            late: AtomicU32::new(0),
            locked: AtomicU64::new(0),
        }
    }
    /// Nothing could leave: spares the next faults the search, for longer each time, and until some
    /// pages have come in. Those can leave, and would pile up otherwise: a program that locks and
    /// unlocks memory all the time had four times its budget.
    pub(crate) fn rest(&self, now: u64) {
        let rest = self.pinned_for.load(Relaxed).clamp(PINNED_FOR, PINNED_FOR_MOST);
        self.pinned_for.store(rest * 2, Relaxed);
        let some = PINNED_UP_TO.max(self.granted.load(Relaxed) / 32);
        let come = some * (rest / PINNED_FOR);
        self.pinned_up_to.store(self.resident.load(Relaxed) + come, Relaxed);
        self.nothing_leaves.store(now + rest, Relaxed);
    }
    /// Something has left.
    pub(crate) fn something_leaves(&self) {
        self.pinned_for.store(0, Relaxed);
        self.late.store(0, Relaxed);
    }
    /// A search ended because it took long; whether nothing can leave, as far as is known. After one
    /// alone it is not: its processor may have been taken by another program after its first round.
    /// Nor as long as pages were locked and others of these (so many are this process's alone) are
    /// still to be tried.
    pub(crate) fn is_late_again(&self, pages: u64) -> bool {
        let before = self.late.fetch_add(1, Relaxed);
        let locked = self.locked.load(Relaxed);
        before >= LATE_MOST || before > 0 && (locked == 0 || locked >= pages)
    }
    /// A page that was to leave is locked.
    pub(crate) fn found_locked(&self) {
        self.locked.fetch_add(1, Relaxed);
    }
    /// How many of those that were to leave are locked, since one has left.
    pub(crate) fn locked(&self) -> u64 {
        self.locked.load(Relaxed)
    }
    /// A page has left.
    pub(crate) fn found_unlocked(&self) {
        self.locked.store(0, Relaxed);
    }
    /// In a forked child: it inherits no locks.
    pub(crate) fn forked(&self) {
        self.something_leaves();
        self.found_unlocked();
        self.nothing_leaves.store(0, Relaxed);
    }
    /// Whether the last search for what could leave was in vain, just now.
    fn is_resting(&self, now: u64) -> bool {
        self.nothing_leaves.load(Relaxed) > now
            && self.resident.load(Relaxed) <= self.pinned_up_to.load(Relaxed)
    }
}

/// Staging slots for a budget of so many pages: a tenth of it, so that a policy that asks
/// for samples has some. Two 16-page batches are the least that can be moved at once.
pub(crate) fn staging_slots(budget: u64) -> u32 {
    (budget / 10).clamp(32, 8192) as u32
}

impl Pager {
    /// Pages that may be resident.
    pub fn budget(&self) -> u64 {
        let granted = self.granted();
        match self.config.counted {
            Counted::Resident => granted,
            Counted::Total => {
                let stored = self.store.occupied() / PAGE as u64;
                granted.saturating_sub(stored).max(granted / LEAST_PART).max(FLOOR.min(granted))
            }
        }
    }

    /// The same without what may be in common with relatives, of which nothing leaves.
    pub fn own_budget(&self) -> u64 {
        self.budget().saturating_sub(self.budget.share.allowed())
    }

    /// Pages that are counted.
    pub fn held(&self) -> u64 {
        let stored = match self.config.counted {
            Counted::Resident => 0,
            Counted::Total => self.store.occupied() / PAGE as u64,
        };
        self.resident() + stored
    }

    /// Pages that may be resident, compressed ones included where these count.
    pub fn granted(&self) -> u64 {
        self.budget.granted.load(Relaxed)
    }

    /// Sets that. The manager's to call.
    pub fn grant(&self, pages: u64) {
        self.budget.granted.store(pages, Relaxed);
        self.stats().counters.budget_bytes.store(pages * PAGE as u64, Relaxed);
    }

    /// Pages that may be on their way out.
    pub fn staging_slots(&self) -> u32 {
        staging_slots(self.own_budget()).min(self.evict.staging.slots())
    }

    /// Pages that are.
    pub fn resident(&self) -> u64 {
        self.budget.resident.load(Relaxed)
    }

    /// Whether pages can leave, as far as is known: nothing is pinned, and there is memory for
    /// what they are packed into.
    pub fn may_leave(&self) -> bool {
        !self.store.is_full() && !self.budget.is_resting(sys::now())
    }

    /// Pages that are mapped and not resident: for more nobody can need room.
    pub fn may_come(&self) -> u64 {
        let mapped = self.stats().counters.mapped_bytes.load(Relaxed) / PAGE as u64;
        mapped.saturating_sub(self.resident())
    }

    /// Pages that the background keeps free, so that a fault finds room: of a small part that is
    /// not in common with relatives not much.
    pub fn headroom(&self) -> u64 {
        (self.budget() / 32).min(self.own_budget() / 8).clamp(8, 2048)
    }

    /// Takes room for so many pages; false if there is none.
    #[must_use]
    pub fn try_reserve(&self, pages: u64) -> bool {
        let budget = self.budget();
        let taken = self
            .budget
            .resident
            .fetch_update(AcqRel, Relaxed, |now| (now + pages <= budget).then_some(now + pages));
        match taken {
            Ok(before) => {
                self.note_resident(before + pages);
                true
            }
            Err(_) => false,
        }
    }

    /// Takes room a little beyond the budget, for who would else wait for
    /// another that makes room: at most a 64th of it and 1 MiB.
    #[must_use]
    pub fn try_reserve_beyond(&self, pages: u64) -> bool {
        let budget = self.budget();
        let limit = budget + (budget / 64).min(256).max(self.budget.share.slack());
        let taken = self
            .budget
            .resident
            .fetch_update(AcqRel, Relaxed, |now| (now + pages <= limit).then_some(now + pages));
        taken.map(|before| self.note_resident(before + pages)).is_ok()
    }

    /// Takes room whether or not there is any.
    pub fn reserve_over(&self, pages: u64) {
        let now = self.budget.resident.fetch_add(pages, AcqRel) + pages;
        self.note_resident(now);
    }

    /// Gives room back.
    pub fn release(&self, pages: u64) {
        let now = self.budget.resident.fetch_sub(pages, AcqRel) - pages;
        self.stats().counters.resident_bytes.store(now * PAGE as u64, Relaxed);
    }

    fn note_resident(&self, now: u64) {
        let counters = &self.stats().counters;
        counters.resident_bytes.store(now * PAGE as u64, Relaxed);
        if now * PAGE as u64 > counters.resident_peak_bytes.load(Relaxed) {
            counters.resident_peak_bytes.fetch_max(now * PAGE as u64, Relaxed);
        }
        self.note_held();
    }
    /// Notes what counts against the budget, where that is more than what is resident.
    pub fn note_held(&self) {
        if self.config.counted == Counted::Total {
            let held = self.held() * PAGE as u64;
            let most = &self.stats().counters.held_peak_bytes;
            if held > most.load(Relaxed) {
                most.fetch_max(held, Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_nothing_leaves_and_begin_anew_when_something_does() {
        let (share, _) = Share::begin(1 << 30);
        let budget = Budget::new(share, 1000);
        for factor in [1, 2, 4, 8, 16, 32, 50, 50] {
            budget.rest(7);
            assert!(budget.is_resting(7 + factor * PINNED_FOR - 1));
            assert!(!budget.is_resting(7 + factor * PINNED_FOR));
        }
        budget.something_leaves();
        budget.rest(7);
        assert!(!budget.is_resting(7 + PINNED_FOR));
    }

    #[test]
    fn a_rest_is_over_when_pages_have_come_that_can_leave() {
        for (granted, some) in [(1000, PINNED_UP_TO), (32_000, 1000)] {
            let budget = Budget::new(Share::default(), granted);
            budget.resident.store(granted + 7, Relaxed);
            for times in [1, 2, 4] {
                budget.rest(7);
                budget.resident.fetch_add(times * some, Relaxed);
                assert!(budget.is_resting(8));
                budget.resident.fetch_add(1, Relaxed);
                assert!(!budget.is_resting(8));
            }
        }
        let budget = Budget::new(Share::default(), 1000);
        budget.rest(7);
        budget.forked();
        assert!(!budget.is_resting(8), "a child inherits no locks");
    }

    #[test]
    fn one_search_that_took_long_does_not_say_that_nothing_can_leave() {
        let (share, _) = Share::begin(1 << 30);
        let budget = Budget::new(share, 1000);
        assert_eq!([(); 3].map(|()| budget.is_late_again(1000)), [false, true, true]);
        budget.something_leaves();
        assert!(!budget.is_late_again(1000));
    }

    /// Beside others that want the processors, a search ends after its first round, and those that lie
    /// behind the pages that it has tried may not be locked.
    #[test]
    fn nothing_can_leave_only_when_all_pages_were_tried_or_many_searches_took_long() {
        let budget = Budget::new(Share::default(), 1000);
        (0..9).for_each(|_| budget.found_locked());
        assert_eq!([(); 3].map(|()| budget.is_late_again(10)), [false; 3]);
        budget.found_locked();
        assert!(budget.is_late_again(10));
        budget.found_unlocked();
        budget.something_leaves();
        budget.found_locked();
        let believed = (0..100).position(|_| budget.is_late_again(10));
        assert_eq!(believed, Some(LATE_MOST as usize));
    }

    #[test]
    fn a_tenth_of_a_budget_can_be_on_its_way_out_within_bounds() {
        assert_eq!([10, 5_000, 1 << 30].map(staging_slots), [32, 500, 8192]);
    }
}
