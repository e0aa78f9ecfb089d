//! Targets instead of amounts, shares of the DRAM instead of watermarks.
//!
//! What the paper's tables mean, with their gaps closed:
//! - thresholds are shares of the node's DRAM, so that they do not move with
//!   the kernel's watermarks;
//! - a row names how much slow memory is online in all, so that a node which
//!   stays short is not given the same again each second;
//! - the lowest row holds down to nothing free;
//! - memory is given back a while after the last change at the earliest, and
//!   never so much that the first row would bring it in again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};

use super::{Provisioner, tables};
use crate::decision::{Change, Decision, Reason};
use crate::view::{NodeId, NodeView};

/// One row: with so little free, so much slow memory is online.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Free local memory at or below which the row applies, as a share of the node's DRAM.
    pub threshold: f64,
    /// Slow memory that is then online, as a multiple of the node's DRAM; infinite for all.
    pub factor: f64,
}

/// The rows, and how long a change is left alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Rows with falling thresholds and rising factors.
    pub rows: Vec<Row>,
    /// For so long after a change nothing is given back.
    pub hold: Nanos,
    /// Free memory that stays when some is given back, as a multiple of the first threshold.
    pub margin: f64,
    /// The least that is given back at a time, as a share of the node's DRAM; less only where
    /// nothing stays online.
    pub least: f64,
}

impl Default for Settings {
    /// Half of the DRAM free brings in half of its size, and so on down to a sixteenth; 30 s;
    /// half as much again as the first threshold; an eighth of the DRAM.
    fn default() -> Self {
        let row = |threshold, factor| Row { threshold, factor };
        Self {
            rows: vec![row(0.5, 0.5), row(0.25, 1.0), row(0.125, 2.0), row(0.0625, f64::INFINITY)],
            hold: Nanos::seconds(30),
            margin: 1.5,
            least: 0.125,
        }
    }
}

/// The default policy.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    settings: Settings,
    /// When slow memory near a node changed last.
    changed: BTreeMap<NodeId, Nanos>,
}

fn share(of: Bytes, factor: f64) -> Bytes {
    Bytes::from_f64(of.as_f64() * factor)
}

impl Resolved {
    /// A policy with settings of its own.
    pub fn new(settings: Settings) -> Self {
        Self { settings, changed: BTreeMap::new() }
    }

    /// What is wanted online, and the threshold that says so.
    fn target(&self, view: &NodeView) -> Option<(Bytes, Bytes)> {
        let free = view.local_free();
        let applies = |row: &&Row| free <= share(view.dram, row.threshold);
        let row = self.settings.rows.iter().rfind(applies)?;
        Some((share(view.dram, row.threshold), share(view.dram, row.factor)))
    }

    fn decide(&self, view: &NodeView) -> (Change, Reason) {
        let online = view.integrated;
        if let Some((threshold, wanted)) = self.target(view) {
            let target = wanted.min(view.installed());
            if target > online {
                let amount = view.blocks_up(target - online).min(view.blocks_down(view.hidden));
                if !amount.is_zero() {
                    return (Change::Integrate(amount), Reason::Short { threshold, target });
                }
            }
            if wanted > online {
                return (Change::Nothing, Reason::Exhausted { target: wanted });
            }
        }
        if online.is_zero() {
            return (Change::Nothing, Reason::Enough);
        }
        let until = self.changed.get(&view.node).map_or(Nanos::ZERO, |at| *at + self.settings.hold);
        let free = view.local_free();
        let first = self.settings.rows.first().map_or(0.0, |row| row.threshold);
        let stays = share(view.dram, first * self.settings.margin);
        let table = tables::removal(free, online).unwrap_or(Bytes::ZERO);
        let amount = view.blocks_down(table.min(free.saturating_sub(stays)).min(online));
        let is_worth_it = amount == online || amount >= share(view.dram, self.settings.least);
        if amount.is_zero() || !is_worth_it {
            (Change::Nothing, Reason::Enough)
        } else if view.now < until {
            (Change::Nothing, Reason::Settling { until })
        } else {
            (Change::Remove(amount), Reason::Idle { compared: online, table })
        }
    }
}

