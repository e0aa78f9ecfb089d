//! Regions that are no longer there: those with the most faults, in the statistics page.
//!
//! The page lists the regions that a process has now. What a program maps, walks through and
//! unmaps before its end would be in no report, although it may be all that the program waited
//! for. So a region that goes leaves its figures here. The room is fixed, because the writer is
//! any thread that unmaps memory and must neither allocate nor wait: a new line takes the place of
//! the one with the fewest faults.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

use crate::stats::process_page::PARTS;

/// Lines that are kept of a process.
pub const LINES: usize = 16;

/// Figures of a region that is gone. A program that maps the same range again and again, as a loop
/// does with its buffer, has one of them for all times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Faults taken.
    pub faults: u64,
    /// The same by equal parts of the region, first address first.
    pub parts: [u32; PARTS],
    /// How often such a region went.
    pub times: u64,
    /// When it went last, by `CLOCK_MONOTONIC`, ns.
    pub at_ns: u64,
}

/// A line. Whoever reads it sees that it is being written: from the first word on, as a mapping
/// is read, or from the last one on, as a file is copied.
#[repr(C)]
struct Line {
    /// [`Line::begun`] of the last writer that has finished.
    finished: AtomicU64,
    start: AtomicU64,
    len: AtomicU64,
    /// 0 while the line is unused.
    faults: AtomicU64,
    parts: [AtomicU32; PARTS],
    times: AtomicU64,
    at_ns: AtomicU64,
    /// Writers that have begun, ever. It differs from [`Line::finished`] while one writes.
    begun: AtomicU64,
}

/// The lines: a part of the statistics page.
#[repr(C)]
pub struct FreedRegions {
    lines: [Line; LINES],
}

impl Line {
    /// What is in it; `None` while it is unused, or being written.
    fn read(&self) -> Option<Freed> {
        let finished = self.finished.load(Acquire);
        let freed = Freed {
            start: self.start.load(Relaxed),
            len: self.len.load(Relaxed),
            faults: self.faults.load(Relaxed),
            parts: core::array::from_fn(|i| self.parts[i].load(Relaxed)),
            times: self.times.load(Relaxed),
            at_ns: self.at_ns.load(Relaxed),
        };
        fence(Acquire);
        (self.begun.load(Relaxed) == finished && freed.faults != 0).then_some(freed)
    }

    /// Becomes its only writer, until [`Line::finish`]; false if another one is.
    fn begin(&self) -> bool {
        let finished = self.finished.load(Acquire);
        let begun = self.begun.compare_exchange(finished, finished + 1, Acquire, Relaxed).is_ok();
        fence(Release);
        begun
    }

    fn finish(&self) {
        self.finished.store(self.begun.load(Relaxed), Release);
    }

    fn is_of(&self, freed: &Freed) -> bool {
        self.start.load(Relaxed) == freed.start
            && self.len.load(Relaxed) == freed.len
            && self.faults.load(Relaxed) != 0
    }

    /// Adds to what is there of the same range. As its only writer.
    fn add(&self, freed: &Freed) {
        self.faults.fetch_add(freed.faults, Relaxed);
        self.times.fetch_add(freed.times, Relaxed);
        self.at_ns.fetch_max(freed.at_ns, Relaxed);
        for (to, from) in self.parts.iter().zip(freed.parts) {
            to.fetch_add(from, Relaxed);
        }
    }

    /// Puts this in the place of what is there. As its only writer.
    fn replace(&self, freed: &Freed) {
        self.start.store(freed.start, Relaxed);
        self.len.store(freed.len, Relaxed);
        self.faults.store(freed.faults, Relaxed);
        self.times.store(freed.times, Relaxed);
        self.at_ns.store(freed.at_ns, Relaxed);
        for (to, from) in self.parts.iter().zip(freed.parts) {
            to.store(from, Relaxed);
        }
    }
}

