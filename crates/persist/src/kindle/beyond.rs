//! Beyond Kindle: every persistence scheme, and every placement policy with the
//! oracle that bounds them, on memories that Kindle did not have, with energy
//! and endurance.

use serde::Serialize;
use terrace_core::{Access, Bytes, BytesPerSecond, Machine, Nanos};
use terrace_dram::{Memory, MemoryFile, Picos, presets};
use terrace_economics::Mode;
use terrace_policy::PolicyName;
use terrace_sim::exact::{ExactConfig, ExactReport, setup};
use terrace_sim::workload::catalog::ProgramName;
use terrace_sim::{MigrationConfig, SimError, SimPolicy, machines};

use super::programs::{PROGRAMS, ProgramsConfig, on_all_processors, open};
use super::{Case, KindleConfig, Run, published};
use crate::clock::Traffic;
use crate::run::{RunConfig, RunReport, Survival, run};
use crate::scheme::SchemeKind;
use crate::wear::{Energy, years_levelled};

/// Memory files with a part that is not volatile.
pub const MEMORIES: [&str; 4] = ["kindle", "optane-hybrid", "stt-ram", "cxl-battery"];

/// Accesses of a program under a policy, for each access under a scheme: the
/// policies look around every 10 to 100 ms.
pub(super) const LONGER: u64 = 5;
/// Accesses between two samples of policies that sample: the core is slow, and
/// published periods would tell nothing within a second.
const SAMPLE_PERIOD: u64 = 200;
/// Share of a program's memory that fits into DRAM.
const FAST_SHARE: u64 = 4;
/// What three levels of caches add to a memory's idle latency: 30 cycles at
/// 3 GHz (`machines/kindle.toml`).
const CACHES: Picos = Picos(10_000);

/// One program under one scheme on one memory, at its own footprint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SchemeRow {
    /// The memory file.
    pub memory: &'static str,
    /// The program.
    pub program: ProgramName,
    /// Time over the time without persistence.
    pub time: f64,
    /// The whole run.
    pub run: RunReport,
}

/// One program under one policy on one memory, at its own footprint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyRow {
    /// The memory file.
    pub memory: &'static str,
    /// The program.
    pub program: ProgramName,
    /// What decides where pages lie.
    pub policy: String,
    /// Time over the time with everything in the non-volatile memory.
    pub time: f64,
    /// The same when the economist may veto what does not pay; `None` where
    /// nobody decides.
    pub enforced: Option<f64>,
    /// Share of the misses that DRAM served.
    pub from_dram: f64,
    /// Memory that was moved.
    pub moved: Bytes,
    /// What was written to non-volatile memory.
    pub nvm_written: Bytes,
    /// Energy of the memories.
    pub energy: Option<Energy>,
    /// Years until the memory is worn out, if writes are spread evenly.
    pub years_levelled: Option<f64>,
}

fn memory(name: &str) -> MemoryFile {
    presets::builtin(name).expect("built in")
}

/// Figure 4a on another memory: one size under the three schemes that keep the
/// mapping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AllocationRow {
    /// The memory file.
    pub memory: &'static str,
    /// What is allocated and touched.
    pub size: Bytes,
    /// In the order of [`SchemeKind::MAPPING`].
    pub runs: [Run; 3],
}

