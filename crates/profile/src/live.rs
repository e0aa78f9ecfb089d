//! What rules can look at in a managed run, and which of them come to anything there.
//!
//! A run manages private anonymous mappings, and asks a profile about those of 2 MiB and more. So some
//! quantities have few values, and some none: addresses and descriptors of another run say nothing.

use terrace_core::Bytes;

use crate::cbmm::{Facts, Quantity, Rule};
use crate::key::{Key, Section};
use crate::profile::SLOT;

/// `PROT_READ | PROT_WRITE`: memory in use.
pub const READ_AND_WRITE: u64 = 3;
/// `PROT_NONE`: memory that is only reserved.
pub const RESERVED: u64 = 0;
/// `MAP_PRIVATE | MAP_ANONYMOUS`. Whatever else was asked for is not kept: it says how to map, and not what
/// (`MAP_NORESERVE`, `MAP_POPULATE`, `MAP_FIXED`).
const FLAGS: u64 = 0x22;
/// A mapping of no file begins at its begin.
const OFF: u64 = 0;
/// Lengths and offsets are of whole pages.
const PAGE: u64 = 4096;

/// The facts of a mapping; `prot` where that is known.
pub fn facts(len: Bytes, prot: Option<u64>) -> Facts {
    let facts = Facts { section: Section::Mmap, ..Facts::default() }
        .with(Quantity::Len, len.get())
        .with(Quantity::Flags, FLAGS)
        .with(Quantity::Off, OFF);
    prot.map_or(facts, |prot| facts.with(Quantity::Prot, prot))
}

/// All values that a quantity can have, where these are few.
fn values(quantity: Quantity) -> Option<&'static [u64]> {
    match quantity {
        Quantity::Addr | Quantity::Fd => Some(&[]),
        Quantity::Prot => Some(&[RESERVED, READ_AND_WRITE]),
        Quantity::Flags => Some(&[FLAGS]),
        Quantity::Off => Some(&[OFF]),
        Quantity::Len | Quantity::SectionOff => None,
    }
}

/// From where to where the values of the others are.
fn span(quantity: Quantity) -> (u64, u64) {
    let least = if quantity == Quantity::Len { SLOT.get() } else { 0 };
    (least, 1 << Key::MOST_CLASS)
}

/// What a quantity can be in a run, for whoever reads that a rule never holds.
pub const fn what(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Addr => "addresses are others in each run",
        Quantity::Fd => "file descriptors are others in each run",
        Quantity::Prot => "of a managed mapping it is 3, or 0 while that is only reserved",
        Quantity::Flags => {
            "of a managed mapping it is 34 (MAP_PRIVATE | MAP_ANONYMOUS), others are not kept"
        }
        Quantity::Off => "of a managed mapping it is 0, as that is of no file",
        Quantity::Len => "it is of whole pages, and 2 MiB at least",
        Quantity::SectionOff => "it is of whole pages",
    }
}

/// The quantity by which a rule never holds in a run. Nothing of a rule whose conditions exclude each other
/// in any case.
pub fn refuses(rule: &Rule) -> Option<Quantity> {
    let bounds = rule.bounds()?;
    Quantity::ALL.into_iter().find(|&quantity| {
        bounds[quantity as usize].is_some_and(|(low, high)| {
            if let Some(values) = values(quantity) {
                !values.iter().any(|value| (low..=high).contains(value))
            } else {
                let (least, most) = span(quantity);
                let first = low.max(least).checked_next_multiple_of(PAGE);
                first.is_none_or(|first| first > high.min(most))
            }
        })
    })
}

/// Whether a rule holds wherever another does, in a run.
fn hides(outer: &Rule, inner: &Rule) -> bool {
    if (outer.policy, outer.section) != (inner.policy, inner.section) {
        return false;
    }
    let (Some(outer), Some(inner)) = (outer.bounds(), inner.bounds()) else { return false };
    Quantity::ALL.into_iter().all(|quantity| {
        let Some((low, high)) = outer[quantity as usize] else { return true };
        let (from, to) = inner[quantity as usize].unwrap_or((0, u64::MAX));
        if let Some(values) = values(quantity) {
            let mut held = values.iter().filter(|&value| (from..=to).contains(value));
            held.all(|value| (low..=high).contains(value))
        } else {
            let (least, most) = span(quantity);
            low <= from.max(least) && to.min(most) <= high
        }
    })
}

