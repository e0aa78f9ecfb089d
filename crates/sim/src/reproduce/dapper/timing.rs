//! How fast a program is with its memory placed in one way or another: every access simulated.
//!
//! A processor of the node has its share of the last-level cache and of both memories'
//! bandwidth, as if all of them ran programs of the same kind. One program is generated once and
//! simulated under all placements side by side.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use serde::Serialize;
use terrace_core::{
    Bytes, BytesPerSecond, Done, FaultKind, Machine, Nanos, PageRange, PageRef, Plan, Region,
    Sample, Telemetry, TierId,
};
use terrace_policy::{Footprint, Needs, Policy};

use crate::analytic::config::SimPolicy;
use crate::error::SimError;
use crate::exact::{self, Batch, ExactConfig, ExactMachine, ExactReport, Source};
use crate::workload::observed::Program;

/// Which part of a program's memory lies near and which far, in the order of first touches.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Placement {
    /// Where a part ends, as a share of the memory (0 to 1), and whether it lies far.
    parts: Vec<(f64, bool)>,
}

impl Placement {
    /// All of it near, or all of it far.
    pub fn all(far: bool) -> Self {
        Self { parts: vec![(1.0, far)] }
    }

    /// From amounts in the order of first touches.
    pub fn of(amounts: &[(u64, bool)]) -> Self {
        let all: u64 = amounts.iter().map(|(amount, _)| amount).sum();
        let (mut sum, mut parts) = (0, Vec::<(f64, bool)>::new());
        for &(amount, far) in amounts {
            sum += amount;
            let end = sum as f64 / all.max(1) as f64;
            match parts.last_mut().filter(|(_, last)| *last == far) {
                Some(last) => last.0 = end,
                None => parts.push((end, far)),
            }
        }
        Self { parts }
    }

    /// The share of the memory that lies far, 0 to 1.
    pub fn far(&self) -> f64 {
        let (mut before, mut far) = (0.0, 0.0);
        for &(end, is_far) in &self.parts {
            far += if is_far { end - before } else { 0.0 };
            before = end;
        }
        far
    }

    fn is_far(&self, share: f64) -> bool {
        let part = self.parts.iter().find(|(end, _)| share < *end);
        part.or(self.parts.last()).is_some_and(|(_, far)| *far)
    }
}

/// Places each page where it was placed by somebody else.
struct Placed {
    placement: Placement,
    /// Pages that the program will touch.
    all: f64,
    touched: u64,
}

impl Policy for Placed {
    fn name(&self) -> &'static str {
        PLACED
    }
    fn needs(&self) -> Needs {
        Needs::default()
    }
    fn alloc(&mut self, _region: &Region) {}
    fn fault(&mut self, _page: PageRef, _kind: FaultKind, _telemetry: &Telemetry) -> TierId {
        let far = self.placement.is_far(self.touched as f64 / self.all);
        self.touched += 1;
        TierId(u8::from(far))
    }
    fn samples(&mut self, _samples: &[Sample]) {}
    fn free(&mut self, _range: PageRange, _whole: bool) {}
    fn tick(&mut self, _telemetry: &Telemetry, _plan: &mut Plan) {}
    fn pressure(&mut self, _tier: TierId, _bytes: Bytes, _now: &Telemetry, _plan: &mut Plan) {}
    fn done(&mut self, _done: &Done) {}
    fn footprint(&self) -> Footprint {
        Footprint::of(size_of::<Self>(), 0, 0)
    }
}

const PLACED: &str = "placed";

/// How fast a program was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timing {
    /// The share of the memory that lay far, 0 to 1.
    pub far: f64,
    /// Simulated time of what was measured.
    pub time: Nanos,
    /// Accesses that were measured.
    pub accesses: u64,
    /// Instructions that were measured.
    pub instructions: u64,
    /// Accesses that no cache answered, for a thousand instructions.
    pub misses_per_thousand: f64,
    /// The share of those that far memory answered, 0 to 1.
    pub far_misses: f64,
}

impl Timing {
    fn new(far: f64, report: &ExactReport) -> Self {
        let misses = report.llc.load_misses + report.llc.store_misses;
        Self {
            far,
            time: report.time,
            accesses: report.accesses,
            instructions: report.instructions,
            misses_per_thousand: misses as f64 * 1000.0 / report.instructions.max(1) as f64,
            far_misses: report.tiers[1].share,
        }
    }
}

/// The machine of one of so many busy processors of a node: near and far memory, each large
/// enough, and its share of what they have in common.
pub fn seat(machine: &Machine, processors: u32, memory: Bytes) -> Machine {
    let mut seat = machine.clone();
    // Near DRAM and near slow memory are alike on the paper's machine, and so are the far ones.
    seat.tiers = vec![machine.tiers[0].clone(), machine.tiers[3].clone()];
    seat.numa = None;
    for tier in &mut seat.tiers {
        // Page tables and what is rounded up come on top.
        tier.capacity.value = memory + memory / 8 + Bytes::mib(64);
        let share = |rate: &mut BytesPerSecond| rate.0 /= f64::from(processors);
        share(&mut tier.read_bandwidth.value);
        share(&mut tier.write_bandwidth.value);
        if let Some(combined) = &mut tier.combined_bandwidth {
            share(&mut combined.value);
        }
    }
    seat.cpu.llc.value = seat.cpu.llc.value / u64::from(processors);
    seat
}

/// Batches of a program that somebody else generates.
struct Follower {
    what: String,
    batches: Receiver<Arc<Batch>>,
}

