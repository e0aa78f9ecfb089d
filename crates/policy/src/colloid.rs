//! Colloid: balance the tiers' latencies, not their temperatures.
//!
//! A fast tier is fast only while it is not overloaded. So what is looked at is
//! the latency of each tier under its present load, and the share of accesses
//! that the fast tier serves is moved until both answer equally fast: hot pages
//! go up while the fast tier is faster, and down while it is slower. The share
//! is found by bisection. Pages are picked, most used first, so that their
//! accesses come to the share that is to be moved and not to more.

use terrace_core::{
    Bytes, BytesPerSecond, Done, FaultKind, Nanos, PageRange, PageRef, Plan, Reason, Region,
    Sample, Telemetry, TierId,
};

use crate::bins::{BINS, Bins};
use crate::contract::{Footprint, Needs, Policy};
use crate::roster::Raised;

/// Bytes of an access to memory.
const LINE: f64 = 64.0;
/// Pages that a page is brought up in place of are at least so many bins, which
/// are factors of two, colder: halving makes pages look colder than their likes.
const COLDER: usize = 2;

/// Colloid's parameters.
///
/// "The paper" is Vuppalapati and Agarwal, *Tiered Memory Management: Access
/// Latency is the Key!*, SOSP 2024. Pages are counted as by the HeMem that it
/// was put on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColloidConfig {
    /// Latencies that differ by less than this share of the fast tier's are
    /// equal: 0.05 (delta in the paper, 3.2; recalled).
    pub tolerance: f64,
    /// Bounds of the bisection nearer than this to each other are opened again,
    /// as the program may have changed: 0.01 (epsilon in the paper, 3.2; recalled).
    pub resolution: f64,
    /// Weight of the latest observation in the means: 1/16 (the published code
    /// for HeMem; its monitor for Linux has 1/32).
    pub smoothing: f64,
    /// Counts are halved when one exceeds this: 18, as HeMem's code for the
    /// paper's comparison has it (`sosp24ae`).
    pub cooling_threshold: u32,
    /// The quantum: 10 ms, as HeMem's.
    pub tick: Nanos,
    /// Migration traffic in a second at most: 10 GiB/s, as HeMem's.
    pub migration_limit: BytesPerSecond,
    /// Pages that a cooling reaches in a tick, as HeMem's.
    pub sweep_pages: u32,
}

impl Default for ColloidConfig {
    fn default() -> Self {
        Self {
            tolerance: 0.05,
            resolution: 0.01,
            smoothing: 1.0 / 16.0,
            cooling_threshold: 18,
            tick: Nanos::millis(10),
            migration_limit: BytesPerSecond((10u64 << 30) as f64),
            sweep_pages: 8192,
        }
    }
}

/// A share of the accesses that is to be moved.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shift {
    /// Whether to the fast tier.
    up: bool,
    share: f64,
}

/// The bisection of the share that the fast tier should serve.
#[derive(Clone, Copy, Debug)]
struct Bisection {
    low: f64,
    high: f64,
}

impl Bisection {
    /// The shift to make when the fast tier serves `share`, and the tiers have
    /// these latencies.
    fn step(&mut self, share: f64, fast: f64, slow: f64, config: &ColloidConfig) -> Option<Shift> {
        if (fast - slow).abs() < config.tolerance * fast {
            return None;
        }
        let up = fast < slow;
        if up {
            self.low = share;
        } else {
            self.high = share;
        }
        if self.high < self.low + config.resolution {
            if up {
                self.high = 1.0;
            } else {
                self.low = 0.0;
            }
        }
        let share = (f64::midpoint(self.low, self.high) - share).abs();
        (share > 0.0).then_some(Shift { up, share })
    }
}

/// Means of what one tier shows.
#[derive(Clone, Copy, Debug, Default)]
struct Tier {
    latency: f64,
    /// Accesses in a second.
    accesses: f64,
}

/// The Colloid policy.
#[derive(Debug)]
pub struct Colloid {
    config: ColloidConfig,
    bins: Bins,
    bisection: Bisection,
    /// The fast tier and the next slower one that is addressable.
    means: Option<[Tier; 2]>,
    /// Whether counts were halved since the last tick.
    cooled: bool,
}

impl Colloid {
    /// The policy without regions.
    pub fn new(config: ColloidConfig) -> Self {
        Self {
            config,
            bins: Bins::default(),
            bisection: Bisection { low: 0.0, high: 1.0 },
            means: None,
            cooled: false,
        }
    }

