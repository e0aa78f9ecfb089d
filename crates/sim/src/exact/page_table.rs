//! Real four-level page tables, placed in simulated frames.
//!
//! Every table has a frame, so the walker's loads have physical addresses and
//! go through the caches. The simulator itself finds an entry in at most three
//! array accesses: the two upper levels are one flat array by gibibyte, and
//! tables of the two lower levels lie one after the other.
//!
//! [`PageTable::walk`] says which entries a walk reads; what of them the walker's own caches have, and
//! what the reads take, is `walk_here` in `first_levels.rs`.

#![allow(clippy::inline_always)] // measured: a call on the hot path costs more than the work

use super::host_arrays::prefetch;

/// A page-table entry: a frame's number and what is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    /// Something is mapped here.
    pub const PRESENT: u64 = 1;
    /// Stores fault: the page is being moved.
    pub const PROTECTED: u64 = 1 << 1;
    /// Was used since the bit was cleared.
    pub const ACCESSED: u64 = 1 << 2;
    /// Was stored to since the bit was cleared.
    pub const DIRTY: u64 = 1 << 3;
    /// The next access faults, to be seen.
    pub const ARMED: u64 = 1 << 4;
    /// Maps a page itself, in a table whose entries usually point to tables.
    pub const LEAF: u64 = 1 << 5;

    /// An entry that maps a frame.
    pub const fn mapping(frame: u64) -> Self {
        Self(frame << 12 | Self::PRESENT)
    }
    /// Whether something is mapped.
    #[inline]
    pub const fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }
    /// The frame.
    #[inline]
    pub const fn frame(self) -> u64 {
        self.0 >> 12
    }
    /// Whether any of some bits is set.
    #[inline]
    pub const fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }
}

/// Sizes of pages that can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MapSize {
    /// 4 KiB.
    Base,
    /// 2 MiB.
    Huge,
    /// 1 GiB.
    Giant,
}

impl MapSize {
    /// log2 of the size in bytes.
    #[inline]
    pub const fn shift(self) -> u32 {
        match self {
            Self::Base => 12,
            Self::Huge => 21,
            Self::Giant => 30,
        }
    }
    /// Order of its block of frames.
    pub const fn order(self) -> u32 {
        self.shift() - 12
    }
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a page table: 4 KiB.
    Leaf(usize),
    /// In a page directory: 2 MiB.
    Directory(usize),
    /// In a directory-pointer table: 1 GiB.
    Top(usize),
}

impl Place {
    /// What it maps.
    pub const fn size(self) -> MapSize {
        match self {
            Self::Leaf(_) => MapSize::Base,
            Self::Directory(_) => MapSize::Huge,
            Self::Top(_) => MapSize::Giant,
        }
    }
}

const TABLE: usize = 512;
/// Gibibytes in the user half of a 47-bit address space, and as many again.
const TOP: usize = 1 << 18;
const NO_FRAME: u64 = u64::MAX;

/// An address space's page tables.
#[derive(Clone, Debug)]
pub struct PageTable {
    /// By gibibyte: a leaf entry, or the number of a directory (as a frame
    /// would be) with [`Entry::PRESENT`].
    top: Vec<Entry>,
    /// Entries of all directories: a leaf, or the number of a table.
    directories: Vec<Entry>,
    leaves: Vec<Entry>,
    /// Frames of the tables: the root, directory-pointer tables by half
    /// tebibyte, directories, page tables.
    root: u64,
    pointers: Vec<u64>,
    directory_frames: Vec<u64>,
    leaf_frames: Vec<u64>,
}

/// Physical addresses of the entries that a walk reads, topmost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkPath {
    /// Addresses by level: PML4E, PDPTE, PDE, PTE.
    pub entries: [u64; 4],
    /// How many of them there are for this page.
    pub depth: usize,
}

impl PageTable {
    /// An empty address space; `frame` gives the frame of its root.
    pub fn new(root: u64) -> Self {
        Self {
            top: vec![Entry::default(); TOP],
            directories: Vec::new(),
            leaves: Vec::new(),
            root,
            pointers: vec![NO_FRAME; TABLE],
            directory_frames: Vec::new(),
            leaf_frames: Vec::new(),
        }
    }

    /// How many tables there are.
    pub fn tables(&self) -> usize {
        1 + self.pointers.iter().filter(|&&frame| frame != NO_FRAME).count()
            + self.directory_frames.len()
            + self.leaf_frames.len()
    }

