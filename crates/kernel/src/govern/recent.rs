//! The mean of a quantity over the last while.

use std::collections::VecDeque;

use terrace_core::{Bytes, Nanos};

/// What was so in each interval of the last while.
#[derive(Clone, Debug)]
pub(super) struct Recent {
    span: Nanos,
    /// How long each was, and what was so in it.
    intervals: VecDeque<(Nanos, Bytes)>,
}

impl Recent {
    /// Over so long a time at most.
    pub(super) fn new(span: Nanos) -> Self {
        Self { span, intervals: VecDeque::new() }
    }

    /// Another interval is over.
    pub(super) fn add(&mut self, length: Nanos, amount: Bytes) {
        self.intervals.push_back((length, amount));
        let mut all = self.length();
        while let Some(&(first, _)) = self.intervals.front()
            && all.saturating_sub(first) >= self.span
        {
            self.intervals.pop_front();
            all -= first;
        }
    }

    /// The mean; of less than the span where not so much is known. Zero of nothing.
    pub(super) fn mean(&self) -> Bytes {
        let weighted =
            self.intervals.iter().map(|(length, amount)| amount.as_f64() * length.as_f64());
        Bytes::from_f64(weighted.sum::<f64>() / self.length().max(Nanos(1)).as_f64())
    }

    fn length(&self) -> Nanos {
        self.intervals.iter().fold(Nanos::ZERO, |sum, (length, _)| sum + *length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_longer_ago_does_not_count_and_a_longer_interval_counts_more() {
        let mut recent = Recent::new(Nanos::seconds(4));
        assert_eq!(recent.mean(), Bytes::ZERO);
        recent.add(Nanos::seconds(1), Bytes(1000));
        assert_eq!(recent.mean(), Bytes(1000));
        recent.add(Nanos::seconds(3), Bytes(200));
        assert_eq!(recent.mean(), Bytes(400));
        recent.add(Nanos::seconds(1), Bytes(600));
        assert_eq!(recent.mean(), Bytes(300));
        recent.add(Nanos::seconds(100), Bytes(7));
        assert_eq!(recent.mean(), Bytes(7), "one that is longer than all counts whole");
    }
}
