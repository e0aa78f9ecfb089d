//! Modes, learning and accounts of the economist.

mod common;

use common::{
    DRAM, SLOW, demote, exchange, heat, laptop, laptop_telemetry, optane, optane_telemetry, page,
    promote,
};
use proptest::prelude::*;
use terrace_core::{
    Abort, Access, Action, ActionClass, Bytes, BytesPerSecond, Cycles, Done, Heat, HugePages,
    Nanos, OpId, Outcome, PageNo, PageRange, PageSize, Pages, PerSecond, Proposal, RegionId,
    Sample, SampleSource, Telemetry, Urgency,
};
use terrace_economics::walks::LeftOut;
use terrace_economics::{
    Account, Alternative, Balance, Calibration, Decision, Economist, Interval, LookedAt, Mode,
    TermKind, Verdict,
};

fn enforcing() -> Economist {
    Economist::new(Mode::Enforce, optane())
}

/// Without exploration, so that a refusal is a refusal.
fn strict(mut calibration: Calibration) -> Economist {
    calibration.parameters.explore = 0;
    Economist::new(Mode::Enforce, calibration)
}

fn numbered(op: u64, number: u32, mut proposal: Proposal) -> Proposal {
    proposal.op = OpId(op);
    match &mut proposal.action {
        Action::Promote { page: p, .. } | Action::Demote { page: p, .. } => *p = page(number),
        Action::Exchange { promote, .. } => *promote = page(number),
        _ => {}
    }
    proposal
}

fn completed(proposal: Proposal, cost: u64) -> Done {
    let moved = proposal.page_size.bytes();
    Done { proposal, outcome: Outcome::Completed { cost: Cycles(cost), moved } }
}

fn sample(number: u32, access: Access) -> Sample {
    Sample { page: page(number), access, source: SampleSource::Pmu, weight: 1 }
}

fn hot() -> Proposal {
    promote(heat(1e6, 0.0, 200))
}

fn term(decision: &Decision, kind: TermKind) -> Option<Interval> {
    decision.terms.iter().flatten().find(|t| t.kind == kind).map(terrace_economics::Term::cycles)
}

#[test]
fn off_prices_nothing_and_refuses_nothing() {
    let mut economist = Economist::new(Mode::Off, optane());
    let decision = economist.decide(&promote(heat(0.0, 0.0, 0)), &optane_telemetry());
    assert!(decision.passes);
    assert_eq!(decision.verdict, Verdict::Off);
    assert!(decision.terms.iter().all(Option::is_none));
    assert_eq!((decision.cost, decision.benefit), (Interval::ZERO, Interval::ZERO));
    assert_eq!(economist.account(ActionClass::Promote).proposed, 1);
}

#[test]
fn shadow_has_the_same_opinion_and_lets_everything_pass() {
    let (mut shadow, mut enforce) = (Economist::new(Mode::Shadow, optane()), strict(optane()));
    let cold = promote(heat(100.0, 0.0, 2));
    let seen = shadow.decide(&cold, &optane_telemetry());
    let refused = enforce.decide(&cold, &optane_telemetry());
    assert_eq!((seen.verdict, seen.passes), (Verdict::ShadowVeto, true));
    assert_eq!((refused.verdict, refused.passes), (Verdict::Vetoed, false));
    assert_eq!((seen.cost, seen.benefit), (refused.cost, refused.benefit));
    assert_eq!(shadow.account(ActionClass::Promote).would_veto, 1);
    assert_eq!(enforce.account(ActionClass::Promote).vetoed, 1);
}

/// Advice is what would be refused, with what that would spare and forgo. Nothing is tried out: what
/// pays is not held out, and no class stands still.
#[test]
fn advise_lets_everything_pass_and_adds_up_what_it_would_refuse() {
    let mut calibration = optane();
    (calibration.parameters.hold_out, calibration.parameters.kill_switch) = (1, true);
    let mut advise = Economist::new(Mode::Advise, calibration);
    let telemetry = optane_telemetry();
    let first = advise.decide(&numbered(1, 1, promote(heat(100.0, 0.0, 2))), &telemetry);
    let second = advise.decide(&numbered(2, 2, promote(heat(50.0, 0.0, 1))), &telemetry);
    let pays = advise.decide(&numbered(3, 3, hot()), &telemetry);
    for refused in [&first, &second] {
        assert_eq!((refused.verdict, refused.passes), (Verdict::ShadowVeto, true), "{refused}");
    }
    assert_eq!((pays.verdict, pays.passes), (Verdict::Passed, true), "{pays}");
    let account = advise.account(ActionClass::Promote);
    assert_eq!((account.would_veto, account.vetoed, account.held_out), (2, 0, 0));
    let about = |cycles: Cycles, sum: f64| (cycles.as_f64() - sum).abs() <= 1.0;
    assert!(about(account.would_veto_cost, first.cost.expected + second.cost.expected));
    assert!(about(account.would_veto_benefit, first.benefit.expected + second.benefit.expected));
}

#[test]
fn every_mode_has_a_name_by_which_it_is_found() {
    for mode in Mode::ALL {
        assert_eq!(Mode::of_name(mode.name()), Some(mode));
        assert_eq!(mode.refuses(), mode == Mode::Enforce);
        let written = serde_json::to_string(&mode).unwrap();
        assert_eq!(written, format!("\"{}\"", mode.name()), "recordings have the same names");
    }
    assert_eq!(Mode::of_name("advice"), None);
}

#[test]
fn a_bound_above_all_that_moves_costs_nothing_and_passes() {
    let mut proposal = hot();
    proposal.action = Action::Throttle { limit: BytesPerSecond(1e12) };
    let decision = enforcing().decide(&proposal, &optane_telemetry());
    assert_eq!(decision.verdict, Verdict::Passed);
    assert_eq!((decision.cost, decision.benefit), (Interval::ZERO, Interval::ZERO));
}

/// An economist of which one of so many actions that pay is held out.
fn holding_out(one_in: u32) -> Economist {
    let mut calibration = optane();
    calibration.parameters.hold_out = one_in;
    Economist::new(Mode::Enforce, calibration)
}

/// A huge page by a profile that promises much.
fn profiled(op: u64) -> Proposal {
    let range = PageRange { region: RegionId(2), start: PageNo(512 * op as u32), count: 512 };
    let action = Action::FirstTouch {
        range,
        touched: 512,
        unsure: 0,
        least: Cycles(5_000_000_000),
        averted: Cycles(20_000_000_000),
        most: Cycles(60_000_000_000),
        within: Nanos::SECOND,
        left: Nanos::SECOND,
        waits: Cycles::ZERO,
    };
    Proposal { op: OpId(op), action, ..hot() }
}

