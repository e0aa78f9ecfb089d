//! What makes HybridTier what it is: two filters, and a second chance.

mod common;

use common::{DRAM, SLOW, Toy, page};
use terrace_core::{Access, Nanos};
use terrace_policy::{HybridTier, HybridTierConfig, Policy};

/// DRAM for 64 pages; pages 0 to 63 lie there unless some were demoted.
fn world(config: HybridTierConfig) -> Toy<HybridTier> {
    let mut toy = Toy::new(HybridTier::new(config), &[64, 400], true);
    toy.alloc_and_touch(0, 128);
    toy
}

/// Momentum of everything else fades while one page is sampled.
fn let_momentum_fade(toy: &mut Toy<HybridTier>, except: u32) {
    toy.sample(page(0, except), Access::Read, 400);
}

/// Without momentum a page that has just become hot waits until it is frequent.
#[test]
fn a_page_is_promoted_by_its_momentum_before_it_is_frequent() {
    let defaults = HybridTierConfig::default();
    for (momentum, samples, expected) in [(3, 2, SLOW), (3, 3, DRAM), (16, 4, SLOW), (16, 5, DRAM)]
    {
        let mut toy = world(HybridTierConfig { momentum, ..defaults });
        toy.tick_and_complete();
        toy.sample(page(0, 100), Access::Read, samples);
        toy.tick_and_complete();
        assert_eq!(toy.touch(page(0, 100)), expected, "momentum {momentum}, {samples} samples");
    }
}

/// A page that was used a lot is not given up at once, but not kept for ever.
#[test]
fn what_was_frequent_goes_after_a_second_chance_if_nobody_uses_it() {
    let mut toy = world(HybridTierConfig::default());
    toy.tick_and_complete();
    // 0 to 19 are frequent, then 20 to 62 are sampled once: these are looked at later.
    let in_dram: Vec<_> = (0..63).filter(|&n| toy.tier_of(page(0, n)) == Some(DRAM)).collect();
    let (frequent, seldom) = in_dram.split_at(20);
    for &number in frequent {
        toy.sample(page(0, number), Access::Read, 6);
    }
    for &number in seldom {
        toy.sample(page(0, number), Access::Read, 1);
    }
    let_momentum_fade(&mut toy, 63);
    // New pages take what is free: demotion begins, and passes by what is frequent.
    toy.alloc_and_touch(1, 8);
    toy.tick_and_complete();
    let still = toy.in_dram(frequent.iter().map(|&number| page(0, number)));
    assert!(still >= 19, "{still} of 20 frequent pages in DRAM");
    assert!(toy.in_dram(seldom.iter().map(|&number| page(0, number))) < seldom.len());

    toy.now += Nanos::seconds(61);
    toy.sample(page(0, frequent[0]), Access::Read, 1);
    toy.alloc_and_touch(2, 8);
    toy.tick_and_complete();

    assert_eq!(toy.tier_of(page(0, frequent[0])), Some(DRAM), "it was used again");
    let still = toy.in_dram(frequent[1..].iter().map(|&number| page(0, number)));
    assert!(still <= 2, "{still} of 19 pages that nobody used again are still in DRAM");
}

/// A fast tier full of what is in use is left alone; later it is looked at again.
#[test]
fn it_rests_when_everything_in_the_fast_tier_is_in_use() {
    // Momenta are not halved in this test, so that everything keeps some.
    let mut toy = world(HybridTierConfig { momentum_part: 1, ..HybridTierConfig::default() });
    toy.tick_and_complete();
    toy.alloc_and_touch(1, 8);
    for _ in 0..4 {
        for (region, pages) in [(0, 64), (1, 8)] {
            for number in 0..pages {
                toy.sample(page(region, number), Access::Read, 1);
            }
        }
        toy.tick_and_complete();
    }
    assert!(toy.policy.rests());
    toy.now += Nanos::seconds(121);
    toy.tick_and_complete();
    assert!(!toy.policy.rests());
}

/// The filters have their size before anything is counted. Samples until the first
/// tick went into ones for fifty pages, which made every page look hot: all of the
/// fast tier was taken to be in use, and nothing was moved for minutes.
#[test]
fn samples_before_the_first_tick_do_not_make_everything_look_hot() {
    let mut toy = Toy::new(HybridTier::new(HybridTierConfig::default()), &[4096, 8192], true);
    toy.alloc_and_touch(0, 8192);
    for number in 6000..8000 {
        toy.sample(page(0, number), Access::Read, 1);
    }
    toy.tick_and_complete();
    let hot = (0..6000).filter(|&number| {
        let (frequency, _) = toy.policy.counts(page(0, number)).expect("known");
        frequency >= 5
    });
    let hot = hot.count();
    assert!(hot < 60, "{hot} of 6000 pages that nobody sampled look frequent");
    assert!(!toy.policy.rests());
}

/// 10.2 B for each page of the fast tier, rounded up to a power of two, and 10 B
/// of the roster for each page: the documented state.
#[test]
fn state_per_page_is_as_documented() {
    let mut toy = Toy::new(HybridTier::new(HybridTierConfig::default()), &[1024, 8192], true);
    toy.alloc_and_touch(0, 4096);
    toy.tick_and_complete();
    let bytes = toy.policy.footprint().bytes_per_page();
    assert!((14.0..16.5).contains(&bytes), "{bytes}");
}
