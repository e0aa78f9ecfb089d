//! Latencies, counted without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// 16 buckets for each power of two: percentiles are exact to 6 %.
pub struct Histogram(Box<[AtomicU64]>);

const SUB: u32 = 4;

/// Latencies in a few figures, ns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// How many there are.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// The same, 99.9th.
    pub p999: u64,
    /// The same, 99.99th.
    pub p9999: u64,
    /// Longest.
    pub greatest: u64,
    /// How many lie below a power of two, and not below the one before, to the longest.
    pub below: Vec<(u64, u64)>,
}

impl Histogram {
    /// An empty one.
    pub fn new() -> Self {
        Self((0..(64 << SUB)).map(|_| AtomicU64::new(0)).collect())
    }
    fn bucket(value: u64) -> usize {
        let value = value.max(1 << SUB);
        let log = value.ilog2();
        (((log - SUB) << SUB) as usize) + (value >> (log - SUB)) as usize
    }
    fn upper(bucket: usize) -> u64 {
        let log = (bucket >> SUB) as u32;
        if log == 0 {
            return bucket as u64;
        }
        let mantissa = (bucket & ((1 << SUB) - 1)) as u64 + (1 << SUB);
        ((mantissa + 1) << (log - 1)) - 1
    }
    /// Counts a value.
    pub fn record(&self, value: u64) {
        self.0[Self::bucket(value)].fetch_add(1, Relaxed);
    }
    /// The value below which this share of all lies; 0 if there is none.
    pub fn percentile(&self, share: f64) -> u64 {
        let counts: Vec<u64> = self.0.iter().map(|c| c.load(Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let wanted = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Self::upper(bucket);
            }
        }
        0
    }

    /// All of it in a few figures; the greatest value is known better than from its bucket.
    pub fn latencies(&self, greatest: u64) -> Latencies {
        let mut below: Vec<(u64, u64)> = Vec::new();
        for (bucket, count) in self.0.iter().enumerate() {
            let count = count.load(Relaxed);
            if count == 0 {
                continue;
            }
            let power = (Self::upper(bucket) + 1).next_power_of_two();
            match below.last_mut() {
                Some((last, sum)) if *last == power => *sum += count,
                _ => below.push((power, count)),
            }
        }
        let percentile = |share| self.percentile(share).min(greatest);
        Latencies {
            count: below.iter().map(|(_, count)| count).sum(),
            p50: percentile(0.5),
            p99: percentile(0.99),
            p999: percentile(0.999),
            p9999: percentile(0.9999),
            greatest,
            below,
        }
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_sixteenth() {
        let histogram = Histogram::new();
        for value in 1..=100_000u64 {
            histogram.record(value);
        }
        for (share, exact) in [(0.5, 50_000.0), (0.99, 99_000.0), (0.999, 99_900.0)] {
            let got = histogram.percentile(share) as f64;
            assert!((0.99..1.07).contains(&(got / exact)), "{share}: {got} for {exact}");
        }
    }

    #[test]
    fn small_values_are_exact_and_nothing_recorded_is_zero() {
        let histogram = Histogram::new();
        assert_eq!(histogram.percentile(0.5), 0);
        histogram.record(20);
        assert_eq!(histogram.percentile(0.5), 20);
    }

    #[test]
    fn latencies_are_counted_by_powers_of_two_to_the_greatest() {
        let histogram = Histogram::new();
        for value in [3, 31, 32, 63, 64, 5000] {
            histogram.record(value);
        }
        let latencies = histogram.latencies(5000);
        assert_eq!(latencies.below, [(32, 2), (64, 2), (128, 1), (8192, 1)]);
        assert_eq!((latencies.count, latencies.greatest), (6, 5000));
        assert_eq!(latencies.p9999, 5000, "no percentile is above the greatest value");
        let none = Histogram::new().latencies(0);
        assert_eq!((none.count, none.p50, none.below), (0, 0, Vec::new()));
    }
}
