//! Real programs under `terrace run` and under kernel swap, with half of the memory
//! that they have unmanaged.
//!
//! Every round runs each program once under each system, one after the other, in
//! an order that changes from round to round, so that what the machine does meanwhile
//! hits all alike; what is printed are medians of the rounds' ratios.
//! Every run must give the same answers.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use terrace_bench::peer::Backing;
use terrace_bench::programs::{Outcome, Place, Program, Scale};
use terrace_bench::spread::Spread;
use terrace_bench::system::{Cost, Setup, System};
use terrace_bench::{corpus, interrupt};
use terrace_core::Bytes;

/// Runs real programs in half of their memory. Needs root for the kernel's part.
#[derive(Parser)]
struct Args {
    /// The command to measure.
    #[arg(long, default_value = "target/release/terrace")]
    terrace: PathBuf,
    /// Which programs; all of them.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Program>,
    /// How often everything runs.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Kernel swap to compare with.
    #[arg(long, value_enum, default_value = "zram")]
    peer: Backing,
    /// Only plain memory and Terrace: needs no root.
    #[arg(long)]
    no_peer: bool,
    /// How large the programs are.
    #[arg(long, value_enum, default_value = "full")]
    scale: Scale,
    /// The budget, as a share of the memory that a program has unmanaged.
    #[arg(long, default_value_t = 0.5)]
    share: f64,
    /// Pages to fill redis with.
    #[arg(long)]
    corpus: PathBuf,
    /// Where the programs' scripts are.
    #[arg(long, default_value = "bench/live/programs")]
    scripts: PathBuf,
    /// Further arguments for `terrace run`, separated by spaces.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    options: String,
    /// One JSON object a run on standard output instead of the table.
    #[arg(long)]
    json: bool,
}

/// One program's rounds.
struct Row {
    program: Program,
    /// Of the first plain run.
    peak: Bytes,
    budget: Bytes,
    checksum: u64,
    /// By round: plain, kernel, terrace.
    times: Vec<[Option<f64>; 3]>,
    /// The most DRAM: plain, kernel, terrace.
    dram: [Bytes; 3],
    /// Rounds in which the kernel, out of memory, killed the program.
    killed: usize,
}

fn main() -> ExitCode {
    interrupt::catch();
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("programs: {e}");
            ExitCode::from(terrace_bench::status(&e))
        }
    }
}

fn measure(args: &Args) -> io::Result<()> {
    let scratch = tempfile::Builder::new().prefix("terrace-bench-").tempdir_in("/var/tmp")?;
    let place = Place {
        directory: scratch.path().to_owned(),
        scripts: args.scripts.canonicalize()?,
        binaries: std::env::current_exe()?.parent().unwrap_or(Path::new("/")).to_owned(),
        corpus: corpus::load(&args.corpus),
        scale: args.scale,
    };
    let setup = Setup {
        terrace: args.terrace.canonicalize()?,
        backing: args.peer,
        swap: Bytes::gib(2),
        options: args.options.split_whitespace().map(String::from).collect(),
        directory: scratch.path().to_owned(),
    };
    let mut rows = Vec::new();
    for &program in Program::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&program) {
            continue;
        }
        if let Some(needed) = program.lacks() {
            eprintln!("{}: {needed} is not installed: NOT run", program.name());
            continue;
        }
        program.prepare(&place)?;
        let row = Row {
            program,
            peak: Bytes(0),
            budget: Bytes(0),
            checksum: 0,
            times: Vec::new(),
            dram: [Bytes(0); 3],
            killed: 0,
        };
        rows.push(row);
    }
    for round in 0..args.rounds {
        for row in &mut rows {
            one_round(args, &place, &setup, row, round)?;
        }
    }
    progress("");
    if !args.json {
        table(args, &rows);
    }
    Ok(())
}

