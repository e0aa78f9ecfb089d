//! How much slower a program ran whose pages stay mapped, in several memories.
//!
//! No access faults there, so no thread is seen to wait, and [`crate::slowdown`] has nothing to
//! take away from the run time. What is known is how the accesses that were observed spread over
//! the tiers, what an access takes in each, and how many pages came back from swap. From these
//! follows a bound:
//!
//! 1. A program that does nothing but wait for memory is as much slower as its accesses take
//!    longer: their latencies' mean, by what was observed, over the fastest tier's. One
//!    that computes as well, or has several accesses under way at once, is less.
//! 2. Every page that came back from swap held up the only thread that there was, for what a
//!    page from there takes. With several threads it was less.
//! 3. Latencies are those of idle memories, of loads: where a memory is loaded to its limits, it
//!    was more.
//! 4. Samples stand for accesses. Samplers that see pages, and not accesses (DAMON, soft-dirty
//!    bits), count a page that is used once as one that is used all the time.
//!
//! Where one of the figures is not known, neither is the bound, and the reason is told.

use serde::{Deserialize, Serialize};
use terrace_core::Nanos;
use terrace_live::attach::LatencyFrom;

use crate::attach::TierLine;

/// The estimate, and what it rests on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InPlaceSlowdown {
    /// Run time by estimated run time in the fastest memory alone, at most; `None` if that is
    /// not known.
    pub at_most: Option<f64>,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// What the observed accesses took on average, by what they take in the fastest tier;
    /// `None` if none were observed.
    pub latency_ratio: Option<f64>,
    /// Whether any of these latencies is only derived from the distances of nodes.
    pub assumed: bool,
    /// Time that threads waited for pages from swap; `None` if what one takes is not known.
    pub swap_stall: Option<Nanos>,
}

impl InPlaceSlowdown {
    /// Estimates from an attachment's figures: so much time, such tiers, so many pages that came
    /// back from swap.
    pub fn estimate(elapsed: Nanos, tiers: &[TierLine], refaults: u64) -> Self {
        let (latency_ratio, assumed) = latency_ratio(tiers).unzip();
        let from_swap = tiers.iter().find(|tier| tier.memory == SWAP).and_then(known_latency);
        let swap_stall = match (refaults, from_swap) {
            (0, _) => Some(Nanos::ZERO),
            (_, latency) => latency.map(|latency| latency * refaults),
        };
        let known = Self {
            latency_ratio,
            assumed: assumed.unwrap_or(false),
            swap_stall,
            ..Self::default()
        };
        let why = match (latency_ratio, swap_stall) {
            (None, _) => "no access was observed",
            (_, None) => {
                "what a page from swap takes is not known (`read-latency` in a ladder file)"
            }
            (Some(_), Some(stall)) if stall >= elapsed => "hardly anything but waits for swap",
            (Some(ratio), Some(stall)) => {
                let at_most = ratio * (elapsed / (elapsed - stall));
                return Self { at_most: Some(at_most), ..known };
            }
        };
        Self { unknown: Some(why.to_owned()), ..known }
    }
}

/// What the tier is called that pages come back from by a fault.
const SWAP: &str = "swap";

/// What an access takes there, if that is more than a guess.
fn known_latency(tier: &TierLine) -> Option<Nanos> {
    tier.latency.filter(|_| tier.latency_from != Some(LatencyFrom::Nothing))
}

/// Mean latency of the observed accesses by the fastest tier's, and whether one of these
/// latencies is assumed. `None` without accesses, or if a latency is not known.
fn latency_ratio(tiers: &[TierLine]) -> Option<(f64, bool)> {
    let fastest = known_latency(tiers.first()?).filter(|latency| !latency.is_zero())?;
    let (mut all, mut sum, mut assumed) = (0.0, 0.0, false);
    for tier in tiers.iter().filter(|tier| tier.memory != SWAP) {
        let share = tier.all_accesses?;
        if share > 0.0 {
            all += share;
            sum += share * (known_latency(tier)? / fastest);
            assumed |= tier.latency_from == Some(LatencyFrom::Distance);
        }
    }
    (all > 0.0).then(|| (sum / all, assumed))
}

