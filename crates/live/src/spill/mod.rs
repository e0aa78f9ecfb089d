//! The spill file: the tier below compressed RAM.
//!
//! | module | what |
//! |---|---|
//! | [`location`] | where a record lies, and its checksum |
//! | [`segments`] | what of the file is free |
//! | [`batch`] | a segment's content while it is put together |
//! | [`device`] | how it gets into the file |
//! | [`mapped`] | the same where the file is memory (DAX) |
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

pub mod aged;
pub mod batch;
pub mod device;
pub mod location;
pub mod mapped;
pub mod publish;
pub mod reader;
pub mod segments;
pub mod writer;

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use terrace_core::{Bytes, Nanos};

use self::aged::Aged;
use self::location::Location;
use self::mapped::Mapping;
use self::segments::Segments;
use crate::sys;

/// How long (ns) somebody who makes room waits for the writer at most.
const PATIENCE: u64 = 2_000_000;

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
    /// Whether somebody has been told that it takes no more.
    told: AtomicU32,
    /// Until when (ns) it is not tried: it has refused.
    rest_until: AtomicU64,
    /// Wakes the writer; changes with every wish.
    bell: AtomicU32,
    asleep: AtomicU32,
    /// Changes when a segment has been written.
    progress: AtomicU32,
}

impl Spill {
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
            told: AtomicU32::new(0),
            rest_until: AtomicU64::new(0),
            bell: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            progress: AtomicU32::new(0),
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
        self.segments.reset();
        self.told.store(0, Relaxed);
        self.rest_until.store(0, Relaxed);
        self.asleep.store(0, Relaxed);
    }

    /// Whether there is a file.
    pub fn is_open(&self) -> bool {
        self.descriptor() >= 0
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

    /// The store holds much more than it may: waits a little for the writer, unless
    /// the file takes no more.
    pub fn wait_for_progress(&self) {
        let progress = self.progress.load(Acquire);
        self.wish();
        if self.rest_until.load(Relaxed) <= sys::now() {
            sys::futex_wait(&self.progress, progress, Some(PATIENCE), false);
        }
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
