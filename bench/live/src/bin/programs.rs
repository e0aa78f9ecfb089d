//! Real programs under both engines of `terrace run` and under kernel swap, with half of the
//! memory that they have unmanaged, or other shares.
//!
//! Every round runs each program once under each system, one after the other, in
//! an order that changes from round to round, so that what the machine does meanwhile
//! hits all alike; what is printed are medians of the rounds' ratios.
//! Every run must give the same answers. One that is killed, fails or takes too long has lost its
//! round, which the table says.

use std::fs::Permissions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

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
    /// Only plain memory and the pager: needs no root.
    #[arg(long)]
    no_peer: bool,
    /// How many seconds a run may take.
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// How large the programs are.
    #[arg(long, value_enum, default_value = "full")]
    scale: Scale,
    /// The budgets, as shares of the memory that a program has unmanaged.
    #[arg(long, value_delimiter = ',', default_value = "0.5")]
    share: Vec<f64>,
    /// Pages to fill redis with.
    #[arg(long)]
    corpus: PathBuf,
    /// Where the programs' scripts are.
    #[arg(long, default_value = "bench/live/programs")]
    scripts: PathBuf,
    /// `bin` of a Python environment that has what no distribution packages.
    #[arg(long, default_value = "target/bench-python/bin")]
    packages: PathBuf,
    /// Further arguments for `terrace run --engine pager`, separated by spaces.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    options: String,
    /// One JSON object a run on standard output instead of the table.
    #[arg(long)]
    json: bool,
}

/// The systems that run a program with a budget.
const SYSTEMS: [System; 3] = [System::Kernel, System::Terrace, System::Engine];

/// How a program fared under one system with one budget, by round.
#[derive(Default)]
struct Cell {
    /// By round; `None` of one that was lost.
    times: Vec<Option<f64>>,
    /// The most DRAM of all rounds.
    dram: Bytes,
    /// The most that the kernel engine had resident.
    resident: Bytes,
    /// How rounds were lost.
    lost: Vec<Lost>,
}

/// How a round was lost.
#[derive(Clone, Debug)]
enum Lost {
    /// The kernel, out of memory, killed the program.
    Killed,
    /// It took too long.
    Over,
    /// It failed, or gave another answer than before.
    Failed(String),
}

impl Lost {
    fn short(&self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Over => "too long",
            Self::Failed(_) => "failed",
        }
    }
}

/// One program's rounds.
struct Row {
    program: Program,
    /// What it has resident on plain memory: of the first run.
    need: Bytes,
    checksum: u64,
    plain: Cell,
    /// By share, then by system.
    cells: Vec<[Cell; 3]>,
}

impl Row {
    fn budget(&self, share: f64) -> Bytes {
        Bytes::from_f64(self.need.as_f64() * share)
    }
}

fn main() -> ExitCode {
    interrupt::catch();
    match measure(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("programs: {e}");
            ExitCode::from(terrace_bench::status(&e))
        }
    }
}

/// Whether all went well under both engines, and all answers were the same.
fn measure(args: &Args) -> io::Result<bool> {
    if args.share.iter().any(|share| !(0.01..=1.0).contains(share)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "--share: from 0.01 to 1"));
    }
    let scratch = tempfile::Builder::new().prefix("terrace-bench-").tempdir_in("/var/tmp")?;
    // For programs that are somebody else's.
    std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o755))?;
    let reports = scratch.path().join("reports");
    std::fs::create_dir(&reports)?;
    std::fs::set_permissions(&reports, Permissions::from_mode(0o777))?;
    let place = Place {
        directory: scratch.path().to_owned(),
        scripts: args.scripts.canonicalize()?,
        binaries: std::env::current_exe()?.parent().unwrap_or(Path::new("/")).to_owned(),
        corpus: corpus::load(&args.corpus),
        scale: args.scale,
        packages: std::path::absolute(&args.packages)?,
        limit: Duration::from_secs(args.limit),
    };
    let setup = Setup {
        terrace: args.terrace.canonicalize()?,
        backing: args.peer,
        swap: Bytes::gib(2),
        options: args.options.split_whitespace().map(String::from).collect(),
        directory: reports,
        counts: !args.no_peer,
    };
    let mut rows = Vec::new();
    let mut missing = Vec::new();
    for &program in Program::value_variants() {
        if !args.only.is_empty() && !args.only.contains(&program) {
            continue;
        }
        if let Some(needed) = program.lacks(&place.packages) {
            missing.push(format!("{}: {needed} is not installed: NOT run", program.name()));
            continue;
        }
        progress(&format!("preparing {}", program.name()));
        if let Err(e) = program.prepare(&place) {
            interrupt::check()?;
            missing.push(format!("{}: its inputs cannot be made ({e}): NOT run", program.name()));
            continue;
        }
        rows.push(Row {
            program,
            need: Bytes(0),
            checksum: 0,
            plain: Cell::default(),
            cells: args.share.iter().map(|_| Default::default()).collect(),
        });
    }
    for round in 0..args.rounds {
        for row in &mut rows {
            one_round(args, &place, &setup, row, round)?;
        }
    }
    progress("");
    for line in missing {
        eprintln!("{line}");
    }
    if !args.json {
        table(args, &rows);
    }
    Ok(told_losses(args, &rows))
}

