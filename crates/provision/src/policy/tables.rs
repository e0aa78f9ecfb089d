//! The paper's Tables 3 and 4 as rows.
//!
//! Source: Dapper, section 4.4, Tables 3 and 4.

use terrace_core::Bytes;

use crate::view::Watermarks;

/// Table 3: how much to integrate, as a multiple of the node's DRAM, for so much free local
/// memory. `None` where the table has no row: at or below the watermark `low`.
///
/// The table multiplies watermarks by 1024 and 2048, "in a GB granularity".
/// A watermark grows with the root of the memory's size, so that on today's
/// machines an idle node reaches rows that were meant for a full one; see
/// docs/provision.md.
pub fn integration(free: Bytes, marks: Watermarks) -> Option<u64> {
    integration_row(free, marks).map(|(factor, _)| factor)
}

/// The same, with how much is free at most where that row applies.
pub fn integration_row(free: Bytes, marks: Watermarks) -> Option<(u64, Bytes)> {
    let rows = [
        (marks.high * 2048, 0),
        (marks.high * 1024, 1),
        (marks.low * 1024, 2),
        (marks.min * 1024, 4),
        (marks.high, 8),
        (marks.low, 16),
    ];
    let at = rows.iter().position(|&(above, _)| free > above)?;
    let most = if at == 0 { Bytes(u64::MAX) } else { rows[at - 1].0 };
    Some((rows[at].1, most))
}

/// Table 4: how much to remove when so much is free beside the capacity of the slow memory.
/// `None` where the table has no row: at or below a sixteenth.
pub fn removal(free: Bytes, capacity: Bytes) -> Option<Bytes> {
    let sixteenth = |n: u64| Bytes(((u128::from(capacity.0) * u128::from(n)) / 16) as u64);
    let rows = [(16, 16), (12, 8), (8, 4), (4, 2), (2, 1), (1, 0)];
    rows.into_iter()
        .find(|&(above, _)| free > sixteenth(above))
        .map(|(_, amount)| sixteenth(amount))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_3_row_by_row() {
        let marks = Watermarks { min: Bytes::kib(10), low: Bytes::kib(12), high: Bytes::kib(14) };
        for (free, factor) in [
            (Bytes::mib(29), Some(0)),
            (Bytes::mib(28), Some(1)),
            (Bytes::mib(14), Some(2)),
            (Bytes::mib(12), Some(4)),
            (Bytes::mib(10), Some(8)),
            (Bytes::kib(15), Some(8)),
            (Bytes::kib(14), Some(16)),
            (Bytes::kib(13), Some(16)),
            (Bytes::kib(12), None),
            (Bytes::ZERO, None),
        ] {
            assert_eq!(integration(free, marks), factor, "{free}");
            let row = integration_row(free, marks);
            assert!(row.is_none_or(|(_, most)| free <= most), "{free}");
        }
        assert_eq!(integration_row(Bytes::mib(13), marks), Some((2, Bytes::mib(14))));
    }

    #[test]
    fn table_4_row_by_row() {
        let capacity = Bytes::gib(16);
        for (free, removed) in [
            (Bytes::gib(17), Some(Bytes::gib(16))),
            (Bytes::gib(16), Some(Bytes::gib(8))),
            (Bytes::gib(12), Some(Bytes::gib(4))),
            (Bytes::gib(8), Some(Bytes::gib(2))),
            (Bytes::gib(4), Some(Bytes::gib(1))),
            (Bytes::gib(2), Some(Bytes::ZERO)),
            (Bytes::gib(1), None),
        ] {
            assert_eq!(removal(free, capacity), removed, "{free}");
        }
    }
}
