//! How old memory is when it leaves: what a forecast counts as idle, and nothing else.
//!
//! Asked for memory, the kernel goes by its own lists. It moves pages from the active to the inactive one
//! as it goes along, and takes the marks of accesses off them: when it comes to them again, a page in use
//! may look like one that is not. How old a page is that leaves depends on how fast memory is asked for.
//!
//! So memory leaves in turns. At the beginning of one all marks are taken off, and all pages are put on the
//! inactive list ([`Governed::forget`](super::Governed::forget)). It is left alone then for as long as
//! pages have to be idle. At the end the kernel is asked for no more than what has no mark
//! ([`Governed::idle`](super::Governed::idle)): it walks along one list, keeps what is marked, and takes
//! the rest. For these pages a forecast knows what comes back: what is touched in the next turn
//! ([`working_set`](super::working_set)).
//!
//! How long a turn is follows from the slowdown: longer above the target, shorter below.

use terrace_core::{Bytes, Nanos};

use super::control::LEAST;
use super::slowdown::Slowdown;

/// The shortest turn: one look.
const YOUNGEST: f64 = 1.0;
/// The longest, in seconds. What would have to be idle for longer leaves in part: where that is twice as
/// long, half of it. As much as that is out of it as a forecast counts that knows no longer times.
const OLDEST: f64 = 16.0;
/// At that age nearly nothing leaves.
const EVER: f64 = 256.0;
/// What part of the target is aimed at: above the target nothing leaves, so it lies a little below.
const AIM: f64 = 0.97;
/// By how much the age changes in a second without any slowdown, as a logarithm: a half in 14 s.
const GAIN: f64 = 0.05;
/// A second's slowdown counts for no more than so many times what is aimed at.
const MOST_OFF: f64 = 20.0;
/// The most that leaves beside what came back, as a part of what is resident, for each second of a turn.
const PACE: f64 = 0.04;
/// What part of idle memory is asked for. The rest is a margin: pages that several processes share, or
/// that a processor has yet to put on a list, are not where the kernel looks, which would then go on to
/// pages in use.
const SURE: f64 = 7.0 / 8.0;
/// A turn is at least so many times as long as it took to begin it, so that large memories do not take a
/// processor: 2 % of one for the beginning, and about as much for the look at the end.
const DEAR: u64 = 50;

/// Decides when memory leaves, and how much, by how long it has not been touched.
#[derive(Clone, Debug)]
pub struct Ages {
    target: f64,
    /// For how long memory is idle that leaves, in seconds.
    age: f64,
    turn: Option<Turn>,
    /// The most that may leave at the end of the turn: adds up since the end of the one before.
    most: Bytes,
    /// By how many seconds turns were longer than they were to be. Looks come once a second, so that one
    /// of 2.5 s is one of 3 s, and then one of 2 s.
    late: f64,
    /// Whether hardly anything was idle in the last turn. All that can be out is, or all is in use, and
    /// looking again at once costs the same for nothing.
    found_nothing: bool,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    begun: Nanos,
    /// It is no shorter, in seconds.
    least: f64,
}

impl Ages {
    /// For a slowdown, a share. Memory that leaves is as old as it can be at first.
    pub fn new(target: f64) -> Self {
        Self { target, age: OLDEST, turn: None, most: Bytes::ZERO, late: 0.0, found_nothing: false }
    }

    /// Begins with another age: the one that was forecast.
    pub fn start_at(&mut self, age: Nanos) {
        self.age = age.as_secs().clamp(YOUNGEST, EVER);
    }

    /// For how long memory is idle that leaves now.
    pub fn age(&self) -> Nanos {
        Nanos::from_f64(self.age * 1e9)
    }

    /// Takes note of an interval: its slowdown, how long it was, what came back in it and what is resident.
    pub fn note(&mut self, slowdown: &Slowdown, length: Nanos, back: Bytes, resident: Bytes) {
        let seconds = length.as_secs();
        let off = (slowdown.share() / (self.target * AIM) - 1.0).min(MOST_OFF);
        self.age = (self.age * (GAIN * seconds * off).exp()).clamp(YOUNGEST, EVER);
        self.most += back + Bytes::from_f64(resident.as_f64() * PACE * seconds);
    }

