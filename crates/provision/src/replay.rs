//! A recording against a policy: how often it acts, and how much it moves.
//!
//! What each node used at each moment is what it had, less what was free. That
//! is the demand; the memory that is there to meet it is the node's DRAM, which
//! the caller may name, and slow memory that the policy brings in.

use serde::Serialize;
use terrace_core::{Bytes, Nanos};

use crate::decision::{Change, Decision};
use crate::policy::Provisioner;
use crate::recording::Recording;
use crate::system::{NodeSetup, Place, System};
use crate::view::NodeId;

/// The machine on which a recorded demand is played.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hardware {
    /// DRAM of each node; `None` for what the node had when the recording began.
    pub dram: Option<Bytes>,
    /// Slow memory near each node; `None` for three times its DRAM, as in the paper's machine.
    pub slow: Option<Bytes>,
}

/// What a policy did with a demand.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replayed {
    /// How long the demand lasted.
    pub duration: Nanos,
    /// Changes: memory that came online or went offline.
    pub events: u64,
    /// Memory that changed its state, both ways together.
    pub moved: Bytes,
    /// Slow memory that was online, on average over the time.
    pub online: Bytes,
    /// The most that was asked for and was nowhere to be had.
    pub unmet: Bytes,
    /// Memory that lay at another node, on average over the time, although slow memory near its
    /// own node was hidden.
    pub remote: Bytes,
    /// The decisions that changed something.
    #[serde(skip)]
    pub journal: Vec<Decision>,
}

impl Replayed {
    /// An amount of this, for an hour.
    pub fn an_hour(&self, amount: f64) -> f64 {
        amount * 3600.0 / self.duration.as_secs().max(f64::MIN_POSITIVE)
    }
}

/// Plays a recorded demand on a machine whose slow memory a policy provides.
pub fn replay(recording: &Recording, hardware: Hardware, policy: &mut dyn Provisioner) -> Replayed {
    let first = &recording.samples[0];
    let setups: Vec<NodeSetup> = first
        .nodes
        .iter()
        .map(|sample| {
            let dram = hardware.dram.unwrap_or(sample.memory.managed);
            let slow = hardware.slow.unwrap_or(dram * 3);
            NodeSetup { node: sample.node, dram, slow, online: Bytes::ZERO }
        })
        .collect();
    let far = |a: NodeId, b: NodeId| if a == b { 10 } else { 20 + a.0.abs_diff(b.0) };
    let mut system = System::new(&setups, recording.block, far);
    let owners: Vec<_> = setups.iter().map(|setup| system.owner(setup.node)).collect();
    let mut result = Replayed::default();
    let (mut online, mut remote) = (0.0, 0.0);
    for (at, sample) in recording.samples.iter().enumerate() {
        let next = recording.samples.get(at + 1).map_or(sample.at, |next| next.at);
        let lasts = next.saturating_sub(sample.at);
        system.advance(sample.at.saturating_sub(system.now()));
        let mut unmet = Bytes::ZERO;
        for (owner, setup) in owners.iter().zip(&setups) {
            // A node that is no longer there uses nothing.
            let node = sample.nodes.iter().find(|node| node.node == setup.node);
            let wanted = node
                .map_or(Bytes::ZERO, |node| node.memory.managed.saturating_sub(node.memory.free));
            let held = system.holding(*owner).total();
            if wanted < held {
                system.free(*owner, held - wanted);
            } else {
                unmet += system.allocate(*owner, wanted - held);
            }
        }
        result.unmet = result.unmet.max(unmet);
        for decision in system.tick(policy) {
            if decision.change != Change::Nothing {
                result.events += 1;
                result.moved += decision.change.amount();
                result.journal.push(decision);
            }
        }
        for (owner, setup) in owners.iter().zip(&setups) {
            let view = system.view(setup.node);
            online += view.integrated.as_f64() * lasts.as_secs();
            let away = system.holding(*owner).amount(|place| match place {
                Place::Dram(node) | Place::Slow(node) => node != setup.node,
            });
            remote += away.min(view.hidden).as_f64() * lasts.as_secs();
        }
    }
    let last = recording.samples.last().map_or(first.at, |sample| sample.at);
    result.duration = last.saturating_sub(first.at);
    let seconds = result.duration.as_secs().max(f64::MIN_POSITIVE);
    result.online = Bytes::from_f64(online / seconds);
    result.remote = Bytes::from_f64(remote / seconds);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyKind;
    use crate::recording::{NodeSample, Sample};
    use crate::system::watermarks;
    use crate::zoneinfo::NodeMemory;

    /// An hour of a node with 32 GiB of DRAM, a look a second, whose demand rises and falls
    /// between 10 and 100 GiB every twenty minutes.
    fn waves() -> Recording {
        let sample = |second: u64| {
            let phase = second as f64 / 1200.0 * core::f64::consts::TAU;
            let used = Bytes::from_f64((55.0 - 45.0 * phase.cos()) * f64::from(1 << 30));
            let managed = Bytes::gib(128);
            let memory =
                NodeMemory { managed, free: managed - used, watermarks: watermarks(managed) };
            Sample {
                at: Nanos::seconds(second),
                nodes: vec![NodeSample { node: NodeId(0), memory }],
            }
        };
        Recording { block: Bytes::mib(128), samples: (1..=3600).map(sample).collect() }
    }

    fn run(kind: PolicyKind) -> Replayed {
        let hardware = Hardware { dram: Some(Bytes::gib(32)), slow: Some(Bytes::gib(96)) };
        replay(&waves(), hardware, kind.build().as_mut())
    }

    #[test]
    fn the_default_acts_far_less_often_than_the_paper_s_tables() {
        let resolved = run(PolicyKind::Resolved);
        assert_eq!(resolved.unmet, Bytes::ZERO);
        // The demand itself rises and falls by 90 GiB six times, 68 of which are not DRAM.
        assert!(resolved.moved < Bytes::gib(700), "{}", resolved.moved);
        for kind in [PolicyKind::PaperLiteralInstalled, PolicyKind::PaperLiteralIntegrated] {
            let literal = run(kind);
            let events = (literal.events, resolved.events);
            assert!(events.0 > 20 * events.1, "{kind}: {events:?}");
            assert!(literal.moved > resolved.moved * 20, "{kind}: {}", literal.moved);
        }
    }

    #[test]
    fn what_is_asked_for_and_nowhere_to_be_had_is_told() {
        let hardware = Hardware { dram: Some(Bytes::gib(32)), slow: Some(Bytes::gib(16)) };
        let mut policy = PolicyKind::Resolved.build();
        let result = replay(&waves(), hardware, policy.as_mut());
        assert!(result.unmet > Bytes::gib(50), "100 GiB in 48: {}", result.unmet);
        assert!(result.online <= Bytes::gib(16));
    }

    #[test]
    fn online_memory_follows_the_demand() {
        let resolved = run(PolicyKind::Resolved);
        let (least, most) = (Bytes::gib(30), Bytes::gib(90));
        assert!(resolved.online > least && resolved.online < most, "{}", resolved.online);
        let first = resolved.journal.first().unwrap();
        assert!(matches!(first.change, Change::Integrate(_)));
    }
}