#[cfg(test)]
mod tests {
    use terrace_core::Bytes;

    use super::*;

    fn tier(memory: &str, latency: u64, from: LatencyFrom, share: Option<f64>) -> TierLine {
        TierLine {
            memory: memory.to_owned(),
            node: None,
            capacity: None,
            at_begin: Bytes::ZERO,
            now: Bytes::ZERO,
            recent_accesses: share,
            all_accesses: share,
            latency: Some(Nanos(latency)),
            latency_from: Some(from),
        }
    }

    fn nodes(fast: f64) -> Vec<TierLine> {
        vec![
            tier("numa:0", 100, LatencyFrom::Firmware, Some(fast)),
            tier("numa:1", 300, LatencyFrom::Ladder, Some(1.0 - fast)),
        ]
    }

    #[test]
    fn accesses_take_as_much_longer_as_more_of_them_are_to_the_slow_tier() {
        let of = |fast| InPlaceSlowdown::estimate(Nanos::seconds(10), &nodes(fast), 0);

        assert_eq!(of(1.0).at_most, Some(1.0));
        // Three quarters at 100 ns, one at 300.
        assert_eq!(of(0.75).at_most, Some(1.5));
        assert_eq!(of(0.0).at_most, Some(3.0));
        assert!(!of(0.75).assumed && of(0.75).unknown.is_none());
    }

    #[test]
    fn pages_from_swap_are_waited_for_one_after_the_other() {
        let mut tiers = nodes(1.0);
        tiers.push(tier("swap", 5_000, LatencyFrom::Zram, None));

        let slowdown = InPlaceSlowdown::estimate(Nanos::seconds(10), &tiers, 1_000_000);

        // 5 s of 10.
        assert_eq!(slowdown.swap_stall, Some(Nanos::seconds(5)));
        assert_eq!(slowdown.at_most, Some(2.0));
    }

    #[test]
    fn what_is_assumed_is_told_as_such_as_far_as_it_matters() {
        let mut tiers = nodes(0.5);
        tiers[1].latency_from = Some(LatencyFrom::Distance);
        assert!(InPlaceSlowdown::estimate(Nanos::seconds(1), &tiers, 0).assumed);

        (tiers[0].all_accesses, tiers[1].all_accesses) = (Some(1.0), Some(0.0));
        assert!(!InPlaceSlowdown::estimate(Nanos::seconds(1), &tiers, 0).assumed);
    }

    #[test]
    fn what_is_not_known_is_said_and_not_guessed() {
        let unseen: Vec<_> =
            nodes(0.5).into_iter().map(|tier| TierLine { all_accesses: None, ..tier }).collect();
        let unseen = InPlaceSlowdown::estimate(Nanos::seconds(1), &unseen, 0);
        assert_eq!((unseen.at_most, unseen.latency_ratio), (None, None));
        assert_eq!(unseen.unknown.as_deref(), Some("no access was observed"));

        let mut disk = nodes(1.0);
        disk.push(tier("swap", 5_000, LatencyFrom::Nothing, None));
        let some = InPlaceSlowdown::estimate(Nanos::seconds(1), &disk, 7);
        assert_eq!((some.at_most, some.swap_stall), (None, None));
        assert!(some.unknown.unwrap().contains("`read-latency`"));
        // Nothing came back from it: then it does not matter.
        let none = InPlaceSlowdown::estimate(Nanos::seconds(1), &disk, 0);
        assert_eq!((none.at_most, none.swap_stall), (Some(1.0), Some(Nanos::ZERO)));
    }

    #[test]
    fn a_run_that_was_all_waiting_has_no_factor_rather_than_an_infinite_one() {
        let mut tiers = nodes(1.0);
        tiers.push(tier("swap", 5_000, LatencyFrom::Zram, None));

        let slowdown = InPlaceSlowdown::estimate(Nanos::millis(5), &tiers, 1_000);

        assert_eq!(slowdown.at_most, None);
        assert!(slowdown.unknown.is_some());
    }
}
