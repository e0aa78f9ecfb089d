//! `terrace validate`: ours beside references, from runs made then and there.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use terrace_core::{Nanos, Replacement};
use terrace_dram::{MemoryFile, presets};
use terrace_persist::kindle::programs::ProgramsConfig;
use terrace_persist::kindle::validation as kindle;
use terrace_sim::kernel::{Costs, FileReplacement};
use terrace_sim::plan::held_out;
use terrace_sim::reproduce::{HememConfig, Length};
use terrace_sim::validation::{
    Criterion, Line, Model, Reference, State, Tally, cachegrind, champsim, closed_forms, curve,
    huge_pages, kernel_objects, loaded, page_cache_lru, planner, policies,
};
use terrace_sim::{SimError, machines};

use crate::failure::Failure;
use crate::output::{self, table};
use crate::progress::Progress;

/// Print ours beside references, from runs made now.
///
/// Miss counts beside cachegrind's (needs valgrind), the DDR4 curve, closed
/// forms, ChampSim's counters, published shapes of Optane and CXL, orderings of
/// papers, Kindle's figure of HSCC, predictions of
/// plan, objects of the running kernel for calls of fio and of a key-value store (needs root,
/// tracefs, and one of the two), its page cache in a limited memory (needs root). A row holds, fails,
/// differs as is known (with the cause), or only checks arithmetic. Exit code 1 if a row fails.
/// docs/validation.md says what is checked against what.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Parts to run, 1 to 10; all of them if not given.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',',
          value_parser = clap::value_parser!(u8).range(1..=10))]
    only: Vec<u8>,
}

#[derive(Serialize)]
struct Document {
    parts: Vec<Part>,
    /// What all rows came to.
    #[serde(flatten)]
    all: Tally,
    /// The same by what they are compared with.
    by_reference: Vec<OfReference>,
    /// Parts that could not be run here.
    parts_not_run: usize,
}

/// What the rows with one kind of reference came to.
#[derive(Serialize)]
struct OfReference {
    reference: Reference,
    #[serde(flatten)]
    tally: Tally,
}

/// One of the ten.
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
    state: State,
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

impl From<SimError> for Skipped {
    fn from(error: SimError) -> Self {
        Self::Failed(error.to_string())
    }
}

const PARTS: [(&str, Run); 10] = [
    ("misses beside cachegrind's", misses),
    ("the DDR4-2400 latency-throughput curve", || Ok(curve::lines(&memory("ddr4-2400")?))),
    ("closed forms", || Ok(closed_forms::lines(&MemoryFile::clone, Replacement::Lru))),
    ("ChampSim's counters for the synthetic mix", || Ok(champsim::lines(champsim::machine())?)),
    ("published shapes: Optane, CXL, mixed traffic, huge pages", shapes),
    ("orderings of the papers", orderings),
    ("Kindle's figure of HSCC", || {
        let config = ProgramsConfig { accesses: kindle::ACCESSES, ..ProgramsConfig::default() };
        Ok(kindle::lines(&config)?)
    }),
    ("predictions of plan for inputs that it has not seen", || {
        Ok(planner::lines(&held_out::PROGRAMS, &held_out::machine()?)?)
    }),
    ("objects of the kernel for calls of fio and db_bench", kernel_objects),
    ("the page cache in a limited memory", page_cache_in_limits),
];

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        // Part 10 starts this command to be measured itself.
        if page_cache_lru::read_if_asked().map_err(Failure::failed)? {
            return Ok(ExitCode::SUCCESS);
        }
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
            let lines = lines.into_iter().map(|line| Judged { state: line.state(), line });
            parts.push(Part { number, title, seconds, skipped, lines: lines.collect() });
        }
        bar.finish();
        let document = Document::of(parts);
        let text =
            if json { output::json("terrace.validate", &document)? } else { render(&document) };
        output::print(&text)?;
        Ok(document.exit_code())
    }
}

