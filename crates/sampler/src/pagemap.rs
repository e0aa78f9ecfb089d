//! A process's page table, as the kernel shows it: `/proc/PID/pagemap`.
//!
//! Linux 6.7 and newer answer in runs (`PAGEMAP_SCAN`), about 1 ns for a page
//! that is of no interest; older ones a word a page.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// Size of the pages that the kernel counts in.
pub const PAGE: u64 = 4096;

/// Properties of a page, with the bits of `linux/fs.h` (`PAGE_IS_*`).
pub mod is {
    /// Not write-protected through a userfaultfd: stored to since it was, or never protected.
    pub const WRITTEN: u64 = 1 << 1;
    /// Of a file, or shared.
    pub const FILE: u64 = 1 << 2;
    /// In memory.
    pub const PRESENT: u64 = 1 << 3;
    /// In swap.
    pub const SWAPPED: u64 = 1 << 4;
    /// The kernel's page of zeros.
    pub const ZERO: u64 = 1 << 5;
    /// Part of a huge page.
    pub const HUGE: u64 = 1 << 6;
    /// Written since the soft-dirty bits were cleared.
    pub const SOFT_DIRTY: u64 = 1 << 7;
    /// In a range registered for read-write protection, and not protected: accessed since it
    /// was, or never protected (`PAGE_IS_ACCESSED`, newer than Linux 6.18).
    pub const ACCESSED: u64 = 1 << 9;
}

/// Consecutive pages of the same properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Run {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// What they are: bits of [`is`].
    pub flags: u64,
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
/// Write-protect what matched.
const PM_SCAN_WP_MATCHING: u64 = 1;

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Pages that have any of these properties.
    pub any: u64,
    /// Which properties to tell.
    pub tell: u64,
    /// Whether to write-protect what was found, in the same step: where writes are tracked by
    /// the kernel alone, else what was found is passed over.
    pub protect: bool,
}

/// Finds pages in a range of the process whose `/proc/PID/pagemap` is open as `fd`; calls `each`
/// for every run of them, in order. Allocates nothing: the kernel answers into `found`, as often
/// as that takes.
///
/// # Errors
/// The kernel's: `ENOTTY` before Linux 6.7, `EINVAL` for a property that it does not know.
pub fn scan(
    fd: RawFd,
    start: u64,
    end: u64,
    query: Query,
    found: &mut [Run],
    each: &mut dyn FnMut(Run),
) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: if query.protect { PM_SCAN_WP_MATCHING } else { 0 },
            start: at,
            end,
            walk_end: 0,
            // Without a place for answers the kernel would protect whatever is in the range,
            // holes included.
            vec: found.as_mut_ptr() as u64,
            vec_len: found.len() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: query.any,
            return_mask: query.tell,
        };
        // SAFETY: `arg` is what the request reads and writes; its vector is ours and has that
        // many places.
        let n = unsafe { libc::ioctl(fd, PAGEMAP_SCAN, &raw mut arg) };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        for run in &found[..n as usize] {
            each(*run);
        }
        if arg.walk_end <= at {
            break;
        }
        at = arg.walk_end;
    }
    Ok(())
}

/// The page table of a process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    scans: bool,
    found: Vec<Run>,
}

/// Runs that one call to the kernel returns at most.
const RUNS: usize = 512;

impl Pagemap {
    /// Opens a process's page table.
    pub fn open(process: u32) -> io::Result<Self> {
        let file = File::open(format!("/proc/{process}/pagemap"))?;
        Ok(Self { file, scans: true, found: vec![Run::default(); RUNS] })
    }

    /// Finds pages in a range; calls `each` for every run of them, in order.
    pub fn scan(
        &mut self,
        start: u64,
        end: u64,
        query: Query,
        each: &mut dyn FnMut(Run),
    ) -> io::Result<()> {
        if !self.scans {
            return self.read_entries(start, end, query, each);
        }
        let result = scan(self.file.as_raw_fd(), start, end, query, &mut self.found, each);
        match result {
            // A kernel that does not know the request; nothing was told yet.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) && !query.protect => {
                self.scans = false;
                self.read_entries(start, end, query, each)
            }
            other => other,
        }
    }

    /// The same, a word a page.
    fn read_entries(
        &self,
        start: u64,
        end: u64,
        query: Query,
        each: &mut dyn FnMut(Run),
    ) -> io::Result<()> {
        let mut bytes = [0u8; 8 * 512];
        let mut run = Run { start, end: start, flags: 0 };
        let mut at = start;
        while at < end {
            let want = (((end - at) / PAGE) as usize * 8).min(bytes.len());
            let got = self.file.read_at(&mut bytes[..want], at / PAGE * 8)?;
            if got < 8 {
                break;
            }
            for entry in bytes[..got - got % 8].as_chunks::<8>().0 {
                let flags = flags_of(u64::from_ne_bytes(*entry));
                let told = if flags & query.any == 0 { 0 } else { flags & query.tell };
                if told != run.flags || run.end != at {
                    if run.flags != 0 {
                        each(run);
                    }
                    run = Run { start: at, end: at, flags: told };
                }
                run.end = at + PAGE;
                at += PAGE;
            }
        }
        if run.flags != 0 {
            each(run);
        }
        Ok(())
    }
}

