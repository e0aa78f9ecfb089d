//! Runs a real program that touches much memory for the first time, and tells what shows of that from
//! outside. `bench/live/tails_programs.sh` decides how memory is, and under what the program runs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use terrace_bench::programs::touching::Touching;
use terrace_bench::programs::{Place, Scale};
use terrace_bench::system::Ready;
use terrace_bench::tails::{Memory, Row, Rows, Run, Under};
use terrace_bench::vmstat::Counts;
use terrace_bench::{corpus, interrupt};

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Makes a program's inputs, runs it once, and prints how many MiB it has resident at most.
    Need {
        #[command(flatten)]
        of: Of,
    },
    /// Runs a program under a recorder, and prints how much of it was recorded.
    Record {
        #[command(flatten)]
        of: Of,
        /// When it is told to end.
        #[arg(long)]
        seconds: u64,
        /// The recorder's command line, which the program's follows.
        #[arg(last = true, required = true)]
        recorder: Vec<String>,
    },
    /// Runs a program, prints its row, and adds that to a file.
    Run {
        #[command(flatten)]
        of: Of,
        /// How free memory is.
        #[arg(long)]
        memory: Memory,
        /// Under what it runs.
        #[arg(long)]
        under: Under,
        /// Which time.
        #[arg(long, default_value_t = 1)]
        round: u32,
        /// How many blocks of 2 MiB are free.
        #[arg(long)]
        blocks: u64,
        /// Where rows are gathered.
        #[arg(long)]
        results: PathBuf,
        /// Where `terrace run` writes its report.
        #[arg(long)]
        report: Option<PathBuf>,
        /// What stands before the program's command line.
        #[arg(last = true)]
        before: Vec<String>,
    },
    /// Prints what stands above rows.
    Head,
    /// Prints the tables of rows.
    Table {
        /// Where they were gathered.
        results: PathBuf,
    },
}

/// Which program, and where.
#[derive(clap::Args)]
struct Of {
    /// Which program.
    program: Touching,
    /// Where inputs, and files of runs, are.
    #[arg(long)]
    directory: PathBuf,
    /// Pages to fill redis with.
    #[arg(long)]
    corpus: PathBuf,
    /// Where the programs' scripts are.
    #[arg(long, default_value = "bench/live/programs")]
    scripts: PathBuf,
    /// How large it is.
    #[arg(long, value_enum, default_value = "full")]
    scale: Scale,
    /// How many seconds a run may take.
    #[arg(long, default_value_t = 300)]
    limit: u64,
}

impl Of {
    /// Its inputs.
    fn place(&self) -> io::Result<Place> {
        if let Some(needed) = self.program.lacks() {
            let what = format!("{needed} is not installed");
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        fs::create_dir_all(&self.directory)?;
        // Nothing of it is in memory beside a program that does not need it.
        let corpus =
            if self.program == Touching::Redis { corpus::load(&self.corpus) } else { Vec::new() };
        let place = Place {
            directory: self.directory.canonicalize()?,
            scripts: self.scripts.canonicalize()?,
            binaries: std::env::current_exe()?.parent().unwrap_or(Path::new("/")).to_owned(),
            corpus,
            scale: self.scale,
            packages: PathBuf::new(),
            limit: Duration::from_secs(self.limit),
        };
        self.program.prepare(&place)?;
        Ok(place)
    }
}

fn main() -> ExitCode {
    interrupt::catch();
    match act(Args::parse().what) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("touches: {e}");
            ExitCode::from(terrace_bench::status(&e))
        }
    }
}

/// Whether nothing is wrong.
fn act(what: What) -> io::Result<bool> {
    match what {
        What::Need { of } => {
            let (outcome, _) = of.program.run(&of.place()?, &Ready::under(Vec::new()))?;
            println!("{}", outcome.resident.get().div_ceil(1 << 20));
        }
        What::Record { of, seconds, recorder } => {
            let (recorder, after) = (Ready::under(recorder), Duration::from_secs(seconds));
            let (took, is_cut) = of.program.record(&of.place()?, &recorder, after)?;
            let much = if is_cut { "its beginning" } else { "all of it" };
            println!("{much}, in {:.0} s", took.as_secs_f64());
        }
        What::Run { of, memory, under, round, blocks, results, report, before } => {
            let place = of.place()?;
            let system = Ready::under(before);
            // Of the run before.
            if let Some(report) = &report
                && let Err(e) = fs::remove_file(report)
                && e.kind() != io::ErrorKind::NotFound
            {
                return Err(e);
            }
            let counted = Counts::now()?;
            let run = of.program.run(&place, &system);
            let counts = Counts::now()?.since(counted);
            interrupt::check()?;
            let row = Row {
                memory,
                program: of.program,
                under,
                round,
                blocks,
                run: run
                    .map(|(outcome, requests)| Run::new(outcome, requests, counts))
                    .map_err(|e| e.to_string()),
                huge: report.and_then(|report| huge_pages(&fs::read_to_string(report).ok()?)),
            };
            print!("{}", row.text());
            let mut file = OpenOptions::new().append(true).create(true).open(results)?;
            writeln!(file, "{}", serde_json::to_string(&row)?)?;
        }
        What::Head => println!("{}", Row::head()),
        What::Table { results } => {
            let lines = BufReader::new(File::open(results)?).lines();
            let rows = lines.map(|line| -> io::Result<Row> { Ok(serde_json::from_str(&line?)?) });
            let rows: Vec<Row> = rows.collect::<io::Result<_>>()?;
            let rows = Rows(&rows);
            print!("{}", rows.tables());
            let wrong = rows.wrong();
            for line in &wrong {
                eprintln!("{line}");
            }
            return Ok(wrong.is_empty());
        }
    }
    Ok(true)
}

/// What a report says of huge pages.
fn huge_pages(report: &str) -> Option<String> {
    let said = report.lines().find_map(|line| line.trim_start().strip_prefix("huge pages"))?;
    Some(said.trim().to_owned())
}
