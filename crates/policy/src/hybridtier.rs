//! HybridTier: two views of how much a page is used, in a few bits.
//!
//! One filter remembers how often pages were sampled over a long time (their
//! *frequency*), a hundred times smaller one over a short time (their
//! *momentum*). A page of a slower tier is promoted when either is high: what
//! is used a lot, and what has just begun to be. A page is demoted at once when
//! both are low; one that was frequent and has lost its momentum gets a second
//! chance: it goes if nobody has used it for a minute more. The fast tier is
//! kept a little free, and promotions go only into what is free.
//!
//! The filters have no entry for each page; see the `sketch` module.

use terrace_core::{
    Bytes, Done, FaultKind, Heat, Nanos, PageRange, PageRef, PageSize, PerSecond, Plan, Reason,
    Region, Sample, Telemetry, TierId,
};

use crate::autonuma::headroom;
use crate::contract::{Footprint, Needs, Policy};
use crate::roster::{Candidate, End, Next, Raised, Roster, Standing};
use crate::sketch::{MOST, Sketch, part_of_words_for, words_for};

/// Pages in order of when they were placed, sampled or looked at.
const REST: usize = 0;
/// Pages that wait to be promoted.
const WANTED: usize = 1;
/// The filter of momenta is one of so many parts of the other.
const MOMENTUM_PARTS: u32 = 100;
/// Pages that pressure looks at for one that is cold.
const LOOKS: usize = 64;

/// HybridTier's parameters.
///
/// "The code" is `tiering_runtime/hybridtier.cpp` of the artifact
/// (rohankadekodi/hybridtier-asplos25-artifact); the paper is Song et al.,
/// *HybridTier: An Adaptive and Lightweight CXL-Memory Tiering System*,
/// ASPLOS 2025.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HybridTierConfig {
    /// The frequency from which on a page is hot: 5 (`initial_hot_thresh`).
    pub frequency: u8,
    /// The momentum from which on it is: 3 (`momentum_thresh`).
    pub momentum: u8,
    /// Samples for each page of the fast tier between two halvings of the
    /// frequencies: 160 (`SAMPLE_SIZE`).
    pub frequency_period: u64,
    /// Samples between two halvings of the momenta: 1 100 000 in the code.
    pub momentum_period: u64,
    /// But at most this part of the period of the frequencies: 600, which it is
    /// with the 16 GiB of a typical run; ours, for machines that are smaller.
    pub momentum_part: u64,
    /// When less than this share of the fast tier is free, pages are demoted
    /// until `free_target` is: 1.25 % and 5 % (`ALLOC_WMARK`, `DEMOTE_WMARK`).
    pub free_least: f64,
    /// See `free_least`.
    pub free_target: f64,
    /// Pages on their second chance at most: 10 000.
    pub second_chances: usize,
    /// How long a second chance lasts: 60 s.
    pub second_chance: Nanos,
    /// How long nothing is done after two looks at the whole fast tier that
    /// found too little to demote: 120 s (`low_overhead_monitor`).
    pub rest: Nanos,
    /// How often the policy runs; the code runs every 100 000 samples.
    pub tick: Nanos,
    /// Pages that are looked at in a tick; the code looks at all.
    pub scan_pages: u32,
}

impl Default for HybridTierConfig {
    fn default() -> Self {
        Self {
            frequency: 5,
            momentum: 3,
            frequency_period: 160,
            momentum_period: 1_100_000,
            momentum_part: 600,
            free_least: 0.0125,
            free_target: 0.05,
            second_chances: 10_000,
            second_chance: Nanos::seconds(60),
            rest: Nanos::seconds(120),
            tick: Nanos::millis(100),
            scan_pages: 1 << 16,
        }
    }
}

/// The HybridTier policy.
#[derive(Debug)]
pub struct HybridTier {
    config: HybridTierConfig,
    roster: Roster<2>,
    frequency: Sketch,
    momentum: Sketch,
    /// For how many slots the filters were fitted last.
    fitted: usize,
    /// Samples between halvings, of frequencies and of momenta.
    periods: [u64; 2],
    /// When frequencies were halved last, the latest first.
    aged: [Nanos; 2],
    /// Pages on their second chance, with the frequency that they had.
    second: Vec<(u32, u8)>,
    /// When second chances were looked at last.
    looked: Nanos,
    /// Pages looked at in this sweep, and sweeps in a row that found too little.
    swept: u64,
    barren: u32,
    /// Until when nothing is done.
    rests_until: Option<Nanos>,
    /// The smallest pages seen.
    page: Option<PageSize>,
    now: Nanos,
}

