//! The file format: lines of fields, each with its name and its unit.
//!
//! ```text
//! terrace-profile 2
//! program ./walk 100
//! build-id 0badcafe99
//! machine laptop
//! clock 3000000000Hz
//! horizon 1500000000ns
//! runs 2
//! walks 90000000cycles
//! walk-time summed
//! places 4
//! rules 2
//! region heap len=9437184B seen=2
//! range offset=0B len=4194304B averted=1000000cycles deviation=100000cycles touched=512
//! region mmap class=27 order=3 len=134217728B seen=1 instances=3
//! region data build-id=0badcafe99 len=3145728B seen=2
//! rule huge mmap averted=41534456cycles section_off>0 section_off<4096
//! rule eager heap
//! ```
//!
//! The version stands first. What is not known is refused with its line and field: a benefit
//! that was misread would be paid for. So is a file that was cut: its head counts what follows, and
//! its last line has an end. Files of version 1 need no counts, and none of rules. An eager rule has
//! no benefit, as it is no amount of anything; CBMM's files give it a 1, which its kernel compares with thousands of cycles.

use core::str::FromStr;
use std::collections::BTreeSet;

use terrace_core::{Bytes, Cycles, Frequency, Nanos};
use thiserror::Error;

use crate::cbmm::{Compare, Condition, Policy, Quantity, Rule};
use crate::key::{Key, Section};
use crate::profile::{PAGES, Profile, Range, Region, SLOT, WalkTime};

/// What a file begins with.
const MAGIC: &str = "terrace-profile";
/// The version that is written.
pub const VERSION: u32 = 2;
/// The oldest that is read: in files of it, only regions and ranges may be counted.
const OLDEST: u32 = 1;
/// The most digits of a build identifier: those of SHA-512.
const BUILD_ID: usize = 128;
/// The fastest clock (Hz) that is believed: ten times that of any processor that was ever sold.
const FASTEST: f64 = 100e9;
/// What is said of a clock that none can be.
pub const NO_CLOCK: &str = "must be 1Hz to 100GHz";
const NO_BUILD_ID: &str = "is not 1 to 128 hexadecimal digits in lower case";

/// Why a profile was refused: file, line and field.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{file}:{line}: {}{message}", field.as_ref().map(|f| format!("field `{f}`: ")).unwrap_or_default())]
pub struct ProfileError {
    /// The file, as the user named it.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The field.
    pub field: Option<String>,
    /// What is wrong.
    pub message: String,
}

/// What is wrong with a line: the field, and why.
type Wrong = (Option<String>, String);

fn wrong<T>(field: &str, message: impl Into<String>) -> Result<T, Wrong> {
    Err((Some(field.to_owned()), message.into()))
}

/// Whether a processor can have such a clock. Cycles of one that it cannot have would come to nothing
/// here, or to everything.
pub fn is_clock(clock: Frequency) -> bool {
    (1.0..=FASTEST).contains(&clock.get())
}

/// Whether a text is meant as a profile, valid or not.
pub fn is_meant(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.split(' ').next() == Some(MAGIC))
}

/// The fields of a line, each to be taken once.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn new(words: &[&'a str]) -> Result<Self, Wrong> {
        let mut fields: Vec<(&str, &str)> = Vec::new();
        for word in words {
            let Some((name, value)) = word.split_once('=') else {
                return Err((None, format!("`{}` is no field (name=value)", shown(word))));
            };
            if fields.iter().any(|(other, _)| *other == name) {
                return wrong(name, "is given twice");
            }
            fields.push((name, value));
        }
        Ok(Self(fields))
    }

    fn text(&mut self, name: &str) -> Result<&'a str, Wrong> {
        match self.0.iter().position(|(other, _)| *other == name) {
            Some(at) => Ok(self.0.remove(at).1),
            None => wrong(name, "is missing"),
        }
    }

    fn take<T: FromStr<Err: ToString>>(&mut self, name: &str) -> Result<T, Wrong> {
        let text = self.text(name)?;
        text.parse().map_err(|e: T::Err| (Some(name.to_owned()), e.to_string()))
    }

    fn whole(&mut self, name: &str, least: u32, most: u32) -> Result<u32, Wrong> {
        let text = self.text(name)?;
        match text.parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => {
                let text = shown(text);
                wrong(name, format!("`{text}` is not a whole number from {least} to {most}"))
            }
        }
    }

    /// The same of a field that may be missing.
    fn whole_or(
        &mut self,
        name: &str,
        (least, most): (u32, u32),
        otherwise: u32,
    ) -> Result<u32, Wrong> {
        if self.0.iter().any(|(other, _)| *other == name) {
            self.whole(name, least, most)
        } else {
            Ok(otherwise)
        }
    }

    fn end(self) -> Result<(), Wrong> {
        match self.0.first() {
            Some((name, _)) => wrong(name, "is not known here"),
            None => Ok(()),
        }
    }
}