    /// Whether memory grows old.
    pub fn has_begun(&self) -> bool {
        self.turn.is_some()
    }

    /// From now on it does; what it took to forget how old it was.
    pub fn begin(&mut self, now: Nanos, took: Nanos) {
        let least = if self.found_nothing { OLDEST } else { YOUNGEST };
        self.turn = Some(Turn { begun: now, least: (took * DEAR).as_secs().max(least) });
    }

    /// How long the turn is to be, in seconds.
    fn length(&self, turn: &Turn) -> f64 {
        (self.age.min(OLDEST) - self.late).max(turn.least)
    }

    /// Whether what has not been touched in the turn is old enough.
    pub fn is_due(&self, now: Nanos) -> bool {
        self.turn.is_some_and(|turn| {
            let age = now.saturating_sub(turn.begun).as_secs();
            // Who looks once a second looks a little early at times.
            age + age / 16.0 >= self.length(&turn)
        })
    }

    /// Ends the turn. What is to leave, of so much that was not touched in it.
    pub fn end(&mut self, now: Nanos, idle: Bytes) -> Bytes {
        let Some(turn) = self.turn.take() else { return Bytes::ZERO };
        let age = now.saturating_sub(turn.begun).as_secs();
        self.late = (self.late + age - self.age.min(OLDEST)).clamp(-1.0, 1.0);
        self.found_nothing = idle < LEAST;
        let part = SURE * (OLDEST / self.age).min(1.0);
        Bytes::from_f64(idle.as_f64() * part).min(std::mem::take(&mut self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::super::slowdown::Source;
    use super::*;

    const SECOND: Nanos = Nanos::SECOND;
    const ALL: Bytes = Bytes::gib(1);

    /// A second with such a slowdown.
    fn second(share: f64) -> Slowdown {
        let stalled = Nanos::from_f64(share * SECOND.as_f64());
        Slowdown { stalled, ran: SECOND, source: Source::Refaults }
    }

    fn pass(ages: &mut Ages, share: f64, seconds: u32) {
        (0..seconds).for_each(|_| ages.note(&second(share), SECOND, Bytes::ZERO, ALL));
    }

    #[test]
    fn memory_has_to_be_older_above_the_target_and_may_be_younger_below() {
        let mut ages = Ages::new(0.02);
        ages.start_at(SECOND * 8);
        pass(&mut ages, 0.02 * AIM, 100);
        assert!((ages.age().as_secs() - 8.0).abs() < 0.01, "{ages:?}");
        pass(&mut ages, 0.01, 10);
        let younger = ages.age();
        assert!(younger < SECOND * 7 && younger > SECOND * 4, "{ages:?}");
        pass(&mut ages, 0.03, 10);
        assert!(ages.age() > younger, "{ages:?}");
        // A mean is what counts: a bad second is made up for by as many good ones as pay for it.
        let before = ages.age().as_secs();
        pass(&mut ages, 0.02 * AIM * 5.0, 1);
        pass(&mut ages, 0.0, 4);
        assert!((ages.age().as_secs() / before - 1.0).abs() < 0.01, "{ages:?}");
    }

    #[test]
    fn the_age_has_bounds() {
        let mut ages = Ages::new(0.02);
        pass(&mut ages, 0.0, 1000);
        assert_eq!(ages.age(), SECOND);
        pass(&mut ages, 1e9, 1000);
        assert_eq!(ages.age(), SECOND * 256);
        ages.note(&second(0.0), SECOND * 1_000_000, Bytes::ZERO, ALL);
        assert_eq!(ages.age(), SECOND, "after a suspended machine");
        ages.start_at(Nanos::ZERO);
        assert_eq!(ages.age(), SECOND);
    }

    #[test]
    fn a_turn_is_as_long_as_memory_has_to_be_idle() {
        let mut ages = Ages::new(0.02);
        ages.start_at(SECOND * 4);
        assert!(!ages.is_due(SECOND * 100), "none has begun");
        ages.begin(SECOND * 100, Nanos::ZERO);
        assert!(!ages.is_due(SECOND * 103));
        assert!(ages.is_due(SECOND * 104) && ages.is_due(Nanos::millis(103_900)));
        ages.end(SECOND * 104, Bytes::ZERO);
        assert!(!ages.has_begun() && !ages.is_due(SECOND * 200));
    }

    /// Were each turn rounded up, memory would be 3 s old that is to be 2.5 s old.
    #[test]
    fn turns_are_as_long_as_they_are_to_be_as_a_mean() {
        let mut ages = Ages::new(0.02);
        ages.start_at(Nanos::millis(2500));
        let (mut now, mut turns) = (SECOND, 0);
        ages.begin(now, Nanos::ZERO);
        while now < SECOND * 101 {
            now += SECOND;
            if ages.is_due(now) {
                ages.end(now, Bytes::mib(1));
                ages.begin(now, Nanos::ZERO);
                turns += 1;
            }
        }
        assert!((38..=42).contains(&turns), "{turns}");
    }

    #[test]
    fn a_turn_that_is_dear_to_begin_is_long() {
        let mut ages = Ages::new(0.02);
        ages.start_at(SECOND);
        ages.begin(Nanos::ZERO, Nanos::millis(500));
        assert!(!ages.is_due(SECOND * 20) && ages.is_due(SECOND * 25));
    }

    #[test]
    fn a_turn_is_long_after_one_in_which_nothing_was_idle() {
        let mut ages = Ages::new(0.02);
        ages.start_at(SECOND);
        for (idle, length) in [(Bytes::mib(1), 1), (Bytes::ZERO, 16), (Bytes::mib(1), 1)] {
            ages.begin(Nanos::ZERO, Nanos::ZERO);
            ages.end(SECOND, idle);
            ages.begin(Nanos::ZERO, Nanos::ZERO);
            let due = (1..100).find(|&seconds| ages.is_due(SECOND * seconds));
            assert_eq!(due, Some(length), "{idle}");
        }
    }

    /// What leaves at the end of a turn in which this was not touched.
    fn leaves(ages: &mut Ages, seconds: u32, back: Bytes, idle: Bytes) -> Bytes {
        ages.begin(Nanos::ZERO, Nanos::ZERO);
        let calm = second(0.02 * AIM);
        (0..seconds).for_each(|_| ages.note(&calm, SECOND, back, ALL));
        ages.end(SECOND * u64::from(seconds), idle)
    }

    #[test]
    fn no_more_leaves_than_is_idle_and_nothing_in_a_hurry() {
        let mut ages = Ages::new(0.02);
        ages.start_at(SECOND * 4);
        let none = Bytes::ZERO;
        assert_eq!(leaves(&mut ages, 4, none, none), none);
        assert_eq!(leaves(&mut ages, 4, none, Bytes::mib(64)), Bytes::mib(56));
        // 4 % a second, and what came back.
        let pace = leaves(&mut ages, 4, none, ALL).as_f64() / ALL.as_f64();
        assert!((pace - 0.16).abs() < 1e-6, "{pace}");
        let more = leaves(&mut ages, 4, Bytes::mib(10), ALL).as_f64() / ALL.as_f64();
        assert!((more - 0.16 - 40.0 / 1024.0).abs() < 1e-6, "{more}");
        // Nor was it saved up.
        let pace = leaves(&mut ages, 4, none, ALL).as_f64() / ALL.as_f64();
        assert!((pace - 0.16).abs() < 1e-6, "{pace}");
    }

    #[test]
    fn of_what_is_to_be_older_than_a_turn_a_part_leaves() {
        let mut ages = Ages::new(0.02);
        ages.start_at(SECOND * 32);
        assert_eq!(leaves(&mut ages, 16, Bytes::ZERO, Bytes::mib(64)), Bytes::mib(28));
    }
}
