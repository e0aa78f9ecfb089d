//! The statistics page is brought up to date, some times a second.

use core::sync::atomic::Ordering::*;

use terrace_core::Nanos;

use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

impl Worker<'_> {
    /// A number that changes whenever something happened.
    pub(crate) fn activity(&self) -> u64 {
        let c = &self.pager.stats().counters;
        [&c.faults_first_touch, &c.faults_absent, &c.faults_hint, &c.demotions, &c.samples]
            .iter()
            .map(|n| n.load(Relaxed))
            .sum()
    }

    /// Brings the statistics page up to date.
    pub(crate) fn account(&mut self) {
        let pager = self.pager;
        let stats = pager.stats();
        let now = sys::now();
        stats.counters.updated_ns.store(now, Relaxed);
        let own: u64 = pager
            .workers
            .iter()
            .map(|w| w.tid.load(Relaxed))
            .filter(|&t| t != 0)
            .map(sys::cpu_of_thread)
            .sum();
        stats.counters.own_cpu_ns.store(own, Relaxed);
        let own = Nanos(stats.counters.fault_own_ns.load(Relaxed));
        let beyond = pager.fault.stalls.settle(own);
        stats.counters.overcounted_ns.fetch_add(beyond.get(), Relaxed);
        stats.counters.store_bytes.store(pager.store.occupied(), Relaxed);
        stats.counters.store_common_bytes.fetch_min(pager.store.occupied(), Relaxed);
        pager.account_spill();
        let mut lines = stats.regions.iter();
        for (id, region) in pager.regions.iter() {
            let Some(line) = lines.next() else { break };
            line.id.store(u64::from(id), Relaxed);
            line.start.store(region.start() as u64, Relaxed);
            line.len.store(u64::from(region.pages()) * PAGE as u64, Relaxed);
            line.resident.store(u64::from(region.resident.load(Relaxed)) * PAGE as u64, Relaxed);
            line.faults.store(region.faults.load(Relaxed), Relaxed);
            for (to, from) in line.parts.iter().zip(&region.parts) {
                to.store(from.load(Relaxed), Relaxed);
            }
        }
        for line in lines {
            line.start.store(0, Relaxed);
        }
    }
}
