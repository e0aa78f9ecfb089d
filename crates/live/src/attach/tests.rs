//! The engine on memory that exists only here: two nodes and swap.

use std::collections::BTreeMap;

use terrace_core::{
    Access, ActionClass, BytesPerSecond, Frequency, LadderTier, PageRef, PageSize, RegionId,
};
use terrace_economics::{Calibration, Economist, Mode};
use terrace_policy::PolicyName;
use terrace_sampler::Pages;
use terrace_sampler::pagemap::{Run, is};

use super::space::PageWord;
use super::*;
use crate::numa::moves::Place;
use crate::numa::nodes::Latency;

const PROCESS: u32 = 42;
const BASE: u64 = 0x7000_0000_0000;

/// Where a page of the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Node(u32),
    Swap,
}

/// A machine with two nodes and one program.
struct Fake {
    now: u64,
    pages: BTreeMap<u64, At>,
    /// Pages that refuse to move.
    stuck: Vec<u64>,
    mapped: Vec<(u64, u64)>,
    free: [u64; 2],
    calls: Vec<usize>,
}

impl Fake {
    fn new(pages: impl IntoIterator<Item = (u64, At)>) -> Self {
        let pages: BTreeMap<_, _> =
            pages.into_iter().map(|(page, at)| (BASE + page * 4096, at)).collect();
        let end = BASE + (64 << 20);
        Self {
            now: 1,
            pages,
            stuck: Vec::new(),
            mapped: vec![(BASE, end)],
            free: [1 << 30; 2],
            calls: Vec::new(),
        }
    }
    fn on(&self, at: At) -> Vec<u64> {
        let here = self.pages.iter().filter(|(_, a)| **a == at);
        here.map(|(address, _)| (address - BASE) / 4096).collect()
    }
}

impl Host for Fake {
    fn keep(&mut self, _: &[u32]) {}
    fn mappings(&mut self, _: u32) -> io::Result<Vec<(u64, u64)>> {
        Ok(self.mapped.clone())
    }
    fn content(
        &mut self,
        _: u32,
        start: u64,
        end: u64,
        each: &mut dyn FnMut(Run),
    ) -> io::Result<()> {
        for (&address, at) in self.pages.range(start..end) {
            let flags = if *at == At::Swap { is::SWAPPED } else { is::PRESENT };
            each(Run { start: address, end: address + 4096, flags });
        }
        Ok(())
    }
    fn locate(&mut self, _: u32, pages: &[u64], places: &mut Vec<Place>) -> io::Result<()> {
        places.extend(pages.iter().map(|page| match self.pages.get(page) {
            Some(At::Node(node)) => Place::Node(*node),
            _ => Place::Absent,
        }));
        Ok(())
    }
    fn relocate(
        &mut self,
        process: u32,
        pages: &[u64],
        node: u32,
        threads: u32,
        places: &mut Vec<Place>,
    ) -> io::Result<()> {
        self.calls.push(pages.len());
        self.now += 3_000 * pages.len() as u64 / u64::from(threads);
        for page in pages {
            if self.stuck.contains(page) {
                continue;
            }
            if let Some(At::Node(old)) = self.pages.get_mut(page)
                && self.free[node as usize] >= 4096
            {
                self.free[*old as usize] += 4096;
                self.free[node as usize] -= 4096;
                *old = node;
            }
        }
        self.locate(process, pages, places)
    }
    fn page_out(&mut self, _: u32, ranges: &[(u64, u64)]) -> io::Result<()> {
        for &(start, length) in ranges {
            for (address, at) in self.pages.range_mut(start..start + length) {
                if !self.stuck.contains(address) {
                    *at = At::Swap;
                }
            }
        }
        Ok(())
    }
    fn node_memory(&mut self, node: u32) -> (Bytes, Bytes) {
        (Bytes::gib(1), Bytes(self.free[node as usize]))
    }
    fn swap_memory(&mut self) -> (Bytes, Bytes) {
        (Bytes::gib(1), Bytes::gib(1))
    }
    fn swaps_to_zram(&mut self) -> bool {
        true
    }
    fn node_latency(&mut self, node: u32) -> Latency {
        let ns = Nanos(80 + 170 * u64::from(node));
        Latency { read: ns, write: ns, from_firmware: true }
    }
    fn now(&mut self) -> Nanos {
        self.now += 1_000;
        Nanos(self.now)
    }
}

/// Sees the same pages being used at every look.
struct Scripted(Vec<u64>);

