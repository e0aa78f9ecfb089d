//! Refault: what stays in DRAM, and what does not.

mod common;

use common::{DRAM, Random, Toy, page};
use terrace_core::{Abort, Bytes};
use terrace_policy::{Policy, Refault, TwoQueue};

/// Pages that fit.
const FIT: u32 = 512;
/// Pages of the program.
const ALL: u32 = 2048;

fn world<P: Policy>(policy: P) -> (Toy<P>, Random) {
    let mut toy = Toy::new(policy, &[u64::from(FIT), 2 * u64::from(ALL)], false);
    toy.alloc_and_touch(0, ALL);
    (toy, Random(7))
}

/// Whether a touch missed.
fn touch<P: Policy>(toy: &mut Toy<P>, number: u32) -> u32 {
    let missed = u32::from(toy.tier_of(page(0, number)) != Some(DRAM));
    toy.touch(page(0, number));
    missed
}

/// Misses of `touches` random touches, 9 of 10 to the `hot` pages that begin at `from`, the
/// others anywhere.
fn misses<P: Policy>(
    toy: &mut Toy<P>,
    random: &mut Random,
    (from, hot): (u32, u32),
    touches: u32,
) -> u32 {
    let mut any = |pages: u32| random.below(u64::from(pages)) as u32;
    (0..touches)
        .map(|_| {
            let number = if any(10) < 9 { from + any(hot) } else { any(ALL) };
            touch(toy, number)
        })
        .sum()
}

#[test]
fn a_hot_set_that_fits_stays() {
    let (mut toy, mut random) = world(Refault::new());
    misses(&mut toy, &mut random, (400, 320), 40_000);
    let missed = misses(&mut toy, &mut random, (400, 320), 40_000);
    // A tenth of the touches go anywhere, a quarter of that is in DRAM: 7.5 % at best.
    assert!(missed < 40_000 * 9 / 100, "{missed} of 40 000");
}

/// In proportion to what could be had: as large a hot set as DRAM leaves no room for doubt.
#[test]
fn a_hot_set_as_large_as_dram_is_kept_better_than_by_2q() {
    let (mut toy, mut random) = world(Refault::new());
    let missed = misses(&mut toy, &mut random, (400, FIT), 60_000);
    let (mut toy, mut random) = world(TwoQueue::new());
    let by_2q = misses(&mut toy, &mut random, (400, FIT), 60_000);
    assert!(missed < by_2q, "{missed}, by 2q {by_2q}");
}

#[test]
fn a_hot_set_that_moves_is_followed() {
    let (mut toy, mut random) = world(Refault::new());
    misses(&mut toy, &mut random, (0, 320), 40_000);
    misses(&mut toy, &mut random, (1200, 320), 30_000);
    let missed = misses(&mut toy, &mut random, (1200, 320), 40_000);
    assert!(missed < 40_000 * 9 / 100, "{missed} of 40 000");
}

#[test]
fn one_pass_over_cold_memory_leaves_the_hot_set_alone() {
    let (mut toy, mut random) = world(Refault::new());
    misses(&mut toy, &mut random, (400, 256), 40_000);
    let hot = || (400..656).map(|p| page(0, p));
    let before = toy.in_dram(hot());

    for number in (0..400).chain(656..ALL) {
        toy.touch(page(0, number));
    }

    assert!(before >= 220, "{before} of 256 hot pages before the pass");
    // First in first out keeps none.
    assert!(toy.in_dram(hot()) >= before * 3 / 4, "{} of {before}", toy.in_dram(hot()));
}

/// First in first out, and LRU, miss every time.
#[test]
fn a_loop_that_is_longer_than_dram_misses_in_part() {
    let (mut toy, _) = world(Refault::new());
    let mut pass = || (0..FIT * 5 / 4).map(|number| touch(&mut toy, number)).sum::<u32>();
    (0..40).for_each(|_| _ = pass());
    let missed: u32 = (0..40).map(|_| pass()).sum();
    assert!(missed < 40 * FIT * 5 / 4 * 3 / 4, "{missed} of {}", 40 * FIT * 5 / 4);
}

/// Pages that were hot enough to rise, and then die: if class alone decided they would stay, and
/// the living be sent away instead.
#[test]
fn a_window_that_slides_along_is_not_crowded_out_by_what_it_left_behind() {
    let window = FIT * 9 / 10;
    let (mut toy, mut random) = world(Refault::new());
    let mut slide = |touches: std::ops::Range<u32>| -> u32 {
        touches
            .map(|n| {
                let number = n / 16 + random.below(u64::from(window)) as u32;
                touch(&mut toy, number % ALL)
            })
            .sum()
    };
    slide(0..80_000);
    let missed = slide(80_000..120_000);
    // One of 16 touches is the first of a page.
    assert!(missed < 40_000 / 16 * 3 / 2, "{missed}, {} at best", 40_000 / 16);
}

#[test]
fn a_page_that_is_touched_on_its_way_out_is_kept() {
    let mut toy = Toy::new(Refault::new(), &[8, 16], false);
    toy.alloc_and_touch(0, 8);
    let victim = toy.pressure(DRAM, Bytes::mib(2))[0].action.page();
    assert_eq!(victim, Some(page(0, 0)));
    toy.abort_next(Abort::Touched);
    for _ in 0..6 {
        let next = toy.pressure(DRAM, Bytes::mib(2))[0].action.page();
        assert_ne!(next, Some(page(0, 0)), "others are of the lowest class still");
        toy.complete_all();
    }
}
