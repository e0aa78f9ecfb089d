//! The figures and tables of KLOCs, from the simulated kernel.
//!
//! Kannan, Ren and Bhattacharjee, *KLOCs: Kernel-Level Object Contexts for Heterogeneous Memory
//! Systems*, ASPLOS 2021. Nothing is fitted: the machine, the costs of calls and the shapes of
//! programs are files with sources, and criteria were written before any table was made.
//! `docs/reproduce-klocs.md` has results, and says where they differ and why.
//!
//! | file | concept |
//! |---|---|
//! | `recorded` | a recorded program in place of calls that are made up |
//! | `claims` | the paper's statements, judged |
//! | `render` | all of it as text |

mod claims;
mod recorded;
mod render;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use terrace_core::{Bytes, BytesPerSecond, EventRef, Machine, ObjectKind};
use terrace_kloc::policy::{Strategy, StrategyConfig};
use terrace_kloc::{Kmap, KmapConfig};

use super::claim::Claim;
use crate::error::SimError;
use crate::kernel::programs::{Amount, Program, Shapes};
use crate::kernel::{Calls, Class, Costs, Kernel, KernelConfig, KernelReport, SocketsConfig};
use crate::machines;

pub use self::recorded::{Facts, Recorded, Unusable};

/// What to reproduce.
#[derive(Clone, Debug)]
pub struct KlocsConfig {
    /// By how much memories and data are smaller than the paper's. A recording has a scale of its
    /// own ([`Recorded::scale`]).
    pub scale: u64,
    /// Operations of each thread that are measured. Of a recording as many calls are measured as
    /// all threads of a made-up program have operations.
    pub operations: u64,
    /// The same in Figure 6, which has nine machines.
    pub operations_of_sweep: u64,
    /// Recordings in place of calls that are made up, each of another program.
    pub recorded: Vec<Recorded>,
    /// Where all randomness comes from.
    pub seed: u64,
    /// Host threads; the result does not depend on it.
    pub host_threads: usize,
    /// What calls cost.
    pub costs: Costs,
}

impl KlocsConfig {
    /// A 128th of the paper's sizes.
    pub fn whole() -> Self {
        let host_threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            scale: 128,
            operations: 20_000,
            operations_of_sweep: 5_000,
            recorded: Vec::new(),
            seed: 1,
            host_threads,
            costs: Costs::builtin(),
        }
    }

    /// A 512th, and fewer operations.
    pub fn quick() -> Self {
        Self { scale: 512, operations: 4_000, operations_of_sweep: 1_000, ..Self::whole() }
    }

    /// The recording of a program, where there is one.
    fn recording(&self, program: Program) -> Option<&Recorded> {
        self.recorded.iter().find(|recorded| recorded.program() == program)
    }

    /// Where a program's calls come from.
    fn origin(&self, program: Program, shapes: &Shapes) -> Origin {
        let recorded = self.recording(program);
        Origin {
            program,
            scale: recorded.map_or(self.scale, Recorded::scale),
            recorded: recorded.map(|recorded| recorded.facts(of_all(self.operations, shapes))),
        }
    }
}

/// Operations of all threads, each with so many.
fn of_all(operations: u64, shapes: &Shapes) -> u64 {
    operations * u64::from(shapes.data.threads.value)
}

/// Where a program's calls come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// The program.
    pub program: Program,
    /// By how much memories and data are smaller than the paper's.
    pub scale: u64,
    /// What was recorded. Without a recording, calls are made up in the shape of the program.
    pub recorded: Option<Facts>,
}

/// Figure 2: what a program's pages hold.
#[derive(Clone, Debug, Serialize)]
pub struct Footprint {
    /// The program.
    pub program: Program,
    /// Its data, at full scale.
    pub data: Bytes,
    /// Pages that were allocated, those freed since included, by [`Class`].
    pub pages: [u64; 4],
    /// Lines that were touched, by [`Class`].
    pub references: [u64; 4],
    /// Mean lifetime of the pages that were freed, in milliseconds, by [`Class`].
    pub freed_ms: [Option<f64>; 4],
    /// The same with those that lived at the end, by their age then.
    pub all_ms: [Option<f64>; 4],
    /// Objects that were allocated, by [`ObjectKind`].
    pub objects: [u64; ObjectKind::COUNT],
}

