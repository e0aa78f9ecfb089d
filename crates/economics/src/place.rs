//! The model of new memory that is put into one tier rather than another. No bytes move.
//!
//! Its accesses gain or lose as by a move. In the faster of both tiers it takes room, at what
//! the least useful resident earns there; in the slower one, that room is left to others.

use terrace_core::{Heat, PageSize, TierId};

use crate::access;
use crate::conditions::Conditions;
use crate::heat::Rates;
use crate::ledger::{Ledger, TermKind};
use crate::movement::Movement;

/// Prices the placement of a page in `to` rather than in `instead`. Pure.
pub(crate) fn price(
    heat: &Heat,
    page: PageSize,
    (instead, to): (TierId, TierId),
    conditions: &Conditions<'_>,
) -> Ledger {
    let mut ledger = Ledger::default();
    let bytes = page.bytes();
    let rates = Rates::of(heat, instead, page, conditions);
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
