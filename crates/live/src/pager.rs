//! The pager of one process: what its threads share.

use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use terrace_core::{Frequency, PageNo, PageRange, PageRef, PageSize, RegionId};

use crate::broker::member::FLOOR;
use crate::config::{Counted, HugePages, RunConfig};
use crate::deferred::Deferred;
use crate::density::Density;
use crate::limbo::{Limbo, Staging};
use crate::mind::Mind;
use crate::page_state::{BUSY, PageState};
use crate::queue::{Note, Queue};
use crate::regions::{Place, Regions};
use crate::shared::ProcessPage;
use crate::spill::Spill;
use crate::spin::{SharedLock, SpinLock, backoff};
use crate::store::{Blob, Store};
use crate::sys::{self, PAGE};
use crate::tracking::{Departed, Tracks};
use crate::uffd::{Uffd, mode};

/// The most fault handlers; they are numbered from 1.
pub const HANDLERS: usize = 4;
/// The number of the thread that writes the spill file.
pub const WRITER: usize = HANDLERS + 1;
/// Fault handlers, the manager and the writer.
pub const MAX_WORKERS: usize = HANDLERS + 2;
/// The manager's number among the workers.
pub const MANAGER: usize = 0;

/// What other threads need to know of a worker.
#[derive(Default)]
pub struct WorkerSlot {
    /// The region epoch at which it began what it is doing; 0 while it does nothing.
    pub busy: AtomicU64,
    /// Its thread, 0 if there is none.
    pub tid: AtomicI32,
    /// When it began to serve a fault, ns; 0 while it serves none.
    pub serving_since: AtomicU64,
    /// Where its [`crate::serve::Worker`] is, on its stack; 0 before it is at work.
    pub(crate) at: AtomicUsize,
    /// The same of what the manager and the writer have beside.
    pub(crate) beside: AtomicUsize,
}

/// A pager.
pub struct Pager {
    /// What was asked for.
    pub config: RunConfig,
    /// The clock in which costs are given.
    pub clock: Frequency,
    stats: AtomicPtr<ProcessPage>,
    /// The program's memory is registered with this one.
    uffd: AtomicI32,
    /// What the kernel's userfaultfd can do: bits of [`crate::uffd::feature`].
    pub features: AtomicU64,
    /// Whether the program's memory is registered for [`Tracks::Stores`] or
    /// [`Tracks::Accesses`], too: 0 if not, else 1 or 2.
    tracks: AtomicU32,
    /// Pages that have left since something was protected.
    pub departed: Departed,
    /// Regions.
    pub regions: Regions,
    /// Compressed pages.
    pub store: Store,
    /// What the store cannot hold.
    pub spill: Spill,
    /// Staging slots.
    pub staging: Staging,
    /// The ring over the staging slots; held by whoever makes room.
    pub limbo: SpinLock<Limbo>,
    /// Notes for the policy.
    pub queue: Queue,
    /// The policy.
    pub mind: SpinLock<Mind>,
    /// Held while messages are read, and address-space events carried out: so
    /// a fault that was read after an event is served after it. Shared by who
    /// moves pages that no fault asked for.
    pub reading: SharedLock,
    /// Whether the policy wants to know of touches in limbo.
    pub limbo_samples: bool,
    /// What the broker grants.
    pub share: crate::broker::member::Share,
    budget: AtomicU64,
    resident: AtomicU64,
    /// Until when (ns) nothing need be tried: all that is resident is pinned.
    pub nothing_leaves: AtomicU64,
    /// How long that will be the next time (ns).
    pub pinned_for: AtomicU64,
    /// Taken by the one handler that may fault itself.
    pub unsharing: AtomicU32,
    /// While set, faults are served without changing anything of ours: a
    /// consistent picture is being copied into a child.
    pub frozen: AtomicU32,
    /// Pages that were brought in while frozen.
    pub thawed: SpinLock<Thawed>,
    /// Address-space events read while frozen, to be carried out afterwards.
    pub deferred: SpinLock<Deferred>,
    /// Moments in which pages leave at little cost.
    pub quiet: crate::quiet::Quiet,
    /// How tightly pages are packed.
    pub density: Density,
    /// How the handlers wait.
    pub duty: crate::duty::Duty,
    /// How long threads can have waited for them.
    pub waits: crate::waits::Waits,
    /// What the program is expected to touch next.
    pub streams: crate::ahead::Streams,
    /// Huge pages for what it will touch for the first time.
    pub huge: crate::huge::HugePool,
    /// The workers.
    pub workers: [WorkerSlot; MAX_WORKERS],
    /// Wakes the manager.
    pub bell: AtomicU32,
    /// When (ns) something of ours broke; 0: never.
    stopped: AtomicU64,
    /// Whether everything has been brought in since.
    pub over: AtomicU32,
    /// Whether our threads are to end.
    leaving: AtomicU32,
    /// Readable once they are: who sleeps until there is a message wakes up.
    farewell: AtomicI32,
    /// Whether the program's memory is being registered for the first time.
    pub beginning: AtomicU32,
    /// Whether the manager sleeps.
    pub asleep: AtomicU32,
    /// Requests of the program's threads to the manager.
    pub commands: crate::command::Commands,
    /// Forking.
    pub fork: crate::fork::ForkState,
    /// Ranges that a forked child is to find empty (`MADV_WIPEONFORK`).
    pub wiped: SpinLock<Vec<(usize, usize)>>,
    /// One past the heap's last managed address; 0 if it is not managed.
    pub heap_end: AtomicUsize,
    /// Where a core dump has the [anchor](crate::core_tables).
    pub anchor: usize,
}

