//! Models of the actions that move nothing between tiers: huge pages, populating, placing,
//! compaction, splitting, looking. Both sides, and where a decision turns. Units and horizons of
//! all actions.
#![allow(missing_docs)]

mod common;

use common::{
    DRAM, SLOW, conditions, heat, laptop, laptop_telemetry, market, optane, optane_telemetry, page,
    proposal,
};
use proptest::prelude::*;
use terrace_core::{
    Action, ActionClass, Bytes, BytesPerSecond, ContextId, Cycles, HugePages, Nanos, PageNo,
    PageRange, PageSize, Pages, PerSecond, Proposal, RegionId, SampleSource, Telemetry, TierId,
};
use terrace_economics::model::{flip, pays, price};
use terrace_economics::{Calibration, Conditions, Ledger, Market, TermKind};

fn range(count: u32) -> PageRange {
    PageRange { region: RegionId(1), start: PageNo(512), count }
}

fn first_touch(touched: u16, averted: u64, within: Nanos) -> Action {
    let (least, averted, most) = (Cycles(averted / 4), Cycles(averted), Cycles(averted * 3));
    Action::FirstTouch {
        range: range(512),
        touched,
        unsure: 0,
        least,
        averted,
        most,
        within,
        left: Nanos::ZERO,
        waits: Cycles::ZERO,
    }
}

/// The same with something of it changed.
fn with(action: Action, change: impl FnOnce(&mut u16, &mut Nanos, &mut Cycles)) -> Action {
    let mut action = action;
    if let Action::FirstTouch { unsure, left, waits, .. } = &mut action {
        change(unsure, left, waits);
    }
    action
}

fn populate(touched: u16) -> Action {
    Action::Populate { range: range(512), touched, unsure: 0 }
}

/// So many blocks, and of them wanted ones, which avert so many cycles within a time of which
/// nothing is left.
fn compact((blocks, wanted): (u32, u32), brings: u64, within: Nanos, pages: u64) -> Action {
    let (blocks, wanted) = (HugePages(blocks.into()), HugePages(wanted.into()));
    let (brings, left, pages) = (Cycles(brings), Nanos::ZERO, Pages(pages));
    Action::Compact { blocks, wanted, brings, within, left, pages }
}

/// So many pages that were left out, of which so many were asked for.
fn prefetch(from: Option<TierId>, used: u32, known: u32) -> Action {
    Action::Prefetch { from, pages: 320, window: 32, used, known }
}

/// A walk of 8 MiB, and what came of 64 huge pages ahead of others.
fn prezero(used: u32) -> Action {
    Action::Prezero { walked: Pages(2048), used, known: 64 }
}

/// Pages of which each takes a third of its size packed go on to a file.
const RECLAIM: Action =
    Action::Reclaim { from: SLOW, to: TierId(2), pages: 190, bytes: Bytes::kib(256) };

/// A thousand pages that are compressed again, of which this is to set so much free.
fn recompress(below: Option<TierId>, saves: Bytes) -> Action {
    let (least, most) = (saves / 2, saves * 2);
    let each = Bytes(1500);
    Action::Recompress { tier: SLOW, below, pages: 1000, each, least, saves, most }
}

/// The tenth of ten blocks, of which six are wanted.
const ZERO_AHEAD: Action =
    Action::ZeroAhead { blocks: HugePages(10), wanted: HugePages(6), spares: Cycles(526_000) };

fn of(action: Action) -> Proposal {
    proposal(action, heat(1000.0, 100.0, 10))
}

/// A laptop with plenty of free memory.
fn roomy() -> Telemetry {
    let mut telemetry = laptop_telemetry();
    telemetry.tiers[0].free = telemetry.tiers[0].capacity / 2;
    telemetry
}

fn ledger(action: Action, telemetry: &Telemetry, market: Market) -> Ledger {
    let calibration = calibration();
    price(&of(action), &Conditions::new(telemetry, &calibration, market))
}

fn calibration() -> Calibration {
    Calibration { page_walk: Nanos(50), ..laptop() }
}

/// What the program has mapped.
const MAPPED: Bytes = Bytes::gib(4);

