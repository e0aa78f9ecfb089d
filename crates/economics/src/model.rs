//! From an action to its model, and the rate at which a decision turns.

use terrace_core::{Action, Bytes, Cycles, Heat, HugePages, PerSecond, Proposal, TierId};

use crate::conditions::{Conditions, RATE_MAX};
use crate::heat::Rates;
use crate::interval::Interval;
use crate::ledger::Ledger;
use crate::observe::{self, Look};
use crate::{
    collapse, compact, context, demote, exchange, first_touch, place, populate, prefetch, prezero,
    promote, reclaim, recompress, split, zero_ahead,
};

/// Whether an action is decided on by its expected benefit: what is done to learn, or rests on
/// what nobody can know before, as new memory has to lie somewhere. For all others the least benefit
/// counts.
pub fn counts_expected(action: &Action) -> bool {
    turns_on_worth(action) || matches!(action, Action::Split { .. } | Action::Place { .. })
}

/// Whether an action pays. What neither costs nor brings anything does, if it is one that is
/// decided on by its expectation: a bound above all that moves.
pub fn pays(action: &Action, benefit: Interval, cost: Interval, hurdle: f64) -> bool {
    if counts_expected(action) {
        benefit.expected >= hurdle * cost.expected
    } else {
        benefit.low > hurdle * cost.expected
    }
}

/// Prices a proposal: the same inputs give the same ledger. Every action has a model.
pub fn price(proposal: &Proposal, conditions: &Conditions<'_>) -> Ledger {
    let (heat, page) = (&proposal.heat, proposal.page_size);
    match proposal.action {
        Action::Promote { from, to, .. } => promote::price(heat, page, (from, to), conditions),
        Action::Demote { from, to, .. } => demote::price(heat, page, (from, to), conditions),
        Action::Exchange { fast, slow, .. } => {
            exchange::price(heat, &proposal.victim_heat, page, (slow, fast), conditions)
        }
        Action::Prezero { walked, used, known } => {
            prezero::price(walked, (used, known), page, conditions)
        }
        Action::Collapse { .. } => collapse::price(heat, page, conditions),
        Action::DemoteContext { pages, from, to, .. } => {
            context::price(heat, page, pages, (from, to), conditions)
        }
        Action::Split { .. } => split::price(heat, page, conditions),
        Action::FirstTouch {
            touched, unsure, least, averted, most, within, left, waits, ..
        } => {
            let averted = [least, averted, most];
            let evidence = first_touch::Evidence { touched, unsure, averted, within, left, waits };
            first_touch::price(&evidence, page, conditions)
        }
        Action::Populate { range, touched, unsure } => {
            populate::price(range.count, (touched, unsure), conditions)
        }
        Action::Place { to, instead, mapped, .. } => {
            place::price(heat, page, (instead, to), mapped, conditions)
        }
        Action::Compact { blocks, wanted, brings, within, left, pages } => {
            let evidence = compact::Evidence { blocks, wanted, brings, within, left };
            compact::price(&evidence, pages, conditions)
        }
        Action::Arm { range } => observe::look(range.count, page, Look::Fault, conditions),
        Action::Scan { range } => observe::look(range.count, page, Look::Bit, conditions),
        Action::SetPeriod { period, .. } => observe::rate(period, page, conditions),
        Action::Throttle { limit } => observe::throttle(limit, conditions),
        Action::Prefetch { from, pages, window, used, known } => {
            let evidence = prefetch::Evidence { from, pages, window, used, known };
            prefetch::price(&evidence, conditions)
        }
        Action::Reclaim { from, to, pages, bytes } => {
            reclaim::price(heat, (pages, bytes), (from, to), conditions)
        }
        Action::Recompress { tier, below, pages, each, least, saves, most } => {
            let evidence = recompress::Evidence { pages, each, saves: [least, saves, most] };
            recompress::price(heat, &evidence, (tier, below), conditions)
        }
        Action::ZeroAhead { blocks, wanted, spares } => {
            zero_ahead::price((blocks, wanted), spares, page, conditions)
        }
    }
}