/// A word as an error shows it: in one line, and not without end.
fn shown(word: &str) -> String {
    let mut short: String = word.chars().take(40).flat_map(char::escape_debug).collect();
    if word.chars().nth(40).is_some() {
        short.push('…');
    }
    short
}

/// What lines behind the head have said.
#[derive(Default)]
struct Seen {
    keys: BTreeSet<Key>,
    /// Cycles that all ranges avert in a run, at least: no more than there are walks.
    averted: u128,
    /// Huge pages of these ranges, in all mappings that count.
    slots: u128,
}

/// How many lines of each kind follow the head, as it says.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// Regions and ranges, all together.
    places: Option<u64>,
    rules: Option<u64>,
}

impl Counts {
    /// Each count is there since version 2, so that no cut takes one away unnoticed.
    fn are_given(self) -> Result<(), Wrong> {
        for (name, count) in [("places", self.places), ("rules", self.rules)] {
            if count.is_none() {
                return wrong(name, "is missing");
            }
        }
        Ok(())
    }

    /// Whether a profile has as much. What is left of a file that lost whole lines looks like a
    /// profile.
    fn are_of(self, profile: &Profile) -> Result<(), Wrong> {
        let rules = profile.rules.len() as u64;
        for (name, said, there, what) in [
            ("places", self.places, profile.places(), "regions and ranges"),
            ("rules", self.rules, rules, "rules"),
        ] {
            if said.is_some_and(|said| said != there) {
                let message = format!(
                    "is not the number of {what}, of which there are {there}: the file was cut, or \
                     changed by hand (then change this number, too)"
                );
                return wrong(name, message);
            }
        }
        Ok(())
    }
}

/// The head's lines, as they come.
#[derive(Default)]
struct Head {
    program: Option<Vec<String>>,
    build_id: Option<String>,
    machine: Option<String>,
    clock: Option<Frequency>,
    horizon: Option<Nanos>,
    runs: Option<u32>,
    walks: Option<Cycles>,
    walk_time: Option<WalkTime>,
    /// The line that says the walks: whether there can be so many is known at the end of the head.
    walks_line: usize,
    counts: Counts,
}

