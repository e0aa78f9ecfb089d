//! The machine: one access after the other through TLBs, page tables, caches
//! and memories.
//!
//! The hot path is [`FullMachine::run_some`]. An access whose page is the one
//! used last in its TLB set and whose line is the one used last in its set of
//! the first-level cache changes no state at all but counters: two small tables
//! of such pages and lines decide that in a few instructions. Other hits of the
//! first levels are looked up ([`FullMachine::hits`]) and change nothing but the
//! order of use. Everything else takes [`FullMachine::access`].

#![allow(clippy::inline_always)] // measured: a call on the hot path costs more than the work

use terrace_core::{Bytes, Frequency, MAX_TIERS, Machine, Nanos, PageSize, TierId};

use super::access::Access;
use super::clock::{CoreClock, CoreGeometry};
use super::hierarchy::{CacheGeometry, Hierarchy, HierarchyGeometry, Level, Request, WriteBacks};
use super::page_table::{Entry, MapSize};
use super::profile::Profile;
use super::space::{Areas, Memory};
use super::tiers::Tier;
use super::timeline::Timeline;
use super::tlb::{TlbLevel, Tlbs, TlbsGeometry, Translation};
use super::world::World;
use crate::error::SimError;
use crate::sampler::{CoreCounters, SampleEvent};

/// Lines that the fast path knows.
const LINES: usize = 64;
/// Pages of each size that the fast path knows.
const PAGES: usize = 16;
/// A line or page that there is not.
const NOTHING: u64 = u64::MAX;
/// Accesses between two looks at ticks, migration and sampling.
pub(super) const TURN: usize = 1024;
/// Accesses that the look-ahead for page-table entries is ahead.
const FAR: usize = 24;
/// Accesses that the look-ahead for cache sets is ahead.
const NEAR: usize = 12;
/// Accesses that the look-ahead for what they give up is ahead.
const NEXT: usize = 4;
/// Looking ahead pays when one access in so many misses all caches.
const MISSES: usize = 6;

/// Latencies of hits, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latencies {
    pub(super) l1: f64,
    pub(super) l2: f64,
    pub(super) llc: f64,
    pub(super) stlb: f64,
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
    pub(super) stores: u64,
    /// Fast path: the line used last in a set, times two, plus one if it is
    /// dirty there.
    lines: [u64; LINES],
    line_mask: u64,
    base_pages: [u64; PAGES],
    base_mask: u64,
    huge_pages: [u64; PAGES],
    huge_mask: u64,
    /// Misses of all caches in the last turn: whether looking ahead pays.
    misses: usize,
    look_ahead: bool,
    pub(super) used: bool,
}

impl Core {
    /// The fast path may know nothing any more.
    pub(super) fn forget_filters(&mut self) {
        self.lines = [NOTHING; LINES];
        self.base_pages = [NOTHING; PAGES];
        self.huge_pages = [NOTHING; PAGES];
    }

    /// A line, and its page, are the ones used last in their sets.
    #[inline(always)]
    fn remember(&mut self, line: u64, size: MapSize, store: bool) {
        self.lines[(line & self.line_mask) as usize % LINES] = line << 1 | u64::from(store);
        match size {
            MapSize::Base => {
                let page = line >> 6;
                self.base_pages[(page & self.base_mask) as usize % PAGES] = page;
            }
            MapSize::Huge => {
                let page = line >> 15;
                self.huge_pages[(page & self.huge_mask) as usize % PAGES] = page;
            }
            MapSize::Giant => {}
        }
    }

    /// Whether an access is one that changes nothing but counters.
    #[inline(always)]
    fn is_fast(&self, access: Access) -> bool {
        let line = access.line();
        let dirty = line << 1 | 1;
        // A load takes either key, a store only the dirty one.
        let load = u64::from(!access.is_store());
        let known = self.lines[(line & self.line_mask) as usize % LINES];
        let page = line >> 6;
        let huge = page >> 9;
        let page_known = self.base_pages[(page & self.base_mask) as usize % PAGES] == page
            || self.huge_pages[(huge & self.huge_mask) as usize % PAGES] == huge;
        (known ^ dirty) <= load && page_known && !access.is_special()
    }
}

