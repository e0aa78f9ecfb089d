//! HeMem's smaller promises: evidence, order, and what it makes of aborts.

mod common;

use common::{DRAM, SLOW, Toy, page, sample};
use terrace_core::{
    Abort, Access, Action, Bytes, Nanos, PageNo, PageRange, PageRef, PageSize, Proposal, Reason,
    RegionId, SampleSource,
};
use terrace_policy::{HeMem, HeMemConfig, Policy};

fn world(dram: u64, slow: u64) -> Toy<HeMem> {
    Toy::new(HeMem::new(HeMemConfig::default()), &[dram, slow], true)
}

/// DRAM and a tier that is not addressable, as in the live world.
fn live_world(dram: u64, slow: u64) -> Toy<HeMem> {
    Toy::new(HeMem::new(HeMemConfig::default()), &[dram, slow], false)
}

fn subjects(plan: &[Proposal]) -> Vec<PageRef> {
    plan.iter().filter_map(|p| p.action.page()).collect()
}

fn discard(toy: &mut Toy<HeMem>, number: u32) {
    toy.discard(PageRange { region: RegionId(0), start: PageNo(number), count: 1 });
}

/// The economist prices by these numbers.
#[test]
fn heat_is_what_was_sampled_scaled_to_accesses_a_second() {
    let mut toy = world(1, 8);
    toy.sample_period = 5_000;
    toy.alloc_and_touch(0, 3);
    discard(&mut toy, 0);
    // 6 loads and 5 stores in 100 ms, each for 5000 accesses.
    for _ in 0..9 {
        toy.tick();
    }
    toy.sample(page(0, 2), Access::Read, 6);
    toy.sample(page(0, 2), Access::Write, 5);

    let heat = toy.tick()[0].heat;

    assert_eq!(heat.samples, 11);
    assert_eq!(heat.window, Nanos::millis(100));
    assert!((heat.loads.get() / 300_000.0 - 1.0).abs() < 1e-9, "{}", heat.loads);
    assert!((heat.stores.get() / 250_000.0 - 1.0).abs() < 1e-9, "{}", heat.stores);
}

#[test]
fn a_page_that_is_a_minute_old_is_not_judged_by_what_came_before_it() {
    let mut toy = world(1, 8);
    toy.alloc_and_touch(0, 2);
    discard(&mut toy, 0);
    toy.now += Nanos::seconds(30);
    toy.tick();
    toy.alloc_and_touch(1, 1);
    toy.alloc_and_touch(2, 1);
    toy.sample(page(2, 0), Access::Write, 9);
    let window = toy.tick()[0].heat.window;
    assert_eq!(window, Nanos::millis(10), "the page is one tick old");
}

/// Ages are kept in 16 bits of ticks, eleven minutes: an older page must not
/// look like a newborn one whenever they wrap.
#[test]
fn a_page_stays_old() {
    let mut toy = world(2, 8);
    toy.alloc_and_touch(0, 1);
    for _ in 0..10 {
        toy.now += Nanos::seconds(60);
        toy.tick();
    }
    toy.now = Nanos::seconds(656);
    let window = toy.pressure(DRAM, Bytes::mib(2))[0].heat.window;
    assert!((Nanos::seconds(80)..Nanos::seconds(120)).contains(&window), "{window}");
}

#[test]
fn a_page_placed_and_sampled_within_one_tick_has_a_rate() {
    let mut toy = world(2, 8);
    toy.sample_period = 1;
    toy.alloc_and_touch(0, 1);
    toy.sample(page(0, 0), Access::Write, 3);
    let heat = toy.pressure(DRAM, Bytes::mib(2))[0].heat;
    assert_eq!(heat.window, Nanos::millis(10), "an empty window would make it nothing");
    assert!((heat.stores.get() - 300.0).abs() < 1e-9, "{}", heat.stores);
}

#[test]
fn an_unknown_sampling_period_counts_each_sample_as_one_access() {
    let mut toy = world(1, 8);
    toy.sample_period = 0;
    toy.alloc_and_touch(0, 2);
    discard(&mut toy, 0);
    toy.sample(page(0, 1), Access::Write, 5);
    let heat = toy.tick()[0].heat;
    assert!((heat.stores.get() - 500.0).abs() < 1e-9, "5 in 10 ms: {}", heat.stores);
}

#[test]
fn free_room_is_used_before_anything_is_exchanged() {
    let mut toy = world(4, 16);
    toy.alloc_and_touch(0, 8);
    discard(&mut toy, 0);
    for p in 4..6 {
        toy.sample(page(0, p), Access::Write, 6);
    }

    let plan = toy.tick();

    assert!(matches!(plan[0].action, Action::Promote { .. }));
    assert!(matches!(plan[1].action, Action::Exchange { .. }));
    assert_eq!(plan.len(), 2);
}

