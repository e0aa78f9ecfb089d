//! What huge pages are worth to a simulated program, by range of its address space.
//!
//! A profile is a list of rules, the first of which that matches wins. Rules and their CSV are
//! those of [`terrace_profile::cbmm`], which live runs read as well; what a simulation knows
//! besides is whose rule it is, and how much of the range is touched.

use core::fmt;
use core::str::FromStr;

use terrace_core::{Bytes, Cycles};
use terrace_profile::cbmm::{self, Facts, Policy, Quantity, Rule};
use terrace_profile::{ProfileError, Share};

use super::space::Section;

/// What is known of a range's huge pages.
pub trait Benefit {
    /// Cycles of page walks that a huge page averts over the whole run; 0 for unknown ranges.
    fn benefit(&self, place: Place) -> Cycles;
    /// The share of the range's base pages that the program touches.
    fn touched(&self, place: Place) -> Share;
    /// The part of the benefit that is left at a time.
    fn left(&self, place: Place, now: Cycles) -> Cycles;
}

/// Where somebody wants to know something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose memory.
    pub process: u32,
    /// Its section.
    pub section: Section,
    /// Distance from the begin of the mapping.
    pub offset: Bytes,
    /// The address. Simulated programs lie where they lay when their profile was made.
    pub address: u64,
}

/// A rule, with what is known besides.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// The program, where a profile is of several; not part of the format.
    pub process: Option<u32>,
    /// The share of base pages that are touched; not part of the format.
    pub touched: Share,
    /// The rule.
    pub rule: Rule,
}

/// A profile: rules, the first of which that matches wins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The rules.
    pub rules: Vec<Known>,
    /// How long the run took that it is of; without it benefits have no horizon and do not age.
    pub duration: Option<Cycles>,
}

impl Profile {
    /// CBMM's general profile: its artifact's `general.csv`, 41 534 456 cycles for every huge
    /// page of the heap and of mappings.
    pub fn general() -> Self {
        let rule = |section| Rule {
            policy: Policy::Huge,
            section,
            averted: Some(Cycles(41_534_456)),
            conditions: Vec::new(),
        };
        Self::of_rules([rule(Section::Heap), rule(Section::Mmap)])
    }

    /// Of rules that say nothing of touches, and of no time.
    pub fn of_rules(rules: impl IntoIterator<Item = Rule>) -> Self {
        let known = |rule| Known { process: None, touched: Share::UNKNOWN, rule };
        Self { rules: rules.into_iter().map(known).collect(), duration: None }
    }

    /// Only the rules of one process, or of all where there is none.
    #[must_use]
    pub fn of(&self, process: Option<u32>) -> Self {
        let kept = self.rules.iter().filter(|rule| process.is_none() || rule.process == process);
        Self { rules: kept.cloned().collect(), duration: self.duration }
    }

    /// The rule about huge pages that speaks of a place.
    fn rule(&self, place: Place) -> Option<&Known> {
        self.search(Policy::Huge, place, |_| {}).map(|number| &self.rules[number])
    }

    /// The rule about filling memory when it is mapped that speaks of a place.
    pub fn eager(&self, place: Place) -> Option<&Rule> {
        self.search(Policy::Eager, place, |_| {}).map(|number| &self.rules[number].rule)
    }

    /// Whether there is any such rule.
    pub fn has_eager(&self) -> bool {
        self.rules.iter().any(|known| known.rule.policy == Policy::Eager)
    }

    /// A rule by its number. `seen` is told every rule that was looked at, that one included.
    fn search(&self, policy: Policy, place: Place, mut seen: impl FnMut(&Rule)) -> Option<usize> {
        let facts = Facts { section: place.section, ..Facts::default() }
            .with(Quantity::SectionOff, place.offset.get())
            .with(Quantity::Addr, place.address);
        self.rules.iter().position(|known| {
            let of_it = known.rule.policy == policy
                && known.rule.section == place.section
                && known.process.is_none_or(|of| of == place.process);
            if of_it {
                seen(&known.rule);
            }
            of_it && known.rule.matches(&facts)
        })
    }

    /// What is left at a time of a benefit of a whole run.
    pub fn aged(&self, all: Cycles, now: Cycles) -> Cycles {
        match self.duration {
            None => all,
            Some(duration) => {
                let left = duration.saturating_sub(now).as_f64() / duration.as_f64().max(1.0);
                Cycles::from_f64(all.as_f64() * left)
            }
        }
    }
}

/// The last rule that was looked up, and for which other addresses of its mapping it is the rule
/// too. Who goes through memory in order asks for the same rule many times.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastRule {
    found: Option<Found>,
}

#[derive(Clone, Copy, Debug)]
struct Found {
    of: Place,
    rule: Option<usize>,
    /// First address, and the one after the last: no condition that was looked at changes within.
    range: (u64, u64),
}

impl LastRule {
    /// The rule of a profile about huge pages that speaks of a place. It must be the same profile
    /// each time.
    pub fn find<'a>(&mut self, profile: &'a Profile, place: Place) -> Option<&'a Known> {
        let number = match self.found {
            Some(found) if found.speaks_of(place) => found.rule,
            _ => {
                let found = Found::search(profile, place);
                self.found = Some(found);
                found.rule
            }
        };
        number.map(|number| &profile.rules[number])
    }
}

