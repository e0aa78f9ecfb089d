//! Decisions about several pages, until the last of their moves has ended.

use std::collections::BTreeMap;

use terrace_core::{Abort, Action, Bytes, Cycles, Done, OpId, Outcome, Proposal};

/// More decisions under way than this, and the oldest is forgotten: its world lost moves.
const MOST: usize = 4096;

/// A decision that passed, and what came of its moves so far.
#[derive(Clone, Copy, Debug)]
struct Group {
    whole: Proposal,
    /// Moves that have not ended.
    left: u32,
    completed: u32,
    cost: Cycles,
    moved: Bytes,
    /// Why a move was not made, of the last one that was not.
    abort: Abort,
}

/// Decisions under way, by the number of the proposal that they were about. Their moves have the
/// numbers behind it.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: BTreeMap<OpId, Group>,
}

impl Groups {
    /// A decision passed; so many moves follow.
    pub(crate) fn begin(&mut self, whole: &Proposal, moves: u32) {
        if self.groups.len() >= MOST {
            self.groups.pop_first();
        }
        let group = Group {
            whole: *whole,
            left: moves,
            completed: 0,
            cost: Cycles(0),
            moved: Bytes::ZERO,
            abort: Abort::Stale,
        };
        self.groups.insert(whole.op, group);
    }

    fn of(&self, op: OpId) -> Option<OpId> {
        let (&head, group) = self.groups.range(..op).next_back()?;
        let Action::DemoteContext { pages, .. } = group.whole.action else { return None };
        (op.0 - head.0 <= u64::from(pages)).then_some(head)
    }

    /// Whether a move is part of a decision that is under way.
    pub(crate) fn has(&self, op: OpId) -> bool {
        !self.groups.is_empty() && self.of(op).is_some()
    }

    /// A move ended. After the last one: what came of the whole. It was carried out if any page
    /// was moved; its cost is that of all moves.
    pub(crate) fn ended(&mut self, done: &Done) -> Option<Done> {
        let head = self.of(done.proposal.op)?;
        let group = self.groups.get_mut(&head)?;
        group.left -= 1;
        match done.outcome {
            Outcome::Completed { cost, moved } => {
                group.completed += 1;
                group.cost += cost;
                group.moved += moved;
            }
            Outcome::Aborted(abort) => group.abort = abort,
        }
        if group.left > 0 {
            return None;
        }
        let group = self.groups.remove(&head)?;
        let outcome = if group.completed > 0 {
            Outcome::Completed { cost: group.cost, moved: group.moved }
        } else {
            Outcome::Aborted(group.abort)
        };
        Some(Done { proposal: group.whole, outcome })
    }
}
