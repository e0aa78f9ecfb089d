//! MEMTIS: a hot set as large as the fast tier, and huge pages only where they
//! are used as a whole.
//!
//! Pages are sorted into sixteen bins by the logarithm of their sampled
//! accesses, and the threshold above which a page is hot is the lowest at which
//! the hot pages fit into the fast tier. The bin below is *warm*, if the hot
//! pages leave room: warm pages are neither promoted nor demoted. A huge page
//! that is hot by a few of its base pages wastes fast memory; if the share of
//! samples that the fast tier would serve with base pages is well above that
//! which it serves, the most skewed huge pages are split.

use terrace_core::{
    Abort, Action, Bytes, Done, FaultKind, Nanos, Outcome, PageRange, PageRef, PageSize, Plan,
    Reason, Region, Sample, Telemetry, TierId,
};

use crate::bins::{BINS, Bins, bin_of};
use crate::contract::{Footprint, Needs, Policy};
use crate::roster::{Raised, Standing};

/// Base pages of a huge page. A sample of a base page weighs as much, so that
/// counts of both sizes say how densely they are used.
const BASES: usize = 512;

/// MEMTIS's parameters.
///
/// "The code" is `cosmoss-jigu/memtis`; the paper is Lee et al., *MEMTIS:
/// Efficient Memory Tiering with Dynamic Page Classification and Page Size
/// Determination*, SOSP 2023.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemtisConfig {
    /// Samples between two adaptations of the thresholds: 100 000
    /// (`htmm_adaptation_period`).
    pub adaptation: u64,
    /// Samples between two halvings of all counts: 2 000 000
    /// (`htmm_cooling_period`).
    pub cooling: u64,
    /// The lowest bin that is hot: 1 (`htmm_thres_hot`).
    pub least_hot: usize,
    /// The share of the fast tier below which the hot pages leave room for warm
    /// ones: 0.75 (`__adjust_active_threshold`).
    pub warm_below: f64,
    /// Pages are demoted when less than this share of the fast tier is free,
    /// until `free_target` is: 2 % and 3 % (`get_memcg_demotion_watermark` and
    /// `get_memcg_promotion_watermark`).
    pub free_least: f64,
    /// See `free_least`.
    pub free_target: f64,
    /// The share of the estimated hit ratio that the real one has to reach, or
    /// pages are split: 0.95 (`set_memcg_nr_split`).
    pub split_below: f64,
    /// Scales the number of pages to split: 0.4 (`htmm_gamma` = 4, of ten).
    pub split_gamma: f64,
    /// If splitting has not improved the hit ratio by so much, it ends for good:
    /// 1.03 (`update_pginfo`).
    pub split_gain: f64,
    /// How often pages are moved: 500 ms (`htmm_promotion_period_in_ms`,
    /// `htmm_demotion_period_in_ms`).
    pub tick: Nanos,
    /// Pages that a cooling reaches in a tick; the code visits them all in its
    /// migration thread.
    pub sweep_pages: u32,
}

impl Default for MemtisConfig {
    fn default() -> Self {
        Self {
            adaptation: 100_000,
            cooling: 2_000_000,
            least_hot: 1,
            warm_below: 0.75,
            free_least: 0.02,
            free_target: 0.03,
            split_below: 0.95,
            split_gamma: 0.4,
            split_gain: 1.03,
            tick: Nanos::millis(500),
            sweep_pages: 1 << 20,
        }
    }
}

/// What is known of the base pages of a huge page.
type Parts = Box<[u16; BASES]>;

/// Hits of the fast tier, in samples, halved at each cooling.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    /// Samples of the fast tier, and of base pages that would be hot.
    real: f64,
    estimated: f64,
    /// The same since the last cooling.
    new_real: f64,
    new_estimated: f64,
}

