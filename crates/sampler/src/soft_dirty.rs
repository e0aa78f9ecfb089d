//! Writes, seen from outside: the kernel's soft-dirty bits.
//!
//! Clearing them (`/proc/PID/clear_refs`) write-protects the process's pages;
//! the next write to each costs the program one small fault in the kernel and
//! sets the bit. Whole processes only, and writes only; but it needs nothing
//! of the program, and tells every single page.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use terrace_core::{Access, Nanos, Sample, SampleSource};

use crate::pagemap::{PAGE, Pagemap, Query, is};
use crate::sampler::{ACCESSES_A_BIT, Health, Pages, ProcessRange, Sampler, SamplerError};
use crate::sys::thread_cpu;

/// Time between two looks, before the governor makes it longer. A look costs
/// the program a fault for every page that it goes on to write, so this is
/// what bounds the cost on its side.
const INTERVAL: Nanos = Nanos::millis(500);

/// What the first store to a page after a look costs the program: a fault that only sets bits
/// (some 0.5 to 1 µs on hardware, more where a hypervisor watches page tables).
const FAULT: Nanos = Nanos::micros(1);

/// Writes by soft-dirty bits.
#[derive(Debug)]
pub struct SoftDirty {
    /// Those whose bits were cleared before.
    processes: BTreeSet<u32>,
    next: Nanos,
    rarity: u32,
    health: Health,
}

impl Default for SoftDirty {
    fn default() -> Self {
        Self::new()
    }
}

impl SoftDirty {
    /// A sampler that has looked at nothing yet.
    pub fn new() -> Self {
        Self { processes: BTreeSet::new(), next: Nanos::ZERO, rarity: 1, health: Health::default() }
    }

    /// Whether the kernel keeps soft-dirty bits: those of a page that was just
    /// written must be set.
    pub fn supported() -> bool {
        let mut page = vec![0u8; 2 * PAGE as usize];
        let at = (page.as_mut_ptr() as u64).next_multiple_of(PAGE);
        let offset = (at - page.as_ptr() as u64) as usize;
        page[offset] = 1;
        std::hint::black_box(&page);
        let mut dirty = false;
        let query = Query { any: is::PRESENT, tell: is::SOFT_DIRTY, protect: false };
        let Ok(mut pagemap) = Pagemap::open(std::process::id()) else { return false };
        let asked = pagemap.scan(at, at + PAGE, query, &mut |run| {
            dirty |= run.flags & is::SOFT_DIRTY != 0;
        });
        asked.is_ok() && dirty
    }

    /// One process: tells what was written since the last time, and clears.
    fn look(
        &mut self,
        process: u32,
        ranges: &[ProcessRange],
        pages: &dyn Pages,
        out: &mut Vec<Sample>,
    ) -> io::Result<()> {
        // Opened each time: after the program has executed another, its page table is
        // another one. All bits of that are set once, as of memory that is new.
        let mut pagemap = Pagemap::open(process)?;
        let known = !self.processes.insert(process);
        // Bits of memory that was never cleared are all set: they say nothing.
        if known {
            let query = Query { any: is::SOFT_DIRTY, tell: is::SOFT_DIRTY, protect: false };
            for range in ranges {
                pagemap.scan(range.start, range.end, query, &mut |run| {
                    let range = ProcessRange { process, start: run.start, end: run.end };
                    pages.pages_in(range, &mut |page| {
                        out.push(Sample {
                            page,
                            access: Access::Write,
                            source: SampleSource::WriteTrack,
                            weight: 1,
                        });
                    });
                })?;
            }
        }
        // 4 clears the soft-dirty bits (`Documentation/filesystems/proc.rst`).
        fs::write(format!("/proc/{process}/clear_refs"), "4")
    }
}

impl Sampler for SoftDirty {
    fn name(&self) -> &'static str {
        "soft-dirty bits"
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
        let ranges = pages.ranges();
        for group in ranges.chunk_by(|a, b| a.process == b.process) {
            let process = group[0].process;
            if let Err(error) = self.look(process, group, pages, out) {
                self.processes.remove(&process);
                // A process may end at any moment; that is no fault of ours.
                if !matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) {
                    let what = format!("process {process}: {error}");
                    return Err(SamplerError::new(self.name(), what));
                }
            }
        }
        self.processes.retain(|process| ranges.iter().any(|r| r.process == *process));
        self.next = now + INTERVAL * u64::from(self.rarity);
        let written = (out.len() - before) as u64;
        self.health.delivered += written;
        // The program has paid for each as well, on our behalf.
        self.health.cpu += thread_cpu().saturating_sub(cpu) + FAULT * written;
        Ok(())
    }

    fn set_rarity(&mut self, factor: u32) {
        self.rarity = factor;
    }

    fn health(&self) -> Health {
        self.health
    }
}
