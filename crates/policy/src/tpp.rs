//! TPP: transparent page placement for CXL-enabled tiered memory.
//!
//! Two ideas over NUMA balancing. Demotion runs ahead of need: 2 % of the fast
//! tier are kept free, so that new pages, which are mostly short-lived and hot,
//! and promoted ones find room at once. And a page of a slow tier is promoted
//! only if it is *active*: the first fault that finds it in use makes it so,
//! the second promotes it. The fast tier's own pages are never made to fault.
//!
//! Where nothing can be promoted because the slow tier is not addressable, what
//! is left is demotion ahead of need, of what was not seen used.

use terrace_core::{
    Bytes, Done, FaultKind, Nanos, PageRange, PageRef, PageSize, Plan, Reason, Region, Sample,
    Telemetry, TierId,
};

use crate::autonuma::headroom;
use crate::contract::{Footprint, Needs, Policy};
use crate::hints::{HintConfig, Hints};
use crate::lru::{Lru, SEEN, USED, WANTED, seen_within};
use crate::roster::{End, Standing};

/// Accessed bits that reclaim looks at in a tick while it finds nothing that
/// is not in use. (Linux scans as fast as it is asked for memory.)
const SCAN_PAGES: u64 = 8192;

/// TPP's parameters.
///
/// "The paper" is Maruf et al., *TPP: Transparent Page Placement for
/// CXL-Enabled Tiered-Memory*, ASPLOS 2023.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TppConfig {
    /// How memory is walked: as by NUMA balancing (the paper, 5.3).
    pub hints: HintConfig,
    /// The share of the fast tier that is kept free: 2 %
    /// (`/proc/sys/vm/demote_scale_factor`, the paper, 5.2).
    pub headroom: f64,
    /// How often the policy runs; TPP promotes in the fault itself.
    pub tick: Nanos,
}

impl Default for TppConfig {
    fn default() -> Self {
        Self { hints: HintConfig::default(), headroom: 0.02, tick: Nanos::millis(10) }
    }
}

/// The TPP policy.
#[derive(Debug)]
pub struct Tpp {
    config: TppConfig,
    lru: Lru,
    hints: Hints,
    /// The largest pages seen.
    page: PageSize,
}

impl Tpp {
    /// The policy without regions.
    pub fn new(config: TppConfig) -> Self {
        Self { config, lru: Lru::default(), hints: Hints::new(config.hints), page: PageSize::Base }
    }

    /// Checks the lists. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        self.lru.roster.audit()
    }
}

