//! CBMM: huge pages on fragmented memory, and the tail of page faults.
//!
//! Mansi, Tabatabai and Swift, *CBMM: Financial Advice for Kernel Memory Managers*, USENIX ATC
//! 2022. Programs are stand-ins by name in the shape of the paper's, at its sizes
//! ([`crate::mm::stand_ins`]), or recordings; the kernel is [`crate::mm`]. Nothing is fitted to
//! a published run time. `docs/reproduce-cbmm.md` has results, and says where they differ and
//! why.
//!
//! | file | concept |
//! |---|---|
//! | [`paper`] | what was published |
//! | `claims` | the paper's statements, judged |
//! | `render` | all of it as text |

mod claims;
pub mod paper;
mod render;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use terrace_core::{Bytes, Cycles, Machine, Nanos};

use super::claim::Claim;
use crate::analytic::listeners::OnDecisions;
use crate::error::SimError;
use crate::exact::Batch;
use crate::machines;
use crate::mm::benefit::Profile;
use crate::mm::costs::Sourced;
use crate::mm::program::{MmProgram, Recorded};
use crate::mm::run::{Profiled, RunReport, run_heard, run_profiled};
use crate::mm::stand_ins::{Size, StandIn};
use crate::mm::{Costs, Fragmentation, MmConfig, MmPolicyName};
use crate::trace::{Format, import};

/// What to reproduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CbmmConfig {
    /// How much of the programs is run.
    pub size: Size,
    /// The programs of the paper.
    pub programs: Vec<StandIn>,
    /// Policies. `never` and `always` are run whatever this says: profiles are made of them, and run
    /// times are compared with them.
    pub policies: Vec<MmPolicyName>,
    /// Recordings beside them, by name.
    pub recorded: Vec<(String, PathBuf)>,
    /// What work costs in the kernel.
    pub costs: Costs,
    /// Of huge pages and filled ranges that pay, and of seconds with compaction ahead, ours holds out one
    /// in so many; none for 0.
    pub hold_out: u32,
    /// Host threads; the result does not depend on it.
    pub host_threads: usize,
}

/// The paper's machine.
const MEMORY: Bytes = Bytes::gib(192);
/// Its last level: 10 slices of 1.375 MiB, as of all Skylake servers.
const LLC: Bytes = Bytes::kib(14_080);
/// Memory of a machine for a recording: what it touches, as the paper's programs are to theirs
/// (150 of 192 GiB), and at least this.
const LEAST: Bytes = Bytes::mib(256);

