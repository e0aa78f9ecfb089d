//! How many cycles of page walks huge pages would avert, by place in a program's memory.
//!
//! Every access goes through TLBs, page-walk caches and data caches twice: once as if all
//! memory were mapped by base pages, once as if by huge pages wherever a whole one fits into a
//! mapping. What the walks take in either case is counted by place; the difference is what
//! huge pages avert. All entries of page tables are loaded through the data caches, in which
//! they compete with the program's lines.
//!
//! Mappings are laid out anew, each from a boundary of huge pages on, as Linux (6.7) and the
//! pager place them: so a profile does not depend on where addresses were random.
//!
//! What is not in it: walks that the processor makes in advance or in parallel, faults, and
//! accesses of the kernel. The benefit of one huge page is that of it among others.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::path::Path;

use serde::Serialize;
use terrace_core::{Bytes, Cycles, Frequency, Machine};
use terrace_profile::merge::push;
use terrace_profile::profile::PAGES;
use terrace_profile::{Key, Profile, Range, Region, SLOT, Section};

use super::access::Access;
use super::hierarchy::CacheGeometry;
use super::page_table::{Entry, MapSize};
use super::sets::{Sets, Touched};
use super::source::{Batch, Image, Origin, SpaceEvent};
use super::tlb::{Tlbs, TlbsGeometry, Translation};
use crate::error::SimError;

/// Threads with TLBs and caches of their own; further ones share them in turn.
const THREADS: usize = 64;
/// Room for the heap, whatever it grows to.
const HEAP: u64 = 1 << 40;
/// Page tables lie behind all that is mapped. Addresses stay below `2^44`: the arrays of the
/// caches know lines by 38 bits.
const TABLES: u64 = 1 << 43;
/// Bytes of page tables of a level, at most.
const TABLE: u64 = 1 << 35;
const BASE: u64 = 1 << 12;

/// Walks through a mapping that are known at once, as many as the pager follows.
const WALKS: usize = 24;
/// The next page of a walk is no further away, as the pager has it.
const STRIDE: u64 = 8;
/// Pages of a mapping in which the order matters. In a smaller one, half of the memory is there before
/// the program touches any: `mmap` waits 2 ms for that, in which some twelve huge pages are zeroed.
const MANY: u64 = 2 * 12 * (SLOT.get() / BASE);

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WalkCounts {
    /// Accesses.
    pub accesses: u64,
    /// Page walks, were all pages base pages.
    pub base_walks: u64,
    /// What they take.
    pub base_cycles: Cycles,
    /// Page walks with huge pages wherever they fit.
    pub huge_walks: u64,
    /// What they take.
    pub huge_cycles: Cycles,
    /// Of the cycles with base pages, those in memory that has no name in the next run: stacks,
    /// libraries, mappings smaller than a huge page.
    pub nameless_cycles: Cycles,
    /// Mappings of which nobody told where they come from.
    pub unknown_mappings: u64,
    /// What was touched of large mappings (48 MiB and more of it) in which most pages were touched in
    /// random order for the first time. A run with a profile cannot be ahead of that.
    pub touched_at_random: Bytes,
}

/// Latencies, in cycles.
#[derive(Clone, Copy, Debug)]
struct Latencies {
    l1: u64,
    l2: u64,
    llc: u64,
    memory: u64,
}

/// One thread's view of memory with one size of pages.
struct View {
    tlbs: Tlbs,
    l1: Sets,
    l2: Option<Sets>,
    /// Page and line that were accessed last: another access to them changes nothing.
    page: u64,
    line: u64,
}

/// A thread.
struct Thread {
    views: [View; 2],
    instructions: u64,
    /// Cycles that accesses and walks with base pages took beyond a hit of the first level.
    waits: u64,
}

/// What was counted of a place as large as a huge page.
#[derive(Clone, Copy, Default)]
struct Counts {
    base: u64,
    huge: u64,
    touched: [u64; 8],
}

