//! From a policy's evidence to access rates with bounds.

use terrace_core::{Heat, PageSize, TierId};

use crate::conditions::{Conditions, RATE_MAX};
use crate::interval::{Interval, finite};

/// Events of which not one was seen were fewer than this with 95 % probability:
/// `-ln 0.05`.
const RULE_OF_THREE: f64 = 3.0;

/// Accesses a second of a page, as far as its samples tell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Loads a second.
    pub loads: Interval,
    /// Stores a second.
    pub stores: Interval,
    /// Share of the expected rate that is left at the lower bound; the same for
    /// any rate that rests on as many samples.
    pub(crate) confidence: f64,
    /// The expected rate does not fall below this, however low the measured
    /// one is: of a page without a single sample we know little, not zero.
    pub(crate) floor: f64,
}

impl Rates {
    /// Reads a policy's evidence on a page that lies in `tier`.
    ///
    /// Samples are Poisson arrivals. With `n` samples the bounds are those of
    /// the score interval, `n + z²/2 ± z·√(n + z²/4)`, relative to `n`; the
    /// factors are taken from loads and stores together and applied to both, so
    /// that one more load cannot make the stores less certain.
    ///
    /// Without a sample the expected rate is the posterior mean of a Gamma
    /// prior of shape ½ (Jeffreys') around the tier's mean: the tier's mean for
    /// a page that was never looked at, falling towards half a sample a window
    /// the longer it is looked at in vain. The upper bound is three samples a
    /// window.
    pub fn of(heat: &Heat, tier: TierId, page: PageSize, conditions: &Conditions<'_>) -> Self {
        Self::around(conditions.mean_rate(tier, page), heat, tier, conditions)
    }

    /// The same with another mean than the tier's.
    pub(crate) fn around(
        mean: f64,
        heat: &Heat,
        tier: TierId,
        conditions: &Conditions<'_>,
    ) -> Self {
        let rate = |value: f64| finite(value).clamp(0.0, RATE_MAX);
        let (loads, stores) = (rate(heat.loads.get()), rate(heat.stores.get()));
        let z2 = conditions.z() * conditions.z();
        let window = heat.window.as_secs();
        let most = conditions.most_accesses(tier);
        // Accesses a second that one sample in the window speaks for.
        let unit = if window > 0.0 {
            conditions.telemetry.sample_period.max(1) as f64 / window
        } else {
            most
        };
        let unseen = (RULE_OF_THREE * unit).min(most);

        let n = f64::from(heat.samples);
        let spread = conditions.z() * (n.max(1.0) + z2 / 4.0).sqrt();
        let upper = (n.max(1.0) + z2 / 2.0 + spread) / n.max(1.0);
        let (confidence, floor) = if heat.samples == 0 {
            // A rate without samples is a guess of the policy: no lower bound.
            (0.0, if window > 0.0 { 0.5 / (1.0 / unit + 0.5 / mean) } else { mean })
        } else {
            (((n + z2 / 2.0 - spread) / n).max(0.0), 0.0)
        };
        let bounds = |rate: f64, floor: f64| {
            let expected = rate.max(floor);
            Interval::new(rate * confidence, expected, (expected * upper).max(unseen))
        };
        Self { loads: bounds(loads, floor), stores: bounds(stores, 0.0), confidence, floor }
    }

    /// Loads and stores together.
    pub fn accesses(&self) -> Interval {
        self.loads + self.stores
    }
}
