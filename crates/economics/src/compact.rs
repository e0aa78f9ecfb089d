//! The model of compaction: pages move together so that huge pages can be had.
//!
//! A block that somebody asks for is worth what a huge page saves that is touched as a whole, or
//! half of it, and the page walks that it averts in the time that is left for that; one that nobody
//! asks for so far, between nothing and the faults alone. Each page that moves costs a copy, a new
//! mapping and a shootdown, and whoever stores to it meanwhile waits.

use terrace_core::{Cycles, HugePages, Nanos, PageSize, Pages, TierId};

use crate::conditions::Conditions;
use crate::first_touch;
use crate::interval::{Interval, finite};
use crate::ledger::{Ledger, TermKind};
use crate::movement::{interference, stall};
use crate::prezero;

/// What is known of the blocks that become free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// How many there will be.
    pub(crate) blocks: HugePages,
    /// How many of them somebody asks for.
    pub(crate) wanted: HugePages,
    /// Cycles of waiting for page walks that those avert.
    pub(crate) brings: Cycles,
    /// The time in which that comes about.
    pub(crate) within: Nanos,
    /// What of it is still to come.
    pub(crate) left: Nanos,
}

/// Prices blocks, some of which are wanted, for so many moved base pages. Pure.
pub(crate) fn price(evidence: &Evidence, pages: Pages, conditions: &Conditions<'_>) -> Ledger {
    const FAST: TierId = TierId(0);
    let &Evidence { blocks, wanted, brings, within, left } = evidence;
    let mut ledger = Ledger::default();
    let calibration = conditions.calibration;
    let saved = prezero::saved(PageSize::Huge, calibration);
    let wanted = wanted.min(blocks).as_f64();
    let others = Interval::new(0.0, saved / 2.0, saved).scale(blocks.as_f64() - wanted);
    let worth = Interval::new(saved / 2.0, saved * 0.75, saved).scale(wanted) + others;
    ledger.enter(TermKind::AvoidedFault, worth);
    let walks = brings.as_f64() * first_touch::still_to_come(within, left, conditions);
    ledger.enter(TermKind::SavedWalks, Interval::exact(walks));
    // The huge page that takes a block earns that, and has it in its account.
    ledger.gain = 0.0;

    let bytes = PageSize::Base.bytes();
    let n = pages.as_f64();
    let correction = conditions.market.correction;
    let price = conditions.cpu_price();
    let copy = conditions.cycles(calibration.copy_bandwidth.time_for(bytes));
    let fixed = conditions.cycles(calibration.demote_fixed + calibration.write_protect);
    let batch = f64::from(calibration.shootdown_batch.max(1));
    let own = conditions.cycles(calibration.shootdown) / batch;
    let others =
        (conditions.cpus() - 1.0) * conditions.cycles(calibration.shootdown_per_cpu) / batch;
    ledger.enter(TermKind::Copy, correction.scale(price * copy * n));
    ledger.enter(TermKind::Fixed, correction.scale(price * fixed * n));
    ledger.enter(TermKind::Shootdown, correction.scale((price * own + others) * n));
    ledger.processor = finite((copy + fixed + own + others) * n);
    // A page is on its way for its own copy only.
    let duration = conditions.seconds((copy + fixed + own) * correction.expected);
    let rate = conditions.mean_rate(FAST, PageSize::Base);
    let stores = Interval::new(0.0, rate / 2.0, rate);
    ledger.enter(TermKind::Stall, stall(stores, duration, conditions).scale(n));
    let waiting = interference(FAST, FAST, bytes, conditions) * n;
    ledger.enter(TermKind::Interference, Interval::exact(waiting));
    ledger
}