/// A forged profile: what it says will be touched never is. Places that are held out show it; the
/// price falls, and the class stops when it has cost more than it brought.
#[test]
fn a_profile_that_does_not_come_true_loses_its_price_and_then_stops() {
    let mut calibration = optane();
    calibration.parameters.hold_out = 8;
    calibration.parameters.kill_switch = true;
    let mut economist = Economist::new(Mode::Enforce, calibration);
    let mut telemetry = optane_telemetry();
    let class = ActionClass::FirstTouch;
    let (mut first, mut stopped, mut held_out) = (None, 0, 0);
    for op in 0..2000 {
        telemetry.now += Nanos::millis(100);
        let proposal = profiled(op);
        let decision = economist.decide(&proposal, &telemetry);
        first.get_or_insert(decision.benefit.expected);
        match decision.verdict {
            Verdict::HeldOut => {
                held_out += 1;
                economist.looked_at(class, LookedAt { said: 1.0, was: 0.0 });
            }
            Verdict::Stopped => stopped += 1,
            _ if decision.passes => {
                let outcome = Outcome::Completed { cost: Cycles(500_000), moved: Bytes::mib(2) };
                economist.settle(&Done { proposal, outcome }, &telemetry);
            }
            _ => {}
        }
    }
    let last = economist.decide(&profiled(2000), &telemetry).benefit.expected;
    assert!(held_out > 10 && last < first.expect("decided") / 5.0, "{held_out}: {last}");
    assert!(economist.true_of_profiles(class) < 0.2);
    assert!(stopped > 100, "{stopped}");
    let account = economist.account(class);
    assert!(account.realised_benefit.is_zero() && account.net() < 0.0);
}

/// And one that does goes on.
#[test]
fn a_profile_that_comes_true_is_not_stopped() {
    let mut calibration = optane();
    calibration.parameters.hold_out = 8;
    calibration.parameters.kill_switch = true;
    let mut economist = Economist::new(Mode::Enforce, calibration);
    let mut telemetry = optane_telemetry();
    for op in 0..2000 {
        telemetry.now += Nanos::millis(100);
        let proposal = profiled(op);
        let decision = economist.decide(&proposal, &telemetry);
        assert_ne!(decision.verdict, Verdict::Stopped);
        if decision.verdict == Verdict::HeldOut {
            let place = LookedAt { said: 1.0, was: 0.9 };
            economist.looked_at(ActionClass::FirstTouch, place);
        } else if decision.passes {
            let outcome = Outcome::Completed { cost: Cycles(500_000), moved: Bytes::mib(2) };
            economist.settle(&Done { proposal, outcome }, &telemetry);
        }
    }
    assert!(economist.account(ActionClass::FirstTouch).net() > 0.0);
}

/// In both accounts, what a block brings would count twice.
#[test]
fn what_a_block_is_for_is_in_the_account_of_the_huge_page_that_takes_it() {
    let (mut economist, telemetry) = (enforcing(), optane_telemetry());
    let mut proposal = numbered(1, 1, hot());
    proposal.action = Action::Compact {
        blocks: HugePages(1),
        wanted: HugePages(1),
        brings: Cycles(1_000_000_000),
        within: Nanos::SECOND,
        left: Nanos::SECOND,
        pages: Pages(9),
    };
    let decision = economist.decide(&proposal, &telemetry);
    assert!(decision.passes && decision.benefit.low > 9e8, "{decision}");
    economist.settle(&completed(proposal, 70_000), &telemetry);
    let account = economist.account(ActionClass::Compact);
    assert!(account.predicted_benefit.is_zero(), "{account:?}");
    assert!(!account.predicted_cost.is_zero() && account.realised_cost == Cycles(70_000));
}

/// A block that is wanted, and that averts much; none is free.
fn wanted_block(op: u64) -> Proposal {
    let (blocks, brings, within) = (HugePages(1), Cycles(1_000_000_000), Nanos::SECOND);
    let wanted = blocks;
    let action = Action::Compact { blocks, wanted, brings, within, left: within, pages: Pages(9) };
    Proposal { op: OpId(op), action, ..hot() }
}

#[test]
fn whether_moving_pages_together_has_made_a_block_is_compared_with_what_was_predicted() {
    let (mut economist, telemetry) = (enforcing(), optane_telemetry());
    for (op, outcome) in [
        (1, Outcome::Completed { cost: Cycles(70_000), moved: Bytes::kib(36) }),
        (2, Outcome::Aborted(Abort::NoMemory)),
        (3, Outcome::Aborted(Abort::Busy)),
    ] {
        let proposal = wanted_block(op);
        assert!(economist.decide(&proposal, &telemetry).passes);
        economist.settle(&Done { proposal, outcome }, &telemetry);
    }
    let account = economist.account(ActionClass::Compact);
    assert_eq!((account.completed, account.aborted, account.judged), (1, 2, 2));
    assert!(account.benefit_ratio().is_some_and(|ratio| (ratio - 0.5).abs() < 1e-6), "{account:?}");
    assert!(account.realised_benefit.is_zero(), "it is in the account of the huge page");
}

/// Blocks are asked for again and again until there are enough. Were each of these drawn, one of the first
/// would be, and hardly any block would ever be made.
#[test]
fn one_second_in_so_many_goes_without_blocks_however_often_they_are_asked_for() {
    const ASKED: u64 = 50_000;
    let (mut economist, mut telemetry) = (holding_out(16), optane_telemetry());
    let mut refused = 0;
    for op in 0..ASKED {
        let decision = economist.decide(&wanted_block(op), &telemetry);
        refused += u64::from(decision.verdict == Verdict::HeldOut);
        telemetry.now += Nanos::millis(20);
    }
    assert!((ASKED / 32..ASKED / 11).contains(&refused), "{refused}");
    let account = economist.account(ActionClass::Compact);
    assert_eq!(account.held_out + account.vetoed, refused);
    assert!(account.held_out * 10 < refused, "all others of its second are with it: {account:?}");
}