/// Pages that were brought in while frozen, as addresses.
pub struct Thawed {
    pages: Box<[usize]>,
    count: usize,
}

impl Thawed {
    /// An empty list.
    pub fn new() -> Self {
        Self { pages: vec![0; 16_384].into(), count: 0 }
    }
    /// Notes a page.
    pub fn push(&mut self, page: usize) {
        if let Some(slot) = self.pages.get_mut(self.count) {
            *slot = page;
        }
        self.count += 1;
    }
    /// The pages noted, and whether there were more than fit.
    pub fn take(&mut self) -> (&[usize], bool) {
        let count = core::mem::take(&mut self.count);
        (&self.pages[..count.min(self.pages.len())], count > self.pages.len())
    }
}

impl Default for Thawed {
    fn default() -> Self {
        Self::new()
    }
}

/// Staging slots for a budget of so many pages: a tenth of it, so that a policy that asks
/// for samples has some. Two 16-page batches are the least that can be moved at once.
fn limbo_slots(budget: u64) -> u32 {
    (budget / 10).clamp(32, 8192) as u32
}

/// Where what is compressed counts, too: the part of what is granted that pages in DRAM
/// keep however much is compressed, one of so many. What does not compress would
/// otherwise drive everything out for nothing.
const KEPT: u64 = 8;

impl Pager {
    /// A pager without regions and without threads.
    pub fn new(
        config: RunConfig,
        stats: &'static ProcessPage,
        mind: Mind,
        clock: Frequency,
    ) -> Result<Self, i32> {
        let (share, held) = crate::broker::member::Share::begin(config.fast.get());
        let budget = held / PAGE as u64;
        // Room for what the share may become.
        let slots = limbo_slots(budget.max(config.fast.get() / PAGE as u64));
        stats.counters.budget_bytes.store(budget * PAGE as u64, Relaxed);
        let economist = mind.brain().economist();
        let density = Density::new(economist.mode(), economist.calibration().user_fault);
        Ok(Self {
            clock,
            stats: AtomicPtr::new(core::ptr::from_ref(stats).cast_mut()),
            uffd: AtomicI32::new(-1),
            features: AtomicU64::new(0),
            tracks: AtomicU32::new(0),
            departed: Departed::new(),
            regions: Regions::new()?,
            store: Store::new(),
            spill: Spill::new(match config.spill {
                Some(_) => config.spill_size,
                None => terrace_core::Bytes::ZERO,
            }),
            staging: Staging::new(slots)?,
            limbo: SpinLock::new(Limbo::new(slots, 4096, config.sampling_cap)),
            queue: Queue::new(),
            limbo_samples: mind.brain().needs().samples || mind.brain().needs().scans,
            mind: SpinLock::new(mind),
            reading: SharedLock::default(),
            share,
            budget: AtomicU64::new(budget),
            resident: AtomicU64::new(0),
            nothing_leaves: AtomicU64::new(0),
            pinned_for: AtomicU64::new(0),
            unsharing: AtomicU32::new(0),
            frozen: AtomicU32::new(0),
            thawed: SpinLock::new(Thawed::new()),
            deferred: SpinLock::new(Deferred::new()),
            quiet: crate::quiet::Quiet::open(&config.dir),
            density,
            duty: crate::duty::Duty::default(),
            waits: crate::waits::Waits::default(),
            streams: crate::ahead::Streams::default(),
            huge: crate::huge::HugePool::new(config.huge_pages != HugePages::Never),
            workers: Default::default(),
            bell: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            stopped: AtomicU64::new(0),
            over: AtomicU32::new(0),
            leaving: AtomicU32::new(0),
            farewell: AtomicI32::new(-1),
            beginning: AtomicU32::new(0),
            commands: crate::command::Commands::new(),
            fork: crate::fork::ForkState::new(),
            wiped: SpinLock::new(Vec::new()),
            heap_end: AtomicUsize::new(0),
            anchor: crate::core_tables::reserve()?,
            config,
        })
    }

