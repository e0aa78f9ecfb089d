//! The buffer that is shared with the kernel, and the descriptors of its events.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::*};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::event::EventSpec;
use super::record::{Record, field, parse};

/// What is asked to be in a sample, with the fields that need support by the
/// hardware last to be dropped.
const FIELDS: u64 = field::IDENTIFIER | field::TID | field::ADDR;
const MORE_FIELDS: u64 = FIELDS | field::WEIGHT | field::DATA_SRC;

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER5`, which every kernel
/// that we run on takes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attr {
    pub(super) kind: u32,
    pub(super) size: u32,
    pub(super) config: u64,
    pub(super) sample_period: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) flags: u64,
    pub(super) wakeup_events: u32,
    pub(super) bp_type: u32,
    pub(super) config1: u64,
    pub(super) config2: u64,
    pub(super) branch_sample_type: u64,
    pub(super) sample_regs_user: u64,
    pub(super) sample_stack_user: u32,
    pub(super) clockid: i32,
    pub(super) sample_regs_intr: u64,
    pub(super) aux_watermark: u32,
    pub(super) sample_max_stack: u16,
    pub(super) reserved: u16,
}

const _: () = assert!(size_of::<Attr>() == 112, "PERF_ATTR_SIZE_VER5");

/// Bits of `perf_event_attr.flags`.
const DISABLED: u64 = 1 << 0;
pub(super) const EXCLUDE_KERNEL: u64 = 1 << 5;
pub(super) const EXCLUDE_HV: u64 = 1 << 6;
const PRECISE_SHIFT: u32 = 15;

const IOC_ENABLE: libc::c_ulong = 0x2400;
const IOC_PERIOD: libc::c_ulong = 0x4008_2404;
const IOC_SET_OUTPUT: libc::c_ulong = 0x2405;
const IOC_ID: libc::c_ulong = 0x8008_2407;
const FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;

/// The least number of a descriptor. Lower ones are left free: inside of a program the pager
/// may need one at any time, below whatever limit the program has set.
const LEAST: libc::c_int = 16;

/// Offsets in `struct perf_event_mmap_page`.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// Whose events a source takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everybody's on this processor.
    Processor(u32),
    /// This thread's, wherever it runs.
    Thread(u32),
}

impl Scope {
    /// The thread that opens the source.
    pub const CALLER: Self = Self::Thread(0);
}

/// Events of one processor or thread, with their ring.
#[derive(Debug)]
pub struct Source {
    scope: Scope,
    /// One for each event, in their order.
    events: Vec<OwnedFd>,
    ids: Vec<u64>,
    fields: u64,
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to the source alone; the kernel is the only other
// party, and both sides follow the protocol of head and tail.
unsafe impl Send for Source {}

const PAGE: usize = 4096;

impl Source {
    /// Opens the events, not yet enabled. `pages` is a power of two.
    ///
    /// An event that the processors at hand do not have (those of the other
    /// kind of cores) is left out as long as another one is there.
    pub fn open(specs: &[EventSpec], scope: Scope, pages: usize) -> io::Result<Self> {
        let fields_of = |rich| if rich { MORE_FIELDS } else { FIELDS };
        let mut result = Err(io::Error::from_raw_os_error(libc::ENOENT));
        for rich in [true, false] {
            result = Self::open_with(specs, scope, pages, fields_of(rich));
            if !matches!(&result, Err(e) if e.raw_os_error() == Some(libc::EINVAL)) {
                break;
            }
        }
        result
    }

    /// Opens a tracepoint by the number that tracefs has for it, not yet enabled. `pages` is a
    /// power of two.
    pub fn open_tracepoint(number: u64, scope: Scope, pages: usize) -> io::Result<Self> {
        let spec = EventSpec::tracepoint(number);
        Self::open_with(&[spec], scope, pages, field::IDENTIFIER | field::TID | field::RAW)
    }

    fn open_with(specs: &[EventSpec], scope: Scope, pages: usize, fields: u64) -> io::Result<Self> {
        let mut events = Vec::with_capacity(specs.len());
        let mut ids = Vec::with_capacity(specs.len());
        let mut refused = io::Error::from_raw_os_error(libc::ENOENT);
        for spec in specs {
            match open_event(spec, scope, fields) {
                Ok(fd) => {
                    ids.push(identifier(&fd)?);
                    events.push(fd);
                }
                // Identifiers are matched with events by place.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                    ids.push(u64::MAX);
                    refused = e;
                }
                Err(e) => return Err(e),
            }
        }
        let Some(first) = events.first() else { return Err(refused) };
        let length = (pages + 1) * PAGE;
        // SAFETY: a new shared mapping of the event's buffer.
        let base = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                first.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let source = Self { scope, events, ids, fields, base, length };
        for event in &source.events[1..] {
            control(event, IOC_SET_OUTPUT, source.events[0].as_raw_fd() as libc::c_ulong)?;
        }
        Ok(source)
    }

    /// Whose events these are.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The events' identifiers, in their order; `u64::MAX` of one that this
    /// processor does not have.
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Begins to sample.
    pub fn enable(&self) -> io::Result<()> {
        self.events.iter().try_for_each(|event| control(event, IOC_ENABLE, 0))
    }

    /// Makes samples so many times as rare as the events say.
    pub fn set_rarity(&self, specs: &[EventSpec], rarity: u32) -> io::Result<()> {
        let opened = specs.iter().zip(&self.ids).filter(|(_, id)| **id != u64::MAX);
        for (event, (spec, _)) in self.events.iter().zip(opened) {
            let mut period = spec.period.saturating_mul(u64::from(rarity));
            // SAFETY: the request reads one word.
            let r = unsafe { libc::ioctl(event.as_raw_fd(), IOC_PERIOD, &raw mut period) };
            if r != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// The ring as it is, for recordings: the reader's and the kernel's
    /// position, the fields of a sample, and every word.
    pub fn image(&self) -> (u64, u64, u64, Vec<u64>) {
        let head = self.word(DATA_HEAD).load(Acquire);
        let tail = self.word(DATA_TAIL).load(Relaxed);
        let words = (PAGE..self.length).step_by(8).map(|at| self.word(at).load(Relaxed)).collect();
        (tail, head, self.fields, words)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.length && offset.is_multiple_of(8));
        // SAFETY: inside the mapping, aligned; the kernel writes whole words.
        unsafe { self.base.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// Reads what has come, frees its room, and says whether something could
    /// not be read.
    pub fn drain(&self, each: impl FnMut(Record)) -> bool {
        // What lies before the head has been written before the head was.
        let head = self.word(DATA_HEAD).load(Acquire);
        let tail = self.word(DATA_TAIL).load(Relaxed);
        let words = (self.length - PAGE) / 8;
        let word = |i: usize| self.word(PAGE + i * 8).load(Relaxed);
        let parsed = parse(word, words, tail, head, self.fields, each);
        // The kernel may overwrite from now on.
        self.word(DATA_TAIL).store(head, Release);
        parsed.is_err()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody uses any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

fn open_event(spec: &EventSpec, scope: Scope, fields: u64) -> io::Result<OwnedFd> {
    let exclude = if spec.user_only { EXCLUDE_KERNEL | EXCLUDE_HV } else { 0 };
    let attr = Attr {
        kind: spec.unit,
        size: size_of::<Attr>() as u32,
        config: spec.config,
        config1: spec.config1,
        sample_period: spec.period,
        sample_type: fields,
        flags: DISABLED | exclude | u64::from(spec.precise & 3) << PRECISE_SHIFT,
        ..Attr::default()
    };
    let (pid, cpu) = match scope {
        Scope::Processor(cpu) => (-1, cpu as i32),
        Scope::Thread(thread) => (thread as i32, -1),
    };
    open_attr(&attr, pid, cpu)
}

/// Opens an event of a thread, or of a processor.
pub(super) fn open_attr(attr: &Attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    let (attr, flags) = (core::ptr::from_ref(attr), FLAG_FD_CLOEXEC);
    // SAFETY: reads the attributes; returns a descriptor.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr, pid, cpu, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let event = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    // SAFETY: makes another descriptor of one of ours.
    let fd = unsafe { libc::fcntl(event.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LEAST) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn identifier(event: &OwnedFd) -> io::Result<u64> {
    let mut id = 0u64;
    // SAFETY: the request writes one word.
    let r = unsafe { libc::ioctl(event.as_raw_fd(), IOC_ID, &raw mut id) };
    if r == 0 { Ok(id) } else { Err(io::Error::last_os_error()) }
}

fn control(event: &OwnedFd, request: libc::c_ulong, arg: libc::c_ulong) -> io::Result<()> {
    // SAFETY: these requests take a number.
    let r = unsafe { libc::ioctl(event.as_raw_fd(), request, arg) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The processors that are online.
pub(super) fn online_processors() -> Vec<u32> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    parse_list(&text)
}

/// A list as the kernel writes it: `0-3,8`.
fn parse_list(text: &str) -> Vec<u32> {
    text.trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
        })
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program had no descriptor left for the pager, and hung in `fork`.
    #[test]
    fn events_do_not_take_the_lowest_descriptors() {
        let event = EventSpec::page_faults(terrace_core::SampleSource::HintFault);
        let source = Source::open(&[event], Scope::CALLER, 1).expect("a software event");
        assert!(source.events.iter().all(|event| event.as_raw_fd() >= LEAST));
    }

    #[test]
    fn a_list_of_processors_is_read_as_the_kernel_writes_it() {
        assert_eq!(parse_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_list("0\n"), [0]);
        assert!(parse_list("\n").is_empty());
    }
}
