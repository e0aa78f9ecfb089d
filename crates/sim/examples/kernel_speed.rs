//! How fast the simulated kernel is: calls a second of processor time, by strategy and detail.
//!
//! `kernel_speed [PROGRAM]` runs each program (or one) under each strategy on a small two-tier
//! machine, and prints a table.

use rustix::time::{ClockId, clock_gettime};
use terrace_core::Bytes;
use terrace_kloc::policy::{Strategy, StrategyConfig};
use terrace_sim::kernel::programs::{Amount, Program, Shapes};
use terrace_sim::kernel::{Detail, Kernel, KernelConfig};
use terrace_sim::machines;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let only = std::env::args().nth(1);
    let scale = 128;
    let shapes = Shapes::builtin();
    let mut machine = machines::load("cxl")?;
    machine.tiers[0].capacity.value = Bytes(Bytes::gib(8).get() / scale);
    machine.tiers[1].capacity.value = Bytes(Bytes::gib(80).get() / scale);
    println!(
        "detail     program    strategy           M calls/s  M steps/s  bytes/page  operations/s (simulated)"
    );
    for detail in [Detail::Placement, Detail::Caches] {
        for program in Program::ALL {
            if only.as_ref().is_some_and(|only| only != program.name()) {
                continue;
            }
            for strategy in Strategy::ALL {
                let mut machine = machine.clone();
                if strategy == Strategy::AllFast {
                    machine.tiers[0].capacity.value = Bytes::gib(1);
                }
                if let (Detail::Caches, Some(file)) = (detail, machine.detail.as_mut()) {
                    // A last level of the machine's own shape: ways and lines as they are.
                    machine.cpu.llc.value = Bytes::mib(60);
                    file.llc.ways.value = 15;
                }
                let data = Bytes(shapes.data.large.value.get() / scale);
                let operations = if detail == Detail::Caches { 5_000 } else { 20_000 };
                let amount = Amount { data, scale, operations, seed: 1 };
                let mut calls = program.calls(&shapes, &amount);
                let config = KernelConfig { detail, scale, ..KernelConfig::new(machine) };
                let policy = strategy.build(&StrategyConfig::new(calls.threads(), scale));
                let mut kernel = Kernel::new(&config, policy, calls.threads(), calls.pages())?;
                let began = processor_time();
                let report = kernel.run(calls.as_mut())?;
                let seconds = processor_time() - began;
                kernel.audit()?;
                let kernel_calls = report.kernel_calls as f64 / seconds;
                println!(
                    "{:9}  {program:9}  {strategy:17}  {:9.2}  {:9.2}  {:11.1}  {:9.0}",
                    if detail == Detail::Caches { "caches" } else { "placement" },
                    kernel_calls / 1e6,
                    report.calls as f64 / seconds / 1e6,
                    report.bytes_per_page,
                    report.throughput(),
                );
            }
        }
    }
    Ok(())
}

/// Seconds of processor time of this thread: other programs do not count.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
