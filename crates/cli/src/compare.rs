//! `terrace compare`: several policies on one workload, in one table.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Serialize;
use terrace_sim::{SimError, SimPolicy, SimReport, Simulation};

use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, count, percent, table};
use crate::progress::Progress;
use crate::sim::input::failure;
use crate::sim::setup::{POLICIES, Setup};

/// Simulate several policies on one workload, and show them in one table.
///
/// Simulations run side by side on all processors; each gives the result that
/// `terrace sim` gives.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: terrace compare --policies hemem,memory-mode,all-dram --hot 64GiB"
)]
pub(crate) struct Args {
    /// What to compare; everything there is by default.
    #[arg(long, value_name = "NAMES", value_delimiter = ',',
          value_parser = one_of(POLICIES, SimPolicy::name))]
    policies: Vec<SimPolicy>,

    #[command(flatten)]
    setup: Setup,
}

#[derive(Serialize)]
struct Comparison {
    reports: Vec<SimReport>,
    /// What was not asked for by name and is impossible on this machine.
    skipped: Vec<Skipped>,
}

#[derive(Serialize)]
struct Skipped {
    policy: SimPolicy,
    why: String,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let named = !self.policies.is_empty();
        let wanted = if named { &self.policies } else { POLICIES };
        let (mut policies, mut simulations, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
        // All are set up before the first runs: bad input is known at once.
        for &policy in wanted {
            match Simulation::new(self.setup.config(policy)?) {
                Ok(simulation) => {
                    policies.push(policy);
                    simulations.push(simulation);
                }
                // A slow tier need not hold everything for the others to be compared.
                Err(why @ SimError::DoesNotFit { .. }) if !named => {
                    skipped.push(Skipped { policy, why: why.to_string() });
                }
                Err(why) => return Err(failure(why)),
            }
        }
        if let ([], [first, ..]) = (policies.as_slice(), skipped.as_slice()) {
            return Err(Failure::bad_input(&first.why));
        }
        let reports = run_all(&policies, simulations);
        let comparison = Comparison { reports, skipped };
        let text =
            if json { output::json("terrace.compare", &comparison)? } else { render(&comparison) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Runs simulations on all processors; the reports are in the simulations' order.
fn run_all(policies: &[SimPolicy], simulations: Vec<Simulation>) -> Vec<SimReport> {
    let progress = Progress::new();
    let work: Vec<_> = policies
        .iter()
        .zip(simulations)
        .map(|(policy, simulation)| (progress.bar(policy.name()), Mutex::new(Some(simulation))))
        .collect();
    let results: Vec<Mutex<Option<SimReport>>> = work.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from).min(work.len());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some((bar, simulation)) = work.get(i) else { break };
                    let simulation =
                        simulation.lock().unwrap_or_else(PoisonError::into_inner).take();
                    let report = simulation.map(|simulation| crate::sim::run(simulation, bar));
                    *results[i].lock().unwrap_or_else(PoisonError::into_inner) = report;
                }
            });
        }
    });
    results
        .into_iter()
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

fn render(comparison: &Comparison) -> String {
    let reports = &comparison.reports;
    let Some(first) = reports.first() else { return String::new() };
    let best = reports.iter().map(|report| report.throughput.get()).fold(0.0, f64::max);
    let rows: Vec<_> = reports
        .iter()
        .map(|report| {
            let moves = &report.migrated_measured;
            [
                report.policy.name().to_owned(),
                report.throughput.to_string(),
                percent(if best > 0.0 { report.throughput.get() / best } else { 0.0 }),
                percent(report.tiers.first().map_or(0.0, |fastest| fastest.share)),
                count(moves.promotions + moves.exchanges),
                count(moves.demotions + moves.exchanges),
                moves.moved.to_string(),
            ]
        })
        .collect();
    let mut text = format!("{} on {}\n\n", first.workload, first.machine)
        + &table(
            [
                "policy",
                "throughput",
                "of the best",
                "from fastest tier",
                "promotions",
                "demotions",
                "migrated",
            ],
            &rows,
        );
    for Skipped { policy, why } in &comparison.skipped {
        let _ = writeln!(text, "without {policy}: {why}");
    }
    text
}
