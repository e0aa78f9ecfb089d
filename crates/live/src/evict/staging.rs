//! The staging ring: pages on their way out, or made to fault on purpose.
//!
//! A page leaves the program's mapping by being *moved*, frame and all, into a
//! staging slot. If the program touches it there, it is moved back at the cost
//! of a fault without decompression, and that touch is a sample: the page is
//! not cold. Only the oldest pages of the staging ring are compressed. So the staging ring is at
//! once the transaction of a demotion, the second chance of CLOCK, and the
//! sampler of machines that have no hardware for it.
//!
//! The slots form a ring: filled at the head, emptied at the tail.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::collections::VecDeque;

use terrace_core::Proposal;

use crate::evict::unshare::KNOWN;
use crate::fork::shared_frames::Commons;
use crate::observe::hint_faults::Hints;
use crate::sys::{self, PAGE};

/// Nobody's slot: empty, or its frame went back to the program.
pub const NOBODY: u64 = u64::MAX;
/// The slot holds a frame whose page was discarded meanwhile.
pub const ORPHAN: u64 = u64::MAX - 1;

/// Why a page is in the staging ring.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// It is to be demoted.
    Demote(Proposal),
    /// A touch is to be observed.
    Armed,
}

#[derive(Clone, Copy)]
struct Entry {
    purpose: Purpose,
    /// When it came, ns.
    since: u64,
}

/// The slots' memory and owners, shared by all threads.
pub struct Staging {
    base: usize,
    owners: Box<[AtomicU64]>,
    /// Whether the page in a slot was armed: its fault is part of what observing costs.
    armed: Box<[AtomicBool]>,
}

/// The ring's two ends; held by the thread that makes room.
pub struct StagingRing {
    head: u64,
    tail: u64,
    /// Slots at the tail whose pages have left, but whose frames are still there.
    done: u32,
    entries: Box<[Entry]>,
    /// Demotions that the policy asked for and that are not begun yet.
    pub victims: VecDeque<Proposal>,
    /// Of these, pages that did not move since a fork's other side has them, too.
    pub(crate) shared: VecDeque<Proposal>,
    /// The same pages once they are this process's alone: they leave first.
    pub(crate) unshared: VecDeque<Proposal>,
    /// What is to be made to fault.
    pub hints: Hints,
    /// What is in common with relatives.
    pub(crate) commons: Commons,
}

/// A slot's owner as one word.
pub fn owner(region: u32, page: u32) -> u64 {
    u64::from(region) << 32 | u64::from(page)
}

impl Staging {
    /// Slots for so many pages. The address space is taken, not the memory.
    pub fn new(slots: u32) -> Result<Self, i32> {
        Ok(Self {
            base: sys::map_private(slots as usize * PAGE)?,
            owners: (0..slots).map(|_| AtomicU64::new(NOBODY)).collect(),
            armed: (0..slots).map(|_| AtomicBool::new(false)).collect(),
        })
    }
    /// Gives the slots' addresses back.
    ///
    /// # Safety
    /// No page is in them, and nobody uses them any more.
    pub(crate) unsafe fn give_back(&self) {
        // SAFETY: a mapping of ours; the caller's.
        let _ = unsafe { sys::munmap(self.base, self.slots() as usize * PAGE) };
    }
    /// How many slots there are.
    pub fn slots(&self) -> u32 {
        self.owners.len() as u32
    }
    /// First address of the slots.
    pub fn base(&self) -> usize {
        self.base
    }
    /// A slot's address.
    pub fn address(&self, slot: u32) -> usize {
        self.base + slot as usize * PAGE
    }
    /// Whose page is in a slot: `owner()`, [`NOBODY`] or [`ORPHAN`].
    pub fn owner_of(&self, slot: u32) -> &AtomicU64 {
        &self.owners[slot as usize]
    }
    /// The owners of all slots.
    pub(crate) fn owners(&self) -> &[AtomicU64] {
        &self.owners
    }
    /// Gives a slot to a page, which has not been moved there yet.
    pub fn give(&self, slot: u32, owner: u64, purpose: Purpose) {
        self.armed[slot as usize].store(matches!(purpose, Purpose::Armed), Relaxed);
        self.owners[slot as usize].store(owner, Release);
    }
    /// Whether the page in a slot is there to see whether it is touched.
    pub fn is_armed(&self, slot: u32) -> bool {
        self.armed[slot as usize].load(Relaxed)
    }
}

