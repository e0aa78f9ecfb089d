//! The model of packed pages that are compressed once more, by a codec that packs more tightly.
//!
//! The memory that this sets free keeps other pages out of where they would come back from more slowly: a
//! base page in the fastest memory, or a packed page in memory rather than in a file. Each of these would be
//! asked for as often as the pages that lie packed are (as [`crate::packing`] has it, as if accesses to what
//! is out were uniform). That is worth something as far as room is short there. A page that was compressed
//! again takes longer to unpack when it is asked for, and compressing it takes processor time.

use terrace_core::{Bytes, Heat, Nanos, PageSize, TierId};

use crate::access::{refault, touched};
use crate::conditions::Conditions;
use crate::heat::Rates;
use crate::interval::{Interval, finite};
use crate::ledger::{Ledger, TermKind};
use crate::reclaim::READ;

/// Unpacking a base page by the one codec and packing it by the other. Assumed; corrected by outcomes.
const AGAIN: Nanos = Nanos::micros(30);
/// What a page takes longer to unpack afterwards. Assumed: the kernel times none.
const LONGER: Nanos = Nanos::micros(8);

/// What is known of the pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// How many there are.
    pub(crate) pages: u32,
    /// What one of them takes packed.
    pub(crate) each: Bytes,
    /// What this sets free of all of them: at least, expected, at most.
    pub(crate) saves: [Bytes; 3],
}

/// Prices so many pages that lie packed in `tier`; what finds no room there lies in `below`. Pure.
pub(crate) fn price(
    heat: &Heat,
    evidence: &Evidence,
    (tier, below): (TierId, Option<TierId>),
    conditions: &Conditions<'_>,
) -> Ledger {
    let mut ledger = Ledger::default();
    let pages = f64::from(evidence.pages);
    let base = PageSize::Base.bytes();
    let (room, miss) = match below {
        Some(file) => {
            let now = conditions.tier(file).read_latency;
            (evidence.each, conditions.cycles(if now.is_zero() { READ } else { now }))
        }
        None => (base, refault(tier, base, conditions)),
    };
    let [least, saves, most] = evidence.saves.map(|bytes| bytes.as_f64() / room.as_f64().max(1.0));
    let kept = Interval::new(least, saves, most);
    let rates = Rates::of(heat, tier, PageSize::Base, conditions);
    let touched = touched(&rates, conditions);
    let worth = touched.times(kept).scale(miss * conditions.scarcity(tier));
    ledger.enter(TermKind::FreedMemory, worth);

    ledger.enter(TermKind::Refault, touched.scale(pages * conditions.cycles(LONGER)));
    let work = conditions.cycles(AGAIN) * pages;
    let correction = conditions.market.correction;
    ledger.enter(TermKind::Store, correction.scale(conditions.cpu_price() * work));
    ledger.processor = finite(work);
    ledger
}
