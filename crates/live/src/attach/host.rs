//! What attach asks of the system, as a trait, so that the engine can be run
//! on memory that exists only in a test.

use std::collections::BTreeMap;
use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::thread;

use terrace_core::{Bytes, Nanos};
use terrace_sampler::pagemap::{Pagemap, Query, Run, is};

use crate::numa::moves::{self, Place, ProcessHandle};
use crate::numa::nodes::{Latency, Nodes};
use crate::space::proc_maps::{self, Mapping};

/// The system that programs run on.
pub trait Host {
    /// The processes that there are: what is held of others can go.
    fn keep(&mut self, processes: &[u32]);

    /// The mappings of a process whose pages may be moved, in order. What is asked about
    /// it afterwards is asked of the address space that it has now.
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

    /// Moves pages to a node, by so many threads at once; adds where each is afterwards.
    fn relocate(
        &mut self,
        process: u32,
        pages: &[u64],
        node: u32,
        threads: u32,
        places: &mut Vec<Place>,
    ) -> io::Result<()>;

    /// Processor time of threads other than the caller's since the last call.
    fn take_helped(&mut self) -> Nanos {
        Nanos::ZERO
    }

    /// Asks for ranges (start, length) to be put into swap.
    fn page_out(&mut self, process: u32, ranges: &[(u64, u64)]) -> io::Result<()>;

    /// What a node has, and what of it is free.
    fn node_memory(&mut self, node: u32) -> (Bytes, Bytes);

    /// What swap there is, and what of it is free.
    fn swap_memory(&mut self) -> (Bytes, Bytes);

    /// Whether all swap is compressed RAM.
    fn swaps_to_zram(&mut self) -> bool;

    /// How far a node is.
    fn node_latency(&mut self, node: u32) -> Latency;

    /// The clock.
    fn now(&mut self) -> Nanos;
}

/// This machine.
#[derive(Debug)]
pub struct LinuxHost {
    nodes: Nodes,
    processes: BTreeMap<u32, Process>,
    /// Processor time of threads that helped to move pages.
    helped: Nanos,
}