/// What all mappings of one name came to in a slot.
#[derive(Clone, Copy, Default)]
struct Total {
    base: u64,
    huge: u64,
    /// Base pages that the present one has touched.
    touched: [u64; 8],
    /// Those that the ones before it have touched, one by one.
    touched_before: u64,
}

impl Total {
    /// The present mapping is the last one's successor no more.
    fn close(&mut self) {
        let now = core::mem::take(&mut self.touched);
        self.touched_before += now.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
    }
}

/// In which order the pages of a mapping are touched for the first time.
#[derive(Clone, Copy)]
struct Order {
    /// The last pages of walks, those that went on last first. What is no walk is far from any page.
    walks: [u64; WALKS],
    /// Pages that were touched.
    touched: u64,
    /// Of them, those that no walk has come to.
    random: u64,
}

impl Order {
    /// Before any page is touched.
    const NONE: Self = Self { walks: [u64::MAX; WALKS], touched: 0, random: 0 };

    /// A page of the mapping is touched for the first time.
    fn first_touch(&mut self, page: u64) {
        let walk = self.walks.iter().position(|walk| walk.abs_diff(page) <= STRIDE);
        self.touched += 1;
        self.random += u64::from(walk.is_none());
        // Where it belongs to none, it takes the place of the one that has not gone on for longest.
        self.walks[..=walk.unwrap_or(WALKS - 1)].rotate_right(1);
        self.walks[0] = page;
    }

    /// Whether there are many, most of them in random order.
    fn is_random(&self) -> bool {
        self.touched >= MANY && 2 * self.random > self.touched
    }
}

/// A mapping, or what is left of one.
struct Mapping {
    end: u64,
    /// Where it began once; offsets count from there.
    origin: u64,
    /// Where it is laid out.
    place: u64,
    /// What it is called in every run, if it is called something.
    key: Option<Key>,
    counts: Vec<Counts>,
    order: Order,
}

/// What all mappings of one name came to.
#[derive(Default)]
struct Sum {
    len: u64,
    /// Mappings that had the name, one after the other.
    instances: u32,
    counts: Vec<Total>,
}

/// What identifies a file.
type BuildId<'a> = Box<dyn Fn(&Path) -> Option<String> + 'a>;

/// Counts what huge pages would avert.
pub struct WalkProfiler<'a> {
    machine: String,
    clock: Frequency,
    latencies: Latencies,
    /// How many misses share their latency, expected.
    parallel: f64,
    geometry: (TlbsGeometry, CacheGeometry, Option<CacheGeometry>),
    llc: [Sets; 2],
    threads: Vec<Option<Thread>>,
    mappings: BTreeMap<u64, Mapping>,
    /// The mapping that was found last.
    last: (u64, u64),
    next: u64,
    heap: Option<u64>,
    sums: BTreeMap<Key, Sum>,
    counts: WalkCounts,
    build_id: BuildId<'a>,
}

impl<'a> WalkProfiler<'a> {
    /// A profiler on a machine, which needs a description of its caches and TLBs; `build_id`
    /// says what identifies a file.
    pub fn new(
        machine: &Machine,
        build_id: impl Fn(&Path) -> Option<String> + 'a,
    ) -> Result<Self, SimError> {
        let detail = machine
            .detail
            .as_ref()
            .ok_or_else(|| SimError::parameter("machine", "has no [detail] of caches and TLBs"))?;
        let cache = |bytes: Bytes, ways: u32, replacement| CacheGeometry {
            sets: bytes.get() / terrace_core::detail::CACHE_LINE / u64::from(ways),
            ways,
            replacement,
        };
        let file = |file: &terrace_core::detail::CacheFile| {
            cache(file.size.value, file.ways.value, file.replacement)
        };
        let clock = machine.cpu.clock.value;
        let cycles = |time| clock.cycles(time).get();
        let llc = cache(machine.cpu.llc.value, detail.llc.ways.value, detail.llc.replacement);
        let slots = machine.cpu.miss_slots.value.max(1.0);
        Ok(Self {
            machine: machine.name.clone(),
            clock,
            latencies: Latencies {
                l1: detail.l1.latency.value.get(),
                l2: detail.l2.as_ref().map_or(0, |l2| l2.latency.value.get()),
                llc: cycles(machine.cpu.llc_latency.value),
                memory: cycles(machine.tiers[0].read_latency.value),
            },
            // As the economist has it: between one at a time, and all that a core can.
            parallel: 2.0 / (1.0 + 1.0 / slots),
            geometry: (detail.into(), file(&detail.l1), detail.l2.as_ref().map(file)),
            llc: [llc, llc].map(build),
            threads: (0..THREADS).map(|_| None).collect(),
            mappings: BTreeMap::new(),
            last: (0, 0),
            next: 0,
            heap: None,
            sums: BTreeMap::new(),
            counts: WalkCounts::default(),
            build_id: Box::new(build_id),
        })
    }

