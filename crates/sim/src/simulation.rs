//! The world: time, ticks, and what is measured.
//!
//! Time passes in quanta. In each, the balance of latency and load is found,
//! every thread runs to the quantum's end at these latencies, the migration
//! engine works through its queue, and the sampler's buffers are drained into
//! the policy. At the end of each tick the policy plans.

use std::time::Instant;

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_core::{
    Access, Action, ActionClass, Bytes, BytesPerSecond, Done, Event, FaultKind, Frequency,
    MAX_TIERS, Machine, Nanos, Outcome, Pages as PageCount, PerSecond, Plan, Sample, SampleSource,
    Telemetry, TierId, TierTelemetry,
};
use terrace_economics::{Calibration, Economist};
use terrace_policy::Brain;

use crate::balance::{Balance, Demand};
use crate::cache::hit_ratios;
use crate::config::{SimConfig, SimPolicy, Span};
use crate::device::{Device, Traffic};
use crate::error::SimError;
use crate::memory_mode::MemoryMode;
use crate::migration::{MigrationEngine, Surroundings};
use crate::pages::Pages;
use crate::recorder::Recorder;
use crate::report::{
    ClassAccount, FootprintReport, RunResult, SeriesPoint, SimReport, TierReport, mean_and_spread,
};
use crate::sampler::Sampler;
use crate::threads::{Memory, Setting, Tally, Thread};
use crate::workload::{SimRng, Workload};

/// Simulated accesses that a quantum should hold: enough for its mix of tiers
/// to be known, and to hide the cost of balancing.
const QUANTUM_ACCESSES: f64 = 16_384.0;
/// The shortest quantum, in nanoseconds.
const SHORTEST_QUANTUM: f64 = 50_000.0;
/// How often quanta are grouped where no policy ticks.
const DEFAULT_TICK: Nanos = Nanos::millis(10);
/// The distance of the series' points.
const SERIES: Nanos = Nanos::SECOND;

/// How far a simulation has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Simulated time.
    pub now: Nanos,
    /// Accesses so far.
    pub accesses: u64,
    /// Share of the whole, 0 to 1; an estimate where spans mix.
    pub fraction: f64,
    /// Accesses a second in the last second.
    pub throughput: PerSecond,
}

/// Sums over an interval.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    tally: Tally,
    /// Time that accesses waited for each tier.
    waited: [f64; MAX_TIERS],
    traffic: [Traffic; MAX_TIERS],
    /// Load of each device, times time.
    load: [f64; MAX_TIERS],
    time: f64,
}

/// A machine with a program on it.
pub struct Simulation {
    machine: Machine,
    policy: SimPolicy,
    config: Parameters,
    devices: Vec<Device>,
    workload: Box<dyn Workload>,
    pages: Pages,
    threads: Vec<Thread>,
    memory_mode: Option<MemoryMode>,
    brain: Option<Brain>,
    sampler: Sampler,
    engine: MigrationEngine,
    recorder: Option<Box<dyn Recorder>>,
    balance: Balance,
    llc_hits: Vec<u64>,
    tick: Nanos,
    now: Nanos,
    accesses: u64,
    /// Traffic of the last quantum, by time.
    traffic: [Traffic; MAX_TIERS],
    served: [f64; MAX_TIERS],
    sums: Sums,
    plan: Plan,
    samples: Vec<Sample>,
    done: Vec<Done>,
    series: Vec<SeriesPoint>,
    second: Second,
}

/// The part of the configuration that is reported as it was given.
struct Parameters {
    phases: crate::config::Phases,
    sampler: crate::sampler::SamplerConfig,
    migration: crate::migration::MigrationConfig,
    scale: u32,
    seed: u64,
}

/// What the series' current point has collected.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    begin: Nanos,
    accesses: u64,
    misses: u64,
    fast: u64,
    moved: Bytes,
}

impl Simulation {
    /// Sets the machine up, maps the workload's memory and places its pages in
    /// the order of their addresses, as `MAP_POPULATE` does.
    pub fn new(config: SimConfig) -> Result<Self, SimError> {
        Self::with_recorder(config, None)
    }

