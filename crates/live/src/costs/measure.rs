//! The measurements: each real operation, timed, many times.
//!
//! A figure is the median of single operations, or the best of several rounds where only a
//! round can be timed: what disturbs makes things slower, never faster.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use terrace_core::{Bytes, BytesPerSecond, Nanos};

use super::Measured;
use crate::store::codec::{self, Codec, Effort, Packed, PageBytes};
use crate::sys::uffd::{Message, Uffd, mode};
use crate::sys::{self, PAGE};

/// Faults, and pages that are moved.
const PAGES: usize = 8192;
/// Memory of which a cache holds a small part at most: four times the largest cache that the kernel
/// tells of, and at least so much; not more than the bound, which a cache of 512 MiB needs.
const LARGE: (usize, usize) = (256 << 20, 2 << 30);
/// Loads in a round of the chases.
const LOADS: usize = 200_000;
/// Chases at once; more than any processor has misses in flight.
const CHASES: [usize; 9] = [1, 2, 4, 6, 8, 12, 16, 24, 32];
/// Rounds of which the best counts.
const ROUNDS: usize = 3;

/// Why something could not be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmeasured {
    /// What.
    pub what: &'static str,
    /// The error number.
    pub error: i32,
}

impl core::fmt::Display for Unmeasured {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.what, std::io::Error::from_raw_os_error(self.error))
    }
}

impl core::error::Error for Unmeasured {}

