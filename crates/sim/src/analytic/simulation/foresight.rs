//! What is to come, for a policy that asks for it.

use terrace_core::{Nanos, Upcoming};

use super::Simulation;
use crate::analytic::observe::Program;

/// While a change of the program lies ahead, its approach is told in so many
/// steps of what is foreseen.
const STEPS: u64 = 16;

impl Simulation {
    /// Tells the policy what the program will access, if that has changed.
    /// Accesses that the caches will answer are included: of which pages those
    /// will be is not known here.
    pub(super) fn tell_future(&mut self) {
        let Some(ahead) = self.brain.as_ref().and_then(|brain| brain.needs().foresight) else {
            return;
        };
        if self.now < self.foresight_due {
            return;
        }
        let change = self.workload.next_change(self.now);
        self.foresight_due = match change {
            None => Nanos::MAX,
            Some(at) if at > self.now + ahead => at - ahead,
            Some(at) => at.min(self.now + Nanos(ahead.get() / STEPS)),
        };
        let end = self.now + ahead;
        let parts = match change {
            Some(at) if at < end => [(self.now, at - self.now), (at, end - at)],
            _ => [(self.now, ahead), (end, Nanos::ZERO)],
        };
        let mut upcoming = Vec::with_capacity(self.pages.len());
        for page in 0..self.pages.len() as u32 {
            let of = |&(now, time): &(Nanos, Nanos)| {
                let workload = self.workload.as_ref();
                let program = Program { workload, rates: &self.rates, now };
                program.rate(page) * time.as_f64()
            };
            let accesses: f64 = parts.iter().filter(|(_, time)| !time.is_zero()).map(of).sum();
            if accesses > 0.0 {
                let page = self.pages.page_ref(page);
                upcoming.push(Upcoming { page, loads: accesses as f32, stores: 0.0 });
            }
        }
        if let Some(brain) = &mut self.brain {
            brain.foresee(&upcoming);
        }
    }
}
