//! A division at work: looks at a group, moves shares, and says what leaves of either side.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_core::{Bytes, Frequency, Nanos};
use terrace_economics::division::{Evidence, Prices};
use terrace_economics::{Calibration, Interval};

use super::absent::{self, Found};
use super::count::{self, Counts};
use super::decide::{Divided, Divider, Look};
use super::device::Disks;
use super::looker::Looker;
use super::take::{LEAST, take};
use crate::engine;
use crate::files::Root;
use crate::setup::group::{Group, Kind};
use crate::setup::{SwapKind, SwapUse};

/// How often a group is looked at.
const EVERY: Nanos = Nanos::millis(500);
/// How often it is looked at what is out of its files.
const ABSENT: Nanos = Nanos::seconds(2);
/// What is asked of the kernel at once, before shares are looked at again: under version 1 it goes on
/// until the group is as small as was asked for, and takes for one side what the other one grows by.
const CHUNK: Bytes = Bytes::mib(4);
/// What a page takes to come back from compressed memory: 7 to 8 µs in `docs/engines.md`, and within
/// twice as much either way.
const FROM_ZRAM: Interval = Interval { low: 4e3, expected: 8e3, high: 16e3 };
/// What it takes to put a page of the program out: 5 µs (`docs/engines.md`), and one of a file, which
/// is only forgotten: 0.5 µs, assumed.
const PUT_OUT: Interval = Interval { low: 2.5e3, expected: 5e3, high: 1e4 };
const FORGET: Interval = Interval { low: 2.5e2, expected: 5e2, high: 2e3 };

/// The shares, for those who make room.
#[derive(Debug)]
pub struct Division {
    budget: AtomicU64,
    share: AtomicU64,
}

impl Division {
    /// Of a budget; files have so much of it.
    pub(crate) fn new(budget: Bytes, share: Bytes) -> Self {
        Self { budget: AtomicU64::new(budget.get()), share: AtomicU64::new(share.get()) }
    }

    fn set(&self, budget: Bytes, share: Bytes) {
        self.budget.store(budget.get(), Ordering::Release);
        self.share.store(share.get(), Ordering::Release);
    }

    fn take(&self, wanted: Bytes, counts: &Counts) -> (Bytes, Bytes) {
        let share = Bytes(self.share.load(Ordering::Acquire));
        let budget = Bytes(self.budget.load(Ordering::Acquire));
        take(wanted, counts.files, counts.program(), share, budget)
    }

    /// Has so much of a group leave, from either side as its share is. `reclaim` asks the kernel for
    /// one kind. What one side does not give, the other one has to.
    ///
    /// # Errors
    /// That of the kernel; of kind `WouldBlock` if both sides gave too little.
    pub(crate) fn reclaim(
        &self,
        bytes: Bytes,
        mut count: impl FnMut() -> Option<Counts>,
        mut reclaim: impl FnMut(Kind, Bytes) -> io::Result<()>,
    ) -> io::Result<()> {
        // A group that is gone has nothing.
        let Some(first) = count() else { return Ok(()) };
        // What the program frees meanwhile need not leave.
        let target = first.charged - bytes;
        let (mut left, mut now) = (bytes, Some(first));
        // A side that has refused once (dirty files, full swap) is not asked again.
        let (mut no_files, mut no_program) = (None, None);
        while let Some(counts) = now.filter(|now| now.charged > target && !left.is_zero()) {
            let wanted = (counts.charged - target).max(LEAST).min(CHUNK).min(left);
            let (files, program) = match (&no_files, &no_program) {
                (None, None) => self.take(wanted, &counts),
                (Some(_), None) => (Bytes::ZERO, wanted),
                (None, Some(_)) => (wanted, Bytes::ZERO),
                (Some(_), Some(_)) => break,
            };
            for (kind, bytes, refused) in
                [(Kind::Files, files, &mut no_files), (Kind::Program, program, &mut no_program)]
            {
                if bytes.is_zero() {
                    continue;
                }
                match reclaim(kind, bytes) {
                    Ok(()) => left -= bytes,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => *refused = Some(e),
                    Err(e) => return Err(e),
                }
            }
            now = count();
        }
        match (no_files, no_program) {
            (Some(_), Some(e)) if now.is_some_and(|now| now.charged > target) => Err(e),
            _ => Ok(()),
        }
    }
}

