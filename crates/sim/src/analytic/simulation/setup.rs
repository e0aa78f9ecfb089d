//! Setting a simulation up.

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_core::{Access, Bytes, FaultKind, Frequency, MAX_TIERS, Machine, Nanos, Plan, TierId};
use terrace_economics::{Calibration, Economist};
use terrace_policy::{Brain, Policy};

use super::{DEFAULT_TICK, Parameters, Second, Simulation, Sums};
use crate::analytic::balance::{Balance, Demand};
use crate::analytic::cache::hit_ratios;
use crate::analytic::config::{SimConfig, SimPolicy};
use crate::analytic::device::{Device, Traffic};
use crate::analytic::listeners::Listeners;
use crate::analytic::memory_mode::MemoryMode;
use crate::analytic::migration::MigrationEngine;
use crate::analytic::observe::AccessObserver;
use crate::analytic::pages::Pages;
use crate::analytic::sampler::Sampler;
use crate::analytic::threads::Thread;
use crate::error::SimError;
use crate::host::has_room;
use crate::workload::{SimRng, Workload};

impl Simulation {
    /// Sets the machine up, maps the workload's memory and places its pages in
    /// the order of their addresses, as `MAP_POPULATE` does.
    pub fn new(config: SimConfig) -> Result<Self, SimError> {
        Self::heard(config, Listeners::default())
    }

    /// The same, with listeners from the first event on.
    pub fn heard(config: SimConfig, listeners: Listeners) -> Result<Self, SimError> {
        let policy = match config.policy {
            SimPolicy::Policy(name) => Some(name.build()),
            SimPolicy::Custom(name) => {
                let message = format!("`{name}` was not handed over");
                return Err(SimError::parameter("policy", message));
            }
            _ => None,
        };
        Self::set_up(config, policy, listeners)
    }

    /// The same with a policy of one's own in place of the configured one.
    pub fn with_policy(mut config: SimConfig, policy: Box<dyn Policy>) -> Result<Self, SimError> {
        config.policy = SimPolicy::Custom(policy.name());
        Self::set_up(config, Some(policy), Listeners::default())
    }

    fn set_up(
        config: SimConfig,
        own: Option<Box<dyn Policy>>,
        listeners: Listeners,
    ) -> Result<Self, SimError> {
        let SimConfig { mut machine, workload, policy, .. } = config;
        check(&machine, workload.as_ref(), config.scale)?;
        config.sampler.check()?;
        let regions = workload.regions();
        let needed: Bytes = regions.iter().map(terrace_core::Region::bytes).sum();
        if policy == SimPolicy::AllDram {
            let dram = &mut machine.tiers[0].capacity.value;
            *dram = (*dram).max(needed);
        }
        let capacity: Vec<Bytes> = machine.tiers.iter().map(|t| t.capacity.value).collect();
        fits(&machine.name, needed, &capacity, policy)?;
        let slowest = capacity.len() - 1;
        // Where it lies, and when it was last looked at.
        let pages: u64 = regions.iter().map(|region| u64::from(region.pages)).sum();
        has_room("working set", Bytes(pages * 16), "what is known of its pages")?;

        let devices: Vec<Device> = machine.tiers.iter().map(Device::new).collect();
        let mut rng = SimRng::seed_from_u64(config.seed);
        let threads = workload.threads();
        let (sampler, mut counters) = Sampler::new(&config.sampler, threads, &mut rng);
        let brain = own.map(|policy| {
            let calibration = Calibration::from_machine(&machine);
            let mut brain = Brain::new(policy, Economist::new(config.economist, calibration));
            brain.record(listeners.events);
            brain
        });
        if !brain.as_ref().is_some_and(|b| b.needs().samples) {
            counters = Sampler::off(threads);
        }
        let mut pages = Pages::new(&regions, &capacity);
        let memory_mode = (policy == SimPolicy::MemoryMode)
            .then(|| {
                MemoryMode::new(
                    pages.len() as u32,
                    regions[0].page_size,
                    capacity[0],
                    capacity[slowest],
                    config.scale,
                    config.frames,
                    &mut rng,
                )
            })
            .transpose()?;
        // Where threads find their pages at first; without a policy, that stays true.
        let first = if policy == SimPolicy::AllSlow { slowest } else { 0 };
        if brain.is_none() {
            let tier = if policy == SimPolicy::AllDram { 0 } else { slowest };
            (0..pages.len() as u32).for_each(|page| pages.put(page, TierId(tier as u8)));
        }

        let count = threads;
        let llc = hit_ratios(machine.cpu.llc.value, &workload.classes());
        let threads = counters
            .into_iter()
            .map(|counters| Thread {
                rng: SimRng::seed_from_u64(rng.next_u64()),
                counters,
                clock: 0.0,
                demand: first_guess(&machine, workload.as_ref(), first),
                accesses: 0,
                quota: u64::MAX,
                finished: 0.0,
            })
            .collect();
        let tick = brain.as_ref().and_then(|b| b.needs().tick).unwrap_or(DEFAULT_TICK);
        let engine = MigrationEngine::new(
            config.migration,
            &machine.costs,
            machine.cpu.clock.value,
            SimRng::seed_from_u64(rng.next_u64()),
        );
        let rng = SimRng::seed_from_u64(rng.next_u64());
        let observer = AccessObserver::new(pages.len(), rng);
        let mut simulation = Self {
            machine,
            policy,
            config: Parameters {
                phases: config.phases,
                sampler: config.sampler,
                migration: config.migration,
                scale: config.scale,
                seed: config.seed,
            },
            devices,
            workload,
            pages,
            threads,
            memory_mode,
            brain,
            sampler,
            observer,
            engine,
            on_decisions: listeners.decisions,
            balance: Balance::default(),
            llc_hits: llc.iter().map(|ratio| (ratio * 2f64.powi(32)) as u64).collect(),
            tick,
            tick_end: Nanos::ZERO,
            quantum: tick,
            now: Nanos::ZERO,
            accesses: 0,
            traffic: [Traffic::default(); MAX_TIERS],
            served: [0.0; MAX_TIERS],
            rates: vec![0.0; count],
            foresight_due: Nanos::ZERO,
            sums: Sums::default(),
            plan: Plan::new(),
            samples: Vec::new(),
            bases: Vec::new(),
            done: Vec::new(),
            series: Vec::new(),
            second: Second::default(),
        };
        simulation.populate()?;
        Ok(simulation)
    }

