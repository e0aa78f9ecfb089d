//! What was decided, and why, in a form that is kept.

use core::fmt;

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};

use crate::view::{NodeId, NodeView};

/// How much slow memory near a node changes its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Bring so much online.
    Integrate(Bytes),
    /// Take so much offline.
    Remove(Bytes),
    /// Leave everything as it is.
    Nothing,
}

impl Change {
    /// The amount of memory that changes its state.
    pub fn amount(self) -> Bytes {
        match self {
            Self::Integrate(amount) | Self::Remove(amount) => amount,
            Self::Nothing => Bytes::ZERO,
        }
    }
}

/// Why a change was decided, or why none was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Free local memory fell to this threshold; so much is wanted online in all.
    Short {
        /// The threshold that was reached.
        threshold: Bytes,
        /// Slow memory that is wanted online, in all.
        target: Bytes,
    },
    /// Free memory is this large a part of what it is compared with; so much may leave.
    Idle {
        /// What the free memory is compared with.
        compared: Bytes,
        /// The amount that the table names for it.
        table: Bytes,
    },
    /// There is nothing to bring in or to give back, or too little is free to give back.
    Enough,
    /// More is wanted than there is.
    Exhausted {
        /// Slow memory that is wanted online, in all.
        target: Bytes,
    },
    /// The last change is too recent for memory to be given back.
    Settling {
        /// When memory may be given back, on the world's clock.
        until: Nanos,
    },
    /// The paper's table has no row for this amount.
    NoRow,
}

/// One decision about one node, with what it was based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// When it was taken, on the world's clock.
    pub at: Nanos,
    /// The node whose processors need the memory, or do not.
    pub node: NodeId,
    /// Free local memory: the node's DRAM and the slow memory that is online near it.
    pub free: Bytes,
    /// Slow memory online near the node.
    pub integrated: Bytes,
    /// What is to be done.
    pub change: Change,
    /// Why.
    pub reason: Reason,
}

impl Decision {
    /// A decision about a node as it was seen.
    pub fn about(view: &NodeView, change: Change, reason: Reason) -> Self {
        Self {
            at: view.now,
            node: view.node,
            free: view.local_free(),
            integrated: view.integrated,
            change,
            reason,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { threshold, target } => {
                write!(f, "free local memory is at most {threshold}: {target} are wanted online")
            }
            Self::Idle { compared, table } => {
                write!(f, "free memory is large beside {compared}: {table} may leave")
            }
            Self::Enough => write!(f, "neither too little nor too much is free"),
            // A row that wants all has no amount.
            Self::Exhausted { target } if target.get() > i64::MAX as u64 => {
                write!(f, "all is wanted online, and no more is hidden")
            }
            Self::Exhausted { target } => {
                write!(f, "{target} are wanted online, and no more is hidden")
            }
            Self::Settling { until } => {
                write!(f, "memory is given back {until} after the start at the earliest")
            }
            Self::NoRow => write!(f, "the paper's table has no row for this"),
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, free, integrated, reason, .. } = self;
        match self.change {
            Change::Integrate(amount) => write!(f, "{node}: bring {amount} online")?,
            Change::Remove(amount) => write!(f, "{node}: take {amount} offline")?,
            Change::Nothing => write!(f, "{node}: no change")?,
        }
        write!(f, " ({free} free, {integrated} online): {reason}")
    }
}
