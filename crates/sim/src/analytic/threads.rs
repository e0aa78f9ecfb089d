//! The simulated program's threads, and the loop that everything else serves.

use rand_xoshiro::rand_core::Rng;
use terrace_core::{MAX_TIERS, Nanos};

use crate::analytic::balance::Demand;
use crate::analytic::cache::LINE;
use crate::analytic::device::{Device, Traffic};
use crate::analytic::memory_mode::{Lookup, MemoryMode};
use crate::analytic::pages::Pages;
use crate::analytic::sampler::{CoreCounters, SampleEvent, Sampler};
use crate::workload::{Access, SimRng, Workload};

/// Accesses that are generated at once: enough to hide the call, few enough
/// to stay in the host's first cache.
const BATCH: usize = 512;

/// One thread of the simulated program, on a core of its own.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) rng: SimRng,
    pub(crate) counters: CoreCounters,
    /// Until when it has run, in nanoseconds; beyond "now" while it is stalled.
    pub(crate) clock: f64,
    /// What its mean access demands, over the last quanta.
    pub(crate) demand: Demand,
    /// Simulated accesses so far.
    pub(crate) accesses: u64,
    /// Simulated accesses that it may still make before it waits for the others.
    pub(crate) quota: u64,
    /// When it made the last of them.
    pub(crate) finished: f64,
}

/// What is the same for all threads.
pub(crate) struct Setting<'a> {
    pub(crate) devices: &'a [Device],
    /// Hit ratio of the last-level cache by access class, of 2^32.
    pub(crate) llc_hits: &'a [u64],
    pub(crate) llc_latency: f64,
    /// Processor time of an access.
    pub(crate) compute: f64,
    pub(crate) in_flight: f64,
    /// Real accesses that a simulated one stands for.
    pub(crate) scale: f64,
    /// Begin and end of the quantum.
    pub(crate) now: Nanos,
    pub(crate) end: Nanos,
    /// Latency of each tier in this quantum.
    pub(crate) latency: [f64; MAX_TIERS],
    /// What a record costs the sampled thread.
    pub(crate) sample_cost: f64,
}

/// What serves the accesses that miss the caches.
pub(crate) enum Backing<'a> {
    /// Each page lies in a tier.
    Tiers(&'a Pages),
    /// The first tier caches the last.
    MemoryMode(&'a mut MemoryMode),
}

/// What a run of accesses did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) accesses: u64,
    pub(crate) llc_hits: u64,
    /// Misses that were served by each tier.
    pub(crate) misses: [u64; MAX_TIERS],
    /// Those of them that store, so that the line comes back.
    pub(crate) dirty: [u64; MAX_TIERS],
    /// In Memory Mode: dirty lines that fills displaced.
    pub(crate) displaced: u64,
    /// Records that the sampler wrote.
    pub(crate) records: u64,
}

impl Thread {
    /// Runs to the quantum's end; returns what it did.
    ///
    /// The number of accesses follows from what accesses took lately; the time
    /// they take follows from what they were. The difference stays in the
    /// thread's clock, so it does not add up.
    pub(crate) fn run(
        &mut self,
        index: usize,
        setting: &Setting<'_>,
        memory: &mut Backing<'_>,
        workload: &mut dyn Workload,
        sampler: &mut Sampler,
    ) -> Tally {
        let interval = self.demand.interval(&setting.latency) * setting.scale;
        let end = setting.end.as_f64();
        let count = (((end - self.clock) / interval).ceil().max(0.0) as u64).min(self.quota);
        let mut tally = Tally::default();
        let mut batch = [Access::default(); BATCH];
        let mut left = count;
        while left > 0 {
            let n = left.min(BATCH as u64) as usize;
            workload.fill(index, setting.now, &mut self.rng, &mut batch[..n]);
            match memory {
                Backing::Tiers(pages) => {
                    self.serve(index, &batch[..n], setting, pages, sampler, &mut tally);
                }
                Backing::MemoryMode(cache) => {
                    self.serve_memory_mode(&batch[..n], setting, cache, &mut tally);
                }
            }
            left -= n as u64;
        }
        if count > 0 {
            tally.accesses = count;
            self.accesses += count;
            self.quota -= count;
            let observed = match memory {
                Backing::Tiers(_) => tally.demand(setting),
                Backing::MemoryMode(_) => tally.demand_memory_mode(setting),
            };
            self.clock += observed.interval(&setting.latency) * setting.scale * count as f64;
            self.clock += tally.records as f64 * setting.sample_cost;
            // A mean over some thousand accesses: what is drawn at random in
            // one quantum must not shake the latencies of the next.
            self.demand.approach(&observed, (count as f64 / 1024.0).min(0.5));
        }
        if self.quota == 0 {
            if count > 0 {
                self.finished = self.clock;
            }
            self.clock = self.clock.max(end);
        }
        tally
    }

    #[inline]
    fn hits_llc(&mut self, access: &Access, setting: &Setting<'_>) -> bool {
        let ratio = setting.llc_hits[usize::from(access.class)];
        ratio > 0 && (self.rng.next_u64() >> 32) < ratio
    }

