//! The latency-throughput curve of DDR4-2400, and the time that it takes.
//!
//! The time is held against that of a plain queue of events in the same run: what it takes in
//! seconds says more about the machine than about the model.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::time::Duration;

use rand_xoshiro::rand_core::SeedableRng;
use terrace_clocks::thread_time;
use terrace_dram::MemoryFile;
use terrace_dram::validation as memory;

use super::{Criterion, Line, Model, Reference};
use crate::workload::SimRng;
use crate::workload::updates::below;

/// The most that a request of the model may take, in turns of a queue of events. Our own bound:
/// half more than the most that was measured (12.4 to 17.6 beside builds, Intel Xeon at 2.1 GHz,
/// 2026-11-28).
const TURNS_A_REQUEST: f64 = 26.0;

/// Events that wait in the queue: as many as a memory channel with its requests, banks and buses
/// would have.
const EVENTS: usize = 64;

/// Turns of the queue that are timed after each point of the curve: a tenth of a second for
/// all, at the same moments, so that what slows the one down slows the other.
const TURNS: u32 = 25_000;

/// The comparison, of a model of DDR4-2400.
pub fn lines(model: &MemoryFile) -> Vec<Line> {
    let begun = thread_time();
    let mut queue = Queue::new();
    let mut turns = Duration::ZERO;
    let points = memory::curve(model, 4000, || turns += queue.time_of_turns());
    let took = thread_time().saturating_sub(begun + turns);
    let turn = turns.as_secs_f64() / (f64::from(TURNS) * points.len() as f64);
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

/// A queue of events: what a simulator that steps from event to event does at the least.
struct Queue {
    random: SimRng,
    events: BinaryHeap<Reverse<u64>>,
}

impl Queue {
    fn new() -> Self {
        Self { random: SimRng::seed_from_u64(1), events: (0..EVENTS as u64).map(Reverse).collect() }
    }

    /// What [`TURNS`] turns take: the first event leaves, and another comes later.
    fn time_of_turns(&mut self) -> Duration {
        let begun = thread_time();
        for _ in 0..TURNS {
            let Reverse(now) = self.events.pop().expect("as many come as leave");
            self.events.push(Reverse(now + 1 + below(&mut self.random, 1000)));
        }
        black_box(&self.events);
        thread_time().saturating_sub(begun)
    }
}