/// Programs end and give memory back: a block may come without anybody who moves pages.
#[test]
fn a_block_that_is_not_made_says_what_making_it_would_have_brought() {
    for (comes, ratio) in [(true, 0.0), (false, 1.0)] {
        let (mut economist, mut telemetry) = (holding_out(1), optane_telemetry());
        let begin = telemetry.now;
        let first = economist.decide(&wanted_block(1), &telemetry);
        assert_eq!(first.verdict, Verdict::HeldOut);
        telemetry.now = begin + Nanos::millis(100);
        economist.saw_blocks(false, telemetry.now);
        let second = economist.decide(&wanted_block(2), &telemetry);
        assert_eq!(second.verdict, Verdict::HeldOut, "none is made meanwhile");
        let account = economist.account(ActionClass::Compact);
        assert_eq!((account.held_out, account.vetoed), (1, 1), "it is the same one");
        assert_eq!(account.held_out_ratio(), None, "it may still come");
        telemetry.now = begin + if comes { Nanos::millis(200) } else { Nanos::SECOND };
        economist.saw_blocks(comes, telemetry.now);
        let account = economist.account(ActionClass::Compact);
        let found = account.held_out_ratio().expect("it is known");
        assert!((found - ratio).abs() < 1e-6, "{found}");
        economist.saw_blocks(!comes, telemetry.now);
        assert_eq!(economist.account(ActionClass::Compact).held_out_ratio(), Some(found), "once");
    }
}

#[test]
fn pages_that_were_left_out_of_walks_say_what_having_them_would_have_spared() {
    let mut economist = enforcing();
    let account = |economist: &Economist| *economist.account(ActionClass::Prefetch);
    economist.left_out(&LeftOut { used: 6, known: 8, before: (0, 0) });
    let ratio = account(&economist).held_out_ratio().expect("something is known");
    // Nine of ten are expected before anything is known.
    assert!((ratio - 0.75 / 0.9).abs() < 1e-6, "{ratio}");
    assert_eq!(account(&economist).held_out, 0, "single pages are no proposals");
    assert!(account(&economist).net().abs() < 1e-9);
}

#[test]
fn what_comes_back_from_a_file_is_what_reclaim_has_cost() {
    let mut economist = enforcing();
    let harm = |economist: &Economist| economist.account(ActionClass::Reclaim).realised_harm;
    economist.came_back(10, Nanos::micros(100));
    assert_eq!(harm(&economist), optane().clock.cycles(Nanos::micros(100)) * 10);
    let timed = harm(&economist);
    economist.came_back(1, Nanos::ZERO);
    assert_eq!(harm(&economist) - timed, optane().clock.cycles(Nanos::micros(265)));
    let mut off = Economist::new(Mode::Off, optane());
    off.came_back(10, Nanos::micros(100));
    assert!(harm(&off).is_zero());
}

/// What is in the accounts when a process forks is the parent's: a child that reported it again
/// would count it twice.
#[test]
fn a_child_has_accounts_of_its_own_and_what_was_learnt() {
    let (mut economist, telemetry) = (enforcing(), optane_telemetry());
    let proposal = numbered(1, 1, hot());
    economist.decide(&proposal, &telemetry);
    let outcome = Outcome::Completed { cost: Cycles(50_000_000), moved: Bytes::mib(2) };
    economist.settle(&Done { proposal, outcome }, &telemetry);
    economist.spent(Cycles(7));
    let learnt = economist.correction(ActionClass::Promote);
    let mut child = economist.clone();
    child.forked(4711);
    assert_eq!(*child.account(ActionClass::Promote), Account::default());
    assert!(child.own_cost().is_zero() && child.net().abs() < 1e-9);
    assert_eq!(child.correction(ActionClass::Promote), learnt);
    assert_eq!(economist.account(ActionClass::Promote).completed, 1, "the parent keeps its own");
    // What it was about to hear of is the parent's, too.
    child.finish(telemetry.now + Nanos::seconds(60));
    assert_eq!(child.account(ActionClass::Promote).judged, 0);
}

#[test]
fn pages_that_were_held_out_are_watched_where_they_are() {
    let (mut economist, telemetry) = (holding_out(4), optane_telemetry());
    let mut held = Vec::new();
    for op in 0..400 {
        let proposal = numbered(op, op as u32, hot());
        let decision = economist.decide(&proposal, &telemetry);
        match decision.verdict {
            Verdict::Passed => assert!(decision.passes),
            Verdict::HeldOut => {
                assert!(!decision.passes);
                held.push(op as u32);
            }
            other => panic!("{other:?}"),
        }
    }
    let account = *economist.account(ActionClass::Promote);
    assert_eq!(account.held_out, held.len() as u64);
    assert!((70..130).contains(&account.held_out), "one of four: {}", account.held_out);
    let samples: Vec<_> = held
        .iter()
        .map(|&number| Sample {
            page: page(number),
            access: Access::Read,
            source: SampleSource::Pmu,
            weight: 1,
        })
        .collect();
    economist.observe(&samples);
    let account = *economist.account(ActionClass::Promote);
    assert!(account.realised_benefit.is_zero(), "nothing was moved");
    economist.finish(telemetry.now + Nanos::seconds(60));
    let account = *economist.account(ActionClass::Promote);
    assert!(!account.held_out_observed.is_zero());
    assert!(account.held_out_ratio().is_some() && account.judged == 0);
}

/// Setting a rate takes no time; the samples that come of it do.
#[test]
fn the_account_of_rates_has_what_their_samples_cost() {
    let mut economist = Economist::new(Mode::Shadow, optane());
    let mut telemetry = optane_telemetry();
    telemetry.tiers[0].accesses = PerSecond(1e8);
    let samples = [sample(1, Access::Read); 100];
    let faults = samples.map(|sample| Sample { source: SampleSource::HintFault, ..sample });
    economist.observe(&samples);
    let action = Action::SetPeriod { source: SampleSource::Pmu, period: 5000 };
    let proposal = Proposal { action, ..hot() };
    let decision = economist.decide(&proposal, &telemetry);
    let outcome = Outcome::Completed { cost: Cycles::ZERO, moved: Bytes::ZERO };
    economist.settle(&Done { proposal, outcome }, &telemetry);
    let account = *economist.account(ActionClass::Rate);
    let fixed = term(&decision, TermKind::Fixed).expect("samples cost").expected;
    let predicted = account.predicted_cost.as_f64();
    assert!(fixed > 0.0 && (predicted / fixed - 1.0).abs() < 1e-3, "{predicted} {decision}");
    assert!(account.realised_cost.is_zero(), "those before were at no rate that was proposed");
    economist.observe(&samples);
    economist.observe(&faults);
    let account = *economist.account(ActionClass::Rate);
    let each = optane().clock.cycles(Nanos(250));
    assert_eq!(account.realised_cost, Cycles(each.get() * 100));
}