    /// The statistics page.
    pub fn stats(&self) -> &ProcessPage {
        // SAFETY: only ever set from `&'static`.
        unsafe { &*self.stats.load(Acquire) }
    }
    /// Counts on another page: a child has its own.
    pub fn set_stats(&self, stats: &'static ProcessPage) {
        self.stats.store(core::ptr::from_ref(stats).cast_mut(), Release);
    }
    /// The handle with which the program's memory is registered.
    pub fn uffd(&self) -> Uffd {
        Uffd::from_raw(self.uffd.load(Acquire))
    }
    /// Sets the handle, and what is tracked by it.
    pub fn set_uffd(&self, uffd: Uffd, tracks: Option<Tracks>) {
        self.uffd.store(uffd.raw(), Release);
        self.tracks.store(tracks.map_or(0, |tracks| tracks as u32 + 1), Release);
    }
    /// What of the program's memory is tracked by protection.
    pub fn tracks(&self) -> Option<Tracks> {
        match self.tracks.load(Acquire) {
            0 => None,
            1 => Some(Tracks::Stores),
            _ => Some(Tracks::Accesses),
        }
    }
    /// Registers a range of the program's memory, or says why the kernel does not.
    pub fn register(&self, start: usize, len: usize) -> Result<(), i32> {
        let register = |modes| self.uffd().register(start, len, mode::MISSING | modes);
        match self.tracks() {
            None => register(0),
            // Memory that is only reserved cannot be protected. It may be accessible one day:
            // it is managed, and not tracked.
            Some(tracks) => register(tracks.mode()).or_else(|error| match error {
                libc::EINVAL => register(0),
                other => Err(other),
            }),
        }
    }
    /// A page is about to leave DRAM.
    pub fn departs(&self, address: usize) {
        if self.tracks().is_some() {
            self.departed.note(address);
        }
    }
    /// Pages that may be resident.
    pub fn budget(&self) -> u64 {
        let granted = self.granted();
        match self.config.counted {
            Counted::Resident => granted,
            Counted::Total => {
                let stored = self.store.occupied() / PAGE as u64;
                granted.saturating_sub(stored).max(granted / KEPT).max(FLOOR.min(granted))
            }
        }
    }
    /// The same without what may be in common with relatives, of which nothing leaves.
    pub fn own_budget(&self) -> u64 {
        self.budget().saturating_sub(self.share.allowed())
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
        self.budget.load(Relaxed)
    }
    /// Sets that. The manager's to call.
    pub fn grant(&self, pages: u64) {
        self.budget.store(pages, Relaxed);
        self.stats().counters.budget_bytes.store(pages * PAGE as u64, Relaxed);
    }
    /// Pages that may be on their way out.
    pub fn limbo_slots(&self) -> u32 {
        limbo_slots(self.own_budget()).min(self.staging.slots())
    }
    /// Pages that are.
    pub fn resident(&self) -> u64 {
        self.resident.load(Relaxed)
    }
    /// Whether pages can leave, as far as is known: nothing is pinned, and there is memory for
    /// what they are packed into.
    pub fn may_leave(&self) -> bool {
        !self.store.is_full() && self.nothing_leaves.load(Relaxed) <= sys::now()
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
        let limit = budget + (budget / 64).min(256).max(self.share.slack());
        let taken = self
            .resident
            .fetch_update(AcqRel, Relaxed, |now| (now + pages <= limit).then_some(now + pages));
        taken.map(|before| self.note_resident(before + pages)).is_ok()
    }
    /// Takes room whether or not there is any.
    pub fn reserve_over(&self, pages: u64) {
        let now = self.resident.fetch_add(pages, AcqRel) + pages;
        self.note_resident(now);
    }
    /// Gives room back.
    pub fn release(&self, pages: u64) {
        let now = self.resident.fetch_sub(pages, AcqRel) - pages;
        self.stats().counters.resident_bytes.store(now * PAGE as u64, Relaxed);
    }
    fn note_resident(&self, now: u64) {
        let counters = &self.stats().counters;
        counters.resident_bytes.store(now * PAGE as u64, Relaxed);
        if now * PAGE as u64 > counters.resident_peak_bytes.load(Relaxed) {
            counters.resident_peak_bytes.fetch_max(now * PAGE as u64, Relaxed);
        }
    }

