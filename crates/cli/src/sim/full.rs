//! `terrace sim --trace` and `terrace sim -- prog`: the full model.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, PageSize};
use terrace_economics::Mode;
use terrace_sim::full::report::CacheReport;
use terrace_sim::full::{FullConfig, FullReport, Source, setup};
use terrace_sim::trace::{Format, import};
use terrace_sim::{SimPolicy, machines};

use super::recorder::{self, Via};
use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, count, facts, percent, table};
use crate::progress::Progress;

const FORMATS: &[Format] = &Format::ALL;

/// What to simulate access by access.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Recorded programs")]
pub(crate) struct Traced {
    /// Simulate a recorded program access by access, instead of a workload.
    #[arg(long, value_name = "FILE", conflicts_with = "program")]
    trace: Option<PathBuf>,

    /// The trace's format; without it the file's name decides.
    #[arg(long, value_name = "FORMAT", value_parser = one_of(FORMATS, Format::name))]
    format: Option<Format>,

    /// What the fastest tier holds, if not what the machine file says.
    #[arg(long, value_name = "SIZE")]
    fast: Option<Bytes>,

    /// Cores in use; threads run on them by their number.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    cores: usize,

    /// Accesses before anything is measured.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    skip: u64,

    /// Accesses between two samples of a policy that samples.
    #[arg(long, value_name = "COUNT")]
    sample_period: Option<u64>,

    /// What records a program that is given.
    #[arg(long, value_name = "TOOL")]
    via: Option<Via>,

    /// Run this program, and simulate it as it runs.
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// What `sim` was told that both models share.
pub(crate) struct Shared<'a> {
    pub(crate) machine: &'a str,
    pub(crate) policy: SimPolicy,
    pub(crate) economist: Mode,
    pub(crate) page_size: PageSize,
    pub(crate) seed: u64,
}

#[derive(Serialize)]
struct Document<'a> {
    report: &'a FullReport,
}

impl Traced {
    /// Whether a recorded program was asked for.
    pub(crate) fn is_wanted(&self) -> bool {
        self.trace.is_some() || !self.program.is_empty()
    }

    pub(crate) fn execute(&self, shared: &Shared<'_>, json: bool) -> Result<ExitCode, Failure> {
        let machine = machines::load(shared.machine).map_err(Failure::bad_input)?;
        let mut config = FullConfig::new(machine, shared.policy);
        config.economist = shared.economist;
        config.page_size = shared.page_size;
        config.seed = shared.seed;
        config.cores = self.cores;
        config.fast = self.fast;
        config.warm_up = self.skip;
        if let Some(period) = self.sample_period {
            config.sampler.period = period;
        }
        let report = if let Some(path) = &self.trace {
            let format = self.format.unwrap_or_else(|| Format::of(path));
            let mut source = import::open(path, format).map_err(Failure::bad_input)?;
            simulate(&config, source.as_mut())?
        } else {
            let mut recording = recorder::start(&self.program, self.via)?;
            let report = simulate(&config, recording.source.as_mut())?;
            recording.end()?;
            report
        };
        let text = if json {
            output::json("terrace.sim.full", &Document { report: &report })?
        } else {
            render(&report, config.machine.cpu.clock.value.get())
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn simulate(config: &FullConfig, source: &mut dyn Source) -> Result<FullReport, Failure> {
    let bar = Progress::new().bar(config.policy.name());
    let report = setup::simulate(config, source, &mut |accesses, now| {
        bar.set(0.0, format!("{} accesses, {now}", count(accesses)));
    });
    bar.finish();
    report.map_err(Failure::bad_input)
}

fn render(report: &FullReport, clock: f64) -> String {
    let accesses = report.accesses.max(1) as f64;
    let cycles = report.time.as_secs() * clock;
    let mut text = format!("{} on {}, policy {}\n", report.workload, report.machine, report.policy);
    let faults = &report.faults;
    text.push_str(&facts(
        "  ",
        &[
            ("accesses", format!("{} in {} instructions", count(report.accesses), count(report.instructions))),
            ("simulated", format!("{}, {:.2} cycles an access, {} of it waiting", report.time, cycles / accesses, percent(if report.time.is_zero() { 0.0 } else { report.waited / report.time }))),
            ("walks", format!("{} ({} of the accesses), {:.2} entries each", count(report.tlb.walks), percent(report.tlb.walks as f64 / accesses), report.tlb.walk_reads as f64 / report.tlb.walks.max(1) as f64)),
            ("faults", format!("{} first touches, {} hints, {} write-protected; {} trap, {} clearing, {} tables, {} waiting", count(faults.first_touches), count(faults.hints), count(faults.write_protected), faults.trap, faults.zeroing, faults.table_zeroing, faults.waiting)),
            ("migrated", format!("{} promotions, {} demotions, {} exchanges, {}", count(report.migrated.promotions), count(report.migrated.demotions), count(report.migrated.exchanges), report.migrated.moved)),
            ("host speed", report.host_speed.to_string()),
        ],
    ));
    text.push('\n');
    let cache = |name: &str, cache: &CacheReport| {
        let misses = cache.load_misses + cache.store_misses;
        [
            name.to_owned(),
            count(cache.loads),
            count(cache.load_misses),
            count(cache.stores),
            count(cache.store_misses),
            percent(misses as f64 / (cache.loads + cache.stores).max(1) as f64),
            count(cache.walk_reads),
            count(cache.walk_misses),
            count(cache.write_backs),
        ]
    };
    text.push_str(&table(
        [
            "caches",
            "loads",
            "missed",
            "stores",
            "missed",
            "missed",
            "walks",
            "missed",
            "written back",
        ],
        &[cache("L1", &report.l1), cache("L2", &report.l2), cache("LLC", &report.llc)],
    ));
    text.push('\n');
    let tiers: Vec<_> = report
        .tiers
        .iter()
        .map(|tier| {
            [
                tier.name.clone(),
                tier.used.to_string(),
                percent(tier.share),
                tier.latency.to_string(),
                tier.read_bandwidth.to_string(),
                tier.write_bandwidth.to_string(),
            ]
        })
        .collect();
    text.push_str(&table(["tiers", "used", "misses", "latency", "read", "written"], &tiers));
    text
}
