//! The model of a demotion.
//!
//! A page moves to a slower tier. That is worth what the page which comes in
//! its place earns there, and nothing while memory is free; it costs both
//! moves and what the page's own accesses lose. In a tier that is not
//! addressable a page that is touched again has to be brought back.

use terrace_core::{Heat, PageSize, TierId};

use crate::access;
use crate::conditions::Conditions;
use crate::heat::Rates;
use crate::interval::Interval;
use crate::ledger::{Ledger, TermKind};
use crate::movement::{Movement, interference, stall};

/// Prices the demotion of a page. Pure.
pub(crate) fn price(
    heat: &Heat,
    page: PageSize,
    (from, to): (TierId, TierId),
    conditions: &Conditions<'_>,
) -> Ledger {
    let mut ledger = Ledger::default();
    let bytes = page.bytes();
    let rates = Rates::of(heat, from, page, conditions);
    let calibration = conditions.calibration;

    let scarcity = conditions.scarcity(from);
    let rent = conditions.market.bid.scale(bytes.as_f64() * conditions.horizon());
    ledger.enter(TermKind::FreedMemory, rent.scale(scarcity));
    access::enter(&mut ledger, &rates, access::saving(from, to, bytes, conditions), conditions);

    let movement = Movement::new(from, to, bytes, calibration.demote_fixed, conditions);
    movement.enter(&mut ledger, conditions);
    ledger.duration = movement.duration(conditions);
    if conditions.tier(to).addressable {
        // Where the page ends up unmapped, a touch on the way is one of the
        // touches that `refault` counts.
        ledger.enter(TermKind::Stall, stall(rates.stores, ledger.duration, conditions));
    }
    let waiting = interference(from, to, bytes, conditions);
    ledger.enter(TermKind::Interference, Interval::exact(waiting));

    // Nobody pays rent for an empty page: its successor has to be moved in.
    let successor = Movement::new(to, from, bytes, calibration.promote_fixed, conditions);
    ledger.enter(TermKind::Successor, successor.price(conditions).scale(scarcity));
    ledger
}