    /// Whether a page is resident, and nobody is doing anything with it.
    pub fn is_resident(&self, page: PageRef) -> bool {
        let word = self.regions.get(page.region.0).and_then(|region| region.get(page.page.0));
        word.is_some_and(|word| word.load(Acquire) == PageState::Resident.word())
    }

    /// A page leaves: if it is a part of a huge page, the kernel splits that.
    pub fn splits(&self, address: usize) {
        if self.regions.set_huge(address, false) {
            self.stats().counters.huge_split.fetch_add(1, Relaxed);
        }
    }

    /// Wakes the manager if it sleeps.
    pub fn ring(&self) {
        self.bell.fetch_add(1, Release);
        if self.asleep.load(SeqCst) != 0 {
            sys::futex_wake(&self.bell, false);
        }
    }

    /// In the manager: sleeps until somebody rings, so long at most (ns), unless there is
    /// something to do.
    pub(crate) fn sleep_unless(&self, wait: u64, busy: impl FnOnce() -> bool) {
        let bell = self.bell.load(Acquire);
        self.asleep.store(1, SeqCst);
        if !busy() {
            sys::futex_wait(&self.bell, bell, Some(wait), false);
        }
        self.asleep.store(0, SeqCst);
    }

    /// Leaves a note for the policy; reads the notes itself if the queue is full.
    pub fn note(&self, note: Note) {
        let mut spins = 0;
        while !self.queue.push(note) {
            if let Some(mut mind) = self.mind.try_lock() {
                mind.listen(self);
            } else {
                backoff(&mut spins);
            }
        }
    }

    /// Takes possession of a page, waiting for who has it; returns its word.
    pub fn lock_page(&self, place: &Place<'_>) -> u64 {
        let mut spins = 0;
        loop {
            let word = place.word.load(Acquire);
            if word & BUSY == 0
                && place.word.compare_exchange_weak(word, word | BUSY, AcqRel, Relaxed).is_ok()
            {
                return word;
            }
            if spins > 64 && self.is_abandoned() {
                // Its owner is no more.
                return word & !BUSY;
            }
            backoff(&mut spins);
        }
    }

    /// Takes possession of a page if it is in this state and nobody has it.
    pub fn try_lock_page(&self, place: &Place<'_>, state: PageState) -> bool {
        let word = state.word();
        place.word.compare_exchange(word, word | BUSY, AcqRel, Relaxed).is_ok()
    }