impl HybridTier {
    /// The policy without regions.
    pub fn new(config: HybridTierConfig) -> Self {
        Self {
            config,
            roster: Roster::new(),
            frequency: Sketch::default(),
            momentum: Sketch::default(),
            fitted: 0,
            periods: [u64::MAX; 2],
            aged: [Nanos::ZERO; 2],
            second: Vec::new(),
            looked: Nanos::ZERO,
            swept: 0,
            barren: 0,
            rests_until: None,
            page: None,
            now: Nanos::ZERO,
        }
    }

    /// A page's frequency and momentum, as far as the filters tell them apart.
    pub fn counts(&self, page: PageRef) -> Option<(u8, u8)> {
        let slot = self.roster.slot(page)?;
        Some((self.frequency.count(slot.into()), self.momentum.count(slot.into())))
    }

    /// Whether it does nothing, as everything in the fast tier is in use.
    pub fn rests(&self) -> bool {
        self.rests_until.is_some()
    }

    /// Checks the lists. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        self.roster.audit()
    }

    fn size(&self) -> PageSize {
        self.page.unwrap_or(PageSize::Base)
    }

    /// Filters as large as the fast tier, or as what there is if that is less.
    fn fit(&mut self, capacity: Bytes) {
        let fast = capacity.get() / self.size().bytes().get();
        let pages = fast.min(self.roster.slots() as u64).max(1);
        self.frequency.fit(words_for(pages));
        self.momentum.fit(part_of_words_for(pages, MOMENTUM_PARTS));
        self.fitted = self.roster.slots();
        let frequency = pages.saturating_mul(self.config.frequency_period);
        let momentum = (frequency / self.config.momentum_part).max(LOOKS as u64);
        self.periods = [frequency, momentum.min(self.config.momentum_period)];
    }

    fn halve(&mut self) {
        self.aged = [self.now, self.aged[0]];
    }

    /// How much a page is used: its frequency over the time since the last
    /// halving, and half of that before.
    fn heat(&self, slot: u32, telemetry: &Telemetry) -> Heat {
        let samples = u32::from(self.frequency.count(slot.into()));
        let half = Nanos((self.aged[0] - self.aged[1]).get() / 2);
        let window = (self.now - self.aged[0] + half).max(Nanos::millis(10));
        let period = telemetry.sample_period.max(1) as f64;
        let loads = PerSecond::from_count(f64::from(samples) * period, window);
        Heat { loads, samples, window, ..Heat::default() }
    }

    fn candidate(&self, slot: u32, telemetry: &Telemetry) -> Candidate {
        Candidate { slot, heat: self.heat(slot, telemetry) }
    }

    fn promote(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        for slow in (1..telemetry.tier_count).map(TierId) {
            while let Some(slot) = self.roster.oldest(slow, WANTED) {
                let page = self.candidate(slot, telemetry);
                let (fast, reason) = (TierId::FASTEST, Reason::OftenUsed);
                let raised = self.roster.raise(page, fast, reason, telemetry, plan, |_| None);
                if raised != Raised::Proposed {
                    // Asked for again when it is sampled again.
                    self.roster.relist(slot, REST, End::Young);
                }
            }
        }
    }

    /// Demotes pages on their second chance that nobody has used since.
    fn end_second_chances(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        if self.now - self.looked < self.config.second_chance {
            return;
        }
        self.looked = self.now;
        for at in 0..self.second.len() {
            let (slot, before) = self.second[at];
            if self.frequency.count(slot.into()) == before
                && self.roster.standing(slot) == Standing::Listed(TierId::FASTEST, REST)
            {
                let page = self.candidate(slot, telemetry);
                self.roster.demote(page, Reason::KeepsHeadroom, telemetry, plan);
            }
        }
        self.second.clear();
    }

    /// Demotes what is neither frequent nor gaining until enough is free.
    fn keep_free(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        let (fast, config) = (TierId::FASTEST, self.config);
        let free = |roster: &Roster<2>| telemetry.tier(fast).free + roster.leaving(fast);
        if free(&self.roster) > headroom(telemetry, fast, config.free_least, self.size()) {
            return;
        }
        self.end_second_chances(telemetry, plan);
        let target = headroom(telemetry, fast, config.free_target, self.size());
        for _ in 0..config.scan_pages {
            if free(&self.roster) >= target {
                (self.swept, self.barren) = (0, 0);
                return;
            }
            if self.swept >= self.roster.len(fast, REST) {
                self.swept = 0;
                self.barren += 1;
                if self.barren == 2 {
                    self.barren = 0;
                    self.rests_until = Some(self.now + config.rest);
                }
                return;
            }
            let Some(slot) = self.roster.oldest(fast, REST) else { return };
            let entry = u64::from(slot);
            let frequency = self.frequency.count(entry);
            if self.momentum.count(entry) == 0 {
                if frequency < config.frequency {
                    let page = self.candidate(slot, telemetry);
                    if !self.roster.demote(page, Reason::KeepsHeadroom, telemetry, plan) {
                        return;
                    }
                    continue;
                }
                if self.second.len() < self.second.capacity() {
                    if frequency == MOST {
                        self.frequency.lower(entry);
                    }
                    self.second.push((slot, frequency.min(MOST - 1)));
                }
            }
            self.roster.relist(slot, REST, End::Young);
            self.swept += 1;
        }
    }
}