    /// Takes in a batch of a program's accesses.
    pub fn batch(&mut self, batch: &Batch) {
        for image in &batch.images {
            self.image(image);
        }
        let mut origins = batch.origins.iter().peekable();
        for (i, event) in batch.events.iter().enumerate() {
            let origin = origins.next_if(|(at, _)| *at == i).map(|(_, origin)| *origin);
            match *event {
                SpaceEvent::Map { start, len } => self.map(start, len, origin),
                SpaceEvent::Unmap { start, len } => self.unmap(start, len),
            }
        }
        let number = batch.thread as usize % THREADS;
        let geometry = &self.geometry;
        let mut thread = self.threads[number].take().unwrap_or_else(|| Thread::new(geometry));
        for access in &batch.accesses {
            thread.instructions += access.counted();
            if access.is_data() {
                self.access(&mut thread, *access);
            }
        }
        self.threads[number] = Some(thread);
    }

    fn access(&mut self, thread: &mut Thread, access: Access) {
        self.counts.accesses += 1;
        let address = access.address();
        let (start, end) = self.last;
        if !(start..end).contains(&address) {
            self.last = self.find(address);
        }
        let Some(mapping) = self.mappings.get_mut(&self.last.0) else { return };
        let offset = address - mapping.origin;
        let at = mapping.place + offset;
        let slot = (offset / SLOT.get()) as usize;
        if mapping.counts.len() <= slot {
            mapping.counts.resize(slot + 1, Counts::default());
        }
        // A huge page has to fit.
        let first = slot as u64 * SLOT.get();
        let fits = mapping.key.is_some()
            && mapping.origin + first >= self.last.0
            && mapping.origin + first + SLOT.get() <= mapping.end;
        let counts = &mut mapping.counts[slot];
        let page = offset / BASE % 512;
        let (word, bit) = (page as usize / 64, 1u64 << (page % 64));
        if counts.touched[word] & bit == 0 {
            counts.touched[word] |= bit;
            mapping.order.first_touch(offset / BASE);
        }
        for huge in [false, true] {
            let size = if huge && fits { MapSize::Huge } else { MapSize::Base };
            let view = &mut thread.views[usize::from(huge)];
            let llc = &mut self.llc[usize::from(huge)];
            let walked = view.translate(at, size, llc, &self.latencies);
            let waited = view.line(at >> 6, access.is_store(), llc, &self.latencies);
            if !huge {
                thread.waits += walked.unwrap_or(0) + waited;
            }
            let Some(cycles) = walked else { continue };
            if huge {
                self.counts.huge_walks += 1;
                self.counts.huge_cycles += Cycles(cycles);
                counts.huge += cycles;
            } else {
                self.counts.base_walks += 1;
                self.counts.base_cycles += Cycles(cycles);
                counts.base += cycles;
                if mapping.key.is_none() {
                    self.counts.nameless_cycles += Cycles(cycles);
                }
            }
        }
    }

