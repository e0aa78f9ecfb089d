//! The defects that were found in HeMem's published code, one by one: a test
//! for each that can occur in this design, and for the others the reason why
//! they cannot.
//!
//! | # | defect of the published code | here |
//! |---|---|---|
//! | 1 | cooling shifts only the sampled counter; classification comes before it; shift by 64 or more | tests `d01_*` |
//! | 2 | "all DRAM is hot" skips cooling: a hot set that moves wedges | tests `d02_*` |
//! | 3 | a wrong condition floods the request rings with duplicates; full rings move the reader's end | no rings: a page is in one list or under way; test `d03_*` |
//! | 4 | dangling cooling cursor; a request for a freed page asserts | the cursor is a number, not a pointer; tests `d04_*` |
//! | 5 | hash table read without its lock | no hash table, and `&mut self` is the lock |
//! | 6 | records that straddle the end of the perf ring are misread | policies see samples, not rings: a world's business |
//! | 7 | fault events told apart by the wrong bit test | events are an enum: a world's business |
//! | 8 | samples of other processes are counted | a sample of an unknown region is ignored; test `d08_*` |
//! | 9 | every process manages the same frames | policies hand out no frames; a policy belongs to one process |
//! | 10 | partial unmap frees a whole frame; unmap races a migration under way | tests `d10_*` |
//! | 11 | 18 GiB of buffers | test `d11_*` holds the state per page |
//! | 12 | running out of memory is an assertion | tests `d12_*`; mappings are a world's business |
//! | 13 | write-heavy pages are not promoted first; no reserve of free DRAM | tests `d13_*`; how much to keep free is a world's choice, `pressure` always delivers it |
//! | 14 | a branch that does not build | this file would not run |
//! | - | the migration limit applies to a loop pass that never sleeps: no limit | test `migration_keeps_to_its_rate` |

mod common;

use common::{DRAM, SLOW, Toy, page, sample};
use terrace_core::{
    Abort, Access, Action, Bytes, BytesPerSecond, Nanos, Outcome, PageNo, PageRange, PageRef,
    PageSize, Reason, RegionId, Urgency,
};
use terrace_policy::{HeMem, HeMemConfig, Policy};

/// Two tiers of so many huge pages.
fn world(dram: u64, slow: u64) -> Toy<HeMem> {
    Toy::new(HeMem::new(HeMemConfig::default()), &[dram, slow], true)
}

/// Makes a page's counter pass the cooling threshold, which cools all pages.
fn cool_once(toy: &mut Toy<HeMem>, by: PageRef) {
    toy.sample(by, Access::Read, 19);
}

fn promoted(toy: &mut Toy<HeMem>) -> Vec<PageRef> {
    toy.tick().iter().filter_map(|p| p.action.page()).collect()
}

#[test]
fn d01_cooling_halves_both_counters() {
    // A page in the slow tier with 7 loads and 3 stores: below both thresholds.
    let mut toy = world(1, 8);
    toy.alloc_and_touch(0, 3);
    let (trigger, victim) = (page(0, 0), page(0, 1));
    toy.sample(victim, Access::Read, 7);
    toy.sample(victim, Access::Write, 3);

    // Once cooled it is at 3 and 1, whichever of them is sampled next: three
    // more stores would make it hot if only the loads had been halved.
    cool_once(&mut toy, trigger);
    toy.sample(victim, Access::Read, 1);
    toy.sample(victim, Access::Write, 2);
    assert_eq!(promoted(&mut toy), [], "4 loads and 3 stores are cold");

    // And the stores are really at 3: one more makes the page write-heavy.
    toy.discard(PageRange { region: RegionId(0), start: PageNo(0), count: 1 });
    toy.sample(victim, Access::Write, 1);
    assert_eq!(promoted(&mut toy), [victim]);
}