/// Measures everything: some seconds, and 256 MiB of memory or four times the largest cache. `told` is called with what
/// comes next.
pub fn measure(told: &mut dyn FnMut(&'static str)) -> Result<Measured, Unmeasured> {
    let because = |what| move |error| Unmeasured { what, error };
    told("faults");
    let user_fault = settled(|| faults(PAGES)).map_err(because("faults through userfaultfd"))?;
    told("moves");
    let [bring_in, take_out] =
        settled_all(|| moves(PAGES)).map_err(because("moves through userfaultfd"))?;
    told("the codec");
    let (compress, decompress) = codec();
    told("copies");
    let large = Memory::map(large()).map_err(because("memory to copy"))?;
    let copy_bandwidth = copies(&large);
    told("loads in flight");
    let chase = Chase::new(&large);
    let parallelism = chase.parallelism();
    told("a manager beside the program");
    let interference = interference(&chase);
    // A copied page costs its content's copy once; what comes on top is the call's.
    let content = copy_bandwidth.time_for(Bytes(PAGE as u64));
    let bring_in = Nanos(bring_in.get().saturating_sub(content.get()));
    Ok(Measured {
        user_fault,
        bring_in,
        take_out,
        compress,
        decompress,
        copy_bandwidth,
        parallelism,
        interference,
    })
}

/// Private memory that is unmapped at the end.
pub(super) struct Memory {
    pub(super) at: usize,
    len: usize,
}

impl Memory {
    pub(super) fn map(len: usize) -> Result<Self, i32> {
        sys::map_private(len).map(|at| Self { at, len })
    }

    /// Makes every page present.
    fn fill(&self) {
        for page in (self.at..self.at + self.len).step_by(PAGE) {
            // SAFETY: within the mapping, which nobody else knows of.
            unsafe { (page as *mut usize).write_volatile(page) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody else knows of it.
        let _ = unsafe { sys::munmap(self.at, self.len) };
    }
}

/// A handle that is closed at the end.
struct Handle(Uffd);

impl Handle {
    fn open() -> Result<Self, i32> {
        let (uffd, _) = Uffd::open()?;
        let handle = Self(uffd);
        handle.0.handshake(0)?;
        Ok(handle)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

pub(super) fn median(mut times: Vec<u64>) -> Nanos {
    times.sort_unstable();
    Nanos(times.get(times.len() / 2).copied().unwrap_or(0).max(1))
}

/// Rounds of what touches memory for the first time.
///
/// A virtual machine that reports its free memory loses it to the host, and who touches it first then
/// waits for the host. A fault took 60 µs instead of 2 (measured), and a huge page 6 ms instead of 0.3.
/// The second round gets the memory that the first has given back, so it does not wait. The third is
/// for what else was going on.
const WARM_ROUNDS: usize = 3;

/// The least of some rounds.
pub(super) fn settled<E>(mut round: impl FnMut() -> Result<Nanos, E>) -> Result<Nanos, E> {
    settled_all(|| round().map(|time| [time])).map(|[time]| time)
}

/// The least of some rounds, each figure for itself.
fn settled_all<E, const N: usize>(
    mut round: impl FnMut() -> Result<[Nanos; N], E>,
) -> Result<[Nanos; N], E> {
    let mut least = round()?;
    for _ in 1..WARM_ROUNDS {
        let next = round()?;
        least.iter_mut().zip(next).for_each(|(least, next)| *least = next.min(*least));
    }
    Ok(least)
}

/// A first touch that another thread resolves with a page of zeros.
fn faults(pages: usize) -> Result<Nanos, i32> {
    let memory = Memory::map(pages * PAGE)?;
    let handle = Handle::open()?;
    handle.0.register(memory.at, memory.len, mode::MISSING)?;
    let over = AtomicBool::new(false);
    let times = thread::scope(|scope| {
        let server = scope.spawn(|| serve(handle.0, &memory, &over));
        let times = (0..pages)
            .map(|i| {
                let start = sys::now();
                // SAFETY: within the mapping; the server resolves it.
                unsafe { ((memory.at + i * PAGE) as *const u8).read_volatile() };
                sys::now() - start
            })
            .collect();
        over.store(true, Ordering::Release);
        server.join().ok().ok_or(libc::ECANCELED).flatten().map(|()| times)
    })?;
    Ok(median(times))
}

/// Resolves faults until all is over; looks at that from time to time.
fn serve(handle: Uffd, memory: &Memory, over: &AtomicBool) -> Result<(), i32> {
    let mut poll = libc::pollfd { fd: handle.raw(), events: libc::POLLIN, revents: 0 };
    while !over.load(Ordering::Acquire) {
        // SAFETY: one descriptor that lives on.
        unsafe { libc::poll(&raw mut poll, 1, 20) };
        while let Some(message) = handle.read() {
            if let Message::Fault { page, .. } = message
                && let Err(error) = handle.zero(page, PAGE)
                && error != libc::EEXIST
            {
                // Whoever waits would wait for ever.
                let _ = handle.unregister(memory.at, memory.len);
                return Err(error);
            }
        }
    }
    Ok(())
}

/// A page brought in by a copy, and one that is taken out.
fn moves(pages: usize) -> Result<[Nanos; 2], i32> {
    let (program, elsewhere) = (Memory::map(pages * PAGE)?, Memory::map(pages * PAGE)?);
    // Another page each time, which no cache holds by then (`forget`): what its copy takes is taken
    // off later.
    let source = Memory::map(pages * PAGE)?;
    source.fill();
    let handle = Handle::open()?;
    handle.0.register(program.at, program.len, mode::MISSING)?;
    handle.0.register(elsewhere.at, elsewhere.len, mode::MISSING)?;
    let timed = |work: &dyn Fn(usize) -> (usize, i32)| -> Result<Nanos, i32> {
        let mut times = Vec::with_capacity(pages);
        for i in 0..pages {
            forget(source.at + i * PAGE);
            let start = sys::now();
            let (done, error) = work(i * PAGE);
            times.push(sys::now() - start);
            if done != PAGE {
                return Err(error);
            }
        }
        Ok(median(times))
    };
    let bring_in = timed(&|at| handle.0.copy(program.at + at, source.at + at, PAGE))?;
    let take_out = timed(&|at| handle.0.mv(elsewhere.at + at, program.at + at, PAGE))?;
    Ok([bring_in, take_out])
}

/// How much memory the caches hold a small part of.
fn large() -> usize {
    let caches = (0..8).filter_map(|index| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        cache_size(&std::fs::read_to_string(path).ok()?)
    });
    (caches.max().unwrap_or(0).saturating_mul(4)).clamp(LARGE.0, LARGE.1).next_multiple_of(2 << 20)
}

/// `32768K`, as the kernel writes it.
fn cache_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let scale = match unit {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(scale)
}

/// Writes a page of ours back and drops it from all caches. Where programs have no instruction for
/// that, nothing: a cache may hold it then, if it is larger than what was written since.
fn forget(page: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (page..page + PAGE).step_by(64) {
        // SAFETY: a page of ours that is mapped; changes no content.
        unsafe { core::arch::x86_64::_mm_clflush(line as *const u8) };
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: waits until the lines are gone.
    unsafe {
        core::arch::x86_64::_mm_mfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = page;
}

/// Pages of some kinds: counted integers, text-like bytes, pointers, and both halves.
fn samples() -> Vec<Box<PageBytes>> {
    let kinds: [fn(usize) -> u8; 3] = [
        |i| if i % 8 < 4 { (i / 64) as u8 } else { (i * 7 % 26) as u8 + b'a' },
        |i| (i * i / 3 % 26) as u8 + b'a',
        |i| match i % 8 {
            7 | 6 => 0,
            5 => 0x7f,
            at => (i / 8).wrapping_mul(0x9e37) as u8 >> at.min(4),
        },
    ];
    kinds
        .iter()
        .map(|byte| {
            let mut page: Box<PageBytes> = Box::new([0; PAGE]);
            page.iter_mut().enumerate().for_each(|(i, to)| *to = byte(i));
            page
        })
        .collect()
}

/// Compressing and decompressing a page with the codec that the store uses.
fn codec() -> (Nanos, Nanos) {
    const TIMES: usize = 400;
    let (pages, mut codec) = (samples(), Codec::new());
    let mut out: Box<PageBytes> = Box::new([0; PAGE]);
    let (mut packing, mut unpacking) = (Vec::new(), Vec::new());
    for page in pages.iter().cycle().take(TIMES * pages.len()) {
        let start = sys::now();
        let packed = codec.pack(core::hint::black_box(page), Effort::Quick);
        packing.push(sys::now() - start);
        let start = sys::now();
        match packed {
            Packed::Compressed(len) => {
                core::hint::black_box(codec::unpack(codec.output(len), &mut out));
            }
            _ => out.copy_from_slice(&page[..]),
        }
        unpacking.push(sys::now() - start);
    }
    (median(packing), median(unpacking))
}

/// Copies from one half of large memory to the other.
fn copies(memory: &Memory) -> BytesPerSecond {
    memory.fill();
    let half = memory.len / 2;
    let mut best = u64::MAX;
    for _ in 0..ROUNDS {
        let start = sys::now();
        // SAFETY: two halves of a mapping that nobody else knows of.
        unsafe {
            core::ptr::copy_nonoverlapping(
                memory.at as *const u8,
                (memory.at + half) as *mut u8,
                half,
            );
        }
        core::hint::black_box(memory.at);
        best = best.min(sys::now() - start);
    }
    BytesPerSecond::from_amount(Bytes(half as u64), Nanos(best.max(1)))
}

/// Chases of pointers through memory of which caches hold a small part: one cycle through all lines, in
/// an order that no prefetcher knows.
struct Chase<'a> {
    memory: &'a Memory,
    lines: usize,
}

impl<'a> Chase<'a> {
    const LINE: usize = 64;

    /// Writes the pointers.
    fn new(memory: &'a Memory) -> Self {
        // SAFETY: changes no content; with base pages, walks would be timed, too.
        let _ = unsafe { sys::madvise(memory.at, memory.len, libc::MADV_HUGEPAGE) };
        let lines = (memory.len / Self::LINE).next_power_of_two();
        let lines = if lines * Self::LINE > memory.len { lines / 2 } else { lines };
        let chase = Self { memory, lines };
        let mut line = 0usize;
        for _ in 0..lines {
            // A full cycle over a power of two (Knuth).
            let next = line.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % lines;
            // SAFETY: within the mapping, and aligned.
            unsafe { (chase.at(line) as *mut usize).write(chase.at(next)) };
            line = next;
        }
        chase
    }

    fn at(&self, line: usize) -> usize {
        self.memory.at + line * Self::LINE
    }

    /// So many chases at once, of so many loads together; nanoseconds a load.
    fn run<const N: usize>(&self, loads: usize, salt: usize) -> f64 {
        let mut at: [usize; N] =
            core::array::from_fn(|i| self.at((i * 7919 + salt * 104_729) % self.lines));
        let start = sys::now();
        for _ in 0..loads / N {
            for place in &mut at {
                // SAFETY: each holds the place of another within the mapping.
                *place = unsafe { (*place as *const usize).read() };
            }
        }
        core::hint::black_box(at);
        (sys::now() - start) as f64 / (loads / N * N) as f64
    }

    fn best(&self, chases: usize) -> f64 {
        let once = |round: usize| match chases {
            1 => self.run::<1>(LOADS, round),
            2 => self.run::<2>(LOADS, round),
            4 => self.run::<4>(LOADS, round),
            6 => self.run::<6>(LOADS, round),
            8 => self.run::<8>(LOADS, round),
            12 => self.run::<12>(LOADS, round),
            16 => self.run::<16>(LOADS, round),
            24 => self.run::<24>(LOADS, round),
            _ => self.run::<32>(LOADS, round),
        };
        (0..ROUNDS).map(once).fold(f64::MAX, f64::min)
    }

    /// By how much loads become faster that do not wait for each other.
    fn parallelism(&self) -> f64 {
        let alone = self.best(1);
        // More than so many are not in flight; what seems to be disturbed the lone chase.
        let gain = |chases: usize| (alone / self.best(chases)).min(chases as f64);
        CHASES.into_iter().map(gain).fold(1.0, f64::max)
    }
}

/// What a thread that loads loses while a manager's thread compresses beside it; above 1
/// where both share a processor.
fn interference(chase: &Chase<'_>) -> f64 {
    // Both by turns: a machine that becomes slower meanwhile does so for both.
    let (mut alone, mut beside) = (f64::MAX, f64::MAX);
    for round in 0..2 * ROUNDS {
        alone = alone.min(chase.run::<4>(LOADS, 2 * round));
        beside = beside.min(beside_a_manager(chase, || chase.run::<4>(LOADS, 2 * round + 1)));
    }
    (beside / alone.max(f64::MIN_POSITIVE) - 1.0).clamp(0.0, 10.0)
}

/// Does something while a thread compresses, as a manager's does.
fn beside_a_manager<T>(chase: &Chase<'_>, work: impl FnOnce() -> T) -> T {
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (pages, mut codec) = (samples(), Codec::new());
            for (i, page) in pages.iter().cycle().enumerate() {
                // Pages come from all over memory, as a program's do.
                let line = i.wrapping_mul(1_013_904_223) % chase.lines;
                // SAFETY: within the mapping; the place is read only.
                core::hint::black_box(unsafe { (chase.at(line) as *const usize).read() });
                core::hint::black_box(codec.pack(page, Effort::Quick));
                begun.store(true, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        while !begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })
}

/// What other programs used of the machine's processors in a time, as a share of one processor.
#[derive(Debug)]
pub struct OthersTime {
    begun: u64,
    busy: Option<f64>,
}

impl OthersTime {
    /// From now on.
    pub fn begin() -> Self {
        Self { begun: sys::now(), busy: Self::used() }
    }

    /// Until now; `None` where the kernel does not tell.
    pub fn share(&self) -> Option<f64> {
        let seconds = (sys::now() - self.begun) as f64 / 1e9;
        Some(((Self::used()? - self.busy?) / seconds).max(0.0))
    }

    /// Seconds of all processors that were not idle and not this process's.
    fn used() -> Option<f64> {
        // SAFETY: asks the C library for a constant.
        let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let all: Vec<f64> = text
            .lines()
            .next()?
            .split_whitespace()
            .skip(1)
            .map(|field| field.parse().ok())
            .collect::<Option<_>>()?;
        // user nice system idle iowait irq softirq steal; guests are counted in user. Time that a
        // hypervisor took is not there for us, either.
        let busy = [0, 1, 2, 5, 6, 7].into_iter().filter_map(|i| all.get(i)).sum::<f64>() / ticks;
        let mut mine = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock of this process's processor time, written to a value of ours.
        if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut mine) } != 0 {
            return None;
        }
        Some(busy - (mine.tv_sec as f64 + mine.tv_nsec as f64 / 1e9))
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_caches_are_read_as_the_kernel_writes_them() {
        assert_eq!(cache_size("32768K\n"), Some(32 << 20));
        assert_eq!(cache_size("512M"), Some(512 << 20));
        assert_eq!((cache_size(""), cache_size("K"), cache_size("3G")), (None, None, None));
        assert!((LARGE.0..=LARGE.1).contains(&large()));
    }

    /// The operations are real and succeed; how fast they are is the machine's affair.
    #[test]
    fn memory_that_the_host_has_to_bring_back_first_is_not_what_a_fault_costs() {
        let mut rounds = [[60, 5], [2, 9], [3, 4]].into_iter();
        let least = settled_all(|| rounds.next().map(|round| round.map(Nanos)).ok_or("one more"));
        assert_eq!(least, Ok([Nanos(2), Nanos(4)]));
        assert_eq!(settled_all(|| Err::<[Nanos; 1], _>("no memory")), Err("no memory"));
    }

    #[test]
    fn everything_that_is_priced_is_measured() {
        if crate::doctor::probe::UffdProbe::run().usable().is_err() {
            return;
        }
        let mut parts = Vec::new();
        let measured = measure(&mut |part| parts.push(part)).expect("userfaultfd works here");
        assert_eq!(parts.len(), 6);
        let known = super::super::CostsFile {
            machine: super::super::Fingerprint::of_this_machine(),
            measured,
        };
        // What is measured is a file that can be used.
        let read = super::super::CostsFile::parse("costs.toml", &known.text()).expect("sound");
        assert_eq!(read.measured.user_fault, measured.user_fault);
        assert!(measured.user_fault > Nanos(100), "a trap and two switches: {measured:?}");
        assert!(measured.take_out > Nanos(10) && measured.compress > Nanos(10), "{measured:?}");
    }
}
