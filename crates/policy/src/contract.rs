//! The policy contract.
//!
//! Twelve inputs, one output; four of the inputs are for policies that ask for
//! them. `done` is an input because cost-aware policies
//! (ARMS, Nomad) and every policy's own bookkeeping need to know what became
//! of a proposal; `pressure` because a tier that must be brought in on access
//! (compressed RAM, file) cannot take a page "instead of" the fast tier.
//! Where two policies share a memory, one may be asked what it lacks
//! ([`Policy::lacks`]); no world asks.

use terrace_core::{
    Bytes, ContextEvent, Done, FaultKind, Nanos, PageRange, PageRef, PageSize, Plan, Region,
    Sample, Telemetry, TierId, Upcoming,
};

/// At which page size a policy wants to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// Whatever size the region is placed in.
    Any,
    /// Only this size.
    Only(PageSize),
}

/// What a policy needs of the world that it runs in.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools)] // independent wishes, not states
pub struct Needs {
    /// Page sizes that it can handle.
    pub granularity: Granularity,
    /// Whether it decides by samples; a world need not sample for one that does not.
    pub samples: bool,
    /// Whether it asks for accessed bits ([`terrace_core::Action::Scan`]); a
    /// world that has none makes the pages fault, or samples instead.
    pub scans: bool,
    /// Whether it tells loads from stores.
    pub reads_and_writes: bool,
    /// Whether it wants to know which base page of a huge page was accessed
    /// ([`Policy::base_samples`]); a world that cannot tell gives plain samples.
    pub base_pages: bool,
    /// Whether all that it learns by are pages that come back: where none has to, it does
    /// no more than [`crate::first_touch::FirstTouch`].
    pub refaults: bool,
    /// How often it wants to be ticked; `None` for never.
    pub tick: Option<Nanos>,
    /// How far ahead it wants to be told the program's accesses
    /// ([`Policy::foresee`]). Only a simulated world can do that; a live one
    /// does not offer such a policy.
    pub foresight: Option<Nanos>,
}

impl Default for Needs {
    /// Nothing: pages of any size, no samples, no tick.
    fn default() -> Self {
        Self {
            granularity: Granularity::Any,
            samples: false,
            scans: false,
            base_pages: false,
            reads_and_writes: false,
            refaults: false,
            tick: None,
            foresight: None,
        }
    }
}

/// Memory that a policy uses for its own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// All of its state.
    pub bytes: Bytes,
    /// The pages that the state is about.
    pub pages: u64,
}

impl Footprint {
    /// The footprint of an object with so much on the heap, for so many pages.
    pub fn of(own: usize, heap: usize, pages: usize) -> Self {
        Self { bytes: Bytes((own + heap) as u64), pages: pages as u64 }
    }

    /// State per page; zero without pages.
    pub fn bytes_per_page(&self) -> f64 {
        if self.pages == 0 { 0.0 } else { self.bytes.as_f64() / self.pages as f64 }
    }
}

/// A memory-tiering policy.
///
/// A policy knows where each page lies from its own answers and from `done`:
/// the answer to [`Policy::fault`] is binding (the world places the page
/// there), and a migration has happened when `done` says that it completed.
pub trait Policy: Send {
    /// What people call it.
    fn name(&self) -> &'static str;

    /// What it needs of the world.
    fn needs(&self) -> Needs;

    /// The program mapped a region. No page of it is placed yet.
    fn alloc(&mut self, region: &Region);

    /// A page has to be placed, or a hint fault was taken. The answer must be
    /// a tier that is byte-addressable (`telemetry.tier(t).addressable`) and,
    /// for a page that is not placed yet, one that has room for the page;
    /// where none has room, the fastest addressable tier (the world then
    /// makes room by [`Policy::pressure`]).
    ///
    /// Runs while the program waits: it must not allocate.
    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId;

    /// Accesses were observed.
    fn samples(&mut self, samples: &[Sample]);

    /// The same, for a policy with [`Needs::base_pages`]: `bases` has for each
    /// sample the number of the base page within its page.
    fn base_samples(&mut self, samples: &[Sample], _bases: &[u16]) {
        self.samples(samples);
    }

    /// What the program will do: the accesses of each page in the time that
    /// [`Needs::foresight`] asked for, or as far as the world sees. Pages that
    /// are not named will not be accessed. Told before a tick whenever it has
    /// changed.
    fn foresee(&mut self, _upcoming: &[Upcoming]) {}

    /// A split that was proposed has been made: `page` is none of its region any
    /// more (nobody will name it again), and `into` has its base pages, which lie
    /// where it lay. Told before `done`.
    fn split(&mut self, _page: PageRef, _into: &Region) {}

    /// Something happened to a file or a socket: to one of the contexts that regions name, or
    /// to one with kernel objects only. An object is told with the page that it lies in; if that
    /// page is new, [`Policy::fault`] asks for its place afterwards.
    fn context(&mut self, _event: &ContextEvent) {}

    /// Pages were given back, or a whole region unmapped (`whole`): they lie
    /// nowhere, and what was known of them is void. Ranges may hold pages that
    /// were never placed.
    fn free(&mut self, range: PageRange, whole: bool);

    /// The policy's clock ticked: propose what improves placement.
    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan);

    /// A tier is short of `bytes`: propose demotions out of it, coldest first,
    /// with [`terrace_core::Urgency::Forced`], worth at least `bytes` if the
    /// tier holds that much. Proposals already under way are not repeated. If
    /// nothing else is left, a page may be proposed whose fault is still
    /// waiting for this room: the world aborts that as [`terrace_core::Abort::Busy`].
    ///
    /// May run while the program waits: once warmed up it must not allocate.
    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan);

    /// A proposal came to its end. Called once for each, also when it was
    /// vetoed, and also when its page was freed meanwhile.
    fn done(&mut self, done: &Done);

    /// Bytes that it would bring to the fastest tier if that had room, and those that are on their
    /// way there, as of its last tick. Another policy on the same memory should leave so much free.
    fn lacks(&self) -> Bytes {
        Bytes::ZERO
    }

    /// Memory used for the policy's own state.
    fn footprint(&self) -> Footprint;
}
