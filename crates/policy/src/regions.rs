//! The regions that a policy knows, and choices along the ladder of tiers
//! that every policy makes in the same way.

use core::ops::Range;

use terrace_core::{
    Bytes, MAX_TIERS, PageRange, PageRef, PageSize, Region, RegionId, SlotMap, Telemetry, TierId,
};

/// Slots and page sizes of the regions.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    slots: SlotMap,
    /// By the region's number.
    page_sizes: Vec<PageSize>,
}

impl Regions {
    /// Enters a region; returns how many slots there are now.
    pub(crate) fn insert(&mut self, region: &Region) -> usize {
        let id = region.id.0 as usize;
        if self.page_sizes.len() <= id {
            self.page_sizes.resize(id + 1, PageSize::Base);
        }
        self.page_sizes[id] = region.page_size;
        self.slots.insert(region);
        self.slots.capacity()
    }

    /// Forgets a region.
    pub(crate) fn remove(&mut self, region: RegionId) {
        self.slots.remove(region);
    }

    /// A page's slot, if its region is known.
    #[inline]
    pub(crate) fn slot(&self, page: PageRef) -> Option<u32> {
        self.slots.slot(page)
    }

    /// The slots of a range of pages, as far as the region has them.
    pub(crate) fn run(&self, range: PageRange) -> Range<u32> {
        self.slots.run(range)
    }

    /// The page in a slot, with its size.
    pub(crate) fn page(&self, slot: u32) -> Option<(PageRef, PageSize)> {
        let page = self.slots.page(slot)?;
        Some((page, self.page_size(page)))
    }

    /// A page's size; a base page's for a region that is not known.
    pub(crate) fn page_size(&self, page: PageRef) -> PageSize {
        self.page_sizes.get(page.region.0 as usize).copied().unwrap_or(PageSize::Base)
    }

    /// How many slots there are.
    pub(crate) fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Heap memory.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.slots.heap_bytes().get() as usize + self.page_sizes.capacity() * size_of::<PageSize>()
    }
}

/// Where a page goes on first touch, or when it is brought in: the fastest
/// addressable tier with room, else the fastest addressable tier.
pub(crate) fn fastest_with_room(telemetry: &Telemetry, size: PageSize) -> TierId {
    let addressable = || telemetry.ladder().filter(|(_, tier)| tier.addressable);
    addressable()
        .find(|(_, tier)| tier.free >= size.bytes())
        .or_else(|| addressable().next())
        .map_or(TierId::FASTEST, |(id, _)| id)
}

/// Room in each tier while a plan is made.
///
/// What proposals under way will take is not in the tiers' telemetry yet, so
/// it is taken off; what they will free counts only once it is free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room([Bytes; MAX_TIERS]);

impl Room {
    /// The room that telemetry and the traffic under way leave.
    pub(crate) fn new(telemetry: &Telemetry, incoming: &Incoming) -> Self {
        let mut room = [Bytes::ZERO; MAX_TIERS];
        for (id, tier) in telemetry.ladder() {
            room[id.index()] = tier.free - incoming.0[id.index()];
        }
        Self(room)
    }

    /// Whether a tier takes another page of this size.
    pub(crate) fn fits(&self, tier: TierId, size: PageSize) -> bool {
        self.0[tier.index()] >= size.bytes()
    }

    /// What is free in a tier.
    pub(crate) fn free(&self, tier: TierId) -> Bytes {
        self.0[tier.index()]
    }

    /// A page goes from one tier to another, before whatever is planned next.
    pub(crate) fn moved(&mut self, from: TierId, to: TierId, size: PageSize) {
        self.0[to.index()] -= size.bytes();
        self.0[from.index()] += size.bytes();
    }

    /// The nearest tier below `from` that has room, else the slowest tier
    /// (which then has to make room itself); `None` below the slowest.
    pub(crate) fn below(
        &self,
        from: TierId,
        size: PageSize,
        telemetry: &Telemetry,
    ) -> Option<TierId> {
        let slower = || telemetry.ladder().map(|(id, _)| id).filter(|&id| id > from);
        slower().find(|&id| self.fits(id, size)).or_else(|| slower().last())
    }
}

/// Bytes on their way into each tier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Incoming([Bytes; MAX_TIERS]);

impl Incoming {
    /// A move into a tier was proposed.
    pub(crate) fn begin(&mut self, to: TierId, size: PageSize) {
        self.0[to.index()] += size.bytes();
    }
    /// Bytes on their way.
    pub(crate) fn bytes(&self, tier: TierId) -> Bytes {
        self.0[tier.index()]
    }
    /// A proposed move came to its end.
    pub(crate) fn end(&mut self, to: TierId, size: PageSize) {
        self.0[to.index()] -= size.bytes();
    }
}
