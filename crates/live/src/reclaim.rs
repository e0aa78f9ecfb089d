//! Making room: pages leave DRAM.
//!
//! Two steps, each on whole batches: *stage* (`stage.rs`) moves the policy's victims out of
//! the program's mapping into limbo; *settle* compresses the oldest of limbo.
//! One thread at a time does this, the manager in the background or, if that
//! cannot keep up, a worker that needs room for a fault.

use core::sync::atomic::Ordering::*;

use libc::{EBUSY, EEXIST};
use terrace_core::{Abort, Done, FaultKind};

use crate::codec::{Effort, Packed, PageBytes};
use crate::inject::{self, Point};
use crate::kept::KEPT;
use crate::limbo::{Limbo, NOBODY, ORPHAN, Purpose, owner};
use crate::mind;
use crate::page_state::{BUSY, PageState};
use crate::pager::Pager;
use crate::presence::Pagemap;
use crate::queue::Note;
use crate::regions::Place;
use crate::serve::Worker;
use crate::spin::{SpinGuard, backoff, give_way};
use crate::stage::{SPARE_WINDOW, WINDOW};
use crate::sys::{self, PAGE};

/// Pages moved or compressed before anyone else gets a turn.
pub(crate) const BATCH: usize = 32;
/// How much room is made before anyone else gets a turn.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Pages compressed at most.
    compressed: usize,
    /// Pages that leave in one quiet window, see [`crate::stage`].
    pub(crate) window: usize,
    /// Victims that the policy is asked for in a round in which pages are compressed, so that
    /// not all of them are chosen when limbo has run empty, while one fault waits.
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
    pub const SPARE: Self = Self { compressed: BATCH, window: SPARE_WINDOW, asked: 0, warms: true };
}

/// Frames of pages that have left are given back so many at once: it flushes the TLBs of
/// all processors.
const FRAMES: u32 = 32;
/// With fewer free slots, limbo is emptied first.
const LEAST_ROOM: usize = 8;
/// An armed page that is not touched for so long (ns) goes back: its sample is "no".
pub(crate) const ARMED_FOR: u64 = 100_000_000;

/// Rounds without success after which a fault goes over the budget, and for
/// how long the next ones do not even try: what is resident is locked or pinned.
const FRUITLESS: u32 = 64;
const PINNED_FOR: u64 = 5_000_000;

