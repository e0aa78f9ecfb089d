//! Figures 5 and 6: SSP and HSCC under three programs.
//!
//! Kindle replays ten million recorded accesses of each program, folded into
//! 6 MiB; here the programs themselves run, on generated data, folded likewise
//! and at their own footprint. Nothing is fitted to the published figures.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use terrace_core::{Bytes, BytesPerSecond, Nanos};
use terrace_dram::MemoryFile;
use terrace_economics::Mode;
use terrace_policy::{Hscc, HsccConfig, Policy, PolicyName};
use terrace_sim::exact::{Batch, ExactConfig, ExactMachine, ExactReport, Source, setup};
use terrace_sim::trace::{Format, Summary, TraceReader, import};
use terrace_sim::workload::catalog::{ProgramName, ProgramSpec};
use terrace_sim::{MigrationConfig, SimError, SimPolicy, machines};

use super::Shape;
use super::beyond::LONGER;
use crate::folded::Folded;
use crate::replay::{Pace, RECORDING, Replay};
use crate::run::{RunConfig, RunReport, Survival, run};
use crate::scheme::{FlushScope, SchemeKind, SspConfig};

/// The programs, in the order of the published tables.
pub const PROGRAMS: [ProgramName; 3] =
    [ProgramName::PageRank, ProgramName::Sssp, ProgramName::Ycsb];
/// Kindle's intervals.
pub const INTERVALS: [Nanos; 3] = [Nanos::millis(1), Nanos::millis(5), Nanos::millis(10)];
/// Kindle's fetch thresholds.
pub const THRESHOLDS: [u16; 3] = [5, 25, 50];

/// Figure 5, time with SSP over time without, by program and interval:
/// `ssp_interval.tsv` at a13af416, which the slides show. The rerun at the
/// artifact's head divides a quarter of one run by the whole of another; its
/// logs give 1.91, 2.04 and 2.06 at 10 ms.
const SSP: [[f64; 3]; 3] = [[6.230, 2.335, 1.852], [6.674, 2.492, 1.971], [6.487, 2.496, 1.996]];
/// The same, decoded from the rerun's logs; it has 10 ms alone.
const SSP_RERUN: [f64; 3] = [1.91, 2.04, 2.06];

/// Figure 6, time with migration over time without: the rerun at the head, and
/// the first set.
const HSCC: [[f64; 3]; 3] =
    [[1.0344, 1.0300, 1.0226], [1.1318, 1.0738, 1.0722], [1.4534, 1.0898, 1.0411]];
const HSCC_FIRST: [[f64; 3]; 3] =
    [[1.0352, 1.0294, 1.0231], [1.1220, 1.0649, 1.0628], [1.4392, 1.0820, 1.0419]];
/// Pages migrated: the slide, the expected results, the rerun.
const PAGES: [[[u64; 3]; 3]; 3] = [
    [[354, 273, 132], [353, 270, 113], [353, 270, 113]],
    [[4489, 1475, 1346], [4604, 1463, 1340], [4544, 1480, 1342]],
    [[23093, 1661, 221], [22788, 1746, 224], [22997, 1704, 219]],
];
/// Percent of a migration's time that the copy takes, for the first program
/// (the others are not published).
const COPY: [f64; 3] = [98.26, 98.08, 97.94];

/// How much runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramsConfig {
    /// Memory of each program when it is not folded, about.
    pub size: Bytes,
    /// Recorded accesses of each program.
    pub accesses: u64,
    /// Where randomness comes from.
    pub seed: u64,
    /// Recordings that take the place of programs: their last accesses are run.
    pub traces: Vec<(ProgramName, PathBuf)>,
    /// The memory: DRAM, and a part that is not volatile.
    pub memory: MemoryFile,
}

impl Default for ProgramsConfig {
    /// Ten million accesses, as Kindle's recordings have.
    fn default() -> Self {
        Self {
            size: Bytes::mib(24),
            accesses: 10_000_000,
            seed: 1,
            traces: Vec::new(),
            memory: super::kindle_memory(),
        }
    }
}

