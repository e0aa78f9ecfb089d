//! How much the reproduction of HeMem's figure depends on the numbers that are
//! recalled or assumed, and on how the benchmark is read.
//!
//! ```text
//! cargo run --release -p terrace-sim --example hemem_sensitivity [WORD]
//! ```
//!
//! With a word, only the changes whose description has it.

use terrace_core::{Bytes, BytesPerSecond, Cycles, Nanos};
use terrace_sim::reproduce::{HememConfig, HememTable, hemem};
use terrace_sim::{Frames, GupsConfig, Phases, Span};

/// The base case with one change.
type Change = fn(&mut HememConfig);

const CHANGES: [(&str, Change); 17] = [
    ("as reproduced", |_| ()),
    ("updates overlap (no rdtscp)", |c| c.gups = GupsConfig::overlapping(Bytes::gib(1))),
    ("physical frames contiguous", |c| c.frames = Frames::Contiguous),
    ("128 GiB of DRAM for policies", |c| c.managed_dram = Some(Bytes::gib(128))),
    ("update takes 90 cycles", |c| c.gups.compute = Cycles(90)),
    ("update takes 160 cycles", |c| c.gups.compute = Cycles(160)),
    ("Optane knee at 0.3", |c| c.machine.tiers[1].load_knee.value = 0.3),
    ("Optane knee at 0.8", |c| c.machine.tiers[1].load_knee.value = 0.8),
    ("DRAM knee at 0.5", |c| c.machine.tiers[0].load_knee.value = 0.5),
    ("Optane moves 64 B units", |c| c.machine.tiers[1].granularity.value = Bytes(64)),
    ("Optane latency 250 ns", |c| c.machine.tiers[1].read_latency.value = Nanos(250)),
    ("Optane latency 350 ns", |c| c.machine.tiers[1].read_latency.value = Nanos(350)),
    ("copying core 2.5 GB/s", |c| c.machine.costs.copy_bandwidth.value = BytesPerSecond(2.5e9)),
    ("sample costs 1 us", |c| c.machine.costs.sample.value = Nanos::micros(1)),
    ("user fault 150 us", |c| c.machine.costs.user_fault.value = Nanos::micros(150)),
    ("shootdown 10 times as dear", |c| {
        c.machine.costs.shootdown.value = Nanos::micros(10);
        c.machine.costs.shootdown_per_core.value = Nanos::micros(2);
    }),
    ("LLC twice as large", |c| c.machine.cpu.llc.value = c.machine.cpu.llc.value * 2),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "{:<28} {:>8} {:>9} {:>8} {:>8} {:>9} {:>9}",
        "", "GUPS", "HeMem/all", "HeMem/MM", "MM fall", "converge", "converge"
    );
    println!(
        "{:<28} {:>8} {:>9} {:>8} {:>8} {:>9} {:>9}",
        "hot set", "1 GiB", "192 GiB", "192 GiB", "1 to 192", "256 GiB", "512 GiB"
    );
    let word = std::env::args().nth(1).unwrap_or_default();
    for (name, change) in CHANGES.into_iter().filter(|(name, _)| name.contains(&word)) {
        let mut config = HememConfig {
            hot_sets: [1, 192, 256, 512].map(Bytes::gib).to_vec(),
            phases: Phases {
                warm_up: Span::AccessesEach(1_000_000_000),
                runs: 1,
                run: Span::AccessesEach(250_000_000),
            },
            ..HememConfig::default()
        };
        change(&mut config);
        let table = hemem(&config, &|_| ())?;
        println!(
            "{name:<28} {:>8.4} {:>9.2} {:>8.2} {:>8.2} {:>9.2} {:>9.2}",
            gups(&table, 0, 0),
            gups(&table, 1, 2) / gups(&table, 1, 0),
            gups(&table, 1, 2) / gups(&table, 1, 3),
            gups(&table, 1, 3) / gups(&table, 0, 3),
            convergence(&table, 2),
            convergence(&table, 3),
        );
    }
    Ok(())
}

/// Columns: all-DRAM, HeMem by the paper's rule, HeMem, Memory Mode, first touch.
fn gups(table: &HememTable, row: usize, column: usize) -> f64 {
    table.rows[row].cells[column].gups
}

/// The slowest of HeMem, Memory Mode and first touch by the fastest.
fn convergence(table: &HememTable, row: usize) -> f64 {
    let contenders = [2, 3, 4].map(|column| gups(table, row, column));
    let least = contenders.into_iter().fold(f64::INFINITY, f64::min);
    least / contenders.into_iter().fold(0.0, f64::max)
}