impl Head {
    /// Takes a line of the head; false if it is none.
    fn take(&mut self, name: &str, words: &[&str]) -> Result<bool, Wrong> {
        fn set<T>(place: &mut Option<T>, name: &str, value: T) -> Result<bool, Wrong> {
            if place.replace(value).is_some() {
                return wrong(name, "is given twice");
            }
            Ok(true)
        }
        let one = || match words {
            [word] => Ok(*word),
            _ => wrong(name, "takes one value"),
        };
        let bad = |message: String| (Some(name.to_owned()), message);
        match name {
            "program" => {
                let words = words.iter().map(|word| unescape(word).ok_or(*word));
                let words = words.collect::<Result<Vec<_>, _>>();
                let words = words.map_err(|word| {
                    bad(format!("`{}` has a % that no two digits follow", shown(word)))
                })?;
                set(&mut self.program, name, words)
            }
            "build-id" => {
                let id = one()?;
                if !is_build_id(id) {
                    return wrong(name, NO_BUILD_ID);
                }
                set(&mut self.build_id, name, id.to_owned())
            }
            "machine" => {
                let Some(machine) = unescape(one()?) else {
                    return wrong(name, "has a % that no two digits follow");
                };
                set(&mut self.machine, name, machine)
            }
            "clock" => {
                let clock: Frequency = one()?.parse().map_err(|e| bad(format!("{e}")))?;
                if !is_clock(clock) {
                    return wrong(name, NO_CLOCK);
                }
                set(&mut self.clock, name, Frequency(clock.get().round()))
            }
            "horizon" => {
                let horizon: Nanos = one()?.parse().map_err(|e| bad(format!("{e}")))?;
                if horizon.is_zero() {
                    return wrong(name, "must be above zero: a benefit comes about in time");
                }
                set(&mut self.horizon, name, horizon)
            }
            "runs" => match one()?.parse() {
                Ok(runs) if runs > 0 => set(&mut self.runs, name, runs),
                _ => wrong(name, format!("must be a whole number from 1 to {}", u32::MAX)),
            },
            "walks" => {
                let walks: Cycles = one()?.parse().map_err(|e| bad(format!("{e}")))?;
                set(&mut self.walks, name, walks)
            }
            "places" | "rules" => {
                let count: u64 =
                    one()?.parse().map_err(|_| bad("must be a whole number".to_owned()))?;
                let Counts { places, rules } = &mut self.counts;
                set(if name == "rules" { rules } else { places }, name, count)
            }
            "walk-time" => {
                let word = one()?;
                let Some(time) = WalkTime::of_name(word) else {
                    return wrong(name, format!("`{}` is neither summed nor elapsed", shown(word)));
                };
                set(&mut self.walk_time, name, time)
            }
            _ => Ok(false),
        }
    }

    /// The profile that it is the head of.
    fn profile(self) -> Result<Profile, Wrong> {
        fn need<T>(value: Option<T>, name: &str) -> Result<T, Wrong> {
            value.map_or_else(|| wrong(name, "is missing"), Ok)
        }
        let (clock, horizon) = (need(self.clock, "clock")?, need(self.horizon, "horizon")?);
        if self.walks.is_some_and(|walks| walks > Profile::most_walks(clock, horizon)) {
            return wrong("walks", "takes more time than all processors have in the horizon");
        }
        Ok(Profile {
            program: need(self.program, "program")?,
            build_id: self.build_id,
            machine: need(self.machine, "machine")?,
            clock,
            horizon,
            runs: need(self.runs, "runs")?,
            walks: self.walks,
            // Of whatever does not say so, the walks were simulated.
            walk_time: self.walk_time.unwrap_or_default(),
            regions: Vec::new(),
            rules: Vec::new(),
        })
    }
}

