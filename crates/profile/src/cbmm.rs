//! CBMM's profiles: rules in CSV, the first that matches wins.
//!
//! ```text
//! policy,section,benefit[,quantity,cmp,value]…
//! huge,mmap,243632025,addr,>,0x0,addr,<,0x7fcc76400000
//! eager,heap,1,addr,>,0x400000,addr,<,0x42f000
//! huge,heap,41534456
//! ```
//!
//! There is no header. A benefit is in cycles of page walks that a huge page averts in a
//! whole run; how long that was the file does not say, so who imports one has to. The benefit
//! of an eager rule is a flag: it is kept as "all is touched", and anything but 1 is refused.

use terrace_core::{Cycles, Frequency, Nanos};

use crate::key::{Key, Section};
use crate::profile::{PAGES, Profile, Range, Region, SLOT, WalkTime};
use crate::text::ProfileError;

/// What a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Huge pages.
    Huge,
    /// Populating memory when it is mapped.
    Eager,
}

impl Policy {
    /// What files call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Huge => "huge",
            Self::Eager => "eager",
        }
    }

    /// The policy of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Huge, Self::Eager].into_iter().find(|policy| policy.name() == name)
    }
}

/// What a condition looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Distance from the section's begin, in bytes.
    SectionOff,
    /// The address. Of use only without address randomisation.
    Addr,
    /// Length of the mapping, in bytes.
    Len,
    /// Protection of the mapping.
    Prot,
    /// Flags of the mapping.
    Flags,
    /// File descriptor of the mapping.
    Fd,
    /// Offset in the file, in bytes.
    Off,
}

impl Quantity {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::SectionOff, Self::Addr, Self::Len, Self::Prot, Self::Flags, Self::Fd, Self::Off];

    /// What files call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SectionOff => "section_off",
            Self::Addr => "addr",
            Self::Len => "len",
            Self::Prot => "prot",
            Self::Flags => "flags",
            Self::Fd => "fd",
            Self::Off => "off",
        }
    }

    /// The quantity of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|quantity| quantity.name() == name)
    }

    /// Whether it is the same in the next run.
    pub const fn survives_randomisation(self) -> bool {
        !matches!(self, Self::Addr | Self::Fd)
    }
}

/// How a condition compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The quantity is the value.
    Equal,
    /// The quantity is above the value.
    Above,
    /// The quantity is below the value.
    Below,
}

impl Compare {
    /// What files call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::Above => ">",
            Self::Below => "<",
        }
    }

    /// The comparison of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Equal, Self::Above, Self::Below].into_iter().find(|compare| compare.name() == name)
    }
}

/// A condition of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What it looks at.
    pub quantity: Quantity,
    /// How it compares.
    pub compare: Compare,
    /// With what.
    pub value: u64,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it is for.
    pub policy: Policy,
    /// Where it holds.
    pub section: Section,
    /// Cycles of page walks that a huge page averts in a run; nothing for an eager rule.
    pub averted: Option<Cycles>,
    /// All of them must hold.
    pub conditions: Vec<Condition>,
}

/// What rules may look at, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The section.
    pub section: Section,
    /// The quantities, in the order of [`Quantity::ALL`].
    pub quantities: [Option<u64>; 7],
}

impl Default for Facts {
    fn default() -> Self {
        Self { section: Section::Mmap, quantities: [None; 7] }
    }
}

impl Facts {
    /// The same with a quantity known.
    #[must_use]
    pub fn with(mut self, quantity: Quantity, value: u64) -> Self {
        self.quantities[quantity as usize] = Some(value);
        self
    }
}

impl Rule {
    /// Whether it holds. A condition on what is not known does not.
    pub fn matches(&self, facts: &Facts) -> bool {
        self.section == facts.section
            && self.conditions.iter().all(|condition| {
                facts.quantities[condition.quantity as usize].is_some_and(|fact| {
                    match condition.compare {
                        Compare::Equal => fact == condition.value,
                        Compare::Above => fact > condition.value,
                        Compare::Below => fact < condition.value,
                    }
                })
            })
    }

