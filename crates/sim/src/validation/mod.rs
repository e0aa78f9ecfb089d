//! Ours beside references, from runs made then and there.
//!
//! | file | concept |
//! |---|---|
//! | [`cachegrind`] | miss counts of real programs, which must be identical |
//! | [`champsim`] | another simulator's counters for a synthetic trace |
//! | [`closed_forms`] | stack distances, Belady's bound, page walks |
//! | [`loaded`] | latency under load beside measured machines |
//!
//! The memory timing has its own in [`terrace_dram::validation`]; [`Line`] holds
//! both. `docs/validation.md` says why ours differs where it does.

pub mod cachegrind;
pub mod champsim;
pub mod closed_forms;
pub mod loaded;

use serde::Serialize;
pub use terrace_dram::validation::Reference;

/// When ours counts as agreement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Criterion {
    /// Differs by at most this share of the reference.
    Within(f64),
    /// Is at most the reference.
    AtMost,
    /// Is at least the reference.
    AtLeast,
    /// Is not judged: the two do not count the same, and this is why.
    Explained(&'static str),
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// What is compared.
    pub what: String,
    /// Its unit; empty for a count or a ratio.
    pub unit: &'static str,
    /// Ours.
    pub ours: f64,
    /// The other's.
    pub reference: f64,
    /// When they agree.
    pub criterion: Criterion,
    /// Whose the reference is.
    pub kind: Reference,
    /// Where it comes from.
    pub source: String,
}

impl Line {
    /// Whether ours is as it should be; also for what is not judged.
    pub fn holds(&self) -> bool {
        match self.criterion {
            Criterion::Within(share) => {
                (self.ours - self.reference).abs() <= share * self.reference.abs()
            }
            Criterion::AtMost => self.ours <= self.reference,
            Criterion::AtLeast => self.ours >= self.reference,
            Criterion::Explained(_) => true,
        }
    }

    /// A formula's line.
    fn formula(what: &str, ours: f64, reference: f64, criterion: Criterion, source: &str) -> Self {
        Self {
            what: what.to_owned(),
            unit: "",
            ours,
            reference,
            criterion,
            kind: Reference::Formula,
            source: source.to_owned(),
        }
    }
}

impl From<terrace_dram::validation::Check> for Line {
    fn from(check: terrace_dram::validation::Check) -> Self {
        Self {
            what: check.what,
            unit: check.unit,
            ours: check.ours,
            reference: check.reference,
            criterion: Criterion::Within(check.tolerance),
            kind: check.kind,
            source: check.source.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_by_its_criterion() {
        let line = |ours, criterion| Line::formula("x", ours, 100.0, criterion, "");
        assert!(line(104.0, Criterion::Within(0.05)).holds());
        assert!(!line(106.0, Criterion::Within(0.05)).holds());
        assert!(!line(101.0, Criterion::AtMost).holds());
        assert!(!line(99.0, Criterion::AtLeast).holds());
        assert!(!line(f64::NAN, Criterion::Within(0.05)).holds(), "no number is no agreement");
        assert!(line(0.0, Criterion::Explained("why")).holds());
    }

    /// What `make validate` prints, in its short form; cachegrind needs valgrind
    /// and is in a target of its own.
    #[test]
    fn every_check_of_this_crate_holds() {
        let lines = [champsim::lines().expect("simulated"), closed_forms::lines(), loaded::lines()];
        for line in lines.concat() {
            assert!(line.holds(), "{line:?}");
        }
    }
}
