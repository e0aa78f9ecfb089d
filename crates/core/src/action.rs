//! Actions that a policy may ask for, and what became of them.

use serde::{Deserialize, Serialize};

use crate::page::{PageRange, PageRef, PageSize};
use crate::region::ContextId;
use crate::sample::SampleSource;
use crate::tier::TierId;
use crate::units::{Bytes, BytesPerSecond, Cycles, HugePages, Nanos, Pages, PerSecond};

/// Which proposal; unique within one run of one policy.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct OpId(pub u64);

/// What a policy may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Move a page to a faster tier.
    Promote {
        /// The page.
        page: PageRef,
        /// Where it lies.
        from: TierId,
        /// Where it should lie.
        to: TierId,
    },
    /// Move a page to a slower tier.
    Demote {
        /// The page.
        page: PageRef,
        /// Where it lies.
        from: TierId,
        /// Where it should lie.
        to: TierId,
    },
    /// Swap a page of a slower tier with one of a faster, when the faster is full.
    Exchange {
        /// The page to promote.
        promote: PageRef,
        /// The page to demote.
        demote: PageRef,
        /// The faster tier.
        fast: TierId,
        /// The slower tier.
        slow: TierId,
    },
    /// Break a huge page into base pages.
    Split {
        /// The page.
        page: PageRef,
    },
    /// Make base pages one huge page. The evidence behind it ([`Heat`]) is in page walks
    /// that this saves the whole range, not in accesses.
    Collapse {
        /// The pages.
        range: PageRange,
    },
    /// Ask for hint faults on a range.
    Arm {
        /// The pages.
        range: PageRange,
    },
    /// Ask a sampler for one sample in so many accesses.
    SetPeriod {
        /// The sampler.
        source: SampleSource,
        /// Accesses a sample.
        period: u64,
    },
    /// Bound the migration traffic.
    Throttle {
        /// The bound.
        limit: BytesPerSecond,
    },
    /// Zero a page, to back memory with ahead of its first touch.
    Prezero {
        /// How far the program has walked into memory that it had not touched.
        walked: Pages,
        /// Of [`Action::Prezero::known`] pages that backed memory ahead, so many were
        /// walked through.
        used: u32,
        /// Pages that backed memory ahead, and of which it is known what came of it.
        known: u32,
    },
    /// Move what a file or a socket has in a tier to a slower one, as one decision. The proposals
    /// that follow it in the plan, as many as [`Action::DemoteContext::pages`] says, are its
    /// moves, page by page: [`Action::Demote`]. They are not judged by themselves
    /// ([`Plan::group`]).
    DemoteContext {
        /// The file or the socket.
        context: ContextId,
        /// How many pages move.
        pages: u32,
        /// How many pages of its own the context has in the tier that they leave.
        of: u32,
        /// Where they lie.
        from: TierId,
        /// Where they should lie.
        to: TierId,
    },
    /// Back memory that was never touched with a huge page at its first touch, or ahead of
    /// it. The evidence is a profile's: no benefit without the time in which it comes about.
    FirstTouch {
        /// The base pages.
        range: PageRange,
        /// Base pages of them that the program is expected to touch.
        touched: u16,
        /// By how many more or fewer that may be: half of them all where nobody knows.
        #[serde(default)]
        unsure: u16,
        /// Cycles that the program waits for page walks, and that the huge page averts within
        /// `within`: at least. Walks that are under way at the same time count once.
        least: Cycles,
        /// Expected.
        averted: Cycles,
        /// At most.
        most: Cycles,
        /// The time in which they come about.
        within: Nanos,
        /// How much of that time is still to come; a horizon that is longer counts instead.
        #[serde(default)]
        left: Nanos,
        /// What the program's thread waits for it: zeroing, and making a block. Zero where it is
        /// done ahead, by a thread of ours.
        #[serde(default)]
        waits: Cycles,
    },
    /// Fill memory that was never touched with zeros ahead of its first touch, by base pages.
    Populate {
        /// The pages.
        range: PageRange,
        /// Pages of them that the program is expected to touch.
        touched: u16,
        /// By how many more or fewer that may be.
        #[serde(default)]
        unsure: u16,
    },
    /// Put new memory into one tier rather than another; no bytes move.
    Place {
        /// The page.
        page: PageRef,
        /// Where it is to lie.
        to: TierId,
        /// Where it would lie otherwise.
        instead: TierId,
        /// What the program has mapped, touched or not: the accesses to come are to all of it.
        #[serde(default)]
        mapped: Bytes,
    },
    /// Move pages together so that blocks of the size of huge pages become free.
    Compact {
        /// Blocks that this is expected to free.
        blocks: HugePages,
        /// Of them, those that somebody is expected to ask for.
        #[serde(default)]
        wanted: HugePages,
        /// What those bring besides the faults that a huge page spares: cycles that the program
        /// waits for page walks, and that they avert within `within`. Walks that are under way at
        /// the same time count once.
        #[serde(default)]
        brings: Cycles,
        /// The time in which that comes about; without one it is nothing.
        #[serde(default)]
        within: Nanos,
        /// How much of that time is still to come; a horizon that is longer counts instead.
        #[serde(default)]
        left: Nanos,
        /// Base pages that have to move for it.
        pages: Pages,
    },
    /// Read and clear the accessed bits of a range; each page whose bit was set
    /// comes as a sample ([`SampleSource::AccessedBit`]) before the outcome.
    Scan {
        /// The pages.
        range: PageRange,
    },
    /// Bring pages in before they are asked for, along walks. The evidence is what became of others:
    /// of some, whether the program asked for them although they had not come.
    Prefetch {
        /// Where they lie; nowhere if they were never touched, and come as zeros.
        from: Option<TierId>,
        /// How many there are.
        pages: u32,
        /// How many come at once.
        window: u32,
        /// Of [`Action::Prefetch::known`] pages that were left out of what came, so many were asked
        /// for.
        used: u32,
        /// Pages that were left out to see that.
        known: u32,
    },
    /// Write pages that lie packed in memory to a file. The evidence behind it ([`Heat`]) is how
    /// often a page of the file comes back.
    Reclaim {
        /// The memory that they lie in.
        from: TierId,
        /// The file.
        to: TierId,
        /// How many there are.
        pages: u32,
        /// What they take where they lie.
        bytes: Bytes,
    },
    /// Compress pages that lie packed once more, by a codec that packs more tightly and takes longer to
    /// unpack. The evidence behind it ([`Heat`]) is how often a page that lies there comes back.
    Recompress {
        /// The memory that they lie in.
        tier: TierId,
        /// Where a page lies that finds no room there; nowhere if what is set free keeps a page in the
        /// fastest memory.
        below: Option<TierId>,
        /// How many there are: at most so many are asked for by nobody.
        pages: u32,
        /// What one of them takes where it lies.
        each: Bytes,
        /// What this sets free, at least.
        least: Bytes,
        /// What is expected.
        saves: Bytes,
        /// At most.
        most: Bytes,
    },
    /// Zero a free block of the size of a huge page, before a first touch takes it.
    ZeroAhead {
        /// Blocks that are zeroed and free, this one included.
        blocks: HugePages,
        /// Of first touches to come, those that will take one.
        wanted: HugePages,
        /// What each of those waits for zeros otherwise.
        spares: Cycles,
    },
}

