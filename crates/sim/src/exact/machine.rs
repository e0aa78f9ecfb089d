//! The machine: one access after the other through TLBs, page tables, caches
//! and memories.
//!
//! Each turn of a core's accesses goes through two stages: the first levels of
//! TLB and cache ([`first_levels`](super::first_levels)), then what they could not answer
//! ([`beyond_first`](super::beyond_first)).

use terrace_core::machine::TierFile;
use terrace_core::{Bytes, Frequency, Machine, Nanos, TierId};

#[cfg(test)]
use super::access::Access;
use super::address_space::{Areas, PhysicalMemory};
use super::beyond_first::Queue;
use super::clock::{CoreClock, CoreGeometry};
use super::hierarchy::{CacheGeometry, Hierarchy, HierarchyGeometry};
use super::last_used::{Filter, Shape};
use super::page_table::MapSize;
use super::policy_runtime::PolicyRuntime;
use super::profile::Profile;
use super::tiers::Tier;
use super::timeline::Timeline;
use super::tlb::{Tlbs, TlbsGeometry};
use crate::analytic::sampler::CoreCounters;
use crate::error::SimError;

/// Accesses between two looks at ticks, migration and sampling.
pub(super) const TURN: usize = 1024;

/// Latencies of hits, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latencies {
    pub(super) l1: f64,
    pub(super) l2: f64,
    pub(super) llc: f64,
    pub(super) stlb: f64,
    /// Of so many hits of the first level one after the other.
    pub(super) l1_hits: [f64; 5],
}

/// One core, and what it has for itself beside caches.
#[derive(Clone, Debug)]
pub(super) struct Core {
    pub(super) tlbs: Tlbs,
    pub(super) clock: CoreClock,
    pub(super) counters: CoreCounters,
    /// Instructions so far.
    pub(super) instructions: u64,
    pub(super) accesses: u64,
    /// Entries of the turn under way that access no data.
    pub(super) no_accesses: u64,
    pub(super) stores: u64,
    /// What the hot path need not look up.
    pub(super) filter: Filter,
    /// Whether looking ahead for page-table entries pays, by the walks there
    /// were up to the last turn.
    pub(super) look_ahead: bool,
    pub(super) walks_before: u64,
    pub(super) used: bool,
}

/// A machine on which a program runs access by access.
pub struct ExactMachine {
    pub(super) cores: Vec<Core>,
    pub(super) caches: Hierarchy,
    pub(super) tiers: Vec<Tier>,
    pub(super) memory: PhysicalMemory,
    pub(super) areas: Areas,
    pub(super) runtime: PolicyRuntime,
    pub(super) queue: Queue,
    /// Whether the first stage of one of several cores runs ahead of time, and
    /// whether it has come to an access that has to wait for its time.
    pub(super) ahead: bool,
    pub(super) blocked: bool,
    pub(super) latencies: Latencies,
    pub(super) clock: Frequency,
    pub(super) profile: Option<Box<Profile>>,
    pub(super) timeline: Option<Box<Timeline>>,
    pub(super) error: Option<SimError>,
    /// Whether the hot path runs as compiled for newer processors.
    pub(super) modern: bool,
}

/// Caches of a machine file, for a number of cores.
pub fn hierarchy_geometry(machine: &Machine, cores: usize) -> Result<HierarchyGeometry, SimError> {
    let detail = machine.detail.as_ref().ok_or_else(|| no_detail(machine))?;
    let cache = |file: &terrace_core::detail::CacheFile| CacheGeometry {
        replacement: file.replacement,
        ..CacheGeometry::lru(file.size.value.get(), file.ways.value)
    };
    Ok(HierarchyGeometry {
        cores,
        l1: cache(&detail.l1),
        l1i: None,
        l2: detail.l2.as_ref().map(cache),
        llc: CacheGeometry {
            replacement: detail.llc.replacement,
            ..CacheGeometry::lru(machine.cpu.llc.value.get(), detail.llc.ways.value)
        },
        inclusion: detail.llc.inclusion,
    })
}