#[test]
fn exploring_has_a_budget_that_comes_in_with_time() {
    let mut calibration = optane();
    // Two demotions' worth.
    calibration.parameters.explore = 1;
    calibration.parameters.explore_budget = 1e-4;
    let mut telemetry = optane_telemetry();
    telemetry.tiers[1].accesses = PerSecond::ZERO;
    let mut economist = Economist::new(Mode::Enforce, calibration);
    let mut cold = demote(heat(0.0, 0.0, 0));
    cold.heat.window = Nanos::seconds(10);
    let explored = |economist: &mut Economist, telemetry: &Telemetry, from: u64| {
        (from..from + 100)
            .filter(|&op| {
                let decision = economist.decide(&numbered(op, 1, cold), telemetry);
                decision.verdict == Verdict::Explored
            })
            .count()
    };
    let first = explored(&mut economist, &telemetry, 0);
    assert!((1..20).contains(&first), "{first}");
    assert_eq!(explored(&mut economist, &telemetry, 100), 0, "the purse is empty");
    telemetry.now += Nanos::seconds(60);
    assert!(explored(&mut economist, &telemetry, 200) > 0, "and has filled again");
}

/// A policy proposes a page with every tick until it has moved. If it moved with the next one, there
/// would be nothing to compare with.
#[test]
fn a_page_that_is_held_out_stays_so_for_all_of_its_time() {
    let (mut economist, mut telemetry) = (holding_out(4), optane_telemetry());
    let mut op = 0;
    let mut propose = |economist: &mut Economist, number, telemetry: &Telemetry| {
        op += 1;
        let proposal = numbered(op, number, hot());
        let decision = economist.decide(&proposal, telemetry);
        if decision.passes {
            economist.settle(&completed(proposal, 1000), telemetry);
        }
        decision.verdict
    };
    let is_held_out =
        |number: &u32| propose(&mut economist, *number, &telemetry) == Verdict::HeldOut;
    let held = (0..100).find(is_held_out).expect("one of four");
    let account = *economist.account(ActionClass::Promote);
    assert_eq!(account.held_out, 1);
    for _ in 0..990 {
        telemetry.now += Nanos::millis(10);
        assert_eq!(propose(&mut economist, held, &telemetry), Verdict::HeldOut);
    }
    let account = *economist.account(ActionClass::Promote);
    assert_eq!((account.held_out, account.vetoed), (1, 990), "it is one that is held out");
    assert!(account.held_out_predicted.is_zero(), "it is being watched");
    // Not for ever: it is drawn anew.
    let passes = (0..50).any(|_| {
        telemetry.now += Nanos::millis(10_100);
        propose(&mut economist, held, &telemetry) == Verdict::Passed
    });
    let account = *economist.account(ActionClass::Promote);
    assert!(passes && !account.held_out_predicted.is_zero(), "{account:?}");
}

/// In how many of 400 proposals, one each half second, promotions stand still of pages that looked
/// hot, and that nobody touches once they have been moved, dearly. What is looked at meanwhile are
/// other pages, if anything is.
fn stopped_of_losing(looks: bool) -> u32 {
    let mut calibration = optane();
    calibration.parameters.kill_switch = true;
    let mut economist = Economist::new(Mode::Enforce, calibration);
    let mut telemetry = optane_telemetry();
    let mut stopped = 0;
    for op in 0..400 {
        telemetry.now += Nanos::millis(500);
        let proposal = numbered(op, op as u32, promote(heat(1e6, 0.0, 1000)));
        let decision = economist.decide(&proposal, &telemetry);
        if decision.passes {
            let outcome = Outcome::Completed { cost: Cycles(3_000_000), moved: Bytes::mib(2) };
            economist.settle(&Done { proposal, outcome }, &telemetry);
        }
        if looks {
            economist.observe(&[sample(1_000_000, Access::Read)]);
        }
        stopped += u32::from(decision.verdict == Verdict::Stopped);
    }
    let account = economist.account(ActionClass::Promote);
    assert!(account.net() < 0.0 && account.completed > 64, "{account:?}");
    stopped
}

#[test]
fn a_class_whose_realised_net_is_negative_is_stopped() {
    let stopped = stopped_of_losing(true);
    assert!(stopped > 10, "{stopped}");
}

/// That nothing is seen of a page is no loss where nobody looks.
#[test]
fn a_class_that_nobody_looks_at_is_not_stopped() {
    assert_eq!(stopped_of_losing(false), 0);
}

/// Pages that have to leave bring nothing that anybody sees. If that were a loss, each run would lose.
/// The cost of deciding is shared out by the number of decisions.
#[test]
fn the_balance_is_of_what_is_known_and_of_deciding_on_that() {
    let mut calibration = optane();
    calibration.parameters.kill_switch = true;
    let telemetry = optane_telemetry();
    let clock = calibration.clock;
    let both = |calibration| {
        let mut economist = Economist::new(Mode::Enforce, calibration);
        let mut cold = demote(heat(0.0, 0.0, 0));
        cold.urgency = Urgency::Forced;
        cold.heat.window = Nanos::seconds(10);
        for op in 0..3 {
            let cold = numbered(op, 4 + op as u32, cold);
            assert!(economist.decide(&cold, &telemetry).passes);
            economist.settle(&completed(cold, 5_000_000), &telemetry);
        }
        economist.spent(Cycles(4_000_000));
        let before = economist.balance();
        let walks = Action::Prezero { walked: Pages(1 << 20), used: 8, known: 8 };
        let prezero = Proposal { op: OpId(9), action: walks, ..hot() };
        economist.decide(&prezero, &telemetry);
        economist.settle(&completed(prezero, 7_000_000), &telemetry);
        economist.walked_through(1, PageSize::Huge);
        (before, economist.balance(), *economist.account(ActionClass::Prezero))
    };

    let (before, after, account) = both(calibration);
    assert_eq!(before, Balance::default(), "three pages had to leave");
    assert_eq!(after.took, clock.nanos(Cycles(7_000_000)));
    assert_eq!(after.deciding, clock.nanos(Cycles(1_000_000)), "one of four decisions");
    assert_eq!(after.brought, clock.nanos(account.realised_benefit));
    assert!(!after.brought.is_zero());
    // Where nobody can tell what actions bring, nobody can tell that they lose.
    calibration.parameters.kill_switch = false;
    assert_eq!(both(calibration).1, Balance::default());
}

