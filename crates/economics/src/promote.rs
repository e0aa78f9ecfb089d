//! The model of a promotion.
//!
//! A page moves to a faster tier. It gains what its accesses save there for as
//! long as it stays; it costs the move, the program's stores that wait for it,
//! the accesses that wait behind its bytes, and the place that it takes from
//! another page.

use terrace_core::{Heat, PageSize, TierId};

use crate::access;
use crate::conditions::Conditions;
use crate::heat::Rates;
use crate::interval::Interval;
use crate::ledger::{Ledger, TermKind};
use crate::movement::{Movement, interference, stall};

/// Prices the promotion of a page. Pure.
pub(crate) fn price(
    heat: &Heat,
    page: PageSize,
    (from, to): (TierId, TierId),
    conditions: &Conditions<'_>,
) -> Ledger {
    let mut ledger = Ledger::default();
    let bytes = page.bytes();
    let rates = Rates::of(heat, from, page, conditions);
    access::enter(&mut ledger, &rates, access::saving(from, to, bytes, conditions), conditions);

    let calibration = conditions.calibration;
    let movement = Movement::new(from, to, bytes, calibration.promote_fixed, conditions);
    movement.enter(&mut ledger, conditions);
    ledger.duration = movement.duration(conditions);
    if conditions.tier(from).addressable {
        // In a tier that is not addressable nobody stores in place, and who
        // touches the page waits no longer than without the promotion.
        let stalled = stall(rates.stores, ledger.duration, conditions);
        ledger.enter(TermKind::Stall, stalled);
    }
    let waiting = interference(from, to, bytes, conditions);
    ledger.enter(TermKind::Interference, Interval::exact(waiting));

    // The place is charged once: by what the least useful resident earns there,
    // and by moving it out if there is no free page.
    let rent = conditions.market.ask.scale(bytes.as_f64() * conditions.horizon());
    let mut room = rent.scale(conditions.scarcity(to));
    if !conditions.has_room(to, bytes) {
        room +=
            Movement::new(to, from, bytes, calibration.demote_fixed, conditions).price(conditions);
    }
    ledger.enter(TermKind::Room, room);
    ledger
}