impl Found {
    fn search(profile: &Profile, place: Place) -> Self {
        let (mut from, mut to) = (0, u64::MAX);
        let start = place.address.wrapping_sub(place.offset.get());
        let mut turn = |at: u64| {
            if at <= place.address {
                from = at.max(from);
            } else {
                to = at.min(to);
            }
        };
        let rule = profile.search(Policy::Huge, place, |rule| {
            for condition in &rule.conditions {
                // Where the quantity is `value`, and the address after it.
                let here = match condition.quantity {
                    Quantity::Addr => Some(condition.value),
                    Quantity::SectionOff => start.checked_add(condition.value),
                    // Not known of any place.
                    _ => None,
                };
                if let Some(here) = here {
                    turn(here);
                    here.checked_add(1).into_iter().for_each(&mut turn);
                }
            }
        });
        Self { of: place, rule, range: (from, to) }
    }

    fn speaks_of(&self, place: Place) -> bool {
        let start = |place: Place| place.address.wrapping_sub(place.offset.get());
        (self.of.process, self.of.section, start(self.of))
            == (place.process, place.section, start(place))
            && (self.range.0..self.range.1).contains(&place.address)
    }
}

impl Benefit for Profile {
    fn benefit(&self, place: Place) -> Cycles {
        self.rule(place).and_then(|known| known.rule.averted).unwrap_or_default()
    }

    fn touched(&self, place: Place) -> Share {
        self.rule(place).map_or(Share::UNKNOWN, |known| known.touched)
    }

    fn left(&self, place: Place, now: Cycles) -> Cycles {
        self.aged(self.benefit(place), now)
    }
}

impl FromStr for Profile {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        cbmm::rules("profile", text).map(Self::of_rules)
    }
}

impl fmt::Display for Profile {
    /// In the format of the artifact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules.iter().try_for_each(|known| f.write_str(&known.rule.to_csv()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrace_profile::cbmm::{Compare, Condition};

    use super::*;

    fn place(section: Section, address: u64) -> Place {
        Place { process: 0, section, offset: Bytes::ZERO, address }
    }

    #[test]
    fn the_first_rule_that_matches_wins() {
        let text = "eager,mmap,1\nhuge,mmap,7,addr,>,0x100,addr,<,0x200\n\nhuge,mmap,9\n";
        let profile: Profile = text.parse().expect("good");
        let of = |section, address| profile.benefit(place(section, address));
        assert_eq!(of(Section::Mmap, 0x180), Cycles(7));
        assert_eq!(of(Section::Mmap, 0x200), Cycles(9));
        assert_eq!(of(Section::Heap, 0x180), Cycles::ZERO);
        assert_eq!(profile.to_string().parse(), Ok(profile));
    }

    #[test]
    fn a_benefit_ages_where_the_run_s_length_is_known() {
        let mut profile = Profile::general();
        let left =
            |profile: &Profile, now| profile.left(place(Section::Heap, 0), Cycles(now)).get();
        assert_eq!(left(&profile, 900), 41_534_456);
        profile.duration = Some(Cycles(1000));
        assert_eq!(left(&profile, 900), 4_153_446);
        assert_eq!(left(&profile, 2000), 0);
    }

    #[test]
    fn a_rule_of_one_program_is_not_another_s() {
        let mut profile = Profile::general();
        profile.rules[0].process = Some(1);
        let of = |process| profile.benefit(Place { process, ..place(Section::Heap, 0) });
        assert_eq!((of(1), of(2)), (Cycles(41_534_456), Cycles::ZERO));
        assert_eq!(profile.of(Some(1)).rules.len(), 1);
    }

    fn conditions() -> impl Strategy<Value = Vec<Condition>> {
        let quantity =
            prop::sample::select(vec![Quantity::Addr, Quantity::SectionOff, Quantity::Len]);
        let compare = prop::sample::select(vec![Compare::Equal, Compare::Above, Compare::Below]);
        let condition = (quantity, compare, prop_oneof![0u64..40, Just(u64::MAX)])
            .prop_map(|(quantity, compare, value)| Condition { quantity, compare, value });
        prop::collection::vec(condition, 0..3)
    }

    proptest! {
        /// Whoever goes through memory must be told the same as one who looks all rules through
        /// for each address.
        #[test]
        fn a_rule_that_is_remembered_is_the_first_that_matches(
            rules in prop::collection::vec(
                (conditions(), prop::option::of(0u32..2), any::<bool>(), any::<bool>()),
                0..6,
            ),
            places in prop::collection::vec((0u32..2, any::<bool>(), 0u64..20, 0u64..20), 1..60),
        ) {
            let section = |heap| if heap { Section::Heap } else { Section::Mmap };
            let known = |(conditions, process, heap, huge)| Known {
                process,
                touched: Share::UNKNOWN,
                rule: Rule {
                    policy: if huge { Policy::Huge } else { Policy::Eager },
                    section: section(heap),
                    averted: None,
                    conditions,
                },
            };
            let profile = Profile { rules: rules.into_iter().map(known).collect(), duration: None };
            let mut last = LastRule::default();
            for (process, heap, start, offset) in places {
                for address in start + offset..start + offset + 8 {
                    let offset = Bytes(address - start);
                    let place = Place { process, section: section(heap), offset, address };
                    let found = last.find(&profile, place).map(std::ptr::from_ref);
                    prop_assert_eq!(found, profile.rule(place).map(std::ptr::from_ref));
                }
            }
        }
    }
}