    /// The mapping of an address: its ends. Memory that nobody told of has no name.
    fn find(&mut self, address: u64) -> (u64, u64) {
        if let Some((&start, mapping)) = self.mappings.range(..=address).next_back()
            && address < mapping.end
        {
            return (start, mapping.end);
        }
        let mut start = address & !(SLOT.get() - 1);
        let mut end = start + SLOT.get();
        if let Some((_, before)) = self.mappings.range(..=address).next_back() {
            start = start.max(before.end);
        }
        if let Some((&next, _)) = self.mappings.range(address..).next() {
            end = end.min(next);
        }
        self.insert(start, end, None);
        (start, end)
    }

    /// Lays out a mapping.
    fn insert(&mut self, start: u64, end: u64, key: Option<Key>) {
        // Parts of a mapping keep its name to themselves until the last is gone: whatever has it
        // now is another one. The heap and files come in parts that are one thing.
        if let Some(Key::Mapping { .. }) = key
            && let Some(key) = key.clone()
        {
            let sum = self.sums.entry(key).or_default();
            sum.instances = sum.instances.saturating_add(1);
            sum.counts.iter_mut().for_each(Total::close);
        }
        let place = if key == Some(Key::Heap) {
            *self.heap.get_or_insert_with(|| {
                let place = self.next;
                self.next += HEAP;
                place
            })
        } else {
            let place = self.next;
            // A program that maps more than there are addresses here, one after the other, comes
            // to where others were.
            let len = (end - start).next_multiple_of(SLOT.get()) + SLOT.get();
            self.next = (self.next + len) % (TABLES / 2);
            place % (TABLES / 2)
        };
        let (counts, order) = (Vec::new(), Order::NONE);
        let mapping = Mapping { end, origin: start, place, key, counts, order };
        self.mappings.insert(start, mapping);
    }

    fn map(&mut self, start: u64, len: u64, origin: Option<Origin>) {
        let start = start & !(BASE - 1);
        let len = len.min(super::access::ADDRESSES).next_multiple_of(BASE);
        self.unmap(start, len);
        let end = start + len;
        if len == 0 {
            return;
        }
        match origin {
            Some(Origin::Heap) => {
                // It grows where it ended.
                if let Some((&first, heap)) = self.mappings.range_mut(..start).next_back()
                    && heap.key == Some(Key::Heap)
                    && heap.end == start
                {
                    heap.end = end;
                    self.last = (first, end);
                } else {
                    self.insert(start, end, Some(Key::Heap));
                }
            }
            Some(Origin::Anonymous) if len >= SLOT.get() => {
                let class = Key::class_of(Bytes(len));
                let key = Some(Key::Mapping { class, order: self.free_order(class) });
                self.insert(start, end, key);
            }
            _ => {
                self.counts.unknown_mappings += u64::from(origin.is_none());
                self.insert(start, end, None);
            }
        }
    }

    /// The first number of a class that no mapping has just now: who frees and maps again gets
    /// what is called the same.
    fn free_order(&self, class: u8) -> u32 {
        let mut used: Vec<_> = self
            .mappings
            .values()
            .filter_map(|mapping| match mapping.key {
                Some(Key::Mapping { class: other, order }) if other == class => Some(order),
                _ => None,
            })
            .collect();
        used.sort_unstable();
        used.dedup();
        used.iter()
            .zip(0..)
            .find(|&(&used, free)| used != free)
            .map_or(used.len() as u32, |(_, free)| free)
    }

    fn image(&mut self, image: &Image) {
        let section = if image.writable { Section::Data } else { Section::Code };
        let key = (image.len >= SLOT.get())
            .then(|| (self.build_id)(Path::new(&image.path)))
            .flatten()
            .map(|build_id| Key::Image { build_id, section });
        self.unmap(image.start, image.len);
        self.insert(image.start, image.start + image.len, key);
    }

