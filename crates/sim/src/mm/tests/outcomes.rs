//! Each way that a fault can end, from a fault that ends so.

use core::ops::Range;

use super::*;
use crate::mm::compaction::COMPACT_GAP;

/// Blocks of the memory that these tests have.
const BLOCKS: u64 = 128;
/// The last of them.
const LAST: u64 = BLOCKS - 1;

/// 256 MiB that nobody holds anything of.
fn empty(policy: MmPolicyName) -> Mm {
    let config = MmConfig {
        kernel: Bytes::ZERO,
        files: Bytes::ZERO,
        swap: Bytes::ZERO,
        ..MmConfig::new(Bytes::mib(256), policy)
    };
    let mut mm = Mm::new(&config, Some(&profile())).expect("good parameters");
    mm.map(0, START, Bytes::mib(64), Section::Mmap);
    mm
}

fn frames(Range { start, end }: Range<u64>) -> Range<u64> {
    start * u64::from(PAGES)..end * u64::from(PAGES)
}

/// The kernel holds a page of each of some blocks, so that nobody can empty them, and as many more
/// of theirs as leave so many frames free in all.
fn hold(mm: &mut Mm, blocks: Range<u64>, free: u64) {
    for block in blocks.clone() {
        mm.physical.take_at(block * u64::from(PAGES), Owner::KERNEL);
    }
    for frame in frames(blocks) {
        if mm.physical.free() == free {
            return;
        }
        mm.physical.take_at(frame, Owner::KERNEL);
    }
    assert_eq!(mm.physical.free(), free, "there are as many frames");
}

/// Enough for compaction to begin, and too little for reclaim to be left out.
fn between(mm: &Mm) -> u64 {
    let limits = mm.physical.watermarks;
    let free = limits.low + COMPACT_GAP + 64;
    assert!(free < limits.high + COMPACT_GAP);
    free
}

/// What a call of reclaim takes that drops as many pages of files as it wants.
fn reclaiming(mm: &Mm) -> Cycles {
    mm.costs.reclaim_call + (mm.costs.scan_lru + mm.costs.drop_page) * 32
}

/// Of the last block, where compaction finds no room above, 32 pages of files are all that is held.
fn files_in_the_last_block() -> Mm {
    let mut mm = empty(MmPolicyName::Always);
    for frame in frames(LAST..BLOCKS).take(32) {
        mm.physical.take_at(frame, Owner::FILE);
    }
    let free = between(&mm);
    hold(&mut mm, 0..LAST, free);
    mm
}

#[test]
fn pages_of_files_that_are_dropped_may_leave_a_whole_block() {
    let mut mm = files_in_the_last_block();
    let search = mm.costs.skip_block * LAST;
    let expected = search + reclaiming(&mm) + mm.costs.huge_fault(false);
    assert_eq!(first(&mut mm, true), (Outcome::HugeReclaimed, expected));
    check(&mm);
}

#[test]
fn reclaim_may_be_in_vain_as_compaction_was() {
    let mut mm = files_in_the_last_block();
    mm.physical.take_at(frames(LAST..BLOCKS).end - 1, Owner::KERNEL);
    let costs = mm.costs;
    // The whole search once before reclaim, and once after it.
    let search = costs.skip_block * LAST * 2;
    let table = costs.take_base + costs.zero_base;
    let expected = search + reclaiming(&mm) + costs.base_fault() + table;
    assert_eq!(first(&mut mm, true), (Outcome::FailedCompactedReclaimed, expected));
}

/// A block of which 20 pages could be moved, and no room above it but what files take.
#[test]
fn reclaim_may_make_the_room_that_compaction_was_short_of() {
    let mut mm = empty(MmPolicyName::Always);
    for frame in frames(100..101).take(20) {
        mm.physical.take_at(frame, Owner::FRAGMENT);
    }
    for frame in frames(120..121).take(32) {
        mm.physical.take_at(frame, Owner::FILE);
    }
    for frame in frames(101..BLOCKS) {
        mm.physical.take_at(frame, Owner::KERNEL);
    }
    let free = between(&mm);
    hold(&mut mm, 0..100, free);
    let (outcome, cycles) = first(&mut mm, true);
    assert_eq!(outcome, Outcome::HugeCompactedReclaimed);
    let compaction = mm.counts.compaction;
    assert_eq!((compaction.calls, compaction.moved, mm.counts.reclaim.dropped), (2, 20, 32));
    assert_eq!(cycles, compaction.cycles + reclaiming(&mm) + mm.costs.huge_fault(false));
    check(&mm);
}

/// Nothing is reclaimed where so much is free that compaction may try without it.
#[test]
fn with_ample_memory_compaction_fails_without_reclaim() {
    let mut mm = empty(MmPolicyName::Always);
    for frame in frames(LAST..BLOCKS).take(32) {
        mm.physical.take_at(frame, Owner::FILE);
    }
    let free = mm.physical.watermarks.high + COMPACT_GAP;
    hold(&mut mm, 0..LAST, free);
    assert_eq!(first(&mut mm, true).0, Outcome::FailedCompacted);
    assert_eq!(mm.counts.reclaim.dropped, 0);
}

