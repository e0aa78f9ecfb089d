//! Several runs become one profile, with confidence.

use core::fmt;
use std::collections::BTreeSet;

use terrace_core::{Bytes, Cycles, Nanos};

use crate::key::Key;
use crate::profile::{Profile, Range, Region};

/// What runs say of a place: sums over runs.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    averted: f64,
    squares: f64,
    touched: f64,
    any: bool,
}

impl Sums {
    /// Adds what so many runs say.
    fn add(&mut self, range: &Range, runs: f64) {
        let (mean, deviation) = (range.averted.as_f64(), range.deviation.as_f64());
        self.averted += runs * mean;
        // The sum of squares that has this mean and deviation.
        self.squares += runs * mean * mean + (runs - 1.0) * deviation * deviation;
        self.touched += runs * f64::from(range.touched);
        self.any = true;
    }

    /// What all runs together say; nothing if none says anything.
    fn range(&self, offset: Bytes, end: Bytes, runs: f64) -> Option<Range> {
        let mean = self.averted / runs;
        let averted = Cycles::from_f64(mean.floor());
        let variance =
            if runs > 1.0 { (self.squares - runs * mean * mean) / (runs - 1.0) } else { 0.0 };
        self.any.then(|| Range {
            offset,
            len: end - offset,
            // Rounded down, as all of them together are no more than the walks.
            averted,
            deviation: Cycles::from_f64(variance.max(0.0).sqrt()),
            // What averts walks was touched, if in few of the runs.
            touched: ((self.touched / runs).round() as u32).max(u32::from(!averted.is_zero())),
        })
    }
}

/// Profiles that cannot become one.
///
/// A profile is meant by its number, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlike {
    /// There is nothing to merge.
    None,
    /// It counts cycles of another clock than the first.
    Machine(usize),
    /// It counts something else than the first.
    WalkTime(usize),
    /// It consists of imported rules, which are of no number of runs.
    Rules(usize),
    /// More runs than can be counted.
    TooMany,
}

impl Unlike {
    /// What is wrong, with each profile by its name.
    pub fn told(&self, name: impl Fn(usize) -> String) -> String {
        match *self {
            Self::None => "there is no profile".to_owned(),
            Self::Machine(at) => {
                format!("{} counts cycles of another machine or clock than {}", name(at), name(1))
            }
            Self::WalkTime(at) => format!(
                "{} has walks of another kind (`walk-time`) than {}: sums of walks, and time in which \
                 walks are under way, are not added up",
                name(at),
                name(1)
            ),
            Self::Rules(at) => {
                format!("{} has imported rules, which tell of no single runs", name(at))
            }
            Self::TooMany => "the profiles are of more runs than can be counted".to_owned(),
        }
    }
}

impl fmt::Display for Unlike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told(|at| format!("profile {at}")))
    }
}

impl core::error::Error for Unlike {}

/// Makes one profile of several. A run in which a place was not there, or not touched, counts
/// as one in which nothing was averted: what is seen in one run of ten is expected in one of
/// ten. Mean and deviation are those of all runs together.
pub fn merge(profiles: &[Profile]) -> Result<Profile, Unlike> {
    let first = profiles.first().ok_or(Unlike::None)?;
    for (i, profile) in profiles.iter().enumerate() {
        if profile.machine != first.machine || profile.clock != first.clock {
            return Err(Unlike::Machine(i + 1));
        }
        if profile.walk_time != first.walk_time {
            return Err(Unlike::WalkTime(i + 1));
        }
        if !profile.rules.is_empty() {
            return Err(Unlike::Rules(i + 1));
        }
    }
    let runs = profiles.iter().try_fold(0u32, |sum, p| sum.checked_add(p.runs));
    let runs = runs.ok_or(Unlike::TooMany)?;
    let keys: BTreeSet<&Key> =
        profiles.iter().flat_map(|profile| &profile.regions).map(|region| &region.key).collect();
    let n = f64::from(runs);
    let regions = keys.into_iter().map(|key| {
        let parts: Vec<_> =
            profiles.iter().filter_map(|p| Some((f64::from(p.runs), p.region(key)?))).collect();
        let mut merged = Region {
            key: key.clone(),
            len: parts.iter().map(|(_, region)| region.len).max().unwrap_or_default(),
            seen: parts.iter().map(|(_, region)| region.seen).sum(),
            instances: parts
                .iter()
                .fold(0u32, |sum, (_, region)| sum.saturating_add(region.instances)),
            ranges: Vec::new(),
        };
        // Between two ends of ranges, all runs say the same throughout.
        let ranges = || parts.iter().flat_map(|(_, region)| &region.ranges);
        let ends: BTreeSet<Bytes> = ranges().flat_map(|r| [r.offset, r.end()]).collect();
        let mut rest: Vec<_> =
            parts.iter().map(|(weight, region)| (*weight, &region.ranges[..])).collect();
        for (&offset, &end) in ends.iter().zip(ends.iter().skip(1)) {
            let mut sums = Sums::default();
            for (weight, ranges) in &mut rest {
                while ranges.first().is_some_and(|range| range.end() <= offset) {
                    *ranges = &ranges[1..];
                }
                if let Some(range) = ranges.first().filter(|range| range.offset <= offset) {
                    sums.add(range, *weight);
                }
            }
            if let Some(range) = sums.range(offset, end, n) {
                push(&mut merged.ranges, range);
            }
        }
        merged
    });
    let horizon = profiles.iter().map(|p| p.horizon.as_f64() * f64::from(p.runs)).sum::<f64>() / n;
    // Of all runs, or of none.
    let walks = profiles.iter().try_fold(0.0, |sum, profile| {
        Some(sum + profile.walks?.as_f64() * f64::from(profile.runs))
    });
    Ok(Profile {
        runs,
        walks: walks.map(|sum| Cycles::from_f64((sum / n).ceil())),
        walk_time: first.walk_time,
        horizon: Nanos::from_f64(horizon),
        regions: regions.collect(),
        rules: Vec::new(),
        program: first.program.clone(),
        build_id: first
            .build_id
            .clone()
            .filter(|id| profiles.iter().all(|profile| profile.build_id.as_ref() == Some(id))),
        machine: first.machine.clone(),
        clock: first.clock,
    })
}

