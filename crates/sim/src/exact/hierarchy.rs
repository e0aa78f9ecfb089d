//! Private first- and second-level caches and the shared last level.
//!
//! Write-back, write-allocate. A dirty line that a level gives up goes to the
//! next level that holds it, without counting as a use there, else to memory.

#![allow(clippy::inline_always)] // measured: a call on the hot path costs more than the work

use terrace_core::{Inclusion, Replacement};

use super::sets::{Sets, Touched};

/// Size, associativity and policy of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheGeometry {
    /// How many sets.
    pub sets: u64,
    /// Lines a set.
    pub ways: u32,
    /// Which line a full set gives up.
    pub replacement: Replacement,
}

impl CacheGeometry {
    /// An LRU cache of `bytes` with lines of 64 bytes.
    pub const fn lru(bytes: u64, ways: u32) -> Self {
        let sets = bytes / terrace_core::detail::CACHE_LINE / ways as u64;
        Self { sets, ways, replacement: Replacement::Lru }
    }

    fn build(self) -> Sets {
        Sets::new(self.sets, self.ways, self.replacement)
    }
}

/// The caches of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HierarchyGeometry {
    /// Cores, each with caches of its own.
    pub cores: usize,
    /// First level, data.
    pub l1: CacheGeometry,
    /// First level, instructions; without it instruction fetches are not simulated.
    pub l1i: Option<CacheGeometry>,
    /// Second level; without it misses go to the last level.
    pub l2: Option<CacheGeometry>,
    /// Last level.
    pub llc: CacheGeometry,
    /// Which lines the last level holds.
    pub inclusion: Inclusion,
}

/// What asks for a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A load of the program.
    Load,
    /// A store of the program.
    Store,
    /// The page walker.
    Walk,
    /// An instruction fetch.
    Fetch,
}

impl Request {
    /// How many there are.
    pub const COUNT: usize = 4;
}

/// What answered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// First level.
    L1,
    /// Second level.
    L2,
    /// Last level.
    Llc,
    /// Memory: no cache had it.
    Memory,
}

/// Dirty lines that go to memory on account of one request.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteBacks {
    lines: [u64; 4],
    count: u8,
    dropped: Option<u64>,
}

impl WriteBacks {
    #[inline]
    fn push(&mut self, line: u64) {
        self.lines[usize::from(self.count) & 3] = line;
        self.count += 1;
    }
    /// The lines.
    #[inline]
    pub fn lines(&self) -> &[u64] {
        &self.lines[..usize::from(self.count).min(4)]
    }
    /// The line that private caches lost because an inclusive last level gave
    /// it up.
    #[inline]
    pub fn dropped(&self) -> Option<u64> {
        self.dropped
    }
}

/// References and misses of one cache, by what asked. The first level's
/// references are counted by who asks, because most never get here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Requests that came to the cache.
    pub references: [u64; Request::COUNT],
    /// Requests that it could not answer.
    pub misses: [u64; Request::COUNT],
    /// Dirty lines that it gave up.
    pub write_backs: u64,
}

impl CacheCounts {
    #[inline]
    fn count(&mut self, request: Request, hit: bool) {
        self.references[request as usize] += 1;
        self.misses[request as usize] += u64::from(!hit);
    }

    /// Adds another cache's counts.
    pub fn add(&mut self, other: &Self) {
        for i in 0..Request::COUNT {
            self.references[i] += other.references[i];
            self.misses[i] += other.misses[i];
        }
        self.write_backs += other.write_backs;
    }
}

/// A dirty line that the first level gave up for another, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Displaced(u64);

impl Displaced {
    /// None.
    pub(super) const NOTHING: Self = Self(u64::MAX);
}

/// One core's caches.
#[derive(Clone, Debug)]
struct Private {
    l1: Sets,
    l1i: Option<Sets>,
    l2: Option<Sets>,
    l1_counts: CacheCounts,
    l2_counts: CacheCounts,
}

/// All caches of a machine.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    cores: Vec<Private>,
    llc: Sets,
    inclusion: Inclusion,
    llc_counts: CacheCounts,
}

impl Hierarchy {
    /// Empty caches.
    pub fn new(geometry: &HierarchyGeometry) -> Self {
        let private = Private {
            l1: geometry.l1.build(),
            l1i: geometry.l1i.map(CacheGeometry::build),
            l2: geometry.l2.map(CacheGeometry::build),
            l1_counts: CacheCounts::default(),
            l2_counts: CacheCounts::default(),
        };
        Self {
            cores: vec![private; geometry.cores],
            llc: geometry.llc.build(),
            inclusion: geometry.inclusion,
            llc_counts: CacheCounts::default(),
        }
    }

