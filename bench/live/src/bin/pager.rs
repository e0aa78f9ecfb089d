//! `terrace run` beside kernel swap: GUPS at several hot-set sizes.
//!
//! Every round runs each system once at each point, so that what the machine
//! does meanwhile hits all alike; what is printed are medians of the rounds'
//! ratios, with their spread. Then, where the time of a fault went, beside the
//! least that it can take.
//!
//! With `--equal-dram` Terrace runs twice: with the peer's budget, and with `--total`
//! so that it takes as much DRAM as the peer altogether, compressed pages and its own
//! tables included. What those are is known from the first run ([`equal_total`]).

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Parser;
use terrace_bench::breakdown::{self, Breakdown};
use terrace_bench::busy::Busy;
use terrace_bench::limits::Limits;
use terrace_bench::peer::Backing;
use terrace_bench::spread::Spread;
use terrace_bench::system::{Cost, Setup, System, equal_total};
use terrace_bench::{Gups, corpus, interrupt};
use terrace_core::Bytes;

/// Compares `terrace run` with kernel swap under a memory cgroup. Needs root.
#[derive(Parser)]
struct Args {
    /// The command to measure.
    #[arg(long, default_value = "target/release/terrace")]
    terrace: PathBuf,
    /// Working set.
    #[arg(long, default_value = "4GiB")]
    size: Bytes,
    /// Memory for it.
    #[arg(long, default_value = "1GiB")]
    budget: Bytes,
    /// Hot-set sizes.
    #[arg(long, value_delimiter = ',', default_value = "256MiB,512MiB,768MiB,1GiB,1536MiB,2GiB")]
    hot: Vec<Bytes>,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Kernel swap to compare with.
    #[arg(long, value_enum, default_value = "zram")]
    peer: Backing,
    /// How often everything runs.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds before measuring, of measuring, and of timing single updates.
    #[arg(long, value_delimiter = ',', default_value = "6,4,2")]
    seconds: Vec<f64>,
    /// Pages to fill the memory with.
    #[arg(long)]
    corpus: PathBuf,
    /// Further arguments for `terrace run --engine pager`, separated by spaces.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    options: String,
    /// One JSON object a run on standard output instead of the table.
    #[arg(long)]
    json: bool,
    /// Only measure Terrace.
    #[arg(long)]
    no_peer: bool,
    /// Run so many programs beside that only compute, each a group of the scheduler's.
    #[arg(long, default_value_t = 0)]
    busy: usize,
    /// Also with a budget at which Terrace takes as much DRAM as its peer altogether.
    #[arg(long, conflicts_with = "no_peer")]
    equal_dram: bool,
    /// Also the best that a pager in user space could do (`bench/mechanisms/bound.c`, built), where
    /// the hot set fits.
    #[arg(long)]
    bound: Option<PathBuf>,
}

/// What `bound` prints.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Bound {
    updates_per_second: f64,
    misses_per_update: f64,
}

/// One run and what it took.
struct Measured {
    gups: Gups,
    cost: Cost,
    budget: Bytes,
}

/// All runs at one point in one round.
struct Round {
    kernel: Option<Measured>,
    terrace: Measured,
    equal: Option<Measured>,
    bound: Option<Bound>,
}

/// One point of the comparison.
struct Cell {
    hot: Bytes,
    threads: usize,
    rounds: Vec<Round>,
}

fn main() -> ExitCode {
    interrupt::catch();
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("pager: {e}");
            ExitCode::from(terrace_bench::status(&e))
        }
    }
}

