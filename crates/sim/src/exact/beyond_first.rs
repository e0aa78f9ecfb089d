//! The second stage of an access: what the first levels could not answer.
//!
//! The first levels of TLB and cache do not depend on what lies beyond them (an
//! inclusive last level is the exception, and is worked off in order). So the
//! accesses that they cannot answer wait in a queue, and are worked off some
//! dozens at a time. What an access will need of the host's memory is known
//! when it enters the queue, and is near when its turn comes: without that,
//! nearly every one would wait for tags that no cache of the host has.
//!
//! Everything that depends on time is here: time passes for an access when its
//! turn comes, in the program's order.

#![allow(clippy::inline_always)] // measured: a call on the hot path costs more than the work

use terrace_core::{MAX_TIERS, PageSize};

use super::hierarchy::{Displaced, Level, Request, WriteBacks};
use super::host_arrays::for_this_processor;
use super::machine::ExactMachine;
use crate::analytic::sampler::SampleEvent;

/// Accesses that may wait.
const ROOM: usize = 64;
/// How far ahead the host is asked for the place of what a line displaces.
pub(super) const NEXT: usize = 8;
/// Accesses of one of several cores that wait at once, before its first stage waits
/// for them. One access adds ten at most, so that they never fill the queue.
pub(super) const AHEAD: usize = 32;
const _: () = assert!(AHEAD + 10 < ROOM);

/// What an access is, and what is known of it: an address and bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct What(u64);

impl What {
    pub(super) const STORE: u64 = 1 << 48;
    /// Its address depends on the load before it.
    pub(super) const DEPENDENT: u64 = 1 << 49;
    /// The first-level cache has the line.
    pub(super) const HIT: u64 = 1 << 50;
    /// The second-level TLB translated.
    pub(super) const SECOND_TLB: u64 = 1 << 51;
    /// It is not the access itself, but a read of its page walk.
    pub(super) const WALK: u64 = 1 << 52;
    /// A walk begins with it, or with hits before it.
    pub(super) const BEGINS: u64 = 1 << 53;
    /// Reads of its walk came before.
    pub(super) const WALKED: u64 = 1 << 54;
    /// It belongs to the access of the entry before.
    pub(super) const REST: u64 = 1 << 55;
    /// Times the reads of its walk before, that hit the first-level cache.
    pub(super) const ONE_HIT: u64 = 1 << 56;
    const ADDRESS: u64 = (1 << 48) - 1;

    /// A load or store.
    #[inline(always)]
    pub(super) fn access(address: u64, store: bool, dependent: bool) -> Self {
        let dependent = if dependent { Self::DEPENDENT } else { 0 };
        Self(address & Self::ADDRESS | if store { Self::STORE } else { 0 } | dependent)
    }
    /// A read of a page walk.
    #[inline(always)]
    pub(super) fn walk(dependent: bool) -> Self {
        Self(Self::WALK | if dependent { Self::DEPENDENT } else { 0 })
    }
    #[inline(always)]
    pub(super) fn with(self, bits: u64) -> Self {
        Self(self.0 | bits)
    }
    #[inline(always)]
    pub(super) fn is(self, bit: u64) -> bool {
        self.0 & bit != 0
    }
    /// Whether nobody would wait for it if it hit the first level.
    #[inline(always)]
    pub(super) fn is_plain(self) -> bool {
        !self.is(Self::DEPENDENT | Self::SECOND_TLB | Self::WALK | Self::WALKED)
    }
    #[inline(always)]
    pub(super) fn hits_before(self) -> usize {
        (self.0 / Self::ONE_HIT) as usize
    }
    /// The same after its walk has begun.
    pub(super) fn begun(self) -> Self {
        Self((self.0 % Self::ONE_HIT) & !Self::BEGINS)
    }
    #[inline(always)]
    fn address(self) -> u64 {
        self.0 & Self::ADDRESS
    }
}

/// An access that waits for its second stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deferred {
    /// Its line in physical memory.
    pub(super) line: u64,
    /// The core's instructions so far.
    pub(super) instruction: u64,
    pub(super) what: What,
    pub(super) displaced: Displaced,
}

impl Deferred {
    /// Whether its address depends on the load before it.
    #[inline(always)]
    pub(super) fn is_dependent(&self) -> bool {
        self.what.is(What::DEPENDENT)
    }
}

/// The accesses that wait.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) waiting: Vec<Deferred>,
    /// Whether nothing may wait.
    pub(super) in_order: bool,
    /// When the walk under way began, and what it took so far.
    begin: f64,
    latency: f64,
}

impl Queue {
    pub(super) fn new(in_order: bool) -> Self {
        Self { waiting: Vec::with_capacity(ROOM), in_order, begin: 0.0, latency: 0.0 }
    }

    /// A walk begins, with reads that took so long together.
    pub(super) fn begin_walk(&mut self, at: f64, latency: f64) {
        self.begin = at;
        self.latency = latency;
    }
}

impl ExactMachine {
    /// Leaves an access to the second stage.
    #[inline(always)]
    pub(super) fn defer(&mut self, core: usize, access: Deferred) {
        if !access.what.is(What::HIT) {
            self.caches.prefetch(core, access.line);
        }
        self.queue.waiting.push(access);
        if self.queue.waiting.len() >= ROOM {
            self.catch_up(core);
        }
    }

