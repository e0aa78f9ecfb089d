//! A recording of what one brain was told makes another decide the same.

mod common;

use std::io::BufReader;
use std::sync::{Arc, Mutex};

use common::{Random, page, sample};
use terrace_core::{
    Abort, Access, Bytes, ContextId, Cycles, Done, Event, FaultKind, Machine, Nanos, Outcome,
    PageNo, PageRange, PageSize, Plan, Proposal, Region, RegionId, Telemetry, TierId,
    TierTelemetry,
};
use terrace_economics::{Calibration, Economist, Mode};
use terrace_policy::{Brain, EventReader, EventWriter, PolicyName};

fn machine() -> Machine {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines/optane-cascade-lake.toml");
    let text = std::fs::read_to_string(file).expect("the machine file is there");
    Machine::parse(file, &text).expect("the machine file is right")
}

fn brain(policy: PolicyName) -> Brain {
    let calibration = Calibration::from_machine(&machine());
    Brain::new(policy.build(), Economist::new(Mode::Enforce, calibration))
}

fn region(id: u32, pages: u32) -> Region {
    let context = ContextId::ANONYMOUS;
    Region { id: RegionId(id), pages, page_size: PageSize::Huge, context }
}

/// Drives a brain through a made-up run, with outcomes of every kind; returns
/// its plans. DRAM fills up by so many MiB a tick.
fn drive(brain: &mut Brain, filling: u64) -> Vec<Vec<Proposal>> {
    let machine = machine();
    let mut random = Random(77);
    let mut telemetry = Telemetry {
        tier_count: 2,
        migration_budget: Bytes::gib(1),
        cpu_load: 1.0 / 3.0,
        sample_period: 5_003,
        ..Telemetry::default()
    };
    for (i, tier) in machine.tiers.iter().map(terrace_core::machine::TierFile::spec).enumerate() {
        telemetry.tiers[i] = TierTelemetry {
            capacity: tier.capacity,
            free: if i == 0 { Bytes::mib(7) } else { Bytes::gib(100) },
            addressable: true,
            read_latency: tier.read_latency,
            write_latency: tier.write_latency,
            ..TierTelemetry::default()
        };
    }
    let mut plan = Plan::new();
    let mut plans = Vec::new();
    let mut finish =
        |brain: &mut Brain, plan: &Plan, telemetry: &Telemetry, random: &mut Random| {
            plans.push(plan.proposals().to_vec());
            for &proposal in plan.proposals() {
                let outcome = match random.below(6) {
                    0 => Outcome::Aborted(Abort::Touched),
                    1 => Outcome::Aborted(Abort::Dirtied),
                    _ => Outcome::Completed {
                        cost: Cycles(random.below(1 << 22)),
                        moved: Bytes::mib(4),
                    },
                };
                brain.done(&Done { proposal, outcome }, telemetry);
            }
        };
    brain.alloc(&region(0, 200));
    brain.alloc(&region(1, 100));
    for tick in 0..200u64 {
        telemetry.now += Nanos::millis(10);
        // DRAM fills up during the first ticks.
        telemetry.tiers[0].free = Bytes::mib(200u64.saturating_sub(tick * filling));
        let id = u32::from(random.below(3) == 0);
        for number in 0..if tick < 100 { 3 } else { 0 } {
            let page = page(id, (tick as u32 * 3 + number) % region(id, 100 * (2 - id)).pages);
            brain.fault(page, FaultKind::FirstTouch(Access::Write), &telemetry);
        }
        let samples: Vec<_> = (0..60)
            .map(|_| {
                let hot = 100 + random.below(40) as u32;
                let access = if random.below(3) == 0 { Access::Write } else { Access::Read };
                sample(page(0, hot), access, 1)
            })
            .collect();
        brain.samples(&samples);
        brain.tick(&telemetry, &mut plan);
        finish(brain, &plan, &telemetry, &mut random);
        if tick % 50 == 49 {
            brain.pressure(TierId(0), Bytes::mib(11), &telemetry, &mut plan);
            finish(brain, &plan, &telemetry, &mut random);
        }
        if tick == 120 {
            let range = PageRange { region: RegionId(1), start: PageNo(5), count: 20 };
            brain.free(range, false);
        }
        if tick == 150 {
            brain.free(region(1, 100).range(), true);
        }
    }
    plans
}

/// Records a run to a file's bytes.
fn record(policy: PolicyName) -> (Vec<u8>, Vec<Vec<Proposal>>) {
    let mut brain = brain(policy);
    let writer = Arc::new(Mutex::new(EventWriter::new(Vec::new(), brain.name()).unwrap()));
    let sink = Arc::clone(&writer);
    brain.record(Some(Box::new(move |event| sink.lock().unwrap().write(event).unwrap())));
    // HSCC leaves DRAM to what it brings up: it must find room for that.
    let plans = drive(&mut brain, if policy == PolicyName::Hscc { 3 } else { 7 });
    drop(brain);
    let writer = Arc::into_inner(writer).expect("the brain's clone is gone").into_inner().unwrap();
    (writer.finish().unwrap(), plans)
}

fn read(bytes: &[u8]) -> Vec<Event> {
    EventReader::new("recording", BufReader::new(bytes)).unwrap().map(Result::unwrap).collect()
}

fn replay(policy: PolicyName, events: &[Event]) -> Vec<Vec<Proposal>> {
    let mut brain = brain(policy);
    let mut plan = Plan::new();
    let mut plans = Vec::new();
    for event in events {
        if brain.replay(event, &mut plan) {
            plans.push(plan.proposals().to_vec());
        }
    }
    plans
}

/// Acceptance: the same policy object, driven from one recorded stream of
/// events, gives the same plan, whatever world it is in.
#[test]
fn a_recording_read_back_from_its_file_gives_the_same_plans() {
    for policy in PolicyName::ALL {
        let (bytes, plans) = record(policy);
        assert!(plans.iter().any(|plan| !plan.is_empty()), "{policy} proposed nothing at all");
        let same = replay(policy, &read(&bytes)) == plans;
        assert!(same, "{policy}: the replay's plans differ");
    }
}

/// If the replay ignored what it is told, the test above could not fail.
#[test]
fn a_recording_with_an_event_left_out_gives_other_plans() {
    let (bytes, plans) = record(PolicyName::HeMem);
    let mut events = read(&bytes);
    let aborted = |e: &Event| matches!(e, Event::Done { done, .. } if !done.outcome.is_completed());
    events.remove(events.iter().position(aborted).expect("an exchange that was aborted"));
    let differs = replay(PolicyName::HeMem, &events) != plans;
    assert!(differs, "a page that nobody gave back cannot be proposed again");
}

#[test]
fn a_brain_that_is_not_recorded_any_more_tells_nothing() {
    let count = Arc::new(Mutex::new(0));
    let seen = Arc::clone(&count);
    let mut brain = brain(PolicyName::HeMem);
    brain.record(Some(Box::new(move |_| *seen.lock().unwrap() += 1)));
    brain.alloc(&region(0, 1));
    brain.record(None);
    brain.alloc(&region(1, 1));
    assert_eq!(*count.lock().unwrap(), 1);
}
