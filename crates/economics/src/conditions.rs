//! Everything that a model looks at besides the proposal.

use serde::{Deserialize, Serialize};
use terrace_core::{
    Bytes, BytesPerSecond, Nanos, PageSize, PerSecond, Telemetry, TierId, TierTelemetry,
};

use crate::calibration::{Calibration, TierCalibration};
use crate::interval::{Interval, finite};

/// No machine serves more accesses a second; bounds what a rate may claim.
pub(crate) const RATE_MAX: f64 = 1e12;

/// A tier that does not exist.
static NO_TIER: TierTelemetry = TierTelemetry {
    capacity: Bytes::ZERO,
    free: Bytes::ZERO,
    addressable: false,
    read_latency: Nanos::ZERO,
    write_latency: Nanos::ZERO,
    read_bandwidth: BytesPerSecond::ZERO,
    write_bandwidth: BytesPerSecond::ZERO,
    accesses: PerSecond::ZERO,
};

/// What the economist has learnt about one pair of tiers from decisions and
/// outcomes so far. Without it a model is a function of proposal, telemetry
/// and calibration alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Market {
    /// How long a placement is expected to last, in seconds.
    pub horizon: f64,
    /// What a byte of the faster tier would earn with the pages that want to
    /// come in, in cycles a second: the value of freed memory.
    pub bid: Interval,
    /// What a byte of the faster tier earns with the pages that would have to
    /// go out, in cycles a second: what a newcomer displaces.
    pub ask: Interval,
    /// By which factor the mechanism's real cost differs from the calibrated.
    pub correction: Interval,
    /// Of what a profile said would be touched, the part that was, where it was left alone to see;
    /// 1 as long as nothing was seen.
    #[serde(default = "whole")]
    pub touched: f64,
}

/// As a profile says.
const fn whole() -> f64 {
    1.0
}

/// Proposal-independent inputs of a model, with what all models derive from them.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    /// The world's state.
    pub telemetry: &'a Telemetry,
    /// The price list.
    pub calibration: &'a Calibration,
    /// What was learnt.
    pub market: Market,
    cycles_per_second: f64,
    mlp: f64,
}

impl<'a> Conditions<'a> {
    /// Puts the inputs together.
    pub fn new(telemetry: &'a Telemetry, calibration: &'a Calibration, market: Market) -> Self {
        let cycles_per_second = finite(calibration.clock.get()).clamp(0.0, RATE_MAX);
        let mlp = parallelism(telemetry, calibration);
        Self { telemetry, calibration, market, cycles_per_second, mlp }
    }

    /// A duration in cycles.
    pub(crate) fn cycles(&self, duration: Nanos) -> f64 {
        duration.as_secs() * self.cycles_per_second
    }

    /// A time in seconds in cycles.
    pub(crate) fn cycles_in(&self, seconds: f64) -> f64 {
        seconds * self.cycles_per_second
    }

    /// Cycles that an access loses which takes this long: misses in flight at
    /// the same time share their latency.
    pub(crate) fn access_cycles(&self, latency: Nanos) -> f64 {
        self.cycles(latency) / self.mlp
    }

    /// A duration in seconds of a number of cycles; zero without a clock.
    pub(crate) fn seconds(&self, cycles: f64) -> f64 {
        if self.cycles_per_second > 0.0 { cycles / self.cycles_per_second } else { 0.0 }
    }

    /// How long a placement is expected to last, in seconds.
    pub(crate) fn horizon(&self) -> f64 {
        finite(self.market.horizon).clamp(1e-9, 1e10)
    }

    /// Of what a profile says will be touched, the part that is to be expected.
    pub(crate) fn touched(&self) -> f64 {
        let share = self.market.touched;
        if share.is_finite() { share.clamp(0.0, 2.0) } else { 1.0 }
    }

    /// What a wait of so many cycles costs beyond its time, as it is longer than it should be.
    pub(crate) fn tail(&self, stall: f64) -> f64 {
        let parameters = &self.calibration.parameters;
        let beyond = (stall - self.cycles(parameters.stall_budget)).max(0.0);
        beyond * finite(parameters.tail).clamp(0.0, 1e6)
    }

    /// What a cycle of Terrace's own time costs the program: nothing on idle
    /// processors, a cycle on busy ones.
    pub(crate) fn cpu_price(&self) -> f64 {
        let load = self.telemetry.cpu_load;
        // Of an unreadable load we assume the worst.
        if load.is_nan() { 1.0 } else { load.clamp(0.0, 1.0) }
    }

    /// Processors that run the program; at least one.
    pub(crate) fn cpus(&self) -> f64 {
        f64::from(self.calibration.cpus.max(1))
    }

    /// The least benefit that is worth a cycle of cost.
    pub(crate) fn hurdle(&self) -> f64 {
        1.0 + finite(self.calibration.parameters.hysteresis).clamp(0.0, 1e6)
    }

