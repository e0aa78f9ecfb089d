//! What to simulate access by access, and the run itself.

use std::time::Instant;

use rand_xoshiro::rand_core::SeedableRng;
use terrace_core::{Bytes, MAX_TIERS, Machine, Nanos, PageSize, Plan, TierId};
use terrace_economics::{Calibration, Economist, Mode};
use terrace_policy::{Brain, Policy, PolicyName};

use super::lookahead::Ahead;
use super::machine::ExactMachine;
use super::migration::Mover;
use super::policy_runtime::{PolicyRuntime, TierRates};
use super::report::ExactReport;
use super::schedule::Schedule;
use super::source::Source;
use super::threads::Threads;
use super::tiers::TierCounts;
use super::tlb_counts::{MissCounters, TlbCounting};
use crate::analytic::config::SimPolicy;
use crate::analytic::device::Device;
use crate::analytic::migration::MigrationConfig;
use crate::analytic::sampler::{Sampler, SamplerConfig};
use crate::error::SimError;
use crate::workload::SimRng;

/// What to simulate.
#[derive(Clone, Debug)]
pub struct ExactConfig {
    /// The machine; it needs its part `detail`.
    pub machine: Machine,
    /// What decides where pages lie.
    pub policy: SimPolicy,
    /// What the economist does with its opinion.
    pub economist: Mode,
    /// Cores in use; threads run on them by their number.
    pub cores: usize,
    /// Size of pages where a mapping has room for them.
    pub page_size: PageSize,
    /// The hardware sampler.
    pub sampler: SamplerConfig,
    /// The migration engine.
    pub migration: MigrationConfig,
    /// Misses counted beside TLB entries, in place of the sampler.
    pub tlb_counting: Option<TlbCounting>,
    /// What the fastest tier holds, if not what the machine file says.
    pub fast: Option<Bytes>,
    /// Accesses before anything is measured.
    pub warm_up: u64,
    /// Where all randomness comes from.
    pub seed: u64,
}

impl ExactConfig {
    /// A simulation on one core with base pages.
    pub fn new(machine: Machine, policy: SimPolicy) -> Self {
        let counts = policy == SimPolicy::Policy(PolicyName::Hscc);
        Self {
            machine,
            policy,
            tlb_counting: counts.then(TlbCounting::kindle),
            economist: Mode::Shadow,
            cores: 1,
            page_size: PageSize::Base,
            sampler: SamplerConfig::hemem(),
            migration: MigrationConfig::hemem(),
            fast: None,
            warm_up: 0,
            seed: 1,
        }
    }
}

impl ExactMachine {
    /// Sets a machine up.
    pub fn new(config: &ExactConfig) -> Result<Self, SimError> {
        let policy = match config.policy {
            SimPolicy::Policy(name) => Some(name.build()),
            SimPolicy::Custom(name) => {
                let message = format!("`{name}` was not handed over");
                return Err(SimError::parameter("policy", message));
            }
            // `check` refuses Memory Mode.
            SimPolicy::AllDram | SimPolicy::AllSlow | SimPolicy::MemoryMode => None,
        };
        Self::with_policy(config, policy)
    }

    /// What is wrong with a configuration.
    pub fn check(config: &ExactConfig) -> Result<(), SimError> {
        let machine = &config.machine;
        crate::machines::refuse_dram_cache(machine)?;
        crate::machines::refuse_too_large(machine, config.fast)?;
        if let Some(tier) = machine.tiers.iter().find(|tier| !Device::serves(tier)) {
            let message = format!(
                "tier `{}` of `{}` is not byte-addressable; the simulator has such tiers only",
                tier.name, machine.name
            );
            return Err(SimError::parameter("machine", message));
        }
        if config.cores == 0 || config.cores > machine.cpu.cores.value as usize {
            let message = format!(
                "must be 1 to {}, the cores of `{}`",
                machine.cpu.cores.value, machine.name
            );
            return Err(SimError::parameter("cores", message));
        }
        if machine.detail.is_none() {
            return Err(super::machine::no_detail(machine));
        }
        if config.policy == SimPolicy::MemoryMode {
            let message = "memory-mode has no model of single accesses yet";
            return Err(SimError::parameter("policy", message));
        }
        Ok(())
    }