/// Every kind of action that moves nothing.
fn actions() -> Vec<Action> {
    let mut base = vec![
        first_touch(512, 1_000_000, Nanos::SECOND),
        first_touch(3, 0, Nanos::SECOND),
        populate(500),
        populate(5),
        Action::Place { page: page(3), to: DRAM, instead: SLOW, mapped: MAPPED },
        Action::Place { page: page(3), to: SLOW, instead: DRAM, mapped: MAPPED },
        compact((3, 1), 5_000_000, Nanos::SECOND, 700),
        Action::Split { page: page(3) },
        Action::Collapse { range: range(512) },
        Action::Arm { range: range(64) },
        Action::Scan { range: range(64) },
        Action::SetPeriod { source: SampleSource::Pmu, period: 5000 },
        Action::Throttle { limit: BytesPerSecond(1e9) },
    ];
    // A page that the program waits for, longer than it should.
    let waited = first_touch(512, 1_000_000, Nanos::SECOND);
    base.push(with(waited, |_, _, waits| *waits = Cycles(9_000_000)));
    base.push(prezero(2));
    base.push(ZERO_AHEAD);
    base.push(prefetch(Some(SLOW), 60, 64));
    base.push(prefetch(None, 0, 0));
    base.push(RECLAIM);
    base.push(recompress(None, Bytes::kib(300)));
    base.push(recompress(Some(TierId(2)), Bytes::kib(300)));
    base
}

/// Every kind of action that moves a page.
fn moves() -> [Action; 4] {
    let (context, from, to) = (ContextId(9), DRAM, SLOW);
    [
        Action::Promote { page: page(17), from: SLOW, to: DRAM },
        Action::Demote { page: page(4), from: DRAM, to: SLOW },
        Action::Exchange { promote: page(17), demote: page(4), fast: DRAM, slow: SLOW },
        Action::DemoteContext { context, pages: 100, of: 120, from, to },
    ]
}

/// Every kind of action; those that move a page both to and from memory that is addressable, and
/// memory that is not.
fn worlds() -> Vec<(Action, Telemetry, Calibration)> {
    let compressed = |action| (action, laptop_telemetry(), calibration());
    let addressable = |action| (action, optane_telemetry(), optane());
    let all = actions().into_iter().chain(moves()).map(compressed);
    all.chain(moves().map(addressable)).collect()
}

/// How many those are.
const WORLDS: usize = 21 + 2 * 4;

#[test]
fn every_action_has_both_sides() {
    assert_eq!(worlds().len(), WORLDS, "properties leave none out");
    // Room is worth something where there is none.
    let mut telemetry = laptop_telemetry();
    telemetry.tiers[1].free = Bytes::ZERO;
    for action in actions() {
        let ledger = ledger(action, &telemetry, market());
        let of =
            |benefit| ledger.terms().iter().flatten().any(|term| term.kind.is_benefit() == benefit);
        // A bound on moves that nothing waits for spares nothing.
        let spares = !matches!(action, Action::Throttle { .. });
        assert!(of(true) || !spares, "{action:?} brings nothing at all");
        assert!(of(false), "{action:?} costs nothing at all");
    }
}

/// A class that is added later is not to be left out here.
#[test]
fn properties_are_of_every_class_of_action() {
    let there: Vec<_> = worlds().iter().map(|(action, ..)| action.class()).collect();
    for class in ActionClass::ALL {
        assert!(there.contains(&class), "{class:?}");
    }
}

#[test]
fn a_benefit_without_a_time_is_none() {
    let timeless = ledger(first_touch(0, 1 << 40, Nanos::ZERO), &roomy(), market());
    assert!(timeless.benefit.high <= 0.0);
}

#[test]
fn a_page_that_stays_for_a_part_of_the_profiled_time_has_a_part_of_its_benefit() {
    let of = |within| {
        let terms = *ledger(first_touch(0, 1_000_000, within), &roomy(), market()).terms();
        let walks = terms.into_iter().flatten().find(|term| term.kind == TermKind::SavedWalks);
        walks.expect("it saves walks").cycles().expected
    };
    // The market's horizon is ten seconds.
    let whole = of(Nanos::seconds(2));
    assert!((whole - of(Nanos::seconds(10))).abs() < 1e-3 * whole);
    assert!((whole / 10.0 - of(Nanos::seconds(100))).abs() < 1e-3 * whole);
}