/// Figure 5: one program, one footprint, one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SspRow {
    /// The program.
    pub program: ProgramName,
    /// Whether it is folded into 6 MiB.
    pub folded: bool,
    /// The interval.
    pub interval: Nanos,
    /// Time over the time without any scheme: SSP that flushes what was updated.
    pub ours: f64,
    /// SSP that flushes everything, as Kindle's kernel was meant to.
    pub everything: f64,
    /// SSP whose flushes hit the kernel's stack, as Kindle's was shipped.
    pub stack_slot: f64,
    /// `SoftWrAP`.
    pub softwrap: f64,
    /// The slide.
    pub published: f64,
    /// The rerun, decoded; at 10 ms alone.
    pub rerun: Option<f64>,
    /// The whole of each run: without a scheme, and in the order above.
    pub runs: Vec<RunReport>,
}

/// Figure 6 and its tables: one program, one footprint, one threshold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HsccRow {
    /// The program.
    pub program: ProgramName,
    /// Whether it is folded into 6 MiB.
    pub folded: bool,
    /// The threshold.
    pub threshold: u16,
    /// Time over the time without migration.
    pub time: f64,
    /// The same, published: the rerun and the first set.
    pub published: [f64; 2],
    /// Pages brought up.
    pub pages: u64,
    /// The same, published: the slide, the expected results, the rerun.
    pub published_pages: [u64; 3],
    /// Percent of the time of selecting and copying that copying takes.
    pub copy: f64,
    /// The same, published.
    pub published_copy: Option<f64>,
    /// Share of the time of the whole run that goes into reading counts.
    pub scanning: f64,
    /// Time over the time without migration if what was copied is not flushed:
    /// what the artifact's flushes contribute, which hit the kernel's stack and
    /// not the page, so that nothing is lost without them but their time.
    pub unflushed: f64,
    /// Pages brought up in that run: when a pass comes depends on how long the
    /// one before took, and with it which pages have reached the threshold.
    pub unflushed_pages: u64,
    /// Time to copy a page, with flushes and without: what the defect contributes
    /// to each, whatever else differs between the runs. 0 if no page moved.
    pub page_copy: [Nanos; 2],
}

/// The DRAM that HSCC may use: 512 pages.
const POOL: Bytes = Bytes::mib(2);

/// A program or the end of its recording, and how many of its accesses come
/// before what is measured.
pub(super) fn open(
    program: ProgramName,
    config: &ProgramsConfig,
    accesses: u64,
) -> Result<(Box<dyn Source>, u64), SimError> {
    let Some((_, path)) = config.traces.iter().find(|(name, _)| *name == program) else {
        let source = spec(program, config, accesses).build()?;
        let initial = source.initial();
        return Ok((Box::new(source), initial));
    };
    let recorded = TraceReader::open(path)?.index()?.accesses;
    // A tenth as many before it warm caches and memory up.
    let measured = accesses.min(recorded / 11 * 10);
    let initial = measured / 10;
    let source = import::open(path, Format::Terrace)?;
    Ok((Box::new(Tail { source, dropped: recorded - measured - initial }), initial))
}

/// A source without its first accesses; what was mapped meanwhile is there.
struct Tail {
    source: Box<dyn Source>,
    dropped: u64,
}

impl Source for Tail {
    fn describe(&self) -> String {
        format!("{}, its end", self.source.describe())
    }

    fn summary(&self) -> Option<Summary> {
        self.source.summary()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        let more = self.source.next(batch)?;
        batch.accesses.retain(|access| {
            let dropped = self.dropped > 0;
            self.dropped -= u64::from(dropped && access.is_data());
            !dropped
        });
        // One core: threads take turns.
        batch.thread = 0;
        Ok(more)
    }
}

fn spec(program: ProgramName, config: &ProgramsConfig, accesses: u64) -> ProgramSpec {
    ProgramSpec { seed: config.seed, ..ProgramSpec::new(program, config.size, accesses) }
}

fn fold(
    source: Box<dyn Source>,
    program: ProgramName,
    config: &ProgramsConfig,
) -> Folded<Box<dyn Source>> {
    let is_recorded = config.traces.iter().any(|(name, _)| *name == program);
    let folded = Folded::new(source);
    if is_recorded { folded.of_recording() } else { folded }
}

/// What a record of a program costs Kindle's replay.
fn pace(program: ProgramName) -> Pace {
    match program {
        ProgramName::Sssp => Pace::SSSP,
        ProgramName::Ycsb => Pace::YCSB,
        _ => Pace::PAGERANK,
    }
}

