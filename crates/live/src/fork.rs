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

mod child;
pub mod reset;

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

use crate::command::Command;
use crate::deferred::Deferred;
use crate::filters;
use crate::give_up;
use crate::inject::{self, Point};
use crate::page_state::PageState;
use crate::pager::Pager;
use crate::reclaim::Pace;
use crate::robust;
use crate::serve::{Served, Worker};
use crate::shared::ProcessPage;
use crate::spin::{SpinLock, backoff, give_way};
use crate::sys::{self, PAGE};
use crate::uffd::{Message, Uffd};

/// How long a fork may wait for room at most (ns).
const ROOM_FOR_FORK: u64 = 50_000_000;
/// How long the parent waits for a child that makes no progress (a debugger holds
/// it, say) before it fills the child's memory and lets go of it (ns).
const PATIENCE: u64 = 2_000_000_000;

/// How long the parent's manager pauses at least, and at most, before it looks again what a child
/// wants (ns). It can wait for the child's word, which is soon there, or for its faults, of which
/// there mostly are none, but not for both.
const LEAST_PAUSE: u64 = 100_000;
const LONGEST_PAUSE: u64 = 1_000_000;

const NOTHING: u32 = 0;
const CHILD_READY: u32 = 1;
const RELEASED: u32 = 2;
/// The child cannot manage itself: it asks for everything to be brought in.
const CHILD_PLAIN: u32 = 3;

/// Descriptors that a pager needs, and some to spare.
const DESCRIPTORS: u64 = 16;
/// Children whose memory waits on us at once: one through the wrapper, and
/// those of raw forks meanwhile.
const CHILDREN: usize = 8;

/// Ranges that can be noted to be managed after a fork.
const LATE: usize = 256;
/// The number of a child whose fork was not announced: one at a time, under the lock for reading.
const UNANNOUNCED: usize = CHILDREN - 1;
/// How long the threads that change the address space may take to say so (ns). They are in the
/// kernel, between two steps; with that many at it that there is no moment without, what is known
/// by then has to do.
const SETTLES: u64 = 200_000_000;
/// How long who is about to change the address space waits for a child to have its memory, at most
/// (ns): whatever the thread that forks may wait for, it does not wait long.
const GATE: u64 = 50_000_000;
/// Pages that are looked at to find one that was resident.
const LOOKED_AT: usize = 4096;
/// Of a handover: for the events, and how many there is room for.
const HANDOVER: usize = 128 << 10;
const EVENTS: usize = (HANDOVER - PAGE) / size_of::<Message>();

/// What a look at the children found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// No child.
    Nobody,
    /// Nothing that they wait for.
    Quiet,
    /// Faults, now served.
    Served,
}

/// Whether a fork is accompanied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announced {
    /// The parent and the child have to say how it ended.
    Yes,
    /// The program is on plain memory.
    Unneeded,
}

/// What a parent and the child of one fork share, and nobody else: a page of
/// its own for each fork, since both may fork again at once.
struct Handover {
    /// How far the handover is.
    step: AtomicU32,
    /// Counted up by a child that has to read much before it is ready.
    progress: AtomicU32,
    /// Held by the parent's manager: the kernel marks it when its
    /// holder dies, in whatever way. (The child cannot ask for its parent's
    /// number instead: the parent may be gone before it asks, and in a PID
    /// namespace of its own it has none.)
    alive: robust::Held,
    /// Address-space events that hold for the child, which lie behind this, plus one; 0 if the child
    /// has got all its memory instead.
    events: AtomicU32,
}

const _: () = assert!(size_of::<Handover>() <= PAGE);