impl Profile {
    /// Reads a profile. `file` is only used in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, ProfileError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = text.lines().count().max(1);
        let at = |line: usize| {
            move |(field, message): Wrong| ProfileError {
                file: file.to_owned(),
                line,
                field,
                message,
            }
        };
        let first = text.lines().next().unwrap_or_default();
        let words: Vec<_> = first.split(' ').collect();
        let [MAGIC, version] = words[..] else {
            let message = format!("is no profile: its first line is not `{MAGIC} {VERSION}`");
            return Err(at(1)((None, message)));
        };
        let known = version.parse::<u32>().ok();
        let Some(version) = known.filter(|known| (OLDEST..=VERSION).contains(known)) else {
            let message = format!(
                "is `{}`; this version of Terrace reads versions {OLDEST} to {VERSION}",
                shown(version)
            );
            return Err(at(1)((Some("version".to_owned()), message)));
        };
        let is_counted = version > OLDEST;
        if !text.ends_with('\n') {
            // Its number may have lost digits, or a rule a condition.
            let name =
                text.lines().next_back().and_then(|line| line.split_ascii_whitespace().next());
            let message = "its line has no end: the file was cut".to_owned();
            return Err(at(lines)((name.map(shown), message)));
        }
        let mut head = Some(Head::default());
        let mut profile = None;
        let mut seen = Seen::default();
        let mut counts = Counts::default();
        let end_of = |head: Head, line: usize| -> Result<(Profile, Counts), ProfileError> {
            let (walks_line, counts) = (head.walks_line, head.counts);
            let profile = head.profile().map_err(|wrong| {
                let is_of_walks = wrong.0.as_deref() == Some("walks");
                at(if is_of_walks { walks_line } else { line })(wrong)
            })?;
            if is_counted {
                counts.are_given().map_err(at(line))?;
            }
            Ok((profile, counts))
        };
        for (number, line) in text.lines().enumerate().skip(1) {
            let bad = at(number + 1);
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            let [name, rest @ ..] = &words[..] else { continue };
            if name.starts_with('#') {
                continue;
            }
            if let Some(head) = &mut head
                && head.take(name, rest).map_err(&bad)?
            {
                if *name == "walks" {
                    head.walks_line = number + 1;
                }
                continue;
            }
            if let Some(head) = head.take() {
                let (begun, said) = end_of(head, number + 1)?;
                (profile, counts) = (Some(begun), said);
            }
            let Some(profile) = &mut profile else { continue };
            profile.take(name, rest, &mut seen).map_err(bad)?;
        }
        let (profile, counts) = if let Some(profile) = profile {
            (profile, counts)
        } else {
            end_of(head.unwrap_or_default(), lines)?
        };
        counts.are_of(&profile).map_err(at(lines))?;
        Ok(profile)
    }

    /// How many regions and ranges it has.
    fn places(&self) -> u64 {
        self.regions.iter().map(|region| 1 + region.ranges.len() as u64).sum()
    }

    /// Takes a line behind the head.
    fn take(&mut self, name: &str, words: &[&str], seen: &mut Seen) -> Result<(), Wrong> {
        match name {
            "region" => {
                let region = region(words, self.runs)?;
                if !seen.keys.insert(region.key.clone()) {
                    return wrong("region", format!("`{}` is given twice", region.key));
                }
                self.regions.push(region);
            }
            "range" => {
                let Some(region) = self.regions.last_mut() else {
                    return wrong("range", "comes before any region");
                };
                let range = range(words)?;
                if region.ranges.last().is_some_and(|last| range.offset < last.end()) {
                    return wrong("offset", "lies before the end of the range before");
                }
                if range.end().get() > region.len.get().next_multiple_of(SLOT.get()) {
                    return wrong("len", "reaches beyond the region's end");
                }
                // Of a region of several runs, all may be averted in one that had one mapping of it.
                let mappings = if region.seen == 1 { region.instances } else { 1 };
                let slots = u128::from(range.slots()) * u128::from(mappings);
                let averted = u128::from(range.averted.get()).saturating_mul(slots);
                seen.averted = seen.averted.saturating_add(averted);
                seen.slots += slots;
                let most = u128::from(Self::most_walks(self.clock, self.horizon).get());
                // Each huge page may be rounded by itself.
                let walks = self.walks.map(|walks| u128::from(walks.get()) + seen.slots);
                if seen.averted > walks.map_or(most, |walks| most.min(walks)) {
                    let of = match self.walks {
                        Some(walks) => format!("than all walks of the run take, {walks}"),
                        None => "than all processors have in the horizon".to_owned(),
                    };
                    return wrong("averted", format!("comes to more cycles up to here {of}"));
                }
                region.ranges.push(range);
            }
            "rule" => {
                let rule = rule(words)?;
                let most = Self::most_walks(self.clock, self.horizon);
                if rule.averted.is_some_and(|averted| averted > most) {
                    return wrong("averted", "is more than all processors have in the horizon");
                }
                self.rules.push(rule);
            }
            _ => return Err((Some(shown(name)), "is not known here".to_owned())),
        }
        Ok(())
    }

    /// The profile's file.
    pub fn to_text(&self) -> String {
        let program: Vec<_> = self.program.iter().map(|word| escape(word)).collect();
        let id = self.build_id.as_ref().map_or(String::new(), |id| format!("build-id {id}\n"));
        let mut text = format!(
            "{MAGIC} {VERSION}\nprogram {}\n{id}machine {}\nclock {:.0}Hz\nhorizon {}ns\nruns {}\n",
            program.join(" "),
            escape(&self.machine),
            self.clock.get(),
            self.horizon.get(),
            self.runs
        );
        if let Some(walks) = self.walks {
            text += &format!("walks {}cycles\n", walks.get());
        }
        // Builds that do not know this line refuse it: better than to divide what is time already.
        if self.walk_time != WalkTime::default() {
            text += &format!("walk-time {}\n", self.walk_time.name());
        }
        text += &format!("places {}\nrules {}\n", self.places(), self.rules.len());
        for region in &self.regions {
            let key = match &region.key {
                Key::Heap => "heap".to_owned(),
                Key::Mapping { class, order } => format!("mmap class={class} order={order}"),
                Key::Image { build_id, section } => {
                    format!("{} build-id={build_id}", section.name())
                }
            };
            text += &format!("region {key} len={}B seen={}", region.len.get(), region.seen);
            if region.instances != region.seen {
                text += &format!(" instances={}", region.instances);
            }
            text.push('\n');
            for range in &region.ranges {
                text += &format!(
                    "range offset={}B len={}B averted={}cycles deviation={}cycles touched={}\n",
                    range.offset.get(),
                    range.len.get(),
                    range.averted.get(),
                    range.deviation.get(),
                    range.touched
                );
            }
        }
        for rule in &self.rules {
            text += &format!("rule {} {}", rule.policy.name(), rule.section.name());
            if let Some(averted) = rule.averted {
                text += &format!(" averted={}cycles", averted.get());
            }
            for Condition { quantity, compare, value } in &rule.conditions {
                text += &format!(" {}{}{value}", quantity.name(), compare.name());
            }
            text.push('\n');
        }
        text
    }
}

