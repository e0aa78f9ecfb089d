//! `terrace reproduce klocs`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::ObjectKind;
use terrace_kloc::policy::Strategy;
use terrace_report::html::{Figure, figures_page};
use terrace_sim::kernel::programs::Program;
use terrace_sim::kernel::{Class, Costs, recorded};
use terrace_sim::reproduce::klocs::{Recorded, Run};
use terrace_sim::reproduce::{KlocsConfig, KlocsTable, klocs as reproduce_klocs};

use super::{bad_trace, named};
use crate::failure::Failure;
use crate::output::{self, Files, Kind};
use crate::progress::Progress;

/// KLOCs: kernel objects of I/O in two tiers of memory.
///
/// Figures 2, 4, 5a, 5b, 5c and 6, Table 6 and section 7.3, from the simulated kernel and calls
/// made up in the shape of the paper's programs, or recorded ones in their place. Each claim of
/// the paper is printed with its criterion and what was measured. The exit code is 0 also where a
/// claim does not hold: that is a result, not a failure.
#[derive(Debug, clap::Args)]
pub(super) struct KlocsArgs {
    /// Smaller memories and fewer operations: a look in two minutes.
    #[arg(long)]
    quick: bool,

    /// Where all randomness comes from.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// A recording of calls (`terrace record --calls`) in place of calls that are made up; NAME is
    /// rocksdb, redis, filebench, cassandra or spark. May be given several times.
    #[arg(long, value_name = "NAME=FILE")]
    trace: Vec<String>,

    /// What calls cost: a file of `terrace calibrate kernel`; the built-in one if not given.
    #[arg(long, value_name = "FILE")]
    costs: Option<PathBuf>,

    /// Draw the figures as one HTML page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document {
    paper: &'static str,
    table: KlocsTable,
}

