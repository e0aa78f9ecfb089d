//! From an action to its model, and the rate at which a decision turns.

use terrace_core::{Action, Heat, PerSecond, Proposal, TierId};

use crate::conditions::{Conditions, RATE_MAX};
use crate::heat::Rates;
use crate::ledger::Ledger;
use crate::{collapse, demote, exchange, prezero, promote};

/// Prices a proposal: the same inputs give the same ledger. `None` for actions
/// that have no model: they pass, unpriced.
pub fn price(proposal: &Proposal, conditions: &Conditions<'_>) -> Option<Ledger> {
    let (heat, page) = (&proposal.heat, proposal.page_size);
    Some(match proposal.action {
        Action::Promote { from, to, .. } => promote::price(heat, page, (from, to), conditions),
        Action::Demote { from, to, .. } => demote::price(heat, page, (from, to), conditions),
        Action::Exchange { fast, slow, .. } => {
            exchange::price(heat, &proposal.victim_heat, page, (slow, fast), conditions)
        }
        Action::Prezero { walked, used, known } => {
            prezero::price(walked, (used, known), page, conditions)
        }
        Action::Collapse { .. } => collapse::price(heat, page, conditions),
        _ => return None,
    })
}

/// The tiers between which an action moves the page that it is about.
pub(crate) fn route(action: &Action) -> Option<(TierId, TierId)> {
    match *action {
        Action::Promote { from, to, .. } | Action::Demote { from, to, .. } => Some((from, to)),
        Action::Exchange { fast, slow, .. } => Some((slow, fast)),
        _ => None,
    }
}

/// The access rate of the page (of an exchange: the promoted one) at which the
/// decision turns, its mix of loads and stores and the number of its samples
/// being what they are. `None` if no rate turns it.
///
/// The margin is linear in the rate between addressable tiers, up to two knots:
/// where a rate that rests on no sample begins to count, and where every
/// processor is stalled. Otherwise it is linear in the probability of a touch.
/// Both are solved from the margins at the ends of each piece.
pub fn flip(
    proposal: &Proposal,
    ledger: &Ledger,
    conditions: &Conditions<'_>,
) -> Option<PerSecond> {
    if let Action::Collapse { .. } = proposal.action {
        let margin = |rate: f64| {
            let heat = Heat { loads: PerSecond(rate), stores: PerSecond::ZERO, ..proposal.heat };
            collapse::price(&heat, proposal.page_size, conditions).margin(conditions.hurdle())
        };
        let stalled = conditions.cpus() / ledger.duration;
        return linear_root([stalled, stalled], margin).map(PerSecond);
    }
    let (from, to) = route(&proposal.action)?;
    let rates = Rates::of(&proposal.heat, from, proposal.page_size, conditions);
    let loads = load_share(&proposal.heat);
    let margin = |rate: f64| {
        let heat = Heat {
            loads: PerSecond(rate * loads),
            stores: PerSecond(rate * (1.0 - loads)),
            ..proposal.heat
        };
        price(&Proposal { heat, ..*proposal }, conditions)
            .map_or(0.0, |ledger| ledger.margin(conditions.hurdle()))
    };
    let rate = if conditions.tier(from).addressable && conditions.tier(to).addressable {
        let floor = rates.floor / loads;
        let stalled = conditions.cpus() / (ledger.duration * (1.0 - loads));
        linear_root([floor.min(stalled), floor.max(stalled)], margin)
    } else {
        touch_root(&rates, loads, conditions, margin)
    };
    rate.map(PerSecond)
}

/// Loads among the accesses of a page; all of them if it has none.
fn load_share(heat: &Heat) -> f64 {
    let (loads, stores) = (heat.loads.get().max(0.0), heat.stores.get().max(0.0));
    let share = loads / (loads + stores);
    if share.is_finite() { share } else { 1.0 }
}

/// Where a piecewise linear function changes sign.
fn linear_root(knots: [f64; 2], margin: impl Fn(f64) -> f64) -> Option<f64> {
    let mut left = (0.0, margin(0.0));
    for knot in knots.into_iter().chain([RATE_MAX]) {
        if !(knot > left.0 && knot <= RATE_MAX) {
            continue;
        }
        let right = (knot, margin(knot));
        if (left.1 > 0.0) != (right.1 > 0.0) {
            return Some(between(left, right));
        }
        left = right;
    }
    None
}

/// Where a function that is linear in the probability of a touch changes sign.
fn touch_root(
    rates: &Rates,
    loads: f64,
    conditions: &Conditions<'_>,
    margin: impl Fn(f64) -> f64,
) -> Option<f64> {
    let horizon = conditions.horizon();
    let (none, all) = (margin(0.0), margin(RATE_MAX));
    if (none > 0.0) == (all > 0.0) {
        return None;
    }
    let probability = |expected: f64| -(-expected * horizon).exp_m1();
    if all > none {
        // A gain counts at its lower bound.
        let scale = rates.confidence * horizon;
        let touched = between((0.0, none), (-(-RATE_MAX * scale).exp_m1(), all));
        Some(-(-touched).ln_1p() / scale)
    } else {
        // A loss counts as expected; not below the floor of the loads.
        let touched = between((probability(rates.floor), none), (1.0, all));
        let accesses = -(-touched).ln_1p() / horizon;
        let beyond_floor = (accesses - rates.floor) / (1.0 - loads);
        Some(if beyond_floor * loads < rates.floor { beyond_floor } else { accesses })
    }
    .filter(|rate| rate.is_finite() && *rate >= 0.0)
}

/// Where the line through two points is zero.
fn between((x0, y0): (f64, f64), (x1, y1): (f64, f64)) -> f64 {
    x0 + (x1 - x0) * (y0 / (y0 - y1))
}
