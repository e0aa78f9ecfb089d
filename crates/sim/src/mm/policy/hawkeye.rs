//! `HawkEye` (Panwar et al., ASPLOS 2019): faults take free zeroed blocks, and what becomes huge
//! later is chosen by how many of its base pages are used.
//!
//! Recalled, and from the settings that CBMM's runner gives it (read): no compaction on faults
//! (`defrag` is `madvise`), a pass each 10 s, a thread that zeroes free memory. Not modelled:
//! giving back pages of zeros, fairness among several programs.

use terrace_core::Cycles;

use super::{Ask, Background, Candidate, Choice, Effort, Khugepaged, MmPolicy, Prezero};

/// Buckets of coverage.
const BUCKETS: f64 = 10.0;

/// `HawkEye`.
#[derive(Clone, Copy, Debug)]
pub struct HawkEye;

impl MmPolicy for HawkEye {
    fn name(&self) -> &'static str {
        "hawkeye"
    }

    fn background(&self) -> Background {
        Background {
            // 4096 base pages a pass.
            khugepaged: Some(Khugepaged {
                sleep: Cycles(22_000_000_000),
                slots: 8,
                compact: true,
                ranked: true,
            }),
            // 10 s for itself; then at most a tenth of a processor (assumed).
            prezero: Some(Prezero {
                warm: Cycles(22_000_000_000),
                pages: 512,
                sleep: Cycles(2_300_000),
            }),
            ..Background::default()
        }
    }

    fn first_touch(&mut self, _ask: &Ask<'_>) -> Choice {
        Choice::Huge(Effort::Free)
    }

    /// By buckets of coverage; within one, in the order of addresses.
    fn collapse(&mut self, candidate: &Candidate) -> f64 {
        let used = f64::from(candidate.used.min(candidate.present)) / 512.0;
        (used * BUCKETS).ceil()
    }
}
