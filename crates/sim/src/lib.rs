//! A simulated machine with tiered memory.
//!
//! For who has no machine with several kinds of memory, or wants to know what a
//! policy would do on one before buying it. The policies are the very objects
//! that run live; the machine is a [machine file](terrace_core::machine).
//! Results are deterministic by seed. Pages are metadata only, so that
//! hundreds of gigabytes are simulated on a laptop.
//!
//! | file | concept |
//! |---|---|
//! | [`simulation`] | the world: time, ticks, measurements |
//! | [`config`] | what to simulate |
//! | [`report`] | what came of it |
//! | [`workload`] | what the simulated program does; [`workload::gups`] |
//! | [`device`] | a tier's latency under load, bandwidth, granularity |
//! | [`balance`] | the balance of latency and throughput |
//! | [`cache`] | the last-level cache, analytically |
//! | [`memory_mode`] | DRAM as a hardware cache |
//! | [`sampler`] | hardware event sampling |
//! | `observe` | hint faults and accessed bits |
//! | [`migration`] | the migration engine |
//! | [`pages`] | where each page lies |
//! | [`recorder`] | recording a run |
//! | [`machines`] | machines by name |
//! | [`full`] | the full model: single accesses through caches, TLBs, page tables |
//! | [`plan`](mod@plan) | how much fast memory a program needs |
//! | [`sweep`] | parameter grids |
//! | [`stack_distance`] | misses of every size of memory in one pass |
//! | [`trace`] | recorded accesses: our format and those of others |
//! | [`validation`] | ours beside references |
//! | [`reproduce`] | published results, ours beside theirs |
//!
//! `docs/simulator.md` says what is modelled, how, and what is not.

pub mod balance;
pub mod cache;
pub mod config;
pub mod device;
mod error;
pub mod full;
pub mod machines;
pub mod memory_mode;
pub mod migration;
mod observe;
pub mod pages;
pub mod plan;
pub mod recorder;
pub mod report;
pub mod reproduce;
pub mod sampler;
pub mod simulation;
pub mod stack_distance;
pub mod sweep;
mod threads;
pub mod trace;
pub mod validation;
pub mod workload;

pub use config::{Phases, SimConfig, SimPolicy, Span, UnknownSimPolicy};
pub use error::SimError;
pub use memory_mode::Frames;
pub use migration::{MigrationConfig, MigrationCounts};
pub use recorder::{JsonLines, Recorder};
pub use report::{RunResult, SeriesPoint, SimReport, TierReport};
pub use sampler::{SampleCounts, SamplerConfig};
pub use simulation::{Progress, Simulation};
pub use workload::Workload;
pub use workload::gups::{Gups, GupsConfig, Shift};
