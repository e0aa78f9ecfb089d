//! Memory that programs had to put out themselves, since their control group was at its limit
//! (direct reclaim). The kernel counts that apart only under version 2 of control groups; it tells
//! of each by a tracepoint everywhere.

use std::io;
use std::path::Path;

use terrace_core::Bytes;

use super::record::Record;
use super::ring::{Scope, Source, online_processors};
use super::tracepoint::Tracepoint;

/// Pages of a processor's ring: 64 KiB, some 1,300 of them. Each takes 100 µs or more.
const RING_PAGES: usize = 16;
/// What the kernel counts in.
const PAGE: u64 = 4096;

/// One time that a thread put memory of its control group out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectReclaim {
    /// The process.
    pub process: u32,
    /// What was put out.
    pub bytes: Bytes,
}

/// Watches for them, by processor.
#[derive(Debug)]
pub struct DirectReclaims {
    sources: Vec<Source>,
    /// Where the tracepoint has what was put out.
    reclaimed: usize,
    lost: u64,
}

impl DirectReclaims {
    /// Begins to watch.
    ///
    /// # Errors
    /// If there is no such tracepoint, or this user may not watch everybody.
    pub fn open(root: &Path) -> io::Result<Self> {
        let missing = |lack: String| io::Error::new(io::ErrorKind::NotFound, lack);
        let point = Tracepoint::read(root, "vmscan", "mm_vmscan_memcg_reclaim_end");
        let point = point.map_err(missing)?;
        let field = point.field("nr_reclaimed", size_of::<u64>());
        let reclaimed = field.ok_or_else(|| missing("the tracepoint has other fields".into()))?;
        let source = |cpu| {
            let scope = Scope::Processor(cpu);
            let source = Source::open_tracepoint(point.number, scope, RING_PAGES)?;
            source.enable()?;
            Ok(source)
        };
        let sources =
            online_processors().into_iter().map(source).collect::<io::Result<Vec<_>>>()?;
        Ok(Self { sources, reclaimed, lost: 0 })
    }

    /// How many the kernel could not tell of so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Calls `each` with every one of these processes (numbers in ascending order) since the last
    /// time.
    pub fn collect(&mut self, processes: &[u32], mut each: impl FnMut(DirectReclaim)) {
        for source in &self.sources {
            let corrupt = source.drain(|record| match record {
                Record::Tracepoint(raw) if processes.binary_search(&raw.process()).is_ok() => {
                    let pages = raw.u64(self.reclaimed).unwrap_or(0);
                    each(DirectReclaim { process: raw.process(), bytes: Bytes(pages * PAGE) });
                }
                Record::Lost(count) => self.lost += count,
                _ => {}
            });
            self.lost += u64::from(corrupt);
        }
    }
}