/// How many pages limbo keeps for a while, of so many slots.
///
/// A page in limbo faults when it is touched, as one does that has left; the memory it
/// takes is of no use meanwhile. All that limbo gives is knowledge: the touch is a sample. A
/// policy that asks for samples gets half of the slots, which is a second chance for about
/// as long as a twentieth of DRAM takes to turn over. One that learns by what comes back does
/// better without (decision 0002 has the figures).
const fn kept_in_limbo(slots: u32, samples: bool) -> u32 {
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
        let mut fruitless = 0;
        while !pager.try_reserve(pages) {
            if pager.huge.drop_one(pager) {
                continue;
            }
            if pager.share.slack() > 0 && pager.try_reserve_beyond(pages) {
                pager.ring();
                return;
            }
            if fruitless == FRUITLESS || pager.frozen.load(SeqCst) != 0 || !pager.may_leave() {
                if fruitless == FRUITLESS {
                    // Spare the next faults the search, for longer each time.
                    let rest = pager.pinned_for.load(Relaxed).clamp(PINNED_FOR, 50 * PINNED_FOR);
                    pager.pinned_for.store(rest * 2, Relaxed);
                    pager.nothing_leaves.store(sys::now() + rest, Relaxed);
                }
                pager.reserve_over(pages);
                return;
            }
            pager.throttle();
            if let Some(mut limbo) = pager.limbo.try_lock() {
                pager.stats().counters.direct_reclaims.fetch_add(1, Relaxed);
                if self.make_room(&mut limbo, Pace::FAULT) {
                    pager.pinned_for.store(0, Relaxed);
                } else {
                    fruitless += 1;
                    drop(limbo);
                    // The manager can do what a handler cannot (see `refuse`).
                    pager.ring();
                    give_way();
                }
            } else if pager.try_reserve_beyond(pages) {
                return;
            } else {
                backoff(&mut spins);
            }
        }
    }

    /// One round of making room; false if nothing could be done.
    pub fn make_room(&mut self, limbo: &mut SpinGuard<'_, Limbo>, pace: Pace) -> bool {
        if !self.pager.may_leave() {
            return false;
        }
        if !self.pager.enter(self.id) {
            self.pager.leave(self.id);
            return false;
        }
        self.learn_commons(&mut limbo.commons);
        let slots = self.pager.limbo_slots();
        let room = slots.saturating_sub(limbo.taken()) as usize;
        // Staging or settling, not both: a fault may be waiting for it.
        let full = limbo.taken() >= kept_in_limbo(slots, self.pager.limbo_samples);
        let staged = if room >= LEAST_ROOM && !full { self.stage(limbo, room, pace) } else { 0 };
        let settled = if staged == 0 { self.settle(limbo, pace.compressed) } else { 0 };
        if settled > 0 && pace.asked > 0 && limbo.victims.len() + pace.asked <= WINDOW {
            self.ask(limbo, pace.asked);
        }
        self.pager.leave(self.id);
        staged + settled > 0
    }

    /// Deals with up to `count` of the oldest slots; returns how many.
    fn settle(&mut self, limbo: &mut Limbo, count: usize) -> usize {
        let count = (limbo.waiting() as usize).min(count);
        let settled = (0..count as u32)
            .take_while(|&i| {
                let (slot, purpose, _) = limbo.at(i);
                self.settle_slot(slot, purpose)
            })
            .count();
        limbo.settle(settled as u32);
        if limbo.settled() >= FRAMES.min(self.pager.limbo_slots() / 8) {
            limbo.drop_settled(&self.pager.staging);
        }
        settled
    }

    /// Compresses the page in a slot, or puts it back. Its frame may go
    /// afterwards. False if the page has to stay for now.
    fn settle_slot(&mut self, slot: u32, purpose: Purpose) -> bool {
        let pager = self.pager;
        let start = sys::now();
        let mut spins = 0;
        let (place, region);
        loop {
            let who = pager.staging.owner_of(slot).load(Acquire);
            if who == ORPHAN {
                pager.release(1);
                self.cancelled(purpose, Abort::Stale);
                return true;
            }
            if who == NOBODY {
                self.cancelled(purpose, Abort::Touched);
                return true;
            }
            let (id, page) = ((who >> 32) as u32, who as u32);
            let Some(r) = pager.regions.get(id).filter(|r| page < r.pages()) else {
                // Being moved or unmapped by another worker; it will name the
                // new owner.
                backoff(&mut spins);
                continue;
            };
            let p = Place { id, region: r, page, word: r.word(page) };
            if pager.try_lock_page(&p, PageState::Limbo(slot)) {
                (place, region) = (p, r);
                break;
            }
            let word = p.word.load(Acquire);
            let elsewhere = word & BUSY == 0 && PageState::of(word) != PageState::Limbo(slot);
            if elsewhere && pager.staging.owner_of(slot).load(Acquire) == who {
                // The page's content is not here; what is, is an old copy.
                self.cancelled(purpose, Abort::Stale);
                return true;
            }
            backoff(&mut spins);
        }
        if matches!(purpose, Purpose::Armed) {
            let back = self.put_back(&place, slot);
            pager.stats().counters.sampling_ns.fetch_add(sys::now() - start, Relaxed);
            return back;
        }
        let at = pager.staging.address(slot);
        // SAFETY: the slot holds a whole page, and the page is ours: nobody
        // maps it elsewhere or takes it away.
        let bytes: &PageBytes = unsafe { &*(at as *const PageBytes) };
        let Some(state) = self.pack(bytes) else {
            let back = self.put_back(&place, slot);
            if back {
                let counters = &pager.stats().counters;
                counters.demotions_refused.fetch_add(1, Relaxed);
                counters.store_refused.fetch_add(1, Relaxed);
                self.cancelled(purpose, Abort::NoMemory);
                pager.spill_sooner();
            }
            return back;
        };
        inject::at(Point::Settle);
        pager.staging.owner_of(slot).store(NOBODY, Release);
        place.word.store(state.word(), Release);
        pager.stored(owner(place.id, place.page), state);
        region.resident.fetch_sub(1, Relaxed);
        pager.release(1);
        let took = sys::now() - start;
        let counters = &pager.stats().counters;
        counters.demotions.fetch_add(1, Relaxed);
        counters.compressed.fetch_add(1, Relaxed);
        counters.compress_ns.fetch_add(took, Relaxed);
        if let Purpose::Demote(proposal) = purpose {
            let outcome = mind::completed(pager, took, 1);
            pager.note(Note::Done(Done { proposal, outcome }));
        }
        true
    }

    /// A demotion that did not happen.
    fn cancelled(&self, purpose: Purpose, why: Abort) {
        if let Purpose::Demote(proposal) = purpose {
            if why == Abort::Touched {
                self.pager.stats().counters.demotions_cancelled.fetch_add(1, Relaxed);
            }
            self.aborted(proposal, why);
        }
    }

    /// Moves a page from its slot back into the mapping; false if the address
    /// space is changing just now. The page is ours.
    fn put_back(&mut self, place: &Place<'_>, slot: u32) -> bool {
        let pager = self.pager;
        let from = pager.staging.address(slot);
        let (_, mut error) = self.mv(pager.uffd(), place.address(), from, PAGE);
        if error == EBUSY || error == libc::EINVAL {
            // Shared with a forked child: copy it.
            error = pager.uffd().copy(place.address(), from, PAGE).1;
        }
        match error {
            0 | EEXIST => {
                pager.staging.owner_of(slot).store(NOBODY, Release);
                place.word.store(PageState::Resident.word(), Release);
                true
            }
            _ => {
                place.word.store(PageState::Limbo(slot).word(), Release);
                false
            }
        }
    }

    /// Compresses a page into the store; `None` if there is no memory for it.
    fn pack(&mut self, bytes: &PageBytes) -> Option<PageState> {
        let pager = self.pager;
        let counters = &pager.stats().counters;
        let tight = pager.density.choose(pager, &mut self.codec, bytes);
        let (raw, content): (bool, &[u8]) = match self.codec.pack(bytes, tight) {
            Packed::Same(0) => {
                counters.same_pages.fetch_add(1, Relaxed);
                return Some(PageState::Same(0));
            }
            Packed::Same(word) => {
                let blob = pager.store.put(&word.to_ne_bytes())?;
                counters.same_pages.fetch_add(1, Relaxed);
                return Some(PageState::Same(blob.0));
            }
            Packed::Compressed(n) => {
                let tight = u64::from(tight == Effort::Tight);
                counters.packed_tightly.fetch_add(tight, Relaxed);
                (false, self.codec.output(n))
            }
            Packed::Raw => (true, bytes),
        };
        let blob = pager.store.put(content)?;
        counters.stored_pages.fetch_add(1, Relaxed);
        counters.blob_bytes.fetch_add(content.len() as u64, Relaxed);
        counters.store_bytes.store(pager.store.occupied(), Relaxed);
        counters.store_peak_bytes.fetch_max(pager.store.occupied(), Relaxed);
        if raw {
            counters.incompressible.fetch_add(1, Relaxed);
        }
        Some(if raw { PageState::Raw(blob.0) } else { PageState::Compressed(blob.0) })
    }

    /// Gives armed pages back whose time is over.
    pub fn settle_old(&mut self) {
        let pager = self.pager;
        let Some(mut limbo) = pager.limbo.try_lock() else { return };
        if !pager.enter(self.id) {
            pager.leave(self.id);
            return;
        }
        let now = sys::now();
        while limbo.waiting() > 0 {
            let (_, purpose, since) = limbo.at(0);
            if !matches!(purpose, Purpose::Armed) || now - since < ARMED_FOR {
                break;
            }
            if self.settle(&mut limbo, 1) == 0 {
                break;
            }
        }
        limbo.drop_settled(&pager.staging);
        pager.leave(self.id);
    }

    /// Makes a resident page fault at its next touch, to see whether it is used.
    pub fn arm(&mut self, limbo: &mut Limbo, id: u32, page: u32) -> bool {
        let pager = self.pager;
        let Some(region) = pager.regions.get(id).filter(|r| page < r.pages()) else { return false };
        let place = Place { id, region, page, word: region.word(page) };
        // As in `stage_run`.
        let Some(reading) = self.no_events() else { return false };
        // A sample is not worth a huge page, unless memory is short and it will be split.
        let spare = pager.resident() + 2 * pager.headroom() < pager.budget();
        if spare && pager.regions.is_huge(place.address()) {
            return false;
        }
        if !limbo.has_room()
            || KEPT.contains(place.address())
            || !pager.try_lock_page(&place, PageState::Resident)
        {
            return false;
        }
        let slot = limbo.push(Purpose::Armed, sys::now());
        let to = pager.staging.address(slot);
        pager.staging.give(slot, owner(id, page), Purpose::Armed);
        pager.departs(place.address());
        let (_, error) = self.mv(pager.fork.staging_uffd(), to, place.address(), PAGE);
        drop(reading);
        if error == 0 {
            pager.splits(place.address());
            place.word.store(PageState::Limbo(slot).word(), Release);
            pager.stats().counters.armed.fetch_add(1, Relaxed);
            return true;
        }
        pager.staging.owner_of(slot).store(NOBODY, Release);
        limbo.unpush();
        place.word.store(PageState::Resident.word(), Release);
        false
    }

    /// Ends a freeze: carries out what happened meanwhile, and brings the pages
    /// that were served into the books, before anyone else uses them.
    pub fn thaw(&mut self) {
        let pager = self.pager;
        if pager.is_stopped() {
            // The books are left as they are, for who brings everything in.
            pager.frozen.fetch_sub(1, SeqCst);
            return;
        }
        // Whoever serves a fault from the frozen books holds this lock, too.
        let _reading = pager.reading.lock();
        // Of what has moved, it is not known where it was brought in.
        let moved = pager.deferred.lock().has_moved();
        pager.carry_out_deferred();
        let mut thawed = pager.thawed.lock();
        let (pages, overflow) = thawed.take();
        let pagemap = Pagemap::open();
        for &address in pages {
            if let Some(place) = pager.regions.find(address) {
                adopt(pager, &place, &pagemap);
            }
        }
        if overflow || moved {
            self.adopt_present();
        }
        drop(thawed);
        pager.frozen.fetch_sub(1, SeqCst);
    }

    /// Brings every present page into the books.
    pub fn adopt_present(&mut self) {
        let pager = self.pager;
        let pagemap = Pagemap::open();
        for (_, region) in pager.regions.iter() {
            pagemap.for_each_present(region.start(), region.end(), |start, count| {
                for i in 0..count {
                    if let Some(place) = pager.regions.find(start + i * PAGE) {
                        adopt(pager, &place, &pagemap);
                    }
                }
            });
        }
    }
}

