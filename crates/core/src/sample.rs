//! Samples: observed accesses, however they were observed.

use serde::{Deserialize, Serialize};

use crate::page::PageRef;

/// Load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
}

/// How a sample was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleSource {
    /// Hardware event sampling (Intel PEBS, AMD IBS), real or simulated.
    Pmu,
    /// A page was made to fault on purpose, and did.
    HintFault,
    /// A page had to be brought in because the program touched it.
    Refault,
    /// The kernel recorded a write to a write-tracked page (`PAGEMAP_SCAN`).
    WriteTrack,
    /// An accessed bit was found set.
    AccessedBit,
    /// A recorded trace.
    Trace,
    /// Every access was seen.
    Exact,
}

/// One observed access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The page that was touched.
    pub page: PageRef,
    /// Load or store.
    pub access: Access,
    /// How it was observed.
    pub source: SampleSource,
    /// For how many *samples of this source at its nominal rate* this one
    /// stands; more than 1 where the sampler covered only part of the pages.
    pub weight: u16,
}

/// Accesses that the program is about to make to a page: what only a simulated
/// world can know. Memory accesses (last-level cache misses), as in [`crate::Heat`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Upcoming {
    /// The page.
    pub page: PageRef,
    /// Loads.
    pub loads: f32,
    /// Stores.
    pub stores: f32,
}

/// Why a page fault reached us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// Never touched before: the program expects zeros.
    FirstTouch(Access),
    /// Content lies in a tier that is not byte-addressable.
    Absent(Access),
    /// A resident page that had been made to fault on purpose.
    Hint(Access),
    /// A store to a page that is being migrated.
    WriteProtected,
    /// Nobody asked for it yet: it was brought in with a page that somebody did,
    /// because the program is expected to touch it soon.
    Ahead,
}
