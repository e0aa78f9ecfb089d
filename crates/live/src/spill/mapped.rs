//! A spill file that is memory: persistent or far memory behind a file system with DAX.
//!
//! The file is mapped. Segments are copied into it with stores that pass the caches by,
//! and records are read where they lie: no system call for a page that comes back.
//! On any other file system the same goes through the page cache.
//!
//! The file is as long as what has been written, and is mapped piece by piece as it
//! grows: what is mapped counts against limits of the program's (`RLIMIT_AS`,
//! `RLIMIT_MEMLOCK`), and `mlockall` reads everything in that is mapped and has a file
//! behind it.
//!
//! Room is taken (`fallocate`) before it is written to: a file system without any
//! says so by an error number, and not by a signal. Memory that cannot be read any
//! more (an uncorrectable error of the module) ends the program by `SIGBUS`, as such an
//! error in DRAM does.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use crate::sys;

/// What is mapped at once: few system calls for what is written, and little that is
/// mapped in vain. Of whole pages of 2 MiB, which DAX maps where the file allows it.
const PIECE: usize = 16 << 20;

/// The mapping of a spill file, if there is one.
#[derive(Default)]
pub struct Mapping {
    open: AtomicBool,
    /// Where the file's first byte lies, or would; 0 before it was ever open. Kept in
    /// children, which map files of their own there: addresses are used up otherwise.
    at: AtomicUsize,
    /// How long the file may become; addresses are kept for that.
    len: AtomicUsize,
    /// How much of it is mapped, from the beginning on.
    mapped: AtomicUsize,
    /// The same with the piece that is being mapped: in a child of a fork that meets the
    /// writer there, nobody counts it any more.
    taken: AtomicUsize,
}

impl Mapping {
    /// Maps the first piece of a file that may become so long (bytes), the same each
    /// time. The error number of what is refused.
    pub fn open(&self, fd: i32, len: u64) -> Result<(), i32> {
        let len = usize::try_from(len).map_err(|_| libc::ENOMEM)?;
        if self.at.load(Relaxed) == 0 {
            self.at.store(sys::keep_addresses(len)?, Relaxed);
            self.len.store(len, Relaxed);
        }
        self.grow(fd, len.min(1))?;
        self.open.store(true, Release);
        Ok(())
    }

    /// Where it is noted whether there is one, where it lies, and how much of it is mapped.
    pub(crate) fn addresses(&self) -> (u64, u64, u64) {
        let address = |at: *const u8| at.addr() as u64;
        (
            address(self.open.as_ptr().cast_const().cast()),
            address(self.at.as_ptr().cast_const().cast()),
            address(self.mapped.as_ptr().cast_const().cast()),
        )
    }

    /// Whether there is one.
    pub fn is_open(&self) -> bool {
        self.open.load(Acquire)
    }

    /// Maps the file to this place at least; the error number of what is refused.
    fn grow(&self, fd: i32, end: usize) -> Result<(), i32> {
        loop {
            let mapped = self.mapped.load(Relaxed);
            if mapped >= end {
                return Ok(());
            }
            let piece = PIECE.min(self.len.load(Relaxed) - mapped);
            let at = self.at.load(Relaxed) + mapped;
            self.taken.store(mapped + piece, Release);
            // Behind the file's end, so that there is nothing to read in yet for a program
            // that has asked for everything to be locked.
            if let Err(error) = sys::map_file_at(at, piece, fd, mapped as i64) {
                self.taken.store(mapped, Release);
                return Err(error);
            }
            sys::munlock(at, piece);
            self.mapped.store(mapped + piece, Release);
        }
    }

    /// Takes the lock off that a program's `mlockall` has put on all memory: this is to
    /// leave RAM. What is mapped later unlocks itself.
    pub fn unlock(&self) {
        sys::munlock(self.at.load(Relaxed), self.taken.load(Acquire));
    }

