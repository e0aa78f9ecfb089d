//! How much fast memory a program needs.
//!
//! Two kinds of slow memory, two answers:
//!
//! - **in place** ([`in_place`]): a second memory that loads and stores reach
//!   (CXL, NVM). One run in fast memory alone counts the misses of each page;
//!   from it follows exactly which share of the misses the best placement
//!   that never moves a page serves from any amount of fast memory. What that
//!   means in time lies between the run in fast memory and the run in slow
//!   memory. Policies are simulated, at some sizes and then where the answer is.
//! - **paged** ([`paged`]): a memory from which pages have to be brought in
//!   (compressed memory, a file). One pass over the accesses gives the faults
//!   under LRU for every size at once ([`crate::stack_distance`]).

mod curve;
pub mod held_out;
mod in_place;
mod paged;
mod pinned;
mod runs;

use serde::{Serialize, Serializer};
use terrace_core::machine::TierFile;
use terrace_core::{Bytes, Nanos, PageSize};

pub use curve::{How, PlanCurve, Point, knee};
pub use held_out::PlanError;
pub use paged::FaultCost;

use crate::analytic::config::SimPolicy;
use crate::analytic::device::Device;
use crate::error::SimError;
use crate::exact::{ExactConfig, Source};
use crate::trace::Summary;

/// Makes the program anew for every run: the source, and how many accesses of it
/// come before anything is measured.
pub type Workload<'a> = dyn Fn() -> Result<(Box<dyn Source>, u64), SimError> + Sync + 'a;

/// What is asked.
#[derive(Clone, Debug)]
pub struct PlanConfig {
    /// Machine, page size, cores, sampler, seed. Capacities are what is asked
    /// for, so the machine's own do not matter.
    pub base: ExactConfig,
    /// The slow memory's number in the machine file, counted from the fastest.
    pub slow: usize,
    /// Policies that are simulated, where the slow memory is used in place.
    pub policies: Vec<SimPolicy>,
    /// The slowdown that is accepted: 0.05 for 5 %.
    pub slowdown: f64,
    /// Sizes at which a policy is simulated before the search begins.
    pub grid: usize,
    /// What a GiB of the fast and of the slow memory costs, in any currency.
    pub prices: Option<[f64; 2]>,
    /// What all memory may cost, in the same currency.
    pub budget: Option<f64>,
    /// Simulations side by side.
    pub workers: usize,
}

/// An amount of fast memory, and what comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// Fast memory, page tables included.
    pub fast: Bytes,
    /// Slow memory.
    pub slow: Bytes,
    /// The slowdown: 0.05 for 5 %.
    pub slowdown: f64,
    /// What the two cost.
    pub price: Option<f64>,
}

/// What follows from a curve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Answers {
    /// The least fast memory within the accepted slowdown.
    pub smallest: Option<Choice>,
    /// Where more fast memory begins to bring less than its share.
    pub knee: Option<Choice>,
    /// The least slowdown within the budget.
    pub within_budget: Option<Choice>,
    /// The least price for the work done in a time: price times run time.
    pub cheapest_work: Option<Choice>,
}

/// A curve and what follows from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanPart {
    /// The curve.
    #[serde(flatten)]
    pub curve: PlanCurve,
    /// What follows from it.
    pub answers: Answers,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// The machine.
    pub machine: String,
    /// The program.
    pub workload: String,
    /// The fast memory.
    pub fast_tier: String,
    /// The slow memory.
    pub slow_tier: String,
    /// The size in which memory is placed: in JSON in bytes, as all sizes are.
    #[serde(serialize_with = "in_bytes")]
    pub page_size: PageSize,
    /// Accesses that were measured.
    pub accesses: u64,
    /// Memory that the program touches, page tables included.
    pub footprint: Bytes,
    /// The accepted slowdown.
    pub slowdown: f64,
    /// Time in fast memory alone.
    pub fast_time: Nanos,
    /// Slowdown in slow memory alone, if that was simulated.
    pub all_slow: Option<f64>,
    /// What one fault is taken to cost, item by item, with a paged memory.
    pub fault: Option<FaultCost>,
    /// The exact curve, then the policies'.
    pub parts: Vec<PlanPart>,
    /// What a GiB of each costs.
    pub prices: Option<[f64; 2]>,
    /// How far off such plans are on other inputs, where that is measured.
    pub error: Option<PlanError>,
    /// What was read, where the program's accesses come from a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Summary>,
}

/// Writes a size in bytes; by itself it is written by name.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes it so
fn in_bytes<S: Serializer>(size: &PageSize, to: S) -> Result<S::Ok, S::Error> {
    size.bytes().serialize(to)
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct PlanProgress {
    /// Simulations that ended.
    pub done: usize,
    /// Simulations that are expected at most.
    pub total: usize,
    /// Accesses that the first simulation is through with.
    pub accesses: u64,
}

/// Answers how much fast memory a program needs.
pub fn plan(
    config: &PlanConfig,
    workload: &Workload<'_>,
    progress: &(dyn Fn(PlanProgress) + Sync),
) -> Result<PlanReport, SimError> {
    let machine = &config.base.machine;
    if config.slow == 0 || config.slow >= machine.tiers.len() {
        let message = format!("`{}` has no slower memory of this number", machine.name);
        return Err(SimError::parameter("tier", message));
    }
    if !(config.slowdown >= 0.0 && config.slowdown.is_finite()) {
        return Err(SimError::parameter("slowdown", "must be zero or more"));
    }
    if config.prices.is_some_and(|prices| prices.iter().any(|p| !(*p > 0.0 && p.is_finite()))) {
        return Err(SimError::parameter("price", "must be above zero"));
    }
    if config.budget.is_some() && config.prices.is_none() {
        return Err(SimError::parameter("budget", "needs the prices of both memories"));
    }
    if is_used_in_place(&machine.tiers[config.slow]) {
        in_place::plan(config, workload, progress)
    } else {
        paged::plan(config, workload, progress)
    }
}

/// Whether programs use a memory in place, so that policies for it are simulated; from any other
/// pages have to be brought in.
pub fn is_used_in_place(tier: &TierFile) -> bool {
    Device::serves(tier)
}

impl PlanConfig {
    /// What fast and slow memory together cost.
    fn price(&self, fast: Bytes, slow: Bytes) -> Option<f64> {
        let gib = Bytes::gib(1).as_f64();
        self.prices.map(|[f, s]| (fast.as_f64() * f + slow.as_f64() * s) / gib)
    }

    /// A curve with what follows from it.
    fn part(&self, curve: PlanCurve, footprint: Bytes) -> PlanPart {
        let choice = |point: &Point| {
            let slow = Bytes(footprint.get().saturating_sub(point.fast.get()));
            Choice {
                fast: point.fast,
                slow,
                slowdown: point.slowdown,
                price: self.price(point.fast, slow),
            }
        };
        let all = || curve.points.iter().map(choice);
        let by = |a: f64, b: f64| a.total_cmp(&b);
        let answers = Answers {
            smallest: curve.smallest(self.slowdown).map(choice),
            knee: knee(&curve.points).map(choice),
            within_budget: self.budget.and_then(|budget| {
                all()
                    .filter(|choice| choice.price.is_some_and(|price| price <= budget))
                    .min_by(|a, b| by(a.slowdown, b.slowdown).then(a.fast.cmp(&b.fast)))
            }),
            cheapest_work: self.prices.and_then(|_| {
                let cost = |c: &Choice| c.price.unwrap_or(f64::MAX) * (1.0 + c.slowdown);
                all().min_by(|a, b| by(cost(a), cost(b)))
            }),
        };
        PlanPart { curve, answers }
    }
}
