//! Ours beside references, from runs made then and there.
//!
//! | file | concept |
//! |---|---|
//! | [`line`](mod@line) | a comparison and what it comes to |
//! | [`cachegrind`] | miss counts of real programs, which must be identical |
//! | [`curve`] | the latency-throughput curve of DDR4 |
//! | [`closed_forms`] | stack distances, Belady's bound, queues, roofs |
//! | [`champsim`] | another simulator's counters for a synthetic trace |
//! | [`loaded`] | published shapes: Optane, CXL, DDR5 under load |
//! | [`policies`] | what papers say of one policy against another |
//! | [`kernel_objects`] | what the running kernel and the simulated one take for the same calls |
//! | [`page_cache_lru`] | which pages leave a limited memory, here and in the simulated kernel |
//! | [`huge_pages`] | what huge pages bring, what fragmented memory takes |
//! | [`planner`] | predictions of `plan` beside simulations of other inputs |
//!
//! Each part takes what it measures as an argument (a machine, a memory, a
//! replacement, an engine), so that a test can give it a faulty one and see that
//! it fails; the references do not depend on it. `docs/validation.md` says what is
//! checked against what, and why ours differs where it does.

pub mod cachegrind;
pub mod champsim;
pub mod closed_forms;
pub mod curve;
pub mod huge_pages;
pub mod kernel_objects;
pub mod line;
pub mod loaded;
pub mod page_cache_lru;
pub mod planner;
pub mod policies;

pub use line::{Criterion, Known, Line, Model, State, Tally};
pub use terrace_dram::validation::Reference;
