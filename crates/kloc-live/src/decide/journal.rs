//! What was decided of late, and why.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, ContextIdentity, Nanos};

/// How many decisions are kept.
const MOST_DECISIONS: usize = 4096;

/// What became of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Outcome {
    /// Nothing was done: the mode is `observe`.
    Observed,
    /// It is being done.
    UnderWay,
    /// Pages have left.
    Dropped {
        /// How much.
        bytes: Bytes,
        /// How much of the file was dirty and was written first.
        written: Bytes,
        /// What is still cached: the disk was too slow, or it was used meanwhile.
        stays: Bytes,
    },
    /// Pages were moved to another node.
    Moved {
        /// How much.
        bytes: Bytes,
        /// Where to.
        node: u32,
    },
    /// Pages go first when memory is short.
    MarkedCold {
        /// How much.
        bytes: Bytes,
    },
    /// Pages were asked for again.
    Prefetched {
        /// How much.
        bytes: Bytes,
    },
    /// Somebody has it open.
    InUse,
    /// It was left alone, for this reason.
    LeftAlone {
        /// Why.
        reason: String,
    },
}

/// A decision about one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Its number.
    pub number: u64,
    /// When it was made, on the monotonic clock.
    pub at: Nanos,
    /// About which file.
    pub file: ContextIdentity,
    /// What was in use of which memory then.
    pub used: Bytes,
    /// The size of that memory.
    pub limit: Bytes,
    /// The memory's name.
    pub memory: String,
    /// For how long nobody had had the file open.
    pub closed_for: Nanos,
    /// How often it had come back while its pages were in place.
    pub hits: u32,
    /// How much of it was cached.
    pub bytes: Bytes,
    /// What became of it.
    pub outcome: Outcome,
    /// After how long it was opened again.
    pub came_back: Option<Nanos>,
}

/// The last decisions.
#[derive(Debug, Default)]
pub struct Journal {
    decisions: VecDeque<Decision>,
    next: u64,
}

impl Journal {
    /// Enters a decision; its number.
    pub fn enter(&mut self, mut decision: Decision) -> u64 {
        self.next += 1;
        decision.number = self.next;
        if self.decisions.len() == MOST_DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
        self.next
    }

    /// A decision that is still kept.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Decision> {
        let first = self.decisions.front()?.number;
        self.decisions.get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    /// The last decisions about a file, the youngest first.
    pub fn of<'a>(&'a self, file: &'a ContextIdentity) -> impl Iterator<Item = &'a Decision> {
        self.decisions.iter().rev().filter(move |decision| decision.file == *file)
    }

    /// The file came back: notes it at the last decision about it.
    pub fn came_back(&mut self, file: &ContextIdentity, at: Nanos) {
        let last = self.decisions.iter_mut().rev().find(|decision| decision.file == *file);
        if let Some(last) = last.filter(|last| last.came_back.is_none()) {
            last.came_back = Some(at.saturating_sub(last.at));
        }
    }

    /// The last decisions, the youngest first.
    pub fn last(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.iter().rev()
    }
}