impl Document {
    fn of(parts: Vec<Part>) -> Self {
        let lines: Vec<&Line> =
            parts.iter().flat_map(|part| part.lines.iter().map(|judged| &judged.line)).collect();
        let all = Tally::of(lines.iter().copied());
        let by_reference = REFERENCES.map(|(reference, _)| OfReference {
            reference,
            tally: Tally::of(lines.iter().copied().filter(|line| line.kind == reference)),
        });
        let parts_not_run = parts.iter().filter(|part| part.skipped.is_some()).count();
        Self { parts, all, by_reference: by_reference.into(), parts_not_run }
    }

    fn exit_code(&self) -> ExitCode {
        if self.all.fails == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// What rows are compared with.
const REFERENCES: [(Reference, &str); 5] = [
    (Reference::Hardware, "published measurements"),
    (Reference::Simulator, "other simulators"),
    (Reference::Formula, "closed forms"),
    (Reference::Here, "this machine's kernel, in the same run"),
    (Reference::Ourselves, "bounds of our own"),
];

fn misses() -> Result<Vec<Line>, Skipped> {
    if !cachegrind::is_possible() {
        return Err(Skipped::Missing("valgrind is not installed".to_owned()));
    }
    let all = cachegrind::compare().map_err(|e| Skipped::Failed(e.to_string()))?;
    Ok(cachegrind::lines(&all))
}

impl From<kernel_objects::NotRun> for Skipped {
    fn from(why: kernel_objects::NotRun) -> Self {
        match why {
            kernel_objects::NotRun::Missing(what) => Self::Missing(what),
            kernel_objects::NotRun::Failed(what) => Self::Failed(what),
        }
    }
}

fn kernel_objects() -> Result<Vec<Line>, Skipped> {
    Ok(kernel_objects::lines(&Costs::builtin())?)
}

fn page_cache_in_limits() -> Result<Vec<Line>, Skipped> {
    let measured = page_cache_lru::measure()?;
    Ok(page_cache_lru::lines(&measured, &Costs::builtin(), FileReplacement::TwoLists)?)
}

fn memory(name: &str) -> Result<MemoryFile, Skipped> {
    presets::load(name).map_err(Skipped::Failed)
}

fn shapes() -> Result<Vec<Line>, Skipped> {
    let mut lines = loaded::lines(&machines::load("cxl")?, &memory("optane")?);
    lines.extend(huge_pages::lines(&terrace_sim::reproduce::cbmm::the_machine()?)?);
    Ok(lines)
}

fn orderings() -> Result<Vec<Line>, Skipped> {
    let mut lines = policies::of_hemem(&HememConfig::default())?;
    lines.extend(policies::orderings(Length::Whole)?);
    Ok(lines)
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
            .map(|Judged { state, line }| {
                let difference = (line.ours / line.reference - 1.0) * 100.0;
                let bound = matches!(line.criterion, Criterion::AtMost | Criterion::AtLeast);
                let difference = if line.reference == 0.0 || bound {
                    String::new()
                } else {
                    format!("{difference:+.1} %")
                };
                let verdict = match state {
                    State::Holds => "holds",
                    State::Fails => "FAILS",
                    State::Differs => "differs",
                    State::Arithmetic => "arithmetic",
                };
                let allowed = match line.criterion {
                    Criterion::Within(share) if share <= 0.0 => "identical".to_owned(),
                    Criterion::Within(share) => format!("within {:.0} %", share * 100.0),
                    Criterion::AtMost => "at most".to_owned(),
                    Criterion::AtLeast => "at least".to_owned(),
                    Criterion::Between(least, most) => format!("{least} to {most}"),
                    Criterion::Differs(known) => format!(
                        "known: {} within {:.0} %",
                        number(known.ours, ""),
                        known.within * 100.0
                    ),
                };
                [
                    format!("   {verdict:11}{}", line.what),
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
            if let Criterion::Differs(known) = judged.line.criterion
                && !reasons.contains(&known.cause)
            {
                reasons.push(known.cause);
            }
        }
        for why in reasons {
            let _ = writeln!(text, "   differs because: {why}");
        }
        for (model, note) in MODELS {
            if part.lines.iter().any(|judged| judged.line.model == model) {
                let _ = writeln!(text, "   looks at: {note}");
            }
        }
        text.push('\n');
    }
    summary(&mut text, document);
    text
}

/// Which part of the simulator rows look at, and who uses it.
const MODELS: [(Model, &str); 5] = [
    (Model::Caches, "caches, TLBs and page walks of the exact engine"),
    (Model::Tiers, "tiers by latency, bandwidth and load, as `sim`, `compare` and `plan` use them"),
    (Model::Commands, COMMANDS),
    (Model::Policies, "policies in a simulation"),
    (Model::Kernel, "the simulated kernel"),
];
const COMMANDS: &str = "memory by its commands, as `crash` and `reproduce kindle` use it for \
                        persistence, and runs of single accesses for tiers that name a memory";

fn summary(text: &mut String, document: &Document) {
    let counted = |tally: &Tally| {
        format!(
            "{} hold, {} fail, {} differ as known, {} check arithmetic only",
            tally.holds, tally.fails, tally.differs, tally.arithmetic
        )
    };
    for of in &document.by_reference {
        let name = REFERENCES.iter().find(|(reference, _)| *reference == of.reference);
        if let (Some((_, name)), true) = (name, of.tally.total() > 0) {
            let _ = writeln!(text, "beside {name}: {}", counted(&of.tally));
        }
    }
    let _ = write!(text, "{} rows: {}", document.all.total(), counted(&document.all));
    if document.parts_not_run > 0 {
        let _ = write!(text, "; {} parts not run", document.parts_not_run);
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The libraries' tests seed a fault in each part and see rows fail; this is what
    /// makes a row that fails the command's failure.
    #[test]
    fn a_row_that_fails_is_exit_code_1_and_is_told() {
        let document = |memory: &MemoryFile| {
            let checks = terrace_dram::validation::ddr4_curve(memory);
            let lines = checks.into_iter().map(Line::from);
            let lines = lines.map(|line| Judged { state: line.state(), line }).collect();
            let part = Part { number: 2, title: "a curve", seconds: 1.0, skipped: None, lines };
            Document::of(vec![part])
        };
        let sound = presets::load("ddr4-2400").unwrap();
        let document_of_sound = document(&sound);
        assert_eq!(document_of_sound.exit_code(), ExitCode::SUCCESS);
        assert!(render(&document_of_sound).contains(" 0 fail, "));

        let mut faulty = sound;
        let opening = &mut faulty.dram.as_mut().unwrap().timing.tRCD.value;
        (opening.cycles, opening.nanos) = (opening.cycles * 2, opening.nanos * 2.0);
        let document = document(&faulty);
        assert_eq!(document.exit_code(), ExitCode::FAILURE);
        let text = render(&document);
        assert!(text.contains("   FAILS      idle latency to the first data"), "{text}");
        assert!(!text.contains(" 0 fail, "), "{text}");
    }

    /// Part 10, from a measurement that was recorded: a simulated kernel from whose page cache
    /// the wrong pages leave is the command's failure.
    #[test]
    fn a_wrong_replacement_in_the_page_cache_is_exit_code_1() {
        let measured = page_cache_lru::recorded();
        let document = |replacement| {
            let lines = page_cache_lru::lines(&measured, &Costs::builtin(), replacement);
            let lines = lines.unwrap_or_else(|_| panic!("what was recorded is steady"));
            let lines = lines.into_iter();
            let lines = lines.map(|line| Judged { state: line.state(), line }).collect();
            let title = PARTS[9].0;
            Document::of(vec![Part { number: 10, title, seconds: 1.0, skipped: None, lines }])
        };
        assert_eq!(document(FileReplacement::TwoLists).exit_code(), ExitCode::SUCCESS);
        let faulty = document(FileReplacement::FirstCome);
        assert_eq!(faulty.exit_code(), ExitCode::FAILURE);
        assert!(render(&faulty).contains("   FAILS      hot set of "), "{}", render(&faulty));
    }

    #[test]
    fn a_part_that_measures_nothing_has_no_row() {
        let why = "not measurable here: x is on a tmpfs".to_owned();
        let part = Part { number: 10, title: "x", seconds: 0.0, skipped: Some(why), lines: vec![] };
        let document = Document::of(vec![part]);
        let text = render(&document);
        assert!(text.contains("   NOT RUN: not measurable here"), "{text}");
        assert!(text.contains("0 rows: ") && text.contains("; 1 parts not run"), "{text}");
    }
}