#[test]
fn d01_a_page_is_classified_after_it_was_cooled() {
    let mut toy = world(1, 8);
    toy.alloc_and_touch(0, 3);
    let (trigger, victim) = (page(0, 0), page(0, 1));
    toy.sample(victim, Access::Read, 7);
    cool_once(&mut toy, trigger);

    // The eighth load would make it hot if the halving came afterwards.
    toy.sample(victim, Access::Read, 1);
    toy.discard(PageRange { region: RegionId(0), start: PageNo(0), count: 1 });

    assert_eq!(promoted(&mut toy), [], "3 + 1 loads are cold");
}

#[test]
fn d01_a_page_that_missed_many_coolings_has_no_heat_left() {
    // More coolings than a counter has bits, and than the page's clock counts.
    let mut toy = world(2, 8);
    toy.alloc_and_touch(0, 6);
    toy.sample(page(0, 4), Access::Write, 10);
    toy.policy.samples(&[sample(page(0, 4), Access::Read, u16::MAX)]);
    for _ in 0..600 {
        toy.policy.samples(&[sample(page(0, 0), Access::Write, 200)]);
        toy.tick();
        toy.complete_all();
        toy.policy.audit().expect("consistent");
    }
    // Its first life is forgotten: what it needs to be hot, it needs anew.
    let before = toy.tier_of(page(0, 4));
    toy.discard(PageRange { region: RegionId(0), start: PageNo(1), count: 1 });
    toy.sample(page(0, 4), Access::Write, 3);
    toy.tick_and_complete();
    assert_eq!(toy.tier_of(page(0, 4)), before);
}

#[test]
fn d01_a_sample_after_a_cooling_counts_in_full() {
    let mut toy = world(2, 8);
    toy.alloc_and_touch(0, 2);
    toy.sample(page(0, 1), Access::Read, 6);
    cool_once(&mut toy, page(0, 0));
    toy.sample(page(0, 1), Access::Read, 1);
    let heat = toy.pressure(DRAM, Bytes::mib(2))[0].heat;
    assert_eq!(heat.samples, 4, "3 that are left of 6, and a new one");
}

#[test]
fn d02_a_hot_set_that_moves_does_not_wedge() {
    // DRAM full of hot pages, then never sampled again.
    let mut toy = world(64, 256);
    toy.alloc_and_touch(0, 192);
    for p in 0..64 {
        toy.sample(page(0, p), Access::Write, 18);
    }
    for _ in 0..10 {
        assert_eq!(toy.tick(), [], "all of DRAM is hot, nothing else is");
    }

    // From now on another set is hot, and only that one is sampled.
    let mut ticks = 0;
    while toy.in_dram((64..128).map(|p| page(0, p))) < 64 {
        ticks += 1;
        assert!(ticks < 500, "wedged");
        for p in 64..128 {
            toy.sample(page(0, p), Access::Write, 1);
        }
        toy.tick_and_complete();
        toy.policy.audit().expect("consistent");
    }
}

#[test]
fn d02_cooling_reaches_pages_when_samples_are_too_few_to_bring_it_about() {
    // DRAM is hot, the newly hot page is sampled, but never past the threshold
    // that cools: one store every ten seconds.
    let mut toy = world(8, 64);
    toy.alloc_and_touch(0, 32);
    for p in 0..8 {
        toy.sample(page(0, p), Access::Write, 16);
    }
    let newly_hot = page(0, 20);
    let mut seconds = 0;
    while toy.tier_of(newly_hot) != Some(DRAM) {
        assert!(seconds < 600, "still not promoted after ten minutes");
        if seconds % 10 == 0 {
            toy.sample(newly_hot, Access::Write, 1);
        }
        for _ in 0..100 {
            toy.tick_and_complete();
        }
        seconds += 1;
    }
}

