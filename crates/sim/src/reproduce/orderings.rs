//! Which policy beats which, and where: orderings that papers report, from
//! runs made here.
//!
//! Absolute speedups depend on machines and programs that we do not have. What
//! has to come out the same is the order, in the situation that the paper names.
//! The situation is built; the policies have their published parameters. Where a
//! paper's machine is larger than ours, what its parameters count in samples or
//! in time is scaled with the memory, once, by the factor given there.
//!
//! `docs/policies/orderings.md` has the results, and says where they differ.

use terrace_core::{Bytes, BytesPerSecond, Cycles, Machine, Nanos, PageSize, Xorshift};
use terrace_policy::{
    AutoNuma, AutoNumaConfig, Colloid, ColloidConfig, HeMem, HeMemConfig, Memtis, MemtisConfig,
    Policy, Tpp, TppConfig,
};

use super::claim::{Bound, Claim};
use crate::analytic::config::{Phases, SimConfig, SimPolicy, Span};
use crate::analytic::migration::MigrationConfig;
use crate::analytic::simulation::Simulation;
use crate::error::SimError;
use crate::exact::{self, Access, Batch, ExactConfig, ExactMachine, Source, SpaceEvent};
use crate::machines;
use crate::workload::gups::{Gups, GupsConfig};

/// How long the simulations behind the orderings are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// As documented.
    Whole,
    /// Short enough for a test of every day; the same situations.
    Short,
}

/// The statement whose margin ours exceeds; its value is TPP over NUMA balancing.
pub(crate) const TPP_OVER_BALANCING: &str =
    "TPP outperforms NUMA balancing, by 5 to 17 % (TPP, ASPLOS 2023)";

/// All orderings. `progress` is told what is simulated next.
pub fn orderings(length: Length, progress: &mut dyn FnMut(&str)) -> Result<Vec<Claim>, SimError> {
    let engine = MigrationConfig::hemem();
    let mut claims = tpp_over_numa_balancing(engine, length, progress)?;
    claims.push(memtis_over_hemem(length, progress)?);
    claims.extend(colloid_over_hemem(length, progress)?);
    Ok(claims)
}

/// An n-th of some memory.
fn part(bytes: Bytes, n: u64) -> Bytes {
    Bytes(bytes.get() / n)
}

/// Updates a second under a policy, in the model of independent accesses.
fn speed(
    engine: MigrationConfig,
    machine: &Machine,
    gups: &GupsConfig,
    warm_up: Nanos,
    run: Nanos,
    policy: Box<dyn Policy>,
) -> Result<f64, SimError> {
    let workload = Box::new(Gups::new(gups.clone())?);
    let name = SimPolicy::Custom(policy.name());
    let config = SimConfig {
        phases: Phases { warm_up: Span::Time(warm_up), runs: 1, run: Span::Time(run) },
        scale: 256,
        migration: engine,
        ..SimConfig::new(machine.clone(), workload, name)
    };
    let report = Simulation::with_policy(config, policy)?.run(&mut |_| ());
    Ok(report.throughput.get())
}