/// Actions of one kind, for accounts that are kept per kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionClass {
    /// [`Action::Promote`]
    Promote,
    /// [`Action::Demote`]
    Demote,
    /// [`Action::Exchange`]
    Exchange,
    /// [`Action::Prezero`], [`Action::ZeroAhead`]
    Prezero,
    /// [`Action::Collapse`]
    Collapse,
    /// [`Action::DemoteContext`]
    DemoteContext,
    /// [`Action::Split`]
    Split,
    /// [`Action::FirstTouch`]
    FirstTouch,
    /// [`Action::Populate`]
    Populate,
    /// [`Action::Place`]
    Place,
    /// [`Action::Compact`]
    Compact,
    /// [`Action::Arm`], [`Action::Scan`]
    Observe,
    /// [`Action::SetPeriod`], [`Action::Throttle`]
    Rate,
    /// [`Action::Prefetch`]
    Prefetch,
    /// [`Action::Reclaim`]
    Reclaim,
    /// [`Action::Recompress`]
    Recompress,
}

impl ActionClass {
    /// Every class, in the order of its index.
    pub const ALL: [Self; 16] = [
        Self::Promote,
        Self::Demote,
        Self::Exchange,
        Self::Prezero,
        Self::Collapse,
        Self::DemoteContext,
        Self::Split,
        Self::FirstTouch,
        Self::Populate,
        Self::Place,
        Self::Compact,
        Self::Observe,
        Self::Rate,
        Self::Prefetch,
        Self::Reclaim,
        Self::Recompress,
    ];

