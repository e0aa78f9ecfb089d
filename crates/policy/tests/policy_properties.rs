//! What holds under any sequence of events, for every policy.
//!
//! The toy world asserts while it runs: no page is proposed twice while under
//! way, every proposal names the tier that the page really lies in, a fault is
//! answered with a tier that has room if one has, and pressure delivers.

mod common;

use common::{DRAM, Named, Random, Toy, page, sample};
use proptest::prelude::*;
use terrace_core::{
    Abort, Access, Bytes, BytesPerSecond, Nanos, PageNo, PageRange, PageSize, Proposal, RegionId,
    TierId, Upcoming,
};
use terrace_policy::{
    Arms, ArmsConfig, FirstTouch, HeMem, HeMemConfig, HybridTier, HybridTierConfig, Memtis,
    MemtisConfig, Policy, PolicyName,
};

/// Something that happens in the world. Numbers are taken modulo what exists.
#[derive(Clone, Debug)]
enum Step {
    Alloc { region: u32, pages: u32, huge: bool },
    Touch { region: u32, page: u32 },
    Access { region: u32, page: u32, write: bool },
    Foresee { region: u32, every: u32 },
    Sample { region: u32, page: u32, write: bool, weight: u16 },
    Burst { region: u32, write: bool },
    Tick,
    Pressure { tier: u8, base_pages: u64 },
    Complete,
    Abort { why: u8 },
    Discard { region: u32, start: u32, count: u32 },
    Free { region: u32 },
    Wait { ms: u32 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let region = || 0u32..5;
    let place = || (0u32..5, 0u32..40);
    let step = prop_oneof![
        2 => (region(), 1u32..40, any::<bool>())
            .prop_map(|(region, pages, huge)| Step::Alloc { region, pages, huge }),
        12 => place().prop_map(|(region, page)| Step::Touch { region, page }),
        12 => (place(), any::<bool>())
            .prop_map(|((region, page), write)| Step::Access { region, page, write }),
        2 => (region(), 1u32..8).prop_map(|(region, every)| Step::Foresee { region, every }),
        8 => (place(), any::<bool>(), prop_oneof![4 => 1u16..8, 1 => any::<u16>()]).prop_map(
            |((region, page), write, weight)| Step::Sample { region, page, write, weight }
        ),
        4 => (region(), any::<bool>()).prop_map(|(region, write)| Step::Burst { region, write }),
        8 => Just(Step::Tick),
        3 => (0u8..3, 1u64..2000)
            .prop_map(|(tier, base_pages)| Step::Pressure { tier, base_pages }),
        10 => Just(Step::Complete),
        3 => (0u8..8).prop_map(|why| Step::Abort { why }),
        2 => (region(), 0u32..40, 1u32..40)
            .prop_map(|(region, start, count)| Step::Discard { region, start, count }),
        1 => region().prop_map(|region| Step::Free { region }),
        1 => (0u32..100_000).prop_map(|ms| Step::Wait { ms }),
    ];
    prop::collection::vec(step, 1..250)
}

const ABORTS: [Abort; 8] = [
    Abort::Vetoed,
    Abort::Dirtied,
    Abort::Touched,
    Abort::Busy,
    Abort::NoMemory,
    Abort::Stale,
    Abort::RateLimited,
    Abort::Unsupported,
];

/// Makes a step happen; returns what was proposed.
fn apply<P: Policy>(toy: &mut Toy<P>, step: &Step) -> Vec<Proposal> {
    let place = |toy: &Toy<P>, region: u32, number: u32| {
        let found = toy.regions.get(&RegionId(region))?;
        Some(page(region, number % found.pages))
    };
    let access = |write| if write { Access::Write } else { Access::Read };
    match *step {
        Step::Alloc { region, pages, huge } => {
            toy.free(region);
            toy.alloc(region, pages, if huge { PageSize::Huge } else { PageSize::Base });
        }
        Step::Touch { region, page } => {
            if let Some(page) = place(toy, region, page) {
                toy.touch(page);
            }
        }
        Step::Access { region, page, write } => {
            if let Some(page) = place(toy, region, page) {
                toy.access(page, access(write));
            }
        }
        Step::Foresee { region, every } => {
            // Of pages that are gone, too.
            let upcoming = |number: u32| Upcoming {
                page: page(region, number),
                loads: (number % every) as f32 * 1e5,
                stores: 0.0,
            };
            toy.policy.foresee(&(0..40).map(upcoming).collect::<Vec<_>>());
        }
        // A sample may be of a page or region that is gone.
        Step::Sample { region, page: number, write, weight } => {
            toy.policy.samples(&[sample(page(region, number), access(write), weight)]);
        }
        Step::Burst { region, write } => {
            for number in 0..10 {
                toy.sample(page(region, number), access(write), 9);
            }
        }
        Step::Tick => return toy.tick(),
        Step::Pressure { tier, base_pages } => {
            let tier = TierId(tier % toy.tiers.len() as u8);
            let bytes = PageSize::Base.bytes() * base_pages;
            return pressure(toy, tier, bytes);
        }
        Step::Complete => {
            if let Some(proposal) = toy.under_way.pop_front() {
                let outcome = toy.carry_out(&proposal);
                toy.report(proposal, outcome);
            }
        }
        Step::Abort { why } => toy.abort_next(ABORTS[usize::from(why)]),
        Step::Discard { region, start, count } => {
            if let Some(found) = toy.regions.get(&RegionId(region)) {
                let start = start % found.pages;
                let count = count.min(found.pages - start);
                toy.discard(PageRange { region: found.id, start: PageNo(start), count });
            }
        }
        Step::Free { region } => toy.free(region),
        Step::Wait { ms } => toy.now += terrace_core::Nanos::millis(u64::from(ms)),
    }
    Vec::new()
}

/// Asks for room, and checks that it is offered if the tier can give it.
fn pressure<P: Policy>(toy: &mut Toy<P>, tier: TierId, bytes: Bytes) -> Vec<Proposal> {
    let busy: Vec<_> = toy.busy().collect();
    let (mut all, mut held) = (Bytes::ZERO, Bytes::ZERO);
    for (&page, _) in toy.placed.iter().filter(|&(_, &lies)| lies == tier) {
        let size = toy.size(page).bytes();
        all += size;
        if !busy.contains(&page) {
            held += size;
        }
    }
    assert_eq!(toy.used(tier), all, "what the policies are told");
    let plan = toy.pressure(tier, bytes);
    let offered: Bytes = plan.iter().map(|p| p.page_size.bytes()).sum();
    if tier.index() + 1 < toy.tiers.len() {
        assert!(offered >= bytes.min(held), "{offered} of {bytes} offered, {held} held");
    } else {
        assert!(plan.is_empty(), "there is nowhere to go from the slowest tier");
    }
    plan
}

/// Runs steps under `HeMem`, checking its state after each.
fn run_hemem(tiers: &[u64], addressable: bool, steps: &[Step]) -> Vec<Proposal> {
    // A small sweep, so that pages are met in every stage of cooling.
    let config = HeMemConfig { sweep_pages: 7, ..HeMemConfig::default() };
    let mut toy = Toy::new(HeMem::new(config), tiers, addressable);
    let mut all = Vec::new();
    for step in steps {
        all.extend(apply(&mut toy, step));
        toy.policy.audit().unwrap_or_else(|e| panic!("after {step:?}: {e}"));
        for region in toy.regions.values() {
            for page in region.range().pages() {
                assert_eq!(toy.policy.tier_of(page), toy.tier_of(page), "{page} after {step:?}");
                assert_eq!(
                    toy.policy.is_under_way(page),
                    toy.busy().any(|busy| busy == page),
                    "{page} after {step:?}"
                );
            }
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(2), ..ProptestConfig::default() })]

