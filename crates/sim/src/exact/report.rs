//! What came of a simulation of single accesses.

use std::time::Duration;

use serde::Serialize;
use terrace_core::{Bytes, BytesPerSecond, Nanos, PerSecond, TierId};

use super::hierarchy::{CacheCounts, Request};
use super::machine::ExactMachine;
use super::page_fault::FaultCosts;
use super::setup::ExactConfig;
use super::tiers::TierCounts;
use super::tlb::TlbMisses;
use super::tlb_counts::TlbCountCosts;
use crate::analytic::config::SimPolicy;
use crate::analytic::migration::MigrationCounts;
use crate::analytic::report::{ClassAccount, FootprintReport};
use crate::analytic::sampler::SampleCounts;
use crate::trace::Summary;

/// One cache's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheReport {
    /// Loads that came to it.
    pub loads: u64,
    /// Loads that it could not answer.
    pub load_misses: u64,
    /// Stores that came to it.
    pub stores: u64,
    /// Stores that it could not answer.
    pub store_misses: u64,
    /// Reads of the page walker that came to it.
    pub walk_reads: u64,
    /// Reads of the page walker that it could not answer.
    pub walk_misses: u64,
    /// Dirty lines that it gave up.
    pub write_backs: u64,
}

impl CacheReport {
    fn new(counts: &CacheCounts) -> Self {
        let (load, store, walk) =
            (Request::Load as usize, Request::Store as usize, Request::Walk as usize);
        Self {
            loads: counts.references[load],
            load_misses: counts.misses[load],
            stores: counts.references[store],
            store_misses: counts.misses[store],
            walk_reads: counts.references[walk],
            walk_misses: counts.misses[walk],
            write_backs: counts.write_backs,
        }
    }

    fn since(&self, earlier: &Self) -> Self {
        since!(self, earlier, { loads, load_misses, stores, store_misses, walk_reads, walk_misses, write_backs })
    }
}

/// One tier's part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExactTierReport {
    /// What it is called.
    pub name: String,
    /// What it holds.
    pub capacity: Bytes,
    /// What of it is in use at the end, page tables included.
    pub used: Bytes,
    /// Share of the program's misses that it served, 0 to 1.
    pub share: f64,
    /// Lines read for the program.
    pub reads: u64,
    /// Lines read for page walks.
    pub walk_reads: u64,
    /// Lines written back.
    pub writes: u64,
    /// Mean latency of reads.
    pub latency: Nanos,
    /// Read traffic over the measured time, migration included.
    pub read_bandwidth: BytesPerSecond,
    /// Write traffic over the measured time, migration included.
    pub write_bandwidth: BytesPerSecond,
}

/// What came of a simulation.
///
/// As many fields as there are figures: it is what `--json` prints, flat for who reads it.
#[derive(Clone, Debug, Serialize)]
pub struct ExactReport {
    /// The machine.
    pub machine: String,
    /// What ran.
    pub workload: String,
    /// What decided.
    pub policy: SimPolicy,
    /// Accesses that were measured.
    pub accesses: u64,
    /// Instructions that were measured.
    pub instructions: u64,
    /// Simulated time that was measured.
    pub time: Nanos,
    /// Accesses a second of simulated time.
    pub throughput: PerSecond,
    /// Instructions a cycle of the cores in use.
    pub instructions_per_cycle: f64,
    /// Cores that had something to do.
    pub cores: usize,
    /// How often a thread was taken to sleep, for nothing of it came for long, and came again.
    #[serde(skip_serializing_if = "is_zero")]
    pub slept: u64,
    /// Time that the cores waited, all together.
    pub waited: Nanos,
    /// First-level caches.
    pub l1: CacheReport,
    /// Second-level caches.
    pub l2: CacheReport,
    /// Last-level cache.
    pub llc: CacheReport,
    /// TLBs.
    pub tlb: TlbMisses,
    /// Tiers, fastest first.
    pub tiers: Vec<ExactTierReport>,
    /// Faults of the whole run, warm-up included.
    pub faults: FaultCosts,
    /// Page tables at the end.
    pub page_tables: u64,
    /// Migration over the whole run.
    pub migrated: MigrationCounts,
    /// Migration after the warm-up, in the time that is told.
    pub migrated_measured: MigrationCounts,
    /// Samples over the whole run.
    pub samples: SampleCounts,
    /// Misses counted beside TLB entries: what reading them and acting on them
    /// took, over the whole run.
    pub tlb_counts: Option<TlbCountCosts>,
    /// The same after the warm-up.
    pub tlb_counts_measured: Option<TlbCountCosts>,
    /// Ticks of the policy.
    pub ticks: u64,
    /// The policy's own memory.
    pub footprint: Option<FootprintReport>,
    /// The economist's accounts.
    pub accounts: Vec<ClassAccount>,
    /// Seed.
    pub seed: u64,
    /// Simulated accesses a second of the host's time.
    pub host_speed: PerSecond,
    /// What was read, where the source was a file or a recorder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Summary>,
}

/// For what is only told where it is so.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes it so
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Counters at a moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    now: Nanos,
    accesses: u64,
    instructions: u64,
    waited: f64,
    caches: [CacheReport; 3],
    tlb: TlbMisses,
    tiers: Vec<TierCounts>,
    migrated: MigrationCounts,
    tlb_counts: Option<TlbCountCosts>,
}

