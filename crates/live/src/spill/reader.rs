//! Reading the spill file.
//!
//! Whoever reads has a buffer of its own. What was read with a record, for a
//! program that walks a whole block of the file, is kept: pages that left one
//! after the other lie one after the other.

use super::Spill;
use super::batch::find;
use super::location::{HEADER, LONGEST, Location};
use crate::failsafe::reserve_memory;
use crate::sys::{self, PAGE};

/// Read at once for a walk: a disk takes little longer for it than for one page.
const BLOCK: u64 = 64 << 10;
const PAGES: u64 = PAGE as u64;
/// Room for a block, and for the rest of a record that begins in it.
const BUFFER: usize = BLOCK as usize + (HEADER + LONGEST).next_multiple_of(PAGE) + PAGE;

/// A part of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    start: u64,
    end: u64,
    segment: u32,
    /// The segment's, when it was read. 0: nothing was.
    generation: u32,
}

impl Window {
    /// What is read with a record: the pages that it touches, or a block.
    fn around(spill: &Spill, location: Location, wide: bool) -> Self {
        let (at, end) = (location.at(), location.at() + location.extent() as u64);
        let segment = spill.segments.of(location);
        let mut window = Self {
            start: at - at % PAGES,
            end: end.next_multiple_of(PAGES),
            segment,
            generation: spill.segments.generation(segment),
        };
        if wide {
            window.start = at - at % BLOCK;
            let limit = spill.segments.start(segment) + spill.segments.size() as u64;
            window.end = window.end.max((window.start + BLOCK).min(limit));
        }
        window
    }

    /// Whether a record lies in it as it is now.
    pub(crate) fn has(&self, spill: &Spill, location: Location) -> bool {
        location.at() >= self.start
            && location.at() + location.extent() as u64 <= self.end
            && self.segment == spill.segments.of(location)
            && self.generation == spill.segments.generation(self.segment)
    }
}

/// Reads records.
pub(crate) struct Reader {
    /// Of the buffer; 0 before there is one.
    at: usize,
    /// What is in it.
    window: Window,
}

impl Reader {
    /// A reader with nothing read. Its memory is taken when it is used.
    pub(crate) fn new() -> Self {
        Self { at: reserve_memory::map(BUFFER).unwrap_or(0), window: Window::default() }
    }

    /// A reader for where there is no file.
    pub(crate) const fn none() -> Self {
        Self { at: 0, window: Window { start: 0, end: 0, segment: 0, generation: 0 } }
    }

    /// In a forked child, of a worker of its parent's, or of what it has needed once.
    pub(crate) fn give_back(&mut self) {
        let at = core::mem::take(&mut self.at);
        if at != 0 {
            // SAFETY: a mapping of that size, and nobody uses it any more.
            let _ = unsafe { sys::munmap(at, BUFFER) };
        }
    }

    /// What was read last, or, where that does not have the record, what would be.
    pub(crate) fn window_for(
        &self,
        spill: &Spill,
        window: Option<Window>,
        location: Location,
    ) -> Window {
        let window = window.unwrap_or(self.window);
        if window.has(spill, location) { window } else { Window::around(spill, location, true) }
    }

    /// Whether this is what was read last.
    pub(crate) fn has(&self, window: &Window) -> bool {
        self.window == *window
    }