/// A page that is touched late in the profiled run has what is left of it; a run that goes on
/// beyond that has a horizon's worth.
#[test]
fn what_is_left_of_the_profiled_run_is_what_can_come_about() {
    let of = |left| {
        let action = first_touch(0, 1_000_000, Nanos::seconds(100));
        let action = with(action, |_, there, _| *there = left);
        ledger(action, &roomy(), market()).benefit.expected
    };
    let whole = of(Nanos::seconds(100));
    assert!((of(Nanos::seconds(50)) / whole - 0.5).abs() < 0.01);
    assert!((of(Nanos::ZERO) / whole - 0.1).abs() < 0.01, "the market's horizon is ten seconds");
    assert!((of(Nanos::seconds(900)) - whole).abs() < 1.0, "no more than there is");
}

/// What a program waits for costs its time whether processors are idle or not, and beyond what it
/// should ever wait ten times that.
#[test]
fn a_wait_is_paid_in_full_and_a_long_one_tenfold() {
    let mut telemetry = roomy();
    telemetry.cpu_load = 0.0;
    let of = |wait: u64| {
        let action = first_touch(512, 1_000_000, Nanos::SECOND);
        let action = with(action, |_, _, waits| *waits = Cycles(wait));
        ledger(action, &telemetry, market()).cost.expected
    };
    let budget = calibration().clock.cycles(calibration().parameters.stall_budget).get();
    assert!((of(budget) - of(budget / 2) - budget as f64 / 2.0).abs() < 2.0);
    assert!((of(budget + 1000) - of(budget) - 10_000.0).abs() < 20.0);
}

/// What nobody knows is between none and all, and counts at none.
#[test]
fn touches_that_nobody_knows_spare_nothing_for_certain() {
    let of = |unsure| {
        let action = first_touch(256, 0, Nanos::SECOND);
        ledger(with(action, |by, _, _| *by = unsure), &roomy(), market()).benefit
    };
    assert!(of(256).low <= 0.0 && of(256).expected > 0.0);
    assert!((of(256).high - 2.0 * of(0).expected).abs() < 1.0);
    let populated = |unsure| {
        let action = Action::Populate { range: range(512), touched: 256, unsure };
        ledger(action, &roomy(), market()).benefit
    };
    assert!(populated(256).low <= 0.0 && populated(0).low > 0.0);
}

/// A profile that did not come true elsewhere is believed less here.
#[test]
fn a_profile_counts_as_far_as_it_came_true() {
    let of = |touched| {
        let market = Market { touched, ..market() };
        let huge = ledger(first_touch(512, 1_000_000, Nanos::SECOND), &roomy(), market);
        (huge.benefit.low, ledger(populate(512), &roomy(), market).benefit.low)
    };
    let (whole, half) = (of(1.0), of(0.5));
    assert!((half.0 * 2.0 - whole.0).abs() < 1.0 && (half.1 * 2.0 - whole.1).abs() < 1.0);
}

#[test]
fn blocks_that_are_asked_for_are_worth_moving_pages_for() {
    let of = |wanted, pages| {
        ledger(compact((4, wanted), 0, Nanos::ZERO, pages), &roomy(), market()).margin(1.5)
    };
    assert!(of(4, 100) > 0.0, "a hundred pages for four blocks");
    assert!(of(0, 100) < 0.0, "nobody wants them");
    assert!(of(4, 2_000_000) < 0.0, "too many pages for it");
}

/// A block averts in the time that is left what a huge page of the same profile does: not what the
/// whole run has, and nothing without a time.
#[test]
fn what_a_block_brings_is_of_the_time_in_which_it_comes_about() {
    let walks = |within, left| {
        let mut action = compact((1, 1), 1_000_000, within, 100);
        if let Action::Compact { left: there, .. } = &mut action {
            *there = left;
        }
        let terms = *ledger(action, &roomy(), market()).terms();
        let walks = terms.into_iter().flatten().find(|term| term.kind == TermKind::SavedWalks);
        walks.map_or(0.0, |term| term.cycles().expected)
    };
    let whole = walks(Nanos::seconds(100), Nanos::seconds(100));
    assert!((whole / 1e6 - 1.0).abs() < 1e-3, "{whole}");
    assert!((walks(Nanos::seconds(100), Nanos::seconds(50)) / whole - 0.5).abs() < 1e-3);
    // The market's horizon is ten seconds.
    assert!((walks(Nanos::seconds(100), Nanos::ZERO) / whole - 0.1).abs() < 1e-3);
    assert!(walks(Nanos::ZERO, Nanos::seconds(50)) <= 0.0);
}

