//! The spill file's segments: which are free, and how much of each is in use.
//!
//! The file is a log. A segment is written once, whole; its records die one by one
//! as pages come back; with the last it is free to be written again. Any thread
//! gives records back, with one subtraction; only the writer takes segments.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use terrace_core::Bytes;

use super::location::{Location, UNIT};
use crate::sys;

/// Sizes of a segment. The larger is what a disk writes at its full speed; in
/// files below 4 MiB segments are smaller, so that there are enough to move between.
const SIZES: (usize, usize) = (64 << 10, 256 << 10);
/// A segment that is being written or emptied: not free, whatever its records.
const OPEN: u32 = 1 << 31;
/// Used segments that are looked through for a free one before the file grows.
const LOOK: u32 = 4096;

/// Numbers in memory of ours, zero at first; memory is taken as they are used.
struct Table {
    at: usize,
    len: u32,
}

impl Table {
    fn new(len: u32) -> Self {
        let at = if len == 0 { Err(0) } else { sys::map_private(len as usize * 4) };
        at.map_or(Self { at: 0, len: 0 }, |at| Self { at, len })
    }
    fn get(&self, i: u32) -> &AtomicU32 {
        assert!(i < self.len);
        // SAFETY: within the mapping, which is zeroed, aligned and never unmapped.
        unsafe { &*(self.at as *const AtomicU32).add(i as usize) }
    }
}

/// All segments of a file.
pub struct Segments {
    size: usize,
    count: u32,
    /// Units in use by segment, and [`OPEN`].
    live: Table,
    /// How often each was taken, so that a reader knows whether what he has read
    /// of it is of its present content.
    generation: Table,
    /// Segments ever taken.
    fresh: AtomicU32,
    /// Where the search for a free one went on.
    cursor: AtomicU32,
    /// Segments that are not free.
    busy: AtomicU32,
    /// Units in use.
    used: AtomicU64,
}

impl Segments {
    /// Segments of a file that may hold so much.
    pub fn new(file: Bytes) -> Self {
        let part = usize::try_from(file.get() / 16).unwrap_or(usize::MAX / 2);
        let size = part.clamp(SIZES.0, SIZES.1).next_power_of_two();
        let count = u32::try_from(file.get() / size as u64).unwrap_or(u32::MAX).min(1 << 24);
        let (live, generation) = (Table::new(count), Table::new(count));
        let count = live.len.min(generation.len);
        Self {
            size,
            count,
            live,
            generation,
            fresh: AtomicU32::new(0),
            cursor: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            used: AtomicU64::new(0),
        }
    }

    /// Gives the tables back.
    ///
    /// # Safety
    /// Nobody looks at a segment any more.
    pub(crate) unsafe fn give_back(&self) {
        for table in [&self.live, &self.generation].into_iter().filter(|table| table.len > 0) {
            // SAFETY: the mapping of `Table::new`; the caller's.
            let _ = unsafe { sys::munmap(table.at, table.len as usize * 4) };
        }
    }

    /// Bytes of a segment.
    pub fn size(&self) -> usize {
        self.size
    }
    /// Bytes of all segments.
    pub fn whole(&self) -> u64 {
        self.start(self.count)
    }
    /// Where a segment begins in the file, bytes.
    pub fn start(&self, segment: u32) -> u64 {
        u64::from(segment) * self.size as u64
    }
    /// The segment in which a record lies.
    pub fn of(&self, location: Location) -> u32 {
        (location.at() / self.size as u64) as u32
    }
    /// Bytes of records in use.
    pub fn used(&self) -> Bytes {
        Bytes(self.used.load(Relaxed) * UNIT as u64)
    }
    /// Bytes of the segments that are not free.
    pub fn taken(&self) -> Bytes {
        Bytes(u64::from(self.busy.load(Relaxed)) * self.size as u64)
    }
    /// Segments that are free.
    pub fn free_ones(&self) -> u32 {
        self.count - self.busy.load(Relaxed)
    }
    /// Whether so little of what is taken is in use that moving it together pays.
    pub fn is_sparse(&self) -> bool {
        self.busy.load(Relaxed) > 16 && self.used().get() * 2 < self.taken().get()
    }
    /// A number that changes whenever a segment is taken.
    pub fn generation(&self, segment: u32) -> u32 {
        self.generation.get(segment).load(Acquire)
    }

    /// Takes a free segment if more than `reserve` are free. The writer's to call.
    pub fn take(&self, reserve: u32) -> Option<u32> {
        if self.free_ones() <= reserve {
            return None;
        }
        let fresh = self.fresh.load(Relaxed);
        let can_grow = fresh < self.count;
        let look = if can_grow { fresh.min(LOOK) } else { fresh };
        let mut at = self.cursor.load(Relaxed);
        let found = (0..look).find_map(|_| {
            at = if at + 1 < fresh { at + 1 } else { 0 };
            (self.live.get(at).load(Acquire) == 0).then_some(at)
        });
        self.cursor.store(at, Relaxed);
        let segment = found.or_else(|| {
            can_grow.then(|| {
                self.fresh.store(fresh + 1, Relaxed);
                fresh
            })
        })?;
        self.live.get(segment).store(OPEN, Relaxed);
        self.generation.get(segment).fetch_add(1, Release);
        self.busy.fetch_add(1, Relaxed);
        Some(segment)
    }

    /// Keeps a segment from becoming free until it is closed; false if it is
    /// free or open already. The writer's to call.
    pub fn hold(&self, segment: u32) -> bool {
        self.live
            .get(segment)
            .fetch_update(AcqRel, Relaxed, |n| (n != 0 && n & OPEN == 0).then_some(n | OPEN))
            .is_ok()
    }

