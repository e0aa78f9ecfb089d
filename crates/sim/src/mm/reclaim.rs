//! Reclaim: clean pages of files are dropped, partial huge pages split, pages swapped out.
//!
//! As `mm/vmscan.c` of Linux 5.5 does it (recalled): from priority 12 to 0, each time twice as
//! much of each list, until enough was reclaimed. What is freed by splitting partial huge pages
//! does not count as reclaimed; so where files are few, priorities rise until the whole queue of
//! partial huge pages is split at once, while one fault waits. That is where the longest faults
//! of a machine come from on which the fragmenter had huge pages.

use serde::Serialize;
use terrace_core::{Bytes, Cycles};

use super::kernel::Mm;
use super::space::{Backing, Page};

/// The priority that reclaim begins with (`DEF_PRIORITY`).
const PRIORITY: u32 = 12;
/// A shrinker works in batches of so many (`SHRINK_BATCH`).
const BATCH: u64 = 128;
/// What a shrinker's share is divided by (`DEFAULT_SEEKS`): a quarter for each seek.
const SEEKS: u64 = 2;
/// Pages of a list that are looked at at least.
const CLUSTER: u64 = 32;

/// The swap device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swap {
    pages: u64,
    used: u64,
    /// Where to look for a victim.
    hand: u32,
}

impl Swap {
    /// A device of so many bytes.
    pub const fn new(size: Bytes) -> Self {
        Self { pages: size.get() / 4096, used: 0, hand: 0 }
    }

    /// A page came back or is gone.
    pub(super) const fn release(&mut self) {
        self.used = self.used.saturating_sub(1);
    }

    /// Pages that are on the device.
    pub const fn used(&self) -> u64 {
        self.used
    }
}

/// What reclaim did, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReclaimCounts {
    /// Calls by programs that waited.
    pub direct: u64,
    /// Turns of the kernel's thread.
    pub background: u64,
    /// Pages of files that were dropped.
    pub dropped: u64,
    /// Partial huge pages that were split.
    pub split: u64,
    /// Pages that were swapped out.
    pub swapped: u64,
    /// What programs waited for it.
    pub waited: Cycles,
}

/// What a shrinker still owes from calls that were too small for a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shrinker {
    owed: u64,
}

impl Mm {
    /// Swap, for who counts.
    pub const fn swap(&self) -> &Swap {
        &self.swap
    }

    /// A program reclaims so many pages while it waits, or only asks whether it should. Returns
    /// how many frames are more free than before, and the time.
    pub(super) fn reclaim(&mut self, wanted: u64, needed: bool) -> (u64, Cycles) {
        let mut cycles = self.costs.reclaim_call;
        self.counts.reclaim.direct += 1;
        let before = self.physical.free();
        if needed {
            let mut reclaimed = 0;
            for priority in (0..=PRIORITY).rev() {
                let (pages, time) = self.shrink(priority, wanted - reclaimed);
                reclaimed += pages;
                cycles += time;
                if reclaimed >= wanted {
                    break;
                }
            }
        }
        self.counts.reclaim.waited += cycles;
        (self.physical.free().saturating_sub(before), cycles)
    }

    /// One turn at a priority; returns how many pages count as reclaimed, and the time.
    pub(super) fn shrink(&mut self, priority: u32, wanted: u64) -> (u64, Cycles) {
        let costs = self.costs;
        let look = (self.physical.files() >> priority).max(CLUSTER);
        let dropped = self.physical.drop_files(look.min(wanted));
        self.counts.reclaim.dropped += dropped;
        let mut cycles = costs.scan_lru * look.min(wanted) + costs.drop_page * dropped;
        let mut reclaimed = dropped;
        if reclaimed < wanted {
            let (swapped, time) = self.swap_out((wanted - reclaimed).min(CLUSTER));
            reclaimed += swapped;
            cycles += time;
        }
        cycles += self.shrink_partial(priority);
        (reclaimed, cycles)
    }

    /// `do_shrink_slab` with the queue of partial huge pages.
    fn shrink_partial(&mut self, priority: u32) -> Cycles {
        let queue = self.physical.unsplit();
        let delta = (queue >> priority) * 4 / SEEKS;
        let total = (self.threads.shrinker.owed + delta).min(queue * 2);
        let mut split = 0;
        let mut left = total;
        while left >= BATCH.min(queue.max(1)) && split < queue {
            let now = BATCH.min(left).min(queue - split);
            for _ in 0..now {
                self.physical.split_partial();
            }
            split += now;
            left -= now;
        }
        self.threads.shrinker.owed = if split == queue { 0 } else { left };
        self.counts.reclaim.split += split;
        self.costs.split_huge * split
    }

