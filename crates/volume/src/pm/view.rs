//! Where the entries and blocks of a mapped volume lie: all that a read of one sector needs.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::mapped::Mapping;
use super::stores;
use crate::entry::{Entry, copy_block};
use crate::superblock::Superblock;

/// The entries and blocks of a volume in mapped memory.
///
/// A small read waits for its entry and then for its block. How many such pairs are under way at a
/// time depends on how many instructions a read takes; so all that does not change while a volume
/// is mounted is checked once, when this is made.
#[derive(Debug)]
pub struct View {
    entries: *const AtomicU64,
    sectors: u64,
    data: *const u8,
    blocks: u64,
    /// Bytes of a sector, a multiple of 256.
    sector: usize,
    wide: bool,
    /// What the pointers lead to.
    _mapping: Arc<Mapping>,
}

// SAFETY: it only reads, entries by atomics and blocks by instructions that the compiler does not look
// into, in a mapping that belongs to no thread.
unsafe impl Send for View {}
// SAFETY: the same.
unsafe impl Sync for View {}

impl View {
    /// Of a volume in a mapping; `None` where it is not wholly inside, or not to be read in this way.
    pub(super) fn of(mapping: &Arc<Mapping>, volume: &Superblock) -> Option<Self> {
        let sector = u64::from(volume.sector.bytes());
        let length = mapping.length() as u64;
        let fits = |at: u64, count: u64, bytes: u64| {
            count.checked_mul(bytes)?.checked_add(at).filter(|end| *end <= length)
        };
        fits(volume.map, volume.sectors, 8)?;
        fits(volume.data, volume.blocks, sector)?;
        if !volume.map.is_multiple_of(8) || !sector.is_multiple_of(256) {
            return None;
        }
        let base = mapping.base();
        Some(Self {
            // SAFETY: both lie inside of the mapping, as was looked at.
            entries: unsafe { base.add(volume.map as usize) }.cast_const().cast(),
            // SAFETY: the same.
            data: unsafe { base.add(volume.data as usize) },
            sectors: volume.sectors,
            blocks: volume.blocks,
            sector: sector as usize,
            wide: stores::is_wide(),
            _mapping: Arc::clone(mapping),
        })
    }

    #[inline]
    fn entry(&self, lba: u64) -> Entry {
        // SAFETY: whoever calls has compared with `sectors`, for as many the map is inside of the mapping,
        // which lives as long as this. It is aligned, and all access to entries in use is atomic.
        Entry(u64::from_le(unsafe { &*self.entries.add(lba as usize) }.load(Ordering::Acquire)))
    }

    /// Reads one sector if a block holds it; else says that it has not.
    #[inline]
    pub fn read(&self, lba: u64, bytes: &mut [u8]) -> bool {
        if bytes.len() != self.sector || lba >= self.sectors {
            return false;
        }
        let copy = |block: u64| {
            // SAFETY: it is below `blocks`, and as many blocks lie inside of the mapping.
            let from = unsafe { self.data.add(block as usize * self.sector) };
            // SAFETY: a block is as long as `bytes`, whose length is a multiple of 256 and not 0.
            unsafe {
                if self.wide {
                    stores::copy_out_wide(from, bytes);
                } else {
                    stores::copy_out(from, bytes);
                }
            }
            // What is read after this is not older.
            fence(Ordering::Acquire);
            Ok::<_, Infallible>(())
        };
        matches!(copy_block(self.blocks, || self.entry(lba), copy), Ok(None))
    }
}