    /// Standard errors between expectation and bound.
    pub(crate) fn z(&self) -> f64 {
        finite(self.calibration.parameters.z).clamp(0.0, 1e3)
    }

    /// A tier's state. Of a tier that telemetry does not know: nothing of it,
    /// not addressable; a forged or damaged record must not bring us down.
    pub(crate) fn tier(&self, id: TierId) -> &TierTelemetry {
        self.telemetry.tiers.get(id.index()).unwrap_or(&NO_TIER)
    }

    /// A tier's price list.
    pub(crate) fn tier_calibration(&self, id: TierId) -> TierCalibration {
        self.calibration.tiers.get(id.index()).copied().unwrap_or_default()
    }

    /// How short a tier is of free memory: 0 with ample room, 1 when full.
    pub(crate) fn scarcity(&self, id: TierId) -> f64 {
        let tier = self.tier(id);
        let ample = finite(self.calibration.parameters.ample_free) * tier.capacity.as_f64();
        if ample > 0.0 { (1.0 - tier.free.as_f64() / ample).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Whether a tier can take a page without giving one up.
    pub(crate) fn has_room(&self, id: TierId, bytes: Bytes) -> bool {
        self.tier(id).free >= bytes
    }

    /// Accesses a second of an average page of a tier, of which no more is
    /// known than that it lies there.
    pub(crate) fn mean_rate(&self, id: TierId, page: PageSize) -> f64 {
        let tier = self.tier(id);
        let used = tier.capacity.saturating_sub(tier.free).as_f64();
        let pages = (used / page.bytes().as_f64()).max(1.0);
        let reported = finite(tier.accesses.get());
        let accesses = if reported > 0.0 { reported } else { self.most_accesses(id) };
        (accesses / pages).min(RATE_MAX)
    }

    /// Accesses a second of an average page of all that is mapped: of what memory can hold of it, and
    /// of at least what it holds. Where none are reported, the most that the faster of two tiers can serve.
    pub(crate) fn mean_rate_of_mapped(&self, mapped: Bytes, page: PageSize, faster: TierId) -> f64 {
        let mut held = 0.0;
        let mut room = 0.0;
        let mut reported = 0.0;
        for tier in self.telemetry.tiers.iter().take(usize::from(self.telemetry.tier_count)) {
            held += tier.capacity.saturating_sub(tier.free).as_f64();
            room += tier.capacity.as_f64();
            reported += finite(tier.accesses.get()).max(0.0);
        }
        let pages = (mapped.as_f64().min(room).max(held) / page.bytes().as_f64()).max(1.0);
        let accesses = if reported > 0.0 { reported } else { self.most_accesses(faster) };
        (accesses / pages).min(RATE_MAX)
    }

    /// The most accesses a second that the processors can have served by a tier.
    pub(crate) fn most_accesses(&self, id: TierId) -> f64 {
        let latency = self.tier(id).read_latency.max(Nanos(1)).as_secs();
        (self.cpus() * finite(self.calibration.mlp.high).max(1.0) / latency).min(RATE_MAX)
    }
}

/// Misses in flight at the same time on a processor that waits for memory: by
/// this much the latency of one is shared.
///
/// By Little's law, accesses a second times their latency are the accesses in
/// flight. Per busy processor these are the parallelism times the share of time
/// in which it waits at all. Every share is possible at which the parallelism
/// lies within the calibrated bounds; what an access costs is proportional to
/// it, so its mean over them, all taken to be equally likely, is the expected
/// cost of an access. That makes the parallelism the harmonic mean of its bounds.
fn parallelism(telemetry: &Telemetry, calibration: &Calibration) -> f64 {
    let (least, most) = bounds(calibration.mlp);
    let in_flight: f64 = telemetry
        .tiers
        .iter()
        .take(usize::from(telemetry.tier_count))
        .filter(|t| t.addressable)
        .map(|t| finite(t.accesses.get()).clamp(0.0, RATE_MAX) * t.read_latency.as_secs())
        .sum();
    let busy = finite(telemetry.cpu_load).clamp(0.0, 1.0) * f64::from(calibration.cpus.max(1));
    let observed = if busy > 0.0 { in_flight / busy } else { 0.0 };
    if observed > least {
        harmonic_mean(observed.min(most), most)
    } else {
        expected(calibration.mlp)
    }
}

/// The least and the most parallelism that make sense.
fn bounds(mlp: Interval) -> (f64, f64) {
    let most = finite(mlp.high).clamp(1.0, 1e6);
    (finite(mlp.low).clamp(1.0, most), most)
}

/// The parallelism where nothing was observed.
pub(crate) fn expected(mlp: Interval) -> f64 {
    let (least, most) = bounds(mlp);
    finite(mlp.expected).clamp(least, most)
}

/// The number whose reciprocal is halfway between those of two others.
pub(crate) fn harmonic_mean(a: f64, b: f64) -> f64 {
    2.0 / (1.0 / a + 1.0 / b)
}
