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
//!
//! # With whose userfaultfd the slots are registered
//!
//! A frame may be taken from an address only as long as our books say whose it is. The program
//! may have unmapped the page, and moved another one to its place (`mremap`), or mapped other memory
//! there, while what the kernel tells of that is still unread. Such a frame would go where the books
//! say that the old page is, and be dropped with it as soon as the message is read: the program would
//! read zeros.
//!
//! So the slots are registered with the handle of the program's memory, and pages move by it. The
//! kernel refuses (`EAGAIN`) while it has something to tell by that handle. To ask it before the move,
//! or after it, would not do:
//!
//! - A change is counted (`mmap_changing`) under the locks that a move takes for reading, before the
//!   page tables change: by `userfaultfd_unmap_prep` before what is there is unmapped, by
//!   `mremap_userfaultfd_prep` before the mappings are unlocked again. The move looks at the count
//!   with these locks held. If it is zero, nothing has changed that is not told, and nothing
//!   does until the frames have moved.
//! - It is counted until its thread runs again, after the message was read. Who moves pages keeps
//!   messages from being read (`Worker::no_events`), from before it looks at the books
//!   until the pages have moved. So a change that is counted no more has been carried out.
//! - Who finds out afterwards that something changed cannot tell of which of both pages the frame is,
//!   and cannot put it back: the kernel refuses that, too, until the message is read. Memory that is
//!   not registered the program would have read meanwhile, without a fault.
//!
//! By that handle the kernel also tells what is discarded in the slots, and waits until that is read.
//! We discard frames ourselves, so the slots are registered with nobody meanwhile
//! (`Staging::discard`).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::collections::VecDeque;

use terrace_core::Proposal;

use crate::evict::unshare::KNOWN;
use crate::fork::shared_frames::Commons;
use crate::observe::hint_faults::Hints;
use crate::sys::uffd::{Uffd, mode};
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
    /// Whether pages can be moved here.
    registered: AtomicBool,
    /// Whether an empty slot may be marked ([`Uffd::poison`]): nothing can be moved there.
    marked: AtomicBool,
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
        let len = slots as usize * PAGE;
        let base = sys::map_private(len)?;
        // Of a program that has asked for all that it maps to be locked (`mlockall`) they are, and full:
        // what is locked moves only to where memory is locked.
        sys::munlock(base, len);
        // SAFETY: nobody's yet.
        let _ = unsafe { sys::madvise(base, len, libc::MADV_DONTNEED) };
        Ok(Self {
            base,
            owners: (0..slots).map(|_| AtomicU64::new(NOBODY)).collect(),
            armed: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            registered: AtomicBool::new(false),
            marked: AtomicBool::new(false),
        })
    }
    /// Registers the slots with the handle of the program's memory, or says why the kernel does not.
    pub(crate) fn register(&self, uffd: Uffd) -> Result<(), i32> {
        let (start, end) = self.range();
        uffd.register(start, end - start, mode::MISSING)?;
        self.registered.store(true, Release);
        Ok(())
    }
    /// Whether pages can be moved here; tries to make it so where the kernel had no memory for that.
    /// With the ring.
    pub(crate) fn is_ready(&self, uffd: Uffd) -> bool {
        self.registered.load(Acquire) || self.register(uffd).is_ok()
    }
    /// The slots' addresses.
    pub(crate) fn range(&self) -> (usize, usize) {
        (self.base, self.base + self.slots() as usize * PAGE)
    }
    /// Whether an address is a slot's.
    pub(crate) fn contains(&self, address: usize) -> bool {
        let (start, end) = self.range();
        (start..end).contains(&address)
    }
    /// Notes that a slot was marked.
    pub(crate) fn mark(&self) {
        self.marked.store(true, Release);
    }
    /// Empties the memory of slots; false if the kernel refuses. With the ring, or nobody else would
    /// know whether a page can be moved here.
    ///
    /// They are registered with nobody meanwhile: the kernel would tell us, and this thread would wait
    /// until it is read. All of them are, as the mapping would be split otherwise. Pages can
    /// leave them all the time.
    fn discard(&self, uffd: Uffd, ranges: &[(u32, u32)]) -> bool {
        let (start, end) = self.range();
        let registered = self.registered.load(Acquire);
        if registered {
            if uffd.unregister(start, end - start).is_err() {
                return false;
            }
            self.registered.store(false, Release);
        }
        let mut done = true;
        for &(first, count) in ranges.iter().filter(|(_, count)| *count > 0) {
            // SAFETY: the slots are ours and nobody's page is in them.
            let dropped = unsafe {
                sys::madvise(self.address(first), count as usize * PAGE, MADV_DONTNEED_LOCKED)
            };
            done &= dropped.is_ok();
        }
        if registered {
            // What is refused here is tried again: `is_ready`.
            let _ = self.register(uffd);
        }
        done
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
    /// So many slots from a number on: first slots, and how many. The ring may begin anew in between.
    fn ranges(&self, number: u64, count: u32) -> [(u32, u32); 2] {
        let slots = self.entries.len() as u32;
        let first = (number % u64::from(slots)) as u32;
        let before_end = count.min(slots - first);
        [(first, before_end), (0, count - before_end)]
    }
    /// Empties the slots that are dealt with, frames and all. `uffd`: the handle of the program's
    /// memory.
    pub fn drop_done(&mut self, staging: &Staging, uffd: Uffd) {
        if self.done > 0 {
            drop_frames(staging, uffd, &self.ranges(self.tail, self.done));
        }
        self.tail += u64::from(self.done);
        self.done = 0;
    }
    /// Makes free slots usable that were marked. The others are when they are dropped.
    pub(crate) fn clear_marks(&self, staging: &Staging, uffd: Uffd) {
        if staging.marked.swap(false, AcqRel) {
            let free = self.entries.len() as u32 - self.taken();
            staging.discard(uffd, &self.ranges(self.head, free));
        }
    }
}

