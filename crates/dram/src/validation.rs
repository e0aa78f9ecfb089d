//! Ours beside formulas and published figures, from runs made then and there.

use core::fmt;

use serde::Serialize;

use crate::channel::Channel;
use crate::file::MemoryFile;
use crate::presets::builtin;
use crate::timing::DramCycles;
use crate::traffic::{Measured, StreamAndProbe, chase, poisson, saturate, write_bandwidth};

/// What ours is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reference {
    /// A formula that must hold.
    Formula,
    /// Another simulator's result.
    Simulator,
    /// A published measurement of hardware.
    Hardware,
    /// A measurement of this machine and its kernel, made in the same run.
    Here,
    /// A bound of our own.
    Ourselves,
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// What is compared.
    pub what: String,
    /// Its unit.
    pub unit: &'static str,
    /// Ours.
    pub ours: f64,
    /// The other's.
    pub reference: f64,
    /// Whose that is.
    pub kind: Reference,
    /// Where it comes from.
    pub source: &'static str,
    /// Largest difference that counts as agreement, as a share of the reference.
    pub tolerance: f64,
    /// Whether agreement checks the model's arithmetic only, and says nothing of a device.
    ///
    /// It does if the reference is a number that the model was given (or that such a number was
    /// derived from), is of the same runs as one, or is a count or an earlier output of the model
    /// itself.
    /// A formula by a rule that the model does not compute with (a JEDEC standard, queueing theory, a
    /// theorem on replacement) is a closed form, though its parameters are the model's: the model has
    /// to schedule, queue or replace rightly to come to it.
    pub arithmetic: bool,
}

impl Check {
    /// The difference, as a share of the reference.
    pub fn deviation(&self) -> f64 {
        (self.ours - self.reference) / self.reference
    }

    /// Whether ours is close enough.
    pub fn holds(&self) -> bool {
        self.deviation().abs() <= self.tolerance
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}  {:56} {:>9.3} {:>9.3} {:>7} {:>+6.1} % (±{:.0} %)  {}",
            match (self.holds(), self.arithmetic) {
                (false, _) => "FAILS     ",
                (true, true) => "arithmetic",
                (true, false) => "holds     ",
            },
            self.what,
            self.ours,
            self.reference,
            self.unit,
            self.deviation() * 100.0,
            self.tolerance * 100.0,
            self.source
        )
    }
}

const RAMULATOR: &str = "Ramulator 2.1 (c5b1c3a), its DDR4-2400R latency-throughput test";
const IZRAELEVITZ: &str = "Izraelevitz et al., arXiv 1903.05714";
const YANG: &str = "Yang et al., arXiv 1908.03583";

/// One point of a latency–throughput curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Reads among the stream's requests, in percent.
    pub read_percent: u64,
    /// Quarters of a cycle between requests of the stream.
    pub interval_quarters: u64,
    /// Traffic that was served, in GB/s.
    pub gb_per_s: f64,
    /// Mean latency of dependent random reads, in ns.
    pub latency_ns: f64,
    /// Requests that were served.
    pub requests: u64,
}

/// Rates of the stream, as in Ramulator's test of DDR4.
pub const INTERVALS: [u64; 28] = [
    10000, 5000, 2000, 1000, 300, 175, 125, 100, 75, 60, 50, 45, 40, 37, 35, 32, 30, 28, 26, 24,
    23, 22, 21, 20, 19, 18, 16, 1,
];
/// Shares of reads, in percent, as in Ramulator's test.
pub const READ_PERCENTS: [u64; 6] = [100, 90, 80, 70, 60, 50];

/// The latency–throughput curve of a memory without refresh: 168 points, as
/// Ramulator's test has them. `between` is called after each.
pub fn curve(file: &MemoryFile, probes: u64, mut between: impl FnMut()) -> Vec<CurvePoint> {
    let mut points = Vec::new();
    for read_percent in READ_PERCENTS {
        for interval_quarters in INTERVALS {
            let Measured { bandwidth, latency_ns, requests, .. } =
                point(file, read_percent, interval_quarters, probes);
            let gb_per_s = bandwidth.get() / 1e9;
            points.push(CurvePoint {
                read_percent,
                interval_quarters,
                gb_per_s,
                latency_ns,
                requests,
            });
            between();
        }
    }
    points
}

fn point(file: &MemoryFile, read_percent: u64, interval_quarters: u64, probes: u64) -> Measured {
    let pattern =
        StreamAndProbe { interval_quarters, read_percent, probes, warmup: 10_000, seed: 12345 };
    pattern.run(file, Channel::new(file).without_refresh())
}