/// Where memory is full, a page moves up for as much as it takes to move another one down.
#[test]
fn demotions_that_make_room_for_promotions_are_in_the_balance_and_others_are_not() {
    const UP: u64 = 5_000_000;
    const DOWN: u64 = 3_000_000;
    let mut calibration = optane();
    calibration.parameters.kill_switch = true;
    let telemetry = optane_telemetry();
    let took = |ups: u64, downs: u64| {
        let mut economist = Economist::new(Mode::Enforce, calibration);
        let mut carry_out = |proposal: Proposal, cost| {
            assert!(economist.decide(&proposal, &telemetry).passes);
            economist.settle(&completed(proposal, cost), &telemetry);
        };
        for n in 0..downs {
            let mut cold = numbered(n, 100 + n as u32, demote(heat(0.0, 0.0, 0)));
            cold.urgency = Urgency::Forced;
            carry_out(cold, DOWN);
        }
        for n in 0..ups {
            carry_out(numbered(100 + n, n as u32, hot()), UP);
        }
        // Somebody looked at other pages, and these are given back.
        economist.observe(&[sample(1_000_000, Access::Read)]);
        economist.forget(PageRange { region: RegionId(0), start: PageNo(0), count: 200 });
        economist.balance().took
    };
    let cycles = |cycles| calibration.clock.nanos(Cycles(cycles));
    assert_eq!(took(0, 4), Nanos::ZERO, "they had to leave");
    assert_eq!(took(2, 2), cycles(2 * UP + 2 * DOWN));
    assert_eq!(took(2, 4), cycles(2 * UP + 2 * DOWN), "two of four had to leave");
    assert_eq!(took(4, 2), cycles(4 * UP + 2 * DOWN), "there was room for two");
}

/// A hot set moves, and a policy moves it up at once: what that brings is still to come.
#[test]
fn what_was_moved_a_moment_ago_is_no_loss_yet() {
    let mut calibration = optane();
    calibration.parameters.kill_switch = true;
    let mut economist = Economist::new(Mode::Enforce, calibration);
    let mut telemetry = optane_telemetry();
    for op in 0..300 {
        telemetry.now += if op == 1 { Nanos::seconds(60) } else { Nanos::millis(1) };
        let proposal = numbered(op, op as u32, hot());
        let decision = economist.decide(&proposal, &telemetry);
        assert_eq!(decision.verdict, Verdict::Passed, "{op}");
        let outcome = Outcome::Completed { cost: Cycles(3_000_000), moved: Bytes::mib(2) };
        economist.settle(&Done { proposal, outcome }, &telemetry);
        economist.observe(&[sample(op as u32, Access::Read)]);
    }
}

#[test]
fn deciding_itself_is_charged() {
    let mut economist = enforcing();
    economist.spent(Cycles(700));
    economist.spent(Cycles(300));
    assert_eq!(economist.own_cost(), Cycles(1000));
    assert!((economist.net() + 1000.0).abs() < 1e-9);
}

#[test]
fn the_room_that_a_plan_makes_is_worth_what_its_promotions_bring() {
    // HeMem's plan: first the demotion, then the promotion that it is for. An
    // economist that has never seen a promotion must not refuse the first.
    let mut telemetry = optane_telemetry();
    telemetry.tiers[1].accesses = PerSecond::ZERO;
    let mut cold = demote(heat(0.0, 0.0, 0));
    cold.heat.window = Nanos::seconds(10);
    let plan = [numbered(0, 4, cold), numbered(1, 17, hot())];

    let mut surveyed = strict(optane());
    surveyed.survey(&plan, &telemetry);
    assert_eq!(surveyed.decide(&plan[0], &telemetry).verdict, Verdict::Passed);
    assert_eq!(surveyed.decide(&plan[1], &telemetry).verdict, Verdict::Passed);

    let mut unprepared = strict(optane());
    assert_eq!(unprepared.decide(&plan[0], &telemetry).verdict, Verdict::Vetoed);
}

#[test]
fn a_cold_start_cannot_deadlock() {
    // CBMM's prezeroing had no demand to see before it had supplied some. A
    // policy that promotes only after a demotion came through must get one.
    let mut telemetry = optane_telemetry();
    telemetry.tiers[1].accesses = PerSecond::ZERO;
    let mut economist = enforcing();
    let mut cold = demote(heat(0.0, 0.0, 0));
    cold.heat.window = Nanos::seconds(10);

    let first = economist.decide(&numbered(0, 1, cold), &telemetry);
    assert_eq!(first.verdict, Verdict::Explored);
    let next: Vec<_> =
        (1..=128).map(|op| economist.decide(&numbered(op, 1, cold), &telemetry).verdict).collect();
    assert_eq!(next.iter().filter(|&&v| v == Verdict::Explored).count(), 2);
    assert_eq!(next.iter().filter(|&&v| v == Verdict::Vetoed).count(), 126);

    // Once a promotion was asked for, the price is known.
    economist.decide(&numbered(200, 17, hot()), &telemetry);
    assert_eq!(economist.decide(&numbered(201, 1, cold), &telemetry).verdict, Verdict::Passed);
}

#[test]
fn the_price_of_memory_is_of_now() {
    // CBMM's estimate of demand ignores the present and never decays.
    let mut telemetry = optane_telemetry();
    telemetry.tiers[1].accesses = PerSecond::ZERO;
    let mut economist = strict(optane());
    economist.decide(&numbered(0, 17, hot()), &telemetry);
    let cold = demote(heat(0.0, 0.0, 0));
    assert!(economist.decide(&numbered(1, 1, cold), &telemetry).passes);
    telemetry.now += Nanos::seconds(300);
    let later = economist.decide(&numbered(2, 1, cold), &telemetry);
    assert_eq!(later.verdict, Verdict::Vetoed, "{later}");
}

#[test]
fn pages_that_have_to_go_out_make_coming_in_dear() {
    // Everything in the fast tier is as hot as the newcomer: moving would not help.
    let telemetry = optane_telemetry();
    let mut economist = strict(optane());
    assert!(economist.decide(&numbered(0, 17, hot()), &telemetry).passes);
    for op in 1..100 {
        let mut resident = demote(heat(1e6, 0.0, 200));
        resident.urgency = Urgency::Forced;
        economist.decide(&numbered(op, 4, resident), &telemetry);
    }
    let decision = economist.decide(&numbered(100, 17, hot()), &telemetry);
    assert_eq!(decision.verdict, Verdict::Vetoed, "{decision}");
}

#[test]
fn turnover_shortens_the_horizon_so_that_pages_stop_changing_places() {
    let telemetry = optane_telemetry();
    let mut economist = enforcing();
    let before = economist.decide(&numbered(0, 17, hot()), &telemetry).benefit.expected;
    // 2 GiB/s leave a tier of 192 GiB: a page stays 96 s instead of for ever.
    for op in 1..=10_240 {
        let mut demotion = demote(heat(0.0, 0.0, 0));
        demotion.urgency = Urgency::Forced;
        let demotion = numbered(op, 4, demotion);
        economist.decide(&demotion, &telemetry);
        economist.settle(&completed(demotion, 0), &telemetry);
    }
    let after = economist.decide(&numbered(99_999, 17, hot()), &telemetry).benefit.expected;
    let by_hand = (1.0 / 10.0) / (1.0 / 10.0 + 20.0 / 10.0 / 192.0);
    assert!((after / before / by_hand - 1.0).abs() < 1e-6, "{before} {after} {by_hand}");
}

