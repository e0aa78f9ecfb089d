//! The world: time, ticks, and what is measured.
//!
//! Time passes in quanta. In each, the balance of latency and load is found,
//! every thread runs to the quantum's end at these latencies, the migration
//! engine works through its queue, and the sampler's buffers are drained into
//! the policy. At the end of each tick the policy plans.

mod foresight;
mod setup;
mod summary;

use std::time::Instant;

use terrace_core::{
    Abort, Action, Bytes, BytesPerSecond, Cycles, Done, FaultKind, MAX_TIERS, Machine, Nanos,
    Outcome, PageRange, PerSecond, Plan, Proposal, Sample, SampleSource, Telemetry, TierId,
    TierTelemetry,
};
use terrace_policy::Brain;

use crate::analytic::balance::{Balance, Demand};
use crate::analytic::config::{Phases, SimPolicy, Span};
use crate::analytic::device::{Device, Traffic};
use crate::analytic::listeners::OnDecisions;
use crate::analytic::memory_mode::MemoryMode;
use crate::analytic::migration::{
    MigrationConfig, MigrationContext, MigrationCounts, MigrationEngine,
};
use crate::analytic::observe::{AccessObserver, Hint, Program};
use crate::analytic::pages::Pages;
use crate::analytic::report::{ClassAccount, RunResult, SeriesPoint, SimReport};
use crate::analytic::sampler::{SampleCounts, Sampler, SamplerConfig};
use crate::analytic::threads::{Backing, Setting, Tally, Thread};
use crate::workload::Workload;
use setup::{compute, in_flight};

/// Simulated accesses that a quantum should hold: enough for its mix of tiers
/// to be known, and to hide the cost of balancing.
const QUANTUM_ACCESSES: f64 = 16_384.0;
/// The shortest quantum, in nanoseconds.
const SHORTEST_QUANTUM: f64 = 50_000.0;
/// Simulated accesses of a thread in Memory Mode before the next one's turn.
const TURN: f64 = 8.0;
/// How often quanta are grouped where no policy ticks.
const DEFAULT_TICK: Nanos = Nanos::millis(500);
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
///
/// More than twenty fields: parts that a quantum goes through one after the other, each used in
/// one place, and the clock; grouping them would name steps and not things.
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
    observer: AccessObserver,
    engine: MigrationEngine,
    on_decisions: Option<OnDecisions>,
    balance: Balance,
    llc_hits: Vec<u64>,
    tick: Nanos,
    /// When the tick under way ends, and how long its quanta are.
    tick_end: Nanos,
    quantum: Nanos,
    now: Nanos,
    accesses: u64,
    /// Traffic of the last quantum, by time.
    traffic: [Traffic; MAX_TIERS],
    served: [f64; MAX_TIERS],
    /// Real accesses of each thread in a nanosecond, in the last quantum.
    rates: Vec<f64>,
    /// When the policy is told next what is to come.
    foresight_due: Nanos,
    sums: Sums,
    plan: Plan,
    samples: Vec<Sample>,
    bases: Vec<u16>,
    done: Vec<Done>,
    series: Vec<SeriesPoint>,
    second: Second,
}

