//! Linux's settings: who gets a huge page, and who waits for it.

use super::*;
use crate::mm::physical::Whole;

/// Fragmented memory without a free block, whose program has advised huge pages, or not.
fn fragmented(policy: MmPolicyName, advised: bool) -> Mm {
    let mut mm = mm(policy, Fragmentation::Released);
    while mm.physical.take_huge(0).is_some() {}
    if advised {
        mm.advise(0, START);
    }
    mm
}

/// The first touch of the next 2 MiB, some time after the last.
fn later(mm: &mut Mm) -> Outcome {
    mm.advance(Cycles(1_000_000));
    mm.fault(0, START + (2 << 20), true).expect("mapped").outcome
}

#[test]
fn madvise_gives_huge_pages_to_those_who_ask_for_them() {
    let mut unasked = mm(MmPolicyName::Madvise, Fragmentation::None);
    assert_eq!(first(&mut unasked, true).0, Outcome::Base);
    unasked.advance(Cycles(5_000_000_000));
    assert_eq!(unasked.counts().collapsed, 0, "nor later");
    unasked.advise(0, START);
    // khugepaged comes by every slot of the mapping.
    unasked.advance(Cycles(200_000_000_000));
    assert_eq!(unasked.counts().collapsed, 1, "asked for when it was in use already");
    assert_eq!(first(&mut fragmented(MmPolicyName::Madvise, false), true).0, Outcome::Base);
    let mut asked = fragmented(MmPolicyName::Madvise, true);
    assert_eq!(first(&mut asked, true).0, Outcome::HugeCompacted);
}

/// The fault that finds no block waits for none, and the next one finds what was made meanwhile.
#[test]
fn defer_leaves_compaction_to_the_thread() {
    for advised in [false, true] {
        let mut mm = fragmented(MmPolicyName::Defer, advised);
        let costs = mm.costs;
        let fallback = costs.base_fault() + costs.take_base + costs.zero_base;
        assert_eq!(first(&mut mm, true), (Outcome::BaseFallback, fallback));
        assert_eq!(mm.counts.compaction.calls, 0);
        assert_eq!(later(&mut mm), Outcome::Huge);
        assert_eq!((mm.counts.compaction.calls, mm.counts.compaction.made), (1, 1));
        assert_eq!(mm.counts.background, mm.counts.compaction.cycles);
    }
}

#[test]
fn defer_with_madvise_compacts_in_the_fault_of_those_who_ask() {
    let mut unasked = fragmented(MmPolicyName::DeferMadvise, false);
    assert_eq!(first(&mut unasked, true).0, Outcome::BaseFallback);
    assert_eq!(later(&mut unasked), Outcome::Huge);
    let mut asked = fragmented(MmPolicyName::DeferMadvise, true);
    assert_eq!(first(&mut asked, true).0, Outcome::HugeCompacted);
}

/// Where nothing can be made, the thread is called with each fault and looks at all of memory ever
/// more rarely.
#[test]
fn the_compacting_thread_sits_out_calls_after_failures() {
    let mut mm = fragmented(MmPolicyName::Defer, false);
    for block in 0..mm.physical.blocks().len() as u64 {
        let first = block * u64::from(PAGES);
        // Some are full of what could be moved.
        if mm.physical.blocks()[block as usize].whole == Whole::No {
            if mm.physical.owner(first) != Owner::NOBODY {
                mm.physical.give(first);
            }
            mm.physical.take_at(first, Owner::KERNEL);
        }
    }
    // Of 1 + 2 + 4 + 8 calls it heeds the last of each group.
    for call in 1..=15 {
        mm.fault(0, START + (call << 21), true).expect("mapped");
        // Not by `advance`: khugepaged would come by, which makes blocks of its own.
        mm.now += Cycles(call * 10_000_000);
        mm.compact_in_background();
    }
    assert_eq!(
        (mm.counts.compaction.made, mm.counts.compaction.calls),
        (0, 4),
        "{:?}",
        mm.counts.compaction
    );
}

#[test]
fn settings_are_called_what_linux_calls_them() {
    for name in ["never", "always", "madvise", "defer", "defer+madvise"] {
        let policy: MmPolicyName = name.parse().expect("a policy");
        assert_eq!(mm(policy, Fragmentation::None).policy(), name);
    }
}
