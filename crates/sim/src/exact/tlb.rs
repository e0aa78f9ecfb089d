//! Two levels of TLB for three page sizes, and the page-walk caches.

#![allow(clippy::inline_always)] // measured: a call on the hot path costs more than the work

use terrace_core::detail::{Detail, TlbFile};
use terrace_core::{Cycles, Replacement};

use super::last_used::Shape;
use super::page_table::{Entry, MapSize};
use super::sets::Sets;

/// A TLB's size and associativity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbGeometry {
    /// Translations that it holds.
    pub entries: u32,
    /// Its associativity.
    pub ways: u32,
}

impl From<&TlbFile> for TlbGeometry {
    fn from(file: &TlbFile) -> Self {
        Self { entries: file.entries.value, ways: file.ways.value }
    }
}

impl TlbGeometry {
    fn build(self) -> Sets {
        Sets::new(u64::from(self.entries / self.ways), self.ways, Replacement::Lru)
    }
}

/// All TLBs and page-walk caches of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbsGeometry {
    /// First level, by size of page.
    pub first: [TlbGeometry; 3],
    /// Second level: 4 KiB and 2 MiB together.
    pub second: TlbGeometry,
    /// Second level: 1 GiB.
    pub second_giant: TlbGeometry,
    /// What a hit of the second level takes longer than one of the first.
    pub second_latency: Cycles,
    /// Page-walk caches: entries of the topmost table, of directory-pointer
    /// tables, of directories.
    pub walk: [TlbGeometry; 3],
}

impl From<&Detail> for TlbsGeometry {
    fn from(detail: &Detail) -> Self {
        Self {
            first: [&detail.dtlb_4k, &detail.dtlb_2m, &detail.dtlb_1g].map(TlbGeometry::from),
            second: (&detail.stlb).into(),
            second_giant: (&detail.stlb_1g).into(),
            second_latency: detail.stlb_latency.value,
            walk: [&detail.walk_pml4e, &detail.walk_pdpte, &detail.walk_pde].map(TlbGeometry::from),
        }
    }
}

/// What the TLBs counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TlbMisses {
    /// Accesses that the first level could not translate.
    pub first_misses: u64,
    /// Of those, accesses that the second level could not translate either.
    pub walks: u64,
    /// Page-table entries that were read.
    pub walk_reads: u64,
}

/// A translation with the bits of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The entry: the first frame of the page, and bits.
    pub entry: Entry,
    /// Size of the page.
    pub size: MapSize,
}

impl Translation {
    /// The physical address of a virtual one in this page.
    #[inline]
    pub fn physical(&self, address: u64) -> u64 {
        (self.entry.frame() << 12) + (address & ((1 << self.size.shift()) - 1))
    }
}

impl Translation {
    /// Whether a store needs nothing more: the page is dirty, and not protected.
    #[inline(always)]
    pub(super) fn takes_stores(&self) -> bool {
        self.entry.0 & (Entry::DIRTY | Entry::PROTECTED) == Entry::DIRTY
    }
}

/// A size's bit in the set of sizes that are mapped.
const fn bit(size: MapSize) -> u8 {
    1 << size as u8
}

/// In the second level both sizes share sets; the tag says which it is.
const HUGE_IN_SECOND: u64 = 1 << 36;

/// A core's TLBs.
#[derive(Clone, Debug)]
pub struct Tlbs {
    first: [Sets; 3],
    first_entries: [Vec<Entry>; 3],
    second: Sets,
    second_entries: Vec<Entry>,
    second_giant: Sets,
    second_giant_entries: Vec<Entry>,
    walk: [Sets; 3],
    /// Sizes of pages that were ever translated: others need no look.
    sizes: u8,
    /// What was counted.
    pub counts: TlbMisses,
    /// The base page that the first level gave up last.
    given_up: Option<u64>,
}

