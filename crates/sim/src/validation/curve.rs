//! The latency-throughput curve of DDR4-2400, and the time that it takes.

use std::time::Duration;

use terrace_dram::MemoryFile;
use terrace_dram::validation as memory;

use super::{Criterion, Line, Model, Reference};

/// The comparison, of a model of DDR4-2400.
pub fn lines(model: &MemoryFile) -> Vec<Line> {
    let begun = processor_time();
    let points = memory::curve(model, 4000);
    let took = processor_time().saturating_sub(begun).as_secs_f64();
    let mut lines: Vec<Line> = memory::ddr4_curve(model).into_iter().map(Line::from).collect();
    lines.push(Line {
        what: format!("processor time of the curve's {} points", points.len()),
        unit: "s",
        ours: took,
        reference: 3.0,
        criterion: Criterion::AtMost,
        kind: Reference::Ourselves,
        model: Model::Commands,
        arithmetic: false,
        source: "our own bound; Ramulator 2.1 takes 70 s".to_owned(),
    });
    lines
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
