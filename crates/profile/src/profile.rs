//! The profile: regions, ranges, benefits with their horizon.

use terrace_core::{Bytes, Cycles, Frequency, Nanos, PerSecond};

use crate::cbmm::{Facts, Policy, Rule};
use crate::key::Key;

/// The unit in which memory is profiled: a huge page.
pub const SLOT: Bytes = Bytes::mib(2);
/// Base pages of a slot.
pub const PAGES: u32 = 512;

/// By which factor the model of translation may be wrong that a profile rests on: what the
/// economist takes for any calibrated cost that no outcome has corrected yet.
const MODEL_SPREAD: f64 = 2.0;
/// What one run says of others: nothing, so they are taken to differ by half.
const ONE_RUN: f64 = 0.5;

/// Processors at once in the walks of a run, at most: more than Linux takes on x86-64. The profiler
/// has 64, each with two walks under way.
const MOST_PROCESSORS: f64 = 8192.0;

/// What cycles of page walks are. A processor has several walks under way at a time, and the program
/// waits for all of them once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalkTime {
    /// Each walk's own time, all of them added up: a simulation's, or what comes of a number of
    /// walks. The program waits for a part of it.
    #[default]
    Summed,
    /// The time in which any walk is under way, as processors count it: walks at the same time are
    /// in it once.
    Elapsed,
}

impl WalkTime {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Summed, Self::Elapsed];

    /// What files call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Summed => "summed",
            Self::Elapsed => "elapsed",
        }
    }

    /// The one of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|time| time.name() == name)
    }

    /// By how much cycles of walks have to be divided to get those that the program waits, where so
    /// many walks are under way at the same time on average.
    pub fn overlap(self, parallelism: f64) -> f64 {
        match self {
            Self::Summed => parallelism,
            Self::Elapsed => 1.0,
        }
    }
}

/// What huge pages avert in a program's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The program and its arguments; empty where that is not known.
    pub program: Vec<String>,
    /// Identifies the program's file, in hexadecimal; nothing where that is not known, or differs
    /// between runs.
    pub build_id: Option<String>,
    /// What it was made with: a machine file's name, or `cbmm`.
    pub machine: String,
    /// The clock whose cycles are counted.
    pub clock: Frequency,
    /// How long a run took in which the benefits came about, in the machine's time. A benefit
    /// without it says nothing.
    pub horizon: Nanos,
    /// Runs that it was made from.
    pub runs: u32,
    /// Cycles of page walks in a whole run in base pages, wherever they were; nothing where that is
    /// not known.
    pub walks: Option<Cycles>,
    /// What cycles of walks are in `walks` and in `regions`. Rules are of counters in any case.
    pub walk_time: WalkTime,
    /// What is known by key.
    pub regions: Vec<Region>,
    /// Rules that were imported; they speak where no region does, the first that matches.
    pub rules: Vec<Rule>,
}

/// A region of a program's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// What it is called.
    pub key: Key,
    /// The longest that it was.
    pub len: Bytes,
    /// In how many of the runs it was there.
    pub seen: u32,
    /// How many mappings of this name there were in those runs, one after the other, all
    /// together: at least one in each. What ranges avert is of one of them.
    pub instances: u32,
    /// Its parts, in order; what is in none was not touched.
    pub ranges: Vec<Range>,
}

/// A part of a region, a whole number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Where it begins in the region.
    pub offset: Bytes,
    /// How long it is.
    pub len: Bytes,
    /// Cycles of page walks that one huge page averts in one mapping of the region's name: the
    /// mean over all runs, and over the mappings of a run.
    pub averted: Cycles,
    /// Standard deviation of that over the runs.
    pub deviation: Cycles,
    /// Base pages of a slot that are touched in one mapping, of 512.
    pub touched: u32,
}

/// An amount of cycles within a horizon, with bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// At least.
    pub low: Cycles,
    /// Expected.
    pub expected: Cycles,
    /// At most.
    pub high: Cycles,
    /// The time in which they come about.
    pub horizon: Nanos,
    /// What these cycles are.
    pub walk_time: WalkTime,
}

impl Estimate {
    /// Cycles a second, expected.
    pub fn rate(&self) -> PerSecond {
        PerSecond::from_count(self.expected.as_f64(), self.horizon)
    }

