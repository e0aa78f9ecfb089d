//! The model of a huge page that is broken into base pages.
//!
//! Base pages that are cold can leave then, and their memory is worth what others offer for it;
//! how many there are the proposal does not say. It costs page walks: at most one for each
//! access that is known, and the kernel's work.

use terrace_core::{Heat, Nanos, PageSize, TierId};

use crate::conditions::Conditions;
use crate::heat::Rates;
use crate::interval::{Interval, finite};
use crate::ledger::{Ledger, TermKind};
use crate::movement::base_pages;

/// The kernel's work. Assumed: 512 entries are written, and as many pages put on a list; a tenth
/// of a microsecond each. Corrected by what it really takes.
const FIXED: Nanos = Nanos::micros(50);

/// Prices one huge page. Pure.
pub(crate) fn price(heat: &Heat, page: PageSize, conditions: &Conditions<'_>) -> Ledger {
    const FAST: TierId = TierId(0);
    let mut ledger = Ledger::default();
    let calibration = conditions.calibration;
    let bytes = page.bytes();
    // From none to all but one.
    let cold = Interval::new(0.0, 0.5, 1.0 - 1.0 / base_pages(bytes));
    let rent = conditions.market.bid.scale(bytes.as_f64() * conditions.horizon());
    ledger.enter(TermKind::FreedMemory, rent.times(cold).scale(conditions.scarcity(FAST)));

    let accesses = Rates::of(heat, FAST, page, conditions).accesses();
    let each = conditions.access_cycles(calibration.page_walk);
    // From none that walks to all.
    let walk = Interval::new(0.0, 0.5, 1.0).scale(each);
    ledger.enter(TermKind::MoreWalks, accesses.scale(conditions.horizon()).times(walk));
    let fixed = conditions.cycles(FIXED);
    let correction = conditions.market.correction;
    ledger.enter(TermKind::Fixed, correction.scale(conditions.cpu_price() * fixed));
    let interrupts = (conditions.cpus() - 1.0) * conditions.cycles(calibration.shootdown_per_cpu);
    let own = conditions.cpu_price() * conditions.cycles(calibration.shootdown);
    ledger.enter(TermKind::Shootdown, correction.scale(own + interrupts));
    ledger.processor = finite(fixed);
    ledger
}