/// A program under a strategy.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The program.
    pub program: Program,
    /// The strategy.
    pub strategy: &'static str,
    /// Operations a second.
    pub throughput: f64,
    /// Over the same with all in slow memory.
    pub speedup: f64,
    /// Pages placed in slow memory while measured: of the page cache, of slabs.
    pub slow_pages: [u64; 2],
    /// Pages moved down while measured, by [`Class`].
    pub demoted: [u64; 4],
    /// Pages moved up, by [`Class`].
    pub promoted: [u64; 4],
}

/// Figure 5c: KLOCs that knows some kinds of objects.
#[derive(Clone, Debug, Serialize)]
pub struct Kinds {
    /// The program.
    pub program: Program,
    /// The kinds that were added last.
    pub kinds: &'static str,
    /// Over all in slow memory.
    pub speedup: f64,
}

/// Figure 6: a machine, and speedups over all programs.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The fast memory at full scale.
    pub fast: Bytes,
    /// How many times its bandwidth is the slow memory's.
    pub ratio: u64,
    /// The strategy.
    pub strategy: &'static str,
    /// Mean over the programs.
    pub mean: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

/// Table 6: memory of the structures.
#[derive(Clone, Debug, Serialize)]
pub struct Structures {
    /// The program.
    pub program: Program,
    /// What they took at the end, at the scale of the simulation.
    pub bytes: Bytes,
    /// Over all memory in use then.
    pub share: f64,
    /// Lookups that the lists of the processors saved.
    pub saved: f64,
}

/// Figure 5a: a program on two sockets in Memory Mode, under a strategy.
#[derive(Clone, Debug, Serialize)]
pub struct OnSockets {
    /// The program.
    pub program: Program,
    /// The strategy.
    pub strategy: &'static str,
    /// Operations a second.
    pub throughput: f64,
    /// Over the same with all memory at the other socket.
    pub speedup: f64,
    /// Pages that moved to the program's socket while measured, by [`Class`].
    pub moved: [u64; 4],
}

/// Section 7.3: a strategy with and without read-ahead.
#[derive(Clone, Debug, Serialize)]
pub struct Prefetched {
    /// The program.
    pub program: Program,
    /// The strategy.
    pub strategy: &'static str,
    /// Operations a second without read-ahead, and with it.
    pub throughput: [f64; 2],
    /// Page-cache pages that moved up while measured, with read-ahead.
    pub promoted: u64,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct KlocsTable {
    /// Version of this structure.
    pub schema: u32,
    /// The machine.
    pub machine: String,
    /// By how much memories and data are smaller than the paper's, where calls are made up.
    pub scale: u64,
    /// Where each program's calls come from.
    pub programs: Vec<Origin>,
    /// Figure 2.
    pub footprints: Vec<Footprint>,
    /// Figures 4 and 5b.
    pub runs: Vec<Run>,
    /// Figure 5a.
    pub sockets: Vec<OnSockets>,
    /// Section 7.3.
    pub prefetched: Vec<Prefetched>,
    /// Figure 5c.
    pub kinds: Vec<Kinds>,
    /// Figure 6.
    pub points: Vec<Point>,
    /// Table 6.
    pub structures: Vec<Structures>,
    /// The paper's statements, judged.
    pub claims: Vec<Claim>,
}

/// Strategies in Figure 6.
const SWEPT: [Strategy; 5] = [
    Strategy::AllSlow,
    Strategy::Naive,
    Strategy::Nimble,
    Strategy::NimblePlusPlus,
    Strategy::Klocs,
];

/// Strategies of section 7.3.
const PREFETCHED: [Strategy; 5] = [
    Strategy::Naive,
    Strategy::Nimble,
    Strategy::NimblePlusPlus,
    Strategy::Klocs,
    Strategy::KlocsPrefetch,
];
/// Programs of section 7.3: one in which prefetched pages are useful, and one that reads at random.
const READ_AHEAD: [Program; 2] = [Program::RocksDb, Program::Filebench];

/// Threads that stream through the other socket's memory. The paper says of its interfering
/// program that it streams through memory, not how many threads it has: as many as the programs.
const STREAMS: u32 = 16;

/// Groups of kinds in the order of Figure 5c.
const GROUPS: [(&str, &[ObjectKind]); 6] = [
    ("program only", &[]),
    ("+ page cache", &[ObjectKind::PageCachePage]),
    ("+ journal", &[ObjectKind::JournalBuffer]),
    ("+ slab", &[ObjectKind::Inode, ObjectKind::Dentry, ObjectKind::Extent]),
    (
        "+ socket buffers",
        &[ObjectKind::Sock, ObjectKind::Skbuff, ObjectKind::SkbuffData, ObjectKind::ReceiveBuffer],
    ),
    ("+ block I/O", &[ObjectKind::Bio, ObjectKind::BlkMqRequest]),
];

/// One simulation.
#[derive(Clone, Copy, Debug)]
struct Job {
    program: Program,
    strategy: Strategy,
    fast: Bytes,
    /// The slow memory has so many times less bandwidth; `None` for what the machine file says.
    ratio: Option<u64>,
    large: bool,
    kinds: u16,
    operations: u64,
    /// Whether a kmap listens.
    measured: bool,
    on: Platform,
    /// Whether the kernel reads ahead.
    reads_ahead: bool,
}

/// A machine of the paper's Table 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Platform {
    TwoTier,
    MemoryMode,
}

