//! Why memory of a program is not managed, and where it lies.
//!
//! Whoever cannot manage a range says why, and it is entered in the statistics page: its bytes
//! are counted by cause, and the range is listed, so that `terrace run` can tell which of a
//! process's resident memory lies outside of its budget for which cause.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Ranges that are listed. Of more, those of one cause are listed as if they were one.
pub const LISTED: usize = 64;

/// Why a range is not managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Unmanaged {
    /// As many parts of memory are managed as can be ([`crate::space::regions::MAX_REGIONS`]).
    TableFull = 1,
    /// The kernel gives no memory for what is kept of each page, or the address space that is
    /// left (`ulimit -v`, `ulimit -d`) would not hold what leaves DRAM.
    NoMemory = 2,
    /// The kernel does not take the range: somebody else's userfaultfd has it, say.
    Refused = 3,
    /// The program is on plain memory.
    GivenUp = 4,
    /// It was to be managed once there is a pager, and there were more parts than can be noted until
    /// then ([`crate::space::ranges::MOST`]). Or it may have been mapped before the pager began, and
    /// the kernel did not say so.
    NotNoted = 5,
}

impl Unmanaged {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::TableFull, Self::NoMemory, Self::Refused, Self::GivenUp, Self::NotNoted];

    /// By its number; `None` of a number that is no cause's.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&cause| cause as u32 == number)
    }

    /// Its place among [`Unmanaged::ALL`].
    const fn index(self) -> usize {
        self as usize - 1
    }
}

/// A range that is listed.
#[repr(C)]
#[derive(Default)]
struct Line {
    /// 0 while the line is unused.
    cause: AtomicU32,
    _unused: AtomicU32,
    start: AtomicU64,
    end: AtomicU64,
}

/// What of a process is not managed: a part of its statistics page. It is written rarely, and
/// by several threads; a range that two of them enter at once may be listed as larger than it is.
#[repr(C)]
pub struct Ledger {
    bytes: [AtomicU64; Unmanaged::ALL.len()],
    lines: [Line; LISTED],
}

impl Ledger {
    /// Enters a range that could not be managed.
    pub fn enter(&self, cause: Unmanaged, start: usize, end: usize) {
        let (start, end) = (start as u64, end as u64);
        self.bytes[cause.index()].fetch_add(end.saturating_sub(start), Relaxed);
        let of_cause = |line: &&Line| line.cause.load(Acquire) == cause as u32;
        let touches =
            |line: &&Line| line.start.load(Relaxed) <= end && start <= line.end.load(Relaxed);
        let known = self.lines.iter().filter(of_cause).find(touches);
        if let Some(line) = known {
            line.extend(start, end);
            return;
        }
        for line in &self.lines {
            if line.cause.compare_exchange(0, u32::MAX, AcqRel, Relaxed).is_ok() {
                line.start.store(start, Relaxed);
                line.end.store(end, Relaxed);
                line.cause.store(cause as u32, Release);
                return;
            }
        }
        if let Some(line) = self.lines.iter().find(of_cause) {
            line.extend(start, end);
        }
    }

    /// Bytes that could not be managed for a cause, ever.
    pub fn bytes(&self, cause: Unmanaged) -> u64 {
        self.bytes[cause.index()].load(Relaxed)
    }

    /// The ranges that are listed: first address, one past the last, and why. Of a range that is
    /// mapped no more, or is managed by now, the line stays.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64, Unmanaged)> {
        self.lines.iter().filter_map(|line| {
            let cause = Unmanaged::from_number(line.cause.load(Acquire))?;
            Some((line.start.load(Relaxed), line.end.load(Relaxed), cause))
        })
    }

    /// Puts the bytes of a process that has ended to these.
    pub(crate) fn take_in(&self, ended: &Self) {
        for (to, from) in self.bytes.iter().zip(&ended.bytes) {
            to.fetch_add(from.load(Relaxed), Relaxed);
        }
    }

    /// Lists what the process has that this one was forked from.
    pub fn inherit(&self, parent: &Self) {
        for (to, from) in self.lines.iter().zip(&parent.lines) {
            to.start.store(from.start.load(Relaxed), Relaxed);
            to.end.store(from.end.load(Relaxed), Relaxed);
            to.cause.store(from.cause.load(Acquire), Release);
        }
    }
}

impl Line {
    fn extend(&self, start: u64, end: u64) {
        self.start.fetch_min(start, Relaxed);
        self.end.fetch_max(end, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Box<Ledger> {
        // SAFETY: every field is an atomic integer, valid for zero bytes.
        unsafe { Box::new_zeroed().assume_init() }
    }

    #[test]
    fn neighbours_of_one_cause_are_one_range() {
        let ledger = ledger();
        ledger.enter(Unmanaged::TableFull, 0x1000, 0x2000);
        ledger.enter(Unmanaged::TableFull, 0x2000, 0x5000);
        ledger.enter(Unmanaged::Refused, 0x5000, 0x6000);

        let ranges: Vec<_> = ledger.ranges().collect();

        let (full, refused) = (Unmanaged::TableFull, Unmanaged::Refused);
        assert_eq!(ranges, [(0x1000, 0x5000, full), (0x5000, 0x6000, refused)]);
        assert_eq!((ledger.bytes(full), ledger.bytes(refused)), (0x4000, 0x1000));
        assert_eq!(ledger.bytes(Unmanaged::NoMemory), 0);
    }

    #[test]
    fn more_ranges_than_can_be_listed_are_still_covered_and_counted() {
        let ledger = ledger();
        for i in 1..=2 * LISTED {
            ledger.enter(Unmanaged::NoMemory, i << 20, (i << 20) + 4096);
        }

        let last = (2 * LISTED as u64) << 20;
        assert!(ledger.ranges().any(|(start, end, _)| start <= last && last < end));
        assert_eq!(ledger.ranges().count(), LISTED);
        assert_eq!(ledger.bytes(Unmanaged::NoMemory), 2 * LISTED as u64 * 4096);
    }
}
