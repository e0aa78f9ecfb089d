//! A PEBS-like sampler.
//!
//! Each core counts three events apart: loads that miss the caches and are
//! served by the fastest tier, such loads served by any other tier, and all
//! retired stores (on Cascade Lake: `MEM_LOAD_L3_MISS_RETIRED.LOCAL_DRAM`,
//! `…LOCAL_PMM`, and `MEM_INST_RETIRED.ALL_STORES`). Every so many events the
//! core writes a record into that event's buffer, which costs it time. A thread
//! of the memory manager drains the buffers, at a bounded rate; a record that
//! finds its buffer full is lost, and counted.

use std::collections::VecDeque;

use rand_xoshiro::rand_core::Rng;
use serde::Serialize;
use terrace_core::{Access, Bytes, Nanos, PageRef, Sample, SampleSource};

use crate::error::SimError;
use crate::workload::SimRng;

/// Events that are counted apart.
const EVENTS: usize = 3;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleEvent {
    FastLoad,
    SlowLoad,
    Store,
}

/// Parameters of the sampler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SamplerConfig {
    /// Events a record.
    pub period: u64,
    /// Room for records, for each core and event.
    pub buffer: Bytes,
    /// What a record takes.
    pub record: Bytes,
    /// What the draining thread needs for a record.
    pub drain: Nanos,
}

impl SamplerConfig {
    /// As in HeMem's published code.
    ///
    /// Period 5003 goes with the thresholds 8 and 4 and cooling at 18 (branch
    /// `sosp24ae` of the mirror `webglider/hemem`). The buffer is 2^16 pages of
    /// 4 KiB for each core and event, and a record takes 40 bytes. The drain
    /// time is two memory accesses of 81 ns (the record and the page's state)
    /// and some instructions: derived, not measured.
    pub fn hemem() -> Self {
        Self { period: 5003, buffer: Bytes::kib(4 << 16), record: Bytes(40), drain: Nanos(200) }
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        if self.period == 0 {
            return Err(SimError::parameter("sample period", "must be at least 1"));
        }
        if self.record.is_zero() || self.buffer < self.record {
            return Err(SimError::parameter("sample buffer", "must hold at least one record"));
        }
        Ok(())
    }
}

/// What became of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SampleCounts {
    /// Of loads from the fastest tier.
    pub fast_loads: u64,
    /// Of loads from other tiers.
    pub slow_loads: u64,
    /// Of stores.
    pub stores: u64,
    /// Records that found their buffer full; not among the other counts.
    pub lost: u64,
    /// Records that the policy was told of.
    pub delivered: u64,
    /// Hint faults that the policy was told of.
    pub hint_faults: u64,
    /// Pages whose accessed bits were read.
    pub scanned: u64,
}

/// A core's counters. Kept apart from the buffers so that the hot loop touches
/// nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoreCounters {
    /// Events until the next record.
    left: [i64; EVENTS],
}

impl CoreCounters {
    /// Counts `events` events; true when at least one record is due.
    #[inline]
    pub(crate) fn count(&mut self, event: SampleEvent, events: i64) -> bool {
        let left = &mut self.left[event as usize];
        *left -= events;
        *left <= 0
    }
}

/// The sampler of all cores.
#[derive(Debug)]
pub(crate) struct Sampler {
    period: i64,
    capacity: usize,
    drain: f64,
    /// Buffers by core and event: a page, and the base page within it.
    buffers: Vec<VecDeque<(u32, u16)>>,
    pending: usize,
    /// The buffer that is drained next.
    cursor: usize,
    /// Time of the draining thread that was not used.
    credit: f64,
    pub(crate) counts: SampleCounts,
}

impl Sampler {
    /// Counters for each core with a random phase, so that cores do not sample
    /// in step.
    pub(crate) fn new(
        config: &SamplerConfig,
        cores: usize,
        rng: &mut SimRng,
    ) -> (Self, Vec<CoreCounters>) {
        let counters = (0..cores)
            .map(|_| CoreCounters {
                left: [(); EVENTS].map(|()| 1 + (rng.next_u64() % config.period) as i64),
            })
            .collect();
        let sampler = Self {
            period: config.period as i64,
            capacity: (config.buffer.get() / config.record.get()) as usize,
            drain: config.drain.as_f64(),
            buffers: vec![VecDeque::new(); cores * EVENTS],
            pending: 0,
            cursor: 0,
            credit: 0.0,
            counts: SampleCounts::default(),
        };
        (sampler, counters)
    }

    /// Counters that never come to a record: what a world without sampling has.
    pub(crate) fn off(cores: usize) -> Vec<CoreCounters> {
        vec![CoreCounters { left: [i64::MAX; EVENTS] }; cores]
    }

    /// Events a record; 0 never happens.
    pub(crate) fn period(&self) -> u64 {
        self.period as u64
    }

    /// Changes the period; counters that run already end as they began.
    pub(crate) fn set_period(&mut self, period: u64) {
        self.period = period.max(1) as i64;
    }

