//! The page of memory that the broker and its processes share: a file in a
//! directory that is closed to all but its owner, mapped by each.
//!
//! Every word has one writer. The broker writes shares and answers; a process
//! writes what its own slot says of it. A slot is taken by whoever changes its
//! `pid` from 0, and emptied by the broker when that process has ended.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use terrace_core::Bytes;

use super::ending::Endings;
use super::share::LEAST;
use crate::sys;
use crate::sys::mapped;

/// The file's name in a run's directory.
pub const FILE: &str = "budget";
const MAGIC: u64 = 0x5445_5252_4255_4447; // "TERRBUDG"
/// Raised with every change of the layout.
pub(crate) const VERSION: u32 = 4;
/// Processes that can share a budget; more go without a share of their own.
pub const SLOTS: usize = 2048;
/// Who has so small a part of the budget forks without more, as shells do all the time.
const FORKS_FREELY: u64 = 16;
/// A broker that has not shown itself for so long (ns) has died.
const DEAD: u64 = 3_000_000_000;
/// A process that begins anew in its old slot (`exec`) is found by so many looks.
const NEAR: usize = 8;

/// The page.
#[repr(C)]
pub struct BrokerPage {
    head: Head,
    slots: [Slot; SLOTS],
    endings: Endings,
}

/// What concerns all.
#[repr(C, align(128))]
#[derive(Default)]
pub struct Head {
    magic: AtomicU64,
    version: AtomicU32,
    /// Set when the broker ends.
    pub closed: AtomicU32,
    /// The budget, bytes.
    pub budget: AtomicU64,
    /// When (`CLOCK_MONOTONIC`, ns) the broker was last at work.
    pub beat: AtomicU64,
    /// A futex: changes when a process wants the broker's attention.
    pub bell: AtomicU32,
    /// How often the budget was changed.
    pub changes: AtomicU32,
    /// See [`Summary`].
    pub processes_peak: AtomicU32,
    /// How much of what it has in common with relatives a process may hold beside its share:
    /// so many parts of [`WHOLE`](super::share::WHOLE). The broker's word.
    pub common_scale: AtomicU32,
    /// See [`Summary`].
    pub granted_peak: AtomicU64,
    /// See [`Summary`].
    pub resident_peak: AtomicU64,
    /// See [`Summary`].
    pub resident_now: AtomicU64,
    /// See [`Summary`].
    pub budget_peak: AtomicU64,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The budget in force.
    pub budget: Bytes,
    /// The largest that was.
    pub budget_peak: Bytes,
    /// How often it was changed.
    pub changes: u32,
    /// Processes with a share, the most at once.
    pub processes: u32,
    /// The most that was granted at once.
    pub granted: Bytes,
    /// The most that was resident at once, in all processes together, as seen
    /// whenever the broker looked (at least ten times a second while there are
    /// several). Frames that a family of forked processes has in common count
    /// once, and a process that is not managed with all that it has mapped.
    pub resident: Bytes,
    /// What was resident when the broker looked last, counted likewise.
    pub resident_now: Bytes,
}

impl Summary {
    /// Reads it from a broker's file.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut bytes = [0; size_of::<Head>()];
        File::open(path)?.read_exact(&mut bytes)?;
        let mut head = Head::default();
        // SAFETY: as many bytes as the head has; its fields are integers, valid
        // whatever they are.
        unsafe {
            let to = core::ptr::from_mut(&mut head).cast::<u8>();
            core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        head.check()?;
        Ok(head.summary())
    }
}

impl Head {
    fn check(&self) -> io::Result<()> {
        if self.magic.load(Acquire) == MAGIC && self.version.load(Relaxed) == VERSION {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "a broker's page of another version"))
    }

    /// What has happened so far.
    pub fn summary(&self) -> Summary {
        Summary {
            budget: Bytes(self.budget.load(Relaxed)),
            budget_peak: Bytes(self.budget_peak.load(Relaxed)),
            changes: self.changes.load(Relaxed),
            processes: self.processes_peak.load(Relaxed),
            granted: Bytes(self.granted_peak.load(Relaxed)),
            resident: Bytes(self.resident_peak.load(Relaxed)),
            resident_now: Bytes(self.resident_now.load(Relaxed)),
        }
    }
}