    /// From where to where each quantity may be, in the order of [`Quantity::ALL`], if it is asked
    /// for; nothing if no value fulfils all conditions.
    pub(crate) fn bounds(&self) -> Option<[Option<(u64, u64)>; 7]> {
        let mut bounds = [None; 7];
        for &Condition { quantity, compare, value } in &self.conditions {
            let (low, high) = match compare {
                Compare::Equal => (value, value),
                Compare::Above => (value.checked_add(1)?, u64::MAX),
                Compare::Below => (0, value.checked_sub(1)?),
            };
            let bound = &mut bounds[quantity as usize];
            let (from, to) = bound.unwrap_or((0, u64::MAX));
            let (from, to): (u64, u64) = (low.max(from), high.min(to));
            if from > to {
                return None;
            }
            *bound = Some((from, to));
        }
        Some(bounds)
    }

    /// Its line of the CSV.
    pub fn to_csv(&self) -> String {
        csv(self.policy, self.section, self.averted.map_or(1, Cycles::get), &self.conditions)
    }

    /// Whether it says in the next run what it said in this one.
    pub fn survives_randomisation(&self) -> bool {
        self.conditions.iter().all(|condition| condition.quantity.survives_randomisation())
    }
}

/// Reads CBMM's CSV. What it does not say has to be said: how long the run was that its
/// benefits are of, and the clock whose cycles it counts. `file` is only used in errors.
pub fn import(
    file: &str,
    text: &str,
    horizon: Nanos,
    clock: Frequency,
) -> Result<Profile, ProfileError> {
    let most = Profile::most_walks(clock, horizon);
    let rules = rules_within(file, text, Some(most))?;
    Ok(Profile { rules, ..Profile::new(Vec::new(), "cbmm".to_owned(), clock, horizon) })
}

/// Reads the rules of CBMM's CSV; `file` is only used in errors.
pub fn rules(file: &str, text: &str) -> Result<Vec<Rule>, ProfileError> {
    rules_within(file, text, None)
}

/// The same, with no benefit above what a run can have, where that is known.
fn rules_within(file: &str, text: &str, most: Option<Cycles>) -> Result<Vec<Rule>, ProfileError> {
    let mut rules = Vec::new();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (number, line) in text.lines().enumerate() {
        let bad = |field: &str, message: String| ProfileError {
            file: file.to_owned(),
            line: number + 1,
            field: Some(field.to_owned()),
            message,
        };
        if line.trim().is_empty() {
            continue;
        }
        let fields: Vec<_> = line.split(',').map(str::trim).collect();
        let [policy, section, benefit, conditions @ ..] = &fields[..] else {
            return Err(bad("benefit", "is missing: a line is policy,section,benefit".to_owned()));
        };
        let show = |text: &str| text.chars().take(40).flat_map(char::escape_debug).collect();
        let not = |what: &str, text: &str| {
            let text: String = show(text);
            format!("`{text}` is not {what}")
        };
        let policy =
            Policy::of_name(policy).ok_or_else(|| bad("policy", not("huge or eager", policy)))?;
        let section = Section::of_name(section)
            .ok_or_else(|| bad("section", not("code, data, heap or mmap", section)))?;
        let averted = whole(benefit)
            .ok_or_else(|| bad("benefit", not("a whole number of cycles", benefit)))?;
        if policy == Policy::Huge && most.is_some_and(|most| Cycles(averted) > most) {
            let message = format!(
                "`{averted}` cycles are more than all processors have in the horizon of the run"
            );
            return Err(bad("benefit", message));
        }
        let averted = match policy {
            Policy::Huge => Some(Cycles(averted)),
            Policy::Eager if averted == 1 => None,
            Policy::Eager => {
                let message =
                    "of an eager rule is a flag, and must be 1: it is no amount of cycles";
                return Err(bad("benefit", message.to_owned()));
            }
        };
        let (triples, rest) = conditions.as_chunks::<3>();
        if !rest.is_empty() {
            let message = "a condition is quantity,cmp,value".to_owned();
            return Err(bad("condition", message));
        }
        let mut rule = Rule { policy, section, averted, conditions: Vec::new() };
        for [quantity, compare, value] in triples {
            rule.conditions.push(Condition {
                quantity: Quantity::of_name(quantity)
                    .ok_or_else(|| bad("quantity", not("a quantity that is known", quantity)))?,
                compare: Compare::of_name(compare)
                    .ok_or_else(|| bad("cmp", not("=, < or >", compare)))?,
                value: whole(value).ok_or_else(|| bad("value", not("a whole number", value)))?,
            });
        }
        rules.push(rule);
    }
    if rules.is_empty() {
        return Err(ProfileError {
            file: file.to_owned(),
            line: 1,
            field: None,
            message: "has no rule".to_owned(),
        });
    }
    Ok(rules)
}

