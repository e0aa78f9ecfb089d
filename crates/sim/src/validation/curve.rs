//! The latency-throughput curve of DDR4-2400, and the time that it takes.
//!
//! The time is held against that of a plain queue of events in the same run: what it takes in
//! seconds says more about the machine than about the model.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Duration;

use rand_xoshiro::rand_core::SeedableRng;
use terrace_dram::MemoryFile;
use terrace_dram::validation as memory;

use super::{Criterion, Line, Model, Reference};
use crate::workload::SimRng;
use crate::workload::updates::below;

/// The most that a request of the model may take, in turns of a queue of events. Our own bound:
/// half more than was measured (13.2, Intel Xeon at 2.1 GHz, 2026-11-28).
const TURNS_A_REQUEST: f64 = 20.0;

/// Events that wait in the queue: as many as a memory channel with its requests, banks and buses
/// would have.
const EVENTS: usize = 64;

/// Turns of the queue that are timed, before the curve and again after it.
const TURNS: u32 = 2_000_000;

/// The comparison, of a model of DDR4-2400.
pub fn lines(model: &MemoryFile) -> Vec<Line> {
    let before = time_of_turns();
    let begun = processor_time();
    let points = memory::curve(model, 4000);
    let took = processor_time().saturating_sub(begun);
    let turn = (before + time_of_turns()).as_secs_f64() / f64::from(2 * TURNS);
    let requests: u64 = points.iter().map(|point| point.requests).sum();
    let request = took.as_secs_f64() / requests as f64;
    let mut lines: Vec<Line> = memory::ddr4_curve(model).into_iter().map(Line::from).collect();
    lines.push(Line {
        what: format!("processor time of a request, of {} points of the curve", points.len()),
        unit: "turns",
        ours: request / turn,
        reference: TURNS_A_REQUEST,
        criterion: Criterion::AtMost,
        kind: Reference::Ourselves,
        model: Model::Commands,
        arithmetic: false,
        source: format!(
            "our own bound, in turns of a queue of {EVENTS} events in this run ({:.0} ns each); \
             the curve took {:.1} s, Ramulator 2.1 takes 70 s",
            turn * 1e9,
            took.as_secs_f64(),
        ),
    });
    lines
}

/// What [`TURNS`] turns of a queue take: the first event leaves, and another comes later.
fn time_of_turns() -> Duration {
    let mut random = SimRng::seed_from_u64(1);
    let mut queue: BinaryHeap<Reverse<u64>> = (0..EVENTS as u64).map(Reverse).collect();
    let begun = processor_time();
    for _ in 0..TURNS {
        let Reverse(now) = queue.pop().expect("as many come as leave");
        queue.push(Reverse(now + 1 + below(&mut random, 1000)));
    }
    black_box(&queue);
    processor_time().saturating_sub(begun)
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
