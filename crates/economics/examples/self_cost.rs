//! What the economist itself costs: nanoseconds a decision and a sample.
//!
//! `cargo run --release -p terrace-economics --example self_cost`

use std::hint::black_box;
use std::time::Instant;

use terrace_core::{
    Access, Action, Bytes, Cycles, Done, Heat, Machine, Nanos, OpId, Outcome, PageNo, PageRef,
    PageSize, PerSecond, Proposal, Reason, RegionId, Sample, SampleSource, Telemetry, TierId,
    TierTelemetry, Urgency,
};
use terrace_economics::{Calibration, Decision, Economist, Mode};

fn main() {
    let text = include_str!("../../../machines/optane-cascade-lake.toml");
    let machine = Machine::parse("optane-cascade-lake", text).expect("the machine file is valid");
    let calibration = Calibration::from_machine(&machine);
    let telemetry = telemetry(&machine);
    println!("a decision takes {} bytes", size_of::<Decision>());
    for mode in [Mode::Off, Mode::Shadow, Mode::Enforce] {
        let mut economist = Economist::new(mode, calibration);
        let plans = (0..200_000u64).map(proposal).collect::<Vec<_>>();
        let decide = nanos_each(&plans, |p| {
            black_box(economist.decide(p, &telemetry));
        });
        let forced: Vec<_> =
            plans.iter().map(|p| Proposal { urgency: Urgency::Forced, ..*p }).collect();
        let force = nanos_each(&forced, |p| {
            black_box(economist.decide(p, &telemetry));
        });
        let settle = nanos_each(&plans, |p| {
            let outcome = Outcome::Completed { cost: Cycles(900_000), moved: Bytes::mib(2) };
            economist.settle(&Done { proposal: *p, outcome }, &telemetry);
        });
        // Pages without pattern, of which some are watched.
        let samples: Vec<_> = (0..1_000_000u64).map(|i| sample(i.wrapping_mul(48_271))).collect();
        let batches: Vec<_> = samples.chunks(64).collect();
        let observe = nanos_each(&batches, |batch| economist.observe(batch)) / 64.0;
        println!(
            "{:<8} decide {decide:6.0} ns   forced {force:6.0} ns   settle {settle:6.0} ns   observe {observe:6.1} ns/sample",
            mode.name(),
        );
    }
}

fn nanos_each<T>(items: &[T], mut work: impl FnMut(&T)) -> f64 {
    let start = Instant::now();
    for item in items {
        work(black_box(item));
    }
    start.elapsed().as_nanos() as f64 / items.len() as f64
}

fn page(number: u64) -> PageRef {
    PageRef { region: RegionId(0), page: PageNo(number as u32 % 100_000) }
}

fn sample(number: u64) -> Sample {
    Sample { page: page(number), access: Access::Read, source: SampleSource::Pmu, weight: 1 }
}

fn proposal(op: u64) -> Proposal {
    let action = match op % 3 {
        0 => Action::Promote { page: page(op), from: TierId(1), to: TierId(0) },
        1 => Action::Demote { page: page(op), from: TierId(0), to: TierId(1) },
        _ => Action::Exchange {
            promote: page(op),
            demote: page(op + 1),
            fast: TierId(0),
            slow: TierId(1),
        },
    };
    let heat = Heat {
        loads: PerSecond(20_000.0),
        stores: PerSecond(5_000.0),
        samples: 9,
        window: Nanos::seconds(1),
    };
    Proposal {
        op: OpId(op),
        action,
        page_size: PageSize::Huge,
        heat,
        victim_heat: Heat { window: Nanos::seconds(1), ..Heat::default() },
        urgency: Urgency::Voluntary,
        reason: Reason::HotByLoads,
    }
}

fn telemetry(machine: &Machine) -> Telemetry {
    let mut telemetry = Telemetry {
        now: Nanos::seconds(1),
        tier_count: 2,
        cpu_load: 1.0,
        sample_period: 5000,
        ..Telemetry::default()
    };
    for (state, tier) in telemetry.tiers.iter_mut().zip(&machine.tiers) {
        *state = TierTelemetry {
            capacity: tier.capacity.value,
            addressable: true,
            read_latency: tier.read_latency.value,
            write_latency: tier.write_latency.value,
            accesses: PerSecond(1e8),
            ..TierTelemetry::default()
        };
    }
    telemetry
}
