//! Quantities that are not known exactly.

use core::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// The largest amount that a price takes. Beyond it nothing is distinguished:
/// 10^30 cycles are more than any machine will ever run. It fits an `f32`, so
/// that ledger lines can be stored in half the space.
pub const AMOUNT_MAX: f64 = 1e30;

/// A quantity that is not known exactly. Always finite and in order, whatever
/// it is made of: an unknown is a wide interval, never infinity or NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// At least.
    pub low: f64,
    /// The best single guess.
    pub expected: f64,
    /// At most.
    pub high: f64,
}

impl Interval {
    /// Nothing, for certain.
    pub const ZERO: Self = Self { low: 0.0, expected: 0.0, high: 0.0 };

    /// An amount of which nothing is known but that it is not negative.
    pub const UNKNOWN: Self = Self { low: 0.0, expected: 0.0, high: AMOUNT_MAX };

    /// An interval. Ends in the wrong order are spread to include `expected`.
    pub fn new(low: f64, expected: f64, high: f64) -> Self {
        let expected = finite(expected);
        Self { low: finite(low).min(expected), expected, high: finite(high).max(expected) }
    }

    /// A known amount.
    pub fn exact(value: f64) -> Self {
        Self::new(value, value, value)
    }

    /// The interval times a known factor of zero or more.
    #[must_use]
    pub fn scale(self, factor: f64) -> Self {
        let factor = finite(factor).max(0.0);
        Self::new(self.low * factor, self.expected * factor, self.high * factor)
    }

    /// The product of two amounts of zero or more.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        Self::new(self.low * other.low, self.expected * other.expected, self.high * other.high)
    }

    /// Applies a function that never decreases.
    #[must_use]
    pub fn map(self, increasing: impl Fn(f64) -> f64) -> Self {
        Self::new(increasing(self.low), increasing(self.expected), increasing(self.high))
    }

    /// A mixture: this with weight `weight` (0 to 1), `other` with the rest.
    #[must_use]
    pub fn mixed(self, weight: f64, other: Self) -> Self {
        let weight = finite(weight).clamp(0.0, 1.0);
        self.scale(weight) + other.scale(1.0 - weight)
    }
}

impl Add for Interval {
    type Output = Self;
    /// Adds end by end: the errors are taken to go together, which is the
    /// cautious reading, since the terms of one ledger mostly rest on one heat.
    fn add(self, other: Self) -> Self {
        Self::new(self.low + other.low, self.expected + other.expected, self.high + other.high)
    }
}

impl AddAssign for Interval {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// The nearest amount that can be computed with; NaN says nothing and counts as zero.
pub(crate) fn finite(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(-AMOUNT_MAX, AMOUNT_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_input_makes_an_interval_that_cannot_be_compared() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, 0.0, -0.0] {
            for interval in [
                Interval::new(value, 1.0, value),
                Interval::exact(value).scale(value),
                Interval::exact(value) + Interval::UNKNOWN,
                Interval::UNKNOWN.mixed(value, Interval::exact(value)),
            ] {
                assert!(interval.low <= interval.expected, "{interval:?}");
                assert!(interval.expected <= interval.high, "{interval:?}");
                assert!(interval.low.is_finite() && interval.high.is_finite(), "{interval:?}");
            }
        }
    }

    #[test]
    fn a_mixture_of_half_knowledge_lies_between() {
        let known = Interval::new(2.0, 4.0, 6.0);
        let mixed = known.mixed(0.5, Interval::new(0.0, 10.0, 20.0));
        assert_eq!(mixed, Interval::new(1.0, 7.0, 13.0));
    }
}