/// Figure 4a on every memory; the configuration's own is not looked at.
pub fn allocation(
    config: &KindleConfig,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<AllocationRow>, SimError> {
    let sizes: Vec<Bytes> = published()
        .iter()
        .filter_map(|(case, _)| match case {
            Case::Sequential(size) => (*size <= config.largest).then_some(*size),
            _ => None,
        })
        .collect();
    let each = SchemeKind::MAPPING.len();
    let configs = MEMORIES.map(|name| KindleConfig { memory: memory(name), ..config.clone() });
    let runs = on_all_processors(MEMORIES.len() * sizes.len() * each, progress, |index| {
        let (group, kind) = (index / each, SchemeKind::MAPPING[index % each]);
        let case = Case::Sequential(sizes[group % sizes.len()]);
        Ok(super::run(case, kind, &configs[group / sizes.len()]))
    })?;
    let rows = runs.chunks_exact(each).enumerate().map(|(group, runs)| AllocationRow {
        memory: MEMORIES[group / sizes.len()],
        size: sizes[group % sizes.len()],
        runs: [runs[0], runs[1], runs[2]],
    });
    Ok(rows.collect())
}

/// Every scheme on every memory.
pub fn schemes(
    config: &ProgramsConfig,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<SchemeRow>, SimError> {
    let each = Survival::ALL.len();
    let runs = on_all_processors(MEMORIES.len() * PROGRAMS.len() * each, progress, |index| {
        let (group, survival) = (index / each, Survival::ALL[index % each]);
        let (mut source, initial) =
            open(PROGRAMS[group % PROGRAMS.len()], config, config.accesses)?;
        let mut run_config = RunConfig::new(survival, memory(MEMORIES[group / PROGRAMS.len()]));
        run_config.skip = initial;
        run(&mut source, &run_config, &mut |_| {})
    })?;
    let mut rows = Vec::new();
    for (group, runs) in runs.chunks_exact(each).enumerate() {
        // The first survives by nothing.
        let plain = runs[0].time;
        rows.extend(runs.iter().map(|run| SchemeRow {
            memory: MEMORIES[group / PROGRAMS.len()],
            program: PROGRAMS[group % PROGRAMS.len()],
            time: run.time / plain,
            run: run.clone(),
        }));
    }
    Ok(rows)
}

/// Kindle's machine with another memory: latencies and bandwidths of both parts
/// are what the command timing of the memory file comes to.
///
/// # Panics
///
/// If the file has no DRAM or no non-volatile part.
pub fn machine_with(file: &MemoryFile) -> Machine {
    let mut machine = machines::builtin("kindle").expect("built in");
    machine.name = format!("kindle with {}", file.name);
    let dram = file.dram.as_ref().expect("DRAM").capacity();
    let begins = [0, file.nvm_begins().get()];
    for (tier, begin) in machine.tiers.iter_mut().zip(begins) {
        let latency = idle_read(file, begin).nanos();
        tier.read_latency.value = latency;
        // A store that misses first reads its line.
        tier.write_latency.value = latency;
        tier.read_bandwidth.value = stream(file, begin, Access::Read);
        tier.write_bandwidth.value = stream(file, begin, Access::Write);
    }
    machine.tiers[0].capacity.value = dram;
    // A page is copied line by line by the only core: reads of one memory, of
    // the other for the lines stored to, and what the processor does meanwhile
    // (the sum is in the machine file: 64 x (114 + 62) ns of memory of 15.9 us).
    let latencies: f64 = machine.tiers.iter().map(|tier| tier.read_latency.value.as_f64()).sum();
    let page = 15.9e-6 + 64.0 * (latencies - 176.0) * 1e-9;
    machine.costs.copy_bandwidth.value = BytesPerSecond(4096.0 / page);
    machine
}

/// A read of a memory that has nothing else to do, caches included.
fn idle_read(file: &MemoryFile, address: u64) -> Picos {
    let mut memory = Memory::new(file);
    let at = Picos::from(Nanos::micros(1));
    memory.access(Access::Read, address, at) - at + CACHES
}

/// Lines in order as fast as the memory takes them.
fn stream(file: &MemoryFile, begin: u64, access: Access) -> BytesPerSecond {
    const LINES: u64 = 1 << 14;
    let mut memory = Memory::new(file);
    let (mut now, mut last) = (Picos::ZERO, Picos::ZERO);
    for line in 0..LINES {
        now = memory.submit(access, begin + line * 64, now).released;
    }
    for (_, done) in memory.drain() {
        last = last.max(done);
    }
    BytesPerSecond::from_amount(Bytes(LINES * 64), last.max(now).nanos())
}

/// What places pages: nobody at either extreme, and every policy.
fn placements() -> Vec<SimPolicy> {
    let mut all = vec![SimPolicy::AllSlow, SimPolicy::AllDram];
    all.extend(PolicyName::ALL.map(SimPolicy::Policy));
    all
}

fn place(
    policy: SimPolicy,
    mode: Mode,
    machine: &Machine,
    program: ProgramName,
    config: &ProgramsConfig,
) -> Result<ExactReport, SimError> {
    let mut full = ExactConfig::new(machine.clone(), policy);
    (full.economist, full.seed) = (mode, config.seed);
    full.migration = MigrationConfig::kindle();
    full.sampler.period = SAMPLE_PERIOD;
    full.fast = (policy != SimPolicy::AllDram).then(|| config.size / FAST_SHARE);
    let (mut source, initial) = open(program, config, config.accesses * LONGER)?;
    full.warm_up = initial;
    setup::simulate(&full, &mut source, &mut |_, _| {})
}

/// Every policy on every memory.
pub fn policies(
    config: &ProgramsConfig,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<PolicyRow>, SimError> {
    let placements = placements();
    // Each without the economist, then with it.
    let each = placements.len() * 2;
    // Their bandwidths are measured, which takes longer than a short program.
    let machine_of = MEMORIES.map(|name| machine_with(&memory(name)));
    let reports = on_all_processors(MEMORIES.len() * PROGRAMS.len() * each, progress, |index| {
        let (group, policy) = (index / each, placements[index % each / 2]);
        let decided = matches!(policy, SimPolicy::Policy(_));
        let mode = if index % 2 == 0 { Mode::Off } else { Mode::Enforce };
        let machine = &machine_of[group / PROGRAMS.len()];
        // Where nobody decides there is nothing to veto.
        (decided || mode == Mode::Off)
            .then(|| place(policy, mode, machine, PROGRAMS[group % PROGRAMS.len()], config))
            .transpose()
    })?;
    let mut rows = Vec::new();
    for (group, reports) in reports.chunks_exact(each).enumerate() {
        let (name, program) = (MEMORIES[group / PROGRAMS.len()], PROGRAMS[group % PROGRAMS.len()]);
        let slow = reports[0].as_ref().map_or(Nanos::ZERO, |report| report.time);
        for (pair, policy) in reports.chunks_exact(2).zip(&placements) {
            let Some(report) = &pair[0] else { continue };
            let enforced = pair[1].as_ref().map(|report| report.time / slow);
            rows.push(PolicyRow::new(name, program, policy, report, slow, enforced));
        }
    }
    Ok(rows)
}

impl PolicyRow {
    fn new(
        name: &'static str,
        program: ProgramName,
        policy: &SimPolicy,
        report: &ExactReport,
        slow: Nanos,
        enforced: Option<f64>,
    ) -> Self {
        let file = memory(name);
        let lines = |rate: BytesPerSecond| (rate.over(report.time).as_f64() / 64.0) as u64;
        let mut traffic = Traffic::default();
        if let Some(dram) = report.tiers.first() {
            (traffic.dram_reads, traffic.dram_writes) =
                (lines(dram.read_bandwidth), lines(dram.write_bandwidth));
        }
        if let Some(nvm) = report.tiers.get(1) {
            (traffic.nvm_reads, traffic.nvm_writes) =
                (lines(nvm.read_bandwidth), lines(nvm.write_bandwidth));
        }
        Self {
            memory: name,
            program,
            policy: policy.name().to_owned(),
            time: report.time / slow,
            enforced,
            from_dram: report.tiers.first().map_or(0.0, |tier| tier.share),
            moved: report.migrated_measured.moved,
            nvm_written: Bytes(traffic.nvm_writes * 64),
            energy: Energy::new(&traffic, &file),
            years_levelled: years_levelled(&file, traffic.nvm_writes as f64, report.time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the machine file derived by hand is what the command timing says; a
    /// machine from the wrong half of the memory would make all policies alike.
    #[test]
    fn the_derived_machine_agrees_with_the_machine_file() {
        let file = machines::builtin("kindle").expect("built in");
        let derived = machine_with(&memory("kindle"));
        for (derived, by_hand) in derived.tiers.iter().zip(&file.tiers) {
            let ratio = derived.read_latency.value / by_hand.read_latency.value;
            assert!((0.85..1.15).contains(&ratio), "{}: {ratio}", by_hand.name);
        }
        let latency = |name: &str| machine_with(&memory(name)).tiers[1].read_latency.value;
        assert!(latency("stt-ram") < latency("kindle"));
        assert!(latency("kindle") < latency("optane-hybrid"));
    }

    #[test]
    fn every_policy_and_scheme_has_a_row_and_the_oracle_is_no_worse_than_all_slow() {
        let config =
            ProgramsConfig { size: Bytes::mib(2), accesses: 3_000, ..ProgramsConfig::default() };
        let nothing = |_, _| {};
        let schemes = schemes(&config, &nothing).expect("runs");
        assert_eq!(schemes.len(), MEMORIES.len() * PROGRAMS.len() * Survival::ALL.len());
        let policies = policies(&config, &nothing).expect("runs");
        let placements = PolicyName::ALL.len() + 2;
        assert_eq!(policies.len(), MEMORIES.len() * PROGRAMS.len() * placements);
        for row in &policies {
            assert!(row.energy.is_some(), "{} {}", row.memory, row.policy);
            assert!(row.policy != "all-dram" || row.time < 1.0, "{} {}", row.memory, row.time);
            assert_eq!(row.enforced.is_some(), !row.policy.starts_with("all-"));
        }
    }
}
