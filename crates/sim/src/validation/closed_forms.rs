//! Closed forms that every simulation must fulfil.

use terrace_core::{Bytes, PageSize, Replacement};
use terrace_dram::MemoryFile;
use terrace_dram::validation as memory;

use super::{Criterion, Line, Model};
use crate::analytic::config::SimPolicy;
use crate::exact::sets::Sets;
use crate::exact::{Batch, ExactConfig, Source, Stream, StreamKind, setup};
use crate::machines;
use crate::stack_distance::{StackDistances, belady_misses};

/// Page references of a stream, without repetitions.
fn pages(kind: StreamKind, accesses: u64, bytes: u64) -> Vec<u64> {
    let mut stream = Stream::new(kind, accesses, bytes);
    let (mut batch, mut pages) = (Batch::default(), Vec::new());
    while stream.next(&mut batch).expect("a generator has no input") {
        pages.extend(batch.accesses.iter().map(|a| a.address() >> PageSize::Base.shift()));
    }
    pages.dedup();
    pages
}

/// Misses of a fully associative array.
fn simulated(pages: &[u64], ways: u32, replacement: Replacement) -> u64 {
    let mut array = Sets::new(1, ways, replacement);
    let miss = |page: &&u64| {
        let miss = !array.access(**page, false);
        if miss {
            array.insert(**page, false);
        }
        miss
    };
    pages.iter().filter(miss).count() as u64
}

/// Stack distances against simulations of each size, and Belady's bound. What is
/// simulated as LRU is `lru`, which is another one only in a test.
fn replacement(lru: Replacement) -> Vec<Line> {
    let (mut unequal, mut below, mut compared) = (0u64, 0u64, 0u64);
    for kind in [StreamKind::Gups, StreamKind::Mix, StreamKind::Sequential] {
        let pages = pages(kind, 40_000, 8 << 20);
        let mut distances = StackDistances::new();
        for &page in &pages {
            distances.reference(page);
        }
        for ways in 1..=16 {
            let lru = simulated(&pages, ways, lru);
            unequal += u64::from(distances.misses(u64::from(ways)) != lru);
            let best = belady_misses(&pages, ways as usize);
            let all =
                [Replacement::Lru, Replacement::Fifo, Replacement::Random, Replacement::Srrip];
            for replacement in all {
                compared += 1;
                below += u64::from(simulated(&pages, ways, replacement) < best);
            }
        }
    }
    vec![
        Line::formula(
            Model::Caches,
            "stack distances: sizes whose misses differ from a simulation, of 48",
            unequal as f64,
            0.0,
            Criterion::AtMost,
            "Mattson et al., 1970: one pass gives LRU's misses for every size",
        ),
        Line::formula(
            Model::Caches,
            &format!("replacements that miss less than the future allows, of {compared}"),
            below as f64,
            0.0,
            Criterion::AtMost,
            "Belady, 1966: none does, LRU among them",
        ),
    ]
}

/// A chase through memory: what a load takes when nothing overlaps. One number of the machine
/// file comes back, with nothing between that could be scheduled wrongly: arithmetic only.
fn latency() -> Line {
    let mut machine = machines::builtin("cxl").expect("built in");
    machine.cpu.llc.value = Bytes::mib(1);
    if let Some(detail) = &mut machine.detail {
        detail.llc.ways.value = 16;
        detail.l2 = None;
    }
    let idle = machine.tiers[1].read_latency.value.as_f64();
    let mut config = ExactConfig::new(machine, SimPolicy::AllSlow);
    // Huge pages: all translations fit, so that no walk adds to a miss.
    config.page_size = PageSize::Huge;
    config.warm_up = 1 << 20;
    let mut stream = Stream::new(StreamKind::Chase, 3 << 20, 64 << 20);
    let report = setup::simulate(&config, &mut stream, &mut |_, _| ()).expect("a good machine");
    let line = Line::formula(
        Model::Tiers,
        "pointer chase in CXL memory, huge pages: time of a load",
        report.time.as_f64() / report.accesses as f64,
        idle,
        Criterion::Within(0.05),
        "idle latency of the machine file; nothing overlaps",
    );
    Line { unit: "ns", ..line.arithmetic_only() }
}

/// The comparison: `model` makes the memory that is measured of the one that is
/// meant, `lru` is what is simulated as LRU. Tests give faulty ones.
pub fn lines(model: &dyn Fn(&MemoryFile) -> MemoryFile, lru: Replacement) -> Vec<Line> {
    let mut lines: Vec<Line> = memory::closed_forms(model).into_iter().map(Line::from).collect();
    lines.extend(replacement(lru));
    lines.push(latency());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::{State, Tally};

    #[test]
    fn closed_forms_hold() {
        let lines = lines(&MemoryFile::clone, Replacement::Lru);
        assert_eq!(Tally::of(&lines).fails, 0, "{lines:#?}");
    }

    /// Stack distances are LRU's. (`crates/dram/tests/validation.rs` has faults of the
    /// memory.)
    #[test]
    fn a_replacement_that_is_not_lru_fails() {
        assert_eq!(replacement(Replacement::Fifo)[0].state(), State::Fails);
    }
}
