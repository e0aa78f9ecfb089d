//! A recording against a policy: how often it acts, and how much it moves.
//!
//! What each node used at each moment is what it had, less what was free. That
//! is the demand, with what was used of the slow memory near it; the memory that is there to meet
//! it is the node's DRAM, which the caller may name, and slow memory that the policy brings in. What
//! a policy compares free memory with is what was recorded, too: the watermarks of each look. Where the figures of a machine
//! are known, what that costs and saves is priced.

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use thiserror::Error;

use crate::decision::{Change, Decision};
use crate::economist::{Bill, Figures, Held, Quote, Verdict};
use crate::policy::Provisioner;
use crate::recording::{NodeSample, Recording};
use crate::system::{NodeSetup, OwnerId, Place, System, scaled_watermarks};
use crate::view::NodeId;

/// The machine on which a recorded demand is played.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hardware {
    /// DRAM of each node; `None` for what the node had when the recording began.
    pub dram: Option<Bytes>,
    /// Slow memory near each node; `None` for three times its DRAM, as in the paper's machine.
    pub slow: Option<Bytes>,
}

/// What the machine's memory costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// The figures.
    pub figures: Figures,
    /// The size of a base page.
    pub page: Bytes,
    /// For how long the daemon assumes that memory stays which it brings in.
    pub stays: Nanos,
}

/// What a policy's slow memory cost and saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Priced {
    /// All of it over the time.
    #[serde(flatten)]
    pub bill: Bill,
    /// Energy of waiting for memory at other nodes while near memory was hidden, at least and at
    /// most, in joules: what the policy could have saved and did not.
    pub missed: [f64; 2],
    /// Times that memory came, by what it was worth when it was decided.
    pub verdicts: Verdicts,
}

/// How often memory was brought in, by what that was worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdicts {
    /// It pays even if memory is accessed as seldom as can be.
    pub pays: u64,
    /// It may pay.
    pub may_pay: u64,
    /// It does not pay even if memory is accessed as often as can be.
    pub does_not_pay: u64,
    /// No other node had room.
    pub forced: u64,
}

impl Verdicts {
    fn count(&mut self, verdict: Verdict) {
        *match verdict {
            Verdict::Pays => &mut self.pays,
            Verdict::MayPay => &mut self.may_pay,
            Verdict::DoesNotPay => &mut self.does_not_pay,
            Verdict::Forced => &mut self.forced,
        } += 1;
    }
}

/// A decision that changed something, and its price where it brought memory in and prices are known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Step {
    /// The decision.
    #[serde(flatten)]
    pub decision: Decision,
    /// Its price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Quote>,
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
    /// What it cost and saved, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prices: Option<Priced>,
    /// The decisions that changed something.
    #[serde(skip)]
    pub journal: Vec<Step>,
}

impl Replayed {
    /// An amount of this, for an hour.
    pub fn an_hour(&self, amount: f64) -> f64 {
        amount * 3600.0 / self.duration.as_secs().max(f64::MIN_POSITIVE)
    }
}

/// What of a recording cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReplayError {
    /// What a node used is nobody's demand.
    #[error(
        "line {line}: {node} is not in the first look, and it is not said whose slow memory it is, \
         so that what it used is nobody's demand"
    )]
    Nobody {
        /// The line of the recording, from 1.
        line: usize,
        /// The node.
        node: NodeId,
    },
    /// No node of the first look has processors.
    #[error("line 2: no node has processors")]
    Processors,
}

/// Whose demand is what a node used.
fn whose(sample: &NodeSample) -> NodeId {
    sample.near.unwrap_or(sample.node)
}

/// The nodes of a recording whose demand it is; each look has to be theirs.
fn nodes(recording: &Recording) -> Result<Vec<&NodeSample>, ReplayError> {
    let first = recording.samples[0].nodes.iter().filter(|sample| sample.near.is_none());
    let nodes: Vec<&NodeSample> = first.collect();
    if nodes.is_empty() {
        return Err(ReplayError::Processors);
    }
    for (at, look) in recording.samples.iter().enumerate() {
        let is_ours = |sample: &&NodeSample| nodes.iter().any(|node| node.node == whose(sample));
        if let Some(sample) = look.nodes.iter().find(|sample| !is_ours(sample)) {
            // The header is the first line.
            return Err(ReplayError::Nobody { line: at + 2, node: sample.node });
        }
    }
    Ok(nodes)
}