#[test]
fn d02_a_page_that_nobody_uses_any_more_becomes_cold_without_any_sample() {
    let mut toy = world(8, 64);
    toy.alloc_and_touch(0, 1);
    toy.sample(page(0, 0), Access::Write, 18);
    toy.sample(page(0, 0), Access::Read, 18);
    for _ in 0..6 {
        toy.now += Nanos::seconds(60);
        toy.tick();
    }
    assert_eq!(toy.pressure(DRAM, Bytes::mib(2))[0].reason, Reason::PressureCold);
}

#[test]
fn d03_a_page_sampled_a_thousand_times_is_proposed_once() {
    let mut toy = world(1, 8);
    toy.alloc_and_touch(0, 4);
    toy.discard(PageRange { region: RegionId(0), start: PageNo(0), count: 1 });
    toy.sample(page(0, 2), Access::Write, 1000);

    assert_eq!(promoted(&mut toy), [page(0, 2)]);

    // Nor is it proposed again while the world is still at it.
    toy.sample(page(0, 2), Access::Write, 1000);
    assert_eq!(promoted(&mut toy), []);
}

#[test]
fn d04_the_sweep_survives_the_pages_under_it() {
    // Regions come and go, and shrink, while a cooling is being carried to
    // pages a few at a time.
    let config = HeMemConfig { sweep_pages: 3, ..HeMemConfig::default() };
    let mut toy = Toy::new(HeMem::new(config), &[512, 4096], true);
    for round in 0..60u32 {
        toy.alloc_and_touch(round % 5, 100 + round);
        for p in 0..100 {
            toy.sample(page(round % 5, p), Access::Write, 19);
        }
        toy.tick_and_complete();
        if round % 2 == 0 {
            toy.free((round + 3) % 5);
        } else {
            let region = RegionId(round % 5);
            toy.discard(PageRange { region, start: PageNo(10), count: 50 });
        }
        toy.tick_and_complete();
        toy.policy.audit().expect("consistent");
        if toy.regions.contains_key(&RegionId((round + 1) % 5)) {
            toy.free((round + 1) % 5);
        }
    }
}

#[test]
fn d04_samples_and_outcomes_of_a_freed_page_are_harmless() {
    let mut toy = world(1, 8);
    toy.alloc_and_touch(0, 4);
    toy.sample(page(0, 3), Access::Write, 5);
    toy.tick();
    let under_way = toy.under_way.pop_front().expect("an exchange with the cold page");
    toy.free(0);

    toy.sample(page(0, 3), Access::Write, 5);
    toy.report(under_way, Outcome::Aborted(Abort::Stale));

    toy.policy.audit().expect("consistent");
    assert_eq!(toy.policy.tier_of(page(0, 3)), None);
}

#[test]
fn d08_a_sample_of_memory_that_is_not_ours_is_ignored() {
    let mut toy = world(1, 8);
    toy.alloc_and_touch(0, 2);
    toy.sample(page(7, 0), Access::Write, 100);
    toy.sample(page(0, 2), Access::Write, 100);
    assert_eq!(toy.tick(), []);
    toy.policy.audit().expect("consistent");
}

#[test]
fn d08_samples_of_a_page_that_is_gone_do_not_cool_the_others() {
    let mut toy = world(4, 8);
    toy.alloc_and_touch(0, 2);
    toy.sample(page(0, 1), Access::Read, 18);
    toy.discard(PageRange { region: RegionId(0), start: PageNo(0), count: 1 });
    toy.sample(page(0, 0), Access::Write, 100);
    assert_eq!(toy.pressure(DRAM, Bytes::mib(2))[0].heat.samples, 18);
}

#[test]
fn d10_discarding_part_of_a_region_leaves_the_rest() {
    let mut toy = world(8, 8);
    toy.alloc_and_touch(0, 6);

    toy.discard(PageRange { region: RegionId(0), start: PageNo(2), count: 2 });

    for p in 0..6 {
        let expected = if p == 2 || p == 3 { None } else { Some(DRAM) };
        assert_eq!(toy.policy.tier_of(page(0, p)), expected);
    }
    assert_eq!(toy.touch(page(0, 2)), DRAM);
    toy.policy.audit().expect("consistent");
}

