//! The model of pages that go on from packed memory to a file.
//!
//! The memory that they took packed is free for others, at what memory is worth, as far as there is
//! none left where they lie. A page that is asked for again waits for the file in addition: it would
//! have been unpacked in any case.

use terrace_core::{Bytes, Heat, Nanos, PageSize, TierId};

use crate::access::{store_time, touched};
use crate::conditions::Conditions;
use crate::heat::Rates;
use crate::interval::finite;
use crate::ledger::{Ledger, TermKind};

/// What reading a page takes where none has been read yet: at random, of a virtual disk
/// (`docs/decisions/0006-spill-file.md`).
pub(crate) const READ: Nanos = Nanos::micros(265);

/// Prices so many pages that take so much packed. Pure.
pub(crate) fn price(
    heat: &Heat,
    (pages, bytes): (u32, Bytes),
    (from, to): (TierId, TierId),
    conditions: &Conditions<'_>,
) -> Ledger {
    let mut ledger = Ledger::default();
    let pages = f64::from(pages);
    let rent = conditions.market.bid.scale(bytes.as_f64() * conditions.horizon());
    ledger.enter(TermKind::FreedMemory, rent.scale(conditions.scarcity(from)));

    let now = conditions.tier(to).read_latency;
    let read = conditions.cycles(if now.is_zero() { READ } else { now });
    let rates = Rates::of(heat, from, PageSize::Base, conditions);
    ledger.enter(TermKind::Refault, touched(&rates, conditions).scale(read * pages));

    let write = conditions.cycles(store_time(to, conditions)) * pages;
    let correction = conditions.market.correction;
    ledger.enter(TermKind::Store, correction.scale(conditions.cpu_price() * write));
    ledger.processor = finite(write);
    ledger
}