/// Opened anew for every pass: a page table that was opened before the program executed
/// another is that of an address space that is gone, or is somebody else's (of a child of
/// `vfork`: its parent's), for ever; and a number may belong to another process by now.
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
        Self { nodes: Nodes::new(Path::new("/")), processes: BTreeMap::new(), helped: Nanos::ZERO }
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
    fn keep(&mut self, processes: &[u32]) {
        self.processes.retain(|process, _| processes.contains(process));
    }

    fn mappings(&mut self, process: u32) -> io::Result<Vec<(u64, u64)>> {
        self.processes.remove(&process);
        let text = std::fs::read(format!("/proc/{process}/maps"))?;
        // What a pager of ours holds there is no memory of the program's.
        let movable = |m: &Mapping| m.is_ordinary() && !crate::sys::is_own(m.start);
        Ok(text
            .split(|&byte| byte == b'\n')
            .filter_map(proc_maps::parse)
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
        threads: u32,
        places: &mut Vec<Place>,
    ) -> io::Result<()> {
        if threads < 2 || pages.len() < 2 {
            return moves::relocate(process, pages, node, places);
        }
        let (first, rest) = pages.split_at(pages.len().div_ceil(threads as usize));
        let helped = thread::scope(|scope| {
            let helpers: Vec<_> = rest
                .chunks(first.len())
                .map(|part| {
                    scope.spawn(move || {
                        let mut places = Vec::with_capacity(part.len());
                        let done = moves::relocate(process, part, node, &mut places);
                        done.map(|()| (places, crate::sys::thread_cpu()))
                    })
                })
                .collect();
            let own = moves::relocate(process, first, node, places);
            let helped: Vec<_> = helpers
                .into_iter()
                .map(|helper| helper.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect();
            own.map(|()| helped)
        })?;
        for part in helped {
            let (part, cpu) = part?;
            places.extend(part);
            self.helped += cpu;
        }
        Ok(())
    }

    fn take_helped(&mut self) -> Nanos {
        std::mem::take(&mut self.helped)
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

    fn swaps_to_zram(&mut self) -> bool {
        std::fs::read_to_string("/proc/swaps").is_ok_and(|text| are_all_zram(&text))
    }

    fn node_latency(&mut self, node: u32) -> Latency {
        self.nodes.latency(node)
    }

    fn now(&mut self) -> Nanos {
        Nanos(crate::sys::now())
    }
}

/// Whether what `/proc/swaps` lists is zram, and not nothing.
fn are_all_zram(swaps: &str) -> bool {
    let mut devices = swaps.lines().skip(1).peekable();
    devices.peek().is_some() && devices.all(|line| line.starts_with("/dev/zram"))
}

/// A process is gone, rather than something being wrong.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn present(host: &mut LinuxHost, process: u32) -> u64 {
        let mut pages = 0;
        for (start, end) in host.mappings(process).unwrap() {
            host.content(process, start, end, &mut |run| pages += run.end - run.start).unwrap();
        }
        pages
    }

    /// A shell that becomes `cat` when it is sent a line.
    fn shell() -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        command.spawn().unwrap()
    }

    /// Waits until a process is a program, and memory of it is found.
    fn look_for(host: &mut LinuxHost, process: u32, what: &str) {
        let until = Instant::now() + Duration::from_secs(30);
        let is = || std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap();
        while is().trim() != what || present(host, process) == 0 {
            assert!(Instant::now() < until, "no memory of {what} was found");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// What a page from a disk takes nobody knows beforehand.
    #[test]
    fn swap_is_zram_if_all_of_it_is() {
        let head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        let zram = "/dev/zram0                              partition\t1048572\t0\t100\n";
        let disk = "/dev/vda2                               partition\t1048572\t0\t-2\n";

        assert!(are_all_zram(&[head, zram].concat()));
        assert!(!are_all_zram(&[head, zram, disk].concat()));
        assert!(!are_all_zram(head) && !are_all_zram(""));
    }

    /// With the page table that was opened first, nothing was ever found again of a program
    /// that was started by a script.
    #[test]
    fn a_program_that_executes_another_is_looked_at_again() {
        let mut host = LinuxHost::new();
        let mut child = shell();
        look_for(&mut host, child.id(), "sh");

        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();

        look_for(&mut host, child.id(), "cat");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    /// Results that came back in another order would be those of other pages.
    #[test]
    fn several_threads_move_what_one_would_and_say_so_page_by_page() {
        const PAGES: usize = 100;
        let mut host = LinuxHost::new();
        let us = std::process::id();
        let at = crate::sys::map_private(PAGES * 4096).unwrap();
        // Every third page is there.
        for page in (0..PAGES).step_by(3) {
            // SAFETY: within the mapping.
            unsafe { ((at + page * 4096) as *mut u8).write(1) };
        }
        let pages: Vec<u64> = (0..PAGES).map(|page| (at + page * 4096) as u64).collect();
        let (mut alone, mut together) = (Vec::new(), Vec::new());
        if let Err(error) = host.relocate(us, &pages, 0, 1, &mut alone) {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSYS), "{error}");
            terrace_shown::is_missing("move_pages");
            return;
        }

        host.relocate(us, &pages, 0, 3, &mut together).unwrap();

        assert_eq!(alone, together);
        assert_eq!(together.iter().filter(|place| **place == Place::Node(0)).count(), 34);
        assert!(host.take_helped() > Nanos::ZERO, "two of them are not the caller");
        assert!(host.relocate(u32::MAX, &pages, 0, 3, &mut together).is_err());
    }

    /// Two descriptors were kept of every process that had ever been there.
    #[test]
    fn of_processes_that_are_gone_nothing_is_held() {
        let mut host = LinuxHost::new();
        let mut child = shell();
        look_for(&mut host, child.id(), "sh");
        let held = host.processes.len();

        host.keep(&[]);

        assert_eq!((held, host.processes.len()), (1, 0));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
