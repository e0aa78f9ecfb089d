//! How fast the simulated kernel is: calls a second of processor time, by strategy and detail.
//!
//! `kernel_speed [PROGRAM]` runs each program (or one) under each strategy on a small two-tier
//! machine, and prints a table. `bench/sim/kernel_speed.sh` uses two other forms:
//!
//! - `kernel_speed one PROGRAM DETAIL TIMES` runs a program under KLOCs with so many times the usual
//!   calls. It prints millions of calls a second, millions of lines a second, and nanoseconds a call,
//!   all without the program's preparation.
//! - `kernel_speed running` prints how many million cached reads of 4 KiB the running kernel does in a
//!   second.

use std::error::Error;
use std::os::unix::fs::FileExt;

use terrace_clocks::thread_time;
use terrace_core::{Bytes, Machine};
use terrace_kloc::policy::{Strategy, StrategyConfig};
use terrace_sim::kernel::programs::{Amount, Program, Shapes};
use terrace_sim::kernel::{Class, Detail, Kernel, KernelConfig, KernelReport};
use terrace_sim::machines;

/// By how much data and memories are smaller than the paper's.
const SCALE: u64 = 128;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["one", program, detail, times] => {
            let program = Program::ALL.into_iter().find(|known| known.name() == program);
            let program = program.ok_or("no such program")?;
            let detail = match detail {
                "placement" => Detail::Placement,
                "caches" => Detail::Caches,
                _ => return Err("DETAIL is placement or caches".into()),
            };
            one(program, detail, times.parse()?)
        }
        ["running"] => running(),
        [] => all(None),
        [program] => all(Some(program)),
        _ => Err("kernel_speed [PROGRAM], one PROGRAM DETAIL TIMES, or running".into()),
    }
}

fn all(only: Option<&str>) -> Result<(), Box<dyn Error>> {
    println!(
        "detail     program    strategy           M calls/s  M steps/s  bytes/page  operations/s (simulated)"
    );
    for detail in [Detail::Placement, Detail::Caches] {
        for program in Program::ALL {
            if only.is_some_and(|only| only != program.name()) {
                continue;
            }
            for strategy in Strategy::ALL {
                let (report, seconds) = run(program, strategy, detail, operations(detail))?;
                println!(
                    "{:9}  {program:9}  {strategy:17}  {:9.2}  {:9.2}  {:11.1}  {:9.0}",
                    if detail == Detail::Caches { "caches" } else { "placement" },
                    report.kernel_calls as f64 / seconds / 1e6,
                    report.calls as f64 / seconds / 1e6,
                    report.bytes_per_page,
                    report.throughput(),
                );
            }
        }
    }
    Ok(())
}

/// What the program's measured part takes: the whole, less a run of its preparation alone.
fn one(program: Program, detail: Detail, times: u64) -> Result<(), Box<dyn Error>> {
    let of = |operations| run(program, Strategy::Klocs, detail, operations);
    let (before, preparing) = of(0)?;
    let (whole, all) = of(operations(detail) * times)?;
    let lines = |report: &KernelReport| -> u64 {
        Class::ALL.map(|class| report.all.class(class).references).into_iter().sum()
    };
    let calls = (whole.kernel_calls - before.kernel_calls) as f64;
    let lines = (lines(&whole) - lines(&before)) as f64;
    let seconds = (all - preparing).max(1e-9);
    println!(
        "{:.4} {:.2} {:.1}",
        calls / seconds / 1e6,
        lines / seconds / 1e6,
        seconds * 1e9 / calls.max(1.0)
    );
    Ok(())
}

/// Operations of each thread.
fn operations(detail: Detail) -> u64 {
    if detail == Detail::Caches { 5_000 } else { 20_000 }
}

fn machine(strategy: Strategy, detail: Detail) -> Result<Machine, Box<dyn Error>> {
    let mut machine = machines::load("cxl")?;
    machine.tiers[0].capacity.value = Bytes(Bytes::gib(8).get() / SCALE);
    machine.tiers[1].capacity.value = Bytes(Bytes::gib(80).get() / SCALE);
    if strategy == Strategy::AllFast {
        machine.tiers[0].capacity.value = Bytes::gib(1);
    }
    if let (Detail::Caches, Some(file)) = (detail, machine.detail.as_mut()) {
        // A last level of the machine's own shape: ways and lines as they are.
        machine.cpu.llc.value = Bytes::mib(60);
        file.llc.ways.value = 15;
    }
    Ok(machine)
}

/// Runs a program; what came of it, and the processor time of that.
fn run(
    program: Program,
    strategy: Strategy,
    detail: Detail,
    operations: u64,
) -> Result<(KernelReport, f64), Box<dyn Error>> {
    let shapes = Shapes::builtin();
    let data = Bytes(shapes.data.large.value.get() / SCALE);
    let amount = Amount { data, scale: SCALE, operations, seed: 1 };
    let mut calls = program.calls(&shapes, &amount);
    let config =
        KernelConfig { detail, scale: SCALE, ..KernelConfig::new(machine(strategy, detail)?) };
    let policy = strategy.build(&StrategyConfig::new(calls.threads(), SCALE));
    let mut kernel = Kernel::new(&config, policy, calls.threads(), calls.pages())?;
    let began = thread_time().as_secs_f64();
    let report = kernel.run(calls.as_mut())?;
    let seconds = thread_time().as_secs_f64() - began;
    kernel.audit()?;
    Ok((report, seconds))
}

/// The same calls by the running kernel: reads of 4 KiB at random places of a file that is cached.
fn running() -> Result<(), Box<dyn Error>> {
    const PAGES: u64 = 4096;
    const CALLS: u64 = 1_000_000;
    let mut page = [0u8; 4096];
    let file = tempfile::tempfile()?;
    for number in 0..PAGES {
        file.write_all_at(&page, number * 4096)?;
    }
    let mut place = 1u64;
    let began = thread_time().as_secs_f64();
    for _ in 0..CALLS {
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        file.read_exact_at(&mut page, (place >> 33) % PAGES * 4096)?;
    }
    let seconds = thread_time().as_secs_f64() - began;
    println!("{:.4}", CALLS as f64 / seconds / 1e6);
    Ok(())
}