impl Policy for HybridTier {
    fn name(&self) -> &'static str {
        "hybridtier"
    }

    fn needs(&self) -> Needs {
        Needs { samples: true, tick: Some(self.config.tick), ..Needs::default() }
    }

    fn alloc(&mut self, region: &Region) {
        let slots = self.roster.alloc(region);
        self.frequency.reserve(words_for(slots as u64));
        self.momentum.reserve(part_of_words_for(slots as u64, MOMENTUM_PARTS));
        self.second.reserve(self.config.second_chances.saturating_sub(self.second.len()));
        let size = region.page_size;
        self.page = Some(self.page.map_or(size, |page| page.min(size)));
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        if self.fitted != self.roster.slots() {
            // Not only in the next tick: what is counted until then in filters
            // that are too small makes everything look hot, and stays.
            self.fit(telemetry.tier(TierId::FASTEST).capacity);
        }
        self.roster.fault(page, kind, telemetry, |_, _, _| REST)
    }

    fn samples(&mut self, samples: &[Sample]) {
        if self.rests() {
            return;
        }
        let [frequency_period, momentum_period] = self.periods;
        for sample in samples {
            let Some(slot) = self.roster.slot(sample.page) else { continue };
            let (entry, weight) = (u64::from(slot), sample.weight);
            let (frequency, halved) = self.frequency.add(entry, weight, frequency_period);
            if halved {
                self.halve();
            }
            let (momentum, _) = self.momentum.add(entry, weight, momentum_period);
            if let Standing::Listed(tier, REST) = self.roster.standing(slot) {
                let hot = frequency >= self.config.frequency || momentum >= self.config.momentum;
                let list = if hot && tier != TierId::FASTEST { WANTED } else { REST };
                self.roster.relist(slot, list, End::Young);
            }
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        self.roster.free(range, whole, |_| ());
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.now = self.now.max(telemetry.now);
        self.fit(telemetry.tier(TierId::FASTEST).capacity);
        self.roster.survey(telemetry);
        if let Some(until) = self.rests_until {
            if self.now < until {
                return;
            }
            // Or there would be nothing to demote again.
            self.rests_until = None;
            self.frequency.age();
            self.momentum.age();
            self.halve();
            self.second.clear();
        }
        self.promote(telemetry, plan);
        self.keep_free(telemetry, plan);
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        let Self { roster, frequency, momentum, config, .. } = self;
        let is_cold = |slot: &u32| {
            let entry = u64::from(*slot);
            momentum.count(entry) == 0 && frequency.count(entry) < config.frequency
        };
        roster.relieve(tier, bytes, telemetry, plan, |roster| {
            let cold = roster.iter(tier, REST).take(LOOKS).find(is_cold);
            let any = || [REST, WANTED].into_iter().find_map(|list| roster.oldest(tier, list));
            let reason =
                if cold.is_some() { Reason::PressureCold } else { Reason::PressureNoneCold };
            Some((crate::lru::unknown(cold.or_else(any)?), reason))
        });
    }

    fn done(&mut self, done: &Done) {
        self.roster.done(done, |ended| Next::List(REST, ended.usual_end()));
    }

    fn footprint(&self) -> Footprint {
        let second = self.second.len() * size_of::<(u32, u8)>();
        let sketches = self.frequency.heap_bytes() + self.momentum.heap_bytes();
        let heap = self.roster.heap_bytes() + sketches + second;
        Footprint::of(size_of::<Self>(), heap, self.roster.slots())
    }
}
