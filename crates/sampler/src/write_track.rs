//! Writes, seen from inside: asynchronous write protection by userfaultfd, and
//! `PAGEMAP_SCAN`, which tells what was written and protects it again in one
//! step, so that no write is missed.
//!
//! Costs the program about 1 µs for the first write to each page after a look
//! (the kernel resolves it alone), and us some 20 ns a page that was written.
//! Only the process itself can ask for it, so it serves programs that Terrace
//! has loaded its library into, not `attach`.

use core::ffi::c_ulong;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use terrace_core::{Access, Nanos, Sample, SampleSource};

use crate::pagemap::{Pagemap, Query, is};
use crate::sampler::{ACCESSES_A_BIT, Health, Pages, ProcessRange, Sampler, SamplerError};
use crate::sys::thread_cpu;

// Numbers and layouts of `linux/userfaultfd.h`.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: c_ulong = 0x8010_aa01;
const USERFAULTFD_IOC_NEW: c_ulong = 0xaa00;
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const REGISTER_MODE_WP: u64 = 1 << 1;
/// Pages that were never touched can be protected, too.
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
/// The kernel resolves faults on protected pages by itself.
const FEATURE_WP_ASYNC: u64 = 1 << 15;

/// Time between two looks, before the governor makes it longer.
const INTERVAL: Nanos = Nanos::millis(200);

/// Write tracking of ranges of this process.
#[derive(Debug)]
pub struct WriteTracker {
    handle: OwnedFd,
    pagemap: Pagemap,
}

impl WriteTracker {
    /// A tracker without ranges.
    pub fn new() -> io::Result<Self> {
        let handle = open_handle()?;
        let mut api = [UFFD_API, FEATURE_WP_ASYNC | FEATURE_WP_UNPOPULATED, 0u64];
        request(&handle, UFFDIO_API, &mut api)?;
        Ok(Self { handle, pagemap: Pagemap::open(std::process::id())? })
    }

    /// Begins to track a range of whole pages; everything in it counts as
    /// unwritten from now on.
    pub fn track(&mut self, start: u64, end: u64) -> io::Result<()> {
        let mut register = [start, end - start, REGISTER_MODE_WP, 0u64];
        request(&self.handle, UFFDIO_REGISTER, &mut register)?;
        self.written(start, end, &mut |_, _| {})
    }

    /// Ends tracking a range.
    pub fn untrack(&mut self, start: u64, end: u64) -> io::Result<()> {
        request(&self.handle, UFFDIO_UNREGISTER, &mut [start, end - start])
    }

    /// Calls `each` with the runs of pages that were written since the last
    /// call, and protects them again.
    pub fn written(
        &mut self,
        start: u64,
        end: u64,
        each: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        let query = Query { any: is::WRITTEN, tell: is::WRITTEN, protect: true };
        self.pagemap.scan(start, end, query, &mut |run| each(run.start, run.end))
    }
}

