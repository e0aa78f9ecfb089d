//! Serving faults: a thread waits for a page, a worker brings it in.
//!
//! The hot path is [`Worker::serve`]: take room, take the page, decompress,
//! hand it to the kernel, which wakes the thread. It neither allocates nor
//! logs, and waits only for other workers that hold a page or the ring for a
//! bounded piece of work.

use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering::*;

use libc::{EAGAIN, EEXIST, ENOENT};

use crate::ahead::MOST;
use crate::codec::{Codec, PageBytes};
use crate::fetch::Batch;
use crate::inject::{self, Point};
use crate::limbo::NOBODY;
use crate::manager::Tools;
use crate::mind::access;
use crate::page_state::{BUSY, PageState};
use crate::pager::{MANAGER, Pager};
use crate::presence::Pagemap;
use crate::queue::Note;
use crate::regions::Place;
use crate::spill::reader::Reader;
use crate::spill::writer::Desk;
use crate::stage::{Staged, WINDOW};
use crate::sys::{self, PAGE};
use crate::uffd::Uffd;
use crate::unpack::{damaged, unpack};
use terrace_core::{FaultKind, Nanos};

/// Whether a fault is dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The thread runs again.
    Done,
    /// The address space is changing; try again after reading messages.
    Retry,
    /// The kernel does not take the page, now or later (an error number): a filter on
    /// system calls covers this thread, say.
    Refused(i32),
}

/// A page-aligned buffer.
#[repr(C, align(4096))]
pub struct Aligned<const N: usize>(pub [u8; N]);

/// The content of fresh pages.
static ZEROS: Aligned<{ PAGE * MOST }> = Aligned([0; PAGE * MOST]);

/// Where [`MOST`] pages of zeros are.
pub(crate) fn zeros() -> usize {
    ZEROS.0.as_ptr() as usize
}

/// One of Terrace's threads, with what it needs to serve a fault alone.
pub struct Worker<'p> {
    /// What all share.
    pub pager: &'p Pager,
    /// Its number.
    pub id: usize,
    /// Its compressor.
    pub codec: Codec,
    pub(crate) pagemap: Pagemap,
    buffer: Box<Aligned<PAGE>>,
    pub(crate) batch: Batch,
    /// Pages that it is about to move out, empty in between; there is room for a window's.
    pub(crate) staged: Vec<Option<Staged>>,
    /// Reads the spill file.
    pub(crate) reader: Reader,
    /// Whether it runs only where nobody else wants to.
    pub polls: bool,
    /// Until when (ns) the background need not try to make room.
    pub stuck_until: u64,
    /// What was counted for the fault that it serves.
    pub counted: Nanos,
    /// Whether that fault is ours: its page was armed.
    pub armed: bool,
}

impl<'p> Worker<'p> {
    /// A worker. Opens files: to be made in its own thread.
    pub fn new(pager: &'p Pager, id: usize) -> Self {
        Self {
            pager,
            id,
            codec: Codec::new(),
            pagemap: Pagemap::open(),
            buffer: Box::new(Aligned([0; PAGE])),
            batch: Batch::new(),
            staged: Vec::with_capacity(WINDOW),
            reader: if pager.config.spill.is_some() { Reader::new() } else { Reader::none() },
            polls: false,
            stuck_until: 0,
            counted: Nanos::ZERO,
            armed: false,
        }
    }

    /// It stays where it is from here on, as long as its thread lives: a forked child finds it there,
    /// to give back what it holds ([`Worker::disband`]).
    pub(crate) fn settle_down(&mut self) {
        let at = core::ptr::from_mut(self).expose_provenance();
        self.pager.workers[self.id].at.store(at, Release);
    }

