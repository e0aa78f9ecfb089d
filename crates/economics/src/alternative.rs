//! What else could be done with the same memory: the alternatives to an action.
//!
//! A policy proposes one action, and says nothing of others that would have been possible. Those
//! that the same evidence can price are priced beside it, so that an explanation shows what lost,
//! and by how much. Nothing is the measure of all of them: costs and benefits of an action are
//! against leaving everything as it is, so that doing nothing has none of either.

use serde::{Deserialize, Serialize};
use terrace_core::{Action, Proposal, Telemetry, TierId, TierTelemetry};

use crate::interval::Interval;
use crate::ledger::Ledger;
use crate::model;

/// The most alternatives that a decision keeps: the best ones.
pub const MAX_ALTERNATIVES: usize = 3;

/// What could be done instead of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Instead {
    /// The page, or all that moves of a context, goes to this tier. In place of a split, the huge
    /// page goes there as a whole.
    To(TierId),
    /// The page changes places with one of which nothing is known.
    Exchange,
    /// Of an exchange, the one page goes up, and room for it is made as for any other.
    Promote,
    /// Base pages are filled ahead, and not a huge page.
    Populate,
    /// Pages are made to fault.
    Arm,
    /// Accessed bits are read.
    Scan,
    /// Half as many accesses for a sample, or bytes a second.
    Half,
    /// Twice as many.
    Double,
}

impl Instead {
    /// The action that this is in place of another one; `None` where it is nothing that could be
    /// done in its place.
    pub fn of(self, action: &Action) -> Option<Action> {
        let other = match (self, *action) {
            (Self::To(to), Action::Promote { page, from, .. }) => {
                Action::Promote { page, from, to }
            }
            (Self::To(to), Action::Demote { page, from, .. }) => Action::Demote { page, from, to },
            (Self::To(to), Action::DemoteContext { context, pages, of, from, .. }) => {
                Action::DemoteContext { context, pages, of, from, to }
            }
            (Self::To(to), Action::Place { page, instead, mapped, .. }) => {
                Action::Place { page, to, instead, mapped }
            }
            (Self::To(to), Action::Split { page }) => {
                Action::Demote { page, from: TierId::FASTEST, to }
            }
            // Which page goes down is not known, and makes no difference to the price.
            (Self::Exchange, Action::Promote { page, from, to }) => {
                Action::Exchange { promote: page, demote: page, fast: to, slow: from }
            }
            (Self::Promote, Action::Exchange { promote, fast, slow, .. }) => {
                Action::Promote { page: promote, from: slow, to: fast }
            }
            (Self::Populate, Action::FirstTouch { range, touched, unsure, .. }) => {
                Action::Populate { range, touched, unsure }
            }
            (Self::Arm, Action::Scan { range }) => Action::Arm { range },
            (Self::Scan, Action::Arm { range }) => Action::Scan { range },
            (Self::Half, Action::SetPeriod { source, period }) => {
                Action::SetPeriod { source, period: period / 2 }
            }
            (Self::Double, Action::SetPeriod { source, period }) => {
                Action::SetPeriod { source, period: period.saturating_mul(2) }
            }
            (Self::Half, Action::Throttle { limit }) => Action::Throttle { limit: limit * 0.5 },
            (Self::Double, Action::Throttle { limit }) => Action::Throttle { limit: limit * 2.0 },
            _ => return None,
        };
        Some(other)
    }
}

/// The tiers in use, fastest first.
fn ladder(telemetry: &Telemetry) -> impl Iterator<Item = (TierId, &TierTelemetry)> {
    // A forged or damaged record may speak of more than there are.
    let used = telemetry.tiers.iter().take(usize::from(telemetry.tier_count));
    (0..).map(TierId).zip(used)
}