/// Each system once for each share, after plain memory, which says in the first round what a
/// share of the memory is.
fn one_round(
    args: &Args,
    place: &Place,
    setup: &Setup,
    row: &mut Row,
    round: usize,
) -> io::Result<()> {
    one_run(args, place, setup, row, (System::Plain, None), round)?;
    for share in 0..args.share.len() {
        for turn in 0..SYSTEMS.len() {
            let which = (round + turn) % SYSTEMS.len();
            if args.no_peer && SYSTEMS[which] != System::Terrace {
                continue;
            }
            one_run(args, place, setup, row, (SYSTEMS[which], Some((share, which))), round)?;
        }
    }
    Ok(())
}

fn one_run(
    args: &Args,
    place: &Place,
    setup: &Setup,
    row: &mut Row,
    (system, at): (System, Option<(usize, usize)>),
    round: usize,
) -> io::Result<()> {
    let name = row.program.name();
    let share = at.map(|(share, _)| args.share[share]);
    let budget = share.map_or(Bytes(0), |share| row.budget(share));
    let part = share.map_or(String::new(), |share| format!(" with {:.0} %", share * 100.0));
    progress(&format!("round {} of {}: {name}, {}{part}", round + 1, args.rounds, system.name()));
    let ready = setup.ready(system, budget)?;
    let began = Instant::now();
    let outcome = row.program.run(place, &ready).and_then(|outcome: Outcome| {
        let cost = ready.cost(outcome.resident)?;
        Ok((outcome, cost))
    });
    interrupt::check()?;
    let result = match outcome {
        // The kernel's reclaim may give up though there is swap.
        _ if ready.killed() > 0 => Err(Lost::Killed),
        Err(_) if at.is_some() && began.elapsed() >= place.limit => Err(Lost::Over),
        // What fails on plain memory cannot be compared with anything.
        Err(e) if at.is_none() => return Err(io::Error::new(e.kind(), format!("{name}: {e}"))),
        Err(e) => Err(Lost::Failed(e.to_string())),
        Ok((outcome, cost)) => {
            if row.need.is_zero() {
                (row.need, row.checksum) = (cost.dram, outcome.checksum);
            }
            if outcome.checksum == row.checksum {
                Ok((outcome, cost))
            } else {
                Err(Lost::Failed("it gave another answer than before".to_owned()))
            }
        }
    };
    drop(ready);
    let (need, cell) = (
        row.need,
        match at {
            Some((share, which)) => &mut row.cells[share][which],
            None => &mut row.plain,
        },
    );
    let mut line = serde_json::json!({
        "program": name, "round": round, "system": system.name(), "share": share,
        "need": need.get(), "budget": budget.get(),
    });
    match result {
        Ok((Outcome { time, .. }, Cost { dram, report, engine })) => {
            cell.times.push(Some(time.as_secs_f64()));
            cell.dram = cell.dram.max(dram);
            line["seconds"] = time.as_secs_f64().into();
            line["dram"] = dram.get().into();
            line["demotions"] = report.map(|report| report.total.demotions).into();
            if let Some(engine) = engine {
                cell.resident = cell.resident.max(engine.stats.resident_peak);
                line["report"] = serde_json::to_value(&engine.stats)?;
            }
        }
        Err(lost) => {
            line["lost"] = lost.short().into();
            if let Lost::Failed(why) = &lost {
                line["why"] = why.as_str().into();
            }
            cell.times.push(None);
            cell.lost.push(lost);
        }
    }
    if args.json {
        println!("{line}");
    }
    Ok(())
}