    /// Counts of the first level, all cores together. References are those
    /// that were made here.
    pub fn l1_counts(&self) -> CacheCounts {
        self.sum(|core| &core.l1_counts)
    }
    /// Counts of the second level, all cores together.
    pub fn l2_counts(&self) -> CacheCounts {
        self.sum(|core| &core.l2_counts)
    }
    /// Counts of the last level.
    pub fn llc_counts(&self) -> CacheCounts {
        self.llc_counts
    }

    fn sum(&self, counts: impl Fn(&Private) -> &CacheCounts) -> CacheCounts {
        let mut sum = CacheCounts::default();
        self.cores.iter().for_each(|core| sum.add(counts(core)));
        sum
    }

    /// Looks a line up in the first level alone; a miss changes and counts
    /// nothing. Hits are not counted: that is the caller's.
    #[inline(always)]
    pub fn hits_l1(&mut self, core: usize, line: u64, store: bool) -> bool {
        self.cores[core].l1.access(line, store)
    }

    /// A core's first level, for data.
    #[inline(always)]
    pub(super) fn first_level(&mut self, core: usize) -> &mut Sets {
        &mut self.cores[core].l1
    }

    /// Looks a line up, brings it into the caches, and says where it was.
    #[inline]
    pub fn access(
        &mut self,
        core: usize,
        line: u64,
        request: Request,
        out: &mut WriteBacks,
    ) -> Level {
        if self.first(core, line, request) {
            return Level::L1;
        }
        self.beyond(core, line, request, out)
    }

    /// The part of [`access`](Self::access) that concerns the first level: looks
    /// a line up there. What misses is to be handed to [`beyond_first`](Self::beyond).
    #[inline]
    pub(super) fn first(&mut self, core: usize, line: u64, request: Request) -> bool {
        let private = &mut self.cores[core];
        let l1 = match (request, &mut private.l1i) {
            (Request::Fetch, Some(l1i)) => l1i,
            _ => &mut private.l1,
        };
        let hit = l1.access(line, request == Request::Store);
        private.l1_counts.count(request, hit);
        hit
    }

    /// The rest of it: brings a line that the first level does not have from
    /// where it is.
    pub(super) fn beyond(
        &mut self,
        core: usize,
        line: u64,
        request: Request,
        out: &mut WriteBacks,
    ) -> Level {
        let (level, dirty) = self.lower(core, line, request, out);
        let private = &mut self.cores[core];
        let l1 = match (request, &mut private.l1i) {
            (Request::Fetch, Some(l1i)) => l1i,
            _ => &mut private.l1,
        };
        let (_, evicted) = l1.insert(line, dirty || request == Request::Store);
        if let Some(evicted) = evicted.filter(|evicted| evicted.dirty) {
            private.l1_counts.write_backs += 1;
            self.write_back(core, evicted.number, out);
        }
        level
    }

    /// Whether a first level does not depend on what lies beyond it, so that a
    /// miss may be filled there before the other levels know of it.
    pub(crate) fn fills_early(&self) -> bool {
        self.inclusion != Inclusion::Inclusive && self.cores.iter().all(|core| core.l2.is_some())
    }

    /// As [`first`](Self::first) for data, where a miss is filled early: what
    /// is handed to [`beyond_filled`](Self::beyond_filled) is the line, and the
    /// dirty line that had to go for it. `None` for a hit.
    #[inline(always)]
    pub(crate) fn first_or_fill(
        &mut self,
        core: usize,
        line: u64,
        request: Request,
        count_hits: bool,
    ) -> Option<Displaced> {
        let private = &mut self.cores[core];
        match private.l1.access_or_insert(line, request == Request::Store) {
            Touched::Hit => {
                if count_hits {
                    private.l1_counts.count(request, true);
                }
                None
            }
            Touched::Filled(evicted) => {
                private.l1_counts.count(request, false);
                let dirty = evicted.filter(|evicted| evicted.dirty);
                private.l1_counts.write_backs += u64::from(dirty.is_some());
                Some(Displaced(dirty.map_or(u64::MAX, |evicted| evicted.number)))
            }
        }
    }