impl core::ops::Deref for BrokerPage {
    type Target = Head;
    fn deref(&self) -> &Head {
        &self.head
    }
}

/// A process's part.
#[repr(C, align(128))]
pub struct Slot {
    /// The process; 0 if the slot is empty.
    pub pid: AtomicU32,
    /// Whether it is managed: it can give memory back.
    pub managed: AtomicU32,
    /// The number of its last question.
    pub ask: AtomicU32,
    /// The number of the last question that was answered; a futex.
    pub answer: AtomicU32,
    /// The program that it was forked from: the number of the process that began it.
    pub family: AtomicU32,
    /// Others of its family that have a slot. The broker's word.
    pub relatives: AtomicU32,
    /// Its share, bytes: of what it has in common with relatives, it may hold as much beside
    /// as [`Head::common_scale`] says. The broker's word.
    pub grant: AtomicU64,
    /// What it may hold for now, bytes: more than its share while it gives back. Without
    /// what it has in common with relatives.
    pub held: AtomicU64,
    /// The most that it could use, bytes.
    pub want: AtomicU64,
    /// Managed bytes that it has resident.
    pub resident: AtomicU64,
    /// Of these, bytes in frames that other processes have, too, since a fork, as far as is
    /// known. 0 while it is not managed.
    pub common: AtomicU64,
    /// Managed bytes that are not in DRAM.
    pub absent: AtomicU64,
    /// Pages that came back, ever.
    pub refaults: AtomicU64,
}

impl core::fmt::Debug for BrokerPage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("BrokerPage").finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Slot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Slot").field("pid", &self.pid).finish_non_exhaustive()
    }
}

// SAFETY: atomic integers, arrays and structures of them.
unsafe impl mapped::Atomics for BrokerPage {}

impl BrokerPage {
    /// Creates the file and maps it.
    pub fn create(path: &Path) -> io::Result<&'static Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let page = mapped::make::<Self>(&file, size_of::<Self>())?;
        page.head.version.store(VERSION, Relaxed);
        page.head.magic.store(MAGIC, Release);
        Ok(page)
    }

    /// Maps a broker's file.
    pub fn open(path: &Path) -> io::Result<&'static Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() != size_of::<Self>() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a broker's page"));
        }
        let page = mapped::map::<Self>(&file)?;
        page.check()?;
        Ok(page)
    }

    /// All slots.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// What processes have said that have ended.
    pub fn endings(&self) -> &Endings {
        &self.endings
    }

    /// The slots in the order in which a process looks for one.
    fn from(&self, pid: u32) -> impl Iterator<Item = &Slot> {
        let start = pid as usize % SLOTS;
        self.slots[start..].iter().chain(&self.slots[..start])
    }

    /// Takes a slot for a process; the one that it has already, if there is one.
    pub fn claim(&self, pid: u32) -> Option<&Slot> {
        if let Some(own) = self.own(pid) {
            return Some(own);
        }
        self.from(pid).find(|slot| slot.pid.compare_exchange(0, pid, AcqRel, Relaxed).is_ok())
    }

    /// Whether another process could have one.
    pub fn has_free_slot(&self) -> bool {
        self.slots.iter().any(|slot| slot.pid.load(Relaxed) == 0)
    }

    /// The slot that a process has already: from before it began another program.
    pub fn own(&self, pid: u32) -> Option<&Slot> {
        self.from(pid).take(NEAR).find(|slot| slot.pid.load(Acquire) == pid)
    }

    /// Whether a process that is not managed and has so many mapped bytes can fork and stay so:
    /// whether there is room beside what others hold for all of its family, if each changes everything
    /// that it has from its parent. Later nobody could tell it to give something back.
    pub fn has_room_for_fork(&self, pid: u32, family: u32, mapped: u64) -> bool {
        let budget = self.budget.load(Relaxed);
        if mapped <= LEAST.get().max(budget / FORKS_FREELY) {
            return true;
        }
        let (mut members, mut others) = (2, 0u64);
        for slot in self.slots() {
            let whose = slot.pid.load(Relaxed);
            if whose == 0 || whose == pid {
                continue;
            }
            if slot.family.load(Relaxed) == family {
                members += 1;
            } else {
                others = others.saturating_add(slot.held.load(Relaxed));
            }
        }
        mapped.saturating_mul(members) <= budget.saturating_sub(others)
    }

    /// Asks for the broker's attention.
    pub fn ring(&self) {
        self.bell.fetch_add(1, Release);
        sys::futex_wake(&self.bell, true);
    }

    /// Whether the broker is at work.
    pub fn is_kept(&self) -> bool {
        self.closed.load(Acquire) == 0 && sys::now().saturating_sub(self.beat.load(Acquire)) < DEAD
    }
}