/// Pages that came back to both sides, as a broker is told of them: runs without files in their budgets
/// count pages of programs, so files' pages are converted to those.
#[derive(Clone, Copy, Debug, Default)]
struct Missed(f64);

impl Missed {
    /// Counts pages of files and of the program that came back, with what a page takes. A file's page
    /// counts as many as come back from swap in that time. It is the least time that it may take: no other
    /// run loses memory for what is only assumed.
    fn add(&mut self, files: (u64, Interval), program: (u64, Interval)) {
        let each = files.1.low / program.1.expected.max(1.0);
        self.0 += files.0 as f64 * each + program.0 as f64;
    }

    fn pages(self) -> u64 {
        self.0 as u64
    }
}

/// Looks after a division.
#[derive(Debug)]
pub struct Keeper {
    group: Group,
    division: Arc<Division>,
    divider: Divider,
    budget: Bytes,
    root: Root,
    looker: Looker,
    /// What was found last, and when it was asked for last.
    found: (Found, Option<Nanos>),
    disks: Disks,
    /// Where pages of the program are read from; `None` for compressed memory.
    swaps_to_disk: bool,
    swap_devices: Vec<u64>,
    swap_disks: Disks,
    /// What has come back since disks were looked at: of files, and of the program.
    came_back: (u64, u64),
    clock: Frequency,
    last: Option<Counts>,
    missed: Missed,
    due: Nanos,
    cpu: Nanos,
}

impl Keeper {
    /// For a run's group and its budget.
    ///
    /// # Errors
    /// What this machine lacks for it.
    pub fn new(
        group: Group,
        budget: Bytes,
        calibration: &Calibration,
        swap: &SwapUse,
    ) -> Result<Self, String> {
        Counts::of(&group)?;
        count::reclaims_files(&group)?;
        absent::supported()?;
        group.balance().map_err(|e| e.to_string())?;
        let cycles = |nanos: Interval| cycles(calibration.clock, nanos);
        let prices = Prices::of(&calibration.parameters, (cycles(FORGET), cycles(PUT_OUT)));
        let divider = Divider::new(budget, prices);
        let root = Root::machine();
        Ok(Self {
            division: Arc::new(Division::new(budget, divider.share())),
            group,
            divider,
            budget,
            swap_devices: swap_devices(&root),
            root,
            looker: Looker::start().map_err(|e| e.to_string())?,
            found: (Found::default(), None),
            disks: Disks::default(),
            swaps_to_disk: swap.kind == SwapKind::Disk,
            swap_disks: Disks::default(),
            came_back: (0, 0),
            clock: calibration.clock,
            last: None,
            missed: Missed::default(),
            due: Nanos::ZERO,
            cpu: Nanos::ZERO,
        })
    }

    /// The shares, for those who make room.
    pub fn division(&self) -> Arc<Division> {
        Arc::clone(&self.division)
    }

    /// Another budget.
    pub fn set_budget(&mut self, budget: Bytes) {
        self.budget = budget;
        self.divider.set_budget(budget);
        self.division.set(budget, self.divider.share());
    }

    /// Looks, if it is time to; what these processes have open is looked at.
    pub fn step(&mut self, now: Nanos, processes: &[u32]) {
        if now < self.due {
            return;
        }
        self.due = now + EVERY;
        let begun = terrace_live::sys::thread_cpu();
        self.look(now, processes);
        self.cpu += terrace_live::sys::thread_cpu().saturating_sub(begun);
    }

