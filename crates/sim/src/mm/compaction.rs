//! Compaction: movable pages go up, free blocks remain below.
//!
//! As `mm/compaction.c` of Linux 5.5 does it (recalled): one scanner looks for pages to move
//! from the lowest block upwards, another for free frames from the highest downwards; both keep
//! their places between calls, and begin anew where they have met. Huge pages and partial ones
//! are passed over. Blocks where nothing could be moved are marked, and passed over until the
//! marks are cleared.

use serde::Serialize;
use terrace_core::Cycles;

use super::kernel::Mm;
use super::physical::{HUGE_ORDER, Owner, PAGES, Whole};

/// Pages that are moved at a time (`COMPACT_CLUSTER_MAX`).
const CLUSTER: u32 = 32;
/// Free frames that compaction wants beyond a limit: what it fills before it has emptied a block
/// (`compact_gap`).
pub(super) const COMPACT_GAP: u64 = 2 * PAGES as u64;
/// Marks of blocks are cleared when the scanners meet, at most so often. Assumed: about how
/// often the kernel's thread goes to sleep, which is when Linux clears them.
const CLEAR_EVERY: u64 = 1_000_000_000;

/// Where the scanners are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scanners {
    migrate: u64,
    free: Option<u64>,
    cleared: Cycles,
}

/// What compaction did, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompactionCounts {
    /// Calls.
    pub calls: u64,
    /// Blocks that were made.
    pub made: u64,
    /// Calls that found too little free memory to try.
    pub skipped: u64,
    /// Pages that were moved.
    pub moved: u64,
    /// Blocks that were looked at.
    pub scanned: u64,
    /// What they took.
    pub cycles: Cycles,
}

/// How a call of compaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compacted {
    /// There is a free block.
    Made,
    /// All of memory was looked at, in vain.
    Complete,
    /// There is too little free memory for it.
    Skipped,
    /// The time that it was given is over.
    OutOfTime,
}

impl Mm {
    /// Whether compaction makes sense: enough free frames for copies (`compaction_suitable`).
    pub fn can_compact(&self) -> bool {
        self.physical.free() >= self.physical.watermarks.low + COMPACT_GAP
    }

    /// Whether a block that is free may be taken: what is left is the least that has to be.
    pub(super) fn has_room_for_huge(&self) -> bool {
        self.physical.free() >= self.physical.watermarks.min + u64::from(PAGES)
    }

    /// Makes a free block of a huge page's size, unless there is one, in at most so much time.
    pub fn compact(&mut self, most: Cycles) -> (Compacted, Cycles) {
        self.compact_to(1, most)
    }

    /// Makes free blocks until there are so many.
    pub fn compact_to(&mut self, blocks: u64, most: Cycles) -> (Compacted, Cycles) {
        let before = self.physical.free_huge();
        self.counts.compaction.calls += 1;
        let (how, cycles) = self.compact_inner(blocks, most);
        self.counts.compaction.cycles += cycles;
        self.counts.compaction.made += self.physical.free_huge() - before;
        self.counts.compaction.skipped += u64::from(how == Compacted::Skipped);
        (how, cycles)
    }

    fn compact_inner(&mut self, blocks: u64, most: Cycles) -> (Compacted, Cycles) {
        let mut cycles = Cycles::ZERO;
        // Too little is free for a block to be taken: one more would not be, either.
        if self.physical.free_huge() >= blocks && self.has_room_for_huge() {
            return (Compacted::Made, cycles);
        }
        if !self.can_compact() {
            return (Compacted::Skipped, self.costs.skip_block);
        }
        let last = self.physical.blocks().len() as u64 - 1;
        loop {
            let free = *self.scanners.free.get_or_insert(last);
            let block = self.scanners.migrate;
            if block >= free {
                self.scanners = Scanners { cleared: self.scanners.cleared, ..Scanners::default() };
                if self.now - self.scanners.cleared >= Cycles(CLEAR_EVERY)
                    || self.scanners.cleared.is_zero()
                {
                    self.scanners.cleared = self.now;
                    (0..=last).for_each(|block| self.physical.block_mut(block).skip = false);
                }
                return (Compacted::Complete, cycles);
            }
            if cycles >= most {
                return (Compacted::OutOfTime, cycles);
            }
            self.counts.compaction.scanned += 1;
            let here = self.physical.blocks()[block as usize];
            if here.skip || here.whole != Whole::No || here.kernel > 0 {
                // The kernel's pages are in blocks of their own kind, which are not looked at.
                cycles += self.costs.skip_block;
                self.scanners.migrate += 1;
                continue;
            }
            cycles += self.empty(block);
            self.scanners.migrate += 1;
            if self.physical.free_huge() >= blocks {
                return (Compacted::Made, cycles);
            }
        }
    }