impl KlocsArgs {
    pub(super) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let mut config = if self.quick { KlocsConfig::quick() } else { KlocsConfig::whole() };
        config.seed = self.seed;
        let mut files = Files::new();
        for (_, path) in self.trace.iter().filter_map(|text| text.split_once('=')) {
            files.reads("--trace", path);
        }
        config.recorded = self.recorded()?;
        if let Some(costs) = &self.costs {
            files.reads("--costs", costs);
            let name = costs.display().to_string();
            let bad = |e| Failure::bad_input(format!("--costs: {name}: {e}"));
            let text = terrace_core::read_text(costs).map_err(bad)?;
            config.costs = Costs::parse(&name, &text).map_err(Failure::bad_input)?;
        }
        let html = self.html.as_deref();
        let html = html.map(|path| files.writes("--html", path, Kind::Whole)).transpose()?;
        output::remove_when_interrupted();
        let progress = Progress::new();
        let bar = progress.bar("reproduce klocs");
        let table = reproduce_klocs(&config, &|done, total| {
            bar.set(done as f64 / total as f64, format!("{done}/{total}"));
        })
        .map_err(Failure::bad_input)?;
        bar.finish();
        if let Some(html) = html {
            html.write_whole(page(&table).as_bytes())?;
        }
        let text = if json {
            let paper = "KLOCs, ASPLOS 2021";
            output::json("terrace.reproduce", &Document { paper, table })?
        } else {
            table.to_string()
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The recordings, each in place of a program's made-up calls.
    fn recorded(&self) -> Result<Vec<Recorded>, Failure> {
        let mut recorded: Vec<Recorded> = Vec::new();
        for text in &self.trace {
            let (name, path) = named(text)?;
            let program = Program::ALL.into_iter().find(|program| program.name() == name);
            let program = program.ok_or_else(|| {
                let names = Program::ALL.map(Program::name).join(", ");
                bad_trace(format_args!("`{name}` is none of {names}"))
            })?;
            if recorded.iter().any(|other| other.program() == program) {
                return Err(bad_trace(format_args!("`{name}` is given twice")));
            }
            recorded.push(read(program, &path)?);
        }
        Ok(recorded)
    }
}

/// Reads a recording of calls that stands for a program.
fn read(program: Program, path: &Path) -> Result<Recorded, Failure> {
    let name = path.display();
    let bad = |e: &dyn core::fmt::Display| bad_trace(format_args!("{name}: {e}"));
    let mut file = BufReader::new(File::open(path).map_err(|e| bad(&e))?);
    if !recorded::is_meant(file.fill_buf().map_err(|e| bad(&e))?) {
        return Err(bad(&"not a recording of calls (`terrace record --calls`)"));
    }
    let recording = recorded::read(&name.to_string(), file).map_err(bad_trace)?;
    Recorded::new(program, recording).map_err(|e| bad(&e))
}

/// The page: a picture a figure.
fn page(table: &KlocsTable) -> String {
    let mut figures = footprints(table);
    figures.push(objects(table));
    figures.push(speedups(table));
    figures.push(sockets(table));
    figures.push(placed(table));
    figures.push(kinds(table));
    figures.extend(sweep(table));
    figures.push(prefetched(table));
    figures.push(structures(table));
    let note = format!(
        "Computed by the run that wrote this page. Programs' calls: {}. The paper's bars are \
         pictures without numbers: what its text says of them stands with each figure.",
        table.sources()
    );
    figures_page("reproduce klocs", "KLOCs (ASPLOS 2021) in the simulated kernel", &note, &figures)
}

fn programs() -> Vec<String> {
    Program::ALL.map(|program| program.name().to_owned()).to_vec()
}

fn figure(title: &str, note: &str, unit: &'static str, places: Vec<String>) -> Figure {
    Figure {
        title: title.to_owned(),
        note: note.to_owned(),
        unit,
        logarithmic: false,
        places,
        series: Vec::new(),
        also: Vec::new(),
        across: None,
        top: None,
    }
}

/// Figure 2: pages by what they hold, for both sizes of data; references; lifetimes.
fn footprints(table: &KlocsTable) -> Vec<Figure> {
    let places: Vec<String> = table
        .footprints
        .iter()
        .map(|row| format!("{}, {}", row.program.name(), row.data))
        .collect();
    let shares = |of: &dyn Fn(usize) -> [u64; 4]| -> Vec<(String, Vec<f64>)> {
        Class::ALL
            .into_iter()
            .map(|class| {
                let share = |row: usize| {
                    let all = of(row);
                    all[class as usize] as f64 * 100.0 / all.iter().sum::<u64>().max(1) as f64
                };
                (class.name().to_owned(), (0..table.footprints.len()).map(share).collect())
            })
            .collect()
    };
    let rows = &table.footprints;
    let mut pages = figure(
        "Figure 2a and 2b: pages by what they hold",
        "Percent of all pages that were allocated, with all memory fast, for two sizes of data.",
        "%",
        places.clone(),
    );
    pages.series = shares(&|row| rows[row].pages);
    let mut references = figure(
        "Figure 2c: references by what pages hold",
        "Percent of all cache lines that were touched.",
        "%",
        places.clone(),
    );
    references.series = shares(&|row| rows[row].references);
    let mut lives = figure(
        "Figure 2d: how long pages live",
        "Milliseconds, what lives at the end counted by its age. The paper: slab pages 36 ms, \
         page-cache pages 160 ms.",
        "ms",
        places,
    );
    lives.logarithmic = true;
    lives.series = Class::ALL
        .into_iter()
        .map(|class| {
            let of = rows.iter().map(|row| row.all_ms[class as usize].unwrap_or(0.0));
            (class.name().to_owned(), of.collect())
        })
        .collect();
    vec![pages, references, lives]
}

/// Figure 2 by kind of object: columns for the larger data, the smaller ones in the table alone.
fn objects(table: &KlocsTable) -> Figure {
    let mut picture = figure(
        "Figure 2 by kind: objects",
        "Objects that were allocated, those freed since included, with all memory fast. The columns \
         are for the larger data.",
        "objects",
        ObjectKind::ALL.map(|kind| kind.name().to_owned()).to_vec(),
    );
    picture.logarithmic = true;
    let largest = table.footprints.iter().map(|row| row.data).max();
    for row in &table.footprints {
        if Some(row.data) == largest {
            let of = row.objects.iter().map(|&objects| objects as f64);
            picture.series.push((row.program.name().to_owned(), of.collect()));
        } else {
            let of = row.objects.iter().map(u64::to_string);
            picture.also.push((format!("{}, {}", row.program.name(), row.data), of.collect()));
        }
    }
    picture
}

fn speedups(table: &KlocsTable) -> Figure {
    let mut picture = figure(
        "Figure 4: speedup over all in slow memory",
        "The paper: KLOCs over Naive 1.96 (RocksDB) and 2.2 (Redis), over Nimble 2.7 (Redis).",
        "times",
        programs(),
    );
    picture.across = Some(1.0);
    let of = |strategy: Strategy, program: Program| {
        let is = |run: &&Run| run.program == program && run.strategy == strategy.name();
        table.runs.iter().find(is).map_or(0.0, |run| run.speedup)
    };
    picture.series = Strategy::ALL
        .into_iter()
        .skip(1)
        .map(|strategy| {
            let values = Program::ALL.map(|program| of(strategy, program)).to_vec();
            (strategy.name().to_owned(), values)
        })
        .collect();
    picture
}

fn sockets(table: &KlocsTable) -> Figure {
    let mut picture = figure(
        "Figure 5a: two sockets in Memory Mode",
        "Speedup over all memory at the disturbed socket. The paper: all local 1.6; KLOCs 1.5 \
         over AutoNUMA, 1.4 over Nimble.",
        "times",
        programs(),
    );
    picture.across = Some(1.0);
    picture.series = Strategy::SOCKETS
        .into_iter()
        .skip(1)
        .map(|strategy| {
            let rows = table.sockets.iter().filter(|row| row.strategy == strategy.name());
            let name = if strategy == Strategy::AllFast { "all local" } else { strategy.name() };
            (name.to_owned(), rows.map(|row| row.speedup).collect())
        })
        .collect();
    picture
}

fn placed(table: &KlocsTable) -> Figure {
    let runs: Vec<&Run> = table.runs.iter().filter(|run| run.program == Program::RocksDb).collect();
    let places = runs.iter().map(|run| run.strategy.to_owned()).collect();
    let mut picture = figure(
        "Figure 5b: RocksDB's pages in slow memory, and moves",
        "Pages that were placed in slow memory, and pages that were moved.",
        "pages",
        places,
    );
    let series = |name: &str, of: &dyn Fn(&Run) -> u64| {
        (name.to_owned(), runs.iter().map(|run| of(run) as f64).collect())
    };
    picture.series = vec![
        series("page cache", &|run| run.slow_pages[0]),
        series("slab", &|run| run.slow_pages[1]),
        series("moved down", &|run| run.demoted.iter().sum()),
        series("moved up", &|run| run.promoted.iter().sum()),
    ];
    picture
}

fn kinds(table: &KlocsTable) -> Figure {
    let mut picture = figure(
        "Figure 5c: KLOCs that knows more and more kinds",
        "Speedup over all in slow memory.",
        "times",
        programs(),
    );
    picture.across = Some(1.0);
    for row in &table.kinds {
        match picture.series.iter_mut().find(|(name, _)| name == row.kinds) {
            Some((_, values)) => values.push(row.speedup),
            None => picture.series.push((row.kinds.to_owned(), vec![row.speedup])),
        }
    }
    picture
}

/// Figure 6: a picture for each strategy's mean, with the least and the most in the table.
fn sweep(table: &KlocsTable) -> Option<Figure> {
    let mut places = Vec::new();
    let mut series: Vec<(String, Vec<f64>)> = Vec::new();
    let mut ranges: Vec<(String, Vec<String>)> = Vec::new();
    for point in &table.points {
        let place = format!("{}, 1:{}", point.fast, point.ratio);
        if places.last() != Some(&place) {
            places.push(place);
        }
        let range = format!("{:.2} to {:.2}", point.least, point.most);
        if let Some(at) = series.iter().position(|(name, _)| name == point.strategy) {
            series[at].1.push(point.mean);
            ranges[at].1.push(range);
        } else {
            series.push((point.strategy.to_owned(), vec![point.mean]));
            ranges.push((format!("{}, least to most", point.strategy), vec![range]));
        }
    }
    if places.is_empty() {
        return None;
    }
    let mut picture = figure(
        "Figure 6: sizes of the fast memory, and bandwidths",
        "Mean speedup of all programs over all in slow memory; the slow memory has an eighth, a \
         quarter and a half of the fast one's bandwidth.",
        "times",
        places,
    );
    (picture.series, picture.also, picture.across) = (series, ranges, Some(1.0));
    Some(picture)
}

fn prefetched(table: &KlocsTable) -> Figure {
    let rows = &table.prefetched;
    let places = rows.iter().map(|row| format!("{}, {}", row.program.name(), row.strategy));
    let mut picture = figure(
        "Section 7.3: read-ahead",
        "Thousand operations a second. The paper: read-ahead that knows contexts makes RocksDB \
         1.26 times as fast.",
        "K/s",
        places.collect(),
    );
    picture.series = ["without read-ahead", "with read-ahead"]
        .into_iter()
        .enumerate()
        .map(|(i, name)| {
            (name.to_owned(), rows.iter().map(|row| row.throughput[i] / 1e3).collect())
        })
        .collect();
    picture
}

fn structures(table: &KlocsTable) -> Figure {
    let rows = &table.structures;
    let places = rows.iter().map(|row| row.program.name().to_owned()).collect();
    let mut picture = figure(
        "Table 6: memory of the structures",
        "Percent of the memory in use; the paper has less than 1 %.",
        "%",
        places,
    );
    picture.across = Some(1.0);
    picture.series =
        vec![("structures".to_owned(), rows.iter().map(|row| row.share * 100.0).collect())];
    picture.also = vec![(
        "lookups saved by the processors' lists".to_owned(),
        rows.iter().map(|row| format!("{:.0} %", row.saved * 100.0)).collect(),
    )];
    picture
}

#[cfg(test)]
mod tests {
    use terrace_core::Bytes;
    use terrace_sim::reproduce::klocs::Footprint;

