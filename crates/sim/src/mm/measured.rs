//! A file of what a kernel's memory management was measured to cost: `terrace calibrate mm` writes
//! it, and `terrace reproduce cbmm --costs` reads it.
//!
//! ```toml
//! mm-costs = 1              # the version of this format
//! clock = "2000000000Hz"    # whose cycles these are
//!
//! [machine]                 # where it was measured
//! kernel = "6.18.44"
//! …
//!
//! [cycles]                  # by the names of `Costs`; what is missing keeps its built-in value
//! fault = 2350
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;
use terrace_core::machine::{parse_document, refuse_cut};
use terrace_core::{Cycles, Frequency, MachineError};

use super::costs::Costs;

/// The version of the format.
const VERSION: u32 = 1;
/// The most cycles that a piece of work can take: a minute and more of any processor.
const MOST: u64 = 1 << 40;

/// What was measured, and where.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredCosts {
    /// What identifies machine and kernel, by name.
    pub machine: BTreeMap<String, String>,
    /// The clock whose cycles these are.
    pub clock: Frequency,
    /// Pieces of work, by the names of [`Costs`].
    pub costs: BTreeMap<String, Cycles>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Written {
    mm_costs: u32,
    clock: String,
    machine: BTreeMap<String, String>,
    cycles: BTreeMap<String, u64>,
}

impl Written {
    fn check(&self) -> Result<(), (String, String)> {
        let bad = |field: String, message: &str| Err((field, message.to_owned()));
        if self.mm_costs != VERSION {
            return bad("mm-costs".to_owned(), "this version reads version 1 only");
        }
        match self.clock.parse::<Frequency>() {
            Ok(clock) if clock.get() >= 1e6 => {}
            _ => return bad("clock".to_owned(), "must be a frequency, such as 2GHz"),
        }
        for (name, &cycles) in &self.cycles {
            let field = format!("cycles.{name}");
            if !Costs::builtin().set(name, Cycles(cycles)) {
                return bad(field, "is no piece of work that is known here");
            }
            if !(1..=MOST).contains(&cycles) {
                return bad(field, "must be at least 1, and at most 2^40");
            }
        }
        Ok(())
    }
}

impl MeasuredCosts {
    /// Reads a file's text; `path` is for errors.
    ///
    /// # Errors
    ///
    /// With file, line and field.
    pub fn parse(path: &str, text: &str) -> Result<Self, MachineError> {
        refuse_cut(path, text)?;
        let written: Written = parse_document(path, text, Written::check)?;
        Ok(Self {
            machine: written.machine,
            clock: written.clock.parse().unwrap_or(Frequency::ghz(1.0)),
            costs: written.cycles.into_iter().map(|(name, n)| (name, Cycles(n))).collect(),
        })
    }

    /// Whether a text is meant to be such a file.
    pub fn is_meant(text: &str) -> bool {
        text.lines()
            .map(str::trim)
            .take_while(|line| !line.starts_with('['))
            .any(|line| line.split_once('=').is_some_and(|(key, _)| key.trim() == "mm-costs"))
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "# Written by `terrace calibrate mm`: what memory management costs on this kernel.\n\
             mm-costs = {VERSION}\nclock = \"{:.0}Hz\"\n\n[machine]\n",
            self.clock.get()
        );
        for (name, value) in &self.machine {
            let kept: String = value.chars().filter(|c| !c.is_control()).collect();
            let quoted = kept.replace('\\', "\\\\").replace('"', "\\\"");
            text += &format!("{name} = \"{quoted}\"\n");
        }
        text += "\n[cycles]\n";
        for (name, cycles) in &self.costs {
            text += &format!("{name} = {}\n", cycles.get());
        }
        text
    }

    /// In what the machine that it was measured on differs from another; `None` if in nothing.
    pub fn difference(&self, here: &BTreeMap<String, String>) -> Option<String> {
        let mut names: Vec<&String> = self.machine.keys().chain(here.keys()).collect();
        names.sort();
        names.dedup();
        let of = |map: &BTreeMap<String, String>, name: &str| {
            map.get(name).map_or_else(|| "unknown".to_owned(), |value| format!("`{value}`"))
        };
        let found: Vec<_> = names
            .into_iter()
            .filter(|name| self.machine.get(*name) != here.get(*name))
            .map(|name| format!("{name} {}, here {}", of(&self.machine, name), of(here, name)))
            .collect();
        (!found.is_empty()).then(|| found.join("; "))
    }

    /// Built-in costs with what was measured in their place.
    pub fn costs(&self) -> Costs {
        let mut costs = Costs::builtin();
        for (name, &cycles) in &self.costs {
            // The names were looked at when it was read.
            costs.set(name, cycles);
        }
        costs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> MeasuredCosts {
        let text = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        MeasuredCosts {
            machine: text(&[("kernel", "6.99"), ("processor", "A \"fast\" one")]),
            clock: Frequency::ghz(2.0),
            costs: BTreeMap::from([
                ("fault".to_owned(), Cycles(1234)),
                ("zero_huge".to_owned(), Cycles(400_000)),
            ]),
        }
    }

    #[test]
    fn what_is_written_is_what_is_read_and_takes_the_place_of_what_is_built_in() {
        let measured = measured();
        assert_eq!(MeasuredCosts::parse("m", &measured.to_text()), Ok(measured.clone()));
        assert!(MeasuredCosts::is_meant(&measured.to_text()));
        let costs = measured.costs();
        assert_eq!((costs.fault, costs.zero_huge), (Cycles(1234), Cycles(400_000)));
        assert_eq!(costs.swap_in, Costs::builtin().swap_in, "what is missing stays");
        let source =
            |name| costs.sources().into_iter().find(|one| one.name == name).expect("known").source;
        assert!(source("fault").contains("calibrate mm"), "{}", source("fault"));
        assert!(source("swap_in").starts_with("recalled"), "{}", source("swap_in"));
    }

    #[test]
    fn another_machine_s_costs_say_in_what_it_differs() {
        let measured = measured();
        assert_eq!(measured.difference(&measured.machine), None);
        let mut here = measured.machine.clone();
        here.insert("kernel".to_owned(), "7.0".to_owned());
        let why = measured.difference(&here).expect("another kernel");
        assert_eq!(why, "kernel `6.99`, here `7.0`");
        here.remove("kernel");
        assert!(measured.difference(&here).expect("unknown").contains("here unknown"));
    }

    #[test]
    fn bad_files_are_refused_with_line_and_field() {
        let text = measured().to_text();
        for (from, to, line, field) in [
            ("mm-costs = 1", "mm-costs = 2", 2, "mm-costs"),
            ("2000000000Hz", "fast", 3, "clock"),
            ("fault = 1234", "fault = 0", 10, "cycles.fault"),
            ("fault = 1234", "faults = 1234", 10, "cycles.faults"),
            ("fault = 1234", "fault = -1", 10, "cycles.fault"),
        ] {
            assert!(text.contains(from), "{from}: {text}");
            let error = MeasuredCosts::parse("m", &text.replacen(from, to, 1)).expect_err(to);
            assert_eq!((error.line, error.field.as_deref()), (line, Some(field)), "{error}");
        }
        // A tenth of a price.
        let cut = text.trim_end().strip_suffix(|c: char| c.is_ascii_digit()).expect("a number");
        let error = MeasuredCosts::parse("m", cut).expect_err("it was cut");
        assert!(error.message.contains("its line has no end"), "{error}");
        assert!(error.field.is_some_and(|field| field.starts_with("cycles.")));
    }
}