    /// An amount with bounds, from a mean, a deviation and how many runs they are of.
    pub fn new(
        mean: Cycles,
        deviation: Cycles,
        runs: u32,
        horizon: Nanos,
        walk_time: WalkTime,
    ) -> Self {
        let m = mean.as_f64();
        let error =
            if runs < 2 { m * ONE_RUN } else { deviation.as_f64() / f64::from(runs).sqrt() };
        Self {
            low: Cycles::from_f64((m - error).max(0.0) / MODEL_SPREAD),
            expected: mean,
            high: Cycles::from_f64((m + error) * MODEL_SPREAD),
            horizon,
            walk_time,
        }
    }
}

/// Where somebody wants to know something.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The region.
    pub key: &'a Key,
    /// First byte in the region.
    pub offset: Bytes,
    /// How many bytes, at least one.
    pub len: Bytes,
    /// What rules may look at beside.
    pub facts: Facts,
}

/// What a profile says of a place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advice {
    /// What a huge page there averts.
    pub huge: Estimate,
    /// The share of the place that is touched.
    pub touched: Share,
}

/// A share with bounds, each 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Expected.
    pub expected: f64,
    /// By how much more or less it may be.
    pub unsure: f64,
}

impl Share {
    /// Of which nothing is known: anything from none to all.
    pub const UNKNOWN: Self = Self { expected: 0.5, unsure: 0.5 };

    /// As something says.
    pub fn known(share: f64) -> Self {
        Self { expected: share.clamp(0.0, 1.0), unsure: 0.0 }
    }

    /// Whether anything is known of it.
    pub fn is_known(self) -> bool {
        self.unsure < 0.5
    }
}

impl Range {
    /// One past its last byte.
    pub fn end(&self) -> Bytes {
        self.offset + self.len
    }

    /// Huge pages in it.
    pub fn slots(&self) -> u64 {
        self.len.get() / SLOT.get()
    }

    /// What it averts as a whole.
    pub fn total(&self) -> Cycles {
        self.averted * self.slots()
    }
}

impl Region {
    /// The share of it that is touched.
    pub fn touched(&self) -> f64 {
        let touched = |range: &Range| f64::from(range.touched) / f64::from(PAGES);
        // No ranges are no bytes; the sum of none would be minus zero.
        let bytes = self.ranges.iter().fold(0.0, |sum, r| sum + touched(r) * r.len.as_f64());
        (bytes / self.len.as_f64().max(1.0)).min(1.0)
    }

    /// What it averts in the first so many bytes of one mapping of its name.
    pub fn averts_in(&self, len: Bytes) -> Cycles {
        let of = |range: &Range| {
            let there = (range.end().min(len) - range.offset.min(len)).as_f64() / SLOT.as_f64();
            range.averted.as_f64() * there
        };
        Cycles::from_f64(self.ranges.iter().map(of).sum())
    }

    /// What it averts as a whole in a run, in all mappings of its name.
    pub fn total(&self) -> Cycles {
        self.times(self.ranges.iter().map(Range::total).sum())
    }

    /// What one mapping's amount comes to in a run with as many as there are.
    pub(crate) fn times(&self, of_one: Cycles) -> Cycles {
        if self.instances == self.seen {
            return of_one;
        }
        Cycles::from_f64(of_one.as_f64() * self.each_run())
    }

    /// How many mappings of its name a run has that has any, on the mean.
    pub(crate) fn each_run(&self) -> f64 {
        f64::from(self.instances) / f64::from(self.seen.max(1))
    }
}

impl Profile {
    /// A profile of one run of which nothing is known yet.
    pub fn new(program: Vec<String>, machine: String, clock: Frequency, horizon: Nanos) -> Self {
        let (regions, rules) = (Vec::new(), Vec::new());
        let (build_id, walks, walk_time) = (None, None, WalkTime::Summed);
        let runs = 1;
        Self { program, build_id, machine, clock, horizon, runs, walks, walk_time, regions, rules }
    }

    /// Cycles that page walks can take in a run at most, on all processors that it may have had.
    pub fn most_walks(clock: Frequency, horizon: Nanos) -> Cycles {
        // Which a text of ours can hold, too.
        Cycles::from_f64(clock.cycles(horizon).as_f64() * MOST_PROCESSORS).min(Cycles(1 << 62))
    }

    /// What all regions avert in a run.
    pub fn total(&self) -> Cycles {
        self.regions.iter().map(Region::total).sum()
    }

    /// The region of a key.
    pub fn region(&self, key: &Key) -> Option<&Region> {
        self.regions.iter().find(|region| region.key == *key)
    }