    use super::*;

    /// Each kind is a place of the picture, and each program a column or a cell.
    #[test]
    fn objects_are_drawn_by_kind() {
        let row = |data, objects: u64| Footprint {
            program: Program::Redis,
            data,
            pages: [1; 4],
            references: [1; 4],
            freed_ms: [None; 4],
            all_ms: [None; 4],
            objects: [objects; ObjectKind::COUNT],
        };
        let table = KlocsTable {
            schema: 1,
            machine: "x".to_owned(),
            scale: 512,
            programs: Vec::new(),
            footprints: vec![row(Bytes::gib(40), 7000), row(Bytes::gib(10), 3123)],
            runs: Vec::new(),
            sockets: Vec::new(),
            prefetched: Vec::new(),
            kinds: Vec::new(),
            points: Vec::new(),
            structures: Vec::new(),
            claims: Vec::new(),
        };
        let page = figures_page("x", "x", "", &[objects(&table)]);
        for kind in ObjectKind::ALL {
            assert!(page.contains(kind.name()), "{kind:?}");
        }
        assert_eq!(page.matches("<rect class=\"bar").count(), ObjectKind::COUNT);
        let cells = |number: &str| page.matches(&format!("<td>{number}</td>")).count();
        assert_eq!((cells("7000"), cells("3123")), (ObjectKind::COUNT, ObjectKind::COUNT));
    }
}