    fn unmap(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        self.last = (0, 0);
        let from = self
            .mappings
            .range(..start)
            .next_back()
            .filter(|(_, mapping)| mapping.end > start)
            .map_or(start, |(&first, _)| first);
        let hit: Vec<u64> = self.mappings.range(from..end).map(|(&first, _)| first).collect();
        for first in hit {
            let Some(mapping) = self.mappings.remove(&first) else { continue };
            let rest = |end| Mapping {
                end,
                key: mapping.key.clone(),
                counts: Vec::new(),
                order: Order::NONE,
                ..mapping
            };
            if mapping.end > end {
                self.mappings.insert(end, rest(mapping.end));
            }
            if first < start {
                self.mappings.insert(first, rest(start));
            }
            self.close(mapping);
        }
    }

    /// Enters what was counted of a mapping under its name.
    fn close(&mut self, mapping: Mapping) {
        let Some(key) = mapping.key else { return };
        // Nothing but mappings is managed in a run.
        if matches!(key, Key::Mapping { .. }) && mapping.order.is_random() {
            self.counts.touched_at_random += Bytes(mapping.order.touched * BASE);
        }
        let sum = match self.sums.entry(key) {
            Slot::Occupied(there) => there.into_mut(),
            Slot::Vacant(none) => none.insert(Sum::default()),
        };
        sum.len = sum.len.max(mapping.end - mapping.origin);
        if sum.counts.len() < mapping.counts.len() {
            sum.counts.resize(mapping.counts.len(), Total::default());
        }
        for (sum, counts) in sum.counts.iter_mut().zip(&mapping.counts) {
            sum.base += counts.base;
            sum.huge += counts.huge;
            for (touched, more) in sum.touched.iter_mut().zip(counts.touched) {
                *touched |= more;
            }
        }
    }

    /// The profile of the run, and what was counted.
    pub fn finish(mut self, program: Vec<String>) -> (Profile, WalkCounts) {
        for (_, mapping) in std::mem::take(&mut self.mappings) {
            self.close(mapping);
        }
        // An instruction a cycle, and what accesses and walks wait for besides; the thread that
        // takes longest is the run.
        let longest = self
            .threads
            .iter()
            .flatten()
            .map(|thread| thread.instructions as f64 + thread.waits as f64 / self.parallel);
        let cycles = Cycles::from_f64(longest.fold(1.0, f64::max));
        let horizon = self.clock.nanos(cycles).max(terrace_core::Nanos(1));
        let mut profile = Profile::new(program, self.machine, self.clock, horizon);
        profile.walks = Some(self.counts.base_cycles);
        for (key, sum) in self.sums {
            // Mappings that were never touched are in the sums as well: they, too, had the name.
            let instances = sum.instances.max(1);
            let mut region =
                Region { key, len: Bytes(sum.len), seen: 1, instances, ranges: Vec::new() };
            for (slot, mut counts) in sum.counts.into_iter().enumerate() {
                counts.close();
                if counts.touched_before == 0 {
                    continue;
                }
                let n = u64::from(instances);
                let touched = counts.touched_before.div_ceil(n).min(u64::from(PAGES)) as u32;
                let range = Range {
                    offset: SLOT * slot as u64,
                    len: SLOT,
                    averted: Cycles(counts.base.saturating_sub(counts.huge) / n),
                    deviation: Cycles::ZERO,
                    touched,
                };
                push(&mut region.ranges, range);
            }
            profile.regions.push(region);
        }
        (profile, self.counts)
    }
}

fn build(geometry: CacheGeometry) -> Sets {
    Sets::new(geometry.sets, geometry.ways, geometry.replacement)
}

impl Thread {
    fn new((tlbs, l1, l2): &(TlbsGeometry, CacheGeometry, Option<CacheGeometry>)) -> Self {
        let view = || View {
            tlbs: Tlbs::new(tlbs),
            l1: build(*l1),
            l2: l2.map(build),
            page: u64::MAX,
            line: u64::MAX,
        };
        Self { views: [view(), view()], instructions: 0, waits: 0 }
    }
}

