//! Forking: the child gets a pager of its own.
//!
//! A child is a copy of everything, our store and page words included, so it
//! could serve itself — if the copy were made at a quiet moment, and if nobody
//! touched an absent page before the child's own threads run. Hence:
//!
//! 1. The parent *freezes*: faults are served, but nothing of ours changes
//!    (content is copied in, words and store stay; what was brought in is
//!    booked later). Nobody ever waits for the fork, so a lock that another
//!    thread holds across a fault cannot deadlock with it.
//! 2. The kernel forks and gives the parent a handle for the child's memory
//!    (`UFFD_EVENT_FORK`). Until the child takes over, the parent's manager
//!    serves the child's faults through it, from the same frozen picture.
//! 3. The child says that it is ready; the parent closes the handle and says
//!    so; the child opens its own, registers its regions, books what is
//!    present, and starts its threads.
//!
//! A fork that did not come through our wrapper (a raw system call) has no
//! step 3. The parent then fills every absent page of the child and lets go of
//! it: the child runs on plain memory.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

use crate::page_state::PageState;
use crate::pager::{MANAGER, Pager};
use crate::serve::{Served, Worker};
use crate::spin::backoff;
use crate::sys::{self, PAGE};
use crate::uffd::{Message, Uffd};

/// How long a fork may wait for room at most (ns).
const ROOM_FOR_FORK: u64 = 50_000_000;

const NOTHING: u32 = 0;
const CHILD_READY: u32 = 1;
const RELEASED: u32 = 2;
/// The child cannot manage itself: it asks for everything to be brought in.
const CHILD_PLAIN: u32 = 3;

/// Descriptors that a pager needs, and some to spare.
const DESCRIPTORS: u64 = 16;

/// What the parent's and the child's threads need to know of a fork.
pub struct ForkState {
    /// Shared with the child: how far the handover is.
    handover: &'static AtomicU32,
    /// Taken by the thread that forks.
    turn: AtomicU32,
    /// Whether a fork through our wrapper is under way.
    announced: AtomicU32,
    /// The child's handle, once the kernel has given it.
    child: AtomicI32,
    /// What `fork` returned: 0 not yet, -1 failed, else the child.
    ended: AtomicI32,
    /// The handle of the staging slots (it reports no forks).
    staging: AtomicI32,
}

impl ForkState {
    /// No fork.
    pub fn new() -> Result<Self, i32> {
        let shared = sys::map_shared(PAGE)?;
        Ok(Self {
            // SAFETY: a zeroed page, never unmapped.
            handover: unsafe { &*(shared as *const AtomicU32) },
            turn: AtomicU32::new(0),
            announced: AtomicU32::new(0),
            child: AtomicI32::new(-1),
            ended: AtomicI32::new(0),
            staging: AtomicI32::new(-1),
        })
    }
    /// The handle with which the staging slots are registered.
    pub fn staging_uffd(&self) -> Uffd {
        Uffd::from_raw(self.staging.load(Acquire))
    }
    /// Sets it.
    pub fn set_staging_uffd(&self, uffd: Uffd) {
        self.staging.store(uffd.raw(), Release);
    }
}

impl Pager {
    /// In the thread that is about to fork, signals blocked.
    pub fn before_fork(&self) {
        let mut spins = 0;
        while self.fork.turn.swap(1, AcqRel) != 0 {
            backoff(&mut spins);
        }
        self.fork.handover.store(NOTHING, Release);
        self.fork.ended.store(0, Release);
        self.commands.ask(self, crate::command::Command::ForkBegins, 0, 0);
    }

    /// In the parent, with what `fork` returned.
    pub fn after_fork_in_parent(&self, pid: i32) {
        self.fork.ended.store(if pid > 0 { pid } else { -1 }, Release);
        self.ring();
    }

