//! Huge pages: memory that a program walks into is backed by 2 MiB pages ahead of its
//! first touch.
//!
//! The manager keeps a few huge pages of zeros ready, as long as the economist says that
//! they pay; a handler that serves a walk moves them to where the walk will be next.
//! That costs less than one fault and saves 512 first touches and most of the page walks
//! afterwards. Behind a fault it would be too late: the fault has made a page table there
//! already, into which the kernel moves a huge page only in parts (decision 0007).
//!
//! A page that leaves splits the huge page that it is in; the kernel does so by itself.
//! Base pages become huge pages again in [`crate::collapse`].

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use terrace_core::{Nanos, Pages, Proposal};

use crate::collapse::Probes;
use crate::page_state::PageState;
use crate::pager::Pager;
use crate::queue::Note;
use crate::regions::{CHUNK, Place, in_window};
use crate::serve::Worker;
use crate::spin::SpinLock;
use crate::sys::{self, PAGE};
use crate::walks::Walks;

/// Base pages of a huge page.
pub const BASES: u32 = (CHUNK / PAGE) as u32;
/// Huge pages kept ready at most.
const SLOTS: usize = 16;
/// As a share of the budget: one in so many pages.
const SHARE: u64 = 16;
/// Huge pages put before a walk at once, at most.
const MOST_AHEAD: u64 = 8;
/// A walk is worth a thought from this length on.
const LEAST_WALKED: Pages = Pages(BASES as u64);
/// Without a walk for so long (ns) nothing is kept ready.
const REMEMBERED: u64 = 1_000_000_000;
/// When the kernel had no huge page, or the economist was against it, it is asked again
/// after so long (ns).
const PAUSE: u64 = 100_000_000;

const EMPTY: u32 = 0;
const READY: u32 = 1;
const TAKEN: u32 = 2;

/// Huge pages of zeros, and what they are for.
pub struct HugePool {
    enabled: bool,
    /// Address of the first slot; 0 before it is needed.
    base: AtomicUsize,
    slots: [AtomicU32; SLOTS],
    /// How far the latest walk has come that would take one, in pages; 0 if there was none.
    walked: AtomicU32,
    /// When it was seen (ns).
    seen: AtomicU64,
    /// Until when (ns) nothing is prepared.
    pause: AtomicU64,
    /// The walks.
    walks: SpinLock<Walks>,
    /// Pages of which the next touch is waited for.
    pub probes: Probes,
}

impl HugePool {
    /// An empty pool; one that is not enabled stays so.
    pub fn new(enabled: bool) -> Self {
        Self {
            enabled,
            base: AtomicUsize::new(0),
            slots: [const { AtomicU32::new(EMPTY) }; SLOTS],
            walked: AtomicU32::new(0),
            seen: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            walks: SpinLock::new(Walks::default()),
            probes: Probes::default(),
        }
    }

    fn address(&self, slot: usize) -> usize {
        self.base.load(Acquire) + slot * CHUNK
    }

    /// Takes a slot from one state into another.
    fn take(&self, from: u32, to: u32) -> Option<usize> {
        self.slots.iter().position(|slot| slot.compare_exchange(from, to, AcqRel, Relaxed).is_ok())
    }

    /// Huge pages that are ready.
    fn ready(&self) -> u64 {
        self.slots.iter().filter(|slot| slot.load(Relaxed) == READY).count() as u64
    }

    /// Gives one of them back to the kernel, and its room to the budget; false if there
    /// is none.
    pub fn drop_one(&self, pager: &Pager) -> bool {
        let Some(slot) = self.take(READY, TAKEN) else { return false };
        self.empty(pager, slot, BASES);
        true
    }

    /// Empties a slot that is taken; of its room, `pages` are given back.
    fn empty(&self, pager: &Pager, slot: usize, pages: u32) {
        // SAFETY: the slot is ours, and nothing in it is needed.
        let _ = unsafe { sys::madvise(self.address(slot), CHUNK, libc::MADV_DONTNEED) };
        pager.release(u64::from(pages));
        self.slots[slot].store(EMPTY, Release);
    }