impl CbmmConfig {
    /// All of memory, and a quarter million accesses of each epoch.
    pub fn whole() -> Self {
        Self {
            size: Size { smaller: 1, epochs: 12, sample: 250_000, seed: 1 },
            programs: StandIn::ALL.to_vec(),
            policies: MmPolicyName::ALL.to_vec(),
            recorded: Vec::new(),
            costs: Costs::builtin(),
            hold_out: 0,
            host_threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// A 16th of memory and work: longest faults are as much shorter.
    pub fn quick() -> Self {
        let size = Size { smaller: 16, epochs: 6, sample: 60_000, seed: 1 };
        Self { size, ..Self::whole() }
    }

    /// The policies that are run, in the order of the tables.
    fn policies(&self) -> Vec<MmPolicyName> {
        let always = [MmPolicyName::Never, MmPolicyName::Always];
        let is_run = |policy: &MmPolicyName| always.contains(policy) || self.runs(*policy);
        MmPolicyName::ALL.into_iter().filter(is_run).collect()
    }

    fn runs(&self, policy: MmPolicyName) -> bool {
        self.policies.contains(&policy)
    }
}

/// The paper's machine, as far as programs see it: the processor of the HeMem machine is of the
/// same family, and has a larger last level.
///
/// # Errors
///
/// Where the machine that comes with Terrace cannot be read.
pub fn the_machine() -> Result<Machine, SimError> {
    let mut machine = machines::load("optane-cascade-lake")?;
    machine.cpu.llc.value = LLC;
    if let Some(detail) = &mut machine.detail {
        // 2048 sets a slice.
        detail.llc.ways.value = 11;
    }
    Ok(machine)
}

/// A program's own figures, base pages on unfragmented memory, beside the paper's counters.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramRow {
    /// The program.
    pub program: String,
    /// What it is here.
    pub what: String,
    /// Memory that it uses.
    pub memory: Bytes,
    /// Page walks for a thousand instructions: ours, the paper's.
    pub walks_per_thousand: [Option<f64>; 2],
    /// Cycles of a page walk: ours, the paper's.
    pub cycles_per_walk: [Option<f64>; 2],
    /// Run time in huge pages over that in base pages: ours, the paper's.
    pub huge_over_base: [Option<f64>; 2],
    /// Rules of its profile.
    pub rules: usize,
    /// Their median benefit for a huge page.
    pub median_benefit: Cycles,
    /// The profile in CBMM's format.
    pub profile: String,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct CbmmTable {
    /// Version of this structure.
    pub schema: u32,
    /// The machine.
    pub machine: String,
    /// Its memory.
    pub memory: Bytes,
    /// How much of the programs was run.
    pub size: Size,
    /// What work costs in the kernel, with sources.
    pub costs: Vec<Sourced>,
    /// The programs.
    pub programs: Vec<ProgramRow>,
    /// Every run: by program, then state of memory, then policy.
    pub runs: Vec<RunReport>,
    /// The paper's statements, judged.
    pub claims: Vec<Judged>,
}

/// A statement, and where ours differs the cause.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The statement.
    #[serde(flatten)]
    pub claim: Claim,
    /// Why ours differs, if it does.
    pub cause: Option<&'static str>,
}

/// A program to run.
#[derive(Clone, Debug)]
enum Which {
    StandIn(StandIn),
    Recorded { name: String, path: PathBuf, memory: Bytes },
}

impl Which {
    fn name(&self) -> &str {
        match self {
            Self::StandIn(one) => one.name(),
            Self::Recorded { name, .. } => name,
        }
    }

    fn build(&self, config: &CbmmConfig) -> Result<Box<dyn MmProgram>, SimError> {
        Ok(match self {
            Self::StandIn(one) => Box::new(one.build(&config.size)),
            Self::Recorded { path, .. } => {
                Box::new(Recorded::new(import::open(path, Format::of(path))?))
            }
        })
    }

    fn mm(&self, config: &CbmmConfig, policy: MmPolicyName) -> MmConfig {
        let memory = match self {
            Self::StandIn(_) => MEMORY / config.size.smaller,
            Self::Recorded { memory, .. } => *memory,
        };
        MmConfig {
            costs: config.costs,
            seed: config.size.seed,
            hold_out: config.hold_out,
            ..MmConfig::new(memory, policy)
        }
    }

    /// About how much memory it uses.
    fn size(&self, config: &CbmmConfig) -> Bytes {
        match self {
            Self::StandIn(one) => one.build(&config.size).footprint(),
            Self::Recorded { memory, .. } => *memory,
        }
    }

    /// The process whose profile CBMM has, where it has none of others: of redis for its mix.
    const fn profiled(&self) -> Option<u32> {
        match self {
            Self::StandIn(StandIn::Mix) => Some(0),
            _ => None,
        }
    }
}

/// A program, a state of memory and a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Job {
    program: usize,
    fragmentation: Fragmentation,
    policy: MmPolicyName,
}

impl Job {
    fn mm(&self, which: &Which, config: &CbmmConfig) -> MmConfig {
        MmConfig { fragmentation: self.fragmentation, ..which.mm(config, self.policy) }
    }
}

/// Runs everything. `progress` is told how many simulations are done, of how many, and what
/// comes next.
///
/// # Errors
///
/// Where a recording cannot be read, or does not fit.
pub fn cbmm(
    config: &CbmmConfig,
    progress: &(dyn Fn(usize, usize, &str) + Sync),
) -> Result<CbmmTable, SimError> {
    cbmm_heard(config, progress, &|_, _| None)
}

