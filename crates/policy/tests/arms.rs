//! What makes ARMS what it is: ranks instead of thresholds, patience, and moves
//! that have to pay.

mod common;

use common::{DRAM, SLOW, Toy, page};
use terrace_core::{Access, Nanos, TierId};
use terrace_policy::{Arms, ArmsConfig};

/// DRAM for 64 pages, which pages 0 to 63 fill; nothing is in use.
fn world(config: ArmsConfig) -> Toy<Arms> {
    let mut toy = Toy::new(Arms::new(config), &[64, 400], true);
    toy.alloc_and_touch(0, 128);
    pass(&mut toy, 4, &[]);
    toy
}

/// So many intervals of half a second, in each of which these pages are sampled
/// so many times.
fn pass(toy: &mut Toy<Arms>, intervals: u32, used: &[(u32, u32)]) {
    for _ in 0..intervals {
        for &(number, samples) in used {
            toy.sample(page(0, number), Access::Read, samples);
        }
        for _ in 0..50 {
            toy.tick_and_complete();
        }
    }
    toy.policy.audit().expect("consistent");
}

fn tier(toy: &Toy<Arms>, number: u32) -> TierId {
    toy.tier_of(page(0, number)).expect("placed")
}

/// One interval among the best may be chance.
#[test]
fn a_page_is_promoted_after_two_intervals_among_the_best() {
    let mut toy = world(ArmsConfig::default());
    pass(&mut toy, 1, &[(100, 50)]);
    assert_eq!(tier(&toy, 100), SLOW);
    pass(&mut toy, 2, &[(100, 50)]);
    assert_eq!(tier(&toy, 100), DRAM);
}

/// No threshold: what is best is relative. Sixty-four pages fit.
#[test]
fn as_many_pages_are_hot_as_the_fast_tier_holds() {
    for busy in [1, 40] {
        let mut toy = world(ArmsConfig::default());
        let mut used: Vec<_> = (64..128).map(|number| (number, 20 * busy)).collect();
        used.extend((0..64).map(|number| (number, 2 * busy)));
        pass(&mut toy, 30, &used);
        let hot = toy.in_dram((64..128).map(|number| page(0, number)));
        assert!(hot >= 60, "{hot} of 64 hot pages in DRAM");
    }
}

/// The same pages are left where they lie if a move costs more than it brings.
#[test]
fn moves_that_do_not_pay_are_not_proposed() {
    let cost = |huge_overhead| ArmsConfig { huge_overhead, ..ArmsConfig::default() };
    // 50 samples of 5003 accesses, 224 ns each, are 56 ms in half a second.
    for (overhead, expected) in [(Nanos::micros(500), DRAM), (Nanos::seconds(3), SLOW)] {
        let mut toy = world(cost(overhead));
        pass(&mut toy, 5, &[(100, 50)]);
        assert_eq!(tier(&toy, 100), expected, "{overhead}");
    }
}

/// What is as hot in both tiers must not change places for ever.
#[test]
fn likes_do_not_change_places() {
    let mut toy = world(ArmsConfig::default());
    let used: Vec<_> = (0..128).map(|number| (number, 20)).collect();
    pass(&mut toy, 20, &used);
    let before = toy.migrated;
    pass(&mut toy, 20, &used);
    assert_eq!(toy.migrated, before);
}