    /// In a forked child: gives back the memory of its parent's workers, which are not here. Each
    /// generation would have that of all before it.
    ///
    /// # Safety
    /// Only the calling thread may exist, and the stacks are as the parent's threads had left them.
    pub(crate) unsafe fn disband(pager: &Pager) {
        for (id, slot) in pager.workers.iter().enumerate() {
            let (at, beside) = (slot.at.swap(0, AcqRel), slot.beside.swap(0, AcqRel));
            let at = core::ptr::with_exposed_provenance::<ManuallyDrop<Self>>(at);
            if at.is_null() {
                continue;
            }
            // SAFETY: the caller's. A fork is made while nobody is at work: of a worker that serves
            // faults meanwhile only the content of buffers changes.
            let mut worker = unsafe { at.read() };
            // Not `pagemap`: a descriptor in the table of the parent's threads.
            let Self { codec, buffer, batch, staged, reader, .. } = &mut *worker;
            batch.give_back();
            reader.give_back();
            // SAFETY: taken from a worker that nobody uses and that is not dropped.
            unsafe {
                core::ptr::drop_in_place(codec);
                core::ptr::drop_in_place(buffer);
                core::ptr::drop_in_place(staged);
            }
            match (beside, id) {
                (0, _) => {}
                // SAFETY: as above.
                (at, MANAGER) => unsafe { Tools::disband(at) },
                // SAFETY: as above: only a writer has noted something, too.
                (at, _) => unsafe { Desk::disband(at) },
            }
        }
    }

    /// Serves a fault at a page's address, with which it began at `start` (`CLOCK_MONOTONIC`, ns).
    pub fn serve(&mut self, address: usize, write: bool, start: u64) -> Served {
        inject::at(Point::Fault);
        let pager = self.pager;
        if !pager.enter(self.id) {
            pager.leave(self.id);
            return self.serve_while_frozen(address);
        }
        let Some(place) = pager.regions.find(address) else {
            pager.leave(self.id);
            return self.serve_unknown(address);
        };
        let ahead = self.look_ahead(&place, write);
        let mut room = ahead.count;
        // The region may be taken away while room is made: it is looked up once more then.
        let mut found = Some(place);
        if !pager.try_reserve(1 + u64::from(room)) {
            // Leave first: making room must not hold up a fork, and must not
            // be waited for by one.
            pager.leave(self.id);
            let short = sys::now();
            self.reserve(1);
            room = self.reserve_ahead(room);
            let counters = &pager.stats().counters;
            counters.direct_reclaim_ns.fetch_add(sys::now() - short, Relaxed);
            if !pager.enter(self.id) {
                pager.leave(self.id);
                pager.release(1 + u64::from(room));
                return self.serve_while_frozen(address);
            }
            found = pager.regions.find(address).filter(|again| again.id == place.id);
        }
        let served = if let Some(place) = found {
            place.region.count_fault(place.page);
            if room > 0 {
                self.bring_ahead(&place, ahead, room);
            }
            let fresh = PageState::of(place.word.load(Relaxed)) == PageState::Fresh;
            let served = self.serve_reserved(&place, write, start);
            if fresh && ahead.stride == 1 && served == Served::Done {
                self.back_ahead(&place, place.page + 1 + room);
            }
            served
        } else {
            pager.release(1 + u64::from(room));
            Served::Retry
        };
        pager.leave(self.id);
        served
    }

    /// Serves a fault for which one page of room is taken.
    fn serve_reserved(&mut self, place: &Place<'_>, write: bool, start: u64) -> Served {
        let pager = self.pager;
        let word = pager.lock_page(place);
        let state = PageState::of(word);
        if pager.is_stopped() {
            // It may have been taken from one who broke: the word is not to be
            // trusted, and stays marked.
            place.word.store(word | BUSY, Release);
            pager.release(1);
            return Served::Retry;
        }
        inject::at(Point::Promote);
        let (error, kind, woken) = match state {
            PageState::Fresh | PageState::Gone => {
                return self.first_touch(place, state, write, start);
            }
            PageState::Resident => {
                pager.release(1);
                return self.serve_resident(place);
            }
            PageState::Limbo(slot) => {
                self.armed = pager.staging.is_armed(slot);
                let error = self.unstage(place, slot);
                (error, FaultKind::Hint(access(write)), sys::now())
            }
            PageState::Compressed(_)
            | PageState::Raw(_)
            | PageState::Same(_)
            | PageState::Spilled(_) => {
                let (error, woken) = self.decompress(place, state);
                (error, FaultKind::Absent(access(write)), woken)
            }
        };
        match error {
            // Present already: what is there is newer than what we hold.
            0 | EEXIST => {
                inject::at(Point::Promoted);
                if error == EEXIST {
                    let _ = pager.uffd().wake(place.address(), PAGE);
                }
                let limbo = matches!(state, PageState::Limbo(_));
                if limbo {
                    pager.huge.probes.touched(place.address());
                    // Its room was never given up.
                    pager.release(1);
                } else {
                    place.region.resident.fetch_add(1, Relaxed);
                }
                pager.note(Note::Fault { page: Pager::page_ref(place), kind });
                place.word.store(PageState::Resident.word(), Release);
                // Afterwards, so that in a core dump no word names what is half freed.
                pager.drop_content(state);
                let counters = &pager.stats().counters;
                if limbo {
                    counters.faults_hint.fetch_add(1, Relaxed);
                } else {
                    counters.faults_absent.fetch_add(1, Relaxed);
                    counters.promotions.fetch_add(1, Relaxed);
                }
                self.count(if limbo { 2 } else { 1 }, Nanos(woken - start));
                self.after_fault();
                Served::Done
            }
            _ => {
                place.word.store(word, Release);
                pager.release(1);
                self.not_served(place.address(), error)
            }
        }
    }

