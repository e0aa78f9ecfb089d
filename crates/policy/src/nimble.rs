//! Nimble page management: Linux's lists of active and inactive pages, and
//! moves that are cheap enough to follow them.
//!
//! Memory is scanned for accessed bits from time to time. What was found in use
//! by two scans in a row is active. After a scan, active pages of slower tiers
//! are brought up: into free memory, then in exchange for pages of the fast
//! tier that are not active. There is no measure of how much a page is used,
//! only of whether.

use terrace_core::{
    Bytes, Done, FaultKind, Nanos, PageRange, PageRef, PageSize, Plan, Reason, Region, Sample,
    Telemetry, TierId,
};

use crate::contract::{Footprint, Needs, Policy};
use crate::lru::{Lru, SEEN, USED, WANTED, seen_within};
use crate::roster::{Candidate, End, Raised, Standing};

/// Nimble's parameters.
///
/// "The paper" is Yan et al., *Nimble Page Management for Tiered Memory
/// Systems*, ASPLOS 2019.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NimbleConfig {
    /// Time from one scan of the lists to the next: 5 s (`STATS_PERIOD` in
    /// `run_all.sh` of the published launcher, which asks the kernel that often).
    pub period: Nanos,
    /// How often the policy runs; a scan is spread over the ticks of a period.
    pub tick: Nanos,
}

impl Default for NimbleConfig {
    fn default() -> Self {
        Self { period: Nanos::seconds(5), tick: Nanos::millis(10) }
    }
}

/// The Nimble policy.
#[derive(Debug)]
pub struct Nimble {
    config: NimbleConfig,
    lru: Lru,
    /// When the scan under way began.
    began: Option<Nanos>,
    /// Whether the scan of this period is over.
    scanned: bool,
    /// Active pages that found no room in the fast tier since the last scan ended.
    refused: Bytes,
}

impl Nimble {
    /// The policy without regions.
    pub fn new(config: NimbleConfig) -> Self {
        Self { config, lru: Lru::default(), began: None, scanned: false, refused: Bytes::ZERO }
    }

    /// Checks the lists. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        self.lru.roster.audit()
    }

    /// Brings active pages up, in place of what is not.
    fn exchange(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        let fast = TierId::FASTEST;
        let heat = seen_within(self.config.period, 2);
        for slow in (1..telemetry.tier_count).map(TierId) {
            while let Some(slot) = self.lru.roster.oldest(slow, WANTED) {
                let loser = self.lru.oldest_inactive(fast);
                let page = Candidate { slot, heat };
                let reason = Reason::OftenUsed;
                // In none of the passes since it was last seen used.
                let mut loser = loser.map(|slot| {
                    let unseen = self.config.period * u64::from(self.lru.age(slot));
                    Candidate { slot, heat: seen_within(unseen, 0) }
                });
                let roster = &mut self.lru.roster;
                let size = roster.page(slot).map_or(PageSize::Base, |(_, size)| size);
                let raised = roster.raise(page, fast, reason, telemetry, plan, |_| loser.take());
                match raised {
                    Raised::Proposed => {}
                    Raised::NoBudget => return,
                    // All of the fast tier is active: it is looked at again
                    // when the page is seen used in the next scan.
                    Raised::NoRoom | Raised::NotMovable => {
                        if raised == Raised::NoRoom {
                            self.refused += size.bytes();
                        }
                        self.lru.roster.relist(slot, SEEN, End::Young);
                    }
                }
            }
        }
    }
}

