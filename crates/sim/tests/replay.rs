//! A recorded run can be repeated without the simulator.

mod common;

use std::sync::{Arc, Mutex};

use common::{HEMEM, config, small_gups, small_machine};
use terrace_core::{ActionClass, Bytes, Event, EventRef, Nanos, Plan};
use terrace_economics::{Calibration, Decision, Economist, Mode};
use terrace_policy::{Brain, PolicyName};
use terrace_sim::{Listeners, Simulation};

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<(Vec<Event>, Vec<Decision>)>>);

impl Memory {
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

/// If a policy kept a clock, a random number or an address of its own, a
/// recording would not repeat, and a policy tried here would do something else
/// live.
#[test]
fn the_recorded_events_lead_to_the_recorded_decisions() {
    let memory = Memory::default();
    let config = config(small_gups(Bytes::mib(96)), HEMEM);
    let mut world = Simulation::heard(config, memory.listeners()).expect("valid");
    world.run_for(Nanos::millis(1500));
    let (events, decisions) = &*memory.0.lock().expect("not poisoned");
    // Where new memory goes is proposed by the world, which is not there.
    let by_policy = |decision: &&Decision| decision.action.class() != ActionClass::Place;
    let decisions: Vec<_> = decisions.iter().filter(by_policy).copied().collect();
    assert!(decisions.len() > 20, "{} decisions", decisions.len());

    let economist = Economist::new(Mode::Shadow, Calibration::from_machine(&small_machine()));
    let mut brain = Brain::new(PolicyName::HeMem.build(), economist);
    let mut plan = Plan::new();
    let mut replayed = Vec::new();
    for event in events {
        if brain.replay(event, &mut plan) {
            replayed.extend_from_slice(brain.decisions());
        }
    }
    assert_eq!(replayed, decisions);
}
