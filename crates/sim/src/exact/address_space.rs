//! An address space: what the program mapped, page tables, and frames.
//!
//! The policy knows memory as regions. A mapping becomes one region of base
//! pages, or, with huge pages, a region of huge pages for what is aligned and
//! regions of base pages for the ends, as transparent huge pages have it.
//! Parts of a mapping that were mapped before keep their region.

use std::collections::BTreeMap;

use terrace_core::{
    Bytes, ContextId, PageNo, PageRange, PageRef, PageSize, Region, RegionId, SlotMap, TierId,
};

use super::access::ADDRESSES;
use super::frames::Frames;
use super::page_table::{MapSize, PageTable};

/// Memory that an access outside of all mappings brings into being: traces
/// without mappings have accesses alone.
const IMPLIED: u64 = 64 << 20;
/// A region holds at most so many bytes.
const LARGEST: u64 = 1 << 40;

/// A region's place in the address space.
#[derive(Clone, Copy, Debug)]
struct Area {
    end: u64,
    region: RegionId,
    size: PageSize,
}

/// What the program mapped.
#[derive(Clone, Debug, Default)]
pub struct Areas {
    /// By their first address.
    by_start: BTreeMap<u64, Area>,
    /// First address of each region, by number; `None` for numbers not in use.
    starts: Vec<Option<u64>>,
    /// Huge pages that were split into regions of their own, by first address.
    splits: BTreeMap<u64, Area>,
    /// The area found last.
    last: Option<(u64, Area)>,
    /// Memory that some thread is going to map, by first address: its end.
    expected: BTreeMap<u64, u64>,
    slots: SlotMap,
}

impl Areas {
    /// The page that an address lies in.
    pub fn page(&mut self, address: u64) -> Option<(PageRef, PageSize)> {
        let (start, area) = match self.last {
            Some((start, area)) if (start..area.end).contains(&address) => (start, area),
            _ => {
                let at = |areas: &BTreeMap<u64, Area>| {
                    let (&start, &area) = areas.range(..=address).next_back()?;
                    (address < area.end).then_some((start, area))
                };
                if let Some((start, area)) = at(&self.splits) {
                    return Some((page_of(address, start, area), area.size));
                }
                let (&start, &area) = self.by_start.range(..=address).next_back()?;
                if address >= area.end {
                    return None;
                }
                // What has splits within it cannot answer alone.
                if self.splits.range(start..area.end).next().is_none() {
                    self.last = Some((start, area));
                }
                (start, area)
            }
        };
        Some((page_of(address, start, area), area.size))
    }

    /// Makes the base pages of a huge page a region of their own.
    pub fn split(&mut self, page: PageRef) -> Option<Region> {
        let (start, size) = self.address(page)?;
        if size != PageSize::Huge || self.splits.contains_key(&start) {
            return None;
        }
        let id = self.number(start);
        let end = start + size.bytes().get();
        let area = Area { end, region: RegionId(id), size: PageSize::Base };
        let region = area.region(start);
        self.splits.insert(start, area);
        self.slots.insert(&region);
        self.last = None;
        Some(region)
    }

    /// Whether any page was split.
    pub fn has_splits(&self) -> bool {
        !self.splits.is_empty()
    }

    /// First address and size of a page; `None` for a page of no mapping.
    pub fn address(&self, page: PageRef) -> Option<(u64, PageSize)> {
        let start = (*self.starts.get(page.region.0 as usize)?)?;
        let area = [&self.splits, &self.by_start]
            .into_iter()
            .filter_map(|areas| areas.get(&start))
            .find(|area| area.region == page.region)?;
        let address = start + (u64::from(page.page.0) << area.size.shift());
        (address < area.end).then_some((address, area.size))
    }

    /// A page's dense number.
    pub fn slot(&self, page: PageRef) -> Option<u32> {
        self.slots.slot(page)
    }

    /// The page of a dense number.
    pub fn page_in(&self, slot: u32) -> Option<PageRef> {
        self.slots.page(slot)
    }

    /// Every region with its first address.
    pub fn regions(&self) -> impl Iterator<Item = (u64, Region)> {
        self.by_start.iter().map(|(&start, area)| (start, area.region(start)))
    }

    /// A region number that is not in use, for a region that begins here.
    fn number(&mut self, start: u64) -> u32 {
        let id = self.starts.iter().position(Option::is_none).unwrap_or(self.starts.len());
        if id == self.starts.len() {
            self.starts.push(None);
        }
        self.starts[id] = Some(start);
        id as u32
    }