    #[inline]
    fn top_index(address: u64) -> usize {
        (address >> 30) as usize & (TOP - 1)
    }
    #[inline]
    fn directory_index(directory: u64, address: u64) -> usize {
        directory as usize * TABLE + (address >> 21) as usize % TABLE
    }
    #[inline]
    fn leaf_index(leaf: u64, address: u64) -> usize {
        leaf as usize * TABLE + (address >> 12) as usize % TABLE
    }

    /// Where the entry of an address is; `None` where tables are missing. The
    /// entry itself may be absent.
    #[inline(always)]
    pub fn place(&self, address: u64) -> Option<Place> {
        let index = Self::top_index(address);
        let top = self.top[index];
        if !top.is_present() {
            return None;
        }
        if top.has(Entry::LEAF) {
            return Some(Place::Top(index));
        }
        let index = Self::directory_index(top.frame(), address);
        let directory = self.directories[index];
        if directory.has(Entry::LEAF) {
            return Some(Place::Directory(index));
        }
        directory.is_present().then(|| Place::Leaf(Self::leaf_index(directory.frame(), address)))
    }

    /// The entry at a place.
    #[inline]
    pub fn entry(&self, place: Place) -> Entry {
        match place {
            Place::Leaf(i) => self.leaves[i],
            Place::Directory(i) => self.directories[i],
            Place::Top(i) => self.top[i],
        }
    }

    /// Sets bits of the entry at a place.
    #[inline]
    pub fn set(&mut self, place: Place, bits: u64) {
        self.entry_mut(place).0 |= bits;
    }

    /// The entry at a place, to change it.
    #[inline]
    pub fn entry_mut(&mut self, place: Place) -> &mut Entry {
        match place {
            Place::Leaf(i) => &mut self.leaves[i],
            Place::Directory(i) => &mut self.directories[i],
            Place::Top(i) => &mut self.top[i],
        }
    }

    /// Maps a page to a frame, and makes the tables that are missing; `frame_of`
    /// gives a frame for each. Returns how many tables were made; `None` if there
    /// was no frame for one.
    pub fn map(
        &mut self,
        address: u64,
        size: MapSize,
        frame: u64,
        mut frame_of: impl FnMut() -> Option<u64>,
    ) -> Option<u32> {
        let mut made = 0;
        let pointer = (address >> 39) as usize % TABLE;
        if self.pointers[pointer] == NO_FRAME {
            self.pointers[pointer] = frame_of()?;
            made += 1;
        }
        let top = Self::top_index(address);
        if size == MapSize::Giant {
            self.top[top] = Entry(Entry::mapping(frame).0 | Entry::LEAF);
            return Some(made);
        }
        if !self.top[top].is_present() {
            self.top[top] = Entry::mapping(self.directory_frames.len() as u64);
            self.directory_frames.push(frame_of()?);
            self.directories.resize(self.directories.len() + TABLE, Entry::default());
            made += 1;
        }
        let directory = Self::directory_index(self.top[top].frame(), address);
        if size == MapSize::Huge {
            self.directories[directory] = Entry(Entry::mapping(frame).0 | Entry::LEAF);
            return Some(made);
        }
        if !self.directories[directory].is_present() {
            self.directories[directory] = Entry::mapping(self.leaf_frames.len() as u64);
            self.leaf_frames.push(frame_of()?);
            self.leaves.resize(self.leaves.len() + TABLE, Entry::default());
            made += 1;
        }
        let leaf = Self::leaf_index(self.directories[directory].frame(), address);
        self.leaves[leaf] = Entry::mapping(frame);
        Some(made)
    }

    /// Removes the mapping of an address, and returns what it was.
    pub fn unmap(&mut self, address: u64) -> Option<(MapSize, Entry)> {
        let place = self.place(address)?;
        let entry = std::mem::take(self.entry_mut(place));
        entry.is_present().then_some((place.size(), entry))
    }

    /// What the hardware reads to translate an address that is mapped.
    #[inline(always)]
    pub fn walk(&self, address: u64) -> WalkPath {
        let at = |frame: u64, shift: u32| (frame << 12) + (address >> shift & 511) * 8;
        let mut entries = [at(self.root, 39), 0, 0, 0];
        let mut depth = 2;
        entries[1] = at(self.pointers[(address >> 39) as usize % TABLE], 30);
        let top = self.top[Self::top_index(address)];
        if !top.has(Entry::LEAF) {
            let number = top.frame();
            entries[2] = at(self.directory_frames[number as usize], 21);
            depth = 3;
            let directory = self.directories[Self::directory_index(number, address)];
            if !directory.has(Entry::LEAF) {
                entries[3] = at(self.leaf_frames[directory.frame() as usize], 12);
                depth = 4;
            }
        }
        WalkPath { entries, depth }
    }