#[test]
fn costs_are_corrected_by_what_actions_really_cost() {
    // CBMM's costs are constants.
    let telemetry = optane_telemetry();
    let mut economist = enforcing();
    let copy = |economist: &mut Economist, op| {
        let decision = economist.decide(&numbered(op, op as u32, hot()), &telemetry);
        term(&decision, TermKind::Copy).unwrap()
    };
    let before = copy(&mut economist, 0);
    let predicted = {
        economist.settle(&completed(numbered(0, 0, hot()), 1), &telemetry);
        economist.account(ActionClass::Promote).predicted_cost.get()
    };
    let mut economist = enforcing();
    for op in 0..200 {
        let proposal = numbered(op, op as u32, hot());
        economist.decide(&proposal, &telemetry);
        economist.settle(&completed(proposal, predicted * 3), &telemetry);
    }
    let after = copy(&mut economist, 1000);
    assert!((after.expected / before.expected - 3.0).abs() < 0.01, "{before:?} {after:?}");
    assert!(after.high / after.low < before.high / before.low);
    // Predictions are now as good as outcomes; the first ones were not.
    let ratio = economist.account(ActionClass::Promote).cost_ratio().unwrap();
    assert!((1.0..1.1).contains(&ratio), "{ratio}");
    // Other classes have their own experience.
    assert!((economist.correction(ActionClass::Demote).expected - 1.0).abs() < 1e-12);
}

/// Whatever is given up in the middle has cost what it has cost: a correction by those alone that came to
/// their end would be of the cheap ones.
#[test]
fn what_is_given_up_corrects_the_costs_as_far_as_it_went() {
    let telemetry = optane_telemetry();
    let predicted = {
        let mut economist = enforcing();
        economist.decide(&wanted_block(0), &telemetry);
        economist.settle(&completed(wanted_block(0), 1), &telemetry);
        economist.account(ActionClass::Compact).predicted_cost.get()
    };
    let mut economist = enforcing();
    for op in 0..200 {
        let proposal = wanted_block(op);
        assert!(economist.decide(&proposal, &telemetry).passes);
        // Half of it for the price of all, in two turns of which the first has done nothing.
        let part = if op % 2 == 0 { 0.0 } else { 0.5 };
        economist.in_vain(&proposal, part, Cycles(predicted / 2));
        let outcome = Outcome::Aborted(Abort::RateLimited);
        economist.settle(&Done { proposal, outcome }, &telemetry);
    }
    let correction = economist.correction(ActionClass::Compact);
    assert!((correction.expected - 2.0).abs() < 0.01, "{correction:?}");
    let account = economist.account(ActionClass::Compact);
    assert_eq!((account.completed, account.aborted), (0, 200));
    assert_eq!(account.aborted_cost, Cycles(predicted / 2 * 200));
    assert!(account.realised_cost.is_zero() && account.predicted_cost.is_zero());
}

#[test]
fn outcomes_are_counted_once_and_where_they_belong() {
    let telemetry = optane_telemetry();
    let mut economist = enforcing();
    let proposal = numbered(5, 17, hot());
    economist.decide(&proposal, &telemetry);
    economist.settle(&completed(proposal, 1000), &telemetry);
    economist.settle(&completed(proposal, 1000), &telemetry);
    for abort in [Abort::Dirtied, Abort::RateLimited, Abort::Vetoed] {
        let outcome = Outcome::Aborted(abort);
        economist.settle(&Done { proposal, outcome }, &telemetry);
    }
    // What came to nothing was paid for as well, and is no outcome of what was predicted.
    economist.in_vain(&proposal, 0.0, Cycles(300));
    let account = economist.account(ActionClass::Promote);
    assert_eq!((account.aborted_cost, account.whole_cost()), (Cycles(300), Cycles(2300)));
    assert_eq!((account.proposed, account.completed, account.aborted), (1, 2, 2));
    // The second outcome of the same number has no prediction left.
    assert_eq!((account.unmatched, account.realised_cost), (1, Cycles(2000)));
    assert_eq!(*economist.account(ActionClass::Demote), Account::default());
}

/// Promotes pages, then lets each be sampled at `rate` samples a second for
/// `seconds`; returns the economist.
fn promoted_and_sampled(pages: u32, rate: u32, seconds: u32) -> (Economist, Telemetry) {
    let mut telemetry = optane_telemetry();
    let mut economist = Economist::new(Mode::Shadow, optane());
    for number in 0..pages {
        let proposal = numbered(u64::from(number), number, promote(heat(50_000.0, 0.0, 10)));
        economist.decide(&proposal, &telemetry);
        economist.settle(&completed(proposal, 1000), &telemetry);
    }
    for _ in 0..seconds {
        telemetry.now += Nanos::seconds(1);
        economist.survey(&[], &telemetry);
        for number in 0..pages {
            let samples = vec![sample(number, Access::Read); rate as usize];
            economist.observe(&samples);
        }
    }
    (economist, telemetry)
}

#[test]
fn a_benefit_that_comes_as_predicted_is_reported_as_such() {
    // Predicted: 50 000 loads/s. Observed: 10 samples/s of 5000 accesses.
    let (mut economist, telemetry) = promoted_and_sampled(200, 10, 10);
    economist.finish(telemetry.now);
    let account = economist.account(ActionClass::Promote);
    let ratio = account.benefit_ratio().unwrap();
    assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
    let all = account.realised_benefit / account.predicted_benefit;
    assert!((all - 1.0).abs() < 0.05, "{all}");
    assert!(account.net() > 0.0);
}

#[test]
fn pages_that_go_cold_after_their_promotion_show_as_a_loss() {
    let (mut economist, telemetry) = promoted_and_sampled(200, 0, 10);
    economist.finish(telemetry.now);
    let account = economist.account(ActionClass::Promote);
    assert_eq!(account.benefit_ratio(), Some(0.0));
    assert!(account.net() < 0.0);
}

#[test]
fn what_the_watched_pages_show_is_extrapolated_to_all() {
    // Far more promotions than the table has places: the sum must not depend on
    // how many of them were watched.
    let (economist, _) = promoted_and_sampled(20_000, 10, 5);
    let account = economist.account(ActionClass::Promote);
    // Half of the horizon has passed.
    let ratio = 2.0 * (account.realised_benefit / account.predicted_benefit);
    assert!((ratio - 1.0).abs() < 0.1, "{ratio}");
}