    /// A segment is written or emptied: it is free with its last record.
    pub fn close(&self, segment: u32) {
        if self.live.get(segment).fetch_and(!OPEN, AcqRel) == OPEN {
            self.busy.fetch_sub(1, Relaxed);
        }
    }

    /// A record of an open segment is in use from now on.
    pub fn add(&self, location: Location) {
        let units = (location.extent() / UNIT) as u32;
        self.live.get(self.of(location)).fetch_add(units, AcqRel);
        self.used.fetch_add(u64::from(units), Relaxed);
    }

    /// A record is given up.
    pub fn free(&self, location: Location) {
        let units = (location.extent() / UNIT) as u32;
        self.used.fetch_sub(u64::from(units), Relaxed);
        if self.live.get(self.of(location)).fetch_sub(units, AcqRel) == units {
            self.busy.fetch_sub(1, Relaxed);
        }
    }

    /// Those closed segments with the least in use, at most three quarters; how many.
    pub fn emptiest(&self, found: &mut [u32]) -> usize {
        let most = (self.size / UNIT / 4 * 3) as u32;
        let live = |segment: u32| self.live.get(segment).load(Relaxed);
        let mut n = 0;
        for segment in 0..self.fresh.load(Relaxed) {
            let units = live(segment);
            if units == 0 || units > most {
                continue;
            }
            let at = found[..n].partition_point(|&other| live(other) <= units);
            if at < found.len() {
                n = (n + 1).min(found.len());
                found[at..n].rotate_right(1);
                found[at] = segment;
            }
        }
        n
    }

    /// Forgets everything.
    pub fn reset(&self) {
        for segment in 0..self.fresh.load(Relaxed) {
            self.live.get(segment).store(0, Relaxed);
        }
        self.fresh.store(0, Relaxed);
        self.cursor.store(0, Relaxed);
        self.busy.store(0, Relaxed);
        self.used.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[derive(Clone, Debug)]
    enum Step {
        Write(Vec<usize>),
        Free(prop::sample::Index),
        Empty,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => prop::collection::vec(1usize..4097, 0..15).prop_map(Step::Write),
            8 => any::<prop::sample::Index>().prop_map(Step::Free),
            1 => Just(Step::Empty),
        ];
        prop::collection::vec(step, 1..200)
    }

    /// The same in the simplest way: every record by its place.
    #[derive(Default)]
    struct Model {
        records: HashMap<u64, Location>,
    }

    impl Model {
        fn write(&mut self, segments: &Segments, lengths: &[usize], reserve: u32) -> bool {
            let Some(segment) = segments.take(reserve) else { return false };
            let mut at = segments.start(segment);
            for &len in lengths {
                let location = Location::new(at, len, false);
                at += location.extent() as u64;
                segments.add(location);
                let before = self.records.insert(location.at(), location);
                assert!(before.is_none(), "two records in one place");
            }
            segments.close(segment);
            true
        }
        fn check(&self, segments: &Segments) {
            let used: usize = self.records.values().map(|r| r.extent()).sum();
            assert_eq!(segments.used(), Bytes(used as u64));
            let mut taken: Vec<_> = self.records.values().map(|&r| segments.of(r)).collect();
            taken.sort_unstable();
            taken.dedup();
            assert_eq!(segments.taken().get(), (taken.len() * segments.size()) as u64);
            assert!(segments.taken() <= Bytes::kib(512), "beyond the file's size");
        }
    }

    proptest! {
        /// A segment that is free too early is overwritten under its pages; one that
        /// is never free is room lost.
        #[test]
        fn segments_are_free_with_their_last_record_and_not_before(steps in steps()) {
            let segments = Segments::new(Bytes::kib(512));
            let mut model = Model::default();
            for step in steps {
                match step {
                    Step::Write(lengths) => {
                        model.write(&segments, &lengths, 1);
                    }
                    Step::Free(which) => {
                        let mut keys: Vec<_> = model.records.keys().copied().collect();
                        keys.sort_unstable();
                        if !keys.is_empty() {
                            let key = keys[which.index(keys.len())];
                            segments.free(model.records.remove(&key).expect("there"));
                        }
                    }
                    // As the writer does: what is left of some segments goes into others.
                    Step::Empty => {
                        let mut found = [0; 2];
                        let n = segments.emptiest(&mut found);
                        let held: Vec<_> =
                            found[..n].iter().copied().filter(|&s| segments.hold(s)).collect();
                        for &segment in &held {
                            let old: Vec<_> = model.records.values().copied()
                                .filter(|&r| segments.of(r) == segment).collect();
                            let lengths: Vec<_> = old.iter().map(|r| r.len()).collect();
                            if model.write(&segments, &lengths, 0) {
                                for location in old {
                                    segments.free(model.records.remove(&location.at()).expect("there"));
                                }
                            }
                        }
                        for segment in held {
                            segments.close(segment);
                        }
                    }
                }
                model.check(&segments);
            }
        }
    }

    #[test]
    fn the_emptiest_are_found_in_order() {
        let segments = Segments::new(Bytes::mib(1));
        for records in [3, 1, 15, 2] {
            assert!(Model::default().write(&segments, &vec![4000; records], 0));
        }
        let mut found = [9; 2];
        assert_eq!(segments.emptiest(&mut found), 2);
        assert_eq!(found, [1, 3], "15 of 16 KiB are too much to move");
    }

    #[test]
    fn a_file_too_small_for_a_segment_has_none() {
        assert_eq!(Segments::new(Bytes::kib(32)).take(0), None);
    }
}