    /// If lists and truth part ways, pages are lost to the policy for ever.
    #[test]
    fn hemem_stays_consistent_with_two_addressable_tiers(steps in steps()) {
        run_hemem(&[12, 300], true, &steps);
    }

    /// The live world's ladder: the slow tier is entered by pressure, left by faults.
    #[test]
    fn hemem_stays_consistent_with_a_tier_that_is_not_addressable(steps in steps()) {
        run_hemem(&[12, 300], false, &steps);
    }

    #[test]
    fn hemem_stays_consistent_on_a_ladder_of_three(steps in steps()) {
        run_hemem(&[6, 30, 300], true, &steps);
    }

    /// Replay and reproducible simulation rest on this.
    #[test]
    fn hemem_proposes_the_same_for_the_same_events(steps in steps()) {
        let first = run_hemem(&[12, 300], true, &steps);
        prop_assert_eq!(first, run_hemem(&[12, 300], true, &steps));
    }

    /// What the toy world asserts holds for every policy there is: no page is
    /// proposed twice, proposals agree with where pages lie, pressure delivers,
    /// and nothing proposed overfills a tier.
    #[test]
    fn every_policy_stays_consistent(steps in steps(), addressable: bool) {
        for name in PolicyName::ALL {
            let mut toy = Toy::new(Named::new(name), &[12, 300], addressable);
            for step in &steps {
                apply(&mut toy, step);
            }
        }
    }

    #[test]
    fn no_policy_overfills_a_tier_of_three(steps in steps()) {
        for name in PolicyName::ALL {
            let mut toy = Toy::new(Named::new(name), &[6, 30, 300], true);
            for step in &steps {
                apply(&mut toy, step);
                toy.complete_all();
            }
        }
    }

