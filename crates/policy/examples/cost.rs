//! What HeMem costs at the paper's scale: 512 GiB in 2 MiB pages, 192 GiB of
//! them in DRAM.
//!
//! ```text
//! cargo run --release -p terrace-policy --example cost
//! ```

use std::hint::black_box;
use std::time::Instant;

use terrace_core::{
    Access, Bytes, ContextId, FaultKind, Nanos, PageNo, PageRef, PageSize, Plan, Region, RegionId,
    Sample, SampleSource, Telemetry, TierTelemetry, Xorshift,
};
use terrace_policy::{HeMem, HeMemConfig, Policy};

const PAGES: u32 = 262_144;
const DRAM_PAGES: u32 = 98_304;
const SAMPLES: usize = 10_000_000;

fn main() {
    let mut policy = HeMem::new(HeMemConfig::default());
    let region = Region {
        id: RegionId(0),
        pages: PAGES,
        page_size: PageSize::Huge,
        context: ContextId::ANONYMOUS,
    };
    let page = |number| PageRef { region: region.id, page: PageNo(number) };
    let mut telemetry = Telemetry { tier_count: 2, sample_period: 5003, ..Telemetry::default() };
    for tier in &mut telemetry.tiers[..2] {
        *tier = TierTelemetry {
            capacity: Bytes::gib(768),
            free: Bytes::gib(768),
            addressable: true,
            ..TierTelemetry::default()
        };
    }

    policy.alloc(&region);
    let start = Instant::now();
    for number in 0..PAGES {
        if number == DRAM_PAGES {
            telemetry.tiers[0].free = Bytes::ZERO;
        }
        black_box(policy.fault(page(number), FaultKind::FirstTouch(Access::Write), &telemetry));
    }
    report("fault", start, u64::from(PAGES));

    // Uniform over everything: the worst case for caches and for class changes.
    let mut random = Xorshift::new(88_172_645_463_325_252);
    let samples: Vec<Sample> = (0..SAMPLES)
        .map(|_| {
            let bits = random.draw();
            Sample {
                page: page((bits >> 8) as u32 % PAGES),
                access: if bits & 1 == 0 { Access::Read } else { Access::Write },
                source: SampleSource::Pmu,
                weight: 1,
            }
        })
        .collect();
    let start = Instant::now();
    policy.samples(&samples);
    report("sample, uniform", start, SAMPLES as u64);

    // Ticks that sweep: a cooling is due all the time, nothing may migrate.
    let mut plan = Plan::with_capacity(8192);
    let hottest = [Sample { weight: 200, ..samples[0] }];
    let start = Instant::now();
    for _ in 0..1000 {
        policy.samples(&hottest);
        telemetry.now += Nanos::millis(10);
        plan.clear();
        policy.tick(&telemetry, &mut plan);
    }
    report("tick, sweeping all the time", start, 1000);

    let start = Instant::now();
    policy.pressure(terrace_core::TierId(0), Bytes::gib(16), &telemetry, &mut plan);
    report("pressure, a page", start, plan.proposals().len() as u64);

    let footprint = policy.footprint();
    println!(
        "state: {} for {} pages, {:.3} B a page",
        footprint.bytes,
        footprint.pages,
        footprint.bytes_per_page()
    );
}

fn report(what: &str, start: Instant, times: u64) {
    let each = start.elapsed().as_nanos() as f64 / times as f64;
    println!("{what}: {each:.1} ns each, {times} times");
}