#[test]
fn d10_a_page_freed_while_it_moves_and_placed_again_stays_where_it_was_placed() {
    let mut toy = world(1, 8);
    toy.alloc_and_touch(0, 4);
    let moving = page(0, 3);
    toy.sample(moving, Access::Write, 5);
    toy.tick();
    let first = toy.under_way.pop_front().expect("an exchange");
    assert!(matches!(first.action, Action::Exchange { promote, .. } if promote == moving));

    // Freed, touched again, hot again, proposed again: all before the first
    // exchange is reported.
    toy.discard(PageRange { region: RegionId(0), start: PageNo(3), count: 1 });
    assert_eq!(toy.touch(moving), SLOW);
    toy.discard(PageRange { region: RegionId(0), start: PageNo(0), count: 1 });
    toy.sample(moving, Access::Write, 5);
    toy.tick();
    assert!(toy.policy.is_under_way(moving));
    toy.report(first, Outcome::Aborted(Abort::Stale));

    assert!(toy.policy.is_under_way(moving), "the first outcome is not about the second proposal");
    assert_eq!(toy.policy.tier_of(moving), Some(SLOW));
    toy.complete_all();
    assert_eq!(toy.policy.tier_of(moving), Some(DRAM));
    toy.policy.audit().expect("consistent");
}

#[test]
fn d10_a_reused_region_number_inherits_nothing() {
    let mut toy = world(1, 8);
    toy.alloc_and_touch(0, 4);
    toy.sample(page(0, 3), Access::Write, 18);
    toy.free(0);

    toy.alloc_and_touch(0, 4);

    assert_eq!(toy.tick(), [], "the heat was the old region's");
}

#[test]
fn d11_the_state_per_page_stays_below_16_bytes_at_the_paper_s_scale() {
    // 512 GiB of working set in huge pages, in one region, in one for each of
    // sixteen threads, and grown piece by piece, which leaves room to spare.
    for regions in [1u32, 16, 1000] {
        let mut toy = world(98_304, 393_216);
        let pages = 262_144 / regions;
        for id in 0..regions {
            toy.alloc(id, pages, PageSize::Huge);
        }
        let footprint = toy.policy.footprint();
        assert_eq!(footprint.pages, u64::from(pages * regions));
        let bytes = footprint.bytes_per_page();
        assert!(bytes >= 14.0, "{bytes} B a page cannot be all of it");
        assert!(bytes <= 16.0, "{bytes} B a page in {regions} regions");
    }
}

#[test]
fn d12_without_room_anywhere_a_fault_is_still_answered() {
    let mut toy = world(2, 2);
    toy.alloc_and_touch(0, 4);
    let region = toy.alloc(1, 1, PageSize::Huge);
    let first = region.range().pages().next().unwrap();
    let kind = terrace_core::FaultKind::FirstTouch(Access::Read);

    let tier = toy.policy.fault(first, kind, &toy.telemetry());

    assert_eq!(tier, DRAM, "the world makes room there, or says that there is none");
    toy.policy.audit().expect("consistent");
}

#[test]
fn d12_a_world_without_slower_tiers_gets_no_demotion_from_pressure() {
    let mut toy = world(2, 2);
    toy.alloc_and_touch(0, 4);
    assert_eq!(toy.pressure(SLOW, Bytes::mib(2)), []);
}