impl Policy for Tpp {
    fn name(&self) -> &'static str {
        "tpp"
    }

    fn needs(&self) -> Needs {
        Needs { scans: true, tick: Some(self.config.tick), ..Needs::default() }
    }

    fn alloc(&mut self, region: &Region) {
        let slots = self.lru.alloc(region);
        self.hints.grow(slots);
        self.page = self.page.max(region.page_size);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        if let FaultKind::Hint(_) = kind
            && let Some(slot) = self.lru.roster.slot(page)
        {
            let asked = self.hints.latency(slot, telemetry.now).is_some();
            self.lru.touched(slot);
            if let Standing::Listed(tier, list) = self.lru.roster.standing(slot)
                && tier != TierId::FASTEST
                && asked
            {
                let list = if list == USED { SEEN } else { WANTED };
                self.lru.roster.relist(slot, list, End::Young);
            }
        }
        self.lru.fault(page, kind, telemetry)
    }

    fn samples(&mut self, samples: &[Sample]) {
        for sample in samples {
            if let Some(slot) = self.lru.roster.slot(sample.page) {
                self.lru.touched(slot);
            }
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        let hints = &mut self.hints;
        self.lru.roster.free(range, whole, |slot| hints.forget(slot));
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.lru.roster.survey(telemetry);
        // Seen twice, one walk over the slow tier apart or less.
        let heat = seen_within(self.config.hints.scan_period, 2);
        self.lru.promote_wanted(SEEN, |_| heat, Reason::OftenUsed, telemetry, plan);
        let fast = TierId::FASTEST;
        let target = headroom(telemetry, fast, self.config.headroom, self.page);
        let starved = self.lru.is_starved();
        if self.lru.keep_free(fast, target, telemetry, plan) || starved {
            self.lru.scan(SCAN_PAGES, |tier| tier == fast, plan);
        }
        let lru = &self.lru;
        let wanted = |slot| match lru.roster.standing(slot) {
            Standing::Listed(tier, _) => tier != fast && telemetry.tier(tier).addressable,
            _ => false,
        };
        self.hints.arm(telemetry.now, &lru.roster, wanted, plan);
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.lru.relieve(tier, bytes, telemetry, plan);
    }

    fn done(&mut self, done: &Done) {
        self.lru.done(done);
    }

    fn footprint(&self) -> Footprint {
        let heap = self.lru.heap_bytes() + self.hints.heap_bytes();
        Footprint::of(size_of::<Self>(), heap, self.lru.roster.slots())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::{
        Abort, Access, Action, ContextId, Cycles, Outcome, PageNo, Proposal, RegionId,
        SampleSource, TierTelemetry,
    };

    const PAGES: u32 = 64;

    fn page(number: u32) -> PageRef {
        PageRef { region: RegionId(0), page: PageNo(number) }
    }

    /// DRAM that all pages fit into, and is kept free by a world of which the other tier is
    /// compressed.
    fn telemetry(now: Nanos) -> Telemetry {
        let tier = |addressable| TierTelemetry {
            capacity: PageSize::Base.bytes() * 128,
            free: PageSize::Base.bytes() * 64,
            addressable,
            ..TierTelemetry::default()
        };
        let mut telemetry =
            Telemetry { now, tier_count: 2, migration_budget: Bytes::MAX, ..Telemetry::default() };
        (telemetry.tiers[0], telemetry.tiers[1]) = (tier(true), tier(false));
        telemetry
    }

    fn placed() -> Tpp {
        let mut tpp = Tpp::new(TppConfig::default());
        let (id, context) = (RegionId(0), ContextId::ANONYMOUS);
        tpp.alloc(&Region { id, pages: PAGES, page_size: PageSize::Base, context });
        for number in 0..PAGES {
            let kind = FaultKind::FirstTouch(Access::Write);
            tpp.fault(page(number), kind, &telemetry(Nanos::ZERO));
        }
        tpp
    }

    fn press(tpp: &mut Tpp, pages: u64) -> Vec<Proposal> {
        let mut plan = Plan::new();
        let bytes = PageSize::Base.bytes() * pages;
        tpp.pressure(TierId::FASTEST, bytes, &telemetry(Nanos::SECOND), &mut plan);
        plan.proposals().to_vec()
    }

    fn scans(tpp: &mut Tpp, tick: u64) -> Vec<Proposal> {
        let mut plan = Plan::new();
        tpp.tick(&telemetry(Nanos::SECOND + Nanos::millis(10 * tick)), &mut plan);
        let scans = plan.proposals().iter().filter(|p| matches!(p.action, Action::Scan { .. }));
        scans.copied().collect()
    }

    /// In compressed memory the world asks for room before the policy's own headroom is
    /// touched. If that did not make it look, what is in use would never be known.
    #[test]
    fn pressure_that_finds_nothing_cold_makes_it_look_at_what_is_in_use() {
        let mut tpp = placed();
        assert!(scans(&mut tpp, 0).is_empty(), "nobody is short of memory");

        press(&mut tpp, 4);

        let asked = scans(&mut tpp, 1);
        assert!(!asked.is_empty());
        assert!(asked.iter().all(|scan| scan.reason == Reason::Observes));
    }

    /// A world without accessed bits needs many ticks for a pass. If passes did not
    /// wait for it, everything would look unused after two ticks.
    #[test]
    fn nothing_more_is_asked_for_before_the_world_has_looked() {
        let mut tpp = placed();
        press(&mut tpp, 4);
        let asked = scans(&mut tpp, 1);
        press(&mut tpp, 4);
        assert!(scans(&mut tpp, 2).is_empty(), "it is still looking");

        let source = SampleSource::HintFault;
        tpp.samples(&[Sample { page: page(8), access: Access::Read, source, weight: 1 }]);
        for proposal in asked {
            let outcome = Outcome::Completed { cost: Cycles(1), moved: Bytes::ZERO };
            tpp.done(&Done { proposal, outcome });
        }
        assert!(!scans(&mut tpp, 3).is_empty(), "the next pass");
        let next = press(&mut tpp, 60);

        let last = next.last().and_then(|proposal| proposal.action.page());
        assert_eq!(last, Some(page(8)), "what was seen used goes last");
        tpp.audit().expect("consistent");
    }

    #[test]
    fn a_scan_that_was_refused_is_over_as_well() {
        let mut tpp = placed();
        press(&mut tpp, 4);
        for proposal in scans(&mut tpp, 1) {
            tpp.done(&Done { proposal, outcome: Outcome::Aborted(Abort::RateLimited) });
        }
        press(&mut tpp, 4);

        assert!(!scans(&mut tpp, 2).is_empty());
    }
}
