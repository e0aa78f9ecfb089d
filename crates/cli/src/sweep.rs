//! `terrace sweep`: parameter grids on all cores, resumable.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use serde::Serialize;
use terrace_report::table::{Column, Values, write_csv, write_parquet};
use terrace_sim::sweep::{self, Grid, Journal, METRICS, Metric, Point};
use terrace_sim::trace::Summary;

use crate::failure::Failure;
use crate::output::{self, Files, Kind, Output, count, table};
use crate::progress::{Progress, about};
use crate::sim::input::tell;
use crate::sim::setup::names_machine;

/// Simulate every combination of policies, machines, programs and parameters.
///
/// Parameters come from a grid file, from the command line, or from both (the
/// command line's replace the file's). Known are policy, machine, workload (an
/// algorithm or a trace), fast (also as a share: 25%), page-size, cores,
/// economist, sample-period, skip, the algorithms' size, accesses, hot,
/// hot-percent, seed, and every value of the machine file (cxl.read-latency,
/// cpu.llc, costs.shootdown). Results go to results.csv and results.parquet. A
/// sweep that was killed goes on where it was when the same directory is given.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: terrace sweep -o out policy=first-touch,hemem workload=gups,gups-sparse fast=10%,25%,50% cxl.read-latency=170ns,250ns,400ns"
)]
pub(crate) struct Args {
    /// A grid file, and parameters as NAME=VALUE,VALUE…
    #[arg(value_name = "GRID.toml|NAME=VALUES", required = true)]
    grid: Vec<String>,

    /// The directory of the results; made if it is not there.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,

    /// Simulations side by side; as many as there are processors if not given.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,

    /// Forget what was done before.
    #[arg(long)]
    fresh: bool,
}

/// Rows in the table for people.
const SHOWN: usize = 20;

#[derive(Serialize)]
struct Document {
    points: usize,
    /// Simulated now.
    simulated: usize,
    /// Known from before.
    resumed: usize,
    /// Those that are the simulation of another point: what they differ in changes nothing there.
    alike: usize,
    failed: Vec<FailedPoint>,
    csv: PathBuf,
    parquet: PathBuf,
    seconds: f64,
    /// What was read from each trace.
    inputs: BTreeMap<String, Summary>,
}

#[derive(Serialize)]
struct FailedPoint {
    point: String,
    why: String,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let grid = self.grid()?;
        let points = grid.points().map_err(Failure::bad_input)?;
        let mut files = self.files(&points);
        // Nothing is touched yet: whether all can be written is known before anything is.
        let mut journal = self.journal(&mut files)?;
        let (csv, parquet) = (self.output.join("results.csv"), self.output.join("results.parquet"));
        let to_csv = files.writes("--output", &csv, Kind::Whole)?;
        let to_parquet = files.writes("--output", &parquet, Kind::Whole)?;
        output::remove_when_interrupted();
        journal.begin().map_err(Failure::failed)?;
        let resumed = points.iter().filter(|point| journal.done.contains_key(point)).count();
        let todo = simulations(&points, &mut journal).map_err(Failure::failed)?;
        let alike = points.len() - resumed - todo.len();
        let jobs = self.jobs.map_or_else(
            || thread::available_parallelism().map_or(1, usize::from),
            |jobs| jobs as usize,
        );
        output::say(format_args!(
            "sweep: {} of {} points to simulate, {} side by side",
            count(todo.len() as u64),
            count(points.len() as u64),
            jobs.min(todo.len().max(1))
        ));
        if let Some(line) = told_alike(&points, alike) {
            output::say(format_args!("sweep: {line}"));
        }
        let firsts: Vec<Point> = todo.iter().map(|group| group[0].clone()).collect();
        let bar = Progress::new().bar("sweep");
        let (mut failed, mut done, begun) = (Vec::new(), 0usize, Instant::now());
        // Of each trace once, however many points run it.
        let mut inputs: BTreeMap<String, Summary> = BTreeMap::new();
        sweep::run(&firsts, jobs, &mut |i, (result, input)| {
            for point in &todo[i] {
                journal.note(point, &result)?;
            }
            if let (Some(file), Some(input)) = (firsts[i].parameters.get("workload"), input) {
                inputs.insert(file.clone(), input);
            }
            done += 1;
            // Points need not take equally long: this is what the first one says.
            if done == 1 && todo.len() > 1 {
                let rounds = todo.len().div_ceil(jobs) as u32;
                let line = about(begun.elapsed() * rounds);
                bar.above(|| output::say(format_args!("sweep: {line} in all, by its first point")));
            }
            bar.set(done as f64 / todo.len() as f64, format!("{done}/{} points", todo.len()));
            if let Err(why) = result {
                failed.extend(todo[i].iter().map(|point| (point.clone(), why.clone())));
            }
            Ok(())
        })
        .map_err(|e: sweep::JournalError| Failure::failed(e))?;
        bar.finish();
        for (file, input) in &inputs {
            tell(file, Some(input));
        }
        let seconds = begun.elapsed().as_secs_f64();

