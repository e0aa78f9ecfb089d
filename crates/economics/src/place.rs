//! The model of new memory that is put into one tier rather than another. No bytes move.
//!
//! Before its first touch nobody knows how often a page will be accessed. All that the program has
//! mapped shares all accesses: that mean is expected. The mean of what was touched so far would promise
//! all of them to the first pages.
//!
//! Its accesses gain or lose as by a move. In the faster of both tiers it takes room, at what
//! the least useful resident earns there; in the slower one, that room is left to others.

use terrace_core::{Bytes, Heat, PageSize, TierId};

use crate::access;
use crate::conditions::Conditions;
use crate::heat::Rates;
use crate::ledger::{Ledger, TermKind};
use crate::movement::Movement;

/// Reads the evidence on a page that lies in one of two tiers, of so much that is mapped.
pub(crate) fn rates(
    heat: &Heat,
    page: PageSize,
    (instead, to): (TierId, TierId),
    mapped: Bytes,
    conditions: &Conditions<'_>,
) -> Rates {
    let mean = conditions.mean_rate_of_mapped(mapped, page, instead.min(to));
    Rates::around(mean, heat, instead, conditions)
}

/// Prices the placement of a page in `to` rather than in `instead`. Pure.
pub(crate) fn price(
    heat: &Heat,
    page: PageSize,
    (instead, to): (TierId, TierId),
    mapped: Bytes,
    conditions: &Conditions<'_>,
) -> Ledger {
    let mut ledger = Ledger::default();
    let bytes = page.bytes();
    let rates = rates(heat, page, (instead, to), mapped, conditions);
    access::enter(&mut ledger, &rates, access::saving(instead, to, bytes, conditions), conditions);
    let held = bytes.as_f64() * conditions.horizon();
    if to < instead {
        let mut room = conditions.market.ask.scale(held * conditions.scarcity(to));
        if !conditions.has_room(to, bytes) {
            let fixed = conditions.calibration.demote_fixed;
            room += Movement::new(to, instead, bytes, fixed, conditions).price(conditions);
        }
        ledger.enter(TermKind::Room, room);
    } else {
        let freed = conditions.market.bid.scale(held * conditions.scarcity(instead));
        ledger.enter(TermKind::FreedMemory, freed);
    }
    ledger
}
