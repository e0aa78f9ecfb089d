//! What came of a simulation.

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::Value;
use terrace_core::{ActionClass, Bytes, BytesPerSecond, Nanos, Pages, PerSecond};
use terrace_economics::account::{benefit_is_observed, harm_is_observed};
use terrace_economics::{Account, Economist};
use terrace_policy::Footprint;

use crate::analytic::config::{Phases, SimPolicy};
use crate::analytic::migration::{MigrationConfig, MigrationCounts};
use crate::analytic::sampler::{SampleCounts, SamplerConfig};

/// One measured run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RunResult {
    /// Accesses of all threads.
    pub accesses: u64,
    /// Simulated time.
    pub time: Nanos,
    /// Accesses a second.
    pub throughput: PerSecond,
}

/// What one tier did while measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierReport {
    /// The tier.
    pub name: String,
    /// What it holds.
    pub capacity: Bytes,
    /// Pages that lie in it at the end.
    pub pages: Pages,
    /// Accesses that it served, as a share of those that missed the caches.
    pub share: f64,
    /// Mean latency of the loads that it served, under load.
    pub latency: Nanos,
    /// Bytes that the device read for the program, whole units of its
    /// granularity; migration not included.
    pub read: Bytes,
    /// Bytes that the device wrote for the program.
    pub written: Bytes,
    /// Mean bandwidth of both.
    pub bandwidth: BytesPerSecond,
    /// Mean share of the device's time in use, migration included.
    pub load: f64,
}

/// One second of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SeriesPoint {
    /// Its end, from the begin of the simulation.
    pub at: Nanos,
    /// Accesses a second in it.
    pub throughput: PerSecond,
    /// Of the accesses that missed the caches, the share that the fastest tier served.
    pub fast_share: f64,
    /// Bytes migrated in it.
    pub migrated: Bytes,
}

/// The economist's account of one class of action. Written with a null for what nobody observes of the
/// class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassAccount {
    /// The class.
    pub class: ActionClass,
    /// Its account.
    pub account: Account,
}

impl Serialize for ClassAccount {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written {
            class: ActionClass,
            #[serde(flatten)]
            account: Value,
        }
        let class = self.class;
        let mut account = serde_json::to_value(self.account).map_err(S::Error::custom)?;
        account["unfinished"] = self.account.unfinished().into();
        for (field, is_observed) in [
            ("realised_benefit", benefit_is_observed(class)),
            ("realised_harm", harm_is_observed(class)),
        ] {
            if !is_observed {
                account[field] = Value::Null;
            }
        }
        Written { class, account }.serialize(to)
    }
}

/// Memory of the policy's own state.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FootprintReport {
    /// All of it.
    pub bytes: Bytes,
    /// For each page that it is about.
    pub bytes_per_page: f64,
}

impl ClassAccount {
    /// The accounts of classes that saw a proposal.
    pub fn all(economist: &Economist) -> Vec<Self> {
        ActionClass::ALL
            .into_iter()
            .map(|class| Self { class, account: *economist.account(class) })
            .filter(|c| c.account.proposed > 0)
            .collect()
    }
}

impl From<Footprint> for FootprintReport {
    fn from(footprint: Footprint) -> Self {
        Self { bytes: footprint.bytes, bytes_per_page: footprint.bytes_per_page() }
    }
}

/// What came of a simulation.
///
/// As many fields as there are figures: it is what `--json` prints, flat for who reads it.
#[derive(Clone, Debug, Serialize)]
pub struct SimReport {
    /// Version of this structure.
    pub schema: u32,
    /// The machine.
    pub machine: String,
    /// The workload, with its parameters.
    pub workload: String,
    /// What decided where pages lie.
    pub policy: SimPolicy,
    /// Where the randomness came from.
    pub seed: u64,
    /// Real accesses that each simulated access stood for.
    pub scale: u32,
    /// Warm-up and measured runs.
    pub phases: Phases,
    /// The sampler's parameters.
    pub sampler: SamplerConfig,
    /// The migration engine's parameters.
    pub migration: MigrationConfig,
    /// Mean throughput of the measured runs.
    pub throughput: PerSecond,
    /// Standard deviation of the runs' throughputs; zero for one run.
    pub spread: PerSecond,
    /// Each measured run.
    pub runs: Vec<RunResult>,
    /// Simulated time, warm-up included.
    pub time: Nanos,
    /// Accesses that hit the last-level cache, as a share of all, while measured.
    pub llc_hit_ratio: f64,
    /// In Memory Mode: misses of the processor's caches that hit DRAM, as a share.
    pub memory_mode_hit_ratio: Option<f64>,
    /// What each tier did.
    pub tiers: Vec<TierReport>,
    /// Migration, warm-up included.
    pub migrated: MigrationCounts,
    /// Migration while measured.
    pub migrated_measured: MigrationCounts,
    /// Samples, warm-up included.
    pub samples: SampleCounts,
    /// Throughput by the second.
    pub series: Vec<SeriesPoint>,
    /// The economist's accounts, of classes that saw a proposal.
    pub accounts: Vec<ClassAccount>,
    /// Memory of the policy's own state; `None` without a policy.
    pub footprint: Option<FootprintReport>,
    /// Accesses that were simulated one by one.
    pub simulated_accesses: u64,
    /// How many of them a second of this computer's time. The only figure that
    /// differs from one computer to another.
    pub host_speed: PerSecond,
}

impl SimReport {
    /// Mean throughput in billions of accesses a second.
    pub fn gups(&self) -> f64 {
        self.throughput.get() / 1e9
    }
}

/// Mean and standard deviation.
pub(crate) fn mean_and_spread(runs: &[RunResult]) -> (PerSecond, PerSecond) {
    let n = runs.len() as f64;
    if runs.is_empty() {
        return (PerSecond::ZERO, PerSecond::ZERO);
    }
    let mean = runs.iter().map(|r| r.throughput.get()).sum::<f64>() / n;
    let variance = if runs.len() < 2 {
        0.0
    } else {
        runs.iter().map(|r| (r.throughput.get() - mean).powi(2)).sum::<f64>() / (n - 1.0)
    };
    (PerSecond(mean), PerSecond(variance.sqrt()))
}
