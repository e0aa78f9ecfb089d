//! What was predicted and what came of it, per class of action.

use serde::{Deserialize, Serialize};
use terrace_core::{ActionClass, Cycles, Nanos};

/// What one class of action was predicted to cost and bring, and did.
///
/// Benefits and harms are those of the program's own accesses. The value of
/// freed memory is no part of them: it is earned, and counted, by the page that
/// takes the place. So the accounts of all classes can be added up.
///
/// As many fields as there are figures, which recordings and reports carry by these names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// Proposals seen.
    pub proposed: u64,
    /// Refused.
    pub vetoed: u64,
    /// Found not to pay, but let pass since the economist only watches, or advises.
    pub would_veto: u64,
    /// What those were expected to cost the program, with everything that a price has.
    #[serde(default)]
    pub would_veto_cost: Cycles,
    /// What those were expected to bring, with everything that a price has.
    #[serde(default)]
    pub would_veto_benefit: Cycles,
    /// Let pass since they had to be.
    pub forced: u64,
    /// Let pass for the sake of what they teach.
    pub explored: u64,
    /// Would have paid, but were held out at random, to see what becomes of pages without it.
    pub held_out: u64,
    /// What was predicted of those of them that were watched to the end.
    pub held_out_predicted: Cycles,
    /// What accesses to those would have gained by it, on balance, as far as they were observed.
    pub held_out_observed: Cycles,
    /// Carried out.
    pub completed: u64,
    /// Let pass but not carried out.
    pub aborted: u64,
    /// Carried out so long after their decision that the prediction was gone;
    /// they are in the realised cost only.
    pub unmatched: u64,
    /// Predicted cost of what was carried out: processor time of the mechanism.
    pub predicted_cost: Cycles,
    /// What that cost.
    pub realised_cost: Cycles,
    /// What was aborted has cost so much, where that is known: making a huge page for which the kernel
    /// finds no block. Of the same actions nothing is in the two above.
    #[serde(default)]
    pub aborted_cost: Cycles,
    /// Predicted benefit of what was carried out.
    pub predicted_benefit: Cycles,
    /// Benefit as far as it was observed afterwards, extrapolated from the
    /// watched pages to all; zero where nobody observes it ([`benefit_is_observed`]).
    pub realised_benefit: Cycles,
    /// Predicted loss of accesses: mostly of those to pages that went down.
    pub predicted_harm: Cycles,
    /// Regret: that loss as far as it was observed afterwards, extrapolated
    /// from the watched pages to all; zero where nobody observes it ([`harm_is_observed`]).
    pub realised_harm: Cycles,
    /// Actions whose consequences were watched to the end.
    pub judged: u64,
    /// Predicted benefit of those that were expected to bring one.
    pub judged_predicted_benefit: Cycles,
    /// Their observed benefit.
    pub judged_realised_benefit: Cycles,
    /// Predicted harm of those that were expected to do some.
    pub judged_predicted_harm: Cycles,
    /// Their observed harm.
    pub judged_realised_harm: Cycles,
}

impl Account {
    /// Pages were moved together for a block, after which there was one or was none. What a block brings is
    /// in the account of the huge page that takes it; here it is only compared with what was predicted.
    pub(crate) fn found_block(&mut self, class: ActionClass, worth: f64, found: bool) {
        if class == ActionClass::Compact {
            let worth = Cycles::from_f64(worth);
            self.judged += 1;
            self.judged_predicted_benefit += worth;
            self.judged_realised_benefit += if found { worth } else { Cycles::ZERO };
        }
    }

    /// Let pass, with an end that nobody has told yet: such an action waits, or is under way. When a
    /// run is over, these are the actions that it was too short for. What was proposed is the sum of
    /// what was vetoed, held out, completed and aborted, and of these.
    pub const fn unfinished(&self) -> u64 {
        // A forked child may tell the end of what its parent has proposed.
        self.proposed.saturating_sub(self.vetoed + self.held_out + self.completed + self.aborted)
    }

    /// What actions have cost, with those that came to nothing.
    pub fn whole_cost(&self) -> Cycles {
        self.realised_cost + self.aborted_cost
    }

    /// Realised over predicted cost of what was carried out.
    pub fn cost_ratio(&self) -> Option<f64> {
        ratio(self.realised_cost, self.predicted_cost)
    }