/// A machine on which a program runs access by access.
pub struct FullMachine {
    pub(super) cores: Vec<Core>,
    pub(super) caches: Hierarchy,
    pub(super) tiers: Vec<Tier>,
    pub(super) memory: Memory,
    pub(super) areas: Areas,
    pub(super) world: World,
    pub(super) latencies: Latencies,
    pub(super) clock: Frequency,
    pub(super) profile: Option<Box<Profile>>,
    pub(super) timeline: Option<Box<Timeline>>,
    pub(super) error: Option<SimError>,
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

/// A filter's mask: not finer than the sets it stands for.
fn filter_mask(sets: usize, most: usize) -> u64 {
    (sets.min(most) - 1) as u64
}

impl FullMachine {
    pub(super) fn build(
        machine: &Machine,
        cores: usize,
        world: World,
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
        let l1_sets = geometry.l1.sets as usize;
        let cores = counters
            .into_iter()
            .map(|counters| Core {
                clock: CoreClock::new(core),
                counters,
                instructions: 0,
                accesses: 0,
                stores: 0,
                lines: [NOTHING; LINES],
                line_mask: filter_mask(l1_sets, LINES),
                base_pages: [NOTHING; PAGES],
                base_mask: filter_mask(tlbs.first_sets(MapSize::Base), PAGES),
                huge_pages: [NOTHING; PAGES],
                huge_mask: filter_mask(tlbs.first_sets(MapSize::Huge), PAGES),
                tlbs: tlbs.clone(),
                misses: 0,
                look_ahead: false,
                used: false,
            })
            .collect();
        Ok(Self {
            cores,
            caches: Hierarchy::new(&geometry),
            tiers: machine.tiers.iter().map(Tier::new).collect(),
            memory: Memory::new(capacities, TierId::FASTEST),
            areas: Areas::default(),
            world,
            latencies: Latencies {
                l1: cycles(detail.l1.latency.value.get()),
                l2: detail.l2.as_ref().map_or(0.0, |l2| cycles(l2.latency.value.get())),
                llc: machine.cpu.llc_latency.value.as_f64(),
                stlb: cycles(detail.stlb_latency.value.get()),
            },
            clock,
            profile: None,
            timeline: None,
            error: None,
        })
    }

    /// The machine's time: that of the core that is furthest.
    pub fn now(&self) -> Nanos {
        let time = |core: &Core| core.clock.time(core.instructions);
        Nanos::from_f64(self.cores.iter().filter(|c| c.used).map(time).fold(0.0, f64::max))
    }

