//! The last-level cache, analytically.
//!
//! At the scales of tiered memory the cache holds a small part of what a
//! program touches; what matters is how many accesses it keeps away from the
//! memories. For independent references to classes of lines that are equally
//! likely within a class, Che's approximation gives the hit ratio of each
//! class under LRU: a line stays for a characteristic time, the same for all,
//! which is the time in which as many different lines are touched as the cache
//! holds.

use terrace_core::Bytes;

/// Bytes of a cache line.
pub const LINE: u64 = 64;

/// Lines that are touched equally often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReuseClass {
    /// Memory that belongs to the class.
    pub bytes: Bytes,
    /// Share of all accesses that go to it.
    pub share: f64,
}

/// A hit ratio below this is taken as none: it would cost a random number for
/// each access and change nothing that can be seen.
const NEGLIGIBLE: f64 = 1e-3;

/// The hit ratio of each class.
pub fn hit_ratios(cache: Bytes, classes: &[ReuseClass]) -> Vec<f64> {
    let lines = |class: &ReuseClass| class.bytes.as_f64() / LINE as f64;
    // Accesses a line sees for each access of the program.
    let rate = |class: &ReuseClass| {
        if class.bytes.is_zero() { 0.0 } else { class.share / lines(class) }
    };
    let held = |time: f64| -> f64 {
        classes.iter().map(|c| lines(c) * (1.0 - (-rate(c) * time).exp())).sum()
    };
    let capacity = cache.as_f64() / LINE as f64;
    let touched: f64 = classes.iter().filter(|c| c.share > 0.0).map(lines).sum();
    if touched <= capacity {
        return classes.iter().map(|c| if c.share > 0.0 { 1.0 } else { 0.0 }).collect();
    }
    let mut high = 1.0;
    while held(high) < capacity {
        high *= 2.0;
    }
    let mut low = 0.0;
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if held(middle) < capacity {
            low = middle;
        } else {
            high = middle;
        }
    }
    classes
        .iter()
        .map(|c| 1.0 - (-rate(c) * high).exp())
        .map(|ratio| if ratio < NEGLIGIBLE { 0.0 } else { ratio })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_accesses_hit_by_the_share_that_fits() {
        let class = ReuseClass { bytes: Bytes::gib(1), share: 1.0 };
        let ratio = hit_ratios(Bytes::mib(32), &[class])[0];
        assert!((ratio - 32.0 / 1024.0).abs() < 1e-6, "{ratio}");
    }

    #[test]
    fn a_hot_class_hits_more_than_a_cold_one() {
        let classes = [
            ReuseClass { bytes: Bytes::gib(1), share: 0.9 },
            ReuseClass { bytes: Bytes::gib(63), share: 0.1 },
        ];
        let ratios = hit_ratios(Bytes::mib(33), &classes);
        // The cache cannot hold more than all of its lines of the hot class.
        assert!(ratios[0] > 0.02 && ratios[0] < 33.0 / 1024.0, "{ratios:?}");
        assert!(ratios[1] <= 0.0, "{ratios:?}");
    }

    #[test]
    fn everything_hits_that_fits() {
        let class = ReuseClass { bytes: Bytes::mib(8), share: 1.0 };
        assert_eq!(hit_ratios(Bytes::mib(32), &[class]), [1.0]);
    }
}
