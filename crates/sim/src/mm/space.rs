//! Address spaces: what programs mapped, cut into slots of 2 MiB.
//!
//! A slot is the range that one huge page could back, aligned. It is empty, or has base pages,
//! or is one huge page.

use std::collections::{BTreeMap, HashMap};

use terrace_core::{Bytes, PageSize};

pub use terrace_profile::Section;

use super::physical::PAGES;

/// log2 of a slot's bytes.
pub const SLOT: u32 = PageSize::Huge.shift();

/// State of a base page in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page(u32);

impl Page {
    /// Never touched.
    pub const ABSENT: Self = Self(0);
    /// Mapped to the shared page of zeros.
    pub const ZERO: Self = Self(1);
    /// Written to the swap device.
    pub const SWAPPED: Self = Self(2);
    const FIRST: u32 = 16;
    const SHARED: u32 = 1 << 31;

    /// In a frame.
    pub const fn at(frame: u64) -> Self {
        Self(frame as u32 + Self::FIRST)
    }

    /// The same, shared with a child.
    #[must_use]
    pub const fn shared(self) -> Self {
        Self(self.0 | Self::SHARED)
    }

    /// The same, shared with nobody.
    #[must_use]
    pub const fn unshared(self) -> Self {
        Self(self.0 & !Self::SHARED)
    }

    /// Whether a child shares it.
    pub const fn is_shared(self) -> bool {
        self.0 & Self::SHARED != 0
    }

    /// Its frame, if it has one.
    pub const fn frame(self) -> Option<u64> {
        match (self.0 & !Self::SHARED).checked_sub(Self::FIRST) {
            Some(frame) => Some(frame as u64),
            None => None,
        }
    }
}

/// What backs a slot.
#[derive(Clone, Debug, Default)]
pub enum Backing {
    /// Nothing.
    #[default]
    Empty,
    /// Base pages, some of them absent.
    Base(Box<[Page; PAGES as usize]>),
    /// A huge page, by its first frame.
    Huge(u64),
}

/// 2 MiB of an address space.
#[derive(Clone, Debug)]
pub struct Slot {
    /// First address.
    pub address: u64,
    /// Whose it is.
    pub process: u32,
    /// The section of what was mapped there first.
    pub section: Section,
    /// What backs it; changed by [`Spaces::back`] only, which counts.
    backing: Backing,
    /// Base pages with a frame; of a huge page all.
    pub present: u16,
    /// A child shares its huge page, or may share some of its base pages.
    pub shared: bool,
    /// Used since reclaim looked last.
    pub used: bool,
    /// Translations that missed in a round of ranking, about, and in which round.
    misses: (f32, u32),
    /// Most base pages that were present at once.
    pub touched: u16,
    /// Cycles of page walks, in all.
    pub walk_cycles: f64,
    /// Its base pages are filled ahead, some with each fault.
    pub(super) fills: bool,
    /// A bit for each base page that was filled ahead and that nobody has touched since.
    pub(super) ahead: Option<Box<Bits>>,
}

/// A bit for each base page of a slot.
pub(super) type Bits = [u64; PAGES as usize / 64];

impl Slot {
    /// A base page is touched, or not there any more: whether it had been filled ahead, and waited
    /// for that.
    #[inline]
    pub(super) fn take_ahead(&mut self, index: u32) -> bool {
        let Some(ahead) = &mut self.ahead else { return false };
        let (word, bit) = (&mut ahead[index as usize / 64], 1u64 << (index % 64));
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// A base page was filled ahead.
    pub(super) fn put_ahead(&mut self, index: u32) {
        let ahead = self.ahead.get_or_insert_default();
        ahead[index as usize / 64] |= 1 << (index % 64);
    }

    /// What backs it.
    #[inline]
    pub const fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Its base pages, if it has any.
    #[inline]
    pub(super) const fn pages_mut(&mut self) -> Option<&mut [Page; PAGES as usize]> {
        match &mut self.backing {
            Backing::Base(pages) => Some(pages),
            _ => None,
        }
    }
}

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Whose it is.
    pub process: u32,
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Its section.
    pub section: Section,
    /// Whether the program advised huge pages.
    pub advised: bool,
}

impl Area {
    /// Whether a huge page fits at a slot's address.
    pub const fn holds_huge(&self, address: u64) -> bool {
        address >= self.start && address + (1 << SLOT) <= self.end
    }
}

/// log2 of the bytes that a directory of slots covers.
const DIRECTORY: u32 = SLOT + 9;
const NO_SLOT: u32 = u32::MAX;