#[test]
fn a_huge_page_pays_by_its_walks_or_by_its_touches_and_not_without_either() {
    let telemetry = roomy();
    let margin = |touched, averted| {
        ledger(first_touch(touched, averted, Nanos::SECOND), &telemetry, market()).margin(1.5)
    };
    assert!(margin(512, 100_000_000) > 0.0);
    assert!(margin(512, 0) > margin(10, 0), "touched pages are spared their faults");
    assert!(margin(1, 0) < 0.0, "a page of 2 MiB for one touch");
}

/// A kernel that fills pages within a fault has no call to pay for, and spares only what the fault
/// takes longer than mapping does. A page in vain costs its zeros and its mapping.
#[test]
fn filling_within_a_fault_spares_what_the_fault_takes_longer() {
    let fault = calibration().user_fault;
    let prices = Calibration { fill_fixed: fault / 4, fault_pages: 1.0, ..calibration() };
    let telemetry = Telemetry { cpu_load: 1.0, ..roomy() };
    let conditions = Conditions::new(&telemetry, &prices, market());
    let of = |touched| price(&of(populate(touched)), &conditions);
    let cycles = |time: Nanos| prices.clock.cycles(time).as_f64();
    let (all, none) = (of(512), of(0));
    let spared = 512.0 * cycles(fault - prices.fill_fixed);
    assert!((all.benefit.expected / spared - 1.0).abs() < 1e-3, "{all:?} {spared}");
    assert!(all.cost.expected <= 0.0 && none.benefit.expected <= 0.0);
    let zero = prices.copy_bandwidth.time_for(PageSize::Base.bytes());
    assert!(none.cost.expected >= 512.0 * (cycles(zero) + cycles(prices.fill_fixed)) - 600.0);
}

#[test]
fn populating_pays_where_nearly_all_is_touched() {
    let telemetry = roomy();
    let margin = |touched| ledger(populate(touched), &telemetry, market()).margin(1.5);
    assert!(margin(512) > 0.0 && margin(1) < 0.0);
    let margins: Vec<_> = [1, 50, 200, 400, 512].map(margin).into();
    assert!(margins.is_sorted(), "{margins:?}");
}

#[test]
fn what_is_looked_at_to_learn_is_decided_on_by_its_expectation() {
    let telemetry = laptop_telemetry();
    let arm = Action::Arm { range: range(64) };
    let worthless = Market { bid: terrace_economics::Interval::ZERO, ..market() };
    let of = |market| {
        let ledger = ledger(arm, &telemetry, market);
        pays(&arm, ledger.benefit, ledger.cost, 1.5)
    };
    let dear = terrace_economics::Interval::new(0.0, 1e3, 1e6);
    assert!(of(Market { bid: dear, ..market() }), "the least that it can bring is nothing");
    assert!(!of(worthless), "nobody wants in: there is nothing to learn");
}

#[test]
fn a_decision_turns_where_it_says_that_it_turns() {
    let (telemetry, calibration) = (roomy(), calibration());
    let conditions = conditions(&telemetry, &calibration);
    let hurdle = 1.0 + calibration.parameters.hysteresis;
    for (action, with) in [
        (
            first_touch(0, 1_000_000, Nanos::SECOND),
            (|x: f64| {
                let of = |share: f64| Cycles::from_f64(x * share);
                Action::FirstTouch {
                    range: range(512),
                    touched: 0,
                    unsure: 0,
                    least: of(0.25),
                    averted: of(1.0),
                    most: of(3.0),
                    within: Nanos::SECOND,
                    left: Nanos::ZERO,
                    waits: Cycles::ZERO,
                }
            }) as fn(f64) -> Action,
        ),
        (populate(5), |x| populate(x as u16)),
    ] {
        let ledger = price(&of(action), &conditions);
        let turn = flip(&of(action), &ledger, &conditions).expect("it turns").get();
        let margin = |x| price(&of(with(x)), &conditions).margin(hurdle);
        assert!(margin(turn * 1.05 + 1.0) > 0.0, "{action:?} {turn}");
        assert!(margin((turn * 0.95 - 1.0).max(0.0)) <= 0.0, "{action:?} {turn}");
    }
}

