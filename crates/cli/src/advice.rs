//! What goes wrong with a run at the moment, and the command that helps: said by `terrace run`
//! when it lasts, and by `terrace top` for as long as it is so.

use std::fmt;

use terrace_core::Bytes;
use terrace_report::{RunLevel, RunReport};

/// The part of the time in which processes thrash, from which on the run does.
const THRASHES: f64 = 0.5;

/// Something that helps a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advice {
    /// Whose budget it is: the run's own number, or that of the run that it has joined.
    run: u32,
    budget: Bytes,
    trouble: Trouble,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// More is resident than the budget allows.
    Exceeded(Bytes),
    /// What leaves comes back at once, and is waited for.
    Thrashing,
    /// More lies outside of the budget than is left of it.
    Outside(Bytes),
}

/// The figures that advice rests on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signs {
    /// The budget beside what is resident.
    pub(crate) level: RunLevel,
    /// Processes that thrash, on average since the look before.
    pub(crate) thrashing: f64,
    /// What lies outside of the budget, where that is more than is left of it.
    pub(crate) outside: Option<Bytes>,
}

impl Signs {
    /// Those of a run, which thrashed so much lately.
    pub(crate) fn of(report: &RunReport, thrashing: f64) -> Self {
        let is_outside = report.budget_kept_managed && !report.budget_kept;
        let outside = report.outside.as_ref().filter(|_| is_outside).map(|outside| outside.now);
        let outside = outside.filter(|outside| !outside.is_zero());
        Self { level: report.level(), thrashing, outside }
    }

    /// Whether the budget is exceeded.
    pub(crate) fn exceeded(&self) -> Option<Trouble> {
        self.level.exceeds().then_some(Trouble::Exceeded(self.level.resident))
    }

    /// Whether the run thrashes.
    pub(crate) fn thrashes(&self) -> Option<Trouble> {
        (self.thrashing > THRASHES).then_some(Trouble::Thrashing)
    }

    /// Whether too much lies outside.
    pub(crate) fn outside(&self) -> Option<Trouble> {
        self.outside.map(Trouble::Outside)
    }

    /// What helps against it. `run` is the number by which the run is found.
    pub(crate) fn advice(&self, trouble: Trouble, run: u32) -> Advice {
        Advice { run, budget: self.level.budget, trouble }
    }

    /// All that helps now.
    pub(crate) fn all(&self, run: u32) -> Vec<Advice> {
        let troubles = [self.exceeded(), self.thrashes(), self.outside()];
        troubles.into_iter().flatten().map(|trouble| self.advice(trouble, run)).collect()
    }
}

/// The number by which the run is found whose budget a run has. `own` is the run's.
pub(crate) fn whose(report: &RunReport, own: u32) -> u32 {
    report.budget_of.unwrap_or(own)
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, budget, trouble } = self;
        match trouble {
            Trouble::Exceeded(resident) => write!(
                f,
                "{resident} are resident in a budget of {budget}; `terrace set {run} --fast {}` \
                 allows it",
                written(*resident)
            ),
            Trouble::Thrashing => write!(
                f,
                "the program thrashes: a budget of {budget} is too small for what it uses; \
                 `terrace set {run} --fast {}` gives it more",
                written(*budget * 2)
            ),
            Trouble::Outside(outside) => write!(
                f,
                "{outside} lie outside of the budget of {budget}; `kill -USR1 {run}` prints where"
            ),
        }
    }
}

/// A size as options take it, not less.
fn written(size: Bytes) -> String {
    format!("{}MiB", size.get().div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_helps_is_a_command_that_can_be_typed() {
        let level = RunLevel {
            budget: Bytes::mib(24),
            resident: Bytes(48 * (1 << 20) + 1),
            ..RunLevel::default()
        };
        let signs = Signs { level, thrashing: 0.7, outside: Some(Bytes::mib(300)) };

        let all: Vec<_> = signs.all(7).iter().map(Advice::to_string).collect();

        assert_eq!(
            all,
            [
                "48.0 MiB are resident in a budget of 24.0 MiB; `terrace set 7 --fast 49MiB` \
                 allows it",
                "the program thrashes: a budget of 24.0 MiB is too small for what it uses; \
                 `terrace set 7 --fast 48MiB` gives it more",
                "300 MiB lie outside of the budget of 24.0 MiB; `kill -USR1 7` prints where",
            ]
        );
    }

    #[test]
    fn a_run_that_is_well_needs_no_advice() {
        let level =
            RunLevel { budget: Bytes::mib(24), resident: Bytes::mib(24), ..RunLevel::default() };
        assert_eq!(Signs { level, thrashing: 0.5, outside: None }.all(7), []);
    }
}