/// All address spaces.
#[derive(Clone, Debug, Default)]
pub struct Spaces {
    /// By process and first address.
    areas: BTreeMap<(u32, u64), Area>,
    slots: Vec<Slot>,
    /// Numbers of slots, by process and gibibyte.
    directories: HashMap<(u32, u64), usize>,
    tables: Vec<[u32; 512]>,
    last: Option<Area>,
    last_directory: Option<((u32, u64), usize)>,
    /// A bit for each slot: it has base pages. Ranges are ranked so often that looking at every
    /// slot would take most of a simulation's time where nearly all of them are huge.
    with_base: Vec<u64>,
    /// How often ranges were ranked: misses of earlier rounds count as none.
    round: u32,
}

impl Spaces {
    /// Maps memory where nothing is mapped. What touches an area of the same kind becomes part
    /// of it, as in Linux.
    pub fn map(&mut self, process: u32, start: u64, len: Bytes, section: Section) {
        let mut area = Area { process, start, end: start + len.get(), section, advised: false };
        for at in (start >> SLOT)..area.end.div_ceil(1 << SLOT) {
            self.make_slot(process, at << SLOT, section);
        }
        let before = self.areas.range(..(process, start)).next_back().map(|(_, area)| *area);
        if let Some(before) = before.filter(|before| before.end == start && area.joins(before)) {
            area.start = before.start;
        }
        let after = self.areas.get(&(process, area.end)).copied();
        if let Some(after) = after.filter(|after| area.joins(after)) {
            self.areas.remove(&(process, after.start));
            area.end = after.end;
        }
        self.areas.insert((process, area.start), area);
        self.last = None;
    }

    fn make_slot(&mut self, process: u32, address: u64, section: Section) {
        let key = (process, address >> DIRECTORY);
        let table = *self.directories.entry(key).or_insert_with(|| {
            self.tables.push([NO_SLOT; 512]);
            self.tables.len() - 1
        });
        let entry = &mut self.tables[table][(address >> SLOT) as usize % 512];
        if *entry == NO_SLOT {
            *entry = self.slots.len() as u32;
            self.with_base.resize(self.slots.len() / 64 + 1, 0);
            self.slots.push(Slot {
                address,
                process,
                section,
                backing: Backing::Empty,
                present: 0,
                shared: false,
                used: false,
                misses: (0.0, 0),
                touched: 0,
                walk_cycles: 0.0,
                fills: false,
                ahead: None,
            });
        }
    }

    /// Forgets a range of mappings, and returns the parts of slots that were mapped in it: a
    /// slot's number, its first base page, and the one after the last.
    pub(super) fn unmap(&mut self, process: u32, start: u64, len: Bytes) -> Vec<(u32, u32, u32)> {
        let end = start + len.get();
        let first = self.areas.range(..=(process, start)).next_back();
        let first = first.filter(|(_, area)| area.process == process && area.end > start);
        let from = first.map_or(start, |(_, area)| area.start);
        let hit: Vec<Area> =
            self.areas.range((process, from)..(process, end)).map(|(_, area)| *area).collect();
        let mut parts = Vec::new();
        for area in hit {
            self.areas.remove(&(process, area.start));
            if area.start < start {
                self.areas.insert((process, area.start), Area { end: start, ..area });
            }
            if area.end > end {
                self.areas.insert((process, end), Area { start: end, ..area });
            }
            let (from, to) = (area.start.max(start), area.end.min(end));
            let mut at = from;
            while at < to {
                let next = ((at >> SLOT) + 1) << SLOT;
                let page = |address: u64| ((address & ((1 << SLOT) - 1)) >> 12) as u32;
                let until = if next <= to { PAGES } else { page(to.next_multiple_of(4096)) };
                if let Some(slot) = self.slot_at(process, at) {
                    parts.push((slot, page(at), until));
                }
                at = next;
            }
        }
        self.last = None;
        parts
    }

    /// The program advises huge pages for the area of an address.
    pub fn advise(&mut self, process: u32, address: u64) {
        if let Some(area) = self.area(process, address)
            && let Some(area) = self.areas.get_mut(&(process, area.start))
        {
            area.advised = true;
            self.last = None;
        }
    }

    /// The area of an address.
    #[inline]
    pub fn area(&mut self, process: u32, address: u64) -> Option<Area> {
        if let Some(last) = self.last
            && last.process == process
            && (last.start..last.end).contains(&address)
        {
            return Some(last);
        }
        let (_, area) = self.areas.range(..=(process, address)).next_back()?;
        if area.process != process || address >= area.end {
            return None;
        }
        self.last = Some(*area);
        Some(*area)
    }