/// What of a list of rules never comes to anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Idle {
    /// Rules, counted from 1, whose own conditions exclude each other.
    pub never: Vec<usize>,
    /// Rules that hold only where one before them of the same policy does, which then wins.
    pub hidden: Vec<usize>,
}

impl Idle {
    /// Looks for such rules.
    pub fn of(rules: &[Rule]) -> Self {
        let mut idle = Self::default();
        for (i, rule) in rules.iter().enumerate() {
            let Some(bounds) = rule.bounds() else {
                idle.never.push(i + 1);
                continue;
            };
            let hides = |before: &Rule| {
                (before.policy, before.section) == (rule.policy, rule.section)
                    && before.bounds().is_some_and(|outer| {
                        outer.iter().zip(&bounds).all(|(outer, inner)| match (outer, inner) {
                            (None, _) => true,
                            (Some(_), None) => false,
                            (Some((low, high)), Some((from, to))) => low <= from && to <= high,
                        })
                    })
            };
            if rules[..i].iter().any(hides) {
                idle.hidden.push(i + 1);
            }
        }
        idle
    }
}

/// Decimal, or hexadecimal with `0x`.
fn whole(text: &str) -> Option<u64> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric());
    match text.strip_prefix("0x") {
        Some(hex) if digits(hex) => u64::from_str_radix(hex, 16).ok(),
        None if digits(text) => text.parse().ok(),
        _ => None,
    }
}

/// What an export had to leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Mappings of one class whose order the CSV cannot tell apart: they are one rule with
    /// their mean.
    pub merged_mappings: usize,
    /// Mappings that are alone in their class: their rule holds for every mapping of it.
    pub orders: usize,
    /// Mappings whose parts avert different amounts, or of which only parts avert anything: the
    /// rule of their length has the mean of all.
    pub uneven_mappings: usize,
    /// Regions of which deviations are left out.
    pub deviations: usize,
    /// Regions that are not touched throughout: how much of them is, is left out.
    pub touched: usize,
    /// Regions of which the build identifier is left out.
    pub build_ids: usize,
    /// Whether benefits are sums of walks, which a reader takes for time in which walks are under
    /// way: CBMM has counted that.
    pub walk_time: bool,
}