impl Provisioner for Resolved {
    fn tick(&mut self, view: &NodeView) -> Decision {
        let (change, reason) = self.decide(view);
        if change != Change::Nothing {
            self.changed.insert(view.node, view.now);
        }
        Decision::about(view, change, reason)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::view::Watermarks;

    fn view(free: Bytes, integrated: Bytes, seconds: u64) -> NodeView {
        NodeView {
            node: NodeId(0),
            now: Nanos::seconds(seconds),
            dram: Bytes::gib(32),
            dram_free: free.saturating_sub(integrated),
            integrated,
            integrated_free: free.min(integrated),
            hidden: Bytes::gib(96) - integrated,
            block: Bytes::mib(128),
            watermarks: Watermarks::default(),
        }
    }

    #[test]
    fn the_lower_the_more() {
        for (free, amount) in [(16, 16), (8, 32), (4, 64), (2, 96), (0, 96)] {
            let decision = Resolved::default().tick(&view(Bytes::gib(free), Bytes::ZERO, 0));
            assert_eq!(decision.change, Change::Integrate(Bytes::gib(amount)), "{free} GiB free");
        }
        let decision = Resolved::default().tick(&view(Bytes::gib(17), Bytes::ZERO, 0));
        assert_eq!(decision.change, Change::Nothing);
    }

    #[test]
    fn a_target_is_reached_once() {
        let mut policy = Resolved::default();
        let decision = policy.tick(&view(Bytes::gib(7), Bytes::gib(32), 0));
        assert_eq!(decision.change, Change::Nothing, "the row's target is online");
    }

    #[test]
    fn memory_is_given_back_a_while_after_it_came() {
        let mut policy = Resolved::default();
        policy.tick(&view(Bytes::gib(8), Bytes::ZERO, 100));
        let idle = |seconds| view(Bytes::gib(60), Bytes::gib(32), seconds);
        assert_eq!(policy.tick(&idle(120)).change, Change::Nothing);
        let decision = policy.tick(&idle(120));
        assert_eq!(decision.reason, Reason::Settling { until: Nanos::seconds(130) });
        // 60 free beside 32 online: all of it may leave, and 24 GiB must stay free.
        assert_eq!(policy.tick(&idle(130)).change, Change::Remove(Bytes::gib(32)));
    }

    #[test]
    fn no_hidden_memory_is_told() {
        let all = NodeView { hidden: Bytes::ZERO, ..view(Bytes::gib(1), Bytes::gib(8), 0) };
        let decision = Resolved::default().tick(&all);
        assert!(matches!(decision.reason, Reason::Exhausted { .. }));
        assert_eq!(decision.change, Change::Nothing);
    }

    proptest! {
        /// What is given back does not come in again while the demand stays what it is, and
        /// what came in does not leave: after a few changes each demand is at rest.
        #[test]
        fn a_steady_demand_comes_to_rest(used in 0_u64..128, online in 0_u64..96) {
            let (mut policy, dram) = (Resolved::default(), 32_u64);
            let mut online = Bytes::gib(online.max(used.saturating_sub(dram)));
            let used = Bytes::gib(used);
            let mut changes = 0;
            for second in 0..3600 {
                let free = (Bytes::gib(dram) + online).saturating_sub(used);
                let decision = policy.tick(&view(free, online, second));
                match decision.change {
                    Change::Integrate(amount) => online += amount,
                    Change::Remove(amount) => {
                        prop_assert!(amount <= online && amount <= free);
                        online -= amount;
                    }
                    Change::Nothing => continue,
                }
                prop_assert!(online <= Bytes::gib(96));
                changes += 1;
            }
            prop_assert!(changes <= 8, "{changes} changes");
        }
    }
}