#[test]
fn d13_write_heavy_pages_go_first() {
    let mut toy = world(8, 64);
    toy.alloc_and_touch(0, 32);
    // Hot by loads first, so order of arrival alone would put them first.
    for p in 10..14 {
        toy.sample(page(0, p), Access::Read, 16);
    }
    for p in 20..24 {
        toy.sample(page(0, p), Access::Write, 8);
    }

    let plan = toy.tick();

    let reasons: Vec<_> = plan.iter().map(|p| p.reason).collect();
    assert_eq!(reasons[..4], [Reason::WriteHeavy; 4]);
    assert_eq!(reasons[4..], [Reason::HotByLoads; 4]);
    let first: Vec<_> = plan[..4].iter().filter_map(|p| p.action.page()).collect();
    assert_eq!(first, (20..24).map(|p| page(0, p)).collect::<Vec<_>>());
}

#[test]
fn d13_pressure_delivers_even_if_everything_is_hot() {
    let mut toy = world(8, 64);
    toy.alloc_and_touch(0, 8);
    for p in 0..8 {
        toy.sample(page(0, p), if p < 2 { Access::Write } else { Access::Read }, 12);
    }

    let plan = toy.pressure(DRAM, Bytes::mib(14));

    assert_eq!(plan.len(), 7, "seven huge pages are 14 MiB");
    for proposal in &plan {
        assert_eq!(proposal.reason, Reason::PressureNoneCold);
        assert_eq!(proposal.urgency, Urgency::Forced);
    }
    let last = plan[6].action.page();
    assert_eq!(last, Some(page(0, 0)), "write-heavy pages are given up last");
    // What is under way is not offered twice; what is left is.
    assert_eq!(toy.pressure(DRAM, Bytes::mib(14)).len(), 1);
    assert_eq!(toy.pressure(DRAM, Bytes::mib(14)).len(), 0);
}

#[test]
fn migration_keeps_to_its_rate() {
    let limit = BytesPerSecond((400u64 << 20) as f64);
    let config = HeMemConfig { migration_limit: limit, ..HeMemConfig::default() };
    let mut toy = Toy::new(HeMem::new(config), &[512, 4096], true);
    toy.alloc_and_touch(0, 2000);
    for p in 1000..1500 {
        toy.sample(page(0, p), Access::Write, 9);
    }

    for _ in 0..50 {
        toy.tick_and_complete();
    }

    // Half a second at 400 MiB a second, and what four ticks may save up.
    let most = limit.over(toy.now) + limit.over(Nanos::millis(40));
    assert!(toy.migrated <= most, "{} moved, {most} allowed", toy.migrated);
    assert!(toy.migrated.as_f64() > limit.over(toy.now).as_f64() * 0.9, "the limit is used");
}

#[test]
fn the_world_s_own_budget_is_kept_as_well() {
    let mut toy = world(512, 4096);
    toy.alloc_and_touch(0, 2000);
    for p in 1000..1500 {
        toy.sample(page(0, p), Access::Write, 9);
    }
    toy.migration_budget = Bytes::mib(9);
    let plan = toy.tick();
    assert_eq!(plan.len(), 2, "two exchanges of 4 MiB each");
    toy.migration_budget = Bytes::ZERO;
    assert_eq!(toy.tick(), []);
}

#[test]
fn d04_a_region_added_during_a_sweep_takes_no_visit_from_the_others() {
    for ticks_before in 0..12 {
        let config = HeMemConfig { sweep_pages: 1, ..HeMemConfig::default() };
        let mut toy = Toy::new(HeMem::new(config), &[64, 64], true);
        toy.alloc_and_touch(0, 8);
        for p in 0..8 {
            toy.sample(page(0, p), Access::Read, 18);
        }
        // A second cooling finds the cursor somewhere in the middle.
        cool_once(&mut toy, page(0, 3));
        for _ in 0..ticks_before {
            toy.tick();
        }
        cool_once(&mut toy, page(0, 3));
        toy.alloc(1, 30, PageSize::Huge);
        for _ in 0..40 {
            toy.tick();
        }
        // The audit knows when the sweep is over, and that nobody may be hot
        // on eighteen loads that were halved twice.
        toy.policy.audit().unwrap_or_else(|e| panic!("added after {ticks_before} ticks: {e}"));
    }
}
