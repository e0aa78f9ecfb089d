//! Plans for a slow memory that loads and stores reach.

use std::collections::HashSet;

use terrace_core::{Bytes, Nanos, PageRef, PageSize};
use terrace_policy::Policy;

use super::curve::between;
use super::pinned::Pinned;
use super::runs::{Decider, Runs};
use super::{How, PlanConfig, PlanCurve, PlanProgress, PlanReport, Point, Workload};
use crate::analytic::config::SimPolicy;
use crate::error::SimError;
use crate::exact::ExactReport;
use crate::exact::profile::Profile;

/// Points of the exact curve.
const POINTS: usize = 200;
/// Shares of the misses at which the best placement is simulated.
const SHARES: [f64; 8] = [0.0, 0.3, 0.6, 0.8, 0.9, 0.96, 0.99, 0.999];
/// Rounds of the search between two points of the grid; each tries two sizes.
const ROUNDS: usize = 4;

/// What the run in fast memory alone says.
struct Base {
    time: Nanos,
    /// Touched memory, page tables included.
    footprint: Bytes,
    tables: Bytes,
    /// Pages by falling misses a byte.
    pages: Vec<(PageRef, PageSize, u64)>,
    misses: u64,
}

impl Base {
    /// Pages that fit into so much fast memory, best first, and the share of
    /// the misses that are theirs. Tables take their part first.
    fn best(&self, fast: Bytes) -> (usize, f64) {
        let (mut room, mut served) = (fast.get().saturating_sub(self.tables.get()), 0);
        for (i, &(_, size, misses)) in self.pages.iter().enumerate() {
            let bytes = size.bytes().get();
            if bytes > room {
                return (i, served as f64 / self.misses.max(1) as f64);
            }
            room -= bytes;
            served += misses;
        }
        (self.pages.len(), 1.0)
    }

    fn pinned(&self, fast: Bytes) -> Box<dyn Policy> {
        let (count, _) = self.best(fast);
        let pages: HashSet<_> = self.pages[..count].iter().map(|&(page, ..)| page).collect();
        Box::new(Pinned(pages))
    }

    /// The least fast memory that serves a share of the misses.
    fn for_share(&self, share: f64, page: PageSize) -> Bytes {
        if share <= 0.0 {
            return Bytes::ZERO;
        }
        let (mut bytes, mut served) = (self.tables.get(), 0);
        for &(_, size, misses) in &self.pages {
            if served as f64 >= share * self.misses as f64 {
                break;
            }
            bytes += size.bytes().get();
            served += misses;
        }
        Bytes(bytes.next_multiple_of(page.bytes().get()))
    }

    /// A share of the footprint as a size that is a whole number of pages.
    fn size(&self, part: f64, page: PageSize) -> Bytes {
        let page = page.bytes().get();
        let bytes = (self.footprint.as_f64() * part) as u64;
        Bytes(bytes.div_ceil(page) * page)
    }
}

pub(super) fn plan(
    config: &PlanConfig,
    workload: &Workload<'_>,
    progress: &(dyn Fn(PlanProgress) + Sync),
) -> Result<PlanReport, SimError> {
    let grid = config.grid.max(2);
    // Fast memory alone; the shares; for each policy the grid; each search.
    let curves = config.policies.len();
    let total = 1 + SHARES.len() + curves * grid + (1 + curves) * 2 * ROUNDS;
    let runs = Runs::new(config, workload, progress, total);
    let (report, base) = in_fast(&runs)?;
    let curve = best_placement(config, &base, &runs)?;
    let all_slow = curve.points[0].slowdown;
    let mut parts = vec![config.part(curve, base.footprint)];
    for &policy in &config.policies {
        let curve = simulated(config, &base, &runs, policy, grid)?;
        parts.push(config.part(curve, base.footprint));
    }
    let names = &config.base.machine.tiers;
    Ok(PlanReport {
        machine: config.base.machine.name.clone(),
        workload: report.workload,
        fast_tier: names[0].name.clone(),
        slow_tier: names[config.slow].name.clone(),
        page_size: config.base.page_size,
        accesses: report.accesses,
        footprint: base.footprint,
        slowdown: config.slowdown,
        fast_time: base.time,
        all_slow: Some(all_slow),
        fault: None,
        parts,
        prices: config.prices,
        error: Some(super::held_out::MEASURED),
        input: report.input,
    })
}

/// The run in fast memory alone, and what it says.
fn in_fast(runs: &Runs<'_>) -> Result<(ExactReport, Base), SimError> {
    let (report, machine) = runs.in_fast(|source, _| source)?;
    let pages = machine.profile().map(Profile::hottest_first).unwrap_or_default();
    let base = Base {
        time: report.time,
        footprint: report.tiers[0].used,
        tables: PageSize::Base.bytes() * report.page_tables,
        misses: pages.iter().map(|(_, _, misses)| misses).sum(),
        pages,
    };
    Ok((report, base))
}