/// Names each alternative to an action that this machine has. Where there is no room nothing goes.
pub(crate) fn each(proposal: &Proposal, telemetry: &Telemetry, mut with: impl FnMut(Instead)) {
    let bytes = proposal.page_size.bytes();
    let mut to_each = |fits: &dyn Fn(TierId, &TierTelemetry) -> bool| {
        let fitting = ladder(telemetry).filter(|&(id, tier)| fits(id, tier));
        fitting.for_each(|(id, _)| with(Instead::To(id)));
    };
    match proposal.action {
        Action::Promote { from, to, .. } => {
            to_each(&|id, tier| id < from && id != to && tier.addressable);
            let tier = |id: TierId| telemetry.tiers.get(id.index());
            let is_full = tier(to).is_some_and(|to| to.addressable && to.free < bytes);
            if is_full && tier(from).is_some_and(|from| from.addressable) {
                with(Instead::Exchange);
            }
        }
        Action::Demote { from, to, .. } => {
            to_each(&|id, tier| id > from && id != to && tier.free >= bytes);
        }
        Action::DemoteContext { pages, from, to, .. } => {
            let all = bytes * u64::from(pages);
            to_each(&|id, tier| id > from && id != to && tier.free >= all);
        }
        Action::Split { .. } => to_each(&|id, tier| id > TierId::FASTEST && tier.free >= bytes),
        Action::Place { to, instead, .. } => {
            to_each(&|id, tier| {
                id != to && id != instead && tier.addressable && tier.free >= bytes
            });
        }
        Action::Exchange { .. } => with(Instead::Promote),
        // Where the program waits for it, base pages are what there is without the action.
        Action::FirstTouch { waits, .. } if waits.is_zero() => with(Instead::Populate),
        Action::Arm { .. } => with(Instead::Scan),
        Action::Scan { .. } => with(Instead::Arm),
        Action::SetPeriod { period, .. } => {
            if period > 1 {
                with(Instead::Half);
            }
            with(Instead::Double);
        }
        Action::Throttle { .. } => {
            with(Instead::Half);
            with(Instead::Double);
        }
        Action::FirstTouch { .. }
        | Action::Collapse { .. }
        | Action::Prezero { .. }
        | Action::Populate { .. }
        | Action::Compact { .. }
        | Action::Prefetch { .. }
        | Action::Reclaim { .. }
        | Action::Recompress { .. }
        | Action::ZeroAhead { .. } => {}
    }
}

/// An alternative with its price, in single precision as a decision's terms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// What it is.
    pub instead: Instead,
    benefit: [f32; 3],
    cost: [f32; 3],
}

impl Alternative {
    /// One with the price that a model has for it.
    pub(crate) fn new(instead: Instead, ledger: &Ledger) -> Self {
        let single = |it: Interval| [it.low as f32, it.expected as f32, it.high as f32];
        Self { instead, benefit: single(ledger.benefit), cost: single(ledger.cost) }
    }

    /// All that it would have brought, in cycles.
    pub fn benefit(&self) -> Interval {
        let [low, expected, high] = self.benefit.map(f64::from);
        Interval::new(low, expected, high)
    }

    /// All that it would have cost, in cycles.
    pub fn cost(&self) -> Interval {
        let [low, expected, high] = self.cost.map(f64::from);
        Interval::new(low, expected, high)
    }

    /// By how many cycles it would have paid in place of this action: the benefit that counts less
    /// the expected cost times the hurdle, as of a decision ([`crate::Decision::margin`]).
    pub fn margin(&self, action: &Action, hurdle: f64) -> f64 {
        let other = self.instead.of(action);
        let benefit = if other.is_some_and(|other| model::counts_expected(&other)) {
            self.benefit().expected
        } else {
            self.benefit().low
        };
        benefit - hurdle * self.cost().expected
    }
}

/// Takes one in among the best, best first.
pub(crate) fn keep(
    best: &mut [Option<Alternative>; MAX_ALTERNATIVES],
    mut one: Alternative,
    action: &Action,
    hurdle: f64,
) {
    let margin = |it: &Alternative| it.margin(action, hurdle);
    for place in best {
        if let Some(there) = place {
            if margin(there) < margin(&one) {
                core::mem::swap(there, &mut one);
            }
        } else {
            *place = Some(one);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::{PageNo, PageRef, RegionId};

    use super::*;
    use crate::ledger::TermKind;

    const PAGE: PageRef = PageRef { region: RegionId(0), page: PageNo(0) };
    const DEMOTE: Action = Action::Demote { page: PAGE, from: TierId(0), to: TierId(1) };

    #[test]
    fn the_best_alternatives_are_kept_best_first() {
        let mut best = [None; MAX_ALTERNATIVES];
        for (tier, benefit) in [(2, 10.0), (3, 40.0), (4, 20.0), (5, 30.0), (6, 5.0)] {
            let mut ledger = Ledger::default();
            ledger.enter(TermKind::SavedLoads, Interval::exact(benefit));
            let one = Alternative::new(Instead::To(TierId(tier)), &ledger);
            keep(&mut best, one, &DEMOTE, 1.5);
        }
        let kept: Vec<_> = best.into_iter().flatten().map(|it| it.instead).collect();
        assert_eq!(kept, [3, 5, 4].map(|tier| Instead::To(TierId(tier))));
    }

    #[test]
    fn an_alternative_is_an_action_about_the_same_page_and_else_none() {
        let to = Action::Demote { page: PAGE, from: TierId(0), to: TierId(2) };
        assert_eq!(Instead::To(TierId(2)).of(&DEMOTE), Some(to));
        assert_eq!(Instead::Populate.of(&DEMOTE), None);
    }
}
