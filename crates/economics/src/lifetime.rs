//! How long pages stay in use: the part of the horizon that is learnt.
//!
//! Pages that a policy calls hot are tried: their samples are counted in the
//! first and in the second half of a fixed time from then on. A page whose use
//! decays as `e^(-t/τ)` is sampled `e^(h/τ)` times as often in the first half,
//! of length `h`, as in the second. Trials begin before these samples are
//! taken and go on wherever the page is moved meanwhile, or is not, so that
//! neither the policy's choice nor ours favours one of the halves.

use terrace_core::{Nanos, PageNo, PageRange, PageRef, RegionId, Sample};

use crate::watch::scatter;

/// Pages on trial at a time.
const PLACES: usize = 1024;

/// Samples that must have been seen in first halves before experience replaces
/// the configured lifetime.
const ENOUGH: f64 = 64.0;

/// Trials over which experience is averaged: a program that changes its ways
/// is understood again after so many.
const MEMORY: f64 = 1024.0;

/// Seconds; no page is believed to stay in use for longer.
const LONGEST: f64 = 3600.0;

/// The trials, and what they taught.
#[derive(Clone, Debug)]
pub(crate) struct Lifetimes {
    trials: Box<[Trial]>,
    open: usize,
    /// For how long a page is tried. Not for the present horizon: that may have
    /// become long, and then it would take long to notice that it is short.
    length: Nanos,
    /// Where the next sweep for ended trials begins.
    hand: usize,
    experience: Experience,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    page: PageRef,
    /// `None` for a free place.
    begin: Option<Nanos>,
    /// Samples in the first and in the second half.
    samples: [f32; 2],
}

impl Lifetimes {
    /// No trials yet; none at all if nothing is to be learnt.
    pub(crate) fn new(enabled: bool, length: Nanos) -> Self {
        let page = PageRef { region: RegionId(0), page: PageNo(0) };
        let free = Trial { page, begin: None, samples: [0.0; 2] };
        let places = if enabled { PLACES } else { 0 };
        Self {
            trials: vec![free; places].into_boxed_slice(),
            open: 0,
            length,
            hand: 0,
            experience: Experience::default(),
        }
    }

    /// How long a page stays in use; `None` before enough was seen.
    pub(crate) fn estimate(&self, z: f64) -> Option<Nanos> {
        self.experience.estimate(z)
    }

    /// A page was called hot: tries it, unless its place is taken, be it by itself.
    pub(crate) fn begin(&mut self, page: PageRef, now: Nanos) {
        if self.trials.is_empty() {
            return;
        }
        let trial = &mut self.trials[scatter(page) % PLACES];
        if trial.begin.is_none() {
            *trial = Trial { page, begin: Some(now), samples: [0.0; 2] };
            self.open += 1;
        }
    }

    /// Accesses were observed.
    pub(crate) fn observe(&mut self, samples: &[Sample], now: Nanos) {
        if self.open == 0 {
            return;
        }
        for sample in samples {
            let trial = &mut self.trials[scatter(sample.page) % PLACES];
            let Some(begin) = trial.begin else { continue };
            if trial.page != sample.page {
                continue;
            }
            let age = now.saturating_sub(begin);
            if age <= self.length {
                let second = age > self.length / 2;
                trial.samples[usize::from(second)] += f32::from(sample.weight);
            }
        }
    }

    /// Pages were given back: they are out of use, which is a result.
    pub(crate) fn forget(&mut self, range: PageRange) {
        if self.open == 0 {
            return;
        }
        if (range.count as usize) < PLACES {
            for page in range.pages() {
                self.end_if(scatter(page) % PLACES, |trial, _| trial.page == page);
            }
        } else {
            for place in 0..PLACES {
                self.end_if(place, |trial, _| range.contains(trial.page));
            }
        }
    }

    /// Ends the trials whose time is over, looking at `count` places.
    pub(crate) fn sweep(&mut self, count: usize, now: Nanos) {
        if self.open == 0 {
            return;
        }
        let length = self.length;
        for _ in 0..count {
            self.end_if(self.hand, |_, begin| now.saturating_sub(begin) > length);
            self.hand = (self.hand + 1) % PLACES;
        }
    }

    fn end_if(&mut self, place: usize, over: impl Fn(&Trial, Nanos) -> bool) {
        let trial = &mut self.trials[place];
        if trial.begin.is_some_and(|begin| over(trial, begin)) {
            let [first, second] = trial.samples.map(f64::from);
            self.experience.ended(first, second, self.length);
            trial.begin = None;
            self.open -= 1;
        }
    }
}

/// What was seen in first and second halves.
#[derive(Clone, Copy, Debug, Default)]
struct Experience {
    first: f64,
    second: f64,
    /// Sum of `h` over the samples of first halves, in seconds.
    length: f64,
}

impl Experience {
    fn ended(&mut self, first: f64, second: f64, length: Nanos) {
        let keep = 1.0 - 1.0 / MEMORY;
        self.first = self.first * keep + first;
        self.second = self.second * keep + second;
        self.length = self.length * keep + first * length.as_secs() / 2.0;
    }

    /// The lifetime, as short as the samples allow within `z` standard errors.
    fn estimate(&self, z: f64) -> Option<Nanos> {
        if self.first < ENOUGH {
            return None;
        }
        let second = self.second.max(0.5);
        let decay = (self.first / second).ln().max(0.0);
        let error = z * (1.0 / self.first + 1.0 / second).sqrt();
        let half = self.length / self.first;
        let seconds = half / (decay + error).max(1e-9);
        Some(Nanos::from_f64(seconds.min(LONGEST) * 1e9).max(Nanos(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(trials: u32, first: f64, second: f64) -> Option<f64> {
        let mut experience = Experience::default();
        for _ in 0..trials {
            experience.ended(first, second, Nanos::seconds(10));
        }
        experience.estimate(1.0).map(Nanos::as_secs)
    }

    #[test]
    fn a_decay_is_recognised() {
        // e^-1 from half to half of five seconds: a lifetime of five seconds.
        let found = after(9000, 100.0, 100.0 * (-1.0f64).exp()).unwrap();
        assert!((found / 5.0 - 1.0).abs() < 0.05, "{found}");
    }

    #[test]
    fn pages_that_stay_in_use_are_believed_as_far_as_the_samples_reach() {
        let few = after(20, 10.0, 10.0).unwrap();
        let many = after(9000, 100.0, 100.0).unwrap();
        assert!(few > 30.0 && few < many, "{few} {many}");
    }

    #[test]
    fn pages_that_are_never_touched_again_are_short_lived() {
        let found = after(100, 10.0, 0.0).unwrap();
        assert!(found < 2.0, "{found}");
    }

    #[test]
    fn little_experience_is_no_experience() {
        assert_eq!(after(3, 10.0, 10.0), None);
    }
}