/// As many blocks become free as there are pages moved for: the decision turns within them, or not.
#[test]
fn compaction_turns_on_how_many_of_its_blocks_are_wanted() {
    const EACH: u64 = 1_000_000_000;
    let (telemetry, calibration) = (roomy(), calibration());
    let conditions = conditions(&telemetry, &calibration);
    let hurdle = 1.0 + calibration.parameters.hysteresis;
    let of_pages = |pages| compact((400, 0), 0, Nanos::SECOND, pages);
    let cost = price(&of(of_pages(1_000_000)), &conditions).cost.expected / 1e6;
    // Some 250 blocks have to be wanted.
    let pages = (250.0 * EACH as f64 / (hurdle * cost)) as u64;
    let with = |blocks, wanted: u32| {
        of(compact((blocks, wanted), EACH * u64::from(wanted), Nanos::SECOND, pages))
    };
    let turn = |proposal: Proposal| flip(&proposal, &price(&proposal, &conditions), &conditions);
    let margin = |wanted| price(&with(400, wanted), &conditions).margin(hurdle);
    for now in [1, 10, 300, 400] {
        let turn = turn(with(400, now)).expect("it turns").get();
        assert!((200.0..255.0).contains(&turn), "{now}: {turn}");
        assert!(margin(turn.ceil() as u32) > 0.0 && margin(turn.floor() as u32) <= 0.0, "{turn}");
    }
    assert_eq!(turn(with(100, 100)), None, "all of them are not enough");
}

/// Above zero if it pays by the benefit that counts, of new memory and looks the expected one.
fn sign(action: Action, ledger: &Ledger, hurdle: f64) -> f64 {
    if pays(&action, ledger.benefit, ledger.cost, hurdle) { 1.0 } else { -1.0 }
}

/// What came of others is what pages ahead of a walk turn on.
#[test]
fn pages_ahead_of_a_walk_turn_on_what_came_of_others_where_it_says() {
    let mut telemetry = laptop_telemetry();
    telemetry.tiers[0].free = telemetry.tiers[0].capacity / 100;
    let calibration = calibration();
    let conditions = conditions(&telemetry, &calibration);
    let hurdle = 1.0 + calibration.parameters.hysteresis;
    let kinds: [fn(u32) -> Action; 3] =
        [|used| prefetch(Some(SLOW), used, 64), |used| prefetch(None, used, 64), prezero];
    for with in kinds {
        for now in [0, 64] {
            let action = with(now);
            let ledger = price(&of(action), &conditions);
            let turn = flip(&of(action), &ledger, &conditions).expect("it turns").get();
            let margin = |used: f64| price(&of(with(used as u32)), &conditions).margin(hurdle);
            assert!(turn > 0.0 && turn < 64.0, "{action:?} {turn}");
            assert!(margin(turn.ceil()) > 0.0, "{action:?} {turn}");
            assert!(margin(turn.floor()) <= 0.0, "{action:?} {turn}");
        }
    }
}

/// Walks go on as a rule, and who knows nothing else lets them.
#[test]
fn a_walk_of_which_nothing_is_known_is_gone_ahead_of_and_one_that_wastes_is_not() {
    let mut telemetry = laptop_telemetry();
    telemetry.tiers[0].free = Bytes::ZERO;
    for from in [Some(SLOW), None] {
        let margin = |used, known| {
            let action = Action::Prefetch { from, pages: 4, window: 4, used, known };
            ledger(action, &telemetry, market()).margin(1.5)
        };
        assert!(margin(0, 0) > 0.0 && margin(64, 64) > margin(0, 0), "{from:?}");
        assert!(margin(2, 20) < 0.0, "{from:?}");
    }
}

