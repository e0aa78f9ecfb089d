//! What a run warns of while it goes on: its report at the end may come too late.

use std::time::{Duration, Instant};

use terrace_core::Nanos;

use crate::advice::{Advice, Signs};

/// How often the figures are looked at.
const EVERY: Duration = Duration::from_secs(1);
/// For how long a state must last before it is told: a budget that was just made smaller is
/// exceeded for a moment, and a program that moves on to other data misses pages.
const LASTS: Nanos = Nanos::seconds(10);
/// How long after a state was told it may be told again, if it has ended meanwhile.
const AGAIN: Nanos = Nanos::seconds(60);

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

/// What was seen of a run, of either engine, and told.
pub(crate) struct Warnings {
    due: Instant,
    /// How long the run had gone on at the last look, and thrashed.
    before: Option<(Nanos, Nanos)>,
    exceeded: Lasting,
    thrashing: Lasting,
    outside: Lasting,
    swap: Lasting,
    loss: Lasting,
}

impl Warnings {
    /// Nothing has been seen yet.
    pub(crate) fn new() -> Self {
        Self {
            due: Instant::now() + EVERY,
            before: None,
            exceeded: Lasting::default(),
            thrashing: Lasting::default(),
            outside: Lasting::default(),
            swap: Lasting::default(),
            loss: Lasting::default(),
        }
    }

    /// Whether it is time for a look.
    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// Looks at the figures; what is to be told. `elapsed` is for how long the run has gone on, and
    /// `thrashed` for how much of that it has thrashed; `signs` is given the part of the time since the look
    /// before in which it did. `run` is the number by which the run is found.
    pub(crate) fn look(
        &mut self,
        (elapsed, thrashed): (Nanos, Nanos),
        signs: impl FnOnce(f64) -> Signs,
        run: u32,
    ) -> Vec<Advice> {
        self.due = Instant::now() + EVERY;
        let (before, thrashed_before) =
            self.before.replace((elapsed, thrashed)).unwrap_or_default();
        let interval = elapsed - before;
        let lately = thrashed - thrashed_before;
        let thrashing = if interval.is_zero() { 0.0 } else { lately / interval };
        self.take(elapsed, &signs(thrashing), run)
    }

    fn take(&mut self, now: Nanos, signs: &Signs, run: u32) -> Vec<Advice> {
        // That is of the whole run: it is told once.
        let loss = if self.loss.told.is_none() { signs.loses() } else { None };
        let states = [
            (&mut self.exceeded, signs.exceeded()),
            (&mut self.thrashing, signs.thrashes()),
            (&mut self.outside, signs.outside()),
            (&mut self.swap, signs.short_of_swap()),
            (&mut self.loss, loss),
        ];
        let told = states.into_iter().filter_map(|(state, trouble)| {
            state.look(now, trouble.is_some()).then_some(trouble).flatten()
        });
        told.map(|trouble| signs.advice(trouble, run)).collect()
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::Bytes;
    use terrace_economics::Balance;
    use terrace_report::RunLevel;

    use super::*;

    fn signs(resident: u64, thrashing: f64) -> Signs {
        let level = RunLevel {
            budget: Bytes::mib(24),
            resident: Bytes::mib(resident),
            ..RunLevel::default()
        };
        let exceeds = level.exceeds();
        Signs { level, exceeds, thrashing, outside: None, swap: None, loss: None }
    }

    /// What is told in so many seconds, each with its figures.
    fn told(seconds: u64, figures: impl Fn(u64) -> Signs) -> Vec<(u64, String)> {
        let mut warnings = Warnings::new();
        let take = |second| {
            let told = warnings.take(Nanos::seconds(second), &figures(second), 7);
            told.into_iter().map(|advice| (second, advice.to_string())).collect::<Vec<_>>()
        };
        (0..seconds).flat_map(take).collect()
    }

    #[test]
    fn a_budget_that_stays_exceeded_is_told_once() {
        let told = told(200, |_| signs(48, 0.0));
        let [(10, line)] = &told[..] else { panic!("{told:?}") };
        assert!(line.starts_with("48.0 MiB are resident in a budget of 24.0 MiB; "), "{line}");
    }

    #[test]
    fn a_moment_is_not_told_and_what_comes_back_is_a_minute_later() {
        let told = told(200, |second| {
            // Two seconds of ten, and from the hundredth on nineteen of twenty.
            let exceeds = if second < 100 { second % 10 < 2 } else { second % 20 != 0 };
            signs(if exceeds { 30 } else { 24 }, 0.0)
        });
        let seconds: Vec<_> = told.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [111, 171]);
    }

    #[test]
    fn thrashing_is_told_with_the_command_that_helps() {
        let lasts = told(20, |_| signs(24, 0.7));
        let [(_, line)] = &lasts[..] else { panic!("{lasts:?}") };
        assert!(line.ends_with("`terrace set 7 --fast 48MiB` gives it more"), "{line}");
        assert_eq!(told(20, |_| signs(24, 0.3)), []);
    }

    /// The time since the look before counts, and not all of the run's.
    #[test]
    fn a_run_of_the_kernel_engine_is_told_of_in_the_same_words() {
        let mut warnings = Warnings::new();
        let level = |resident| RunLevel { resident: Bytes::mib(resident), ..signs(0, 0.0).level };
        let mut told = Vec::new();
        for second in 0..60 {
            // It thrashes in the last half of a minute, and has more than the twentieth that this
            // engine may have for a moment in the last quarter.
            let thrashed = Nanos::seconds(second - second.min(30));
            let (resident, swap) = if second < 45 { (25, None) } else { (26, Some(Bytes::mib(7))) };
            let signs = |thrashing| Signs::by_kernel(level(resident), swap, thrashing);
            let advice = warnings.look((Nanos::seconds(second), thrashed), signs, 7);
            told.extend(advice.into_iter().map(|advice| (second, advice.to_string())));
        }
        let [(41, thrashes), (55, exceeds), (55, swap)] = &told[..] else { panic!("{told:?}") };
        assert!(thrashes.ends_with("`terrace set 7 --fast 48MiB` gives it more"), "{thrashes}");
        assert!(
            exceeds.starts_with("26.0 MiB are resident in a budget of 24.0 MiB; "),
            "{exceeds}"
        );
        assert!(swap.starts_with("only 7.00 MiB of swap are free"), "{swap}");
    }

    /// The balance is of all that was done: that it was below zero for a while says nothing new.
    #[test]
    fn that_a_run_loses_is_told_once() {
        let told = told(300, |second| {
            let took = Nanos::seconds(if second % 100 < 50 { 9 } else { 0 });
            let loss = Balance { took, ..Balance::default() };
            Signs { loss: (!took.is_zero()).then_some(loss), ..signs(8, 0.0) }
        });
        let [(10, line)] = &told[..] else { panic!("{told:?}") };
        assert!(line.starts_with("what was moved and filled ahead took 9.00 s"), "{line}");
    }

    #[test]
    fn what_lies_outside_is_told() {
        let outside = Some(Bytes::mib(300));
        let told = told(20, |_| Signs { outside, ..signs(8, 0.0) });
        let [(_, line)] = &told[..] else { panic!("{told:?}") };
        assert!(line.starts_with("300 MiB lie outside of the budget of 24.0 MiB"), "{line}");
    }
}
