//! `terrace reproduce kindle`.

mod figures;

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_persist::SchemeKind;
use terrace_persist::kindle::programs::{self, HsccRow, ProgramsConfig, SspRow};
use terrace_persist::kindle::{KindleConfig, Row, Shape, reproduce, shapes};
use terrace_persist::run::RunReport;

use crate::args::one_of;
use crate::failure::Failure;
use crate::output;
use crate::progress::{Bar, Progress};

/// Kindle's figures and tables: process persistence, SSP, HSCC.
///
/// Each measurement beside what was published, which differs from place to
/// place: the slides or the artifact's expected results, its rerun, and the
/// first set that was committed. Of SSP also the form that Kindle's kernel
/// meant to have (flush everything) and the one that it was shipped with
/// (flushes that hit the kernel's stack), and `SoftWrAP`; programs run folded into
/// 6 MiB, as Kindle's replays do, and at their own footprint. The exit code is 0
/// also where a shape does not hold: that is a result, not a failure.
#[derive(Debug, clap::Args)]
pub(super) struct KindleArgs {
    /// Time from the end of a checkpoint to the next, of process persistence.
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    interval: Nanos,

    /// One part alone.
    #[arg(long, value_name = "PART", value_parser = one_of(&Part::ALL, Part::name))]
    only: Option<Part>,

    /// Recorded accesses of each program; Kindle has ten million.
    #[arg(long, value_name = "COUNT", default_value_t = 2_000_000,
          value_parser = clap::value_parser!(u64).range(1000..))]
    accesses: u64,

    /// Memory of each program when it is not folded, about.
    #[arg(long, value_name = "SIZE", default_value = "24MiB")]
    size: Bytes,

    /// Where the programs' randomness comes from.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Write the figures to a page that needs nothing else.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What can be asked for alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Persistence,
    Ssp,
    Hscc,
}

impl Part {
    const ALL: [Self; 3] = [Self::Persistence, Self::Ssp, Self::Hscc];

    fn name(self) -> &'static str {
        match self {
            Self::Persistence => "persistence",
            Self::Ssp => "ssp",
            Self::Hscc => "hscc",
        }
    }
}

#[derive(Serialize)]
struct Document {
    paper: &'static str,
    rows: Vec<Row>,
    ssp: Vec<SspRow>,
    hscc: Vec<HsccRow>,
    shapes: Vec<Shape>,
}