    /// The class's place in per-class tables.
    pub const fn index(self) -> usize {
        self as usize
    }
    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::Demote => "demote",
            Self::Exchange => "exchange",
            Self::Prezero => "prezero",
            Self::Collapse => "collapse",
            Self::DemoteContext => "demote-context",
            Self::Split => "split",
            Self::FirstTouch => "first-touch",
            Self::Populate => "populate",
            Self::Place => "place",
            Self::Compact => "compact",
            Self::Observe => "observe",
            Self::Rate => "rate",
            Self::Prefetch => "prefetch",
            Self::Reclaim => "reclaim",
            Self::Recompress => "recompress",
        }
    }
}

impl Action {
    /// Its kind.
    pub const fn class(&self) -> ActionClass {
        match self {
            Self::Promote { .. } => ActionClass::Promote,
            Self::Demote { .. } => ActionClass::Demote,
            Self::Exchange { .. } => ActionClass::Exchange,
            Self::Prezero { .. } | Self::ZeroAhead { .. } => ActionClass::Prezero,
            Self::Collapse { .. } => ActionClass::Collapse,
            Self::DemoteContext { .. } => ActionClass::DemoteContext,
            Self::Split { .. } => ActionClass::Split,
            Self::FirstTouch { .. } => ActionClass::FirstTouch,
            Self::Populate { .. } => ActionClass::Populate,
            Self::Place { .. } => ActionClass::Place,
            Self::Compact { .. } => ActionClass::Compact,
            Self::Arm { .. } | Self::Scan { .. } => ActionClass::Observe,
            Self::SetPeriod { .. } | Self::Throttle { .. } => ActionClass::Rate,
            Self::Prefetch { .. } => ActionClass::Prefetch,
            Self::Reclaim { .. } => ActionClass::Reclaim,
            Self::Recompress { .. } => ActionClass::Recompress,
        }
    }
    /// The page it is about, if it is about one (of an exchange: the promoted one).
    pub const fn page(&self) -> Option<PageRef> {
        match self {
            Self::Promote { page, .. }
            | Self::Demote { page, .. }
            | Self::Split { page }
            | Self::Place { page, .. } => Some(*page),
            Self::Exchange { promote, .. } => Some(*promote),
            _ => None,
        }
    }
}

/// What a policy knows of how much a page is used: the evidence behind a proposal.
///
/// Rates are of memory accesses (last-level cache misses), extrapolated from
/// samples; `samples` says how many samples the rates rest on, so that the
/// economist can tell "rarely used" from "not looked at".
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// Loads a second.
    pub loads: PerSecond,
    /// Stores a second.
    pub stores: PerSecond,
    /// Samples that the rates rest on.
    pub samples: u32,
    /// The time over which they were collected.
    pub window: Nanos,
}

impl Heat {
    /// Loads and stores a second.
    pub fn accesses(&self) -> PerSecond {
        self.loads + self.stores
    }
}

/// Whether an action may be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Urgency {
    /// An improvement: the economist may veto it.
    Voluntary,
    /// Memory must be freed now: it is priced and recorded, not vetoed.
    Forced,
}

/// One action, asked for by a policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Its number, given by the plan.
    pub op: OpId,
    /// What is asked for.
    pub action: Action,
    /// The size of the page or pages.
    pub page_size: PageSize,
    /// Evidence about the page (of an exchange: the promoted one).
    pub heat: Heat,
    /// Evidence about the page an exchange demotes.
    pub victim_heat: Heat,
    /// Whether it may be refused.
    pub urgency: Urgency,
    /// Why, in the policy's words.
    pub reason: Reason,
}

/// Why a policy proposed an action. A closed set, so that a plan can be made
/// without allocating and counted by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A page in a slow tier is hot by its loads.
    HotByLoads,
    /// A page in a slow tier is hot by its stores.
    WriteHeavy,
    /// A cold page makes room for a hot one.
    MakesRoom,
    /// The tier is short of free memory, and the page is cold.
    PressureCold,
    /// The tier is short of free memory, and nothing in it is cold.
    PressureNoneCold,
    /// The tier is short of free memory; the page came first.
    PressureOldest,
    /// A page that was made to fault was touched soon after.
    TouchedSoon,
    /// A page is used again and again.
    OftenUsed,
    /// A tier keeps room for what the program will touch next; the page has
    /// not been used for long.
    KeepsHeadroom,
    /// The program will use the page.
    Foreseen,
    /// The tiers answer at different speed under their load.
    BalancesLatency,
    /// The page is one of those that the faster tier should hold.
    AmongHottest,
    /// Only a part of a huge page is used.
    SkewedUse,
    /// The program walks through memory that it has not touched.
    WalksFreshMemory,
    /// Evidence is to be gathered.
    Observes,
    /// Base pages cost page walks that one huge page would save; the processor counts
    /// them.
    PageWalksCounted,
    /// The same, but nothing counts page walks here: they are estimated from how often
    /// base pages were visited.
    PageWalksEstimated,
    /// A profile of an earlier run says so.
    Profiled,
    /// A huge page is wanted, and there is no free block for it.
    NoFreeBlock,
    /// The user wants it so.
    AskedFor,
    /// Nobody has the file or the socket open any more that the page belongs to.
    ContextClosed,
    /// The file or the socket that the page belongs to was opened again.
    ContextOpened,
    /// The program's own pages need the room that a file's have.
    YieldsToProgram,
    /// The program walks through memory that it has used before.
    WalksUsedMemory,
    /// What holds packed pages holds as much as it may.
    StoreFull,
    /// Memory is touched for the first time.
    NewMemory,
    /// Packed pages have not been asked for, for long.
    PackedIdle,
}

