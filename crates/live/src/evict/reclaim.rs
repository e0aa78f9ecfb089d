//! Making room: pages leave DRAM.
//!
//! Two steps, each on whole batches: *stage* (`evict/stage.rs`) moves the policy's victims out of
//! the program's mapping into the staging ring; *compress* (`evict/compress.rs`) takes the oldest of it into the store.
//! One thread at a time does this, the manager in the background or, if that
//! cannot keep up, a worker that needs room for a fault.

use core::sync::atomic::Ordering::*;

use crate::evict::stage::{BACKGROUND_WINDOW, WINDOW};
use crate::evict::staging::StagingRing;
use crate::pager::MANAGER;
use crate::sys;
use crate::sys::spin::{SpinGuard, backoff, give_way};
use crate::workers::worker::Worker;

/// Pages moved or compressed before anyone else gets a turn.
pub(crate) const BATCH: usize = 32;
/// How much room is made before anyone else gets a turn.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Pages compressed at most.
    compressed: usize,
    /// Pages that leave in one quiet window, see [`crate::evict::stage`].
    pub(crate) window: usize,
    /// Victims that the policy is asked for in a round in which pages are compressed, so that
    /// not all of them are chosen when the staging ring has run empty, while one fault waits.
    asked: usize,
    /// Whether pages that will leave in a window are looked at before it: that takes twice as
    /// much time as the window is shorter by, which only a spare processor has.
    pub(crate) warms: bool,
}

impl Pace {
    /// A fault waits for the room of one page: compressing fewer would take the locks more
    /// often, more would have some faults wait for what others need.
    pub const FAULT: Self = Self { compressed: 4, window: WINDOW, asked: 8, warms: false };
    /// Many pages are needed.
    pub const BATCH: Self = Self { compressed: BATCH, window: WINDOW, asked: 0, warms: false };
    /// Nobody waits for it, and a processor is spare.
    pub const BACKGROUND: Self =
        Self { compressed: BATCH, window: BACKGROUND_WINDOW, asked: 0, warms: true };
}

/// With fewer free slots, the staging ring is emptied first.
const LEAST_ROOM: usize = 8;

/// Rounds without success after which a fault goes over the budget: what is resident is locked or
/// pinned.
const FRUITLESS: u32 = 64;
/// The longest (ns) that they may take together. Between two rounds others are let run. Where they want
/// the processors, that may take 50 ms each time (Linux 6.18, beside programs of higher priority). 64
/// rounds made one fault wait for three seconds, and a forked child for half a minute.
const FRUITLESS_FOR: u64 = 5_000_000;

/// What came of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing: nothing can leave just now.
    Nothing,
    /// Nothing: the address space is changing. Pages leave again when the message is read, and
    /// those that are absent come in again.
    Changing,
    /// Nothing has left. Some pages that are shared can leave now, unless something else holds
    /// them, too.
    Unshared,
    /// Pages have left, or have begun to.
    Made,
}

/// A search for room that has found none so far.
#[derive(Debug, Default)]
struct Search {
    /// Rounds without success.
    fruitless: u32,
    /// When (ns) the first of them was over.
    since: u64,
}

impl Search {
    /// A round is over. Pages that were made this process's alone have not left: they may be held by
    /// something else, too, for as long as that likes (pinned for a device, or for `io_uring`).
    fn ends_round(&mut self, progress: Progress, now: impl FnOnce() -> u64) {
        match progress {
            // Somebody else had it, if there is no room now.
            Progress::Made => *self = Self::default(),
            // That says nothing of the pages.
            Progress::Changing => {}
            Progress::Unshared | Progress::Nothing => self.fails(now()),
        }
    }

    /// A round was in vain.
    fn fails(&mut self, now: u64) {
        if self.fruitless == 0 {
            self.since = now;
        }
        self.fruitless += 1;
    }

    /// Whether it has looked at as much as a search is to look at.
    fn has_tried_all(&self) -> bool {
        self.fruitless >= FRUITLESS
    }

    /// Whether it is not worth another round.
    fn is_over(&self, now: impl FnOnce() -> u64) -> bool {
        self.has_tried_all()
            || self.fruitless > 0 && now().saturating_sub(self.since) > FRUITLESS_FOR
    }
}

/// How many pages the staging ring keeps for a while, of so many slots.
///
/// A page in the staging ring faults when it is touched, as one does that has left; the memory it
/// takes is of no use meanwhile. All that the staging ring gives is knowledge: the touch is a
/// sample. A
/// policy that asks for samples gets half of the slots, which is a second chance for about
/// as long as a twentieth of DRAM takes to turn over. One that learns by what comes back does
/// better without (decision 0002 has the figures).
const fn kept_staged(slots: u32, samples: bool) -> u32 {
    let half = slots / 2;
    let batch = BATCH as u32;
    if samples || half < batch {
        half + if half / 2 < batch { half / 2 } else { batch }
    } else {
        batch
    }
}

