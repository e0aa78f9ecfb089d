//! Whatever happens: no frame is lost or in two places, and costs are the sums of their parts.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use terrace_core::{Bytes, Cycles};
use terrace_profile::Share;
use terrace_profile::cbmm::{Compare, Condition, Policy, Quantity, Rule};

use super::benefit::Profile;
use super::kernel::{Mm, MmConfig};
use super::outcome::Outcome;
use super::physical::{Fragmentation, Owner, PAGES, Whole};
use super::policy::MmPolicyName;
use super::space::{Backing, Page, Section};

mod eager;
mod linux;
mod outcomes;

const START: u64 = 0x7f00_0000_0000;

#[derive(Clone, Copy, Debug)]
enum Op {
    Touch { process: u32, page: u64, store: bool },
    Sweep { process: u32, page: u64, count: u64 },
    Map { process: u32, page: u64, count: u64 },
    Unmap { process: u32, page: u64, count: u64 },
    Fork { process: u32 },
    ChildEnds { process: u32 },
    Pass { milliseconds: u64 },
    Compact,
    Reclaim,
}

fn op() -> impl Strategy<Value = Op> {
    let process = || 0u32..2;
    let page = || 0u64..6000;
    prop_oneof![
        8 => (process(), page(), any::<bool>())
            .prop_map(|(process, page, store)| Op::Touch { process, page, store }),
        4 => (process(), page(), 1u64..2000)
            .prop_map(|(process, page, count)| Op::Sweep { process, page, count }),
        3 => (process(), page(), 1u64..3000)
            .prop_map(|(process, page, count)| Op::Map { process, page, count }),
        2 => (process(), page(), 1u64..1500)
            .prop_map(|(process, page, count)| Op::Unmap { process, page, count }),
        1 => process().prop_map(|process| Op::Fork { process }),
        1 => process().prop_map(|process| Op::ChildEnds { process }),
        3 => (1u64..3000).prop_map(|milliseconds| Op::Pass { milliseconds }),
        1 => Just(Op::Compact),
        1 => Just(Op::Reclaim),
    ]
}

fn profile() -> Profile {
    let mut profile = Profile::general();
    profile.duration = Some(Cycles(1 << 40));
    profile
}

/// The same, and the first 8 MiB are all touched, and filled when they are mapped by whoever does that.
fn filling() -> Profile {
    let rule = |policy, averted| Rule {
        policy,
        section: Section::Mmap,
        averted: Some(Cycles(averted)),
        conditions: vec![Condition {
            quantity: Quantity::Addr,
            compare: Compare::Below,
            value: START + (8 << 20),
        }],
    };
    let mut all = Profile::of_rules([rule(Policy::Eager, 1 << 20), rule(Policy::Huge, 1)]);
    all.rules[1].touched = Share::known(1.0);
    let others = profile();
    all.rules.extend(others.rules);
    Profile { duration: others.duration, ..all }
}

