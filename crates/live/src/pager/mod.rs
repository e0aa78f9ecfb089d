//! The pager of one process: what its threads share.
//!
//! | file | concept |
//! |---|---|
//! | [`budget`] | what may be resident, and is |
//! | [`epochs`] | who is at work, and since when |
//! | [`freeze`] | while nothing of ours changes, and why |
//! | [`handle`] | the userfaultfd, and what is tracked by it |
//! | [`page_lock`] | who has a page |
//! | [`phase`] | from the beginning to the end |

pub(crate) mod budget;
pub(crate) mod epochs;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod freeze;
pub(crate) mod handle;
pub(crate) mod page_lock;
pub(crate) mod phase;

use core::sync::atomic::{AtomicPtr, Ordering::*};

use terrace_core::{Frequency, PageNo, PageRange, PageRef, PageSize, RegionId};

use crate::broker::member::Share;
use crate::config::{HugePages, RunConfig};
use crate::decide::Deciding;
use crate::decide::decider::Decider;
use crate::evict::Eviction;
use crate::fault::Serving;
use crate::fork::ForkState;
use crate::huge::guide::Guide;
use crate::huge::prezero::HugePool;
use crate::pager::budget::{Budget, staging_slots};
use crate::pager::freeze::Freeze;
use crate::pager::handle::Handle;
use crate::pager::phase::Phase;
use crate::space::regions::{Place, Regions};
use crate::spill::Spill;
use crate::stats::process_page::ProcessPage;
use crate::store::density::Density;
use crate::store::slabs::Store;
use crate::sys::PAGE;
use crate::sys::spin::SharedLock;
use crate::workers::bell::Bell;
use crate::workers::command::Commands;
use crate::workers::worker::WorkerSlot;

/// The most fault handlers; they are numbered from 1.
pub const HANDLERS: usize = 4;
/// The number of the thread that writes the spill file.
pub const WRITER: usize = HANDLERS + 1;
/// Fault handlers, the manager and the writer.
pub const MAX_WORKERS: usize = HANDLERS + 2;
/// The manager's number among the workers.
pub const MANAGER: usize = 0;

/// A pager.
pub struct Pager {
    /// What was asked for.
    pub config: RunConfig,
    /// The clock in which costs are given.
    pub clock: Frequency,
    stats: AtomicPtr<ProcessPage>,
    /// How the program's memory is registered.
    pub(crate) handle: Handle,
    /// How far it is.
    pub(crate) phase: Phase,
    /// Held while messages are read, and address-space events carried out: so
    /// a fault that was read after an event is served after it. Shared by who
    /// moves pages that no fault asked for.
    pub reading: SharedLock,
    /// What must not change, and why.
    pub(crate) freeze: Freeze,
    /// What may be resident, and is.
    pub budget: Budget,
    /// Regions.
    pub regions: Regions,
    /// Compressed pages.
    pub store: Store,
    /// What the store cannot hold.
    pub spill: Spill,
    /// Pages on their way out.
    pub evict: Eviction,
    /// The policy, and what it is told.
    pub decide: Deciding,
    /// How faults are served.
    pub(crate) fault: Serving,
    /// Huge pages for what the program will touch for the first time.
    pub(crate) huge: HugePool,
    /// The workers.
    pub workers: [WorkerSlot; MAX_WORKERS],
    /// Wakes the manager.
    pub(crate) bell: Bell,
    /// Requests of the program's threads to the manager.
    pub commands: Commands,
    /// Forking.
    pub fork: ForkState,
    /// Where a core dump has the [anchor](crate::failsafe::core_tables).
    pub(crate) anchor: usize,
}

impl Pager {
    /// A pager without regions and without threads.
    pub fn new(
        config: RunConfig,
        stats: &'static ProcessPage,
        decider: Decider,
        clock: Frequency,
    ) -> Result<Self, i32> {
        let (share, held) = Share::begin(config.fast.get());
        let budget = held / PAGE as u64;
        // Room for what the share may become.
        let slots = staging_slots(budget.max(config.fast.get() / PAGE as u64));
        stats.counters.budget_bytes.store(budget * PAGE as u64, Relaxed);
        let economist = decider.brain().economist();
        let prices = *economist.calibration();
        let density = Density::new(economist.mode(), prices.user_fault);
        Ok(Self {
            clock,
            stats: AtomicPtr::new(core::ptr::from_ref(stats).cast_mut()),
            handle: Handle::new(),
            phase: Phase::default(),
            reading: SharedLock::default(),
            freeze: Freeze::new(),
            budget: Budget::new(share, budget),
            regions: Regions::new()?,
            store: Store::new(),
            spill: Spill::new(match config.spill {
                Some(_) => config.spill_size,
                None => terrace_core::Bytes::ZERO,
            }),
            evict: Eviction::new(&config, slots, decider.brain().needs(), density)?,
            decide: Deciding::new(decider),
            fault: Serving::default(),
            huge: HugePool::new(
                config.huge_pages != HugePages::Never,
                Guide::read(config.profile.as_deref(), &prices, stats),
            ),
            workers: Default::default(),
            bell: Bell::default(),
            commands: Commands::new(),
            fork: ForkState::new(),
            anchor: crate::failsafe::core_tables::reserve()?,
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
}
