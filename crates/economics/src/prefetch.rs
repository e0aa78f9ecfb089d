//! The model of pages that are brought in ahead of a walk.
//!
//! A page that is asked for later is spared its fault. Bringing it in is no cost of it, as the fault
//! would have done the same; where processors are idle, and somebody else than the thread that would
//! have waited brings it in, that is spared, too. A page that is not asked for was brought in for
//! nothing: it takes its time, room, and the way out if memory becomes short.
//!
//! How many are asked for is seen: of the pages that come, one in some hundreds is left out, and
//! whether the program faults on it says what would have become of it.

use terrace_core::{Cycles, Nanos, PageSize, TierId};

use crate::access::fetch_time;
use crate::calibration::Calibration;
use crate::conditions::Conditions;
use crate::interval::{Interval, finite};
use crate::ledger::{Ledger, TermKind};
use crate::prezero;
use crate::walks::LeftOut;

/// What is expected before anything was seen, and how many pages that were left out weigh as much:
/// a walk is only followed where faults came one behind the other, and most of such go on.
const EXPECTED: f64 = 0.9;
const WEIGHT: f64 = 8.0;

/// What is known of the pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// Where they lie; nowhere if they come as zeros.
    pub(crate) from: Option<TierId>,
    /// How many there are, and how many come at once.
    pub(crate) pages: u32,
    pub(crate) window: u32,
    /// Of so many that were left out, so many were asked for.
    pub(crate) used: u32,
    pub(crate) known: u32,
}

/// Prices so many pages. Pure.
pub(crate) fn price(evidence: &Evidence, conditions: &Conditions<'_>) -> Ledger {
    let mut ledger = Ledger::default();
    let calibration = conditions.calibration;
    let pages = f64::from(evidence.pages);
    let asked = asked_for(evidence.used, evidence.known, conditions.z());
    let wasted = pages * (1.0 - asked.expected);
    let fetch = evidence.from.map_or(0.0, |tier| conditions.cycles(fetch_time(tier, conditions)));
    let fill = conditions.cycles(calibration.copy_bandwidth.time_for(PageSize::Base.bytes()));

    let correction = conditions.market.correction;
    let price = conditions.cpu_price();
    let each = fetch + fill;
    let spared = fault(calibration) + (1.0 - price) * correction.expected * each;
    ledger.enter(TermKind::AvoidedFault, asked.scale(pages * spared));

    ledger.enter(TermKind::Fetch, correction.scale(price * fetch * wasted));
    let filling = if evidence.from.is_some() { TermKind::Copy } else { TermKind::Zero };
    ledger.enter(filling, correction.scale(price * fill * wasted));
    let calls = (pages / f64::from(evidence.window.max(1))).ceil();
    let fixed = conditions.cycles(calibration.promote_fixed) * calls;
    ledger.enter(TermKind::Fixed, correction.scale(price * fixed));
    prezero::untouched(&mut ledger, wasted, conditions);

    // A world reports all of its time as the cost, so what that spares is a part of the gain.
    ledger.processor = finite(pages * each + fixed);
    ledger.gain += finite(asked.expected * pages * price * correction.expected * each);
    ledger
}

/// A fault on a page that is not there, without bringing it in, in cycles.
pub(crate) fn fault(calibration: &Calibration) -> f64 {
    let cycles = |time: Nanos| finite(time.as_secs() * calibration.clock.get());
    cycles(calibration.user_fault)
}

/// What pages that were asked for have brought, where bringing those in has cost so much.
pub(crate) fn brought(used: f64, cost: Cycles, calibration: &Calibration) -> Cycles {
    cost + Cycles::from_f64(finite(used).max(0.0) * fault(calibration))
}

/// What having pages ahead that were left out was expected to spare, and would have: their faults.
pub(crate) fn left_out(pages: &LeftOut, z: f64, calibration: &Calibration) -> (Cycles, Cycles) {
    let expected = asked_for(pages.before.0, pages.before.1, z).expected;
    let faults = |pages: f64| Cycles::from_f64(pages * fault(calibration));
    (faults(pages.known as f64 * expected), faults(pages.used as f64))
}

/// The share of pages that will be asked for.
fn asked_for(used: u32, known: u32, z: f64) -> Interval {
    let n = f64::from(known) + WEIGHT;
    let share = (f64::from(used.min(known)) + WEIGHT * EXPECTED) / n;
    let error = z * (share * (1.0 - share) / (n + 1.0)).sqrt();
    Interval::new((share - error).max(0.0), share, (share + error).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_and_not_asked_for_speaks_against_the_next() {
        let shares = [0, 8, 16, 32, 64].map(|used| asked_for(used, 64, 1.0).expected);
        assert!(shares.is_sorted() && shares[0] < 0.11 && shares[4] > 0.98, "{shares:?}");
        let (nothing, little, much) =
            (asked_for(0, 0, 1.0), asked_for(9, 10, 1.0), asked_for(900, 1000, 1.0));
        assert!(nothing.low < little.low && little.low < much.low, "{little:?} {much:?}");
        assert!(asked_for(9, 2, 1.0).high <= 1.0, "more than there were");
    }
}