    /// What is known of a place; `None` if nothing is. A region that is known answers for all
    /// of its places: what is in none of its ranges was not touched.
    pub fn advise(&self, place: &Place<'_>) -> Option<Advice> {
        self.advise_in(self.region(place.key), place)
    }

    /// The same, for who asks of many places in one region: `region` is that of the place's key.
    pub fn advise_in(&self, region: Option<&Region>, place: &Place<'_>) -> Option<Advice> {
        region.map(|region| self.by_region(region, place)).or_else(|| {
            // The rules of either policy are asked apart, as CBMM does.
            let first = |policy| {
                self.rules.iter().find(|rule| rule.policy == policy && rule.matches(&place.facts))
            };
            let (huge, eager) = (first(Policy::Huge), first(Policy::Eager));
            if huge.is_none() && eager.is_none() {
                return None;
            }
            let mean = huge.and_then(|rule| rule.averted).unwrap_or_default();
            let huge = Estimate::new(mean, Cycles::ZERO, 1, self.horizon, WalkTime::Elapsed);
            let touched = eager.map_or(Share::UNKNOWN, |_| Share::known(1.0));
            Some(Advice { huge, touched })
        })
    }

    /// The ranges that a place lies over, each by its share.
    fn by_region(&self, region: &Region, place: &Place<'_>) -> Advice {
        let (start, end) = (place.offset.get(), (place.offset + place.len).get());
        let whole = place.len.as_f64().max(1.0);
        let (mut averted, mut variance, mut touched) = (0.0, 0.0, 0.0);
        // They are in order, and do not overlap.
        let first = region.ranges.partition_point(|range| range.end().get() <= start);
        let over = region.ranges[first..].iter().take_while(|range| range.offset.get() < end);
        for range in over {
            let common = range.end().get().min(end).saturating_sub(range.offset.get().max(start));
            let slots = common as f64 / SLOT.as_f64();
            averted += range.averted.as_f64() * slots;
            // Neighbours differ from run to run together.
            variance += range.deviation.as_f64() * slots;
            touched += f64::from(range.touched) / f64::from(PAGES) * common as f64 / whole;
        }
        // For one huge page, however long the place is.
        let each = SLOT.as_f64() / whole;
        let mean = Cycles::from_f64(averted * each);
        let deviation = Cycles::from_f64(variance * each);
        Advice {
            huge: Estimate::new(mean, deviation, self.runs, self.horizon, self.walk_time),
            touched: Share::known(touched),
        }
    }
}