    /// Number of the slot of an address.
    #[inline]
    pub fn slot_at(&mut self, process: u32, address: u64) -> Option<u32> {
        let key = (process, address >> DIRECTORY);
        let table = match self.last_directory {
            Some((last, table)) if last == key => table,
            _ => {
                let table = *self.directories.get(&key)?;
                self.last_directory = Some((key, table));
                table
            }
        };
        let slot = self.tables[table][(address >> SLOT) as usize % 512];
        (slot != NO_SLOT).then_some(slot)
    }

    /// A slot.
    #[inline]
    pub fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    /// A slot, to change it.
    #[inline]
    pub fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    /// Backs a slot otherwise; returns what backed it before.
    pub(super) fn back(&mut self, slot: u32, backing: Backing) -> Backing {
        let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
        if matches!(backing, Backing::Base(_)) {
            self.with_base[word] |= bit;
        } else {
            self.with_base[word] &= !bit;
            self.slots[slot as usize].ahead = None;
        }
        std::mem::replace(&mut self.slots[slot as usize].backing, backing)
    }

    /// The first slot with base pages from a number on.
    pub(super) fn next_with_base(&self, from: u32) -> Option<u32> {
        let (mut word, bit) = (from as usize / 64, from % 64);
        let mut bits = *self.with_base.get(word)? & (u64::MAX << bit);
        while bits == 0 {
            word += 1;
            bits = *self.with_base.get(word)?;
        }
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    /// A translation of a slot missed, for so many.
    #[inline]
    pub(super) fn missed(&mut self, slot: u32, count: f32) {
        let misses = &mut self.slots[slot as usize].misses;
        if misses.1 != self.round {
            *misses = (0.0, self.round);
        }
        misses.0 += count;
    }

    /// About how many of a slot's base pages were used since ranges were ranked last: as if
    /// misses fell on any of them alike.
    pub fn coverage(&self, slot: u32) -> u32 {
        let (misses, round) = self.slots[slot as usize].misses;
        if round != self.round || misses == 0.0 {
            return 0;
        }
        let all = f64::from(PAGES);
        (all * (1.0 - (-f64::from(misses) / all).exp())).round() as u32
    }

    /// Ranges were ranked: misses are counted from here on.
    pub(super) const fn ranked(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// How many slots there ever were.
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Whether there never was any.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// All slots.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// All areas in order.
    pub fn areas(&self) -> impl Iterator<Item = &Area> {
        self.areas.values()
    }

    /// A page came to lie in another frame.
    pub(super) fn moved(&mut self, slot: u32, index: u32, frame: u64) {
        if let Some(pages) = self.slots[slot as usize].pages_mut() {
            let shared = pages[index as usize].is_shared();
            let page = Page::at(frame);
            pages[index as usize] = if shared { page.shared() } else { page };
        }
    }
}

impl Area {
    fn joins(&self, other: &Self) -> bool {
        self.process == other.process
            && self.section == other.section
            && self.advised == other.advised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_that_touch_become_one_and_keep_their_slots() {
        let mut spaces = Spaces::default();
        spaces.map(0, 0x1f_f000, Bytes(0x1000), Section::Heap);
        let slot = spaces.slot_at(0, 0x1f_f000);
        spaces.map(0, 0x20_0000, Bytes(0x20_1000), Section::Heap);
        let area = spaces.area(0, 0x40_0fff).expect("mapped");
        assert_eq!((area.start, area.end), (0x1f_f000, 0x40_1000));
        assert!(!area.holds_huge(0) && area.holds_huge(0x20_0000) && !area.holds_huge(0x40_0000));
        assert_eq!((spaces.slot_at(0, 0x1f_ffff), spaces.len()), (slot, 3));
        spaces.map(0, 0x40_1000, Bytes(0x1000), Section::Mmap);
        assert_eq!(spaces.areas().count(), 2, "another section");
        spaces.map(1, 0x20_0000, Bytes(0x1000), Section::Heap);
        assert_eq!(spaces.area(1, 0x1f_f000), None);
        assert_ne!(spaces.slot_at(1, 0x20_0000), spaces.slot_at(0, 0x20_0000));
    }

    #[test]
    fn what_is_unmapped_in_the_middle_leaves_both_ends() {
        let mut spaces = Spaces::default();
        spaces.map(0, 0, Bytes(0x80_0000), Section::Mmap);
        let parts = spaces.unmap(0, 0x1f_e000, Bytes(0x20_3000));
        assert_eq!(parts, [(0, 510, 512), (1, 0, 512), (2, 0, 1)]);
        assert_eq!(spaces.area(0, 0x1f_dfff).map(|area| area.end), Some(0x1f_e000));
        assert_eq!(spaces.area(0, 0x1f_e000), None);
        assert_eq!(spaces.area(0, 0x40_1000).map(|area| area.end), Some(0x80_0000));
        assert!(spaces.unmap(0, 0x1f_e000, Bytes(0x1000)).is_empty());
    }
}
