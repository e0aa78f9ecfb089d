//! What attach asks of the system, as a trait, so that the engine can be run
//! on memory that exists only in a test.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use terrace_core::Bytes;
use terrace_sampler::pagemap::{Pagemap, Query, Run, is};

use crate::numa::moves::{self, Place, ProcessHandle};
use crate::numa::nodes::{Latency, Nodes};
use crate::presence::{self, Mapping};

/// The system that programs run on.
pub trait Host {
    /// The mappings of a process whose pages may be moved, in order.
    fn mappings(&mut self, process: u32) -> io::Result<Vec<(u64, u64)>>;

    /// The pages of a range that have content, in memory or in swap; bits of
    /// [`terrace_sampler::pagemap::is`].
    fn content(
        &mut self,
        process: u32,
        start: u64,
        end: u64,
        each: &mut dyn FnMut(Run),
    ) -> io::Result<()>;

    /// Where pages are; adds one place for each.
    fn locate(&mut self, process: u32, pages: &[u64], places: &mut Vec<Place>) -> io::Result<()>;

    /// Moves pages to a node; adds where each is afterwards.
    fn relocate(
        &mut self,
        process: u32,
        pages: &[u64],
        node: u32,
        places: &mut Vec<Place>,
    ) -> io::Result<()>;

    /// Asks for ranges (start, length) to be put into swap.
    fn page_out(&mut self, process: u32, ranges: &[(u64, u64)]) -> io::Result<()>;

    /// What a node has, and what of it is free.
    fn node_memory(&mut self, node: u32) -> (Bytes, Bytes);

    /// What swap there is, and what of it is free.
    fn swap_memory(&mut self) -> (Bytes, Bytes);

    /// How far a node is.
    fn node_latency(&mut self, node: u32) -> Latency;

    /// The clock.
    fn now(&mut self) -> terrace_core::Nanos;
}

/// This machine.
#[derive(Debug)]
pub struct LinuxHost {
    nodes: Nodes,
    processes: BTreeMap<u32, Process>,
}

#[derive(Debug)]
struct Process {
    pagemap: Pagemap,
    handle: ProcessHandle,
}

impl Default for LinuxHost {
    fn default() -> Self {
        Self::new()
    }
}

impl LinuxHost {
    /// This machine.
    pub fn new() -> Self {
        Self { nodes: Nodes::new(Path::new("/")), processes: BTreeMap::new() }
    }

    fn process(&mut self, process: u32) -> io::Result<&mut Process> {
        use std::collections::btree_map::Entry;
        match self.processes.entry(process) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(Process {
                pagemap: Pagemap::open(process)?,
                handle: ProcessHandle::open(process)?,
            })),
        }
    }
}

impl Host for LinuxHost {
    fn mappings(&mut self, process: u32) -> io::Result<Vec<(u64, u64)>> {
        let text = std::fs::read(format!("/proc/{process}/maps"))?;
        let movable = |m: &Mapping| m.is_ordinary();
        Ok(text
            .split(|&byte| byte == b'\n')
            .filter_map(presence::parse)
            .filter(movable)
            .map(|m| (m.start as u64, m.end as u64))
            .collect())
    }

    fn content(
        &mut self,
        process: u32,
        start: u64,
        end: u64,
        each: &mut dyn FnMut(Run),
    ) -> io::Result<()> {
        let query = Query {
            any: is::PRESENT | is::SWAPPED,
            tell: is::PRESENT | is::SWAPPED | is::FILE | is::ZERO | is::HUGE,
            protect: false,
        };
        self.process(process)?.pagemap.scan(start, end, query, each)
    }

    fn locate(&mut self, process: u32, pages: &[u64], places: &mut Vec<Place>) -> io::Result<()> {
        moves::locate(process, pages, places)
    }

    fn relocate(
        &mut self,
        process: u32,
        pages: &[u64],
        node: u32,
        places: &mut Vec<Place>,
    ) -> io::Result<()> {
        moves::relocate(process, pages, node, places)
    }

    fn page_out(&mut self, process: u32, ranges: &[(u64, u64)]) -> io::Result<()> {
        self.process(process)?.handle.page_out(ranges)
    }

    fn node_memory(&mut self, node: u32) -> (Bytes, Bytes) {
        self.nodes.memory(node)
    }

    fn swap_memory(&mut self) -> (Bytes, Bytes) {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next())
                .and_then(|amount| amount.parse().ok())
                .map_or(Bytes::ZERO, Bytes::kib)
        };
        (field("SwapTotal:"), field("SwapFree:"))
    }

    fn node_latency(&mut self, node: u32) -> Latency {
        self.nodes.latency(node)
    }

    fn now(&mut self) -> terrace_core::Nanos {
        terrace_core::Nanos(crate::sys::now())
    }
}

/// A process is gone, rather than something being wrong.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}
