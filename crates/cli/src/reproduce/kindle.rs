//! `terrace reproduce kindle`.

mod figures;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_dram::presets;
use terrace_persist::kindle::beyond::{self, AllocationRow, PolicyRow, SchemeRow};
use terrace_persist::kindle::programs::{self, HsccRow, ProgramsConfig, SspRow};
use terrace_persist::kindle::{KindleConfig, Row, Shape, reproduce, shapes};

use terrace_sim::trace::TraceReader;
use terrace_sim::workload::catalog::ProgramName;

use crate::args::{one_of, whole};
use crate::failure::Failure;
use crate::output::{self, Files, Kind};
use crate::progress::{Bar, Progress};

/// Kindle's figures and tables: process persistence, SSP, HSCC.
///
/// Each measurement beside what was published, which differs from place to
/// place: the slides or the artifact's expected results, its rerun, and the
/// first set that was committed. Of SSP also the form that Kindle's kernel
/// meant to have (flush everything) and the one that it was shipped with
/// (flushes that hit the kernel's stack), and `SoftWrAP`; programs run folded into
/// 6 MiB at the pace of Kindle's replay, and at their own footprint. Beyond
/// that: every scheme and every policy on four memories, with energy and wear. The exit code is 0
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
          value_parser = whole(1000..=u64::MAX))]
    accesses: u64,

    /// Memory of each program when it is not folded, about; of a recording, what
    /// `beyond` gives a quarter of as DRAM.
    #[arg(long, value_name = "SIZE", default_value = "24MiB")]
    size: Bytes,

    /// The memory of all parts but `beyond`: one that comes with Terrace (kindle,
    /// kindle-two-channels, optane-hybrid, stt-ram, cxl-battery), or a memory file,
    /// by its path or its name, with DRAM and a part that is not volatile. What is published is Kindle's.
    #[arg(long, value_name = "NAME|FILE", default_value = "kindle")]
    memory: String,

    /// Leave out measurements of process persistence that allocate more: 64MiB for
    /// a quick look. The shapes need them all.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    largest: Bytes,

    /// Where the programs' randomness comes from.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// A recording (`terrace record`) in place of a program, of whose end so many
    /// accesses are run; NAME is pagerank, sssp or ycsb. May be given several times.
    #[arg(long, value_name = "NAME=FILE")]
    trace: Vec<String>,

    /// Write the figures to a page that needs nothing else.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What the smallest measurements of Figure 4a allocate: without them it is empty.
const SMALLEST: Bytes = Bytes::mib(64);

/// What can be asked for alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Persistence,
    Ssp,
    Hscc,
    Beyond,
}

impl Part {
    const ALL: [Self; 4] = [Self::Persistence, Self::Ssp, Self::Hscc, Self::Beyond];

    fn name(self) -> &'static str {
        match self {
            Self::Persistence => "persistence",
            Self::Ssp => "ssp",
            Self::Hscc => "hscc",
            Self::Beyond => "beyond",
        }
    }
}

#[derive(Serialize)]
struct Document {
    paper: &'static str,
    rows: Vec<Row>,
    ssp: Vec<SspRow>,
    hscc: Vec<HsccRow>,
    allocation: Vec<AllocationRow>,
    schemes: Vec<SchemeRow>,
    policies: Vec<PolicyRow>,
    shapes: Vec<Shape>,
}

impl KindleArgs {
    pub(super) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.interval < Nanos::micros(10) {
            return Err(Failure::bad_input("--interval: must be at least 10us"));
        }
        let mut files = Files::new();
        if let Some(memory) = presets::file(&self.memory) {
            files.reads("--memory", memory);
        }
        for (_, path) in self.trace.iter().filter_map(|text| text.split_once('=')) {
            files.reads("--trace", path);
        }
        let html = self.html.as_deref();
        let html = html.map(|path| files.writes("--html", path, Kind::Whole)).transpose()?;
        output::remove_when_interrupted();
        if self.largest < SMALLEST {
            return Err(Failure::bad_input(format!("--largest: must be at least {SMALLEST}")));
        }
        let wanted = |part| self.only.is_none_or(|only| only == part);
        let traces = self.trace.iter().map(|text| trace(text)).collect::<Result<_, _>>()?;
        let memory = presets::load(&self.memory).map_err(Failure::bad_input)?;
        if memory.dram.is_none() || memory.nvm.is_none() {
            let what = format!("--memory: `{}` needs a [dram] and an [nvm] table", memory.name);
            return Err(Failure::bad_input(what));
        }
        let programs = ProgramsConfig {
            size: self.size,
            accesses: self.accesses,
            seed: self.seed,
            traces,
            memory: memory.clone(),
        };
        let progress = Progress::new();
        let mut document = Document {
            paper: "Kindle, IISWC 2024",
            rows: Vec::new(),
            ssp: Vec::new(),
            hscc: Vec::new(),
            allocation: Vec::new(),
            schemes: Vec::new(),
            policies: Vec::new(),
            shapes: Vec::new(),
        };
        let config = KindleConfig {
            interval: self.interval,
            memory,
            largest: self.largest,
            ..KindleConfig::default()
        };
        if wanted(Part::Persistence) {
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
        if wanted(Part::Beyond) {
            let bar = progress.bar("allocation");
            let rows = beyond::allocation(&config, &|done, total| show(&bar, done, total));
            document.allocation = rows.map_err(Failure::bad_input)?;
            bar.finish();
            let bar = progress.bar("schemes");
            let rows = beyond::schemes(&programs, &|done, total| show(&bar, done, total));
            document.schemes = rows.map_err(Failure::bad_input)?;
            bar.finish();
            let bar = progress.bar("policies");
            let rows = beyond::policies(&programs, &|done, total| show(&bar, done, total));
            document.policies = rows.map_err(Failure::bad_input)?;
            bar.finish();
        }
        document.shapes.extend(programs::shapes(&document.ssp, &document.hscc));
        if let Some(html) = html {
            html.write_whole(figures::page(&document).as_bytes())?;
        }
        let text = if json {
            output::json("terrace.reproduce", &document)?
        } else {
            tables::render(&document)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn show(bar: &Bar, done: usize, total: usize) {
    bar.set(done as f64 / total as f64, format!("{done}/{total}"));
}

/// `NAME=FILE`: a program and its recording, which can be read.
fn trace(text: &str) -> Result<(ProgramName, PathBuf), Failure> {
    let bad = |why: String| Failure::bad_input(format!("--trace: {why}"));
    let (name, path) = text
        .split_once('=')
        .ok_or_else(|| bad(format!("`{text}` is not of the form NAME=FILE")))?;
    let name = programs::PROGRAMS
        .into_iter()
        .find(|program| program.name() == name)
        .ok_or_else(|| bad(format!("`{name}` is none of pagerank, sssp, ycsb")))?;
    TraceReader::open(path.as_ref()).map_err(|e| bad(e.to_string()))?;
    Ok((name, path.into()))
}