/// What came of one.
struct Outcome {
    report: KernelReport,
    structures: Option<(Bytes, f64)>,
    used: Bytes,
}

const ALL_KINDS: u16 = (1 << ObjectKind::COUNT) - 1;
/// The paper's fast memory.
const FAST: Bytes = Bytes::gib(8);

impl Job {
    fn new(program: Program, strategy: Strategy, config: &KlocsConfig) -> Self {
        Self {
            program,
            strategy,
            fast: FAST,
            ratio: None,
            large: true,
            kinds: ALL_KINDS,
            operations: config.operations,
            measured: false,
            on: Platform::TwoTier,
            reads_ahead: true,
        }
    }

    /// The Memory Mode machine, with memories and DRAM caches that are smaller.
    fn memory_mode(scale: u64) -> Result<Machine, SimError> {
        let mut machine = machines::load("kloc-memory-mode")?;
        for tier in &mut machine.tiers {
            tier.capacity.value = Bytes(tier.capacity.value.get() / scale);
        }
        if let Some(cache) = &mut machine.dram_cache {
            cache.capacity.value = Bytes(cache.capacity.value.get() / scale);
        }
        Ok(machine)
    }

    fn machine(&self, scale: u64) -> Result<Machine, SimError> {
        if self.on == Platform::MemoryMode {
            return Self::memory_mode(scale);
        }
        let mut machine = machines::load("kloc-two-tier")?;
        let all = Bytes((FAST + machine.tiers[1].capacity.value).get() / scale);
        // All strategies have the same memory altogether: when dirty pages are written, and when
        // writers wait for that, depends on it. A tier that nothing lies in is a page.
        let least = Bytes::kib(4);
        let fast = match self.strategy {
            Strategy::AllFast => all - least,
            Strategy::AllSlow => least,
            _ => Bytes(self.fast.get() / scale),
        };
        machine.tiers[0].capacity.value = fast;
        machine.tiers[1].capacity.value = all - fast;
        if let Some(ratio) = self.ratio {
            let fast = machine.tiers[0].read_bandwidth.value.get();
            let slow = BytesPerSecond(fast / ratio as f64);
            machine.tiers[1].read_bandwidth.value = slow;
            machine.tiers[1].write_bandwidth.value = slow;
        }
        Ok(machine)
    }

