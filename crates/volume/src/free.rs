//! Blocks that hold no sector. Nothing about them is stored: they are what the map does not
//! mention, so no crash can lose one.

use crate::entry::Block;

/// Blocks that were released lately and are taken first: their lines may still be cached.
const RECENT: usize = 4096;

/// Which blocks the map names, while it is read: a bit for each block.
#[derive(Debug)]
pub(crate) struct Marks(Vec<u64>);

impl Marks {
    /// No block is named.
    pub(crate) fn new(blocks: u64) -> Self {
        let mut taken = vec![0; blocks.div_ceil(64) as usize];
        // Bits behind the last block are never free.
        if let (Some(last), used) = (taken.last_mut(), blocks % 64)
            && used > 0
        {
            *last = u64::MAX << used;
        }
        Self(taken)
    }

    /// Marks a block as used; false if it was already, or there is no such block. It is done for
    /// each sector of a mount, so nothing is counted here.
    #[inline]
    pub(crate) fn mark(&mut self, block: Block) -> bool {
        let bit = 1 << (block.0 % 64);
        match self.0.get_mut((block.0 / 64) as usize) {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                true
            }
            _ => false,
        }
    }

    /// The blocks without a mark are free.
    pub(crate) fn rest(self) -> Free {
        let left = self.0.iter().map(|word| u64::from(word.count_zeros())).sum();
        Free { taken: self.0, left, cursor: 0, recent: Vec::new() }
    }
}

/// A set of free blocks: a bit for each block, and a stack of recent ones.
#[derive(Debug)]
pub(crate) struct Free {
    /// Set bits are blocks that are in use, or on the stack, or held by a lane.
    taken: Vec<u64>,
    /// Bits that are not set.
    left: u64,
    /// The word of `taken` where the search goes on.
    cursor: usize,
    recent: Vec<Block>,
}

impl Free {
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
            let mut marks = Marks::new(blocks);
            assert!(marks.mark(Block(0)) && !marks.mark(Block(0)));
            assert!(!marks.mark(Block(blocks)) && !marks.mark(Block(u64::MAX)), "no such block");
            let mut free = marks.rest();
            assert_eq!(free.count(), blocks - 1);
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