    /// Moves all pages of a block to higher ones; returns what it took.
    fn empty(&mut self, block: u64) -> Cycles {
        let mut cycles = self.costs.scan_page * u64::from(PAGES);
        let first = block << HUGE_ORDER;
        let mut moved = 0;
        for frame in first..first + u64::from(PAGES) {
            let owner = self.physical.owner(frame);
            if owner == Owner::NOBODY {
                continue;
            }
            let (target, looked) = self.find_free(block);
            cycles += self.costs.scan_page * looked;
            let Some(target) = target else { break };
            self.physical.take_at(target, owner);
            self.physical.give(frame);
            if let Some((slot, index)) = owner.as_page() {
                self.spaces.moved(slot, index, target);
                self.flushed(slot);
                cycles += self.costs.flush;
            }
            cycles += self.costs.move_page;
            moved += 1;
        }
        if moved == 0 {
            self.physical.block_mut(block).skip = true;
        }
        self.counts.compaction.moved += moved;
        cycles
    }

    /// A free frame above a block, from the highest block down, and how many frames were looked
    /// at. Of a block that is entirely free nothing is taken: that would undo what is wanted.
    fn find_free(&mut self, above: u64) -> (Option<u64>, u64) {
        let mut looked = 0;
        while let Some(block) = self.scanners.free.filter(|&block| block > above) {
            let room = self.physical.free_in_block(block);
            if room > 0 && room < PAGES {
                // From where a cluster of the last call ended: on average half a cluster on.
                looked += u64::from(CLUSTER / 2);
                let first = block << HUGE_ORDER;
                let found = (first..first + u64::from(PAGES))
                    .rev()
                    .find(|&frame| self.physical.owner(frame) == Owner::NOBODY);
                if found.is_some() {
                    return (found, looked);
                }
            }
            looked += 8;
            self.scanners.free = block.checked_sub(1);
        }
        (None, looked)
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::Bytes;

    use super::*;
    use crate::mm::kernel::MmConfig;
    use crate::mm::physical::Fragmentation;
    use crate::mm::policy::MmPolicyName;

    fn fragmented() -> Mm {
        let config = MmConfig {
            fragmentation: Fragmentation::Released,
            // Pages of files would be moved as well.
            files: Bytes::ZERO,
            ..MmConfig::new(Bytes::gib(1), MmPolicyName::Never)
        };
        let mut mm = Mm::new(&config, None).expect("good parameters");
        // The hundredth that the fragmenter leaves.
        while mm.physical.free_huge() > 0 {
            mm.physical.take_huge(0);
        }
        mm
    }

    /// Closed form: a block is looked at, its one page moved to a frame that half a cluster's
    /// look finds.
    #[test]
    fn a_fragmented_block_costs_a_scan_and_a_move() {
        let mut mm = fragmented();
        let costs = mm.costs;
        let (how, cycles) = mm.compact(Cycles::MAX);
        assert_eq!(how, Compacted::Made);
        let moved = mm.counts.compaction.moved;
        assert_eq!(moved, 1);
        let passed = mm.counts.compaction.scanned - 1;
        let scan = costs.scan_page * 512 + costs.skip_block * passed;
        let least = scan + costs.move_page + costs.scan_page * u64::from(CLUSTER / 2);
        // Whole blocks at the end of memory that the free scanner passes over take 8 each.
        assert!(cycles >= least && cycles < least + costs.scan_page * 8 * 20, "{cycles} {least}");
    }

    /// All blocks but those that take what was moved become free.
    #[test]
    fn compaction_frees_what_can_be_freed_and_then_says_so() {
        let mut mm = fragmented();
        let before = mm.physical.free();
        let mut made = 0;
        loop {
            match mm.compact(Cycles::MAX) {
                (Compacted::Made, _) => {
                    mm.physical.take_huge(0);
                    made += 1;
                }
                (how, _) => {
                    assert!(matches!(how, Compacted::Complete | Compacted::Skipped), "{how:?}");
                    break;
                }
            }
        }
        assert!(made > 400, "{made}");
        assert_eq!(mm.physical.free(), before - made * 512);
        let audit = mm.physical.audit();
        assert_eq!((audit.lost, audit.wrong), (0, 0));
    }

    #[test]
    fn what_has_no_room_for_copies_is_not_compacted() {
        let mut mm = fragmented();
        while mm.can_compact() {
            mm.physical.take(Owner::CHILD);
        }
        assert_eq!(mm.compact(Cycles::MAX).0, Compacted::Skipped);
        assert_eq!(mm.counts.compaction.moved, 0);
    }

    #[test]
    fn a_time_box_is_kept_to_within_a_block() {
        let mut mm = fragmented();
        let (how, cycles) = mm.compact(Cycles(1));
        // One block is emptied, or passed over, before the clock is looked at.
        assert!(matches!(how, Compacted::OutOfTime | Compacted::Made));
        assert!(cycles.get() < 512 * 20_000);
    }
}
