//! One policy object, two worlds: the same events lead to the same plans,
//! whether the live pager drives it or the simulator.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use terrace_core::{ActionClass, Bytes, Event, EventRef, Nanos, Plan, Proposal};
use terrace_economics::{Calibration, Decision, Economist, Mode};
use terrace_live::activate;
use terrace_live::config::RunConfig;
use terrace_live::decide::decider::Decider;
use terrace_live::doctor::probe::UffdProbe;
use terrace_live::space::regions::WINDOW;
use terrace_live::stats::process_page::ProcessPage;
use terrace_live::sys;
use terrace_policy::{Brain, PolicyName};
use terrace_sim::{
    Gups, GupsConfig, Listeners, Phases, SimConfig, SimPolicy, Simulation, Span, machines,
};

/// What a brain was told, in order, and what it decided.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(Vec<Event>, Vec<Decision>)>>);

impl Seen {
    fn listeners(&self) -> Listeners {
        let (events, decided) = (self.clone(), self.clone());
        Listeners {
            events: Some(Box::new(move |event: EventRef<'_>| {
                events.0.lock().expect("not poisoned").0.push(event.to_event());
            })),
            decisions: Some(Box::new(move |decisions: &[Decision]| {
                decided.0.lock().expect("not poisoned").1.extend_from_slice(decisions);
            })),
        }
    }
}

fn brain(calibration: &Calibration) -> Brain {
    Brain::new(PolicyName::HeMem.build(), Economist::new(Mode::Enforce, *calibration))
}

/// Every plan that a brain makes of a stream.
fn plans_of_brain(events: &[Event], mut brain: Brain) -> (Vec<Proposal>, Vec<Decision>) {
    let (mut plan, mut plans, mut decisions) = (Plan::new(), Vec::new(), Vec::new());
    for event in events {
        if brain.replay(event, &mut plan) {
            plans.extend_from_slice(plan.proposals());
            decisions.extend_from_slice(brain.decisions());
        }
    }
    (plans, decisions)
}

/// Every plan that the live decider makes of a stream.
fn plans_of_live_decider(events: &[Event], brain: Brain) -> (Vec<Proposal>, Vec<Decision>) {
    let mut decider = Decider::new(brain);
    let (mut plans, mut decisions) = (Vec::new(), Vec::new());
    for event in events {
        if decider.replay(event, |proposal| plans.push(proposal)) {
            decisions.extend_from_slice(decider.brain().decisions());
        }
    }
    (plans, decisions)
}

/// If the live decider did anything on its own (a clock, a sample more,
/// an order changed), a policy tried in the simulator would do something else
/// live.
#[test]
fn a_stream_recorded_in_simulation_gives_the_live_decider_the_same_plans() {
    let mut machine = machines::optane_cascade_lake();
    machine.tiers[0].capacity.value = Bytes::mib(192);
    machine.tiers[1].capacity.value = Bytes::mib(768);
    machine.cpu.llc.value = Bytes::kib(32);
    let calibration = Calibration::from_machine(&machine);
    let hot = GupsConfig::hemem(Bytes::mib(96));
    let gups = GupsConfig { threads: 4, working_set: Bytes::mib(512), ..hot };
    let workload = Gups::new(gups).expect("the parameters are valid");
    let second = Span::Time(Nanos::SECOND);
    let policy = SimPolicy::Policy(PolicyName::HeMem);
    let config = SimConfig {
        phases: Phases { warm_up: second, runs: 1, run: second },
        scale: 16,
        economist: Mode::Enforce,
        ..SimConfig::new(machine, Box::new(workload), policy)
    };
    let seen = Seen::default();
    let mut world = Simulation::heard(config, seen.listeners()).expect("valid");
    world.run_for(Nanos::millis(1500));
    let (events, decided) = &*seen.0.lock().expect("not poisoned");
    // Where new memory goes is proposed by the simulator, which is not there.
    let by_policy = |decision: &&Decision| decision.action.class() != ActionClass::Place;
    let decided: Vec<_> = decided.iter().filter(by_policy).copied().collect();

    let (by_brain, _) = plans_of_brain(events, brain(&calibration));
    let (by_live, live_decisions) = plans_of_live_decider(events, brain(&calibration));

    assert!(decided.len() > 20, "{} decisions", decided.len());
    assert_eq!(by_live, by_brain);
    assert_eq!(live_decisions, decided);
}

/// The other way round: real memory under the live pager.
#[test]
fn a_stream_recorded_live_gives_the_same_decisions_without_the_pager() {
    const LEN: usize = 16 << 20;
    const BUDGET: Bytes = Bytes::mib(4);
    if let Err(why) = UffdProbe::run().usable() {
        terrace_shown::is_missing(&format!("userfaultfd ({why})"));
        return;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping where nothing is.
    let at = unsafe { sys::mmap(WINDOW, LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
        .expect("the window is free");
    let calibration = activate::calibrate();
    let seen = Seen::default();
    let mut live = brain(&calibration);
    let told = seen.clone();
    live.record(Some(Box::new(move |event: EventRef<'_>| {
        told.0.lock().expect("not poisoned").0.push(event.to_event());
    })));
    let mut config = RunConfig::new(BUDGET, PathBuf::new());
    config.record = true;
    let stats = ProcessPage::anonymous().expect("memory");

    let pager = activate::activate_with(config, stats, live, false).expect("userfaultfd");
    for round in 0..3u64 {
        for page in 0..LEN / sys::PAGE {
            let word = (at + page * sys::PAGE) as *mut u64;
            let value = |round: u64| round * 1_000_000 + page as u64;
            // SAFETY: within the mapping.
            unsafe {
                assert_eq!(*word, if round == 0 { 0 } else { value(round) });
                *word = value(round + 1);
            }
        }
    }
    // Whoever holds the decider holds up every decision: what was seen is whole.
    let decider = pager.decide.decider.lock();
    let events = std::mem::take(&mut seen.0.lock().expect("not poisoned").0);
    let mut decided = Vec::new();
    // Whether to go ahead of walks is asked by the pager, which is not there in the other world.
    let lost = stats.drain_decisions(&mut 0, |decision| {
        if decision.action.class() != ActionClass::Prefetch {
            decided.push(decision);
        }
    });
    drop(decider);

    let (_, replayed) = plans_of_brain(&events, brain(&calibration));

    assert!(decided.len() > 100, "{} decisions", decided.len());
    // The ring keeps the newest.
    let older = replayed.len().checked_sub(decided.len()).expect("none is missing");
    assert!(older as u64 <= lost, "{older} of {lost}");
    assert_eq!(&replayed[older..], &decided[..]);
    assert!(pager.resident() * sys::PAGE as u64 <= BUDGET.get(), "the budget is kept");
}