/// By how many cycles an action pays, with the benefit that counts.
fn margin_of(action: &Action, ledger: &Ledger, hurdle: f64) -> f64 {
    if counts_expected(action) {
        ledger.benefit.expected - hurdle * ledger.cost.expected
    } else {
        ledger.margin(hurdle)
    }
}

/// The tiers between which an action moves the page that it is about.
pub(crate) fn route(action: &Action) -> Option<(TierId, TierId)> {
    match *action {
        Action::Promote { from, to, .. }
        | Action::Demote { from, to, .. }
        | Action::DemoteContext { from, to, .. }
        | Action::Reclaim { from, to, .. } => Some((from, to)),
        Action::Exchange { fast, slow, .. } => Some((slow, fast)),
        Action::Place { to, instead, .. } => Some((instead, to)),
        _ => None,
    }
}

/// Where a decision turns on something else than the rate of accesses to a page: the evidence
/// with another amount of it, the largest amount that makes sense, and the amount that there is.
type Turned = (fn(Action, f64) -> Action, f64);

fn turned(action: &Action) -> Option<Turned> {
    match *action {
        // Cycles averted a second, with bounds as far apart as they are.
        Action::FirstTouch { .. } => Some((
            |action, rate| {
                let Action::FirstTouch { least, averted, most, within, .. } = action else {
                    return action;
                };
                let cycles = rate * within.as_secs();
                let of = |bound: Cycles, otherwise: f64| {
                    let share = bound / averted;
                    Cycles::from_f64(cycles * if share.is_finite() { share } else { otherwise })
                };
                // Of nothing that was averted, as of one run.
                let (low, high) = (of(least, 0.25), of(most, 4.0));
                match action {
                    Action::FirstTouch { range, touched, unsure, within, left, waits, .. } => {
                        Action::FirstTouch {
                            range,
                            touched,
                            unsure,
                            least: low,
                            averted: Cycles::from_f64(cycles),
                            most: high,
                            within,
                            left,
                            waits,
                        }
                    }
                    other => other,
                }
            },
            RATE_MAX,
        )),
        // Pages that will be touched.
        Action::Populate { range, .. } => Some((
            |action, touched| match action {
                Action::Populate { range, unsure, .. } => {
                    Action::Populate { range, touched: touched.round() as u16, unsure }
                }
                other => other,
            },
            f64::from(range.count.min(u32::from(u16::MAX))),
        )),
        // Bytes that are set free, with bounds as far apart as they are.
        Action::Recompress { pages, each, .. } => Some((
            |action, bytes| match action {
                Action::Recompress { tier, below, pages, each, least, saves, most } => {
                    let of = |bound: Bytes, otherwise: f64| {
                        let share = bound / saves;
                        Bytes::from_f64(bytes * if share.is_finite() { share } else { otherwise })
                    };
                    let (least, most) = (of(least, 0.0), of(most, 2.0));
                    let saves = Bytes::from_f64(bytes);
                    Action::Recompress { tier, below, pages, each, least, saves, most }
                }
                other => other,
            },
            f64::from(pages) * each.as_f64(),
        )),
        _ => None,
    }
}

/// Outcomes of which a decision turns on how many were good, at least: fewer say too little.
pub(crate) const OUTCOMES: u32 = 64;

/// Where a decision turns on what came of others: the evidence with so many good ones of so many.
type Counted = fn(Action, (u32, u32)) -> Action;

fn counted(action: &Action) -> Option<(Counted, u32)> {
    match *action {
        Action::Prefetch { known, .. } => Some((
            |action, (good, of)| match action {
                Action::Prefetch { from, pages, window, .. } => {
                    Action::Prefetch { from, pages, window, used: good, known: of }
                }
                other => other,
            },
            known,
        )),
        Action::Prezero { known, .. } => Some((
            |action, (good, of)| match action {
                Action::Prezero { walked, .. } => Action::Prezero { walked, used: good, known: of },
                other => other,
            },
            known,
        )),
        _ => None,
    }
}

/// Of so many, between which number and the next an answer that changes once does; `None` if it does
/// not.
fn turn_of_count(most: u32, pays: impl Fn(u32) -> bool) -> Option<f64> {
    if pays(0) || !pays(most) {
        return None;
    }
    let (mut no, mut yes) = (0, most);
    while yes - no > 1 {
        let middle = no + (yes - no) / 2;
        if pays(middle) {
            yes = middle;
        } else {
            no = middle;
        }
    }
    Some(f64::from(yes) - 0.5)
}