/// A page that is asked for has to come in any case: what that takes says nothing against bringing
/// it in ahead, however long it is.
#[test]
fn what_a_fault_would_do_as_well_is_no_cost_of_a_walk() {
    let telemetry = laptop_telemetry();
    let mut slow = telemetry;
    slow.tiers[1].read_latency = Nanos::micros(500);
    let of =
        |telemetry: &Telemetry, used| ledger(prefetch(Some(SLOW), used, 64), telemetry, market());
    let margin = |telemetry: &Telemetry| of(telemetry, 64).margin(1.5);
    assert!(margin(&slow) > 0.0, "of a slow disk, too");
    assert!(of(&slow, 10).cost.expected > 10.0 * of(&telemetry, 10).cost.expected, "waste is dear");
    // Where processors are idle, the time is spared that would have been waited for it.
    slow.cpu_load = 0.0;
    assert!(of(&slow, 64).benefit.low > 20.0 * of(&telemetry, 64).benefit.low);
}

#[test]
fn reclaim_to_a_file_turns_where_its_pages_come_back_too_often() {
    let mut telemetry = laptop_telemetry();
    telemetry.tiers[1].free = Bytes::ZERO;
    telemetry.tiers[2].write_latency = Nanos::micros(2);
    let calibration = calibration();
    let conditions = conditions(&telemetry, &calibration);
    let hurdle = 1.0 + calibration.parameters.hysteresis;
    let with = |rate: f64| Proposal {
        page_size: PageSize::Base,
        ..proposal(RECLAIM, heat(rate, 0.0, 10))
    };
    let priced = |rate| price(&with(rate), &conditions);
    let turn = flip(&with(0.01), &priced(0.01), &conditions).expect("it turns").get();
    assert!(turn > 0.0, "{turn}");
    assert!(priced(turn * 0.95).margin(hurdle) > 0.0, "{turn}");
    assert!(priced(turn * 1.05).margin(hurdle) < 0.0, "{turn}");
    // While there is room where they are, nothing is gained.
    let roomy = laptop_telemetry();
    assert!(ledger(RECLAIM, &roomy, market()).benefit.high <= 0.0);
}

/// What is set free keeps other pages near; that is worth something only while room is short.
#[test]
fn compressing_again_turns_on_what_it_sets_free() {
    let mut telemetry = laptop_telemetry();
    telemetry.tiers[1].free = Bytes::ZERO;
    let calibration = calibration();
    let conditions = conditions(&telemetry, &calibration);
    let hurdle = 1.0 + calibration.parameters.hysteresis;
    let margins = [None, Some(TierId(2))].map(|below| {
        let with = |saves| Proposal {
            page_size: PageSize::Base,
            ..proposal(recompress(below, saves), heat(10.0, 0.0, 100))
        };
        let margin = |saves: f64| price(&with(Bytes::from_f64(saves)), &conditions).margin(hurdle);
        let now = with(Bytes::kib(300));
        let turn = flip(&now, &price(&now, &conditions), &conditions).expect("it turns").get();
        assert!(turn > 4096.0, "{below:?} {turn}");
        assert!(margin(turn * 1.01) > 0.0 && margin(turn * 0.99) < 0.0, "{below:?} {turn}");
        margin(Bytes::kib(300).as_f64())
    });
    assert!(margins[1] > margins[0], "a file is slower than memory: {margins:?}");
    // While there is room where they are, nothing is gained.
    let roomy = laptop_telemetry();
    let ledger = ledger(recompress(None, Bytes::kib(300)), &roomy, market());
    assert!(ledger.benefit.high <= 0.0 && ledger.cost.expected > 0.0);
}

/// Of new memory nobody knows anything but what is known of its neighbours.
#[test]
fn new_memory_turns_where_it_says_that_it_turns() {
    let telemetry = optane_telemetry();
    let calibration = optane();
    let conditions = conditions(&telemetry, &calibration);
    let hurdle = 1.0 + calibration.parameters.hysteresis;
    for (to, instead, up) in [(DRAM, SLOW, 1.0), (SLOW, DRAM, -1.0)] {
        let action = Action::Place { page: page(3), to, instead, mapped: MAPPED };
        let with = |rate: f64| proposal(action, heat(rate, 0.0, 10));
        let margin = |rate| sign(action, &price(&with(rate), &conditions), hurdle);
        let turn = flip(&with(1.0), &price(&with(1.0), &conditions), &conditions);
        let turn = turn.expect("it turns").get();
        assert!(turn > 0.0, "{turn}");
        assert!(margin(turn * 1.05) * up > 0.0 && margin(turn * 0.95) * up < 0.0, "{turn}");
    }
}