/// The same. `hear` says who hears of what Terrace's estimator decides for a program in a state of
/// memory. Several runs are under way at the same time.
///
/// # Errors
///
/// As [`cbmm`].
pub fn cbmm_heard(
    config: &CbmmConfig,
    progress: &(dyn Fn(usize, usize, &str) + Sync),
    hear: &(dyn Fn(&str, Fragmentation) -> Option<OnDecisions> + Sync),
) -> Result<CbmmTable, SimError> {
    let machine = the_machine()?;
    let mut programs: Vec<Which> = config.programs.iter().map(|one| Which::StandIn(*one)).collect();
    for (name, path) in &config.recorded {
        let memory = memory_for(path)?;
        programs.push(Which::Recorded { name: name.clone(), path: path.clone(), memory });
    }
    let policies = config.policies();
    let mut jobs = Vec::new();
    for program in 0..programs.len() {
        for fragmentation in Fragmentation::ALL {
            jobs.extend(policies.iter().map(|&policy| Job { program, fragmentation, policy }));
        }
    }
    let all = jobs.len();
    let done = AtomicUsize::new(0);
    let finished = |name: &str| {
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, all, name);
    };
    progress(0, all, "");
    // Large programs take longest. They begin first, so that no processor is idle for long at
    // the end.
    let sizes: Vec<Bytes> = programs.iter().map(|which| which.size(config)).collect();
    let longest = |job: &Job| std::cmp::Reverse(sizes[job.program]);
    let (mut second, mut first): (Vec<_>, Vec<_>) =
        jobs.iter().copied().partition(|job| job.policy.needs_profile());
    first.sort_by_key(longest);
    second.sort_by_key(longest);
    let profiled = parallel(&first, config.host_threads, |job| {
        let which = &programs[job.program];
        let mut program = which.build(config)?;
        let mut profiled = run_profiled(&job.mm(which, config), &machine, program.as_mut())?;
        which.name().clone_into(&mut profiled.report.program);
        finished(which.name());
        Ok(profiled)
    })?;
    let profiled: HashMap<Job, Profiled> = first.into_iter().zip(profiled).collect();
    let profiles: Vec<Profile> = (0..programs.len())
        .map(|program| {
            let of = |policy| Job { program, fragmentation: Fragmentation::None, policy };
            let clock = programs[program].mm(config, MmPolicyName::Never).clock;
            let [base, huge] = [MmPolicyName::Never, MmPolicyName::Always].map(of);
            profiled[&base].profile(&profiled[&huge], clock)
        })
        .collect();
    let with_profiles = parallel(&second, config.host_threads, |job| {
        let which = &programs[job.program];
        let mut program = which.build(config)?;
        // Terrace makes one profile of all processes; CBMM had one of redis for its mix.
        let only = if job.policy == MmPolicyName::Cbmm { which.profiled() } else { None };
        let profile = profiles[job.program].of(only);
        let mm = job.mm(which, config);
        let is_ours = job.policy == MmPolicyName::Economist;
        let decisions = if is_ours { hear(which.name(), job.fragmentation) } else { None };
        let mut report = run_heard(&mm, &machine, program.as_mut(), Some(&profile), decisions)?;
        which.name().clone_into(&mut report.program);
        finished(which.name());
        Ok(report)
    })?;
    let mut reports: HashMap<Job, RunReport> = second.into_iter().zip(with_profiles).collect();
    reports.extend(profiled.into_iter().map(|(job, profiled)| (job, profiled.report)));
    let runs: Vec<RunReport> = jobs.iter().filter_map(|job| reports.remove(job)).collect();
    let rows = programs
        .iter()
        .zip(&profiles)
        .map(|(which, profile)| program_row(which, profile, &runs, config))
        .collect::<Result<Vec<_>, SimError>>()?;
    // A statement is about all programs, and about what is run beside Linux.
    let is_judged = config.runs(MmPolicyName::Cbmm) && config.runs(MmPolicyName::Economist);
    let claims = if is_judged { claims::claims(&runs, &config.programs) } else { Vec::new() };
    Ok(CbmmTable {
        schema: 1,
        machine: "one socket of Intel Xeon Silver 4114, 2.2 GHz, and its 192 GB".into(),
        memory: MEMORY / config.size.smaller,
        size: config.size,
        costs: config.costs.sources(),
        programs: rows,
        runs,
        claims,
    })
}

