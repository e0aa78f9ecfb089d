//! A recorded run can be repeated without the simulator.

mod common;

use std::sync::{Arc, Mutex};

use common::{HEMEM, config, small_gups, small_machine};
use terrace_core::{Bytes, Event, Nanos, Plan};
use terrace_economics::{Calibration, Decision, Economist, Mode};
use terrace_policy::{Brain, PolicyName};
use terrace_sim::{JsonLines, Recorder, Simulation};

#[derive(Clone, Default)]
struct Memory(Arc<Mutex<(Vec<Event>, Vec<Decision>)>>);

impl Recorder for Memory {
    fn event(&mut self, event: &Event) {
        self.0.lock().expect("not poisoned").0.push(event.clone());
    }
    fn decisions(&mut self, decisions: &[Decision]) {
        self.0.lock().expect("not poisoned").1.extend_from_slice(decisions);
    }
}

/// If a policy kept a clock, a random number or an address of its own, a
/// recording would not repeat, and a policy tried here would do something else
/// live.
#[test]
fn the_recorded_events_lead_to_the_recorded_decisions() {
    let memory = Memory::default();
    let recorder = Box::new(memory.clone());
    let mut world =
        Simulation::with_recorder(config(small_gups(Bytes::mib(96)), HEMEM), Some(recorder))
            .expect("valid");
    world.run_for(Nanos::millis(1500));
    let (events, decisions) = &*memory.0.lock().expect("not poisoned");
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
    assert_eq!(&replayed, decisions);
}

#[test]
fn a_recording_is_one_json_value_a_line() {
    let mut recorder = JsonLines::new(Vec::new());
    let event = Event::Discard {
        range: terrace_core::PageRange {
            region: terrace_core::RegionId(1),
            start: terrace_core::PageNo(2),
            count: 3,
        },
    };
    recorder.event(&event);
    recorder.event(&event);
    let bytes = recorder.finish().expect("a vector takes everything");
    let text = String::from_utf8(bytes).expect("JSON is text");
    assert_eq!(text.lines().count(), 2);
    for line in text.lines() {
        let mut value: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let back: Event = serde_json::from_value(value["event"].take()).expect("an event");
        assert_eq!(back, event);
    }
}

#[test]
fn a_recording_that_cannot_be_written_says_so_at_the_end() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("no space left"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut recorder = JsonLines::new(Full);
    recorder.event(&Event::Samples { samples: Vec::new() });
    let error = recorder.finish().err().expect("it failed");
    assert!(error.to_string().contains("no space left"), "{error}");
}
