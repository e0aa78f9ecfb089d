//! Several samplers that watch the same programs under a common cap.

use terrace_core::{Nanos, Sample};

use crate::governor::Governor;
use crate::sampler::{Health, Pages, Sampler, SamplerError};

/// Of what observing may cost, the share of the first sampler, on which a policy depends most; and of
/// each other one. The rest is for others, and for passes over the page tables.
const SHARES: (f64, f64) = (0.6, 0.25);

/// Samplers with what keeps each within its share of the cost.
#[derive(Default)]
pub struct Watchers {
    all: Vec<(Box<dyn Sampler>, Governor)>,
    samples: Vec<Sample>,
    /// Of those that stopped working.
    buried: Health,
    degraded: Vec<SamplerError>,
}

impl Watchers {
    /// Samplers in the order of their worth, which may use a share of one processor together.
    pub fn new(samplers: Vec<Box<dyn Sampler>>, cap: f64) -> Self {
        let watcher = |(i, sampler): (usize, Box<dyn Sampler>)| {
            let cap = cap * if i == 0 { SHARES.0 } else { SHARES.1 };
            let rests = sampler.rests();
            let governor = if rests { Governor::new(cap) } else { Governor::of_driven(cap) };
            (sampler, governor)
        };
        Self { all: samplers.into_iter().enumerate().map(watcher).collect(), ..Self::default() }
    }

    /// What is left of the cap for others.
    pub fn rest(&self, cap: f64) -> f64 {
        match self.all.len() {
            0 => cap,
            n => cap * (1.0 - SHARES.0 - SHARES.1 * (n - 1) as f64).max(0.1),
        }
    }

    /// Whether any is at work.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether what none of them sees is idle: one at least sees loads, too.
    pub fn see_loads(&self) -> bool {
        self.all.iter().any(|(sampler, _)| sampler.sees_loads())
    }

    /// What they have seen since the last time. Those that would cost less for it rest while they
    /// have used up their shares. One that fails goes, and the others go on.
    pub fn collect(&mut self, now: Nanos, pages: &dyn Pages) -> &[Sample] {
        self.samples.clear();
        let mut i = 0;
        while i < self.all.len() {
            let (sampler, governor) = &mut self.all[i];
            let order = governor.judge(now, sampler.health().cpu);
            // Also while it rests: what the kernel drives goes on meanwhile.
            sampler.set_rarity(order.rarity);
            if sampler.rests() && now < order.rest_until {
                i += 1;
                continue;
            }
            match sampler.collect(now, pages, &mut self.samples) {
                Ok(()) => i += 1,
                Err(error) => {
                    let (gone, _) = self.all.remove(i);
                    self.buried += gone.health();
                    self.degraded.push(error);
                }
            }
        }
        &self.samples
    }

    /// Those that stopped working since the last call.
    pub fn take_degraded(&mut self) -> Vec<SamplerError> {
        std::mem::take(&mut self.degraded)
    }

    /// Each with how it fares.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, Health)> {
        self.all.iter().map(|(sampler, _)| (sampler.name(), sampler.health()))
    }

    /// How all fare together, those that are gone included.
    pub fn health(&self) -> Health {
        self.all.iter().fold(self.buried, |mut sum, (sampler, _)| {
            sum += sampler.health();
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use terrace_core::PageRef;

    use super::*;
    use crate::sampler::ProcessRange;

    struct Nothing;
    impl Pages for Nothing {
        fn page_at(&self, _: u32, _: u64) -> Option<PageRef> {
            None
        }
        fn pages_in(&self, _: ProcessRange, _: &mut dyn FnMut(PageRef, Range<u64>)) {}
        fn ranges(&self) -> Vec<ProcessRange> {
            Vec::new()
        }
    }

    /// Works so many times, and costs a millisecond each.
    struct Works(u32, Health);
    impl Sampler for Works {
        fn name(&self) -> &'static str {
            "works"
        }
        fn period(&self) -> u64 {
            1
        }
        fn collect(
            &mut self,
            _: Nanos,
            _: &dyn Pages,
            _: &mut Vec<Sample>,
        ) -> Result<(), SamplerError> {
            self.0 = self.0.checked_sub(1).ok_or_else(|| SamplerError::new("works", "no more"))?;
            self.1.cpu += Nanos::millis(1);
            self.1.delivered += 1;
            Ok(())
        }
        fn set_rarity(&mut self, _: u32) {}
        fn health(&self) -> Health {
            self.1
        }
    }

    #[test]
    fn one_that_fails_goes_and_what_it_did_is_not_forgotten() {
        let two: Vec<Box<dyn Sampler>> =
            vec![Box::new(Works(1, Health::default())), Box::new(Works(9, Health::default()))];
        let mut watchers = Watchers::new(two, 1.0);
        watchers.collect(Nanos::ZERO, &Nothing);
        watchers.collect(Nanos::seconds(1), &Nothing);
        assert_eq!(watchers.take_degraded().len(), 1);
        assert_eq!(watchers.each().count(), 1);
        assert_eq!(watchers.health().delivered, 3);
    }

    #[test]
    fn who_has_used_up_its_share_rests() {
        let one: Vec<Box<dyn Sampler>> = vec![Box::new(Works(1000, Health::default()))];
        let mut watchers = Watchers::new(one, 0.05);
        for millis in 0..1000 {
            watchers.collect(Nanos::millis(millis), &Nothing);
        }
        // 3 % of a second, a millisecond each.
        assert!((20..=45).contains(&watchers.health().delivered), "{:?}", watchers.health());
        assert!((watchers.rest(0.05) - 0.02).abs() < 1e-9);
    }
}