    /// A page that the program never touched, or discarded: zeros.
    fn first_touch(
        &mut self,
        place: &Place<'_>,
        state: PageState,
        write: bool,
        start: u64,
    ) -> Served {
        let pager = self.pager;
        let uffd = pager.uffd();
        let error = if write {
            uffd.copy(place.address(), zeros(), PAGE).1
        } else {
            // A program that only reads keeps sharing the kernel's zero page.
            uffd.zero(place.address(), PAGE).err().unwrap_or(0)
        };
        let woken = sys::now();
        if error != 0 && error != EEXIST {
            place.word.store(state.word(), Release);
            pager.release(1);
            return self.not_served(place.address(), error);
        }
        if state == PageState::Gone {
            pager.mapped_again(place.region);
        }
        if error == EEXIST {
            let _ = uffd.wake(place.address(), PAGE);
        }
        place.region.resident.fetch_add(1, Relaxed);
        let kind = FaultKind::FirstTouch(access(write));
        pager.note(Note::Fault { page: Pager::page_ref(place), kind });
        place.word.store(PageState::Resident.word(), Release);
        pager.stats().counters.faults_first_touch.fetch_add(1, Relaxed);
        self.count(0, Nanos(woken - start));
        self.after_fault();
        Served::Done
    }

    /// The page is ours and said to be resident, yet somebody waits for it.
    fn serve_resident(&mut self, place: &Place<'_>) -> Served {
        let pager = self.pager;
        let here = self.pagemap.is_present(place.address());
        let error = if here == Some(false) {
            // Only the program can have made it go away: `madvise` or the like.
            pager.uffd().copy(place.address(), ZEROS.0.as_ptr() as usize, PAGE).1
        } else {
            // Somebody else brought it in while the message was under way.
            let _ = pager.uffd().wake(place.address(), PAGE);
            0
        };
        place.word.store(PageState::Resident.word(), Release);
        pager.stats().counters.faults_spurious.fetch_add(1, Relaxed);
        match error {
            0 | EEXIST => Served::Done,
            e => self.not_served(place.address(), e),
        }
    }

    /// Moves frames from pages that are present to places that are not, as
    /// [`Uffd::mv`], and counts those right that have arrived.
    ///
    /// Linux from 6.18 on loses count: once a move has met something that is
    /// under way (a page being migrated, `EAGAIN`), `move_pages()` in
    /// `mm/userfaultfd.c` keeps that error beyond the next success, tries the same page
    /// again, and reports that it is gone or that its new place is taken (`ENOENT`,
    /// `EEXIST`). To believe that is to lose the page.
    pub(crate) fn mv(&self, uffd: Uffd, to: usize, from: usize, len: usize) -> (usize, i32) {
        let (bytes, error) = uffd.mv(to, from, len);
        if !matches!(error, EEXIST | ENOENT | EAGAIN) {
            return (bytes, error);
        }
        let arrived = |n: usize| {
            self.pagemap.is_present(from + n) == Some(false)
                && self.pagemap.is_present(to + n) == Some(true)
        };
        let more = (bytes..len).step_by(PAGE).take_while(|&n| arrived(n)).count() * PAGE;
        if more > 0 {
            self.pager.stats().counters.moves_uncounted.fetch_add((more / PAGE) as u64, Relaxed);
            // It wakes nobody for what it has not counted.
            let _ = uffd.wake(to + bytes, more);
        }
        let bytes = bytes + more;
        (bytes, if bytes == len { 0 } else { error })
    }

