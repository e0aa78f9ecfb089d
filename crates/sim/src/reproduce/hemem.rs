//! HeMem's first figure: GUPS against the size of the hot set.
//!
//! Nothing here is fitted to the paper. The machine's numbers come from its
//! machine file, each with a source; the benchmark's properties come from the
//! published benchmark (see [`crate::workload::gups`]); the policy is
//! [`terrace_policy::PolicyName::HeMem`], the same object that runs live.

use core::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::Serialize;
use terrace_core::{Bytes, BytesPerSecond, Machine};
use terrace_economics::Mode;
use terrace_policy::{HeMem, HeMemConfig, PolicyName};

use super::claim::{Bound, Claim};
use crate::analytic::config::{Phases, SimConfig, SimPolicy};
use crate::analytic::memory_mode::Frames;
use crate::analytic::simulation::Simulation;
use crate::error::SimError;
use crate::machines;
use crate::workload::gups::{Gups, GupsConfig};

/// The systems that are compared, in the order of the table's columns.
pub const SYSTEMS: [SimPolicy; 5] = [
    SimPolicy::AllDram,
    SimPolicy::Custom("hemem-paper"),
    SimPolicy::Policy(PolicyName::HeMem),
    SimPolicy::MemoryMode,
    SimPolicy::Policy(PolicyName::FirstTouch),
];
const ALL_DRAM: usize = 0;
/// HeMem with the rule of the paper alone: a hot page takes the place of a cold
/// one, however little they differ (`exchange-ratio` 0).
const PAPERS: usize = 1;
/// HeMem as it is here.
const HEMEM: usize = 2;
const MEMORY_MODE: usize = 3;
const FIRST_TOUCH: usize = 4;

/// What to reproduce. The default is the paper's experiment.
#[derive(Clone, Debug)]
pub struct HememConfig {
    /// The machine.
    pub machine: Machine,
    /// GUPS, but for the size of the hot set.
    pub gups: GupsConfig,
    /// DRAM that the policies may use; `None` for all of it. Memory Mode always
    /// has all of it. (The README of the paper's artifact reserves 128 GB for
    /// HeMem on this machine; the paper's text speaks of 192 GB.)
    pub managed_dram: Option<Bytes>,
    /// Sizes of the hot set.
    pub hot_sets: Vec<Bytes>,
    /// Warm-up and measured runs.
    pub phases: Phases,
    /// What the economist does with its opinion; the paper has no economist,
    /// so by default it only looks on.
    pub economist: Mode,
    /// Order of physical frames in Memory Mode.
    pub frames: Frames,
    /// Real accesses a simulated one stands for, under HeMem.
    pub scale: u32,
    /// The same where no samples are taken, so that less has to be drawn.
    pub scale_unsampled: u32,
    /// Where all randomness comes from.
    pub seed: u64,
    /// Host threads; the result does not depend on it.
    pub host_threads: usize,
}

impl Default for HememConfig {
    fn default() -> Self {
        // The published script runs 2^30 to 2^38 bytes; between and beyond are ours.
        let gib = [1, 2, 4, 8, 16, 32, 64, 96, 128, 160, 192, 256, 512];
        Self {
            machine: machines::optane_cascade_lake(),
            gups: GupsConfig::hemem(Bytes::gib(1)),
            managed_dram: None,
            hot_sets: gib.map(Bytes::gib).to_vec(),
            phases: Phases::hemem(),
            economist: Mode::Shadow,
            frames: Frames::default(),
            scale: 1024,
            scale_unsampled: 8192,
            seed: 1,
            host_threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl HememConfig {
    /// The DRAM that a hot set has to fit into.
    fn dram(&self) -> Bytes {
        let all = self.machine.tiers[0].capacity.value;
        self.managed_dram.map_or(all, |managed| managed.min(all))
    }
}

/// How far a reproduction has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HememProgress {
    /// Simulations that are done.
    pub done: usize,
    /// Simulations altogether.
    pub total: usize,
    /// The system of the one that was done last.
    pub system: SimPolicy,
    /// Its hot set.
    pub hot_set: Bytes,
    /// Its result.
    pub gups: f64,
}

/// One system at one size of the hot set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The system.
    pub system: SimPolicy,
    /// Billions of updates a second, mean of the measured runs.
    pub gups: f64,
    /// Their standard deviation.
    pub spread: f64,
    /// Of the accesses that missed the caches, the share that DRAM served.
    pub dram_share: f64,
    /// Migration while measured.
    pub migration: BytesPerSecond,
}

/// All systems at one size of the hot set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The hot set of all threads together.
    pub hot_set: Bytes,
    /// In the order of [`SYSTEMS`].
    pub cells: Vec<Cell>,
}

