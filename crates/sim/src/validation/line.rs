//! One comparison, and what it comes to.

use serde::Serialize;
use terrace_dram::validation::{Check, Reference};

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
    /// Lies between these; the reference is what was published.
    Between(f64, f64),
    /// Is known not to agree.
    Differs(Known),
}

/// A difference that is known. It is held like an agreement: ours has to stay where
/// it was when the cause was found, or the cause no longer explains it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Known {
    /// What ours was.
    pub ours: f64,
    /// By which share of that ours may move.
    pub within: f64,
    /// Why it differs, as far as that is known.
    pub cause: &'static str,
}

/// What a comparison comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Ours agrees with an independent reference.
    Holds,
    /// It does not, and nothing is known that would explain it.
    Fails,
    /// It does not agree, by as much as is known and for a cause that is given.
    Differs,
    /// It agrees with numbers that the model was made of, or gave itself: the arithmetic is
    /// right, and that is all. [`Line::arithmetic`] has the rule.
    Arithmetic,
}

/// Which part of the simulator a comparison looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// Caches, TLBs and page walks of the exact engine.
    Caches,
    /// Tiers by latency, bandwidth and load: what every machine file of ours uses.
    Tiers,
    /// Memory by its commands (`terrace-dram`).
    Commands,
    /// Policies in a simulation.
    Policies,
    /// The simulated kernel that does I/O.
    Kernel,
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
    /// Which part of the simulator is looked at.
    pub model: Model,
    /// Whether agreement checks arithmetic only, by the rule of [`Check::arithmetic`].
    pub arithmetic: bool,
    /// Where the reference comes from.
    pub source: String,
}

impl Line {
    /// What it comes to.
    pub fn state(&self) -> State {
        let near = |value: f64, share: f64| (self.ours - value).abs() <= share * value.abs();
        let (met, state) = match self.criterion {
            Criterion::Within(share) => (near(self.reference, share), State::Holds),
            Criterion::AtMost => (self.ours <= self.reference, State::Holds),
            Criterion::AtLeast => (self.ours >= self.reference, State::Holds),
            Criterion::Between(least, most) => ((least..=most).contains(&self.ours), State::Holds),
            Criterion::Differs(known) => (near(known.ours, known.within), State::Differs),
        };
        match (met, state) {
            (false, _) => State::Fails,
            (true, State::Holds) if self.arithmetic => State::Arithmetic,
            (true, state) => state,
        }
    }

    /// The same line as a check of arithmetic.
    #[must_use]
    pub fn arithmetic_only(self) -> Self {
        Self { arithmetic: true, ..self }
    }

    /// A formula's line.
    pub(super) fn formula(
        model: Model,
        what: &str,
        ours: f64,
        reference: f64,
        criterion: Criterion,
        source: &str,
    ) -> Self {
        Self {
            what: what.to_owned(),
            unit: "",
            ours,
            reference,
            criterion,
            kind: Reference::Formula,
            model,
            arithmetic: false,
            source: source.to_owned(),
        }
    }
}

impl From<Check> for Line {
    fn from(check: Check) -> Self {
        Self {
            what: check.what,
            unit: check.unit,
            ours: check.ours,
            reference: check.reference,
            criterion: Criterion::Within(check.tolerance),
            kind: check.kind,
            model: Model::Commands,
            arithmetic: check.arithmetic,
            source: check.source.to_owned(),
        }
    }
}

/// How many comparisons came to what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Comparisons that hold.
    pub holds: usize,
    /// Comparisons that fail.
    pub fails: usize,
    /// Comparisons that differ as is known.
    pub differs: usize,
    /// Checks of arithmetic that hold.
    pub arithmetic: usize,
}

impl Tally {
    /// Counts lines.
    pub fn of<'a>(lines: impl IntoIterator<Item = &'a Line>) -> Self {
        let mut tally = Self::default();
        for line in lines {
            *match line.state() {
                State::Holds => &mut tally.holds,
                State::Fails => &mut tally.fails,
                State::Differs => &mut tally.differs,
                State::Arithmetic => &mut tally.arithmetic,
            } += 1;
        }
        tally
    }

    /// All comparisons.
    pub fn total(&self) -> usize {
        self.holds + self.fails + self.differs + self.arithmetic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(ours: f64, criterion: Criterion) -> Line {
        Line::formula(Model::Tiers, "x", ours, 100.0, criterion, "")
    }

    #[test]
    fn a_line_holds_by_its_criterion() {
        let state = |ours, criterion| line(ours, criterion).state();
        assert_eq!(state(104.0, Criterion::Within(0.05)), State::Holds);
        assert_eq!(state(106.0, Criterion::Within(0.05)), State::Fails);
        assert_eq!(state(101.0, Criterion::AtMost), State::Fails);
        assert_eq!(state(99.0, Criterion::AtLeast), State::Fails);
        assert_eq!(state(99.0, Criterion::Between(90.0, 110.0)), State::Holds);
        assert_eq!(state(89.0, Criterion::Between(90.0, 110.0)), State::Fails);
        // No number is no agreement.
        assert_eq!(state(f64::NAN, Criterion::Within(0.05)), State::Fails);
    }

    /// A known difference that may be anything would be a line that cannot fail.
    #[test]
    fn a_known_difference_fails_when_it_becomes_another_one() {
        let known = Known { ours: 50.0, within: 0.1, cause: "why" };
        let state = |ours| line(ours, Criterion::Differs(known)).state();
        assert_eq!(state(52.0), State::Differs);
        assert_eq!(state(60.0), State::Fails);
        // Agreement, too, means that what is said of the difference is no longer true.
        assert_eq!(state(100.0), State::Fails);
    }

    #[test]
    fn checks_of_arithmetic_are_counted_apart_and_can_fail() {
        let right = line(100.0, Criterion::Within(0.05)).arithmetic_only();
        let wrong = line(110.0, Criterion::Within(0.05)).arithmetic_only();
        assert_eq!((right.state(), wrong.state()), (State::Arithmetic, State::Fails));
        let tally = Tally::of([&right, &wrong, &line(100.0, Criterion::AtMost)]);
        assert_eq!((tally.holds, tally.arithmetic, tally.fails), (1, 1, 1));
        assert_eq!(tally.total(), 3);
    }
}