fn measure(args: &Args) -> io::Result<()> {
    let scratch = tempfile::tempdir()?;
    let setup = Setup {
        terrace: args.terrace.clone(),
        backing: args.peer,
        swap: args.size,
        options: args.options.split_whitespace().map(String::from).collect(),
        directory: scratch.path().to_owned(),
        counts: false,
    };
    touch(Bytes(args.size.get() + args.budget.get()));
    let limits = Limits::measure(&corpus::load(&args.corpus));
    let busy = Busy::start(args.busy)?;
    let mut cells: Vec<Cell> = Vec::new();
    for &threads in &args.threads {
        for &hot in &args.hot {
            cells.push(Cell { hot, threads, rounds: Vec::new() });
        }
    }
    for round in 0..args.rounds {
        for cell in &mut cells {
            let note = format!("round {} of {}: {} hot", round + 1, args.rounds, cell.hot);
            let run = |system, budget| run(args, &setup, system, budget, cell, round);
            let mut kernel = None;
            if !args.no_peer {
                progress(&format!("{note}, kernel"));
                kernel = Some(run(System::Kernel, args.budget)?);
            }
            progress(&format!("{note}, terrace"));
            let terrace = run(System::Terrace, args.budget)?;
            let mut equal = None;
            if let Some(peer) = kernel.as_ref().filter(|_| args.equal_dram) {
                progress(&format!("{note}, terrace with equal DRAM"));
                // A dash in the table where there is no such budget.
                equal = if let Some(budget) = equalise(peer, &terrace)? {
                    Some(run(System::TerraceTotal, budget)?)
                } else {
                    eprintln!("{note}: the peer's DRAM is less than terrace's own");
                    None
                };
            }
            let bound = match &args.bound {
                Some(program) if cell.hot.get() * 10 <= args.budget.get() * 9 => {
                    progress(&format!("{note}, bound"));
                    Some(run_bound(args, program, cell)?)
                }
                _ => None,
            };
            let round = Round { kernel, terrace, equal, bound };
            if args.json {
                println!("{}", round.json(cell));
            }
            cell.rounds.push(round);
        }
    }
    drop(busy);
    progress("");
    if !args.json {
        table(args, &cells);
        if args.equal_dram {
            table_of_equals(&cells);
        }
        if args.bound.is_some() {
            table_of_bounds(&cells);
        }
        if let Some(limits) = limits {
            costs(limits, &cells);
        }
    }
    Ok(())
}

/// The budget with which a run like this one takes as much as its peer; `None` if there
/// is none.
fn equalise(peer: &Measured, ours: &Measured) -> io::Result<Option<Bytes>> {
    let report = ours.cost.report.as_ref();
    let total = &report.ok_or_else(|| io::Error::other("terrace wrote no report"))?.total;
    let store = total.store.occupied_peak;
    Ok(equal_total(peer.cost.dram, ours.cost.dram, ours.budget, store))
}

fn run(
    args: &Args,
    setup: &Setup,
    system: System,
    budget: Bytes,
    cell: &Cell,
    round: usize,
) -> io::Result<Measured> {
    let gups = std::env::current_exe()?.with_file_name("gups");
    let ready = setup.ready(system, budget)?;
    let mut command = ready.command(&gups);
    command
        .args(["--size", &format!("{}B", args.size.get())])
        .args(["--hot", &format!("{}B", cell.hot.get())])
        .args(["--threads", &cell.threads.to_string()])
        .args(["--warm", &args.seconds[0].to_string()])
        .args(["--measure", &args.seconds[1].to_string()])
        .args(["--latency", &args.seconds[2].to_string()])
        .args(["--seed", &(round + 1).to_string()])
        .arg("--corpus")
        .arg(&args.corpus);
    let finished = interrupt::run(&mut command)?;
    if !finished.status.success() {
        let status = finished.status;
        return Err(io::Error::other(format!("gups under {} ended with {status}", system.name())));
    }
    let gups = serde_json::from_slice(&finished.stdout).map_err(|e| {
        io::Error::other(format!("{e}: {}", String::from_utf8_lossy(&finished.stdout)))
    })?;
    let cost = ready.cost(finished.peak)?;
    Ok(Measured { gups, cost, budget })
}

fn run_bound(args: &Args, program: &Path, cell: &Cell) -> io::Result<Bound> {
    if (args.size, args.budget) != (Bytes::gib(4), Bytes::gib(1)) {
        return Err(io::Error::other("bound knows 4 GiB in 1 GiB alone"));
    }
    let mut command = Command::new(program);
    command
        .arg("sigbus")
        .arg(cell.threads.to_string())
        .arg((cell.hot.get() >> 20).to_string())
        .arg(&args.corpus)
        .args([args.seconds[0].to_string(), args.seconds[1].to_string()]);
    let finished = interrupt::run(&mut command)?;
    serde_json::from_slice(&finished.stdout)
        .map_err(|e| io::Error::other(format!("bound ended with {}: {e}", finished.status)))
}

