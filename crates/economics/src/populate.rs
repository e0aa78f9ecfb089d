//! The model of base pages that are filled with zeros ahead of their first touch.
//!
//! Pages that will be touched are spared a fault each, or their share of one where faults bring
//! in their neighbours. Filling costs them nothing, as it is done either way. Those that will not
//! be touched are filled for nothing, take room, and have to leave if memory becomes short.
//!
//! Where a kernel fills them within a fault ([`Calibration::fill_fixed`](crate::Calibration)), there
//! is no call, and mapping a page takes a part of what the fault would have.

use terrace_core::PageSize;

use crate::conditions::Conditions;
use crate::interval::Interval;
use crate::ledger::{Ledger, TermKind};
use crate::prezero;

/// Prices so many pages, of which so many will be touched, or as many more or fewer. Pure.
pub(crate) fn price(
    count: u32,
    (touched, unsure): (u16, u16),
    conditions: &Conditions<'_>,
) -> Ledger {
    let mut ledger = Ledger::default();
    let calibration = conditions.calibration;
    let pages = f64::from(count);
    let share = prezero::share(touched, unsure, pages, conditions.touched());
    let untouched = pages * (1.0 - share.expected);

    // A walk's faults bring in pages together; of random touches, each is a fault of its own.
    let fill = conditions.cycles(calibration.fill_fixed);
    let fault = (conditions.cycles(calibration.user_fault) - fill).max(0.0);
    let together = fault / calibration.a_fault();
    let spared = Interval::new(together, (together * fault).sqrt(), fault);
    ledger.enter(TermKind::AvoidedFault, spared.times(share.scale(pages)));

    let bytes = PageSize::Base.bytes();
    let zero = conditions.cycles(calibration.copy_bandwidth.time_for(bytes));
    let correction = conditions.market.correction;
    let idle = conditions.cpu_price();
    ledger.enter(TermKind::Zero, correction.scale(idle * zero * untouched));
    // As many calls as there would be faults of a walk.
    let calls = if fill > 0.0 { 0.0 } else { (pages / calibration.a_fault()).ceil() };
    let fixed = conditions.cycles(calibration.promote_fixed) * calls;
    ledger.enter(TermKind::Fixed, correction.scale(idle * (fixed + fill * untouched)));
    ledger.processor = (zero + fill) * pages + fixed;
    prezero::untouched(&mut ledger, untouched, conditions);
    ledger
}
