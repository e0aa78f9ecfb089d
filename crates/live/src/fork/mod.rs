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
//! step 3. The parent then fills every absent page of the child, whatever that does meanwhile, and lets go of
//! it: the child runs on plain memory (`raw_child`).
//!
//! # The path of a fork
//!
//! 1. `../../preload/src/forking.rs`: `fork`: the hook; handlers around the C library's fork
//! 2. `fork/parent.rs`: `before_fork`, `accompany_fork`, `make_room_for_fork`: the thread that
//!    forks announces it; the manager freezes the books, and faults go on being served
//! 3. `fault/messages.rs`: `take_messages`: the kernel's message of the fork brings the child's
//!    userfaultfd
//! 4. `fork/parent.rs`: `forked`, `serve_children`, `bring_to_child`: what the child touches
//!    before it has a pager is brought to it
//! 5. `fork/child.rs`: `after_fork_in_child`: the child waits for its memory and takes the
//!    deferred changes over
//! 6. `fork/reset.rs`: `reset`, `statics`: every lock and static of its copy: reset, or kept by
//!    list
//! 7. `workers/threads.rs`: `resume`, `begin_managing`: the child's own threads
//! 8. `fork/register.rs`: `adopt`: its ranges are registered with a userfaultfd of its own
//! 9. `fork/parent.rs`: `let_children_go`, `after_fork_in_parent`: the parent goes on when the
//!    child has its memory
//! 10. `fork/thaw.rs`: `thaw`: what happened meanwhile enters the books
//!
//! # Files
//!
//! | file | concept |
//! |---|---|
//! | [`parent`] | a fork from the parent's side |
//! | [`handover`] | what both share during one fork |
//! | [`children`] | children whose memory waits for their parent's pager |
//! | [`child`] | a fork from the child's side |
//! | [`reset`] | what a child does with each thing of ours that it inherits |
//! | [`register`] | its memory is registered with a handle of its own |
//! | [`thaw`] | the end of a freeze |
//! | [`shared_frames`] | frames that both have until one of them writes |
//! | [`turns`] | changes that are made between copies |
//! | [`wiped`] | what a child is to find empty |
//! | `absent` | the pages that a child is to be given |
//! | `raw_child` | a child of a fork that was not announced is given its memory |

mod absent;
mod child;
mod children;
mod handover;
mod parent;
mod raw_child;
pub(crate) mod register;
pub mod reset;
pub(crate) mod shared_frames;
pub(crate) mod thaw;
pub mod turns;
pub mod wiped;

pub use parent::Announced;

use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*,
};

use crate::fork::children::Children;
use crate::fork::handover::{HANDOVER, Handover};
use crate::pager::Pager;
use crate::stats::process_page::ProcessPage;
use crate::sys::spin::SpinLock;
use crate::sys::{self, PAGE, robust_futex};

/// Descriptors that a pager needs, and some to spare.
const DESCRIPTORS: u64 = 16;

/// Ranges that can be noted to be managed after a fork.
const LATE: usize = 256;

/// A range whose content the kernel has discarded without telling of it: guards (`MADV_GUARD_INSTALL`) or
/// shared memory (`SHM_REMAP`) cover it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The first address.
    pub start: usize,
    /// The address behind the last.
    pub end: usize,
    /// Whether guards do.
    pub by_guards: bool,
}