    /// The same, with every event from the first on recorded.
    pub fn with_recorder(
        config: SimConfig,
        recorder: Option<Box<dyn Recorder>>,
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
        let slowest = machine.tiers.len() - 1;
        let capacity: Vec<Bytes> = machine.tiers.iter().map(|t| t.capacity.value).collect();
        let available = match policy {
            SimPolicy::Policy(_) => capacity.iter().copied().sum(),
            SimPolicy::AllDram => capacity[0],
            SimPolicy::MemoryMode | SimPolicy::AllSlow => capacity[slowest],
        };
        if needed > available {
            return Err(SimError::DoesNotFit { needed, available, machine: machine.name });
        }

        let devices: Vec<Device> = machine.tiers.iter().map(Device::new).collect();
        let mut rng = SimRng::seed_from_u64(config.seed);
        let threads = workload.threads();
        let (sampler, mut counters) = Sampler::new(&config.sampler, threads, &mut rng);
        let brain = match policy {
            SimPolicy::Policy(name) => {
                let calibration = Calibration::from_machine(&machine);
                Some(Brain::new(name.build(), Economist::new(config.economist, calibration)))
            }
            _ => None,
        };
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
        if brain.is_none() {
            let tier = if policy == SimPolicy::AllDram { 0 } else { slowest };
            (0..pages.len() as u32).for_each(|page| pages.put(page, TierId(tier as u8)));
        }

        let llc = hit_ratios(machine.cpu.llc.value, &workload.classes());
        let threads = counters
            .into_iter()
            .map(|counters| Thread {
                rng: SimRng::seed_from_u64(rng.next_u64()),
                counters,
                clock: 0.0,
                demand: first_guess(&machine, workload.as_ref()),
                accesses: 0,
            })
            .collect();
        let tick = brain.as_ref().and_then(|b| b.needs().tick).unwrap_or(DEFAULT_TICK);
        let engine = MigrationEngine::new(
            config.migration,
            &machine.costs,
            machine.cpu.clock.value,
            SimRng::seed_from_u64(rng.next_u64()),
        );
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
            engine,
            recorder,
            balance: Balance::default(),
            llc_hits: llc.iter().map(|ratio| (ratio * 2f64.powi(32)) as u64).collect(),
            tick,
            now: Nanos::ZERO,
            accesses: 0,
            traffic: [Traffic::default(); MAX_TIERS],
            served: [0.0; MAX_TIERS],
            sums: Sums::default(),
            plan: Plan::new(),
            samples: Vec::new(),
            done: Vec::new(),
            series: Vec::new(),
            second: Second::default(),
        };
        simulation.populate()?;
        Ok(simulation)
    }

    /// Where each page lies.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Simulated time so far.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Asks the policy where each page goes.
    fn populate(&mut self) -> Result<(), SimError> {
        let Some(brain) = &mut self.brain else { return Ok(()) };
        for region in self.pages.regions() {
            brain.alloc(region);
            if let Some(recorder) = &mut self.recorder {
                recorder.event(&Event::Alloc { region: *region });
            }
        }
        for page in 0..self.pages.len() as u32 {
            let telemetry = self.telemetry();
            let name = self.pages.page_ref(page);
            let kind = FaultKind::FirstTouch(Access::Write);
            if let Some(recorder) = &mut self.recorder {
                let telemetry = Box::new(telemetry);
                recorder.event(&Event::Fault { page: name, kind, telemetry });
            }
            let Some(brain) = &mut self.brain else { return Ok(()) };
            let tier = brain.fault(name, kind, &telemetry);
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

    /// The world as the policy sees it.
    fn telemetry(&self) -> Telemetry {
        let mut tiers = [TierTelemetry::default(); MAX_TIERS];
        for (index, device) in self.devices.iter().enumerate() {
            let tier = TierId(index as u8);
            let slowdown = self.balance.slowdown[index];
            tiers[index] = TierTelemetry {
                capacity: self.pages.capacity(tier),
                free: self.pages.free(tier),
                addressable: true,
                read_latency: Nanos::from_f64(device.read_latency() * slowdown),
                write_latency: Nanos::from_f64(device.write_latency() * slowdown),
                read_bandwidth: BytesPerSecond(self.traffic[index].read * 1e9),
                write_bandwidth: BytesPerSecond(self.traffic[index].write * 1e9),
                accesses: PerSecond(self.served[index] * 1e9),
            };
        }
        Telemetry {
            now: self.now,
            tier_count: self.devices.len() as u8,
            tiers,
            migrated: self.engine.counts.moved,
            migration_budget: self.engine.budget(self.tick),
            cpu_load: (self.threads.len() as f64 / f64::from(self.machine.cpu.cores.value))
                .min(1.0),
            sample_period: self.sampler.period(),
        }
    }

    /// How long a quantum of the next tick is.
    fn quantum(&self) -> Nanos {
        let latency = self.balance.latencies(&self.devices);
        let rate: f64 = self.threads.iter().map(|t| 1.0 / t.demand.interval(&latency)).sum();
        let wanted = QUANTUM_ACCESSES * f64::from(self.config.scale) / rate;
        let tick = self.tick.as_f64();
        let quanta = (tick / wanted.clamp(SHORTEST_QUANTUM.min(tick), tick)).ceil();
        Nanos((tick / quanta).ceil() as u64)
    }

    /// Lets the world run until `end`.
    fn advance(&mut self, end: Nanos) {
        let begin = self.now;
        let length = (end - begin).as_f64();
        let demands: Vec<Demand> = self.threads.iter().map(|t| t.demand).collect();
        let copies = self.engine.expected_copies(length, &self.balance);
        self.balance.settle(&self.devices, &demands, &copies);
        let latency = self.balance.latencies(&self.devices);

        let setting = Setting {
            devices: &self.devices,
            llc_hits: &self.llc_hits,
            llc_latency: self.machine.cpu.llc_latency.value.as_f64(),
            compute: compute(&self.machine, self.workload.as_ref()),
            in_flight: in_flight(&self.machine, self.workload.as_ref()),
            scale: f64::from(self.config.scale),
            now: begin,
        };
        let sample_cost = self.machine.costs.sample.value.as_f64();
        let mut total = Tally::default();
        let mut traffic = [Traffic::default(); MAX_TIERS];
        for (index, thread) in self.threads.iter_mut().enumerate() {
            let mut memory = match &mut self.memory_mode {
                Some(cache) => Memory::MemoryMode(cache),
                None => Memory::Tiers(&self.pages),
            };
            let tally = thread.run(
                index,
                end.as_f64(),
                &latency,
                &setting,
                &mut memory,
                self.workload.as_mut(),
                &mut self.sampler,
                sample_cost,
            );
            total.add(&tally);
            let bytes = tally.bytes(&setting, &memory);
            for tier in 0..self.devices.len() {
                traffic[tier].read += bytes[tier].read;
                traffic[tier].write += bytes[tier].write;
            }
        }
        self.account(&total, &traffic, &latency, length);

        let rates: Vec<f64> =
            self.threads.iter().map(|t| 1.0 / t.demand.interval(&latency)).collect();
        self.done.clear();
        let mut around = Surroundings {
            pages: &mut self.pages,
            threads: &mut self.threads,
            workload: self.workload.as_ref(),
            balance: &self.balance,
            rates: &rates,
            now: begin,
        };
        self.engine.advance(end.as_f64(), &mut around, &mut self.done);
        self.now = end;
        self.deliver(length);
        self.extend_series(&total);
    }

    fn account(
        &mut self,
        total: &Tally,
        traffic: &[Traffic; MAX_TIERS],
        latency: &[f64; MAX_TIERS],
        length: f64,
    ) {
        let scale = f64::from(self.config.scale);
        self.accesses += total.accesses * u64::from(self.config.scale);
        self.sums.tally.add(total);
        self.sums.time += length;
        for tier in 0..self.devices.len() {
            let served = total.misses[tier] as f64 * scale;
            self.sums.waited[tier] += served * latency[tier];
            self.sums.traffic[tier].read += traffic[tier].read;
            self.sums.traffic[tier].write += traffic[tier].write;
            self.sums.load[tier] += self.balance.load[tier] * length;
            self.traffic[tier] =
                Traffic { read: traffic[tier].read / length, write: traffic[tier].write / length };
            self.served[tier] = served / length;
        }
    }

    /// Tells the policy what was sampled and what came to its end.
    fn deliver(&mut self, length: f64) {
        self.sampler.drain(length, &self.pages, &mut self.samples);
        if self.brain.is_none() {
            return;
        }
        if !self.samples.is_empty() {
            if let Some(recorder) = &mut self.recorder {
                recorder.event(&Event::Samples { samples: self.samples.clone() });
            }
            if let Some(brain) = &mut self.brain {
                brain.samples(&self.samples);
            }
        }
        let done = std::mem::take(&mut self.done);
        if !done.is_empty() {
            let telemetry = self.telemetry();
            for done in &done {
                self.report_done(done, &telemetry);
            }
        }
        self.done = done;
    }

    fn report_done(&mut self, done: &Done, telemetry: &Telemetry) {
        if let Some(recorder) = &mut self.recorder {
            recorder.event(&Event::Done { done: *done, telemetry: Box::new(*telemetry) });
        }
        if let Some(brain) = &mut self.brain {
            brain.done(done, telemetry);
        }
    }

    /// The policy's clock ticks.
    fn tick(&mut self) {
        self.engine.earn_budget(self.tick);
        let telemetry = self.telemetry();
        let Some(brain) = &mut self.brain else { return };
        if brain.needs().tick.is_none() {
            return;
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.event(&Event::Tick { telemetry: Box::new(telemetry) });
        }
        brain.tick(&telemetry, &mut self.plan);
        if let Some(recorder) = &mut self.recorder {
            recorder.decisions(brain.decisions());
        }
        let plan = std::mem::take(&mut self.plan);
        for proposal in plan.proposals() {
            let outcome = match proposal.action {
                Action::SetPeriod { source: SampleSource::Pmu, period } => {
                    self.sampler.set_period(period);
                    Some(Outcome::Completed {
                        cost: terrace_core::Cycles::ZERO,
                        moved: Bytes::ZERO,
                    })
                }
                Action::Throttle { limit } => {
                    self.engine.set_limit(limit);
                    Some(Outcome::Completed {
                        cost: terrace_core::Cycles::ZERO,
                        moved: Bytes::ZERO,
                    })
                }
                _ => self.engine.accept(proposal, &self.pages).err().map(Outcome::Aborted),
            };
            if let Some(outcome) = outcome {
                self.report_done(&Done { proposal: *proposal, outcome }, &telemetry);
            }
        }
        self.plan = plan;
    }

    fn extend_series(&mut self, total: &Tally) {
        let second = &mut self.second;
        second.accesses += total.accesses * u64::from(self.config.scale);
        second.fast += total.misses[0];
        second.misses += total.misses.iter().sum::<u64>();
        let length = self.now - second.begin;
        if length < SERIES {
            return;
        }
        let moved = self.engine.counts.moved;
        self.series.push(SeriesPoint {
            at: self.now,
            throughput: PerSecond::from_count(second.accesses as f64, length),
            fast_share: second.fast as f64 / second.misses.max(1) as f64,
            migrated: moved - second.moved,
        });
        self.second = Second { begin: self.now, moved, ..Second::default() };
    }

    /// Runs all phases. `progress` is told about every simulated second.
    pub fn run(mut self, progress: &mut dyn FnMut(&Progress)) -> SimReport {
        let started = Instant::now();
        let phases = self.config.phases;
        let spans: Vec<Span> =
            core::iter::once(phases.warm_up).chain((0..phases.runs).map(|_| phases.run)).collect();
        let mut runs = Vec::new();
        let mut phase = 0;
        let mut begin = (self.now, self.accesses);
        let mut warm_migration = self.engine.counts;
        'simulation: loop {
            let tick_end = self.now + self.tick;
            let quantum = self.quantum();
            while self.now < tick_end {
                // Phases end between quanta.
                while ended(spans[phase], self.now - begin.0, self.accesses - begin.1) {
                    let time = self.now - begin.0;
                    let accesses = self.accesses - begin.1;
                    if phase == 0 {
                        self.sums = Sums::default();
                        warm_migration = self.engine.counts;
                    } else {
                        let throughput = PerSecond::from_count(accesses as f64, time);
                        runs.push(RunResult { accesses, time, throughput });
                    }
                    begin = (self.now, self.accesses);
                    phase += 1;
                    if phase == spans.len() {
                        break 'simulation;
                    }
                }
                let seconds = self.series.len();
                self.advance((self.now + quantum).min(tick_end));
                if self.series.len() > seconds {
                    let within =
                        done_share(spans[phase], self.now - begin.0, self.accesses - begin.1);
                    progress(&Progress {
                        now: self.now,
                        accesses: self.accesses,
                        fraction: (phase as f64 + within) / spans.len() as f64,
                        throughput: self.series[seconds].throughput,
                    });
                }
            }
            self.tick();
        }
        self.report(runs, &warm_migration, started)
    }

    fn report(
        self,
        runs: Vec<RunResult>,
        warm: &crate::migration::MigrationCounts,
        started: Instant,
    ) -> SimReport {
        let elapsed = started.elapsed().as_secs_f64().max(1e-9);
        let simulated: u64 = self.threads.iter().map(|t| t.accesses).sum();
        let (throughput, spread) = mean_and_spread(&runs);
        let tally = &self.sums.tally;
        let misses: u64 = tally.misses.iter().sum();
        let (census, _) = self.pages.census();
        let scale = f64::from(self.config.scale);
        let tiers = self
            .machine
            .tiers
            .iter()
            .enumerate()
            .map(|(i, tier)| {
                let served = tally.misses[i] as f64;
                let traffic = self.sums.traffic[i];
                TierReport {
                    name: tier.name.clone(),
                    capacity: tier.capacity.value,
                    pages: PageCount(census[i]),
                    share: served / misses.max(1) as f64,
                    latency: Nanos::from_f64(self.sums.waited[i] / (served * scale).max(1.0)),
                    read: Bytes::from_f64(traffic.read),
                    written: Bytes::from_f64(traffic.write),
                    bandwidth: BytesPerSecond(
                        (traffic.read + traffic.write) / self.sums.time.max(1.0) * 1e9,
                    ),
                    load: self.sums.load[i] / self.sums.time.max(1.0),
                }
            })
            .collect();
        let accounts = self.brain.as_ref().map_or_else(Vec::new, |brain| {
            ActionClass::ALL
                .into_iter()
                .map(|class| ClassAccount {
                    class: class.name(),
                    account: *brain.economist().account(class),
                })
                .filter(|c| c.account.proposed > 0)
                .collect()
        });
        SimReport {
            schema: 1,
            machine: self.machine.name.clone(),
            workload: self.workload.describe(),
            policy: self.policy,
            seed: self.config.seed,
            scale: self.config.scale,
            phases: self.config.phases,
            sampler: self.config.sampler,
            migration: self.config.migration,
            throughput,
            spread,
            runs,
            time: self.now,
            llc_hit_ratio: tally.llc_hits as f64 / tally.accesses.max(1) as f64,
            memory_mode_hit_ratio: self
                .memory_mode
                .as_ref()
                .map(|_| tally.misses[0] as f64 / misses.max(1) as f64),
            tiers,
            migrated: self.engine.counts,
            migrated_measured: self.engine.counts.since(warm),
            samples: self.sampler.counts,
            series: self.series,
            accounts,
            footprint: self.brain.as_ref().map(|brain| {
                let footprint = brain.footprint();
                FootprintReport {
                    bytes: footprint.bytes,
                    bytes_per_page: footprint.bytes_per_page(),
                }
            }),
            simulated_accesses: simulated,
            host_speed: PerSecond(simulated as f64 / elapsed),
        }
    }
}

