//! What a person reads: golden texts, so that a change of wording, of units or
//! of alignment is a change that somebody decided.

mod common;

use common::{demote, exchange, heat, laptop, laptop_telemetry, optane, optane_telemetry, promote};
use terrace_core::{
    Action, ActionClass, BytesPerSecond, Cycles, HugePages, Nanos, PageNo, PageRange, Pages,
    Proposal, Reason, RegionId, SampleSource, Urgency,
};
use terrace_economics::{Economist, LookedAt, Mode};

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
fn a_huge_page_by_a_profile_says_what_it_rests_on_and_where_it_turns() {
    let mut economist = Economist::new(Mode::Enforce, optane());
    let mut proposal = promote(heat(0.0, 0.0, 0));
    let range = PageRange { region: RegionId(2), start: PageNo(512), count: 512 };
    proposal.action = Action::FirstTouch {
        range,
        touched: 100,
        unsure: 20,
        least: Cycles(50_000_000),
        averted: Cycles(200_000_000),
        most: Cycles(600_000_000),
        within: Nanos::SECOND,
        left: Nanos::SECOND,
        waits: Cycles::ZERO,
    };
    proposal.reason = Reason::Profiled;
    let text = economist.decide(&proposal, &optane_telemetry()).to_string();
    for part in [
        "huge page first at 2:512 (Profiled): PASSED",
        "evidence: a profile: 200 Mcycles of page walks averted in 1.00 s, counted for the 1.00 s \
         of it that are left, 100 ± 20 base pages touched",
        "+ saved page walks",
        "- zeroing",
        "averted cycles/s",
        "instead:  nothing, worse by ",
        "instead:  base pages filled ahead: benefit ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A benefit counts for a horizon where less than that is left of a run. Where the line had what is
/// left alone, a full benefit beside it looked like a mistake.
#[test]
fn a_benefit_that_counts_longer_than_what_is_left_says_for_how_long_and_why() {
    let text = |economist: &mut Economist, [within, left]: [u64; 2]| {
        let mut proposal = promote(heat(0.0, 0.0, 0));
        let range = PageRange { region: RegionId(2), start: PageNo(512), count: 512 };
        let averted = Cycles(200_000_000);
        proposal.action = Action::FirstTouch {
            range,
            touched: 100,
            unsure: 0,
            least: averted,
            averted,
            most: averted,
            within: Nanos::seconds(within),
            left: Nanos::seconds(left),
            waits: Cycles::ZERO,
        };
        proposal.reason = Reason::Profiled;
        economist.decide(&proposal, &optane_telemetry()).to_string()
    };
    // Pages stay in use for 10 s until more is known.
    let mut economist = Economist::new(Mode::Enforce, optane());
    for (times, line) in [
        ([8, 2], "8.00 s, counted for 8.00 s by the horizon, though only 2.00 s of it are left, "),
        ([20, 2], "20.0 s, counted for 10.0 s by the horizon, though only 2.00 s of it are left, "),
        ([40, 30], "40.0 s, counted for the 30.0 s of it that are left, "),
    ] {
        let text = text(&mut economist, times);
        assert!(text.contains(line), "{line}: {text}");
    }
    for _ in 0..100 {
        economist.looked_at(ActionClass::FirstTouch, LookedAt { said: 1.0, was: 0.25 });
    }
    let text = text(&mut economist, [40, 30]);
    let line = " as profiles have come true; 30.0 s of it are left, ";
    assert!(text.contains("in 40.0 s, counted for ") && text.contains(line), "{text}");
}

/// Evidence is what the price rests on: not samples, where nobody has taken any.
#[test]
fn what_is_known_of_no_page_says_what_it_rests_on_instead() {
    let range = PageRange { region: RegionId(2), start: PageNo(512), count: 512 };
    let (page, mapped) = (common::page(3), terrace_core::Bytes::gib(900));
    let place = Action::Place { page, to: common::DRAM, instead: common::SLOW, mapped };
    for (action, evidence) in [
        (
            Action::Prezero { walked: Pages(1024), used: 3, known: 10 },
            "evidence: 1024 pages walked, 3 of 10 huge pages used that came ahead\n",
        ),
        (place, "evidence: none of its own: as the average page of 900 GiB that are mapped\n"),
        (Action::Arm { range }, ""),
        (Action::Scan { range }, ""),
    ] {
        let mut economist = Economist::new(Mode::Enforce, optane());
        let proposal = common::proposal(action, terrace_core::Heat::default());
        let text = economist.decide(&proposal, &optane_telemetry()).to_string();
        assert!(text.contains(evidence) && !text.contains("0 samples"), "{text}");
        assert_eq!(text.contains("evidence: "), !evidence.is_empty(), "{text}");
    }
}

#[test]
fn pages_ahead_of_a_walk_say_what_came_of_others_and_how_many_would_have_to_be_asked_for() {
    let mut economist = Economist::new(Mode::Enforce, laptop());
    let mut text = |from, used, known| {
        let mut proposal = promote(heat(0.0, 0.0, 0));
        proposal.action = Action::Prefetch { from, pages: 96, window: 32, used, known };
        proposal.page_size = terrace_core::PageSize::Base;
        proposal.reason = Reason::WalksUsedMemory;
        economist.decide(&proposal, &laptop_telemetry()).explain(&["dram", "lz4"]).to_string()
    };
    let good = text(Some(common::SLOW), 70, 70);
    for part in [
        "prefetch 96 pages from lz4 (WalksUsedMemory): PASSED",
        "evidence: 70 of 70 pages asked for that were left out; 32 come at once\n",
        "would not pay below ",
        " of 70 asked for",
        "+ avoided fault",
        "- fetch",
    ] {
        assert!(good.contains(part), "{part}: {good}");
    }
    let bad = text(None, 0, 1);
    for part in ["prefetch 96 pages of zeros", "0 of 1 page asked for that was left out"] {
        assert!(bad.contains(part), "{part}: {bad}");
    }
}

#[test]
fn reclaim_to_a_file_says_what_leaves_and_how_often_it_comes_back() {
    let mut economist = Economist::new(Mode::Enforce, laptop());
    let mut proposal = promote(heat(0.25, 0.0, 3));
    let (from, to) = (common::SLOW, terrace_core::TierId(2));
    proposal.action =
        Action::Reclaim { from, to, pages: 190, bytes: terrace_core::Bytes::kib(256) };
    proposal.reason = Reason::StoreFull;
    proposal.urgency = Urgency::Forced;
    let text = economist.decide(&proposal, &laptop_telemetry());
    let text = text.explain(&["dram", "lz4", "file"]).to_string();
    for part in [
        "reclaim 190 pages, 256 KiB packed, lz4->file (StoreFull): FORCED",
        "and has to be done",
        "evidence: 3 pages came back in 1.00 s: ",
        "- refault",
        "- store",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("instead:"), "there is no choice: {text}");
}

#[test]
fn compressing_again_says_what_it_sets_free_and_how_much_would_be_enough() {
    use terrace_core::Bytes;
    let mut economist = Economist::new(Mode::Enforce, laptop());
    let mut proposal = promote(heat(0.25, 0.0, 3));
    proposal.action = Action::Recompress {
        tier: common::SLOW,
        below: None,
        pages: 190,
        each: Bytes(1536),
        least: Bytes::kib(20),
        saves: Bytes::kib(60),
        most: Bytes::kib(140),
    };
    proposal.reason = Reason::PackedIdle;
    let mut telemetry = laptop_telemetry();
    telemetry.tiers[1].free = Bytes::ZERO;
    let text = economist.decide(&proposal, &telemetry).explain(&["dram", "lz4"]).to_string();
    for part in [
        "recompress 190 pages in lz4 (PackedIdle): ",
        " set free\n",
        "evidence: 60.0 KiB [20.0 KiB, 140 KiB] set free of 1.50 KiB a page; 3 pages came back in 1.00 s",
        "+ freed memory",
        "- refault",
        "- store",
        "instead:  nothing, ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A bound above all that moves costs nothing, brings nothing, and passes: 0 is not more than 0.
#[test]
fn the_rule_of_what_counts_as_expected_is_told_as_it_is() {
    let mut economist = Economist::new(Mode::Enforce, optane());
    let range = PageRange { region: RegionId(2), start: PageNo(512), count: 512 };
    let bound = Action::Throttle { limit: BytesPerSecond(1e12) };
    let period = |period| Action::SetPeriod { source: SampleSource::Pmu, period };
    for action in [bound, period(1), period(5_000_000), Action::Arm { range }] {
        let decision = economist
            .decide(&Proposal { action, ..promote(heat(1.0, 0.0, 1)) }, &optane_telemetry());
        let text = decision.to_string();
        let rule = text.lines().find(|line| line.contains("rule: ")).expect("it is priced");
        let relation = if decision.pays() { " >= 1.5 x" } else { " < 1.5 x" };
        assert!(rule.contains("expected benefit") && rule.contains(relation), "{text}");
        if action == bound {
            assert!(rule.contains("0 cycles >= 1.5 x expected cost 0 cycles"), "{rule}");
            assert!(text.contains("\n    instead:  nothing, as good\n"), "{text}");
        }
    }
}

/// What lost is shown with its price and its distance, whatever the action is.
#[test]
fn what_else_could_have_been_done_is_named() {
    let mut telemetry = optane_telemetry();
    telemetry.tier_count = 3;
    telemetry.tiers[2] = telemetry.tiers[1];
    let third = terrace_core::TierId(2);
    let range = PageRange { region: RegionId(2), start: PageNo(512), count: 512 };
    let (page, mapped) = (common::page(3), terrace_core::Bytes::gib(900));
    let (dram, optane_tier) = (common::DRAM, common::SLOW);
    let period = Action::SetPeriod { source: SampleSource::Pmu, period: 5000 };
    let cases: [(Action, &str, &[&str]); 9] = [
        (
            Action::Promote { page, from: third, to: dram },
            "nothing, ",
            &["promote to optane: ", "exchange with a page of which nothing is known: "],
        ),
        (Action::Demote { page, from: dram, to: optane_tier }, "nothing, ", &["demote to file: "]),
        (Action::Split { page }, "nothing, ", &["demote to optane: ", "demote to file: "]),
        (
            Action::Place { page, to: dram, instead: optane_tier, mapped },
            "in optane, ",
            &["in file: "],
        ),
        (Action::Arm { range }, "nothing, ", &["scan: "]),
        (Action::Scan { range }, "nothing, ", &["arm: "]),
        (period, "nothing, ", &["one in 2500 accesses: ", "one in 10000 accesses: "]),
        (
            Action::Throttle { limit: BytesPerSecond(1e9) },
            "nothing, ",
            &["limit 500 MB/s: ", "limit 2.00 GB/s: "],
        ),
        (Action::Collapse { range }, "nothing, ", &[]),
    ];
    for (action, nothing, others) in cases {
        let mut economist = Economist::new(Mode::Enforce, optane());
        let proposal = Proposal { action, ..promote(heat(1000.0, 100.0, 10)) };
        let decision = economist.decide(&proposal, &telemetry);
        let text = decision.explain(&["dram", "optane", "file"]).to_string();
        let instead: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("    instead:  ")).collect();
        assert_eq!(instead.len(), 1 + others.len(), "{text}");
        assert!(instead[0].starts_with(nothing), "{text}");
        for other in others {
            let line = instead.iter().find(|line| line.starts_with(*other));
            let line = line.unwrap_or_else(|| panic!("{other}: {text}"));
            assert!(line.contains("benefit ") && line.contains(", cost "), "{text}");
            let compares =
                ["worse by ", "better by ", "as good"].iter().any(|it| line.contains(it));
            assert!(compares, "{text}");
        }
    }
}

/// It is about no rate of accesses.
#[test]
fn what_filling_turns_on_is_named_where_it_does_not_turn() {
    let mut calibration = optane();
    // Within a fault it takes what another fault would.
    calibration.fill_fixed = calibration.user_fault;
    let mut economist = Economist::new(Mode::Enforce, calibration);
    let mut proposal = promote(heat(0.0, 0.0, 0));
    let range = PageRange { region: RegionId(1), start: PageNo(0), count: 480 };
    proposal.action = Action::Populate { range, touched: 100, unsure: 0 };
    let text = economist.decide(&proposal, &optane_telemetry()).to_string();
    assert!(text.contains("; does not pay however many pages are touched\n"), "{text}");
}

/// How many are wanted is what the decision turns on, however many become free beside them.
#[test]
fn compaction_says_what_its_blocks_avert_in_which_time_and_how_many_would_have_to_be_wanted() {
    let mut economist = Economist::new(Mode::Enforce, optane());
    let mut text = |wanted, brings, pages| {
        let mut proposal = promote(heat(0.0, 0.0, 0));
        proposal.action = Action::Compact {
            blocks: HugePages(4),
            wanted: HugePages(wanted),
            brings: Cycles(brings),
            within: Nanos::SECOND,
            left: Nanos::SECOND,
            pages: Pages(pages),
        };
        proposal.reason = Reason::NoFreeBlock;
        economist.decide(&proposal, &optane_telemetry()).to_string()
    };
    let nobody = text(0, 0, 7);
    for part in [
        "compact 7 pages for 4 blocks (NoFreeBlock): ",
        "evidence: 4 free blocks, 0 of them wanted, for 7 moved pages\n",
        "would pay above ",
        " wanted block",
    ] {
        assert!(nobody.contains(part), "{part}: {nobody}");
    }
    // More blocks than there will be cannot be wanted.
    let dear = text(4, 0, 7_000_000);
    assert!(dear.contains("; does not pay whatever is wanted\n"), "{dear}");
    let wanted = text(3, 300_000_000, 70);
    for part in [
        "3 of them wanted, for 70 moved pages, to avert 300 Mcycles of page walks in 1.00 s, \
         counted for the 1.00 s of it that are left\n",
        "+ saved page walks",
        "would not pay below ",
    ] {
        assert!(wanted.contains(part), "{part}: {wanted}");
    }
}
