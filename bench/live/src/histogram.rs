//! Latencies, counted without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// 16 buckets for each power of two: percentiles are exact to 6 %.
pub struct Histogram(Box<[AtomicU64]>);

const SUB: u32 = 4;

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
}
