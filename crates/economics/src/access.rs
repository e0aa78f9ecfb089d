//! What the program's own accesses to a page gain or lose by its move.

use terrace_core::{Bytes, TierId};

use crate::conditions::Conditions;
use crate::heat::Rates;
use crate::interval::Interval;
use crate::ledger::{Ledger, TermKind};
use crate::movement::base_pages;

/// By how many cycles accesses are better served in one tier than in another;
/// negative if worse.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Saving {
    /// A load.
    pub(crate) load: f64,
    /// A store.
    pub(crate) store: f64,
    /// The first touch, if one of the tiers is not addressable.
    pub(crate) touch: f64,
}

/// What moving a page `from` a tier `to` another saves each access.
pub(crate) fn saving(
    from: TierId,
    to: TierId,
    bytes: Bytes,
    conditions: &Conditions<'_>,
) -> Saving {
    let (source, target) = (conditions.tier(from), conditions.tier(to));
    if source.addressable && target.addressable {
        let cycles = |latency| conditions.access_cycles(latency);
        Saving {
            load: cycles(source.read_latency) - cycles(target.read_latency),
            store: cycles(source.write_latency) - cycles(target.write_latency),
            touch: 0.0,
        }
    } else {
        let touch = refault(from, bytes, conditions) - refault(to, bytes, conditions);
        Saving { load: 0.0, store: 0.0, touch }
    }
}

/// What a touch of a page costs that lies in a tier which is not addressable:
/// the fault, bringing the content in, and putting another page out when the
/// fastest tier is short of memory. In cycles; zero for an addressable tier.
pub(crate) fn refault(tier: TierId, bytes: Bytes, conditions: &Conditions<'_>) -> f64 {
    if conditions.tier(tier).addressable {
        return 0.0;
    }
    let pages = base_pages(bytes);
    let fetch = conditions.cycles(fetch_time(tier, conditions)) * pages;
    let evict = conditions.cycles(store_time(tier, conditions)) * pages;
    conditions.cycles(conditions.calibration.user_fault)
        + fetch
        + conditions.scarcity(TierId::FASTEST) * evict
}

/// Bringing in one base page.
pub(crate) fn fetch_time(tier: TierId, conditions: &Conditions<'_>) -> terrace_core::Nanos {
    let now = conditions.tier(tier).read_latency;
    if now.is_zero() { conditions.calibration.decompress } else { now }
}

/// Putting out one base page.
pub(crate) fn store_time(tier: TierId, conditions: &Conditions<'_>) -> terrace_core::Nanos {
    let now = conditions.tier(tier).write_latency;
    if now.is_zero() { conditions.calibration.compress } else { now }
}

/// The probability that a page is touched within the horizon.
pub(crate) fn touched(rates: &Rates, conditions: &Conditions<'_>) -> Interval {
    let horizon = conditions.horizon();
    rates.accesses().map(|rate| -(-rate * horizon).exp_m1())
}

/// Enters what the page's accesses gain or lose over the horizon.
pub(crate) fn enter(
    ledger: &mut Ledger,
    rates: &Rates,
    saving: Saving,
    conditions: &Conditions<'_>,
) {
    let mut signed = |amount: Interval, each: f64, gain, loss| {
        let kind = if each >= 0.0 { gain } else { loss };
        ledger.enter(kind, amount.scale(each.abs()));
    };
    let horizon = conditions.horizon();
    let (loads, stores) = (rates.loads.scale(horizon), rates.stores.scale(horizon));
    signed(loads, saving.load, TermKind::SavedLoads, TermKind::SlowerLoads);
    signed(stores, saving.store, TermKind::SavedStores, TermKind::SlowerStores);
    if saving.touch != 0.0 {
        let once = touched(rates, conditions);
        signed(once, saving.touch, TermKind::AvoidedFault, TermKind::Refault);
    }
}

/// What a byte of the faster tier earns in a second with this page in it, in
/// cycles: the page's bid for memory.
pub(crate) fn density(
    rates: &Rates,
    slow: TierId,
    fast: TierId,
    bytes: Bytes,
    conditions: &Conditions<'_>,
) -> Interval {
    let gain = saving(slow, fast, bytes, conditions);
    let mut per_second = rates.loads.scale(gain.load) + rates.stores.scale(gain.store);
    if gain.touch > 0.0 {
        let horizon = conditions.horizon();
        per_second += touched(rates, conditions).scale(gain.touch / horizon);
    }
    per_second.scale(1.0 / bytes.as_f64().max(1.0))
}