impl Source for Follower {
    fn describe(&self) -> String {
        self.what.clone()
    }
    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        let Ok(next) = self.batches.recv() else {
            batch.clear();
            return Ok(false);
        };
        batch.clone_from(&next);
        Ok(true)
    }
}

/// What a program maps, and the accesses of its initialisation.
pub struct Shape {
    /// The memory that it uses.
    pub memory: Bytes,
    /// Accesses before anything is measured.
    pub initial: u64,
}

/// Simulates a program under several placements.
///
/// # Errors
///
/// Where the machine cannot be simulated.
pub fn time(
    machine: &Machine,
    cores: usize,
    mut program: Box<dyn Source>,
    shape: &Shape,
    placements: &[Placement],
    seed: u64,
) -> Result<Vec<Timing>, SimError> {
    /// Batches that one of the simulations may be ahead of the others.
    const AHEAD: usize = 16;
    let what = program.describe();
    let one = |placement: &Placement, batches: Receiver<Arc<Batch>>| {
        let config = ExactConfig {
            cores,
            seed,
            warm_up: shape.initial,
            ..ExactConfig::new(machine.clone(), SimPolicy::Custom(PLACED))
        };
        let pages = shape.memory.get().div_ceil(4096).max(1) as f64;
        let placed = Placed { placement: placement.clone(), all: pages, touched: 0 };
        let mut full = ExactMachine::with_policy(&config, Some(Box::new(placed)))?;
        let mut source = Follower { what: what.clone(), batches };
        let report = exact::setup::run(&mut full, &config, &mut source, &mut |_, _| ())?;
        Ok(Timing::new(placement.far(), &report))
    };
    std::thread::scope(|scope| {
        let mut senders = Vec::new();
        let mut threads = Vec::new();
        for placement in placements {
            let (sender, receiver) = sync_channel(AHEAD);
            senders.push(sender);
            threads.push(scope.spawn(move || one(placement, receiver)));
        }
        loop {
            let mut batch = Batch::default();
            if !program.next(&mut batch)? {
                break;
            }
            let batch = Arc::new(batch);
            // One that has failed says so below.
            senders.retain(|sender| sender.send(Arc::clone(&batch)).is_ok());
            if senders.is_empty() {
                break;
            }
        }
        drop(senders);
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// The memory of a program that is generated here.
pub fn shape(program: &Program) -> Shape {
    Shape { memory: program.footprint(), initial: program.initial() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines;
    use crate::workload::catalog::{ProgramName, ProgramSpec};

    fn times(processors: u32, name: ProgramName, placements: &[Placement]) -> Vec<Timing> {
        let machine = machines::builtin("four-node").expect("built in");
        let spec = ProgramSpec::new(name, Bytes::mib(64), 400_000);
        let program = spec.build().expect("good parameters");
        let shape = shape(&program);
        let seat = seat(&machine, processors, shape.memory);
        time(&seat, 1, Box::new(program), &shape, placements, 1).expect("it can be simulated")
    }

    /// A chase waits for each access: its time is a mixture of two latencies.
    #[test]
    fn a_chase_takes_the_latency_of_where_its_memory_lies() {
        let half = Placement::of(&[(1, false), (1, true)]);
        let both = [Placement::all(false), half, Placement::all(true)];
        let times = times(1, ProgramName::Chase, &both);
        let each = |timing: &Timing| timing.time.as_f64() / timing.accesses as f64;
        let [near, half, far] = [0, 1, 2].map(|i| each(&times[i]));
        // The line's latency, walks of the page table (near always), and the caches on the way.
        assert!((far - near - 58.0).abs() < 6.0, "{near} and {far} ns for 136 and 194");
        let share = times[1].far_misses;
        assert!((half - (near + share * (far - near))).abs() < 3.0, "{near}, {half}, {far}");
        // Of the pages half are far, of the chase's steps within the time about as many.
        assert!((0.4..0.6).contains(&share), "{share}");
        assert!(times[0].far_misses < 1e-9);
        assert!(times[2].far_misses > 0.99);
    }

    /// One program on a seat is as fast as each of several on the whole machine.
    #[test]
    fn a_seat_stands_for_a_processor_among_busy_ones() {
        let machine = machines::builtin("four-node").expect("built in");
        for far in [false, true] {
            let one = &times(4, ProgramName::Gups, &[Placement::all(far)])[0];
            let spec = ProgramSpec {
                threads: 4,
                hot_percent: 90,
                ..ProgramSpec::new(ProgramName::Gups, Bytes::mib(256), 1_600_000)
            };
            let program = spec.build().expect("good parameters");
            let shape = shape(&program);
            let mut whole = seat(&machine, 1, shape.memory);
            // As much of it for each as a seat of four has.
            whole.cpu.llc.value = machine.cpu.llc.value;
            let four = time(&whole, 4, Box::new(program), &shape, &[Placement::all(far)], 1);
            let four = &four.expect("it can be simulated")[0];
            let speed =
                |timing: &Timing, of: f64| timing.accesses as f64 / of / timing.time.as_f64();
            let ratio = speed(one, 1.0) / speed(four, 4.0);
            assert!((0.85..1.15).contains(&ratio), "far {far}: {ratio}");
        }
    }

    #[test]
    fn placements_are_shares_in_the_order_of_touches() {
        let placement = Placement::of(&[(10, false), (20, false), (30, true), (40, false)]);
        assert_eq!(placement.parts.len(), 3);
        assert!((placement.far() - 0.3).abs() < 1e-12);
        assert!(!placement.is_far(0.29) && placement.is_far(0.3) && !placement.is_far(0.61));
        assert!(!placement.is_far(1.0));
    }
}
