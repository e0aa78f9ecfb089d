//! Both of the paper's tables as they are written.
//!
//! For comparison, not for use. Where the paper is silent, this policy takes
//! the plainest reading: an amount of Table 3 is brought in each time that its
//! row applies, and Table 4 is looked up where Table 3 brings nothing in.

use super::{Provisioner, tables};
use crate::decision::{Change, Decision, Reason};
use crate::view::NodeView;

/// What Table 4 calls "PM's capacity".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capacity {
    /// All slow memory near the node, hidden or not.
    Installed,
    /// What is online of it.
    Integrated,
}

/// Tables 3 and 4.
#[derive(Clone, Copy, Debug)]
pub struct Literal {
    capacity: Capacity,
}

impl Literal {
    /// A policy with one of the two readings of Table 4.
    pub fn new(capacity: Capacity) -> Self {
        Self { capacity }
    }

    fn integrate(view: &NodeView) -> (Change, Reason) {
        let free = view.local_free();
        let Some((factor, threshold)) = tables::integration_row(free, view.watermarks) else {
            return (Change::Nothing, Reason::NoRow);
        };
        let wanted = view.dram * factor;
        let target = view.integrated + wanted;
        let amount = view.blocks_down(wanted.min(view.hidden));
        if wanted.is_zero() {
            (Change::Nothing, Reason::Enough)
        } else if amount.is_zero() {
            (Change::Nothing, Reason::Exhausted { target })
        } else {
            (Change::Integrate(amount), Reason::Short { threshold, target })
        }
    }

    fn remove(self, view: &NodeView) -> Option<(Change, Reason)> {
        let compared = match self.capacity {
            Capacity::Installed => view.installed(),
            Capacity::Integrated => view.integrated,
        };
        let free = view.local_free();
        let table = tables::removal(free, compared)?;
        // What is in use must find room in what stays.
        let amount = view.blocks_down(table.min(view.integrated).min(free));
        (!amount.is_zero()).then_some((Change::Remove(amount), Reason::Idle { compared, table }))
    }
}

impl Provisioner for Literal {
    fn tick(&mut self, view: &NodeView) -> Decision {
        let (mut change, mut reason) = Self::integrate(view);
        if change == Change::Nothing
            && let Some(removal) = self.remove(view)
        {
            (change, reason) = removal;
        }
        Decision::about(view, change, reason)
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::{Bytes, Nanos};

    use super::*;
    use crate::view::{NodeId, Watermarks};

    /// A node of this kind of machine: 24 GiB, and the watermarks that its kernel has set.
    fn idle() -> NodeView {
        NodeView {
            node: NodeId(0),
            now: Nanos::ZERO,
            dram: Bytes::gib(24),
            dram_free: Bytes::gib(22),
            integrated: Bytes::ZERO,
            integrated_free: Bytes::ZERO,
            hidden: Bytes::gib(72),
            block: Bytes::mib(128),
            watermarks: Watermarks {
                min: Bytes::kib(4) * 16_894,
                low: Bytes::kib(4) * 22_354,
                high: Bytes::kib(4) * 27_814,
            },
        }
    }

    #[test]
    fn an_idle_machine_of_today_is_given_all_there_is() {
        let decision = Literal::new(Capacity::Installed).tick(&idle());
        assert_eq!(decision.change, Change::Integrate(Bytes::gib(72)), "eight times its DRAM");
        // It is the row that is named, not what happens to be free: `min` times 1024.
        let (threshold, target) = (Bytes::kib(4) * 16_894 * 1024, Bytes::gib(24 * 8));
        assert_eq!(decision.reason, Reason::Short { threshold, target });
    }

    #[test]
    fn it_takes_away_what_it_has_just_brought() {
        let full = NodeView {
            integrated: Bytes::gib(72),
            integrated_free: Bytes::gib(72),
            hidden: Bytes::ZERO,
            ..idle()
        };
        for capacity in [Capacity::Installed, Capacity::Integrated] {
            let decision = Literal::new(capacity).tick(&full);
            assert_eq!(decision.change, Change::Remove(Bytes::gib(72)), "{capacity:?}");
        }
    }

    #[test]
    fn a_small_integration_stays_for_ever_if_what_is_installed_counts() {
        let small = NodeView {
            dram_free: Bytes::mib(200),
            integrated: Bytes::gib(4),
            integrated_free: Bytes::gib(4),
            hidden: Bytes::ZERO,
            ..idle()
        };
        let by = |capacity, hidden| {
            Literal::new(capacity).remove(&NodeView { hidden, ..small }).map(|removal| removal.0)
        };
        assert_eq!(by(Capacity::Installed, Bytes::gib(1024)), None);
        assert!(matches!(by(Capacity::Integrated, Bytes::gib(1024)), Some(Change::Remove(_))));
    }

    #[test]
    fn a_node_that_is_quite_full_has_no_row() {
        let full = NodeView { dram_free: Bytes::mib(80), ..idle() };
        let decision = Literal::new(Capacity::Installed).tick(&full);
        assert_eq!((decision.change, decision.reason), (Change::Nothing, Reason::NoRow));
    }
}
