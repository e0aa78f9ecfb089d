//! How much of one profile's benefit another has as well.

use terrace_core::{Bytes, Cycles};

use crate::key::Key;
use crate::profile::{Profile, Range, SLOT};

/// Two profiles beside each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// What the first averts in a run.
    pub before: Cycles,
    /// What the second averts.
    pub after: Cycles,
    /// Of the first's, what lies where the second averts something, too, in as many of the mappings of a name
    /// as the second has.
    pub matched: Cycles,
    /// Of the first's, what lies in regions of keys that the second has.
    pub keys_matched: Cycles,
    /// Region by region, those first that differ most.
    pub regions: Vec<RegionDifference>,
}

/// A region in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionDifference {
    /// What it is called.
    pub key: Key,
    /// Length in the first; nothing if it is not in it.
    pub len_before: Option<Bytes>,
    /// Length in the second.
    pub len_after: Option<Bytes>,
    /// What the first averts in it.
    pub before: Cycles,
    /// What the second averts.
    pub after: Cycles,
}

impl Difference {
    /// Compares two profiles.
    pub fn new(before: &Profile, after: &Profile) -> Self {
        let mut matched = Cycles::ZERO;
        let mut keys_matched = Cycles::ZERO;
        let mut regions = Vec::new();
        for region in &before.regions {
            let other = after.region(&region.key);
            if let Some(other) = other {
                keys_matched += region.total();
                let matches = region.times(common(&region.ranges, &other.ranges));
                // As in a run: where there are fewer mappings of the name, the others match nothing.
                let (there, of) = (other.each_run(), region.each_run());
                matched += if there < of {
                    Cycles::from_f64(matches.as_f64() * there / of)
                } else {
                    matches
                };
            }
            regions.push(RegionDifference {
                key: region.key.clone(),
                len_before: Some(region.len),
                len_after: other.map(|other| other.len),
                before: region.total(),
                after: other.map_or(Cycles::ZERO, crate::profile::Region::total),
            });
        }
        for region in after.regions.iter().filter(|region| before.region(&region.key).is_none()) {
            regions.push(RegionDifference {
                key: region.key.clone(),
                len_before: None,
                len_after: Some(region.len),
                before: Cycles::ZERO,
                after: region.total(),
            });
        }
        regions.sort_by(|a, b| {
            let by = |r: &RegionDifference| r.before.get().abs_diff(r.after.get());
            by(b).cmp(&by(a)).then_with(|| a.key.cmp(&b.key))
        });
        Self { before: before.total(), after: after.total(), matched, keys_matched, regions }
    }

    /// The share of the first's benefit that lies where the second has some, too; `None` where
    /// the first has none.
    pub fn share(&self) -> Option<f64> {
        (!self.before.is_zero()).then(|| self.matched / self.before)
    }
}

/// What ranges avert where others avert something. Both are in order.
fn common(ranges: &[Range], others: &[Range]) -> Cycles {
    let mut sum = Cycles::ZERO;
    let mut others = others.iter().filter(|other| !other.averted.is_zero()).peekable();
    for range in ranges {
        while others.next_if(|other| other.end() <= range.offset).is_some() {}
        let mut at = others.clone();
        while let Some(other) = at.next_if(|other| other.offset < range.end()) {
            let (from, to) = (range.offset.max(other.offset), range.end().min(other.end()));
            sum += range.averted * ((to - from).get() / SLOT.get());
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::example;

    #[test]
    fn a_profile_matches_itself_wholly() {
        let profile = example();
        let difference = Difference::new(&profile, &profile);
        assert_eq!(difference.share(), Some(1.0));
        assert_eq!(difference.matched, difference.keys_matched);
        assert!(difference.regions.iter().all(|region| region.before == region.after));
    }

    #[test]
    fn benefit_counts_as_matched_where_the_other_has_some() {
        let profile = example();
        let mut other = example();
        // Of the heap's 4 MiB with a million each, the second half brings nothing any more.
        other.regions[0].ranges[0].len = SLOT;
        other.regions.pop();
        let difference = Difference::new(&profile, &other);
        let lost = 1_000_000 + 77;
        assert_eq!(difference.matched, Cycles(profile.total().get() - lost));
        assert_eq!(difference.keys_matched, Cycles(profile.total().get() - 77));
        assert_eq!(difference.regions[0].key, Key::Heap, "what differs most comes first");
        let back = Difference::new(&other, &profile);
        assert_eq!(back.share(), Some(1.0), "what the other has is all in the first");
    }

    /// As in a run that maps a name less often than the profiled one did.
    #[test]
    fn mappings_that_the_other_does_not_have_do_not_match() {
        let profile = example();
        let mut other = example();
        assert_eq!((other.regions[1].seen, other.regions[1].instances), (1, 3));
        other.regions[1].instances = 1;
        let difference = Difference::new(&profile, &other);
        let lost = 2 * 64 * 2_000;
        assert_eq!(difference.matched, Cycles(profile.total().get() - lost));
        assert_eq!(difference.keys_matched, profile.total());
        let back = Difference::new(&other, &profile);
        assert_eq!(back.share(), Some(1.0), "it has all of them");
    }
}