/// Refuses what cannot be simulated.
fn check(machine: &Machine, workload: &dyn Workload, scale: u32) -> Result<(), SimError> {
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

fn ended(span: Span, time: Nanos, accesses: u64) -> bool {
    match span {
        Span::Accesses(n) => accesses >= n,
        Span::Time(t) => time >= t,
    }
}

fn done_share(span: Span, time: Nanos, accesses: u64) -> f64 {
    let share = match span {
        Span::Accesses(n) => accesses as f64 / n.max(1) as f64,
        Span::Time(t) => time.as_f64() / t.as_f64().max(1.0),
    };
    share.min(1.0)
}

/// Processor time of an access, in nanoseconds.
fn compute(machine: &Machine, workload: &dyn Workload) -> f64 {
    let clock: Frequency = machine.cpu.clock.value;
    workload.compute().as_f64() / clock.get() * 1e9
}

/// Accesses a thread has in flight: what the program allows, up to what the
/// core can hold.
fn in_flight(machine: &Machine, workload: &dyn Workload) -> f64 {
    let slots = machine.cpu.miss_slots.value;
    workload.in_flight().map_or(slots, |n| n.min(slots))
}

/// What threads demand before anything was observed: everything from the
/// fastest tier. The first quanta put it right.
fn first_guess(machine: &Machine, workload: &dyn Workload) -> Demand {
    let mut demand = Demand {
        fixed: compute(machine, workload),
        in_flight: in_flight(machine, workload),
        issue: compute(machine, workload),
        ..Demand::default()
    };
    demand.visits[0] = 1.0;
    demand
}
