//! Misses counted beside TLB entries, as HSCC's hardware does: an entry of the
//! TLB has a counter of eight bits, incremented when a last-level miss to a page
//! outside the fastest tier comes back. The operating system sees what is in
//! page-table entries: a count goes there when the TLB gives its entry up, and
//! once when it reaches the hardware's threshold; the next fill resumes from
//! there. At the policy's tick the operating system goes over all page-table
//! entries and tells the policy what was added, and which pages of the fastest
//! tier are dirty.

use std::collections::HashMap;

use serde::Serialize;
use terrace_core::{Access, Nanos, PageRef, Sample, SampleSource, TierId};

use super::machine::ExactMachine;
use super::page_table::Entry;

/// How the hardware counts, and what reading costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TlbCounting {
    /// The count at which it is written to the page-table entry while the TLB
    /// holds it: 5 in Kindle, whatever the policy's threshold.
    pub write_at: u8,
    /// Time to find and read one page's entry in software. Derived: four loads
    /// that hit the second-level cache (12 cycles each) and some 30 instructions
    /// of 3 cycles at 3 GHz.
    pub read: Nanos,
    /// Time to take a page frame off a list. Assumed: three loads that miss all
    /// caches, and some 30 instructions.
    pub select: Nanos,
}

impl TlbCounting {
    /// Kindle's hardware and operating system.
    pub fn kindle() -> Self {
        Self { write_at: 5, read: Nanos(46), select: Nanos(210) }
    }
}

/// What counting and reading came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TlbCountCosts {
    /// Passes over the page-table entries.
    pub passes: u64,
    /// Entries that were read.
    pub entries: u64,
    /// Time of it.
    pub scanning: Nanos,
    /// Time to select the frames of pages that moved.
    pub selecting: Nanos,
    /// Time to copy them.
    pub copying: Nanos,
}

impl TlbCountCosts {
    /// What was added since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        since!(self, earlier, { passes, entries, scanning, selecting, copying })
    }
}

/// A page's counters.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// In the TLB.
    live: u8,
    /// In the page-table entry.
    stored: u8,
    /// What of it the policy knows.
    told: u8,
}

/// Counters of all pages.
#[derive(Debug)]
pub(super) struct MissCounters {
    pub(super) config: TlbCounting,
    /// By page number.
    pages: HashMap<u64, Count>,
    pub(super) costs: TlbCountCosts,
}

impl MissCounters {
    pub(super) fn new(config: TlbCounting) -> Self {
        Self { config, pages: HashMap::new(), costs: TlbCountCosts::default() }
    }

    /// A miss of a page came back. Nothing keeps the counter from running over.
    pub(super) fn miss(&mut self, address: u64) {
        let count = self.pages.entry(address >> 12).or_default();
        count.live = count.live.wrapping_add(1);
        if count.live == self.config.write_at {
            count.stored = count.live;
        }
    }

    /// The TLB gave a page's entry up.
    pub(super) fn given_up(&mut self, page: u64) {
        if let Some(count) = self.pages.get_mut(&page) {
            count.stored = count.live;
        }
    }

    /// A page moved, or is gone: its counts begin anew.
    pub(super) fn forget(&mut self, address: u64) {
        self.pages.remove(&(address >> 12));
    }
}

impl ExactMachine {
    /// The operating system reads the counts, on the first core.
    pub(super) fn read_counts(&mut self) {
        let Some(counts) = &mut self.runtime.tlb_counts else { return };
        let mut samples = std::mem::take(&mut self.runtime.samples);
        samples.clear();
        // In order of address, as the operating system reads them.
        let mut told: Vec<_> = counts.pages.iter_mut().collect();
        told.sort_unstable_by_key(|(page, _)| **page);
        for (&page, count) in told {
            let added = count.stored.wrapping_sub(count.told);
            count.told = count.stored;
            if added > 0
                && let Some((page, _)) = self.areas.page(page << 12)
            {
                samples.push(sample(page, Access::Read, u16::from(added)));
            }
        }
        let mut entries = 0;
        let regions: Vec<_> = self.areas.regions().collect();
        for (start, region) in regions {
            if (self.runtime.pinned.0..self.runtime.pinned.1).contains(&start) {
                continue;
            }
            for page in region.range().pages() {
                entries += 1;
                let Some((address, _)) = self.areas.address(page) else { continue };
                let Some(place) = self.memory.table.place(address) else { continue };
                let entry = self.memory.table.entry(place);
                if entry.has(Entry::DIRTY)
                    && entry.is_present()
                    && self.memory.frames.tier_of(entry.frame()) == TierId::FASTEST
                {
                    samples.push(sample(page, Access::Write, 0));
                }
            }
        }
        let time = counts.config.read * entries;
        counts.costs.passes += 1;
        counts.costs.entries += entries;
        counts.costs.scanning += time;
        let core = &mut self.cores[0];
        core.clock.spend(core.instructions, time.as_f64());
        if let Some(brain) = &mut self.runtime.brain
            && !samples.is_empty()
        {
            brain.samples(&samples);
        }
        samples.clear();
        self.runtime.samples = samples;
    }
}

fn sample(page: PageRef, access: Access, weight: u16) -> Sample {
    Sample { page, access, source: SampleSource::Pmu, weight }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HSCC's operating system does not see what only the TLB knows.
    #[test]
    fn a_count_is_seen_when_it_reaches_the_threshold_or_leaves_the_tlb() {
        let mut counts = MissCounters::new(TlbCounting::kindle());
        let stored = |counts: &MissCounters| counts.pages[&7].stored;
        for _ in 0..4 {
            counts.miss(7 << 12);
        }
        assert_eq!(stored(&counts), 0);
        counts.miss(7 << 12);
        assert_eq!(stored(&counts), 5);
        counts.miss(7 << 12);
        assert_eq!(stored(&counts), 5);
        counts.given_up(7);
        assert_eq!(stored(&counts), 6);
        for _ in 0..250 {
            counts.miss(7 << 12);
        }
        counts.given_up(7);
        assert_eq!(stored(&counts), 0, "eight bits run over");
    }
}
