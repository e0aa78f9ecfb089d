//! Latency under load beside measured machines.
//!
//! A closed system: a number of lines in flight, each read again when it has
//! come, as load generators do. The measured point gives that number by Little's
//! law; what the model makes of it is compared.

use terrace_core::{Bytes, BytesPerSecond, Machine, Nanos};

use super::{Criterion, Line, Reference};
use crate::full::tiers::Tier;
use crate::machines;

/// Reads after which a mean is taken, and over which.
const READS: usize = 400_000;

/// Latency in nanoseconds and traffic in GB/s with so many lines in flight.
pub fn closed_loop(tier: &mut Tier, in_flight: usize) -> (f64, f64) {
    mixed_loop(tier, in_flight, usize::MAX)
}

/// The same with a line written back for each so many that were read; the traffic is
/// that of both directions together.
fn mixed_loop(tier: &mut Tier, in_flight: usize, reads_a_write: usize) -> (f64, f64) {
    let mut returns: std::collections::BinaryHeap<std::cmp::Reverse<u64>> =
        (0..in_flight as u64).map(std::cmp::Reverse).collect();
    let (mut latency, mut begin, mut end, mut lines) = (0.0, 0u64, 0u64, 0u64);
    for i in 0..2 * READS {
        let Some(std::cmp::Reverse(now)) = returns.pop() else { break };
        // Picoseconds, so that order does not depend on rounding.
        let took = tier.read(now as f64 / 1e3, false);
        returns.push(std::cmp::Reverse(now + (took * 1e3) as u64));
        let writes = i % reads_a_write == reads_a_write - 1;
        if writes {
            tier.write(now as f64 / 1e3);
        }
        if i == READS {
            begin = now;
        }
        if i >= READS {
            lines += 1 + u64::from(writes);
            latency += took;
            end = now;
        }
    }
    let nanos = (end - begin) as f64 / 1e3;
    (latency / READS as f64, lines as f64 * 64.0 / nanos.max(1.0))
}

fn tier(change: impl FnOnce(&mut Machine)) -> Tier {
    let mut machine = machines::builtin("cxl").expect("built in");
    change(&mut machine);
    Tier::new(&machine.tiers[1])
}

/// Lines of 64 B, read and written in turn by as many as saturate Optane, which
/// moves 256 B for each.
fn mixed_optane() -> f64 {
    let machine = machines::builtin("optane-cascade-lake").expect("built in");
    mixed_loop(&mut Tier::new(&machine.tiers[1]), 256, 1).1
}

/// Write bandwidth of one Optane module by the number of threads that store 64 B
/// after 64 B, over that of one thread.
fn writers() -> Vec<Line> {
    let mut file = terrace_dram::presets::builtin("optane").expect("built in");
    file.channel.channels.value = 1;
    let with = |threads: u64| {
        let part = file.channel_capacity().get() / threads / 4096 * 4096;
        let writes = 80_000 / threads;
        let place = |thread: u64, i: u64| thread * part + i * 64 % part;
        terrace_dram::traffic::write_bandwidth(&file, threads, writes, 64, place).get()
    };
    let one = with(1);
    let line = |threads: u64, bound: f64, criterion| Line {
        what: format!("Optane: {threads} threads storing 64 B in order, over one"),
        unit: "",
        ours: with(threads) / one,
        reference: bound,
        criterion,
        kind: Reference::Hardware,
        source: "Yang et al., arXiv 1908.03583: a few writers saturate a module, many make its \
                 write-combining buffer give lines up half full"
            .to_owned(),
    };
    vec![line(4, 0.95, Criterion::AtLeast), line(64, 0.5, Criterion::AtMost)]
}

/// The comparison.
pub fn lines() -> Vec<Line> {
    const MLC: &str = "Intel MLC on Sapphire Rapids DDR5, logs in the CXLMemSim repository";
    const CARD: &str = "Intel, CacheLib on CXL (OCP wiki): 250 ns idle, 17.8 GB/s of reads";
    const MIXED: &str = "Intel, CacheLib on CXL (OCP wiki): 23.6 GB/s 3:1, 25.1 GB/s 2:1, 27.2 GB/s 1:1; \
                         the last is the machine file's";
    let line = |what: &str, unit, ours, reference, criterion, source: &str| Line {
        what: what.to_owned(),
        unit,
        ours,
        reference,
        criterion,
        kind: Reference::Hardware,
        source: source.to_owned(),
    };
    let near = Criterion::Within(0.10);
    // 370 ns at 28.4 GB/s are 164 lines in flight.
    let in_flight = (370.0 * 28.4 / 64.0_f64).round() as usize;
    let mut loaded = tier(|machine| {
        let memory = &mut machine.tiers[1];
        memory.read_latency.value = Nanos(106);
        memory.read_bandwidth.value = BytesPerSecond(28.6e9);
        memory.combined_bandwidth = None;
        memory.granularity.value = Bytes(64);
    });
    let (latency, traffic) = closed_loop(&mut loaded, in_flight);
    let one = closed_loop(&mut tier(|_| ()), 1);
    let (_, most) = closed_loop(&mut tier(|_| ()), 256);
    let mixed = |reads| mixed_loop(&mut tier(|_| ()), 256, reads).1;
    let (half, half_traffic) = closed_loop(&mut tier(|_| ()), (250.0 * 8.9 / 64.0) as usize);
    let mut lines = vec![
        line("DDR5, 164 lines in flight: latency", "ns", latency, 370.0, near, MLC),
        line("DDR5, 164 lines in flight: traffic", "GB/s", traffic, 28.4, near, MLC),
        line("CXL, one line in flight: latency", "ns", one.0, 250.0, near, CARD),
        line("CXL, 256 lines in flight: traffic", "GB/s", most, 17.8, near, CARD),
        line("CXL, three reads a write: traffic", "GB/s", mixed(3), 23.6, near, MIXED),
        line("CXL, two reads a write: traffic", "GB/s", mixed(2), 25.1, near, MIXED),
        line("CXL, a read a write: traffic", "GB/s", mixed(1), 27.2, near, MIXED),
        line("CXL, half its bandwidth: latency", "ns", half, 250.0, near, CARD),
        Line {
            unit: "GB/s",
            ..Line::formula(
                "Optane, a unit read for each written: traffic",
                mixed_optane(),
                512.0 / (256.0 / 39.4 + 256.0 / 13.9) / 4.0,
                Criterion::Within(0.05),
                "reads and writes take turns: a unit takes its size over its bandwidth",
            )
        },
        Line {
            unit: "GB/s",
            ..Line::formula(
                "CXL, half its bandwidth: traffic",
                half_traffic,
                (250.0_f64 * 8.9 / 64.0).floor() * 64.0 / 250.0,
                Criterion::Within(0.01),
                "Little's law: lines in flight over the latency",
            )
        },
    ];
    lines.extend(writers());
    lines
}