#[test]
fn a_run_that_ends_early_is_judged_by_the_time_it_had() {
    let (mut economist, telemetry) = promoted_and_sampled(200, 10, 4);
    assert_eq!(economist.account(ActionClass::Promote).benefit_ratio(), None);
    economist.finish(telemetry.now);
    let ratio = economist.account(ActionClass::Promote).benefit_ratio().unwrap();
    assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
}

#[test]
fn a_benefit_that_comes_after_the_horizon_is_not_the_action_s() {
    // CBMM credits a page with the whole run, however late it was placed.
    let (mut economist, mut telemetry) = promoted_and_sampled(100, 0, 10);
    for _ in 0..300 {
        telemetry.now += Nanos::millis(100);
        economist.survey(&[], &telemetry);
        economist.observe(&[sample(3, Access::Read); 100]);
    }
    assert_eq!(economist.account(ActionClass::Promote).realised_benefit, Cycles::ZERO);
    assert!(economist.account(ActionClass::Promote).judged > 50);
}

#[test]
fn touches_after_a_demotion_are_regretted() {
    let mut telemetry = optane_telemetry();
    let mut economist = enforcing();
    let mut forced = numbered(0, 4, demote(heat(500.0, 0.0, 1)));
    forced.urgency = Urgency::Forced;
    economist.decide(&forced, &telemetry);
    economist.settle(&completed(forced, 1000), &telemetry);
    telemetry.now += Nanos::millis(10);
    economist.survey(&[], &telemetry);
    economist.observe(&[sample(4, Access::Read), sample(5, Access::Read)]);

    let account = economist.account(ActionClass::Demote);
    // One sample of 5000 loads that each take 224 ns longer, at 2.2 GHz, some
    // of them at the same time.
    let unshared = 5000.0 * 224.0 * 2.2;
    let regret = account.realised_harm.as_f64();
    assert!(regret > unshared / 12.0 && regret < unshared, "{regret}");
    assert_eq!(account.realised_benefit, Cycles::ZERO);
    assert!(account.net() < 0.0);
}

#[test]
fn a_refault_is_regretted_once() {
    let telemetry = laptop_telemetry();
    let mut economist = Economist::new(Mode::Enforce, laptop());
    let mut forced = numbered(0, 4, demote(heat(0.0, 0.0, 0)));
    forced.urgency = Urgency::Forced;
    forced.page_size = PageSize::Base;
    economist.decide(&forced, &telemetry);
    economist.settle(&completed(forced, 1000), &telemetry);
    let refault = Sample { source: SampleSource::Refault, ..sample(4, Access::Read) };
    economist.observe(&[refault]);
    let once = economist.account(ActionClass::Demote).realised_harm;
    economist.observe(&[refault, refault]);
    let account = economist.account(ActionClass::Demote);
    assert_eq!(account.realised_harm, once);
    assert!((once.as_f64() / (21e-6 * 3e9) - 1.0).abs() < 1e-6, "{once}");
}

#[test]
fn an_exchange_is_watched_at_both_ends() {
    let telemetry = optane_telemetry();
    let mut economist = enforcing();
    let swap = numbered(0, 17, exchange(heat(1e6, 0.0, 200), heat(0.0, 0.0, 0)));
    assert!(economist.decide(&swap, &telemetry).passes);
    economist.settle(&completed(swap, 1000), &telemetry);
    economist.observe(&[sample(17, Access::Read), sample(17, Access::Read)]);
    economist.observe(&[sample(4, Access::Read)]);
    let account = economist.account(ActionClass::Exchange);
    let gained = account.realised_benefit / account.realised_harm;
    assert!((gained - 2.0).abs() < 1e-6, "{gained}");
}

#[test]
fn pages_that_are_given_back_are_no_longer_watched() {
    for count in [1, 1_000_000] {
        let telemetry = optane_telemetry();
        let mut economist = enforcing();
        let proposal = numbered(0, 17, hot());
        economist.decide(&proposal, &telemetry);
        economist.settle(&completed(proposal, 1000), &telemetry);
        economist.forget(PageRange { region: RegionId(1), start: PageNo(0), count: u32::MAX });
        economist.observe(&[sample(17, Access::Read)]);
        let seen = economist.account(ActionClass::Promote).realised_benefit;
        assert!(seen > Cycles::ZERO, "another region's end is none of its business");

        economist.forget(PageRange { region: RegionId(0), start: PageNo(17), count });
        economist.observe(&[sample(17, Access::Read)]);

        let account = economist.account(ActionClass::Promote);
        assert_eq!((account.realised_benefit, account.judged), (seen, 1));
    }
}

/// Proposes promotions and samples the pages `early` times a second for five
/// seconds and `late` times a second for the next five; returns what a further
/// promotion is expected to bring.
fn benefit_after_use(early: usize, late: usize) -> f64 {
    let mut telemetry = optane_telemetry();
    let mut economist = strict(optane());
    for number in 0..100 {
        economist.decide(&numbered(u64::from(number), number, hot()), &telemetry);
    }
    for second in 0..10 {
        telemetry.now += Nanos::millis(990);
        economist.survey(&[], &telemetry);
        for number in 0..100 {
            let count = if second < 5 { early } else { late };
            economist.observe(&vec![sample(number, Access::Read); count]);
        }
    }
    for _ in 0..1000 {
        telemetry.now += Nanos::millis(10);
        economist.survey(&[], &telemetry);
    }
    economist.decide(&numbered(999, 999, hot()), &telemetry).benefit.expected
}

#[test]
fn the_horizon_is_as_long_as_pages_were_seen_to_stay_in_use() {
    let configured = benefit_after_use(0, 0);
    let steady = benefit_after_use(10, 10);
    let brief = benefit_after_use(10, 1);
    assert!(steady > 5.0 * configured, "{steady} {configured}");
    assert!(brief < 0.5 * configured, "{brief} {configured}");
}

#[test]
fn a_decision_is_small_and_comes_back_from_a_file_unchanged() {
    // Decisions go through a ring of 504-byte places.
    assert!(size_of::<Decision>() <= 504, "{}", size_of::<Decision>());
    let mut economist = enforcing();
    let swap = exchange(heat(1e6, 3e5, 200), heat(1e3, 1e3, 1));
    for proposal in [hot(), swap, demote(heat(0.0, 0.0, 0))] {
        let decision = economist.decide(&proposal, &optane_telemetry());
        let text = serde_json::to_string(&decision).unwrap();
        assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), decision, "{text}");
        // As it was written before decisions had alternatives.
        let mut old = serde_json::to_value(decision).unwrap();
        assert!(old.as_object_mut().unwrap().remove("alternatives").is_some());
        let old: Decision = serde_json::from_value(old).unwrap();
        assert_eq!(old, Decision { alternatives: Default::default(), ..decision });
    }
}