    /// Checks the lists. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        self.bins.roster.audit()
    }

    fn observe(&mut self, telemetry: &Telemetry, slow: TierId) -> [Tier; 2] {
        let now = [TierId::FASTEST, slow].map(|tier| {
            let tier = telemetry.tier(tier);
            Tier { latency: tier.read_latency.as_f64(), accesses: tier.accesses.get() }
        });
        let weight = self.config.smoothing;
        let mean = |old: f64, new: f64| old + (new - old) * weight;
        let means = self.means.map_or(now, |old| {
            [0, 1].map(|i| Tier {
                latency: mean(old[i].latency, now[i].latency),
                accesses: mean(old[i].accesses, now[i].accesses),
            })
        });
        self.means = Some(means);
        means
    }

    /// Moves pages worth a share of the accesses.
    fn shift(&mut self, shift: Shift, slow: TierId, telemetry: &Telemetry, plan: &mut Plan) {
        let fast = TierId::FASTEST;
        let mut left = shift.share * self.bins.total();
        let mut bin = BINS;
        while bin > 1 {
            bin -= 1;
            let from = if shift.up { slow } else { fast };
            // A page that alone is more than what is left is not for this shift.
            while let Some(slot) = self.bins.roster.oldest(from, bin) {
                let count = f64::from(self.bins.count(slot));
                if count > left {
                    break;
                }
                let reason = Reason::BalancesLatency;
                if shift.up {
                    let raised = self.bins.raise(slot, fast, reason, telemetry, plan, |roster| {
                        let colder = bin.saturating_sub(COLDER);
                        (0..=colder).find_map(|bin| roster.oldest(fast, bin))
                    });
                    match raised {
                        Raised::Proposed => {}
                        // In this bin nobody finds a page to take the place of.
                        Raised::NoRoom | Raised::NotMovable => break,
                        Raised::NoBudget => return,
                    }
                } else {
                    let page = self.bins.candidate(slot, telemetry);
                    if !self.bins.roster.demote(page, reason, telemetry, plan) {
                        return;
                    }
                }
                left -= count;
            }
        }
    }
}

impl Policy for Colloid {
    fn name(&self) -> &'static str {
        "colloid"
    }

    fn needs(&self) -> Needs {
        Needs { samples: true, tick: Some(self.config.tick), ..Needs::default() }
    }

    fn alloc(&mut self, region: &Region) {
        self.bins.alloc(region);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        self.bins.fault(page, kind, telemetry, 0)
    }

    fn samples(&mut self, samples: &[Sample]) {
        for sample in samples {
            if let Some(slot) = self.bins.roster.slot(sample.page)
                && let Some(count) = self.bins.sampled(slot, sample.weight)
                && count > self.config.cooling_threshold
                && !self.cooled
            {
                // At most once a tick, as one page must not cool all others away.
                self.cooled = true;
                self.bins.cool();
            }
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        self.bins.free(range, whole);
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.bins.set_now(telemetry.now);
        self.cooled = false;
        self.bins.sweep(self.config.sweep_pages);
        self.bins.roster.survey(telemetry);
        let slower = telemetry.ladder().skip(1).find(|(_, tier)| tier.addressable);
        let Some((slow, _)) = slower else { return };
        let [fast, other] = self.observe(telemetry, slow);
        let accesses = fast.accesses + other.accesses;
        if accesses <= 0.0 || self.bins.total() <= 0.0 {
            return;
        }
        let share = fast.accesses / accesses;
        let step = self.bisection.step(share, fast.latency, other.latency, &self.config);
        let Some(shift) = step else { return };
        // Moving pages must not load the tiers more than what it moves.
        let traffic = BytesPerSecond(shift.share * accesses * LINE);
        let tick = self.config.tick;
        let limit = traffic.over(tick).min(self.config.migration_limit.over(tick));
        self.bins.roster.limit(limit.max(Bytes::mib(4)));
        self.shift(shift, slow, telemetry, plan);
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.bins.relieve(tier, bytes, telemetry, plan);
    }

    fn done(&mut self, done: &Done) {
        self.bins.done(done);
    }

    fn footprint(&self) -> Footprint {
        Footprint::of(size_of::<Self>(), self.bins.heap_bytes(), self.bins.roster.slots())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tiers of an imaginary machine: the more a tier serves, the slower it is.
    fn latencies(share: f64) -> (f64, f64) {
        (70.0 + 400.0 * share, 135.0 + 100.0 * (1.0 - share))
    }

    /// If the bisection ran to the wrong side, or away, the tiers would never
    /// be balanced.
    #[test]
    fn the_bisection_finds_where_both_tiers_are_equally_fast() {
        let config = ColloidConfig::default();
        for begin in [0.0, 0.3, 0.99] {
            let mut bisection = Bisection { low: 0.0, high: 1.0 };
            let mut share = begin;
            for _ in 0..40 {
                let (fast, slow) = latencies(share);
                match bisection.step(share, fast, slow, &config) {
                    None => break,
                    Some(Shift { up: true, share: by }) => share += by,
                    Some(Shift { up: false, share: by }) => share -= by,
                }
            }
            let (fast, slow) = latencies(share);
            assert!((fast - slow).abs() < 0.05 * fast, "{share}: {fast} ns, {slow} ns");
        }
    }

    /// The program changes after the bounds have met.
    #[test]
    fn the_bisection_follows_a_change() {
        let config = ColloidConfig::default();
        let mut bisection = Bisection { low: 0.5, high: 0.505 };
        let shift = bisection.step(0.5, 100.0, 300.0, &config).expect("far from equal");
        assert!(shift.up && (shift.share - 0.25).abs() < 1e-9, "{shift:?}");
    }
}
