//! Pages in DRAM, and their frames: a power failure leaves nothing of either.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use crate::nvm::Frame;
use crate::pmem::LineHasher;
use crate::table::{entry_for, frame_of};

/// Set in entries of pages in DRAM: one of the bits that x86 leaves to software.
pub(crate) const IN_DRAM: u64 = 1 << 9;

/// Where frames begin: 64 MiB, above what the kernel has for itself.
const FIRST: u64 = 64 << 20;

/// Pages in DRAM.
#[derive(Clone, Debug, Default)]
pub(crate) struct Volatile {
    entries: HashMap<u64, u64, BuildHasherDefault<LineHasher>>,
    free: Vec<Frame>,
    frames: u64,
    /// Words that were stored, by address.
    pub(crate) words: HashMap<u64, u64, BuildHasherDefault<LineHasher>>,
}

impl Volatile {
    /// First address of an entry's frame.
    pub(crate) fn address(entry: u64) -> u64 {
        FIRST + frame_of(entry).0 * 4096
    }

    /// A page's entry, if it is one of these.
    #[inline]
    pub(crate) fn get(&self, page: u64) -> Option<u64> {
        if self.entries.is_empty() {
            return None;
        }
        self.entries.get(&page).copied()
    }

    /// Takes a frame for a page, of zeros.
    pub(crate) fn take(&mut self, page: u64, writable: bool) -> u64 {
        let frame = self.free.pop().unwrap_or_else(|| {
            self.frames += 1;
            Frame(self.frames - 1)
        });
        let entry = entry_for(frame, writable) | IN_DRAM;
        self.entries.insert(page, entry);
        entry
    }

    /// Gives a page's frame back, with what it held.
    pub(crate) fn remove(&mut self, page: u64) {
        let Some(entry) = self.entries.remove(&page) else { return };
        let start = Self::address(entry);
        self.words.retain(|address, _| !(start..start + 4096).contains(address));
        self.free.push(frame_of(entry));
    }

    /// Changes a page's rights.
    pub(crate) fn protect(&mut self, page: u64, writable: bool) {
        if let Some(entry) = self.entries.get_mut(&page) {
            *entry = entry_for(frame_of(*entry), writable) | IN_DRAM;
        }
    }

    /// Moves a page.
    pub(crate) fn relocate(&mut self, page: u64, to: u64) {
        if let Some(entry) = self.entries.remove(&page) {
            self.entries.insert(to, entry);
        }
    }
}
