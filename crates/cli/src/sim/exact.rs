//! `terrace sim --trace` and `terrace sim -- prog`: the exact engine.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, PageSize};
use terrace_economics::Mode;
use terrace_sim::exact::report::CacheReport;
use terrace_sim::exact::timeline::Timeline;
use terrace_sim::exact::{ExactConfig, ExactMachine, ExactReport, Source, setup};
use terrace_sim::{OnDecisions, SimPolicy};

use super::input::{Input, failure, tell, tell_calls};
use super::setup::names_machine;
use super::{ONLY, SharedFile, finish, listener};
use crate::failure::Failure;
use crate::output::{self, Files, Kind, count, facts, percent, table};
use crate::progress::Progress;
use crate::run::render::advice;

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

/// Where all randomness comes from, where nobody says it.
pub(crate) const SEED: u64 = 1;

/// What `sim` was told that both models share.
pub(crate) struct Shared<'a> {
    pub(crate) machine: &'a str,
    pub(crate) policy: SimPolicy,
    pub(crate) economist: Mode,
    pub(crate) page_size: PageSize,
    pub(crate) seed: Option<u64>,
}

#[derive(Serialize)]
struct Document<'a> {
    report: &'a ExactReport,
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

    /// What the fastest tier holds, if that was said.
    pub(crate) fn fast(&self) -> Option<Bytes> {
        self.fast
    }

    /// `record` opens the file of decisions, if one is wanted, for a program of that name.
    pub(super) fn execute(
        &self,
        shared: &Shared<'_>,
        record: impl FnOnce(&mut Files, String, &ExactConfig) -> Result<Option<SharedFile>, Failure>,
        json: bool,
    ) -> Result<ExitCode, Failure> {
        if shared.seed.is_some() && self.input.is_recorded() && !shared.policy.takes_samples() {
            return Err(Failure::bad_input(format!(
                "--seed: has no effect: what was recorded and {} take no random numbers",
                shared.policy.name()
            )));
        }
        let mut config = self.input.config(shared)?;
        config.fast = self.fast;
        let mut files = Files::new();
        self.input.names(&mut files);
        names_machine(&mut files, "--machine", shared.machine);
        let html = self.html.as_deref();
        let html = html.map(|path| files.writes("--html", path, Kind::Whole)).transpose()?;
        output::remove_when_interrupted();
        let mut opened = self.input.open(shared.seed.unwrap_or(SEED))?;
        config.warm_up = opened.skip;
        let Some(source) = opened.source() else {
            return Err(Failure::bad_input("nothing to simulate"));
        };
        let decisions = record(&mut files, source.describe(), &config)?;
        let listener = decisions.as_ref().map(|file| listener(file, ONLY));
        let (report, timeline) = simulate(&config, source, html.is_some(), listener)?;
        let cut = opened.end()?;
        if report.accesses == 0 {
            return Err(Failure::bad_input(
                "nothing was simulated: there is no access behind what is skipped",
            ));
        }
        if let Some(decisions) = decisions {
            finish(&decisions)?;
        }
        tell(&report.workload, report.input.as_ref());
        tell_calls(&report.workload, report.input.as_ref());
        if let (Some(html), Some(timeline)) = (html, timeline) {
            html.write_whole(terrace_report::html::sim_page(&report, &timeline).as_bytes())?;
        }
        let text = if json {
            output::json("terrace.sim.full", &Document { report: &report, cut })?
        } else {
            render(&report, &config)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn simulate(
    config: &ExactConfig,
    source: &mut dyn Source,
    page: bool,
    decisions: Option<OnDecisions>,
) -> Result<(ExactReport, Option<Timeline>), Failure> {
    let mut machine = ExactMachine::new(config).map_err(failure)?;
    if page {
        machine.keep_timeline();
    }
    if let Some(decisions) = decisions {
        machine.hear(decisions);
    }
    let bar = Progress::new().bar(config.policy.name());
    let report = setup::run(&mut machine, config, source, &mut |accesses, now| {
        bar.set(0.0, format!("{} accesses, {now}", count(accesses)));
    });
    bar.finish();
    Ok((report.map_err(failure)?, machine.take_timeline()))
}

fn render(report: &ExactReport, config: &ExactConfig) -> String {
    let clock = config.machine.cpu.clock.value.get();
    let accesses = report.accesses.max(1) as f64;
    let cycles = report.time.as_secs() * clock;
    let mut text = format!("{} on {}, policy {}\n", report.workload, report.machine, report.policy);
    let faults = &report.faults;
    let mut rows = vec![
        (
            "accesses",
            format!("{} in {} instructions", count(report.accesses), count(report.instructions)),
        ),
        (
            "simulated",
            format!(
                "{}, {:.2} cycles an access, {} of it waiting",
                report.time,
                cycles / accesses,
                percent(report.waiting_share())
            ),
        ),
        (
            "walks",
            format!(
                "{} ({} of the accesses), {:.2} entries each",
                count(report.tlb.walks),
                percent(report.tlb.walks as f64 / accesses),
                report.tlb.walk_reads as f64 / report.tlb.walks.max(1) as f64
            ),
        ),
        (
            "faults",
            format!(
                "{} first touches, {} hints, {} write-protected; {} trap, {} clearing, {} tables, {} waiting",
                count(faults.first_touches),
                count(faults.hints),
                count(faults.write_protected),
                faults.trap,
                faults.zeroing,
                faults.table_zeroing,
                faults.waiting
            ),
        ),
        (
            "full tiers",
            format!(
                "{} pages demoted at once to make room, {}",
                count(faults.forced),
                faults.reclaiming
            ),
        ),
        (
            "migrated",
            format!(
                "{} promotions, {} demotions, {} exchanges, {}",
                count(report.migrated.promotions),
                count(report.migrated.demotions),
                count(report.migrated.exchanges),
                report.migrated.moved
            ),
        ),
        ("host speed", report.host_speed.to_string()),
    ];
    if report.slept > 0 {
        let slept = format!(
            "taken to sleep {} times: their turns in what was recorded lie far apart",
            count(report.slept)
        );
        rows.insert(2, ("threads", slept));
    }
    if config.cores > 1 {
        let cores = format!("{} of {} had something to do", report.cores, config.cores);
        rows.insert(2, ("cores", cores));
    }
    let mode = config.economist.name();
    let lines = super::render::lines(&report.accounts);
    rows.extend(advice(mode, &lines));
    text.push_str(&facts("  ", &rows));
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
    super::render::of_economist(mode, &lines, &mut text);
    text
}
