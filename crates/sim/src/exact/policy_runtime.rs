//! What runs the policy: samples and ticks go to its brain, telemetry says how the machine is, and
//! its plans go to the migration engine.

use terrace_core::machine::Costs;
use terrace_core::{
    BytesPerSecond, MAX_TIERS, Nanos, PageSize, PerSecond, Plan, Sample, Telemetry, TierId,
    TierTelemetry,
};
use terrace_policy::Brain;

use super::access::Access;
use super::machine::ExactMachine;
use super::migration::Mover;
use super::page_fault::FaultCosts;
use super::tiers::TierCounts;
use super::tlb_counts::MissCounters;
use crate::analytic::listeners::OnDecisions;
use crate::analytic::sampler::{SampleEvent, Sampler};

/// The policy with all that it needs to run.
///
/// Twenty-three fields: the brain, who hears of its decisions, what observes for it, what carries
/// out for it, and counters that reports print one by one.
pub(super) struct PolicyRuntime {
    pub(super) brain: Option<Brain>,
    /// Is told every decision.
    pub(super) on_decisions: Option<OnDecisions>,
    /// Where pages go without a policy.
    pub(super) fixed: TierId,
    /// Whether anything is sampled.
    pub(super) samples_wanted: bool,
    pub(super) sampler: Sampler,
    pub(super) sampled_until: f64,
    pub(super) costs: Costs,
    pub(super) mover: Mover,
    pub(super) faults: FaultCosts,
    pub(super) page_size: PageSize,
    pub(super) tick: Option<Nanos>,
    pub(super) next_tick: Nanos,
    pub(super) ticks: u64,
    pub(super) plan: Plan,
    pub(super) samples: Vec<Sample>,
    /// The base page within the page of each sample.
    pub(super) bases: Vec<u16>,
    /// Whether the policy wants to know that.
    pub(super) base_pages: bool,
    /// Counters at the last tick, and when it was.
    pub(super) before: [TierCounts; MAX_TIERS],
    pub(super) before_at: Nanos,
    /// Traffic between the last two ticks.
    pub(super) rates: [TierRates; MAX_TIERS],
    pub(super) cores: u32,
    /// Misses counted beside TLB entries.
    pub(super) tlb_counts: Option<MissCounters>,
    /// Addresses whose pages the program has in the fastest tier by its own wish.
    pub(super) pinned: (u64, u64),
}

impl PolicyRuntime {
    /// Tells who wants to know what was decided on the plan that is here.
    pub(super) fn tell_decisions(&mut self) {
        if let (Some(brain), Some(on_decisions)) = (&self.brain, &mut self.on_decisions) {
            on_decisions(brain.decisions());
        }
    }

    /// Whether the policy is not to know of an address.
    #[inline]
    pub(super) fn is_pinned(&self, address: u64) -> bool {
        (self.pinned.0..self.pinned.1).contains(&address)
    }
}

/// A memory's traffic, by time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TierRates {
    read: BytesPerSecond,
    write: BytesPerSecond,
    accesses: PerSecond,
}

impl ExactMachine {
    /// The machine as the policy sees it.
    pub(super) fn telemetry(&self) -> Telemetry {
        let mut tiers = [TierTelemetry::default(); MAX_TIERS];
        for (index, tier) in self.tiers.iter().enumerate() {
            let id = TierId(index as u8);
            let frames = &self.memory.frames;
            let order = self.runtime.page_size.shift() - PageSize::Base.shift();
            tiers[index] = TierTelemetry {
                capacity: frames.capacity(id),
                // A policy that splits pages also moves base pages.
                free: if self.areas.has_splits() {
                    frames.free(id)
                } else {
                    frames.free_in(id, order)
                },
                addressable: true,
                read_latency: Nanos::from_f64(tier.read_latency()),
                write_latency: Nanos::from_f64(tier.write_latency()),
                read_bandwidth: self.runtime.rates[index].read,
                write_bandwidth: self.runtime.rates[index].write,
                accesses: self.runtime.rates[index].accesses,
            };
        }
        let used = self.cores.iter().filter(|core| core.used).count();
        let tick = self.runtime.tick.unwrap_or(Nanos::SECOND);
        Telemetry {
            now: self.now(),
            tier_count: self.tiers.len() as u8,
            tiers,
            migrated: self.runtime.mover.counts.moved,
            migration_budget: self.runtime.mover.budget(tick),
            cpu_load: (used as f64 / f64::from(self.runtime.cores)).min(1.0),
            sample_period: if self.runtime.samples_wanted {
                self.runtime.sampler.period()
            } else {
                0
            },
        }
    }

