//! HeMem under a steady synthetic workload: does placement become what the
//! paper says it becomes?
//!
//! The workload is the paper's GUPS in small: nine of ten accesses fall
//! uniformly on the hot set, the rest uniformly on everything, each a load and
//! a store. The sampler sees a fixed number of them in each tick.

mod common;

use std::ops::Range;

use common::{DRAM, Random, Toy, page, sample};
use terrace_core::{Access, PageRef, Proposal};
use terrace_policy::{HeMem, HeMemConfig, Policy};

const PAGES: u32 = 1024;
const DRAM_PAGES: u64 = 256;

fn world() -> Toy<HeMem> {
    let mut toy = Toy::new(HeMem::new(HeMemConfig::default()), &[DRAM_PAGES, 2048], true);
    toy.alloc_and_touch(0, PAGES);
    toy
}

fn pages(range: Range<u32>) -> impl Iterator<Item = PageRef> {
    range.map(|p| page(0, p))
}

/// Runs the workload for some ticks; returns the proposals of each tick.
fn run(
    toy: &mut Toy<HeMem>,
    random: &mut Random,
    hot: &Range<u32>,
    ticks: u32,
) -> Vec<Vec<Proposal>> {
    let mut all = Vec::new();
    for _ in 0..ticks {
        let mut samples = Vec::new();
        for _ in 0..100 {
            let p = if random.below(10) < 9 {
                hot.start + random.below(u64::from(hot.end - hot.start)) as u32
            } else {
                random.below(u64::from(PAGES)) as u32
            };
            let access = if random.below(2) == 0 { Access::Read } else { Access::Write };
            samples.push(sample(page(0, p), access, 1));
        }
        toy.policy.samples(&samples);
        all.push(toy.tick_and_complete());
        toy.policy.audit().expect("consistent after each tick");
    }
    all
}

fn share_in_dram(toy: &Toy<HeMem>, hot: &Range<u32>) -> f64 {
    toy.in_dram(pages(hot.clone())) as f64 / f64::from(hot.end - hot.start)
}

/// The paper's first claim: a hot set that fits is found and stays in DRAM.
#[test]
fn a_hot_set_that_fits_ends_in_the_fast_tier() {
    let (mut toy, mut random) = (world(), Random(1));
    // Past DRAM's end by first touch: all of it begins in the slow tier.
    let hot = 600..728;
    assert_eq!(toy.in_dram(pages(hot.clone())), 0);

    run(&mut toy, &mut random, &hot, 300);

    assert!(share_in_dram(&toy, &hot) > 0.98, "{} of it", share_in_dram(&toy, &hot));
}

/// The first defect of the published code that mattered: DRAM full of pages
/// that used to be hot and that nobody samples any more.
#[test]
fn after_the_hot_set_moves_it_ends_in_the_fast_tier_again() {
    let (mut toy, mut random) = (world(), Random(2));
    for hot in [0..240, 500..740, 740..980, 0..240] {
        run(&mut toy, &mut random, &hot, 600);
        let share = share_in_dram(&toy, &hot);
        assert!(share > 0.9, "hot set {hot:?}: {share} of it in the fast tier");
    }
}

/// The paper: "When the hot set does not fit in DRAM … HeMem identifies this
/// case and stops migration." While everything in DRAM is hot nothing moves at
/// all; what a cooling makes cold by chance must not start a merry-go-round:
/// with `exchange_ratio = 0` some 1000 pages move in the ticks measured here.
#[test]
fn a_hot_set_that_cannot_fit_stops_migration() {
    for size in [300, 400, 600, 1000] {
        let (mut toy, mut random) = (world(), Random(3));
        let hot = PAGES - size..PAGES;
        run(&mut toy, &mut random, &hot, 500);

        let plans = run(&mut toy, &mut random, &hot, 1000);

        let moves: usize = plans.iter().map(Vec::len).sum();
        assert!(moves < DRAM_PAGES as usize / 4, "hot set of {size}: {moves} exchanges");
    }
}

/// "No migration when everything in the fast tier is hot", to the letter.
#[test]
fn nothing_moves_while_everything_in_the_fast_tier_is_hot() {
    let mut toy = world();
    for p in pages(0..PAGES) {
        toy.policy.samples(&[sample(p, Access::Write, 9)]);
    }
    for _ in 0..20 {
        assert_eq!(toy.tick(), []);
    }
}

/// A policy that reads a clock or an address would not be reproducible.
#[test]
fn the_same_events_give_the_same_plans() {
    let run_once = || {
        let (mut toy, mut random) = (world(), Random(4));
        run(&mut toy, &mut random, &(300..500), 200)
    };
    let (first, second) = (run_once(), run_once());
    assert!(first.iter().any(|plan| !plan.is_empty()));
    assert_eq!(first, second);
}

/// Three tiers: the hottest go to the top, and the top's cold pages leave it.
#[test]
fn on_a_ladder_of_three_hot_pages_climb_to_the_top() {
    let policy = HeMem::new(HeMemConfig::default());
    let mut toy = Toy::new(policy, &[100, 200, 2048], true);
    toy.alloc_and_touch(0, PAGES);
    let mut random = Random(5);
    let hot = 900..980;

    run(&mut toy, &mut random, &hot, 300);

    assert!(share_in_dram(&toy, &hot) > 0.95, "{} of it", share_in_dram(&toy, &hot));
    assert!(toy.used(DRAM) <= toy.tiers[0].capacity);
}
