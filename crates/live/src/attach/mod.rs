//! Attach: tiers for programs that run already, from outside.
//!
//! Pages stay mapped and no access faults: what the policy decides is carried
//! out by `move_pages(2)` and, into swap, by `process_madvise(2)`. The policy
//! and the economist are those of every other world; what is missing here is
//! the fault, so first touches are *found* (by passes over the page table) and
//! told to the policy as they are: at a moment in which only the tier that the
//! kernel has chosen has room.
//!
//! | file | concept |
//! |---|---|
//! | [`space`] | which pages there are, and where each lies |
//! | [`parts`] | the same part by part, with what is accessed, for pictures |
//! | [`host`] | what is asked of the system |
//! | `scan` | passes over the page tables: finds pages, and what others moved |
//! | `crew` | how many threads move pages at once |
//! | `execute` | carries a plan out |
//! | [`targets`] | which processes |
//! | [`stats`] | what was done |
//! | here | the engine: one step |

mod crew;
mod execute;
pub mod host;
pub mod parts;
mod scan;
pub mod space;
pub mod stats;
pub mod targets;

use std::io;

use serde::{Deserialize, Serialize};
use terrace_core::{
    Bytes, Home, Ladder, Nanos, Plan, Sample, SampleSource, Telemetry, TierId, TierTelemetry,
};
use terrace_economics::Decision;
use terrace_policy::Brain;
use terrace_sampler::{Governor, Health, Sampler, SamplerError};

use self::crew::Crew;
use self::host::Host;
use self::space::Space;
use self::stats::{RECENT, Stats};
use crate::sys;

/// What a policy without a clock of its own is stepped by.
const IDLE_TICK: Nanos = Nanos::millis(100);
/// How often node and swap sizes are read.
const REFRESH: Nanos = Nanos::millis(200);
/// Share of a node that is left to the kernel: below its watermarks it would
/// reclaim to take a page of ours.
const RESERVE: f64 = 0.02;
/// Demotions that are asked for at once while a tier is over its capacity: few
/// enough for the program's end and a signal not to wait long.
const RELIEF: Bytes = Bytes::mib(1);

/// What can be chosen.
#[derive(Clone, Debug)]
pub struct Options {
    /// Plan, and carry out nothing.
    pub dry_run: bool,
    /// Mappings smaller than this are left alone.
    pub min_region: Bytes,
    /// The share of one processor that observing may use.
    pub sampling_cap: f64,
    /// Time from one pass over the page tables to the next.
    pub pass_interval: Nanos,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dry_run: false,
            min_region: Bytes::kib(64),
            sampling_cap: Governor::DEFAULT_CAP,
            pass_interval: Nanos::seconds(1),
        }
    }
}

/// Of what observing may cost, the share of the first sampler, on which the policy depends most.
/// The rest is for others, and for passes over the page tables.
const FIRST: f64 = 0.6;
/// The share of each other sampler. Soft-dirty bits say whose DAMON's finds are: after a hot set
/// has moved, those are given to the old one until the next look at the bits.
const OTHERS: f64 = 0.25;

/// A sampler with what keeps it within its share of the cost.
struct Watcher {
    sampler: Box<dyn Sampler>,
    governor: Governor,
}

impl Watcher {
    /// Samplers in the order of their worth, under a common cap.
    fn all(samplers: Vec<Box<dyn Sampler>>, cap: f64) -> Vec<Self> {
        let watcher = |(i, sampler): (usize, Box<dyn Sampler>)| {
            let cap = cap * if i == 0 { FIRST } else { OTHERS };
            let rests = sampler.rests();
            let governor = if rests { Governor::new(cap) } else { Governor::of_driven(cap) };
            Self { sampler, governor }
        };
        samplers.into_iter().enumerate().map(watcher).collect()
    }
}

/// A sampler that stopped working, and what is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degraded(pub SamplerError);

/// The engine. Drive it by [`Attach::step`].
///
/// More than twenty fields: what a step goes through one after the other, each used in one part of it.
pub struct Attach<H> {
    host: H,
    ladder: Ladder,
    options: Options,
    brain: Brain,
    plan: Plan,
    space: Space,
    watchers: Vec<Watcher>,
    samples: Vec<Sample>,
    /// Over what all that observes costs.
    governor: Governor,
    stats: Stats,
    /// What a health of samplers that are gone was.
    buried: Health,
    pass: scan::Pass,
    /// Where every tier's pages lie, and what room there is, as last read.
    rooms: Vec<Room>,
    refreshed: Option<Nanos>,
    next_tick: Nanos,
    /// The threads that move pages.
    crew: Crew,
    traffic: Traffic,
    recent: Recent,
    /// Processes that may not be touched, with the reason; told once.
    refused: Vec<(u32, String)>,
    degraded: Vec<Degraded>,
}

