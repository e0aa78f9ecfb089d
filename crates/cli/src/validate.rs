//! `terrace validate`: ours beside references, from runs made then and there.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_core::Nanos;
use terrace_dram::validation as memory;
use terrace_sim::reproduce::{self, Claim, HememConfig, Length, hemem};
use terrace_sim::validation::{
    Criterion, Line, Reference, cachegrind, champsim, closed_forms, loaded,
};

use crate::failure::Failure;
use crate::output::{self, table};
use crate::progress::Progress;

/// Print ours beside references, from runs made now.
///
/// Miss counts beside cachegrind's (needs valgrind), the DDR4 curve, closed
/// forms, ChampSim's counters, published shapes of Optane and CXL, orderings of
/// papers. Exit code 1 if a check fails. docs/validation.md says why ours
/// differs where it does.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Parts to run, 1 to 6; all of them if not given.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',',
          value_parser = clap::value_parser!(u8).range(1..=6))]
    only: Vec<u8>,
}

#[derive(Serialize)]
struct Document {
    parts: Vec<Part>,
    failed: usize,
}

/// One of the six.
#[derive(Serialize)]
struct Part {
    number: u8,
    title: &'static str,
    seconds: f64,
    /// Why nothing was run.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
    lines: Vec<Judged>,
}

#[derive(Serialize)]
struct Judged {
    holds: bool,
    #[serde(flatten)]
    line: Line,
}

/// What a part runs.
type Run = fn() -> Result<Vec<Line>, Skipped>;

/// Why a part cannot be run.
enum Skipped {
    /// Something is missing here.
    Missing(String),
    /// It was tried, and failed.
    Failed(String),
}

const PARTS: [(&str, Run); 6] = [
    ("misses beside cachegrind's", misses),
    ("the DDR4-2400 latency-throughput curve", curve),
    ("closed forms", || Ok(forms())),
    ("ChampSim's counters for the synthetic mix", other_simulator),
    ("published shapes: Optane, CXL", || Ok(shapes())),
    ("orderings of the papers", orderings),
];

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let bar = Progress::new().bar("validate");
        let mut parts = Vec::new();
        for (i, (title, run)) in PARTS.into_iter().enumerate() {
            let number = i as u8 + 1;
            if !self.only.is_empty() && !self.only.contains(&number) {
                continue;
            }
            bar.set(i as f64 / PARTS.len() as f64, title);
            let begun = Instant::now();
            let (lines, skipped) = match run() {
                Ok(lines) => (lines, None),
                Err(Skipped::Missing(why)) => (Vec::new(), Some(why)),
                Err(Skipped::Failed(why)) => {
                    bar.finish();
                    return Err(Failure::failed(format!("part {number}, {title}: {why}")));
                }
            };
            let seconds = begun.elapsed().as_secs_f64();
            let lines = lines.into_iter().map(|line| Judged { holds: line.holds(), line });
            parts.push(Part { number, title, seconds, skipped, lines: lines.collect() });
        }
        bar.finish();
        let failed = parts.iter().flat_map(|part| &part.lines).filter(|line| !line.holds).count();
        let document = Document { parts, failed };
        let text =
            if json { output::json("terrace.validate", &document)? } else { render(&document) };
        output::print(&text)?;
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn misses() -> Result<Vec<Line>, Skipped> {
    if !cachegrind::is_possible() {
        return Err(Skipped::Missing("valgrind is not installed".to_owned()));
    }
    let all = cachegrind::compare().map_err(|e| Skipped::Failed(e.to_string()))?;
    let mut lines = Vec::new();
    for one in &all {
        for (level, name) in ["first level", "last level"].into_iter().enumerate() {
            for (kind, what) in ["instructions", "loads", "stores"].into_iter().enumerate() {
                lines.push(Line {
                    what: format!("{} {}, {name}: {what}", one.program, one.caches),
                    unit: "",
                    ours: one.ours[level][kind] as f64,
                    reference: one.theirs[level][kind] as f64,
                    criterion: Criterion::Within(0.0),
                    kind: Reference::Simulator,
                    source: "cachegrind, run now".to_owned(),
                });
            }
        }
    }
    Ok(lines)
}

fn from_memory(checks: Vec<memory::Check>) -> Vec<Line> {
    checks.into_iter().map(Line::from).collect()
}