/// Our version of the figure, and the paper's claims judged by it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HememTable {
    /// Version of this structure.
    pub schema: u32,
    /// The machine.
    pub machine: String,
    /// The DRAM that the hot set has to fit into.
    pub dram: Bytes,
    /// The working set.
    pub working_set: Bytes,
    /// Threads of the benchmark.
    pub threads: u32,
    /// Warm-up and measured runs.
    pub phases: Phases,
    /// Real accesses a simulated one stood for, under HeMem.
    pub scale: u32,
    /// Where the randomness came from.
    pub seed: u64,
    /// What the economist did with its opinion.
    pub economist: Mode,
    /// By the size of the hot set.
    pub rows: Vec<Row>,
    /// The paper's claims, judged by HeMem with the paper's rule alone.
    pub claims_of_papers_rule: Vec<Claim>,
    /// The paper's claims, judged by HeMem as it is here.
    pub claims: Vec<Claim>,
    /// How long it took on this computer, in seconds.
    pub host_seconds: f64,
}

/// Runs the experiment. `progress` is called after each simulation, by one
/// thread at a time.
pub fn hemem(
    config: &HememConfig,
    progress: &(dyn Fn(&HememProgress) + Sync),
) -> Result<HememTable, SimError> {
    let started = Instant::now();
    // The longest simulations first, so that no thread ends alone with one.
    let mut jobs: Vec<(usize, usize)> = (0..config.hot_sets.len())
        .flat_map(|row| (0..SYSTEMS.len()).map(move |column| (row, column)))
        .collect();
    jobs.sort_by_key(|&(row, column)| (!is_sampled(SYSTEMS[column]), std::cmp::Reverse(row)));
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<((usize, usize), Cell)>> = Mutex::new(Vec::new());
    let work = || -> Result<(), SimError> {
        while let Some(&(row, column)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let cell = simulate(config, config.hot_sets[row], SYSTEMS[column])?;
            let mut results = results.lock().expect("no worker panics while it holds the lock");
            let gups = cell.gups;
            results.push(((row, column), cell));
            progress(&HememProgress {
                done: results.len(),
                total: jobs.len(),
                system: SYSTEMS[column],
                hot_set: config.hot_sets[row],
                gups,
            });
        }
        Ok(())
    };
    let workers = config.host_threads.clamp(1, jobs.len().max(1));
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        handles.into_iter().try_for_each(|handle| match handle.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;

    let mut results = results.into_inner().expect("all workers have ended");
    results.sort_by_key(|&(place, _)| place);
    let mut cells = results.into_iter().map(|(_, cell)| cell);
    let rows: Vec<Row> = config
        .hot_sets
        .iter()
        .map(|&hot_set| Row { hot_set, cells: cells.by_ref().take(SYSTEMS.len()).collect() })
        .collect();
    let dram = config.dram();
    Ok(HememTable {
        schema: 2,
        machine: config.machine.name.clone(),
        dram,
        working_set: config.gups.working_set,
        threads: config.gups.threads,
        phases: config.phases,
        scale: config.scale,
        seed: config.seed,
        economist: config.economist,
        claims_of_papers_rule: claims(&rows, dram, PAPERS),
        claims: claims(&rows, dram, HEMEM),
        rows,
        host_seconds: started.elapsed().as_secs_f64(),
    })
}

fn simulate(config: &HememConfig, hot_set: Bytes, system: SimPolicy) -> Result<Cell, SimError> {
    let gups = Gups::new(GupsConfig { hot_set, ..config.gups.clone() })?;
    let sampled = is_sampled(system);
    let mut machine = config.machine.clone();
    if matches!(system, SimPolicy::Policy(_) | SimPolicy::Custom(_)) {
        machine.tiers[0].capacity.value = config.dram();
    }
    let config = SimConfig {
        economist: config.economist,
        phases: config.phases,
        frames: config.frames,
        scale: if sampled { config.scale } else { config.scale_unsampled },
        seed: config.seed,
        ..SimConfig::new(machine, Box::new(gups), system)
    };
    let simulation = if system == SYSTEMS[PAPERS] {
        let papers = HeMemConfig { exchange_ratio: 0, ..HeMemConfig::default() };
        Simulation::with_policy(config, Box::new(HeMem::new(papers)))
    } else {
        Simulation::new(config)
    };
    let report = simulation?.run(&mut |_| ());
    let measured = report.runs.iter().map(|run| run.time).sum();
    Ok(Cell {
        system,
        gups: report.gups(),
        spread: report.spread.get() / 1e9,
        dram_share: report.memory_mode_hit_ratio.unwrap_or(report.tiers[0].share),
        migration: BytesPerSecond::from_amount(report.migrated_measured.moved, measured),
    })
}

/// Whether samples are taken, which takes a finer simulation.
fn is_sampled(system: SimPolicy) -> bool {
    system == SYSTEMS[PAPERS] || system == SYSTEMS[HEMEM]
}

/// What HeMem says of a hot set that does not fit.
pub(crate) const STOPS: &str = "HeMem identifies this case and stops migration";

/// How near is "near", in claims without a number of the paper's.
const NEAR: f64 = 0.8;

/// Judges the paper's claims. Criteria that the paper gives no number for are
/// ours, and were written before the first run.
fn claims(rows: &[Row], dram: Bytes, hemem: usize) -> Vec<Claim> {
    let gups = |row: &Row, system: usize| row.cells[system].gups;
    let ratio = |row: &Row, a: usize, b: usize| gups(row, a) / gups(row, b);
    let fits: Vec<&Row> = rows.iter().filter(|row| row.hot_set <= dram).collect();
    let mut claims = Vec::new();

    if let Some(worst) =
        fits.iter().min_by(|a, b| ratio(a, hemem, ALL_DRAM).total_cmp(&ratio(b, hemem, ALL_DRAM)))
    {
        let value = ratio(worst, hemem, ALL_DRAM);
        claims.push(Claim::new(
            "as long as the hot set fits into DRAM, HeMem identifies it and keeps it there",
            format!("at least {NEAR} of all-DRAM at every hot set up to {dram}"),
            Bound::AtLeast(NEAR),
            value,
            format!("{value:.2} at worst, at {}", worst.hot_set),
        ));
    }
    if let (Some(first), Some(last)) = (fits.first(), fits.last()) {
        let value = gups(last, MEMORY_MODE) / gups(first, MEMORY_MODE);
        claims.push(Claim::new(
            "Memory Mode suffers as the hot set approaches the capacity of DRAM",
            format!("at {} below {NEAR} of its throughput at {}", last.hot_set, first.hot_set),
            Bound::Below(NEAR),
            value,
            format!("{value:.2}"),
        ));
    }
    if let Some(best) = fits
        .iter()
        .max_by(|a, b| ratio(a, hemem, MEMORY_MODE).total_cmp(&ratio(b, hemem, MEMORY_MODE)))
    {
        let value = ratio(best, hemem, MEMORY_MODE);
        claims.push(Claim::new(
            "HeMem performs up to 2x better than Memory Mode with increasing hot set size",
            "best ratio between 1.5 and 2.5 while the hot set fits",
            Bound::Between(1.5, 2.5),
            value,
            format!("{value:.2} at {}", best.hot_set),
        ));
    }
    if let Some(largest) = rows.iter().max_by_key(|row| row.hot_set).filter(|r| r.hot_set > dram) {
        let contenders = [hemem, MEMORY_MODE, FIRST_TOUCH].map(|system| gups(largest, system));
        let least = contenders.into_iter().fold(f64::INFINITY, f64::min);
        let most = contenders.into_iter().fold(0.0, f64::max);
        let value = least / most;
        claims.push(Claim::new(
            "when the hot set does not fit into DRAM, all configurations converge",
            format!(
                "at {} the slowest reaches {NEAR} of the fastest (all-DRAM aside)",
                largest.hot_set
            ),
            Bound::AtLeast(NEAR),
            value,
            format!("{value:.2}"),
        ));
        let value = largest.cells[hemem].migration.get() / (1u64 << 20) as f64;
        claims.push(Claim::new(
            STOPS,
            format!("below 100 MiB/s at {}, a hundredth of its limit", largest.hot_set),
            Bound::Below(100.0),
            value,
            format!("{value:.0} MiB/s"),
        ));
    }
    claims
}

impl fmt::Display for HememTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "GUPS against hot-set size on {}: {} threads, {} working set, {} DRAM",
            self.machine, self.threads, self.working_set, self.dram
        )?;
        writeln!(f)?;
        write!(f, "{:>9}", "hot set")?;
        for system in SYSTEMS {
            write!(f, "  {system:>12}")?;
        }
        writeln!(f, "  {:>8}  {:>9}  {:>13}", "HeMem/MM", "HeMem/all", "HeMem in DRAM")?;
        let mut fitted = true;
        for row in &self.rows {
            if fitted && row.hot_set > self.dram {
                fitted = false;
                writeln!(f, "{:>9}  hot sets below this line do not fit into DRAM", "")?;
            }
            write!(f, "{:>9}", row.hot_set.to_string())?;
            for cell in &row.cells {
                write!(f, "  {:>12.4}", cell.gups)?;
            }
            let hemem = &row.cells[HEMEM];
            writeln!(
                f,
                "  {:>8.2}  {:>9.2}  {:>11.1} %",
                hemem.gups / row.cells[MEMORY_MODE].gups,
                hemem.gups / row.cells[ALL_DRAM].gups,
                hemem.dram_share * 100.0
            )?;
        }
        writeln!(f)?;
        writeln!(f, "HeMem with the paper's rule alone (hemem-paper: exchange-ratio 0)")?;
        for claim in &self.claims_of_papers_rule {
            writeln!(f, "{claim}")?;
        }
        writeln!(f)?;
        writeln!(f, "HeMem as it is here (hemem: exchange-ratio 3)")?;
        for claim in &self.claims {
            writeln!(f, "{claim}")?;
        }
        Ok(())
    }
}
