//! Published shapes: Optane by its commands; CXL, DDR5 and mixed traffic as tiers.
//!
//! Latency under load beside measured machines.
//!
//! A closed system: a number of lines in flight, each read again when it has
//! come, as load generators do. The measured point gives that number by Little's
//! law; what the model makes of it is compared.

use terrace_core::{Bytes, BytesPerSecond, Machine, Nanos};
use terrace_dram::MemoryFile;
use terrace_dram::validation as memory;

use super::{Criterion, Known, Line, Model, Reference};
use crate::exact::tiers::Tier;
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
        let took = tier.read(now as f64 / 1e3, 0, false);
        returns.push(std::cmp::Reverse(now + (took * 1e3) as u64));
        let writes = i % reads_a_write == reads_a_write - 1;
        if writes {
            tier.write(now as f64 / 1e3, 0);
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

/// The slower tier of a machine.
fn tier(machine: &Machine, change: impl FnOnce(&mut Machine)) -> Tier {
    let mut machine = machine.clone();
    change(&mut machine);
    Tier::new(&machine.tiers[1])
}

/// Lines of 64 B, read and written in turn by as many as saturate Optane, which
/// moves 256 B for each.
fn mixed_optane() -> f64 {
    let machine = machines::builtin("optane-cascade-lake").expect("built in");
    mixed_loop(&mut Tier::new(&machine.tiers[1]), 256, 1).1
}

/// 64 threads that all begin in one partition of a module.
const IN_STEP: Known = Known {
    ours: 0.066,
    within: 0.10,
    cause: "the threads begin at one of the module's four partitions and go on in step, so that \
            all of them wait for one partition at a time; begun 256 B apart they have the quarter \
            that writing 256 B for 64 leaves (the line above). Real threads drift apart",
};

/// Write bandwidth of one Optane module by the number of threads that store 64 B
/// after 64 B, over that of one thread.
fn writers(optane: &MemoryFile) -> Vec<Line> {
    const YANG: &str = "Yang et al., arXiv 1908.03583: a few writers saturate a module, many make \
                        its write-combining buffer give lines up half full";
    let mut file = optane.clone();
    file.channel.channels.value = 1;
    // Each thread begins so many bytes further on in its part than the one before.
    let with = |threads: u64, apart: u64| {
        let part = file.channel_capacity().get() / threads / 4096 * 4096;
        let writes = 80_000 / threads;
        let place = |thread: u64, i: u64| thread * part + (i * 64 + thread * apart) % part;
        terrace_dram::traffic::write_bandwidth(&file, threads, writes, 64, place).get()
    };
    let one = with(1, 0);
    let line = |what: &str, ours: f64, reference, criterion, kind, source: &str| Line {
        what: format!("Optane: {what} storing 64 B in order, over one"),
        unit: "",
        ours: ours / one,
        reference,
        criterion,
        kind,
        model: Model::Commands,
        arithmetic: false,
        source: source.to_owned(),
    };
    let (at_least, at_most) = (Criterion::AtLeast, Criterion::AtMost);
    let (hardware, formula) = (Reference::Hardware, Reference::Formula);
    let worst = "a line of 256 B written for each 64 B: a quarter is left at worst";
    vec![
        line("4 threads", with(4, 0), 0.95, at_least, hardware, YANG),
        line("64 threads, 256 B apart,", with(64, 256), 0.5, at_most, hardware, YANG),
        line("64 threads in step", with(64, 0), 0.25, Criterion::Differs(IN_STEP), formula, worst),
    ]
}

/// The comparison: `cxl` and `optane` are usually the machine and the memory of these
/// names; tests give faulty ones.
pub fn lines(cxl: &Machine, optane: &MemoryFile) -> Vec<Line> {
    let mut lines: Vec<Line> = memory::optane(optane).into_iter().map(Line::from).collect();
    lines.extend(under_load(cxl));
    lines.extend(mixed(cxl));
    lines.extend(writers(optane));
    lines
}

const CARD: &str = "Intel, CacheLib on CXL (OCP wiki): 250 ns idle, 17.8 GB/s of reads; both are \
                    the machine file's";

fn measured(what: &str, unit: &'static str, ours: f64, reference: f64, source: &str) -> Line {
    Line {
        what: what.to_owned(),
        unit,
        ours,
        reference,
        criterion: Criterion::Within(0.10),
        kind: Reference::Hardware,
        model: Model::Tiers,
        arithmetic: false,
        source: source.to_owned(),
    }
}

/// Latency and traffic of reads. All of these return what the machine file says, or
/// what Little's law makes of it: near the roof latency is lines in flight over
/// bandwidth, whatever a device does. So all of them check arithmetic only.
fn under_load(cxl: &Machine) -> Vec<Line> {
    const MLC: &str = "Intel MLC on Sapphire Rapids DDR5, logs in the CXLMemSim repository; lines \
                       in flight and bandwidth were taken from them";
    // 370 ns at 28.4 GB/s are 164 lines in flight.
    let in_flight = (370.0 * 28.4 / 64.0_f64).round() as usize;
    let mut loaded = tier(cxl, |machine| {
        let memory = &mut machine.tiers[1];
        memory.read_latency.value = Nanos(106);
        memory.read_bandwidth.value = BytesPerSecond(28.6e9);
        memory.combined_bandwidth = None;
        memory.granularity.value = Bytes(64);
    });
    let (latency, traffic) = closed_loop(&mut loaded, in_flight);
    let one = closed_loop(&mut tier(cxl, |_| ()), 1);
    let (_, most) = closed_loop(&mut tier(cxl, |_| ()), 256);
    let (half, half_traffic) = closed_loop(&mut tier(cxl, |_| ()), (250.0 * 8.9 / 64.0) as usize);
    let little = Line::formula(
        Model::Tiers,
        "CXL, half its bandwidth: traffic",
        half_traffic,
        (250.0_f64 * 8.9 / 64.0).floor() * 64.0 / 250.0,
        Criterion::Within(0.01),
        "Little's law: lines in flight over the latency",
    );
    [
        measured("DDR5, 164 lines in flight: latency", "ns", latency, 370.0, MLC),
        measured("DDR5, 164 lines in flight: traffic", "GB/s", traffic, 28.4, MLC),
        measured("CXL, one line in flight: latency", "ns", one.0, 250.0, CARD),
        measured("CXL, 256 lines in flight: traffic", "GB/s", most, 17.8, CARD),
        measured("CXL, half its bandwidth: latency", "ns", half, 250.0, CARD),
        Line { unit: "GB/s", ..little },
    ]
    .map(Line::arithmetic_only)
    .into()
}

/// Reads and writes together over one link, and on one device. The machine file has
/// reads alone and the 1:1 mix; the mixes between are in no file, and were measured in
/// runs of their own. Optane's row is arithmetic: that reads and writes take turns is how a
/// tier computes.
fn mixed(cxl: &Machine) -> Vec<Line> {
    const MIXED: &str = "Intel, CacheLib on CXL (OCP wiki): 23.6 GB/s 3:1, 25.1 GB/s 2:1, 27.2 GB/s \
                         1:1; the last is the machine file's";
    let mixed = |reads| mixed_loop(&mut tier(cxl, |_| ()), 256, reads).1;
    let optane = Line::formula(
        Model::Tiers,
        "Optane, a unit read for each written: traffic",
        mixed_optane(),
        512.0 / (256.0 / 39.4 + 256.0 / 13.9) / 4.0,
        Criterion::Within(0.05),
        "reads and writes take turns: a unit takes its size over its bandwidth",
    );
    vec![
        measured("CXL, three reads a write: traffic", "GB/s", mixed(3), 23.6, MIXED),
        measured("CXL, two reads a write: traffic", "GB/s", mixed(2), 25.1, MIXED),
        measured("CXL, a read a write: traffic", "GB/s", mixed(1), 27.2, MIXED).arithmetic_only(),
        Line { unit: "GB/s", ..optane }.arithmetic_only(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::Tally;

    fn cxl() -> Machine {
        machines::builtin("cxl").expect("built in")
    }

    #[test]
    fn published_shapes_hold_and_checks_of_arithmetic_are_told_apart() {
        let optane = terrace_dram::presets::builtin("optane").expect("built in");
        let lines = lines(&cxl(), &optane);
        let tally = Tally::of(&lines);
        assert_eq!((tally.fails, tally.differs, tally.arithmetic), (0, 1, 14), "{lines:#?}");
    }

    /// A link of 27.2 GB/s that carries reads beside writes has passed here before.
    #[test]
    fn a_link_that_carries_both_directions_at_their_full_rate_fails() {
        let mut faulty = cxl();
        faulty.tiers[1].combined_bandwidth.as_mut().expect("a link").value = BytesPerSecond(35.6e9);
        assert!(Tally::of(&mixed(&faulty)).fails > 0);
    }

    #[test]
    fn a_module_without_its_combining_buffer_fails() {
        let mut faulty = terrace_dram::presets::builtin("optane").expect("built in");
        faulty.nvm.as_mut().expect("modules").write_combining.value = 0;
        assert!(Tally::of(&writers(&faulty)).fails > 0);
    }
}