    /// The same with a policy of one's own in place of the configured one.
    pub fn with_policy(
        config: &ExactConfig,
        policy: Option<Box<dyn Policy>>,
    ) -> Result<Self, SimError> {
        Self::check(config)?;
        let machine = &config.machine;
        let mut capacities: Vec<Bytes> = machine.tiers.iter().map(|t| t.capacity.value).collect();
        if let Some(fast) = config.fast {
            capacities[0] = fast;
        }
        if config.policy == SimPolicy::AllDram && policy.is_none() {
            capacities[0] = capacities.iter().copied().sum();
        }
        let fixed = match config.policy {
            SimPolicy::AllSlow => TierId(machine.tiers.len() as u8 - 1),
            _ => TierId::FASTEST,
        };
        let brain = policy.map(|policy| {
            let calibration = Calibration::from_machine(machine);
            Brain::new(policy, Economist::new(config.economist, calibration))
        });
        let needs = brain.as_ref().map(Brain::needs);
        let mut rng = SimRng::seed_from_u64(config.seed);
        let (sampler, mut counters) = Sampler::new(&config.sampler, config.cores, &mut rng);
        let samples_wanted =
            needs.is_some_and(|needs| needs.samples) && config.tlb_counting.is_none();
        if !samples_wanted {
            counters = Sampler::off(config.cores);
        }
        let tick = needs.and_then(|needs| needs.tick);
        let runtime = PolicyRuntime {
            brain,
            on_decisions: None,
            fixed,
            samples_wanted,
            sampler,
            sampled_until: 0.0,
            costs: machine.costs.clone(),
            mover: Mover::new(config.migration),
            faults: super::page_fault::FaultCosts::default(),
            page_size: config.page_size,
            tick,
            next_tick: tick.unwrap_or(Nanos::ZERO),
            ticks: 0,
            plan: Plan::new(),
            samples: Vec::new(),
            bases: Vec::new(),
            base_pages: needs.is_some_and(|needs| needs.base_pages),
            before: [TierCounts::default(); MAX_TIERS],
            before_at: Nanos::ZERO,
            rates: [TierRates::default(); MAX_TIERS],
            cores: machine.cpu.cores.value,
            tlb_counts: config.tlb_counting.map(MissCounters::new),
            pinned: (0, 0),
        };
        Self::build(machine, config.cores, runtime, counters, &capacities)
    }
}

/// Runs a source to its end.
pub fn simulate(
    config: &ExactConfig,
    source: &mut dyn Source,
    progress: &mut dyn FnMut(u64, Nanos),
) -> Result<ExactReport, SimError> {
    let mut machine = ExactMachine::new(config)?;
    run(&mut machine, config, source, progress)
}

/// Runs a source to its end on a machine that was set up before.
pub fn run(
    machine: &mut ExactMachine,
    config: &ExactConfig,
    source: &mut dyn Source,
    progress: &mut dyn FnMut(u64, Nanos),
) -> Result<ExactReport, SimError> {
    let workload = source.describe();
    let begun = Instant::now();
    let cores = machine.cores.len();
    let lines = config.machine.cpu.llc.value.get() / 64;
    let ahead = machine.wants_future().then(|| Ahead::new(cores, lines));
    let threads = Threads::new(&mut *source, cores, ahead);
    let mut schedule = Schedule::new(threads, cores, config.warm_up);
    let mut reported = 0u64;
    // Without a warm-up the first turn counts, too.
    let mut warm = (config.warm_up == 0).then(|| machine.snapshot());
    machine.run_all(&mut schedule, &mut |machine| {
        machine.pass_timeline();
        let total = machine.accesses();
        if warm.is_none() && total >= config.warm_up {
            warm = Some(machine.snapshot());
            if let Some(profile) = &mut machine.profile {
                profile.clear();
            }
        }
        if total - reported > 1 << 20 {
            reported = total;
            progress(total, machine.now());
        }
    })?;
    let slept = schedule.slept();
    drop(schedule);
    let total = machine.accesses();
    let warm = warm.unwrap_or_else(|| machine.snapshot());
    let end = machine.finish();
    let mut report = machine.report(config, workload, &warm, end, total, begun.elapsed());
    report.slept = slept;
    report.input = source.summary();
    Ok(report)
}
