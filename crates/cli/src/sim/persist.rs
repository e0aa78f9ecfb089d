//! `terrace sim --persist`: a program under a persistence scheme.

use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Nanos;
use terrace_dram::presets;
use terrace_persist::folded::Folded;
use terrace_persist::run::{RunConfig, RunReport, Survival, run};
use terrace_persist::scheme::{FlushScope, SspConfig};
use terrace_sim::exact::Source;

use super::input::{Input, tell, tell_calls};
use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, count, facts, percent};
use crate::progress::Progress;

const SURVIVALS: &[Survival] = &Survival::ALL;
const SCOPES: &[FlushScope] = &FlushScope::ALL;

/// How a program's state survives power failures.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Persistence")]
pub(crate) struct Persist {
    /// Run under a persistence scheme, on an in-order core at 3 GHz; `none`
    /// is what others are compared with.
    #[arg(long = "persist", value_name = "SCHEME",
          value_parser = one_of(SURVIVALS, |s| s.name()))]
    survival: Option<Survival>,

    /// A memory with a part that is not volatile: one that comes with Terrace
    /// (kindle, optane-hybrid, stt-ram, cxl-battery), or a memory file by its path or its
    /// name.
    #[arg(long, value_name = "NAME|FILE", default_value = "kindle")]
    memory: String,

    /// Time from the end of a checkpoint to the next.
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    interval: Nanos,

    /// Time between two turns of the scheme's thread in the background.
    #[arg(long, value_name = "TIME", default_value = "1ms")]
    background: Nanos,

    /// What SSP writes back at the end of an interval: what was updated, or
    /// as Kindle meant it, or as Kindle was shipped.
    #[arg(long, value_name = "SCOPE", default_value = "updated",
          value_parser = one_of(SCOPES, |s| s.name()))]
    ssp_flush: FlushScope,

    /// Fold the program into 6.25 MiB, as Kindle's replays are.
    #[arg(long)]
    fold: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    report: &'a RunReport,
    /// Why a trace was not read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
}

impl Persist {
    /// Whether a scheme was asked for.
    pub(crate) fn is_wanted(&self) -> bool {
        self.survival.is_some()
    }

    fn config(&self, survival: Survival) -> Result<RunConfig, Failure> {
        for (flag, time) in [("--interval", self.interval), ("--background", self.background)] {
            if time < Nanos::micros(10) {
                return Err(Failure::bad_input(format!("{flag}: must be at least 10us")));
            }
        }
        let survival = match survival {
            Survival::Scheme(kind) if kind.name() == "ssp" => {
                Survival::Ssp(SspConfig { flush: self.ssp_flush, ..SspConfig::KINDLE })
            }
            other => other,
        };
        let memory = presets::load(&self.memory).map_err(Failure::bad_input)?;
        let mut config = RunConfig::new(survival, memory);
        config.interval = self.interval;
        config.background = self.background;
        Ok(config)
    }

    pub(crate) fn execute(
        &self,
        input: &Input,
        seed: u64,
        json: bool,
    ) -> Result<ExitCode, Failure> {
        let Some(survival) = self.survival else {
            return Err(Failure::bad_input("--persist: names no scheme"));
        };
        let mut config = self.config(survival)?;
        if !input.is_wanted() {
            let what = "--persist: needs single accesses: give --trace, --algorithm or -- PROGRAM";
            return Err(Failure::bad_input(what));
        }
        if input.cores() > 1 {
            return Err(Failure::bad_input("--cores: a persistence scheme runs on one core"));
        }
        output::remove_when_interrupted();
        let mut opened = input.open(seed)?;
        config.skip = opened.skip;
        let Some(source) = opened.source() else {
            return Err(Failure::bad_input("nothing to simulate"));
        };
        let report = if self.fold && input.is_recorded() {
            simulate(&mut Folded::new(source).of_recording(), &config)?
        } else if self.fold {
            simulate(&mut Folded::new(source), &config)?
        } else {
            simulate(source, &config)?
        };
        let cut = opened.end()?;
        if let Some(input) = &report.input {
            if input.accesses() == 0 {
                let what = format!("{}: nothing was recorded", report.workload);
                return Err(Failure::failed(what));
            }
            tell(&report.workload, Some(input));
            tell_calls(&report.workload, Some(input));
        }
        let text = if json {
            output::json("terrace.sim.persist", &Document { report: &report, cut })?
        } else {
            render(&report)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn simulate(source: &mut dyn Source, config: &RunConfig) -> Result<RunReport, Failure> {
    let bar = Progress::new().bar(config.survival.name());
    let report = run(source, config, &mut |accesses| {
        bar.set(0.0, format!("{} accesses", count(accesses)));
    });
    bar.finish();
    report.map_err(Failure::bad_input)
}

fn years(years: Option<f64>) -> String {
    years.map_or_else(|| "unknown".into(), |years| format!("{years:.3} years"))
}

fn render(report: &RunReport) -> String {
    let part = |time: Nanos| {
        let share = if report.time.is_zero() { 0.0 } else { time / report.time };
        format!("{time}, {} of the time", percent(share))
    };
    let lines = |[reads, writes]: [u64; 2]| {
        format!("{} lines read, {} written", count(reads), count(writes))
    };
    let wear = &report.wear;
    let classes: Vec<String> = wear
        .histogram
        .iter()
        .enumerate()
        .map(|(i, lines)| format!("{}+: {}", 1u64 << i, count(*lines)))
        .collect();
    let mut rows = vec![
        ("accesses", count(report.accesses)),
        ("touched", report.footprint.to_string()),
        ("simulated", report.time.to_string()),
        ("checkpoints", format!("{}; {}", count(report.checkpoints), part(report.in_checkpoints))),
        ("background", part(report.in_background)),
        ("DRAM", lines(report.dram_lines)),
        ("NVM", lines(report.nvm_lines)),
        ("wear", format!("{} lines written, one of them {} times", count(wear.lines), wear.most)),
        ("lines by writes", classes.join("  ")),
        (
            "worn out after",
            format!(
                "{}; with perfect wear levelling {}",
                years(wear.years_as_is),
                years(wear.years_levelled)
            ),
        ),
        (
            "energy",
            report.energy.map_or_else(
                || "unknown".into(),
                |e| {
                    format!(
                        "{:.1} µJ: DRAM {:.1}, NVM reads {:.1}, NVM writes {:.1}",
                        e.total(),
                        e.dram,
                        e.nvm_reads,
                        e.nvm_writes
                    )
                },
            ),
        ),
        (
            "recovery",
            report.recovery.map_or_else(|| "nothing survives".into(), |time| time.to_string()),
        ),
    ];
    let work: Vec<(&str, String)> =
        report.work.iter().map(|(name, number)| (*name, count(*number))).collect();
    rows.extend(work);
    format!("{}, scheme {}, memory {}\n", report.workload, report.scheme, report.memory)
        + &facts("  ", &rows)
}