impl ExactReport {
    /// Share of the cores' time that they waited, 0 to 1.
    pub fn waiting_share(&self) -> f64 {
        let time = self.time.as_f64() * self.cores as f64;
        if time > 0.0 { self.waited.as_f64() / time } else { 0.0 }
    }
}

impl ExactMachine {
    /// Counters as they are.
    pub fn snapshot(&self) -> Snapshot {
        let mut tlb = TlbMisses::default();
        let (mut accesses, mut stores, mut instructions, mut waited) = (0, 0, 0, 0.0);
        for core in &self.cores {
            tlb.first_misses += core.tlbs.counts.first_misses;
            tlb.walks += core.tlbs.counts.walks;
            tlb.walk_reads += core.tlbs.counts.walk_reads;
            accesses += core.accesses;
            stores += core.stores;
            instructions += core.instructions;
            waited += core.clock.waited;
        }
        let mut l1 = CacheReport::new(&self.caches.l1_counts());
        // What the fast path knew to hit never came to the cache.
        l1.loads = accesses - stores;
        l1.stores = stores;
        Snapshot {
            now: self.now(),
            accesses,
            instructions,
            waited,
            caches: [
                l1,
                CacheReport::new(&self.caches.l2_counts()),
                CacheReport::new(&self.caches.llc_counts()),
            ],
            tlb,
            tiers: self.tiers.iter().map(|tier| tier.counts).collect(),
            migrated: self.runtime.mover.counts,
            tlb_counts: self.runtime.tlb_counts.as_ref().map(|counts| counts.costs),
        }
    }

    pub(super) fn report(
        &self,
        config: &ExactConfig,
        workload: String,
        warm: &Snapshot,
        end: Nanos,
        total: u64,
        host: Duration,
    ) -> ExactReport {
        let last = self.snapshot();
        let time = end - warm.now;
        let instructions = last.instructions - warm.instructions;
        let used = self.cores.iter().filter(|core| core.used).count().max(1);
        let cycles = self.clock.cycles(time).as_f64() * used as f64;
        let footprint = self.runtime.brain.as_ref().map(|brain| brain.footprint().into());
        ExactReport {
            machine: config.machine.name.clone(),
            workload,
            policy: config.policy,
            accesses: last.accesses - warm.accesses,
            instructions,
            time,
            throughput: PerSecond::from_count((last.accesses - warm.accesses) as f64, time),
            instructions_per_cycle: if cycles > 0.0 { instructions as f64 / cycles } else { 0.0 },
            cores: used,
            slept: 0,
            waited: Nanos::from_f64(last.waited - warm.waited),
            l1: last.caches[0].since(&warm.caches[0]),
            l2: last.caches[1].since(&warm.caches[1]),
            llc: last.caches[2].since(&warm.caches[2]),
            tlb: TlbMisses {
                first_misses: last.tlb.first_misses - warm.tlb.first_misses,
                walks: last.tlb.walks - warm.tlb.walks,
                walk_reads: last.tlb.walk_reads - warm.tlb.walk_reads,
            },
            tiers: self.tier_reports(config, &last, warm, time),
            faults: self.runtime.faults,
            page_tables: self.memory.table.tables() as u64,
            migrated: last.migrated,
            migrated_measured: last.migrated.since(&warm.migrated),
            tlb_counts: last.tlb_counts,
            tlb_counts_measured: last
                .tlb_counts
                .zip(warm.tlb_counts)
                .map(|(last, warm)| last.since(&warm)),
            samples: self.runtime.sampler.counts,
            ticks: self.runtime.ticks,
            footprint,
            accounts: self
                .runtime
                .brain
                .as_ref()
                .map(|brain| ClassAccount::all(brain.economist()))
                .unwrap_or_default(),
            seed: config.seed,
            host_speed: PerSecond(total as f64 / host.as_secs_f64().max(f64::MIN_POSITIVE)),
            input: None,
        }
    }

    fn tier_reports(
        &self,
        config: &ExactConfig,
        last: &Snapshot,
        warm: &Snapshot,
        time: Nanos,
    ) -> Vec<ExactTierReport> {
        let served = |i: usize| last.tiers[i].reads - warm.tiers[i].reads;
        let all: u64 = (0..last.tiers.len()).map(served).sum();
        let names = config.machine.tiers.iter().map(|tier| tier.name.clone());
        names
            .enumerate()
            .map(|(i, name)| {
                let (now, before) = (&last.tiers[i], &warm.tiers[i]);
                let walk_reads = now.walk_reads - before.walk_reads;
                let reads = (served(i) + walk_reads).max(1) as f64;
                let id = TierId(i as u8);
                let frames = &self.memory.frames;
                let bandwidth = |now: f64, before: f64| {
                    BytesPerSecond::from_amount(Bytes::from_f64(now - before), time)
                };
                ExactTierReport {
                    name,
                    capacity: frames.capacity(id),
                    used: frames.capacity(id) - frames.free(id),
                    share: served(i) as f64 / all.max(1) as f64,
                    reads: served(i),
                    walk_reads,
                    writes: now.writes - before.writes,
                    latency: Nanos::from_f64((now.latency - before.latency) / reads),
                    read_bandwidth: bandwidth(now.bytes_read, before.bytes_read),
                    write_bandwidth: bandwidth(now.bytes_written, before.bytes_written),
                }
            })
            .collect()
    }
}