impl Tlbs {
    /// Empty TLBs.
    pub fn new(geometry: &TlbsGeometry) -> Self {
        let first = geometry.first.map(TlbGeometry::build);
        let second = geometry.second.build();
        let second_giant = geometry.second_giant.build();
        Self {
            first_entries: core::array::from_fn(|i| vec![Entry::default(); first[i].slots()]),
            first,
            second_entries: vec![Entry::default(); second.slots()],
            second,
            second_giant_entries: vec![Entry::default(); second_giant.slots()],
            second_giant,
            walk: geometry.walk.map(TlbGeometry::build),
            sizes: 0,
            counts: TlbMisses::default(),
            given_up: None,
        }
    }

    /// A first level's sets, as the hot path's filter needs to know them.
    pub(super) fn shape(&self, size: MapSize) -> Shape {
        let sets = &self.first[size as usize];
        Shape { sets: sets.sets(), replacement: Replacement::Lru, ways: sets.ways() }
    }

    /// Exchanges the two translations used last in a set of the first level.
    #[inline(always)]
    pub(super) fn swap_recent(&mut self, size: MapSize, set: usize) {
        self.first[size as usize].swap_recent(set);
    }

    #[inline]
    fn second_number(address: u64, size: MapSize) -> u64 {
        address >> size.shift() | if size == MapSize::Huge { HUGE_IN_SECOND } else { 0 }
    }

    /// Translates, if the first level can. A miss changes and counts nothing.
    #[inline(always)]
    pub(crate) fn first(&mut self, address: u64) -> Option<Translation> {
        for size in [MapSize::Base, MapSize::Huge, MapSize::Giant] {
            if self.sizes & bit(size) != 0
                && let Some(slot) = self.first[size as usize].hit(address >> size.shift())
            {
                let entry = self.first_entries[size as usize][slot.index()];
                return Some(Translation { entry, size });
            }
        }
        None
    }

    /// Translates what the first level could not, if the second can.
    #[inline(always)]
    pub(crate) fn second(&mut self, address: u64) -> Option<Translation> {
        self.counts.first_misses += 1;
        for size in [MapSize::Base, MapSize::Huge] {
            if self.sizes & bit(size) != 0
                && let Some(slot) = self.second.hit(Self::second_number(address, size))
            {
                let entry = self.second_entries[slot.index()];
                self.fill_first(address, Translation { entry, size });
                return Some(Translation { entry, size });
            }
        }
        let size = MapSize::Giant;
        if self.sizes & bit(size) != 0
            && let Some(slot) = self.second_giant.hit(address >> size.shift())
        {
            let entry = self.second_giant_entries[slot.index()];
            self.fill_first(address, Translation { entry, size });
            return Some(Translation { entry, size });
        }
        None
    }

    #[inline(always)]
    fn fill_first(&mut self, address: u64, translation: Translation) {
        let size = translation.size;
        let (slot, gone) = self.first[size as usize].insert(address >> size.shift(), false);
        if size == MapSize::Base {
            self.given_up = gone.map(|gone| gone.number);
        }
        self.first_entries[size as usize][slot.index()] = translation.entry;
    }

    /// The base page that the first level gave up for the last one it took.
    pub fn given_up(&mut self) -> Option<u64> {
        self.given_up.take()
    }

    /// Enters a translation that a walk has found into both levels.
    #[inline(always)]
    pub fn fill(&mut self, address: u64, translation: Translation) {
        self.sizes |= bit(translation.size);
        self.fill_first(address, translation);
        if translation.size == MapSize::Giant {
            let (slot, _) = self.second_giant.insert(address >> 30, false);
            self.second_giant_entries[slot.index()] = translation.entry;
        } else {
            let number = Self::second_number(address, translation.size);
            let (slot, _) = self.second.insert(number, false);
            self.second_entries[slot.index()] = translation.entry;
        }
    }

    /// Sets bits of a translation that the first level holds: the page was
    /// stored to for the first time.
    pub fn set_bits(&mut self, address: u64, size: MapSize, bits: u64) {
        if let Some(slot) = self.first[size as usize].find(address >> size.shift()) {
            self.first_entries[size as usize][slot.index()].0 |= bits;
        }
        if size != MapSize::Giant
            && let Some(slot) = self.second.find(Self::second_number(address, size))
        {
            self.second_entries[slot.index()].0 |= bits;
        }
    }