    /// As [`beyond_first`](Self::beyond), for a line that was filled early.
    #[inline(always)]
    pub(crate) fn beyond_filled(
        &mut self,
        core: usize,
        line: u64,
        request: Request,
        displaced: Displaced,
        out: &mut WriteBacks,
    ) -> Level {
        let (level, _) = self.lower(core, line, request, out);
        if displaced.0 != u64::MAX {
            self.write_back(core, displaced.0, out);
        }
        level
    }

    /// Looks a line up behind the first level, and brings it into the second;
    /// says where it was, and whether it comes with a dirty bit that the first
    /// level is to keep.
    #[inline(always)]
    fn lower(
        &mut self,
        core: usize,
        line: u64,
        request: Request,
        out: &mut WriteBacks,
    ) -> (Level, bool) {
        let private = &mut self.cores[core];
        if let Some(l2) = &mut private.l2 {
            let hit = l2.access(line, false);
            private.l2_counts.count(request, hit);
            if hit {
                return (Level::L2, false);
            }
        }
        let mut level = Level::Memory;
        // A line that leaves a victim cache takes its dirty bit along.
        let mut dirty = false;
        let hit = if self.inclusion == Inclusion::Victim {
            let taken = self.llc.remove(line);
            dirty = taken == Some(true);
            taken.is_some()
        } else {
            self.llc.access(line, false)
        };
        self.llc_counts.count(request, hit);
        if hit {
            level = Level::Llc;
        } else if self.inclusion != Inclusion::Victim {
            self.fill_llc(line, false, out);
        }
        if self.cores[core].l2.is_some() {
            self.fill_l2(core, line, dirty, out);
            dirty = false;
        }
        (level, dirty)
    }

    /// The first level gave a dirty line up.
    #[inline(always)]
    fn write_back(&mut self, core: usize, line: u64, out: &mut WriteBacks) {
        let in_l2 = self.cores[core].l2.as_mut().is_some_and(|l2| l2.mark_dirty(line));
        if !in_l2 && !self.llc.mark_dirty(line) {
            out.push(line);
        }
    }

    #[inline(always)]
    fn fill_l2(&mut self, core: usize, line: u64, dirty: bool, out: &mut WriteBacks) {
        let private = &mut self.cores[core];
        let Some(l2) = &mut private.l2 else { return };
        let (_, evicted) = l2.insert(line, dirty);
        let Some(evicted) = evicted else { return };
        private.l2_counts.write_backs += u64::from(evicted.dirty);
        if self.inclusion == Inclusion::Victim {
            self.fill_llc(evicted.number, evicted.dirty, out);
        } else if evicted.dirty && !self.llc.mark_dirty(evicted.number) {
            out.push(evicted.number);
        }
    }

    #[inline(always)]
    fn fill_llc(&mut self, line: u64, dirty: bool, out: &mut WriteBacks) {
        // Another core may have given the same line up.
        if self.inclusion == Inclusion::Victim
            && self.cores.len() > 1
            && self.llc.access(line, dirty)
        {
            return;
        }
        let (_, evicted) = self.llc.insert(line, dirty);
        let Some(evicted) = evicted else { return };
        let mut dirty = evicted.dirty;
        if self.inclusion == Inclusion::Inclusive {
            out.dropped = Some(evicted.number);
            for core in &mut self.cores {
                dirty |= core.l1.remove(evicted.number) == Some(true);
                if let Some(l1i) = &mut core.l1i {
                    l1i.remove(evicted.number);
                }
                if let Some(l2) = &mut core.l2 {
                    dirty |= l2.remove(evicted.number) == Some(true);
                }
            }
        }
        if dirty {
            self.llc_counts.write_backs += 1;
            out.push(evicted.number);
        }
    }

    /// Refers to a line in the last level alone, and brings it in there; says
    /// whether it was there. What a reference to several lines does to those
    /// that the first level has, in simulators that look at it as a whole.
    pub fn refer_to_last(&mut self, line: u64) -> bool {
        let hit = self.llc.access(line, false);
        if !hit {
            self.llc.insert(line, false);
        }
        hit
    }

    /// `clwb`: a line stays where it is and is clean; says whether some cache
    /// had it dirty, so that it goes to memory.
    pub fn clean(&mut self, line: u64) -> bool {
        let mut dirty = self.llc.clean(line);
        for core in &mut self.cores {
            dirty |= core.l1.clean(line);
            dirty |= core.l2.as_mut().is_some_and(|l2| l2.clean(line));
        }
        dirty
    }

