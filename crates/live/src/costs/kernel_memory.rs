//! What the kernel's memory management costs here: real faults, collapses, moves, flushes, timed.
//!
//! For the simulated kernel (`terrace calibrate mm`). Each figure is named as the piece of work that
//! it is in the simulation. What cannot be measured on this machine is named, with the reason.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use terrace_core::Nanos;

use super::measure::{Memory, Unmeasured, median, settled};
use crate::huge::collapse::MADV_COLLAPSE;
use crate::space::proc_maps::Pagemap;
use crate::sys::{self, PAGE};

/// Base pages that are timed.
const PAGES: usize = 8192;
/// Huge pages that are timed.
const HUGE: usize = 64;
/// A huge page.
const CHUNK: usize = 2 << 20;
/// Base pages of a huge one.
const BASES: usize = CHUNK / PAGE;

/// What was measured: names of pieces of work, and what each takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelMemory {
    /// Name and time.
    pub times: Vec<(&'static str, Nanos)>,
    /// Name, and why it could not be measured.
    pub unmeasured: Vec<(&'static str, String)>,
}

impl KernelMemory {
    /// The time of a piece.
    fn time(&self, name: &str) -> Option<Nanos> {
        self.times.iter().find(|(other, _)| *other == name).map(|(_, time)| *time)
    }

    fn enter(&mut self, name: &'static str, time: Result<Nanos, String>) {
        match time {
            Ok(time) => self.times.push((name, time.max(Nanos(1)))),
            Err(why) => self.unmeasured.push((name, why)),
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Compact all of memory, for what moving a page takes where there is one node only.
    pub compaction: bool,
}

/// Measures everything: some seconds, and 256 MiB of memory. `told` is called with what comes next.
///
/// # Errors
///
/// Where there is no memory for it.
pub fn measure(
    wanted: Wanted,
    told: &mut dyn FnMut(&'static str),
) -> Result<KernelMemory, Unmeasured> {
    let because = |what| move |error| Unmeasured { what, error };
    let mut all = KernelMemory::default();
    told("zeroing and copying");
    let zero = zeroing().map_err(because("memory to zero"))?;
    all.enter("zero_base", Ok(Nanos(zero.get() / BASES as u64)));
    let copy = copying().map_err(because("memory to copy"))?;
    all.enter("copy_base", Ok(Nanos(copy.get() / BASES as u64)));
    told("faults");
    let base = settled(base_faults).map_err(because("faults on base pages"))?;
    all.enter("fault", Ok(base.saturating_sub(Nanos(zero.get() / BASES as u64))));
    all.enter(
        "free_base",
        freeing(CHUNK * 8, libc::MADV_NOHUGEPAGE).map(|t| t / (8 * BASES) as u64),
    );
    told("huge pages");
    let fault = all.time("fault").unwrap_or_default();
    all.enter("zero_huge", settled(huge_faults).map(|whole| whole.saturating_sub(fault)));
    all.enter("free_huge", freeing(CHUNK, libc::MADV_HUGEPAGE));
    all.enter("collapse", settled(|| collapses(BASES)));
    all.enter("collapse_sparse", settled(|| collapses(1)));
    told("flushes");
    all.enter("flush", flushes());
    told("moves");
    all.enter("move_page", moves(wanted));
    Ok(all)
}

fn error(what: &str, error: i32) -> String {
    format!("{what}: {}", std::io::Error::from_raw_os_error(error))
}

/// Memory of so many huge pages, from a boundary of one on.
struct Chunks {
    at: usize,
    _memory: Memory,
}

impl Chunks {
    fn map(count: usize, advice: i32) -> Result<Self, i32> {
        let memory = Memory::map((count + 1) * CHUNK)?;
        let at = memory.at.next_multiple_of(CHUNK);
        // SAFETY: within the mapping, which nobody else knows of; changes no content.
        unsafe { sys::madvise(at, count * CHUNK, advice)? };
        Ok(Self { at, _memory: memory })
    }

    /// Touches a page; how long that took.
    fn touch(&self, offset: usize) -> u64 {
        let start = sys::now();
        // SAFETY: within the mapping.
        unsafe { ((self.at + offset) as *mut u8).write_volatile(1) };
        sys::now() - start
    }

    fn touch_all(&self, from: usize, len: usize) {
        (from..from + len).step_by(PAGE).for_each(|offset| {
            self.touch(offset);
        });
    }
}

/// Zeroing 2 MiB that are there.
fn zeroing() -> Result<Nanos, i32> {
    let chunks = Chunks::map(HUGE, libc::MADV_HUGEPAGE)?;
    chunks.touch_all(0, HUGE * CHUNK);
    let times = (0..HUGE).map(|i| {
        let start = sys::now();
        // SAFETY: within the mapping.
        unsafe { ((chunks.at + i * CHUNK) as *mut u8).write_bytes(0, CHUNK) };
        core::hint::black_box(chunks.at);
        sys::now() - start
    });
    Ok(median(times.collect()))
}

/// Copying 2 MiB from one place to another.
fn copying() -> Result<Nanos, i32> {
    let chunks = Chunks::map(HUGE, libc::MADV_HUGEPAGE)?;
    chunks.touch_all(0, HUGE * CHUNK);
    let times = (0..HUGE / 2).map(|i| {
        let (from, to) = (chunks.at + 2 * i * CHUNK, chunks.at + (2 * i + 1) * CHUNK);
        let start = sys::now();
        // SAFETY: two parts of the mapping that do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, CHUNK) };
        core::hint::black_box(to);
        sys::now() - start
    });
    Ok(median(times.collect()))
}

/// First touches of base pages.
fn base_faults() -> Result<Nanos, i32> {
    let chunks = Chunks::map(PAGES / BASES, libc::MADV_NOHUGEPAGE)?;
    Ok(median((0..PAGES).map(|page| chunks.touch(page * PAGE)).collect()))
}

/// First touches that bring huge pages.
fn huge_faults() -> Result<Nanos, String> {
    let chunks = Chunks::map(HUGE, libc::MADV_HUGEPAGE).map_err(|e| error("memory", e))?;
    let pagemap = Pagemap::open();
    let times: Vec<u64> = (0..HUGE)
        .filter_map(|i| {
            let took = chunks.touch(i * CHUNK);
            // Only a huge page reaches so far.
            let end = chunks.at + (i + 1) * CHUNK - PAGE;
            (pagemap.is_present(end) == Some(true)).then_some(took)
        })
        .collect();
    if times.len() * 2 < HUGE {
        return Err(format!("the kernel had {} huge pages of {HUGE}", times.len()));
    }
    Ok(median(times))
}

/// Giving memory back: so many bytes at a time.
fn freeing(bytes: usize, advice: i32) -> Result<Nanos, String> {
    let count = bytes / CHUNK;
    let chunks = Chunks::map(count, advice).map_err(|e| error("memory", e))?;
    let pagemap = Pagemap::open();
    let mut times = Vec::new();
    for _ in 0..HUGE {
        if advice == libc::MADV_HUGEPAGE {
            chunks.touch(0);
            if pagemap.is_present(chunks.at + CHUNK - PAGE) != Some(true) {
                continue;
            }
        } else {
            chunks.touch_all(0, bytes);
        }
        let start = sys::now();
        // SAFETY: within the mapping; its content is not needed.
        unsafe { sys::madvise(chunks.at, bytes, libc::MADV_DONTNEED) }
            .map_err(|e| error("MADV_DONTNEED", e))?;
        times.push(sys::now() - start);
    }
    if times.len() * 2 < HUGE {
        return Err(format!("the kernel had {} huge pages of {HUGE}", times.len()));
    }
    Ok(median(times))
}

/// `MADV_COLLAPSE` of a range of which so many base pages are present.
fn collapses(present: usize) -> Result<Nanos, String> {
    let chunks = Chunks::map(HUGE, libc::MADV_NOHUGEPAGE).map_err(|e| error("memory", e))?;
    (0..HUGE).for_each(|i| chunks.touch_all(i * CHUNK, present * PAGE));
    // SAFETY: changes no content.
    unsafe { sys::madvise(chunks.at, HUGE * CHUNK, libc::MADV_HUGEPAGE) }
        .map_err(|e| error("MADV_HUGEPAGE", e))?;
    let mut times = Vec::new();
    let mut last = 0;
    for i in 0..HUGE {
        let start = sys::now();
        // SAFETY: within the mapping; the content stays.
        match unsafe { sys::madvise(chunks.at + i * CHUNK, CHUNK, MADV_COLLAPSE) } {
            Ok(()) => times.push(sys::now() - start),
            Err(error) => last = error,
        }
    }
    if times.len() * 2 < HUGE {
        return Err(error("MADV_COLLAPSE", last));
    }
    Ok(median(times))
}

/// What giving back a page takes more where another thread of the program runs: its processor has
/// to forget the translation.
fn flushes() -> Result<Nanos, String> {
    if thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Err("there is one processor".to_owned());
    }
    let chunks =
        Chunks::map(PAGES / BASES, libc::MADV_NOHUGEPAGE).map_err(|e| error("memory", e))?;
    let one = || -> Result<Nanos, String> {
        chunks.touch_all(0, PAGES * PAGE);
        let mut times = Vec::with_capacity(PAGES);
        for page in 0..PAGES {
            let start = sys::now();
            // SAFETY: within the mapping; its content is not needed.
            unsafe { sys::madvise(chunks.at + page * PAGE, PAGE, libc::MADV_DONTNEED) }
                .map_err(|e| error("MADV_DONTNEED", e))?;
            times.push(sys::now() - start);
        }
        Ok(median(times))
    };
    let alone = one()?;
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let beside = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                begun.store(true, Ordering::Relaxed);
                core::hint::spin_loop();
            }
        });
        while !begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let beside = one();
        over.store(true, Ordering::Relaxed);
        beside
    })?;
    Ok(beside.saturating_sub(alone).max(Nanos(1)))
}

