//! What moving bytes costs, whoever the page is.

use terrace_core::{Bytes, BytesPerSecond, Nanos, TierId};

use crate::access::{fetch_time, store_time};
use crate::conditions::Conditions;
use crate::interval::{Interval, finite};
use crate::ledger::{Ledger, TermKind};

/// Base pages in an amount of memory: the unit in which tiers that are not
/// addressable are read and written.
pub(crate) fn base_pages(bytes: Bytes) -> f64 {
    (bytes.as_f64() / Bytes::kib(4).as_f64()).max(1.0)
}

/// The processor time of a move, in cycles at full price.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Movement {
    /// System calls, write-protection, remapping.
    pub(crate) fixed: f64,
    /// Bytes copied between addressable tiers.
    pub(crate) copy: f64,
    /// Bytes brought in from a tier that is not addressable.
    pub(crate) fetch: f64,
    /// Bytes put into a tier that is not addressable.
    pub(crate) store: f64,
    /// Invalidation: the initiator's part.
    pub(crate) shootdown: f64,
    /// Invalidation: what all others pay.
    pub(crate) interrupts: f64,
}

impl Movement {
    /// One page from a tier to another. `fixed` is the action's own overhead.
    pub(crate) fn new(
        from: TierId,
        to: TierId,
        bytes: Bytes,
        fixed: Nanos,
        conditions: &Conditions<'_>,
    ) -> Self {
        let calibration = conditions.calibration;
        let (source, target) = (conditions.tier(from), conditions.tier(to));
        let pages = base_pages(bytes);
        let mut movement = Self { fixed: conditions.cycles(fixed), ..Self::default() };
        if source.addressable {
            // The page is mapped: it is protected while it is copied, and
            // processors may hold its translation.
            let batch = f64::from(calibration.shootdown_batch.max(1));
            movement.fixed += conditions.cycles(calibration.write_protect);
            movement.shootdown = conditions.cycles(calibration.shootdown) / batch;
            movement.interrupts = (conditions.cpus() - 1.0)
                * conditions.cycles(calibration.shootdown_per_cpu)
                / batch;
        } else {
            movement.fetch = conditions.cycles(fetch_time(from, conditions)) * pages;
        }
        if !target.addressable {
            movement.store = conditions.cycles(store_time(to, conditions)) * pages;
        } else if source.addressable {
            let bandwidth = copy_bandwidth(from, to, conditions);
            movement.copy = conditions.cycles(bandwidth.time_for(bytes));
        }
        movement
    }

    /// Two moves that are done as one: remapped and invalidated together.
    pub(crate) fn together(self, other: Self) -> Self {
        Self {
            fixed: self.fixed + other.fixed,
            copy: self.copy + other.copy,
            fetch: self.fetch + other.fetch,
            store: self.store + other.store,
            shootdown: self.shootdown.max(other.shootdown),
            interrupts: self.interrupts.max(other.interrupts),
        }
    }

    /// The time of the processor that moves the page.
    fn own(&self) -> f64 {
        self.fixed + self.copy + self.fetch + self.store + self.shootdown
    }

    /// Processor time everywhere together: what a world reports as paid.
    pub(crate) fn processor(&self) -> f64 {
        self.own() + self.interrupts
    }

    /// How long the page is on its way, in seconds.
    pub(crate) fn duration(&self, conditions: &Conditions<'_>) -> f64 {
        conditions.seconds(self.own() * conditions.market.correction.expected)
    }

    /// What it costs the program, in cycles: the mover's time at the price of
    /// processor time, interruptions in full.
    pub(crate) fn price(&self, conditions: &Conditions<'_>) -> Interval {
        conditions.market.correction.scale(conditions.cpu_price() * self.own() + self.interrupts)
    }

    /// Enters the processor time into a ledger, item by item.
    pub(crate) fn enter(&self, ledger: &mut Ledger, conditions: &Conditions<'_>) {
        let correction = conditions.market.correction;
        let price = conditions.cpu_price();
        let items = [
            (TermKind::Fixed, price * self.fixed),
            (TermKind::Copy, price * self.copy),
            (TermKind::Fetch, price * self.fetch),
            (TermKind::Store, price * self.store),
            (TermKind::Shootdown, price * self.shootdown + self.interrupts),
        ];
        for (kind, cycles) in items {
            ledger.enter(kind, correction.scale(cycles));
        }
        ledger.processor += finite(self.processor());
    }
}

/// The bandwidth at which one processor copies between two tiers: its own, or
/// that of the narrower tier.
fn copy_bandwidth(from: TierId, to: TierId, conditions: &Conditions<'_>) -> BytesPerSecond {
    let mut bandwidth = finite(conditions.calibration.copy_bandwidth.get()).max(0.0);
    let peaks = [
        conditions.tier_calibration(from).read_bandwidth,
        conditions.tier_calibration(to).write_bandwidth,
    ];
    for peak in peaks {
        if peak.get() > 0.0 {
            bandwidth = bandwidth.min(peak.get());
        }
    }
    BytesPerSecond(bandwidth)
}

/// What the program's other accesses lose to the copied bytes, in cycles.
///
/// Below a tier's knee nothing waits. Above it, latency grows with utilisation
/// `u` as `1/(1-u)`, so one more byte a second adds `L / (B·(1-u))` to the
/// latency `L` of every access; a copy of `s` bytes lasts long enough to add
/// that for `s` bytes, at whatever speed it runs.
pub(crate) fn interference(
    from: TierId,
    to: TierId,
    bytes: Bytes,
    conditions: &Conditions<'_>,
) -> f64 {
    let part = |id: TierId, reads: bool| {
        let (tier, calibration) = (conditions.tier(id), conditions.tier_calibration(id));
        let (used, peak, latency) = if reads {
            (tier.read_bandwidth, calibration.read_bandwidth, tier.read_latency)
        } else {
            (tier.write_bandwidth, calibration.write_bandwidth, tier.write_latency)
        };
        let peak = finite(peak.get());
        // Beyond 95 % a queue's formula says more about the formula than the queue.
        let load = (finite(used.get()) / peak).clamp(0.0, 0.95);
        if !tier.addressable || peak <= 0.0 || load <= calibration.load_knee {
            return 0.0;
        }
        let accesses = finite(tier.accesses.get()).clamp(0.0, 1e12);
        accesses * conditions.access_cycles(latency) * bytes.as_f64() / (peak * (1.0 - load))
    };
    part(from, true) + part(to, false)
}

/// What program threads lose that store to the page while it is protected:
/// each waits for half of the move and takes a fault. More threads than
/// processors cannot wait.
pub(crate) fn stall(stores: Interval, duration: f64, conditions: &Conditions<'_>) -> Interval {
    let each =
        conditions.cycles_in(duration / 2.0) + conditions.cycles(conditions.calibration.user_fault);
    stores.map(|rate| (rate * duration).min(conditions.cpus())).scale(each)
}