/// Dram, which is full, over two memories that are not.
fn three_tiers() -> Telemetry {
    let mut telemetry = optane_telemetry();
    telemetry.tier_count = 3;
    telemetry.tiers[2] = telemetry.tiers[1];
    telemetry.tiers[2].read_latency = Nanos::micros(1);
    telemetry
}

/// An explanation with other prices than those that decide would explain nothing.
#[test]
fn an_alternative_has_the_price_that_it_would_have_as_a_proposal() {
    let telemetry = three_tiers();
    let (third, page_3) = (terrace_core::TierId(2), page(3));
    let range = PageRange { region: RegionId(2), start: PageNo(512), count: 512 };
    let (context, mapped) = (terrace_core::ContextId(9), Bytes::gib(900));
    for action in [
        Action::Promote { page: page_3, from: third, to: DRAM },
        Action::Demote { page: page_3, from: DRAM, to: SLOW },
        Action::DemoteContext { context, pages: 10, of: 10, from: DRAM, to: SLOW },
        Action::Exchange { promote: page_3, demote: page(4), fast: DRAM, slow: SLOW },
        Action::Split { page: page_3 },
        Action::Place { page: page_3, to: DRAM, instead: SLOW, mapped },
        profiled(1).action,
        Action::Arm { range },
        Action::Scan { range },
        Action::SetPeriod { source: SampleSource::Pmu, period: 5000 },
        Action::Throttle { limit: BytesPerSecond(1e9) },
    ] {
        let mut economist = strict(optane());
        let proposal = Proposal { action, ..promote(heat(20_000.0, 100.0, 10)) };
        // What it offers is in the prices before anything is decided, and only once.
        economist.survey(&[proposal], &telemetry);
        let decision = economist.decide(&proposal, &telemetry);
        let accounts = *economist.accounts();
        let margin = |one: &Alternative| one.margin(&action, decision.hurdle);
        let alternatives: Vec<_> = decision.alternatives.iter().flatten().collect();
        assert!(!alternatives.is_empty(), "{decision}");
        assert!(alternatives.is_sorted_by(|a, b| margin(a) >= margin(b)), "{decision}");
        let proposals: u64 = accounts.iter().map(|account| account.proposed).sum();
        assert_eq!(proposals, 1, "alternatives are not proposed");
        for one in alternatives {
            let action = one.instead.of(&action).expect("it is one");
            let other = Proposal { action, victim_heat: Heat::default(), ..proposal };
            let other = economist.decide(&other, &telemetry);
            let about = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (a.abs() + b.abs()) + 1.0;
            assert!(about(one.cost().expected, other.cost.expected), "{one:?} {other}");
            assert!(about(one.cost().high, other.cost.high), "{one:?} {other}");
            assert!(about(one.benefit().low, other.benefit.low), "{one:?} {other}");
            assert!(about(one.benefit().expected, other.benefit.expected), "{one:?} {other}");
            let bound = 1e-6 * (other.counted() + 1.5 * other.cost.expected) + 1.0;
            assert!((margin(one) - other.margin()).abs() <= bound, "{one:?} {other}");
        }
    }
}

/// A page has to leave, and a program waits for it: nothing else is looked at.
#[test]
fn what_has_to_be_done_has_no_alternatives() {
    let mut proposal = demote(heat(10.0, 0.0, 3));
    proposal.urgency = Urgency::Forced;
    let decision = enforcing().decide(&proposal, &three_tiers());
    assert!(decision.alternatives.iter().all(Option::is_none), "{decision}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 2, ..ProptestConfig::default() })]

    /// Pressure must be relieved, whatever it costs; and it is priced.
    #[test]
    fn forced_always_passes(loads in 0.0..1e9f64, samples in 0u32..1000, free in any::<u64>()) {
        let mut telemetry = optane_telemetry();
        telemetry.tiers[0].free = Bytes(free);
        let mut proposal = demote(heat(loads, 0.0, samples));
        proposal.urgency = Urgency::Forced;
        let decision = strict(optane()).decide(&proposal, &telemetry);
        prop_assert!(decision.passes);
        prop_assert_eq!(decision.verdict, Verdict::Forced);
        prop_assert!(decision.cost.expected > 0.0);
    }

    /// A recording replayed gives the same decisions and the same accounts.
    #[test]
    fn the_same_events_give_the_same_decisions(
        steps in prop::collection::vec((0u8..5, 0u32..40, 0.0..1e6f64, 0u32..50), 1..120),
    ) {
        let run = || {
            let mut economist = enforcing();
            let mut telemetry = optane_telemetry();
            let mut decisions = Vec::new();
            for (op, &(what, number, loads, samples)) in steps.iter().enumerate() {
                telemetry.now += Nanos::millis(200);
                let h = heat(loads, 0.0, samples);
                let proposal = match what {
                    0 => promote(h),
                    1 => demote(h),
                    2 => exchange(h, heat(loads / 3.0, 0.0, samples / 2)),
                    _ => {
                        economist.observe(&[sample(number, Access::Write)]);
                        continue;
                    }
                };
                let proposal = numbered(op as u64, number, proposal);
                let decision = economist.decide(&proposal, &telemetry);
                if decision.passes {
                    economist.settle(&completed(proposal, u64::from(number) * 1000), &telemetry);
                }
                decisions.push(decision);
            }
            (decisions, *economist.accounts())
        };
        prop_assert_eq!(run(), run());
    }

    /// What holds of the models holds of the economist with all it has learnt.
    #[test]
    fn exchanging_equals_is_never_let_pass(
        loads in 0.0..1e7f64, samples in 0u32..100, window_ms in 0u64..20_000,
        free in 0u64..8 << 30,
    ) {
        let mut telemetry = optane_telemetry();
        telemetry.tiers[0].free = Bytes(free);
        let mut economist = enforcing();
        economist.decide(&hot(), &telemetry);
        let mut h = heat(loads, 0.0, samples);
        h.window = Nanos::millis(window_ms);
        let decision = economist.decide(&numbered(1, 3, exchange(h, h)), &telemetry);
        prop_assert!(!decision.passes, "{}", decision);
    }
}

#[test]
fn a_proposal_about_a_tier_that_does_not_exist_is_priced_without_a_panic() {
    // Recorded runs are files, and files are damaged.
    let mut proposal = hot();
    proposal.action = Action::Promote {
        page: page(1),
        from: terrace_core::TierId(200),
        to: terrace_core::TierId(9),
    };
    let decision = enforcing().decide(&proposal, &optane_telemetry());
    assert!(decision.cost.high.is_finite());
    assert_ne!(DRAM, SLOW);
}