impl Policy for Nimble {
    fn name(&self) -> &'static str {
        "nimble"
    }

    fn needs(&self) -> Needs {
        Needs { scans: true, tick: Some(self.config.tick), ..Needs::default() }
    }

    fn alloc(&mut self, region: &Region) {
        self.lru.alloc(region);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        self.lru.fault(page, kind, telemetry)
    }

    fn samples(&mut self, samples: &[Sample]) {
        for sample in samples {
            let Some(slot) = self.lru.roster.slot(sample.page) else { continue };
            let passes = self.lru.age(slot);
            self.lru.touched(slot);
            // Twice in one pass is seen once; twice far apart, too.
            if let Standing::Listed(tier, list @ (USED | SEEN)) = self.lru.roster.standing(slot)
                && tier != TierId::FASTEST
                && passes > 0
            {
                let again = list == SEEN && passes == 1;
                self.lru.roster.relist(slot, if again { WANTED } else { SEEN }, End::Young);
            }
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        self.lru.roster.free(range, whole, |_| ());
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.lru.roster.survey(telemetry);
        let now = telemetry.now;
        if self.began.is_none_or(|began| now - began >= self.config.period) {
            self.began = Some(now);
            self.scanned = false;
        }
        if self.scanned {
            self.exchange(telemetry, plan);
        } else {
            let ticks = (self.config.period.get() / self.config.tick.get().max(1)).max(1);
            let pages = (self.lru.roster.slots() as u64).div_ceil(ticks);
            let placed = |tier: TierId| telemetry.tier(tier).addressable;
            self.scanned = self.lru.scan(pages, placed, plan);
            if self.scanned {
                self.refused = Bytes::ZERO;
            }
        }
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.lru.relieve(tier, bytes, telemetry, plan);
    }

    fn done(&mut self, done: &Done) {
        self.lru.done(done);
    }

    fn lacks(&self) -> Bytes {
        self.refused + self.lru.roster.coming(TierId::FASTEST)
    }

    fn footprint(&self) -> Footprint {
        Footprint::of(size_of::<Self>(), self.lru.heap_bytes(), self.lru.roster.slots())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::{
        Access, Action, ContextId, Cycles, Outcome, PageNo, RegionId, SampleSource, TierTelemetry,
    };

    const PAGES: u32 = 16;

    fn page(number: u32) -> PageRef {
        PageRef { region: RegionId(0), page: PageNo(number) }
    }

    /// Half of the pages fit into the fast tier.
    fn telemetry(now: Nanos, free: u64) -> Telemetry {
        let tier = |capacity: u64, free: u64| TierTelemetry {
            capacity: PageSize::Base.bytes() * capacity,
            free: PageSize::Base.bytes() * free,
            addressable: true,
            ..TierTelemetry::default()
        };
        let mut telemetry =
            Telemetry { now, tier_count: 2, migration_budget: Bytes::MAX, ..Telemetry::default() };
        telemetry.tiers[0] = tier(8, free);
        telemetry.tiers[1] = tier(64, 56);
        telemetry
    }

    /// A policy with pages 0 to 7 in the fast tier, the others in the slow one.
    fn placed() -> Nimble {
        let mut nimble = Nimble::new(NimbleConfig::default());
        let (id, context) = (RegionId(0), ContextId::ANONYMOUS);
        nimble.alloc(&Region { id, pages: PAGES, page_size: PageSize::Base, context });
        for number in 0..PAGES {
            let free = 8u64.saturating_sub(number.into());
            let kind = FaultKind::FirstTouch(Access::Write);
            nimble.fault(page(number), kind, &telemetry(Nanos::ZERO, free));
        }
        nimble
    }

    /// Lets `seconds` pass; `used` pages have their accessed bits set whenever
    /// they are looked at. Says what was exchanged, if it is carried out.
    fn run(nimble: &mut Nimble, from: u64, seconds: u64, used: &[u32]) -> Vec<(u32, u32)> {
        let mut exchanged = Vec::new();
        for step in from * 100..(from + seconds) * 100 {
            let mut plan = Plan::new();
            nimble.tick(&telemetry(Nanos::millis(step * 10), 0), &mut plan);
            for proposal in plan.proposals() {
                match proposal.action {
                    Action::Scan { range } => {
                        let found = range.pages().filter(|page| used.contains(&page.page.0));
                        let source = SampleSource::AccessedBit;
                        let sample =
                            |page| Sample { page, access: Access::Read, source, weight: 1 };
                        nimble.samples(&found.map(sample).collect::<Vec<_>>());
                    }
                    Action::Exchange { promote, demote, .. } => {
                        exchanged.push((promote.page.0, demote.page.0));
                    }
                    other => panic!("{other:?}"),
                }
                let outcome = Outcome::Completed { cost: Cycles(1), moved: Bytes::ZERO };
                nimble.done(&Done { proposal: *proposal, outcome });
            }
        }
        nimble.audit().expect("consistent");
        exchanged
    }

    /// One look is not enough: what is read once in passing would be moved.
    #[test]
    fn what_two_scans_in_a_row_find_in_use_is_exchanged_for_what_they_do_not() {
        let mut nimble = placed();
        let used = [0, 1, 2, 3, 4, 5, 12, 13];
        assert_eq!(run(&mut nimble, 0, 5, &used), []);
        let exchanged = run(&mut nimble, 5, 10, &used);
        let mut promoted: Vec<_> = exchanged.iter().map(|pair| pair.0).collect();
        let mut demoted: Vec<_> = exchanged.iter().map(|pair| pair.1).collect();
        promoted.sort_unstable();
        demoted.sort_unstable();
        assert_eq!((promoted, demoted), (vec![12, 13], vec![6, 7]));
    }

    #[test]
    fn pages_that_are_used_in_every_other_scan_stay() {
        let mut nimble = placed();
        for scan in 0..8 {
            let used: &[u32] = if scan % 2 == 0 { &[12, 13] } else { &[] };
            assert_eq!(run(&mut nimble, scan * 5, 5, used), [], "scan {scan}");
        }
    }

    /// Otherwise hot pages would change places with their likes for ever. The policy says how much
    /// room they lack.
    #[test]
    fn nothing_moves_while_all_of_the_fast_tier_is_active() {
        let mut nimble = placed();
        assert_eq!(nimble.lacks(), Bytes::ZERO);
        let used: Vec<_> = (0..PAGES).collect();
        assert_eq!(run(&mut nimble, 0, 40, &used), []);
        assert_eq!(nimble.lacks(), PageSize::Base.bytes() * 8);
        // As long as they are used.
        assert_eq!(run(&mut nimble, 40, 40, &[0, 1, 2, 3, 4, 5, 6, 7]), []);
        assert_eq!(nimble.lacks(), Bytes::ZERO);
    }
}