    fn insert(&mut self, start: u64, end: u64, size: PageSize, added: &mut Vec<Region>) {
        if start >= end {
            return;
        }
        let area = Area { end, region: RegionId(self.number(start)), size };
        self.by_start.insert(start, area);
        let region = area.region(start);
        self.slots.insert(&region);
        added.push(region);
        self.last = None;
    }

    /// Maps what is not mapped yet of a range, and returns the regions that
    /// came into being.
    pub fn map(&mut self, start: u64, len: u64, size: PageSize) -> Vec<Region> {
        let base = PageSize::Base.bytes().get();
        let mut at = start & !(base - 1);
        let end = start.saturating_add(len).min(ADDRESSES).next_multiple_of(base);
        self.expected.remove(&start);
        let mut added = Vec::new();
        while at < end {
            if let Some((_, area)) =
                self.by_start.range(..=at).next_back().filter(|(_, a)| a.end > at)
            {
                at = area.end;
                continue;
            }
            let next = self.by_start.range(at..).next().map_or(end, |(&next, _)| next);
            let stop = next.min(end).min(at + LARGEST);
            let huge = PageSize::Huge.bytes().get();
            let (first, last) = (at.next_multiple_of(huge), stop & !(huge - 1));
            if size == PageSize::Huge && first < last {
                self.insert(at, first, PageSize::Base, &mut added);
                self.insert(first, last, PageSize::Huge, &mut added);
                self.insert(last, stop, PageSize::Base, &mut added);
            } else {
                self.insert(at, stop, PageSize::Base, &mut added);
            }
            at = stop;
        }
        added
    }

    /// Memory that is going to be mapped.
    pub(super) fn expect(&mut self, maps: Vec<(u64, u64)>) {
        self.expected
            .extend(maps.into_iter().map(|(start, len)| (start, start.saturating_add(len))));
    }

    /// Maps what an address that lies in no mapping belongs to: memory that
    /// another thread is about to map, else the neighbourhood.
    pub fn imply(&mut self, address: u64, size: PageSize) -> Vec<Region> {
        match self.expected.range(..=address).next_back() {
            Some((&start, &end)) if address < end => self.map(start, end - start, size),
            _ => self.map(address & !(IMPLIED - 1), IMPLIED, size),
        }
    }

    /// Parts of regions that a range covers, each with whether it is all of it.
    pub fn parts(&self, start: u64, len: u64) -> Vec<(PageRange, bool)> {
        let end = start.saturating_add(len);
        let mut parts = Vec::new();
        // What was split out of a region goes before it does.
        let split = start.saturating_sub(PageSize::Huge.bytes().get());
        for (&first, area) in self.splits.range(split..end) {
            area.part(first, start, end, &mut parts);
        }
        let before = self.by_start.range(..=start).next_back().map_or(start, |(&s, _)| s);
        for (&first, area) in self.by_start.range(before..end) {
            area.part(first, start, end, &mut parts);
        }
        parts
    }

    /// Forgets a region.
    pub fn remove(&mut self, region: RegionId) {
        if let Some(start) = self.starts.get_mut(region.0 as usize).and_then(Option::take) {
            for areas in [&mut self.splits, &mut self.by_start] {
                if areas.get(&start).is_some_and(|area| area.region == region) {
                    areas.remove(&start);
                }
            }
            self.slots.remove(region);
            self.last = None;
        }
    }
}

/// The page of an address within an area that begins at `start`.
fn page_of(address: u64, start: u64, area: Area) -> PageRef {
    let page = PageNo(((address - start) >> area.size.shift()) as u32);
    PageRef { region: area.region, page }
}

impl Area {
    /// The part of the area's region, which begins at `first`, that a range
    /// covers, with whether that is all of it.
    fn part(&self, first: u64, start: u64, end: u64, parts: &mut Vec<(PageRange, bool)>) {
        let shift = self.size.shift();
        let page = 1u64 << shift;
        let from = start.max(first).next_multiple_of(page);
        let to = end.min(self.end) & !(page - 1);
        if from < to {
            let range = PageRange {
                region: self.region,
                start: PageNo(((from - first) >> shift) as u32),
                count: ((to - from) >> shift) as u32,
            };
            parts.push((range, from == first && to == self.end));
        }
    }

    fn region(&self, start: u64) -> Region {
        Region {
            id: self.region,
            pages: ((self.end - start) >> self.size.shift()) as u32,
            page_size: self.size,
            context: ContextId::ANONYMOUS,
        }
    }
}

/// The size in which a page of a size is mapped.
pub const fn map_size(size: PageSize) -> MapSize {
    match size {
        PageSize::Base => MapSize::Base,
        PageSize::Huge => MapSize::Huge,
    }
}