/// TPP against NUMA balancing, where most memory is idle.
///
/// A quarter of the memory fits into DRAM and is filled first; an eighth is in
/// use, and the most of that lies in the slower tier. (The paper's services
/// leave 55 to 80 % of their memory untouched for two minutes.) NUMA balancing
/// is that of Linux 5.13, which the paper compares with; that of today, with its
/// mode for tiers, is beside it.
///
/// `engine` moves the pages: one that moves none must not bear the paper out.
pub(crate) fn tpp_over_numa_balancing(
    engine: MigrationConfig,
    length: Length,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Claim>, SimError> {
    let parts = if length == Length::Whole { 1 } else { 8 };
    let mut machine = machines::load("cxl")?;
    machine.tiers[0].capacity.value = part(Bytes::gib(1), parts);
    machine.tiers[1].capacity.value = part(Bytes::gib(8), parts);
    machine.cpu.llc.value = Bytes::mib(1);
    let gups = GupsConfig {
        threads: 16,
        working_set: part(Bytes::gib(4), parts),
        hot_percent: 100,
        ..GupsConfig::hemem(part(Bytes::mib(512), parts))
    };
    // Two walks over 3 GiB at 256 MB a second take 24 s.
    let (warm_up, run) = (Nanos::seconds(60 / parts), Nanos::seconds(16 / parts));
    let mut speed = |policy: Box<dyn Policy>| {
        progress(policy.name());
        speed(engine, &machine, &gups, warm_up, run, policy)
    };
    let tpp = speed(Box::new(Tpp::new(TppConfig::default())))?;
    let balancing = speed(Box::new(AutoNuma::new(AutoNumaConfig::balancing())))?;
    let tiering = speed(Box::new(AutoNuma::new(AutoNumaConfig::tiering())))?;
    let claim = |paper, criterion: &str, value: f64, least: f64, other: f64| {
        let measured = format!("{value:.2}: {:.1} M/s against {:.1} M/s", tpp / 1e6, other / 1e6);
        Claim::new(paper, criterion, Bound::AtLeast(least), value, measured)
    };
    Ok(vec![
        claim(
            TPP_OVER_BALANCING,
            "faster by at least 5 % than NUMA balancing without tiers, as of Linux 5.13",
            tpp / balancing,
            1.05,
            balancing,
        ),
        claim(
            "what TPP brought is in Linux since (5.18: promotion by hint-fault latency, demotion)",
            "at least 0.9 of NUMA balancing in its mode for tiers",
            tpp / tiering,
            0.9,
            tiering,
        ),
    ])
}

/// Updates of pages that are strewn evenly over all huge pages: in each, one
/// base page in eight gets 90 % of them.
struct Strewn {
    bytes: u64,
    left: u64,
    random: Xorshift,
    begun: bool,
    populated: u64,
}

/// Where the strewn pages' memory begins.
const START: u64 = 0x1000_0000_0000;
/// One base page in so many is hot.
const HOT_OF: u64 = 8;

impl Strewn {
    fn new(bytes: Bytes, accesses: u64) -> Self {
        let random = Xorshift::new(0x9e37_79b9_7f4a_7c15);
        Self { bytes: bytes.get(), left: accesses, random, begun: false, populated: 0 }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n).unwrap_or(0)
    }
}

impl Source for Strewn {
    fn describe(&self) -> String {
        let size = Bytes(self.bytes);
        format!("updates in {size}, 90 % in one base page of eight of every huge page")
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        if !core::mem::replace(&mut self.begun, true) {
            batch.events.push(SpaceEvent::Map { start: START, len: self.bytes });
        }
        while self.populated < self.bytes && batch.accesses.len() < 4096 {
            batch.accesses.push(Access::store(START + self.populated));
            self.populated += PageSize::Base.bytes().get();
        }
        while self.left > 0 && batch.accesses.len() < 4096 {
            let page = if self.below(10) < 9 {
                self.below(self.bytes / 4096 / HOT_OF) * HOT_OF
            } else {
                self.below(self.bytes / 4096)
            };
            let address = START + page * 4096 + self.below(512) * 8;
            batch.accesses.push(Access::load(address).after(1));
            batch.accesses.push(Access::store(address).after(1));
            self.left -= self.left.min(2);
        }
        Ok(!batch.accesses.is_empty() || !batch.events.is_empty())
    }
}

/// The programs of MEMTIS's evaluation use some 64 GiB (`XSBench` and Silo; others
/// up to five times that); ours uses half a GiB.
const MEMTIS_SCALE: u64 = 128;

/// MEMTIS against HeMem, where huge pages are hot by a few base pages.
///
/// A quarter of the memory fits into DRAM. Of each huge page one base page in
/// eight is hot, so all huge pages look alike; split, the hot ones fit twice.
fn memtis_over_hemem(length: Length, progress: &mut dyn FnMut(&str)) -> Result<Claim, SimError> {
    let (parts, accesses) = if length == Length::Whole { (1, 60_000_000) } else { (4, 12_000_000) };
    let mut machine = machines::optane_cascade_lake();
    // The caches with the memory, or they would hold the hot set.
    machine.cpu.llc.value = part(Bytes(11 << 17), parts.min(2));
    if let Some(l2) = machine.detail.as_mut().and_then(|detail| detail.l2.as_mut()) {
        l2.size.value = Bytes::kib(256);
    }
    let mut run = |policy: Box<dyn Policy>| -> Result<f64, SimError> {
        progress(policy.name());
        let mut config = ExactConfig::new(machine.clone(), SimPolicy::Custom(policy.name()));
        config.page_size = PageSize::Huge;
        config.fast = Some(part(Bytes::mib(128), parts));
        config.sampler.period = 101;
        config.warm_up = accesses / 4 * 3;
        let mut source = Strewn::new(part(Bytes::mib(512), parts), accesses);
        let mut machine = ExactMachine::with_policy(&config, Some(policy))?;
        let report = exact::setup::run(&mut machine, &config, &mut source, &mut |_, _| {})?;
        Ok(report.throughput.get())
    };
    let scaled = MemtisConfig::default();
    let scale = MEMTIS_SCALE * parts;
    let memtis = Memtis::new(MemtisConfig {
        adaptation: scaled.adaptation / scale,
        cooling: scaled.cooling / scale,
        tick: Nanos(scaled.tick.get() / scale).max(Nanos::millis(1)),
        ..scaled
    });
    let memtis = run(Box::new(memtis))?;
    let hemem = run(Box::new(HeMem::new(HeMemConfig::default())))?;
    let value = memtis / hemem;
    Ok(Claim::new(
        "splitting skewed huge pages lets MEMTIS beat policies of one page size (MEMTIS, SOSP 2023)",
        "faster than HeMem on huge pages by at least 5 %",
        Bound::AtLeast(1.05),
        value,
        format!("{value:.2}: {:.1} M/s against {:.1} M/s", memtis / 1e6, hemem / 1e6),
    ))
}

