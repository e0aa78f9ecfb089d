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
//! Base pages become huge pages again in [`crate::huge::collapse`].

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use terrace_core::{Abort, Nanos, PageSize, Pages, Proposal};

use crate::decide::decider::{self, Averts, Work};
use crate::decide::notes::Note;
use crate::decide::processors::ProcessorLoad;
use crate::huge::collapse::Probes;
use crate::huge::fresh_walks::Walks;
use crate::huge::guide::Guide;
use crate::pager::Pager;
use crate::space::page_state::PageState;
use crate::space::proc_maps::{self, FreeMemory};
use crate::space::regions::{CHUNK, Place, in_window};
use crate::sys::spin::SpinLock;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Base pages of a huge page.
pub(crate) const BASES: u32 = (CHUNK / PAGE) as u32;
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
pub(super) const PAUSE: u64 = 100_000_000;

const EMPTY: u32 = 0;
const READY: u32 = 1;
const TAKEN: u32 = 2;

/// What a huge page of zeros took (processor time).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    /// What any takes, whose account it is in.
    pub(crate) zeroing: Nanos,
    /// What it took beyond that to move pages together, which is in the account of compaction.
    pub(crate) moving: Nanos,
}

/// Huge pages of zeros, and what they are for.
pub(crate) struct HugePool {
    enabled: bool,
    /// Address of the first slot; 0 before it is needed.
    base: AtomicUsize,
    slots: [AtomicU32; SLOTS],
    /// How far the latest walk has come that would take one, in pages; 0 if there was none.
    walked: AtomicU32,
    /// When it was seen (ns).
    seen: AtomicU64,
    /// Until when (ns) nothing is prepared.
    pub(super) pause: AtomicU64,
    /// What zeroing a huge page took last where the kernel had one (ns of processor time).
    zeroing: AtomicU64,
    /// How busy the processors are: what the manager's time costs.
    load: SpinLock<ProcessorLoad>,
    /// The walks.
    walks: SpinLock<Walks>,
    /// Pages of which the next touch is waited for.
    pub probes: Probes,
    /// What a profile says.
    pub(crate) guide: SpinLock<Guide>,
    /// Whether there is one.
    pub(crate) is_guided: bool,
}

impl HugePool {
    /// An empty pool; one that is not enabled stays so.
    pub(crate) fn new(enabled: bool, guide: Guide) -> Self {
        Self {
            enabled,
            base: AtomicUsize::new(0),
            slots: [const { AtomicU32::new(EMPTY) }; SLOTS],
            walked: AtomicU32::new(0),
            seen: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            zeroing: AtomicU64::new(0),
            load: SpinLock::new(ProcessorLoad::begin()),
            walks: SpinLock::new(Walks::default()),
            probes: Probes::default(),
            is_guided: guide.is_any(),
            guide: SpinLock::new(guide),
        }
    }

    /// Whether a profile says that a chunk is better off with base pages.
    pub(crate) fn is_plain(&self, at: usize) -> bool {
        self.is_guided && self.guide.try_lock().is_some_and(|guide| guide.is_plain(at))
    }