pub(super) fn no_detail(machine: &Machine) -> SimError {
    let message = format!(
        "`{}` has no [detail] about caches and TLBs, which the simulation of single accesses needs",
        machine.name
    );
    SimError::parameter("machine", message)
}

impl ExactMachine {
    pub(super) fn build(
        machine: &Machine,
        cores: usize,
        runtime: PolicyRuntime,
        counters: Vec<CoreCounters>,
        capacities: &[Bytes],
    ) -> Result<Self, SimError> {
        let geometry = hierarchy_geometry(machine, cores)?;
        let detail = machine.detail.as_ref().ok_or_else(|| no_detail(machine))?;
        let clock = machine.cpu.clock.value;
        let cycles = |cycles: u64| cycles as f64 * 1e9 / clock.get();
        let core = CoreGeometry {
            instruction: 1e9 / clock.get() / detail.issue_width.value,
            slots: machine.cpu.miss_slots.value as usize,
            window: u64::from(detail.reorder_buffer.value),
        };
        let tlbs = Tlbs::new(&TlbsGeometry::from(detail));
        let shape = Shape {
            sets: geometry.l1.sets as usize,
            replacement: geometry.l1.replacement,
            ways: geometry.l1.ways,
        };
        let cores = counters
            .into_iter()
            .map(|counters| Core {
                clock: CoreClock::new(core),
                counters,
                instructions: 0,
                accesses: 0,
                no_accesses: 0,
                stores: 0,
                filter: Filter::new(shape, tlbs.shape(MapSize::Base), tlbs.shape(MapSize::Huge)),
                look_ahead: false,
                walks_before: 0,
                tlbs: tlbs.clone(),
                used: false,
            })
            .collect();
        let caches = Hierarchy::new(&geometry);
        let l1 = cycles(detail.l1.latency.value.get());
        let mut l1_hits = [0.0; 5];
        (1..5).for_each(|hits| l1_hits[hits] = l1_hits[hits - 1] + l1);
        let memory = PhysicalMemory::new(capacities, TierId::FASTEST);
        let tier = |(i, file): (usize, &TierFile)| match &file.memory_file {
            None => Ok(Tier::new(file)),
            Some(name) => {
                let timing = crate::machines::memory_of(file, name)
                    .map_err(|why| SimError::parameter("machine", why))?;
                Ok(Tier::timed(file, &timing, memory.frames.first(TierId(i as u8)) << 6))
            }
        };
        let tiers = machine.tiers.iter().enumerate().map(tier).collect::<Result<_, SimError>>()?;
        // Who looks at single misses in order wants them in order.
        let in_order = !caches.fills_early() || runtime.tlb_counts.is_some();
        Ok(Self {
            cores,
            queue: Queue::new(in_order),
            ahead: false,
            blocked: false,
            caches,
            tiers,
            memory,
            areas: Areas::default(),
            runtime,
            latencies: Latencies {
                l1,
                l1_hits,
                l2: detail.l2.as_ref().map_or(0.0, |l2| cycles(l2.latency.value.get())),
                llc: machine.cpu.llc_latency.value.as_f64(),
                stlb: cycles(detail.stlb_latency.value.get()),
            },
            clock,
            profile: None,
            timeline: None,
            error: None,
            modern: super::host_arrays::is_modern(),
        })
    }

    /// The machine's time: that of the core that is furthest.
    pub fn now(&self) -> Nanos {
        let time = |core: &Core| core.clock.time(core.instructions);
        Nanos::from_f64(self.cores.iter().filter(|c| c.used).map(time).fold(0.0, f64::max))
    }

    /// Accesses of all cores up to their last turns.
    pub fn accesses(&self) -> u64 {
        self.cores.iter().map(|core| core.accesses).sum()
    }

    /// One core makes accesses, whatever others do.
    #[cfg(test)]
    pub(super) fn run(&mut self, core: usize, accesses: &[Access]) -> Result<(), SimError> {
        self.cores[core].used = true;
        for some in accesses.chunks(TURN) {
            self.run_some(core, some);
            self.settle(core, some);
            if let Some(error) = self.error.take() {
                return Err(error);
            }
        }
        Ok(())
    }
}
