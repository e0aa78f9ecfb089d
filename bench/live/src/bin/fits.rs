//! `terrace run` where everything fits into the budget, beside the program alone: what it
//! costs to have it at hand.
//!
//! Rounds by turns, every other one beginning with the other system. Three ratios are taken within
//! each round, managed by alone, and their medians printed with their spread: wall time and processor
//! time for an update of GUPS, and the most that was resident. Processor time is that of the program
//! and of `terrace run` itself; a host with other guests disturbs it less than wall time.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use terrace_bench::peer::Backing;
use terrace_bench::spread::Spread;
use terrace_bench::system::{Setup, System};
use terrace_bench::{Gups, interrupt};
use terrace_core::Bytes;

/// What `terrace run` costs where everything fits.
#[derive(Parser)]
struct Args {
    /// The command to measure.
    #[arg(long, default_value = "target/release/terrace")]
    terrace: PathBuf,
    /// Working set.
    #[arg(long, default_value = "512MiB")]
    size: Bytes,
    /// Memory for it, and more.
    #[arg(long, default_value = "1GiB")]
    budget: Bytes,
    /// Its hot part.
    #[arg(long, default_value = "128MiB")]
    hot: Bytes,
    /// How often both run.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Seconds of measuring.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Pages to fill the memory with.
    #[arg(long)]
    corpus: PathBuf,
    /// One JSON object a round on standard output instead of the table.
    #[arg(long)]
    json: bool,
}

/// One run.
struct Run {
    /// Updates a second of wall time.
    rate: f64,
    /// Processor seconds of everything, filling included.
    cpu: f64,
    /// The most that was resident, bytes.
    resident: f64,
}

fn main() -> ExitCode {
    interrupt::catch();
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("fits: {e}");
            ExitCode::from(terrace_bench::status(&e))
        }
    }
}

fn measure(args: &Args) -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let setup = Setup {
        terrace: args.terrace.clone(),
        backing: Backing::Zram,
        swap: args.size,
        options: vec!["--quiet".to_owned()],
        directory: scratch.path().to_owned(),
    };
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        progress(&format!("round {} of {}", round + 1, args.rounds));
        // Whoever runs second may find the host's memory warm, or its other guests awake.
        let (plain, managed) = if round % 2 == 0 {
            let plain = run(args, &setup, System::Plain)?;
            (plain, run(args, &setup, System::Terrace)?)
        } else {
            let managed = run(args, &setup, System::Terrace)?;
            (run(args, &setup, System::Plain)?, managed)
        };
        if args.json {
            let line = |run: &Run| {
                serde_json::json!({
                    "updates_per_second": run.rate, "cpu_seconds": run.cpu, "resident_bytes": run.resident,
                })
            };
            println!("{}", serde_json::json!({ "plain": line(&plain), "terrace": line(&managed) }));
        }
        rounds.push((plain, managed));
    }
    progress("");
    if !args.json {
        table(args, &rounds);
    }
    Ok(())
}

fn run(args: &Args, setup: &Setup, system: System) -> io::Result<Run> {
    let gups = std::env::current_exe()?.with_file_name("gups");
    let ready = setup.ready(system, args.budget)?;
    let mut command = ready.command(&gups);
    command
        .args(["--size", &format!("{}B", args.size.get())])
        .args(["--hot", &format!("{}B", args.hot.get())])
        .args(["--warm", "0.5", "--latency", "0.05"])
        .args(["--measure", &args.seconds.to_string()])
        .arg("--corpus")
        .arg(&args.corpus);
    let finished = interrupt::run(&mut command)?;
    if !finished.status.success() {
        let status = finished.status;
        return Err(io::Error::other(format!("gups, {}: {status}", system.name())));
    }
    let gups: Gups = serde_json::from_slice(&finished.stdout).map_err(io::Error::other)?;
    let cost = ready.cost(finished.peak)?;
    if let Some(report) = cost.report.filter(|report| report.total.demotions > 0) {
        let left = report.total.demotions;
        return Err(io::Error::other(format!("{left} pages left: it does not fit")));
    }
    Ok(Run {
        rate: gups.updates_per_second,
        cpu: finished.cpu.as_secs(),
        resident: finished.peak.as_f64(),
    })
}

/// A ratio of managed and alone that is to be at most so much.
struct Line {
    name: &'static str,
    most: f64,
    ratio: fn(&Run, &Run) -> f64,
}

/// What the managed program may take of what it takes alone.
const LINES: [Line; 3] = [
    Line {
        name: "wall time an update",
        most: 1.02,
        ratio: |plain, managed| plain.rate / managed.rate,
    },
    Line {
        name: "processor time an update",
        most: 1.02,
        // All of it, by all updates at the measured rate: the phases are as long for both.
        ratio: |plain, managed| (managed.cpu / managed.rate) / (plain.cpu / plain.rate),
    },
    Line {
        name: "resident memory",
        most: 1.03,
        ratio: |plain, managed| managed.resident / plain.resident,
    },
];

fn table(args: &Args, rounds: &[(Run, Run)]) {
    println!(
        "Everything fits: GUPS on {}, {} hot, with {} in DRAM, terrace run by alone, {} rounds; median \
         (least-greatest)",
        args.size, args.hot, args.budget, args.rounds
    );
    for line in &LINES {
        let ratios = rounds.iter().map(|(plain, managed)| (line.ratio)(plain, managed));
        let Some(spread) = Spread::of(ratios) else { return };
        let verdict = if spread.median <= line.most { "met" } else { "missed" };
        println!(
            "  {:<26}  {:.3} ({:.3}-{:.3})  aim {:.2}: {verdict}",
            line.name, spread.median, spread.least, spread.greatest, line.most
        );
    }
}

/// On a terminal, says what is being done.
fn progress(what: &str) {
    let mut err = io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{what}");
        let _ = err.flush();
    }
}