/// Has each process hold what it used. Each node's own memory is its own demand's before it is
/// others': how nodes are numbered makes no difference. How much was nowhere to be had.
fn demand(system: &mut System, wanted: &[(OwnerId, Bytes)]) -> Bytes {
    let mut more = Vec::new();
    for &(owner, wanted) in wanted {
        let held = system.holding(owner).total();
        if wanted < held {
            system.free(owner, held - wanted);
        } else {
            more.push((owner, wanted - held));
        }
    }
    for (owner, amount) in &mut more {
        *amount = system.allocate_near(*owner, *amount);
    }
    more.into_iter().map(|(owner, amount)| system.allocate(owner, amount)).sum()
}

/// Plays a recorded demand on a machine whose slow memory a policy provides.
///
/// # Errors
/// A node whose use is nobody's demand.
pub fn replay(
    recording: &Recording,
    hardware: Hardware,
    policy: &mut dyn Provisioner,
    prices: Option<&Prices>,
) -> Result<Replayed, ReplayError> {
    let first = &recording.samples[0];
    let setups: Vec<NodeSetup> = nodes(recording)?
        .into_iter()
        .map(|sample| {
            let dram = hardware.dram.unwrap_or(sample.memory.managed);
            let slow = hardware.slow.unwrap_or(dram * 3);
            NodeSetup { node: sample.node, dram, slow, online: Bytes::ZERO }
        })
        .collect();
    let far = |a: NodeId, b: NodeId| if a == b { 10 } else { a.0.abs_diff(b.0).saturating_add(20) };
    let mut system = System::new(&setups, recording.block, far);
    let owners: Vec<_> = setups.iter().map(|setup| system.owner(setup.node)).collect();
    let mut result = Replayed::default();
    let (mut online, mut remote, mut used) = (0.0, 0.0, 0.0);
    let mut verdicts = Verdicts::default();
    for (at, sample) in recording.samples.iter().enumerate() {
        let next = recording.samples.get(at + 1).map_or(sample.at, |next| next.at);
        let lasts = next.saturating_sub(sample.at);
        system.advance(sample.at.saturating_sub(system.now()));
        let mut wanted = Vec::new();
        for (owner, setup) in owners.iter().zip(&setups) {
            // A node that is no longer there uses nothing.
            let its = sample.nodes.iter().filter(|node| whose(node) == setup.node);
            let used = its.map(|node| node.memory.managed.saturating_sub(node.memory.free));
            wanted.push((*owner, used.sum()));
            if let Some(node) = sample.nodes.iter().find(|node| node.node == setup.node) {
                let (marks, managed) = (node.memory.watermarks, node.memory.managed);
                let marks =
                    hardware.dram.map_or(marks, |dram| scaled_watermarks(marks, managed, dram));
                system.set_watermarks(setup.node, marks);
            }
        }
        result.unmet = result.unmet.max(demand(&mut system, &wanted));
        for decision in system.tick(policy) {
            if decision.change != Change::Nothing {
                result.events += 1;
                result.moved += decision.change.amount();
                let price = prices.and_then(|prices| quote(&system, &setups, &decision, prices));
                if let Some(price) = price {
                    verdicts.count(price.verdict);
                }
                result.journal.push(Step { decision, price });
            }
        }
        for (owner, setup) in owners.iter().zip(&setups) {
            let view = system.view(setup.node);
            online += view.integrated.as_f64() * lasts.as_secs();
            let away = system.holding(*owner).amount(|place| match place {
                Place::Dram(node) | Place::Slow(node) => node != setup.node,
            });
            remote += away.min(view.hidden).as_f64() * lasts.as_secs();
            let near = system.holding(*owner).amount(|place| place == Place::Slow(setup.node));
            used += near.as_f64() * lasts.as_secs();
        }
    }
    let last = recording.samples.last().map_or(first.at, |sample| sample.at);
    result.duration = last.saturating_sub(first.at);
    let seconds = result.duration.as_secs().max(f64::MIN_POSITIVE);
    result.online = Bytes::from_f64(online / seconds);
    result.remote = Bytes::from_f64(remote / seconds);
    result.prices = prices.map(|Prices { figures, page, .. }| {
        let gib = Bytes::gib(1).as_f64();
        // Coming and going are a change each.
        let blocks = result.moved / recording.block / 2.0;
        let held = Held { online: online / gib, used: used / gib, blocks };
        Priced { bill: figures.bill(held, *page), missed: figures.waiting(remote / gib), verdicts }
    });
    Ok(result)
}