impl StagingRing {
    /// An empty ring. `sampling` is the share of one processor that hint faults may take.
    pub fn new(slots: u32, victims: usize, sampling: f64) -> Self {
        let none = Entry { purpose: Purpose::Armed, since: 0 };
        Self {
            head: 0,
            tail: 0,
            done: 0,
            entries: vec![none; slots as usize].into(),
            victims: VecDeque::with_capacity(victims),
            shared: VecDeque::with_capacity(KNOWN),
            unshared: VecDeque::with_capacity(KNOWN),
            hints: Hints::new(sampling),
            commons: Commons::new(),
        }
    }
    /// Slots between the tail and the head.
    pub fn taken(&self) -> u32 {
        (self.head - self.tail) as u32
    }
    /// Slots of which nobody has decided yet where their pages go.
    pub fn waiting(&self) -> u32 {
        self.taken() - self.done
    }
    /// Slots that are dealt with, frames of theirs still being there.
    pub fn done(&self) -> u32 {
        self.done
    }
    /// Whether a slot is free.
    pub fn has_room(&self) -> bool {
        (self.taken() as usize) < self.entries.len()
    }
    /// Takes the slot at the head.
    pub fn push(&mut self, purpose: Purpose, now: u64) -> u32 {
        let slot = (self.head % self.entries.len() as u64) as u32;
        self.entries[slot as usize] = Entry { purpose, since: now };
        self.head += 1;
        slot
    }
    /// Gives back the slot that was taken last.
    pub fn unpush(&mut self) {
        self.head -= 1;
    }
    /// The slot at a distance from the first that waits, with its purpose and the time it
    /// came.
    pub fn at(&self, distance: u32) -> (u32, Purpose, u64) {
        let number = self.tail + u64::from(self.done) + u64::from(distance);
        let slot = (number % self.entries.len() as u64) as u32;
        let entry = &self.entries[slot as usize];
        (slot, entry.purpose, entry.since)
    }
    /// Why the page in a slot is there.
    pub fn purpose(&self, slot: u32) -> Purpose {
        self.entries[slot as usize].purpose
    }
    /// The first slots that wait are dealt with.
    pub fn mark_done(&mut self, count: u32) {
        self.done += count;
    }
    /// Empties the slots that are dealt with, frames and all.
    pub fn drop_done(&mut self, staging: &Staging) {
        let slots = self.entries.len() as u64;
        let first = (self.tail % slots) as u32;
        // The ring may begin anew in between.
        let before_end = self.done.min(slots as u32 - first);
        for (first, count) in [(first, before_end), (0, self.done - before_end)] {
            if count > 0 {
                drop_frames(staging, first, count);
            }
        }
        self.tail += u64::from(self.done);
        self.done = 0;
    }
}

/// As `MADV_DONTNEED`, on memory that `mlockall` has locked, too (Linux 5.18).
const MADV_DONTNEED_LOCKED: i32 = 24;

/// Empties the memory of consecutive slots; false if the kernel refuses.
pub fn drop_frames(staging: &Staging, first: u32, count: u32) -> bool {
    // SAFETY: the slots are ours and nobody's page is in them.
    let dropped = unsafe {
        sys::madvise(staging.address(first), count as usize * PAGE, MADV_DONTNEED_LOCKED)
    };
    for slot in first..first + count {
        staging.owner_of(slot).store(NOBODY, Release);
    }
    dropped.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_in_a_ring_and_the_last_can_be_given_back() {
        let mut ring = StagingRing::new(4, 8, 0.03);
        let slots: Vec<u32> = (0..3).map(|now| ring.push(Purpose::Armed, now)).collect();
        assert_eq!(slots, [0, 1, 2]);
        ring.unpush();
        assert_eq!(ring.push(Purpose::Armed, 9), 2);
        assert_eq!((ring.taken(), ring.waiting(), ring.done()), (3, 3, 0));
        assert_eq!(ring.at(1).2, 1, "when it came");
        assert!(ring.has_room());
        ring.push(Purpose::Armed, 10);
        assert!(!ring.has_room());
    }

    #[test]
    fn what_is_dealt_with_is_emptied_across_the_end_of_the_ring() {
        let staging = Staging::new(4).expect("memory");
        let mut ring = StagingRing::new(4, 8, 0.03);
        for round in 0..3 {
            for _ in 0..3 {
                let slot = ring.push(Purpose::Armed, 0);
                staging.give(slot, owner(round, slot), Purpose::Armed);
                // SAFETY: a slot's memory, which nobody else uses.
                unsafe { (staging.address(slot) as *mut u8).write(7) };
            }
            ring.mark_done(2);
            assert_eq!((ring.waiting(), ring.done()), (1, 2));
            let waiting = ring.at(0).0;
            ring.mark_done(1);
            ring.drop_done(&staging);
            assert_eq!((ring.taken(), ring.done()), (0, 0));
            assert_eq!(waiting, (round * 3 + 2) % 4);
            for slot in 0..4 {
                assert_eq!(staging.owner_of(slot).load(Relaxed), NOBODY);
                // SAFETY: as above.
                let byte = unsafe { (staging.address(slot) as *const u8).read() };
                assert_eq!(byte, 0, "its frame was given back");
            }
        }
    }

    #[test]
    fn a_slot_knows_whether_its_page_is_there_to_be_touched() {
        let staging = Staging::new(2).expect("memory");
        staging.give(1, owner(3, 4), Purpose::Armed);
        assert!(staging.is_armed(1) && !staging.is_armed(0));
        assert_eq!(staging.owner_of(1).load(Relaxed), 3 << 32 | 4);
    }
}