/// A machine's memory for a recording.
fn memory_for(path: &std::path::Path) -> Result<Bytes, SimError> {
    let mut source = import::open(path, Format::of(path))?;
    let mut batch = Batch::default();
    let mut pages = std::collections::HashSet::new();
    while source.next(&mut batch)? {
        let data = batch.accesses.iter().filter(|access| access.is_data());
        pages.extend(data.map(|access| access.address() >> 12));
    }
    let touched = Bytes(pages.len() as u64 * 4096);
    // Huge pages take more than what is touched.
    let memory = Bytes::from_f64(touched.as_f64() * 192.0 / 150.0) + Bytes::mib(64);
    Ok(Bytes(memory.max(LEAST).get().next_multiple_of(2 << 20)))
}

/// The run of a program, a state and a policy.
pub(super) fn find<'a>(
    runs: &'a [RunReport],
    program: &str,
    fragmentation: Fragmentation,
    policy: MmPolicyName,
) -> Option<&'a RunReport> {
    runs.iter().find(|run| {
        run.program == program && run.fragmentation == fragmentation && run.policy == policy
    })
}

fn program_row(
    which: &Which,
    profile: &Profile,
    runs: &[RunReport],
    config: &CbmmConfig,
) -> Result<ProgramRow, SimError> {
    let of = |policy| find(runs, which.name(), Fragmentation::None, policy);
    let base = of(MmPolicyName::Never);
    let huge = of(MmPolicyName::Always);
    let clock = which.mm(config, MmPolicyName::Never).clock;
    let averted = profile.rules.iter().filter_map(|known| known.rule.averted);
    let mut benefits: Vec<Cycles> = averted.collect();
    benefits.sort_unstable();
    let (what, published, times) = match which {
        // Run times of `fig1-*.csv`: base pages, huge pages.
        Which::StandIn(one) => {
            let times = match one {
                StandIn::Canneal => Some(11_241.5 / 16_148.6),
                StandIn::Mcf => Some(799.2 / 840.1),
                StandIn::Memcached => Some(626.1 / 620.1),
                StandIn::Mongodb => Some(8_875.3 / 7_689.1),
                StandIn::Xz => Some(5_696.9 / 5_931.8),
                StandIn::Mix => None,
            };
            (one.what().to_owned(), one.published(), times)
        }
        Which::Recorded { .. } => {
            (format!("recorded: {}", which.build(config)?.describe()), None, None)
        }
    };
    let walks = |run: &RunReport| run.walks * 1000.0 / run.instructions.max(1.0);
    let each = |run: &RunReport| clock.cycles(run.walking).as_f64() / run.walks.max(1.0);
    let ratio = base.zip(huge).map(|(base, huge)| huge.time.as_f64() / base.time.as_f64());
    Ok(ProgramRow {
        program: which.name().to_owned(),
        what,
        memory: base.map_or(Bytes::ZERO, |run| run.memory),
        walks_per_thousand: [base.map(walks), published.map(|of| of.walks_per_thousand)],
        cycles_per_walk: [base.map(each), published.map(|of| of.cycles_per_walk)],
        huge_over_base: [ratio, times],
        rules: profile.rules.len(),
        median_benefit: benefits.get(benefits.len() / 2).copied().unwrap_or(Cycles::ZERO),
        profile: profile.to_string(),
    })
}

/// Does all jobs, and returns what came of them in their order.
fn parallel<J: Sync, T: Send>(
    jobs: &[J],
    threads: usize,
    one: impl Fn(&J) -> Result<T, SimError> + Sync,
) -> Result<Vec<T>, SimError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::new());
    let work = || -> Result<(), SimError> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(number) else { return Ok(()) };
            let result = one(job)?;
            results
                .lock()
                .expect("no worker panics while it holds the lock")
                .push((number, result));
        }
    };
    std::thread::scope(|scope| {
        let workers = threads.clamp(1, jobs.len().max(1));
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        handles.into_iter().try_for_each(|handle| match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let mut results = results.into_inner().expect("all workers have ended");
    results.sort_by_key(|&(number, _)| number);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// A time in words that fit a column.
pub fn short(time: Nanos) -> String {
    let nanos = time.as_f64();
    match nanos {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.1} us", n / 1e3),
        n if n < 1e9 => format!("{:.1} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}