/// The price of memory that a decision brings in, as the daemon would have it.
fn quote(
    system: &System,
    setups: &[NodeSetup],
    decision: &Decision,
    prices: &Prices,
) -> Option<Quote> {
    let Change::Integrate(amount) = decision.change else { return None };
    let others = setups.iter().filter(|setup| setup.node != decision.node);
    let elsewhere = others
        .map(|setup| {
            let view = system.view(setup.node);
            view.dram_free.saturating_sub(view.watermarks.high)
        })
        .sum();
    let Prices { figures, page, stays } = prices;
    Some(figures.quote(amount, system.view(decision.node).block, *page, *stays, elsewhere))
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
                nodes: vec![NodeSample { node: NodeId(0), memory, near: None }],
            }
        };
        Recording { block: Bytes::mib(128), samples: (1..=3600).map(sample).collect() }
    }

    fn run(kind: PolicyKind) -> Replayed {
        let hardware = Hardware { dram: Some(Bytes::gib(32)), slow: Some(Bytes::gib(96)) };
        replay(&waves(), hardware, kind.build().as_mut(), Some(&prices())).unwrap()
    }

    fn prices() -> Prices {
        let figures = Figures {
            slow_watts: 0.2,
            dram_watts: 0.2,
            core_watts: 8.0,
            near_latency: Nanos(90),
            far_latency: Nanos(140),
            descriptor: Bytes(64),
            block_time: Nanos::millis(110),
            accesses: [1e4, 1e6],
        };
        Prices { figures, page: Bytes::kib(4), stays: Nanos::seconds(30) }
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
        let result = replay(&waves(), hardware, policy.as_mut(), None).unwrap();
        assert_eq!(result.prices, None);
        assert!(result.unmet > Bytes::gib(50), "100 GiB in 48: {}", result.unmet);
        assert!(result.online <= Bytes::gib(16));
    }

    #[test]
    fn online_memory_follows_the_demand() {
        let resolved = run(PolicyKind::Resolved);
        let (least, most) = (Bytes::gib(30), Bytes::gib(90));
        assert!(resolved.online > least && resolved.online < most, "{}", resolved.online);
        let first = resolved.journal.first().unwrap();
        assert!(matches!(first.decision.change, Change::Integrate(_)));
    }

    /// Looks, a second apart, at nodes of 64 GiB with watermarks by the kernel's formula that use
    /// so many GiB each.
    fn looks(all: &[&[u64]]) -> Recording {
        let managed = Bytes::gib(64);
        let node = |(number, used): (usize, &u64)| NodeSample {
            node: NodeId(number as u32),
            memory: NodeMemory {
                managed,
                free: managed - Bytes::gib(*used),
                watermarks: watermarks(managed),
            },
            near: None,
        };
        let sample = |(second, used): (usize, &&[u64])| Sample {
            at: Nanos::seconds(second as u64 + 1),
            nodes: used.iter().enumerate().map(node).collect(),
        };
        let samples = all.iter().enumerate().map(sample).collect();
        Recording { block: Bytes::mib(128), samples }
    }

    fn small(recording: &Recording) -> Replayed {
        let hardware = Hardware { dram: Some(Bytes::gib(16)), slow: Some(Bytes::gib(16)) };
        let mut policy = PolicyKind::PaperLiteralInstalled.build();
        replay(recording, hardware, policy.as_mut(), None).unwrap()
    }

    #[test]
    fn how_nodes_are_numbered_makes_no_difference() {
        let seconds = |used: &'static [u64]| small(&looks(&[used; 11]));
        let (one, mirrored) = (seconds(&[20, 15, 0]), seconds(&[0, 15, 20]));
        assert_eq!((one.remote, one.unmet), (mirrored.remote, mirrored.unmet));
        // What one node has too much finds no room in the others, which use their own.
        let full = seconds(&[24, 17, 17, 17]);
        assert_eq!(full.unmet, Bytes::gib(8 + 3));
        assert_eq!(full.remote, Bytes::ZERO);
    }

    #[test]
    fn what_is_used_of_slow_memory_is_demand_of_the_node_near_it() {
        let mut beside_a_daemon = looks(&[&[40], &[64, 6], &[64, 6]]);
        let whole = looks(&[&[40], &[64], &[64]]);
        let wrong = replay(
            &beside_a_daemon,
            Hardware::default(),
            PolicyKind::Resolved.build().as_mut(),
            None,
        );
        let nobody = ReplayError::Nobody { line: 3, node: NodeId(1) };
        assert_eq!(wrong, Err(nobody));
        for look in &mut beside_a_daemon.samples[1..] {
            look.nodes[1].near = Some(NodeId(0));
        }
        let hardware = Hardware { dram: Some(Bytes::gib(16)), slow: Some(Bytes::gib(16)) };
        let unmet = |recording| {
            let mut policy = PolicyKind::Resolved.build();
            replay(recording, hardware, policy.as_mut(), None).unwrap().unmet
        };
        assert_eq!(unmet(&whole), Bytes::gib(64 - 16 - 16));
        assert_eq!(unmet(&beside_a_daemon), Bytes::gib(64 + 6 - 16 - 16));
    }

    /// The rows of Table 3 are watermarks: what the machine had at each look decides.
    #[test]
    fn watermarks_are_those_of_the_recording() {
        let mut recording = looks(&[&[4], &[4]]);
        let first = |recording: &Recording, dram| {
            let hardware = Hardware { dram, slow: Some(Bytes::gib(4096)) };
            let mut policy = PolicyKind::PaperLiteralInstalled.build();
            let played = replay(recording, hardware, policy.as_mut(), None).unwrap();
            played.journal[0].decision.change
        };
        // 60 GiB are free. 40 MiB · 1024 are less than that, 70 MiB · 1024 are more.
        let marks = |min, low, high| crate::view::Watermarks {
            min: Bytes::mib(min),
            low: Bytes::mib(low),
            high: Bytes::mib(high),
        };
        for (marks, factor) in [
            (marks(10, 20, 40), 1),
            (marks(10, 40, 70), 2),
            (marks(40, 70, 90), 4),
            (marks(70, 80, 90), 8),
        ] {
            for look in &mut recording.samples {
                look.nodes[0].memory.watermarks = marks;
            }
            let change = Change::Integrate(Bytes::gib(64) * factor);
            assert_eq!(first(&recording, None), change, "{marks:?}");
            let same = first(&recording, Some(Bytes::gib(64)));
            assert_eq!(same, change, "the same DRAM has the same watermarks");
        }
        // With a sixteenth of the memory they are 2.5, 3.125 and 3.75 MiB, and 3 GiB of 4 are free.
        for look in &mut recording.samples {
            look.nodes[0].memory = NodeMemory {
                managed: Bytes::gib(64),
                free: Bytes::gib(63),
                watermarks: marks(10, 20, 30),
            };
        }
        let change = Change::Integrate(Bytes::gib(4) * 4);
        assert_eq!(first(&recording, Some(Bytes::gib(4))), change);
    }

    /// The bill is the sum of what was online and moved, whoever decided it.
    #[test]
    fn each_policy_pays_for_what_it_had_and_moved() {
        for kind in PolicyKind::ALL {
            let result = run(kind);
            let priced = result.prices.unwrap();
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs().max(1e-6);
            let gib_seconds = result.online / Bytes::gib(1) * result.duration.as_secs();
            // 0.2 W a GiB; its descriptors a 64th of that; 8 W for 55 ms a block, each way.
            let Bill { memory, metadata, work, saved, .. } = priced.bill;
            assert!(near(memory, 0.2 * gib_seconds), "{kind}: {memory}");
            assert!(near(metadata, memory / 64.0), "{kind}: {metadata}");
            assert!(near(work, 0.44 * (result.moved / Bytes::mib(128))), "{kind}: {work}");
            // A hundred times the accesses, a hundred times the waiting.
            assert!(near(saved[1], 100.0 * saved[0]), "{kind}: {saved:?}");
            // 400 nW an access to a GiB in a second, of memory that is online at most.
            assert!(saved[1] <= 1e6 * 4e-7 * gib_seconds * (1.0 + 1e-6), "{kind}: {saved:?}");
            let remote = result.remote / Bytes::gib(1) * result.duration.as_secs();
            assert!(near(priced.missed[0], 1e4 * 4e-7 * remote), "{kind}: {:?}", priced.missed);
            let Verdicts { pays, may_pay, does_not_pay, forced } = priced.verdicts;
            let came = |step: &&Step| step.price.is_some();
            let came = result.journal.iter().filter(came).count() as u64;
            assert_eq!(pays + may_pay + does_not_pay + forced, came);
            // There is one node: its demand has nowhere else to go.
            assert_eq!(forced, came, "{kind}");
        }
    }
}
