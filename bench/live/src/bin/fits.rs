//! `terrace run` where everything fits into the budget, beside the program alone: what it
//! costs to have it at hand.
//!
//! In a round both programs have filled their memory and take turns of a quarter of a second, so
//! that a host with other guests, whose speed changes within seconds, disturbs both alike. A ratio
//! of updates a second is taken for each pair of turns, and the round's is their median. Rounds
//! begin by turns with either system: how the kernel happens to lay memory out stays for a round,
//! and makes the difference between two runs of one program. Medians of the rounds are printed
//! with their spread. Processor time is that of everything, filling and `terrace run` itself
//! included, for an update.

use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, ExitCode, Stdio};

use clap::Parser;
use terrace_bench::peer::Backing;
use terrace_bench::spread::Spread;
use terrace_bench::system::{Ready, Setup, System};
use terrace_bench::{Turn, interrupt};
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
    /// How often both are started.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Turns that each takes in a round.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    turns: u32,
    /// Seconds of a turn.
    #[arg(long, default_value_t = 0.25)]
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
    /// Updates a second, turn by turn.
    rates: Vec<f64>,
    /// Processor seconds of everything for an update, filling included.
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
        counts: false,
    };
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        progress(&format!("round {} of {}", round + 1, args.rounds));
        let order = [System::Plain, System::Terrace];
        let (plain, managed) = if round % 2 == 0 {
            let [plain, managed] = both(args, &setup, order)?;
            (plain, managed)
        } else {
            let [managed, plain] = both(args, &setup, [order[1], order[0]])?;
            (plain, managed)
        };
        if args.json {
            let line = |run: &Run| {
                serde_json::json!({
                    "updates_per_second": run.rates, "cpu_seconds_per_update": run.cpu,
                    "resident_bytes": run.resident,
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

/// A program that waits for its turns.
struct Player {
    ready: Ready,
    system: System,
    running: interrupt::Running,
    says: ChildStdin,
    hears: BufReader<ChildStdout>,
    turns: Vec<Turn>,
}

impl Player {
    /// Starts it; when this returns it has filled its memory and rests.
    fn start(args: &Args, setup: &Setup, system: System) -> io::Result<Self> {
        let gups = std::env::current_exe()?.with_file_name("gups");
        let ready = setup.ready(system, args.budget)?;
        let mut command = ready.command(&gups);
        command
            .args(["--size", &format!("{}B", args.size.get())])
            .args(["--hot", &format!("{}B", args.hot.get())])
            .args(["--warm", "0.5", "--turns"])
            .args(["--measure", &args.seconds.to_string()])
            .arg("--corpus")
            .arg(&args.corpus)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut running = interrupt::Running::start(&mut command)?;
        let (says, hears) = running.pipes().ok_or(io::ErrorKind::BrokenPipe)?;
        let hears = BufReader::new(hears);
        let mut player = Self { ready, system, running, says, hears, turns: Vec::new() };
        player.line()?;
        Ok(player)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.hears.read_line(&mut line)?;
        interrupt::check()?;
        if line.is_empty() {
            return Err(io::Error::other(format!("gups, {}, has ended", self.system.name())));
        }
        Ok(line)
    }

    /// Has it take a turn.
    fn turn(&mut self) -> io::Result<()> {
        writeln!(self.says)?;
        let turn = serde_json::from_str(&self.line()?).map_err(io::Error::other)?;
        self.turns.push(turn);
        Ok(())
    }

    /// Has it end.
    fn finish(self) -> io::Result<Run> {
        drop(self.says);
        let finished = self.running.wait()?;
        if !finished.status.success() {
            let status = finished.status;
            return Err(io::Error::other(format!("gups, {}: {status}", self.system.name())));
        }
        let cost = self.ready.cost(finished.peak)?;
        if let Some(report) = cost.report.filter(|report| report.total.demotions > 0) {
            let left = report.total.demotions;
            return Err(io::Error::other(format!("{left} pages left: it does not fit")));
        }
        let updates: u64 = self.turns.iter().map(|turn| turn.updates).sum();
        Ok(Run {
            rates: self.turns.iter().map(|turn| turn.updates as f64 / turn.seconds).collect(),
            cpu: finished.cpu.as_secs() / updates as f64,
            resident: finished.peak.as_f64(),
        })
    }
}

/// One round.
fn both(args: &Args, setup: &Setup, order: [System; 2]) -> io::Result<[Run; 2]> {
    let mut first = Player::start(args, setup, order[0])?;
    let mut second = Player::start(args, setup, order[1])?;
    for _ in 0..args.turns {
        first.turn()?;
        second.turn()?;
    }
    Ok([first.finish()?, second.finish()?])
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
        ratio: |plain, managed| {
            let pairs = plain.rates.iter().zip(&managed.rates);
            Spread::of(pairs.map(|(plain, managed)| plain / managed)).map_or(1.0, |s| s.median)
        },
    },
    Line {
        name: "processor time an update",
        most: 1.02,
        ratio: |plain, managed| managed.cpu / plain.cpu,
    },
    Line {
        name: "resident memory",
        most: 1.03,
        ratio: |plain, managed| managed.resident / plain.resident,
    },
];

fn table(args: &Args, rounds: &[(Run, Run)]) {
    println!(
        "Everything fits: GUPS on {}, {} hot, with {} in DRAM, terrace run by alone, {} rounds of {} turns \
         each; median (least-greatest)",
        args.size, args.hot, args.budget, args.rounds, args.turns
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
