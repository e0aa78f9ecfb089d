//! What a run warns of while it goes on: its report at the end may come too late.

use std::time::{Duration, Instant};

use terrace_core::{Bytes, Nanos};
use terrace_report::{RunLevel, RunReport};

/// How often the figures are looked at.
const EVERY: Duration = Duration::from_secs(1);
/// For how long a state must last before it is told: a budget that was just made smaller is
/// exceeded for a moment, and a program that moves on to other data misses pages.
const LASTS: Nanos = Nanos::seconds(10);
/// How long after a state was told it may be told again, if it has ended meanwhile.
const AGAIN: Nanos = Nanos::seconds(60);
/// The part of the time in which processes thrash, from which on the run does.
const THRASHES: f64 = 0.5;

/// A state that may last.
#[derive(Debug, Default)]
struct Lasting {
    since: Option<Nanos>,
    /// When it was told last, and whether it has ended since.
    told: Option<(Nanos, bool)>,
}

impl Lasting {
    /// Takes a look; whether the state is to be told now.
    fn look(&mut self, now: Nanos, holds: bool) -> bool {
        if !holds {
            self.since = None;
            if let Some((_, has_ended)) = &mut self.told {
                *has_ended = true;
            }
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let is_new = self.told.is_none_or(|(at, has_ended)| has_ended && now - at >= AGAIN);
        let is_told = is_new && now - since >= LASTS;
        if is_told {
            self.told = Some((now, false));
        }
        is_told
    }
}

/// Figures of a run at one moment.
#[derive(Clone, Copy, Debug)]
struct Look {
    elapsed: Nanos,
    level: RunLevel,
    /// Time in which processes have thrashed until then.
    thrashed: Nanos,
    /// What lies outside of the budget, where that is more than is left of it.
    outside: Option<Bytes>,
}

impl Look {
    fn at(report: &RunReport) -> Self {
        let is_outside = report.budget_kept_managed && !report.budget_kept;
        Self {
            elapsed: report.elapsed,
            level: report.level(),
            thrashed: report.total.thrashing,
            outside: report.outside.as_ref().filter(|_| is_outside).map(|outside| outside.now),
        }
    }
}

/// What was seen of a run, and told.
pub(super) struct Warnings {
    due: Instant,
    before: Option<Look>,
    exceeded: Lasting,
    thrashing: Lasting,
    outside: Lasting,
}

impl Warnings {
    /// Nothing has been seen yet.
    pub(super) fn new() -> Self {
        Self {
            due: Instant::now() + EVERY,
            before: None,
            exceeded: Lasting::default(),
            thrashing: Lasting::default(),
            outside: Lasting::default(),
        }
    }

    /// Whether it is time for a look.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Looks at the figures; what is to be told. `run` is the number by which the run is found.
    pub(super) fn look(&mut self, report: &RunReport, run: u32) -> Vec<String> {
        self.due = Instant::now() + EVERY;
        self.take(Look::at(report), run)
    }

    fn take(&mut self, look: Look, run: u32) -> Vec<String> {
        let RunLevel { budget, resident, .. } = look.level;
        let mut told = Vec::new();
        if self.exceeded.look(look.elapsed, look.level.exceeds()) {
            told.push(format!(
                "{resident} are resident in a budget of {budget}; `terrace top {run}` shows what \
                 keeps them there"
            ));
        }
        let thrashes = self.before.is_some_and(|before| {
            let interval = look.elapsed - before.elapsed;
            let thrashed = look.thrashed.saturating_sub(before.thrashed);
            !interval.is_zero() && thrashed / interval > THRASHES
        });
        if self.thrashing.look(look.elapsed, thrashes) {
            told.push(format!(
                "the program thrashes: a budget of {budget} is too small for what it uses; \
                 `terrace set {run} --fast {}` gives it more",
                written(budget * 2)
            ));
        }
        let outside = look.outside.filter(|outside| !outside.is_zero());
        if self.outside.look(look.elapsed, outside.is_some())
            && let Some(outside) = outside
        {
            told.push(format!(
                "{outside} lie outside of the budget of {budget}; `kill -USR1 {run}` prints where"
            ));
        }
        self.before = Some(look);
        told
    }
}

/// A size as options take it.
fn written(size: Bytes) -> String {
    format!("{}MiB", size.get().div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(second: u64, resident: u64, thrashed: u64) -> Look {
        let level = RunLevel {
            budget: Bytes::mib(24),
            resident: Bytes::mib(resident),
            ..RunLevel::default()
        };
        Look {
            elapsed: Nanos::seconds(second),
            level,
            thrashed: Nanos::millis(thrashed),
            outside: None,
        }
    }

    #[test]
    fn a_budget_that_stays_exceeded_is_told_once() {
        let mut warnings = Warnings::new();
        let told: Vec<_> =
            (0..200).flat_map(|second| warnings.take(look(second, 48, 0), 7)).collect();
        let line = "48.0 MiB are resident in a budget of 24.0 MiB; `terrace top 7` shows what \
                    keeps them there";
        assert_eq!(told, [line]);
    }

    #[test]
    fn a_moment_is_not_told_and_what_comes_back_is_a_minute_later() {
        let mut warnings = Warnings::new();
        let mut seconds = Vec::new();
        for second in 0..200 {
            // Two seconds of ten, and from the hundredth on nineteen of twenty.
            let exceeds = if second < 100 { second % 10 < 2 } else { second % 20 != 0 };
            let resident = if exceeds { 30 } else { 24 };
            if !warnings.take(look(second, resident, 0), 7).is_empty() {
                seconds.push(second);
            }
        }
        assert_eq!(seconds, [111, 171]);
    }

    #[test]
    fn thrashing_is_told_with_the_command_that_helps() {
        let mut warnings = Warnings::new();
        let told: Vec<_> =
            (0..20).flat_map(|second| warnings.take(look(second, 24, second * 700), 7)).collect();
        let [line] = &told[..] else { panic!("{told:?}") };
        assert!(line.ends_with("`terrace set 7 --fast 48MiB` gives it more"), "{line}");
        let mut calm = Warnings::new();
        assert!((0..20).all(|second| calm.take(look(second, 24, second * 300), 7).is_empty()));
    }

    #[test]
    fn what_lies_outside_is_told() {
        let mut warnings = Warnings::new();
        let outside = Some(Bytes::mib(300));
        let told: Vec<_> = (0..20)
            .flat_map(|second| warnings.take(Look { outside, ..look(second, 8, 0) }, 7))
            .collect();
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("300 MiB lie outside of the budget of 24.0 MiB"), "{told:?}");
    }
}