/// Every page of every slot is in a frame that says so, and in no other.
fn check(mm: &Mm) {
    let mut frames = HashSet::new();
    for (number, slot) in mm.spaces().slots().iter().enumerate() {
        let number = number as u32;
        match slot.backing() {
            Backing::Empty => assert_eq!(slot.present, 0),
            Backing::Huge(frame) => {
                let block = mm.physical().blocks()[(frame >> 9) as usize];
                assert_eq!(block.whole, Whole::Huge(number));
                assert!((*frame..frame + 512).all(|frame| frames.insert(frame)));
            }
            Backing::Base(pages) => {
                let mut present = 0;
                for (index, page) in pages.iter().enumerate() {
                    let Some(frame) = page.frame() else { continue };
                    present += 1;
                    assert!(frames.insert(frame), "frame {frame} backs two pages");
                    assert_eq!(mm.physical().owner(frame), Owner::page(number, index as u32));
                }
                assert_eq!(slot.present, present);
            }
        }
    }
    let audit = mm.physical().audit();
    assert_eq!((audit.lost, audit.wrong), (0, 0));
    assert_eq!(audit.sum(), mm.physical().len());
    // A naive count of what is free.
    assert_eq!(audit.free, mm.physical().free());
    let count = |owner| {
        (0..mm.physical().len()).filter(|&frame| mm.physical().owner(frame) == owner).count() as u64
    };
    let others = count(Owner::FILE) + count(Owner::FRAGMENT) + count(Owner::CHILD);
    assert_eq!(audit.movable + audit.huge, frames.len() as u64 + others);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Two pages in one frame would be two programs that see each other's memory; a page that is
    /// forgotten, memory that is never free again.
    #[test]
    fn every_page_is_in_one_frame_whatever_happens(
        ops in prop::collection::vec(op(), 1..60),
        policy in prop::sample::select(MmPolicyName::ALL.to_vec()),
        how in prop::sample::select(Fragmentation::ALL.to_vec()),
        fills in any::<bool>(),
    ) {
        let config = MmConfig { fragmentation: how, ..MmConfig::new(Bytes::mib(48), policy) };
        let profile = if fills { filling() } else { profile() };
        let mut mm = Mm::new(&config, Some(&profile)).expect("good parameters");
        // What each program has stored to, by a model that knows nothing of frames.
        let mut stored: HashSet<(u32, u64)> = HashSet::new();
        let mut mapped: HashMap<u32, HashSet<u64>> = HashMap::new();
        let mut killed = false;
        let mut now = Cycles::ZERO;
        for op in ops {
            let touch = |mm: &mut Mm, process: u32, page: u64, store: bool| {
                let address = START + page * 4096;
                if mm.lookup(process, address, store).is_some() {
                    return Some(true);
                }
                let fault = mm.fault(process, address, store)?;
                if fault.outcome == Outcome::OutOfMemory {
                    return Some(false);
                }
                assert!(fault.cycles >= mm.costs.fault);
                assert!(mm.lookup(process, address, store).is_some(), "{fault:?}");
                Some(true)
            };
            match op {
                Op::Touch { process, page, store } => {
                    let found = touch(&mut mm, process, page, store);
                    let expected = mapped.get(&process).is_some_and(|pages| pages.contains(&page));
                    prop_assert_eq!(found.is_some(), expected);
                    killed |= found == Some(false);
                    if store && found == Some(true) {
                        stored.insert((process, page));
                    }
                }
                Op::Sweep { process, page, count } => {
                    for page in page..page + count {
                        match touch(&mut mm, process, page, true) {
                            Some(true) => { stored.insert((process, page)); }
                            Some(false) => killed = true,
                            None => {}
                        }
                    }
                }
                Op::Map { process, page, count } => {
                    // As `MAP_FIXED`: what lies there goes.
                    let (start, len) = (START + page * 4096, Bytes(count * 4096));
                    mm.unmap(process, start, len);
                    mm.map(process, start, len, Section::Mmap);
                    let pages = mapped.entry(process).or_default();
                    pages.extend(page..page + count);
                    stored.retain(|&(of, at)| of != process || !(page..page + count).contains(&at));
                }
                Op::Unmap { process, page, count } => {
                    mm.unmap(process, START + page * 4096, Bytes(count * 4096));
                    let pages = mapped.entry(process).or_default();
                    pages.retain(|at| !(page..page + count).contains(at));
                    stored.retain(|&(of, at)| of != process || !(page..page + count).contains(&at));
                }
                Op::Fork { process } => { mm.fork(process); }
                Op::ChildEnds { process } => mm.child_ends(process),
                Op::Pass { milliseconds } => {
                    now += Cycles(milliseconds * 2_200_000);
                    mm.advance(now);
                }
                Op::Compact => { mm.compact(Cycles(3_000_000)); }
                Op::Reclaim => { mm.reclaim(32, true); }
            }
            check(&mm);
        }
        // Nothing that was stored to is gone: it is in a frame, or on the swap device.
        for (process, page) in stored {
            let address = START + page * 4096;
            let there = mm.lookup(process, address, false).is_some();
            let slot = mm.spaces.slot_at(process, address).expect("it was mapped");
            let swapped = match mm.spaces.slot(slot).backing() {
                Backing::Base(pages) => pages[(page % u64::from(PAGES)) as usize] == Page::SWAPPED,
                _ => false,
            };
            prop_assert!(there || swapped || killed);
        }
    }
}