    /// In the child: waits until the parent has let go of our memory, and
    /// forgets the parent's threads. Touches nothing that is managed. False if
    /// the child may not manage itself; it is on plain memory then.
    ///
    /// # Safety
    /// Only in a child of a fork that [`Pager::before_fork`] announced, before
    /// it has any other thread.
    pub unsafe fn after_fork_in_child(&self) -> bool {
        // SAFETY: asks who the parent is; this process's own number is not affected.
        let parent = unsafe { libc::getppid() };
        // A process that has dropped its rights may not.
        let able = sys::with_more_descriptors(|| {
            Uffd::open().is_ok_and(|(probe, _)| {
                probe.close();
                sys::descriptor_limit() >= DESCRIPTORS
            })
        });
        let request = if able { CHILD_READY } else { CHILD_PLAIN };
        if able {
            self.adopt_spilled(parent);
        }
        self.fork.handover.store(request, Release);
        sys::futex_wake(self.fork.handover, true);
        while self.fork.handover.load(Acquire) != RELEASED {
            sys::futex_wait(self.fork.handover, request, Some(100_000_000), true);
            // A parent that dies lets go, too.
            // SAFETY: as above.
            if unsafe { libc::getppid() } != parent {
                break;
            }
        }
        if !able {
            return false;
        }
        // SAFETY: the caller's: the holders are threads of the parent, and
        // while frozen they leave what the locks guard as it is.
        unsafe {
            self.reading.force_unlock();
            self.mind.force_unlock();
            self.limbo.force_unlock();
            self.thawed.force_unlock();
            self.deferred.force_unlock();
            self.wiped.force_unlock();
            self.regions.after_fork();
        }
        for worker in &self.workers {
            worker.busy.store(0, Relaxed);
            worker.tid.store(0, Relaxed);
        }
        let _ = self.thawed.lock().take();
        self.commands.reset();
        self.asleep.store(0, Relaxed);
        self.fork.announced.store(0, Relaxed);
        self.fork.child.store(-1, Relaxed);
        self.fork.turn.store(0, Release);
        self.frozen.store(0, Release);
        for &event in self.deferred.lock().take() {
            self.carry_out(event);
        }
        for &(start, end) in self.wiped.lock().iter() {
            self.discarded(start, end);
        }
        true
    }

    /// The spill file is the parent's: brings what we have in it into RAM.
    fn adopt_spilled(&self, parent: i32) {
        if !self.spill.is_open() || self.spill.used().is_zero() {
            return;
        }
        let manager = self.workers[MANAGER].tid.load(Relaxed);
        if !self.spill.reopen(parent, manager) {
            sys::complain(&["the spill file cannot be read in a child; it cannot go on"]);
            std::process::abort();
        }
        for (_, region) in self.regions.iter() {
            for page in 0..region.pages() {
                let word = region.word(page);
                let PageState::Spilled(slot) = PageState::of(word.load(Acquire)) else { continue };
                let mut buffer = crate::spill::Spill::buffer();
                let blob = self
                    .spill
                    .read(slot, &mut buffer)
                    .and_then(|(raw, bytes)| Some((raw, bytes.len(), self.store.put(bytes)?)));
                let Some((raw, len, blob)) = blob else {
                    sys::complain(&["a spilled page cannot be read in a child; it cannot go on"]);
                    std::process::abort();
                };
                let counters = &self.stats().counters;
                counters.stored_pages.fetch_add(1, Relaxed);
                counters.blob_bytes.fetch_add(len as u64, Relaxed);
                let state =
                    if raw { PageState::Raw(blob.0) } else { PageState::Compressed(blob.0) };
                if raw {
                    counters.incompressible.fetch_add(1, Relaxed);
                }
                word.store(state.word(), Release);
            }
        }
        self.spill.forget();
    }

    /// A fork was reported by the kernel; the child's memory waits on `child`.
    /// Called with the lock for reading held.
    pub fn forked(&self, worker: &mut Worker<'_>, child: Uffd) {
        self.stats().counters.forks.fetch_add(1, Relaxed);
        if self.fork.announced.load(Acquire) != 0 {
            self.fork.child.store(child.raw(), Release);
            self.ring();
            return;
        }
        // Not through the wrapper. Freeze, fill, let go.
        self.frozen.fetch_add(1, SeqCst);
        self.wait_quiet(worker.id);
        self.fill_child(worker, child);
        child.close();
        self.frozen.fetch_sub(1, SeqCst);
    }