    /// Unmaps the file.
    ///
    /// # Safety
    /// Nobody uses its bytes any more.
    pub(crate) unsafe fn give_back(&self) {
        if self.open.swap(false, AcqRel) {
            // SAFETY: a mapping of ours; the caller's.
            let _ = unsafe { sys::munmap(self.at.load(Relaxed), self.taken.load(Acquire)) };
        }
    }

    /// Bytes of the file; `None` if it is not mapped there.
    ///
    /// # Safety
    /// They are written, and not written again while the slice is used.
    pub unsafe fn bytes<'a>(&self, start: u64, len: usize) -> Option<&'a [u8]> {
        let start = usize::try_from(start).ok()?;
        let end = start.checked_add(len)?;
        let at = self.at.load(Relaxed) + start;
        // SAFETY: within the mapping; the caller's.
        (self.is_open() && end <= self.mapped.load(Acquire))
            .then(|| unsafe { core::slice::from_raw_parts(at as *const u8, len) })
    }

    /// Writes whole pages; 0 or an error number, with nothing changed.
    ///
    /// # Safety
    /// Nobody reads that part of the file, and nobody else writes to the file.
    pub unsafe fn write(&self, fd: i32, pages: &[u8], start: u64) -> i32 {
        let from = start as usize;
        if let Err(error) = self.grow(fd, from + pages.len()) {
            return error;
        }
        loop {
            // SAFETY: our own descriptor.
            if unsafe { libc::fallocate(fd, 0, start as i64, pages.len() as i64) } == 0 {
                break;
            }
            match sys::errno() {
                libc::EINTR => {}
                // It takes room when it is written to, and has one cache for both ways.
                libc::EOPNOTSUPP => return super::device::write_now(fd, pages, start),
                error => return error,
            }
        }
        // SAFETY: the caller's; within the mapping, whose pages the file system has.
        unsafe { stream(self.at.load(Relaxed) + from, pages) };
        0
    }

    /// Unmaps it.
    pub fn close(&self) {
        if self.open.swap(false, AcqRel) {
            let taken = self.taken.swap(0, Relaxed);
            // SAFETY: whoever reads has found it open, and is the caller.
            let _ = unsafe { sys::munmap(self.at.load(Relaxed), taken) };
            self.mapped.store(0, Relaxed);
        }
    }
}

