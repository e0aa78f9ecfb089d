//! HeMem, as in the paper, without the defects of the published code.
//!
//! Sampled loads and stores are counted for each page apart. A page with 8
//! loads or 4 stores is hot; with 4 stores it is *write-heavy*, and is promoted
//! first, because the memories that slow tiers are made of write worse than
//! they read. When a counter passes a limit, all counters are halved. Every
//! 10 ms hot pages of slower tiers are promoted, into free room first, else in
//! exchange for pages of the faster tier's cold list; if everything there is
//! hot, nothing moves.
//!
//! | file | concept |
//! |---|---|
//! | `config` | the parameters, with their sources |
//! | `page` | what is remembered of one page |
//! | `clock` | coolings, and what a halved counter says about time |
//! | `state` | pages and lists, kept consistent |
//! | `plan` | what is proposed |
//! | `audit` | checks on the state |

mod audit;
mod clock;
mod config;
mod page;
mod plan;
mod state;

pub use config::HeMemConfig;

use terrace_core::{
    Abort, Access, Action, Bytes, Done, FaultKind, Nanos, OpId, Outcome, PageRange, PageRef,
    PageSize, Plan, Region, Sample, Telemetry, TierId, Urgency,
};

use crate::contract::{Footprint, Needs, Policy};
use crate::regions::{Incoming, fastest_with_room};
use page::Standing;
use state::{End, State};

/// Proposals in one tick at most, and at least while the economist refuses all.
const PROPOSALS: core::ops::RangeInclusive<u32> = 16..=8192;

/// Ticks whose unused migration allowance may be used later.
const SAVED_TICKS: u64 = 4;

/// The HeMem policy.
#[derive(Debug)]
pub struct HeMem {
    state: State,
    incoming: Incoming,
    /// Migration traffic that may be proposed now.
    allowance: Bytes,
    /// The time of the last tick.
    last_tick: Option<Nanos>,
    /// Whether the world can exchange pages; true until it says no.
    can_exchange: bool,
    /// The page that a fault placed last, if there was no room: it waits for that.
    waits: Option<u32>,
    /// Proposals allowed in the next tick.
    proposal_cap: u32,
    /// Voluntary proposals of the last tick, and how many of them were vetoed.
    proposed: u32,
    vetoed: u32,
}

impl HeMem {
    /// The policy without regions. Parameters that make no sense are brought
    /// to the nearest that do: a tick of at least 1 ms, thresholds of at least
    /// 1, a cooling interval of at most 8192 ticks.
    pub fn new(mut config: HeMemConfig) -> Self {
        config.tick = config.tick.max(Nanos::millis(1));
        config.hot_loads = config.hot_loads.max(1);
        config.hot_stores = config.hot_stores.max(1);
        let longest = config.tick * state::LONGEST_COOLING;
        config.cooling_interval = config.cooling_interval.clamp(config.tick, longest);
        config.sweep_pages = config.sweep_pages.max(1);
        Self {
            state: State::new(config),
            incoming: Incoming::default(),
            allowance: Bytes::ZERO,
            last_tick: None,
            can_exchange: true,
            waits: None,
            proposal_cap: *PROPOSALS.end(),
            proposed: 0,
            vetoed: 0,
        }
    }

    /// The parameters in use.
    pub fn config(&self) -> &HeMemConfig {
        &self.state.config
    }

    /// The most allowance that can be saved: enough for an exchange of huge
    /// pages, or a low limit would never permit one.
    fn most_allowance(&self) -> Bytes {
        let config = &self.state.config;
        config.migration_limit.over(config.tick * SAVED_TICKS).max(PageSize::Huge.bytes() * 2)
    }

    fn earn_allowance(&mut self, now: Nanos) {
        let config = &self.state.config;
        let elapsed = self.last_tick.map_or(config.tick, |last| now.saturating_sub(last));
        let earned = config.migration_limit.over(elapsed);
        self.last_tick = Some(now);
        self.allowance = (self.allowance + earned).min(self.most_allowance());
    }

    /// While the economist refuses everything, fewer proposals are made: they
    /// would be the same ones.
    fn adapt_proposals(&mut self) {
        let cap = if self.proposed > 0 && self.vetoed >= self.proposed {
            self.proposal_cap / 2
        } else {
            self.proposal_cap.saturating_mul(2)
        };
        self.proposal_cap = cap.clamp(*PROPOSALS.start(), *PROPOSALS.end());
        self.proposed = 0;
        self.vetoed = 0;
    }