/// Of the kernel engine beside the better one of the others, by round.
fn beside_the_better(cells: &[Cell; 3]) -> Option<Spread> {
    let [kernel, pager, engine] = cells;
    Spread::of(engine.times.iter().enumerate().filter_map(|(round, time)| {
        let others = [kernel, pager].into_iter().filter_map(|cell| *cell.times.get(round)?);
        Some((*time)? / others.reduce(f64::min)?)
    }))
}

fn table(args: &Args, rows: &[Row]) {
    println!(
        "Real programs in a part of their memory beside {}, {} rounds by turns; medians \
         (least-greatest)",
        if args.no_peer { "nothing".to_owned() } else { args.peer.describe() },
        args.rounds
    );
    println!(
        "seconds; engine/best is the kernel engine beside the better one of kernel swap and pager; \
         DRAM is all of it, MiB, compressed pages included; peak is what the kernel engine had \
         resident at most beside the budget"
    );
    println!(
        "{:<14}  {:>5}  {:>6}  {:>17}  {:>19}  {:>19}  {:>19}  {:>17}  {:>6}  {:>5}  {:>6}  {:>5}",
        "program",
        "need",
        "budget",
        "plain s",
        "kernel s",
        "pager s",
        "engine s",
        "engine/best",
        "kernel",
        "pager",
        "engine",
        "peak"
    );
    let mib = |bytes: Bytes| {
        let mib = (bytes.as_f64() / Bytes::mib(1).as_f64()).round();
        if bytes.is_zero() { "-".to_owned() } else { mib.to_string() }
    };
    let text = |cell: &Cell| {
        let times = Spread::of(cell.times.iter().flatten().copied());
        let times = times.map(|spread| spread.to_string());
        let lost = cell.lost.first().map(|lost| lost.short().to_owned());
        let both: Vec<_> = lost.into_iter().chain(times).collect();
        if both.is_empty() { "-".to_owned() } else { both.join(", ") }
    };
    for row in rows {
        for (share, cells) in args.share.iter().zip(&row.cells) {
            let budget = row.budget(*share);
            let peak = cells[2].resident;
            let peak = if peak.is_zero() {
                "-".to_owned()
            } else {
                format!("{:.0} %", peak.as_f64() / budget.as_f64() * 100.0)
            };
            println!(
                "{:<14}  {:>5}  {:>6}  {:>17}  {:>19}  {:>19}  {:>19}  {:>17}  {:>6}  {:>5}  {:>6}  {:>5}",
                row.program.name(),
                mib(row.need),
                mib(budget),
                text(&row.plain),
                text(&cells[0]),
                text(&cells[1]),
                text(&cells[2]),
                beside_the_better(cells).map_or("-".to_owned(), |spread| spread.to_string()),
                mib(cells[0].dram),
                mib(cells[1].dram),
                mib(cells[2].dram),
                peak,
            );
        }
    }
}

/// Says why rounds were lost. False if one was lost under an engine of Terrace's, or an answer was
/// wrong: then there is more to be done than to be slower.
fn told_losses(args: &Args, rows: &[Row]) -> bool {
    let mut all_well = true;
    for row in rows {
        for (share, cells) in args.share.iter().zip(&row.cells) {
            for (system, cell) in SYSTEMS.into_iter().zip(cells) {
                let Some(lost) = cell.lost.first() else { continue };
                let why = match lost {
                    Lost::Killed => "killed by the kernel for want of memory",
                    Lost::Over => "ended by the benchmark, as it took too long",
                    Lost::Failed(why) => why,
                };
                eprintln!(
                    "{} with {:.0} % of its memory, {}, {} of {} rounds: {why}",
                    row.program.name(),
                    share * 100.0,
                    system.name(),
                    cell.lost.len(),
                    cell.times.len(),
                );
                all_well &= system == System::Kernel && !matches!(lost, Lost::Failed(_));
            }
        }
    }
    all_well
}

/// On a terminal, says what is being done.
fn progress(what: &str) {
    let mut err = io::stderr();
    if err.is_terminal() {
        let _ = write!(err, "\r\x1b[K{what}");
        let _ = err.flush();
    }
}