/// Whether a decision turns on what fast memory is worth: it is about no page of its own.
pub(crate) fn turns_on_worth(action: &Action) -> bool {
    matches!(
        action,
        Action::Arm { .. }
            | Action::Scan { .. }
            | Action::SetPeriod { .. }
            | Action::Throttle { .. }
    )
}

/// The access rate of the page (of a context: of all pages; of an exchange: the promoted one) at
/// which the decision turns, its mix of loads and stores and the number of its samples
/// being what they are. `None` if no rate turns it. What is not about the accesses to a page turns on
/// something else: pages, blocks, outcomes, or what a byte of fast memory earns a second.
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
    let hurdle = conditions.hurdle();
    if let Action::ZeroAhead { blocks, spares, .. } = proposal.action {
        // With so many, even at least as many as there are blocks are taken.
        let most = blocks.get().saturating_mul(4).saturating_add(64);
        return turn_of_count(u32::try_from(most).unwrap_or(u32::MAX), |wanted| {
            let wanted = HugePages(wanted.into());
            let action = Action::ZeroAhead { blocks, wanted, spares };
            price(&Proposal { action, ..*proposal }, conditions).margin(hurdle) > 0.0
        })
        .map(PerSecond);
    }
    if let Action::Compact { blocks, wanted, brings, within, left, pages } = proposal.action {
        // Of those that become free: with the same moved pages there are no more. Each brings what each
        // that is wanted does now.
        let each = brings.as_f64() / wanted.as_f64().max(1.0);
        return turn_of_count(u32::try_from(blocks.get()).unwrap_or(u32::MAX), |wanted| {
            let brings = Cycles::from_f64(each * f64::from(wanted));
            let wanted = HugePages(wanted.into());
            let action = Action::Compact { blocks, wanted, brings, within, left, pages };
            price(&Proposal { action, ..*proposal }, conditions).margin(hurdle) > 0.0
        })
        .map(PerSecond);
    }
    if let Some((with, known)) = counted(&proposal.action) {
        let of = known.max(OUTCOMES);
        return turn_of_count(of, |good| {
            let action = with(proposal.action, (good, of));
            price(&Proposal { action, ..*proposal }, conditions).margin(hurdle) > 0.0
        })
        .map(PerSecond);
    }
    if turns_on_worth(&proposal.action) {
        let margin = |worth: f64| {
            let mut there = *conditions;
            there.market.bid = Interval::exact(worth);
            margin_of(&proposal.action, &price(proposal, &there), hurdle)
        };
        return linear_root([0.0, 0.0], margin).map(PerSecond);
    }
    if let Some((with, most)) = turned(&proposal.action) {
        let margin = |amount: f64| {
            let action = with(proposal.action, amount);
            price(&Proposal { action, ..*proposal }, conditions).margin(hurdle)
        };
        // Amounts are whole: near nothing a line through two of them would be wrong.
        return linear_root([most / 2.0, most], margin).map(PerSecond);
    }
    if let Action::Split { .. } = proposal.action {
        let margin = |rate: f64| {
            let heat = Heat { loads: PerSecond(rate), stores: PerSecond::ZERO, ..proposal.heat };
            let ledger = split::price(&heat, proposal.page_size, conditions);
            ledger.benefit.expected - hurdle * ledger.cost.expected
        };
        let floor = Rates::of(&proposal.heat, TierId(0), proposal.page_size, conditions).floor;
        return linear_root([floor, floor], margin).map(PerSecond);
    }
    // A context turns where its mean page does, which has its part of all accesses: what is known of
    // a page, and what it takes to move one, is not that of all together.
    if let Some((one, count)) = context::one_of(proposal) {
        return flip(&one, ledger, conditions).map(|rate| PerSecond(rate.get() * count));
    }
    let (from, to) = route(&proposal.action)?;
    let mut rates = match proposal.action {
        Action::Place { mapped, .. } => {
            place::rates(&proposal.heat, proposal.page_size, (from, to), mapped, conditions)
        }
        _ => Rates::of(&proposal.heat, from, proposal.page_size, conditions),
    };
    if counts_expected(&proposal.action) {
        rates.confidence = 1.0;
    }
    let loads = load_share(&proposal.heat);
    let margin = |rate: f64| {
        let heat = Heat {
            loads: PerSecond(rate * loads),
            stores: PerSecond(rate * (1.0 - loads)),
            ..proposal.heat
        };
        margin_of(&proposal.action, &price(&Proposal { heat, ..*proposal }, conditions), hurdle)
    };
    let rate = if conditions.tier(from).addressable && conditions.tier(to).addressable {
        let floor = rates.floor / loads;
        // What does not move stalls nobody.
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

#[cfg(test)]
mod tests {
    use terrace_core::{
        Bytes, ContextId, Machine, Nanos, OpId, PageSize, Reason, Telemetry, TierTelemetry, Urgency,
    };

    use super::*;
    use crate::calibration::Calibration;
    use crate::conditions::Market;

    /// Memory that is full over memory that is not: mapped, or packed.
    fn telemetry(addressable: bool) -> Telemetry {
        let mut telemetry =
            Telemetry { tier_count: 2, cpu_load: 1.0, sample_period: 1000, ..Telemetry::default() };
        let tier = |free, addressable, latency| TierTelemetry {
            capacity: Bytes::gib(4),
            free,
            addressable,
            read_latency: latency,
            write_latency: latency,
            accesses: PerSecond(1e6),
            ..TierTelemetry::default()
        };
        telemetry.tiers[0] = tier(Bytes::ZERO, true, Nanos(81));
        telemetry.tiers[1] = tier(Bytes::gib(2), addressable, Nanos(305));
        telemetry
    }

    /// All pages of a context turn at as many times the rate at which one does, however much is known.
    #[test]
    fn a_context_turns_where_it_says_that_it_turns() {
        let machine = include_str!("../../../machines/laptop.toml");
        let machine = Machine::parse("laptop", machine).expect("a machine");
        let calibration = Calibration::from_machine(&machine);
        let market = |bid| Market {
            horizon: 10.0,
            bid: Interval::exact(bid),
            ask: Interval::ZERO,
            correction: Interval::exact(1.0),
            touched: 1.0,
        };
        for (addressable, samples, pages) in
            [(true, 0, 1), (true, 0, 1000), (true, 40, 1000), (false, 0, 1000), (false, 40, 1000)]
        {
            let telemetry = telemetry(addressable);
            let with = |rate: f64| Proposal {
                op: OpId(1),
                action: Action::DemoteContext {
                    context: ContextId(9),
                    pages,
                    of: pages,
                    from: TierId(0),
                    to: TierId(1),
                },
                page_size: PageSize::Base,
                heat: Heat {
                    loads: PerSecond(rate * 0.75),
                    stores: PerSecond(rate * 0.25),
                    samples,
                    window: Nanos::SECOND,
                },
                victim_heat: Heat::default(),
                urgency: Urgency::Voluntary,
                reason: Reason::Observes,
            };
            // Room is worth what moving costs where pages are touched 200 times a second in mapped
            // memory, or half of the time that they might be.
            let cost = |rate| {
                let conditions = Conditions::new(&telemetry, &calibration, market(0.0));
                conditions.hurdle() * price(&with(rate), &conditions).cost.expected
            };
            let all = f64::from(pages) * PageSize::Base.bytes().as_f64() * 10.0;
            let worth = if addressable {
                cost(200.0 * f64::from(pages))
            } else {
                f64::midpoint(cost(0.0), cost(1e12))
            };
            let conditions = Conditions::new(&telemetry, &calibration, market(worth / all));
            let margin = |rate| price(&with(rate), &conditions).margin(conditions.hurdle());
            let proposal = with(f64::from(pages));
            let turn = flip(&proposal, &price(&proposal, &conditions), &conditions);
            let turn = turn.expect("a page that is always touched stays").get();
            let case = format!("{addressable} {samples} {pages}: {turn}");
            assert!(margin(turn * 0.98) > 0.0, "{case}");
            assert!(margin(turn * 1.02) <= 0.0, "{case}");
        }
    }
}