/// Between the least and the lower limit a fault finds the block that there is, as every program does
/// before it tries anything else. Below the least it finds none, and there is no room to make one.
#[test]
fn a_free_block_is_taken_down_to_the_least_that_has_to_be_free() {
    for policy in [MmPolicyName::Always, MmPolicyName::HawkEye] {
        let mut mm = empty(policy);
        let limits = mm.physical.watermarks;
        hold(&mut mm, 0..LAST, limits.min + u64::from(PAGES));
        assert!(mm.physical.free() < limits.low + u64::from(PAGES));
        let outcome = first(&mut mm, true).0;
        assert!(matches!(outcome, Outcome::Huge | Outcome::HugePrezeroed), "{outcome:?}");
        assert_eq!(mm.counts.compaction.calls, 0);

        let mut mm = empty(policy);
        hold(&mut mm, 0..LAST, limits.min + u64::from(PAGES) - 1);
        assert!(mm.physical.free_huge() > 0);
        assert_eq!(first(&mut mm, true).0, Outcome::BaseFallback);
        assert_eq!(mm.counts.compaction.moved, 0);
    }
}

/// The table has no row that no fault can come to.
#[test]
fn every_outcome_of_the_table_occurs() {
    let mut seen = Vec::new();
    let mut look = |mm: &Mm| seen.extend(mm.counts.faults.rows().iter().map(|row| row.outcome));

    let mut never = empty(MmPolicyName::Never);
    never.fault(0, START, true);
    never.fault(0, START + 4096, false);
    never.fault(0, START + 4096, true);
    never.fork(0);
    never.fault(0, START, true);
    // Reclaim finds pages of files, and in the end none.
    for frame in frames(LAST..BLOCKS).take(200) {
        never.physical.take_at(frame, Owner::FILE);
    }
    let least = never.physical.watermarks.min;
    hold(&mut never, 0..LAST, least);
    for page in 2..400 {
        never.fault(0, START + page * 4096, true);
    }
    look(&never);

    let mut always = empty(MmPolicyName::Always);
    always.fault(0, START, true);
    always.fork(0);
    always.fault(0, START, true);
    look(&always);

    let mut hawkeye = empty(MmPolicyName::HawkEye);
    hawkeye.fault(0, START, true);
    hawkeye.fault(0, START + (2 << 20), true);
    look(&hawkeye);
    let mut hawkeye = empty(MmPolicyName::HawkEye);
    hold(&mut hawkeye, 0..BLOCKS, 20_000);
    hawkeye.fault(0, START, true);
    look(&hawkeye);

    let mut filling = super::eager::short(MmPolicyName::Economist, 1.0);
    filling.fault(0, START, true);
    look(&filling);

    let mut compacting = empty(MmPolicyName::Always);
    leave_single_pages(&mut compacting);
    compacting.fault(0, START, true);
    look(&compacting);
    let mut failing = empty(MmPolicyName::Always);
    hold(&mut failing, 0..BLOCKS, 20_000);
    failing.fault(0, START, true);
    look(&failing);

    let mut reclaiming = files_in_the_last_block();
    reclaiming.fault(0, START, true);
    look(&reclaiming);
    let mut in_vain = files_in_the_last_block();
    in_vain.physical.take_at(frames(LAST..BLOCKS).end - 1, Owner::KERNEL);
    in_vain.fault(0, START, true);
    look(&in_vain);
    let mut both = empty(MmPolicyName::Always);
    for frame in frames(100..101).take(20) {
        both.physical.take_at(frame, Owner::FRAGMENT);
    }
    for frame in frames(101..102).take(32) {
        both.physical.take_at(frame, Owner::FILE);
    }
    for frame in frames(101..BLOCKS) {
        both.physical.take_at(frame, Owner::KERNEL);
    }
    let free = between(&both);
    hold(&mut both, 0..100, free);
    both.fault(0, START, true);
    look(&both);

    let config =
        MmConfig { files: Bytes::ZERO, ..MmConfig::new(Bytes::mib(64), MmPolicyName::Never) };
    let mut swapping = Mm::new(&config, None).expect("good parameters");
    swapping.map(0, START, Bytes::mib(64), Section::Mmap);
    for page in 0..64 * 256 {
        swapping.fault(0, START + page * 4096, true);
        if swapping.swap().used() > 0 {
            break;
        }
    }
    let is_swapped = |page: &u64| swapping.lookup(0, START + page * 4096, false).is_none();
    let swapped = (0..64 * 256).find(is_swapped).expect("something was swapped out");
    swapping.fault(0, START + swapped * 4096, false);
    look(&swapping);

    for outcome in Outcome::ALL {
        assert!(seen.contains(&outcome), "no fault ended as {outcome:?}");
    }
}

/// One page that can be moved is left in each block.
fn leave_single_pages(mm: &mut Mm) {
    for block in 0..BLOCKS {
        mm.physical.take_at((block + 1) * u64::from(PAGES) - 1, Owner::FRAGMENT);
    }
}