    /// Drops a line from every cache: its frame holds something else now.
    pub fn forget(&mut self, line: u64) {
        for core in &mut self.cores {
            core.l1.remove(line);
            if let Some(l2) = &mut core.l2 {
                l2.remove(line);
            }
        }
        self.llc.remove(line);
    }

    /// Asks the host to bring near what a miss of a line will need.
    #[inline(always)]
    pub(crate) fn prefetch(&self, core: usize, line: u64) {
        if let Some(l2) = &self.cores[core].l2 {
            l2.prefetch(line);
        }
        self.llc.prefetch(line);
    }

    /// Where the last level is a victim cache, a miss also needs the set of the
    /// line that the second level will give up: known once its own set is near.
    #[inline(always)]
    pub(crate) fn prefetch_victim(&self, core: usize, line: u64) {
        if self.inclusion == Inclusion::Victim
            && let Some(l2) = &self.cores[core].l2
            && let Some(victim) = l2.next_victim(line)
        {
            self.llc.prefetch(victim);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hierarchy(inclusion: Inclusion) -> Hierarchy {
        Hierarchy::new(&HierarchyGeometry {
            cores: 1,
            l1: CacheGeometry { sets: 1, ways: 2, replacement: Replacement::Lru },
            l1i: None,
            l2: Some(CacheGeometry { sets: 1, ways: 4, replacement: Replacement::Lru }),
            llc: CacheGeometry { sets: 1, ways: 8, replacement: Replacement::Lru },
            inclusion,
        })
    }

    fn run(caches: &mut Hierarchy, lines: impl Iterator<Item = u64>, request: Request) -> Vec<u64> {
        let mut written = Vec::new();
        for line in lines {
            let mut out = WriteBacks::default();
            caches.access(0, line, request, &mut out);
            written.extend_from_slice(out.lines());
        }
        written
    }

    /// A stored line must reach memory exactly once after it has left the
    /// caches, whatever the inclusion: lost write-backs would make writes free.
    #[test]
    fn every_dirty_line_is_written_back_once() {
        for inclusion in [Inclusion::Inclusive, Inclusion::NonInclusive, Inclusion::Victim] {
            let mut caches = hierarchy(inclusion);
            let mut written = run(&mut caches, 0..5, Request::Store);
            written.extend(run(&mut caches, 100..130, Request::Load));
            written.sort_unstable();
            assert_eq!(written, [0, 1, 2, 3, 4], "{inclusion:?}");
        }
    }

    #[test]
    fn a_victim_cache_adds_its_room_to_the_second_level() {
        // 4 + 8 lines hold 12 lines of a cyclic scan under neither inclusion
        // alone: an inclusive LRU of 8 misses on all of them.
        let misses = |inclusion| {
            let mut caches = hierarchy(inclusion);
            run(&mut caches, 0..12, Request::Load);
            let before = caches.llc_counts().misses[0];
            run(&mut caches, 0..12, Request::Load);
            caches.llc_counts().misses[0] - before
        };
        assert_eq!(misses(Inclusion::Victim), 0);
        assert_eq!(misses(Inclusion::Inclusive), 12);
    }

    #[test]
    fn an_inclusive_last_level_takes_lines_away_from_private_caches() {
        let found_after = |inclusion| {
            let mut caches = hierarchy(inclusion);
            let mut out = WriteBacks::default();
            caches.access(0, 0, Request::Load, &mut out);
            for line in 1..9 {
                caches.access(0, line, Request::Load, &mut out);
                caches.access(0, 0, Request::Load, &mut out);
            }
            caches.access(0, 0, Request::Load, &mut out)
        };
        // Line 0 stays most recent in the first level, so the last level never
        // sees it used and gives it up.
        assert_eq!(found_after(Inclusion::NonInclusive), Level::L1);
        let mut caches = hierarchy(Inclusion::Inclusive);
        let mut misses = 0;
        for line in 1..9 {
            let mut out = WriteBacks::default();
            misses += u64::from(caches.access(0, 0, Request::Load, &mut out) == Level::Memory);
            caches.access(0, line, Request::Load, &mut out);
        }
        let mut out = WriteBacks::default();
        misses += u64::from(caches.access(0, 0, Request::Load, &mut out) == Level::Memory);
        assert_eq!(misses, 2, "once cold, once taken away");
    }
}