    /// The slots' memory, which is mapped when it is first needed. Not inherited: a
    /// page that a child shares does not move, ever.
    fn map(&self) -> Option<usize> {
        let base = self.base.load(Acquire);
        if base != 0 {
            return Some(base);
        }
        let len = SLOTS * CHUNK;
        let base = sys::map_private(len + CHUNK).ok()?.next_multiple_of(CHUNK);
        // SAFETY: changes no content.
        unsafe {
            sys::madvise(base, len, libc::MADV_DONTFORK).ok()?;
            sys::madvise(base, len, libc::MADV_HUGEPAGE).ok()?;
        }
        self.base.store(base, Release);
        Some(base)
    }

    /// For a forked child, which has not got the slots' memory. While frozen: no slot
    /// is being filled or taken.
    pub fn after_fork(&self, pager: &Pager) {
        pager.release(self.ready() * u64::from(BASES));
        self.slots.iter().for_each(|slot| slot.store(EMPTY, Relaxed));
        self.base.store(0, Release);
        self.probes.clear();
        // SAFETY: the holder is a thread of the parent, and changes nothing while frozen.
        unsafe { self.walks.force_unlock() };
    }

    /// How many are to be ready now.
    fn wanted(&self, pager: &Pager, now: u64) -> u64 {
        let asked = self.walked.load(Relaxed) != 0 && now < self.seen.load(Relaxed) + REMEMBERED;
        if !asked {
            return 0;
        }
        (pager.budget() / SHARE / u64::from(BASES)).min(SLOTS as u64)
    }
}