    /// Moves a page's frame back from its staging slot.
    fn unstage(&mut self, place: &Place<'_>, slot: u32) -> i32 {
        let staging = &self.pager.staging;
        let (_, mut error) =
            self.mv(self.pager.uffd(), place.address(), staging.address(slot), PAGE);
        if error != 0 && error != EAGAIN && error != ENOENT && error != EEXIST {
            // A frame that is shared with a forked child cannot move; copy it.
            // The slot's own copy goes when the tail comes by.
            error = self.pager.uffd().copy(place.address(), staging.address(slot), PAGE).1;
        }
        if error == 0 || error == EEXIST {
            staging.owner_of(slot).store(NOBODY, Release);
        }
        error
    }

    /// Decompresses a page and fills it in; says when (ns) that was done.
    fn decompress(&mut self, place: &Place<'_>, state: PageState) -> (i32, u64) {
        let start = sys::now();
        if !self.unpack(state) {
            damaged();
        }
        let counters = &self.pager.stats().counters;
        counters.decompressed.fetch_add(1, Relaxed);
        let unpacked = sys::now();
        counters.decompress_ns.fetch_add(unpacked - start, Relaxed);
        let error =
            self.pager.uffd().copy(place.address(), self.buffer.0.as_ptr() as usize, PAGE).1;
        let woken = sys::now();
        counters.copy_ns.fetch_add(woken - unpacked, Relaxed);
        (error, woken)
    }

    /// Brings a stored page's content into the worker's buffer.
    fn unpack(&mut self, state: PageState) -> bool {
        unpack(self.pager, state, &mut self.buffer.0, &mut self.reader, false)
    }

    /// Serves a fault from the frozen books, if they still are.
    fn serve_while_frozen(&mut self, address: usize) -> Served {
        let pager = self.pager;
        // The freeze does not end while this is held.
        let _reading = pager.reading.lock();
        if pager.frozen.load(SeqCst) == 0 {
            return Served::Retry;
        }
        if pager.deferred.lock().is_torn() {
            // The page's content may be where it came from or where it went: who brings
            // everything in looks at both.
            let over = pager.over.load(Acquire) != 0;
            return if over { Served::Done } else { Served::Retry };
        }
        self.serve_frozen(pager.uffd(), address)
    }

    /// Serves a fault without changing anything of ours: a child is being
    /// given a copy of it. While frozen, with the lock for reading held.
    pub fn serve_frozen(&mut self, uffd: Uffd, address: usize) -> Served {
        // The books are as they were when the freeze began; the address may
        // have moved or been discarded since.
        let origin = self.pager.deferred.lock().origin(address);
        self.serve_from(uffd, address, origin)
    }

    /// The same for a page of a child, of which it is settled which of the deferred events hold
    /// for it.
    pub fn serve_child_page(&mut self, child: (usize, Uffd), address: usize) -> Served {
        let (number, uffd) = child;
        if self.pager.is_wiped(address) {
            return fill_zeros(uffd, address);
        }
        let origin = self.pager.deferred.lock().origin_in(Some(number), address);
        self.serve_from(uffd, address, origin)
    }

    fn serve_from(&mut self, uffd: Uffd, address: usize, origin: Option<usize>) -> Served {
        let pager = self.pager;
        let own = uffd == pager.uffd();
        let Some(origin) = origin else {
            if own {
                pager.thawed.lock().push(address);
            }
            return fill_zeros(uffd, address);
        };
        let Some(place) = pager.regions.find(origin) else {
            return if own { self.serve_unknown(address) } else { fill_zeros(uffd, address) };
        };
        let word = place.word.load(Acquire);
        let state = PageState::of(word);
        let from = match state {
            PageState::Fresh | PageState::Gone => ZEROS.0.as_ptr() as usize,
            PageState::Resident => {
                if own && self.pagemap.is_present(address) != Some(false) {
                    let _ = uffd.wake(address, PAGE);
                    return Served::Done;
                }
                if word & BUSY != 0 {
                    // Its owner broke, perhaps after it had moved out: who
                    // brings everything in knows.
                    return if pager.over.load(Acquire) == 0 {
                        Served::Retry
                    } else {
                        Served::Done
                    };
                }
                ZEROS.0.as_ptr() as usize
            }
            PageState::Limbo(slot) => pager.staging.address(slot),
            _ => {
                if !self.unpack(state) {
                    damaged();
                }
                self.buffer.0.as_ptr() as usize
            }
        };
        match uffd.copy(address, from, PAGE).1 {
            0 => {
                if own {
                    pager.thawed.lock().push(address);
                }
                Served::Done
            }
            EEXIST => {
                let _ = uffd.wake(address, PAGE);
                Served::Done
            }
            e => not_served_by(uffd, address, e),
        }
    }

