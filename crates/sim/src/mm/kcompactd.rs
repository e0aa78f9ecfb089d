//! The kernel's compacting thread, which a fault wakes that wanted a block and does not wait for it.
//!
//! As `kcompactd` of Linux 5.5 (recalled): it makes one block, unless there is one or too little
//! memory is free for it, and sleeps again. After it has looked at all of memory in vain it sits
//! out calls, twice as many after each failure in a row (`defer_compaction`). Not modelled: that
//! the same call has kswapd free what the thread needs.

use terrace_core::Cycles;

use super::compaction::Compacted;
use super::kernel::Mm;

/// It sits out at most 2^6 calls (`COMPACT_MAX_DEFER_SHIFT`).
const MAX_SHIFT: u32 = 6;

/// What the thread is at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kcompactd {
    /// Somebody has woken it.
    is_woken: bool,
    /// It is at work until then.
    until: Cycles,
    /// Failures in a row, and the calls that it has sat out since the last one.
    shift: u32,
    considered: u32,
}

impl Mm {
    /// A fault wants a block for those who come later.
    pub(super) fn wake_kcompactd(&mut self) {
        self.threads.kcompactd.is_woken = true;
    }

    /// The thread works, if somebody has woken it.
    pub(super) fn compact_in_background(&mut self) {
        let mut thread = self.threads.kcompactd;
        if !thread.is_woken || self.now < thread.until {
            return;
        }
        thread.is_woken = false;
        let is_needed = self.physical.free_huge() == 0 && self.can_compact();
        if is_needed {
            thread.considered += 1;
            if thread.considered >= 1 << thread.shift {
                let (how, cycles) = self.compact(Cycles::MAX);
                self.counts.background += cycles;
                thread.until = self.now + cycles;
                thread.considered = 0;
                let failed = how != Compacted::Made;
                thread.shift = if failed { (thread.shift + 1).min(MAX_SHIFT) } else { 0 };
            }
        }
        self.threads.kcompactd = thread;
    }
}