    /// Asks the host to bring an address's entry near.
    #[inline(always)]
    pub(crate) fn prefetch(&self, address: u64) {
        match self.place(address) {
            Some(Place::Leaf(i)) => prefetch(&self.leaves, i),
            Some(Place::Directory(i)) => prefetch(&self.directories, i),
            _ => {}
        }
    }

    /// The frame that an address lies in, without any side effect.
    #[inline]
    pub fn frame_of(&self, address: u64) -> Option<u64> {
        self.near(address).map(|(frame, _)| frame)
    }

    /// The frame that an address lies in, and the physical address of the entry
    /// that says so.
    #[inline]
    pub(crate) fn near(&self, address: u64) -> Option<(u64, u64)> {
        let at = |frame: u64, shift: u32| (frame << 12) + (address >> shift & 511) * 8;
        let top = self.top[Self::top_index(address)];
        if !top.is_present() {
            return None;
        }
        if top.has(Entry::LEAF) {
            let pointers = self.pointers[(address >> 39) as usize % TABLE];
            return Some((top.frame() + (address >> 12 & 0x3_ffff), at(pointers, 30)));
        }
        let directory = self.directories[Self::directory_index(top.frame(), address)];
        if directory.has(Entry::LEAF) {
            let entry = at(self.directory_frames[top.frame() as usize], 21);
            return Some((directory.frame() + (address >> 12 & 511), entry));
        }
        if !directory.is_present() {
            return None;
        }
        let leaf = self.leaves[Self::leaf_index(directory.frame(), address)];
        let entry = at(self.leaf_frames[directory.frame() as usize], 12);
        leaf.is_present().then(|| (leaf.frame(), entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// A translation that went wrong would charge accesses to other pages.
        #[test]
        fn translations_are_those_that_were_made(
            ops in prop::collection::vec((0u64..6, 0u64..6, 0u64..700, prop::bool::ANY), 1..100),
        ) {
            let mut table = PageTable::new(7);
            let mut next = 100;
            let mut frame_of = || { next += 1; Some(next) };
            let mut model = BTreeMap::new();
            for (i, (half, gib, page, map)) in ops.into_iter().enumerate() {
                let address = half << 39 | gib << 30 | page << 12;
                if map {
                    table.map(address, MapSize::Base, i as u64, &mut frame_of).expect("frames");
                    model.insert(address, i as u64);
                } else {
                    let was = model.remove(&address);
                    prop_assert_eq!(table.unmap(address).map(|(_, e)| e.frame()), was);
                }
                for (&address, &frame) in &model {
                    prop_assert_eq!(table.frame_of(address + 123), Some(frame));
                    let path = table.walk(address);
                    prop_assert_eq!(path.depth, 4);
                    prop_assert_eq!(path.entries[0] >> 12, 7);
                }
            }
        }
    }

    #[test]
    fn large_pages_end_the_walk_early() {
        let mut table = PageTable::new(0);
        let mut next = 0;
        let mut frame_of = || {
            next += 1;
            Some(next)
        };
        assert_eq!(table.map(0, MapSize::Giant, 1 << 18, &mut frame_of), Some(1));
        assert_eq!(table.map(1 << 30, MapSize::Huge, 512, &mut frame_of), Some(1));
        assert_eq!(table.map(3 << 29, MapSize::Base, 9, &mut frame_of), Some(1));
        assert_eq!(table.tables(), 4);
        assert_eq!(table.walk(5 << 12).depth, 2);
        assert_eq!(table.walk((1 << 30) + 4096).depth, 3);
        assert_eq!(table.frame_of(5 << 12), Some((1 << 18) + 5));
        assert_eq!(table.frame_of((1 << 30) + 4096), Some(513));
        assert_eq!(table.frame_of(2 << 30), None);
        assert_eq!(table.place(1 << 30).map(Place::size), Some(MapSize::Huge));
    }

    /// Neighbouring pages' entries share a line; that is why walks hit caches.
    #[test]
    fn entries_of_neighbours_lie_side_by_side() {
        let mut table = PageTable::new(0);
        let mut next = 0;
        let mut frame_of = || {
            next += 1;
            Some(next)
        };
        table.map(0, MapSize::Base, 0, &mut frame_of);
        table.map(4096, MapSize::Base, 1, &mut frame_of);
        let (a, b) = (table.walk(0).entries[3], table.walk(4096).entries[3]);
        assert_eq!(b, a + 8);
    }
}