    /// Writes the records that are due; returns how many.
    #[cold]
    pub(crate) fn record(
        &mut self,
        core: usize,
        event: SampleEvent,
        counters: &mut CoreCounters,
        page: (u32, u16),
    ) -> u64 {
        let left = &mut counters.left[event as usize];
        let mut records = 0;
        while *left <= 0 {
            *left += self.period;
            records += 1;
            let buffer = &mut self.buffers[core * EVENTS + event as usize];
            if buffer.len() >= self.capacity {
                self.counts.lost += 1;
                continue;
            }
            buffer.push_back(page);
            self.pending += 1;
            match event {
                SampleEvent::FastLoad => self.counts.fast_loads += 1,
                SampleEvent::SlowLoad => self.counts.slow_loads += 1,
                SampleEvent::Store => self.counts.stores += 1,
            }
        }
        records
    }

    /// The draining thread works for `time` nanoseconds.
    /// `name` tells which page a number stands for; a page that is gone by now
    /// is told to nobody. `bases` has the base page within the page of each sample.
    pub(crate) fn drain(
        &mut self,
        time: f64,
        name: impl Fn(u32) -> Option<PageRef>,
        samples: &mut Vec<Sample>,
        bases: &mut Vec<u16>,
    ) {
        samples.clear();
        bases.clear();
        self.credit += time;
        let affordable =
            if self.drain > 0.0 { (self.credit / self.drain) as usize } else { usize::MAX };
        let mut left = affordable.min(self.pending);
        let handled = left;
        self.pending -= left;
        self.counts.delivered += left as u64;
        while left > 0 {
            let event = self.cursor % EVENTS;
            if let Some((page, base)) = self.buffers[self.cursor].pop_front() {
                left -= 1;
                let Some(page) = name(page) else { continue };
                bases.push(base);
                samples.push(Sample {
                    page,
                    access: if event == SampleEvent::Store as usize {
                        Access::Write
                    } else {
                        Access::Read
                    },
                    source: SampleSource::Pmu,
                    weight: 1,
                });
            }
            self.cursor = (self.cursor + 1) % self.buffers.len();
        }
        // A thread that found nothing more to do has not saved its time up.
        self.credit =
            if self.pending == 0 { 0.0 } else { self.credit - handled as f64 * self.drain };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic::pages::Pages;
    use rand_xoshiro::rand_core::SeedableRng;
    use terrace_core::{ContextId, PageSize, Region, RegionId};

    fn pages() -> Pages {
        let region = Region {
            id: RegionId(3),
            pages: 100,
            page_size: PageSize::Huge,
            context: ContextId::ANONYMOUS,
        };
        Pages::new(&[region], &[Bytes::gib(1)])
    }

    fn with_buffer(records: u64, period: u64) -> (Sampler, Vec<CoreCounters>) {
        let config =
            SamplerConfig { period, buffer: Bytes(records * 40), ..SamplerConfig::hemem() };
        Sampler::new(&config, 2, &mut SimRng::seed_from_u64(1))
    }

    fn store(sampler: &mut Sampler, counters: &mut [CoreCounters], core: usize, events: i64) {
        if counters[core].count(SampleEvent::Store, events) {
            sampler.record(core, SampleEvent::Store, &mut counters[core], (5, 7));
        }
    }

    #[test]
    fn one_record_comes_every_period_however_events_are_grouped() {
        for group in [1, 7, 64, 1000] {
            let (mut sampler, mut counters) = with_buffer(1 << 20, 100);
            for _ in 0..100_000 / group {
                store(&mut sampler, &mut counters, 0, group);
            }
            assert!(sampler.counts.stores.abs_diff(1000) <= 1, "{:?}", sampler.counts);
            assert_eq!(sampler.counts.fast_loads, 0);
        }
    }

    #[test]
    fn a_full_buffer_loses_records_and_counts_them() {
        let (mut sampler, mut counters) = with_buffer(10, 100);
        for _ in 0..2_000 {
            store(&mut sampler, &mut counters, 0, 1);
        }
        assert_eq!(sampler.counts.stores, 10);
        assert!(sampler.counts.lost.abs_diff(10) <= 1, "{:?}", sampler.counts);
    }

    #[test]
    fn the_draining_thread_handles_what_its_time_allows() {
        let (mut sampler, mut counters) = with_buffer(1 << 20, 1);
        for core in 0..2 {
            for _ in 0..50 {
                store(&mut sampler, &mut counters, core, 1);
            }
        }
        let (mut drained, mut bases) = (Vec::new(), Vec::new());
        let pages = pages();
        let name = |page| Some(pages.page_ref(page));
        sampler.drain(30.0 * 200.0, name, &mut drained, &mut bases);
        assert_eq!(drained.len(), 30);
        assert_eq!(bases, [7; 30]);
        assert_eq!(drained[0].page.region, RegionId(3));
        assert_eq!((drained[0].page.page.0, drained[0].access), (5, Access::Write));
        sampler.drain(1e9, name, &mut drained, &mut bases);
        assert_eq!(drained.len(), 70);
        // Idle time is not saved up.
        store(&mut sampler, &mut counters, 0, 40);
        sampler.drain(10.0 * 200.0, name, &mut drained, &mut bases);
        assert_eq!(drained.len(), 10);
    }
}
