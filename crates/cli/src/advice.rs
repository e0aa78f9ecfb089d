//! What goes wrong with a run at the moment, and the command that helps: said by `terrace run`
//! when it lasts, and by `terrace top` for as long as it is so.

use std::fmt;

use terrace_core::Bytes;
use terrace_economics::Balance;
use terrace_report::{RunLevel, RunReport};

/// The part of the time in which processes thrash, from which on the run does.
const THRASHES: f64 = 0.5;
/// One part of so many of its budget a run may have beyond it where the kernel serves its faults, as it
/// is promised (`docs/engines.md`): it is bounded by 3 %, and what processors charge ahead.
const BY_KERNEL: u64 = 20;

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
    /// So little of swap is free that the budget cannot be kept for long.
    ShortOfSwap(Bytes),
    /// What was done for the program has taken more than it brought.
    Loses(Balance),
}

/// That what was done for a program has taken more than it brought, and what helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss(pub(crate) Balance);

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Balance { brought, took, deciding } = self.0;
        if self.0.actions_pay() {
            write!(
                f,
                "deciding took {deciding}, and what was decided on has gained {}; \
                 `--economist off` decides without prices",
                brought - took
            )
        } else {
            write!(
                f,
                "what was moved and filled ahead took {took} and has saved the program {brought}, \
                 as far as that is seen; without Terrace it may be faster"
            )
        }
    }
}

/// The figures that advice rests on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signs {
    /// The budget beside what is resident.
    pub(crate) level: RunLevel,
    /// Whether that is more than it may be for a moment.
    pub(crate) exceeds: bool,
    /// Processes that thrash, on average since the look before.
    pub(crate) thrashing: f64,
    /// What lies outside of the budget, where that is more than is left of it.
    pub(crate) outside: Option<Bytes>,
    /// Free swap, where that is too little for a run that needs it.
    pub(crate) swap: Option<Bytes>,
    /// What was done and what it brought, where that is less.
    pub(crate) loss: Option<Balance>,
}

impl Signs {
    /// Those of a run, which thrashed so much lately.
    pub(crate) fn of(report: &RunReport, thrashing: f64) -> Self {
        let is_outside = report.budget_kept_managed && !report.budget_kept;
        let outside = report.outside.as_ref().filter(|_| is_outside).map(|outside| outside.now);
        let outside = outside.filter(|outside| !outside.is_zero());
        let level = report.level();
        let balance = report.total.balance;
        let loss = balance.loses(report.elapsed).then_some(balance);
        Self { level, exceeds: level.exceeds(), thrashing, outside, swap: None, loss }
    }

    /// Those of a run whose faults the kernel serves. `swap` is the free swap, if that is too little.
    pub(crate) fn by_kernel(level: RunLevel, swap: Option<Bytes>, thrashing: f64) -> Self {
        let exceeds = level.resident > level.budget + level.budget / BY_KERNEL;
        // Pages come back by faults: what that engine does brings nothing that could be seen.
        Self { level, exceeds, thrashing, outside: None, swap, loss: None }
    }

    /// Whether the budget is exceeded.
    pub(crate) fn exceeded(&self) -> Option<Trouble> {
        self.exceeds.then_some(Trouble::Exceeded(self.level.resident))
    }

    /// Whether the run thrashes.
    pub(crate) fn thrashes(&self) -> Option<Trouble> {
        (self.thrashing > THRASHES).then_some(Trouble::Thrashing)
    }

    /// Whether too much lies outside.
    pub(crate) fn outside(&self) -> Option<Trouble> {
        self.outside.map(Trouble::Outside)
    }

    /// Whether too little of swap is left.
    pub(crate) fn short_of_swap(&self) -> Option<Trouble> {
        self.swap.map(Trouble::ShortOfSwap)
    }

    /// Whether what was done takes more than it brings.
    pub(crate) fn loses(&self) -> Option<Trouble> {
        self.loss.map(Trouble::Loses)
    }

    /// What helps against it. `run` is the number by which the run is found.
    pub(crate) fn advice(&self, trouble: Trouble, run: u32) -> Advice {
        Advice { run, budget: self.level.budget, trouble }
    }

    /// All that helps now.
    pub(crate) fn all(&self, run: u32) -> Vec<Advice> {
        let troubles =
            [self.exceeded(), self.thrashes(), self.outside(), self.short_of_swap(), self.loses()];
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
            Trouble::ShortOfSwap(free) => write!(
                f,
                "only {free} of swap are free, and the budget of {budget} cannot be kept without \
                 more; add swap (`swapon`), or `terrace set {run} --fast {}` allows more DRAM",
                written(*budget * 2)
            ),
            Trouble::Loses(balance) => write!(f, "{}", Loss(*balance)),
        }
    }
}

/// A size as options take it, not less.
fn written(size: Bytes) -> String {
    format!("{}MiB", size.get().div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use terrace_core::Nanos;

    use super::*;

    #[test]
    fn what_helps_is_a_command_that_can_be_typed() {
        let level = RunLevel {
            budget: Bytes::mib(24),
            resident: Bytes(48 * (1 << 20) + 1),
            ..RunLevel::default()
        };
        let (outside, swap) = (Some(Bytes::mib(300)), Some(Bytes::mib(3)));
        let loss = Some(Balance {
            brought: Nanos::seconds(5),
            took: Nanos::seconds(3),
            deciding: Nanos::seconds(4),
        });
        let signs = Signs { level, exceeds: true, thrashing: 0.7, outside, swap, loss };

        let all: Vec<_> = signs.all(7).iter().map(Advice::to_string).collect();

        assert_eq!(
            all,
            [
                "48.0 MiB are resident in a budget of 24.0 MiB; `terrace set 7 --fast 49MiB` \
                 allows it",
                "the program thrashes: a budget of 24.0 MiB is too small for what it uses; \
                 `terrace set 7 --fast 48MiB` gives it more",
                "300 MiB lie outside of the budget of 24.0 MiB; `kill -USR1 7` prints where",
                "only 3.00 MiB of swap are free, and the budget of 24.0 MiB cannot be kept without \
                 more; add swap (`swapon`), or `terrace set 7 --fast 48MiB` allows more DRAM",
                "deciding took 4.00 s, and what was decided on has gained 2.00 s; \
                 `--economist off` decides without prices",
            ]
        );
        let loss = Loss(Balance {
            brought: Nanos::seconds(1),
            took: Nanos::seconds(3),
            deciding: Nanos::ZERO,
        });
        let told = loss.to_string();
        assert!(told.starts_with("what was moved and filled ahead took 3.00 s"), "{told}");
    }

    #[test]
    fn a_run_that_is_well_needs_no_advice() {
        let level =
            RunLevel { budget: Bytes::mib(24), resident: Bytes::mib(24), ..RunLevel::default() };
        let signs = Signs {
            level,
            exceeds: level.exceeds(),
            thrashing: 0.5,
            outside: None,
            swap: None,
            loss: None,
        };
        assert_eq!(signs.all(7), []);
        assert_eq!(Signs::by_kernel(level, None, 0.5).all(7), []);
        let level = RunLevel { resident: Bytes::mib(25), ..level };
        assert_eq!(Signs::by_kernel(level, None, 0.5).all(7), [], "for a moment");
        assert!(level.exceeds(), "with the pager it is too much");
    }
}