fn survive(
    program: ProgramName,
    folded: bool,
    survival: Survival,
    interval: Nanos,
    config: &ProgramsConfig,
) -> Result<RunReport, SimError> {
    let (mut source, initial) = open(program, config, config.accesses)?;
    let mut run_config = RunConfig::new(survival, config.memory.clone());
    (run_config.interval, run_config.skip) = (interval, initial);
    if !folded {
        return run(&mut source, &run_config, &mut |_| {});
    }
    let mut replay = Replay::new(fold(source, program, config), initial, pace(program));
    (run_config.skip, run_config.in_dram) = (replay.initial(), Some(RECORDING));
    run(&mut replay, &run_config, &mut |_| {})
}

/// What the 64 `clwb` after the copy of a page take: 28 ns each
/// (`copy-bandwidth` of the machine file has the sum).
const FLUSHES: f64 = 64.0 * 28e-9;

fn migrate(
    program: ProgramName,
    folded: bool,
    threshold: Option<u16>,
    flushes: bool,
    config: &ProgramsConfig,
) -> Result<ExactReport, SimError> {
    let mut machine = match config.memory.name.as_str() {
        // The machine file, of which a test says that it is what the memory comes to.
        "kindle" => machines::builtin("kindle").expect("built in"),
        _ => super::beyond::machine_with(&config.memory),
    };
    if !flushes {
        let page = 4096.0 / machine.costs.copy_bandwidth.value.get();
        machine.costs.copy_bandwidth.value = BytesPerSecond(4096.0 / (page - FLUSHES));
    }
    let policy = match threshold {
        None => SimPolicy::AllSlow,
        Some(_) => SimPolicy::Policy(PolicyName::Hscc),
    };
    let mut full = ExactConfig::new(machine, policy);
    // Kindle has no economist: whatever reaches the threshold is moved.
    full.economist = Mode::Off;
    full.migration = MigrationConfig::kindle();
    full.seed = config.seed;
    // A replay at Kindle's pace takes several times as long for an access, and
    // the passes come by the clock.
    let accesses = if folded { config.accesses } else { config.accesses * LONGER };
    let (mut source, initial) = open(program, config, accesses)?;
    let hscc = threshold.map(|threshold| -> Box<dyn Policy> {
        Box::new(Hscc::new(HsccConfig { threshold, ..HsccConfig::default() }))
    });
    // A pool of 512 pages, and room for page tables, which lie in DRAM, too: 8
    // bytes a page, and some pages more for what is spread over the address space.
    if !folded {
        full.fast = Some(POOL + Bytes::mib(1) + config.size / 512);
        full.warm_up = initial;
        let mut machine = ExactMachine::with_policy(&full, hscc)?;
        return setup::run(&mut machine, &full, source.as_mut(), &mut |_, _| {});
    }
    // And the recording, which Kindle's replay has in DRAM.
    full.fast = Some(POOL + Bytes(RECORDING.1) + Bytes::kib(256));
    let mut replay = Replay::new(fold(source, program, config), initial, pace(program));
    full.warm_up = replay.initial();
    let mut machine = ExactMachine::with_policy(&full, hscc)?;
    machine.pin(RECORDING.0, RECORDING.1);
    let source: &mut dyn Source = &mut replay;
    setup::run(&mut machine, &full, source, &mut |_, _| {})
}

/// Runs jobs on all processors; their results in order.
pub(super) fn on_all_processors<T: Send>(
    jobs: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
    job: impl Fn(usize) -> Result<T, SimError> + Sync,
) -> Result<Vec<T>, SimError> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<Option<Result<T, SimError>>>> =
        Mutex::new((0..jobs).map(|_| None).collect());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= jobs {
                        break;
                    }
                    let result = job(index);
                    results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_iter().flatten().collect()
}