impl Worker<'_> {
    /// A first touch was served, and all pages before `next` with it: puts huge pages
    /// where the walk that it belongs to will be, if it is one.
    pub(crate) fn back_ahead(&mut self, place: &Place<'_>, next: u32) {
        let pager = self.pager;
        let huge = &pager.huge;
        if !huge.enabled || !in_window(place.address()) {
            return;
        }
        // Another handler follows a walk just now: this step is lost, the walk goes on.
        let Some(mut walks) = huge.walks.try_lock() else { return };
        let step = walks.step(place.id, place.page, next);
        let counters = &pager.stats().counters;
        counters.huge_used.fetch_add(u64::from(step.used), Relaxed);
        if step.walked < LEAST_WALKED {
            return;
        }
        huge.walked.store(step.walked.get().min(u64::from(u32::MAX)) as u32, Relaxed);
        huge.seen.store(sys::now(), Relaxed);
        let region = place.region;
        let start = region.start();
        let (mut from, mut to) = step.ahead;
        if from == to {
            let chunk = (start + next as usize * PAGE).next_multiple_of(CHUNK);
            from = ((chunk - start) / PAGE) as u32;
            to = from;
        }
        // Half as far as it has come.
        let most = (step.walked.get() / u64::from(2 * BASES)).clamp(1, MOST_AHEAD) as u32;
        let before = to;
        while to - from < most * BASES && to + BASES <= region.pages() && self.back(place, to) {
            to += BASES;
        }
        if to > before {
            walks.backed(place.id, next, (from, to));
            counters.huge_backed.fetch_add(u64::from((to - before) / BASES), Relaxed);
        }
        drop(walks);
        if to > from && next >= from {
            pager.streams.jump(place.id, next, to);
        }
        if to - from < most * BASES && huge.pause.load(Relaxed) < sys::now() {
            pager.ring();
        }
    }

    /// Moves a huge page of zeros to where no page of the program's is, and none has
    /// been; false if that cannot be done just now.
    fn back(&self, place: &Place<'_>, first: u32) -> bool {
        let pager = self.pager;
        let region = place.region;
        let words = || (first..first + BASES).map(|page| (page, region.word(page)));
        let fresh = PageState::Fresh.word();
        if words().any(|(_, word)| word.load(Relaxed) != fresh) {
            return false;
        }
        let Some(slot) = pager.huge.take(READY, TAKEN) else { return false };
        let put_back = |pages: u32| {
            for (_, word) in words().take(pages as usize) {
                word.store(fresh, Release);
            }
            pager.huge.slots[slot].store(READY, Release);
            false
        };
        for (page, word) in words() {
            let at = Place { page, word, ..*place };
            if !pager.try_lock_page(&at, PageState::Fresh) {
                return put_back(page - first);
            }
        }
        // As where stored pages come in ahead: what was unmapped is not to be filled.
        let Some(reading) = self.reading_if_free() else { return put_back(BASES) };
        let to = region.start() + first as usize * PAGE;
        let (bytes, _) = self.mv(pager.uffd(), to, pager.huge.address(slot), CHUNK);
        drop(reading);
        let moved = (bytes / PAGE) as u32;
        if moved == 0 {
            return put_back(BASES);
        }
        region.resident.fetch_add(moved, Relaxed);
        pager.note(Note::Filled(Pager::page_range(place.id, first, moved)));
        let resident = PageState::Resident.word();
        for (page, word) in words() {
            word.store(if page - first < moved { resident } else { fresh }, Release);
        }
        if moved == BASES {
            pager.regions.set_huge(to, true);
            pager.huge.slots[slot].store(EMPTY, Release);
        } else {
            pager.huge.empty(pager, slot, BASES - moved);
        }
        pager.stats().counters.ahead.fetch_add(u64::from(moved), Relaxed);
        moved == BASES
    }

    /// Keeps as many huge pages ready as the program takes and the economist allows.
    /// The manager's to call; true if there is more to do.
    pub(crate) fn keep_huge_pages(&mut self) -> bool {
        let pager = self.pager;
        let huge = &pager.huge;
        if !huge.enabled || pager.frozen.load(Relaxed) != 0 {
            return false;
        }
        let now = sys::now();
        let (ready, wanted) = (huge.ready(), huge.wanted(pager, now));
        if ready > wanted {
            return huge.drop_one(pager);
        }
        let room = u64::from(BASES) + 2 * pager.headroom();
        if ready == wanted
            || now < huge.pause.load(Relaxed)
            || pager.resident() + room > pager.budget()
        {
            return false;
        }
        let took = self.huge_page_pays().and_then(|proposal| {
            let took = self.prepare();
            pager.mind.lock().prezeroed(pager, proposal, took);
            took
        });
        if took.is_none() {
            huge.pause.store(now + PAUSE, Relaxed);
        }
        took.is_some()
    }

    /// Asks the economist; the proposal if it may be carried out.
    fn huge_page_pays(&self) -> Option<Proposal> {
        let pager = self.pager;
        let walked = Pages(u64::from(pager.huge.walked.load(Relaxed)));
        let (used, known) = pager.huge.walks.lock().outcomes();
        pager.mind.lock().prezero(pager, walked, used, known)
    }

    /// Fills a slot; how long that took, or `None` if the kernel had no huge page.
    fn prepare(&mut self) -> Option<Nanos> {
        let pager = self.pager;
        let huge = &pager.huge;
        huge.map()?;
        if !pager.try_reserve(u64::from(BASES)) {
            return None;
        }
        let Some(slot) = huge.take(EMPTY, TAKEN) else {
            pager.release(u64::from(BASES));
            return None;
        };
        let start = sys::now();
        let at = huge.address(slot);
        // SAFETY: the slot's first byte, which is ours. The kernel zeroes what it gives.
        unsafe { (at as *mut u8).write_volatile(0) };
        let took = Nanos(sys::now() - start);
        // Only a huge page reaches so far.
        if self.pagemap.is_present(at + CHUNK - PAGE) != Some(true) {
            huge.empty(pager, slot, BASES);
            return None;
        }
        huge.slots[slot].store(READY, Release);
        pager.stats().counters.huge_zeroed.fetch_add(1, Relaxed);
        Some(took)
    }
}