impl View {
    /// Translates an address; how long the walk took, if there was one.
    #[inline]
    fn translate(
        &mut self,
        at: u64,
        size: MapSize,
        llc: &mut Sets,
        latencies: &Latencies,
    ) -> Option<u64> {
        let page = at >> size.shift();
        // Pages of both sizes are told apart by a bit that no page has.
        let page = page | u64::from(size == MapSize::Huge) << 63;
        if page == self.page {
            return None;
        }
        self.page = page;
        if self.tlbs.first(at).or_else(|| self.tlbs.second(at)).is_some() {
            return None;
        }
        let depth = if size == MapSize::Huge { 3 } else { 4 };
        let known = self.tlbs.walk_begin(at, depth);
        let mut cycles = 0;
        for level in known..depth {
            let entry = TABLES + TABLE * level as u64 + (at >> (39 - 9 * level as u32)) * 8;
            cycles += self.load(entry >> 6, false, llc, latencies);
        }
        self.tlbs.fill(at, Translation { entry: Entry::mapping(at >> 12), size });
        // What the walker loaded may have taken the place of the program's line.
        self.line = u64::MAX;
        Some(cycles)
    }

    /// The program's access to a line: how much longer it takes than a hit of the first level.
    #[inline]
    fn line(&mut self, line: u64, store: bool, llc: &mut Sets, latencies: &Latencies) -> u64 {
        if line == self.line && !store {
            return 0;
        }
        self.line = line;
        self.load(line, store, llc, latencies) - latencies.l1
    }