/// Moving a page to another frame: between nodes where there are two, else by compaction of all
/// memory, if that is asked for.
fn moves(wanted: Wanted) -> Result<Nanos, String> {
    match between_nodes() {
        Ok(time) => Ok(time),
        Err(_) if wanted.compaction => by_compaction(),
        Err(why) => Err(format!("{why}; --compaction measures it by compacting all of memory")),
    }
}

/// `move_pages(2)` of a page to another node and back.
fn between_nodes() -> Result<Nanos, String> {
    let online = std::fs::read_to_string("/sys/devices/system/node/has_normal_memory")
        .map_err(|e| format!("nodes: {e}"))?;
    let nodes = nodes_in(&online);
    let [first, second, ..] = nodes[..] else {
        return Err("there is one node of memory".to_owned());
    };
    let chunks = Chunks::map(1, libc::MADV_NOHUGEPAGE).map_err(|e| error("memory", e))?;
    chunks.touch_all(0, CHUNK);
    let mut times = Vec::new();
    for to in [second, first].into_iter().cycle().take(8) {
        for page in (0..CHUNK).step_by(PAGE) {
            let at = (chunks.at + page) as *const libc::c_void;
            let (node, mut status) = (to, -1);
            let start = sys::now();
            // SAFETY: one page of ours, one node, and one status, all of which live on.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_move_pages,
                    0,
                    1usize,
                    &raw const at,
                    &raw const node,
                    &raw mut status,
                    crate::numa::moves::MPOL_MF_MOVE,
                )
            };
            if result == 0 && status == node {
                times.push(sys::now() - start);
            }
        }
    }
    if times.len() < BASES {
        return Err(format!("the kernel moved {} pages of {}", times.len(), 8 * BASES));
    }
    Ok(median(times))
}