/// The machine of Colloid's evaluation: a socket as the default tier, the other
/// one as the alternate; `left` is the share of the default tier's bandwidth
/// that antagonists on other cores leave.
fn two_sockets(left: f64, parts: u64) -> Result<Machine, SimError> {
    let mut machine = machines::load("cxl")?;
    let source = "recalled: Colloid, SOSP 2024, section 2: two sockets of Ice Lake";
    let tiers = &mut machine.tiers;
    for (tier, latency, bandwidth, capacity) in [(0, 70, 205e9 * left, 32), (1, 135, 75e9, 96)] {
        let tier = &mut tiers[tier];
        tier.capacity.value = part(Bytes::gib(capacity), parts);
        tier.read_latency.value = Nanos(latency);
        tier.write_latency.value = Nanos(latency);
        tier.read_bandwidth.value = BytesPerSecond(bandwidth);
        tier.write_bandwidth.value = BytesPerSecond(bandwidth);
        tier.combined_bandwidth = None;
        source.clone_into(&mut tier.read_latency.source);
    }
    machine.cpu.llc.value = part(Bytes::mib(48), parts);
    machine.cpu.miss_slots.value = 12.0;
    "recalled: Sunny Cove, 12 fill buffers of the first-level data cache"
        .clone_into(&mut machine.cpu.miss_slots.source);
    Ok(machine)
}

/// Colloid against HeMem: GUPS in 72 GiB with 24 GiB hot on 15 cores, as in the
/// paper, with the default tier alone and with antagonists that leave three
/// tenths of its bandwidth.
fn colloid_over_hemem(
    length: Length,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<Claim>, SimError> {
    let parts = if length == Length::Whole { 4 } else { 64 };
    let gups = GupsConfig {
        threads: 15,
        working_set: part(Bytes::gib(75), parts),
        // The published benchmark (`apps/gups/gups.c`) draws a number, with a
        // division, for a chunk of 64 lines, and loads, adds and stores each:
        // (42 + 11) / 64 cycles of the one, two of the other.
        compute: Cycles(3),
        ..GupsConfig::overlapping(part(Bytes::gib(24), parts))
    };
    let (warm_up, run) =
        (Nanos::seconds(120 / parts), Nanos::seconds(40 / parts).max(Nanos::SECOND));
    let mut ratio = |left: f64| -> Result<(f64, String), SimError> {
        let machine = two_sockets(left, parts)?;
        let mut speed = |policy: Box<dyn Policy>| {
            progress(policy.name());
            speed(MigrationConfig::hemem(), &machine, &gups, warm_up, run, policy)
        };
        let colloid = speed(Box::new(Colloid::new(ColloidConfig::default())))?;
        let hemem = speed(Box::new(HeMem::new(HeMemConfig::default())))?;
        let value = colloid / hemem;
        let text = format!("{value:.2}: {:.0} M/s against {:.0} M/s", colloid / 1e6, hemem / 1e6);
        Ok((value, text))
    };
    let (alone, alone_text) = ratio(1.0)?;
    let (crowded, crowded_text) = ratio(0.3)?;
    Ok(vec![
        Claim::new(
            "hot pages belong into the slower tier while the faster one is overloaded; up to 2.3x \
             (Colloid, SOSP 2024)",
            "with three tenths of the fast tier's bandwidth left, faster than HeMem by at least 20 %",
            Bound::AtLeast(1.2),
            crowded,
            crowded_text,
        ),
        Claim::new(
            "and nothing is lost where it is not overloaded",
            "with all of its bandwidth, at least 0.95 of HeMem",
            Bound::AtLeast(0.95),
            alone,
            alone_text,
        ),
    ])
}