    fn look(&mut self, now: Nanos, processes: &[u32]) {
        // A group that is gone needs no division.
        let Ok(counts) = Counts::of(&self.group) else { return };
        let Some(last) = self.last.replace(counts) else { return };
        let full =
            counts.charged + engine::room_ahead(self.budget) + self.budget / 128 >= self.budget;
        if full && self.found.1.is_none_or(|at| now >= at + ABSENT) {
            self.looker.ask(now, processes);
            self.found.1 = Some(now);
        }
        let files_came_back = counts.files_came_back.saturating_sub(last.files_came_back);
        let program_came_back = counts.program_came_back.saturating_sub(last.program_came_back);
        self.came_back.0 += files_came_back;
        self.came_back.1 += program_came_back;
        if let Some(found) = self.looker.take(now) {
            self.found.0 = found;
            let (files, program) = std::mem::take(&mut self.came_back);
            self.disks.look(&self.root, &self.found.0.devices, files);
            if self.swaps_to_disk {
                self.swap_disks.look(&self.root, &self.swap_devices, program);
            }
        }
        let is_late = self.looker.is_late(now);
        if is_late {
            // Nothing is divided by what was out long ago, and the report says that nothing is known.
            let Found { files, unread, .. } = self.found.0;
            self.found.0 = Found { unread: files + unread, ..Found::default() };
        }
        let from_swap = if self.swaps_to_disk { self.swap_disks.page() } else { FROM_ZRAM };
        let files = Evidence {
            held: counts.files,
            absent: self.found.0.absent,
            came_back: files_came_back,
            window: Nanos::ZERO,
            each: cycles(self.clock, self.disks.page()),
        };
        let program = Evidence {
            held: counts.program(),
            // Of what left before so much had left again nothing would be in memory either.
            absent: counts.swapped.min(self.budget),
            came_back: program_came_back,
            window: Nanos::ZERO,
            each: cycles(self.clock, from_swap),
        };
        self.missed.add((files.came_back, self.disks.page()), (program.came_back, from_swap));
        self.divider.look(&Look { at: now, full: full && !is_late, files, program });
        self.division.set(self.budget, self.divider.share());
    }

    /// The figures.
    pub fn report(&self) -> Divided {
        let (file_page, file_page_measured) = self.disks.expected();
        // Nobody times what comes back from compressed memory.
        let (program_page, program_page_measured) = if self.swaps_to_disk {
            self.swap_disks.expected()
        } else {
            (Nanos::from_f64(FROM_ZRAM.expected), false)
        };
        Divided {
            file_page,
            file_page_measured,
            program_page,
            program_page_measured,
            files_unread: self.found.0.unread as u64,
            ..self.divider.report()
        }
    }

    /// Files' pages that left lately and are out; and the number of pages that came back to both sides,
    /// where a file's page counts by the time that it takes.
    pub fn missed(&self) -> (Bytes, u64) {
        (self.found.0.absent, self.missed.pages())
    }

    /// Processor time since the last call.
    pub fn take_cpu(&mut self) -> Nanos {
        std::mem::take(&mut self.cpu) + self.looker.take_cpu()
    }
}

fn cycles(clock: Frequency, nanos: Interval) -> Interval {
    nanos.scale(clock.get() / 1e9)
}