    /// How busy the processors are, 0 to 1. The manager's to ask.
    pub(crate) fn cpu_load(&self) -> f64 {
        self.load.lock().now()
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
    pub(crate) fn drop_one(&self, pager: &Pager) -> bool {
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
        let at = sys::map_private(len + CHUNK).ok()?;
        let base = at.next_multiple_of(CHUNK);
        // SAFETY: first what lies around it, of which nobody knows; the rest changes no content.
        unsafe {
            if base > at {
                let _ = sys::munmap(at, base - at);
            }
            let _ = sys::munmap(base + len, at + CHUNK - base);
            sys::madvise(base, len, libc::MADV_DONTFORK).ok()?;
            sys::madvise(base, len, libc::MADV_HUGEPAGE).ok()?;
        }
        self.base.store(base, Release);
        Some(base)
    }

    /// Gives the slots' memory back.
    ///
    /// # Safety
    /// Nobody uses them any more.
    pub(crate) unsafe fn give_back(&self) {
        let base = self.base.swap(0, AcqRel);
        if base != 0 {
            // SAFETY: a mapping of ours; the caller's.
            let _ = unsafe { sys::munmap(base, SLOTS * CHUNK) };
        }
    }

    /// For a forked child, which has not got the slots' memory. While frozen: no slot
    /// is being filled or taken.
    pub(crate) fn after_fork(&self, pager: &Pager) {
        pager.release(self.ready() * u64::from(BASES));
        self.slots.iter().for_each(|slot| slot.store(EMPTY, Relaxed));
        self.base.store(0, Release);
        self.probes.clear();
        // SAFETY: the holder is a thread of the parent, and changes nothing while frozen.
        unsafe { self.walks.force_unlock() };
        // SAFETY: as above; only the manager, which forked, changes what is in it.
        unsafe { self.guide.force_unlock() };
        // SAFETY: as above.
        unsafe { self.load.force_unlock() };
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
        let address = |page: u32| start + page as usize * PAGE;
        while to - from < most * BASES
            && to + BASES <= region.pages()
            && !huge.is_plain(address(to))
            && self.back(place, to)
        {
            to += BASES;
        }
        if to > before {
            walks.backed(place.id, next, (from, to));
            counters.huge_backed.fetch_add(u64::from((to - before) / BASES), Relaxed);
        }
        drop(walks);
        if to > from && next >= from {
            pager.fault.streams.jump(place.id, next, to);
        }
        if to - from < most * BASES && huge.pause.load(Relaxed) < sys::now() {
            pager.ring();
        }
    }

    /// Moves a huge page of zeros to where no page of the program's is, and none has
    /// been; false if that cannot be done just now.
    pub(crate) fn back(&self, place: &Place<'_>, first: u32) -> bool {
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
        let (bytes, _) = self.move_frames(pager.uffd(), to, pager.huge.address(slot), CHUNK);
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
        if !huge.enabled || pager.freeze.is_on() {
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
            let took = self.make_one(Averts::default()).map(|made| made.zeroing);
            pager.decide.decider.lock().prezeroed(pager, proposal, took);
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
        let outcomes = pager.huge.walks.lock().outcomes();
        let load = pager.huge.cpu_load();
        pager.decide.decider.lock().prezero(pager, walked, outcomes, load)
    }

    /// Fills a slot with a free block of the kernel's; where it has none, the kernel moves pages
    /// together, if the economist says that this pays. What it took, or `None` if there is none.
    pub(crate) fn make_one(&mut self, averts: Averts) -> Option<Made> {
        let pager = self.pager;
        let free = proc_maps::free_memory();
        if let Some(free) = &free {
            pager.decide.decider.lock().saw_blocks(pager.stats(), free.blocks > 0);
        }
        let Some(free) = free.filter(|free| free.blocks == 0) else {
            let zeroing = self.prepare()?;
            pager.huge.zeroing.store(zeroing.get(), Relaxed);
            return Some(Made { zeroing, moving: Nanos::ZERO });
        };
        let (pages, load) = (to_move(free), pager.huge.cpu_load());
        let proposal = pager.decide.decider.lock().compact(pager, pages, averts, load)?;
        let work = Work::begin();
        let took = self.prepare().ok_or_else(|| work.took());
        self.compacted(proposal, pages, took)
    }

    /// So many pages were moved together for a huge page that took so long; or took so long in vain. What
    /// of it is compaction's is in its account; the rest is what any huge page takes.
    fn compacted(
        &self,
        proposal: Proposal,
        pages: Pages,
        took: Result<Nanos, Nanos>,
    ) -> Option<Made> {
        let pager = self.pager;
        let mut decider = pager.decide.decider.lock();
        let took = match took {
            Ok(took) => took,
            Err(took) => {
                decider.in_vain(pager, proposal, Abort::NoMemory, took);
                return None;
            }
        };
        let zeroing = match pager.huge.zeroing.load(Relaxed) {
            // There was never a free block: as it is priced.
            0 => {
                let prices = decider.brain().economist().calibration();
                prices.copy_bandwidth.time_for(PageSize::Huge.bytes())
            }
            last => Nanos(last),
        };
        let made = share_out(took, zeroing);
        let outcome = decider::completed(pager, made.moving.get(), pages.get());
        decider.carried_out(pager, proposal, outcome);
        Some(made)
    }

    /// Fills a slot; the processor time that it took, or `None` if the kernel had no huge page.
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
        let work = Work::begin();
        let at = huge.address(slot);
        // SAFETY: the slot's first byte, which is ours. The kernel zeroes what it gives.
        unsafe { (at as *mut u8).write_volatile(0) };
        let took = work.took().max(Nanos(1));
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

/// What a huge page took for which pages were moved together, and what zeroing takes: each
/// nanosecond counts as one of both.
fn share_out(took: Nanos, zeroing: Nanos) -> Made {
    // Moving took some time, however long zeroing took last.
    let moving = took.saturating_sub(zeroing).max(Nanos(1)).min(took);
    Made { zeroing: took - moving, moving }
}

/// Pages that have to move for a block, as if those that are in use lay evenly: the kernel's
/// scanner takes blocks as they come, not the emptiest first.
fn to_move(free: FreeMemory) -> Pages {
    // SAFETY: asks the C library for a constant.
    let all = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    to_move_of(free, u64::try_from(all).unwrap_or(0))
}

fn to_move_of(free: FreeMemory, all: u64) -> Pages {
    let used = all.saturating_sub(free.pages).min(all);
    Pages((u64::from(BASES) * used).checked_div(all).unwrap_or(u64::from(BASES)).max(1))
}

#[cfg(test)]
mod tests {
    use terrace_core::{ActionClass, Cycles};

    use super::*;
    use crate::pager::MANAGER;
    use crate::pager::fixture::{pager, place, state, touch};

    fn states(pager: &Pager) -> Vec<PageState> {
        (0..BASES as usize).map(|page| state(pager, page)).collect()
    }

    #[test]
    fn a_huge_page_goes_only_where_no_page_has_been() {
        let pager = pager(BASES as usize);
        pager.huge.slots[0].store(READY, Release);
        touch(pager, 5);
        let before = states(pager);
        assert!(!Worker::new(pager, MANAGER).back(&place(pager, 0), 0));
        assert_eq!(states(pager), before);
        assert_eq!(pager.huge.ready(), 1);
    }

    /// Of 512 pages that were taken, none stays taken.
    #[test]
    fn what_the_kernel_does_not_move_is_ready_still() {
        let pager = pager(BASES as usize);
        pager.huge.slots[3].store(READY, Release);
        let resident = pager.resident();
        assert!(!Worker::new(pager, MANAGER).back(&place(pager, 0), 0));
        assert!(states(pager).iter().all(|&state| state == PageState::Fresh));
        assert_eq!((pager.huge.ready(), pager.resident()), (1, resident));
        assert!(!pager.regions.iter().any(|(_, region)| region.resident.load(Relaxed) > 0));
    }

    #[test]
    fn a_child_has_none_of_its_parents_and_their_room() {
        let pager = pager(1);
        let before = pager.resident();
        for slot in [1, 4] {
            pager.huge.slots[slot].store(READY, Release);
            pager.reserve_over(BASES.into());
        }
        pager.huge.after_fork(pager);
        assert_eq!((pager.huge.ready(), pager.resident()), (0, before));
    }

    #[test]
    fn the_fuller_memory_is_the_more_has_to_move_for_a_block() {
        let of = |pages| to_move_of(FreeMemory { blocks: 0, pages }, 1_000_000);
        assert_eq!(of(0), Pages(512));
        assert_eq!(of(500_000), Pages(256));
        assert_eq!(of(1_000_000), Pages(1), "something must be in the way");
        assert_eq!(to_move_of(FreeMemory::default(), 0), Pages(512), "nobody says");
    }

    /// Whoever asks for a block is told by a price, and it is in the accounts.
    #[test]
    fn compaction_is_proposed_and_priced() {
        let pager = pager(1);
        let ask =
            |pages, averts| pager.decide.decider.lock().compact(pager, Pages(pages), averts, 1.0);
        let nothing = Averts::default();
        assert!(ask(1 << 40, nothing).is_none(), "all of memory for a block that spares faults");
        let (cycles, within) = (Cycles(1_000_000_000), Nanos::SECOND);
        let much = Averts { cycles, within, left: within };
        let proposal = ask(1, much).expect("one move for much");
        let outcome = decider::completed(pager, 30_000, 1);
        let mut decider = pager.decide.decider.lock();
        decider.carried_out(pager, proposal, outcome);
        let account = *decider.brain().economist().account(ActionClass::Compact);
        assert_eq!((account.proposed, account.vetoed, account.completed), (2, 1, 1));
    }

    /// A huge page whose account had the moving as well would seem to cost what it does not, and the
    /// next one would be refused for it.
    #[test]
    fn what_a_block_took_is_in_the_books_once() {
        let pager = pager(1);
        let (cycles, within) = (Cycles(1_000_000_000), Nanos::SECOND);
        let much = Averts { cycles, within, left: within };
        let took = Nanos::millis(3);
        let zeros = pager.decide.decider.lock().prezero(pager, Pages(1 << 20), (8, 8), 0.0);
        let moves = pager.decide.decider.lock().compact(pager, Pages(1), much, 0.0);
        pager.huge.zeroing.store(200_000, Relaxed);
        let worker = Worker::new(pager, MANAGER);
        let made = worker.compacted(moves.expect("it pays"), Pages(1), Ok(took));
        let made = made.expect("there is one");
        assert_eq!(made, Made { zeroing: Nanos::micros(200), moving: Nanos::micros(2800) });
        let mut decider = pager.decide.decider.lock();
        decider.prezeroed(pager, zeros.expect("it pays"), Some(made.zeroing));
        drop(decider);
        let cost = |class| {
            let decider = pager.decide.decider.lock();
            decider.brain().economist().account(class).whole_cost()
        };
        let both = cost(ActionClass::Prezero) + cost(ActionClass::Compact);
        let all = pager.clock.cycles(took);
        assert!(both.get().abs_diff(all.get()) <= 2, "{both} of {all}");
        // What finds no block was paid for all the same.
        let before = cost(ActionClass::Compact);
        let moves = pager.decide.decider.lock().compact(pager, Pages(1), much, 0.0);
        assert!(worker.compacted(moves.expect("it pays"), Pages(1), Err(took)).is_none());
        assert_eq!(cost(ActionClass::Compact), before + all);
    }

    #[test]
    fn what_it_took_is_shared_out_whole() {
        for (took, zeroing) in [(500, 300), (300, 500), (300, 300), (1, 7), (7, 0)] {
            let made = share_out(Nanos(took), Nanos(zeroing));
            assert_eq!(made.zeroing + made.moving, Nanos(took));
            assert!(!made.moving.is_zero() && made.zeroing <= Nanos(zeroing), "{made:?}");
        }
        // Zeroing was never timed, since there was never a free block: not all of it is moving.
        let pager = pager(1);
        let within = Nanos::SECOND;
        let much = Averts { cycles: Cycles(1_000_000_000), within, left: within };
        let proposal = pager.decide.decider.lock().compact(pager, Pages(1), much, 0.0);
        let worker = Worker::new(pager, MANAGER);
        let long = Ok(Nanos::seconds(10));
        let made = worker.compacted(proposal.expect("it pays"), Pages(1), long);
        assert!(!made.expect("there is one").zeroing.is_zero());
    }

    #[test]
    fn nothing_is_kept_ready_for_a_walk_that_ended_long_ago() {
        let pager = pager(1);
        let now = sys::now();
        assert_eq!(pager.huge.wanted(pager, now), 0, "there was none");
        pager.huge.walked.store(4 * BASES, Relaxed);
        pager.huge.seen.store(now, Relaxed);
        pager.grant(SHARE * u64::from(BASES) * 3);
        assert_eq!(pager.huge.wanted(pager, now), 3);
        assert_eq!(pager.huge.wanted(pager, now + REMEMBERED), 0);
    }
}
