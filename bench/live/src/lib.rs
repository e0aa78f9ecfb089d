//! What the live benchmarks share.

pub mod corpus;
pub mod histogram;
pub mod peer;

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
    /// Longest.
    pub max_ns: u64,
}
