//! Dense state per page that costs memory only where pages are in use.
//!
//! Programs map far more than they touch: a table for every mapped page that
//! was written when the region was mapped could itself be larger than the
//! program. So the arrays come in blocks of zeroed memory, which the system
//! provides when it is first touched, and never move.

use core::ops::{Index, IndexMut, Range};

use bytemuck::Zeroable;

/// Slots in a block of an array: even with a byte a slot it is twice as large as what
/// allocators take from a heap of theirs, and clear, instead of mapping it afresh. (With
/// 64 KiB a block, all of a mapping of 1 TiB was cleared: 640 MB.)
const BLOCK: usize = 1 << 18;
/// Slots of which the pages in use are counted together.
const CHUNK: usize = 1 << 15;

/// An array with one entry for each slot, all zeros at first.
#[derive(Debug)]
pub struct PerPage<T> {
    blocks: Vec<Box<[T; BLOCK]>>,
    len: usize,
}

impl<T> Default for PerPage<T> {
    fn default() -> Self {
        Self { blocks: Vec::new(), len: 0 }
    }
}

impl<T: Zeroable> PerPage<T> {
    /// Makes entries for slots below `len`; those there are stay where they are.
    pub fn grow(&mut self, len: usize) {
        while self.blocks.len() * BLOCK < len {
            self.blocks.push(bytemuck::zeroed_box());
        }
        self.len = self.len.max(len);
    }
}

impl<T> PerPage<T> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory on the heap. The rest of the last block is not counted: nobody
    /// touches it, so it takes none.
    pub fn heap_bytes(&self) -> usize {
        self.len * size_of::<T>() + self.blocks.capacity() * size_of::<Box<[T; BLOCK]>>()
    }
}

impl<T> Index<u32> for PerPage<T> {
    type Output = T;
    #[inline]
    fn index(&self, slot: u32) -> &T {
        &self.blocks[slot as usize / BLOCK][slot as usize % BLOCK]
    }
}

impl<T> IndexMut<u32> for PerPage<T> {
    #[inline]
    fn index_mut(&mut self, slot: u32) -> &mut T {
        &mut self.blocks[slot as usize / BLOCK][slot as usize % BLOCK]
    }
}

/// Counts the pages in use in each chunk, so that chunks without any need not
/// be looked at.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    counts: Vec<u32>,
}

impl InUse {
    /// Makes counts for slots below `len`.
    pub(crate) fn grow(&mut self, len: usize) {
        let chunks = len.div_ceil(CHUNK);
        if chunks > self.counts.len() {
            self.counts.resize(chunks, 0);
        }
    }

    /// A page came into use.
    pub(crate) fn add(&mut self, slot: u32) {
        self.counts[slot as usize / CHUNK] += 1;
    }

    /// A page is in use no longer.
    pub(crate) fn remove(&mut self, slot: u32) {
        self.counts[slot as usize / CHUNK] -= 1;
    }

    /// The part of a run of slots, from its start, that shares a chunk; and
    /// whether any page of that chunk is in use.
    pub(crate) fn first_part(&self, run: &Range<u32>) -> (Range<u32>, bool) {
        let chunk = run.start as usize / CHUNK;
        let end = ((chunk + 1) * CHUNK).min(run.end as usize) as u32;
        (run.start..end, self.counts.get(chunk).is_some_and(|&n| n > 0))
    }

    /// Heap memory.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page's state must not be lost or shared when other regions come.
    #[test]
    fn entries_keep_their_values_while_the_array_grows() {
        let mut array = PerPage::<u16>::default();
        for len in [1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7] {
            let old = array.len();
            array.grow(len);
            assert_eq!(array.len(), len);
            for slot in 0..len as u32 {
                let expected = if (slot as usize) < old { slot as u16 ^ 5 } else { 0 };
                assert_eq!(array[slot], expected);
                array[slot] = slot as u16 ^ 5;
            }
        }
        array.grow(10);
        assert_eq!(array.len(), 3 * BLOCK + 7, "growing never shrinks");
    }

    #[test]
    fn a_run_is_cut_at_chunks_and_empty_chunks_are_known() {
        let chunk = CHUNK as u32;
        let mut in_use = InUse::default();
        in_use.grow(3 * CHUNK);
        in_use.add(chunk + 1);
        assert_eq!(in_use.first_part(&(5..chunk + 9)), (5..chunk, false));
        assert_eq!(in_use.first_part(&(chunk..chunk + 9)), (chunk..chunk + 9, true));
        in_use.remove(chunk + 1);
        assert_eq!(in_use.first_part(&(chunk..3 * chunk)), (chunk..2 * chunk, false));
    }
}
