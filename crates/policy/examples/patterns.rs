//! How often policies that learn from faults alone miss, on a set of access patterns, beside
//! LRU (which sees every access) and Belady's optimum (which sees the future).
//!
//! `make bench-patterns`, or `cargo run --release -p terrace-policy --example patterns [NAME]`.
//! The policies are the live ones, in the world of [`terrace_policy::whatif`]: a touch of a
//! resident page is not seen. Memory is 65 536 pages; the program has four times as many, which
//! it has filled once. Misses are counted over 6 million touches.

use std::collections::BTreeSet;

use terrace_core::{
    Access, ContextId, Cycles, Event, FaultKind, Machine, Nanos, PageNo, PageRef, PageSize, Region,
    RegionId, Telemetry,
};
use terrace_economics::{Calibration, Economist, Mode};
use terrace_policy::PolicyName;
use terrace_policy::brain::Brain;
use terrace_policy::whatif::WhatIf;

/// Pages of the program.
const ALL: u32 = 1 << 18;
/// Pages that fit.
const FIT: u32 = ALL / 4;
const TOUCHES: usize = 6_000_000;
const POLICIES: [PolicyName; 3] =
    [PolicyName::FirstTouch, PolicyName::TwoQueue, PolicyName::Refault];

#[path = "../tests/common/random.rs"]
mod random;

use random::Random;