fn curve() -> Result<Vec<Line>, Skipped> {
    let file = terrace_dram::presets::builtin("ddr4-2400")
        .ok_or_else(|| Skipped::Failed("no DDR4-2400".to_owned()))?;
    let begun = processor_time();
    let points = memory::curve(&file, 4000);
    let took = processor_time().saturating_sub(begun).as_secs_f64();
    let mut lines = from_memory(memory::ddr4_curve());
    lines.push(Line {
        what: format!("processor time of the curve's {} points", points.len()),
        unit: "s",
        ours: took,
        reference: 3.0,
        criterion: Criterion::AtMost,
        kind: Reference::Formula,
        source: "our own bound; Ramulator 2.1 takes 70 s".to_owned(),
    });
    Ok(lines)
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn forms() -> Vec<Line> {
    let mut lines = from_memory(memory::closed_forms());
    lines.extend(closed_forms::lines());
    lines
}

fn other_simulator() -> Result<Vec<Line>, Skipped> {
    champsim::lines().map_err(|e| Skipped::Failed(e.to_string()))
}

fn shapes() -> Vec<Line> {
    let mut lines = from_memory(memory::optane());
    lines.extend(loaded::lines());
    lines
}

/// What the papers say of HeMem's figure and of one policy against another,
/// judged by the criteria of `reproduce hemem` and of the orderings' page.
fn orderings() -> Result<Vec<Line>, Skipped> {
    let failed = |e: terrace_sim::SimError| Skipped::Failed(e.to_string());
    let table = hemem(&HememConfig::default(), &|_| ()).map_err(failed)?;
    let others = reproduce::orderings(Length::Whole, &mut |_| ()).map_err(failed)?;
    let figure = table
        .claims
        .iter()
        .map(|claim| judged(claim, "HeMem: ", "docs/reproduce-hemem.md", "HeMem, SOSP 2021"));
    let page = "docs/policies/orderings.md";
    Ok(figure.chain(others.iter().map(|claim| judged(claim, "", page, page))).collect())
}

fn judged(claim: &Claim, whose: &str, page: &'static str, source: &str) -> Line {
    Line {
        what: format!("{whose}{} ({})", claim.paper, claim.criterion),
        unit: "",
        ours: f64::from(u8::from(claim.holds)),
        reference: 1.0,
        criterion: if claim.holds { Criterion::AtLeast } else { Criterion::Explained(page) },
        kind: Reference::Simulator,
        source: format!("{source}; measured: {}", claim.measured),
    }
}

fn number(value: f64, unit: &str) -> String {
    let text = if value.fract() == 0.0 && value.abs() < 1e15 {
        output::count(value.abs() as u64)
    } else {
        format!("{value:.3}")
    };
    if unit.is_empty() { text } else { format!("{text} {unit}") }
}

fn render(document: &Document) -> String {
    let mut text = String::new();
    for part in &document.parts {
        let time = Nanos((part.seconds * 1e9) as u64);
        let _ = writeln!(text, "{}. {} ({time})", part.number, part.title);
        if let Some(why) = &part.skipped {
            let _ = writeln!(text, "   NOT RUN: {why}\n");
            continue;
        }
        let rows: Vec<_> = part
            .lines
            .iter()
            .map(|Judged { holds, line }| {
                let difference = (line.ours / line.reference - 1.0) * 100.0;
                let difference = if line.reference == 0.0 || line.criterion == Criterion::AtMost {
                    String::new()
                } else {
                    format!("{difference:+.1} %")
                };
                let (verdict, allowed) = match (holds, line.criterion) {
                    (false, _) => ("FAILS", String::new()),
                    (true, Criterion::Explained(_)) => ("differs", "not judged".to_owned()),
                    (true, _) => ("ok", String::new()),
                };
                let allowed = match line.criterion {
                    Criterion::Within(share) if share <= 0.0 => "identical".to_owned(),
                    Criterion::Within(share) => format!("within {:.0} %", share * 100.0),
                    Criterion::AtMost => "at most".to_owned(),
                    Criterion::AtLeast => "at least".to_owned(),
                    Criterion::Explained(_) => allowed,
                };
                [
                    format!("   {verdict:8}{}", line.what),
                    number(line.ours, line.unit),
                    number(line.reference, line.unit),
                    difference,
                    allowed,
                ]
            })
            .collect();
        text += &table(["   ", "ours", "reference", "", ""], &rows);
        let mut sources: Vec<&str> =
            part.lines.iter().map(|judged| judged.line.source.as_str()).collect();
        sources.dedup();
        sources.sort_unstable();
        sources.dedup();
        for source in sources {
            let _ = writeln!(text, "   reference: {source}");
        }
        let mut reasons: Vec<&str> = Vec::new();
        for judged in &part.lines {
            if let Criterion::Explained(why) = judged.line.criterion
                && !reasons.contains(&why)
            {
                reasons.push(why);
            }
        }
        for why in reasons {
            let _ = writeln!(text, "   differs because: {why}");
        }
        text.push('\n');
    }
    let lines: usize = document.parts.iter().map(|part| part.lines.len()).sum();
    let skipped = document.parts.iter().filter(|part| part.skipped.is_some()).count();
    let _ = write!(text, "{lines} comparisons, {} failed", document.failed);
    if skipped > 0 {
        let _ = write!(text, ", {skipped} parts not run");
    }
    text.push('\n');
    text
}