/// Migration traffic that may be caused now, and when that was known.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    /// Bytes; below 0 where a move was larger than what was left.
    tokens: f64,
    earned: Option<Nanos>,
}

/// When the recent accesses began to be counted, and the counts before them.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    since: Nanos,
    before: [u64; terrace_core::MAX_TIERS],
}

/// Where a tier's latency is known from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyFrom {
    /// The ladder file says so.
    Ladder,
    /// The firmware does (HMAT).
    Firmware,
    /// Derived from the distance of nodes.
    Distance,
    /// Swap is compressed RAM, of which it is known.
    Zram,
    /// Nothing: swap is something else.
    #[default]
    Nothing,
}

/// A tier's memory as last read.
#[derive(Clone, Copy, Debug)]
struct Room {
    home: Home,
    total: Bytes,
    free: Bytes,
    read: Nanos,
    write: Nanos,
    from: LatencyFrom,
}

impl<H: Host> Attach<H> {
    /// An engine for a ladder whose tiers' pages lie in these homes ([`Ladder::homes`]).
    /// Samplers are in the order of their worth.
    ///
    /// # Panics
    ///
    /// Of homes that are not as many as the tiers.
    pub fn new(
        mut host: H,
        ladder: Ladder,
        homes: &[Home],
        brain: Brain,
        samplers: Vec<Box<dyn Sampler>>,
        options: Options,
    ) -> Self {
        assert_eq!(homes.len(), ladder.tiers.len(), "each tier has a home");
        let rooms = ladder
            .tiers
            .iter()
            .zip(homes)
            .map(|(tier, &home)| {
                let (read, write, from) = match home {
                    Home::Node(node) => {
                        let latency = host.node_latency(node);
                        let from = if latency.from_firmware {
                            LatencyFrom::Firmware
                        } else {
                            LatencyFrom::Distance
                        };
                        (latency.read, latency.write, from)
                    }
                    // A major fault on zram, as measured for lz4: 5 µs without
                    // reclaim. A disk is slower; then the ladder should say so.
                    Home::Swap => {
                        let from = if host.swaps_to_zram() {
                            LatencyFrom::Zram
                        } else {
                            LatencyFrom::Nothing
                        };
                        (Nanos::micros(5), Nanos::micros(8), from)
                    }
                };
                Room {
                    home,
                    total: Bytes::ZERO,
                    free: Bytes::ZERO,
                    read: tier.read_latency.unwrap_or(read),
                    write: tier.write_latency.unwrap_or(write),
                    from: if tier.read_latency.is_some() { LatencyFrom::Ladder } else { from },
                }
            })
            .collect();
        let governor = Governor::new(options.sampling_cap);
        let watchers = Watcher::all(samplers, options.sampling_cap);
        let crew = Crew::new(ladder.migration.threads);
        Self {
            host,
            ladder,
            options,
            brain,
            plan: Plan::with_capacity(4096),
            space: Space::new(),
            watchers,
            samples: Vec::new(),
            governor,
            stats: Stats::default(),
            buried: Health::default(),
            pass: scan::Pass::default(),
            rooms,
            refreshed: None,
            next_tick: Nanos::ZERO,
            crew,
            traffic: Traffic::default(),
            recent: Recent::default(),
            refused: Vec::new(),
            degraded: Vec::new(),
        }
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
    /// The pages.
    pub fn space(&self) -> &Space {
        &self.space
    }
    /// Policy and economist.
    pub fn brain(&self) -> &Brain {
        &self.brain
    }
    /// The tiers.
    pub fn ladder(&self) -> &Ladder {
        &self.ladder
    }
    /// What a load takes in each tier, and where that is known from; of swap, what a page takes
    /// to come back.
    pub fn latencies(&self) -> impl Iterator<Item = (Nanos, LatencyFrom)> {
        self.rooms.iter().map(|room| (room.read, room.from))
    }
    /// Where each tier's pages lie.
    pub fn homes(&self) -> impl Iterator<Item = Home> {
        self.rooms.iter().map(|room| room.home)
    }
    /// The system.
    pub fn host(&mut self) -> &mut H {
        &mut self.host
    }
    /// Each sampler's name and how it fares.
    pub fn samplers(&self) -> impl Iterator<Item = (&'static str, Health)> {
        self.watchers.iter().map(|w| (w.sampler.name(), w.sampler.health()))
    }
    /// What all samplers, also those that are gone, cost and lost.
    pub fn health(&self) -> Health {
        let mut health = self.buried;
        for watcher in &self.watchers {
            health += watcher.sampler.health();
        }
        health
    }
    /// Samplers that stopped working since the last call.
    pub fn take_degraded(&mut self) -> Vec<Degraded> {
        std::mem::take(&mut self.degraded)
    }
    /// Processes that may not be touched, since the last call.
    pub fn take_refused(&mut self) -> Vec<(u32, String)> {
        std::mem::take(&mut self.refused)
    }

    /// Work was done for this attachment outside of its steps: showing what it does.
    pub fn charge(&mut self, cpu: Nanos) {
        self.stats.own_cpu += cpu;
    }

    /// The run is over: completes the accounts.
    pub fn finish(&mut self) {
        let now = self.host.now();
        self.brain.finish(now);
    }

    /// One step: looks, lets the policy plan, carries out. `targets` are the
    /// processes that there are; `decided` hears of every decision. Returns
    /// when the next step is due.
    pub fn step(
        &mut self,
        targets: &[u32],
        decided: &mut dyn FnMut(u32, &Decision),
    ) -> io::Result<Nanos> {
        let now = self.host.now();
        let cpu = sys::thread_cpu();
        let sampling = self.health().cpu;
        self.refresh(now);
        self.earn(now);
        let order = self.governor.judge(now, self.health().cpu + self.pass.cost());
        self.scan(now, targets, now >= order.rest_until)?;
        self.sample(now);
        if now >= self.next_tick {
            self.think(now, decided)?;
            self.next_tick = now + self.brain.needs().tick.unwrap_or(IDLE_TICK);
        }
        let spent = sys::thread_cpu().saturating_sub(cpu) + self.host.take_helped();
        let sampled = self.health().cpu.saturating_sub(sampling);
        self.stats.own_cpu += spent.saturating_sub(sampled);
        Ok(self.next_tick)
    }

    /// Reads the nodes' sizes, every now and then.
    fn refresh(&mut self, now: Nanos) {
        if self.refreshed.is_some_and(|at| now < at + REFRESH) {
            return;
        }
        self.refreshed = Some(now);
        for room in &mut self.rooms {
            let (total, free) = match room.home {
                Home::Node(node) => self.host.node_memory(node),
                Home::Swap => self.host.swap_memory(),
            };
            let reserve = match room.home {
                Home::Node(_) => Bytes::from_f64(total.as_f64() * RESERVE),
                Home::Swap => Bytes::ZERO,
            };
            room.total = total;
            room.free = free.saturating_sub(reserve);
        }
        if now >= self.recent.since + RECENT {
            for (i, count) in self.stats.accesses.iter().enumerate() {
                self.stats.recent[i] = count - self.recent.before[i];
            }
            self.recent.before = self.stats.accesses;
            self.recent.since = now;
            self.space.age_accesses();
        }
    }

    /// Migration traffic that the limit allows, saved for a tenth of a second.
    fn earn(&mut self, now: Nanos) {
        let limit = self.ladder.migration.limit;
        let earned = self.traffic.earned.map_or(Nanos::millis(10), |at| now.saturating_sub(at));
        self.traffic.earned = Some(now);
        // Two huge pages, or a low limit would never permit an exchange.
        let most = limit.over(Nanos::millis(100)).as_f64().max((4u64 << 20) as f64);
        self.traffic.tokens = (self.traffic.tokens + limit.over(earned).as_f64()).min(most);
    }

    /// Gives the policy what the samplers have seen. Those that would cost less for it rest while
    /// they have used up their own shares; not while others have exceeded theirs, or DAMON, whose
    /// cost follows its orders late, would keep those from looking who say what it has found.
    fn sample(&mut self, now: Nanos) {
        self.samples.clear();
        let mut i = 0;
        while i < self.watchers.len() {
            let Watcher { sampler, governor } = &mut self.watchers[i];
            let order = governor.judge(now, sampler.health().cpu);
            // Also while it rests: what the kernel drives goes on meanwhile.
            sampler.set_rarity(order.rarity);
            if sampler.rests() && now < order.rest_until {
                i += 1;
                continue;
            }
            match sampler.collect(now, &self.space, &mut self.samples) {
                Ok(()) => i += 1,
                Err(error) => {
                    // The others go on; without any, nothing is hot any more.
                    let gone = self.watchers.remove(i).sampler;
                    self.buried += gone.health();
                    self.degraded.push(Degraded(error));
                }
            }
        }
        self.deliver();
    }

    fn deliver(&mut self) {
        if self.samples.is_empty() {
            return;
        }
        self.stats.samples += self.samples.len() as u64;
        for sample in &self.samples {
            self.space.observe(sample.page, u32::from(sample.weight));
            if let Some(tier) = self.space.word(sample.page).tier() {
                self.stats.accesses[tier.index()] += u64::from(sample.weight);
            }
        }
        self.brain.samples(&self.samples);
    }

    /// A page came back from swap: an observed access.
    fn refaulted(&mut self, page: terrace_core::PageRef) {
        self.stats.refaults += 1;
        self.space.observe(page, 1);
        let access = terrace_core::Access::Read;
        let sample = Sample { page, access, source: SampleSource::Refault, weight: 1 };
        self.stats.samples += 1;
        self.brain.samples(&[sample]);
    }

    /// Lets the policy plan, and carries the plan out.
    fn think(&mut self, now: Nanos, decided: &mut dyn FnMut(u32, &Decision)) -> io::Result<()> {
        let mut plan = std::mem::take(&mut self.plan);
        let telemetry = self.telemetry(now);
        let begin = self.host.now();
        self.brain.tick(&telemetry, &mut plan);
        self.decided_since(begin);
        self.tell(decided);
        let mut result = self.execute(&plan);
        // The slowest first: what it gives up makes room for those above.
        for tier in (0..self.ladder.tiers.len() as u8).rev().map(TierId) {
            let excess = self.excess(tier);
            if result.is_err() || excess.is_zero() {
                continue;
            }
            let bytes = excess.min(RELIEF).min(Bytes::from_f64(self.traffic.tokens.max(0.0)));
            if bytes.is_zero() {
                continue;
            }
            let telemetry = self.telemetry(now);
            let begin = self.host.now();
            self.brain.pressure(tier, bytes, &telemetry, &mut plan);
            self.decided_since(begin);
            self.tell(decided);
            result = self.execute(&plan);
        }
        self.plan = plan;
        result
    }

    /// Deciding has taken since then.
    fn decided_since(&mut self, begin: Nanos) {
        let took = self.host.now().saturating_sub(begin);
        let clock = self.brain.economist().calibration().clock;
        self.brain.spent(clock.cycles(took));
    }

    fn tell(&self, decided: &mut dyn FnMut(u32, &Decision)) {
        for decision in self.brain.decisions() {
            let process = decision
                .action
                .page()
                .and_then(|page| self.space.window(page.region))
                .map_or(0, |window| window.process);
            decided(process, decision);
        }
    }

    /// What a tier holds beyond its capacity. The slowest has nobody to give it to.
    fn excess(&self, tier: TierId) -> Bytes {
        if tier.index() + 1 >= self.ladder.tiers.len() {
            return Bytes::ZERO;
        }
        let used = Bytes(self.space.used(tier));
        self.ladder.tiers[tier.index()].capacity.map_or(Bytes::ZERO, |most| used - most)
    }

    /// This world, as policies see it.
    fn telemetry(&self, now: Nanos) -> Telemetry {
        let mut telemetry = Telemetry {
            now,
            tier_count: self.ladder.tiers.len() as u8,
            migrated: self.stats.moved,
            migration_budget: Bytes::from_f64(self.traffic.tokens.max(0.0)),
            sample_period: self.watchers.first().map_or(0, |w| w.sampler.period()),
            ..Telemetry::default()
        };
        for (i, (tier, room)) in self.ladder.tiers.iter().zip(&self.rooms).enumerate() {
            let used = Bytes(self.space.used(TierId(i as u8)));
            // Without a capacity of its own a tier may be filled.
            let capacity = tier.capacity.unwrap_or(used + room.free);
            telemetry.tiers[i] = TierTelemetry {
                capacity,
                free: (capacity - used).min(room.free),
                addressable: tier.memory.is_addressable(),
                read_latency: room.read,
                write_latency: room.write,
                ..TierTelemetry::default()
            };
        }
        telemetry
    }

    /// The same at a moment in which nothing but one tier has room: what a
    /// policy is told of a page that the kernel has placed there.
    fn only(&self, now: Nanos, tier: TierId) -> Telemetry {
        let mut telemetry = self.telemetry(now);
        for (i, state) in telemetry.tiers.iter_mut().enumerate() {
            state.free =
                if i == tier.index() { Bytes::gib(1).max(state.free) } else { Bytes::ZERO };
        }
        telemetry
    }
}

#[cfg(test)]
mod tests;