fn mm(policy: MmPolicyName, fragmentation: Fragmentation) -> Mm {
    let config = MmConfig { fragmentation, ..MmConfig::new(Bytes::gib(1), policy) };
    let mut mm = Mm::new(&config, Some(&profile())).expect("good parameters");
    mm.map(0, START, Bytes::mib(600), Section::Mmap);
    mm
}

fn first(mm: &mut Mm, store: bool) -> (Outcome, Cycles) {
    let fault = mm.fault(0, START, store).expect("mapped");
    (fault.outcome, fault.cycles)
}

/// Each path's closed form, from the table of costs.
#[test]
fn each_path_costs_the_sum_of_its_parts() {
    let costs = super::Costs::builtin();
    let table = costs.take_base + costs.zero_base;
    let none = Fragmentation::None;
    let mut one = mm(MmPolicyName::Never, none);
    assert_eq!(first(&mut one, true), (Outcome::Base, costs.base_fault() + table));
    let next = one.fault(0, START + 4096, true).expect("mapped");
    assert_eq!((next.outcome, next.cycles), (Outcome::Base, costs.base_fault()));
    let read = one.fault(0, START + 8192, false).expect("mapped");
    assert_eq!((read.outcome, read.cycles), (Outcome::SharedZero, costs.fault));
    let write = one.fault(0, START + 8192, true).expect("mapped");
    assert_eq!((write.outcome, write.cycles), (Outcome::CowZeroed, costs.base_fault()));
    one.fork(0);
    let copy = costs.fault + costs.take_base + costs.copy_base + costs.flush;
    let store = one.fault(0, START, true).expect("mapped");
    assert_eq!((store.outcome, store.cycles), (Outcome::CowCopied, copy));
    assert!(one.lookup(0, START, true).is_some(), "copied once");

    let mut always = mm(MmPolicyName::Always, none);
    assert_eq!(first(&mut always, true), (Outcome::Huge, costs.huge_fault(false)));
    always.fork(0);
    assert_eq!(first(&mut always, true), (Outcome::CowHugeSplit, copy));

    let mut hawkeye = mm(MmPolicyName::HawkEye, none);
    assert_eq!(first(&mut hawkeye, true), (Outcome::HugePrezeroed, costs.huge_fault(true)));

    let mut cbmm = mm(MmPolicyName::Cbmm, Fragmentation::Released);
    while cbmm.physical.take_huge(0).is_some() {}
    let base = costs.estimate + costs.base_fault() + table;
    assert_eq!(first(&mut cbmm, true), (Outcome::Base, base));

    let mut defer = mm(MmPolicyName::Defer, Fragmentation::Released);
    while defer.physical.take_huge(0).is_some() {}
    let fallback = (Outcome::BaseFallback, costs.base_fault() + table);
    assert_eq!(first(&mut defer, true), fallback);

    let mut compacting = mm(MmPolicyName::Always, Fragmentation::Released);
    while compacting.physical.take_huge(0).is_some() {}
    let (outcome, cycles) = first(&mut compacting, true);
    assert_eq!(outcome, Outcome::HugeCompacted);
    let compaction = compacting.counts.compaction.cycles;
    assert_eq!(cycles, costs.huge_fault(false) + compaction);
    assert!(compaction >= costs.scan_page * 512 + costs.move_page);
}