    /// After some accesses: counts stores, hands samples on, moves pages, ticks.
    pub(super) fn settle(&mut self, core: usize, accesses: &[Access]) {
        self.count_stores(core, accesses);
        // Other cores are as far, or further.
        let me = &self.cores[core];
        let now = Nanos::from_f64(me.clock.time(me.instructions));
        self.drain_samples(now);
        self.move_pages(now.as_f64());
        if let Some(tick) = self.runtime.tick {
            while now >= self.runtime.next_tick {
                self.tick(now);
                // A long stall is one tick, not many.
                let missed = (now - self.runtime.next_tick).get() / tick.get();
                self.runtime.next_tick += tick * (missed + 1);
            }
        }
    }

    fn count_stores(&mut self, core: usize, accesses: &[Access]) {
        let stores = accesses.iter().filter(|a| a.is_store()).count();
        self.cores[core].stores += stores as u64;
        if !self.runtime.samples_wanted || stores == 0 {
            return;
        }
        let before = self.cores[core].counters;
        if !self.cores[core].counters.count(SampleEvent::Store, stores as i64) {
            return;
        }
        // Some store of these is the one: find out which.
        self.cores[core].counters = before;
        for access in accesses.iter().filter(|a| a.is_store()) {
            if self.cores[core].counters.count(SampleEvent::Store, 1) {
                self.record(core, SampleEvent::Store, access.address());
            }
        }
    }

    fn drain_samples(&mut self, now: Nanos) {
        if !self.runtime.samples_wanted {
            return;
        }
        let runtime = &mut self.runtime;
        let passed = now.as_f64() - runtime.sampled_until;
        runtime.sampled_until = runtime.sampled_until.max(now.as_f64());
        let areas = &self.areas;
        let name = |slot| areas.page_in(slot);
        runtime.sampler.drain(passed.max(0.0), name, &mut runtime.samples, &mut runtime.bases);
        if let Some(brain) = &mut runtime.brain
            && !runtime.samples.is_empty()
        {
            if runtime.base_pages {
                brain.base_samples(&runtime.samples, &runtime.bases);
            } else {
                brain.samples(&runtime.samples);
            }
        }
    }

    fn tick(&mut self, now: Nanos) {
        let passed = now - self.runtime.before_at;
        for (index, tier) in self.tiers.iter().enumerate() {
            let before = &mut self.runtime.before[index];
            let amount = |now: f64, before: f64| {
                BytesPerSecond::from_amount(terrace_core::Bytes::from_f64(now - before), passed)
            };
            let served = (tier.counts.reads - before.reads) as f64;
            self.runtime.rates[index] = TierRates {
                read: amount(tier.counts.bytes_read, before.bytes_read),
                write: amount(tier.counts.bytes_written, before.bytes_written),
                accesses: PerSecond::from_count(served, passed),
            };
            *before = tier.counts;
        }
        self.runtime.before_at = now;
        self.runtime.ticks += 1;
        self.read_counts();
        let telemetry = self.telemetry();
        let runtime = &mut self.runtime;
        let Some(brain) = &mut runtime.brain else { return };
        brain.tick(&telemetry, &mut runtime.plan);
        runtime.tell_decisions();
        runtime.mover.enqueue(runtime.plan.proposals(), now.as_f64());
        self.move_pages(now.as_f64());
    }

    /// Tells somebody every decision from here on, so that it can be explained.
    pub fn hear(&mut self, on_decisions: OnDecisions) {
        self.runtime.on_decisions = Some(on_decisions);
    }

    /// The program is over: everything in flight is waited for.
    pub(super) fn finish(&mut self) -> Nanos {
        for core in &mut self.cores {
            core.clock.drain(core.instructions);
        }
        let now = self.now();
        if let Some(brain) = &mut self.runtime.brain {
            brain.finish(now);
        }
        now
    }
}