/// The properties that a word of `/proc/PID/pagemap` tells
/// (`Documentation/admin-guide/mm/pagemap.rst`).
fn flags_of(entry: u64) -> u64 {
    let bit = |from: u32, to: u64| if entry >> from & 1 != 0 { to } else { 0 };
    bit(63, is::PRESENT) | bit(62, is::SWAPPED) | bit(61, is::FILE) | bit(55, is::SOFT_DIRTY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers and layout of `linux/fs.h`, by the formula of `asm-generic/ioctl.h`.
    #[test]
    fn the_request_is_the_kernel_s() {
        let iowr = |group: u8, nr: u64, size: usize| {
            3 << 30 | (size as u64) << 16 | u64::from(group) << 8 | nr
        };
        assert_eq!(PAGEMAP_SCAN, iowr(b'f', 16, size_of::<ScanArg>()));
        assert_eq!((size_of::<ScanArg>(), size_of::<Run>()), (96, 24));
        assert_eq!(core::mem::offset_of!(ScanArg, walk_end), 32);
        assert_eq!(core::mem::offset_of!(ScanArg, return_mask), 88);
    }

    struct Mapping(*mut u8, usize);

    impl Mapping {
        fn new(pages: usize) -> Self {
            let len = pages * PAGE as usize;
            // SAFETY: a new mapping harms nothing.
            let at = unsafe {
                libc::mmap(
                    core::ptr::null_mut(),
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            assert_ne!(at, libc::MAP_FAILED);
            // Single pages, not a huge one.
            // SAFETY: advice on our own mapping.
            unsafe { libc::madvise(at, len, libc::MADV_NOHUGEPAGE) };
            Self(at.cast(), len)
        }
        fn touch(&self, page: usize) {
            // SAFETY: within the mapping.
            unsafe { self.0.add(page * PAGE as usize).write_volatile(1) };
        }
        fn range(&self) -> (u64, u64) {
            (self.0 as u64, self.0 as u64 + self.1 as u64)
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: our own mapping, no longer used.
            unsafe { libc::munmap(self.0.cast(), self.1) };
        }
    }

    #[test]
    fn both_ways_to_ask_find_the_pages_that_were_touched() {
        let memory = Mapping::new(2000);
        let (start, end) = memory.range();
        for page in [3, 4, 9, 1999] {
            memory.touch(page);
        }
        let mut pagemap = Pagemap::open(std::process::id()).expect("our own page table");
        for scans in [true, false] {
            pagemap.scans = scans;
            let mut runs = Vec::new();
            let query = Query { any: is::PRESENT, tell: is::PRESENT, protect: false };
            pagemap
                .scan(start, end, query, &mut |run| {
                    assert_eq!(run.flags, is::PRESENT);
                    runs.push(((run.start - start) / PAGE, (run.end - run.start) / PAGE));
                })
                .expect("a scan");
            assert_eq!(runs, [(3, 2), (9, 1), (1999, 1)], "scans: {scans}");
        }
    }

    /// More runs than one call returns: the second call must begin where the
    /// first ended, or half of a large program is never seen.
    #[test]
    fn a_scan_goes_on_when_the_kernel_s_answer_is_full() {
        let memory = Mapping::new(4 * RUNS);
        for page in (0..4 * RUNS).step_by(2) {
            memory.touch(page);
        }
        let (start, end) = memory.range();
        let mut pagemap = Pagemap::open(std::process::id()).expect("our own page table");
        let mut pages = 0;
        let query = Query { any: is::PRESENT, tell: is::PRESENT, protect: false };
        pagemap
            .scan(start, end, query, &mut |run| pages += (run.end - run.start) / PAGE)
            .expect("a scan");
        assert_eq!(pages as usize, 2 * RUNS);
    }
}
