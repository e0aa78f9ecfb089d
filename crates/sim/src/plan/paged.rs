//! Plans for a memory from which pages have to be brought in.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use terrace_core::{Nanos, PageSize};

use super::runs::Runs;
use super::{How, PlanConfig, PlanCurve, PlanProgress, PlanReport, Point, Workload};
use crate::error::SimError;
use crate::exact::{Batch, Source};
use crate::stack_distance::StackDistances;
use crate::trace::Summary;

/// Points of the curve.
const POINTS: u64 = 200;

/// What one fault is taken to cost the program. Pages are written out in the
/// background; that is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FaultCost {
    /// The trap, and whoever resolves it.
    pub fault: Nanos,
    /// The page's content: its latency, and for huge pages its transfer.
    pub content: Nanos,
}

impl FaultCost {
    fn total(self) -> Nanos {
        self.fault + self.content
    }
}

/// Hands a source on, and measures the distances of pages on the way.
struct Measured {
    source: Box<dyn Source>,
    found: Arc<Mutex<Distances>>,
    shift: u32,
    last: u64,
    warm_up: u64,
}

#[derive(Default)]
struct Distances {
    all: StackDistances,
    /// As they were at the end of the warm-up.
    warm: Option<StackDistances>,
    seen: u64,
}

impl Source for Measured {
    fn describe(&self) -> String {
        self.source.describe()
    }

    fn summary(&self) -> Option<Summary> {
        self.source.summary()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        let more = self.source.next(batch)?;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let accesses = if more { batch.accesses.as_slice() } else { &[] };
        for access in accesses.iter().filter(|access| access.is_data()) {
            found.seen += 1;
            let page = access.address() >> self.shift;
            // The page used last is in any memory.
            if page != self.last {
                found.all.reference(page);
                self.last = page;
            }
        }
        if found.warm.is_none() && found.seen >= self.warm_up {
            let warm = if self.warm_up == 0 { StackDistances::new() } else { found.all.clone() };
            found.warm = Some(warm);
        }
        Ok(more)
    }
}

pub(super) fn plan(
    config: &PlanConfig,
    workload: &Workload<'_>,
    progress: &(dyn Fn(PlanProgress) + Sync),
) -> Result<PlanReport, SimError> {
    let runs = Runs::new(config, workload, progress, 1);
    let size = config.base.page_size;
    let found = Arc::new(Mutex::new(Distances::default()));
    let (report, _) = runs.in_fast(|source, warm_up| {
        let found = Arc::clone(&found);
        Box::new(Measured { source, found, shift: size.shift(), last: u64::MAX, warm_up })
    })?;
    let found = found.lock().unwrap_or_else(PoisonError::into_inner);
    let tier = &config.base.machine.tiers[config.slow];
    let more = size.bytes() - PageSize::Base.bytes();
    let cost = FaultCost {
        fault: config.base.machine.costs.user_fault.value,
        content: tier.read_latency.value + tier.read_bandwidth.value.time_for(more),
    };
    // Page tables stay in fast memory, and are no pages of the program.
    let tables = PageSize::Base.bytes() * report.page_tables;
    let pages = found.all.pages();
    let cold = |of: &StackDistances| of.pages();
    let point = |held: u64| {
        let misses = |of: &StackDistances| of.misses(held) - cold(of);
        let faults = misses(&found.all) - found.warm.as_ref().map_or(0, misses);
        Point {
            fast: tables + size.bytes() * held,
            share: 1.0 - faults as f64 / report.accesses.max(1) as f64,
            slowdown: faults as f64 * cost.total().as_f64() / report.time.as_f64(),
        }
    };
    // One page at least: an instruction needs its operand present.
    let mut held: Vec<u64> = (0..=POINTS).map(|i| (pages * i).div_ceil(POINTS).max(1)).collect();
    let (mut low, mut high) = (1, pages);
    while low < high {
        let middle = u64::midpoint(low, high);
        if point(middle).slowdown <= config.slowdown {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    held.push(high.max(1));
    held.sort_unstable();
    held.dedup();
    let points = held.into_iter().map(point).collect();
    let footprint = tables + size.bytes() * pages;
    let part = config.part(PlanCurve { how: How::Lru, points }, footprint);
    Ok(PlanReport {
        machine: config.base.machine.name.clone(),
        workload: report.workload,
        fast_tier: config.base.machine.tiers[0].name.clone(),
        slow_tier: tier.name.clone(),
        page_size: size,
        accesses: report.accesses,
        footprint,
        slowdown: config.slowdown,
        fast_time: report.time,
        all_slow: None,
        fault: Some(cost),
        parts: vec![part],
        prices: config.prices,
        error: None,
        input: report.input,
    })
}
