//! The models of looking: pages made to fault, accessed bits read, samplers' rates; and of the
//! bound on what moves.
//!
//! What is learnt about a page is worth something if it changes where the page lies. Before a
//! look nobody knows whether it will, with every probability equally likely; then the page would
//! earn what those offer that want into the faster tier. So the expected worth is half of an
//! offer, and the bounds are nothing and a whole one: what is decided on is the expectation, or
//! else nobody would ever look.

use terrace_core::{BytesPerSecond, Nanos, PageSize, TierId};

use crate::conditions::{Conditions, RATE_MAX};
use crate::interval::{Interval, finite};
use crate::ledger::{Ledger, TermKind};
use crate::movement::{base_pages, interference};

const FAST: TierId = TierId(0);
/// What a program pays for a hardware sample: 200-300 ns a record of PEBS (Akiyama and Hirofuchi,
/// ROSS'17), as machine files have it.
pub(crate) const SAMPLE: Nanos = Nanos(250);

/// What looking costs beside the pages' own entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Pages fault when they are touched next.
    Fault,
    /// Accessed bits are read and cleared.
    Bit,
}

/// What knowledge about so many bytes is worth.
fn knowledge(bytes: f64, conditions: &Conditions<'_>) -> Interval {
    let offer = conditions.market.bid.scale(bytes * conditions.horizon());
    offer.times(Interval::new(0.0, 0.5, 1.0))
}

/// Prices a look at so many pages. Pure.
pub(crate) fn look(count: u32, page: PageSize, look: Look, conditions: &Conditions<'_>) -> Ledger {
    let mut ledger = Ledger::default();
    let calibration = conditions.calibration;
    let n = f64::from(count);
    let bytes = page.bytes().as_f64();
    ledger.enter(TermKind::Knowledge, knowledge(n * bytes, conditions));

    let correction = conditions.market.correction;
    let entry = conditions.cycles(calibration.write_protect) * n;
    ledger.enter(TermKind::Fixed, correction.scale(conditions.cpu_price() * entry));
    let batches = (n / f64::from(calibration.shootdown_batch.max(1))).ceil();
    let own = conditions.cycles(calibration.shootdown) * batches;
    let others =
        (conditions.cpus() - 1.0) * conditions.cycles(calibration.shootdown_per_cpu) * batches;
    let invalidated = correction.scale(conditions.cpu_price() * own + others);
    ledger.enter(TermKind::Shootdown, invalidated);
    ledger.processor = finite(entry + own + others);
    if look == Look::Fault {
        // Who touches a page meanwhile takes a fault, once.
        let rate = conditions.mean_rate(FAST, page);
        let touched = -(-rate * conditions.horizon()).exp_m1();
        let fault = conditions.cycles(calibration.user_fault) * n;
        ledger.enter(TermKind::Refault, Interval::new(0.0, touched, 1.0).scale(fault));
    }
    ledger
}

/// Prices a sampler that takes one of so many accesses. Pure.
pub(crate) fn rate(period: u64, page: PageSize, conditions: &Conditions<'_>) -> Ledger {
    let mut ledger = Ledger::default();
    let tiers = conditions.telemetry.tiers.iter();
    let accesses: f64 = tiers.map(|tier| finite(tier.accesses.get()).clamp(0.0, RATE_MAX)).sum();
    let samples = accesses / period.max(1) as f64 * conditions.horizon();
    let tier = conditions.tier(FAST);
    let capacity = tier.capacity.as_f64();
    let pages = (capacity / page.bytes().as_f64()).max(1.0);
    // Of samples that come at random, the share of pages that get one.
    let known = -(-samples / pages).exp_m1();
    ledger.enter(TermKind::Knowledge, knowledge(capacity * known, conditions));
    let each = conditions.cycles(SAMPLE);
    ledger.enter(TermKind::Fixed, conditions.market.correction.scale(samples * each));
    ledger.processor = finite(samples * each);
    ledger
}

/// Prices a bound on the bytes that move a second. Pure.
pub(crate) fn throttle(limit: BytesPerSecond, conditions: &Conditions<'_>) -> Ledger {
    let mut ledger = Ledger::default();
    let could = finite(conditions.calibration.copy_bandwidth.get()).max(0.0);
    let held_back = (could - finite(limit.get())).max(0.0) * conditions.horizon();
    let bytes = PageSize::Base.bytes();
    let blocks = base_pages(terrace_core::Bytes::from_f64(held_back.min(1e18)));
    let blocks = if held_back > 0.0 { blocks } else { 0.0 };
    let waiting = interference(FAST, TierId(1), bytes, conditions) * blocks;
    // Whether so much would move at all is not known.
    let some = Interval::new(0.0, 0.5, 1.0);
    ledger.enter(TermKind::AvoidedInterference, some.scale(waiting));
    // What does not move now moves later; on average half of the horizon is lost.
    ledger.enter(TermKind::ForgoneMoves, knowledge(held_back / 2.0, conditions));
    ledger
}