    for_this_processor! {
        /// Works off what waits.
        pub(super) fn catch_up | catch_up_modern (&mut self, core: usize) = catch_up_here
    }

    #[inline(always)]
    fn catch_up_here(&mut self, core: usize) {
        let mut waiting = std::mem::take(&mut self.queue.waiting);
        for next in waiting.iter().take(NEXT) {
            self.prefetch_victim(core, next);
        }
        for i in 0..waiting.len() {
            if let Some(next) = waiting.get(i + NEXT) {
                self.prefetch_victim(core, next);
            }
            self.second_stage(core, waiting[i]);
        }
        waiting.clear();
        self.queue.waiting = waiting;
    }

    /// Asks the host for the place of what a line will displace.
    #[inline(always)]
    pub(super) fn prefetch_victim(&self, core: usize, access: &Deferred) {
        if !access.what.is(What::HIT) {
            self.caches.prefetch_victim(core, access.line);
        }
    }

    #[inline(always)]
    pub(super) fn second_stage(&mut self, core: usize, access: Deferred) {
        let Deferred { line, instruction, what, displaced } = access;
        let dependent = what.is(What::DEPENDENT);
        let store = what.is(What::STORE);
        let request = if what.is(What::WALK) {
            Request::Walk
        } else if store {
            Request::Store
        } else {
            Request::Load
        };
        let mut out = WriteBacks::default();
        let level = if what.is(What::HIT) {
            Level::L1
        } else if self.queue.in_order {
            self.caches.beyond(core, line, request, &mut out)
        } else {
            self.caches.beyond_filled(core, line, request, displaced, &mut out)
        };
        if what.is(What::BEGINS) {
            let begin = self.cores[core].clock.begin(instruction, dependent);
            self.queue.begin_walk(begin, self.latencies.l1_hits[what.hits_before()]);
        }
        if what.is(What::WALK) {
            let (begin, latency) = (self.queue.begin, self.queue.latency);
            self.queue.latency += match level {
                Level::L1 => self.latencies.l1,
                Level::L2 => self.latencies.l2,
                Level::Llc => self.latencies.llc,
                Level::Memory => {
                    let tier = self.memory.frames.tier_of(line >> 6).index();
                    self.tiers[tier].read(begin + latency, line, true)
                }
            };
            self.write_back(&out, begin);
            return;
        }
        let mut latency = if what.is(What::WALKED) {
            self.queue.latency
        } else if what.is(What::SECOND_TLB) {
            self.latencies.stlb
        } else {
            0.0
        };
        let me = &mut self.cores[core];
        if level == Level::L1 && latency <= 0.0 {
            if dependent {
                me.clock.chained_hit(instruction, self.latencies.l1, !store);
            }
            return;
        }
        let begin = if what.is(What::WALKED) {
            self.queue.begin
        } else {
            me.clock.begin(instruction, dependent)
        };
        latency += match level {
            Level::L1 => self.latencies.l1,
            Level::L2 => self.latencies.l2,
            Level::Llc => self.latencies.llc,
            Level::Memory => self.miss(core, line, store, what.address(), begin + latency),
        };
        self.cores[core].clock.end(instruction, begin + latency, !store);
        self.write_back(&out, begin);
    }

    /// A line comes from memory: its latency, and the hardware's counters.
    #[inline(always)]
    fn miss(&mut self, core: usize, line: u64, store: bool, address: u64, at: f64) -> f64 {
        let tier = self.memory.frames.tier_of(line >> 6).index() & (MAX_TIERS - 1);
        if let Some(profile) = &mut self.profile {
            profile.note(&mut self.areas, address);
        }
        if tier != 0
            && let Some(counts) = &mut self.runtime.tlb_counts
        {
            counts.miss(address);
        }
        if !store {
            let event = if tier == 0 { SampleEvent::FastLoad } else { SampleEvent::SlowLoad };
            if self.cores[core].counters.count(event, 1) {
                self.record(core, event, address);
            }
        }
        self.tiers[tier].read(at, line, false)
    }

    #[inline(always)]
    fn write_back(&mut self, out: &WriteBacks, at: f64) {
        for &line in out.lines() {
            let tier = self.memory.frames.tier_of(line >> 6).index();
            self.tiers[tier].write(at, line);
        }
        if let Some(line) = out.dropped() {
            for core in &mut self.cores {
                core.filter.forget_line(line);
            }
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn record(&mut self, core: usize, event: SampleEvent, address: u64) {
        if self.runtime.is_pinned(address) {
            return;
        }
        let found = self.areas.page(address);
        let slot = found.and_then(|(page, _)| self.areas.slot(page));
        let within = found.map_or(0, |(_, size)| address & (size.bytes().get() - 1));
        let base = (within >> PageSize::Base.shift()) as u16;
        let counters = &mut self.cores[core].counters;
        let records =
            self.runtime.sampler.record(core, event, counters, (slot.unwrap_or(u32::MAX), base));
        let time = records as f64 * self.runtime.costs.sample.value.as_f64();
        let me = &mut self.cores[core];
        me.clock.spend(me.instructions, time);
    }
}