/// `0-1,4`, as the kernel writes it.
fn nodes_in(text: &str) -> Vec<i32> {
    let mut nodes = Vec::new();
    for part in text.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(from), Ok(to)) = (from.parse::<i32>(), to.parse::<i32>()) {
            nodes.extend((from..=to).take(1024));
        }
    }
    nodes
}

/// Compacts all of memory; how long a page took that was moved. Looking at pages that were not is
/// in it: what a move takes alone the kernel does not tell.
fn by_compaction() -> Result<Nanos, String> {
    let moved = || vmstat("pgmigrate_success").ok_or("the kernel does not count moved pages");
    let before = moved()?;
    let start = sys::now();
    std::fs::write("/proc/sys/vm/compact_memory", "1")
        .map_err(|e| format!("/proc/sys/vm/compact_memory: {e}"))?;
    let took = sys::now() - start;
    let count = moved()?.saturating_sub(before);
    if count < BASES as u64 {
        return Err(format!("compaction found {count} pages to move, too few to tell"));
    }
    Ok(Nanos(took / count))
}

fn vmstat(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    let line = text.lines().find(|line| line.split(' ').next() == Some(name))?;
    line.split(' ').nth(1)?.parse().ok()
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read_as_the_kernel_writes_them() {
        assert_eq!(nodes_in("0\n"), [0]);
        assert_eq!(nodes_in("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(nodes_in(""), Vec::<i32>::new());
    }

    /// Every piece is either measured or named with its reason; the work is real.
    #[test]
    fn each_piece_is_measured_or_named() {
        let mut parts = 0;
        let all = measure(Wanted::default(), &mut |_| parts += 1).expect("memory");
        let names = [
            "zero_base",
            "copy_base",
            "fault",
            "free_base",
            "zero_huge",
            "free_huge",
            "collapse",
            "collapse_sparse",
            "flush",
            "move_page",
        ];
        for name in names {
            let why = all.unmeasured.iter().find(|(other, _)| *other == name);
            assert!(all.time(name).is_some() != why.is_some(), "{name}: {all:?}");
            assert!(why.is_none_or(|(_, why)| !why.is_empty()));
        }
        assert_eq!(all.times.len() + all.unmeasured.len(), names.len());
        assert_eq!(parts, 5);
        // A trap is no less than some tens of nanoseconds, a huge page more than a base page.
        assert!(all.time("fault") > Some(Nanos(20)), "{all:?}");
        if let (Some(huge), Some(base)) = (all.time("zero_huge"), all.time("zero_base")) {
            assert!(huge > base * 8, "{all:?}");
        }
    }
}
