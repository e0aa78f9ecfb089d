//! How a fault ended: the paths of the kernel's fault handler, told apart.

use serde::{Serialize, Serializer};
use terrace_core::Cycles;

use super::histogram::{Histogram, Quantiles};

/// How a fault ended.
///
/// The rows of the table in the paper's slides, and those that it calls "various other exotic
/// fallback paths".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// A zeroed base page, where no huge page was asked for.
    Base,
    /// A zeroed base page, and neighbours that nobody has touched yet.
    BaseFilled,
    /// A base page where a huge one was wanted: none was free, and nobody tried to make one.
    BaseFallback,
    /// A read of untouched memory: the shared page of zeros.
    SharedZero,
    /// A store to the shared page of zeros: a zeroed page of its own.
    CowZeroed,
    /// A store to a page that a child shares: a copy.
    CowCopied,
    /// A store to a huge page that a child shares: it is split, and a base page copied.
    CowHugeSplit,
    /// A huge page that was free.
    Huge,
    /// A huge page that was free and zeroed before.
    HugePrezeroed,
    /// A huge page that compaction made.
    HugeCompacted,
    /// A huge page that reclaim made.
    HugeReclaimed,
    /// A huge page that reclaim and then compaction made.
    HugeCompactedReclaimed,
    /// A base page after compaction could not make a huge one.
    FailedCompacted,
    /// A base page after compaction and reclaim could not make a huge one.
    FailedCompactedReclaimed,
    /// A base page for which memory had to be reclaimed first.
    BaseReclaimed,
    /// A page that was read back from swap.
    SwappedIn,
    /// No page: the machine is out of memory.
    OutOfMemory,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Base,
        Self::BaseFilled,
        Self::BaseFallback,
        Self::SharedZero,
        Self::CowZeroed,
        Self::CowCopied,
        Self::CowHugeSplit,
        Self::Huge,
        Self::HugePrezeroed,
        Self::HugeCompacted,
        Self::HugeReclaimed,
        Self::HugeCompactedReclaimed,
        Self::FailedCompacted,
        Self::FailedCompactedReclaimed,
        Self::BaseReclaimed,
        Self::SwappedIn,
        Self::OutOfMemory,
    ];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base page",
            Self::BaseFilled => "base page, others filled ahead",
            Self::BaseFallback => "base page, no huge page free",
            Self::SharedZero => "shared zero page",
            Self::CowZeroed => "write-protected, cleared page",
            Self::CowCopied => "write-protected, copied page",
            Self::CowHugeSplit => "write-protected, huge page split",
            Self::Huge => "huge page",
            Self::HugePrezeroed => "huge page, zeroed before",
            Self::HugeCompacted => "huge page, compacted",
            Self::HugeReclaimed => "huge page, reclaimed",
            Self::HugeCompactedReclaimed => "huge page, compacted, reclaimed",
            Self::FailedCompacted => "huge page failed, compacted",
            Self::FailedCompactedReclaimed => "huge page failed, compacted, reclaimed",
            Self::BaseReclaimed => "base page, reclaimed",
            Self::SwappedIn => "swapped in",
            Self::OutOfMemory => "out of memory",
        }
    }

    /// Whether it waited for a device: not one of the soft faults that the paper speaks of.
    pub const fn is_hard(self) -> bool {
        matches!(self, Self::SwappedIn)
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A fault: how it ended, and what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// How it ended.
    pub outcome: Outcome,
    /// What the program waited.
    pub cycles: Cycles,
}

/// Faults by how they ended.
#[derive(Clone, Debug)]
pub struct Faults {
    by_outcome: [Histogram; Outcome::ALL.len()],
}

impl Default for Faults {
    fn default() -> Self {
        Self { by_outcome: core::array::from_fn(|_| Histogram::default()) }
    }
}

/// A row of the table of outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OutcomeRow {
    /// How the faults ended.
    pub outcome: Outcome,
    /// What they took.
    pub latency: Quantiles,
}

impl Faults {
    /// Counts a fault.
    pub fn record(&mut self, fault: Fault) {
        self.by_outcome[fault.outcome as usize].record(fault.cycles, 1);
    }

    /// Those that ended in a way.
    pub fn of(&self, outcome: Outcome) -> &Histogram {
        &self.by_outcome[outcome as usize]
    }

    /// All soft faults.
    pub fn soft(&self) -> Histogram {
        let mut all = Histogram::default();
        for outcome in Outcome::ALL.into_iter().filter(|outcome| !outcome.is_hard()) {
            all.add(self.of(outcome));
        }
        all
    }

    /// What all of them took.
    pub fn total(&self) -> Cycles {
        self.by_outcome.iter().map(Histogram::total).sum()
    }

    /// Rows of those that occurred.
    pub fn rows(&self) -> Vec<OutcomeRow> {
        let all = Outcome::ALL.into_iter();
        all.map(|outcome| OutcomeRow { outcome, latency: self.of(outcome).quantiles() })
            .filter(|row| row.latency.count > 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_told_apart_and_named_apart() {
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, index);
            assert!(Outcome::ALL[..index].iter().all(|other| other.name() != outcome.name()));
        }
        let mut faults = Faults::default();
        faults.record(Fault { outcome: Outcome::SwappedIn, cycles: Cycles(9) });
        faults.record(Fault { outcome: Outcome::Base, cycles: Cycles(1) });
        assert_eq!((faults.soft().count(), faults.total()), (1, Cycles(10)));
        assert_eq!(faults.rows().len(), 2);
    }
}