    fn run(&self, config: &KlocsConfig, shapes: &Shapes) -> Result<Outcome, SimError> {
        let recorded = config.recording(self.program);
        let scale = recorded.map_or(config.scale, Recorded::scale);
        let mut calls: Box<dyn Calls + '_> = if let Some(recorded) = recorded {
            Box::new(recorded.calls(of_all(self.operations, shapes)))
        } else {
            let data = if self.large { &shapes.data.large } else { &shapes.data.small };
            let amount = Amount {
                data: Bytes(data.value.get() / scale),
                scale,
                operations: self.operations,
                seed: config.seed,
            };
            self.program.calls(shapes, &amount)
        };
        let mut kernel = KernelConfig::new(self.machine(scale)?);
        kernel.costs = config.costs.clone().scaled(scale);
        if !self.reads_ahead {
            kernel.costs.pace.read_ahead.value = Bytes::kib(4);
        }
        kernel.tells_ahead = self.strategy == Strategy::KlocsPrefetch;
        // What could be at the own socket from the start has nothing to be moved for.
        let moves = self.strategy != Strategy::AllFast;
        kernel.sockets =
            (self.on == Platform::MemoryMode).then_some(SocketsConfig { streams: STREAMS, moves });
        // Data have a share of the cache that is as much smaller, or it would hold what is hot.
        kernel.scale = scale;
        let threads = calls.threads();
        let cpus = threads.min(kernel.machine.cpu.cores.value as usize);
        let strategy = StrategyConfig { kinds: self.kinds, ..StrategyConfig::new(cpus, scale) };
        let policy = self.strategy.build(&strategy);
        let mut kernel = Kernel::new(&kernel, policy, threads, calls.pages())?;
        if let Some(recorded) = recorded {
            recorded.put_on_disk(&mut kernel)?;
        }
        let journal = kernel.journal_context();
        let listener = self.measured.then(|| {
            let kmap = Arc::new(Mutex::new(Kmap::new(KmapConfig::new(cpus, 64))));
            let heard = Arc::clone(&kmap);
            kernel.record(Some(Box::new(move |event| {
                // The journal's file was made before anybody listened.
                if let EventRef::Context { event } = event
                    && event.context != journal
                {
                    let mut kmap = heard.lock().expect("nobody panics while it holds the lock");
                    kmap.event(event).expect("a kernel tells only what can happen");
                }
            })));
            kmap
        });
        let report = kernel.run(calls.as_mut()).map_err(|refused| match recorded {
            Some(recorded) => recorded.refused(refused),
            None => SimError::parameter("program", refused.to_string()),
        })?;
        let structures = listener.map(|kmap| {
            let kmap = kmap.lock().expect("the run is over");
            (kmap.footprint().total, kmap.per_cpu().counts().saved())
        });
        let all: Bytes = self.machine(scale)?.tiers.iter().map(|t| t.capacity.value).sum();
        let used = all.saturating_sub(Bytes(u64::from(kernel.free_pages()) * 4096));
        Ok(Outcome { report, structures, used })
    }
}

fn by_class<T>(of: impl FnMut(Class) -> T) -> [T; 4] {
    Class::ALL.map(of)
}

