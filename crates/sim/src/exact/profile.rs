//! Misses of all caches by page: which pages a fast memory would serve best.

use std::collections::HashMap;

use terrace_core::{PageRef, PageSize};

use super::address_space::Areas;
use super::machine::ExactMachine;

/// Misses by page.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    misses: HashMap<PageRef, (PageSize, u64)>,
}

impl Profile {
    /// A line of this address came from memory.
    pub(super) fn note(&mut self, areas: &mut Areas, address: u64) {
        if let Some((page, size)) = areas.page(address) {
            self.misses.entry(page).or_insert((size, 0)).1 += 1;
        }
    }

    /// Forgets what was counted: the warm-up is over.
    pub(super) fn clear(&mut self) {
        self.misses.clear();
    }

    /// Pages with their sizes and misses; those with most misses a byte come
    /// first, and among equals those that come first in memory.
    pub fn hottest_first(&self) -> Vec<(PageRef, PageSize, u64)> {
        let mut pages: Vec<_> =
            self.misses.iter().map(|(&page, &(size, n))| (page, size, n)).collect();
        let key = |&(page, size, misses): &(PageRef, PageSize, u64)| {
            // Misses a base page, in units that keep the order of huge ones.
            let each = (u128::from(misses) << 32) >> (size.shift() - PageSize::Base.shift());
            (core::cmp::Reverse(each), page.region.0, page.page.0)
        };
        pages.sort_unstable_by_key(key);
        pages
    }
}

impl ExactMachine {
    /// Counts misses by page from now on, and again from the end of the warm-up.
    pub fn profile_misses(&mut self) {
        self.profile = Some(Box::default());
    }

    /// Misses by page, if they were counted.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_deref()
    }
}
