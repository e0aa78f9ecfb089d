//! Counting page walks: how often the program's accesses miss the TLB.
//!
//! Nothing is sampled: one number for all threads of a process, read now and then, at no
//! cost to the program. The kernel's generic events `dTLB-load-misses` and
//! `dTLB-store-misses` count walks on Intel and AMD processors; virtual machines mostly
//! hide them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;

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
/// `PERF_TYPE_RAW`
const RAW: u32 = 4;

/// Cycles in which a page walk for data is under way: raw events of loads and of stores. Recalled
/// from Intel's lists of events; none of AMD's counts cycles.
///
/// | processors | event |
/// |---|---|
/// | Haswell, Broadwell | `dtlb_*_misses.walk_duration`: 08h and 49h, umask 10h |
/// | Skylake to Ice Lake and Tiger Lake | `dtlb_*_misses.walk_active`: the same, counter mask 1 |
/// | Alder Lake, Sapphire Rapids and later | `dtlb_*_misses.walk_active`: 12h and 13h, umask 10h, counter mask 1 |
pub fn walk_cycle_events(vendor: &str, family: u32, model: u32) -> Option<[u64; 2]> {
    const MASK_1: u64 = 1 << 24;
    const UMASK_10: u64 = 0x10 << 8;
    if vendor != "GenuineIntel" || family != 6 {
        return None;
    }
    match model {
        0x3c | 0x3f | 0x45 | 0x46 | 0x3d | 0x47 | 0x4f | 0x56 => {
            Some([0x08 | UMASK_10, 0x49 | UMASK_10])
        }
        0x4e | 0x5e | 0x55 | 0x8e | 0x9e | 0xa5 | 0xa6 | 0x66 | 0x6a | 0x6c | 0x7d | 0x7e
        | 0x8c | 0x8d | 0xa7 => Some([0x08 | UMASK_10 | MASK_1, 0x49 | UMASK_10 | MASK_1]),
        0x97 | 0x9a | 0xb7 | 0xba | 0xbf | 0x8f | 0xcf | 0xad | 0xae | 0xaa | 0xac => {
            Some([0x12 | UMASK_10 | MASK_1, 0x13 | UMASK_10 | MASK_1])
        }
        _ => None,
    }
}

/// Vendor, family and model of this machine's processor, as `/proc/cpuinfo` has them.
pub fn processor_in(cpuinfo: &str) -> Option<(String, u32, u32)> {
    let field = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    Some((field("vendor_id")?, field("cpu family")?.parse().ok()?, field("model")?.parse().ok()?))
}

/// What is counted of a program's page walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walks {
    /// Cycles in which one is under way.
    Cycles(u64),
    /// How many there are.
    Number(u64),
}

/// A program that is started so has no transparent huge pages, and what it starts has none.
pub fn without_huge_pages(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;

    // SAFETY: one system call, between fork and exec; it survives exec.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        })
    }
}

/// Counts the page walks of what this thread starts from now on, and of all that comes of it: in
/// user mode only.
#[derive(Debug)]
pub struct Started {
    counter: Counter,
    cycles: bool,
}

impl Started {
    /// From now on: cycles where the processor counts them, else walks.
    ///
    /// # Errors
    /// If the processor or the kernel counts neither, or not for this user.
    pub fn count() -> io::Result<Self> {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let events = processor_in(&cpuinfo)
            .and_then(|(vendor, family, model)| walk_cycle_events(&vendor, family, model));
        if let Some([loads, stores]) = events
            && let Ok(counter) = Counter::inherited([(RAW, loads), (RAW, stores)])
        {
            return Ok(Self { counter, cycles: true });
        }
        let counter =
            Counter::inherited([(HW_CACHE, DTLB_LOAD_MISSES), (HW_CACHE, DTLB_STORE_MISSES)])?;
        Ok(Self { counter, cycles: false })
    }

    /// What there was so far; of programs that have ended, all.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn read(&self) -> io::Result<Walks> {
        let count = self.counter.read()?;
        Ok(if self.cycles { Walks::Cycles(count) } else { Walks::Number(count) })
    }
}

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

    /// Events of the calling thread and of all that it starts.
    fn inherited(events: [(u32, u64); 2]) -> io::Result<Self> {
        let open = |(kind, config)| {
            let attr = Attr {
                kind,
                size: size_of::<Attr>() as u32,
                config,
                read_format: TIMES,
                flags: INHERIT | EXCLUDE_KERNEL | EXCLUDE_HV,
                ..Attr::default()
            };
            open_attr(&attr, 0, -1)
        };
        Ok(Self { events: events.into_iter().map(open).collect::<io::Result<_>>()? })
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

    /// Programs that are started are counted, and what they started.
    #[test]
    fn what_a_started_program_does_is_counted_when_it_has_ended() {
        let faults = match Counter::inherited([PAGE_FAULTS, PAGE_FAULTS]) {
            Ok(faults) => faults,
            Err(e) => {
                terrace_shown::is_missing(&format!("perf_event_open ({e})"));
                return;
            }
        };
        let before = faults.read().expect("a count");
        let started = std::process::Command::new("sh").args(["-c", "true; sh -c true"]).status();
        assert!(started.expect("a shell").success());
        // Each program has some tens of faults of its own, and there are two counters.
        let came = faults.read().expect("a count") - before;
        assert!(came > 100, "{came}");
    }

    #[test]
    fn events_are_those_of_the_processor() {
        let skylake = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n\
                       model name\t: Intel(R) Xeon(R) Silver 4114\n";
        let (vendor, family, model) = processor_in(skylake).expect("all of it is there");
        assert_eq!((&*vendor, family, model), ("GenuineIntel", 6, 85));
        // As perf's own lists have it: cpu/event=0x8,umask=0x10,cmask=1/.
        assert_eq!(walk_cycle_events(&vendor, family, model), Some([0x0100_1008, 0x0100_1049]));
        assert_eq!(walk_cycle_events("GenuineIntel", 6, 0x8f), Some([0x0100_1012, 0x0100_1013]));
        assert_eq!(walk_cycle_events("GenuineIntel", 6, 0x4f), Some([0x1008, 0x1049]));
        assert_eq!(walk_cycle_events("GenuineIntel", 6, 0xffff), None, "not known yet");
        assert_eq!(walk_cycle_events("AuthenticAMD", 0x19, 1), None);
        assert_eq!(processor_in("nothing"), None);
    }

    #[test]
    fn a_count_is_extrapolated_over_the_time_in_which_others_counted() {
        assert_eq!(extrapolated([100, 4_000, 1_000]), 400);
        assert_eq!(extrapolated([100, 1_000, 1_000]), 100);
        assert_eq!(extrapolated([0, 1_000, 0]), 0, "never ran");
        assert_eq!(extrapolated([u64::MAX, u64::MAX, 1]), u64::MAX);
    }
}