    /// Replay and reproducible simulation rest on this.
    #[test]
    fn every_policy_proposes_the_same_for_the_same_events(steps in steps()) {
        for name in PolicyName::ALL {
            let run = || {
                let mut toy = Toy::new(Named::new(name), &[12, 300], true);
                steps.iter().map(|step| apply(&mut toy, step)).collect::<Vec<_>>()
            };
            prop_assert_eq!(run(), run(), "{}", name);
        }
    }

    /// First touch moves nothing on its own account, and nothing it must not.
    #[test]
    fn first_touch_only_moves_under_pressure(steps in steps(), addressable: bool) {
        let mut toy = Toy::new(FirstTouch::new(), &[12, 300], addressable);
        for step in &steps {
            let plan = apply(&mut toy, step);
            if matches!(step, Step::Tick) {
                prop_assert!(plan.is_empty());
            }
        }
    }

    /// Plans that are carried out at once and in order fit, whatever came before.
    #[test]
    fn plans_never_exceed_a_tier(steps in steps()) {
        let mut toy = Toy::new(HeMem::new(HeMemConfig::default()), &[12, 300], true);
        for step in &steps {
            apply(&mut toy, step);
            // Asserts that each action finds room.
            toy.complete_all();
        }
    }
}

/// Accesses to `hot` pages from `first`, for so many ticks; the oracle is told.
fn use_hot(toy: &mut Toy<Named>, random: &mut Random, first: u32, hot: u32, ticks: u32) {
    let all = first..first + hot;
    let coming = |number| Upcoming { page: page(0, number), loads: 1e6, stores: 0.0 };
    toy.policy.foresee(&all.map(coming).collect::<Vec<_>>());
    for _ in 0..ticks {
        for _ in 0..40 {
            let number = first + random.below(u64::from(hot)) as u32;
            toy.access(page(0, number), Access::Read);
        }
        toy.tick();
        toy.complete_all();
    }
}

/// Policies that place pages by how they are used. The others do not promote.
fn placing() -> impl Iterator<Item = PolicyName> {
    let others = [PolicyName::FirstTouch, PolicyName::TwoQueue, PolicyName::Refault];
    PolicyName::ALL.into_iter().filter(move |name| !others.contains(name))
}

/// A policy that is wedged keeps what was hot once. Everything that was hot is
/// cold now, so all of the new hot set fits.
#[test]
fn no_policy_is_wedged_when_the_hot_set_moves() {
    for name in placing() {
        // MEMTIS counts in samples, for machines with thousands of times the memory.
        let policy = match name {
            PolicyName::Memtis => Named::of(Box::new(Memtis::new(MemtisConfig {
                adaptation: 100,
                cooling: 2000,
                ..MemtisConfig::default()
            }))),
            // HybridTier has patience for minutes.
            PolicyName::HybridTier => Named::of(Box::new(HybridTier::new(HybridTierConfig {
                second_chance: Nanos::seconds(2),
                rest: Nanos::SECOND,
                ..HybridTierConfig::default()
            }))),
            // ARMS weighs what a move costs, and here are 4000 accesses a second.
            PolicyName::Arms => Named::of(Box::new(Arms::new(ArmsConfig {
                copy_bandwidth: BytesPerSecond(1e15),
                huge_overhead: Nanos(100),
                ..ArmsConfig::default()
            }))),
            _ => Named::new(name),
        };
        let mut toy = Toy::new(policy, &[64, 400], true);
        toy.sample_period = 11;
        let mut random = Random(3);
        toy.alloc_and_touch(0, 256);
        for first in [150, 30, 200] {
            // 40 s: a walk over the slow tier takes two.
            use_hot(&mut toy, &mut random, first, 40, 4000);
            let hot = toy.in_dram((first..first + 40).map(|number| page(0, number)));
            assert!(hot >= 36, "{name}: {hot} of 40 hot pages from {first} on in DRAM");
            assert!(toy.used(DRAM) <= toy.tiers[0].capacity);
        }
    }
}

/// A page whose fault waits for room is cold and cannot leave. If it were asked for again
/// whenever it could not, the fault would wait for ever.
#[test]
fn the_page_that_waits_for_room_does_not_keep_hot_ones_from_making_it() {
    for name in PolicyName::ALL {
        let mut toy = Toy::new(Named::new(name), &[4, 400], false);
        toy.alloc(0, 12, PageSize::Huge);
        for number in 0..12 {
            // Asserts that there is room in the end.
            toy.touch(page(0, number));
            assert_eq!(toy.tier_of(page(0, number)), Some(DRAM), "{name}");
            toy.sample(page(0, number), Access::Read, 9);
        }
    }
}
