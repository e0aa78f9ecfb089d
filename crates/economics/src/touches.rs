//! What came of memory that a profile said would be touched, where it was left alone to see.
//!
//! One action of some dozens that pay is held out. What is touched there says two things: how good
//! the profile is, which the next prices count with, and what the actions of the same kind that
//! were carried out meanwhile have brought, which the kill switch judges by.

use terrace_core::Cycles;

use crate::account::Account;

/// Weight of the profile itself, in places that were looked at.
const PRIOR: f64 = 2.0;
/// What is forgotten of the rest with each further place.
const FORGOTTEN: f64 = 1.0 / 16.0;

/// A place that was held out, and looked at later; or one that was not, where touches show there, too.
///
/// A world that sees more than touches may compare what the action brings: half of a unit was to
/// come about, so that twice as much has room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookedAt {
    /// The share of its base pages that was to be touched, 0 to 1.
    pub said: f64,
    /// The share that was.
    pub was: f64,
}

impl LookedAt {
    /// Of what was to come about, so many times as much did.
    pub const fn times(ratio: f64) -> Self {
        Self { said: 0.5, was: ratio / 2.0 }
    }
}

/// What is known of one class of action.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Touches {
    said: f64,
    was: f64,
    /// Actions that were carried out since a place was looked at: how many, what they cost, and
    /// what they bring if the profile is right.
    waiting: Account,
    /// Those that a place has spoken for.
    judged: Account,
}

impl Touches {
    /// Of what the profile says, the part that comes true.
    pub(crate) fn true_of(&self) -> f64 {
        (PRIOR + self.was) / (PRIOR + self.said)
    }

    /// An action was carried out. `gain` is what it was priced at, with what was known then.
    pub(crate) fn carried_out(&mut self, gain: f64, true_of: f64, cost: Cycles) {
        self.waiting.completed += 1;
        self.waiting.realised_cost += cost;
        self.waiting.predicted_benefit += Cycles::from_f64(gain / true_of.max(0.01));
    }

    /// A place was looked at; returns what the actions since the last one have brought.
    ///
    /// Spared faults and averted walks come about where memory is touched: both count by the part
    /// that came true. No counter of ours sees the walks themselves.
    pub(crate) fn look(&mut self, place: LookedAt) -> Cycles {
        let share = |value: f64| if value.is_finite() { value.clamp(0.0, 1.0) } else { 0.0 };
        let (said, was) = (share(place.said), share(place.was));
        for (sum, one) in [(&mut self.said, said), (&mut self.was, was)] {
            *sum += one - *sum * FORGOTTEN;
        }
        // Nothing was to be touched, and was: more than it said, but not without end.
        let part = if said > 0.0 { (was / said).min(2.0) } else { f64::from(u8::from(was > 0.0)) };
        let waiting = core::mem::take(&mut self.waiting);
        let brought = Cycles::from_f64(waiting.predicted_benefit.as_f64() * part);
        self.judged.completed += waiting.completed;
        self.judged.realised_cost += waiting.realised_cost;
        self.judged.realised_benefit += brought;
        brought
    }

    /// What was learnt goes on in a child; what was done is the parent's.
    pub(crate) fn forked(&mut self) {
        *self = Self { said: self.said, was: self.was, ..Self::default() };
    }

    /// The actions that a place has spoken for: what the kill switch judges.
    pub(crate) fn judged(&self) -> &Account {
        &self.judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_replaces_what_the_profile_says() {
        let mut touches = Touches::default();
        assert!((touches.true_of() - 1.0).abs() < 1e-9);
        for _ in 0..100 {
            touches.look(LookedAt { said: 1.0, was: 0.0 });
        }
        assert!(touches.true_of() < 0.15, "{}", touches.true_of());
        for _ in 0..100 {
            touches.look(LookedAt { said: 1.0, was: 1.0 });
        }
        assert!(touches.true_of() > 0.95, "{}", touches.true_of());
    }

    #[test]
    fn actions_have_brought_what_came_true_and_are_judged_only_when_a_place_has_spoken() {
        let mut touches = Touches::default();
        touches.carried_out(1000.0, 1.0, Cycles(400));
        touches.carried_out(500.0, 0.5, Cycles(400));
        assert_eq!(touches.judged().completed, 0);
        assert_eq!(touches.look(LookedAt { said: 0.8, was: 0.2 }), Cycles(500));
        assert_eq!(touches.judged().completed, 2);
        assert!((touches.judged().net() + 300.0).abs() < 1e-9, "500 for 800");
        assert_eq!(touches.look(LookedAt { said: 0.0, was: 0.0 }), Cycles::ZERO, "none since");
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            touches.carried_out(1000.0, 1.0, Cycles(1));
            touches.look(LookedAt { said: bad, was: bad });
            assert!(touches.true_of().is_finite());
        }
    }
}