/// Figure 5, folded first.
pub fn ssp(
    config: &ProgramsConfig,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<SspRow>, SimError> {
    let ssp = |flush| Survival::Ssp(SspConfig { flush, ..SspConfig::KINDLE });
    let variants = [
        ssp(FlushScope::Updated),
        ssp(FlushScope::Everything),
        ssp(FlushScope::StackSlot),
        Survival::Scheme(SchemeKind::SoftWrap),
    ];
    // Of each program and footprint: one run without a scheme, then all
    // variants at all intervals.
    let each = 1 + INTERVALS.len() * variants.len();
    let group = |index: usize| (PROGRAMS[index / each % 3], index < 3 * each);
    let runs = on_all_processors(6 * each, progress, |index| {
        let (program, folded) = group(index);
        match (index % each).checked_sub(1) {
            None => survive(program, folded, Survival::None, INTERVALS[0], config),
            Some(n) => {
                let (interval, variant) =
                    (INTERVALS[n / variants.len()], variants[n % variants.len()]);
                survive(program, folded, variant, interval, config)
            }
        }
    })?;
    let mut rows = Vec::new();
    for (g, runs) in runs.chunks_exact(each).enumerate() {
        let (program, folded) = group(g * each);
        let plain = &runs[0];
        for (i, of_interval) in runs[1..].chunks_exact(variants.len()).enumerate() {
            let ratio = |n: usize| of_interval[n].time / plain.time;
            let all = std::iter::once(plain).chain(of_interval).cloned().collect();
            rows.push(SspRow {
                program,
                folded,
                interval: INTERVALS[i],
                ours: ratio(0),
                everything: ratio(1),
                stack_slot: ratio(2),
                softwrap: ratio(3),
                published: SSP[g % 3][i],
                rerun: (i == 2).then_some(SSP_RERUN[g % 3]),
                runs: all,
            });
        }
    }
    Ok(rows)
}

/// Pages brought up while a program was measured.
fn brought_up(report: &ExactReport) -> u64 {
    report.migrated_measured.promotions + report.migrated_measured.exchanges
}

/// A folded program under HSCC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moved {
    /// Time over the time without migration.
    pub time: f64,
    /// Pages brought up.
    pub pages: u64,
}

/// A folded program under HSCC, by threshold.
pub fn folded<const N: usize>(
    program: ProgramName,
    thresholds: [u16; N],
    config: &ProgramsConfig,
) -> Result<[Moved; N], SimError> {
    let reports = on_all_processors(1 + N, &|_, _| (), |index| {
        let threshold = index.checked_sub(1).map(|n| thresholds[n]);
        migrate(program, true, threshold, true, config)
    })?;
    Ok(std::array::from_fn(|n| {
        let report = &reports[1 + n];
        Moved { time: report.time / reports[0].time, pages: brought_up(report) }
    }))
}

