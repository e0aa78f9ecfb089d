//! The model of a huge page that is zeroed ahead of need.
//!
//! It backs memory that the program is about to walk into, and saves the faults on its
//! base pages; page walks that it saves as well are not counted, since without a
//! hardware sampler nobody knows how often there would be one. It costs its zeroing,
//! and what the program never touches of it takes room, and has to leave page by page
//! if memory becomes short.

use terrace_core::{Cycles, Nanos, PageSize, Pages, TierId};

use crate::calibration::Calibration;
use crate::conditions::Conditions;
use crate::interval::{Interval, finite};
use crate::ledger::{Ledger, TermKind};
use crate::movement::base_pages;

/// Weight of what the walk's length says, in huge pages of which it is known what
/// came of them.
const PRIOR: f64 = 2.0;

/// Prices one page. Pure.
pub(crate) fn price(
    walked: Pages,
    outcomes: (u32, u32),
    page: PageSize,
    conditions: &Conditions<'_>,
) -> Ledger {
    let mut ledger = Ledger::default();
    let touched = touched(walked, outcomes, bases(page), conditions.z());
    back(&mut ledger, touched, page, Cycles::ZERO, conditions);
    ledger
}

/// The share of base pages that will be touched, of a statement about it that may be wrong by so
/// many, and that came true to such a part elsewhere.
pub(crate) fn share(touched: u16, unsure: u16, bases: f64, true_of: f64) -> Interval {
    let (touched, unsure) = (f64::from(touched), f64::from(unsure));
    let of = |pages: f64| (pages / bases.max(1.0) * true_of).clamp(0.0, 1.0);
    Interval::new(of(touched - unsure), of(touched), of(touched + unsure))
}

/// Base pages of a page.
pub(crate) fn bases(page: PageSize) -> f64 {
    base_pages(page.bytes())
}

/// Enters what it saves and costs to back memory with a page of zeros, of which a share will be
/// touched, and for which the program waits so long; or it is made ahead.
pub(crate) fn back(
    ledger: &mut Ledger,
    touched: Interval,
    page: PageSize,
    waits: Cycles,
    conditions: &Conditions<'_>,
) {
    let calibration = conditions.calibration;
    let bases = bases(page);
    ledger.enter(TermKind::AvoidedFault, touched.scale(saved(page, calibration)));

    let correction = conditions.market.correction;
    if waits.is_zero() {
        let copy = conditions.cycles(calibration.copy_bandwidth.time_for(PageSize::Base.bytes()));
        let zeroing = copy * bases;
        ledger.enter(TermKind::Zero, correction.scale(conditions.cpu_price() * zeroing));
        ledger.processor = zeroing;
        let fixed = conditions.cycles(calibration.promote_fixed);
        ledger.enter(TermKind::Fixed, correction.scale(fixed));
    } else {
        let stall = waits.as_f64();
        ledger.enter(TermKind::Stall, correction.scale(stall));
        ledger.enter(TermKind::Tail, correction.scale(conditions.tail(stall)));
        ledger.processor = stall;
    }

    untouched(ledger, (1.0 - touched.expected) * bases, conditions);
}

/// Enters what base pages cost that are there and never touched.
pub(crate) fn untouched(ledger: &mut Ledger, pages: f64, conditions: &Conditions<'_>) {
    const FAST: TierId = TierId(0);
    let calibration = conditions.calibration;
    let bytes = PageSize::Base.bytes().as_f64() * pages;
    let rent = conditions.market.ask.scale(bytes * conditions.horizon());
    ledger.enter(TermKind::Room, rent.scale(conditions.scarcity(FAST)));
    // The fuller memory is, the likelier it gets short while the page is there.
    let tier = conditions.tier(FAST);
    let short = 1.0 - (tier.free.as_f64() / tier.capacity.as_f64().max(1.0)).clamp(0.0, 1.0);
    let batch = f64::from(calibration.shootdown_batch.max(1));
    let own = calibration.demote_fixed + calibration.compress;
    let interrupts = (conditions.cpus() - 1.0) * conditions.cycles(calibration.shootdown_per_cpu);
    let leaves = conditions.cpu_price() * conditions.cycles(own) + interrupts / batch;
    ledger.enter(TermKind::Store, Interval::exact(pages * short * leaves));
}

/// What the faults on a huge page's base pages would cost, were they all touched, in cycles.
pub(crate) fn saved(page: PageSize, calibration: &Calibration) -> f64 {
    let cycles = |time: Nanos| finite(time.as_secs() * calibration.clock.get());
    let copy = cycles(calibration.copy_bandwidth.time_for(PageSize::Base.bytes()));
    base_pages(page.bytes()) * (cycles(calibration.user_fault) / calibration.a_fault() + copy)
}

/// The share of a huge page that the program will touch, as a walk of this length goes
/// on: if all lengths are equally likely by order of magnitude, one that was `k` pages
/// long reaches `k + x` with probability `k / (k + x)`, and touches of the next `n` the
/// share `k/n · ln(1 + n/k)`. What became of earlier pages is averaged in.
fn touched(walked: Pages, (used, known): (u32, u32), bases: f64, z: f64) -> Interval {
    let walked = (walked.get() as f64).max(1.0);
    let by_length = walked / bases * (bases / walked).ln_1p();
    let n = f64::from(known) + PRIOR;
    let share = ((f64::from(used.min(known)) + PRIOR * by_length) / n).clamp(0.0, 1.0);
    let error = z * (share * (1.0 - share) / (n + 1.0)).sqrt();
    Interval::new((share - error).max(0.0), share, (share + error).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(walked: u64, used: u32, known: u32) -> Interval {
        touched(Pages(walked), (used, known), 512.0, 1.0)
    }

    #[test]
    fn the_longer_a_walk_the_surer_that_it_goes_on() {
        let shares = [1, 64, 512, 4096, 1 << 20].map(|walked| share(walked, 0, 0).expected);
        assert!(shares.is_sorted(), "{shares:?}");
        assert!(shares[0] < 0.02 && shares[4] > 0.99, "{shares:?}");
        assert!((shares[2] - core::f64::consts::LN_2).abs() < 1e-9, "as long again: ln 2");
    }

    #[test]
    fn pages_that_nobody_used_speak_against_the_next() {
        assert!(share(4096, 0, 20).high < 0.3);
        assert!(share(64, 20, 20).low > 0.8);
        let certain = share(512, 1000, 1000);
        assert!(certain.high <= 1.0 && certain.low > share(512, 10, 10).low);
    }
}