        let why: HashMap<&Point, &String> = failed.iter().map(|(p, why)| (p, why)).collect();
        let columns = columns(&grid, &points, &journal, &why);
        write(to_csv, |out| write_csv(&columns, out))?;
        write(to_parquet, |out| write_parquet(&columns, out))?;
        let document = Document {
            points: points.len(),
            simulated: todo.len(),
            resumed,
            alike,
            failed: failed
                .iter()
                .map(|(point, why)| FailedPoint { point: point.to_string(), why: why.clone() })
                .collect(),
            csv,
            parquet,
            seconds,
            inputs,
        };
        let text = if json {
            output::json("terrace.sweep", &document)?
        } else {
            render(&document, &grid, &points, &journal)
        };
        output::print(&text)?;
        match document.failed.first() {
            None => Ok(ExitCode::SUCCESS),
            Some(first) => Err(Failure::failed(format!(
                "{} of {} points failed; the first: {}: {}",
                document.failed.len(),
                document.points,
                first.point,
                first.why
            ))),
        }
    }

    fn grid(&self) -> Result<Grid, Failure> {
        let mut grid = Grid::default();
        let mut files = 0;
        let mut given = HashSet::new();
        for text in &self.grid {
            if let Some((name, values)) = text.split_once('=') {
                if !given.insert(name.trim()) {
                    let what = format!(
                        "{}: is given twice; several values of one parameter are NAME=VALUE,VALUE",
                        name.trim()
                    );
                    return Err(Failure::bad_input(what));
                }
                let values = values.split(',').map(|value| value.trim().to_owned()).collect();
                grid.set(name.trim(), values).map_err(Failure::bad_input)?;
                continue;
            }
            files += 1;
            if files > 1 || grid.names().next().is_some() {
                let what = format!("{text}: give one grid file, before parameters");
                return Err(Failure::bad_input(what));
            }
            let content = terrace_core::read_text(text)
                .map_err(|e| Failure::bad_input(format!("{text}: {e}")))?;
            grid = Grid::parse(text, &content).map_err(Failure::bad_input)?;
        }
        Ok(grid)
    }

    /// Opens the journal, which is no other file of the command's.
    fn journal(&self, files: &mut Files) -> Result<Journal, Failure> {
        let (directory, path) = (&self.output, self.output.join("journal.jsonl"));
        files.refuse_input("--output", &path)?;
        fs::create_dir_all(directory)
            .map_err(|e| Failure::bad_input(format!("--output: {}: {e}", directory.display())))?;
        let journal = Journal::open(&path, self.fresh).map_err(|e| match e {
            sweep::JournalError::Busy { .. } => Failure::bad_input(format!(
                "--output: {}: another sweep is writing there",
                directory.display()
            )),
            other => Failure::bad_input(format!("--output: {other}")),
        })?;
        files.reads("its journal", path);
        Ok(journal)
    }

    /// What is read: nothing of it must be written.
    fn files(&self, points: &[Point]) -> Files {
        let mut files = Files::new();
        for text in self.grid.iter().filter(|text| !text.contains('=')) {
            files.reads("GRID.toml", text);
        }
        let mut given = BTreeSet::new();
        for point in points {
            for name in ["workload", "machine"] {
                given.extend(point.parameters.get(name).map(|value| (name, value)));
            }
        }
        for (name, value) in given {
            if name == "machine" {
                names_machine(&mut files, name, value);
            } else {
                files.reads(name, value);
            }
        }
        files
    }
}

/// What is to be simulated: points that are one simulation together. What is known of one of them
/// is noted for the others.
fn simulations(
    points: &[Point],
    journal: &mut Journal,
) -> Result<Vec<Vec<Point>>, sweep::JournalError> {
    let mut groups: BTreeMap<Point, Vec<&Point>> = BTreeMap::new();
    for point in points {
        groups.entry(point.effective()).or_default().push(point);
    }
    let mut todo = Vec::new();
    for group in groups.into_values() {
        let known = group.iter().find_map(|point| journal.done.get(point).cloned());
        let new: Vec<Point> =
            group.into_iter().filter(|point| !journal.done.contains_key(point)).cloned().collect();
        match known {
            Some(figures) => {
                for point in &new {
                    journal.note(point, &Ok(figures.clone()))?;
                }
            }
            None => todo.push(new),
        }
    }
    Ok(todo)
}