impl Sampler for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }
    fn period(&self) -> u64 {
        5_000
    }
    fn collect(
        &mut self,
        _: Nanos,
        pages: &dyn Pages,
        out: &mut Vec<Sample>,
    ) -> Result<(), SamplerError> {
        let used = self.0.iter().filter_map(|p| pages.page_at(PROCESS, BASE + p * 4096 + 8));
        out.extend(used.map(|page| Sample {
            page,
            access: Access::Read,
            source: SampleSource::Pmu,
            weight: 1,
        }));
        Ok(())
    }
    fn set_rarity(&mut self, _: u32) {}
    fn health(&self) -> Health {
        Health::default()
    }
}

fn calibration() -> Calibration {
    let mut calibration = crate::activate::calibrate();
    calibration.clock = Frequency::ghz(2.0);
    calibration
}

fn attach(ladder: &[&str], policy: PolicyName, fake: Fake, hot: Vec<u64>) -> Attach<Fake> {
    attach_by(&calibration(), ladder, policy, fake, hot)
}

/// The same by other prices.
fn attach_by(
    prices: &Calibration,
    ladder: &[&str],
    policy: PolicyName,
    fake: Fake,
    hot: Vec<u64>,
) -> Attach<Fake> {
    let tiers: Vec<LadderTier> = ladder.iter().map(|tier| tier.parse().expect("a tier")).collect();
    let ladder = Ladder::new(tiers).expect("a ladder");
    let brain = Brain::new(policy.build(), Economist::new(Mode::Enforce, *prices));
    let options = Options { pass_interval: Nanos::millis(100), ..Options::default() };
    // A device is the node of its region's number here.
    let homes = ladder.homes(|device| Ok::<_, ()>(device.region)).expect("homes");
    Attach::new(fake, ladder, &homes, brain, vec![Box::new(Scripted(hot))], options)
}

/// Steps for so long, by the fake's clock.
fn run(engine: &mut Attach<Fake>, time: Nanos) {
    let end = engine.host.now + time.get();
    while engine.host.now < end {
        let next = engine.step(&[PROCESS], &mut |_, _| {}).expect("a step");
        engine.host.now = engine.host.now.max(next.get());
        check(engine);
    }
}

/// The books say what is so, for every page that they know.
fn check(engine: &Attach<Fake>) {
    for (id, window) in engine.space.windows() {
        for page in 0..window.pages() {
            let page = PageRef { region: id, page: terrace_core::PageNo(page) };
            let Some(tier) = engine.space.word(page).tier() else { continue };
            let here = engine.host.pages.get(&window.address(page.page));
            let expected = match engine.rooms[tier.index()].home {
                Home::Node(node) => At::Node(node),
                Home::Swap => At::Swap,
            };
            assert_eq!(here, Some(&expected), "page {page}");
        }
    }
}

#[test]
fn a_dax_device_s_pages_are_those_of_the_node_that_it_is() {
    let fake = Fake::new((0..1000).map(|page| (page, At::Node(1))));
    let hot: Vec<u64> = (100..164).collect();
    let mut engine = attach(&["numa:0=1MiB", "dax:dax1.0"], PolicyName::HeMem, fake, hot.clone());

    run(&mut engine, Nanos::seconds(5));

    assert_eq!(engine.host.on(At::Node(0)), hot);
    let slow = engine.telemetry(Nanos(engine.host.now)).tiers[1];
    assert!(slow.addressable && !slow.capacity.is_zero(), "{slow:?}");
}

#[test]
fn a_hot_set_on_the_slow_node_ends_up_on_the_fast_one() {
    let fake = Fake::new((0..1000).map(|page| (page, At::Node(1))));
    let hot: Vec<u64> = (100..164).collect();
    let mut engine = attach(&["numa:0=1MiB", "numa:1"], PolicyName::HeMem, fake, hot.clone());

    run(&mut engine, Nanos::seconds(5));

    assert_eq!(engine.host.on(At::Node(0)), hot);
    assert_eq!(engine.stats.promotions, 64);
    assert_eq!(engine.stats.recent_share(TierId(0)), Some(1.0));
    let took = engine.brain().economist().own_cost();
    assert!(!took.is_zero(), "deciding itself is charged");
}

