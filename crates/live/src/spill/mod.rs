//! The spill file: the tier below compressed RAM.
//!
//! | module | what |
//! |---|---|
//! | [`location`] | where a record lies, and its checksum |
//! | [`segments`] | what of the file is free |
//! | [`batch`] | a segment's content while it is put together |
//! | [`device`] | how it gets into the file |
//! | [`mapped`] | the same where the file is memory (DAX) |
//! | [`priced`] | what going there costs and brings |
//! | [`publish`] | what becomes of a page's word meanwhile |
//! | [`reader`] | how a page comes back |
//! | [`aged`] | which pages go: the oldest |
//! | [`writer`] | the thread that writes |
//!
//! A page that leaves DRAM is always compressed into RAM first. When that holds
//! more than it may, a thread of its own writes the oldest pages in segments, as a
//! log; nobody waits for a write, and a page counts as being in the file once its
//! segment is. So a disk that is full or broken costs memory, never content. The
//! file is unlinked when it is opened: nothing of the program's memory stays
//! behind, whatever ends it. Decision 0006 has the reasons.

pub(crate) mod aged;
pub mod batch;
pub(crate) mod device;
pub mod location;
pub(crate) mod mapped;
pub(crate) mod priced;
pub mod publish;
pub(crate) mod reader;
pub(crate) mod segments;
pub(crate) mod writer;

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use terrace_core::{Bytes, Nanos};

use self::aged::Aged;
use self::location::Location;
use self::mapped::Mapping;
use self::priced::Written;
use self::segments::Segments;
use crate::sys;

/// How long (ns) somebody who makes room sleeps before he looks again.
const SLICE: u64 = 2_000_000;
/// While segments are written, he waits for so long (ns) at most: by then others, too, have had
/// the whole disk for a second, and made no room.
const LONGEST: u64 = 1_000_000_000;
/// A file to which nothing was written for so long (ns) hangs: until it goes on, nobody waits for
/// it for more than a slice. Four segments, a megabyte, are on their way at once, so that a disk
/// of 4 MB/s does not count as hanging.
const HANGS: u64 = 250_000_000;

/// The file as all threads see it.
pub struct Spill {
    fd: AtomicI32,
    /// The file as memory, if it is used so.
    pub mapping: Mapping,
    /// What of it is used.
    pub segments: Segments,
    /// What goes next.
    pub aged: Aged,
    /// Bytes read and written since the start.
    read: AtomicU64,
    written: AtomicU64,
    /// Records that pages came back from, and how long reading them took, ns.
    reads: AtomicU64,
    reading_ns: AtomicU64,
    /// Pages that went to it, for the economist.
    pub(crate) to_file: Written,
    /// Whether somebody has been told that it takes no more.
    told: AtomicU32,
    /// Until when (ns) it is not tried: it has refused.
    rest_until: AtomicU64,
    /// Wakes the writer; changes with every wish.
    bell: AtomicU32,
    asleep: AtomicU32,
    /// Changes when a segment has been written.
    progress: AtomicU32,
    /// One more than what that was when the file was found to hang; 0 before.
    hung: AtomicU64,
    /// Since when (ns) the store has held more than it may; 0 while it does not.
    over_since: AtomicU64,
}

impl Spill {
    /// Gives back what it has of the address space.
    ///
    /// # Safety
    /// Nobody uses it any more, and nothing in the file is needed.
    pub(crate) unsafe fn give_back(&self) {
        // SAFETY: the caller's.
        unsafe {
            self.mapping.give_back();
            self.segments.give_back();
            self.aged.give_back();
        }
    }

    /// No file yet; of the size that one may have.
    pub fn new(size: Bytes) -> Self {
        Self {
            fd: AtomicI32::new(-1),
            mapping: Mapping::default(),
            segments: Segments::new(size),
            aged: Aged::new(),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            reading_ns: AtomicU64::new(0),
            to_file: Written::default(),
            told: AtomicU32::new(0),
            rest_until: AtomicU64::new(0),
            bell: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            progress: AtomicU32::new(0),
            hung: AtomicU64::new(0),
            over_since: AtomicU64::new(0),
        }
    }