    /// The hot loop.
    fn serve(
        &mut self,
        index: usize,
        batch: &[Access],
        setting: &Setting<'_>,
        pages: &Pages,
        sampler: &mut Sampler,
        tally: &mut Tally,
    ) {
        let scale = setting.scale as i64;
        for access in batch {
            let stores = access.kind.stores();
            if self.hits_llc(access, setting) {
                tally.llc_hits += 1;
            } else {
                let tier = usize::from(pages.place(access.page)) & (MAX_TIERS - 1);
                tally.misses[tier] += 1;
                tally.dirty[tier] += u64::from(stores);
                if access.kind.loads() {
                    let event =
                        if tier == 0 { SampleEvent::FastLoad } else { SampleEvent::SlowLoad };
                    if self.counters.count(event, scale) {
                        let page = (access.page, (access.offset >> 12) as u16);
                        tally.records += sampler.record(index, event, &mut self.counters, page);
                    }
                }
            }
            if stores && self.counters.count(SampleEvent::Store, scale) {
                let page = (access.page, (access.offset >> 12) as u16);
                let event = SampleEvent::Store;
                tally.records += sampler.record(index, event, &mut self.counters, page);
            }
        }
    }

    fn serve_memory_mode(
        &mut self,
        batch: &[Access],
        setting: &Setting<'_>,
        cache: &mut MemoryMode,
        tally: &mut Tally,
    ) {
        let slow = setting.devices.len() - 1;
        for access in batch {
            if self.hits_llc(access, setting) {
                tally.llc_hits += 1;
                continue;
            }
            let stores = access.kind.stores();
            let lookup = cache.access(access.page, access.offset, stores);
            let tier = if lookup == Lookup::Hit { 0 } else { slow };
            tally.misses[tier] += 1;
            tally.dirty[tier] += u64::from(stores);
            tally.displaced += u64::from(lookup == Lookup::MissDirty);
        }
    }
}

impl Tally {
    /// Adds another run's counts.
    pub(crate) fn add(&mut self, other: &Self) {
        self.accesses += other.accesses;
        self.llc_hits += other.llc_hits;
        self.displaced += other.displaced;
        self.records += other.records;
        for tier in 0..MAX_TIERS {
            self.misses[tier] += other.misses[tier];
            self.dirty[tier] += other.dirty[tier];
        }
    }

    /// Real traffic of the run, in bytes.
    pub(crate) fn bytes(
        &self,
        setting: &Setting<'_>,
        memory: &Backing<'_>,
    ) -> [Traffic; MAX_TIERS] {
        if self.accesses == 0 {
            return [Traffic::default(); MAX_TIERS];
        }
        let demand = match memory {
            Backing::Tiers(_) => self.demand(setting),
            Backing::MemoryMode(_) => self.demand_memory_mode(setting),
        };
        let real = self.accesses as f64 * setting.scale;
        demand.bytes.map(|t| Traffic { read: t.read * real, write: t.write * real })
    }

    fn common(&self, setting: &Setting<'_>) -> Demand {
        let hits = self.llc_hits as f64 / self.accesses as f64;
        Demand {
            fixed: setting.compute + hits * setting.llc_latency,
            in_flight: setting.in_flight,
            issue: setting.compute,
            ..Demand::default()
        }
    }

    /// Each miss waits for its tier once and reads a line of it; each line that
    /// was stored to is written back to the same tier.
    fn demand(&self, setting: &Setting<'_>) -> Demand {
        let accesses = self.accesses as f64;
        let mut demand = self.common(setting);
        for (tier, device) in setting.devices.iter().enumerate() {
            let unit = device.moved(LINE as f64);
            demand.visits[tier] = self.misses[tier] as f64 / accesses;
            demand.bytes[tier] = Traffic {
                read: unit * demand.visits[tier],
                write: unit * self.dirty[tier] as f64 / accesses,
            };
        }
        demand
    }

    /// Every miss of the processor's caches reads tag and line from DRAM. One
    /// that finds another line there waits for the slow memory as well, fills
    /// DRAM, and writes the displaced line back if it is dirty. Lines that the
    /// processor's caches give up go to DRAM.
    fn demand_memory_mode(&self, setting: &Setting<'_>) -> Demand {
        let accesses = self.accesses as f64;
        let slow = setting.devices.len() - 1;
        let (hits, misses) = (self.misses[0] as f64, self.misses[slow] as f64);
        let written = (self.dirty[0] + self.dirty[slow]) as f64;
        let dram = setting.devices[0].moved(LINE as f64);
        let unit = setting.devices[slow].moved(LINE as f64);
        let mut demand = self.common(setting);
        demand.visits[0] = (hits + misses) / accesses;
        demand.visits[slow] = misses / accesses;
        demand.bytes[0] = Traffic {
            read: dram * (hits + misses) / accesses,
            write: dram * (written + misses) / accesses,
        };
        demand.bytes[slow] = Traffic {
            read: unit * misses / accesses,
            write: unit * self.displaced as f64 / accesses,
        };
        demand
    }
}