/// Writes CBMM's CSV, and says what of the profile it cannot hold besides horizon and runs.
///
/// Conditions of CBMM are strict: a range from `a` to `b` is `section_off` above `a - 1` and
/// below `b`.
pub fn export(profile: &Profile) -> (String, Lost) {
    let (mut text, mut lost) = (String::new(), Lost::default());
    lost.walk_time = profile.walk_time == WalkTime::Summed && !profile.total().is_zero();
    let mut line = |policy, section, benefit, conditions: &[Condition]| {
        text += &csv(policy, section, benefit, conditions);
    };
    let between = |quantity, from: u64, to: u64| {
        let mut conditions = Vec::new();
        if from > 0 {
            conditions.push(Condition { quantity, compare: Compare::Above, value: from - 1 });
        }
        conditions.push(Condition { quantity, compare: Compare::Below, value: to });
        conditions
    };
    for region in &profile.regions {
        lost.deviations += usize::from(region.ranges.iter().any(|r| !r.deviation.is_zero()));
        if let Key::Mapping { .. } = region.key {
            continue;
        }
        lost.touched += usize::from(region.ranges.iter().any(|range| range.touched < PAGES));
        lost.build_ids += usize::from(matches!(region.key, Key::Image { .. }));
        for range in &region.ranges {
            let (from, to) = (range.offset.get(), range.end().get());
            let conditions = between(Quantity::SectionOff, from, to);
            if !range.averted.is_zero() {
                line(Policy::Huge, region.key.section(), range.averted.get(), &conditions);
            }
            if nearly_all(range.touched) {
                line(Policy::Eager, region.key.section(), 1, &conditions);
            }
        }
    }
    for class in Key::LEAST_CLASS..=Key::MOST_CLASS {
        let of_class: Vec<_> = profile
            .regions
            .iter()
            .filter(
                |region| matches!(region.key, Key::Mapping { class: other, .. } if other == class),
            )
            .collect();
        if of_class.iter().all(|region| region.ranges.is_empty()) {
            continue;
        }
        // A rule holds for all of a mapping, also where nothing was touched.
        let slots: u64 = of_class.iter().map(|region| region.len.get().div_ceil(SLOT.get())).sum();
        match of_class.len() {
            1 => lost.orders += 1,
            several => lost.merged_mappings += several,
        }
        lost.uneven_mappings += of_class.iter().filter(|region| is_uneven(region)).count();
        // An eager rule holds for all of a length, or there is none.
        if !of_class.iter().all(|region| is_touched_throughout(region)) {
            lost.touched += of_class.len();
        }
        // A rule is about one mapping, however often there is one.
        let total: Cycles = of_class.iter().flat_map(|r| &r.ranges).map(Range::total).sum();
        let conditions = between(Quantity::Len, (1 << (class - 1)) + 1, (1 << class) + 1);
        if !(total / slots).is_zero() {
            line(Policy::Huge, Section::Mmap, (total / slots).get(), &conditions);
        }
        let touched = |region: &&Region| {
            let touched: u64 = region.ranges.iter().map(|r| u64::from(r.touched) * r.slots()).sum();
            let pages = region.len.get() / SLOT.get() * u64::from(PAGES);
            pages > 0 && touched * 10 >= pages * 9
        };
        if of_class.iter().all(touched) {
            line(Policy::Eager, Section::Mmap, 1, &conditions);
        }
    }
    for rule in &profile.rules {
        text += &rule.to_csv();
    }
    (text, lost)
}

/// Whether a huge page averts more in one part of a mapping than in another.
fn is_uneven(region: &Region) -> bool {
    let covered: u64 = region.ranges.iter().map(Range::slots).sum();
    let mut averted = region.ranges.iter().map(|range| range.averted);
    let Some(first) = averted.next() else { return false };
    let differs = averted.any(|other| other != first);
    differs || (!first.is_zero() && covered < region.len.get().div_ceil(SLOT.get()))
}

/// Whether all base pages of a mapping are touched.
fn is_touched_throughout(region: &Region) -> bool {
    let touched: u64 = region.ranges.iter().map(|r| u64::from(r.touched) * r.slots()).sum();
    touched >= region.len.get() / (SLOT.get() / u64::from(PAGES))
}

/// A line of the CSV.
fn csv(policy: Policy, section: Section, benefit: u64, conditions: &[Condition]) -> String {
    let mut text = format!("{},{},{benefit}", policy.name(), section.name());
    for Condition { quantity, compare, value } in conditions {
        text += &format!(",{},{},{value:#x}", quantity.name(), compare.name());
    }
    text.push('\n');
    text
}