fn region(words: &[&str], runs: u32) -> Result<Region, Wrong> {
    let [section, fields @ ..] = words else { return wrong("region", "has no section") };
    let mut fields = Fields::new(fields)?;
    let key = match Section::of_name(section) {
        None => return wrong("region", format!("`{}` is no section", shown(section))),
        Some(Section::Heap) => Key::Heap,
        Some(Section::Mmap) => {
            let (least, most) = (Key::LEAST_CLASS.into(), Key::MOST_CLASS.into());
            Key::Mapping {
                class: fields.whole("class", least, most)? as u8,
                order: fields.whole("order", 0, u32::MAX)?,
            }
        }
        Some(section) => {
            let id = fields.text("build-id")?;
            if !is_build_id(id) {
                return wrong("build-id", NO_BUILD_ID);
            }
            Key::Image { build_id: id.to_owned(), section }
        }
    };
    let len: Bytes = fields.take("len")?;
    if len.is_zero() || len.get() > 1 << Key::MOST_CLASS {
        return wrong("len", "must be above zero and at most 256TiB");
    }
    let seen = fields.whole("seen", 1, runs)?;
    // One in each run, unless it says otherwise.
    let instances = fields.whole_or("instances", (seen, u32::MAX), seen)?;
    fields.end()?;
    if let Key::Mapping { class, .. } = key
        && class != Key::class_of(len)
    {
        let (right, len) = (Key::class_of(len), len.get());
        return wrong("class", format!("`{class}` is not the class of {len}B, which is {right}"));
    }
    Ok(Region { key, len, seen, instances, ranges: Vec::new() })
}

fn range(words: &[&str]) -> Result<Range, Wrong> {
    let mut fields = Fields::new(words)?;
    let offset: Bytes = fields.take("offset")?;
    let len: Bytes = fields.take("len")?;
    for (name, value) in [("offset", offset), ("len", len)] {
        if !value.get().is_multiple_of(SLOT.get()) || value.get() > 1 << Key::MOST_CLASS {
            return wrong(name, "is not a multiple of 2MiB, at most 256TiB");
        }
    }
    if len.is_zero() {
        return wrong("len", "must be above zero");
    }
    let averted: Cycles = fields.take("averted")?;
    let deviation = fields.take("deviation")?;
    let touched = fields.whole("touched", 0, PAGES)?;
    fields.end()?;
    if touched == 0 && !averted.is_zero() {
        return wrong("touched", "is 0, and no walks are averted in what is not touched");
    }
    Ok(Range { offset, len, averted, deviation, touched })
}