/// Runs everything. `progress` is told how many simulations are done, of how many.
pub fn klocs(
    config: &KlocsConfig,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<KlocsTable, SimError> {
    let shapes = Shapes::builtin();
    let mut jobs = Vec::new();
    for large in [true, false] {
        // A recording has the size that it has.
        let has = |program: &Program| large || config.recording(*program).is_none();
        let characterised = Program::ALL.into_iter().filter(has);
        let job = |program| Job { large, ..Job::new(program, Strategy::AllFast, config) };
        jobs.extend(characterised.map(job));
    }
    let of_footprints = jobs.len();
    for program in Program::ALL {
        jobs.extend(Strategy::ALL.map(|strategy| Job::new(program, strategy, config)));
    }
    let of_runs = jobs.len();
    for program in Program::ALL {
        let mut kinds = 0;
        for (_, group) in GROUPS {
            kinds |= group.iter().fold(0, |bits, kind| bits | 1 << kind.index());
            jobs.push(Job { kinds, ..Job::new(program, Strategy::Klocs, config) });
        }
    }
    let of_kinds = jobs.len();
    let machines = [4, 8, 32].into_iter().flat_map(|fast| [8, 4, 2].map(|ratio| (fast, ratio)));
    let machines: Vec<(u64, u64)> = machines.collect();
    for &(fast, ratio) in &machines {
        for strategy in SWEPT {
            jobs.extend(Program::ALL.map(|program| Job {
                fast: Bytes::gib(fast),
                ratio: Some(ratio),
                operations: config.operations_of_sweep,
                ..Job::new(program, strategy, config)
            }));
        }
    }
    let of_points = jobs.len();
    jobs.extend(
        Program::ALL
            .map(|program| Job { measured: true, ..Job::new(program, Strategy::AllFast, config) }),
    );
    let of_structures = jobs.len();
    for program in Program::ALL {
        let job =
            |strategy| Job { on: Platform::MemoryMode, ..Job::new(program, strategy, config) };
        jobs.extend(Strategy::SOCKETS.map(job));
    }
    let of_sockets = jobs.len();
    for program in READ_AHEAD {
        for strategy in PREFETCHED {
            let job = |reads_ahead| Job { reads_ahead, ..Job::new(program, strategy, config) };
            jobs.extend([false, true].map(job));
        }
    }

    let outcomes = run_all(&jobs, config, &shapes, progress)?;
    let footprints = (0..of_footprints)
        .map(|i| footprint(&jobs[i], &outcomes[i].report, &shapes))
        .collect::<Vec<_>>();
    let mut runs = Vec::new();
    for i in of_footprints..of_runs {
        let slow = of_footprints + (i - of_footprints) / Strategy::ALL.len() * Strategy::ALL.len();
        runs.push(run(&jobs[i], &outcomes[i].report, &outcomes[slow].report));
    }
    let base = |program: Program| {
        let of = runs.iter().find(|run| run.program == program && run.strategy == "all-slow");
        of.map_or(f64::NAN, |run| run.throughput)
    };
    let kinds = (of_runs..of_kinds)
        .map(|i| Kinds {
            program: jobs[i].program,
            kinds: GROUPS[(i - of_runs) % GROUPS.len()].0,
            speedup: outcomes[i].report.throughput() / base(jobs[i].program),
        })
        .collect::<Vec<_>>();
    let programs = Program::ALL.len();
    let mut points = Vec::new();
    for (number, &(fast, ratio)) in machines.iter().enumerate() {
        let first = of_kinds + number * SWEPT.len() * programs;
        for (place, strategy) in SWEPT.into_iter().enumerate().skip(1) {
            let speedups: Vec<f64> = (0..programs)
                .map(|program| {
                    let of = &outcomes[first + place * programs + program].report;
                    of.throughput() / outcomes[first + program].report.throughput()
                })
                .collect();
            points.push(Point {
                fast: Bytes::gib(fast),
                ratio,
                strategy: strategy.name(),
                mean: speedups.iter().sum::<f64>() / programs as f64,
                least: speedups.iter().copied().fold(f64::INFINITY, f64::min),
                most: speedups.iter().copied().fold(0.0, f64::max),
            });
        }
    }
    let structures = (of_points..of_structures)
        .filter_map(|i| {
            let (bytes, saved) = outcomes[i].structures?;
            let share = bytes.as_f64() / outcomes[i].used.as_f64();
            Some(Structures { program: jobs[i].program, bytes, share, saved })
        })
        .collect::<Vec<_>>();
    let reports: Vec<&KernelReport> = outcomes.iter().map(|outcome| &outcome.report).collect();
    let sockets = on_sockets(&jobs[of_structures..of_sockets], &reports[of_structures..]);
    let prefetched = prefetched(&jobs[of_sockets..], &reports[of_sockets..]);
    let mut claims = claims::claims(&footprints, &runs, &structures);
    claims.extend(claims::on_sockets(&sockets));
    claims.extend(claims::prefetched(&prefetched));
    Ok(KlocsTable {
        schema: 1,
        machine: machines::load("kloc-two-tier")?.name,
        scale: config.scale,
        programs: Program::ALL.map(|program| config.origin(program, &shapes)).to_vec(),
        footprints,
        runs,
        sockets,
        prefetched,
        kinds,
        points,
        structures,
        claims,
    })
}

fn run_all(
    jobs: &[Job],
    config: &KlocsConfig,
    shapes: &Shapes,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Outcome>, SimError> {
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Outcome)>> = Mutex::new(Vec::new());
    let work = || -> Result<(), SimError> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(number) else { return Ok(()) };
            let outcome = job.run(config, shapes)?;
            let mut results = results.lock().expect("no worker panics while it holds the lock");
            results.push((number, outcome));
            progress(results.len(), jobs.len());
        }
    };
    std::thread::scope(|scope| {
        let workers = config.host_threads.clamp(1, jobs.len());
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        handles.into_iter().try_for_each(|handle| match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let mut results = results.into_inner().expect("all workers have ended");
    results.sort_by_key(|&(number, _)| number);
    Ok(results.into_iter().map(|(_, outcome)| outcome).collect())
}

fn footprint(job: &Job, report: &KernelReport, shapes: &Shapes) -> Footprint {
    let data = if job.large { &shapes.data.large } else { &shapes.data.small };
    let all = &report.all;
    Footprint {
        program: job.program,
        data: data.value,
        pages: by_class(|class| all.class(class).pages()),
        references: by_class(|class| report.counts.class(class).references),
        freed_ms: by_class(|class| all.class(class).lifetimes.mean_ms()),
        all_ms: by_class(|class| all.class(class).lifetimes.mean_with_living_ms()),
        objects: all.objects,
    }
}

fn run(job: &Job, report: &KernelReport, slow: &KernelReport) -> Run {
    let counts = &report.counts;
    let placed = |class| counts.class(class).placed[1];
    Run {
        program: job.program,
        strategy: job.strategy.name(),
        throughput: report.throughput(),
        speedup: report.throughput() / slow.throughput(),
        slow_pages: [placed(Class::PageCache), placed(Class::Slab)],
        demoted: by_class(|class| counts.class(class).demoted),
        promoted: by_class(|class| counts.class(class).promoted),
    }
}

fn on_sockets(jobs: &[Job], reports: &[&KernelReport]) -> Vec<OnSockets> {
    let strategies = Strategy::SOCKETS.len();
    jobs.iter()
        .zip(reports)
        .enumerate()
        .map(|(number, (job, report))| {
            let remote = reports[number / strategies * strategies];
            OnSockets {
                program: job.program,
                strategy: job.strategy.name(),
                throughput: report.throughput(),
                speedup: report.throughput() / remote.throughput(),
                moved: by_class(|class| report.counts.class(class).promoted),
            }
        })
        .collect()
}

fn prefetched(jobs: &[Job], reports: &[&KernelReport]) -> Vec<Prefetched> {
    jobs.chunks(2)
        .zip(reports.chunks(2))
        .map(|(jobs, reports)| Prefetched {
            program: jobs[0].program,
            strategy: jobs[0].strategy.name(),
            throughput: [reports[0].throughput(), reports[1].throughput()],
            promoted: reports[1].counts.class(Class::PageCache).promoted,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use terrace_core::Nanos;

    use super::*;
    use crate::kernel::Call;
    use crate::kernel::recorded::{self, Made, RecordedFile, Recording};

    /// Pages of a file that is written once, and of one that is read again and again.
    const PAGES: u64 = 256;
    const HOT: u64 = 128;

    /// Six files are written and closed. When the disk has them, another one is written, and eight
    /// threads read blocks of it again and again.
    fn streaming() -> Recording {
        let [log, hot] = [0, 1];
        let mut calls = vec![(0, Call::Create { file: log })];
        for file in 2..8 {
            calls.push((0, Call::Create { file }));
            let write = |page: u64| Call::Write { file, offset: page * 4096, bytes: 4096 };
            calls.extend((0..PAGES).map(|page| (0, write(page))));
            calls.push((0, Call::Close { file }));
        }
        for _ in 0..300 {
            calls.push((0, Call::Write { file: log, offset: 0, bytes: 4096 }));
            calls.push((0, Call::Fsync { file: log }));
        }
        calls.push((0, Call::Create { file: hot }));
        let write = |page: u64| Call::Write { file: hot, offset: page * 4096, bytes: 4096 };
        calls.extend((0..HOT).map(|page| (0, write(page))));
        // More than that, so that the second half of all calls reads.
        let reads = calls.len() as u64 * 3;
        let read = |page: u64| Call::Read { file: hot, offset: page % HOT * 4096, bytes: 4096 };
        calls.extend((0..reads).map(|number| ((number % 8) as u32, read(number * 79))));
        let enter = |(at, (thread, call)): (usize, (u32, Call))| {
            let at = Nanos::micros(at as u64);
            // Each thread makes its next call as soon as it can.
            Made { thread, cpu: 0, at, took: Nanos::micros(8), call }
        };
        Recording {
            program: vec!["streaming".to_owned()],
            threads: 8,
            files: vec![RecordedFile::default(); 8],
            calls: calls.into_iter().enumerate().map(enter).collect(),
            ..Recording::default()
        }
    }

    /// Sizes at which nothing is said about the paper: every figure is there, and what was
    /// recorded of one program is in the place of what is made up.
    #[test]
    fn a_tiny_form_has_every_figure_of_made_up_and_of_recorded_calls() {
        let mut file = Vec::new();
        recorded::write(&mut file, &streaming()).expect("memory");
        let recording = recorded::read("streaming.calls", &file[..]).expect("as it was written");
        let calls = recording.calls.len() as u64;
        let generated = KlocsConfig {
            scale: 2048,
            operations: 40,
            operations_of_sweep: 10,
            ..KlocsConfig::whole()
        };
        let recorded = Recorded::new(Program::RocksDb, recording).expect("it can be replayed");
        let config = KlocsConfig { recorded: vec![recorded], ..generated.clone() };

        let most = AtomicUsize::new(0);
        let table = klocs(&config, &|done, all| {
            assert!(done <= all);
            most.fetch_max(done * 1000 / all, Ordering::Relaxed);
        });
        let table = table.expect("it can be simulated");
        assert_eq!(most.into_inner(), 1000, "progress comes to its end");

        let facts = table.programs[0].recorded.as_ref().expect("RocksDB comes first");
        assert_eq!((facts.calls, facts.measured), (calls, 640), "40 operations of 16 threads");
        // Six files of 1 MiB, half of one, and a page; the paper's 40 GB are so many times as much.
        assert_eq!(facts.footprint, Bytes::mib(6) + Bytes::kib(512 + 4));
        assert_eq!(table.programs[0].scale, 5865);
        assert!(table.programs[1..].iter().all(|of| of.recorded.is_none() && of.scale == 2048));
        assert_eq!(table.footprints.len(), 9, "a recording has one size");
        assert_eq!(table.runs.len(), 5 * Strategy::ALL.len());
        assert_eq!(table.sockets.len(), 5 * Strategy::SOCKETS.len());
        assert_eq!(table.prefetched.len(), 2 * PREFETCHED.len());
        assert_eq!(table.kinds.len(), 5 * GROUPS.len());
        assert_eq!(table.points.len(), 9 * (SWEPT.len() - 1));
        assert_eq!(table.structures.len(), 5);
        let throughputs = table.runs.iter().map(|run| run.throughput);
        let throughputs = throughputs.chain(table.sockets.iter().map(|of| of.throughput));
        assert!(throughputs.fold(f64::INFINITY, f64::min) > 0.0);
        assert!(table.points.iter().all(|point| point.least > 0.0));

        // Streams fill the fast memory of who does not know that they are over.
        let of = |strategy: Strategy| {
            let is =
                |run: &&Run| run.program == Program::RocksDb && run.strategy == strategy.name();
            table.runs.iter().find(is).expect("every strategy has run")
        };
        let [fast, klocs, naive, slow] =
            [Strategy::AllFast, Strategy::Klocs, Strategy::Naive, Strategy::AllSlow]
                .map(|strategy| of(strategy).throughput);
        assert!(fast > klocs * 0.9, "{fast} {klocs}");
        assert!(klocs > naive * 1.3, "{klocs} {naive}");
        assert!(klocs > slow * 1.3, "{klocs} {slow}");
        let text = table.to_string();
        let title = text.lines().next().unwrap_or_default();
        assert!(
            title.ends_with("recorded: rocksdb; generated: redis, filebench, cassandra, spark")
        );
        assert!(text.contains("streaming: "), "{text}");
        assert!(text.contains("640 measured; 6.50 MiB of files, memories 1:5865"), "{text}");
        for figure in ["2", "4:", "5a:", "5b:", "5c:", "6:"] {
            assert!(text.contains(&format!("\nFigure {figure}")), "{figure}");
        }
        assert!(text.contains("\nTable 6:") && text.contains("\nSection 7.3:"), "{text}");
        let json = serde_json::to_value(&table).expect("it is data");
        assert_eq!(json["programs"][0]["recorded"]["calls"], calls);
        assert!(json["programs"][1]["recorded"].is_null() && json["claims"].is_array());

        let shapes = Shapes::builtin();
        let run = |program, strategy, config: &KlocsConfig, operations| {
            let job = Job { operations, ..Job::new(program, strategy, config) };
            job.run(config, &shapes).expect("it can be simulated").report
        };
        let rocksdb = |strategy, operations| run(Program::RocksDb, strategy, &config, operations);
        let moved = |strategy| rocksdb(strategy, 40).all.class(Class::PageCache).demoted;
        assert!(moved(Strategy::Klocs) >= PAGES);
        assert_eq!(moved(Strategy::Naive), 0);
        // All of the second half, where it is no longer than what is measured of a program.
        assert_eq!(rocksdb(Strategy::Naive, 100_000).operations, calls - calls / 2);
        assert_eq!(rocksdb(Strategy::Naive, 1).operations, 16);
        // It is not what is made up, and other programs are the same with it and without.
        let made_up = run(Program::RocksDb, Strategy::Naive, &generated, 40).throughput();
        assert!((made_up / naive - 1.0).abs() > 0.01, "{made_up} {naive}");
        let redis = [&generated, &config]
            .map(|config| run(Program::Redis, Strategy::Naive, config, 40).throughput().to_bits());
        assert_eq!(redis[0], redis[1]);
    }
}