impl Handover {
    /// Maps one.
    fn map() -> Result<*mut Self, i32> {
        sys::map_shared(HANDOVER).map(|at| at as *mut Self)
    }
    /// In the child: whether the parent's manager has died while it held on.
    fn parent_died(&self) -> bool {
        self.alive.is_orphan()
    }
    fn event(&self, n: usize) -> *mut Message {
        core::ptr::from_ref(self)
            .cast_mut()
            .wrapping_byte_add(PAGE)
            .cast::<Message>()
            .wrapping_add(n)
    }
    /// In the parent's manager: hands events over; false if there are too many.
    fn hand_over(&self, deferred: &Deferred, child: usize) -> bool {
        let mut count = 0;
        let complete = deferred.for_each_in(child, |event| {
            let room = count < EVENTS;
            if room {
                // SAFETY: within the mapping; the child reads when it is told to.
                unsafe { self.event(count).write(event) };
                count += 1;
            }
            room
        });
        self.events.store(if complete { count as u32 + 1 } else { 0 }, Release);
        complete
    }
    /// In the child: what was handed over.
    fn events(&self) -> Option<&[Message]> {
        let count = (self.events.load(Acquire) as usize).checked_sub(1)?;
        // SAFETY: the parent has written so many before it said so, and both run the same program.
        Some(unsafe { core::slice::from_raw_parts(self.event(0), count.min(EVENTS)) })
    }
    fn release(&self) {
        self.step.store(RELEASED, Release);
        sys::futex_wake(&self.step, true);
    }
}

/// Handles of children, as the kernel reports them.
struct Children {
    /// Whether a fork through our wrapper is under way.
    announced: bool,
    handles: [Option<Child>; CHILDREN],
}

/// A child's memory.
#[derive(Clone, Copy)]
struct Child {
    uffd: Uffd,
    /// How many events were deferred when the fork was reported.
    seen: usize,
    /// Whether it is settled which of them hold for the child.
    settled: bool,
}

impl Children {
    const fn new() -> Self {
        Self { announced: false, handles: [None; CHILDREN] }
    }
    fn any(&self) -> bool {
        self.handles.iter().any(Option::is_some)
    }
    /// Whether the memory of each is gone, if there are any.
    fn all_ended(&self) -> bool {
        self.handles.iter().flatten().all(|child| child.uffd.is_orphan())
    }
    fn push(&mut self, child: Child) -> bool {
        // The last number is for forks that were not announced.
        let free = self.handles[..CHILDREN - 1].iter_mut().find(|h| h.is_none());
        free.map(|slot| *slot = Some(child)).is_some()
    }
}

/// What the parent's and the child's threads need to know of a fork.
pub struct ForkState {
    /// The page of the fork under way.
    handover: AtomicPtr<Handover>,
    /// One for a fork for which the kernel gives none: a program that has used its address
    /// space up can still fork.
    kept: AtomicPtr<Handover>,
    /// The manager's list of what shows that it lives.
    lives: robust::List,
    /// Taken by the thread that forks.
    turn: AtomicU32,
    children: SpinLock<Children>,
    /// Whether `fork` has returned in the parent.
    ended: AtomicU32,
    /// Whether the manager is done with the fork.
    done: AtomicU32,
    /// The process that forks.
    parent: AtomicI32,
    /// Whether the thread that forks is under a filter on system calls that we are not under,
    /// and so will be its child: that may make none of the calls that a pager needs.
    filtered: AtomicBool,
    /// The handle of the staging slots (it reports no forks).
    staging: AtomicI32,
    /// While set, threads that are about to change the address space had better wait: what they
    /// do would have to be kept in mind until the fork is over.
    gate: AtomicU32,
    /// Of how many deferred events it is sure that they were carried out before the copy.
    sure: AtomicUsize,
    /// Ranges that threads have asked to be managed meanwhile; of more than fit, they wait.
    late: [(AtomicUsize, AtomicUsize); LATE],
    late_count: AtomicUsize,
    /// A page that every child inherits: the kernel reports a fork only with memory that is
    /// registered, and the program may have none.
    sentinel: AtomicUsize,
    /// In a child: where it counts until it has a page that others can see.
    interim: AtomicPtr<ProcessPage>,
    /// Its parent's page, until then.
    inherited: AtomicPtr<ProcessPage>,
}

