//! A segment's content while it is put together and written.

use super::location::{HEADER, LONGEST, Location, checksum, extent};
use crate::failsafe::reserve_memory;
use crate::sys::{self, PAGE};

/// A record whose page is to be named by it once it is written.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Whose page it is (`the staging ring::owner`).
    pub owner: u64,
    /// The page's word as it was when the record was made.
    pub word: u64,
    /// Where the record will be.
    pub location: Location,
}

/// A segment's content, page-aligned.
pub struct Batch {
    buffer: usize,
    size: usize,
    /// Where the segment begins in the file.
    start: u64,
    /// The segment.
    pub segment: u32,
    filled: usize,
    /// Its records.
    pub entries: Vec<Entry>,
}

impl Batch {
    /// Room for a segment of so many bytes; `None` if there is no memory.
    pub fn new(size: usize) -> Option<Self> {
        let buffer = reserve_memory::map(size).ok()?;
        // Shorter records than these on average do not fill a batch.
        let entries = Vec::with_capacity(size / 128);
        Some(Self { buffer, size, start: 0, segment: 0, filled: 0, entries })
    }

    /// How many bytes that is.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// In a forked child, of its parent's writer. What is left is to be dropped.
    pub(crate) fn give_back(&mut self) {
        // SAFETY: mapped by `new`, and nobody uses it any more.
        let _ = unsafe { sys::munmap(self.buffer, self.size) };
    }

    /// Begins anew, for a segment that begins at that offset.
    pub fn begin(&mut self, segment: u32, start: u64) {
        (self.segment, self.start, self.filled) = (segment, start, 0);
        self.entries.clear();
    }

    /// Whether the longest record still fits.
    pub fn has_room(&self) -> bool {
        self.size - self.filled >= extent(LONGEST) && self.entries.len() < self.entries.capacity()
    }

    /// Adds a record; to be asked for room before.
    pub fn push(&mut self, owner: u64, word: u64, raw: bool, bytes: &[u8]) {
        let location = Location::new(self.start + self.filled as u64, bytes.len(), raw);
        let at = self.filled;
        self.filled += location.extent();
        let sum = checksum(location, bytes).to_le_bytes();
        let to = &mut self.buffer_mut()[at..at + location.extent()];
        to[..HEADER].copy_from_slice(&sum);
        to[HEADER..HEADER + bytes.len()].copy_from_slice(bytes);
        to[HEADER + bytes.len()..].fill(0);
        self.entries.push(Entry { owner, word, location });
    }

    /// What is to be written: whole pages.
    pub fn content(&mut self) -> &[u8] {
        let (filled, end) = (self.filled, self.filled.next_multiple_of(PAGE));
        let buffer = self.buffer_mut();
        buffer[filled..end].fill(0);
        &buffer[..end]
    }

    /// A record's bytes.
    pub fn bytes(&self, entry: &Entry) -> &[u8] {
        let at = (entry.location.at() - self.start) as usize + HEADER;
        // SAFETY: the mapping is ours alone and of that size.
        let buffer = unsafe { core::slice::from_raw_parts(self.buffer as *const u8, self.size) };
        &buffer[at..at + entry.location.len()]
    }

    fn buffer_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours alone and of that size; zeroed at first.
        unsafe { core::slice::from_raw_parts_mut(self.buffer as *mut u8, self.size) }
    }
}

/// A record's bytes among what was read of the file from `start` on; `None` if
/// they are not what was written.
pub fn find(content: &[u8], start: u64, location: Location) -> Option<&[u8]> {
    let at = usize::try_from(location.at().checked_sub(start)?).ok()?;
    let record = content.get(at..at + HEADER + location.len())?;
    let (sum, bytes) = record.split_first_chunk::<HEADER>()?;
    (u32::from_le_bytes(*sum) == checksum(location, bytes)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::staging::owner;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Whatever is packed comes back, by its location alone, from what lies in
        /// the file.
        #[test]
        fn what_is_packed_is_found_again(
            blobs in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..if cfg!(miri) { 99 } else { LONGEST }), any::<bool>()), 1..80),
        ) {
            const SEGMENT: usize = 64 << 10;
            let mut file = vec![0xffu8; SEGMENT * 16];
            let mut model = HashMap::new();
            let mut batch = Batch::new(SEGMENT).expect("memory");
            let mut segment = 0;
            batch.begin(segment, 0);
            for (page, (bytes, raw)) in blobs.iter().enumerate() {
                if !batch.has_room() {
                    let start = segment as usize * SEGMENT;
                    let content = batch.content();
                    prop_assert!(content.len() <= SEGMENT && content.len().is_multiple_of(PAGE));
                    file[start..start + content.len()].copy_from_slice(content);
                    segment += 1;
                    batch.begin(segment, u64::from(segment) * SEGMENT as u64);
                }
                batch.push(owner(1, page as u32), 0, *raw, bytes);
                let entry = *batch.entries.last().expect("just pushed");
                prop_assert_eq!(batch.bytes(&entry), &bytes[..]);
                prop_assert_eq!(entry.location.is_raw(), *raw);
                model.insert(entry.location, bytes);
            }
            let start = segment as usize * SEGMENT;
            let content = batch.content();
            file[start..start + content.len()].copy_from_slice(content);
            prop_assert_eq!(model.len(), blobs.len(), "no two at one place");
            for (location, bytes) in model {
                prop_assert_eq!(find(&file, 0, location), Some(&bytes[..]));
                file[location.at() as usize + HEADER] ^= 1;
                prop_assert_eq!(find(&file, 0, location), None, "damaged");
                file[location.at() as usize + HEADER] ^= 1;
            }
        }
    }
}