fn rule(words: &[&str]) -> Result<Rule, Wrong> {
    let [policy, section, rest @ ..] = words else {
        return wrong("rule", "has no policy or no section");
    };
    let Some(policy) = Policy::of_name(policy) else {
        return wrong("rule", format!("`{}` is no policy (huge, eager)", shown(policy)));
    };
    let Some(section) = Section::of_name(section) else {
        return wrong("rule", format!("`{}` is no section", shown(section)));
    };
    let (averted, rest) = match (policy, rest) {
        (Policy::Huge, [first, rest @ ..]) => {
            let mut fields = Fields::new(&[first])?;
            (Some(fields.take("averted")?), rest)
        }
        (Policy::Huge, []) => return wrong("averted", "is missing"),
        (Policy::Eager, rest) => {
            if rest.first().is_some_and(|word| word.starts_with("averted=")) {
                return wrong(
                    "averted",
                    "an eager rule averts no walks: it says that all is touched",
                );
            }
            (None, rest)
        }
    };
    let conditions = rest.iter().map(|word| condition(word)).collect::<Result<_, _>>()?;
    Ok(Rule { policy, section, averted, conditions })
}

fn condition(word: &str) -> Result<Condition, Wrong> {
    let Some(at) = word.find(['=', '<', '>']) else {
        return Err((None, format!("`{}` is no condition (such as len>4096)", shown(word))));
    };
    let (name, rest) = word.split_at(at);
    let (compare, value) = rest.split_at(1);
    let Some(quantity) = Quantity::of_name(name) else {
        return Err((Some(shown(name)), "is no quantity of a condition".to_owned()));
    };
    let Some(compare) = Compare::of_name(compare) else {
        return wrong(quantity.name(), "is not compared by =, < or >");
    };
    match value.parse() {
        Ok(value) => Ok(Condition { quantity, compare, value }),
        Err(_) => wrong(quantity.name(), format!("`{}` is not a whole number", shown(value))),
    }
}

fn is_build_id(id: &str) -> bool {
    let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    (1..=BUILD_ID).contains(&id.len()) && id.bytes().all(is_hex)
}

/// A word without spaces, and without what ends a line.
fn escape(word: &str) -> String {
    if word.is_empty() {
        return "%".to_owned();
    }
    let mut text = String::new();
    for byte in word.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(byte as char);
        } else {
            text += &format!("%{byte:02x}");
        }
    }
    text
}