/// What the parent's and the child's threads need to know of a fork.
///
/// Many fields, since all of it is one static that a child resets in one place (`fork::reset`).
pub struct ForkState {
    /// The page of the fork under way.
    handover: AtomicPtr<Handover>,
    /// One for a fork for which the kernel gives none: a program that has used its address
    /// space up can still fork.
    reserve: AtomicPtr<Handover>,
    /// The manager's list of what shows that it lives.
    lives: robust_futex::List,
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
    /// Ranges whose content the kernel has discarded, and of which our books do not know that yet. They
    /// change only between copies.
    pub covered: SpinLock<Vec<Covered>>,
    /// While set, threads that are about to change the address space had better wait: what they
    /// do would have to be remembered until the fork is over.
    pub(crate) gate: AtomicU32,
    /// Until when (ns) they had better wait since faults cannot be served: while the address space is
    /// changing no page can be filled, and some changes follow each other without a pause. 0 if
    /// nobody has to.
    hold_until: AtomicU64,
    /// Of how many deferred events it is sure that they were carried out before the copy.
    sure: AtomicUsize,
    /// How many had been read just before the copy was made.
    copied: AtomicUsize,
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
            reserve: AtomicPtr::new(core::ptr::null_mut()),
            lives: robust_futex::List::new(),
            turn: AtomicU32::new(0),
            children: SpinLock::new(Children::new()),
            ended: AtomicU32::new(0),
            done: AtomicU32::new(0),
            parent: AtomicI32::new(0),
            filtered: AtomicBool::new(false),
            covered: SpinLock::new(Vec::new()),
            gate: AtomicU32::new(0),
            hold_until: AtomicU64::new(0),
            sure: AtomicUsize::new(0),
            copied: AtomicUsize::new(0),
            late: [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; LATE],
            late_count: AtomicUsize::new(0),
            sentinel: AtomicUsize::new(0),
            interim: AtomicPtr::new(core::ptr::null_mut()),
            inherited: AtomicPtr::new(core::ptr::null_mut()),
        }
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
        if self.reserve.load(Acquire).is_null()
            && let Ok(page) = Handover::map()
        {
            self.reserve.store(page, Release);
        }
    }
    /// A page for a fork.
    fn take_one(&self) -> Result<*mut Handover, i32> {
        self.take_or_reserve(Handover::map())
    }
    /// The page that the kernel gave, else the one in reserve, once.
    fn take_or_reserve(&self, mapped: Result<*mut Handover, i32>) -> Result<*mut Handover, i32> {
        mapped.or_else(|error| {
            let page = self.reserve.swap(core::ptr::null_mut(), AcqRel);
            if page.is_null() { Err(error) } else { Ok(page) }
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
    /// In a child: the page in reserve is its parent's, too.
    pub(crate) fn keep_apart(&self) {
        let page = self.reserve.swap(core::ptr::null_mut(), AcqRel);
        if !page.is_null() {
            // SAFETY: a mapping of ours that nobody in this process uses.
            let _ = unsafe { sys::munmap(page as usize, HANDOVER) };
        }
    }
}

impl Default for ForkState {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::pager::fixture::pager;

    /// Writes a number to a page that no other test writes.
    fn mark(page: *mut Handover) -> u32 {
        static LAST: AtomicU32 = AtomicU32::new(0x7e44_0000);
        let number = LAST.fetch_add(1, Relaxed);
        // SAFETY: mapped, and nobody else's.
        unsafe { (*page).progress.store(number, Relaxed) };
        number
    }

    /// Whether a page is still mapped as it was marked; other tests may map other pages there.
    fn is_marked(page: *mut Handover, number: u32) -> bool {
        let mut value = [0; 4];
        let at = page as u64 + core::mem::offset_of!(Handover, progress) as u64;
        let memory = std::fs::File::open("/proc/self/mem").expect("this process's memory");
        memory.read_exact_at(&mut value, at).is_ok() && u32::from_ne_bytes(value) == number
    }

    /// A program that has used its address space up can still fork.
    #[test]
    fn a_fork_for_which_there_is_no_memory_gets_the_page_in_reserve_once() {
        let fork = ForkState::new();
        fork.keep_one();
        let kept = fork.reserve.load(Relaxed);
        fork.keep_one();
        assert_eq!(fork.reserve.load(Relaxed), kept, "one is enough");
        let fresh = Handover::map().expect("memory");
        assert_eq!(fork.take_or_reserve(Ok(fresh)), Ok(fresh));
        assert_eq!(fork.reserve.load(Relaxed), kept, "which is not needed yet");
        assert_eq!(fork.take_or_reserve(Err(libc::ENOMEM)), Ok(kept));
        assert_eq!(fork.take_or_reserve(Err(libc::ENOMEM)), Err(libc::ENOMEM));
    }

    #[test]
    fn a_handover_that_is_over_is_given_back_and_the_next_fork_is_provided_for() {
        let fork = ForkState::new();
        let page = fork.take_one().expect("memory");
        let number = mark(page);
        fork.handover.store(page, Release);
        assert!(fork.any_handover().is_some() && is_marked(page, number));
        fork.forget_handover();
        assert!(fork.any_handover().is_none() && !is_marked(page, number));
        assert!(!fork.reserve.load(Relaxed).is_null());
    }

    /// Parent and child would hand over through the same page otherwise, each to a child of its own.
    #[test]
    fn a_child_does_not_use_the_page_that_its_parent_has_in_reserve() {
        let fork = ForkState::new();
        fork.keep_apart();
        fork.keep_one();
        let parents = fork.reserve.load(Relaxed);
        let number = mark(parents);
        assert!(is_marked(parents, number));
        fork.keep_apart();
        assert_eq!(fork.take_or_reserve(Err(libc::ENOMEM)), Err(libc::ENOMEM));
        assert!(!is_marked(parents, number));
    }

    /// In a child the page is there already, under the parent's address.
    #[test]
    fn the_page_by_which_forks_are_seen_is_mapped_once_and_registered_each_time() {
        let pager = pager(1);
        // The fixture's handle takes nothing.
        assert_eq!(pager.fork.watch(pager), Err(libc::EBADF));
        let (start, end) = pager.fork.watched();
        assert!(start != 0 && end - start == PAGE);
        assert!(crate::space::proc_maps::is_anonymous(start, end));
        assert_eq!(pager.fork.watch(pager), Err(libc::EBADF), "and not forgotten");
        assert_eq!(pager.fork.watched(), (start, end));
    }
}