/// Each system once. The first round begins with plain memory, which says what
/// half of the memory is.
fn one_round(
    args: &Args,
    place: &Place,
    setup: &Setup,
    row: &mut Row,
    round: usize,
) -> io::Result<()> {
    const SYSTEMS: [System; 3] = [System::Plain, System::Kernel, System::Terrace];
    let mut times = [None; 3];
    for turn in 0..SYSTEMS.len() {
        let which = (round + turn) % SYSTEMS.len();
        let system = SYSTEMS[which];
        if args.no_peer && system == System::Kernel {
            continue;
        }
        let name = row.program.name();
        progress(&format!("round {} of {}: {name}, {}", round + 1, args.rounds, system.name()));
        let ready = setup.ready(system, row.budget)?;
        let Outcome { time, resident, checksum } = match row.program.run(place, &ready) {
            Ok(outcome) => outcome,
            // The kernel's reclaim may give up though there is swap; then it has lost
            // this round, and not the benchmark.
            Err(_) if ready.killed() > 0 => {
                interrupt::check()?;
                eprintln!("{name}: killed by the kernel for want of memory, round {}", round + 1);
                row.killed += 1;
                continue;
            }
            Err(e) => return Err(e),
        };
        let Cost { dram, report } = ready.cost(resident)?;
        drop(ready);
        if row.peak.is_zero() {
            (row.peak, row.checksum) = (resident, checksum);
            row.budget = Bytes::from_f64(resident.as_f64() * args.share);
        }
        if checksum != row.checksum {
            let wrong = format!("{name} gave other answers under {} than before", system.name());
            return Err(io::Error::other(wrong));
        }
        times[which] = Some(time.as_secs_f64());
        row.dram[which] = row.dram[which].max(dram);
        if args.json {
            let line = serde_json::json!({
                "program": name, "round": round, "system": system.name(),
                "seconds": time.as_secs_f64(), "peak": row.peak.get(),
                "budget": row.budget.get(), "dram": dram.get(),
                "demotions": report.map(|report| report.total.demotions),
            });
            println!("{line}");
        }
    }
    row.times.push(times);
    Ok(())
}

fn table(args: &Args, rows: &[Row]) {
    println!(
        "Real programs in {:.0} % of their memory beside {}, {} rounds by turns; medians \
         (least-greatest)",
        args.share * 100.0,
        if args.no_peer { "nothing".to_owned() } else { args.peer.describe() },
        args.rounds
    );
    println!(
        "seconds; DRAM is all of it, MiB: budget and what compressed pages took (kernel), what \
         was resident with the store (terrace)"
    );
    println!(
        "{:<14}  {:>5}  {:>6}  {:>17}  {:>17}  {:>18}  {:>17}  {:>17}  {:>6}  {:>7}",
        "program",
        "plain",
        "budget",
        "plain s",
        "kernel s",
        "terrace s",
        "terrace/plain",
        "kernel/terrace",
        "kernel",
        "terrace"
    );
    for row in rows {
        let of = |i: usize| Spread::of(row.times.iter().filter_map(|times| times[i]));
        let ratio = |a: usize, b: usize| {
            Spread::of(row.times.iter().filter_map(|times| Some(times[a]? / times[b]?)))
        };
        let text = |spread: Option<Spread>| spread.map_or("-".to_owned(), |s| s.to_string());
        let mib = |bytes: Bytes| (bytes.as_f64() / Bytes::mib(1).as_f64()).round();
        println!(
            "{:<14}  {:>5}  {:>6}  {:>17}  {:>17}  {:>18}  {:>17}  {:>17}  {:>6}  {:>7}",
            row.program.name(),
            mib(row.peak),
            mib(row.budget),
            text(of(0)),
            if row.killed > 0 { format!("killed, {}", text(of(1))) } else { text(of(1)) },
            text(of(2)),
            text(ratio(2, 0)),
            text(ratio(1, 2)),
            mib(row.dram[1]),
            mib(row.dram[2]),
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