/// Room that a promotion under way will take is not offered to the next one.
#[test]
fn free_room_is_given_away_once_and_again_when_it_is_free_again() {
    let mut toy = world(4, 16);
    toy.alloc_and_touch(0, 8);
    discard(&mut toy, 0);
    toy.sample(page(0, 4), Access::Write, 6);
    assert!(matches!(toy.tick()[0].action, Action::Promote { .. }));
    toy.sample(page(0, 5), Access::Write, 6);
    assert!(matches!(toy.tick()[0].action, Action::Exchange { .. }), "the room is taken");
    toy.complete_all();

    discard(&mut toy, 4);
    toy.sample(page(0, 6), Access::Write, 6);

    assert!(matches!(toy.tick()[0].action, Action::Promote { .. }), "there is room again");
}

/// Pages of different size cannot change places: room is made first.
#[test]
fn a_huge_page_takes_the_place_of_base_pages() {
    let mut toy = world(2, 16);
    toy.alloc(0, 1024, PageSize::Base);
    for number in 0..1024 {
        toy.touch(page(0, number));
    }
    toy.alloc_and_touch(1, 1);
    assert_eq!(toy.tier_of(page(1, 0)), Some(SLOW));
    toy.sample(page(1, 0), Access::Write, 8);

    let plan = toy.tick_and_complete();

    assert_eq!(plan.len(), 513, "512 base pages make room for one huge page");
    assert!(plan[..512].iter().all(|p| p.reason == Reason::MakesRoom));
    assert_eq!(toy.tier_of(page(1, 0)), Some(DRAM));
}

#[test]
fn where_the_world_cannot_exchange_it_demotes_and_promotes() {
    let mut toy = world(2, 16);
    toy.alloc_and_touch(0, 4);
    toy.sample(page(0, 3), Access::Write, 6);
    assert!(matches!(toy.tick()[0].action, Action::Exchange { .. }));
    toy.abort_next(Abort::Unsupported);

    let plan = toy.tick_and_complete();

    assert!(matches!(plan[0].action, Action::Demote { .. }));
    assert!(matches!(plan[1].action, Action::Promote { .. }));
    assert_eq!(toy.tier_of(page(0, 3)), Some(DRAM));
}

/// The order in which DRAM is given up is what makes a small budget bearable.
#[test]
fn pressure_takes_the_cold_page_that_was_not_used_for_longest() {
    let mut toy = live_world(8, 64);
    toy.alloc_and_touch(0, 5);
    toy.sample(page(0, 0), Access::Read, 1);
    toy.sample(page(0, 1), Access::Write, 10);
    toy.sample(page(0, 2), Access::Read, 10);

    let plan = toy.pressure(DRAM, Bytes::mib(10));

    let expected = [3, 4, 0, 2, 1].map(|p| page(0, p));
    assert_eq!(subjects(&plan), expected, "unused, used once, hot by loads, write-heavy");
    let cold = [Reason::PressureCold; 3];
    let hot = [Reason::PressureNoneCold; 2];
    assert!(plan.iter().map(|p| p.reason).eq(cold.into_iter().chain(hot)));
}

#[test]
fn a_page_that_faults_back_is_the_last_to_go_again() {
    let mut toy = live_world(3, 64);
    toy.alloc_and_touch(0, 3);
    toy.pressure(DRAM, Bytes::mib(2));
    toy.complete_all();
    assert_eq!(toy.tier_of(page(0, 0)), Some(SLOW));

    assert_eq!(toy.touch(page(0, 0)), DRAM);

    assert_eq!(subjects(&toy.pressure(DRAM, Bytes::mib(6))), [1, 2, 0].map(|p| page(0, p)));
}

/// Refaults are the only samples that some machines have: they must add up.
#[test]
fn a_page_that_keeps_faulting_back_becomes_hot() {
    let mut toy = live_world(4, 64);
    toy.alloc_and_touch(0, 4);
    let busy = page(0, 0);
    for _ in 0..4 {
        toy.pressure(DRAM, Bytes::mib(8));
        toy.complete_all();
        for number in 0..4 {
            toy.touch(page(0, number));
        }
        let mut refault = sample(busy, Access::Write, 1);
        refault.source = SampleSource::Refault;
        toy.policy.samples(&[refault]);
    }

    let plan = toy.pressure(DRAM, Bytes::mib(8));

    assert_eq!(plan[3].action.page(), Some(busy), "everything else goes first");
    assert_eq!(plan[3].reason, Reason::PressureNoneCold);
}

/// A fault that brings a page in overtakes the report of its demotion.
#[test]
fn a_late_report_does_not_undo_a_fault() {
    let mut toy = live_world(3, 64);
    toy.alloc_and_touch(0, 3);
    toy.pressure(DRAM, Bytes::mib(2));
    let demotion = toy.under_way.pop_front().expect("a demotion");
    let outcome = toy.carry_out(&demotion);
    assert_eq!(toy.touch(page(0, 0)), DRAM);

    toy.report(demotion, outcome);

    assert_eq!(toy.policy.tier_of(page(0, 0)), Some(DRAM));
    toy.policy.audit().expect("consistent");
}

