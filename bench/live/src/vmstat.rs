//! What the kernel counts of huge pages at first touch and of waiting for them, on the whole machine.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

/// Some counters of `/proc/vmstat`; `None` of one that this kernel does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// First touches that got a huge page (`thp_fault_alloc`).
    pub huge: Option<u64>,
    /// First touches that were to get one, and got a base page (`thp_fault_fallback`).
    pub fallback: Option<u64>,
    /// Allocations that waited for memory to be compacted (`compact_stall`).
    pub stalls: Option<u64>,
}

impl Counts {
    /// Of this moment.
    pub fn now() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/vmstat")?))
    }

    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value?.trim().parse().ok()
        };
        Self {
            huge: field("thp_fault_alloc"),
            fallback: field("thp_fault_fallback"),
            stalls: field("compact_stall"),
        }
    }

    /// What was counted since a moment before.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let less = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            huge: less(self.huge, before.huge),
            fallback: less(self.fallback, before.fallback),
            stalls: less(self.stalls, before.stalls),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_whole_names() {
        let before =
            Counts::parse("thp_fault_fallback_charge 5\nthp_fault_alloc 7\nthp_fault_fallback 3\n");
        assert_eq!(before, Counts { huge: Some(7), fallback: Some(3), stalls: None });
        let after = Counts::parse("compact_stall 2\nthp_fault_alloc 9\nthp_fault_fallback 3\n");
        let counted = after.since(before);
        assert_eq!(counted, Counts { huge: Some(2), fallback: Some(0), stalls: None });
    }
}