    /// Loads a line through the caches, in cycles.
    #[inline]
    fn load(&mut self, line: u64, store: bool, llc: &mut Sets, latencies: &Latencies) -> u64 {
        if self.l1.access_or_insert(line, store) == Touched::Hit {
            return latencies.l1;
        }
        if let Some(l2) = &mut self.l2
            && l2.access_or_insert(line, store) == Touched::Hit
        {
            return latencies.l2.max(latencies.l1);
        }
        if llc.access_or_insert(line, store) == Touched::Hit {
            return latencies.llc.max(latencies.l1);
        }
        latencies.memory.max(latencies.l1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines;

    const START: u64 = 0x7f12_3456_7000;

    fn profiler() -> WalkProfiler<'static> {
        let machine = machines::builtin("laptop").expect("built in");
        WalkProfiler::new(&machine, |_| Some("abc0".into())).expect("it has detail")
    }

    fn mapped(start: u64, len: u64, origin: Origin) -> Batch {
        Batch {
            events: vec![SpaceEvent::Map { start, len }],
            origins: vec![(0, origin)],
            ..Batch::default()
        }
    }

    /// Random loads of a mapping of `mib` MiB, all of it if `part` is 1.
    fn gups(start: u64, mib: u64, part: u64, count: u64) -> Batch {
        let mut random = terrace_core::Xorshift::new(0x1234_5678_9abc_def1);
        let accesses = (0..count)
            .map(|_| Access::load(start + ((random.draw() % ((mib << 20) / part)) & !7)).after(3));
        Batch { accesses: accesses.collect(), ..Batch::default() }
    }

    fn profile_of(start: u64) -> Profile {
        let mut profiler = profiler();
        profiler.batch(&mapped(start, 256 << 20, Origin::Anonymous));
        profiler.batch(&gups(start, 256, 2, 200_000));
        profiler.finish(Vec::new()).0
    }

    #[test]
    fn random_accesses_beyond_the_reach_of_the_tlb_gain_and_only_where_they_are() {
        let mut profiler = profiler();
        profiler.batch(&mapped(START, 256 << 20, Origin::Anonymous));
        profiler.batch(&gups(START, 256, 2, 400_000));
        let (profile, counts) = profiler.finish(Vec::new());
        let region = profile.region(&Key::Mapping { class: 28, order: 0 }).expect("the mapping");
        let end = region.ranges.last().expect("ranges").end();
        assert_eq!(end, Bytes::mib(128), "the upper half is never touched");
        // 2048 entries hold 8 MiB of 128 by base pages, and all of it by huge ones.
        let share = counts.base_walks as f64 / counts.accesses as f64;
        assert!((0.85..1.0).contains(&share), "{share}");
        assert!(counts.huge_walks < counts.base_walks / 100, "{counts:?}");
        assert_eq!(profile.total(), Cycles(counts.base_cycles.get() - counts.huge_cycles.get()));
        assert!(region.ranges.iter().all(|range| range.touched == 512));
    }

    #[test]
    fn what_fits_into_the_tlb_gains_next_to_nothing() {
        let mut profiler = profiler();
        profiler.batch(&mapped(START, 4 << 20, Origin::Anonymous));
        profiler.batch(&gups(START, 4, 1, 400_000));
        let (_, counts) = profiler.finish(Vec::new());
        assert!(counts.base_walks < 2100, "each page once: {counts:?}");
    }

    /// Whoever walks is followed, also in several places, backwards, and with pages left out; and it is
    /// the first touches that count, not what comes after them.
    #[test]
    fn first_touches_in_random_order_are_told_apart_from_walks() {
        let page = |page: u64| Access::load(START + page * BASE).after(3);
        let told = |mib: u64, accesses: Vec<Access>| {
            let mut profiler = profiler();
            profiler.batch(&mapped(START, mib << 20, Origin::Anonymous));
            profiler.batch(&Batch { accesses, ..Batch::default() });
            profiler.finish(Vec::new()).1.touched_at_random
        };
        let random = |mib: u64| {
            let mut accesses = gups(START, mib, 1, 100_000).accesses;
            // Pages that were not drawn.
            accesses.extend((0..mib << 8).map(page));
            accesses
        };
        assert_eq!(told(64, random(64)), Bytes::mib(64));
        assert_eq!(told(32, random(32)), Bytes::ZERO, "half of that is there before");
        assert_eq!(told(64, random(40)), Bytes::ZERO, "what is touched counts");
        let walked: Vec<Access> = (0..64 << 8).map(page).collect();
        assert_eq!(told(64, [walked, random(64)].concat()), Bytes::ZERO);
        let quarter = 16 << 8;
        let four = |i: u64| page(i % 4 * quarter + i / 4);
        assert_eq!(told(64, (0..64 << 8).map(four).collect()), Bytes::ZERO, "four walks");
        let apart = |i: u64| page((256 << 8) - 1 - i * 4);
        assert_eq!(told(256, (0..64 << 8).map(apart).collect()), Bytes::ZERO);
        let backwards = |i: u64| page((64 << 8) - 1 - i);
        assert_eq!(told(64, (0..64 << 8).map(backwards).collect()), Bytes::ZERO);
    }

    /// Of a mapping that goes part by part, nothing is counted twice.
    #[test]
    fn what_is_unmapped_in_part_was_touched_at_random_once() {
        let mut profiler = profiler();
        profiler.batch(&mapped(START, 64 << 20, Origin::Anonymous));
        let mut accesses = gups(START, 64, 1, 100_000).accesses;
        accesses.extend((0..64 << 8).map(|page: u64| Access::load(START + page * BASE).after(3)));
        profiler.batch(&Batch { accesses, ..Batch::default() });
        let events = vec![SpaceEvent::Unmap { start: START + (8 << 20), len: 8 << 20 }];
        profiler.batch(&Batch { events, ..Batch::default() });
        assert_eq!(profiler.finish(Vec::new()).1.touched_at_random, Bytes::mib(64));
    }

    #[test]
    fn a_profile_does_not_depend_on_random_addresses() {
        assert_eq!(profile_of(START), profile_of(START + (12_345 << 12)));
    }

    #[test]
    fn what_is_freed_and_mapped_again_is_called_the_same() {
        let mut profiler = profiler();
        for round in 0..3 {
            let start = START + (round << 32);
            profiler.batch(&mapped(start, 8 << 20, Origin::Anonymous));
            profiler.batch(&mapped(start + (1 << 30), 8 << 20, Origin::Anonymous));
            profiler.batch(&gups(start, 8, 1, 5_000));
            profiler.batch(&gups(start + (1 << 30), 8, 1, 5_000));
            let unmap = |start| SpaceEvent::Unmap { start, len: 8 << 20 };
            let events = vec![unmap(start), unmap(start + (1 << 30))];
            profiler.batch(&Batch { events, ..Batch::default() });
        }
        let (profile, _) = profiler.finish(Vec::new());
        let keys: Vec<_> = profile.regions.iter().map(|region| region.key.clone()).collect();
        assert_eq!(keys, [0, 1].map(|order| Key::Mapping { class: 23, order }));
        assert!(profile.regions.iter().all(|region| (region.instances, region.seen) == (3, 1)));
    }

    /// A program that frees and maps again has many mappings of one name. A run that backs one of
    /// them with huge pages averts what is averted in that one, not in all.
    #[test]
    fn a_benefit_is_of_one_mapping_however_many_had_its_name() {
        let of = |rounds: u64| {
            let mut profiler = profiler();
            for _ in 0..rounds {
                profiler.batch(&mapped(START, 64 << 20, Origin::Anonymous));
                profiler.batch(&gups(START, 64, 2, 100_000));
                let events = vec![SpaceEvent::Unmap { start: START, len: 64 << 20 }];
                profiler.batch(&Batch { events, ..Batch::default() });
            }
            let profile = profiler.finish(Vec::new()).0;
            profile.region(&Key::Mapping { class: 26, order: 0 }).expect("the mapping").clone()
        };
        let (one, five) = (of(1), of(5));
        let slot = |region: &Region| {
            let all: Cycles = region.ranges.iter().map(Range::total).sum();
            all.as_f64() / 32.0
        };
        // Caches are warmer the second time.
        assert!((slot(&five) / slot(&one) - 1.0).abs() < 0.25, "{} {}", slot(&one), slot(&five));
        assert!(five.total().as_f64() > 3.0 * one.total().as_f64(), "a run has all of them");
        assert_eq!(five.instances, 5);
        assert!(five.ranges.iter().all(|range| range.touched > 500), "each touches nearly all");
    }

    #[test]
    fn the_heap_grows_and_the_program_s_data_has_its_file_s_name() {
        let mut profiler = profiler();
        let image = Image { start: 0x40_0000, len: 8 << 20, path: "/x".into(), writable: true };
        profiler.batch(&Batch { images: vec![image], ..Batch::default() });
        for step in 0..8u64 {
            profiler.batch(&mapped(0x5555_0000_0000 + (step << 20), 1 << 20, Origin::Heap));
        }
        profiler.batch(&gups(0x5555_0000_0000, 8, 1, 5_000));
        profiler.batch(&gups(0x40_0000, 8, 1, 5_000));
        // A stack, and a mapping in part given back.
        profiler.batch(&gups(0x7fff_0000_0000, 1, 1, 100));
        profiler.batch(&mapped(START, 16 << 20, Origin::Anonymous));
        let events = vec![SpaceEvent::Unmap { start: START, len: 4 << 20 }];
        profiler.batch(&Batch { events, ..gups(START + (4 << 20), 12, 1, 5_000) });
        let (profile, counts) = profiler.finish(Vec::new());
        let of = |key: &Key| profile.region(key).expect("it was there");
        assert_eq!(of(&Key::Heap).len, Bytes::mib(8));
        let data = Key::Image { build_id: "abc0".into(), section: Section::Data };
        assert_eq!(of(&data).ranges.last().expect("touched").end(), Bytes::mib(8));
        let part = of(&Key::Mapping { class: 24, order: 0 });
        assert_eq!(part.ranges[0].offset, Bytes::mib(4), "offsets count from where it began");
        assert!(!counts.nameless_cycles.is_zero(), "the stack's");
    }
}