    /// Creates the file and unlinks it. Reads and writes pass the page cache by
    /// where the file system can do that; or it is used as memory, if it is to be `mapped`.
    pub fn open(&self, path: &Path, mapped: bool) -> Result<(), i32> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC;
        // SAFETY: a NUL-terminated path.
        let open = |flags| unsafe { libc::open(path.as_ptr(), flags, 0o600) };
        let direct = if mapped { 0 } else { libc::O_DIRECT };
        let mut fd = open(flags | libc::O_EXCL | direct);
        if fd < 0 && !mapped && sys::errno() == libc::EINVAL {
            // Some file systems have made the file before they say so.
            // SAFETY: as above.
            unsafe { libc::unlink(path.as_ptr()) };
            fd = open(flags | libc::O_EXCL);
        }
        if fd < 0 {
            return Err(sys::errno());
        }
        // SAFETY: as above.
        unsafe { libc::unlink(path.as_ptr()) };
        if mapped && let Err(error) = self.mapping.open(fd, self.segments.whole()) {
            // SAFETY: our own descriptor.
            unsafe { libc::close(fd) };
            return Err(error);
        }
        self.aged.open();
        self.fd.store(fd, Release);
        Ok(())
    }

    /// In a child: opens the parent's file, through the parent's thread that
    /// has it open.
    pub fn reopen(&self, parent: i32, thread: i32) -> bool {
        if self.mapping.is_open() {
            // Children inherit it.
            return true;
        }
        let fd = self.fd.load(Relaxed);
        let path = format!("/proc/{parent}/task/{thread}/fd/{fd}\0");
        // SAFETY: a NUL-terminated path.
        let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
        self.fd.store(fd, Relaxed);
        fd >= 0
    }

    /// Closes the file and forgets what was in it.
    pub fn forget(&self) {
        if !self.mapping.is_open() {
            // SAFETY: our own descriptor.
            unsafe { libc::close(self.descriptor()) };
        }
        self.abandon();
    }

    /// In a child: forgets the file, which is the parent's, and what was in it.
    pub fn abandon(&self) {
        self.fd.store(-1, Relaxed);
        self.mapping.close();
        self.read.store(0, Relaxed);
        self.written.store(0, Relaxed);
        self.to_file.reset();
        self.segments.reset();
        self.told.store(0, Relaxed);
        self.rest_until.store(0, Relaxed);
        self.asleep.store(0, Relaxed);
        self.hung.store(0, Relaxed);
        self.over_since.store(0, Relaxed);
    }

    /// Whether there is a file.
    pub fn is_open(&self) -> bool {
        self.descriptor() >= 0
    }

    /// The file's descriptor, in a thread of ours; `None` if there is none.
    pub(crate) fn file(&self) -> Option<i32> {
        Some(self.descriptor()).filter(|&fd| fd >= 0)
    }

    fn descriptor(&self) -> i32 {
        self.fd.load(Acquire)
    }

    /// Bytes in use.
    pub fn used(&self) -> Bytes {
        self.segments.used()
    }

    /// Bytes read and written since the start.
    pub fn traffic(&self) -> (u64, u64) {
        (self.read.load(Relaxed), self.written.load(Relaxed))
    }

    fn count_read(&self, bytes: u64) {
        self.read.fetch_add(bytes, Relaxed);
    }

    /// Counts a page that came back from the file, and how long that took.
    pub(crate) fn count_page_read(&self, time: Nanos) {
        self.reads.fetch_add(1, Relaxed);
        self.reading_ns.fetch_add(time.get(), Relaxed);
    }

    /// Pages that came back from it.
    pub(crate) fn returned(&self) -> u64 {
        self.reads.load(Relaxed)
    }

    /// How long it takes to read a page on average; `None` if none has been.
    pub(crate) fn time_to_read(&self) -> Option<Nanos> {
        let reads = self.reads.load(Relaxed);
        self.reading_ns.load(Relaxed).checked_div(reads).map(Nanos)
    }

    /// Gives a record up.
    pub fn free(&self, location: Location) {
        self.segments.free(location);
    }

    /// The store holds more than it may: wakes the writer.
    pub fn wish(&self) {
        if self.asleep.load(SeqCst) != 0 {
            self.bell.fetch_add(1, SeqCst);
            sys::futex_wake(&self.bell, false);
        }
    }

    /// The store holds much more than it may: waits for the writer, as long as that is so
    /// and segments are written. At once over when the file takes no more.
    pub fn wait_for_progress(&self, mut goes_on: impl FnMut() -> bool) {
        let began = sys::now();
        let (mut seen, mut since) = (self.progress.load(Acquire), began);
        loop {
            self.wish();
            if self.rest_until.load(Relaxed) > sys::now() {
                return;
            }
            sys::futex_wait(&self.progress, seen, Some(SLICE), false);
            let (now, progress) = (sys::now(), self.progress.load(Acquire));
            if progress != seen {
                (seen, since) = (progress, now);
            } else if now - since > HANGS {
                self.hung.store(u64::from(seen) + 1, Relaxed);
            }
            let hangs = self.hung.load(Relaxed) == u64::from(seen) + 1;
            if hangs || now - began > LONGEST || !goes_on() {
                return;
            }
        }
    }

    /// Whether waiting makes sense: the file takes what is given to it.
    pub fn takes_more(&self) -> bool {
        self.rest_until.load(Relaxed) <= sys::now()
            && self.hung.load(Relaxed) != u64::from(self.progress.load(Acquire)) + 1
    }

    /// The store holds more than it may, or does not; for how long (ns) it did since this was
    /// asked last.
    pub fn note_over(&self, is_over: bool) -> u64 {
        let since = self.over_since.load(Relaxed);
        if since == 0 && !is_over {
            return 0;
        }
        let now = sys::now();
        let next = if is_over { now } else { 0 };
        let noted = self.over_since.compare_exchange(since, next, Relaxed, Relaxed).is_ok();
        if noted && since != 0 { now.saturating_sub(since) } else { 0 }
    }

    fn progressed(&self) {
        self.progress.fetch_add(1, Release);
        sys::futex_wake(&self.progress, false);
    }

    /// Says once why the file takes no more: from then on memory is used that was
    /// not meant to be.
    fn refused(&self, why: &str) {
        if self.told.swap(1, Relaxed) == 0 {
            sys::complain(&["the spill file refuses more: ", why, "; pages stay in RAM"]);
        }
    }
}

