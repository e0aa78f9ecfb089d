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

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

use crate::filters;
use crate::give_up;
use crate::inject::{self, Point};
use crate::page_state::PageState;
use crate::pager::Pager;
use crate::reclaim::Pace;
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
    /// Held by the parent's manager. Robust: the kernel marks it when its
    /// holder dies, in whatever way. (The child cannot ask for its parent's
    /// number instead: the parent may be gone before it asks, and in a PID
    /// namespace of its own it has none.)
    alive: UnsafeCell<libc::pthread_mutex_t>,
}

impl Handover {
    /// Maps one.
    fn map() -> Result<*mut Self, i32> {
        sys::map_shared(PAGE).map(|at| at as *mut Self)
    }
    /// In the parent's manager: shows that it lives.
    fn hold(&self) {
        // SAFETY: the page is zeroed and shared; the attributes are initialised
        // before they are used; only the manager initialises and locks.
        unsafe {
            let mut attributes: libc::pthread_mutexattr_t = core::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attributes);
            libc::pthread_mutexattr_setpshared(&raw mut attributes, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&raw mut attributes, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.alive.get(), &raw const attributes);
            libc::pthread_mutex_lock(self.alive.get());
        }
    }
    /// In the parent's manager: the handover is over.
    fn drop_hold(&self) {
        // SAFETY: locked by this thread.
        unsafe { libc::pthread_mutex_unlock(self.alive.get()) };
    }
    /// In the child: whether the parent's manager has died while it held on.
    fn parent_died(&self) -> bool {
        // The first word of glibc's and musl's mutexes is the futex that
        // the kernel marks (`robust-futex-ABI.rst`). Locking it properly would
        // write into the list of a thread that is in the middle of a fork.
        const FUTEX_OWNER_DIED: u32 = 0x4000_0000;
        // SAFETY: the mutex lives as long as the page and begins with that word.
        let futex = unsafe { &*self.alive.get().cast::<AtomicU32>() };
        futex.load(Acquire) & FUTEX_OWNER_DIED != 0
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
    /// How many of the deferred events happened before the fork, so that they
    /// hold for the child, too.
    events: usize,
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
        let free = self.handles.iter_mut().find(|h| h.is_none());
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
    /// A page that every child inherits: the kernel reports a fork only with memory that is
    /// registered, and the program may have none.
    sentinel: AtomicUsize,
    /// In a child: where it counts until it has a page that others can see.
    interim: AtomicPtr<ProcessPage>,
}

impl ForkState {
    /// No fork.
    pub const fn new() -> Self {
        Self {
            handover: AtomicPtr::new(core::ptr::null_mut()),
            kept: AtomicPtr::new(core::ptr::null_mut()),
            turn: AtomicU32::new(0),
            children: SpinLock::new(Children::new()),
            ended: AtomicU32::new(0),
            done: AtomicU32::new(0),
            parent: AtomicI32::new(0),
            filtered: AtomicBool::new(false),
            staging: AtomicI32::new(-1),
            sentinel: AtomicUsize::new(0),
            interim: AtomicPtr::new(core::ptr::null_mut()),
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
        let _ = unsafe { sys::munmap(page as usize, PAGE) };
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
            let _ = unsafe { sys::munmap(kept as usize, PAGE) };
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
        let error = self.commands.ask(self, crate::command::Command::ForkBegins, thread, 0);
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
        let child = Child { uffd, events: self.deferred.lock().noted() };
        {
            let mut children = self.fork.children.lock();
            if children.announced && children.push(child) {
                drop(children);
                self.ring();
                return;
            }
        }
        // Not through the wrapper. Freeze, fill, let go.
        self.frozen.fetch_add(1, SeqCst);
        self.wait_quiet(worker.id);
        self.fill_child(worker, child);
        child.uffd.close();
        self.frozen.fetch_sub(1, SeqCst);
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
    fn fill_child(&self, worker: &mut Worker<'_>, child: Child) {
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
                let address = region.start() + page as usize * PAGE;
                if self.is_wiped(address) {
                    continue;
                }
                worker.bring_to_child(child, address);
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
        handover.hold();
        fork.children.lock().announced = true;
        pager.commands.answer(0);
        inject::at(Point::Fork);
        let mut released = false;
        let mut deadline = None;
        let mut progress = 0;
        let mut round = Round::Nobody;
        let mut pause = LEAST_PAUSE;
        loop {
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
                    fork.ended.load(Acquire) != 0 || fork.children.lock().any()
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
        handover.drop_hold();
        self.thaw();
        fork.forget_handover();
        fork.done.store(1, Release);
        sys::futex_wake(&fork.done, false);
    }

    /// When something of ours broke: gives the children all their memory. The thread
    /// that forks goes on, and tells its child once it knows that this is so.
    pub fn abandon_fork(&mut self) {
        let fork = &self.pager.fork;
        fork.children.lock().announced = false;
        self.let_children_go(true);
        fork.done.store(1, Release);
        sys::futex_wake(&fork.done, false);
    }

    /// Closes the children's handles. All memory is brought in before if it is
    /// asked for, and if there are several: nothing says which of them is the
    /// one that will serve itself.
    fn let_children_go(&mut self, fill: bool) {
        let children =
            core::mem::replace(&mut self.pager.fork.children.lock().handles, [None; CHILDREN]);
        let several = children.iter().flatten().count() > 1;
        for child in children.into_iter().flatten() {
            if fill || several {
                self.pager.fill_child(self, child);
            }
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
        for child in children.into_iter().flatten() {
            while let Some(message) = child.uffd.read() {
                round = Round::Served;
                // Other events of the child cannot be followed here, and need
                // not be: it has one thread, and that is in our wrapper.
                if let Message::Fault { page, .. } = message {
                    self.bring_to_child(child, page);
                }
            }
        }
        round
    }

    /// Brings a page of a child's in, however long that takes.
    fn bring_to_child(&mut self, child: Child, page: usize) {
        loop {
            match self.serve_child_page(child.uffd, page, child.events) {
                Served::Done => return,
                Served::Retry => give_way(),
                // It would read zeros.
                Served::Refused(error) => give_up::lost(self.pager, error),
            }
        }
    }
}