/// As `MADV_DONTNEED`, on memory that `mlockall` has locked, too (Linux 5.18).
const MADV_DONTNEED_LOCKED: i32 = 24;

/// Empties slots, given as first ones and how many, frames and all; false if the kernel refuses. With
/// the ring. `uffd`: the handle of the program's memory.
pub fn drop_frames(staging: &Staging, uffd: Uffd, ranges: &[(u32, u32)]) -> bool {
    let dropped = staging.discard(uffd, ranges);
    for &(first, count) in ranges {
        for slot in first..first + count {
            staging.owner_of(slot).store(NOBODY, Release);
        }
    }
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slots that are registered with nobody need none.
    const NO_HANDLE: Uffd = Uffd::from_raw(-1);

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
            ring.drop_done(&staging, NO_HANDLE);
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

    /// What marks an empty slot would keep every page out of it.
    #[test]
    fn what_is_in_free_slots_is_cleared_once_they_are_marked_and_pages_in_others_stay() {
        let staging = Staging::new(4).expect("memory");
        let mut ring = StagingRing::new(4, 8, 0.03);
        // The free ones lie on both sides of the ring's end.
        for _ in 0..3 {
            ring.push(Purpose::Armed, 0);
        }
        ring.mark_done(1);
        ring.drop_done(&staging, NO_HANDLE);
        let byte = |slot: u32| staging.address(slot) as *mut u8;
        for slot in 0..4 {
            // SAFETY: a slot's memory, which nobody else uses.
            unsafe { byte(slot).write(7) };
        }
        // SAFETY: as above.
        let bytes = || [0, 1, 2, 3].map(|slot| unsafe { byte(slot).read() });
        ring.clear_marks(&staging, NO_HANDLE);
        assert_eq!(bytes(), [7; 4], "none is marked");
        staging.mark();
        ring.clear_marks(&staging, NO_HANDLE);
        assert_eq!(bytes(), [0, 7, 7, 0]);
    }

    #[test]
    fn only_the_addresses_of_slots_are_the_ring_s() {
        let staging = Staging::new(2).expect("memory");
        let (start, end) = staging.range();
        assert_eq!((start, end - start), (staging.address(0), 2 * PAGE));
        assert!(staging.contains(start) && staging.contains(end - 1));
        assert!(!staging.contains(start - 1) && !staging.contains(end));
    }

    #[test]
    fn a_slot_knows_whether_its_page_is_there_to_be_touched() {
        let staging = Staging::new(2).expect("memory");
        staging.give(1, owner(3, 4), Purpose::Armed);
        assert!(staging.is_armed(1) && !staging.is_armed(0));
        assert_eq!(staging.owner_of(1).load(Relaxed), 3 << 32 | 4);
    }
}