/// Frames and tables of the address space.
#[derive(Clone, Debug)]
pub struct PhysicalMemory {
    /// Free frames.
    pub frames: Frames,
    /// Page tables.
    pub table: PageTable,
    /// The tier that tables are placed in while it has room.
    pub tables_in: TierId,
}

impl PhysicalMemory {
    /// Empty memory, with the root of the page tables in place.
    pub fn new(capacities: &[Bytes], tables_in: TierId) -> Self {
        let mut frames = Frames::new(capacities);
        let root = take_any(&mut frames, tables_in, 0).unwrap_or(0);
        Self { frames, table: PageTable::new(root), tables_in }
    }

    /// Maps a page to a frame, with the tables that it needs; returns how many
    /// were made, `None` without frames for them.
    pub fn map(&mut self, address: u64, size: MapSize, frame: u64) -> Option<u32> {
        let (frames, tier) = (&mut self.frames, self.tables_in);
        self.table.map(address, size, frame, || take_any(frames, tier, 0))
    }
}

/// A block out of a tier, else out of the next that has one.
pub fn take_any(frames: &mut Frames, first: TierId, order: u32) -> Option<u64> {
    let tiers = frames.tiers();
    (0..tiers)
        .map(|i| TierId(((first.index() + i) % tiers) as u8))
        .find_map(|tier| frames.take(tier, order))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_keep_their_region_when_parts_are_mapped_again() {
        let mut areas = Areas::default();
        let first = areas.map(0x10_0000, 0x10_0000, PageSize::Base);
        let second = areas.map(0x0f_0000, 0x30_0000, PageSize::Base);
        assert_eq!((first.len(), second.len()), (1, 2), "before and after what was there");
        let (page, _) = areas.page(0x10_0fff).expect("mapped");
        assert_eq!(page, PageRef { region: first[0].id, page: PageNo(0) });
        assert_eq!(areas.address(page), Some((0x10_0000, PageSize::Base)));
    }

    #[test]
    fn huge_pages_are_used_where_they_fit_whole() {
        let mut areas = Areas::default();
        let regions = areas.map(0x1f_f000, (4 << 20) + 0x2000, PageSize::Huge);
        let sizes: Vec<_> = regions.iter().map(|r| (r.page_size, r.pages)).collect();
        assert_eq!(sizes, [(PageSize::Base, 1), (PageSize::Huge, 2), (PageSize::Base, 1)]);
    }

    /// A split page's region lies within another: who is asked has to be the
    /// inner one, and what is unmapped has to name both.
    #[test]
    fn a_split_page_is_a_region_of_its_own() {
        let mut areas = Areas::default();
        let huge = areas.map(0x20_0000, 0x80_0000, PageSize::Huge)[0];
        let (second, _) = areas.page(0x40_0000).expect("mapped");

        let into = areas.split(second).expect("a huge page");

        assert_eq!((into.pages, into.page_size), (512, PageSize::Base));
        let page = |address, areas: &mut Areas| areas.page(address).expect("mapped").0;
        assert_eq!(page(0x40_3fff, &mut areas), PageRef { region: into.id, page: PageNo(3) });
        assert_eq!(page(0x3f_ffff, &mut areas), PageRef { region: huge.id, page: PageNo(0) });
        assert_eq!(page(0x60_0000, &mut areas), PageRef { region: huge.id, page: PageNo(2) });
        let inner = PageRef { region: into.id, page: PageNo(3) };
        assert_eq!(areas.address(inner), Some((0x40_3000, PageSize::Base)));
        assert_eq!(areas.split(second), None, "only once");
        let parts = areas.parts(0x20_0000, 0x80_0000);
        assert_eq!(
            parts.iter().map(|p| (p.0.region, p.0.count, p.1)).collect::<Vec<_>>(),
            [(into.id, 512, true), (huge.id, 4, true),]
        );
        areas.remove(into.id);
        assert_eq!(page(0x40_3fff, &mut areas), second, "nothing covers it any more");
    }

    #[test]
    fn an_unmapped_range_names_the_pages_of_each_region() {
        let mut areas = Areas::default();
        areas.map(0, 0x4000, PageSize::Base);
        areas.map(0x8000, 0x4000, PageSize::Base);
        let parts = areas.parts(0x2000, 0xa000);
        assert_eq!(parts.len(), 2);
        assert_eq!((parts[0].0.start, parts[0].0.count, parts[0].1), (PageNo(2), 2, false));
        assert_eq!((parts[1].0.start, parts[1].0.count, parts[1].1), (PageNo(0), 4, true));
        areas.remove(parts[1].0.region);
        assert_eq!(areas.page(0x8000), None);
    }
}
