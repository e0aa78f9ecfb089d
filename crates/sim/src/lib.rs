//! A simulated machine with tiered memory.
//!
//! For who has no machine with several kinds of memory, or wants to know what a
//! policy would do on one before buying it. The policies are the very objects
//! that run live; the machine is a [machine file](terrace_core::machine).
//! Results are deterministic by seed. Pages are metadata only, so that
//! hundreds of gigabytes are simulated on a laptop.
//!
//! | room | concept |
//! |---|---|
//! | [`analytic`] | the analytic engine: page by page, for hundreds of gigabytes |
//! | [`exact`] | the exact engine: single accesses through caches, TLBs, page tables |
//! | [`workload`] | what the simulated program does; [`workload::gups`] |
//! | [`machines`] | machines by name |
//! | [`kernel`] | a kernel that does I/O, with all of its objects in tiers |
//! | [`mm`] | a kernel's memory management: faults, huge pages, fragmentation, compaction |
//! | [`os`] | an operating system: zones, watermarks, fallback lists, memory that comes and goes |
//! | [`plan`](mod@plan) | how much fast memory a program needs |
//! | [`sweep`] | parameter grids |
//! | [`stack_distance`] | misses of every size of memory in one pass |
//! | [`trace`] | recorded accesses: our format and those of others |
//! | [`validation`] | ours beside references |
//! | [`reproduce`] | published results, ours beside theirs |
//! | `error` | why a simulation cannot be set up |
//! | `host` | memory of the machine that simulates |
//!
//! `docs/simulator.md` says what is modelled, how, and what is not.

/// What was added to counts since an earlier moment, of these fields: all of the structure, or it
/// does not compile.
macro_rules! since {
    ($now:expr, $earlier:expr, { $($field:ident),+ $(,)? }) => {
        Self { $($field: $now.$field - $earlier.$field),+ }
    };
}

pub mod analytic;
mod error;
pub mod exact;
mod host;
pub mod kernel;
pub mod machines;
pub mod mm;
pub mod os;
pub mod plan;
pub mod reproduce;
pub mod stack_distance;
pub mod sweep;
pub mod trace;
pub mod validation;
pub mod workload;

pub use analytic::config::{Phases, SimConfig, SimPolicy, Span, UnknownSimPolicy};
pub use analytic::listeners::{Listeners, OnDecisions};
pub use analytic::memory_mode::Frames;
pub use analytic::migration::{MigrationConfig, MigrationCounts};
pub use analytic::report::{RunResult, SeriesPoint, SimReport, TierReport};
pub use analytic::sampler::{SampleCounts, SamplerConfig};
pub use analytic::simulation::{Progress, Simulation};
pub use error::SimError;
pub use workload::Workload;
pub use workload::gups::{Gups, GupsConfig, Shift};