/// The rules about mappings that can come to anything in a run: they can hold, and no earlier one holds
/// wherever they do.
pub fn in_force(rules: &[Rule]) -> Vec<&Rule> {
    let mut in_force: Vec<&Rule> = Vec::new();
    for rule in rules {
        let holds = rule.section == Section::Mmap && rule.bounds().is_some();
        if holds && refuses(rule).is_none() && !in_force.iter().any(|outer| hides(outer, rule)) {
            in_force.push(rule);
        }
    }
    in_force
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::Cycles;

    fn rules(text: &str) -> Vec<Rule> {
        crate::cbmm::rules("a.csv", text).expect("rules")
    }

    fn one(conditions: &str) -> Rule {
        rules(&format!("huge,mmap,5,{conditions}")).remove(0)
    }

    #[test]
    fn rules_about_what_a_mapping_was_asked_for_with_hold() {
        let facts = facts(Bytes::mib(8), Some(READ_AND_WRITE));
        for conditions in [
            "prot,=,3",
            "prot,>,0",
            "prot,<,100000",
            "flags,>,0",
            "flags,<,100000000",
            "flags,=,34",
            "off,=,0",
            "off,<,100000",
            "len,>,0",
        ] {
            assert!(one(conditions).matches(&facts), "{conditions}");
            assert_eq!(refuses(&one(conditions)), None, "{conditions}");
        }
        let reserved = super::facts(Bytes::mib(8), Some(RESERVED));
        assert!(one("prot,=,0").matches(&reserved) && !one("prot,=,0").matches(&facts));
        assert!(!one("prot,=,3").matches(&super::facts(Bytes::mib(8), None)), "not known");
    }

    #[test]
    fn a_rule_that_never_holds_in_a_run_says_by_what() {
        for (conditions, by) in [
            ("addr,>,0", Quantity::Addr),
            ("fd,=,3", Quantity::Fd),
            ("prot,=,1", Quantity::Prot),
            ("prot,>,3", Quantity::Prot),
            ("flags,=,0x4022", Quantity::Flags),
            ("off,>,0", Quantity::Off),
            ("len,<,0x200000", Quantity::Len),
            ("len,=,400000000", Quantity::Len),
            ("section_off,=,5", Quantity::SectionOff),
            ("section_off,>,0xffffffffffffff00", Quantity::SectionOff),
        ] {
            assert_eq!(refuses(&one(conditions)), Some(by), "{conditions}");
        }
        assert_eq!(refuses(&one("len,=,0x200000")), None);
        assert_eq!(refuses(&one("prot,>,9,prot,<,5")), None, "told of by others");
    }

    #[test]
    fn rules_that_never_come_to_anything_are_not_in_force() {
        let of = |text: &str| {
            let rules = rules(text);
            let averted = in_force(&rules).into_iter().map(|rule| rule.averted.map(Cycles::get));
            averted.collect::<Vec<_>>()
        };
        assert_eq!(of("huge,mmap,0\neager,mmap,1\nhuge,mmap,9"), [Some(0), None]);
        assert_eq!(of("huge,mmap,1,addr,>,0\nhuge,mmap,2\nhuge,heap,3"), [Some(2)]);
        assert_eq!(of("huge,mmap,1,flags,=,34\nhuge,mmap,2,len,>,0"), [Some(1)], "all have 34");
        assert_eq!(of("huge,mmap,1,prot,=,3\nhuge,mmap,2"), [Some(1), Some(2)]);
        assert_eq!(of("huge,mmap,1,prot,>,0\nhuge,mmap,2,prot,=,3"), [Some(1)]);
        assert_eq!(of("huge,mmap,1,prot,>,9,prot,<,5\nhuge,mmap,2"), [Some(2)]);
    }
}
