//! Tiers: memories with their own latency, bandwidth and capacity.

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, BytesPerSecond, Nanos};

/// Which tier, counted from the fastest (0).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TierId(pub u8);

impl TierId {
    /// The fastest tier of a ladder.
    pub const FASTEST: Self = Self(0);

    /// The tier's place in a ladder, for indexing.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a tier is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierKind {
    /// Mapped and accessed in place by loads and stores: DRAM, CXL, NVM, a far node.
    ByteAddressable,
    /// Compressed in RAM: a page must be brought in before it can be accessed.
    Compressed,
    /// A file or block device: a page must be brought in before it can be accessed.
    File,
}

/// A tier as a policy and the economist see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierSpec {
    /// What people call it: `dram`, `optane`, `cxl`, `lz4`.
    pub name: String,
    /// How it is reached.
    pub kind: TierKind,
    /// How much it holds. For a compressed tier, of uncompressed pages.
    pub capacity: Bytes,
    /// Idle latency of one random load (for tiers that are not byte-addressable:
    /// of bringing one base page in).
    pub read_latency: Nanos,
    /// Idle latency of one random store that has to reach the device.
    pub write_latency: Nanos,
    /// Peak read bandwidth.
    pub read_bandwidth: BytesPerSecond,
    /// Peak write bandwidth.
    pub write_bandwidth: BytesPerSecond,
    /// Smallest amount the device moves: 64 B for DRAM, 256 B for Optane.
    pub granularity: Bytes,
}

impl TierSpec {
    /// Whether loads and stores reach it in place.
    pub fn is_byte_addressable(&self) -> bool {
        self.kind == TierKind::ByteAddressable
    }
}