fn unescape(word: &str) -> Option<String> {
    if word == "%" {
        return Some(String::new());
    }
    let mut bytes = Vec::new();
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || (rest.next()? as char).to_digit(16);
            bytes.push((digit()? * 16 + digit()?) as u8);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::example;

    #[test]
    fn what_is_written_is_read_back() {
        let profile = example();
        assert_eq!(Profile::parse("p", &profile.to_text()), Ok(profile));
    }

    #[test]
    fn what_does_not_say_what_its_walks_are_has_sums_of_them() {
        let text = example().to_text();
        assert!(!text.contains("walk-time"));
        assert_eq!(Profile::parse("p", &text).map(|p| p.walk_time), Ok(WalkTime::Summed));
        let said = text.replacen("runs 2\n", "runs 2\nwalk-time summed\n", 1);
        assert_eq!(Profile::parse("p", &said), Ok(example()));
        let counted = Profile { walk_time: WalkTime::Elapsed, ..example() };
        assert!(counted.to_text().contains("\nwalk-time elapsed\n"));
        assert_eq!(Profile::parse("p", &counted.to_text()), Ok(counted));
    }

    #[test]
    fn the_golden_file_reads_as_it_always_did() {
        assert_eq!(example().to_text(), include_str!("../tests/golden/recorded.profile"));
    }

    /// Each damage with what the refusal has to name.
    #[test]
    fn a_bad_profile_is_refused_with_line_and_field() {
        let good = example().to_text();
        let refused = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            let error = Profile::parse("a.profile", &good.replacen(from, to, 1)).expect_err(to);
            error.to_string()
        };
        for (from, to, names) in [
            ("terrace-profile 2", "terrace-profile 3", "a.profile:1: field `version`"),
            ("terrace-profile 2", "profile 2", "a.profile:1: is no profile"),
            ("horizon 1500000000ns\n", "", "field `horizon`: is missing"),
            ("horizon 1500000000ns", "horizon 0ns", "a.profile:5: field `horizon`"),
            ("horizon 1500000000ns", "horizon 1500000000", "has no unit"),
            ("runs 2", "runs 0", "field `runs`"),
            ("runs 2", "runs 2\nwalk-time long", "a.profile:7: field `walk-time`: `long`"),
            ("runs 2", "runs 2\nwalk-time", "field `walk-time`: takes one value"),
            (
                "runs 2",
                "walk-time summed\nruns 2\nwalk-time elapsed",
                "field `walk-time`: is given twice",
            ),
            ("seen=2", "seen=3", "a.profile:9: field `seen`: `3` is not a whole number"),
            ("instances=3", "instances=0", "a.profile:12: field `instances`"),
            ("touched=512", "touched=513", "a.profile:10: field `touched`"),
            ("touched=512", "touched=0", "a.profile:10: field `touched`: is 0, and no walks"),
            (
                "runs 2",
                "runs 4294967297",
                "field `runs`: must be a whole number from 1 to 4294967295",
            ),
            ("averted=1000000cycles", "averted=1000000", "field `averted`"),
            ("averted=1000000cycles", "averted=1000000misses", "field `averted`"),
            ("averted=1000000cycles ", "", "field `averted`: is missing"),
            ("offset=6291456B", "offset=2097152B", "a.profile:11: field `offset`"),
            ("offset=6291456B", "offset=10485760B", "reaches beyond"),
            ("len=4194304B", "len=4096B", "multiple of 2MiB"),
            ("class=27", "class=99", "field `class`"),
            ("class=27", "class=26", "a.profile:12: field `class`: `26` is not the class of"),
            ("len=134217728B seen=1", "len=134217729B seen=1", "field `class`: `27` is not"),
            ("clock 3000000000Hz", "clock 0Hz", "a.profile:4: field `clock`: must be"),
            ("clock 3000000000Hz", "clock 99999999GHz", "a.profile:4: field `clock`: must be"),
            ("class=27", "class=27 colour=1", "field `colour`: is not known here"),
            ("class=27", "class=27 class=27", "field `class`: is given twice"),
            ("build-id=0badcafe99", "build-id=XYZ", "field `build-id`"),
            ("rule huge mmap averted=41534456cycles", "rule eager mmap averted=1cycles", "eager"),
            ("rule huge mmap", "rule tiny mmap", "`tiny` is no policy"),
            ("region heap", "region hall", "`hall` is no section"),
        ] {
            let message = refused(from, to);
            assert!(message.contains(names), "{to}: {message}");
            assert!(!message.contains('\n'));
        }
    }

    /// What is averted is a part of the walks, and those a part of the time: what is not was never
    /// measured, and would be paid for all the same.
    #[test]
    fn what_no_run_can_have_is_refused() {
        let good = example().to_text().replace("runs 2\n", "runs 2\nwalks 2394077cycles\n");
        let read = |from: &str, to: &str| Profile::parse("p", &good.replacen(from, to, 1));
        assert!(read("runs", "runs").is_ok());
        for (from, to, names) in [
            ("walks 2394077", "walks 0", "p:11: field `averted`: comes to more"),
            ("walks 2394077", "walks 2000077", "p:12: field `averted`: comes to more"),
            // Three mappings of one name in the run that had it.
            ("walks 2394077", "walks 2138077", "p:14: field `averted`: comes to more"),
            ("instances=3", "instances=4294967295", "p:14: field `averted`: comes to more"),
            ("averted=1000000cycles", "averted=9000000000000000cycles", "p:11: field `averted`"),
            ("walks 2394077", "walks 9000000000000000", "p:7: field `walks`: takes more time"),
            // Only the end of the head shows that it cannot be; what is wrong stands above it.
            ("horizon 1500000000ns", "horizon 1ns", "p:7: field `walks`: takes more time"),
            ("averted=41534456", "averted=9000000000000000", "field `averted`: is more than"),
            ("walks 2394077cycles\n", "build-id XYZ\n", "field `build-id`"),
        ] {
            let error = read(from, to).expect_err(to).to_string();
            assert!(error.contains(names), "{to}: {error}");
        }
        let unknown = good.replace("walks 2394077cycles\n", "");
        let more = unknown.replacen("averted=1000000cycles", "averted=90000000000000cycles", 1);
        let error = Profile::parse("p", &more).expect_err("more than the horizon has");
        assert!(error.to_string().contains("p:10: field `averted`"), "{error}");
        let named = Profile { build_id: Some("0bad".into()), ..example() };
        assert_eq!(Profile::parse("p", &named.to_text()), Ok(named));
    }

    /// In its head, its regions, its ranges, its rules, or within a line: what is left never passes for
    /// the whole, and where it ends is told.
    #[test]
    fn a_file_that_was_cut_anywhere_is_refused_with_line_and_field() {
        let mut whole = example();
        whole.walks = Some(Cycles(5_000_000));
        whole.walk_time = WalkTime::Elapsed;
        whole.build_id = Some("0bad".into());
        let narrow = rule(&["huge", "mmap", "averted=7cycles", "len=8192", "prot=3"]);
        whole.rules.push(narrow.expect("a rule"));
        let rules = Profile { regions: Vec::new(), ..whole.clone() };
        let regions = Profile { rules: Vec::new(), ..whole.clone() };
        let empty = Profile { rules: Vec::new(), ..rules.clone() };
        for profile in [&whole, &rules, &regions, &empty] {
            let text = profile.to_text();
            assert_eq!(Profile::parse("p", &text).as_ref(), Ok(profile));
            let ends = text.char_indices().map(|(at, _)| at);
            for cut in ends.map(|end| &text[..end]) {
                let error = Profile::parse("p", cut).expect_err(cut).to_string();
                let line = cut.lines().count().max(1);
                assert!(error.starts_with(&format!("p:{line}: ")), "{cut}: {error}");
                let has_version = cut.starts_with(&format!("{MAGIC} "));
                assert!(error.contains("field `") || !has_version, "{cut}: {error}");
            }
        }
        // A line from the middle, by what it begins with.
        let text = whole.to_text();
        for (line, names) in [
            ("places", "p:11: field `places`: is missing"),
            ("rules", "p:11: field `rules`: is missing"),
            ("region data", "p:17: field `offset`: lies before"),
            ("range offset=6291456B", "p:19: field `places`: is not the number of regions and"),
            ("rule huge mmap averted=41534456", "p:19: field `rules`: is not the number of rules"),
        ] {
            let lost = text.split_inclusive('\n').filter(|it| !it.starts_with(line));
            let error = Profile::parse("p", &lost.collect::<String>()).expect_err(line).to_string();
            assert!(error.starts_with(names), "{line}: {error}");
        }
    }

    /// Files of version 1 count their regions and ranges, or nothing.
    #[test]
    fn a_file_of_the_first_version_is_read() {
        let first = include_str!("../tests/golden/recorded-1.profile");
        assert_eq!(Profile::parse("p", first), Ok(example()));
        let cut = Profile::parse("p", first.trim_end()).expect_err("without a last end");
        assert!(cut.message.contains("its line has no end"), "{cut}");
        let uncounted = first.replace("places 7\n", "");
        assert_eq!(Profile::parse("p", &uncounted), Ok(example()));
        let lines: Vec<_> = first.lines().collect();
        for kept in 7..lines.len() - 1 {
            let cut = lines[..kept].join("\n") + "\n";
            let error = Profile::parse("p", &cut).expect_err("it is cut").to_string();
            assert!(error.starts_with(&format!("p:{kept}: field `places`")), "{error}");
        }
        assert!(Profile::parse("p", &first.replace("places 7", "places -7")).is_err());
    }

    #[test]
    fn the_example_of_the_page_is_read() {
        let page = include_str!("../../../docs/profile.md");
        let begin = page.find("\nterrace-profile 2\n").expect("an example") + 1;
        let text = page[begin..].split("```").next().unwrap_or_default();
        let profile = Profile::parse("profile.md", text).expect("a good profile");
        assert_eq!((profile.regions.len(), profile.rules.len()), (1, 1));
    }

    #[test]
    fn every_text_of_arguments_comes_back() {
        for text in ["", "%", "a b", "ü\n\t", "50%", "%20"] {
            assert_eq!(unescape(&escape(text)).as_deref(), Some(text));
        }
        assert_eq!(unescape("%g0"), None);
        assert_eq!(unescape("%2"), None);
    }
}