/// The MEMTIS policy.
#[derive(Debug)]
pub struct Memtis {
    config: MemtisConfig,
    bins: Bins,
    /// By slot; none for base pages and for huge pages that nobody sampled.
    parts: Vec<Option<Parts>>,
    /// The lowest bins of hot and of warm pages.
    hot: usize,
    warm: usize,
    /// The lowest bin of hot base pages, were there only such.
    hot_base: usize,
    samples: u64,
    since_split: u64,
    hits: Hits,
    /// Capacity of the fast tier, as last told.
    capacity: Bytes,
    fast_latency: f64,
    slow_latency: f64,
    /// Whether pages were split since the last decision about it.
    has_split: bool,
    /// Whether it is still tried; not where the world cannot, or it did not help.
    splits: bool,
    /// Huge pages to split in the next tick, most skewed first.
    to_split: Vec<u32>,
    cooled: bool,
}

impl Memtis {
    /// The policy without regions.
    pub fn new(config: MemtisConfig) -> Self {
        Self {
            config,
            bins: Bins::default(),
            parts: Vec::new(),
            hot: config.least_hot,
            warm: config.least_hot,
            hot_base: config.least_hot,
            samples: 0,
            since_split: 0,
            hits: Hits::default(),
            capacity: Bytes::ZERO,
            fast_latency: 0.0,
            slow_latency: 0.0,
            has_split: false,
            splits: true,
            to_split: Vec::new(),
            cooled: false,
        }
    }

    /// The bins from which on pages are hot, and warm.
    pub fn thresholds(&self) -> (usize, usize) {
        (self.hot, self.warm)
    }

