//! `terrace run` beside kernel swap: GUPS at several hot-set sizes.
//!
//! Every round runs each system once at each point, so that what the machine
//! does meanwhile hits all alike; what is printed are medians of the rounds'
//! ratios, with their spread.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use terrace_bench::Gups;
use terrace_bench::peer::{Backing, Cgroup, Swap};
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
    /// Further arguments for `terrace run`, separated by spaces.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    options: String,
    /// One JSON object a run on standard output instead of the table.
    #[arg(long)]
    json: bool,
    /// Only measure Terrace.
    #[arg(long)]
    no_peer: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum System {
    Kernel,
    Terrace,
}

/// One point of the comparison.
struct Cell {
    hot: Bytes,
    threads: usize,
    runs: Vec<(Option<Gups>, Gups)>,
}

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("pager: {e}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> io::Result<()> {
    let gups = std::env::current_exe()?.with_file_name("gups");
    touch(Bytes(args.size.get() + args.budget.get()));
    let mut cells: Vec<Cell> = Vec::new();
    for &threads in &args.threads {
        for &hot in &args.hot {
            cells.push(Cell { hot, threads, runs: Vec::new() });
        }
    }
    for round in 0..args.rounds {
        for cell in &mut cells {
            let note = format!("round {} of {}: {} hot", round + 1, args.rounds, cell.hot);
            let peer = if args.no_peer {
                None
            } else {
                progress(&format!("{note}, kernel"));
                Some(run(args, &gups, System::Kernel, cell, round)?)
            };
            progress(&format!("{note}, terrace"));
            let ours = run(args, &gups, System::Terrace, cell, round)?;
            if args.json {
                println!(
                    "{}",
                    serde_json::json!({
                        "hot_bytes": cell.hot.get(), "threads": cell.threads, "round": round,
                        "kernel": peer, "terrace": ours,
                    })
                );
            }
            cell.runs.push((peer, ours));
        }
    }
    progress("");
    if !args.json {
        table(args, &cells);
    }
    Ok(())
}

fn run(args: &Args, gups: &Path, system: System, cell: &Cell, round: usize) -> io::Result<Gups> {
    let (swap, group);
    let wrap: Vec<String> = match system {
        System::Kernel => {
            swap = Swap::on(args.peer, args.size)?;
            group = Cgroup::new(args.budget)?;
            let _ = (&swap, &group);
            group.wrap()
        }
        System::Terrace => {
            let mut words = vec![args.terrace.display().to_string(), "run".into()];
            words.extend(["--fast".into(), format!("{}B", args.budget.get())]);
            if std::env::var_os("BENCH_REPORT").is_none() {
                words.push("--quiet".into());
            }
            words.extend(args.options.split_whitespace().map(String::from));
            words.push("--".into());
            words
        }
    };
    let output = Command::new(&wrap[0])
        .args(&wrap[1..])
        .arg(gups)
        .args(["--size", &format!("{}B", args.size.get())])
        .args(["--hot", &format!("{}B", cell.hot.get())])
        .args(["--threads", &cell.threads.to_string()])
        .args(["--warm", &args.seconds[0].to_string()])
        .args(["--measure", &args.seconds[1].to_string()])
        .args(["--latency", &args.seconds[2].to_string()])
        .args(["--seed", &(round + 1).to_string()])
        .arg("--corpus")
        .arg(&args.corpus)
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{wrap:?} ended with {}", output.status)));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|e| io::Error::other(format!("{e}: {}", String::from_utf8_lossy(&output.stdout))))
}

/// Median, least and greatest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

fn table(args: &Args, cells: &[Cell]) {
    println!(
        "GUPS, {} working set, {} in DRAM, {} rounds; medians (least-greatest)",
        args.size, args.budget, args.rounds
    );
    println!(
        "threads  hot         kernel M/s  terrace M/s  ratio              p99.9 kernel  terrace    kernel/terrace"
    );
    for cell in cells {
        let ours = spread(cell.runs.iter().map(|r| r.1.updates_per_second / 1e6).collect());
        let tail = spread(cell.runs.iter().map(|r| r.1.p999_ns as f64 / 1e3).collect());
        let peers: Option<Vec<Gups>> = cell.runs.iter().map(|r| r.0).collect();
        let Some(peers) = peers else {
            println!(
                "{:<7}  {:<10}  {:>10}  {:>11.3}  {:>30}  {:>8.1} us",
                cell.threads, cell.hot, "-", ours.0, "", tail.0
            );
            continue;
        };
        let kernel = spread(peers.iter().map(|p| p.updates_per_second / 1e6).collect());
        let ratio = spread(
            cell.runs
                .iter()
                .zip(&peers)
                .map(|(r, p)| r.1.updates_per_second / p.updates_per_second)
                .collect(),
        );
        let kernel_tail = spread(peers.iter().map(|p| p.p999_ns as f64 / 1e3).collect());
        let tails = spread(
            cell.runs
                .iter()
                .zip(&peers)
                .map(|(r, p)| p.p999_ns as f64 / r.1.p999_ns as f64)
                .collect(),
        );
        println!(
            "{:<7}  {:<10}  {:>10.3}  {:>11.3}  {:>5.2} ({:.2}-{:.2})  {:>9.1} us  {:>8.1} us  {:>5.2} ({:.2}-{:.2})",
            cell.threads,
            cell.hot,
            kernel.0,
            ours.0,
            ratio.0,
            ratio.1,
            ratio.2,
            kernel_tail.0,
            tail.0,
            tails.0,
            tails.1,
            tails.2
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

/// The first touch of memory after boot is slow in a virtual machine, whose
/// host must find it: done before anything is measured.
fn touch(size: Bytes) {
    let mut all = vec![0u8; size.get() as usize];
    for byte in all.iter_mut().step_by(4096) {
        *byte = 1;
    }
    std::hint::black_box(&all);
}