/// The devices that swap lies on, or the files that it is in.
fn swap_devices(root: &Root) -> Vec<u64> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let text = root.read("/proc/swaps").unwrap_or_default();
    let of = |line: &str| {
        let is = std::fs::metadata(line.split_ascii_whitespace().next()?).ok()?;
        Some(if is.file_type().is_block_device() { is.rdev() } else { is.dev() })
    };
    text.lines().skip(1).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A budget among several runs goes where it averts most time, and a page from a disk takes longer.
    #[test]
    fn a_file_s_page_counts_by_what_it_takes_and_nothing_is_counted_twice() {
        let exact = Interval::exact;
        let mut missed = Missed::default();
        missed.add((10, Interval { low: 80e3, expected: 160e3, high: 320e3 }), (7, FROM_ZRAM));
        assert_eq!(missed.pages(), 107);
        // What a page takes is known better since: what was counted stays.
        missed.add((0, exact(20e3)), (0, FROM_ZRAM));
        assert_eq!(missed.pages(), 107);
        missed.add((10, exact(16e3)), (0, FROM_ZRAM));
        assert_eq!(missed.pages(), 127);
        // The program's come from a slow disk, too.
        missed.add((10, exact(100e3)), (10, exact(200e3)));
        assert_eq!(missed.pages(), 142);
    }

    fn refusal() -> io::Error {
        io::ErrorKind::WouldBlock.into()
    }

    /// A group that has so many MiB of either kind, and gives them if it is asked for them.
    fn reclaim(
        division: &Division,
        has: (u64, u64),
        wanted: u64,
        gives: (bool, bool),
    ) -> (io::Result<()>, (u64, u64)) {
        let has = RefCell::new((Bytes::mib(has.0), Bytes::mib(has.1)));
        let counts = || {
            let (files, program) = *has.borrow();
            Some(Counts { charged: files + program, files, ..Counts::default() })
        };
        let done = division.reclaim(Bytes::mib(wanted), counts, |kind, bytes| {
            assert!(bytes <= CHUNK * 2);
            let mut has = has.borrow_mut();
            match kind {
                Kind::Files if gives.0 => has.0 -= bytes,
                Kind::Program if gives.1 => has.1 -= bytes,
                _ => return Err(refusal()),
            }
            Ok(())
        });
        let (files, program) = *has.borrow();
        (done, (files.get() >> 20, program.get() >> 20))
    }

    /// A program that ends frees by itself what was asked for.
    #[test]
    fn no_more_leaves_than_brings_the_group_to_where_it_was_asked_to_come() {
        let division = Division::new(Bytes::mib(400), Bytes::mib(100));
        let has = RefCell::new(Counts {
            charged: Bytes::mib(500),
            files: Bytes::mib(100),
            ..Counts::default()
        });
        let mut asked = Bytes::ZERO;
        let count = || Some(*has.borrow());
        let done = division.reclaim(Bytes::mib(100), count, |_, bytes| {
            asked += bytes;
            // As much again goes without being asked for.
            has.borrow_mut().charged -= bytes * 2;
            Ok(())
        });
        assert!(done.is_ok());
        assert!(has.borrow().charged <= Bytes::mib(400));
        assert!(has.borrow().charged >= Bytes::mib(400) - CHUNK * 2, "{:?}", has.borrow().charged);
        assert!(asked <= Bytes::mib(50) + CHUNK, "{asked}");
    }

    #[test]
    fn a_side_that_has_refused_is_not_asked_again() {
        let division = Division::new(Bytes::mib(400), Bytes::mib(100));
        for gives in [Some(Kind::Files), Some(Kind::Program), None] {
            let has = RefCell::new((Bytes::mib(300), Bytes::mib(300)));
            let count = || {
                let (files, program) = *has.borrow();
                Some(Counts { charged: files + program, files, ..Counts::default() })
            };
            let mut refused = (0, 0);
            let done = division.reclaim(Bytes::mib(200), count, |kind, bytes| {
                let mut has = has.borrow_mut();
                let (side, times) = match kind {
                    Kind::Files => (&mut has.0, &mut refused.0),
                    Kind::Program => (&mut has.1, &mut refused.1),
                };
                if gives == Some(kind) {
                    *side -= bytes;
                    return Ok(());
                }
                *times += 1;
                Err(refusal())
            });
            assert!(refused.0 <= 1 && refused.1 <= 1, "{refused:?}");
            assert_eq!(done.is_ok(), gives.is_some());
            let left = Bytes::mib(if gives.is_some() { 400 } else { 600 });
            assert_eq!(count().map(|counts| counts.charged), Some(left));
        }
    }

    #[test]
    fn both_sides_come_to_their_shares_and_one_stands_in_for_the_other() {
        let division = Division::new(Bytes::mib(400), Bytes::mib(100));
        let of = |has, wanted, gives| reclaim(&division, has, wanted, gives);
        assert_eq!(of((200, 250), 50, (true, true)).1, (150, 250));
        let (done, left) = of((110, 340), 50, (true, true));
        assert!(done.is_ok());
        assert_eq!(left.0 + left.1, 400);
        assert!(left.0.abs_diff(100) <= 2, "{left:?}");
        // All files are dirty, or swap is full.
        assert_eq!(of((200, 250), 50, (false, true)).1, (200, 200));
        assert_eq!(of((100, 350), 50, (true, false)).1, (50, 350));
        let (done, left) = of((100, 350), 50, (false, false));
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(left, (100, 350));
    }
}