/// An ordered list of proposals. Reused from tick to tick, so that a policy
/// allocates nothing once it has warmed up.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    proposals: Vec<Proposal>,
    next: OpId,
}

impl Plan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty plan with room for `capacity` proposals.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { proposals: Vec::with_capacity(capacity), next: OpId(0) }
    }

    /// Adds an action about one page, and says under which number.
    pub fn push(
        &mut self,
        action: Action,
        page_size: PageSize,
        heat: Heat,
        urgency: Urgency,
        reason: Reason,
    ) -> OpId {
        self.push_with_victim(action, page_size, heat, Heat::default(), urgency, reason)
    }

    /// Adds an exchange with the evidence about both pages.
    pub fn push_with_victim(
        &mut self,
        action: Action,
        page_size: PageSize,
        heat: Heat,
        victim_heat: Heat,
        urgency: Urgency,
        reason: Reason,
    ) -> OpId {
        let op = self.next;
        self.next.0 += 1;
        self.proposals.push(Proposal { op, action, page_size, heat, victim_heat, urgency, reason });
        op
    }

    /// Makes one decision of the demotions that `members` adds: a
    /// [`Action::DemoteContext`] before them, of so many pages as it added. Without any there is
    /// none.
    ///
    /// `members` must add nothing but [`Action::Demote`] from one tier to another.
    pub fn group(
        &mut self,
        context: ContextId,
        of: u32,
        heat: Heat,
        reason: Reason,
        members: impl FnOnce(&mut Self),
    ) {
        let nowhere = (TierId::FASTEST, TierId::FASTEST);
        let head = self.proposals.len();
        let action =
            Action::DemoteContext { context, pages: 0, of, from: nowhere.0, to: nowhere.1 };
        self.push(action, PageSize::Base, heat, Urgency::Voluntary, reason);
        members(self);
        let count = self.proposals.len() - head - 1;
        let Some(Proposal { action: Action::Demote { from, to, .. }, page_size, .. }) =
            self.proposals.get(head + 1).copied()
        else {
            debug_assert!(count == 0, "members of a context are demoted");
            self.proposals.truncate(head);
            return;
        };
        let proposal = &mut self.proposals[head];
        let pages = count as u32;
        proposal.page_size = page_size;
        proposal.action = Action::DemoteContext { context, pages, of: of.max(pages), from, to };
    }

    /// Forgets the proposals and keeps the numbering.
    pub fn clear(&mut self) {
        self.proposals.clear();
    }

    /// What was proposed, in order.
    pub fn proposals(&self) -> &[Proposal] {
        &self.proposals
    }

    /// Keeps the proposals that a judge lets pass.
    pub fn retain(&mut self, keep: impl FnMut(&Proposal) -> bool) {
        self.proposals.retain(keep);
    }
}

/// Why an action was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Abort {
    /// The economist refused it.
    Vetoed,
    /// The page was written while it was copied.
    Dirtied,
    /// The page was touched while its demotion was under way: it is not cold.
    Touched,
    /// The page is pinned, locked or already being moved.
    Busy,
    /// The target tier has no room.
    NoMemory,
    /// The page is not where the proposal took it to be, or is gone.
    Stale,
    /// The migration budget of this tick is used up.
    RateLimited,
    /// This world cannot do it.
    Unsupported,
}

/// What became of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Carried out.
    Completed {
        /// Processor time it took, everywhere together.
        cost: Cycles,
        /// Memory traffic it caused.
        moved: Bytes,
    },
    /// Not carried out; the page lies where it lay.
    Aborted(Abort),
}

impl Outcome {
    /// Whether the action was carried out.
    pub const fn is_completed(self) -> bool {
        matches!(self, Self::Completed { .. })
    }
}

/// A proposal with its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// What was asked for.
    pub proposal: Proposal,
    /// What became of it.
    pub outcome: Outcome,
}
