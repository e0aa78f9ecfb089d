//! From where on a memory counts as short.

use terrace_core::Bytes;
use terrace_kloc::GuardConfig;

/// What is kept free of a large memory at most, before files leave. What counts as in use includes
/// the page cache, so a tenth of a large machine would be empty for ever; and the kernel itself
/// begins to take pages only when a thousandth or so is free. Streams of 1 GiB/s by each of two
/// processors fill this in a quarter of a second; the daemon looks each 20 ms, and drops some
/// 10 GiB/s of clean pages.
const RESERVE: Bytes = Bytes::mib(512);

/// From which use on files leave a memory, and until which.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Marks {
    /// The share that was asked for; without it, [`GuardConfig`]'s, but no more than 512 MiB are
    /// kept free.
    pub high: Option<f64>,
    /// The same for the end.
    pub low: Option<f64>,
}

impl Marks {
    /// Both for a memory of this size: files leave when more than the first is in use, until no more
    /// than the second is.
    pub fn of(self, limit: Bytes) -> (Bytes, Bytes) {
        let default = GuardConfig::default();
        let (high, low) = (self.high.unwrap_or(default.high), self.low.unwrap_or(default.low));
        let size = limit.as_f64();
        let free = (1.0 - high) * size;
        let scale = match (self.high, self.low) {
            (None, None) if free > RESERVE.as_f64() => RESERVE.as_f64() / free,
            _ => 1.0,
        };
        let below = |share: f64| Bytes::from_f64(size - (1.0 - share) * size * scale);
        (below(high), below(low))
    }

    /// Whether files could leave at all: the second is below the first.
    pub fn are_in_order(self) -> bool {
        let default = GuardConfig::default();
        self.low.unwrap_or(default.low) < self.high.unwrap_or(default.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenth of 256 GiB would be 25 GiB that hold nothing.
    #[test]
    fn a_large_memory_is_filled_but_for_a_reserve() {
        let (high, low) = Marks::default().of(Bytes::gib(256));
        assert_eq!(Bytes::gib(256) - high, RESERVE);
        assert!(Bytes::gib(256) - low < RESERVE * 2 && low < high);
        let (high, low) = Marks::default().of(Bytes::mib(100));
        assert_eq!((high, low), (Bytes::mib(90), Bytes::mib(82)));
    }

    #[test]
    fn shares_that_are_asked_for_are_meant() {
        let asked = Marks { high: Some(0.5), low: Some(0.25) };
        assert_eq!(asked.of(Bytes::gib(256)), (Bytes::gib(128), Bytes::gib(64)));
        assert!(asked.are_in_order() && Marks::default().are_in_order());
        assert!(!Marks { high: Some(0.5), low: None }.are_in_order());
    }
}