/// A profile that tests use.
#[cfg(test)]
pub(crate) fn example() -> Profile {
    let mib = Bytes::mib;
    let range = |offset, len, averted, touched| Range {
        offset: mib(offset),
        len: mib(len),
        averted: Cycles(averted),
        deviation: Cycles(averted / 10),
        touched,
    };
    Profile {
        program: vec!["./walk".into(), "two words".into(), "50%".into()],
        build_id: None,
        machine: "laptop".into(),
        clock: Frequency::ghz(3.0),
        horizon: Nanos::millis(1500),
        runs: 2,
        walks: None,
        walk_time: WalkTime::Summed,
        regions: vec![
            Region {
                key: Key::Heap,
                len: mib(9),
                seen: 2,
                instances: 2,
                ranges: vec![range(0, 4, 1_000_000, 512), range(6, 2, 10_000, 17)],
            },
            Region {
                key: Key::Mapping { class: 27, order: 3 },
                len: mib(128),
                seen: 1,
                instances: 3,
                ranges: vec![range(0, 128, 2_000, 512)],
            },
            Region {
                key: Key::Image {
                    build_id: "0badcafe99".into(),
                    section: crate::key::Section::Data,
                },
                len: mib(3),
                seen: 2,
                instances: 2,
                ranges: vec![range(0, 2, 77, 40)],
            },
        ],
        rules: vec![Rule {
            policy: Policy::Huge,
            section: crate::key::Section::Mmap,
            averted: Some(Cycles(41_534_456)),
            conditions: Vec::new(),
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Section;

    fn at(key: &Key, offset: Bytes, len: Bytes) -> Place<'_> {
        Place { key, offset, len, facts: Facts { section: Section::Heap, ..Facts::default() } }
    }

    #[test]
    fn a_huge_page_over_two_ranges_has_its_part_of_either() {
        let profile = example();
        let advice = profile.advise(&at(&Key::Heap, Bytes::mib(3), SLOT)).expect("known");
        assert_eq!(advice.huge.expected, Cycles(500_000), "one MiB of a million for two");
        assert_eq!(advice.touched, Share::known(0.5));
        let all = profile.advise(&at(&Key::Heap, Bytes::ZERO, Bytes::mib(4))).expect("known");
        assert_eq!(all.huge.expected, Cycles(1_000_000), "a benefit is of one huge page");
    }

    #[test]
    fn a_mapping_that_is_shorter_has_a_part_of_the_benefit() {
        let heap = &example().regions[0];
        let of = |mib| heap.averts_in(Bytes::mib(mib)).get();
        // Two slots of a million each, and one of ten thousand.
        let lengths = [0, 1, 2, 5, 7, 8, 100];
        let averted = [0, 500_000, 1_000_000, 2_000_000, 2_005_000, 2_010_000, 2_010_000];
        assert_eq!(lengths.map(of), averted);
        assert_eq!(heap.total(), Cycles(2_010_000));
    }

    #[test]
    fn what_a_known_region_says_nothing_of_was_not_touched() {
        let profile = example();
        let advice = profile.advise(&at(&Key::Heap, Bytes::mib(4), SLOT)).expect("known");
        assert_eq!((advice.huge.expected, advice.touched), (Cycles::ZERO, Share::known(0.0)));
    }

    #[test]
    fn what_one_of_several_mappings_averts_is_not_what_all_of_them_do() {
        let profile = example();
        let key = Key::Mapping { class: 27, order: 3 };
        let one = profile.advise(&at(&key, Bytes::ZERO, SLOT)).expect("known").huge.expected;
        assert_eq!(one, Cycles(2_000));
        let region = profile.region(&key).expect("known");
        assert_eq!(region.total(), Cycles(2_000 * 64 * 3), "three of them in the one run");
    }

    #[test]
    fn what_was_not_touched_is_no_negative_share() {
        let region = Region { ranges: Vec::new(), ..example().regions[0].clone() };
        assert!(region.touched().is_sign_positive());
        assert!((example().regions[1].touched() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn what_nobody_knows_is_not_zero() {
        let unknown = Key::Mapping { class: 30, order: 9 };
        let mut place = at(&unknown, Bytes::ZERO, SLOT);
        assert_eq!(example().advise(&place), None, "the rule is about other sections");
        place.facts.section = Section::Mmap;
        let advice = example().advise(&place).expect("a rule");
        assert_eq!((advice.huge.expected, advice.touched), (Cycles(41_534_456), Share::UNKNOWN));
        assert!(!advice.touched.is_known(), "a rule about huge pages says nothing of touches");
    }

    /// What is a sum, and what is time already, is for whoever prices it to tell apart.
    #[test]
    fn advice_says_whether_walks_at_the_same_time_are_in_it_once() {
        let key = Key::Mapping { class: 27, order: 3 };
        let time = |profile: &Profile, key: &Key| {
            let mut place = at(key, Bytes::ZERO, SLOT);
            place.facts.section = Section::Mmap;
            profile.advise(&place).expect("known").huge.walk_time
        };
        assert_eq!(time(&example(), &key), WalkTime::Summed);
        let counted = Profile { walk_time: WalkTime::Elapsed, ..example() };
        assert_eq!(time(&counted, &key), WalkTime::Elapsed);
        let by_rule = Key::Mapping { class: 30, order: 9 };
        assert_eq!(time(&example(), &by_rule), WalkTime::Elapsed, "rules are of counters");
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(WalkTime::Summed.overlap(3.0), 3.0));
        assert!(close(WalkTime::Elapsed.overlap(3.0), 1.0));
    }

    #[test]
    fn bounds_narrow_with_runs_but_never_below_what_the_model_may_be_wrong_by() {
        let estimate = |runs| {
            let time = WalkTime::Summed;
            Estimate::new(Cycles(1000), Cycles(100), runs, Nanos::SECOND, time)
        };
        let (one, four, many) = (estimate(1), estimate(4), estimate(1_000_000));
        assert_eq!((one.low, one.high), (Cycles(250), Cycles(3000)));
        assert!(one.low < four.low && four.low < many.low && many.low <= Cycles(500));
        assert!(one.high > four.high && many.high >= Cycles(2000));
        assert!((one.rate().get() - 1000.0).abs() < 1e-9);
    }
}
