//! What a world tells a policy and the economist about itself.

use serde::{Deserialize, Serialize};

use crate::tier::TierId;
use crate::units::{Bytes, BytesPerSecond, Nanos, PerSecond};

/// The longest ladder of tiers that we handle.
pub const MAX_TIERS: usize = 8;

/// One tier's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TierTelemetry {
    /// What the tier can hold.
    pub capacity: Bytes,
    /// What is not in use.
    pub free: Bytes,
    /// Whether loads and stores reach it in place. A page that is accessed
    /// while it lies in a tier that is not addressable has to be brought in.
    pub addressable: bool,
    /// Latency of a load now, under the present load.
    pub read_latency: Nanos,
    /// Latency of a store now, under the present load.
    pub write_latency: Nanos,
    /// Read traffic now.
    pub read_bandwidth: BytesPerSecond,
    /// Write traffic now.
    pub write_bandwidth: BytesPerSecond,
    /// Memory accesses (last-level cache misses) the tier serves now.
    pub accesses: PerSecond,
}

/// A world's state at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Telemetry {
    /// The world's clock.
    pub now: Nanos,
    /// How many entries of `tiers` are in use.
    pub tier_count: u8,
    /// Each tier, fastest first.
    pub tiers: [TierTelemetry; MAX_TIERS],
    /// Migration traffic since the world began.
    pub migrated: Bytes,
    /// Migration traffic that may still be planned in this tick.
    pub migration_budget: Bytes,
    /// How busy the processors are, 0 (idle) to 1: the price of Terrace's own time.
    pub cpu_load: f64,
    /// Accesses that one sample of the current sampler stands for; 0 if unknown.
    pub sample_period: u64,
}

impl Telemetry {
    /// One tier's state.
    pub fn tier(&self, id: TierId) -> &TierTelemetry {
        &self.tiers[id.index()]
    }
    /// The tiers in use, fastest first.
    pub fn ladder(&self) -> impl Iterator<Item = (TierId, &TierTelemetry)> {
        self.tiers[..usize::from(self.tier_count)]
            .iter()
            .enumerate()
            .map(|(i, t)| (TierId(i as u8), t))
    }
}