    /// Realised over predicted benefit of the actions that were watched to the end.
    pub fn benefit_ratio(&self) -> Option<f64> {
        ratio(self.judged_realised_benefit, self.judged_predicted_benefit)
    }

    /// Realised over predicted harm of the actions that were watched to the end.
    pub fn harm_ratio(&self) -> Option<f64> {
        ratio(self.judged_realised_harm, self.judged_predicted_harm)
    }

    /// The same of actions that were held out: what they would have brought over what was
    /// predicted. Where it is far from [`Account::benefit_ratio`], it is the action itself that
    /// changes how pages are used, or how they are seen.
    pub fn held_out_ratio(&self) -> Option<f64> {
        ratio(self.held_out_observed, self.held_out_predicted)
    }

    /// Cycles gained in all, as far as observed; negative if lost.
    pub fn net(&self) -> f64 {
        self.realised_benefit.as_f64() - self.realised_harm.as_f64() - self.whole_cost().as_f64()
    }
}

/// Whether anybody observes what actions of a class bring. Where nobody does, the zero in the account
/// says nothing.
pub const fn benefit_is_observed(class: ActionClass) -> bool {
    match class {
        ActionClass::Promote
        | ActionClass::Demote
        | ActionClass::Exchange
        | ActionClass::Prezero
        | ActionClass::FirstTouch
        | ActionClass::Populate
        | ActionClass::Prefetch => true,
        ActionClass::Collapse
        | ActionClass::DemoteContext
        | ActionClass::Split
        | ActionClass::Place
        | ActionClass::Compact
        | ActionClass::Observe
        | ActionClass::Rate
        | ActionClass::Reclaim
        | ActionClass::Recompress => false,
    }
}

/// Whether anybody observes what the accesses to pages lose by actions of a class: pages that moved are
/// watched, and those that come back from a file are counted.
pub const fn harm_is_observed(class: ActionClass) -> bool {
    matches!(
        class,
        ActionClass::Promote | ActionClass::Demote | ActionClass::Exchange | ActionClass::Reclaim
    )
}

fn ratio(realised: Cycles, predicted: Cycles) -> Option<f64> {
    (!predicted.is_zero()).then(|| realised / predicted)
}

/// Gains and costs, in processor time, of all actions whose gain is known.
///
/// Other actions are not in it: pages that had to leave for other reasons than to make room for one that
/// was moved up, and actions whose gain is still to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Balance {
    /// Time that the actions have saved the program.
    pub brought: Nanos,
    /// Time that the actions took themselves, and that accesses lost by them.
    pub took: Nanos,
    /// Time that deciding on actions of these classes took.
    pub deciding: Nanos,
}

impl Balance {
    /// How long a run goes on before its balance says anything: six horizons.
    const LONG: Nanos = Nanos::seconds(60);
    /// One part of so many of a processor's time is nothing that anybody would do anything about.
    const LITTLE: u64 = 100;

    /// Whether more was spent than it brought, in a run that has gone on for so long.
    pub fn loses(&self, elapsed: Nanos) -> bool {
        let spent = self.took + self.deciding;
        elapsed >= Self::LONG && spent > self.brought + elapsed / Self::LITTLE
    }

    /// Whether the actions have brought what they took, if deciding had taken nothing.
    pub fn actions_pay(&self) -> bool {
        self.brought >= self.took
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_loses_when_it_has_gone_on_for_long_and_has_spent_what_would_be_missed() {
        let balance = |brought, took, deciding| Balance {
            brought: Nanos::millis(brought),
            took: Nanos::millis(took),
            deciding: Nanos::millis(deciding),
        };
        let elapsed = Nanos::seconds(100);
        for (it, loses, actions_pay) in [
            (balance(5_000, 4_000, 500), false, true),
            (balance(5_000, 4_000, 2_500), true, true),
            (balance(1_000, 4_000, 0), true, false),
            (balance(0, 900, 0), false, false),
            (Balance::default(), false, true),
        ] {
            assert_eq!((it.loses(elapsed), it.actions_pay()), (loses, actions_pay), "{it:?}");
        }
        assert!(!balance(0, 40_000, 0).loses(Nanos::seconds(50)), "it is too early to say");
    }
}