    /// Checks the lists. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        self.bins.roster.audit()
    }

    fn sample(&mut self, sample: &Sample, base: Option<u16>) {
        let Some(slot) = self.bins.roster.slot(sample.page) else { return };
        let Some(tier) = self.bins.roster.tier(slot) else { return };
        let huge = self.bins.roster.page_size(sample.page) == PageSize::Huge;
        let weight = sample.weight;
        let dense = if huge { weight } else { weight.saturating_mul(BASES as u16) };
        let before = if let (true, true, Some(base)) = (huge, self.splits, base) {
            let parts = self.parts[slot as usize].get_or_insert_with(|| Box::new([0; BASES]));
            let part = &mut parts[usize::from(base) % BASES];
            let before = u32::from(*part) * BASES as u32;
            *part = part.saturating_add(weight);
            before
        } else {
            self.bins.count(slot)
        };
        self.bins.sampled(slot, dense);
        let weight = u64::from(weight);
        self.samples += weight;
        self.since_split += weight;
        if tier == TierId::FASTEST {
            self.hits.new_real += weight as f64;
        }
        if bin_of(before) >= self.hot_base {
            self.hits.new_estimated += weight as f64;
        }
        if self.samples / self.config.cooling != (self.samples - weight) / self.config.cooling {
            self.cool();
        } else if self.samples / self.config.adaptation
            != (self.samples - weight) / self.config.adaptation
        {
            self.adapt();
        }
    }

    /// Halves everything; decides whether to split.
    fn cool(&mut self) {
        if self.cooled {
            return;
        }
        self.cooled = true;
        self.bins.cool();
        for parts in self.parts.iter_mut().flatten() {
            parts.iter_mut().for_each(|count| *count /= 2);
        }
        let before = self.hits.real;
        let Hits { real, estimated, new_real, new_estimated } = self.hits;
        self.hits = Hits {
            real: real / 2.0 + new_real,
            estimated: estimated / 2.0 + new_estimated,
            ..Hits::default()
        };
        // Thresholds follow the counts.
        self.hot = self.hot.saturating_sub(1).max(self.config.least_hot);
        self.warm = self.warm.min(self.hot);
        self.hot_base = self.hot_base.saturating_sub(1).max(self.config.least_hot);
        let fast_pages = self.capacity.get() >> PageSize::Base.shift();
        if self.splits && self.since_split > fast_pages {
            if self.has_split && self.hits.real < before * self.config.split_gain {
                self.splits = false;
                self.parts.clear();
                self.parts.shrink_to_fit();
                return;
            }
            self.has_split = false;
            self.since_split = 0;
            self.choose_splits();
        }
    }

    /// Which huge pages to split, most skewed first.
    fn choose_splits(&mut self) {
        let gap = self.hits.estimated * self.config.split_below - self.hits.real;
        if gap <= 0.0 || self.slow_latency <= self.fast_latency || self.fast_latency <= 0.0 {
            return;
        }
        // Of each huge page that has hot base pages: how many, their samples,
        // and the sum of the squares of all.
        let mut skewed: Vec<(f64, u32)> = Vec::new();
        let (mut used, mut hot_samples) = (0u64, 0u64);
        for (slot, parts) in self.parts.iter().enumerate() {
            let Some(parts) = parts else { continue };
            let hot = |count: u16| bin_of(u32::from(count) * 2 * BASES as u32) >= self.hot_base;
            let utilised = parts.iter().filter(|&&count| hot(count)).count() as u64;
            if utilised == 0 {
                continue;
            }
            used += 1;
            hot_samples += parts.iter().filter(|&&c| hot(c)).map(|&c| u64::from(c)).sum::<u64>();
            let squares: f64 = parts.iter().map(|&count| f64::from(count).powi(2)).sum();
            skewed.push((squares / (utilised * utilised) as f64, slot as u32));
        }
        if used == 0 || hot_samples == 0 {
            return;
        }
        // N = (eHR - rHR) * samples / (accesses a huge page) * (latency gap).
        let accesses = hot_samples as f64 / used as f64;
        let slower = (self.slow_latency - self.fast_latency) / self.fast_latency;
        let wanted = (gap / accesses.max(1.0) * slower * self.config.split_gamma).ceil() as usize;
        skewed.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        skewed.truncate(wanted);
        self.to_split = skewed.into_iter().map(|(_, slot)| slot).collect();
    }

    /// The lowest bin at which what is hot fits into the fast tier.
    fn threshold(histogram: &[u64; BINS], room: u64, least: usize) -> (usize, u64) {
        let mut held = 0;
        for bin in (0..BINS).rev() {
            if held + histogram[bin] > room {
                return ((bin + 1).min(BINS - 1).max(least), held);
            }
            held += histogram[bin];
        }
        (least, held)
    }

    /// Sets the thresholds by the histograms, which count base pages.
    fn adapt(&mut self) {
        let (mut whole, mut base) = ([0u64; BINS], [0u64; BINS]);
        let slots = self.bins.roster.slots() as u32;
        let mut run = 0..slots;
        while !run.is_empty() {
            let (part, any) = self.bins.roster.first_part(&run);
            run.start = part.end;
            for slot in part.filter(|_| any) {
                if matches!(self.bins.roster.standing(slot), Standing::Nowhere | Standing::Away(..))
                {
                    continue;
                }
                let bin = self.bins.bin(slot);
                let parts = self.parts.get(slot as usize).and_then(Option::as_ref);
                let size = self.bins.roster.page(slot).map_or(PageSize::Base, |(_, size)| size);
                let pages = size.bytes().get() >> PageSize::Base.shift();
                whole[bin] += pages;
                match parts {
                    None if pages == 1 => base[bin] += 1,
                    None => base[0] += pages,
                    Some(parts) => {
                        for &count in parts.iter() {
                            base[bin_of(u32::from(count) * BASES as u32)] += 1;
                        }
                    }
                }
            }
        }
        let room = self.capacity.as_f64() * (1.0 - self.config.free_target);
        let room = room as u64 >> PageSize::Base.shift();
        let (hot, held) = Self::threshold(&whole, room, self.config.least_hot);
        self.hot = hot;
        let leaves_room = (held as f64) < room as f64 * self.config.warm_below;
        self.warm = if leaves_room { hot - 1 } else { hot };
        self.hot_base = Self::threshold(&base, room, self.config.least_hot).0;
    }

    fn propose_splits(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        for slot in core::mem::take(&mut self.to_split) {
            let page = self.bins.candidate(slot, telemetry);
            self.bins.roster.split(page, Reason::SkewedUse, plan);
        }
    }

    /// Demotes what is not warm until enough of the fast tier is free.
    fn keep_free(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        let fast = TierId::FASTEST;
        let share = |share: f64| Bytes::from_f64(self.capacity.as_f64() * share);
        let (least, target) = (share(self.config.free_least), share(self.config.free_target));
        let coming = telemetry.tier(fast).free + self.bins.roster.leaving(fast);
        if coming >= least {
            return;
        }
        let mut free = coming;
        while free < target {
            let cold = (0..self.warm).find_map(|bin| self.bins.roster.oldest(fast, bin));
            let Some(slot) = cold else { return };
            let size = self.bins.roster.page(slot).map_or(PageSize::Base, |(_, size)| size);
            let page = self.bins.candidate(slot, telemetry);
            if !self.bins.roster.demote(page, Reason::KeepsHeadroom, telemetry, plan) {
                return;
            }
            free += size.bytes();
        }
    }

    fn promote(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        let (fast, hot) = (TierId::FASTEST, self.hot);
        for slow in (1..telemetry.tier_count).map(TierId) {
            for bin in (hot..BINS).rev() {
                while let Some(slot) = self.bins.roster.oldest(slow, bin) {
                    let reason = Reason::AmongHottest;
                    // What is not hot gives way, the coldest first.
                    let raised = self.bins.raise(slot, fast, reason, telemetry, plan, |roster| {
                        (0..hot).find_map(|bin| roster.oldest(fast, bin))
                    });
                    match raised {
                        Raised::Proposed => {}
                        Raised::NotMovable => break,
                        Raised::NoRoom | Raised::NoBudget => return,
                    }
                }
            }
        }
    }
}