    /// Brings in everything that is absent in a child.
    fn fill_child(&self, worker: &mut Worker<'_>, child: Uffd) {
        for (_, region) in self.regions.iter() {
            for page in 0..region.pages() {
                if matches!(
                    PageState::of(region.word(page).load(Acquire)),
                    PageState::Fresh | PageState::Resident | PageState::Gone
                ) {
                    continue;
                }
                let address = region.start() + page as usize * PAGE;
                while worker.serve_frozen(child, address) == Served::Retry {
                    sys::yield_now();
                }
            }
        }
    }
}

impl Worker<'_> {
    /// The manager's part: from the announcement to the child's own pager.
    pub fn accompany_fork(&mut self) {
        let pager = self.pager;
        let fork = &pager.fork;
        self.make_room_for_fork();
        pager.frozen.fetch_add(1, SeqCst);
        pager.wait_quiet(self.id);
        fork.announced.store(1, Release);
        pager.commands.answer(0);
        let mut released = false;
        loop {
            let raw = fork.child.load(Acquire);
            if raw >= 0 {
                let child = Uffd::from_raw(raw);
                self.serve_child(child);
                let handover = fork.handover.load(Acquire);
                if handover == CHILD_PLAIN {
                    pager.fill_child(self, child);
                }
                if handover == CHILD_READY || handover == CHILD_PLAIN {
                    child.close();
                    fork.child.store(-1, Release);
                    fork.handover.store(RELEASED, Release);
                    sys::futex_wake(fork.handover, true);
                    released = true;
                }
            }
            match fork.ended.load(Acquire) {
                0 => {}
                -1 => break,
                pid => {
                    if released || has_exited(pid) {
                        break;
                    }
                }
            }
            if raw < 0 {
                let bell = pager.bell.load(Acquire);
                if fork.child.load(Acquire) < 0 && fork.ended.load(Acquire) == 0 {
                    sys::futex_wait(&pager.bell, bell, Some(1_000_000), false);
                }
            }
        }
        let raw = fork.child.swap(-1, AcqRel);
        if raw >= 0 {
            Uffd::from_raw(raw).close();
        }
        fork.announced.store(0, Release);
        pager.frozen.fetch_sub(1, SeqCst);
        self.thaw();
        fork.turn.store(0, Release);
    }

    /// While frozen nothing leaves: makes some room beforehand.
    fn make_room_for_fork(&mut self) {
        let pager = self.pager;
        let deadline = sys::now() + ROOM_FOR_FORK;
        while pager.resident() + pager.budget() / 8 > pager.budget() && sys::now() < deadline {
            let Some(mut limbo) = pager.limbo.try_lock() else {
                sys::yield_now();
                continue;
            };
            if !self.make_room(&mut limbo) {
                return;
            }
        }
    }

    /// Serves what the child waits for; sleeps a little if that is nothing.
    fn serve_child(&mut self, child: Uffd) {
        let mut poll = libc::pollfd { fd: child.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor to look at.
        unsafe { libc::poll(&raw mut poll, 1, 1) };
        while let Some(message) = child.read() {
            // Other events of the child cannot be followed here, and need not
            // be: it has one thread, and that is in our wrapper.
            if let Message::Fault { page, .. } = message {
                while self.serve_frozen(child, page) == Served::Retry {
                    sys::yield_now();
                }
            }
        }
    }
}

/// Whether a child has ended, reaped or not.
fn has_exited(pid: i32) -> bool {
    // SAFETY: plain data, filled by the call.
    let mut info: libc::siginfo_t = unsafe { core::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: writes into `info`; reaps nothing.
    let r = unsafe { libc::waitid(libc::P_PID, pid as u32, &raw mut info, flags) };
    // SAFETY: the field is valid after a successful call.
    r != 0 || unsafe { info.si_pid() } == pid
}