/// A first touch has no sample; its tier's mean is what it is decided by.
#[test]
fn new_memory_without_a_sample_is_decided_by_its_expectation() {
    let mut telemetry = optane_telemetry();
    telemetry.tiers[0].free = telemetry.tiers[0].capacity / 2;
    let calibration = optane();
    let of = |to, instead| {
        let action = Action::Place { page: page(3), to, instead, mapped: MAPPED };
        let proposal = proposal(action, heat(0.0, 0.0, 0));
        let ledger = price(&proposal, &Conditions::new(&telemetry, &calibration, market()));
        pays(&action, ledger.benefit, ledger.cost, 1.5)
    };
    assert!(of(DRAM, SLOW), "there is room");
    assert!(!of(SLOW, DRAM), "nothing is gained by leaving it free");
}

/// Looks, samplers and bounds are about no page: what fast memory is worth is what they turn on.
#[test]
fn looks_and_rates_turn_on_what_memory_is_worth() {
    let mut telemetry = laptop_telemetry();
    // Bytes of ours are in the way of the program's.
    for tier in &mut telemetry.tiers[..2] {
        tier.addressable = true;
        (tier.read_bandwidth, tier.write_bandwidth) = (BytesPerSecond(1e15), BytesPerSecond(1e15));
    }
    let calibration = calibration();
    let hurdle = 1.0 + calibration.parameters.hysteresis;
    for (action, up) in [
        (Action::Arm { range: range(64) }, 1.0),
        (Action::Scan { range: range(64) }, 1.0),
        (Action::SetPeriod { source: SampleSource::Pmu, period: 5000 }, 1.0),
        (Action::Throttle { limit: BytesPerSecond(1e8) }, -1.0),
    ] {
        let priced = |worth| {
            let bid = terrace_economics::Interval::exact(worth);
            let market = Market { bid, ..market() };
            let conditions = Conditions::new(&telemetry, &calibration, market);
            let ledger = price(&of(action), &conditions);
            (sign(action, &ledger, hurdle), flip(&of(action), &ledger, &conditions))
        };
        let turn = priced(1.0).1.unwrap_or_else(|| panic!("{action:?} turns")).get();
        assert!(turn > 0.0, "{action:?} {turn}");
        assert!(priced(turn * 1.05).0 * up > 0.0, "{action:?} {turn}");
        assert!(priced(turn * 0.95).0 * up < 0.0, "{action:?} {turn}");
    }
}