/// That some points are the simulation of others, and what they differ in.
fn told_alike(points: &[Point], alike: usize) -> Option<String> {
    if alike == 0 {
        return None;
    }
    let unused = points.iter().flat_map(|point| {
        let effective = point.effective();
        let unused = |name: &&String| !effective.parameters.contains_key(*name);
        point.parameters.keys().filter(unused).collect::<Vec<_>>()
    });
    let names: BTreeSet<&str> = unused.map(String::as_str).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let (points, differ) = if alike == 1 { ("point", "differs") } else { ("points", "differ") };
    Some(format!(
        "{} {points} {differ} from another only in what changes nothing there ({}): simulated once",
        count(alike as u64),
        names.join(", ")
    ))
}

/// Writes a file of results.
fn write(
    to: Output,
    write: impl Fn(&mut BufWriter<Output>) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut out = BufWriter::new(to);
    let written = write(&mut out).and_then(|()| out.flush());
    written.map_err(|e| out.get_ref().failure(&e))?;
    out.get_mut().complete()
}

/// Parameters, figures, and why a point failed: a row for each point.
fn columns(
    grid: &Grid,
    points: &[Point],
    journal: &Journal,
    failed: &HashMap<&Point, &String>,
) -> Vec<Column> {
    let mut columns: Vec<Column> = grid
        .names()
        .map(|name| {
            let values = points.iter().map(|point| point.parameters.get(name).cloned());
            Column { name: name.to_owned(), values: Values::Text(values.collect()) }
        })
        .collect();
    for (i, (name, _)) in METRICS.iter().enumerate() {
        let figures: Vec<Option<Metric>> =
            points.iter().map(|point| journal.done.get(point).map(|all| all[i])).collect();
        let whole = figures.iter().flatten().all(|figure| matches!(figure, Metric::Count(_)));
        let values = if whole {
            let count = |figure: &Metric| match figure {
                Metric::Count(count) => i64::try_from(*count).unwrap_or(i64::MAX),
                Metric::Real(real) => *real as i64,
            };
            Values::Whole(figures.iter().map(|figure| figure.as_ref().map(count)).collect())
        } else {
            Values::Real(figures.iter().map(|figure| figure.as_ref().map(real)).collect())
        };
        columns.push(Column { name: (*name).to_owned(), values });
    }
    let errors = points.iter().map(|point| failed.get(point).map(|why| (*why).clone()));
    columns.push(Column { name: "error".to_owned(), values: Values::Text(errors.collect()) });
    columns
}

fn real(figure: &Metric) -> f64 {
    match figure {
        Metric::Count(count) => *count as f64,
        Metric::Real(real) => *real,
    }
}

fn render(document: &Document, grid: &Grid, points: &[Point], journal: &Journal) -> String {
    let mut text = format!(
        "{} points: {} simulated in {:.1} s, {} known from before",
        count(document.points as u64),
        count(document.simulated as u64),
        document.seconds,
        count(document.resumed as u64)
    );
    if document.alike > 0 {
        let _ = write!(text, ", {} the same as another", count(document.alike as u64));
    }
    text += "\n\n";
    // Parameters with one value say nothing here; they are in the files.
    let mut varied: Vec<&str> = Vec::new();
    for name in grid.names() {
        let first = points.first().and_then(|point| point.parameters.get(name));
        if points.iter().any(|point| point.parameters.get(name) != first) {
            varied.push(name);
        }
    }
    let figure = |point: &Point, name: &str| {
        let index = METRICS.iter().position(|(known, _)| *known == name)?;
        journal.done.get(point).map(|figures| real(&figures[index]))
    };
    let rows: Vec<_> = points
        .iter()
        .take(SHOWN)
        .map(|point| {
            let name: Vec<_> =
                varied.iter().map(|name| format!("{name}={}", point.parameters[*name])).collect();
            let cell = |name, words: fn(f64) -> String| {
                figure(point, name).map_or_else(|| "failed".to_owned(), words)
            };
            [
                name.join(" "),
                cell("time_ns", |time| terrace_core::Nanos(time as u64).to_string()),
                cell("accesses_per_s", |rate| terrace_core::PerSecond(rate).to_string()),
                cell("fast_share", output::percent),
                cell("promotions", |n| count(n as u64)),
            ]
        })
        .collect();
    text += &table(["point", "time", "accesses", "misses served fast", "promotions"], &rows);
    if points.len() > SHOWN {
        let _ = writeln!(text, "and {} more", count((points.len() - SHOWN) as u64));
    }
    let _ = writeln!(text, "\n{}\n{}", document.csv.display(), document.parquet.display());
    text
}
