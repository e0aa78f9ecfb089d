//! Latencies to the maximum: counts by size, 32 steps an octave.

use serde::Serialize;
use terrace_core::Cycles;

/// Steps of an octave: a percentile is at most 3.2 % too high.
const STEPS: u32 = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();

/// Counts of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u64,
    max: u64,
}

/// What a table shows of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// How many.
    pub count: u64,
    /// All together.
    pub total: Cycles,
    /// The median.
    pub p50: Cycles,
    /// Nine of ten are at most this.
    pub p90: Cycles,
    /// 99 of 100.
    pub p99: Cycles,
    /// 999 of 1000.
    pub p999: Cycles,
    /// The longest.
    pub max: Cycles,
}

fn bucket(value: u64) -> usize {
    if value < u64::from(STEPS) {
        return value as usize;
    }
    let shift = value.ilog2() - STEP_BITS;
    ((shift + 1) * STEPS) as usize + ((value >> shift) as usize & (STEPS as usize - 1))
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    let (octave, step) = (bucket as u32 / STEPS, bucket as u64 % u64::from(STEPS));
    match octave.checked_sub(1) {
        None => step,
        Some(shift) => ((u64::from(STEPS) + step + 1) << shift) - 1,
    }
}

impl Histogram {
    /// Counts a duration, that many times.
    pub fn record(&mut self, value: Cycles, times: u64) {
        if times == 0 {
            return;
        }
        let index = bucket(value.get());
        if index >= self.buckets.len() {
            self.buckets.resize(index + 1, 0);
        }
        self.buckets[index] += times;
        self.count += times;
        self.sum = self.sum.saturating_add(value.get().saturating_mul(times));
        self.max = self.max.max(value.get());
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Self) {
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(to, from)| *to += from);
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// How many were counted.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// All of them together.
    pub const fn total(&self) -> Cycles {
        Cycles(self.sum)
    }

    /// The longest.
    pub const fn max(&self) -> Cycles {
        Cycles(self.max)
    }

    /// At most this are a share of all, 0 to 1; at most 3.2 % too high, never above the maximum.
    pub fn quantile(&self, share: f64) -> Cycles {
        let rank = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Cycles(upper(index).min(self.max));
            }
        }
        self.max()
    }

    /// How many took longer than a time, to the bucket.
    pub fn above(&self, value: Cycles) -> u64 {
        self.buckets.iter().skip(bucket(value.get()) + 1).sum()
    }

    /// What a table shows.
    pub fn quantiles(&self) -> Quantiles {
        if self.count == 0 {
            return Quantiles::default();
        }
        Quantiles {
            count: self.count,
            total: self.total(),
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            max: self.max(),
        }
    }

    /// Points of the complementary distribution: a time, and the share of faults that took
    /// longer; for a picture.
    pub fn tail(&self) -> Vec<(Cycles, f64)> {
        let mut left = self.count;
        let mut points = Vec::new();
        for (index, &count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            points.push((Cycles(upper(index).min(self.max)), left as f64 / self.count as f64));
            left -= count;
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A quantile must not be better than the true one, nor much worse.
        #[test]
        fn quantiles_are_those_of_the_sorted_values(
            mut values in prop::collection::vec(0u64..1 << 40, 1..300),
            share in 0.0f64..1.0,
        ) {
            let mut histogram = Histogram::default();
            for &value in &values {
                histogram.record(Cycles(value), 1);
            }
            values.sort_unstable();
            let rank = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1];
            let ours = histogram.quantile(share).get();
            prop_assert!(ours >= exact && ours as f64 <= exact as f64 * 1.032 + 1.0);
            prop_assert_eq!(histogram.max().get(), *values.last().expect("at least one"));
            prop_assert_eq!(histogram.total().get(), values.iter().sum::<u64>());
        }
    }

    #[test]
    fn parts_add_up() {
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        one.record(Cycles(5), 3);
        other.record(Cycles(1 << 30), 1);
        one.add(&other);
        assert_eq!((one.count(), one.max()), (4, Cycles(1 << 30)));
        assert_eq!(one.above(Cycles(1000)), 1);
        assert_eq!(one.quantiles().p50, Cycles(5));
    }
}
