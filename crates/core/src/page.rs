//! Pages: the unit of placement.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::region::RegionId;
use crate::units::Bytes;

/// The sizes in which memory is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PageSize {
    /// A 4 KiB base page.
    #[serde(rename = "4KiB")]
    Base,
    /// A 2 MiB huge page.
    #[serde(rename = "2MiB")]
    Huge,
}

impl PageSize {
    /// log2 of the size in bytes.
    pub const fn shift(self) -> u32 {
        match self {
            Self::Base => 12,
            Self::Huge => 21,
        }
    }
    /// The size in bytes.
    pub const fn bytes(self) -> Bytes {
        Bytes(1 << self.shift())
    }
}

/// A page's number within its region, counted from the region's start.
///
/// 32 bits reach 16 TiB of base pages in one region.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PageNo(pub u32);

/// One page of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageRef {
    /// The region it lies in.
    pub region: RegionId,
    /// Its number within that region.
    pub page: PageNo,
}

impl fmt::Display for PageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.region.0, self.page.0)
    }
}

/// Consecutive pages of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PageRange {
    /// The region they lie in.
    pub region: RegionId,
    /// The first page.
    pub start: PageNo,
    /// How many pages.
    pub count: u32,
}

impl PageRange {
    /// The pages of the range, in order.
    pub fn pages(self) -> impl Iterator<Item = PageRef> {
        (self.start.0..self.start.0.saturating_add(self.count))
            .map(move |page| PageRef { region: self.region, page: PageNo(page) })
    }
    /// Whether a page lies in the range.
    pub fn contains(self, page: PageRef) -> bool {
        page.region == self.region
            && page.page.0 >= self.start.0
            && page.page.0 - self.start.0 < self.count
    }
}