impl Worker<'_> {
    /// Takes room for pages, making it if there is none. Always returns: if
    /// nothing can leave (all is locked or pinned), the budget is exceeded
    /// rather than the program stopped. Also, by little, if somebody is making
    /// room just now: to wait for him would take longer than the fault.
    pub fn reserve(&mut self, pages: u64) {
        let pager = self.pager;
        let mut spins = 0;
        let mut search = Search::default();
        while !pager.try_reserve(pages) {
            if pager.huge.drop_one(pager) {
                continue;
            }
            if pager.budget.share.slack() > 0 && pager.try_reserve_beyond(pages) {
                pager.ring();
                return;
            }
            let in_vain = search.is_over(sys::now);
            if in_vain || pager.freeze.is_on() || !pager.may_leave() {
                // Spare the next faults the search, for longer each time.
                let own = pager.resident().saturating_sub(pager.budget.share.common());
                if in_vain && (search.has_tried_all() || pager.budget.is_late_again(own)) {
                    pager.budget.rest(sys::now());
                }
                pager.reserve_over(pages);
                return;
            }
            pager.throttle();
            if let Some(ring) = pager.evict.ring.try_lock() {
                pager.stats().counters.direct_reclaims.fetch_add(1, Relaxed);
                let progress = self.make_room(ring, Pace::FAULT);
                search.ends_round(progress, sys::now);
                match progress {
                    Progress::Made => pager.budget.something_leaves(),
                    Progress::Unshared => {}
                    Progress::Changing => {
                        // This thread may be the one to read the message. The page for which the
                        // room is cannot be filled before either.
                        pager.reserve_over(pages);
                        return;
                    }
                    Progress::Nothing => {
                        // The manager can do what a handler cannot (see `unshare`).
                        pager.ring();
                        give_way();
                    }
                }
            } else if pager.try_reserve_beyond(pages) {
                return;
            } else {
                backoff(&mut spins);
            }
        }
    }

    /// One round of making room.
    pub fn make_room(&mut self, mut ring: SpinGuard<'_, StagingRing>, pace: Pace) -> Progress {
        let progress = self.make_room_with(&mut ring, pace);
        // What a fault waits for is there.
        if progress == Progress::Made && self.id != MANAGER {
            return progress;
        }
        if self.unshare(ring) && progress == Progress::Nothing {
            Progress::Unshared
        } else {
            progress
        }
    }

    /// The same, as far as it can be done with the ring.
    fn make_room_with(&mut self, ring: &mut StagingRing, pace: Pace) -> Progress {
        if !self.pager.may_leave() {
            return Progress::Nothing;
        }
        if !self.pager.enter(self.id) {
            self.pager.leave(self.id);
            return Progress::Nothing;
        }
        self.learn_commons(&mut ring.commons);
        let slots = self.pager.staging_slots();
        let room = slots.saturating_sub(ring.taken()) as usize;
        // Staging or compressing, not both: a fault may be waiting for it.
        // Not those of which only the frames are still there.
        let full = ring.waiting() >= kept_staged(slots, self.pager.evict.wants_samples);
        let stages = room >= LEAST_ROOM && !full;
        // Asked before pages are chosen, and a quiet window is opened.
        let mut changing = stages && self.pager.uffd().is_changing();
        let mut staged = 0;
        if stages && !changing {
            staged = self.stage(ring, room, pace);
            changing = staged == 0 && self.pager.uffd().is_changing();
        }
        let settled = if staged == 0 { self.compress_oldest(ring, pace.compressed) } else { 0 };
        if settled > 0 && pace.asked > 0 && ring.victims.len() + pace.asked <= WINDOW {
            self.ask(ring, pace.asked);
        }
        self.pager.leave(self.id);
        match staged + settled {
            0 if changing => Progress::Changing,
            0 => Progress::Nothing,
            _ => Progress::Made,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy that learns by touches in the staging ring needs pages there; for others they are
    /// memory that is of no use. And a ring that is smaller than a batch must not fill up.
    #[test]
    fn the_staging_ring_keeps_what_the_policy_learns_by() {
        assert_eq!(kept_staged(8192, false), 32);
        assert_eq!(kept_staged(8192, true), 4096 + 32);
        assert!([32, 40, 64].iter().all(|&slots| kept_staged(slots, true) < slots));
        assert!([32, 40, 64].iter().all(|&slots| kept_staged(slots, false) < slots));
    }

    #[test]
    fn a_search_in_vain_ends_after_many_rounds_and_after_few_that_take_long() {
        let rounds = |each: u64| {
            let mut search = Search::default();
            let mut now = 7;
            while !search.is_over(|| now) {
                search.fails(now);
                now += each;
            }
            (search.fruitless, search.has_tried_all())
        };
        assert_eq!(rounds(1_000), (FRUITLESS, true), "on a machine of its own");
        assert_eq!(rounds(FRUITLESS_FOR / 4), (5, false));
        assert_eq!(rounds(50_000_000), (1, false), "beside others that want the processors");
    }

    /// A device that holds pages for good keeps them from leaving when they are this process's alone.
    #[test]
    fn a_search_ends_that_finds_only_pages_which_something_else_holds() {
        let mut search = Search::default();
        for round in 0..FRUITLESS {
            assert!(!search.is_over(|| 7), "round {round}");
            let progress = if round % 2 == 0 { Progress::Unshared } else { Progress::Nothing };
            search.ends_round(progress, || 7);
        }
        assert!(search.is_over(|| 7) && search.has_tried_all());
        search.ends_round(Progress::Made, || 7);
        assert!(!search.is_over(|| u64::MAX), "something has left");
        for _ in 0..FRUITLESS {
            search.ends_round(Progress::Changing, || 7);
        }
        assert!(!search.is_over(|| u64::MAX), "nothing was tried while the address space changed");
        search.ends_round(Progress::Unshared, || 7);
        assert!(search.is_over(|| 8 + FRUITLESS_FOR));
    }
}
