//! What is filled ahead spares the faults of what is touched, and costs what never is.

use super::*;
use crate::mm::compaction::COMPACT_GAP;

/// A profile with one rule for all mappings.
fn rule(policy: Policy, averted: Option<Cycles>, touched: Share) -> Profile {
    let rule = Rule { policy, section: Section::Mmap, averted, conditions: Vec::new() };
    let mut profile = Profile::of_rules([rule]);
    profile.rules[0].touched = touched;
    profile.duration = Some(Cycles(1 << 40));
    profile
}

/// 256 MiB with nothing in it.
fn empty(policy: MmPolicyName, profile: &Profile) -> Mm {
    let config = MmConfig {
        kernel: Bytes::ZERO,
        files: Bytes::ZERO,
        swap: Bytes::ZERO,
        ..MmConfig::new(Bytes::mib(256), policy)
    };
    Mm::new(&config, Some(profile)).expect("good parameters")
}

/// Memory without a free block, or the room to make one; of what is mapped a share is touched.
pub(super) fn short(policy: MmPolicyName, touched: f64) -> Mm {
    let mut mm = empty(policy, &rule(Policy::Huge, Some(Cycles(1)), Share::known(touched)));
    mm.map(0, START, Bytes::mib(64), Section::Mmap);
    for block in 0..mm.physical.blocks().len() as u64 {
        mm.physical.take_at(block * u64::from(PAGES), Owner::KERNEL);
    }
    let free = mm.physical.watermarks.low + COMPACT_GAP - 1;
    for frame in 0..mm.physical.len() {
        if mm.physical.free() == free {
            break;
        }
        mm.physical.take_at(frame, Owner::KERNEL);
    }
    mm
}

/// Stores to so many pages in order; returns how many faults it took, and their time.
fn walk(mm: &mut Mm, pages: u64) -> (u64, Cycles) {
    let (mut faults, mut time) = (0, Cycles::ZERO);
    for page in 0..pages {
        let address = START + page * 4096;
        if let Some((_, _, slot)) = mm.lookup(0, address, true) {
            mm.touched(slot, address);
        } else {
            faults += 1;
            time += mm.fault(0, address, true).expect("mapped").cycles;
        }
    }
    (faults, time)
}

/// Closed form: each fault that is spared is worth what filling does not take of it; each page that
/// is never touched costs its zeros, its frame and its mapping; and deciding has its price.
#[test]
fn filling_brings_the_faults_that_it_spares_less_what_nobody_touches() {
    const TOUCHED: u64 = 500;
    let mut never = short(MmPolicyName::Never, 1.0);
    let (faults, without) = walk(&mut never, TOUCHED);
    assert_eq!(faults, TOUCHED);
    let mut ours = short(MmPolicyName::Economist, 1.0);
    let (left, with) = walk(&mut ours, TOUCHED);
    assert_eq!(left, 32, "one for each piece");
    let (spared, in_vain) = (TOUCHED - left, 512 - TOUCHED);
    let costs = ours.costs;
    let gain = (costs.fault - costs.populate) * spared;
    // Whether a huge page, and whether to fill: two decisions.
    let loss = costs.filled_base() * in_vain + costs.quote * 2;
    assert_eq!(without - with, gain - loss);
    assert_eq!((ours.counts.filled, ours.counts.filled_used), (512 - 32, spared));
    let rows = ours.counts.faults.rows();
    let ended: Vec<_> = rows.iter().map(|row| (row.outcome, row.latency.count)).collect();
    assert_eq!(ended, [(Outcome::BaseFilled, 32)]);
    check(&ours);
}

/// Nearly all has to be touched: a page in vain costs three times what one in use brings.
#[test]
fn what_is_half_touched_is_not_filled() {
    let mut ours = short(MmPolicyName::Economist, 0.5);
    assert_eq!(walk(&mut ours, 100).0, 100);
    assert_eq!(ours.counts.filled, 0);
}

/// What is filled for nothing may not push out what is in use.
#[test]
fn filling_ends_where_memory_is_short() {
    let mut ours = short(MmPolicyName::Economist, 1.0);
    let low = ours.physical.watermarks.low;
    for frame in 0..ours.physical.len() {
        if ours.physical.free() <= low + 2 {
            break;
        }
        ours.physical.take_at(frame, Owner::KERNEL);
    }
    walk(&mut ours, 1);
    assert_eq!((ours.physical.free(), ours.counts.filled), (low, 1));
    assert_eq!(ours.counts.reclaim.direct, 0);
}

#[test]
fn cbmm_fills_a_mapping_whose_rule_brings_more_than_the_call() {
    let known = rule(Policy::Eager, Some(Cycles(1_000_000)), Share::UNKNOWN);
    let mut cbmm = empty(MmPolicyName::Cbmm, &known);
    let time = cbmm.map(0, START, Bytes::mib(4), Section::Mmap);
    let costs = cbmm.costs;
    let table = costs.take_base + costs.zero_base;
    let each = costs.filled_base() * u64::from(PAGES) + table + costs.estimate * 2;
    assert_eq!(time, each * 2);
    assert_eq!(walk(&mut cbmm, 1000).0, 0);
    assert_eq!((cbmm.counts.filled, cbmm.counts.filled_used), (1024, 1000));
    check(&cbmm);
    // As its artifact ships them: a benefit of 1.
    let mut shipped = empty(MmPolicyName::Cbmm, &rule(Policy::Eager, None, Share::UNKNOWN));
    let time = shipped.map(0, START, Bytes::mib(4), Section::Mmap);
    assert_eq!((time, shipped.counts.filled), (costs.estimate * 2, 0));
}