/// Whether files in this directory are DAX; the error number of what could not be tried.
///
/// For a file of DAX the kernel grants `MAP_SYNC`, and for no other. We ask for it here
/// alone: with it, the first write to each place waits for the file system's journal, and
/// what we write need not outlive anything.
pub(crate) fn probe(directory: &std::path::Path) -> Result<bool, i32> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(directory)
        .map_err(|e| e.raw_os_error().unwrap_or(libc::EINVAL))?;
    let (prot, flags) = (libc::PROT_READ, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC);
    // SAFETY: a new mapping harms nothing, and nobody knows of it when it goes.
    unsafe {
        match sys::mmap(0, sys::PAGE, prot, flags, file.as_raw_fd(), 0) {
            Ok(at) => sys::munmap(at, sys::PAGE).map(|()| true),
            Err(libc::EOPNOTSUPP | libc::EINVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Copies whole cache lines past the caches. They are there for others once this returns.
///
/// # Safety
/// As of `copy_nonoverlapping`; both are aligned to 64, the length is a multiple of it.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(to: usize, from: &[u8]) {
    use core::arch::x86_64::{__m128i, _mm_load_si128, _mm_sfence, _mm_stream_si128};
    debug_assert!((to | from.as_ptr() as usize | from.len()).is_multiple_of(64));
    // SAFETY: the caller's; every x86-64 processor has these.
    unsafe {
        let (to, source) = (to as *mut __m128i, from.as_ptr() as usize as *const __m128i);
        for line in (0..from.len() / 16).step_by(4) {
            let words = [0, 1, 2, 3].map(|i| _mm_load_si128(source.add(line + i)));
            for (i, word) in words.into_iter().enumerate() {
                _mm_stream_si128(to.add(line + i), word);
            }
        }
        // Such stores are not ordered with others, not even with a releasing one.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_written_is_read_back_and_is_in_the_file() {
        let file = tempfile::tempfile().expect("a file");
        let mapping = Mapping::default();
        mapping.open(file.as_raw_fd(), 1 << 20).expect("a mapping");
        let at = sys::map_private(2 * sys::PAGE).expect("memory");
        // SAFETY: our own mapping, which nobody else knows.
        let pages = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, 2 * sys::PAGE) };
        (0..pages.len()).for_each(|i| pages[i] = (i * 7 % 251) as u8);
        // SAFETY: nobody reads it now, and nobody writes it afterwards.
        let (error, read) = unsafe {
            let error = mapping.write(file.as_raw_fd(), pages, 3 * sys::PAGE as u64);
            (error, mapping.bytes(3 * sys::PAGE as u64 + 5, 8000))
        };
        assert_eq!(error, 0);
        assert_eq!(read, Some(&pages[5..8005]));
        let mut there = vec![0; pages.len()];
        file.read_exact_at(&mut there, 3 * sys::PAGE as u64).expect("pages");
        assert_eq!(there, pages);
    }

    /// What lies beyond the file would be a signal.
    #[test]
    fn there_is_nothing_beyond_the_end_and_nothing_once_it_is_closed() {
        let file = tempfile::tempfile().expect("a file");
        let mapping = Mapping::default();
        // SAFETY: nothing is returned, or nothing is written.
        let bytes = |start, len| unsafe { mapping.bytes(start, len) };
        assert!(!mapping.is_open() && bytes(0, 1).is_none());
        mapping.open(file.as_raw_fd(), 8192).expect("a mapping");
        assert!(bytes(8191, 1).is_some() && bytes(8191, 2).is_none());
        assert!(bytes(u64::MAX, 2).is_none());
        mapping.close();
        assert!(!mapping.is_open() && bytes(0, 1).is_none());
    }

    /// A line of `/proc/self/smaps` for the mapping that begins at an address, KiB.
    fn smaps(at: usize, what: &str) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("procfs");
        let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&format!("{at:08x}-")));
        let line = lines.find(|line| line.starts_with(what)).expect("it is mapped");
        line.split_whitespace().nth(1).expect("a figure").parse().expect("a number")
    }

    /// Were all of a large file mapped, a program that locks its memory would lock the file.
    #[test]
    fn what_is_mapped_is_what_is_used_and_is_not_locked() {
        let file = tempfile::tempfile().expect("a file");
        let mapping = Mapping::default();
        let whole = 64 << 30;
        mapping.open(file.as_raw_fd(), whole).expect("a mapping");
        let at = mapping.at.load(Relaxed);
        let pages = sys::map_private(sys::PAGE).expect("memory");
        // SAFETY: our own mapping, which nobody writes to.
        let page = unsafe { core::slice::from_raw_parts(pages as *const u8, sys::PAGE) };

        let before = smaps(at, "Size:");
        // SAFETY: nobody reads it.
        assert_eq!(unsafe { mapping.write(file.as_raw_fd(), page, PIECE as u64) }, 0);
        let after = smaps(at, "Size:");
        // SAFETY: locks and unlocks memory of ours. As `mlockall` does, of one mapping.
        let locked = unsafe { libc::mlock(at as *const libc::c_void, sys::PAGE) };
        mapping.unlock();

        assert_eq!((before, after), (PIECE >> 10, (2 * PIECE) >> 10), "KiB");
        assert_eq!(file.metadata().expect("open").len(), (PIECE + sys::PAGE) as u64);
        assert_eq!(locked, 0);
        assert_eq!(smaps(at, "Locked:"), 0);
        mapping.close();
    }

    /// A child of a child of a child has a file of its own, at the same place.
    #[test]
    fn the_next_file_lies_where_the_first_one_lay() {
        let mapping = Mapping::default();
        let places = [1, 2].map(|_| {
            let file = tempfile::tempfile().expect("a file");
            mapping.open(file.as_raw_fd(), 1 << 20).expect("a mapping");
            mapping.close();
            mapping.at.load(Relaxed)
        });
        assert_eq!(places[0], places[1]);
    }
}
