//! `terrace sim --trace` and `terrace sim -- prog`: the full model.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, PageSize};
use terrace_economics::Mode;
use terrace_sim::SimPolicy;
use terrace_sim::full::report::CacheReport;
use terrace_sim::full::timeline::Timeline;
use terrace_sim::full::{FullConfig, FullMachine, FullReport, Source, setup};

use super::input::{Input, failure, tell};
use crate::failure::Failure;
use crate::output::{self, Files, Kind, count, facts, percent, table};
use crate::progress::Progress;

/// What to simulate access by access.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Single accesses")]
pub(crate) struct Traced {
    #[command(flatten)]
    pub(super) input: Input,

    /// What the fastest tier holds, if not what the machine file says.
    #[arg(long, value_name = "SIZE")]
    fast: Option<Bytes>,

    /// Draw the run as one HTML page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
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
    /// Why a trace was not read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
}

impl Traced {
    /// Whether a recorded program was asked for.
    pub(crate) fn is_wanted(&self) -> bool {
        self.input.is_wanted()
    }

    /// Whether a page was asked for.
    pub(crate) fn wants_page(&self) -> bool {
        self.html.is_some()
    }

    pub(crate) fn execute(&self, shared: &Shared<'_>, json: bool) -> Result<ExitCode, Failure> {
        let mut config = self.input.config(shared)?;
        config.fast = self.fast;
        let mut files = Files::new();
        self.input.names(&mut files);
        files.reads("--machine", shared.machine);
        let html = self.html.as_deref();
        let html = html.map(|path| files.writes("--html", path, Kind::Whole)).transpose()?;
        output::remove_when_interrupted();
        let mut opened = self.input.open(shared.seed)?;
        config.warm_up = opened.skip;
        let (report, timeline) = match opened.source() {
            Some(source) => simulate(&config, source, html.is_some())?,
            None => return Err(Failure::bad_input("nothing to simulate")),
        };
        let cut = opened.end()?;
        if report.accesses == 0 {
            return Err(Failure::bad_input(
                "nothing was simulated: there is no access behind what is skipped",
            ));
        }
        tell(&report.workload, report.input.as_ref());
        if let (Some(html), Some(timeline)) = (html, timeline) {
            html.write_whole(terrace_report::html::sim_page(&report, &timeline).as_bytes())?;
        }
        let text = if json {
            output::json("terrace.sim.full", &Document { report: &report, cut })?
        } else {
            render(&report, config.machine.cpu.clock.value.get())
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn simulate(
    config: &FullConfig,
    source: &mut dyn Source,
    page: bool,
) -> Result<(FullReport, Option<Timeline>), Failure> {
    let mut machine = FullMachine::new(config).map_err(Failure::bad_input)?;
    if page {
        machine.keep_timeline();
    }
    let bar = Progress::new().bar(config.policy.name());
    let report = setup::run(&mut machine, config, source, &mut |accesses, now| {
        bar.set(0.0, format!("{} accesses, {now}", count(accesses)));
    });
    bar.finish();
    Ok((report.map_err(failure)?, machine.take_timeline()))
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
            ("simulated", format!("{}, {:.2} cycles an access, {} of it waiting", report.time, cycles / accesses, percent(report.waiting_share()))),
            ("walks", format!("{} ({} of the accesses), {:.2} entries each", count(report.tlb.walks), percent(report.tlb.walks as f64 / accesses), report.tlb.walk_reads as f64 / report.tlb.walks.max(1) as f64)),
            ("faults", format!("{} first touches, {} hints, {} write-protected; {} trap, {} clearing, {} tables, {} waiting", count(faults.first_touches), count(faults.hints), count(faults.write_protected), faults.trap, faults.zeroing, faults.table_zeroing, faults.waiting)),
            ("full tiers", format!("{} pages demoted at once to make room, {}", count(faults.forced), faults.reclaiming)),
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