    /// One page's part of a proposal came to its end.
    fn finish(&mut self, page: PageRef, op: OpId, to: TierId, outcome: Outcome) {
        let Some(slot) = self.state.under_way(page, op) else { return };
        let from = self.state.page(slot).tier();
        match outcome {
            Outcome::Completed { .. } => self.state.end(slot, to, End::Young),
            // Nothing is wrong with the page: it keeps its turn.
            Outcome::Aborted(Abort::RateLimited) => self.state.end(slot, from, End::Old),
            // Who holds a page uses it: it may be the one that is being faulted on, and if
            // that was the only cold one, it would be proposed for ever.
            Outcome::Aborted(Abort::Touched | Abort::Busy) => {
                // Whether by a load or a store is not known; a load weighs less.
                self.state.count(slot, Access::Read, 1);
                self.state.end(slot, from, End::Young);
            }
            Outcome::Aborted(_) => self.state.end(slot, from, End::Young),
        }
    }
}

impl Policy for HeMem {
    fn name(&self) -> &'static str {
        "hemem"
    }

    fn needs(&self) -> Needs {
        Needs {
            samples: true,
            reads_and_writes: true,
            tick: Some(self.state.config.tick),
            ..Needs::default()
        }
    }

    fn alloc(&mut self, region: &Region) {
        let slots = self.state.regions.insert(region);
        self.state.grow(slots);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        self.state.set_now(telemetry.now);
        let size = self.state.regions.page_size(page);
        let Some(slot) = self.state.regions.slot(page) else {
            return fastest_with_room(telemetry, size);
        };
        let known = self.state.page(slot);
        let tier = match kind {
            // The page stays where it is; the access comes as a sample.
            FaultKind::Hint(_) | FaultKind::WriteProtected
                if known.standing() != Standing::Unplaced
                    && telemetry.tier(known.tier()).addressable =>
            {
                return known.tier();
            }
            FaultKind::FirstTouch(_) => {
                let tier = fastest_with_room(telemetry, size);
                self.state.place_new(slot, tier);
                tier
            }
            FaultKind::Absent(_)
            | FaultKind::Ahead
            | FaultKind::Hint(_)
            | FaultKind::WriteProtected => {
                let tier = fastest_with_room(telemetry, size);
                self.state.place_known(slot, tier);
                tier
            }
        };
        let has_room = telemetry.tier(tier).free >= size.bytes();
        self.waits = (!has_room).then_some(slot);
        tier
    }

    fn samples(&mut self, samples: &[Sample]) {
        for sample in samples {
            if let Some(slot) = self.state.regions.slot(sample.page) {
                self.state.count(slot, sample.access, sample.weight);
            }
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        self.state.unplace_all(self.state.regions.run(range));
        if whole {
            self.state.regions.remove(range.region);
        }
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.state.set_now(telemetry.now);
        self.state.sweep();
        self.earn_allowance(telemetry.now);
        self.adapt_proposals();
        self.promote(telemetry, plan);
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.state.set_now(telemetry.now);
        self.relieve(tier, bytes, telemetry, plan);
    }

    fn done(&mut self, done: &Done) {
        let size = done.proposal.page_size;
        let op = done.proposal.op;
        let traffic = match done.proposal.action {
            Action::Promote { page, to, .. } | Action::Demote { page, to, .. } => {
                self.incoming.end(to, size);
                self.finish(page, op, to, done.outcome);
                size.bytes()
            }
            Action::Exchange { promote, demote, fast, slow } => {
                if done.outcome == Outcome::Aborted(Abort::Unsupported) {
                    self.can_exchange = false;
                }
                self.finish(promote, op, fast, done.outcome);
                self.finish(demote, op, slow, done.outcome);
                size.bytes() * 2
            }
            _ => return,
        };
        // What was not copied may be proposed again within the limit.
        if let Outcome::Aborted(abort) = done.outcome {
            if abort == Abort::Vetoed {
                self.vetoed += 1;
            }
            if abort != Abort::Dirtied && done.proposal.urgency == Urgency::Voluntary {
                self.allowance = (self.allowance + traffic).min(self.most_allowance());
            }
        }
    }

    fn footprint(&self) -> Footprint {
        let bytes = size_of::<Self>() + self.state.heap_bytes();
        Footprint { bytes: Bytes(bytes as u64), pages: self.state.regions.capacity() as u64 }
    }
}