/// An error of the file's in words, without allocating.
pub(crate) fn describe(error: i32) -> &'static str {
    match error {
        libc::ENOSPC => "No space left on device",
        libc::EDQUOT => "Disk quota exceeded",
        libc::EFBIG => "File too large",
        libc::EIO => "Input/output error",
        libc::ENOMEM => "Cannot allocate memory",
        _ => "it cannot be written",
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn spill() -> Spill {
        Spill::new(Bytes::mib(16))
    }

    /// The limit holds while the disk takes what it is given: who makes room waits for more than
    /// one segment, if one was not enough.
    #[test]
    fn who_makes_room_waits_while_segments_are_written() {
        let spill = spill();
        let mut looks = 0;
        spill.wait_for_progress(|| {
            looks += 1;
            spill.progressed();
            looks < 20
        });
        assert_eq!(looks, 20, "it ended before there was room");
    }

    /// A disk that hangs holds a program up once, not at every page.
    #[test]
    fn nobody_waits_long_for_a_file_that_hangs() {
        let spill = spill();
        let begin = Instant::now();
        spill.wait_for_progress(|| true);
        assert!(begin.elapsed() >= Duration::from_nanos(HANGS));
        assert!(!spill.takes_more());
        let mut asked = 0;
        for _ in 0..3 {
            spill.wait_for_progress(|| {
                asked += 1;
                true
            });
        }
        assert_eq!(asked, 0, "one slice each");
        spill.progressed();
        assert!(spill.takes_more(), "it goes on");
    }

    #[test]
    fn nobody_waits_for_a_file_that_refuses() {
        let spill = spill();
        spill.rest_until.store(u64::MAX, Relaxed);
        spill.wait_for_progress(|| panic!("asked whether to go on"));
        assert!(!spill.takes_more());
    }

    #[test]
    fn time_over_the_limit_is_counted_once() {
        let spill = spill();
        assert_eq!(spill.note_over(false), 0);
        let begin = sys::now();
        assert_eq!(spill.note_over(true), 0, "it begins");
        sys::sleep(2_000_000);
        let first = spill.note_over(true);
        let second = spill.note_over(false);
        assert!(first >= 2_000_000 && first + second <= sys::now() - begin, "{first} {second}");
        assert_eq!(spill.note_over(false), 0, "it is over");
    }
}
