//! AutoNUMA: Linux's NUMA balancing.
//!
//! Memory is walked, and a page whose access rights were taken away faults when
//! it is touched. In the mode for memory tiers (Linux 5.18 and later,
//! `kernel.numa_balancing = 2`) only slower tiers are walked, and a page is
//! promoted if it faulted soon after: within a threshold that follows how many
//! pages qualify. The fast tier is kept from filling up by reclaim, which
//! demotes what was not used lately (`numa/demotion_enabled`).
//!
//! The older mode walks everything and promotes whatever faults, into free
//! memory alone; nothing is demoted. It is what TPP was compared with.

use terrace_core::{
    Bytes, BytesPerSecond, Done, FaultKind, Nanos, PageRange, PageRef, PageSize, Plan, Reason,
    Region, Sample, Telemetry, TierId,
};

use crate::contract::{Footprint, Needs, Policy};
use crate::hints::{HintConfig, Hints};
use crate::lru::{Lru, USED, WANTED, seen_within};
use crate::roster::{End, Standing};

/// Accessed bits that reclaim looks at in a tick while it finds nothing that
/// is not in use. (Linux scans as fast as it is asked for memory.)
const SCAN_PAGES: u64 = 8192;
/// Steps in which the threshold follows: `NUMA_MIGRATION_ADJUST_STEPS`.
const STEPS: u64 = 16;

/// AutoNUMA's parameters; sources are Linux's files.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoNumaConfig {
    /// How memory is walked.
    pub hints: HintConfig,
    /// A page that faults within this time is hot: 1 s
    /// (`sysctl_numa_balancing_hot_threshold`, `kernel/sched/fair.c`). `None`
    /// for the mode in which every page that faults is promoted.
    pub hot_threshold: Option<Nanos>,
    /// Promotions in a second beyond which the threshold is lowered, and no
    /// page promoted: 65536 MB (`numa_balancing_promote_rate_limit_MBps`).
    pub rate_limit: BytesPerSecond,
    /// How often the threshold follows: 60 s (`scan_period_max`).
    pub adjust_period: Nanos,
    /// Whether the fastest tier is walked, too.
    pub walks_fast: bool,
    /// Whether reclaim demotes.
    pub demotes: bool,
    /// The share of the fastest tier that reclaim keeps free: 0.3 %, the
    /// promotion watermark (`WMARK_PROMO`): three steps of
    /// `watermark_scale_factor` = 10, which is 0.1 % (`mm/page_alloc.c`).
    pub headroom: f64,
    /// How often the policy runs; Linux promotes in the fault itself.
    pub tick: Nanos,
}

impl AutoNumaConfig {
    /// The mode for memory tiers, with demotion.
    pub fn tiering() -> Self {
        Self {
            hints: HintConfig::default(),
            hot_threshold: Some(Nanos::SECOND),
            rate_limit: BytesPerSecond(65536e6),
            adjust_period: Nanos::seconds(60),
            walks_fast: false,
            demotes: true,
            headroom: 0.003,
            tick: Nanos::millis(10),
        }
    }

    /// NUMA balancing without tiers, as TPP was compared with (Linux 5.13).
    pub fn balancing() -> Self {
        Self { hot_threshold: None, walks_fast: true, demotes: false, ..Self::tiering() }
    }
}

/// What is free of a tier in so many huge pages at least, whatever share that is.
pub(crate) fn headroom(telemetry: &Telemetry, tier: TierId, share: f64, page: PageSize) -> Bytes {
    Bytes::from_f64(telemetry.tier(tier).capacity.as_f64() * share).max(page.bytes() * 2)
}

/// The AutoNUMA policy.
#[derive(Debug)]
pub struct AutoNuma {
    config: AutoNumaConfig,
    lru: Lru,
    hints: Hints,
    /// The threshold now.
    threshold: Nanos,
    /// Pages that qualified: in this second, and in this period of adjustment.
    candidates: Bytes,
    period_candidates: Bytes,
    second: Nanos,
    period: Nanos,
    /// Whether a promotion found no room: reclaim is awake.
    awake: bool,
    /// The largest pages seen.
    page: PageSize,
}

