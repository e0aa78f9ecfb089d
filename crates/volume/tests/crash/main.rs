//! Power failures everywhere: each sector must be wholly what one write left, and what was
//! flushed must be there. Mistakes that are made on purpose must be found.

mod explore;
mod history;

use explore::{Op, Trial, Tried, random_threads, run};
use terrace_volume::Fault;

fn trial(threads: Vec<Vec<Op>>, seed: u64) -> Trial {
    Trial {
        threads,
        fault: None,
        grouped: false,
        spare: 2,
        clean: !seed.is_multiple_of(4),
        budget: 300,
        seed,
    }
}

/// Random programs: by turns of one to three threads, on memory and on a file, with writes of one
/// sector between two fences and of three. On a file there is one thread: others would wait for a
/// commit's lock, and it for its turn.
fn random(seed: u64, fault: Option<Fault>) -> Trial {
    let grouped = seed % 7 == 3;
    let threads = if grouped { 1 } else { 1 + (seed % 3) as usize };
    let steps = [8, 4, 3][threads - 1];
    let spare = if seed % 5 == 2 { 6 } else { 2 };
    Trial { fault, grouped, spare, ..trial(random_threads(threads, steps, seed), seed) }
}

fn sum(total: &mut Tried, tried: Tried) {
    total.images += tried.images;
    total.exhausted += tried.exhausted;
    total.sampled += tried.sampled;
}

fn explore(seeds: std::ops::Range<u64>) -> Tried {
    let mut total = Tried::default();
    for seed in seeds {
        let trial = random(seed, None);
        let (tried, wrong) = run(&trial);
        sum(&mut total, tried);
        assert_eq!(wrong, None, "seed {seed}: {trial:?}");
    }
    total
}

#[test]
fn no_power_failure_tears_a_sector_or_loses_what_was_flushed() {
    let tried = explore(0..30);
    assert!(tried.images > 10_000, "{tried:?} is too little");
    assert!(tried.exhausted > 100 && tried.sampled > 10, "{tried:?}: one kind was not tried");
}

/// Every state of every order of small programs: two threads that write, one that flushes.
#[test]
fn every_state_of_small_programs() {
    let write = |lba| Op::Write { lba, count: 1, fua: false };
    let programs = [
        vec![vec![write(0), write(0), Op::Flush]],
        vec![vec![write(0), Op::Zero { lba: 0, count: 1, fua: true }, write(0)]],
        vec![vec![write(0), write(1)], vec![write(0), Op::Flush]],
        vec![vec![write(0)], vec![write(0)], vec![Op::Read { lba: 0 }, Op::Flush]],
    ];
    for program in programs {
        for seed in 1..12 {
            let trial = Trial { clean: true, budget: 1 << 20, ..trial(program.clone(), seed) };
            let (tried, wrong) = run(&trial);
            assert_eq!(wrong, None, "{trial:?}");
            assert_eq!(tried.sampled, 0, "a state of {trial:?} was left out");
        }
    }
}

/// If one of them were not found, the absence of findings elsewhere would mean little.
#[test]
fn each_mistake_is_found() {
    for fault in Fault::ALL {
        let found = (0..400).find(|seed| run(&random(*seed, Some(fault))).1.is_some());
        assert!(found.is_some(), "{fault:?} was not found");
    }
}

/// The entries of one write are exchanged one after the other, and written back together.
#[test]
fn each_mistake_is_found_where_several_sectors_are_written_between_two_fences() {
    use Fault::{EarlyReuse, NoDataFence, NoMapWriteBack, OwnLaneFlush, TwoStoreMap};
    let run = |seed, fault| run(&Trial { spare: 6, ..random(seed, fault) }).1;
    for seed in 0..30 {
        assert_eq!(run(seed, None), None, "seed {seed}");
    }
    for fault in [EarlyReuse, NoDataFence, NoMapWriteBack, OwnLaneFlush, TwoStoreMap] {
        let found = (0..400).find(|seed| run(*seed, Some(fault)).is_some());
        assert!(found.is_some(), "{fault:?} was not found");
    }
}

/// The same for a file under group commit, as far as the mistakes exist there.
#[test]
fn each_mistake_of_a_group_commit_is_found() {
    for fault in [Fault::InPlace, Fault::NoDataFence, Fault::NoMapWriteBack, Fault::EarlyReuse] {
        let grouped = |seed| {
            let program = random_threads(1, 8, seed);
            Trial { grouped: true, fault: Some(fault), ..trial(program, seed) }
        };
        let found = (0..400).find(|seed| run(&grouped(*seed)).1.is_some());
        assert!(found.is_some(), "{fault:?} was not found");
    }
}

/// More than a million images: `cargo test -p terrace-volume --test crash -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn a_million_power_failures() {
    let mut total = Tried::default();
    let mut seed = 1000;
    while total.images < 1_000_000 {
        sum(&mut total, explore(seed..seed + 100));
        seed += 100;
    }
    println!("{} programs, {total:?}", seed - 1000);
}
