//! Where each page lies. Pages are metadata only: a byte of state each.

use terrace_core::{Bytes, PageNo, PageRef, PageSize, Region, TierId};

/// A page that lies nowhere yet.
pub(crate) const NOWHERE: u8 = 0x7f;
/// Set while a page is being moved: stores to it have to wait.
const MOVING: u8 = 0x80;

/// Where a workload's pages lie, and how full the tiers are.
///
/// Pages are counted through all regions in order.
#[derive(Clone, Debug)]
pub struct Pages {
    regions: Vec<Region>,
    /// The first page of each region.
    bases: Vec<u32>,
    /// The tier of each page, or [`NOWHERE`]; with [`MOVING`] while it moves.
    state: Vec<u8>,
    capacity: Vec<Bytes>,
    used: Vec<Bytes>,
}

impl Pages {
    /// Pages of these regions, none of them placed.
    pub fn new(regions: &[Region], capacity: &[Bytes]) -> Self {
        let mut bases = Vec::with_capacity(regions.len());
        let mut total = 0u32;
        for region in regions {
            bases.push(total);
            total += region.pages;
        }
        Self {
            regions: regions.to_vec(),
            bases,
            state: vec![NOWHERE; total as usize],
            capacity: capacity.to_vec(),
            used: vec![Bytes::ZERO; capacity.len()],
        }
    }

    /// The regions, in order.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// How many pages there are.
    pub fn len(&self) -> usize {
        self.state.len()
    }

    /// Whether there is no page at all.
    pub fn is_empty(&self) -> bool {
        self.state.is_empty()
    }

    /// A page's place, as the hot loop wants it: a tier's number or [`NOWHERE`].
    #[inline]
    pub(crate) fn place(&self, page: u32) -> u8 {
        self.state[page as usize] & !MOVING
    }

    /// The tier that a page lies in; `None` before it is placed.
    pub fn tier(&self, page: u32) -> Option<TierId> {
        let place = self.place(page);
        (place != NOWHERE).then_some(TierId(place))
    }

    /// Whether a page is being moved.
    pub fn is_moving(&self, page: u32) -> bool {
        self.state[page as usize] & MOVING != 0
    }

    fn region_of(&self, page: u32) -> usize {
        self.bases.partition_point(|&base| base <= page) - 1
    }

    /// The page's name.
    pub fn page_ref(&self, page: u32) -> PageRef {
        let region = self.region_of(page);
        PageRef { region: self.regions[region].id, page: PageNo(page - self.bases[region]) }
    }

    /// The page of a name; `None` if there is no such page.
    pub fn number(&self, page: PageRef) -> Option<u32> {
        let region = self.regions.iter().position(|r| r.id == page.region)?;
        (page.page.0 < self.regions[region].pages).then(|| self.bases[region] + page.page.0)
    }

    /// A page's size.
    pub fn size(&self, page: u32) -> PageSize {
        self.regions[self.region_of(page)].page_size
    }

    /// What a tier holds.
    pub fn capacity(&self, tier: TierId) -> Bytes {
        self.capacity[tier.index()]
    }

    /// What is free in a tier.
    pub fn free(&self, tier: TierId) -> Bytes {
        self.capacity[tier.index()] - self.used[tier.index()]
    }

    /// Whether a page of this size finds room in a tier.
    pub fn has_room(&self, tier: TierId, size: PageSize) -> bool {
        self.free(tier) >= size.bytes()
    }

    /// Puts a page into a tier that has room for it.
    pub(crate) fn put(&mut self, page: u32, tier: TierId) {
        let size = self.size(page);
        assert!(self.has_room(tier, size), "tier {} is full", tier.0);
        if let Some(old) = self.tier(page) {
            self.used[old.index()] -= size.bytes();
        }
        self.used[tier.index()] += size.bytes();
        self.state[page as usize] = tier.0;
    }

    /// Swaps the tiers of two pages of the same size.
    pub(crate) fn swap(&mut self, a: u32, b: u32) {
        let (tier_a, tier_b) = (self.place(a), self.place(b));
        self.state[a as usize] = tier_b;
        self.state[b as usize] = tier_a;
    }

    /// Marks a page as being moved, or not any more.
    pub(crate) fn set_moving(&mut self, page: u32, moving: bool) {
        let state = &mut self.state[page as usize];
        *state = if moving { *state | MOVING } else { *state & !MOVING };
    }

    /// Pages in each tier, counted one by one, and pages that lie nowhere.
    /// Slow; it is there to check the running sums.
    pub fn census(&self) -> (Vec<u64>, u64) {
        let mut counts = vec![0; self.capacity.len()];
        let mut nowhere = 0;
        for page in 0..self.len() as u32 {
            match self.tier(page) {
                Some(tier) => counts[tier.index()] += 1,
                None => nowhere += 1,
            }
        }
        (counts, nowhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::{ContextId, RegionId};

    fn region(id: u32, pages: u32) -> Region {
        Region { id: RegionId(id), pages, page_size: PageSize::Huge, context: ContextId::ANONYMOUS }
    }

    #[test]
    fn numbers_and_names_agree_across_regions() {
        let pages = Pages::new(&[region(5, 3), region(2, 4)], &[Bytes::gib(1)]);
        assert_eq!(pages.len(), 7);
        for number in 0..7 {
            assert_eq!(pages.number(pages.page_ref(number)), Some(number));
        }
        assert_eq!(pages.page_ref(3), PageRef { region: RegionId(2), page: PageNo(0) });
        assert_eq!(pages.number(PageRef { region: RegionId(2), page: PageNo(4) }), None);
        assert_eq!(pages.number(PageRef { region: RegionId(9), page: PageNo(0) }), None);
    }

    #[test]
    fn room_follows_moves() {
        let mut pages = Pages::new(&[region(0, 3)], &[Bytes::mib(4), Bytes::mib(4)]);
        pages.put(0, TierId(0));
        pages.put(1, TierId(0));
        assert!(!pages.has_room(TierId(0), PageSize::Huge));
        pages.put(1, TierId(1));
        assert!(pages.has_room(TierId(0), PageSize::Huge));
        pages.set_moving(0, true);
        assert!(pages.is_moving(0) && pages.tier(0) == Some(TierId(0)));
        pages.set_moving(0, false);
        pages.swap(0, 1);
        assert_eq!((pages.tier(0), pages.tier(1)), (Some(TierId(1)), Some(TierId(0))));
        assert_eq!(pages.census(), (vec![1, 1], 1));
    }

    #[test]
    #[should_panic(expected = "full")]
    fn a_full_tier_takes_nothing() {
        let mut pages = Pages::new(&[region(0, 2)], &[Bytes::mib(2)]);
        pages.put(0, TierId(0));
        pages.put(1, TierId(0));
    }
}