impl AutoNuma {
    /// The policy without regions.
    pub fn new(config: AutoNumaConfig) -> Self {
        Self {
            config,
            lru: Lru::default(),
            hints: Hints::new(config.hints),
            threshold: config.hot_threshold.unwrap_or(Nanos::SECOND),
            candidates: Bytes::ZERO,
            period_candidates: Bytes::ZERO,
            second: Nanos::ZERO,
            period: Nanos::ZERO,
            awake: false,
            page: PageSize::Base,
        }
    }

    /// The threshold in use.
    pub fn threshold(&self) -> Nanos {
        self.threshold
    }

    /// Checks the lists. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        self.lru.roster.audit()
    }

    /// Whether there is so much free memory that it does not matter how hot a
    /// page is: a sixteenth of the tier, 1 GiB at most, above the watermark
    /// (`pgdat_free_space_enough`).
    fn has_plenty(&self, telemetry: &Telemetry) -> bool {
        let fast = telemetry.tier(TierId::FASTEST);
        let enough = Bytes(fast.capacity.get() / 16).min(Bytes::gib(1));
        let kept = headroom(telemetry, TierId::FASTEST, self.config.headroom, self.page);
        fast.free >= enough + kept
    }

    /// Whether a page that faulted so long after it was armed is promoted.
    fn is_hot(&mut self, latency: Nanos, size: PageSize, telemetry: &Telemetry) -> bool {
        if self.config.hot_threshold.is_none() || self.has_plenty(telemetry) {
            return true;
        }
        if latency >= self.threshold {
            return false;
        }
        self.candidates += size.bytes();
        self.period_candidates += size.bytes();
        self.candidates <= self.config.rate_limit.over(Nanos::SECOND)
    }

    /// `numa_promotion_adjust_threshold`: one step down when more qualify than
    /// the limit allows by a tenth, one up when fewer.
    fn adjust(&mut self, now: Nanos) {
        if now - self.second >= Nanos::SECOND {
            self.second = now;
            self.candidates = Bytes::ZERO;
        }
        let Some(reference) = self.config.hot_threshold else { return };
        if now - self.period < self.config.adjust_period {
            return;
        }
        self.period = now;
        let allowed = self.config.rate_limit.over(self.config.adjust_period).as_f64();
        let seen = core::mem::take(&mut self.period_candidates).as_f64();
        let step = Nanos(reference.get() * 2 / STEPS);
        if seen > allowed * 1.1 {
            self.threshold = (self.threshold - step).max(step);
        } else if seen < allowed * 0.9 {
            self.threshold = (self.threshold + step).min(reference * 2);
        }
    }
}

impl Policy for AutoNuma {
    fn name(&self) -> &'static str {
        "autonuma"
    }

    fn needs(&self) -> Needs {
        Needs { scans: self.config.demotes, tick: Some(self.config.tick), ..Needs::default() }
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
            let latency = self.hints.latency(slot, telemetry.now);
            self.lru.touched(slot);
            if let (Some(latency), Standing::Listed(tier, USED)) =
                (latency, self.lru.roster.standing(slot))
                && tier != TierId::FASTEST
                && self.is_hot(latency, self.lru.roster.page_size(page), telemetry)
            {
                self.lru.roster.relist(slot, WANTED, End::Young);
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
        self.adjust(telemetry.now);
        let heat = seen_within(self.threshold, 1);
        let refused = self.lru.promote_wanted(USED, |_| heat, Reason::TouchedSoon, telemetry, plan);
        self.awake |= refused > 0;
        if self.config.demotes {
            let fast = TierId::FASTEST;
            let target = headroom(telemetry, fast, self.config.headroom, self.page);
            let starved = self.lru.is_starved();
            // Reclaim wakes at a third of the distance, and works to the whole.
            if self.awake || starved || telemetry.tier(fast).free < Bytes(target.get() / 3) {
                self.awake = true;
                if self.lru.keep_free(fast, target, telemetry, plan) || starved {
                    self.lru.scan(SCAN_PAGES, |tier| tier == fast, plan);
                }
                self.awake = telemetry.tier(fast).free < target;
            }
        }
        let (lru, walks_fast) = (&self.lru, self.config.walks_fast);
        let wanted = |slot| match lru.roster.standing(slot) {
            Standing::Listed(tier, _) => {
                telemetry.tier(tier).addressable && (walks_fast || tier != TierId::FASTEST)
            }
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
