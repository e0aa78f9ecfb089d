//! The model of base pages that are made one huge page.
//!
//! It saves page walks: of those that the program would wait for, as many as the proposal
//! says. It costs the kernel's work and the copy of the bytes, and whoever touches the
//! range, or needs a new mapping, meanwhile waits for the copy. A huge page that leaves
//! is split again, which makes the kernel's work be done twice; that it is gone before
//! it has paid is in the horizon.

use terrace_core::{Heat, Nanos, PageSize, TierId};

use crate::conditions::Conditions;
use crate::heat::Rates;
use crate::interval::{Interval, finite};
use crate::ledger::{Ledger, TermKind};

/// The kernel's work besides the copy. `MADV_COLLAPSE` of 512 base pages took 556 µs
/// (2 GHz, Linux 6.18, nested paging), copying them some 350 µs of it. Corrected by
/// what it really takes.
const FIXED: Nanos = Nanos::micros(200);

/// Prices one huge page; `heat` is in page walks of the whole range. Pure.
pub(crate) fn price(heat: &Heat, page: PageSize, conditions: &Conditions<'_>) -> Ledger {
    const FAST: TierId = TierId(0);
    let mut ledger = Ledger::default();
    let calibration = conditions.calibration;
    let walks = Rates::of(heat, FAST, page, conditions).accesses();

    // Walks that are under way at the same time share their time, as misses do.
    let alone = conditions.cycles(calibration.page_walk);
    let parallel = |mlp: f64| alone / finite(mlp).max(1.0);
    let each = Interval::new(
        parallel(calibration.mlp.high),
        conditions.access_cycles(calibration.page_walk),
        parallel(calibration.mlp.low),
    );
    ledger.enter(TermKind::SavedWalks, walks.scale(conditions.horizon()).times(each));

    let correction = conditions.market.correction;
    let price = conditions.cpu_price();
    let copy = conditions.cycles(calibration.copy_bandwidth.time_for(page.bytes()));
    let fixed = conditions.cycles(FIXED);
    ledger.enter(TermKind::Copy, correction.scale(price * copy));
    // The fuller memory is, the likelier it is split while the program runs.
    let tier = conditions.tier(FAST);
    let short = 1.0 - (tier.free.as_f64() / tier.capacity.as_f64().max(1.0)).clamp(0.0, 1.0);
    ledger.enter(TermKind::Fixed, correction.scale(price * fixed * (1.0 + short)));
    let interrupts = (conditions.cpus() - 1.0) * conditions.cycles(calibration.shootdown_per_cpu);
    ledger.enter(
        TermKind::Shootdown,
        correction.scale(price * conditions.cycles(calibration.shootdown) + interrupts),
    );
    ledger.processor = finite(copy + fixed);
    ledger.duration = conditions.seconds(copy * correction.expected);
    // Each that comes waits for half of the copy; not more can than there are processors.
    let waits = conditions.cycles_in(ledger.duration / 2.0);
    let waiters = walks.map(|rate| (rate * ledger.duration).min(conditions.cpus()));
    ledger.enter(TermKind::Stall, waiters.scale(waits));
    ledger
}