    /// Fills in a page that is absent, from where its content is.
    pub fn fill_in(&mut self, address: usize, state: PageState) -> Served {
        let from = if let PageState::Limbo(slot) = state {
            self.pager.staging.address(slot)
        } else {
            if !self.unpack(state) {
                damaged();
            }
            self.buffer.0.as_ptr() as usize
        };
        match self.pager.uffd().copy(address, from, PAGE).1 {
            0 | EEXIST => Served::Done,
            e => not_served_by(self.pager.uffd(), address, e),
        }
    }

    /// In a process that nobody serves: whether a page that we hold still is what
    /// we hold, or, if it is absent, can be (with `fill`: has been) made so.
    pub fn restore(&mut self, state: PageState, address: usize, fill: bool) -> bool {
        if let PageState::Limbo(slot) = state {
            // SAFETY: the slot holds a page; in a child it is a copy of its own.
            let content: &PageBytes =
                unsafe { &*(self.pager.staging.address(slot) as *const PageBytes) };
            self.buffer.0.copy_from_slice(content);
        } else if !self.unpack(state) {
            return false;
        }
        if self.pagemap.is_present(address) != Some(false) {
            let mut now = [0u8; PAGE];
            // What is not mapped any more is nobody's loss.
            return !sys::read_memory(address, &mut now) || now == self.buffer.0;
        }
        !fill || sys::write_memory(address, &self.buffer.0)
    }

    /// A fault outside of every region we know: a mapping that grew in place
    /// without telling us. Enters it.
    fn serve_unknown(&mut self, address: usize) -> Served {
        let pager = self.pager;
        let mut found = None;
        crate::presence::for_each_mapping(|m| {
            if m.start <= address && address < m.end {
                found = Some(m);
            }
        });
        let Some(mapping) = found else {
            // Unmapped meanwhile: let the thread find out.
            let _ = pager.uffd().wake(address, PAGE);
            return Served::Done;
        };
        if pager.frozen.load(SeqCst) != 0 {
            return fill_zeros(pager.uffd(), address);
        }
        let _changes = pager.reading.lock();
        if pager.regions.find(address).is_some() {
            return Served::Retry;
        }
        // All of it that no region has: it may be walked through backwards.
        let start = pager.regions.last_end(address).map_or(mapping.start, |e| e.max(mapping.start));
        let end = pager.regions.next_start(address).map_or(mapping.end, |s| s.min(mapping.end));
        let Err(why) = pager.enter_region(start, end) else { return Served::Retry };
        // Plain memory from now on, and the statistics say so. The kernel wakes whoever waits.
        pager.stats().unmanaged.enter(why, start, end);
        match pager.uffd().unregister(start, end - start) {
            Ok(()) => Served::Done,
            Err(_) => fill_zeros(pager.uffd(), address),
        }
    }

    fn not_served(&self, address: usize, error: i32) -> Served {
        not_served_by(self.pager.uffd(), address, error)
    }

    fn count(&mut self, kind: usize, took: Nanos) {
        self.counted = took;
        self.pager.stats().latency[kind].record(self.counted);
    }

    /// Lets the background know when memory is getting short.
    fn after_fault(&self) {
        let pager = self.pager;
        if pager.resident() + pager.headroom() / 2 > pager.budget()
            && pager.asleep.load(Relaxed) != 0
            && pager.duty.has_spare_processor()
        {
            pager.ring();
        }
    }
}

/// The kernel did not take the page.
fn not_served_by(uffd: Uffd, address: usize, error: i32) -> Served {
    match error {
        // The mapping is gone (or its process): the thread will see.
        ENOENT | libc::ESRCH | libc::EINVAL => {
            let _ = uffd.wake(address, PAGE);
            Served::Done
        }
        // EAGAIN: the address space is changing. ENOMEM: the kernel is
        // looking for memory. Both pass. Nothing else does.
        libc::EAGAIN | libc::ENOMEM | libc::EINTR => Served::Retry,
        refused => Served::Refused(refused),
    }
}

fn fill_zeros(uffd: Uffd, address: usize) -> Served {
    match uffd.copy(address, ZEROS.0.as_ptr() as usize, PAGE).1 {
        0 => Served::Done,
        EEXIST => {
            let _ = uffd.wake(address, PAGE);
            Served::Done
        }
        e => not_served_by(uffd, address, e),
    }
}