/// If it moved with the next tick, nobody would know what becomes of a page that does not.
#[test]
fn a_page_that_is_held_out_stays_on_the_slow_node_for_its_time_and_is_seen_there() {
    let fake = Fake::new((0..1000).map(|page| (page, At::Node(1))));
    let hot: Vec<u64> = (100..164).collect();
    let mut prices = calibration();
    prices.parameters.hold_out = 8;
    let ladder = ["numa:0=1MiB", "numa:1"];
    let mut engine = attach_by(&prices, &ladder, PolicyName::HeMem, fake, hot.clone());
    let account = |engine: &Attach<Fake>| *engine.brain().economist().account(ActionClass::Promote);

    run(&mut engine, Nanos::seconds(5));

    let held_out = account(&engine).held_out;
    assert!((1..32).contains(&held_out), "one of eight of 64: {held_out}");
    assert_eq!(engine.host.on(At::Node(0)).len() as u64, 64 - held_out, "all the others are up");

    for _ in 0..20 {
        run(&mut engine, Nanos::seconds(10));
        if engine.host.on(At::Node(0)) == hot {
            break;
        }
    }
    assert_eq!(engine.host.on(At::Node(0)), hot, "not for ever");
    let account = account(&engine);
    assert!(!account.held_out_predicted.is_zero() && !account.held_out_observed.is_zero());
}

/// Both nodes are in use, and the fast one is full of what nobody uses.
#[test]
fn a_hot_set_displaces_cold_pages_and_the_capacity_holds() {
    let pages = (0..256).map(|page| (page, At::Node(0)));
    let fake = Fake::new(pages.chain((256..1256).map(|page| (page, At::Node(1)))));
    let hot: Vec<u64> = (500..600).collect();
    let mut engine = attach(&["numa:0=1MiB", "numa:1"], PolicyName::HeMem, fake, hot.clone());

    run(&mut engine, Nanos::seconds(2));

    let fast = engine.host.on(At::Node(0));
    assert!(hot.iter().all(|page| fast.contains(page)), "{fast:?}");
    assert!(fast.len() <= 256, "1 MiB are 256 pages, not {}", fast.len());
    assert_eq!(engine.stats.ping_pongs, 0);
}

/// The program was there before us, and holds more than it may.
#[test]
fn what_exceeds_the_capacity_leaves_also_without_samples() {
    let fake = Fake::new((0..2048).map(|page| (page, At::Node(0))));
    let mut engine = attach(&["numa:0=1MiB", "numa:1"], PolicyName::FirstTouch, fake, Vec::new());

    run(&mut engine, Nanos::seconds(2));

    assert_eq!(engine.host.on(At::Node(0)).len(), 256);
    assert_eq!(engine.host.on(At::Node(1)).len(), 1792);
}

#[test]
fn cold_pages_go_to_swap_and_come_back_when_they_are_touched() {
    let fake = Fake::new((0..1000).map(|page| (page, At::Node(0))));
    let hot: Vec<u64> = (0..200).collect();
    let mut engine = attach(&["numa:0=1MiB", "swap"], PolicyName::HeMem, fake, hot.clone());

    run(&mut engine, Nanos::seconds(2));
    let here = engine.host.on(At::Node(0));
    assert_eq!(here.len(), 256);
    assert!(hot.iter().all(|page| here.contains(page)), "the hot ones stay");

    // The kernel brings one in.
    let page = BASE + engine.host.on(At::Swap)[0] * 4096;
    engine.host.pages.insert(page, At::Node(0));
    run(&mut engine, Nanos::seconds(1));
    assert_eq!(engine.stats.refaults, 1);
    assert_eq!(engine.host.on(At::Node(0)).len(), 256, "another one went for it");
}

/// A page that refuses must neither be lost in the books nor stop the others.
#[test]
fn a_page_that_refuses_to_move_stays_where_it_is_in_the_books_too() {
    let mut fake = Fake::new((0..600).map(|page| (page, At::Node(1))));
    fake.stuck = vec![BASE + 7 * 4096];
    let hot: Vec<u64> = (0..20).collect();
    let mut engine = attach(&["numa:0=1MiB", "numa:1"], PolicyName::HeMem, fake, hot);

    run(&mut engine, Nanos::seconds(1));

    let fast = engine.host.on(At::Node(0));
    assert_eq!(fast.len(), 19);
    assert!(!fast.contains(&7));
    assert!(engine.stats.aborted["busy"] > 0);
}

/// An exchange of which only one half can be made leaves the victim below;
/// if the books did not follow, the policy would think the tier full for ever.
#[test]
fn half_an_exchange_is_found_out() {
    let pages = (0..256).map(|page| (page, At::Node(0)));
    let mut fake = Fake::new(pages.chain((256..512).map(|page| (page, At::Node(1)))));
    fake.stuck = (300..310).map(|page| BASE + page * 4096).collect();
    let hot: Vec<u64> = (290..320).collect();
    let mut engine = attach(&["numa:0=1MiB", "numa:1"], PolicyName::HeMem, fake, hot);

    run(&mut engine, Nanos::seconds(2));

    let fast = engine.host.on(At::Node(0));
    assert!((290..300).chain(310..320).all(|page| fast.contains(&page)), "{fast:?}");
}

