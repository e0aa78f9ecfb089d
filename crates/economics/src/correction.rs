//! How far the mechanism's real cost is from the calibrated one.

use terrace_core::Cycles;

use crate::interval::{Interval, finite};

/// Weight of one more outcome, once there are enough of them.
const WEIGHT: f64 = 1.0 / 16.0;

/// The correction stays within a factor of eight: if the truth is further off
/// than that, the calibration is of another machine, and one should hear of it
/// from the accounts instead of having it papered over.
const LIMIT: f64 = 8.0;

/// The running mean of realised over predicted cost, of one class of actions.
/// It is kept of the logarithm, so that twice and half weigh the same.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Correction {
    log_mean: f64,
    outcomes: u32,
    /// Work since the last outcome of which nothing came: it is a part of what the next one takes. Were
    /// it left out, only those that were cheap would count.
    in_vain: f64,
}

impl Correction {
    /// Takes an outcome into account. A world that does not time its actions
    /// reports zero, which says nothing.
    pub(crate) fn outcome(&mut self, predicted: f64, realised: Cycles) {
        if predicted <= 0.0 || realised.is_zero() {
            return;
        }
        self.outcomes = self.outcomes.saturating_add(1);
        let all = realised.as_f64() + core::mem::take(&mut self.in_vain);
        let ratio = (all / predicted).clamp(1.0 / LIMIT, LIMIT);
        let weight = WEIGHT.max(1.0 / f64::from(self.outcomes));
        self.log_mean += weight * (ratio.ln() - self.log_mean);
    }

    /// Takes work into account that was given up when such a part of it was done. As long as nothing is
    /// ever done the factor stays what it is: at a higher one nothing might be tried any more, and
    /// nothing learnt.
    pub(crate) fn given_up(&mut self, predicted: f64, part: f64, realised: Cycles) {
        let done = predicted * finite(part).clamp(0.0, 1.0);
        if done > 0.0 {
            self.outcome(done, realised);
        } else {
            self.in_vain += realised.as_f64();
        }
    }

    /// The factor to apply to calibrated costs. `spread` is by which factor
    /// those may be wrong; it shrinks with outcomes as a mean's standard error.
    pub(crate) fn factor(&self, spread: f64) -> Interval {
        let ratio = self.log_mean.exp();
        let outcomes = f64::from(self.outcomes).min(2.0 / WEIGHT);
        let error = finite(spread).clamp(1.0, 1e6).powf(1.0 / (1.0 + outcomes).sqrt());
        Interval::new(ratio / error, ratio, ratio * error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_move_the_factor_and_narrow_it() {
        let mut correction = Correction::default();
        assert_eq!(correction.factor(2.0), Interval::new(0.5, 1.0, 2.0));

        for _ in 0..50 {
            correction.outcome(1000.0, Cycles(3000));
        }

        let factor = correction.factor(2.0);
        assert!((factor.expected - 3.0).abs() < 1e-9, "{factor:?}");
        assert!(factor.high / factor.low < 1.3, "{factor:?}");
    }

    #[test]
    fn one_absurd_outcome_cannot_make_an_action_free_or_priceless() {
        let mut correction = Correction::default();
        correction.outcome(1e9, Cycles(1));
        assert!(correction.factor(1.0).expected >= 0.124);
        let mut correction = Correction::default();
        correction.outcome(1.0, Cycles::MAX);
        assert!(correction.factor(1.0).expected <= 8.001);
    }

    /// Whoever counts only what was completed has the cheap ones.
    #[test]
    fn work_that_is_given_up_counts_with_what_was_done_of_it() {
        let mut correction = Correction::default();
        correction.given_up(1000.0, 0.0, Cycles(100));
        assert_eq!(correction.factor(2.0), Correction::default().factor(2.0), "nothing was done");
        correction.given_up(1000.0, 0.25, Cycles(400));
        assert!((correction.factor(2.0).expected - 2.0).abs() < 1e-9, "500 for a quarter");
        correction.outcome(1000.0, Cycles(2000));
        assert!((correction.factor(2.0).expected - 2.0).abs() < 1e-9, "it counted once");
    }

    #[test]
    fn a_world_that_does_not_time_its_actions_changes_nothing() {
        let mut correction = Correction::default();
        correction.outcome(1000.0, Cycles::ZERO);
        assert_eq!(correction.factor(2.0), Correction::default().factor(2.0));
    }
}
