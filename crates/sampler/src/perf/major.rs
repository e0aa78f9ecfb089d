//! Major faults, one by one, of any programs: which page had to come back, and when. In a program
//! whose memory lies in swap these are the accesses that the kernel itself waits for.
//!
//! Where that is allowed every processor is watched, which sees threads and children from their
//! first instruction on; else the threads of the processes, which are looked for again and again.

use std::io;

use terrace_core::Nanos;

use super::event::EventSpec;
use super::record::Record;
use super::ring::{Scope, Source, online_processors};
use super::threads;

/// Pages of a processor's ring: 512 KiB, some 10,000 faults. At 8 µs each that is a tenth of a
/// second.
const RING_PAGES: usize = 128;
/// The same of a thread's; the kernel lets a user lock little.
const THREAD_RING_PAGES: usize = 16;
/// How often threads are looked for.
const LOOK: Nanos = Nanos::millis(200);

/// A major fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MajorFault {
    /// The process.
    pub process: u32,
    /// The address that it touched.
    pub address: u64,
}

/// Watches for major faults.
#[derive(Debug)]
pub struct MajorFaults {
    sources: Vec<Source>,
    /// Threads that could not be watched, and are not tried again.
    refused: Vec<Scope>,
    /// How many there were.
    unwatched: u64,
    by_thread: bool,
    looked: Option<Nanos>,
    lost: u64,
}

impl MajorFaults {
    /// Begins to watch.
    ///
    /// # Errors
    /// The kernel's, if this user may watch nobody.
    pub fn open() -> io::Result<Self> {
        let by_processor: io::Result<Vec<_>> = online_processors()
            .into_iter()
            .map(|cpu| Self::source(Scope::Processor(cpu), RING_PAGES))
            .collect();
        if let Ok(sources) = by_processor {
            return Ok(Self::of(sources, false));
        }
        // What cannot be opened for this thread cannot be for others.
        Self::source(Scope::CALLER, 1)?;
        Ok(Self::of(Vec::new(), true))
    }

    fn of(sources: Vec<Source>, by_thread: bool) -> Self {
        Self { sources, refused: Vec::new(), unwatched: 0, by_thread, looked: None, lost: 0 }
    }

    fn source(scope: Scope, pages: usize) -> io::Result<Source> {
        let source = Source::open(&[EventSpec::major_faults()], scope, pages)?;
        source.enable()?;
        Ok(source)
    }

    /// Whether threads are watched one by one, so that the first faults of one that is new are
    /// not seen.
    pub fn is_by_thread(&self) -> bool {
        self.by_thread
    }

    /// Faults that the kernel could not tell of so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Threads that could not be watched so far.
    pub fn unwatched(&self) -> u64 {
        self.unwatched
    }

    /// Calls `each` with every fault of these processes (numbers in ascending order) since the
    /// last time, in each processor's order.
    ///
    /// # Errors
    /// If a thread cannot be watched, for the first such thread. The others' faults were told.
    pub fn collect(
        &mut self,
        now: Nanos,
        processes: &[u32],
        mut each: impl FnMut(MajorFault),
    ) -> io::Result<()> {
        let looked = if self.by_thread { self.look_for_threads(now, processes) } else { Ok(()) };
        for source in &self.sources {
            let corrupt = source.drain(|record| match record {
                Record::Sample(record) if processes.binary_search(&record.process).is_ok() => {
                    each(MajorFault { process: record.process, address: record.address });
                }
                Record::Lost(count) => self.lost += count,
                _ => {}
            });
            self.lost += u64::from(corrupt);
        }
        looked
    }

    fn look_for_threads(&mut self, now: Nanos, processes: &[u32]) -> io::Result<()> {
        if self.looked.is_some_and(|at| now < at + LOOK) {
            return Ok(());
        }
        self.looked = Some(now);
        let mut there = Vec::new();
        for &process in processes {
            // Of one that is gone there are none.
            let _ = threads::of(process, |thread| there.push(Scope::Thread(thread)));
        }
        self.sources.retain(|source| there.contains(&source.scope()));
        self.refused.retain(|scope| there.contains(scope));
        let mut result = Ok(());
        for scope in there {
            let is_known = self.sources.iter().any(|source| source.scope() == scope)
                || self.refused.contains(&scope);
            if !is_known {
                match Self::source(scope, THREAD_RING_PAGES) {
                    Ok(source) => self.sources.push(source),
                    // It has ended since.
                    Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                    // Not allowed, or too many of them: the others are watched all the same.
                    Err(e) => {
                        self.refused.push(scope);
                        self.unwatched += 1;
                        if self.unwatched == 1 {
                            result = Err(e);
                        }
                    }
                }
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    /// A file's page that was dropped from memory comes back by a major fault, on every machine.
    #[test]
    fn a_major_fault_is_told_with_its_address_and_no_other_process_s() {
        let mut faults = match MajorFaults::open() {
            Ok(faults) => faults,
            Err(e) => {
                terrace_shown::is_missing(&format!("perf_event_open ({e})"));
                return;
            }
        };
        let us = std::process::id();
        faults.collect(Nanos(1), &[us], |_| ()).unwrap();
        let mut file: File = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[7; 4096]).unwrap();
        file.sync_all().unwrap();
        // SAFETY: a mapping of its own, of a file of that length; advice on a file of ours.
        let at = unsafe {
            libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
            let (prot, fd) = (libc::PROT_READ, file.as_raw_fd());
            libc::mmap(core::ptr::null_mut(), 4096, prot, libc::MAP_PRIVATE, fd, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);

        // SAFETY: mapped, and as long as the file.
        assert_eq!(unsafe { at.cast::<u8>().read_volatile() }, 7);

        let mut seen = Vec::new();
        faults.collect(Nanos::seconds(1), &[us], |fault| seen.push(fault)).unwrap();
        let ours = MajorFault { process: us, address: at as u64 };
        if !seen.contains(&ours) {
            // A file system in memory has no such faults.
            terrace_shown::is_missing("a file system that drops pages");
        }
        assert!(seen.iter().all(|fault| fault.process == us), "{seen:?}");
        // SAFETY: our own mapping.
        unsafe { libc::munmap(at, 4096) };
    }
}