impl Measured {
    /// Million updates a second.
    fn rate(&self) -> f64 {
        self.gups.updates_per_second / 1e6
    }

    /// The 99.9th percentile of an update, microseconds.
    fn tail(&self) -> f64 {
        self.gups.p999_ns as f64 / 1e3
    }

    /// The 99.99th percentile, microseconds.
    fn far_tail(&self) -> f64 {
        self.gups.p9999_ns as f64 / 1e3
    }

    /// DRAM altogether, MiB.
    fn dram(&self) -> f64 {
        self.cost.dram.as_f64() / Bytes::mib(1).as_f64()
    }

    fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "gups": self.gups, "budget_bytes": self.budget, "dram_bytes": self.cost.dram,
        })
    }
}

impl Round {
    fn json(&self, cell: &Cell) -> serde_json::Value {
        serde_json::json!({
            "hot_bytes": cell.hot, "threads": cell.threads, "round": cell.rounds.len(),
            "kernel": self.kernel.as_ref().map(Measured::json),
            "terrace": self.terrace.json(),
            "terrace_equal_dram": self.equal.as_ref().map(Measured::json),
            "bound": self.bound,
        })
    }
}

/// Which of a round's runs.
type Which = fn(&Round) -> Option<&Measured>;
const KERNEL: Which = |round| round.kernel.as_ref();
const TERRACE: Which = |round| Some(&round.terrace);
const EQUAL: Which = |round| round.equal.as_ref();

impl Cell {
    /// A figure's median over the rounds; a dash where there is none.
    fn median(&self, which: Which, figure: fn(&Measured) -> f64, digits: usize) -> String {
        Spread::of(self.rounds.iter().filter_map(which).map(figure))
            .map_or("-".to_owned(), |spread| format!("{:.digits$}", spread.median))
    }

    /// The spread of one figure by the same of another run in the same round.
    fn spread(&self, figure: fn(&Measured) -> f64, of: Which, by: Which) -> Option<Spread> {
        let ratio = |round| Some(figure(of(round)?) / figure(by(round)?));
        Spread::of(self.rounds.iter().filter_map(ratio))
    }

    fn ratio(&self, figure: fn(&Measured) -> f64, of: Which, by: Which) -> String {
        self.spread(figure, of, by).map_or("-".to_owned(), |spread| spread.to_string())
    }

    /// The same beside what it is to be at least.
    fn judged(&self, figure: fn(&Measured) -> f64, of: Which, by: Which, aim: f64) -> String {
        let Some(spread) = self.spread(figure, of, by) else { return "-".to_owned() };
        let sign = if spread.median >= aim { '>' } else { '<' };
        format!("{spread} {sign} {aim}")
    }
}

/// How many times the kernel's updates a second we aim at: more where the hot set leaves a
/// quarter of the budget free, so that hardly anything but the fault itself counts.
fn aim(hot: Bytes, budget: Bytes) -> f64 {
    if hot.get() * 4 <= budget.get() * 3 { 3.0 } else { 1.5 }
}

/// How many times shorter the 99.9th percentile is to be.
const TAIL_AIM: f64 = 5.0;

fn table(args: &Args, cells: &[Cell]) {
    let busy = match args.busy {
        0 => String::new(),
        n => format!(" and {n} busy programs"),
    };
    println!(
        "GUPS, {} working set, {} in DRAM, beside {}{busy}, {} rounds; medians (least-greatest)",
        args.size,
        args.budget,
        args.peer.describe(),
        args.rounds
    );
    println!(
        "threads  hot         kernel M/s  terrace M/s  terrace/kernel, aim     kernel p99.9 us     terrace  kernel/terrace, aim     kernel p99.99 us     terrace"
    );
    for cell in cells {
        println!(
            "{:<7}  {:<10}  {:>10}  {:>11}  {:<22}  {:>15}  {:>10}  {:<22}  {:>16}  {:>10}",
            cell.threads,
            cell.hot,
            cell.median(KERNEL, Measured::rate, 3),
            cell.median(TERRACE, Measured::rate, 3),
            cell.judged(Measured::rate, TERRACE, KERNEL, aim(cell.hot, args.budget)),
            cell.median(KERNEL, Measured::tail, 1),
            cell.median(TERRACE, Measured::tail, 1),
            cell.judged(Measured::tail, KERNEL, TERRACE, TAIL_AIM),
            cell.median(KERNEL, Measured::far_tail, 0),
            cell.median(TERRACE, Measured::far_tail, 0),
        );
    }
}