#[test]
fn nothing_is_promoted_out_of_a_tier_that_faults_bring_pages_in_from() {
    let mut toy = live_world(4, 64);
    toy.alloc_and_touch(0, 4);
    toy.pressure(DRAM, Bytes::mib(2));
    toy.complete_all();
    toy.sample(page(0, 0), Access::Write, 10);
    assert_eq!(toy.tick(), []);
}

#[test]
fn a_page_touched_during_its_demotion_is_not_the_next_victim() {
    let mut toy = live_world(4, 64);
    toy.alloc_and_touch(0, 4);
    assert_eq!(subjects(&toy.pressure(DRAM, Bytes::mib(2))), [page(0, 0)]);
    toy.abort_next(Abort::Touched);
    let plan = toy.pressure(DRAM, Bytes::mib(8));
    assert_eq!(subjects(&plan), [1, 2, 3, 0].map(|p| page(0, p)));
    assert_eq!(plan[3].heat.samples, 1, "the touch was an observed access");
}

/// A page that could not be moved for want of budget has done nothing wrong.
#[test]
fn a_rate_limited_page_keeps_its_turn() {
    let mut toy = live_world(4, 64);
    toy.alloc_and_touch(0, 4);
    toy.pressure(DRAM, Bytes::mib(2));
    toy.abort_next(Abort::RateLimited);
    assert_eq!(subjects(&toy.pressure(DRAM, Bytes::mib(2))), [page(0, 0)]);
}

/// Each tick's plan is priced; a plan that is refused anyway must stay small.
#[test]
fn while_everything_is_vetoed_fewer_and_other_pages_are_proposed() {
    let mut toy = Toy::new(
        HeMem::new(HeMemConfig {
            migration_limit: terrace_core::BytesPerSecond(1e12),
            ..HeMemConfig::default()
        }),
        &[2048, 4096],
        true,
    );
    toy.alloc_and_touch(0, 4096);
    for number in 2048..4096 {
        toy.sample(page(0, number), Access::Write, 8);
    }
    let refused_tick = |toy: &mut Toy<HeMem>| {
        let plan = toy.tick();
        for _ in 0..plan.len() {
            toy.abort_next(Abort::Vetoed);
        }
        subjects(&plan)
    };

    let first = refused_tick(&mut toy);
    let mut last = Vec::new();
    for _ in 0..12 {
        last = refused_tick(&mut toy);
    }

    assert_eq!(first.len(), 2048);
    assert_eq!(last.len(), 16);
    let next = refused_tick(&mut toy);
    assert!(next.iter().all(|page| !last.contains(page)), "others have their turn");

    // And it recovers once something passes.
    let mut moved = 0;
    for _ in 0..20 {
        moved += toy.tick_and_complete().len();
    }
    assert_eq!(moved, 2048);
}

#[test]
fn a_limit_below_one_page_a_tick_is_saved_up() {
    let limit = terrace_core::BytesPerSecond((10u64 << 20) as f64);
    let config = HeMemConfig { migration_limit: limit, ..HeMemConfig::default() };
    let mut toy = Toy::new(HeMem::new(config), &[2, 16], true);
    toy.alloc_and_touch(0, 4);
    toy.sample(page(0, 3), Access::Write, 10);
    for _ in 0..50 {
        toy.tick_and_complete();
    }
    assert_eq!(toy.tier_of(page(0, 3)), Some(DRAM), "4 MiB at 10 MiB a second take 0.4 s");
}

#[test]
fn what_was_not_copied_is_not_charged_to_the_limit() {
    let limit = terrace_core::BytesPerSecond((10u64 << 20) as f64);
    let config = HeMemConfig { migration_limit: limit, ..HeMemConfig::default() };
    let mut toy = Toy::new(HeMem::new(config), &[2, 16], true);
    toy.alloc_and_touch(0, 4);
    toy.sample(page(0, 3), Access::Write, 18);
    let saved_up = (0..1000).any(|_| !toy.tick().is_empty());
    assert!(saved_up, "the limit never lets a page through");
    toy.abort_next(Abort::Busy);
    assert_eq!(toy.tick().len(), 1, "at once, without saving up again");
    toy.abort_next(Abort::Dirtied);
    assert_eq!(toy.tick().len(), 0, "a copy that was thrown away was traffic");
}

#[test]
fn parameters_without_meaning_are_brought_to_ones_with() {
    let config = HeMemConfig {
        hot_loads: 0,
        hot_stores: 0,
        tick: Nanos::ZERO,
        cooling_interval: Nanos::MAX,
        sweep_pages: 0,
        ..HeMemConfig::default()
    };
    let policy = HeMem::new(config);
    assert_eq!(policy.config().hot_loads, 1);
    assert_eq!(policy.config().hot_stores, 1);
    assert_eq!(policy.config().tick, Nanos::millis(1));
    assert_eq!(policy.config().sweep_pages, 1);
    assert!(policy.config().cooling_interval < Nanos::seconds(60));
}