    /// Swaps so many pages out that were not used since they were last looked at.
    fn swap_out(&mut self, most: u64) -> (u64, Cycles) {
        let mut cycles = Cycles::ZERO;
        let slots = self.spaces.len();
        let most = most.min(self.swap.pages - self.swap.used);
        if slots == 0 || most == 0 {
            return (0, cycles);
        }
        let mut out = 0;
        let mut looked = 0;
        // Twice around: the first time may only find out what is not used.
        while out < most && looked < slots * 2 {
            let number = self.swap.hand % slots;
            looked += 1;
            let slot = self.spaces.slot_mut(number);
            let used = std::mem::take(&mut slot.used);
            if used || slot.shared || slot.present == 0 {
                self.swap.hand = (number + 1) % slots;
                continue;
            }
            if let Backing::Huge(frame) = *slot.backing() {
                self.split_mapping(number, frame);
                cycles += self.costs.split_huge;
            }
            let Some(pages) = self.spaces.slot_mut(number).pages_mut() else { continue };
            let mut gone = Vec::new();
            for page in pages.iter_mut() {
                if out + gone.len() as u64 == most {
                    break;
                }
                if let Some(frame) = page.frame() {
                    *page = Page::SWAPPED;
                    gone.push(frame);
                }
            }
            self.spaces.slot_mut(number).present -= gone.len() as u16;
            for frame in gone {
                self.physical.give(frame);
                self.flushed(number);
                out += 1;
                cycles += self.costs.scan_lru + self.costs.swap_out;
            }
            if self.spaces.slot(number).present == 0 {
                self.swap.hand = (number + 1) % slots;
            }
        }
        self.swap.used += out;
        self.counts.reclaim.swapped += out;
        (out, cycles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mm::kernel::MmConfig;
    use crate::mm::physical::{Fragmentation, Owner, PAGES};
    use crate::mm::policy::MmPolicyName;

    fn mm(files: Bytes, fragmentation: Fragmentation) -> Mm {
        let config = MmConfig {
            files,
            swap: Bytes::ZERO,
            fragmentation,
            ..MmConfig::new(Bytes::gib(4), MmPolicyName::Never)
        };
        Mm::new(&config, None).expect("good parameters")
    }

    /// Closed form: a call that files can serve takes the lists' first turn and nothing else.
    #[test]
    fn what_files_can_serve_takes_one_turn() {
        let mut mm = mm(Bytes::mib(256), Fragmentation::None);
        let costs = mm.costs;
        let (freed, cycles) = mm.reclaim(32, true);
        assert_eq!(freed, 32);
        assert_eq!(cycles, costs.reclaim_call + (costs.scan_lru + costs.drop_page) * 32);
    }

    /// Without files, priorities rise to 0, and all partial huge pages are split in one call.
    #[test]
    fn without_files_one_call_splits_the_whole_queue() {
        let mut mm = mm(Bytes::ZERO, Fragmentation::Deferred);
        let queue = mm.physical.unsplit();
        assert!(queue > 1900);
        let (freed, cycles) = mm.reclaim(32, true);
        assert_eq!((mm.physical.unsplit(), freed), (0, queue * u64::from(PAGES - 1)));
        assert!(cycles >= mm.costs.split_huge * queue);
    }

    /// With files only what a batch allows is split, and small shares add up over calls.
    #[test]
    fn with_files_small_shares_add_up_to_batches() {
        let mut mm = mm(Bytes::mib(64), Fragmentation::Deferred);
        let queue = mm.physical.unsplit();
        let share = (queue >> PRIORITY) * 2;
        let mut calls = 0;
        if share == 0 {
            // Too small a machine for the first priority: nothing is split while files last.
            mm.reclaim(32, true);
            assert_eq!(mm.physical.unsplit(), queue);
            return;
        }
        while mm.physical.unsplit() == queue {
            mm.reclaim(32, true);
            calls += 1;
        }
        assert_eq!(calls, BATCH.div_ceil(share));
    }

    #[test]
    fn what_is_swapped_out_comes_back_where_it_was() {
        let config =
            MmConfig { files: Bytes::ZERO, ..MmConfig::new(Bytes::mib(64), MmPolicyName::Never) };
        let mut mm = Mm::new(&config, None).expect("good parameters");
        mm.map(0, 0x20_0000, Bytes::mib(4), crate::mm::space::Section::Mmap);
        for page in 0..1024 {
            mm.fault(0, 0x20_0000 + page * 4096, true).expect("mapped");
        }
        let (out, _) = mm.swap_out(100);
        assert_eq!((out, mm.swap().used()), (100, 100));
        let back = mm.fault(0, 0x20_0000, true).expect("mapped");
        assert_eq!(back.outcome, crate::mm::Outcome::SwappedIn);
        assert_eq!(mm.swap().used(), 99);
        assert_eq!(mm.physical.audit().lost, 0);
        let mine = |frame: &u64| mm.physical.owner(*frame).as_page().is_some();
        assert_eq!((0..mm.physical.len()).filter(mine).count(), 1024 - 99);
        assert_ne!(mm.physical.owner(0), Owner::FRAGMENT);
    }
}
