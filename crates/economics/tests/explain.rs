//! What a person reads: golden texts, so that a change of wording, of units or
//! of alignment is a change that somebody decided.

mod common;

use common::{demote, exchange, heat, laptop, laptop_telemetry, optane, optane_telemetry, promote};
use terrace_core::{Action, BytesPerSecond, Urgency};
use terrace_economics::{Economist, Mode};

const TIERS: [&str; 2] = ["dram", "optane"];

#[test]
fn a_promotion_that_pays() {
    let mut economist = Economist::new(Mode::Enforce, optane());
    let decision = economist.decide(&promote(heat(40_000.0, 5_000.0, 9)), &optane_telemetry());
    assert_eq!(
        decision.explain(&TIERS).to_string(),
        include_str!("golden/promotion.txt").trim_end()
    );
}

#[test]
fn a_demotion_that_is_refused_since_the_page_is_hot() {
    let mut economist = Economist::new(Mode::Enforce, optane());
    economist.decide(&promote(heat(40_000.0, 5_000.0, 9)), &optane_telemetry());
    let decision = economist.decide(&demote(heat(60_000.0, 0.0, 12)), &optane_telemetry());
    assert_eq!(
        decision.explain(&TIERS).to_string(),
        include_str!("golden/demotion.txt").trim_end()
    );
}

#[test]
fn a_forced_demotion_into_compressed_memory() {
    let mut economist = Economist::new(Mode::Enforce, laptop());
    let mut proposal = demote(heat(0.0, 0.0, 0));
    proposal.urgency = Urgency::Forced;
    proposal.page_size = terrace_core::PageSize::Base;
    let decision = economist.decide(&proposal, &laptop_telemetry());
    assert_eq!(
        decision.explain(&["dram", "lz4"]).to_string(),
        include_str!("golden/forced.txt").trim_end()
    );
}

#[test]
fn an_exchange_shows_the_evidence_on_both_pages() {
    let mut economist = Economist::new(Mode::Shadow, optane());
    let proposal = exchange(heat(20_000.0, 0.0, 4), heat(15_000.0, 0.0, 3));
    let decision = economist.decide(&proposal, &optane_telemetry());
    assert_eq!(
        decision.explain(&TIERS).to_string(),
        include_str!("golden/exchange.txt").trim_end()
    );
}

#[test]
fn without_names_a_tier_is_called_by_its_number() {
    let mut economist = Economist::new(Mode::Off, optane());
    let decision = economist.decide(&promote(heat(1.0, 0.0, 1)), &optane_telemetry());
    assert_eq!(
        decision.to_string(),
        "promote 0:17 tier0<-tier1 (HotByLoads): PASSED (economist off)"
    );
}

#[test]
fn an_action_without_a_model_says_so() {
    let mut economist = Economist::new(Mode::Enforce, optane());
    let mut proposal = promote(heat(1.0, 0.0, 1));
    proposal.action = Action::Throttle { limit: BytesPerSecond(1e9) };
    let decision = economist.decide(&proposal, &optane_telemetry());
    assert_eq!(
        decision.to_string(),
        "limit migration to 1.00 GB/s (HotByLoads): PASSED (not priced)"
    );
}
