//! Counting page walks: how often the program's accesses miss the TLB.
//!
//! Nothing is sampled: one number for all threads of a process, read now and then, at no
//! cost to the program. The kernel's generic events `dTLB-load-misses` and
//! `dTLB-store-misses` count walks on Intel and AMD processors; virtual machines mostly
//! hide them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::ring::{Attr, EXCLUDE_HV, EXCLUDE_KERNEL, open_attr};
use super::threads;

/// `PERF_TYPE_HW_CACHE`
const HW_CACHE: u32 = 3;
/// `PERF_COUNT_HW_CACHE_DTLB`, misses (`PERF_COUNT_HW_CACHE_RESULT_MISS`) of loads.
const DTLB_LOAD_MISSES: u64 = 3 | 1 << 16;
/// The same of stores (`PERF_COUNT_HW_CACHE_OP_WRITE`).
const DTLB_STORE_MISSES: u64 = 3 | 1 << 8 | 1 << 16;

/// `perf_event_attr.inherit`: threads that are made later count as well.
const INHERIT: u64 = 1 << 1;
/// `perf_event_attr.inherit_thread` (Linux 5.13): but not processes.
const INHERIT_THREAD: u64 = 1 << 35;
/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `PERF_FORMAT_TOTAL_TIME_RUNNING`: counters may
/// have to share the hardware.
const TIMES: u64 = 1 | 2;
/// More threads than this are not counted: a descriptor each would be too many.
const MOST: usize = 32;
/// Counts events of all threads of a process, the kernel's part left out.
#[derive(Debug)]
pub struct Counter {
    events: Vec<OwnedFd>,
}

impl Counter {
    /// Counts this process's page walks from now on, but for those of threads for which
    /// `ours` says so.
    ///
    /// # Errors
    /// If the processor or the kernel does not count them, or not for this user; or if
    /// there are more than 32 threads.
    pub fn page_walks(ours: impl Fn(u32) -> bool) -> io::Result<Self> {
        let threads = own_threads(ours)?;
        let loads = Self::open(HW_CACHE, DTLB_LOAD_MISSES, &threads)?;
        // Processors that cannot count those of stores have most of the walks all the same.
        let stores = Self::open(HW_CACHE, DTLB_STORE_MISSES, &threads);
        let events = loads.events.into_iter().chain(stores.into_iter().flat_map(|c| c.events));
        Ok(Self { events: events.collect() })
    }

    fn open(kind: u32, config: u64, threads: &[u32]) -> io::Result<Self> {
        let mut events = Vec::with_capacity(threads.len());
        for &thread in threads {
            match open_event(kind, config, thread) {
                Ok(event) => events.push(event),
                // It has ended since.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Self { events })
    }

    /// How many there were so far. What could not be counted, since others counted
    /// meanwhile, is extrapolated.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn read(&self) -> io::Result<u64> {
        self.events.iter().try_fold(0u64, |sum, event| {
            let mut values = [0u64; 3];
            // SAFETY: reads three words into as many.
            let n = unsafe {
                libc::read(event.as_raw_fd(), values.as_mut_ptr().cast(), size_of_val(&values))
            };
            if n != size_of_val(&values) as isize {
                return Err(io::Error::last_os_error());
            }
            Ok(sum.saturating_add(extrapolated(values)))
        })
    }
}

/// What was counted, in the time in which the event was enabled instead of that in which
/// it ran.
fn extrapolated([count, enabled, running]: [u64; 3]) -> u64 {
    match running {
        0 => 0,
        _ => (u128::from(count) * u128::from(enabled.max(running)) / u128::from(running))
            .try_into()
            .unwrap_or(u64::MAX),
    }
}

/// The threads of this process but for some.
fn own_threads(but: impl Fn(u32) -> bool) -> io::Result<Vec<u32>> {
    let mut list = Vec::with_capacity(MOST + 1);
    threads::of(std::process::id(), |thread| {
        if list.len() <= MOST && !but(thread) {
            list.push(thread);
        }
    })?;
    match list.len() {
        1..=MOST => Ok(list),
        _ => Err(io::Error::other("too many threads to count for, or none")),
    }
}

fn open_event(kind: u32, config: u64, thread: u32) -> io::Result<OwnedFd> {
    let attr = Attr {
        kind,
        size: size_of::<Attr>() as u32,
        config,
        read_format: TIMES,
        flags: INHERIT | INHERIT_THREAD | EXCLUDE_KERNEL | EXCLUDE_HV,
        ..Attr::default()
    };
    open_attr(&attr, thread as i32, -1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `PERF_TYPE_SOFTWARE` and `PERF_COUNT_SW_PAGE_FAULTS`: what every machine counts.
    const PAGE_FAULTS: (u32, u64) = (1, 2);

    fn touch(pages: usize) {
        // SAFETY: a mapping of its own, touched within.
        unsafe {
            let len = pages * 4096;
            let (prot, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(core::ptr::null_mut(), len, prot, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::madvise(at, len, libc::MADV_NOHUGEPAGE);
            for page in 0..pages {
                at.cast::<u8>().add(page * 4096).write_volatile(1);
            }
            libc::munmap(at, len);
        }
    }

    #[test]
    fn threads_that_come_later_are_counted_and_ours_are_not() {
        let (kind, config) = PAGE_FAULTS;
        // SAFETY: has no memory effects.
        let here = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        let own = own_threads(|thread| thread != here).expect("this thread");
        assert_eq!(own, [here]);
        let counter = match Counter::open(kind, config, &own) {
            Ok(counter) => counter,
            Err(e) => {
                terrace_shown::is_missing(&format!("perf_event_open ({e})"));
                return;
            }
        };
        let before = counter.read().expect("a count");
        touch(100);
        std::thread::spawn(|| touch(1000)).join().expect("joined");
        let both = counter.read().expect("a count") - before;
        assert!((1100..1400).contains(&both), "{both}");
        assert!(own_threads(|_| true).is_err(), "nobody is left");
    }

    #[test]
    fn a_count_is_extrapolated_over_the_time_in_which_others_counted() {
        assert_eq!(extrapolated([100, 4_000, 1_000]), 400);
        assert_eq!(extrapolated([100, 1_000, 1_000]), 100);
        assert_eq!(extrapolated([0, 1_000, 0]), 0, "never ran");
        assert_eq!(extrapolated([u64::MAX, u64::MAX, 1]), u64::MAX);
    }
}
