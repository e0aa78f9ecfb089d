//! The economist runs while the program waits: it must not allocate.
#![allow(unsafe_code)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{demote, exchange, heat, optane, optane_telemetry, page, promote};
use terrace_core::{
    Access, Bytes, Cycles, Done, OpId, Outcome, PageNo, PageRange, RegionId, Sample, SampleSource,
};
use terrace_economics::{Economist, Mode};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: hands everything to the system's allocator; the counter is a plain
// thread-local without a destructor, which allocates nothing itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's obligations are ours.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are ours.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn nothing_that_runs_during_a_plan_allocates() {
    for mode in [Mode::Off, Mode::Shadow, Mode::Enforce] {
        let mut economist = Economist::new(mode, optane());
        let mut telemetry = optane_telemetry();
        let samples: Vec<_> = (0..64)
            .map(|number| Sample {
                page: page(number),
                access: Access::Read,
                source: SampleSource::Pmu,
                weight: 1,
            })
            .collect();
        let counted = allocations(|| {
            for round in 0..5_000u64 {
                telemetry.now += terrace_core::Nanos::millis(10);
                let hot = heat(40_000.0, 4_000.0, 9);
                for (i, mut proposal) in
                    [promote(hot), demote(heat(0.0, 0.0, 0)), exchange(hot, heat(1.0, 0.0, 1))]
                        .into_iter()
                        .enumerate()
                {
                    proposal.op = OpId(round * 3 + i as u64);
                    economist.survey(&[proposal], &telemetry);
                    let decision = economist.decide(&proposal, &telemetry);
                    if decision.passes {
                        let outcome =
                            Outcome::Completed { cost: Cycles(1_000_000), moved: Bytes::mib(2) };
                        economist.settle(&Done { proposal, outcome }, &telemetry);
                    }
                }
                economist.observe(&samples);
                let range = PageRange { region: RegionId(0), start: PageNo(3), count: 3 };
                economist.forget(range);
            }
        });
        assert_eq!(counted, 0, "{mode:?}");
    }
}