/// Formulas and reference figures of the DDR4-2400 curve, beside what a model of
/// that memory measures. Tests give a model with a fault; the references stay.
pub fn ddr4_curve(model: &MemoryFile) -> Vec<Check> {
    let file = builtin("ddr4-2400").expect("built in");
    let probes = 4000;
    let simulator = |what: &str, ours: f64, reference: f64, unit: &'static str| Check {
        what: what.to_owned(),
        unit,
        ours,
        reference,
        kind: Reference::Simulator,
        source: RAMULATOR,
        tolerance: 0.05,
        arithmetic: false,
    };
    let times = DramCycles::new(file.dram.as_ref().expect("DRAM"), &file.channel);
    let period = file.channel.clock.value.nanos;
    let idle = point(model, 100, 10_000, probes);
    let first_data = idle.latency_ns - times.burst as f64 * period;
    let knee = point(model, 100, 18, probes);
    let full = point(model, 100, 16, probes);
    let mixed_knee = point(model, 50, 19, probes);
    let mixed_full = point(model, 50, 16, probes);
    let gb = |m: &Measured| m.bandwidth.get() / 1e9;
    let mut channel = Channel::new(model).without_refresh();
    let stream = saturate(model, &mut channel, 200_000, 0, |i| i * 64);
    vec![
        Check {
            what: "idle latency to the first data: tRP + tRCD + CL".into(),
            unit: "ns",
            ours: first_data,
            reference: (times.rp + times.rcd[0] + times.cl) as f64 * period,
            kind: Reference::Formula,
            source: "JESD79-4; every probe is a row conflict",
            tolerance: 0.05,
            // Only a model that closes, opens and reads a row, each as late as it must, is there.
            arithmetic: false,
        },
        simulator("idle latency to the last data", idle.latency_ns, 44.3, "ns"),
        Check {
            what: "streaming reads, no refresh: 64 B / tCCD_S".into(),
            unit: "GB/s",
            ours: gb(&stream),
            reference: 64.0 / (times.ccd_s as f64 * period),
            kind: Reference::Formula,
            source: "JESD79-4",
            tolerance: 0.02,
            // Only a model that takes groups of banks by turns and loses no cycle is there: within
            // a group a burst comes each tCCD_L.
            arithmetic: false,
        },
        simulator("100 % reads, below the knee: traffic", gb(&knee), 18.3, "GB/s"),
        simulator("100 % reads, below the knee: latency", knee.latency_ns, 50.0, "ns"),
        simulator("100 % reads, offered the peak: latency", full.latency_ns, 130.0, "ns"),
        simulator("50 % reads, loaded: traffic", gb(&mixed_knee), 16.8, "GB/s"),
        simulator("50 % reads, loaded: latency", mixed_knee.latency_ns, 100.0, "ns"),
        // On the wall, where latency grows without traffic: what is queued decides.
        Check {
            tolerance: 0.10,
            ..simulator("50 % reads, offered the peak: latency", mixed_full.latency_ns, 235.0, "ns")
        },
    ]
}

/// Queueing theory, Little's law, bandwidth roofs and the share of refresh.
///
/// `model` makes the memory that is measured of the one that is meant; tests give
/// one with a fault.
pub fn closed_forms(model: &dyn Fn(&MemoryFile) -> MemoryFile) -> Vec<Check> {
    let file = builtin("ddr4-2400").expect("built in");
    let modelled = model(&file);
    let period = file.channel.clock.value.nanos;
    let times = DramCycles::new(file.dram.as_ref().expect("DRAM"), &file.channel);
    let formula = |what: String, unit, ours, reference, source, tolerance| Check {
        what,
        unit,
        ours,
        reference,
        kind: Reference::Formula,
        source,
        tolerance,
        arithmetic: false,
    };
    let mut checks = Vec::new();
    // One bank, each request another row: a server that is busy for tRC.
    let service = (times.ras + times.rp) as f64 * period;
    let empty = (times.rp + times.rcd[0] + times.cl + times.burst) as f64 * period;
    for load in [0.1, 0.3, 0.5] {
        let interval = service / load;
        let channel = Channel::new(&modelled).without_refresh();
        let measured = poisson(&modelled, channel, 400_000, interval, true);
        let wait = load * service / (2.0 * (1.0 - load));
        checks.push(formula(
            format!("M/D/1: mean wait at one bank, load {load}"),
            "ns",
            measured.latency_ns - empty,
            wait,
            "Pollaczek-Khinchine, service time tRC",
            0.05,
        ));
        if load > 0.4 {
            checks.push(Check {
                // Both sides are counts of the model.
                arithmetic: true,
                ..formula(
                    "Little's law: requests in the system, counted".into(),
                    "",
                    measured.in_system,
                    measured.requests as f64 / measured.time_ns * measured.latency_ns,
                    "arrival rate x mean time in the system; holds for any model that counts",
                    0.01,
                )
            });
        }
    }
    for name in ["ddr4-2400", "ddr4-3200", "ddr5-4800", "hbm2"] {
        let file = builtin(name).expect("built in");
        let times = DramCycles::new(file.dram.as_ref().expect("DRAM"), &file.channel);
        let period = file.channel.clock.value.nanos;
        let burst = file.channel.burst_bytes.value.get();
        let peak = burst as f64 / (times.burst as f64 * period);
        // Closing rows, refreshing, opening the rows again.
        let away = (times.rtp + times.rp + times.rfc + times.rcd[0]) as f64 / times.refi as f64;
        let modelled = model(&file);
        let mut channel = Channel::new(&modelled);
        let measured = saturate(&modelled, &mut channel, 400_000, 0, |i| i * burst);
        checks.push(formula(
            format!("{name}: streaming reads of one channel under refresh"),
            "GB/s",
            measured.bandwidth.get() / 1e9,
            peak * (1.0 - away),
            "peak x (1 - (tRTP + tRP + tRFC + tRCD) / tREFI)",
            0.02,
        ));
        let refreshes = channel.stats().refreshes as f64;
        checks.push(Check {
            // A timer's period comes back; tRFC stands on both sides. What refresh costs, the
            // line above checks.
            arithmetic: true,
            ..formula(
                format!("{name}: share of time in refresh"),
                "%",
                refreshes * times.rfc as f64 * period / measured.time_ns * 100.0,
                times.rfc as f64 / times.refi as f64 * 100.0,
                "tRFC / tREFI, both from the memory file",
                0.02,
            )
        });
    }
    checks
}

