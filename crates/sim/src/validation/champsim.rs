//! ChampSim's counters for the synthetic mix, beside ours.
//!
//! The reference was measured with ChampSim (2ff25011), its default
//! configuration without prefetchers, and 500 000 instructions of a trace of the
//! same distribution: 90 % of the accesses in 16 KiB, 8 % in 1 MiB, 2 % in 1 GiB,
//! two accesses in seven instructions. The random numbers differ, so counters
//! differ by their spread (about 1 %) at least.

use terrace_core::{Bytes, Inclusion, Machine};

use super::{Criterion, Line, Reference};
use crate::config::SimPolicy;
use crate::error::SimError;
use crate::full::{FullConfig, FullReport, Stream, StreamKind, setup};
use crate::machines;

/// Instructions of the reference.
const INSTRUCTIONS: u64 = 500_000;
const SOURCE: &str = "ChampSim 2ff25011, default caches, no prefetch, the same distribution";
const MERGES: &str = "its counters include requests that find their line on its way, and are not taken apart by kind";

/// `ChampSim`'s default geometry on one of our machines.
pub fn machine() -> Machine {
    let mut machine = machines::builtin("cxl").expect("built in");
    machine.cpu.llc.value = Bytes::mib(2);
    if let Some(detail) = &mut machine.detail {
        (detail.l1.size.value, detail.l1.ways.value) = (Bytes::kib(48), 12);
        if let Some(l2) = &mut detail.l2 {
            (l2.size.value, l2.ways.value) = (Bytes::kib(512), 8);
        }
        (detail.llc.ways.value, detail.llc.inclusion) = (16, Inclusion::NonInclusive);
        (detail.dtlb_4k.entries.value, detail.dtlb_4k.ways.value) = (64, 4);
        (detail.stlb.entries.value, detail.stlb.ways.value) = (1536, 12);
        (detail.walk_pde.entries.value, detail.walk_pde.ways.value) = (32, 8);
        (detail.walk_pdpte.entries.value, detail.walk_pdpte.ways.value) = (8, 4);
        (detail.walk_pml4e.entries.value, detail.walk_pml4e.ways.value) = (4, 4);
    }
    machine
}

/// The mix.
pub fn stream() -> Stream {
    Stream::new(StreamKind::Mix, INSTRUCTIONS * 2 / 7, 1 << 30)
}

/// Runs the mix.
pub fn run() -> Result<FullReport, SimError> {
    let config = FullConfig::new(machine(), SimPolicy::AllDram);
    setup::simulate(&config, &mut stream(), &mut |_, _| ())
}

/// Lines of a memory that so many random accesses touch.
fn touched(lines: f64, accesses: f64) -> f64 {
    lines * (1.0 - (-accesses / lines).exp())
}

/// The comparison.
pub fn lines() -> Result<Vec<Line>, SimError> {
    let report = run()?;
    let theirs = |what: &str, ours: u64, reference: f64, criterion| Line {
        what: what.to_owned(),
        unit: "",
        ours: ours as f64,
        reference,
        criterion,
        kind: Reference::Simulator,
        source: SOURCE.to_owned(),
    };
    let close = Criterion::Within(0.05);
    let (l1, l2, llc) = (&report.l1, &report.l2, &report.llc);
    let accesses = (INSTRUCTIONS * 2 / 7) as f64;
    let distinct = touched((16u64 << 10) as f64 / 64.0, 0.9 * accesses)
        + touched((1u64 << 20) as f64 / 64.0, 0.08 * accesses)
        + touched((1u64 << 30) as f64 / 64.0, 0.02 * accesses);
    Ok(vec![
        theirs("mix: look-ups in the second TLB", report.tlb.first_misses, 12_035.0, close),
        theirs("mix: page walks", report.tlb.walks, 3_106.0, close),
        theirs(
            "mix: L1D accesses, walks included",
            l1.loads + l1.stores + l1.walk_reads,
            149_012.0,
            close,
        ),
        theirs(
            "mix: L1D misses, walks included",
            l1.load_misses + l1.store_misses + l1.walk_misses,
            23_590.0,
            Criterion::Explained(MERGES),
        ),
        theirs(
            "mix: LLC accesses, walks and write-backs included",
            llc.loads + llc.stores + llc.walk_reads + l2.write_backs,
            22_585.0,
            Criterion::Explained(MERGES),
        ),
        theirs(
            "mix: LLC misses, walks included",
            llc.load_misses + llc.store_misses + llc.walk_misses,
            17_644.0,
            Criterion::Explained(MERGES),
        ),
        Line::formula(
            "mix: LLC misses without walks",
            (llc.load_misses + llc.store_misses) as f64,
            distinct,
            Criterion::Within(0.03),
            "distinct lines drawn: all fit into 2 MiB, so that each misses once",
        ),
    ])
}