    /// Frees what holds a page's content outside of DRAM, and counts.
    pub fn drop_content(&self, state: PageState) {
        let counters = &self.stats().counters;
        match state {
            PageState::Compressed(at) | PageState::Raw(at) => {
                // SAFETY: the word named the blob and is owned by the caller,
                // who replaces it; nobody else can name it.
                let len = unsafe { self.store.get(Blob(at)).len() };
                // SAFETY: as above.
                unsafe { self.store.free(Blob(at)) };
                counters.stored_pages.fetch_sub(1, Relaxed);
                counters.blob_bytes.fetch_sub(len as u64, Relaxed);
                if matches!(state, PageState::Raw(_)) {
                    counters.incompressible.fetch_sub(1, Relaxed);
                }
            }
            PageState::Same(at) => {
                if at != 0 {
                    // SAFETY: as above.
                    unsafe { self.store.free(Blob(at)) };
                }
                counters.same_pages.fetch_sub(1, Relaxed);
            }
            PageState::Spilled(location) => {
                self.spill.free(location);
                counters.spill_bytes.store(self.spill.used().get(), Relaxed);
            }
            PageState::Fresh | PageState::Resident | PageState::Limbo(_) | PageState::Gone => {}
        }
    }

    /// The page as the policy knows it.
    pub fn page_ref(place: &Place<'_>) -> PageRef {
        PageRef { region: RegionId(place.id), page: PageNo(place.page) }
    }

    /// Pages of a region as the policy knows them.
    pub fn page_range(id: u32, start: u32, count: u32) -> PageRange {
        PageRange { region: RegionId(id), start: PageNo(start), count }
    }

    /// A region as the policy knows it.
    pub fn region_of(id: u32, pages: u32) -> terrace_core::Region {
        terrace_core::Region {
            id: RegionId(id),
            pages,
            page_size: PageSize::Base,
            context: terrace_core::ContextId::ANONYMOUS,
        }
    }

    /// Notes that something of ours broke; true if it had already.
    pub fn stop(&self) -> bool {
        self.stopped.compare_exchange(0, sys::now(), AcqRel, Acquire).is_err()
    }
    /// Whether something of ours broke: the program is on plain memory, or will
    /// be in a moment.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed) != 0
    }
    /// Whether our threads are to end: the program is on plain memory for good.
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Acquire) != 0
    }
    /// They are, from now on.
    pub(crate) fn leave_program(&self) {
        self.leaving.store(1, Release);
    }
    /// Opens what [`Pager::say_farewell`] needs. In a thread of ours.
    pub(crate) fn open_farewell(&self) {
        // SAFETY: a new descriptor.
        self.farewell.store(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }, Release);
    }
    /// Wakes those of our threads that wait for a message. By one of them.
    pub(crate) fn say_farewell(&self) {
        self.duty.end_polling();
        let one = 1u64;
        // SAFETY: writes a number's eight bytes to a descriptor of ours.
        unsafe { libc::write(self.farewell.load(Acquire), (&raw const one).cast(), 8) };
    }
    /// Sleeps until there is a message, for so many ms (-1: for ever), or our threads are to end.
    pub(crate) fn await_message(&self, timeout: i32) {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polls = [poll(self.uffd().raw()), poll(self.farewell.load(Acquire))];
        // SAFETY: two descriptors to look at; a negative one is ignored.
        unsafe { libc::poll(polls.as_mut_ptr(), 2, timeout) };
    }
    /// Whether that was so long ago that a thread which is still at it never ends.
    fn is_abandoned(&self) -> bool {
        let stopped = self.stopped.load(Relaxed);
        stopped != 0 && sys::now() > stopped + crate::give_up::GRACE / 2
    }

    /// Begins work that uses regions; false while frozen.
    pub fn enter(&self, worker: usize) -> bool {
        self.workers[worker].busy.store(self.regions.epoch(), SeqCst);
        self.frozen.load(SeqCst) == 0
    }
    /// Ends it.
    pub fn leave(&self, worker: usize) {
        self.workers[worker].busy.store(0, Release);
    }
    /// Waits until no worker but this one is at work.
    pub fn wait_quiet(&self, except: usize) {
        for (i, worker) in self.workers.iter().enumerate() {
            let mut spins = 0;
            while i != except && worker.busy.load(SeqCst) != 0 && !self.is_abandoned() {
                backoff(&mut spins);
            }
        }
    }
    /// The oldest epoch that a worker still uses.
    pub fn oldest_epoch(&self) -> u64 {
        self.workers
            .iter()
            .map(|w| w.busy.load(SeqCst))
            .filter(|&e| e != 0)
            .min()
            .unwrap_or(u64::MAX)
    }
}