fn open_handle() -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // Nobody waits for us here, so faults of system calls need no privilege:
    // the handle for user mode alone is enough where the others are refused.
    for flags in [flags, flags | UFFD_USER_MODE_ONLY] {
        // SAFETY: takes flags and returns a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd >= 0 {
            // SAFETY: a new descriptor that nobody else owns.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) });
        }
    }
    let refused = io::Error::last_os_error();
    let Ok(device) = File::options().read(true).write(true).open("/dev/userfaultfd") else {
        return Err(refused);
    };
    // SAFETY: this request takes flags and returns a descriptor.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn request<T>(handle: &OwnedFd, request: c_ulong, arg: &mut T) -> io::Result<()> {
    // SAFETY: `arg` is the structure that the request reads and writes.
    let r = unsafe { libc::ioctl(handle.as_raw_fd(), request, core::ptr::from_mut(arg)) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// [`WriteTracker`] as a sampler of this process's managed memory.
#[derive(Debug)]
pub struct WriteTrack {
    tracker: WriteTracker,
    tracked: Vec<ProcessRange>,
    next: Nanos,
    rarity: u32,
    health: Health,
}

impl WriteTrack {
    const NAME: &'static str = "PAGEMAP_SCAN";

    /// A sampler that tracks nothing yet.
    pub fn new() -> Result<Self, SamplerError> {
        let tracker = WriteTracker::new().map_err(|e| SamplerError::new(Self::NAME, e))?;
        Ok(Self {
            tracker,
            tracked: Vec::new(),
            next: Nanos::ZERO,
            rarity: 1,
            health: Health::default(),
        })
    }

    /// Whether the kernel and our privileges allow it: asked by doing it.
    pub fn supported() -> Result<(), String> {
        WriteTracker::new().map(|_| ()).map_err(|e| e.to_string())
    }
}

impl Sampler for WriteTrack {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn period(&self) -> u64 {
        ACCESSES_A_BIT
    }

    fn collect(
        &mut self,
        now: Nanos,
        pages: &dyn Pages,
        out: &mut Vec<Sample>,
    ) -> Result<(), SamplerError> {
        if now < self.next {
            return Ok(());
        }
        let (cpu, before) = (thread_cpu(), out.len());
        let failed = |e: io::Error| SamplerError::new(Self::NAME, e);
        let me = std::process::id();
        let ranges: Vec<_> = pages.ranges().into_iter().filter(|r| r.process == me).collect();
        for range in &ranges {
            if self.tracked.contains(range) {
                let each = &mut |start, end| {
                    pages.pages_in(ProcessRange { start, end, ..*range }, &mut |page| {
                        let source = SampleSource::WriteTrack;
                        out.push(Sample { page, access: Access::Write, source, weight: 1 });
                    });
                };
                self.tracker.written(range.start, range.end, each).map_err(failed)?;
            } else {
                self.tracker.track(range.start, range.end).map_err(failed)?;
            }
        }
        self.tracked = ranges;
        self.next = now + INTERVAL * u64::from(self.rarity);
        self.health.delivered += (out.len() - before) as u64;
        self.health.cpu += thread_cpu().saturating_sub(cpu);
        Ok(())
    }

    fn set_rarity(&mut self, factor: u32) {
        self.rarity = factor;
    }

    fn health(&self) -> Health {
        self.health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write that is told twice, or not at all, is a wrong picture of what
    /// is written; a tracked page must also keep its content.
    #[test]
    fn exactly_the_pages_that_were_written_since_the_last_look_are_told() {
        const PAGES: usize = 512;
        const PAGE: usize = 4096;
        let mut tracker = match WriteTracker::new() {
            Ok(tracker) => tracker,
            Err(e) => {
                eprintln!("SKIPPED: userfaultfd with WP_ASYNC: {e}");
                return;
            }
        };
        // SAFETY: a new mapping harms nothing; advice on it neither.
        let at = unsafe {
            let at = libc::mmap(
                core::ptr::null_mut(),
                PAGES * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, PAGES * PAGE, libc::MADV_NOHUGEPAGE);
            at.cast::<u8>()
        };
        // SAFETY: within the mapping.
        let write = |page: usize, value: u8| unsafe { at.add(page * PAGE).write_volatile(value) };
        // SAFETY: within the mapping.
        let read = |page: usize| unsafe { at.add(page * PAGE).read_volatile() };
        (0..PAGES / 2).for_each(|page| write(page, page as u8));
        let (start, end) = (at as u64, at as u64 + (PAGES * PAGE) as u64);
        tracker.track(start, end).expect("tracking");
        let mut written = || {
            let mut pages = Vec::new();
            let each = &mut |from: u64, to: u64| {
                pages.extend((from..to).step_by(PAGE).map(|a| (a - start) as usize / PAGE));
            };
            tracker.written(start, end, each).expect("a look");
            pages
        };

        assert!(written().is_empty(), "what was written before counts as unwritten");
        for page in [7, 8, 300] {
            write(page, 1);
        }
        assert_eq!((read(9), read(400)), (9, 0), "reading is not writing");
        assert_eq!(written(), [7, 8, 300], "also a page that had never been touched");
        assert!(written().is_empty(), "told once");
        write(8, 2);
        assert_eq!(written(), [8]);
        assert_eq!((read(7), read(8), read(300)), (1, 2, 1));
        tracker.untrack(start, end).expect("the end");
    }
}