    /// How many of a walk's upper entries the walk caches know, and enters the
    /// others. `depth` is the number of entries that lead to the page, the last
    /// of which maps it and is not cached here.
    #[inline(always)]
    pub fn walk_begin(&mut self, address: u64, depth: usize) -> usize {
        // From the lowest: a hit there makes those above unnecessary.
        let pointing = depth - 1;
        let mut known = 0;
        for level in (0..pointing).rev() {
            if self.walk[level].hit(address >> (39 - 9 * level as u32)).is_some() {
                known = level + 1;
                break;
            }
        }
        for level in known..pointing {
            self.walk[level].insert(address >> (39 - 9 * level as u32), false);
        }
        known
    }

    /// Forgets the translation of one page.
    pub fn forget(&mut self, address: u64, size: MapSize) {
        self.first[size as usize].remove(address >> size.shift());
        if size == MapSize::Giant {
            self.second_giant.remove(address >> size.shift());
        } else {
            self.second.remove(Self::second_number(address, size));
        }
    }

    /// Forgets every translation, and what the walk caches know: tables changed.
    pub fn flush(&mut self) {
        self.first.iter_mut().for_each(Sets::clear);
        self.second.clear();
        self.second_giant.clear();
        self.walk.iter_mut().for_each(Sets::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlbs() -> Tlbs {
        let small = |entries, ways| TlbGeometry { entries, ways };
        Tlbs::new(&TlbsGeometry {
            first: [small(8, 1), small(4, 4), small(2, 2)],
            second: small(64, 2),
            second_giant: small(4, 4),
            second_latency: Cycles(7),
            walk: [small(2, 2), small(4, 4), small(4, 4)],
        })
    }

    /// What either level says.
    fn translate(tlbs: &mut Tlbs, address: u64) -> Option<Translation> {
        tlbs.first(address).or_else(|| tlbs.second(address))
    }

    fn translation(frame: u64, size: MapSize) -> Translation {
        Translation { entry: Entry::mapping(frame), size }
    }

    #[test]
    fn a_small_and_a_huge_page_with_the_same_number_are_told_apart() {
        let mut tlbs = tlbs();
        tlbs.fill(5 << 12, translation(1, MapSize::Base));
        tlbs.fill(5 << 21, translation(512, MapSize::Huge));
        let physical = |tlbs: &mut Tlbs, a| translate(tlbs, a).map(|t| t.physical(a));
        assert_eq!(physical(&mut tlbs, (5 << 12) + 9), Some((1 << 12) + 9));
        assert_eq!(physical(&mut tlbs, (5 << 21) + 9), Some((512 << 12) + 9));
        tlbs.forget(5 << 12, MapSize::Base);
        assert_eq!(physical(&mut tlbs, 5 << 12), None);
        assert_eq!(physical(&mut tlbs, 5 << 21), Some(512 << 12));
    }

    #[test]
    fn the_second_level_catches_what_the_first_gives_up() {
        let mut tlbs = tlbs();
        for page in 0..16 {
            tlbs.fill(page << 12, translation(page, MapSize::Base));
        }
        assert_eq!(tlbs.first(0), None);
        assert_eq!(tlbs.second(0), Some(translation(0, MapSize::Base)));
        assert_eq!(tlbs.first(0), Some(translation(0, MapSize::Base)));
        assert_eq!(tlbs.counts.first_misses, 1);
    }

    #[test]
    fn walks_skip_what_the_walk_caches_know() {
        let mut tlbs = tlbs();
        assert_eq!(tlbs.walk_begin(0, 4), 0, "cold: all four entries are read");
        assert_eq!(tlbs.walk_begin(4096, 4), 3, "the same page table: one entry is read");
        assert_eq!(tlbs.walk_begin(1 << 21, 4), 2, "the same directory: two");
        assert_eq!(tlbs.walk_begin(1 << 30, 4), 1, "the same pointer table: three");
        assert_eq!(tlbs.walk_begin((1 << 30) + (5 << 21), 3), 2, "a huge page: its PDE only");
    }
}