/// Whether so many pages of a slot are nearly all: nine of ten, beyond which populating them
/// one by one costs more than populating the rest for nothing.
pub const fn nearly_all(touched: u32) -> bool {
    touched * 10 >= PAGES * 9
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Place, Share, example};
    use terrace_core::Bytes;

    fn read(text: &str) -> Result<Profile, ProfileError> {
        import("a.csv", text, Nanos::seconds(10), Frequency::ghz(2.2))
    }

    #[test]
    fn the_first_rule_that_matches_wins() {
        let profile = read(include_str!("../tests/golden/cbmm.csv")).expect("a profile");
        let advice = |facts: Facts| {
            let key = Key::Mapping { class: 40, order: 0 };
            profile.advise(&Place { key: &key, offset: Bytes::ZERO, len: SLOT, facts })
        };
        let mmap = Facts::default();
        let at = |addr| advice(mmap.with(Quantity::Addr, addr)).expect("a rule").huge.expected;
        assert_eq!(at(0x7f00_0000_0000), Cycles(1_200_000));
        assert_eq!(at(0x7f00_4000_0000), Cycles(350_000), "the later rule");
        assert_eq!(at(0x10_0000), Cycles(9_000), "the rule without a condition comes last");
        let heap = Facts { section: Section::Heap, ..mmap };
        let first = advice(heap.with(Quantity::SectionOff, 0)).expect("rules");
        assert_eq!((first.huge.expected, first.touched), (Cycles(800_000), Share::known(1.0)));
        let beyond = advice(heap.with(Quantity::SectionOff, 1 << 30)).expect("a rule");
        assert_eq!((beyond.huge.expected, beyond.touched), (Cycles(41_000), Share::UNKNOWN));
        assert_eq!(advice(Facts { section: Section::Code, ..mmap }), None);
    }

    #[test]
    fn what_an_import_says_is_what_its_golden_says() {
        let profile = read(include_str!("../tests/golden/cbmm.csv")).expect("a profile");
        assert_eq!(profile.to_text(), include_str!("../tests/golden/cbmm.profile"));
        let (exported, lost) = export(&profile);
        assert_eq!(read(&exported), Ok(profile), "a profile of rules loses nothing");
        assert_eq!(lost, Lost::default());
    }

    #[test]
    fn bad_rows_are_refused_with_line_and_field() {
        for (text, names) in [
            ("huge,mmap", "a.csv:1: field `benefit`"),
            ("huge,heap,1\nvast,heap,1", "a.csv:2: field `policy`"),
            ("huge,stack,1", "field `section`"),
            ("huge,heap,-1", "field `benefit`"),
            ("huge,heap,+1", "field `benefit`"),
            ("eager,heap,1000", "is a flag"),
            ("huge,heap,1,addr,>", "field `condition`"),
            ("huge,heap,1,size,>,1", "field `quantity`"),
            ("huge,heap,1,addr,>=,1", "field `cmp`"),
            ("huge,heap,1,addr,>,0xzz", "field `value`"),
            ("\n\n", "has no rule"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(names), "{text}: {error}");
        }
    }

    #[test]
    fn a_benefit_that_no_run_can_have_is_refused() {
        let error = read("huge,heap,1\nhuge,mmap,18446744073709551615").expect_err("too much");
        assert!(error.to_string().contains("a.csv:2: field `benefit`"), "{error}");
        // The most that is taken is read back.
        let most = Profile::most_walks(Frequency::ghz(2.2), Nanos::seconds(10)).get();
        let profile = read(&format!("huge,mmap,{most}")).expect("possible");
        assert_eq!(Profile::parse("p", &profile.to_text()), Ok(profile));
        assert!(read(&format!("huge,mmap,{}", most + 1)).is_err());
    }

    #[test]
    fn rules_that_never_come_to_anything_are_found() {
        let idle = |text: &str| {
            let Idle { never, hidden } = Idle::of(&read(text).expect("rules").rules);
            (never, hidden)
        };
        assert_eq!(idle("huge,mmap,1,len,>,10,len,<,5"), (vec![1], vec![]));
        assert_eq!(idle("huge,mmap,1,len,>,10,len,<,11"), (vec![1], vec![]), "11 is not below 11");
        assert_eq!(idle("huge,mmap,1,len,<,0"), (vec![1], vec![]));
        assert_eq!(idle("huge,mmap,1\nhuge,mmap,2,len,>,5\neager,mmap,1"), (vec![], vec![2]));
        assert_eq!(idle("huge,mmap,2,len,>,5\nhuge,mmap,1\nhuge,heap,1"), (vec![], vec![]));
        let inside = "huge,mmap,2,len,>,5,len,<,90\nhuge,mmap,1,len,=,6,prot,=,3";
        assert_eq!(idle(inside), (vec![], vec![2]));
        assert_eq!(idle("huge,mmap,2,len,<,5,len,>,9\nhuge,mmap,1"), (vec![1], vec![]));
    }

    #[test]
    fn mappings_of_one_length_are_told_to_be_merged() {
        let mut profile = example();
        let other =
            Region { key: Key::Mapping { class: 27, order: 4 }, ..profile.regions[1].clone() };
        profile.regions.push(other);
        let (text, lost) = export(&profile);
        assert_eq!(text.matches("huge,mmap,2000,len").count(), 1, "{text}");
        assert_eq!((lost.merged_mappings, lost.orders), (2, 0));
    }

    #[test]
    fn an_export_keeps_where_benefit_is_and_says_what_it_lost() {
        let profile = example();
        let (text, lost) = export(&profile);
        let all = Lost {
            merged_mappings: 0,
            orders: 1,
            uneven_mappings: 0,
            deviations: 3,
            touched: 2,
            build_ids: 1,
            walk_time: true,
        };
        assert_eq!(lost, all);
        let counted = Profile { walk_time: WalkTime::Elapsed, ..example() };
        assert_eq!(export(&counted).1, Lost { walk_time: false, ..all });
        let again = read(&text).expect("our own");
        let heap = Facts { section: Section::Heap, ..Facts::default() };
        for (offset, averted) in [(0, 1_000_000), (4 << 20, 0), (6 << 20, 10_000)] {
            let key = Key::Heap;
            let facts = heap.with(Quantity::SectionOff, offset);
            let place = Place { key: &key, offset: Bytes(offset), len: SLOT, facts };
            let expected = |profile: &Profile| {
                profile.advise(&place).map_or(Cycles::ZERO, |advice| advice.huge.expected)
            };
            assert_eq!(expected(&profile), Cycles(averted));
            assert_eq!(expected(&again), Cycles(averted), "{offset:#x}");
        }
        assert!(text.contains("huge,mmap,2000,len,>,0x4000000,len,<,0x8000001"), "{text}");
    }

    /// The mean of 20 and 0 million cycles is right for no huge page of the mapping.
    #[test]
    fn what_differs_within_a_mapping_and_between_runs_is_told_to_be_lost() {
        let lost = |change: &dyn Fn(&mut Region)| {
            let mut profile = example();
            profile.regions.drain(..1);
            profile.regions.truncate(1);
            profile.regions[0].ranges[0].deviation = Cycles::ZERO;
            change(&mut profile.regions[0]);
            let (_, lost) = export(&profile);
            (lost.uneven_mappings, lost.deviations, lost.touched)
        };
        assert_eq!(lost(&|_| {}), (0, 0, 0), "the same everywhere");
        let halves = |region: &mut Region| {
            let half = Bytes(region.len.get() / 2);
            let first = Range { len: half, ..region.ranges[0] };
            let second = Range { offset: half, averted: Cycles::ZERO, ..first };
            region.ranges = vec![first, second];
        };
        assert_eq!(lost(&halves), (1, 0, 0), "a half averts nothing");
        assert_eq!(lost(&|region| region.ranges[0].len = SLOT), (1, 0, 1), "the rest is not used");
        assert_eq!(lost(&|region| region.ranges[0].deviation = Cycles(7)), (0, 1, 0));
        assert_eq!(lost(&|region| region.ranges[0].touched = PAGES - 1), (0, 0, 1));
    }

    /// A rule of a length holds for every huge page of a mapping. Were it the mean of those that avert
    /// something, one hot page would make all of them worth as much.
    #[test]
    fn a_rule_of_a_mapping_comes_to_what_the_mapping_averts() {
        let mut profile = example();
        let region = &mut profile.regions[1];
        region.ranges[0].len = SLOT;
        region.ranges[0].averted = Cycles(6_400);
        let (text, _) = export(&profile);
        assert!(text.contains("huge,mmap,100,len"), "64 huge pages: {text}");
    }
}