impl KindleArgs {
    pub(super) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.interval < Nanos::micros(10) {
            return Err(Failure::bad_input("--interval: must be at least 10us"));
        }
        if let Some(path) = &self.html {
            output::writable("--html", path)?;
        }
        let wanted = |part| self.only.is_none_or(|only| only == part);
        let programs = ProgramsConfig { size: self.size, accesses: self.accesses, seed: self.seed };
        let progress = Progress::new();
        let mut document = Document {
            paper: "Kindle, IISWC 2024",
            rows: Vec::new(),
            ssp: Vec::new(),
            hscc: Vec::new(),
            shapes: Vec::new(),
        };
        if wanted(Part::Persistence) {
            let config = KindleConfig { interval: self.interval, ..KindleConfig::default() };
            let bar = progress.bar("process persistence");
            document.rows = reproduce(&config, &|done, total| show(&bar, done, total));
            bar.finish();
            document.shapes.extend(shapes(&document.rows));
        }
        if wanted(Part::Ssp) {
            let bar = progress.bar("SSP");
            let rows = programs::ssp(&programs, &|done, total| show(&bar, done, total));
            document.ssp = rows.map_err(Failure::bad_input)?;
            bar.finish();
        }
        if wanted(Part::Hscc) {
            let bar = progress.bar("HSCC");
            let rows = programs::hscc(&programs, &|done, total| show(&bar, done, total));
            document.hscc = rows.map_err(Failure::bad_input)?;
            bar.finish();
        }
        document.shapes.extend(programs::shapes(&document.ssp, &document.hscc));
        if let Some(path) = &self.html {
            std::fs::write(path, figures::page(&document.rows, &document.ssp, &document.hscc))
                .map_err(|e| Failure::failed(format!("--html: {}: {e}", path.display())))?;
        }
        let text =
            if json { output::json("terrace.reproduce", &document)? } else { render(&document) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn show(bar: &Bar, done: usize, total: usize) {
    bar.set(done as f64 / total as f64, format!("{done}/{total}"));
}

fn millis(time: Nanos) -> String {
    format!("{:.1}", time.as_f64() / 1e6)
}

fn pair(pair: Option<[f64; 2]>) -> String {
    pair.map_or_else(|| "-".into(), |[persistent, rebuild]| format!("{persistent:.0}/{rebuild:.0}"))
}

fn persistence(rows: &[Row]) -> String {
    let times: Vec<_> = rows
        .iter()
        .map(|row| {
            let [persistent, list, indexed] = row.ours.map(|run| millis(run.time));
            let published = row.published;
            [
                row.case.to_string(),
                persistent,
                list,
                indexed,
                pair(Some(published.expected)),
                pair(Some(published.rerun)),
                pair(published.first),
            ]
        })
        .collect();
    let header = [
        "ms",
        SchemeKind::MAPPING[0].name(),
        SchemeKind::MAPPING[1].name(),
        SchemeKind::MAPPING[2].name(),
        "expected P/R",
        "rerun P/R",
        "first set P/R",
    ];
    let mut text = output::table(header, &times);
    let recovery: Vec<_> = rows
        .iter()
        .map(|row| {
            let [persistent, list, indexed] = row.ours.map(|run| millis(run.recovery));
            let checkpoints = row.ours.map(|run| run.checkpoints.to_string()).join("/");
            let lines = row.ours.map(|run| format!("{:.2}", run.lines_written as f64 / 1e6));
            [row.case.to_string(), persistent, list, indexed, checkpoints, lines.join("/")]
        })
        .collect();
    text += "\nTime from power-up until the process goes on, after a failure at the end:\n\n";
    text += &output::table(
        ["ms", header[1], header[2], header[3], "checkpoints", "M lines written"],
        &recovery,
    );
    text
}

fn ssp(rows: &[SspRow]) -> String {
    let ratio = |value: f64| format!("{value:.3}");
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            let ours = &row.runs[1];
            let wear = |run: &RunReport| run.wear.writes as f64 / 1e6;
            [
                format!("{}{}", row.program, if row.folded { ", folded" } else { "" }),
                row.interval.to_string(),
                ratio(row.ours),
                ratio(row.everything),
                ratio(row.stack_slot),
                ratio(row.softwrap),
                ratio(row.published),
                row.rerun.map_or_else(|| "-".into(), |rerun| format!("{rerun:.2}")),
                format!("{:.2}/{:.2}", wear(&row.runs[0]), wear(ours)),
                ours.recovery.map_or_else(|| "-".into(), |time| time.to_string()),
            ]
        })
        .collect();
    let header = [
        "time / without",
        "interval",
        "ssp",
        "flush all",
        "as shipped",
        "softwrap",
        "published",
        "rerun",
        "M lines written, without/ssp",
        "recovery",
    ];
    "Figure 5, SSP. A column for our form, for the published design (every line is\n\
     flushed), for the artifact as shipped (its flushes hit the kernel's stack), and\n\
     for SoftWrAP:\n\n"
        .to_owned()
        + &output::table(header, &cells)
}

fn hscc(rows: &[HsccRow]) -> String {
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            [
                row.program.to_string(),
                row.threshold.to_string(),
                format!("{:.4}", row.time),
                format!("{:.4}", row.published[0]),
                format!("{:.4}", row.published[1]),
                row.pages.to_string(),
                row.published_pages.map(|pages| pages.to_string()).join("/"),
                format!("{:.2}/{:.2}", 100.0 - row.copy, row.copy),
                row.published_copy
                    .map_or_else(|| "-".into(), |copy| format!("{:.2}/{:.2}", 100.0 - copy, copy)),
                output::percent(row.scanning),
            ]
        })
        .collect();
    let header = [
        "",
        "threshold",
        "time",
        "rerun",
        "first set",
        "pages",
        "slide/expected/rerun",
        "% select/copy",
        "slide",
        "reading counts",
    ];
    "Figure 6 and its tables, HSCC: time over time without migration, pages migrated,\n\
     and how a migration's time is split:\n\n"
        .to_owned()
        + &output::table(header, &cells)
}

fn render(document: &Document) -> String {
    let mut parts = Vec::new();
    if !document.rows.is_empty() {
        parts.push(persistence(&document.rows));
    }
    if !document.ssp.is_empty() {
        parts.push(ssp(&document.ssp));
    }
    if !document.hscc.is_empty() {
        parts.push(hscc(&document.hscc));
    }
    let mut text = parts.join("\n") + "\n";
    for shape in &document.shapes {
        let verdict = if shape.holds { "holds  " } else { "differs" };
        text += &format!(
            "{verdict}  {}\n         {}; ours {:.4}\n",
            shape.statement, shape.criterion, shape.value
        );
    }
    text
}
