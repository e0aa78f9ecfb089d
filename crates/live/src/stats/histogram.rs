//! A latency histogram that several processes can read while threads write it.
//!
//! Log-linear, as HDR histograms are: eight steps an octave, so a percentile
//! is at most 12.5 % too high. Plain atomics in shared memory, because the
//! reader is another process and the writer must neither lock nor allocate.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use terrace_core::Nanos;

const STEPS: usize = 8;
/// Up to 2^36 ns, about a minute; longer ones count as that.
const OCTAVES: usize = 36;
const BUCKETS: usize = STEPS * OCTAVES;

/// Counts of durations.
#[repr(C)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    count: AtomicU64,
    sum: AtomicU64,
    max: AtomicU64,
}

fn bucket(nanos: u64) -> usize {
    if nanos < STEPS as u64 {
        return nanos as usize;
    }
    let octave = 63 - nanos.leading_zeros() as usize;
    let step = (nanos >> (octave - 3)) as usize & (STEPS - 1);
    ((octave - 2) * STEPS + step).min(BUCKETS - 1)
}

/// The largest duration that falls into a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let octave = bucket / STEPS + 2;
    let step = (bucket % STEPS) as u64;
    (((STEPS as u64 + step + 1) << (octave - 3)) - 1).max(1)
}

impl Histogram {
    /// Counts one duration.
    #[inline]
    pub fn record(&self, duration: Nanos) {
        let n = duration.get();
        self.buckets[bucket(n)].fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        self.sum.fetch_add(n, Relaxed);
        if n > self.max.load(Relaxed) {
            self.max.fetch_max(n, Relaxed);
        }
    }

    /// Counts all that another has counted.
    pub fn take_in(&self, other: &Self) {
        for (to, from) in self.buckets.iter().zip(&other.buckets) {
            to.fetch_add(from.load(Relaxed), Relaxed);
        }
        self.count.fetch_add(other.count.load(Relaxed), Relaxed);
        self.sum.fetch_add(other.sum.load(Relaxed), Relaxed);
        self.max.fetch_max(other.max.load(Relaxed), Relaxed);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }
    /// All of them together.
    pub fn total(&self) -> Nanos {
        Nanos(self.sum.load(Relaxed))
    }
    /// The longest.
    pub fn max(&self) -> Nanos {
        Nanos(self.max.load(Relaxed))
    }
    /// How many were counted up to which duration (and above the one before),
    /// so that several processes' histograms can be put together.
    pub fn counts(&self) -> impl Iterator<Item = (Nanos, u64)> {
        self.buckets.iter().enumerate().map(|(i, b)| (Nanos(upper(i)), b.load(Relaxed)))
    }
    /// The duration that a share `q` (0 to 1) of them did not exceed; zero if none was counted.
    pub fn percentile(&self, q: f64) -> Nanos {
        let count = self.count();
        if count == 0 {
            return Nanos::ZERO;
        }
        let rank = ((count as f64 * q).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (i, b) in self.buckets.iter().enumerate() {
            seen += b.load(Relaxed);
            if seen >= rank {
                return Nanos(upper(i).min(self.max.load(Relaxed)));
            }
        }
        self.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Box<Histogram> {
        Box::new(Histogram {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        })
    }

    #[test]
    fn percentiles_are_within_an_eighth() {
        let h = empty();
        for n in 1..=10_000u64 {
            h.record(Nanos(n));
        }
        for (q, exact) in [(0.5, 5_000.0), (0.99, 9_900.0), (0.999, 9_990.0)] {
            let got = h.percentile(q).as_f64();
            assert!(got >= exact && got <= exact * 1.125, "{q}: {got} for {exact}");
        }
        assert_eq!(h.max(), Nanos(10_000));
    }

    #[test]
    fn every_duration_lies_in_its_bucket() {
        for n in (0..64u32).flat_map(|s| [(1u64 << s) - 1, 1 << s, (1 << s) + 1]) {
            let b = bucket(n);
            assert!(b == BUCKETS - 1 || n <= upper(b), "{n}");
            assert!(b == 0 || upper(b - 1) < n, "{n}");
        }
    }
}