/// The part of the configuration that is reported as it was given.
struct Parameters {
    phases: Phases,
    sampler: SamplerConfig,
    migration: MigrationConfig,
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
    /// Where each page lies.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Simulated time so far.
    pub fn now(&self) -> Nanos {
        self.now
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
            cpu_load: (self.active().count() as f64 / f64::from(self.machine.cpu.cores.value))
                .min(1.0),
            sample_period: self.sampler.period(),
        }
    }

    /// Threads that have not made their accesses yet.
    fn active(&self) -> impl Iterator<Item = &Thread> {
        self.threads.iter().filter(|thread| thread.quota > 0)
    }

    /// How long a quantum of the next tick is.
    fn quantum(&self) -> Nanos {
        let latency = self.balance.latencies(&self.devices);
        let rate: f64 = self.active().map(|t| 1.0 / t.demand.interval(&latency)).sum();
        let wanted = QUANTUM_ACCESSES * f64::from(self.config.scale) / rate.max(f64::MIN_POSITIVE);
        let tick = self.tick.as_f64();
        let quanta = (tick / wanted.clamp(SHORTEST_QUANTUM.min(tick), tick)).ceil();
        Nanos((tick / quanta).ceil() as u64)
    }

    /// Lets the world run for a quantum, to `end` at the latest.
    fn advance(&mut self, end: Nanos) {
        let begin = self.now;
        let demands: Vec<Demand> = self.active().map(|t| t.demand).collect();
        let everyone: Vec<(bool, Demand)> =
            self.threads.iter().map(|t| (t.quota > 0, t.demand)).collect();
        let rates = |latency: &[f64; MAX_TIERS]| -> Vec<f64> {
            let rate = |&(active, demand): &(bool, Demand)| {
                if active { 1.0 / demand.interval(latency) } else { 0.0 }
            };
            everyone.iter().map(rate).collect()
        };
        self.done.clear();
        let before = rates(&self.balance.latencies(&self.devices));
        let mut context = MigrationContext {
            pages: &mut self.pages,
            threads: &mut self.threads,
            workload: self.workload.as_ref(),
            balance: &self.balance,
            rates: &before,
            now: begin,
        };
        self.engine.begin(&mut context, &mut self.done);
        let longest = (end - begin).as_f64();
        let (copies, length) = self.engine.forecast(longest, SHORTEST_QUANTUM, &self.balance);
        let end = (begin + Nanos(length.ceil() as u64)).min(end);
        let length = (end - begin).as_f64();
        self.balance.settle(&self.devices, &demands, &copies);
        let latency = self.balance.latencies(&self.devices);
        let rates = rates(&latency);

        let mut setting = Setting {
            devices: &self.devices,
            llc_hits: &self.llc_hits,
            llc_latency: self.machine.cpu.llc_latency.value.as_f64(),
            compute: compute(&self.machine, self.workload.as_ref()),
            in_flight: in_flight(&self.machine, self.workload.as_ref()),
            scale: f64::from(self.config.scale),
            now: begin,
            end,
            latency,
            sample_cost: self.machine.costs.sample.value.as_f64(),
        };
        let mut total = Tally::default();
        let mut traffic = [Traffic::default(); MAX_TIERS];
        // What Memory Mode holds depends on the order in which threads access
        // it, so they take turns; where pages lie does not change in a quantum.
        let turns = if self.memory_mode.is_some() {
            let accesses = length * rates.iter().copied().fold(0.0, f64::max) / setting.scale;
            (accesses / TURN).ceil().max(1.0) as u64
        } else {
            1
        };
        for (turn, index) in
            (1..=turns).flat_map(|turn| (0..rates.len()).map(move |index| (turn, index)))
        {
            let thread = &mut self.threads[index];
            setting.end = begin + Nanos((length * turn as f64 / turns as f64) as u64);
            let mut memory = match &mut self.memory_mode {
                Some(cache) => Backing::MemoryMode(cache),
                None => Backing::Tiers(&self.pages),
            };
            let tally =
                thread.run(index, &setting, &mut memory, self.workload.as_mut(), &mut self.sampler);
            total.add(&tally);
            let bytes = tally.bytes(&setting, &memory);
            for tier in 0..self.devices.len() {
                traffic[tier].read += bytes[tier].read;
                traffic[tier].write += bytes[tier].write;
            }
        }
        self.account(&total, &traffic, &latency, length);

        let mut context = MigrationContext {
            pages: &mut self.pages,
            threads: &mut self.threads,
            workload: self.workload.as_ref(),
            balance: &self.balance,
            rates: &rates,
            now: begin,
        };
        self.engine.advance(end.as_f64(), &mut context, &mut self.done);
        self.rates = rates;
        self.take_hints(end);
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
        let pages = &self.pages;
        let name = |page| Some(pages.page_ref(page));
        self.sampler.drain(length, name, &mut self.samples, &mut self.bases);
        if self.brain.is_none() {
            return;
        }
        self.tell_hardware_samples();
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
        if let Some(brain) = &mut self.brain {
            brain.done(done, telemetry);
        }
    }

    /// Pages that were made to fault do.
    fn take_hints(&mut self, end: Nanos) {
        let trap = self.machine.costs.kernel_fault.value;
        while let Some(Hint { page, thread, access, at }) = {
            let workload = self.workload.as_ref();
            let program = Program { workload, rates: &self.rates, now: self.now };
            self.observer.due(end, &program)
        } {
            self.threads[thread].clock += trap.as_f64();
            self.sampler.counts.hint_faults += 1;
            let page = self.pages.page_ref(page);
            let telemetry = Telemetry { now: at, ..self.telemetry() };
            let sample = Sample { page, access, source: SampleSource::HintFault, weight: 1 };
            let kind = FaultKind::Hint(access);
            if let Some(brain) = &mut self.brain {
                brain.fault(page, kind, &telemetry);
                brain.samples(&[sample]);
            }
        }
    }

    /// Arms pages, or reads their accessed bits: one change of the page table
    /// and one shootdown for the whole range.
    fn observe(&mut self, proposal: &Proposal, range: PageRange) -> Outcome {
        let Some(first) =
            self.pages.number(terrace_core::PageRef { region: range.region, page: range.start })
        else {
            return Outcome::Aborted(Abort::Stale);
        };
        let region = self.pages.regions().iter().find(|r| r.id == range.region);
        let pages = region.map_or(0, |r| r.pages.saturating_sub(range.start.0)).min(range.count);
        let workload = self.workload.as_ref();
        let program = Program { workload, rates: &self.rates, now: self.now };
        let numbers = first..first + pages;
        if matches!(proposal.action, Action::Arm { .. }) {
            for page in numbers {
                if self.pages.tier(page).is_some() {
                    self.observer.arm(page, &program);
                }
            }
        } else {
            self.samples.clear();
            let (names, samples) = (&self.pages, &mut self.samples);
            self.observer.scan(numbers, &program, |page, access| {
                let page = names.page_ref(page);
                samples.push(Sample { page, access, source: SampleSource::AccessedBit, weight: 1 });
            });
            self.sampler.counts.scanned += u64::from(pages);
            self.tell_samples();
        }
        let cost = self.engine.shoot_down(&self.machine.costs, &mut self.threads);
        Outcome::Completed { cost, moved: Bytes::ZERO }
    }

    /// What the hardware sampled, down to the base page for a policy that asks.
    fn tell_hardware_samples(&mut self) {
        if !self.brain.as_ref().is_some_and(|brain| brain.needs().base_pages) {
            return self.tell_samples();
        }
        if self.samples.is_empty() {
            return;
        }
        if let Some(brain) = &mut self.brain {
            brain.base_samples(&self.samples, &self.bases);
        }
    }

    fn tell_samples(&mut self) {
        if self.samples.is_empty() {
            return;
        }
        if let Some(brain) = &mut self.brain {
            brain.samples(&self.samples);
        }
    }

    /// The policy's clock ticks.
    fn tick(&mut self) {
        self.engine.earn_budget(self.tick);
        self.tell_future();
        let telemetry = self.telemetry();
        let Some(brain) = &mut self.brain else { return };
        if brain.needs().tick.is_none() {
            return;
        }
        brain.tick(&telemetry, &mut self.plan);
        if let Some(on_decisions) = &mut self.on_decisions {
            on_decisions(brain.decisions());
        }
        let plan = std::mem::take(&mut self.plan);
        for proposal in plan.proposals() {
            let outcome = match proposal.action {
                Action::SetPeriod { source: SampleSource::Pmu, period } => {
                    self.sampler.set_period(period);
                    Some(Outcome::Completed { cost: Cycles::ZERO, moved: Bytes::ZERO })
                }
                Action::Throttle { limit } => {
                    self.engine.set_limit(limit);
                    Some(Outcome::Completed { cost: Cycles::ZERO, moved: Bytes::ZERO })
                }
                Action::Arm { range } | Action::Scan { range } => {
                    Some(self.observe(proposal, range))
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

    /// Lets the world run for a quantum, and the policy's clock tick if that
    /// ends a tick.
    fn step(&mut self) {
        if self.now >= self.tick_end {
            self.tick_end = self.now + self.tick;
            self.quantum = self.quantum();
        }
        self.advance((self.now + self.quantum).min(self.tick_end));
        if self.now >= self.tick_end {
            self.tick();
        }
    }

    /// Lets the world run for some time, outside of all phases; for looking at
    /// it from one moment to the next.
    pub fn run_for(&mut self, time: Nanos) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// What was migrated so far.
    pub fn migrated(&self) -> &MigrationCounts {
        &self.engine.counts
    }

    /// Actions that the policy was allowed and that wait, or are under way.
    pub fn unfinished(&self) -> u64 {
        self.engine.unfinished()
    }

    /// The economist's accounts so far, of classes that saw a proposal; none without a policy.
    pub fn accounts(&self) -> Vec<ClassAccount> {
        self.brain.as_ref().map_or_else(Vec::new, |brain| ClassAccount::all(brain.economist()))
    }

    /// What was sampled so far.
    pub fn samples(&self) -> &SampleCounts {
        &self.sampler.counts
    }

    /// Accesses so far.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Runs all phases. `progress` is told about every simulated second.
    pub fn run(mut self, progress: &mut dyn FnMut(&Progress)) -> SimReport {
        let started = Instant::now();
        let phases = self.config.phases;
        let spans: Vec<Span> =
            core::iter::once(phases.warm_up).chain((0..phases.runs).map(|_| phases.run)).collect();
        let mut runs = Vec::new();
        let mut warm_migration = self.engine.counts;
        for (number, &span) in spans.iter().enumerate() {
            let phase = self.begin_phase(span);
            while !self.has_ended(&phase) {
                let seconds = self.series.len();
                self.step();
                if self.series.len() > seconds {
                    progress(&Progress {
                        now: self.now,
                        accesses: self.accesses,
                        fraction: (number as f64 + self.share_done(&phase)) / spans.len() as f64,
                        throughput: self.series[seconds].throughput,
                    });
                }
            }
            if number == 0 {
                self.sums = Sums::default();
                warm_migration = self.engine.counts;
            } else {
                let time = self.last_finish(span).unwrap_or(self.now) - phase.begin;
                let accesses = self.accesses - phase.accesses;
                let throughput = PerSecond::from_count(accesses as f64, time);
                runs.push(RunResult { accesses, time, throughput });
            }
        }
        self.report(runs, &warm_migration, started)
    }

    fn begin_phase(&mut self, span: Span) -> Phase {
        let scale = u64::from(self.config.scale);
        let quota = match span {
            Span::AccessesEach(accesses) => (accesses / scale).max(1),
            Span::Accesses(_) | Span::Time(_) => u64::MAX,
        };
        for thread in &mut self.threads {
            thread.quota = quota;
        }
        Phase { span, begin: self.now, accesses: self.accesses }
    }

    fn has_ended(&self, phase: &Phase) -> bool {
        match phase.span {
            Span::Accesses(accesses) => self.accesses - phase.accesses >= accesses,
            Span::AccessesEach(_) => self.active().next().is_none(),
            Span::Time(time) => self.now - phase.begin >= time,
        }
    }

    /// When the last thread had made its accesses, if the phase is of that kind.
    fn last_finish(&self, span: Span) -> Option<Nanos> {
        matches!(span, Span::AccessesEach(_))
            .then(|| Nanos::from_f64(self.threads.iter().map(|t| t.finished).fold(0.0, f64::max)))
    }

    fn share_done(&self, phase: &Phase) -> f64 {
        let accesses = (self.accesses - phase.accesses) as f64;
        let share = match phase.span {
            Span::Accesses(all) => accesses / all.max(1) as f64,
            Span::AccessesEach(each) => accesses / (each.max(1) * self.threads.len() as u64) as f64,
            Span::Time(time) => (self.now - phase.begin).as_f64() / time.as_f64().max(1.0),
        };
        share.min(1.0)
    }
}

/// A phase that is under way.
struct Phase {
    span: Span,
    /// The time and the accesses at its begin.
    begin: Nanos,
    accesses: u64,
}
