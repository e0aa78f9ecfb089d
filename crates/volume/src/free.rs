//! Blocks that hold no sector. Nothing about them is stored: they are what the map does not
//! mention, so no crash can lose one.

use crate::entry::Block;

/// Blocks that were released lately and are taken first: their lines may still be cached.
const RECENT: usize = 4096;

/// A set of free blocks: a bit for each block, and a stack of recent ones.
#[derive(Debug)]
pub(crate) struct Free {
    /// Set bits are blocks that are in use, or on the stack, or held by a lane.
    taken: Vec<u64>,
    blocks: u64,
    /// Bits that are not set.
    left: u64,
    /// The word of `taken` where the search goes on.
    cursor: usize,
    recent: Vec<Block>,
}

impl Free {
    /// All blocks are free.
    pub(crate) fn new(blocks: u64) -> Self {
        let mut taken = vec![0; blocks.div_ceil(64) as usize];
        // Bits behind the last block are never free.
        if let (Some(last), used) = (taken.last_mut(), blocks % 64)
            && used > 0
        {
            *last = u64::MAX << used;
        }
        Self { taken, blocks, left: blocks, cursor: 0, recent: Vec::new() }
    }

    /// Marks a block as used; false if it was already, or there is no such block.
    #[inline]
    pub(crate) fn mark(&mut self, block: Block) -> bool {
        if block.0 >= self.blocks {
            return false;
        }
        let (word, bit) = ((block.0 / 64) as usize, 1 << (block.0 % 64));
        let is_new = self.taken[word] & bit == 0;
        self.taken[word] |= bit;
        self.left -= u64::from(is_new);
        is_new
    }

    /// Takes a block.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<Block> {
        if let Some(block) = self.recent.pop() {
            return Some(block);
        }
        if self.left == 0 {
            return None;
        }
        loop {
            let word = self.taken[self.cursor];
            if word == u64::MAX {
                self.cursor = (self.cursor + 1) % self.taken.len();
                continue;
            }
            let bit = (!word).trailing_zeros();
            self.taken[self.cursor] |= 1 << bit;
            self.left -= 1;
            return Some(Block(self.cursor as u64 * 64 + u64::from(bit)));
        }
    }

    /// Gives a block back.
    #[inline]
    pub(crate) fn give(&mut self, block: Block) {
        if self.recent.len() < RECENT {
            self.recent.push(block);
            return;
        }
        let (word, bit) = ((block.0 / 64) as usize, 1 << (block.0 % 64));
        debug_assert!(self.taken[word] & bit != 0, "{block:?} was free already");
        self.taken[word] &= !bit;
        self.left += 1;
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.left + self.recent.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_block_is_taken_once_and_comes_back() {
        for blocks in [1, 63, 64, 65, 10_000] {
            let mut free = Free::new(blocks);
            assert!(free.mark(Block(0)) && !free.mark(Block(0)) && !free.mark(Block(blocks)));
            for _ in 0..2 {
                let taken: BTreeSet<Block> = std::iter::from_fn(|| free.take()).collect();
                assert_eq!(taken.len() as u64, blocks - 1);
                assert!(taken.iter().all(|block| (1..blocks).contains(&block.0)));
                assert_eq!(free.count(), 0);
                for block in taken {
                    free.give(block);
                }
                assert_eq!(free.count(), blocks - 1);
            }
        }
    }
}