impl Slot {
    /// Empties it: its process has ended.
    pub fn clear(&self) {
        self.forget();
        self.relatives.store(0, Relaxed);
        self.grant.store(0, Relaxed);
        self.answer.store(self.ask.load(Relaxed), Relaxed);
        self.pid.store(0, Release);
    }

    /// Forgets what its process said of itself.
    pub fn forget(&self) {
        self.managed.store(0, Relaxed);
        for word in
            [&self.held, &self.want, &self.resident, &self.common, &self.absent, &self.refaults]
        {
            word.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> (&'static BrokerPage, tempfile::TempDir) {
        let directory = tempfile::tempdir().expect("a directory");
        (BrokerPage::create(&directory.path().join(FILE)).expect("a page"), directory)
    }

    #[test]
    fn who_opens_a_page_sees_what_its_maker_sees() {
        let (made, directory) = page();
        made.budget.store(7, Relaxed);

        let opened = BrokerPage::open(&directory.path().join(FILE)).expect("the same page");

        assert_eq!(opened.budget.load(Relaxed), 7);
        std::fs::write(directory.path().join("other"), "text").expect("a file");
        assert!(BrokerPage::open(&directory.path().join("other")).is_err());
    }

    #[test]
    fn slots_are_taken_once_and_found_again() {
        let (page, _directory) = page();
        let pids: Vec<u32> = (1..=4).flat_map(|i| [i, i + SLOTS as u32]).collect();

        let slots: Vec<_> = pids.iter().map(|&pid| page.claim(pid).expect("room")).collect();

        for (slot, &pid) in slots.iter().zip(&pids) {
            assert_eq!(slot.pid.load(Relaxed), pid);
            assert!(core::ptr::eq(*slot, page.own(pid).expect("its slot")));
        }
        slots[0].clear();
        assert!(page.own(pids[0]).is_none());
    }

    /// A large one forks unmanaged as long as all of its family would fit beside others; a small
    /// one always.
    #[test]
    fn who_would_not_fit_with_its_children_has_no_room_for_a_fork() {
        const MIB: u64 = 1 << 20;
        let (page, _directory) = page();
        page.budget.store(160 * MIB, Relaxed);
        let member = |pid, family, held: u64| {
            let slot = page.claim(pid).expect("a slot");
            slot.family.store(family, Relaxed);
            slot.held.store(held * MIB, Relaxed);
        };
        let fits = |mapped: u64| page.has_room_for_fork(1, 1, mapped * MIB);

        assert!(fits(80) && !fits(81));
        member(1, 1, 40);
        assert!(fits(80), "it is not beside itself");
        member(2, 1, 40);
        assert!(fits(53) && !fits(54), "a child that it has already");
        member(3, 3, 100);
        assert!(fits(20) && !fits(21), "beside another");
        member(4, 4, 60);
        assert!(fits(10) && !fits(11), "a small one");
    }

    #[test]
    fn when_all_slots_are_taken_there_is_none() {
        let (page, _directory) = page();
        for pid in 1..=SLOTS as u32 {
            assert!(page.claim(pid).is_some());
        }

        assert!(page.claim(SLOTS as u32 + 1).is_none());
    }
}