impl Random {
    /// Below `n`.
    fn below(&mut self, n: u32) -> u32 {
        (((self.next() >> 32) * u64::from(n)) >> 32) as u32
    }
    /// In 0..1.
    fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// What a program touches. Sizes are parts of the memory that fits.
#[derive(Clone, Copy)]
enum Pattern {
    /// Nine of ten touches to a hot set, scattered; the others anywhere.
    Gups(f64),
    /// The same; after so many million touches the hot set is another one.
    Shift(f64, f64),
    /// By Zipf's law with this exponent, scattered.
    Zipf(f64),
    /// Over and over in order.
    Loop(f64),
    /// Anywhere in a window that moves on by a page every 16 touches.
    Slide(f64),
    /// 45 of 100 touches to a hot set, 50 to a window of 0.4 that moves on by a page every so many
    /// touches, five anywhere.
    Mixed(f64, u32),
    /// 70 of 100 touches to a hot set; of the rest each page twice, so far apart, and never again.
    Twice(f64, f64),
    /// Nine of ten touches to a hot set, the others in order through everything.
    Sweep(f64),
}

const PATTERNS: [(&str, Pattern); 20] = [
    ("hot set of 0.5", Pattern::Gups(0.5)),
    ("hot set of 0.75", Pattern::Gups(0.75)),
    ("hot set of 1", Pattern::Gups(1.0)),
    ("hot set of 1.5", Pattern::Gups(1.5)),
    ("hot set of 2", Pattern::Gups(2.0)),
    ("hot set of 0.5 moves", Pattern::Shift(0.5, 3.0)),
    ("hot set of 0.8 moves", Pattern::Shift(0.8, 4.0)),
    ("Zipf 1", Pattern::Zipf(1.0)),
    ("Zipf 0.7", Pattern::Zipf(0.7)),
    ("loop of 1.2", Pattern::Loop(1.2)),
    ("loop of 1.5", Pattern::Loop(1.5)),
    ("loop of 3", Pattern::Loop(3.0)),
    ("sliding window of 0.6", Pattern::Slide(0.6)),
    ("sliding window of 0.9", Pattern::Slide(0.9)),
    ("hot 0.5 and slow window", Pattern::Mixed(0.5, 16)),
    ("hot 0.5 and fast window", Pattern::Mixed(0.5, 4)),
    ("hot 0.2 and fast window", Pattern::Mixed(0.2, 4)),
    ("hot 0.5, rest twice, near", Pattern::Twice(0.5, 0.1)),
    ("hot 0.5, rest twice, far", Pattern::Twice(0.5, 2.0)),
    ("hot 0.5 beside a sweep", Pattern::Sweep(0.5)),
];

fn pages(part: f64) -> u32 {
    (part * f64::from(FIT)) as u32
}

impl Pattern {
    fn touches(self) -> Vec<u32> {
        let mut random = Random(88_172_645_463_325_252);
        let mut order: Vec<u32> = (0..ALL).collect();
        for i in (1..ALL).rev() {
            order.swap(i as usize, random.below(i + 1) as usize);
        }
        let scattered = |page: u32| order[(page % ALL) as usize];
        let mut sums = Vec::new();
        if let Self::Zipf(exponent) = self {
            let mut sum = 0.0;
            sums.extend((1..=ALL).map(|rank| {
                sum += f64::from(rank).powf(-exponent);
                sum
            }));
        }
        let mut rest = 0_u32;
        let touch = |n: usize| {
            let n = n as u32;
            match self {
                Self::Gups(hot) => match random.below(10) {
                    0 => random.below(ALL),
                    _ => scattered(random.below(pages(hot))),
                },
                Self::Shift(hot, every) => {
                    let moves = (f64::from(n) / (every * 1e6)) as u32;
                    let hot = pages(hot);
                    match random.below(10) {
                        0 => random.below(ALL),
                        _ => scattered(moves * hot % (ALL - hot) + random.below(hot)),
                    }
                }
                Self::Zipf(_) => {
                    let at = random.part() * sums[sums.len() - 1];
                    scattered(sums.partition_point(|sum| *sum < at) as u32)
                }
                Self::Loop(length) => n % pages(length),
                Self::Slide(window) => (n / 16 + random.below(pages(window))) % ALL,
                Self::Mixed(hot, every) => match random.below(100) {
                    0..45 => scattered(random.below(pages(hot))),
                    45..95 => scattered(n / every + random.below(pages(0.4))),
                    _ => random.below(ALL),
                },
                Self::Twice(hot, _) if random.below(100) < 70 => {
                    scattered(random.below(pages(hot)))
                }
                Self::Twice(hot, apart) => {
                    rest += 1;
                    let back = if rest.is_multiple_of(2) { pages(apart) } else { 0 };
                    scattered(pages(hot) + (rest / 2).saturating_sub(back) % (ALL - pages(hot)))
                }
                Self::Sweep(hot) if random.below(10) > 0 => scattered(random.below(pages(hot))),
                Self::Sweep(_) => {
                    rest += 1;
                    rest % ALL
                }
            }
        };
        (0..TOUCHES).map(touch).collect()
    }
}

/// Nothing is refused here, so it does not matter which machine's prices these are.
fn calibration() -> Calibration {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines/optane-cascade-lake.toml");
    let text = std::fs::read_to_string(file).expect("the machine file is there");
    Calibration::from_machine(&Machine::parse(file, &text).expect("the machine file is right"))
}

/// Misses of a policy after memory was filled.
fn policy(name: PolicyName, touches: &[u32]) -> u64 {
    let brain = Brain::new(name.build(), Economist::new(Mode::Off, calibration()));
    let mut world = WhatIf::new(brain, PageSize::Base.bytes() * u64::from(FIT), Cycles(20_000));
    let region = Region {
        id: RegionId(0),
        pages: ALL,
        page_size: PageSize::Base,
        context: ContextId::ANONYMOUS,
    };
    world.feed(&Event::Alloc { region });
    let mut misses = 0;
    let telemetry = Box::new(Telemetry { tier_count: 2, ..Telemetry::default() });
    let first = PageRef { region: RegionId(0), page: PageNo(0) };
    // A touch: whether it is a fault is the world's to find out.
    let kind = FaultKind::Absent(Access::Write);
    let mut event = Event::Fault { page: first, kind, telemetry };
    for (n, page) in (0..ALL).chain(touches.iter().copied()).enumerate() {
        if n == ALL as usize {
            misses = world.counts().misses;
        }
        if let Event::Fault { page: at, telemetry, .. } = &mut event {
            at.page = PageNo(page);
            telemetry.now += Nanos(1000);
        }
        world.feed(&event);
    }
    world.counts().misses - misses
}

/// Misses of a policy that gives each touch a rank, and evicts the page of the least.
fn ranked(touches: &[u32], mut rank: impl FnMut(usize) -> u64) -> u64 {
    let mut of = vec![0_u64; ALL as usize];
    let mut resident = BTreeSet::new();
    // What was filled last is there, and of the least use.
    resident.extend((ALL - FIT..ALL).map(|page| (0, page)));
    let mut misses = 0;
    for (n, &page) in touches.iter().enumerate() {
        if !resident.remove(&(of[page as usize], page)) {
            misses += 1;
            resident.pop_first();
        }
        of[page as usize] = rank(n);
        resident.insert((of[page as usize], page));
    }
    misses
}

/// When the page of each touch is touched next, as a rank: the later, the less.
fn next_touches(touches: &[u32]) -> Vec<u64> {
    let mut next = vec![u64::MAX; ALL as usize];
    let mut ranks = vec![0; touches.len()];
    for (n, &page) in touches.iter().enumerate().rev() {
        ranks[n] = u64::MAX - next[page as usize];
        next[page as usize] = n as u64;
    }
    ranks
}

fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    println!("Misses, % of touches; ratio of refault to 2q");
    print!("{:26} {:>8} {:>8}", "", "optimum", "lru");
    for name in POLICIES {
        print!(" {:>11}", name.name());
    }
    println!("  refault/2q");
    let (mut product, mut count) = (0.0, 0);
    for (name, pattern) in PATTERNS.iter().filter(|(name, _)| name.contains(&only)) {
        let touches = pattern.touches();
        let percent = |misses: u64| 100.0 * misses as f64 / TOUCHES as f64;
        let ranks = next_touches(&touches);
        let optimum = ranked(&touches, |n| ranks[n]);
        let lru = ranked(&touches, |n| n as u64 + 1);
        print!("{name:26} {:8.2} {:8.2}", percent(optimum), percent(lru));
        let misses = POLICIES.map(|name| policy(name, &touches));
        for misses in misses {
            print!(" {:11.2}", percent(misses));
        }
        let ratio = misses[2] as f64 / misses[1] as f64;
        println!("  {ratio:.2}");
        product += ratio.ln();
        count += 1;
    }
    println!("{:72}{:.2}, geometric mean", "", (product / f64::from(count)).exp());
}