/// Where memory is short, a fault drops pages of files for itself; where there are none left, it is
/// out of memory.
#[test]
fn a_fault_makes_room_for_itself_as_long_as_there_is_anything_to_drop() {
    let config = MmConfig {
        files: Bytes::mib(4),
        swap: Bytes::ZERO,
        ..MmConfig::new(Bytes::mib(64), MmPolicyName::Never)
    };
    let mut mm = Mm::new(&config, None).expect("good parameters");
    mm.map(0, START, Bytes::mib(64), Section::Mmap);
    // No time passes: the kernel's thread cannot help.
    let faults: Vec<_> =
        (0..64 * 256).filter_map(|page| mm.fault(0, START + page * 4096, true)).collect();
    let first = |outcome| faults.iter().position(|fault| fault.outcome == outcome);
    let [base, reclaimed, out] =
        [Outcome::Base, Outcome::BaseReclaimed, Outcome::OutOfMemory].map(first);
    let order = [base, reclaimed, out];
    assert!(base.is_some() && base < reclaimed && reclaimed < out, "{order:?}");
    let costs = mm.costs;
    let dropping = costs.reclaim_call + (costs.scan_lru + costs.drop_page) * 32;
    let fault = faults[reclaimed.expect("it is before the last")];
    let table = costs.take_base + costs.zero_base;
    let least = costs.base_fault() + dropping;
    assert!(fault.cycles == least || fault.cycles == least + table, "{} {least}", fault.cycles);
    assert_eq!(mm.physical.files(), 0);
}

/// Each block has a page in it that cannot be moved: a fault looks at all blocks, twice, and takes a
/// base page.
#[test]
fn what_cannot_be_compacted_costs_the_search() {
    let config =
        MmConfig { files: Bytes::ZERO, ..MmConfig::new(Bytes::gib(1), MmPolicyName::Always) };
    let mut mm = Mm::new(&config, None).expect("good parameters");
    mm.map(0, START, Bytes::mib(600), Section::Mmap);
    for block in 0..mm.physical.blocks().len() as u64 {
        mm.physical.take_at(block * u64::from(PAGES), Owner::KERNEL);
    }
    let costs = mm.costs;
    let (outcome, cycles) = first(&mut mm, true);
    assert_eq!(outcome, Outcome::FailedCompacted);
    let table = costs.take_base + costs.zero_base;
    let compaction = mm.counts.compaction.cycles;
    assert_eq!(cycles, costs.base_fault() + table + compaction + costs.reclaim_call);
    let blocks = mm.physical.blocks().len() as u64;
    assert!(compaction >= costs.skip_block * (blocks - 1) * 2, "{compaction}");
}

/// A machine whose memory is held by unsplit huge pages, without files: the fault that has to
/// make room splits all of them.
#[test]
fn the_longest_fault_splits_all_partial_huge_pages() {
    let config = MmConfig {
        fragmentation: Fragmentation::Deferred,
        files: Bytes::ZERO,
        swap: Bytes::ZERO,
        ..MmConfig::new(Bytes::gib(1), MmPolicyName::Never)
    };
    let mut mm = Mm::new(&config, None).expect("good parameters");
    mm.map(0, START, Bytes::mib(600), Section::Mmap);
    let queue = mm.physical.unsplit();
    // No time passes: the kernel's thread cannot help.
    let faults = (0..600 * 256).map_while(|page| mm.fault(0, START + page * 4096, true));
    let longest = faults.map(|fault| fault.cycles).max().expect("some");
    assert!(longest >= mm.costs.split_huge * queue, "{longest}");
    assert_eq!(mm.physical.unsplit(), 0);
}

/// khugepaged puts together what a fault could not.
#[test]
fn base_pages_become_huge_ones_later() {
    let mut mm = mm(MmPolicyName::Always, Fragmentation::None);
    // Mapped in two steps: the second half comes when the first is base pages already.
    mm.unmap(0, START, Bytes::mib(600));
    mm.map(0, START, Bytes::mib(1), Section::Heap);
    for page in 0..256 {
        mm.fault(0, START + page * 4096, true).expect("mapped");
    }
    mm.map(0, START + (1 << 20), Bytes::mib(1), Section::Heap);
    assert_eq!(mm.backed(Some(0)).huge, Bytes::ZERO);
    mm.advance(Cycles(5_000_000_000));
    assert_eq!(mm.backed(Some(0)).huge, Bytes::mib(2));
    assert_eq!(mm.counts().collapsed, 1);
    check(&mm);
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let run = || {
        let mut mm = mm(MmPolicyName::Economist, Fragmentation::Released);
        for page in 0..100_000 {
            mm.advance(Cycles(page * 5000));
            mm.fault(0, START + page * 4096, true);
        }
        mm.counts().faults.rows()
    };
    assert_eq!(run(), run());
}
