//! What lies in each part of a window, and which parts are accessed: kept page by
//! page, so that a picture of everything costs nothing a page.

use terrace_core::{Bytes, MAX_TIERS, PageSize, TierId};

use super::space::WINDOW;
use crate::stats::process_page::PARTS;

/// A part's size: 2 MiB, so that a huge page is in one part.
pub(super) const PART: u64 = WINDOW / PARTS as u64;

/// One of the [`PARTS`] equal parts of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Base pages that lie in each tier, at most 512 together.
    held: [u16; MAX_TIERS],
    /// Accesses that were observed lately, and before that: [`Part::age`].
    accesses: [u32; 2],
}

impl Part {
    /// The part in which a window's page of this size and number lies.
    pub(super) fn index(page: u32, size: PageSize) -> usize {
        ((u64::from(page) << size.shift()) / PART) as usize
    }

    /// A page came to a tier.
    pub(super) fn add(&mut self, tier: TierId, size: PageSize) {
        self.held[tier.index()] += base_pages(size);
    }

    /// A page left a tier.
    pub(super) fn remove(&mut self, tier: TierId, size: PageSize) {
        self.held[tier.index()] -= base_pages(size);
    }

    /// Accesses were observed.
    pub(super) fn observe(&mut self, weight: u32) {
        self.accesses[0] = self.accesses[0].saturating_add(weight);
    }

    /// What was observed so far becomes what was observed before.
    pub(super) fn age(&mut self) {
        self.accesses = [0, self.accesses[0]];
    }

    /// Whether nothing lies in it.
    pub(super) fn is_empty(&self) -> bool {
        self.held.iter().all(|held| *held == 0)
    }

    /// What of it lies in a tier.
    pub fn held(&self, tier: TierId) -> Bytes {
        PageSize::Base.bytes() * u64::from(self.held[tier.index()])
    }

    /// Accesses that were observed lately: since one to two times
    /// [`RECENT`](super::stats::RECENT).
    pub fn accesses(&self) -> u32 {
        self.accesses[0].saturating_add(self.accesses[1])
    }
}

/// A page's size in base pages.
fn base_pages(size: PageSize) -> u16 {
    1 << (size.shift() - PageSize::Base.shift())
}