fn table_of_equals(cells: &[Cell]) {
    println!();
    println!(
        "At equal DRAM altogether, MiB: the kernel's budget and the most that its compressed \
         pages took; the most that was resident under terrace, store and tables included"
    );
    println!(
        "threads  hot         kernel DRAM  terrace DRAM  its budget  terrace M/s     terrace/kernel  p99.9 us     kernel/terrace"
    );
    let mib = |measured: &Measured| measured.budget.as_f64() / Bytes::mib(1).as_f64();
    for cell in cells {
        println!(
            "{:<7}  {:<10}  {:>11}  {:>12}  {:>10}  {:>11}  {:>17}  {:>8}  {:>17}",
            cell.threads,
            cell.hot,
            cell.median(KERNEL, Measured::dram, 0),
            cell.median(EQUAL, Measured::dram, 0),
            cell.median(EQUAL, mib, 0),
            cell.median(EQUAL, Measured::rate, 3),
            cell.ratio(Measured::rate, EQUAL, KERNEL),
            cell.median(EQUAL, Measured::tail, 1),
            cell.ratio(Measured::tail, KERNEL, EQUAL),
        );
    }
}

/// The best that a pager in user space could do, beside what there is.
fn table_of_bounds(cells: &[Cell]) {
    println!();
    println!(
        "At best in user space: faults in the program's own thread, what leaves chosen by one who knows \
         the hot set, pages copied and not compressed, system calls on absent pages failing"
    );
    println!("threads  hot         bound M/s   us a miss        bound/kernel       terrace/bound");
    for cell in cells {
        let rounds = || cell.rounds.iter().filter_map(|round| Some((round, round.bound?)));
        let text = |values: &mut dyn Iterator<Item = f64>| {
            Spread::of(values).map_or("-".to_owned(), |spread| spread.to_string())
        };
        let rate = |bound: Bound| bound.updates_per_second / 1e6;
        println!(
            "{:<7}  {:<10}  {:>9}  {:>10}  {:>18}  {:>18}",
            cell.threads,
            cell.hot,
            text(&mut rounds().map(|(_, bound)| rate(bound))),
            text(&mut rounds().map(|(_, bound)| {
                cell.threads as f64 / (rate(bound) * bound.misses_per_update)
            })),
            text(&mut rounds().filter_map(|(round, bound)| {
                Some(rate(bound) / round.kernel.as_ref()?.rate())
            })),
            text(&mut rounds().map(|(round, bound)| round.terrace.rate() / rate(bound))),
        );
    }
}

/// Where the time of a fault went, all rounds together.
fn costs(limits: Limits, cells: &[Cell]) {
    println!();
    println!(
        "What a fault costs under terrace run, us, the fill's first touches included; the limit: \
         the kernel's zero-fill fault, {}, and decompressing a page, {}",
        limits.zero_fill, limits.decompress
    );
    println!("threads  hot       {}", breakdown::HEAD);
    for cell in cells {
        let mut breakdown = Breakdown::default();
        for round in &cell.rounds {
            if let Some(report) = &round.terrace.cost.report {
                breakdown.add(report);
            }
        }
        if let Some(line) = breakdown.line(limits) {
            println!("{:<7}  {:<10}{line}", cell.threads, cell.hot);
        }
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

/// The first touch of memory after boot is slow in a virtual machine, whose
/// host must find it: done before anything is measured.
fn touch(size: Bytes) {
    let mut all = vec![0u8; size.get() as usize];
    for byte in all.iter_mut().step_by(4096) {
        *byte = 1;
    }
    std::hint::black_box(&all);
}
