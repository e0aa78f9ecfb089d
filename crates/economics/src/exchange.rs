//! The model of an exchange.
//!
//! A page of the slower tier and one of the faster change places. What counts
//! is the difference of their heats: the one's saved accesses speak for it, the
//! other's slower accesses against it. No room is taken or freed.

use terrace_core::{Heat, PageSize, TierId};

use crate::access;
use crate::conditions::Conditions;
use crate::heat::Rates;
use crate::interval::Interval;
use crate::ledger::{Ledger, TermKind};
use crate::movement::{Movement, interference, stall};

/// Prices an exchange of two pages. Pure.
pub(crate) fn price(
    heat: &Heat,
    victim_heat: &Heat,
    page: PageSize,
    (slow, fast): (TierId, TierId),
    conditions: &Conditions<'_>,
) -> Ledger {
    let mut ledger = Ledger::default();
    let bytes = page.bytes();
    let up = Rates::of(heat, slow, page, conditions);
    let down = Rates::of(victim_heat, fast, page, conditions);
    access::enter(&mut ledger, &up, access::saving(slow, fast, bytes, conditions), conditions);
    access::enter(&mut ledger, &down, access::saving(fast, slow, bytes, conditions), conditions);

    let fixed = conditions.calibration.exchange_fixed;
    let movement = Movement::new(slow, fast, bytes, fixed, conditions).together(Movement::new(
        fast,
        slow,
        bytes,
        terrace_core::Nanos::ZERO,
        conditions,
    ));
    movement.enter(&mut ledger, conditions);
    // One after the other, so each is protected for half of the time.
    ledger.duration = movement.duration(conditions) / 2.0;
    if conditions.tier(slow).addressable {
        let stores = stall(up.stores, ledger.duration, conditions)
            + stall(down.stores, ledger.duration, conditions);
        ledger.enter(TermKind::Stall, stores);
    }
    let waiting =
        interference(slow, fast, bytes, conditions) + interference(fast, slow, bytes, conditions);
    ledger.enter(TermKind::Interference, Interval::exact(waiting));
    ledger
}
