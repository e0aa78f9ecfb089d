//! Whether memory that fits is to be managed for a profile's sake.
//!
//! Memory that fits into the budget needs no pager. One that puts huge pages where a profile wants them
//! takes over its first touches, too: each that nothing was ahead of costs more than the kernel's own. In
//! which order pages will be touched is not known, so all of them count as touched at random, where
//! nothing is ahead. Against that stands what huge pages avert at least of waiting for page walks.

use terrace_core::{Cycles, Nanos, PageSize};

use crate::calibration::Calibration;

/// Both sides of it, over the whole of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Managing {
    /// Waiting for page walks that huge pages avert at least.
    pub brings: Cycles,
    /// What first touches take more than without, at most.
    pub costs: Cycles,
    /// Whether [`PLAIN_FAULT`] stands for what the kernel takes, as what was measured cannot be right.
    pub assumed: bool,
}

/// What the kernel takes for the first touch of a base page where its measurement says nothing: 1.8 to 2.6 µs
/// in the middle of those that `docs/profile.md` has (`make bench-tails`, 2026-11-29).
pub const PLAIN_FAULT: Nanos = Nanos::micros(2);

impl Managing {
    /// For memory of which so many base pages will be touched. `averted` is in cycles here, and
    /// `plain_fault` is what the kernel takes for the first touch of one, with its content.
    pub fn new(averted: Cycles, touched: u64, plain_fault: Nanos, prices: &Calibration) -> Self {
        let content = prices.copy_bandwidth.time_for(PageSize::Base.bytes());
        let managed = prices.user_fault + content;
        // A fault that the pager serves is one of the kernel's and two changes of threads besides. What
        // others do on the machine while a fault is timed makes it longer, never shorter.
        let most = managed / 2;
        let assumed = plain_fault > most;
        let plain_fault = if assumed { PLAIN_FAULT.min(most) } else { plain_fault };
        let more = managed.saturating_sub(plain_fault);
        let costs = Cycles::from_f64(prices.clock.cycles(more).as_f64() * touched as f64);
        Self { brings: averted, costs, assumed }
    }

    /// Whether it pays, by the caution of all other actions.
    pub fn pays(&self, prices: &Calibration) -> bool {
        let hurdle = 1.0 + prices.parameters.hysteresis;
        self.brings.as_f64() > hurdle * self.costs.as_f64()
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::{Frequency, Machine};

    use super::*;

    fn prices() -> Calibration {
        let machine = include_str!("../../../machines/laptop.toml");
        let machine = Machine::parse("laptop", machine).expect("a machine");
        Calibration {
            user_fault: Nanos::micros(10),
            clock: Frequency::ghz(2.0),
            ..Calibration::from_machine(&machine)
        }
    }

    #[test]
    fn it_pays_from_half_as_much_again_on_as_first_touches_take_more() {
        let prices = prices();
        let content = prices.copy_bandwidth.time_for(PageSize::Base.bytes());
        let plain = content + Nanos::micros(2);
        // 8 µs more for each of 1000 pages, at 2 GHz.
        let of = |averted| Managing::new(Cycles(averted), 1000, plain, &prices);
        assert_eq!(of(0).costs, Cycles(16_000_000));
        assert!(!of(24_000_000).pays(&prices), "no more than the hurdle");
        assert!(of(24_000_001).pays(&prices));
    }

    #[test]
    fn what_brings_nothing_does_not_pay_even_where_it_costs_nothing() {
        let prices = prices();
        let of = |averted| Managing::new(Cycles(averted), 0, Nanos::micros(2), &prices);
        assert_eq!(of(0).costs, Cycles::ZERO);
        assert!(!of(0).pays(&prices));
        assert!(of(1).pays(&prices));
    }

    /// Or a moment at which the machine was busy would have first touches cost nothing.
    #[test]
    fn a_plain_fault_that_cannot_be_right_is_not_believed() {
        let prices = prices();
        let content = prices.copy_bandwidth.time_for(PageSize::Base.bytes());
        let of = |plain| Managing::new(Cycles::ZERO, 1000, plain, &prices);
        for busy in [Nanos::micros(15), Nanos::micros(10) + content, Nanos::micros(6) + content] {
            let assumed = of(busy);
            let more = prices.clock.cycles(Nanos::micros(8) + content);
            assert_eq!(assumed.costs, Cycles(more.get() * 1000), "{busy}");
            assert!(assumed.assumed);
        }
        assert!(!of(Nanos::micros(5)).assumed);
        // However fast the pager is, it is not faster than the kernel.
        let fast = Calibration { user_fault: Nanos::micros(1), ..prices };
        let costs = Managing::new(Cycles::ZERO, 1000, Nanos::micros(2), &fast).costs;
        assert!(costs >= Cycles(1_000_000), "{costs}");
    }
}
