//! Writes, seen from outside: the kernel's soft-dirty bits.
//!
//! Clearing them (`/proc/PID/clear_refs`) write-protects the process's pages;
//! the next write to each costs the program one small fault in the kernel and
//! sets the bit. Whole processes only, and writes only; but it needs nothing
//! of the program, and tells every single page.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::ops::Range;

use terrace_core::{Access, Nanos, Sample, SampleSource};

use crate::attribution::{Cursor, Stores};
use crate::pagemap::{PAGE, Pagemap, Query, is};
use crate::sampler::{ACCESSES_A_BIT, Health, Pages, ProcessRange, Sampler, SamplerError};
use crate::sys::thread_cpu;

/// Time between two looks, unless they rest for longer to pay for the last one. A look costs
/// the program a fault for every page that it goes on to write, so this is
/// what bounds the cost on its side.
const INTERVAL: Nanos = Nanos::millis(500);

/// What the first store to a page after a look costs the program: a fault that only sets bits
/// (some 0.5 to 1 µs on hardware, more where a hypervisor watches page tables).
const FAULT: Nanos = Nanos::micros(1);

/// Writes by soft-dirty bits.
#[derive(Debug)]
pub struct SoftDirty {
    /// What the last looks have found.
    stores: Stores,
    /// Those whose bits were cleared before.
    processes: BTreeSet<u32>,
    next: Nanos,
    health: Health,
}

impl SoftDirty {
    /// A sampler that has looked at nothing yet; what it finds can be read in `stores`.
    pub fn new(stores: Stores) -> Self {
        let (processes, next, health) = (BTreeSet::new(), Nanos::ZERO, Health::default());
        Self { stores, processes, next, health }
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
            let mut stored: Vec<Range<u64>> = Vec::new();
            for range in ranges {
                pagemap.scan(
                    range.start,
                    range.end,
                    query,
                    &mut |run| match stored.last_mut() {
                        Some(last) if last.end == run.start => last.end = run.end,
                        _ => stored.push(run.start..run.end),
                    },
                )?;
            }
            tell(process, &stored, pages, out);
            self.stores.replace(process, stored);
        }
        // 4 clears the soft-dirty bits (`Documentation/filesystems/proc.rst`).
        fs::write(format!("/proc/{process}/clear_refs"), "4")
    }
}

/// Pages of others between two that are asked for at once: less than a question costs.
const GAP: u64 = 16 * PAGE;

/// Samples of what was stored to.
fn tell(process: u32, stored: &[Range<u64>], pages: &dyn Pages, out: &mut Vec<Sample>) {
    for near in stored.chunk_by(|a, b| b.start - a.end <= GAP) {
        let range = ProcessRange { process, start: near[0].start, end: near[near.len() - 1].end };
        let mut cursor = Cursor::new(near);
        pages.pages_in(range, &mut |page, bytes| {
            if cursor.touches(&bytes) {
                let (access, source) = (Access::Write, SampleSource::WriteTrack);
                out.push(Sample { page, access, source, weight: 1 });
            }
        });
    }
}

impl Drop for SoftDirty {
    /// Nobody looks any more: what was found last would soon be wrong.
    fn drop(&mut self) {
        self.stores.retain(|_| false);
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
        self.stores.retain(|process| self.processes.contains(&process));
        self.next = now + INTERVAL;
        let written = (out.len() - before) as u64;
        self.health.delivered += written;
        // The program has paid for each as well, on our behalf.
        self.health.cpu += thread_cpu().saturating_sub(cpu) + FAULT * written;
        Ok(())
    }

    fn set_rarity(&mut self, _factor: u32) {
        // A look costs the same after a longer time: every page in use is stored to again. So it
        // is resting that keeps looks within their share of the cost; to be rarer besides, for
        // one dear look, kept the next one away for a minute.
    }

    fn sees_loads(&self) -> bool {
        false
    }

    fn health(&self) -> Health {
        self.health
    }
}