    /// A record's bytes, or the error number: `EIO`, too, for bytes that are not
    /// those that were written. `wide`: others beside it will be asked for.
    ///
    /// The record is in use until this returns.
    pub(crate) fn read<'r>(
        &'r mut self,
        spill: &'r Spill,
        location: Location,
        wide: bool,
    ) -> Result<&'r [u8], i32> {
        if spill.mapping.is_open() {
            // SAFETY: the record is in use.
            return unsafe { read_mapped(spill, location) }.ok_or(libc::EIO);
        }
        if !self.window.has(spill, location) {
            self.fill(spill, Window::around(spill, location, wide))?;
        }
        // SAFETY: the mapping is ours alone and of that size.
        let buffer = unsafe { core::slice::from_raw_parts(self.at as *const u8, BUFFER) };
        let len = (self.window.end - self.window.start) as usize;
        find(&buffer[..len], self.window.start, location).ok_or(libc::EIO)
    }

    /// Reads a part of the file.
    fn fill(&mut self, spill: &Spill, window: Window) -> Result<(), i32> {
        if self.at == 0 {
            self.at = reserve_memory::map(BUFFER)?;
        }
        self.window = Window::default();
        let end = read_at(spill, self.at, window.start, window.end)?;
        self.window = Window { end, ..window };
        Ok(())
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

/// A record's bytes where they lie, of a file that is mapped; `None` if they are not what
/// was written.
///
/// # Safety
/// The record's segment is not written again while they are used.
pub(crate) unsafe fn read_mapped(spill: &Spill, location: Location) -> Option<&[u8]> {
    spill.count_read(location.extent() as u64);
    // No byte more: there may be nothing behind it, and no room for that either.
    // SAFETY: the caller's.
    let record = unsafe { spill.mapping.bytes(location.at(), location.extent()) };
    find(record?, location.at(), location)
}

/// Reads a part of the file into pages of memory; where that ended, which is before
/// `end` where the file does.
pub(crate) fn read_at(spill: &Spill, to: usize, start: u64, end: u64) -> Result<u64, i32> {
    let fd = spill.descriptor();
    let mut at = start;
    while at < end {
        // SAFETY: the caller's memory, as large as the part.
        let n = unsafe {
            libc::pread(
                fd,
                (to + (at - start) as usize) as *mut libc::c_void,
                (end - at) as usize,
                at as i64,
            )
        };
        match n {
            0 => break,
            n if n > 0 => {
                at += n as u64;
                // Only at its end does a file give less than whole pages.
                if !at.is_multiple_of(PAGES) {
                    break;
                }
            }
            _ => match sys::errno() {
                libc::EINTR | libc::EAGAIN => {}
                libc::EINVAL if super::device::through_cache(fd) => {}
                error => return Err(error),
            },
        }
    }
    spill.count_read(at - start);
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::super::batch::Batch;
    use super::super::device::Device;
    use super::*;
    use terrace_core::Bytes;

    /// A file with a segment of records, whose bytes are their numbers.
    fn spilled(records: u8, mapped: bool) -> (Spill, Vec<Location>) {
        let directory = tempfile::tempdir().expect("a directory");
        let spill = Spill::new(Bytes::mib(1));
        spill.open(&directory.path().join("spill"), mapped).expect("a file");
        let mut batch = Batch::new(spill.segments.size()).expect("memory");
        let segment = spill.segments.take(0).expect("the first");
        batch.begin(segment, spill.segments.start(segment));
        for n in 0..records {
            batch.push(0, 0, false, &vec![n; 500 + usize::from(n) * 17]);
        }
        let start = spill.segments.start(segment);
        if mapped {
            // SAFETY: nobody reads it yet.
            let error = unsafe { spill.mapping.write(spill.descriptor(), batch.content(), start) };
            assert_eq!(error, 0);
        } else {
            let mut device = Device::new(spill.descriptor());
            // SAFETY: the batch lives until the write is done.
            unsafe { device.submit(0, batch.content(), start) };
            assert_eq!(device.wait(), Some((0, 0)));
        }
        let locations: Vec<_> = batch.entries.iter().map(|entry| entry.location).collect();
        for &location in &locations {
            spill.segments.add(location);
        }
        spill.segments.close(segment);
        (spill, locations)
    }

    #[test]
    fn every_record_is_read_alone_and_with_others() {
        for (mapped, wide) in [(false, false), (false, true), (true, false)] {
            let (spill, locations) = spilled(30, mapped);
            let mut reader = Reader::new();
            for (n, &location) in locations.iter().enumerate() {
                let bytes = reader.read(&spill, location, wide).expect("what was written");
                assert_eq!(bytes, vec![n as u8; 500 + n * 17]);
            }
        }
    }

    #[test]
    fn a_walk_reads_the_file_once_for_a_block() {
        let (spill, locations) = spilled(30, false);
        let mut reader = Reader::new();
        for &location in &locations {
            reader.read(&spill, location, true).expect("what was written");
        }
        assert!(spill.traffic().0 <= BLOCK, "{} bytes read", spill.traffic().0);
    }

    /// A segment is written again, with a record where one was: what was read before
    /// must not be taken for it.
    #[test]
    fn what_was_read_of_a_segment_is_worth_nothing_once_it_is_taken_again() {
        let (spill, locations) = spilled(3, false);
        let mut reader = Reader::new();
        reader.read(&spill, locations[0], true).expect("what was written");
        let window = reader.window;
        for &location in &locations {
            spill.segments.free(location);
        }
        assert!(window.has(&spill, locations[1]), "nothing has changed yet");
        while spill.segments.take(0).is_some_and(|taken| taken != window.segment) {}
        assert!(!window.has(&spill, locations[1]));
    }

    #[test]
    fn damaged_records_are_refused() {
        [false, true].into_iter().for_each(one_of_three_is_damaged);
    }

    fn one_of_three_is_damaged(mapped: bool) {
        let (spill, locations) = spilled(3, mapped);
        // SAFETY: writes a byte of ours to the file, in the middle of a record.
        let n = unsafe {
            super::super::device::through_cache(spill.descriptor());
            libc::pwrite(
                spill.descriptor(),
                [99u8].as_ptr().cast(),
                1,
                locations[1].at() as i64 + 9,
            )
        };
        assert_eq!(n, 1);
        let mut reader = Reader::new();
        assert!(reader.read(&spill, locations[0], false).is_ok());
        assert_eq!(reader.read(&spill, locations[1], false), Err(libc::EIO));
    }
}
