//! A price that is learnt from offers, and forgotten when they cease.

use terrace_core::Nanos;

use crate::interval::{Interval, finite};

/// Weight of one more offer, once there are enough of them. 1/16 is the weight
/// that Colloid gives a new latency measurement.
const WEIGHT: f64 = 1.0 / 16.0;

/// The running mean of offers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quote {
    mean: f64,
    /// Of the offers around the mean, including their own uncertainty.
    variance: f64,
    /// Offers so far; weighs the first few equally.
    offers: u32,
    last: Nanos,
}

impl Quote {
    /// Takes an offer into account.
    pub(crate) fn offer(&mut self, offer: Interval, z: f64, now: Nanos) {
        self.offers = self.offers.saturating_add(1);
        let weight = WEIGHT.max(1.0 / f64::from(self.offers));
        let own = (offer.expected - offer.low) / z.max(0.1);
        let difference = offer.expected - self.mean;
        self.mean = finite(self.mean + weight * difference);
        let spread = (1.0 - weight) * difference * difference + own * own;
        self.variance = finite(self.variance + weight * (spread - self.variance)).max(0.0);
        self.last = now;
    }

    /// The price now. Knowledge decays to ignorance over `lifetime`, not to
    /// zero: a price that fell to zero because nobody asked would keep anybody
    /// from ever asking again.
    pub(crate) fn price(
        &self,
        ignorance: Interval,
        z: f64,
        lifetime: Nanos,
        now: Nanos,
    ) -> Interval {
        if self.offers == 0 {
            return ignorance;
        }
        // The standard error of an exponentially weighted mean.
        let weight = WEIGHT.max(1.0 / f64::from(self.offers));
        let error = z * (self.variance * weight / (2.0 - weight)).sqrt();
        let low = (self.mean - error).max(0.0);
        let known = Interval::new(low, self.mean.max(low), self.mean + error);
        let age = now.saturating_sub(self.last).as_secs() / lifetime.as_secs();
        known.mixed((-age).exp(), ignorance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Nanos = Nanos::seconds(10);

    #[test]
    fn the_first_offers_count_fully_so_that_there_is_no_warm_up() {
        let mut quote = Quote::default();
        quote.offer(Interval::exact(4.0), 1.0, Nanos::ZERO);
        assert_eq!(quote.price(Interval::UNKNOWN, 1.0, TEN, Nanos::ZERO), Interval::exact(4.0));
    }

    #[test]
    fn an_old_price_becomes_unknown_and_not_zero() {
        // CBMM's demand for zeroed pages ignores the present: once high it
        // stays high. Ours widens, from both ends.
        let mut quote = Quote::default();
        quote.offer(Interval::exact(4.0), 1.0, Nanos::ZERO);
        let ignorance = Interval::new(0.0, 10.0, 100.0);

        let later = quote.price(ignorance, 1.0, TEN, Nanos::seconds(10));
        let much_later = quote.price(ignorance, 1.0, TEN, Nanos::seconds(1000));

        assert!(later.low < 2.0 && later.high > 50.0, "{later:?}");
        assert!((much_later.expected - 10.0).abs() < 1e-9, "{much_later:?}");
        assert!(much_later.low < 1e-9, "{much_later:?}");
    }

    #[test]
    fn scattered_offers_make_a_wide_price() {
        let (mut steady, mut scattered) = (Quote::default(), Quote::default());
        for i in 0..100 {
            steady.offer(Interval::exact(5.0), 1.0, Nanos::ZERO);
            scattered.offer(Interval::exact(f64::from(i % 2) * 10.0), 1.0, Nanos::ZERO);
        }
        let price = |q: &Quote| q.price(Interval::UNKNOWN, 1.645, TEN, Nanos::ZERO);
        assert!(price(&steady).low > 4.99);
        assert!(price(&scattered).low < 4.5, "{:?}", price(&scattered));
    }
}