/// A pass looks at every page. If it were made every time, a program that has all its memory
/// would pay for that for ever; if it never came back to it, new memory would stay where it is.
#[test]
fn passes_become_rare_while_they_find_nothing_and_frequent_again_when_they_do() {
    let fake = Fake::new((0..100).map(|page| (page, At::Node(1))));
    let mut engine = attach(&["numa:0=1MiB", "numa:1"], PolicyName::HeMem, fake, Vec::new());
    let passes = |engine: &mut Attach<Fake>, seconds| {
        let before = engine.stats.passes;
        run(engine, Nanos::seconds(seconds));
        engine.stats.passes - before
    };
    passes(&mut engine, 10);
    let quiet = passes(&mut engine, 8);
    assert!((8..=12).contains(&quiet), "{quiet} of 80");

    engine.host.pages.insert(BASE + 200 * 4096, At::Node(1));
    run(&mut engine, Nanos::seconds(1));

    let place = engine.space.page_at(PROCESS, BASE + 200 * 4096).map(|p| engine.space.word(p));
    assert_eq!(place.and_then(PageWord::tier), Some(TierId(1)), "found");
    assert!(passes(&mut engine, 1) >= 3, "where something came there may be more");
}

#[test]
fn the_limit_on_traffic_holds_over_any_second() {
    let fake = Fake::new((0..4096).map(|page| (page, At::Node(1))));
    let hot: Vec<u64> = (0..4000).collect();
    let mut engine = attach(&["numa:0", "numa:1"], PolicyName::HeMem, fake, hot);
    engine.ladder.migration.limit = BytesPerSecond((4u64 << 20) as f64);

    run(&mut engine, Nanos::seconds(1));
    let first = engine.stats.moved;
    // One second's worth, and what may be saved up.
    assert!(first <= Bytes::mib(8), "{first}");
    run(&mut engine, Nanos::seconds(2));
    let more = engine.stats.moved - first;
    assert!(more <= Bytes::mib(9) && more >= Bytes::mib(5), "{more} in two seconds");
    assert!(engine.host.calls.iter().all(|&pages| pages <= 512), "batches are bounded");
}

#[test]
fn a_dry_run_moves_nothing() {
    let fake = Fake::new((0..512).map(|page| (page, At::Node(1))));
    let mut engine = attach(&["numa:0=1MiB", "numa:1"], PolicyName::HeMem, fake, (0..64).collect());
    engine.options.dry_run = true;
    let mut planned = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let next = engine
            .step(&[PROCESS], &mut |process, decision| {
                assert_eq!(process, PROCESS);
                planned.extend(decision.action.page().map(|page| page.page.0));
            })
            .expect("a step");
        engine.host.now = engine.host.now.max(next.get());
    }
    assert!(engine.host.calls.is_empty());
    assert_eq!(engine.host.on(At::Node(1)).len(), 512);
    assert!((0..64).all(|page| planned.contains(&page)), "the whole plan is shown: {planned:?}");
}

#[test]
fn pages_that_come_go_and_are_moved_by_others_are_followed() {
    let fake = Fake::new((0..300).map(|page| (page, At::Node(0))));
    let mut engine = attach(&["numa:0", "numa:1"], PolicyName::HeMem, fake, Vec::new());
    run(&mut engine, Nanos::millis(200));
    assert_eq!(engine.space.used(TierId(0)), 300 * 4096);

    engine.host.pages.retain(|address, _| *address >= BASE + 100 * 4096);
    engine.host.pages.insert(BASE + 1000 * 4096, At::Node(1));
    engine.host.pages.insert(BASE + 150 * 4096, At::Node(1));
    // The books are checked after every step; here they lag by up to a pass.
    let end = engine.host.now + 300_000_000;
    while engine.host.now < end {
        let next = engine.step(&[PROCESS], &mut |_, _| {}).expect("a step");
        engine.host.now = engine.host.now.max(next.get());
    }
    assert_eq!(engine.space.used(TierId(0)), 199 * 4096);
    assert_eq!(engine.space.used(TierId(1)), 2 * 4096);
    assert_eq!(engine.stats.moved_by_others, 1);

    engine.host.mapped.clear();
    run(&mut engine, Nanos::millis(300));
    assert_eq!(engine.space.windows().count(), 0, "the mapping went");
    assert_eq!(engine.space.window(RegionId(0)).map(|w| w.page_size), None::<PageSize>);
}