impl ForkState {
    /// No fork.
    pub const fn new() -> Self {
        Self {
            handover: AtomicPtr::new(core::ptr::null_mut()),
            kept: AtomicPtr::new(core::ptr::null_mut()),
            lives: robust::List::new(),
            turn: AtomicU32::new(0),
            children: SpinLock::new(Children::new()),
            ended: AtomicU32::new(0),
            done: AtomicU32::new(0),
            parent: AtomicI32::new(0),
            filtered: AtomicBool::new(false),
            staging: AtomicI32::new(-1),
            gate: AtomicU32::new(0),
            sure: AtomicUsize::new(0),
            late: [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; LATE],
            late_count: AtomicUsize::new(0),
            sentinel: AtomicUsize::new(0),
            interim: AtomicPtr::new(core::ptr::null_mut()),
            inherited: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
    /// The handle with which the staging slots are registered.
    pub fn staging_uffd(&self) -> Uffd {
        Uffd::from_raw(self.staging.load(Acquire))
    }
    /// Sets it.
    pub fn set_staging_uffd(&self, uffd: Uffd) {
        self.staging.store(uffd.raw(), Release);
    }
    /// The page of the fork under way.
    fn handover(&self) -> &Handover {
        // SAFETY: between `before_fork` and `forget_handover` the page is mapped
        // in both processes; zero bytes are a valid value.
        unsafe { &*self.handover.load(Acquire) }
    }
    /// The same, if there still is one.
    fn any_handover(&self) -> Option<&Handover> {
        // SAFETY: as above.
        unsafe { self.handover.load(Acquire).as_ref() }
    }
    fn forget_handover(&self) {
        let page = self.handover.swap(core::ptr::null_mut(), AcqRel);
        // SAFETY: the manager, or in the child everybody, is done with it.
        let _ = unsafe { sys::munmap(page as usize, HANDOVER) };
        self.keep_one();
    }
    /// Keeps a page for a fork for which there would be none, unless there is one.
    pub(crate) fn keep_one(&self) {
        if self.kept.load(Acquire).is_null()
            && let Ok(page) = Handover::map()
        {
            self.kept.store(page, Release);
        }
    }
    /// A page for a fork.
    fn take_one(&self) -> Result<*mut Handover, i32> {
        Handover::map().or_else(|error| {
            let kept = self.kept.swap(core::ptr::null_mut(), AcqRel);
            if kept.is_null() { Err(error) } else { Ok(kept) }
        })
    }
    /// Registers the page that every child inherits.
    pub(crate) fn watch(&self, pager: &Pager) -> Result<(), i32> {
        let mut at = self.sentinel.load(Acquire);
        if at == 0 {
            at = sys::map_private(PAGE)?;
            self.sentinel.store(at, Release);
        }
        pager.register(at, PAGE)
    }
    /// That page's range.
    pub(crate) fn watched(&self) -> (usize, usize) {
        let at = self.sentinel.load(Acquire);
        (at, at + PAGE)
    }
    /// In a child: the page that is kept is its parent's, too.
    fn keep_apart(&self) {
        let kept = self.kept.swap(core::ptr::null_mut(), AcqRel);
        if !kept.is_null() {
            // SAFETY: a mapping of ours that nobody in this process uses.
            let _ = unsafe { sys::munmap(kept as usize, HANDOVER) };
        }
    }
}

impl Default for ForkState {
    fn default() -> Self {
        Self::new()
    }
}

impl Pager {
    /// In the thread that is about to fork, signals blocked. The error number
    /// if this process cannot be forked.
    pub fn before_fork(&self) -> Result<Announced, i32> {
        if self.is_stopped() {
            self.await_plain_memory();
            return Ok(Announced::Unneeded);
        }
        let mut spins = 0;
        while self.fork.turn.swap(1, AcqRel) != 0 {
            backoff(&mut spins);
        }
        // SAFETY: asks for this process's number.
        self.fork.parent.store(unsafe { libc::getpid() }, Relaxed);
        self.fork.ended.store(0, Release);
        self.fork.done.store(0, Release);
        // Nonsense where a filter forbids to ask: a thread that the manager does not find.
        // SAFETY: asks for this thread's number.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as usize;
        let error = self.commands.ask(self, Command::ForkBegins, thread, 0);
        if self.is_stopped() {
            self.await_plain_memory();
            self.fork.turn.store(0, Release);
            return Ok(Announced::Unneeded);
        }
        if error != 0 {
            self.fork.turn.store(0, Release);
            return Err(error as i32);
        }
        Ok(Announced::Yes)
    }

    /// In a thread of the program's that is about to change the address space: lets a child have its
    /// memory first, or waits some time for that.
    pub fn await_child(&self) {
        if self.fork.gate.load(Acquire) != 0 {
            let until = sys::now() + GATE;
            while self.fork.gate.load(Acquire) != 0 && sys::now() < until {
                give_way();
            }
        }
    }

    /// Something of ours broke: waits until the program's memory is plain. A child that
    /// was forked before would wait for what its parent still has to bring in, and
    /// read zeros if the parent ends first, as daemons' parents do.
    pub(crate) fn await_plain_memory(&self) {
        while self.over.load(Acquire) == 0 {
            sys::sleep(100_000);
        }
    }

    /// In the parent, when `fork` has returned, with a child or without. Waits until the child has
    /// its memory: a parent that goes on at once may end at once, as daemons'
    /// parents do, and what the child touches next would read as zeros.
    pub fn after_fork_in_parent(&self) {
        self.fork.ended.store(1, Release);
        self.ring();
        while self.fork.done.load(Acquire) == 0 {
            sys::futex_wait(&self.fork.done, 0, None, false);
        }
        if self.is_stopped() {
            // The message of this fork was read before `fork` returned, by one who holds
            // the lock until the child has all its memory. Only then may this thread
            // go on, and the child.
            self.await_plain_memory();
            self.await_handles();
            if let Some(handover) = self.fork.any_handover() {
                handover.release();
            }
        }
        self.fork.turn.store(0, Release);
    }

    /// A fork was reported by the kernel; the child's memory waits on `uffd`.
    /// Called with the lock for reading held.
    pub fn forked(&self, worker: &mut Worker<'_>, uffd: Uffd) {
        self.stats().counters.forks.fetch_add(1, Relaxed);
        let child = Child { uffd, seen: self.deferred.lock().noted(), settled: false };
        {
            let mut children = self.fork.children.lock();
            if children.announced && children.push(child) {
                drop(children);
                self.ring();
                return;
            }
        }
        // Not announced. Freeze, fill, let go.
        self.frozen.fetch_add(1, SeqCst);
        self.wait_quiet(worker.id);
        self.read_all_changes(worker);
        self.settle(UNANNOUNCED, child, 0);
        self.fill_child(worker, UNANNOUNCED, child);
        self.deferred.lock().forget_child(UNANNOUNCED);
        child.uffd.close();
        if self.frozen.load(SeqCst) == 1 && !self.is_stopped() {
            // Who serves faults meanwhile waits for the lock.
            self.carry_out_deferred();
        }
        self.frozen.fetch_sub(1, SeqCst);
    }

    /// With the lock for reading, while frozen: reads until all changes of the address space that
    /// a child may have are noted.
    fn read_all_changes(&self, worker: &mut Worker<'_>) {
        let deadline = sys::now() + SETTLES;
        while self.uffd().is_changing() && sys::now() < deadline {
            match self.uffd().read() {
                // Its thread faults again.
                Some(Message::Fault { page, .. }) => {
                    let _ = self.uffd().wake(page, PAGE);
                }
                Some(Message::Fork { child }) => {
                    // Several at once: this one gets what can be known now.
                    let uffd = Uffd::from_raw(child);
                    let child = Child { uffd, seen: self.deferred.lock().noted(), settled: false };
                    self.settle(UNANNOUNCED, child, 0);
                    self.fill_child(worker, UNANNOUNCED, child);
                    uffd.close();
                }
                Some(event) => self.deferred.lock().push(event),
                None => give_way(),
            }
        }
    }

    /// Waits until all changes of the address space that a child may have are noted. Others read.
    fn await_changes(&self) {
        let deadline = sys::now() + SETTLES;
        while self.uffd().is_changing() && !self.is_stopped() && sys::now() < deadline {
            give_way();
        }
    }

    /// Finds out which of the deferred events hold for a child: of so many it is sure.
    fn settle(&self, number: usize, child: Child, sure: usize) {
        let uffd = child.uffd;
        let first_managed = |start: usize, end: usize| {
            self.regions.iter().find_map(|(_, region)| {
                let (from, to) = (start.max(region.start()), end.min(region.end()));
                let page = |at: usize| ((at - region.start()) / PAGE) as u32;
                let is_mapped = |at: &usize| {
                    let word = region.word(page(*at)).load(Acquire);
                    PageState::of(word) != PageState::Gone
                };
                (from < to).then(|| (from..to).step_by(PAGE).find(is_mapped)).flatten()
            })
        };
        // A page that was resident tells: either it is there, or zeros are right.
        let is_discarded = |start: usize, end: usize| {
            let resident = self.regions.iter().find_map(|(_, region)| {
                let (from, to) = (start.max(region.start()), end.min(region.end()));
                (from < to).then(|| {
                    (from..to).step_by(PAGE).take(LOOKED_AT).find(|at| {
                        let page = ((at - region.start()) / PAGE) as u32;
                        region.word(page).load(Acquire) == PageState::Resident.word()
                    })
                })?
            })?;
            match uffd.copy(resident, crate::serve::zeros(), PAGE).1 {
                0 => Some(true),
                libc::EEXIST => Some(false),
                _ => None,
            }
        };
        let is_registered = |page: usize| uffd.is_registered(page);
        let mut deferred = self.deferred.lock();
        deferred.settle(number, sure, child.seen, is_registered, first_managed, is_discarded);
    }

    /// A child runs as soon as the message of its birth is read. Whoever reads
    /// it holds the lock for reading until the handle is entered, or all memory is brought in if
    /// the fork was not announced; without
    /// waiting for that, the child would be told that it is on its own while
    /// its memory still waits for us.
    pub fn await_handles(&self) {
        drop(self.reading.lock());
    }

    /// Whether a forked child is to find an address empty (`MADV_WIPEONFORK`).
    pub fn is_wiped(&self, address: usize) -> bool {
        self.wiped.lock().iter().any(|range| (range.0..range.1).contains(&address))
    }

    /// Brings in everything that is absent in a child.
    fn fill_child(&self, worker: &mut Worker<'_>, number: usize, child: Child) {
        for (_, region) in self.regions.iter() {
            if child.uffd.is_orphan() {
                return;
            }
            for page in 0..region.pages() {
                if matches!(
                    PageState::of(region.word(page).load(Acquire)),
                    PageState::Fresh | PageState::Resident | PageState::Gone
                ) {
                    continue;
                }
                let origin = region.start() + page as usize * PAGE;
                let place = self.deferred.lock().destination_in(Some(number), origin);
                if let Some(address) = place.filter(|&address| !self.is_wiped(address)) {
                    worker.bring_to_child(number, child, address);
                }
            }
        }
    }
}

impl Worker<'_> {
    /// The manager's part: from the announcement, by this thread of the program's, to the
    /// child's own pager.
    pub fn accompany_fork(&mut self, thread: i32) {
        let pager = self.pager;
        let fork = &pager.fork;
        // By the manager: the thread that forks may be forbidden to.
        match fork.take_one() {
            Ok(page) => fork.handover.store(page, Release),
            Err(error) => return pager.commands.answer(error as usize),
        }
        let handover = fork.handover();
        fork.filtered.store(filters::differ(thread), Release);
        self.make_room_for_fork();
        pager.frozen.fetch_add(1, SeqCst);
        pager.wait_quiet(self.id);
        pager.share.forks(pager);
        // SAFETY: a pager is never freed, and the page is forgotten when the fork is over.
        unsafe { fork.lives.take(&handover.alive) };
        fork.children.lock().announced = true;
        fork.sure.store(pager.deferred.lock().noted(), Release);
        pager.commands.answer(0);
        inject::at(Point::Fork);
        let mut released = false;
        let mut deadline = None;
        let mut progress = 0;
        let mut round = Round::Nobody;
        let mut pause = LEAST_PAUSE;
        loop {
            self.obey_while_forking();
            round = self.serve_children(match round {
                // What else comes is not this fork's child.
                _ if released => LONGEST_PAUSE,
                Round::Served => LEAST_PAUSE,
                Round::Quiet | Round::Nobody => 0,
            });
            let step = handover.step.load(Acquire);
            let now = handover.progress.load(Acquire);
            if core::mem::replace(&mut progress, now) != now {
                deadline = None;
            }
            if !released && (step == CHILD_READY || step == CHILD_PLAIN) {
                pager.await_handles();
                self.let_children_go(step == CHILD_PLAIN);
                handover.release();
                fork.gate.store(0, Release);
                released = true;
            }
            if fork.ended.load(Acquire) != 0 {
                if released {
                    break;
                }
                // The message of a child is read before `fork` returns: without one there is none.
                pager.await_handles();
                if fork.children.lock().all_ended() {
                    break;
                }
                let deadline = *deadline.get_or_insert_with(|| sys::now() + PATIENCE);
                // Only if the child has not asked just now.
                if sys::now() > deadline {
                    self.let_children_go(true);
                    if handover.step.swap(RELEASED, AcqRel) != NOTHING {
                        handover.release();
                    }
                    released = true;
                }
            }
            match round {
                Round::Nobody => pager.sleep_unless(LONGEST_PAUSE, || {
                    let asked = pager.commands.pending().is_some();
                    asked || fork.ended.load(Acquire) != 0 || fork.children.lock().any()
                }),
                Round::Quiet if !released => {
                    sys::futex_wait(&handover.step, NOTHING, Some(pause), true);
                    pause = LONGEST_PAUSE.min(pause * 2);
                }
                Round::Quiet => {}
                Round::Served => pause = LEAST_PAUSE,
            }
        }
        fork.children.lock().announced = false;
        // Of raw forks that came after the child was let go, or of a child
        // that has ended.
        pager.await_handles();
        self.let_children_go(true);
        fork.lives.give_back(&handover.alive);
        fork.gate.store(0, Release);
        self.thaw();
        fork.forget_handover();
        fork.done.store(1, Release);
        sys::futex_wake(&fork.done, false);
        self.manage_late();
    }

    /// Does what other threads ask for meanwhile, or notes it: the one that forks may have to wait
    /// for them.
    fn obey_while_forking(&self) {
        let pager = self.pager;
        let Some((command, a, b)) = pager.commands.pending() else { return };
        match command {
            Command::Manage => {
                let count = pager.fork.late_count.load(Relaxed);
                if let Some((start, end)) = pager.fork.late.get(count) {
                    start.store(a, Relaxed);
                    end.store(b, Relaxed);
                    // A child's copy has it whole or not at all.
                    pager.fork.late_count.store(count + 1, Release);
                    pager.commands.answer(1);
                }
            }
            Command::Discard => {
                let _reading = pager.reading.lock();
                pager.deferred.lock().push(Message::Remove { start: a, end: b });
                pager.commands.answer(usize::from(!pager.is_stopped()));
            }
            _ => {}
        }
    }

    /// Manages what was asked for while a fork was under way. In a child, too.
    pub(crate) fn manage_late(&mut self) {
        let fork = &self.pager.fork;
        let count = fork.late_count.swap(0, AcqRel);
        for (start, end) in &fork.late[..count] {
            // What cannot be managed is counted.
            let _ = self.manage_by_parts(start.load(Relaxed), end.load(Relaxed));
        }
    }

    /// Finds out of each child what holds for it, unless that is known.
    fn settle_children(&self) {
        let pager = self.pager;
        let all_settled =
            |children: &Children| children.handles.iter().flatten().all(|c| c.settled);
        if all_settled(&pager.fork.children.lock()) {
            return;
        }
        pager.fork.gate.store(1, Release);
        pager.await_changes();
        let children = pager.fork.children.lock().handles;
        for (number, child) in children.into_iter().enumerate() {
            if let Some(child) = child.filter(|child| !child.settled) {
                pager.settle(number, child, pager.fork.sure.load(Acquire));
                if let Some(child) = &mut pager.fork.children.lock().handles[number] {
                    child.settled = true;
                }
            }
        }
    }

    /// When something of ours broke: gives the children all their memory. The thread
    /// that forks goes on, and tells its child once it knows that this is so.
    pub fn abandon_fork(&mut self) {
        let fork = &self.pager.fork;
        fork.children.lock().announced = false;
        self.let_children_go(true);
        fork.gate.store(0, Release);
        fork.done.store(1, Release);
        sys::futex_wake(&fork.done, false);
    }

    /// Closes the children's handles. All memory is brought in before if it is
    /// asked for, and if there are several: nothing says which of them is the
    /// one that will serve itself.
    fn let_children_go(&mut self, fill: bool) {
        let pager = self.pager;
        self.settle_children();
        let children = pager.fork.children.lock().handles;
        let several = children.iter().flatten().count() > 1;
        for (number, child) in children.into_iter().enumerate() {
            let Some(child) = child.filter(|child| child.settled) else { continue };
            // One that has all its memory, and no books of what has changed, is on its own.
            let handover = pager.fork.any_handover();
            let is_open = |page: &&Handover| page.step.load(Acquire) != RELEASED;
            let handed_over = !several
                && handover
                    .filter(is_open)
                    .is_some_and(|page| page.hand_over(&pager.deferred.lock(), number));
            if fill || !handed_over {
                pager.fill_child(self, number, child);
            }
            pager.fork.children.lock().handles[number] = None;
            pager.deferred.lock().forget_child(number);
            child.uffd.close();
        }
    }

    /// While frozen nothing leaves: makes some room beforehand, of what no child has, too.
    fn make_room_for_fork(&mut self) {
        let pager = self.pager;
        self.ask_for_more();
        let deadline = sys::now() + ROOM_FOR_FORK;
        while pager.resident() + (pager.budget() / 8).min(pager.may_come()) > pager.budget()
            && pager.resident() > pager.share.common()
            && sys::now() < deadline
        {
            let Some(mut limbo) = pager.limbo.try_lock() else {
                give_way();
                continue;
            };
            if !self.make_room(&mut limbo, Pace::BATCH) {
                return;
            }
        }
    }

    /// Serves what children wait for; waits for that so long at most (ns).
    fn serve_children(&mut self, wait: u64) -> Round {
        self.settle_children();
        let children = self.pager.fork.children.lock().handles;
        let mut polls = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; CHILDREN];
        for (poll, child) in polls.iter_mut().zip(&children) {
            poll.fd = child.map_or(-1, |c| c.uffd.raw());
        }
        if polls.iter().all(|p| p.fd < 0) {
            return Round::Nobody;
        }
        sys::poll(&mut polls, wait);
        let mut round = Round::Quiet;
        for (number, child) in children.into_iter().enumerate() {
            let Some(child) = child.filter(|child| child.settled) else { continue };
            while let Some(message) = child.uffd.read() {
                round = Round::Served;
                // Other events of the child cannot be followed here, and need
                // not be: it has one thread, and that is in our wrapper.
                if let Message::Fault { page, .. } = message {
                    self.bring_to_child(number, child, page);
                }
            }
        }
        round
    }

    /// Brings a page of a child's in, however long that takes.
    fn bring_to_child(&mut self, number: usize, child: Child, page: usize) {
        loop {
            match self.serve_child_page((number, child.uffd), page) {
                Served::Done => return,
                Served::Retry => give_way(),
                // It would read zeros.
                Served::Refused(error) => give_up::lost(self.pager, error),
            }
        }
    }
}