/// Figure 6 and its tables, folded first.
pub fn hscc(
    config: &ProgramsConfig,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<HsccRow>, SimError> {
    // One run without migration, then each threshold with flushes and without.
    let each = 1 + 2 * THRESHOLDS.len();
    let group = |index: usize| (index / each % PROGRAMS.len(), index < PROGRAMS.len() * each);
    let reports = on_all_processors(2 * PROGRAMS.len() * each, progress, |index| {
        let (program, folded) = group(index);
        let run = (index % each).checked_sub(1);
        let threshold = run.map(|n| THRESHOLDS[n / 2]);
        migrate(PROGRAMS[program], folded, threshold, run.is_none_or(|n| n % 2 == 0), config)
    })?;
    let page_copy = |report: &ExactReport| {
        let copying = report.tlb_counts_measured.unwrap_or_default().copying;
        let pages = report.migrated_measured.moved.get() / 4096;
        Nanos(copying.get().checked_div(pages).unwrap_or(0))
    };
    let mut rows = Vec::new();
    for (g, reports) in reports.chunks_exact(each).enumerate() {
        let (p, folded) = group(g * each);
        for (t, pair) in reports[1..].chunks_exact(2).enumerate() {
            let report = &pair[0];
            let costs = report.tlb_counts_measured.unwrap_or_default();
            let (selecting, copying) = (costs.selecting.as_f64(), costs.copying.as_f64());
            rows.push(HsccRow {
                program: PROGRAMS[p],
                folded,
                threshold: THRESHOLDS[t],
                time: report.time / reports[0].time,
                published: [HSCC[p][t], HSCC_FIRST[p][t]],
                pages: brought_up(report),
                published_pages: PAGES[p].map(|source| source[t]),
                copy: 100.0 * copying / (selecting + copying).max(f64::MIN_POSITIVE),
                published_copy: (p == 0).then_some(COPY[t]),
                scanning: costs.scanning / report.time,
                unflushed: pair[1].time / reports[0].time,
                unflushed_pages: brought_up(&pair[1]),
                page_copy: [page_copy(&pair[0]), page_copy(&pair[1])],
            });
        }
    }
    Ok(rows)
}

/// The shapes of Figures 5 and 6.
pub fn shapes(ssp: &[SspRow], hscc: &[HsccRow]) -> Vec<Shape> {
    // The least by which something falls from one row to the next of a program.
    let least_fall = |values: Vec<f64>| {
        values.chunks_exact(3).flat_map(|v| [v[0] - v[1], v[1] - v[2]]).fold(f64::MAX, f64::min)
    };
    let of = |folded: bool, value: &dyn Fn(&SspRow) -> f64| -> Vec<f64> {
        ssp.iter().filter(|row| row.folded == folded).map(value).collect()
    };
    let shape =
        |statement, criterion, value: f64, holds| Shape { statement, criterion, value, holds };
    let published = least_fall(of(true, &|row| row.everything));
    let shipped = least_fall(of(true, &|row| row.stack_slot));
    let honest = least_fall(of(false, &|row| row.everything));
    let ours = least_fall(of(true, &|row| row.ours));
    let overhead = |row: &SspRow| row.everything - 1.0;
    let factors: Vec<f64> = ssp
        .chunks_exact(3)
        .filter(|rows| rows[0].folded)
        .map(|rows| overhead(&rows[0]) / overhead(&rows[2]))
        .collect();
    let factor = factors.iter().sum::<f64>() / factors.len().max(1) as f64;
    let pages = |folded: bool| {
        let rows = hscc.iter().filter(|row| row.folded == folded);
        least_fall(rows.map(|row| row.pages as f64).collect())
    };
    let (pages, own_pages) = (pages(true), pages(false));
    // Where nothing moved there is nothing to say.
    let least = |value: &dyn Fn(&HsccRow) -> f64| {
        hscc.iter().filter(|row| row.pages > 0).map(value).fold(f64::MAX, f64::min)
    };
    let (copy, pays) = (least(&|row| row.copy), least(&|row| row.time));
    let ssp_shapes = vec![
        shape(
            "SSP as published: overhead falls with the interval (folded)",
            "least fall of the time ratio above 0",
            published,
            published > 0.0,
        ),
        shape(
            "SSP as shipped: overhead falls with the interval (folded)",
            "least fall of the time ratio above 0",
            shipped,
            shipped > 0.0,
        ),
        shape(
            "SSP as published: overhead falls with the interval (own footprint)",
            "least fall of the time ratio above 0",
            honest,
            honest > 0.0,
        ),
        shape(
            "SSP as published: overhead at 1 ms over that at 10 ms (published: 5.5 to 6.1)",
            "3 to 10",
            factor,
            (3.0..=10.0).contains(&factor),
        ),
        shape(
            "our SSP, which flushes what was updated: overhead falls with the interval (folded)",
            "least fall of the time ratio above 0",
            ours,
            ours > 0.0,
        ),
    ];
    let hscc_shapes = vec![
        shape(
            "HSCC: fewer pages migrate the higher the threshold (folded)",
            "least fall of the number of pages above 0",
            pages,
            pages > 0.0,
        ),
        shape(
            "HSCC: fewer pages migrate the higher the threshold (own footprint)",
            "least fall of the number of pages above 0",
            own_pages,
            own_pages > 0.0,
        ),
        shape(
            "HSCC: the copy takes over 90 % of selecting and copying",
            "least percentage above 90",
            copy,
            copy > 90.0,
        ),
        shape(
            "HSCC: migration never pays on this machine",
            "least time ratio above 1",
            pays,
            pays > 1.0,
        ),
    ];
    let of_rows = |rows: bool, shapes: Vec<Shape>| if rows { shapes } else { Vec::new() };
    let mut shapes = of_rows(!ssp.is_empty(), ssp_shapes);
    shapes.extend(of_rows(!hscc.is_empty(), hscc_shapes));
    shapes
}