impl FreedRegions {
    /// Enters a region that is gone, if it had faults, and as many as the least that is listed.
    /// Never waits: a line that another thread writes at the moment is passed over.
    pub fn enter(&self, freed: &Freed) {
        if freed.faults == 0 {
            return;
        }
        for line in self.lines.iter().filter(|line| line.is_of(freed)) {
            if line.begin() {
                // It may have become another's since.
                let same = line.is_of(freed);
                if same {
                    line.add(freed);
                }
                line.finish();
                if same {
                    return;
                }
            }
        }
        // As often as there are lines: each time another thread may have taken the one with the
        // fewest faults.
        for _ in 0..LINES {
            let is_free = |line: &&Line| {
                line.begun.load(Relaxed) == line.finished.load(Relaxed)
                    && line.faults.load(Relaxed) < freed.faults
            };
            let least = self.lines.iter().filter(is_free);
            let Some(least) = least.min_by_key(|line| line.faults.load(Relaxed)) else { return };
            if least.begin() {
                let fits = least.faults.load(Relaxed) < freed.faults;
                if fits {
                    least.replace(freed);
                }
                least.finish();
                if fits {
                    return;
                }
            }
        }
    }

    /// What is listed, in no order.
    pub fn iter(&self) -> impl Iterator<Item = Freed> {
        self.lines.iter().filter_map(Line::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions() -> Box<FreedRegions> {
        // SAFETY: every field is an atomic integer, valid for zero bytes.
        unsafe { Box::new_zeroed().assume_init() }
    }

    fn freed(start: u64, faults: u64) -> Freed {
        let mut parts = [0; PARTS];
        parts[0] = faults as u32;
        Freed { start, len: 0x10_0000, faults, parts, times: 1, at_ns: start }
    }

    fn starts(regions: &FreedRegions) -> Vec<u64> {
        let mut all: Vec<_> = regions.iter().map(|freed| freed.start).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn those_with_the_most_faults_stay() {
        let regions = regions();
        // The more faults the later, and then fewer again.
        for i in (1..=40).chain((1..=20).rev()) {
            regions.enter(&freed((i << 20) | u64::from(i > 20), i));
        }
        let expected: Vec<_> = (25..=40).map(|i| (i << 20) | 1).collect();
        assert_eq!(starts(&regions), expected);
    }

    #[test]
    fn a_region_without_faults_is_not_listed() {
        let regions = regions();
        regions.enter(&freed(1 << 20, 0));
        assert_eq!(regions.iter().count(), 0);
    }

    #[test]
    fn a_range_that_comes_and_goes_has_one_line() {
        let regions = regions();
        for at_ns in 1..=100 {
            regions.enter(&Freed { at_ns, ..freed(1 << 20, 7) });
        }
        regions.enter(&Freed { len: 4096, ..freed(1 << 20, 5) });

        let mut all: Vec<_> = regions.iter().collect();
        all.sort_by_key(|freed| freed.len);

        let [other, same] = &all[..] else { panic!("{all:?}") };
        assert_eq!((other.faults, other.times), (5, 1), "another length is another region");
        assert_eq!((same.faults, same.times, same.at_ns, same.parts[0]), (700, 100, 100, 700));
    }

    /// A thread that was killed while it wrote leaves a line that nobody can tell of.
    #[test]
    fn a_line_that_is_being_written_is_passed_over_and_not_read() {
        let regions = regions();
        regions.enter(&freed(1 << 20, 1));
        assert!(regions.lines[0].begin());
        regions.enter(&freed(1 << 20, 2));
        regions.enter(&freed(2 << 20, 3));

        assert_eq!(starts(&regions), [1 << 20, 2 << 20]);
        assert_eq!(regions.iter().map(|freed| freed.faults).sum::<u64>(), 5);
        regions.lines[0].finish();
        assert_eq!(regions.iter().count(), 3);
    }

    /// Threads that enter at once mix no figures up.
    #[test]
    fn a_reader_sees_whole_lines() {
        let regions = regions();
        let rounds = if cfg!(miri) { 50 } else { 5_000 };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let regions = &regions;
                scope.spawn(move || {
                    for i in 1..=rounds {
                        regions.enter(&freed((i % 37 + thread * 64) << 20, i));
                    }
                });
            }
            scope.spawn(|| {
                for freed in (0..rounds).flat_map(|_| regions.iter()) {
                    assert_eq!(u64::from(freed.parts[0]), freed.faults, "{freed:?}");
                }
            });
        });
        assert_eq!(regions.iter().count(), LINES);
    }
}
