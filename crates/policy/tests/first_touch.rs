//! First touch: where pages go, and in which order they are given up.

mod common;

use common::{DRAM, SLOW, Toy, page};
use terrace_core::{Abort, Action, Bytes, PageNo, PageRange, Reason, RegionId, TierId};
use terrace_policy::{FirstTouch, Policy};

fn victims(toy: &mut Toy<FirstTouch>, bytes: Bytes) -> Vec<u32> {
    let plan = toy.pressure(DRAM, bytes);
    assert!(plan.iter().all(|p| p.reason == Reason::PressureOldest));
    plan.iter().filter_map(|p| p.action.page()).map(|p| p.page.0).collect()
}

#[test]
fn pages_fill_the_fast_tier_and_then_the_slow_one() {
    let mut toy = Toy::new(FirstTouch::new(), &[3, 8], true);
    toy.alloc_and_touch(0, 5);
    assert_eq!(toy.in_dram(toy.regions[&RegionId(0)].range().pages()), 3);
    assert_eq!(toy.tier_of(page(0, 4)), Some(SLOW));
}

#[test]
fn room_that_was_given_back_is_used_again() {
    let mut toy = Toy::new(FirstTouch::new(), &[3, 8], true);
    toy.alloc_and_touch(0, 5);
    toy.discard(PageRange { region: RegionId(0), start: PageNo(1), count: 1 });
    assert_eq!(toy.touch(page(0, 1)), DRAM);
}

#[test]
fn the_page_that_came_first_goes_first() {
    let mut toy = Toy::new(FirstTouch::new(), &[8, 8], false);
    toy.alloc_and_touch(0, 6);
    assert_eq!(victims(&mut toy, Bytes::mib(3)), [0, 1], "rounded up to whole pages");
    assert_eq!(victims(&mut toy, Bytes::mib(4)), [2, 3], "what is under way is not repeated");
}

#[test]
fn a_page_that_was_brought_in_counts_as_newly_arrived() {
    let mut toy = Toy::new(FirstTouch::new(), &[3, 8], false);
    toy.alloc_and_touch(0, 3);
    toy.pressure(DRAM, Bytes::mib(2));
    toy.complete_all();
    assert_eq!(toy.tier_of(page(0, 0)), Some(SLOW));

    assert_eq!(toy.touch(page(0, 0)), DRAM);

    assert_eq!(victims(&mut toy, Bytes::mib(6)), [1, 2, 0]);
}

#[test]
fn a_page_that_could_not_be_moved_lets_the_others_go_first() {
    let mut toy = Toy::new(FirstTouch::new(), &[8, 8], false);
    toy.alloc_and_touch(0, 3);
    assert_eq!(victims(&mut toy, Bytes::mib(2)), [0]);
    toy.abort_next(Abort::Touched);
    assert_eq!(victims(&mut toy, Bytes::mib(6)), [1, 2, 0]);
}

/// On a ladder a page goes to the next tier with room, and room that is
/// promised is not promised again.
#[test]
fn pages_are_given_up_to_the_nearest_tier_with_room() {
    let mut toy = Toy::new(FirstTouch::new(), &[4, 1, 8], false);
    toy.tiers[1].addressable = false;
    toy.alloc_and_touch(0, 4);
    let target = |toy: &mut Toy<FirstTouch>| match toy.pressure(DRAM, Bytes::mib(2))[0].action {
        Action::Demote { to, .. } => to,
        other => panic!("{other:?}"),
    };
    assert_eq!(target(&mut toy), TierId(1));
    assert_eq!(target(&mut toy), TierId(2), "the one place in tier 1 is taken");
    toy.complete_all();
    toy.discard(PageRange { region: RegionId(0), start: PageNo(0), count: 1 });
    assert_eq!(target(&mut toy), TierId(1), "and free again");
}

/// A compressed tier's capacity is an estimate: the world decides.
#[test]
fn where_no_tier_has_room_the_slowest_is_asked() {
    let mut toy = Toy::new(FirstTouch::new(), &[4, 1], false);
    toy.alloc_and_touch(0, 4);
    assert_eq!(victims(&mut toy, Bytes::mib(8)), [0, 1, 2, 3]);
}

/// Nine bytes, and an eighth to spare where regions come one by one.
#[test]
fn the_state_per_page_is_what_the_documentation_says() {
    let mut toy = Toy::new(FirstTouch::new(), &[8, 8], true);
    toy.alloc(0, 1 << 20, terrace_core::PageSize::Base);
    let bytes = toy.policy.footprint().bytes_per_page();
    assert!((10.0..10.01).contains(&bytes), "{bytes} B a page");
}