/// Adds a range behind others; as a part of the last one, if it says the same.
pub fn push(ranges: &mut Vec<Range>, range: Range) {
    match ranges.last_mut() {
        Some(last)
            if last.end() == range.offset
                && (last.averted, last.deviation, last.touched)
                    == (range.averted, range.deviation, range.touched) =>
        {
            last.len += range.len;
        }
        _ => ranges.push(range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{SLOT, WalkTime, example};
    use proptest::prelude::*;
    use terrace_core::Frequency;

    fn run(averted: &[u64]) -> Profile {
        let mut profile = Profile::new(Vec::new(), "m".into(), Frequency::ghz(2.0), Nanos::SECOND);
        let mut region = Region {
            key: Key::Heap,
            len: SLOT * averted.len() as u64,
            seen: 1,
            instances: 1,
            ranges: Vec::new(),
        };
        for (slot, &averted) in averted.iter().enumerate() {
            let range = Range {
                offset: SLOT * slot as u64,
                len: SLOT,
                averted: Cycles(averted),
                deviation: Cycles::ZERO,
                touched: 512,
            };
            push(&mut region.ranges, range);
        }
        profile.regions.push(region);
        profile
    }

    #[test]
    fn a_place_that_one_run_of_two_used_is_expected_in_half_of_them() {
        let merged = merge(&[run(&[1000, 500]), run(&[1000])]).expect("alike");
        let ranges = &merged.regions[0].ranges;
        assert_eq!((ranges[0].averted, ranges[0].deviation), (Cycles(1000), Cycles::ZERO));
        assert_eq!((ranges[1].averted, ranges[1].touched), (Cycles(250), 256));
        assert_eq!(ranges[1].deviation, Cycles(354), "500 and 0");
        assert_eq!((merged.runs, merged.regions[0].seen), (2, 2));
    }

    /// A file in which what is not touched averts walks is refused.
    #[test]
    fn what_few_of_the_runs_touched_is_not_rounded_to_nothing() {
        let mut one = run(&[1000]);
        one.regions[0].ranges[0].touched = 1;
        let mut idle = run(&[0]);
        idle.regions[0].ranges.clear();
        let merged = merge(&[one, idle.clone(), idle]).expect("alike");
        let range = merged.regions[0].ranges[0];
        assert_eq!((range.averted, range.touched), (Cycles(333), 1));
    }

    proptest! {
        /// However runs are grouped, the profile of all of them is the same.
        #[test]
        fn the_order_of_merging_does_not_matter(
            runs in prop::collection::vec(prop::collection::vec(0u64..1_000_000, 1..4), 3..6),
        ) {
            let runs: Vec<_> = runs.iter().map(|averted| run(averted)).collect();
            let at_once = merge(&runs).expect("alike");
            let some = merge(&runs[..2]).expect("alike");
            let mut rest = vec![some];
            rest.extend_from_slice(&runs[2..]);
            let in_steps = merge(&rest).expect("alike");
            prop_assert_eq!(at_once.runs, in_steps.runs);
            let expand = |profile: &Profile| -> Vec<(u64, u64, u64)> {
                let ranges = &profile.regions[0].ranges;
                ranges.iter().flat_map(|r| {
                    let first = r.offset.get() / SLOT.get();
                    let slots = first..first + r.slots();
                    slots.map(|slot| (slot, r.averted.get(), r.deviation.get()))
                }).collect()
            };
            for (a, b) in expand(&at_once).into_iter().zip(expand(&in_steps)) {
                prop_assert_eq!(a.0, b.0);
                // Each step rounds to whole cycles.
                prop_assert!(a.1.abs_diff(b.1) <= 2 && a.2.abs_diff(b.2) <= 4, "{:?} {:?}", a, b);
            }
        }
    }

    #[test]
    fn what_several_builds_ran_is_of_none() {
        let of = |id: &str| Profile { build_id: Some(id.into()), ..run(&[1]) };
        let merged = |a: &str, b: &str| merge(&[of(a), of(b)]).expect("alike").build_id;
        assert_eq!((merged("0a", "0a"), merged("0a", "0b")), (Some("0a".into()), None));
    }

    #[test]
    fn what_cannot_be_compared_is_not_merged() {
        let other = Profile { clock: Frequency::ghz(3.0), ..run(&[1]) };
        assert_eq!(merge(&[run(&[1]), other]), Err(Unlike::Machine(2)));
        let counted = Profile { walk_time: WalkTime::Elapsed, ..run(&[1]) };
        assert_eq!(merge(&[run(&[1]), counted.clone()]), Err(Unlike::WalkTime(2)));
        let both = merge(&[counted.clone(), counted]).expect("alike");
        assert_eq!(both.walk_time, WalkTime::Elapsed);
        assert_eq!(merge(&[]), Err(Unlike::None));
        assert_eq!(merge(&[example()]), Err(Unlike::Rules(1)));
        let told = Unlike::Machine(2).told(|at| format!("{at}.profile"));
        assert_eq!(told, "2.profile counts cycles of another machine or clock than 1.profile");
        assert!(Unlike::Rules(1).to_string().starts_with("profile 1 has imported rules"));
    }
}
