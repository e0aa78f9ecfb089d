//! What the economist thinks of making one huge page of base pages.
#![allow(missing_docs)]

mod common;

use common::{conditions, laptop, laptop_telemetry, market, proposal};
use terrace_core::{
    Action, Bytes, Heat, Nanos, PageNo, PageRange, PerSecond, Proposal, Reason, RegionId,
    Telemetry, Urgency,
};
use terrace_economics::ledger::TermKind;
use terrace_economics::{Calibration, Conditions, Economist, Market, Mode, Verdict, model};

/// Evidence of so many page walks a second, from so many visits.
fn walks(rate: f64, samples: u32) -> Heat {
    let window = Nanos::millis(100);
    Heat { loads: PerSecond(rate), stores: PerSecond::ZERO, samples, window }
}

fn collapse(heat: Heat) -> Proposal {
    let range = PageRange { region: RegionId(3), start: PageNo(512), count: 512 };
    let reason = Reason::PageWalksEstimated;
    Proposal { reason, ..proposal(Action::Collapse { range }, heat) }
}

fn calibration() -> Calibration {
    Calibration { page_walk: Nanos(50), ..laptop() }
}

/// DRAM that is half empty.
fn roomy() -> Telemetry {
    let mut telemetry = laptop_telemetry();
    telemetry.tiers[0].free = telemetry.tiers[0].capacity.saturating_sub(Bytes::gib(8));
    telemetry
}

fn margin(heat: Heat, telemetry: &Telemetry, calibration: &Calibration) -> f64 {
    let conditions = conditions(telemetry, calibration);
    model::price(&collapse(heat), &conditions).margin(1.5)
}

#[test]
fn many_page_walks_pay_and_few_do_not() {
    let (telemetry, calibration) = (roomy(), calibration());
    assert!(margin(walks(1e6, 8), &telemetry, &calibration) > 0.0);
    assert!(margin(walks(100.0, 8), &telemetry, &calibration) < 0.0);
    let rates = [1e2, 1e3, 1e4, 1e5, 1e6, 1e7];
    let margins = rates.map(|rate| margin(walks(rate, 8), &telemetry, &calibration));
    assert!(margins[2..].is_sorted(), "beyond what stalls, more walks are better: {margins:?}");
}

#[test]
fn a_rate_that_rests_on_one_visit_counts_for_less() {
    let (telemetry, calibration) = (roomy(), calibration());
    let surely = |samples| {
        let conditions = conditions(&telemetry, &calibration);
        let ledger = model::price(&collapse(walks(1e5, samples)), &conditions);
        ledger.benefit.low
    };
    assert!(surely(0) <= 0.0 && surely(1) < surely(4) && surely(4) < surely(32));
}

#[test]
fn walks_of_which_nobody_knows_the_cost_save_nothing() {
    let unknown = Calibration { page_walk: Nanos::ZERO, ..laptop() };
    assert!(margin(walks(1e7, 8), &roomy(), &unknown) < 0.0);
}

#[test]
fn what_is_gone_soon_does_not_pay() {
    let (telemetry, calibration) = (roomy(), calibration());
    let passes = |horizon| {
        let market = Market { horizon, ..market() };
        let conditions = Conditions::new(&telemetry, &calibration, market);
        let ledger = model::price(&collapse(walks(2e5, 8)), &conditions);
        ledger.margin(1.5) > 0.0
    };
    assert!(passes(100.0) && !passes(0.01));
}

#[test]
fn the_less_room_there_is_the_more_it_costs() {
    let cost = |telemetry: &Telemetry| {
        let calibration = calibration();
        let conditions = conditions(telemetry, &calibration);
        model::price(&collapse(walks(1e5, 8)), &conditions).cost.expected
    };
    assert!(cost(&laptop_telemetry()) > cost(&roomy()), "it will be split again");
}

#[test]
fn what_it_will_take_of_a_processor_is_the_copy_and_more() {
    let (telemetry, calibration) = (roomy(), calibration());
    let conditions = conditions(&telemetry, &calibration);
    let ledger = model::price(&collapse(walks(1e5, 8)), &conditions);
    let copy = calibration.copy_bandwidth.time_for(Bytes::mib(2)).as_secs();
    let cycles = copy * calibration.clock.get();
    assert!(ledger.processor > cycles && ledger.duration > 0.0);
    let kinds: Vec<_> = ledger.terms().iter().flatten().map(|term| term.kind).collect();
    assert!(kinds.contains(&TermKind::SavedWalks) && kinds.contains(&TermKind::Stall));
}

#[test]
fn a_decision_says_at_which_rate_it_turns_and_how_the_walks_are_known() {
    let telemetry = roomy();
    let mut economist = Economist::new(Mode::Enforce, calibration());
    let decision = economist.decide(&collapse(walks(1e6, 8)), &telemetry);
    assert_eq!(decision.verdict, Verdict::Passed);
    let flip = decision.flip.expect("some rate turns it").get();
    let at = |rate: f64| {
        let mut economist = Economist::new(Mode::Enforce, calibration());
        economist.decide(&collapse(walks(rate, 8)), &telemetry).margin() > 0.0
    };
    assert!(at(flip * 1.02) && !at(flip * 0.98), "{flip}");

    let text = decision.to_string();
    assert!(text.starts_with("collapse 512 pages at 3:512 (PageWalksEstimated): PASSED"), "{text}");
    assert!(text.contains("page walks/s") && text.contains("nothing counts them here"), "{text}");
    let counted = Proposal { reason: Reason::PageWalksCounted, ..collapse(walks(1e6, 8)) };
    let text = economist.decide(&counted, &telemetry).to_string();
    assert!(text.contains("as the processor counts them"), "{text}");
}

#[test]
fn what_the_user_asks_for_is_priced_and_not_refused() {
    let mut economist = Economist::new(Mode::Enforce, calibration());
    let asked = Proposal {
        urgency: Urgency::Forced,
        reason: Reason::AskedFor,
        ..collapse(Heat::default())
    };
    let decision = economist.decide(&asked, &roomy());
    assert_eq!((decision.verdict, decision.passes), (Verdict::Forced, true));
    assert!(decision.is_priced() && decision.to_string().contains("none: it was asked for"));
}
