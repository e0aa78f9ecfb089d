//! The cooling clock, and the span of time that a halved counter speaks for.

use terrace_core::Nanos;

/// Coolings whose times are remembered: eight halvings leave nothing of a
/// counter of eight bits.
const REMEMBERED: usize = 8;

/// Counts the coolings and remembers when the last of them were.
#[derive(Clone, Debug, Default)]
pub(super) struct CoolingClock {
    count: u64,
    /// Times of the last coolings, the latest first.
    times: [Nanos; REMEMBERED],
}

impl CoolingClock {
    /// The clock as pages store it.
    pub(super) fn stamp(&self) -> u8 {
        self.count as u8
    }

    /// When the last cooling was; zero before the first.
    pub(super) fn last(&self) -> Nanos {
        self.times[0]
    }

    /// All counters are halved from now on.
    pub(super) fn advance(&mut self, now: Nanos) {
        self.count += 1;
        self.times.rotate_right(1);
        self.times[0] = now;
    }

    /// The time over which a counter collected what it holds now.
    ///
    /// A page that is sampled at a steady rate `r` since it was placed holds
    /// `r * (d0 + d1/2 + d2/4 + …)`, where `d0` is the time since the last
    /// cooling, `d1` the period before that, and so on back to the placement.
    /// The sum in parentheses is what we return, so counter divided by window
    /// estimates `r`. For an old page and regular coolings it lies between one
    /// and two cooling periods. Halving rounds down, so the estimate is low by
    /// less than one sample in each counter.
    pub(super) fn window(&self, now: Nanos, age: Nanos) -> Nanos {
        let begin = now.saturating_sub(age);
        let mut window = Nanos::ZERO;
        let mut end = now;
        let coolings = self.count.min(REMEMBERED as u64) as usize;
        for (halvings, &cooling) in self.times[..coolings].iter().enumerate() {
            if cooling <= begin {
                break;
            }
            window += Nanos(end.saturating_sub(cooling).get() >> halvings);
            end = cooling;
        }
        let halvings = self.times[..coolings].iter().filter(|&&t| t > begin).count();
        if halvings < REMEMBERED {
            window += Nanos(end.saturating_sub(begin).get() >> halvings);
        }
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rate shown to the economist is a count divided by this window; if
    /// the window were wrong, every price would be.
    #[test]
    fn a_steadily_sampled_page_shows_its_true_rate() {
        let mut clock = CoolingClock::default();
        let (rate_per_ms, mut counter) = (5.0, 0.0);
        let mut now = Nanos::ZERO;
        for ms in 1..=10_000u64 {
            now = Nanos::millis(ms);
            counter += rate_per_ms;
            // Coolings at uneven distances.
            if ms % 700 == 0 || ms % 1100 == 0 {
                clock.advance(now);
                counter /= 2.0;
            }
            let estimate = counter / clock.window(now, now).as_f64() * 1e6;
            // The float keeps what an eight-bit counter has lost after eight halvings.
            assert!((estimate / rate_per_ms - 1.0).abs() < 0.02, "{ms} ms: {estimate} per ms");
        }
        assert!(now > Nanos::ZERO);
    }

    /// A page placed a moment ago must not be divided by minutes.
    #[test]
    fn a_young_page_is_judged_by_its_own_age() {
        let mut clock = CoolingClock::default();
        clock.advance(Nanos::seconds(10));
        assert_eq!(clock.window(Nanos::seconds(100), Nanos::millis(30)), Nanos::millis(30));
        assert_eq!(clock.window(Nanos::seconds(11), Nanos::seconds(3)), Nanos::seconds(2));
    }
}