proptest! {
    /// Time and cycles are converted by the clock alone: a machine on which everything takes
    /// the same time and whose clock is twice as fast has prices twice as high. A model that
    /// mixed cycles with times, or counts with either, would not.
    #[test]
    fn no_model_mixes_units(factor in 1.5f64..8.0, which in 0..WORLDS) {
        let (action, telemetry, slow) = worlds().swap_remove(which);
        let fast = Calibration { clock: slow.clock * factor, ..slow };
        // What a profile and the market say in cycles is of the same time, too.
        let faster = |cycles: Cycles| Cycles::from_f64(cycles.as_f64() * factor);
        let scaled = match action {
            Action::FirstTouch { range, touched, unsure, least, averted, most, within, left, waits } => {
                let (least, averted, most) = (faster(least), faster(averted), faster(most));
                let waits = faster(waits);
                Action::FirstTouch { range, touched, unsure, least, averted, most, within, left, waits }
            }
            Action::Compact { blocks, wanted, brings, within, left, pages } => {
                let brings = faster(brings);
                Action::Compact { blocks, wanted, brings, within, left, pages }
            }
            Action::ZeroAhead { blocks, wanted, spares } => {
                Action::ZeroAhead { blocks, wanted, spares: faster(spares) }
            }
            other => other,
        };
        let market = market();
        let dearer =
            Market { bid: market.bid.scale(factor), ask: market.ask.scale(factor), ..market };
        let before = price(&of(action), &Conditions::new(&telemetry, &slow, market));
        let after = price(&of(scaled), &Conditions::new(&telemetry, &fast, dearer));
        for (a, b) in [
            (before.cost.expected, after.cost.expected),
            (before.benefit.expected, after.benefit.expected),
            (before.benefit.high, after.benefit.high),
        ] {
            prop_assert!((a * factor - b).abs() <= 1e-4 * b.abs() + 1.0, "{:?}: {} {}", action, a, b);
        }
    }

    /// Ever shorter horizons leave ever less benefit, and none in no time: no model has a benefit
    /// that is not one of some time, but for what is spared at once (a fault, an interrupt).
    #[test]
    fn no_benefit_outlives_its_horizon(which in 0..WORLDS) {
        let (action, telemetry, calibration) = worlds().swap_remove(which);
        let benefit = |horizon| {
            let market = Market { horizon, ..market() };
            let ledger = price(&of(action), &Conditions::new(&telemetry, &calibration, market));
            let at_once = |kind| matches!(kind, TermKind::AvoidedFault);
            ledger
                .terms()
                .iter()
                .flatten()
                .filter(|term| term.kind.is_benefit() && !at_once(term.kind))
                .map(|term| term.cycles().high)
                .sum::<f64>()
        };
        let long = benefit(10.0);
        prop_assert!(benefit(1.0) <= long * 1.0001);
        prop_assert!(benefit(1e-9) <= long * 1e-6 + 1.0, "{:?}", action);
    }

    /// Nothing that is forged makes a price that is not a number.
    #[test]
    fn no_input_makes_a_price_that_is_no_number(
        a in any::<u64>(), b in any::<u64>(), c in any::<u16>(), d in any::<u32>(),
        rate in prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), 0.0..1e12],
    ) {
        let telemetry = laptop_telemetry();
        let calibration = calibration();
        let wide = PageRange { region: RegionId(0), start: PageNo(0), count: d };
        for action in [
            Action::FirstTouch {
                range: wide, touched: c, unsure: c, least: Cycles(b), averted: Cycles(a),
                most: Cycles(b), within: Nanos(b), left: Nanos(a), waits: Cycles(b),
            },
            Action::Populate { range: wide, touched: c, unsure: c },
            Action::Compact {
                blocks: HugePages(d.into()), wanted: HugePages(a), brings: Cycles(b), within: Nanos(a), left: Nanos(b),
                pages: Pages(a),
            },
            Action::Arm { range: wide },
            Action::Scan { range: wide },
            Action::SetPeriod { source: SampleSource::Pmu, period: a },
            Action::Throttle { limit: BytesPerSecond(rate) },
            Action::Split { page: page(d) },
            Action::Place { page: page(d), to: DRAM, instead: SLOW, mapped: MAPPED },
            Action::Prezero { walked: Pages(a), used: d, known: u32::from(c) },
            Action::Prefetch {
                from: Some(SLOW), pages: d, window: u32::from(c), used: d, known: u32::from(c),
            },
            Action::Reclaim { from: SLOW, to: TierId(c as u8), pages: d, bytes: Bytes(a) },
            Action::Recompress {
                tier: SLOW, below: Some(TierId(c as u8)), pages: d, each: Bytes(c.into()),
                least: Bytes(b), saves: Bytes(a), most: Bytes(b),
            },
            Action::ZeroAhead { blocks: HugePages(a), wanted: HugePages(b), spares: Cycles(b) },
        ] {
            let mut proposal = of(action);
            proposal.heat.loads = PerSecond(rate);
            proposal.page_size = PageSize::Huge;
            let conditions = Conditions::new(&telemetry, &calibration, market());
            let ledger = price(&proposal, &conditions);
            for interval in [ledger.cost, ledger.benefit] {
                prop_assert!(interval.low <= interval.expected && interval.expected <= interval.high);
                prop_assert!(interval.high.is_finite());
            }
            let turn = flip(&proposal, &ledger, &conditions);
            prop_assert!(turn.is_none_or(|turn| turn.get().is_finite()), "{:?}", turn);
        }
    }
}