    /// Asks the policy where each page goes.
    fn populate(&mut self) -> Result<(), SimError> {
        let Some(brain) = &mut self.brain else { return Ok(()) };
        for region in self.pages.regions() {
            brain.alloc(region);
        }
        for page in 0..self.pages.len() as u32 {
            let telemetry = self.telemetry();
            let name = self.pages.page_ref(page);
            let kind = FaultKind::FirstTouch(Access::Write);
            let Some(brain) = &mut self.brain else { return Ok(()) };
            let (tier, asked) = brain.place(name, self.pages.size(page), kind, &telemetry);
            if let (true, Some(on_decisions)) = (asked, &mut self.on_decisions) {
                on_decisions(brain.decisions());
            }
            if tier.index() >= self.devices.len()
                || !self.pages.has_room(tier, self.pages.size(page))
            {
                let message = format!("put page {name} into tier {}, which has no room", tier.0);
                return Err(SimError::parameter("policy", message));
            }
            self.pages.put(page, tier);
        }
        Ok(())
    }
}

/// Refuses what cannot be simulated.
fn check(machine: &Machine, workload: &dyn Workload, scale: u32) -> Result<(), SimError> {
    crate::machines::refuse_dram_cache(machine)?;
    if let Some(tier) = machine.tiers.iter().find(|tier| tier.memory_file.is_some()) {
        let message = format!(
            "tier `{}` of `{}` is timed by the commands of a memory; only simulations of single \
             accesses (--trace, --algorithm, a program) do that",
            tier.name, machine.name
        );
        return Err(SimError::parameter("machine", message));
    }
    if let Some(tier) = machine.tiers.iter().find(|t| !Device::serves(t)) {
        let message = format!(
            "tier `{}` of `{}` is not byte-addressable; the simulator has such tiers only",
            tier.name, machine.name
        );
        return Err(SimError::parameter("machine", message));
    }
    let cores = machine.cpu.cores.value;
    if workload.threads() > cores as usize {
        let message =
            format!("`{}` has {cores} cores for {} threads", machine.name, workload.threads());
        return Err(SimError::parameter("threads", message));
    }
    if scale == 0 {
        return Err(SimError::parameter("scale", "must be at least 1"));
    }
    if workload.regions().windows(2).any(|w| w[0].page_size != w[1].page_size) {
        return Err(SimError::parameter("workload", "regions have different page sizes"));
    }
    Ok(())
}

/// Refuses memory that does not fit where the policy would put it.
fn fits(
    machine: &str,
    needed: Bytes,
    capacity: &[Bytes],
    policy: SimPolicy,
) -> Result<(), SimError> {
    let slowest = capacity.len() - 1;
    let available = match policy {
        SimPolicy::Policy(_) | SimPolicy::Custom(_) => capacity.iter().copied().sum(),
        SimPolicy::AllDram => capacity[0],
        SimPolicy::MemoryMode | SimPolicy::AllSlow => capacity[slowest],
    };
    if needed > available {
        return Err(SimError::DoesNotFit { needed, available, machine: machine.to_owned() });
    }
    Ok(())
}

/// Processor time of an access, in nanoseconds.
pub(super) fn compute(machine: &Machine, workload: &dyn Workload) -> f64 {
    let clock: Frequency = machine.cpu.clock.value;
    workload.compute().as_f64() / clock.get() * 1e9
}

/// Accesses a thread has in flight: what the program allows, up to what the
/// core can hold.
pub(super) fn in_flight(machine: &Machine, workload: &dyn Workload) -> f64 {
    let slots = machine.cpu.miss_slots.value;
    workload.in_flight().map_or(slots, |n| n.min(slots))
}

/// What threads demand before anything was observed: everything from one tier. The first
/// quanta put it right.
fn first_guess(machine: &Machine, workload: &dyn Workload, tier: usize) -> Demand {
    let mut demand = Demand {
        fixed: compute(machine, workload),
        in_flight: in_flight(machine, workload),
        issue: compute(machine, workload),
        ..Demand::default()
    };
    demand.visits[tier] = 1.0;
    demand
}
