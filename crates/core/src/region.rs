//! Regions and contexts.

use serde::{Deserialize, Serialize};

use crate::PageNo;
use crate::page::{PageRange, PageSize};
use crate::units::Bytes;

/// Which region. Numbers are small and reused after a region is freed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct RegionId(pub u32);

/// Pages or kernel objects that become hot and cold together: a file, a
/// socket, an allocation site (KLOC's *knode*).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ContextId(pub u32);

impl ContextId {
    /// Memory of which nothing is known but that the program mapped it.
    pub const ANONYMOUS: Self = Self(0);

    /// Kernel memory that several contexts share: pages of slabs.
    pub const SHARED: Self = Self(u32::MAX);
}

/// A mapped range of one address space that Terrace manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its number.
    pub id: RegionId,
    /// How many pages it has.
    pub pages: u32,
    /// The size in which its memory is placed.
    pub page_size: PageSize,
    /// What it belongs to.
    pub context: ContextId,
}

impl Region {
    /// The region's length.
    pub fn bytes(&self) -> Bytes {
        self.page_size.bytes() * u64::from(self.pages)
    }
    /// All of its pages.
    pub fn range(&self) -> PageRange {
        PageRange { region: self.id, start: PageNo(0), count: self.pages }
    }
}
