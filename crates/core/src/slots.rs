//! Dense numbering of pages across regions.
//!
//! Policies keep their state per page in plain arrays. A [`SlotMap`] gives
//! each region a run of consecutive slots and reuses the runs of regions that
//! were freed, so that state is found by one addition, never by hashing.

use core::ops::Range;

use crate::page::{PageNo, PageRange, PageRef};
use crate::region::{Region, RegionId};
use crate::units::Bytes;

/// A run of slots that belongs to one region.
#[derive(Clone, Copy, Debug)]
struct Run {
    base: u32,
    pages: u32,
    /// `u32::MAX` while the run is free.
    region: u32,
}

const FREE: u32 = u32::MAX;

/// Maps `(region, page)` to slots `0..capacity` and back.
#[derive(Clone, Debug, Default)]
pub struct SlotMap {
    /// Base slot of each region by its number; `u32::MAX` for none.
    base_of: Vec<u32>,
    pages_of: Vec<u32>,
    /// All runs, used and free, ordered by base, without gaps.
    runs: Vec<Run>,
    capacity: u32,
}

impl SlotMap {
    /// A map without regions.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many slots there are, used or not: the length of a state array.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Memory that the map itself uses, on the heap.
    pub fn heap_bytes(&self) -> Bytes {
        let bytes = (self.base_of.capacity() + self.pages_of.capacity()) * size_of::<u32>()
            + self.runs.capacity() * size_of::<Run>();
        Bytes(bytes as u64)
    }

    /// Gives a region its slots, and returns the first. A region that already
    /// has slots keeps them.
    ///
    /// Panics if more than 2^32 - 1 pages are managed at once (16 TiB of base pages).
    pub fn insert(&mut self, region: &Region) -> u32 {
        if let Some(base) = self.base(region.id) {
            return base;
        }
        let id = region.id.0 as usize;
        if self.base_of.len() <= id {
            self.base_of.resize(id + 1, FREE);
            self.pages_of.resize(id + 1, 0);
        }
        let fit = self.runs.iter().position(|r| r.region == FREE && r.pages >= region.pages);
        let base = if let Some(i) = fit {
            let hole = self.runs[i];
            self.runs[i] = Run { base: hole.base, pages: region.pages, region: region.id.0 };
            if hole.pages > region.pages {
                let rest = Run {
                    base: hole.base + region.pages,
                    pages: hole.pages - region.pages,
                    region: FREE,
                };
                self.runs.insert(i + 1, rest);
            }
            hole.base
        } else {
            let base = self.capacity;
            self.capacity = base.checked_add(region.pages).expect("more than 2^32 pages");
            self.runs.push(Run { base, pages: region.pages, region: region.id.0 });
            base
        };
        self.base_of[id] = base;
        self.pages_of[id] = region.pages;
        base
    }

    /// Takes a region's slots back.
    pub fn remove(&mut self, region: RegionId) {
        let Some(base) = self.base(region) else { return };
        self.base_of[region.0 as usize] = FREE;
        self.pages_of[region.0 as usize] = 0;
        let Ok(mut i) = self.runs.binary_search_by_key(&base, |r| r.base) else { return };
        // A region of no pages shares its base with its successor.
        while i > 0 && self.runs[i - 1].base == base {
            i -= 1;
        }
        while self.runs[i].region != region.0 {
            i += 1;
        }
        self.runs[i].region = FREE;
        if i + 1 < self.runs.len() && self.runs[i + 1].region == FREE {
            self.runs[i].pages += self.runs[i + 1].pages;
            self.runs.remove(i + 1);
        }
        if i > 0 && self.runs[i - 1].region == FREE {
            self.runs[i - 1].pages += self.runs[i].pages;
            self.runs.remove(i);
        }
    }

    /// A region's first slot.
    pub fn base(&self, region: RegionId) -> Option<u32> {
        self.base_of.get(region.0 as usize).copied().filter(|&base| base != FREE)
    }

    /// A page's slot; `None` for a region that is not here or a page past its end.
    #[inline]
    pub fn slot(&self, page: PageRef) -> Option<u32> {
        let id = page.region.0 as usize;
        let base = *self.base_of.get(id)?;
        (base != FREE && page.page.0 < self.pages_of[id]).then(|| base + page.page.0)
    }

    /// The slots of a range of pages, as far as the region has them.
    pub fn run(&self, range: PageRange) -> Range<u32> {
        let Some(base) = self.base(range.region) else { return 0..0 };
        let pages = self.pages_of[range.region.0 as usize];
        let start = range.start.0.min(pages);
        let end = range.start.0.saturating_add(range.count).min(pages);
        base + start..base + end
    }

    /// The page that a slot belongs to.
    pub fn page(&self, slot: u32) -> Option<PageRef> {
        let i = self.runs.partition_point(|r| r.base <= slot).checked_sub(1)?;
        let run = self.runs[i];
        (run.region != FREE && slot - run.base < run.pages)
            .then(|| PageRef { region: RegionId(run.region), page: PageNo(slot - run.base) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::PageSize;
    use crate::region::ContextId;
    use proptest::prelude::*;

    fn region(id: u32, pages: u32) -> Region {
        Region { id: RegionId(id), pages, page_size: PageSize::Base, context: ContextId::ANONYMOUS }
    }

    /// Steps of a random case, and pages of a region in it. Every step looks at every page,
    /// which in full takes Miri more than two minutes.
    const STEPS: usize = if cfg!(miri) { 12 } else { 80 };
    const PAGES: u32 = if cfg!(miri) { 8 } else { 40 };

    proptest! {
        /// If two pages shared a slot, one page's counters would be another's.
        #[test]
        fn slots_are_unique_and_map_back(
            ops in prop::collection::vec((0u32..12, 0..PAGES), 1..STEPS),
        ) {
            let mut map = SlotMap::new();
            let mut live = std::collections::BTreeMap::new();
            for (id, pages) in ops {
                if live.remove(&id).is_some() {
                    map.remove(RegionId(id));
                } else {
                    map.insert(&region(id, pages));
                    live.insert(id, pages);
                }
                let mut seen = std::collections::HashSet::new();
                for (&id, &pages) in &live {
                    for page in region(id, pages).range().pages() {
                        let slot = map.slot(page).expect("a live page has a slot");
                        prop_assert!(seen.insert(slot));
                        prop_assert!((slot as usize) < map.capacity());
                        prop_assert_eq!(map.page(slot), Some(page));
                    }
                    prop_assert_eq!(map.slot(PageRef { region: RegionId(id), page: PageNo(pages) }), None);
                }
            }
        }
    }

    #[test]
    fn a_run_ends_where_the_region_ends() {
        let mut map = SlotMap::new();
        map.insert(&region(0, 10));
        map.insert(&region(1, 100));
        let range =
            |id, start, count| PageRange { region: RegionId(id), start: PageNo(start), count };
        assert_eq!(map.run(range(1, 20, 5)), 30..35);
        assert_eq!(map.run(range(0, 4, u32::MAX)), 4..10, "not into the next region");
        assert!(map.run(range(0, 11, 5)).is_empty());
        assert!(map.run(range(7, 0, 5)).is_empty());
    }

    #[test]
    fn a_freed_region_gives_its_slots_back() {
        let mut map = SlotMap::new();
        map.insert(&region(0, 100));
        map.insert(&region(1, 100));
        map.remove(RegionId(0));
        map.insert(&region(2, 60));
        map.insert(&region(3, 40));
        assert_eq!(map.capacity(), 200);
    }
}