/// Slowdowns of the best placement with so much fast memory, each simulated: what a
/// plan is compared with.
pub(super) fn measured(
    config: &PlanConfig,
    workload: &Workload<'_>,
    sizes: Vec<Bytes>,
) -> Result<Vec<Point>, SimError> {
    let runs = Runs::new(config, workload, &|_| (), 1 + sizes.len());
    let (_, base) = in_fast(&runs)?;
    runs.side_by_side(sizes, |fast| {
        runs.with_fast(Decider::Own(base.pinned(fast)), fast, base.footprint, base.time)
    })
}

/// The best placement: exact misses at every size. Time is simulated at some
/// shares and around the answer, and taken to fall with the share in between:
/// not with the size, because the pages that matter come first. It does not
/// fall evenly from end to end, because a single slow miss holds up the fast
/// ones behind it.
fn best_placement(
    config: &PlanConfig,
    base: &Base,
    runs: &Runs<'_>,
) -> Result<PlanCurve, SimError> {
    let page = config.base.page_size;
    let run = |sizes: Vec<Bytes>| -> Result<Vec<Point>, SimError> {
        runs.side_by_side(sizes, |fast| {
            runs.with_fast(Decider::Own(base.pinned(fast)), fast, base.footprint, base.time)
        })
    };
    let mut sizes: Vec<Bytes> = SHARES.iter().map(|&share| base.for_share(share, page)).collect();
    sizes.dedup();
    runs.fewer(SHARES.len() - sizes.len());
    let mut simulated = run(sizes)?;
    simulated.push(Point { fast: base.size(1.0, page), share: 1.0, slowdown: 0.0 });
    let how = How::BestPlacement;
    let simulated = search(config, runs, PlanCurve { how, points: simulated }, &run)?.points;
    // Shares of the curve are those of the exact account, not of the simulations.
    let share = |fast: Bytes| base.best(fast).1;
    let known: Vec<(f64, f64)> =
        simulated.iter().map(|point| (share(point.fast), point.slowdown)).collect();
    let mut points: Vec<Point> =
        simulated.iter().map(|point| Point { share: share(point.fast), ..*point }).collect();
    for i in 1..POINTS {
        let fast = base.size(i as f64 / POINTS as f64, page);
        let share = share(fast);
        points.push(Point { fast, share, slowdown: between(&known, share) });
    }
    // Simulated points come before others of the same size.
    points.sort_by_key(|point| point.fast);
    points.dedup_by_key(|point| point.fast);
    Ok(PlanCurve { how, points })
}

/// A policy, simulated on a grid of sizes and then around the answer.
fn simulated(
    config: &PlanConfig,
    base: &Base,
    runs: &Runs<'_>,
    policy: SimPolicy,
    grid: usize,
) -> Result<PlanCurve, SimError> {
    let page = config.base.page_size;
    let run = |sizes: Vec<Bytes>| -> Result<Vec<Point>, SimError> {
        runs.side_by_side(sizes, |fast| {
            runs.with_fast(Decider::Named(policy), fast, base.footprint, base.time)
        })
    };
    // Room for one page besides tables at least, up to all.
    let sizes: Vec<_> = (1..=grid).map(|i| base.size(i as f64 / grid as f64, page)).collect();
    let points = run(sizes)?;
    search(config, runs, PlanCurve { how: How::Simulated(policy), points }, &run)
}

/// Adds simulations around the answer: each round tries two sizes between the
/// answer so far and the next size below it.
fn search(
    config: &PlanConfig,
    runs: &Runs<'_>,
    mut curve: PlanCurve,
    run: &dyn Fn(Vec<Bytes>) -> Result<Vec<Point>, SimError>,
) -> Result<PlanCurve, SimError> {
    let page = config.base.page_size.bytes();
    curve.points.sort_by_key(|point| point.fast);
    for round in 0..ROUNDS {
        let answer = curve.smallest(config.slowdown).map(|point| point.fast);
        let below = curve.points.iter().rev().find(|point| Some(point.fast) < answer);
        let number = |fast: Bytes| fast.get() / page.get();
        let low = below.map_or(0, |point| number(point.fast));
        let Some(high) = answer.map(number).filter(|high| high - low >= 2) else {
            runs.fewer(2 * (ROUNDS - round));
            break;
        };
        let third = ((high - low) / 3).max(1);
        let mut between = vec![low + third, high - third];
        between.dedup();
        runs.fewer(2 - between.len());
        let sizes = between.iter().map(|n| page * *n).collect();
        curve.points.extend(run(sizes)?);
        curve.points.sort_by_key(|point| point.fast);
    }
    Ok(curve)
}
