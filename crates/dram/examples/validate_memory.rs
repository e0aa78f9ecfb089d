//! Prints ours beside formulas and published figures, from runs made here and
//! now. Exit code 1 if one of them differs more than allowed.
//!
//! `cargo run --release -p terrace-dram --example validate_memory`

use std::process::ExitCode;
use std::time::Instant;

use terrace_dram::presets;
use terrace_dram::validation::{Check, INTERVALS, READ_PERCENTS, all, curve};

fn main() -> ExitCode {
    let start = Instant::now();
    let file = presets::builtin("ddr4-2400").expect("built in");
    let points = curve(&file, 2000, || ());
    let took = start.elapsed();
    println!("DDR4-2400, no refresh: GB/s and ns of a dependent random read, by share of reads");
    print!("{:>10}", "interval");
    for percent in READ_PERCENTS {
        print!("{:>15}", format!("{percent} % reads"));
    }
    println!();
    for (i, interval) in INTERVALS.iter().enumerate() {
        print!("{:>7} tCK", format!("{}", *interval as f64 / 4.0));
        for column in 0..READ_PERCENTS.len() {
            let point = points[column * INTERVALS.len() + i];
            print!("{:>8.2} {:>6.1}", point.gb_per_s, point.latency_ns);
        }
        println!();
    }
    println!("{} points in {:.2} s\n", points.len(), took.as_secs_f64());
    println!("{:9}{:56} {:>9} {:>9}", "", "what", "ours", "other");
    let checks = all();
    for check in &checks {
        println!("{check}");
    }
    println!("\nall in {:.2} s", start.elapsed().as_secs_f64());
    if checks.iter().all(Check::holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
