//! What the live benchmarks share.
//!
//! | file | concept |
//! |---|---|
//! | [`system`] | under what a program runs: nothing, kernel swap, `terrace run` |
//! | [`peer`] | kernel swap in a memory cgroup |
//! | [`host`] | memory that a virtual machine's host has taken back |
//! | [`interrupt`] | children, and leaving the machine as it was after Ctrl-C |
//! | [`programs`] | real programs |
//! | [`limits`] | what a miss costs at least on this machine |
//! | [`breakdown`] | where the time of a miss went |
//! | [`busy`] | other programs that want the processors, too |
//! | [`tails`], [`vmstat`] | first touches of real programs: what runs show, and what the kernel counts |
//! | [`corpus`], [`histogram`], [`spread`] | data, latencies, medians |

pub mod breakdown;
pub mod busy;
pub mod corpus;
pub mod histogram;
pub mod host;
pub mod interrupt;
pub mod limits;
pub mod peer;
pub mod programs;
pub mod spread;
pub mod system;
pub mod tails;
pub mod vmstat;

/// The exit status for an error: 3 for what this machine or its user does not allow.
pub fn status(error: &std::io::Error) -> u8 {
    use std::io::ErrorKind::{PermissionDenied, Unsupported};
    if matches!(error.kind(), Unsupported | PermissionDenied) { 3 } else { 1 }
}

/// One of the turns that `gups --turns` takes.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Turn {
    /// Updates, all threads together.
    pub updates: u64,
    /// How long it took.
    pub seconds: f64,
}

/// One run of the `gups` program.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub struct Gups {
    /// Updates a second, all threads together.
    pub updates_per_second: f64,
    /// How long it took to fill the memory.
    pub fill_seconds: f64,
    /// Median time of one update, ns, the clock's own 20 to 30 ns included.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The same, 99.99th.
    pub p9999_ns: u64,
    /// Longest.
    pub max_ns: u64,
}