    /// A thread makes accesses. Threads run on cores by their number.
    pub fn run(&mut self, thread: u32, accesses: &[Access]) -> Result<(), SimError> {
        let core = thread as usize % self.cores.len();
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

    /// The hot path.
    fn run_some(&mut self, core: usize, accesses: &[Access]) {
        if self.cores[core].look_ahead {
            self.run_turn::<true>(core, accesses);
        } else {
            self.run_turn::<false>(core, accesses);
        }
        let me = &mut self.cores[core];
        me.look_ahead = me.misses * MISSES > accesses.len();
        me.misses = 0;
        me.accesses += accesses.len() as u64;
    }

    #[inline(always)]
    fn run_turn<const LOOK_AHEAD: bool>(&mut self, core: usize, accesses: &[Access]) {
        for (i, &access) in accesses.iter().enumerate() {
            if LOOK_AHEAD {
                self.look_ahead(core, accesses, i);
            }
            let me = &mut self.cores[core];
            me.instructions += access.instructions() + 1;
            if !me.is_fast(access) && !self.hits(core, access) {
                self.slow(core, access);
            }
        }
    }

    /// An access that hits both first levels, and is to be remembered as the
    /// last of its sets. Otherwise nothing was changed that counts.
    #[inline(always)]
    fn hits(&mut self, core: usize, access: Access) -> bool {
        if access.is_special() {
            return false;
        }
        let (address, store) = (access.address(), access.is_store());
        let me = &mut self.cores[core];
        let Some(translation) = me.tlbs.first(address) else { return false };
        let bits = translation.entry.0 & (Entry::DIRTY | Entry::PROTECTED);
        if store && bits != Entry::DIRTY {
            return false;
        }
        if !self.caches.hits_l1(core, translation.physical(address) >> 6, store) {
            return false;
        }
        me.remember(access.line(), translation.size, store);
        true
    }

    /// Brings near what later accesses will need of the host's memory: entries
    /// of the page table first, then sets of the large caches, which are found
    /// by those entries, then what those sets will give up.
    #[inline(always)]
    fn look_ahead(&self, core: usize, accesses: &[Access], i: usize) {
        if let Some(&far) = accesses.get(i + FAR)
            && !self.cores[core].is_fast(far)
        {
            self.memory.table.prefetch(far.address());
        }
        for (distance, victims) in [(NEAR, false), (NEXT, true)] {
            if let Some(&near) = accesses.get(i + distance)
                && !self.cores[core].is_fast(near)
                && (i + distance == 0 || accesses[i + distance - 1].line() != near.line())
                && let Some((frame, entry)) = self.memory.table.near(near.address())
            {
                let lines = [frame << 6 | near.line() & 63, entry >> 6];
                for line in lines {
                    if victims {
                        self.caches.prefetch_victim(core, line);
                    } else {
                        self.caches.prefetch(core, line);
                    }
                }
            }
        }
    }

    #[inline(never)]
    fn slow(&mut self, core: usize, access: Access) {
        if access.is_fetch() {
            return;
        }
        self.access(core, access, access.address());
        if access.crosses() {
            self.access(core, access, (access.address() | 63) + 1);
        }
    }

    fn access(&mut self, core: usize, access: Access, address: u64) {
        let store = access.is_store();
        let instruction = self.cores[core].instructions;
        let mut latency = 0.0;
        let mut begin = None;
        let translation = match self.cores[core].tlbs.translate(address) {
            Some((translation, TlbLevel::First)) => translation,
            Some((translation, TlbLevel::Second)) => {
                latency += self.latencies.stlb;
                translation
            }
            None => {
                let at = self.cores[core].clock.begin(instruction, access.is_dependent());
                begin = Some(at);
                let Some(translation) = self.walk(core, address, store, at, &mut latency) else {
                    return;
                };
                // A fault may have taken time.
                if self.cores[core].clock.time(instruction) > at {
                    begin = None;
                }
                translation
            }
        };
        let translation =
            if store { self.check_store(core, address, translation) } else { translation };
        let line = translation.physical(address) >> 6;
        let request = if store { Request::Store } else { Request::Load };
        let mut out = WriteBacks::default();
        let level = self.caches.access(core, line, request, &mut out);
        let me = &mut self.cores[core];
        me.remember(address >> 6, translation.size, store);
        if level == Level::L1 && latency <= 0.0 {
            if access.is_dependent() {
                me.clock.chained_hit(instruction, self.latencies.l1, !store);
            }
            return;
        }
        let begin = begin.unwrap_or_else(|| me.clock.begin(instruction, access.is_dependent()));
        latency += match level {
            Level::L1 => self.latencies.l1,
            Level::L2 => self.latencies.l2,
            Level::Llc => self.latencies.llc,
            Level::Memory => self.miss(core, line, store, address, begin + latency),
        };
        self.cores[core].clock.end(instruction, begin + latency, !store);
        self.write_back(&out, begin);
    }

    /// A line comes from memory: its latency, and the hardware's counters.
    #[inline]
    fn miss(&mut self, core: usize, line: u64, store: bool, address: u64, at: f64) -> f64 {
        let tier = self.memory.frames.tier_of(line >> 6).index() & (MAX_TIERS - 1);
        self.cores[core].misses += 1;
        if let Some(profile) = &mut self.profile {
            profile.note(&mut self.areas, address);
        }
        if tier != 0
            && let Some(counts) = &mut self.world.tlb_counts
        {
            counts.miss(address);
        }
        if !store {
            let event = if tier == 0 { SampleEvent::FastLoad } else { SampleEvent::SlowLoad };
            if self.cores[core].counters.count(event, 1) {
                self.record(core, event, address);
            }
        }
        self.tiers[tier].read(at, false)
    }

    #[inline]
    pub(super) fn write_back(&mut self, out: &WriteBacks, at: f64) {
        for &line in out.lines() {
            let tier = self.memory.frames.tier_of(line >> 6).index();
            self.tiers[tier].write(at);
        }
        if let Some(line) = out.dropped() {
            for core in &mut self.cores {
                core.lines[(line & core.line_mask) as usize % LINES] = NOTHING;
            }
        }
    }

    /// The page walker: reads what the walk caches do not know through the
    /// caches, and faults where nothing is mapped.
    #[inline(never)]
    fn walk(
        &mut self,
        core: usize,
        address: u64,
        store: bool,
        at: f64,
        latency: &mut f64,
    ) -> Option<Translation> {
        const STOPS: u64 = Entry::ARMED;
        let place = match self.memory.table.place(address) {
            Some(place)
                if self.memory.table.entry(place).is_present()
                    && !self.memory.table.entry(place).has(STOPS) =>
            {
                place
            }
            _ => {
                self.fault(core, address, store)?;
                self.memory.table.place(address)?
            }
        };
        self.memory.table.set(place, Entry::ACCESSED);
        let path = self.memory.table.walk(address);
        let known = self.cores[core].tlbs.walk_begin(address, path.depth);
        let mut out = WriteBacks::default();
        for &entry in &path.entries[known..path.depth] {
            let line = entry >> 6;
            let level = self.caches.access(core, line, Request::Walk, &mut out);
            *latency += match level {
                Level::L1 => self.latencies.l1,
                Level::L2 => self.latencies.l2,
                Level::Llc => self.latencies.llc,
                Level::Memory => {
                    let tier = self.memory.frames.tier_of(line >> 6).index();
                    self.tiers[tier].read(at + *latency, true)
                }
            };
            self.write_back(&out, at);
            out = WriteBacks::default();
            // The entry's line is the one used last in its set now.
            let me = &mut self.cores[core];
            me.lines[(line & me.line_mask) as usize % LINES] = NOTHING;
        }
        let tlbs = &mut self.cores[core].tlbs;
        tlbs.counts.walks += 1;
        tlbs.counts.walk_reads += (path.depth - known) as u64;
        let translation = Translation { entry: self.memory.table.entry(place), size: place.size() };
        tlbs.fill(address, translation);
        let given_up = tlbs.given_up();
        if let (Some(counts), Some(page)) = (&mut self.world.tlb_counts, given_up) {
            counts.given_up(page);
        }
        Some(translation)
    }

    /// A store's page may have to be marked as dirty, or be write-protected.
    #[inline]
    fn check_store(&mut self, core: usize, address: u64, found: Translation) -> Translation {
        if found.entry.has(Entry::DIRTY) && !found.entry.has(Entry::PROTECTED) {
            return found;
        }
        self.first_store(core, address, found)
    }

    #[cold]
    fn first_store(&mut self, core: usize, address: u64, found: Translation) -> Translation {
        let mut found = found;
        if found.entry.has(Entry::PROTECTED) {
            self.wait_for_move(core, address);
            // The page is elsewhere now, or at least no longer protected.
            if let Some(place) = self.memory.table.place(address) {
                found = Translation { entry: self.memory.table.entry(place), size: place.size() };
                self.cores[core].tlbs.forget(address, found.size);
                self.cores[core].tlbs.fill(address, found);
            }
        }
        if let Some(place) = self.memory.table.place(address) {
            self.memory.table.set(place, Entry::DIRTY);
        }
        self.cores[core].tlbs.set_bits(address, found.size, Entry::DIRTY);
        found
    }

    #[cold]
    #[inline(never)]
    pub(super) fn record(&mut self, core: usize, event: SampleEvent, address: u64) {
        if self.world.is_pinned(address) {
            return;
        }
        let found = self.areas.page(address);
        let slot = found.and_then(|(page, _)| self.areas.slot(page));
        let within = found.map_or(0, |(_, size)| address & (size.bytes().get() - 1));
        let base = (within >> PageSize::Base.shift()) as u16;
        let counters = &mut self.cores[core].counters;
        let records =
            self.world.sampler.record(core, event, counters, (slot.unwrap_or(u32::MAX), base));
        let time = records as f64 * self.world.costs.sample.value.as_f64();
        let me = &mut self.cores[core];
        me.clock.spend(me.instructions, time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SimPolicy;
    use crate::full::setup::FullConfig;
    use crate::full::source::{Batch, Source, Stream, StreamKind};
    use crate::machines;
    use proptest::prelude::*;

    fn config(page_size: PageSize) -> FullConfig {
        let mut config = FullConfig::new(machines::optane_cascade_lake(), SimPolicy::AllSlow);
        config.page_size = page_size;
        config
    }

    /// What must not depend on which path an access takes.
    fn essence(machine: &FullMachine) -> String {
        let core = &machine.cores[0];
        format!(
            "{:?} {:?} {:?} {:?} {:.3}",
            machine.caches.l1_counts().misses,
            machine.caches.l2_counts(),
            machine.caches.llc_counts(),
            core.tlbs.counts,
            core.clock.time(core.instructions),
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        /// The shortcuts of the hot path are shortcuts: the same misses, walks
        /// and time come out when every access takes the long way.
        #[test]
        fn the_fast_path_changes_nothing(
            huge in prop::bool::ANY,
            accesses in prop::collection::vec(
                (0u64..24, 0u64..8, 0u64..64, prop::bool::ANY, 0u32..40), 1..800),
        ) {
            let size = if huge { PageSize::Huge } else { PageSize::Base };
            let mut fast = FullMachine::new(&config(size)).expect("set up");
            let mut slow = FullMachine::new(&config(size)).expect("set up");
            for machine in [&mut fast, &mut slow] {
                machine.map(0x20_0000, 64 << 20);
            }
            let accesses: Vec<Access> = accesses
                .into_iter()
                .map(|(page, line, byte, store, rare)| {
                    // Few pages and lines, some of them far apart, collide often.
                    let address = 0x20_0000 + page * 0x11_1000 + line * 0x840 + byte;
                    let access =
                        if store { Access::store(address) } else { Access::load(address) };
                    if rare == 0 { access.dependent() } else { access.after(u64::from(rare)) }
                })
                .collect();
            fast.run(0, &accesses).expect("runs");
            slow.cores[0].used = true;
            for &access in &accesses {
                slow.cores[0].instructions += access.instructions() + 1;
                slow.slow(0, access);
            }
            prop_assert_eq!(essence(&fast), essence(&slow));
        }
    }

    #[test]
    fn huge_pages_save_walks() {
        let walks = |size| {
            let mut machine = FullMachine::new(&config(size)).expect("set up");
            let mut source = Stream::new(StreamKind::Gups, 400_000, 512 << 20);
            let mut batch = Batch::default();
            while source.next(&mut batch).expect("a stream does not fail") {
                machine.take(&batch).expect("it fits");
            }
            machine.cores[0].tlbs.counts.walks as f64 / 200_000.0
        };
        // 1536 entries reach 6 MiB or 3 GiB.
        let (base, huge) = (walks(PageSize::Base), walks(PageSize::Huge));
        assert!(base > 0.9, "{base}");
        assert!(huge < 0.01, "{huge}");
    }
}
