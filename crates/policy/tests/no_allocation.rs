//! What runs while the program waits must not allocate: in the live world it
//! runs inside page faults of the program's own allocator.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{DRAM, Named, Random, Toy, page, sample};
use terrace_core::{
    Access, Bytes, Cycles, Done, FaultKind, Outcome, PageSize, Plan, RegionId, Telemetry,
};
use terrace_policy::{FirstTouch, Policy, PolicyName};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counting.
struct Counting;

// SAFETY: every call is handed to `System` unchanged; counting in a
// thread-local without a destructor neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract, and `pointer` is `System`'s.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// Faults, samples, ticks, pressure and outcomes on 4096 pages.
fn work(policy: &mut dyn Policy, telemetry: &mut Telemetry, plan: &mut Plan, random: &mut Random) {
    for _ in 0..64 {
        telemetry.now += terrace_core::Nanos::millis(10);
        for _ in 0..64 {
            let page = page(0, random.below(4096) as u32);
            let access = if random.below(2) == 0 { Access::Read } else { Access::Write };
            policy.fault(page, FaultKind::FirstTouch(access), telemetry);
            policy.samples(&[sample(page, access, random.below(30) as u16)]);
        }
        for round in 0..2 {
            plan.clear();
            if round == 0 {
                policy.tick(telemetry, plan);
            } else {
                policy.pressure(DRAM, Bytes::mib(16), telemetry, plan);
            }
            for proposal in plan.proposals() {
                let outcome = Outcome::Completed { cost: Cycles(1), moved: Bytes::mib(2) };
                policy.done(&Done { proposal: *proposal, outcome });
            }
        }
    }
    let range = terrace_core::PageRange {
        region: RegionId(0),
        start: terrace_core::PageNo(100),
        count: 1000,
    };
    policy.free(range, false);
}

fn check(mut policy: impl Policy) {
    let mut world = Toy::new(FirstTouch::new(), &[1024, 8192], true);
    let region = world.alloc(0, 4096, PageSize::Huge);
    policy.alloc(&region);
    let mut telemetry = world.telemetry();
    let mut plan = Plan::with_capacity(16_384);
    let mut random = Random(11);

    let count = allocations(|| work(&mut policy, &mut telemetry, &mut plan, &mut random));

    assert_eq!(count, 0, "{} allocates while the program waits", policy.name());
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn no_live_policy_allocates_once_regions_are_known() {
    for name in PolicyName::LIVE {
        check(Named::new(name));
    }
}