/// A page was present a moment ago: brings that into the books, whatever we held
/// of it. Unless it is gone again: another worker may have made it leave in the
/// meantime, and then what we hold is all there is of it.
pub fn adopt(pager: &Pager, place: &Place<'_>, pagemap: &Pagemap) {
    let word = pager.lock_page(place);
    let state = PageState::of(word);
    // Of a fresh page nothing is held that could be lost.
    let held = !matches!(state, PageState::Fresh | PageState::Gone | PageState::Resident);
    if held && pagemap.is_present(place.address()) != Some(true) {
        place.word.store(word, Release);
        return;
    }
    match state {
        PageState::Resident => {}
        PageState::Limbo(slot) => {
            // The slot's frame is an old copy; the tail drops it. Its room
            // passes to the present page.
            pager.staging.owner_of(slot).store(NOBODY, Release);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy that learns by touches in limbo needs pages there; for others they are
    /// memory that is of no use. And a ring that is smaller than a batch must not fill up.
    #[test]
    fn limbo_keeps_what_the_policy_learns_by() {
        assert_eq!(kept_in_limbo(8192, false), 32);
        assert_eq!(kept_in_limbo(8192, true), 4096 + 32);
        assert!([32, 40, 64].iter().all(|&slots| kept_in_limbo(slots, true) < slots));
        assert!([32, 40, 64].iter().all(|&slots| kept_in_limbo(slots, false) < slots));
    }
}