/// The published shapes of Optane DC beside those of a model, usually the built-in
/// `optane`.
///
/// Six of the seven figures are those that the memory file's times, partitions and
/// granularity were derived from, and are marked as arithmetic.
pub fn optane(file: &MemoryFile) -> Vec<Check> {
    let capacity = file.channel_capacity().get() * u64::from(file.channel.channels.value);
    let hardware = |what: &str, unit, ours, reference, source, tolerance| Check {
        what: what.to_owned(),
        unit,
        ours,
        reference,
        kind: Reference::Hardware,
        source,
        tolerance,
        arithmetic: true,
    };
    let random = move |i: u64, size: u64| {
        let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8) % (capacity / size) * size
    };
    let random_ns = chase(file, 20_000, |i| random(i, 64));
    let sequential_ns = chase(file, 20_000, |i| i * 64);
    let module = {
        // One module: the whole traffic on channel 0's stripes.
        let mut one = file.clone();
        one.channel.channels.value = 1;
        one
    };
    let mut channel = Channel::new(&module);
    let read = saturate(&module, &mut channel, 100_000, 0, |i| i * 64).bandwidth.get() / 1e9;
    let write = |size: u64| {
        let blocks = module.channel_capacity().get() / size;
        let bandwidth = write_bandwidth(&module, 1, 40_000 * 64 / size.max(64), size, |_, i| {
            random(i, size) % (blocks * size) / size * size
        });
        bandwidth.get() / 1e9
    };
    let (write64, write256, write4k) = (write(64), write(256), write(4096));
    vec![
        hardware("Optane: random load of 64 B", "ns", random_ns, 305.0, IZRAELEVITZ, 0.05),
        hardware("Optane: sequential loads of 64 B", "ns", sequential_ns, 169.0, IZRAELEVITZ, 0.05),
        hardware(
            "Optane: random over sequential load",
            "",
            random_ns / sequential_ns,
            305.0 / 169.0,
            IZRAELEVITZ,
            0.05,
        ),
        hardware("Optane: sequential reads of one module", "GB/s", read, 6.6, IZRAELEVITZ, 0.05),
        hardware(
            "Optane: random 256 B writes of one module",
            "GB/s",
            write256,
            2.3,
            IZRAELEVITZ,
            0.10,
        ),
        Check {
            // No number of the file says how writes of 4 KiB fare.
            arithmetic: false,
            ..hardware(
                "Optane: 4 KiB over 256 B random writes: flat",
                "",
                write4k / write256,
                1.0,
                YANG,
                0.10,
            )
        },
        hardware(
            "Optane: 64 B over 256 B random writes: the knee",
            "",
            write64 / write256,
            0.25,
            YANG,
            0.30,
        ),
    ]
}

/// Everything.
pub fn all() -> Vec<Check> {
    let file = |name| builtin(name).expect("built in");
    let as_it_is = &MemoryFile::clone;
    [ddr4_curve(&file("ddr4-2400")), closed_forms(as_it_is), optane(&file("optane"))].concat()
}
