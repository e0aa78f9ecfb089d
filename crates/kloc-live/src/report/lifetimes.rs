//! How long contexts are open, are idle, and live.

use serde::{Deserialize, Serialize};
use terrace_core::Nanos;

/// Times in classes, each twice as long as the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    classes: Vec<u64>,
    count: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self { classes: vec![0; 64], count: 0 }
    }
}

impl Times {
    /// Adds a time.
    pub fn add(&mut self, time: Nanos) {
        let class = (64 - time.get().leading_zeros()).min(63) as usize;
        self.classes[class] += 1;
        self.count += 1;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// A time that this share of them is no longer than, rounded up to a power of two; nothing
    /// without any.
    pub fn quantile(&self, share: f64) -> Option<Nanos> {
        if self.count == 0 {
            return None;
        }
        let wanted = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let class = self.classes.iter().position(|n| {
            seen += n;
            seen >= wanted
        })?;
        Some(Nanos((1u64 << class) - 1))
    }
}

/// Three kinds of times.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetimes {
    /// From an open of a file that nobody has open to its last close.
    pub open: Times,
    /// From a last close to the next open.
    pub idle: Times,
    /// From when a file was first seen to when the kernel dropped its inode.
    pub whole: Times,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_not_shorter_than_what_it_stands_for() {
        let mut times = Times::default();
        assert_eq!(times.quantile(0.5), None);
        for time in [1, 2, 3, 1000] {
            times.add(Nanos(time));
        }
        assert_eq!(times.quantile(0.5), Some(Nanos(3)));
        assert_eq!(times.quantile(1.0), Some(Nanos(1023)));
        times.add(Nanos(u64::MAX));
        assert_eq!(times.count(), 5);
    }
}