impl Policy for Memtis {
    fn name(&self) -> &'static str {
        "memtis"
    }

    fn needs(&self) -> Needs {
        Needs { samples: true, base_pages: true, tick: Some(self.config.tick), ..Needs::default() }
    }

    fn alloc(&mut self, region: &Region) {
        let slots = self.bins.alloc(region);
        if self.splits && region.page_size == PageSize::Huge && self.parts.len() < slots {
            self.parts.resize_with(slots, || None);
        }
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        // What is new counts as hot until it is known better.
        let first = (1u32 << (self.hot + 1).min(BINS)) - 1;
        self.bins.fault(page, kind, telemetry, first)
    }

    fn samples(&mut self, samples: &[Sample]) {
        for sample in samples {
            self.sample(sample, None);
        }
    }

    fn base_samples(&mut self, samples: &[Sample], bases: &[u16]) {
        for (sample, &base) in samples.iter().zip(bases) {
            self.sample(sample, Some(base));
        }
    }

    fn split(&mut self, page: PageRef, into: &Region) {
        let Some(slot) = self.bins.roster.slot(page) else { return };
        let Some(tier) = self.bins.roster.tier(slot) else { return };
        let parts = self.parts.get_mut(slot as usize).and_then(Option::take);
        self.bins.free(PageRange { region: page.region, start: page.page, count: 1 }, false);
        self.bins.alloc(into);
        for base in into.range().pages() {
            let Some(slot) = self.bins.roster.slot(base) else { continue };
            let count = parts.as_ref().map_or(0, |parts| parts[base.page.0 as usize % BASES]);
            self.bins.enter(slot, tier, u32::from(count) * BASES as u32);
        }
        self.has_split = true;
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        for slot in self.bins.roster.run(range) {
            if let Some(parts) = self.parts.get_mut(slot as usize) {
                *parts = None;
            }
        }
        self.bins.free(range, whole);
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        let fast = telemetry.tier(TierId::FASTEST);
        self.capacity = fast.capacity;
        self.fast_latency = fast.read_latency.as_f64();
        self.slow_latency = telemetry.tier(TierId(1)).read_latency.as_f64();
        self.bins.set_now(telemetry.now);
        self.cooled = false;
        self.bins.sweep(self.config.sweep_pages);
        self.bins.roster.survey(telemetry);
        self.propose_splits(telemetry, plan);
        self.promote(telemetry, plan);
        self.keep_free(telemetry, plan);
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.bins.relieve(tier, bytes, telemetry, plan);
    }

    fn done(&mut self, done: &Done) {
        if matches!(done.proposal.action, Action::Split { .. })
            && done.outcome == Outcome::Aborted(Abort::Unsupported)
        {
            self.splits = false;
            self.parts = Vec::new();
        }
        self.bins.done(done);
    }

    fn footprint(&self) -> Footprint {
        let parts = self.parts.capacity() * size_of::<Option<Parts>>()
            + self.parts.iter().flatten().count() * size_of::<[u16; BASES]>();
        let heap = self.bins.heap_bytes() + parts;
        Footprint::of(size_of::<Self>(), heap, self.bins.roster.slots())
    }
}
