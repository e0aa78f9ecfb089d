//! What happened between two looks at a run.

use std::collections::BTreeMap;

use serde::Serialize;
use terrace_core::{Nanos, PerSecond};

use crate::run::{FaultClass, FaultReport, Figures, RunReport};

/// Rates over an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// The interval's length.
    pub interval: Nanos,
    /// Faults by kind.
    pub faults: Vec<FaultRate>,
    /// Pages brought into DRAM.
    pub promotions: PerSecond,
    /// Pages that left DRAM.
    pub demotions: PerSecond,
    /// Promotions of pages that had just left.
    pub ping_pongs: PerSecond,
    /// Processes that thrashed, on average.
    pub thrashing: f64,
    /// Faults that had to make room themselves.
    pub direct_reclaims: PerSecond,
    /// Threads that stood still for us on average: stall time by time.
    pub stalled: f64,
    /// Processors that Terrace took on average: its threads in the program, and `terrace run`.
    pub own_cpu: f64,
}

/// Faults of one kind in an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultRate {
    /// The kind.
    pub kind: FaultClass,
    /// How many.
    pub rate: PerSecond,
    /// Half of them took at most this long to serve.
    pub p50: Nanos,
    /// 99 in 100.
    pub p99: Nanos,
}

impl Rates {
    /// Rates between two looks; `None` if no time has passed between them.
    pub fn between(before: &RunReport, after: &RunReport) -> Option<Self> {
        let interval = after.elapsed - before.elapsed;
        if interval.is_zero() {
            return None;
        }
        let (b, a) = (&before.total, &after.total);
        let rate = |count: fn(&Figures) -> u64| {
            PerSecond(count(a).saturating_sub(count(b)) as f64 * 1e9 / interval.get() as f64)
        };
        let share = |time: fn(&Figures) -> Nanos| (time(a) - time(b)) / interval;
        Some(Self {
            interval,
            faults: FaultClass::ALL
                .into_iter()
                .map(|kind| FaultRate::between(kind, fault(b, kind), fault(a, kind), interval))
                .collect(),
            promotions: rate(|f| f.promotions),
            demotions: rate(|f| f.demotions),
            ping_pongs: rate(|f| f.ping_pongs),
            thrashing: share(|f| f.thrashing),
            direct_reclaims: rate(|f| f.direct_reclaims),
            stalled: share(|f| f.waited),
            own_cpu: (after.all_own_cpu() - before.all_own_cpu()) / interval,
        })
    }
}

fn fault(figures: &Figures, kind: FaultClass) -> Option<&FaultReport> {
    figures.faults.iter().find(|fault| fault.kind == kind)
}

impl FaultRate {
    fn between(
        kind: FaultClass,
        before: Option<&FaultReport>,
        after: Option<&FaultReport>,
        interval: Nanos,
    ) -> Self {
        let mut counts: BTreeMap<Nanos, u64> =
            after.into_iter().flat_map(|fault| fault.histogram.iter().copied()).collect();
        for (upper, count) in before.into_iter().flat_map(|fault| &fault.histogram) {
            counts.entry(*upper).and_modify(|n| *n = n.saturating_sub(*count));
        }
        let count: u64 = counts.values().sum();
        Self {
            kind,
            rate: PerSecond(count as f64 * 1e9 / interval.get() as f64),
            p50: crate::run::percentile(&counts, 0.5),
            p99: crate::run::percentile(&counts, 0.99),
        }
    }
}
