//! A word by which a process sees that a thread of another one has died while it held it.
//!
//! The kernel marks such words when their holder ends, in whatever way (`robust-futex-ABI.rst`).
//! The C library's mutexes are built on that; ours are not its threads, and have a list of their
//! own with at most one word in it.

use core::mem::offset_of;
use core::sync::atomic::{AtomicIsize, AtomicU32, AtomicUsize, Ordering::*};

/// The kernel's mark.
const OWNER_DIED: u32 = 0x4000_0000;

/// `struct robust_list_head`: of one thread, which takes one word at a time.
#[repr(C)]
pub(crate) struct List {
    next: AtomicUsize,
    offset: AtomicIsize,
    pending: AtomicUsize,
}

/// The word, in memory that both processes have.
#[repr(C)]
pub(crate) struct Held {
    next: AtomicUsize,
    owner: AtomicU32,
}

const OFFSET: isize = (offset_of!(Held, owner) - offset_of!(Held, next)) as isize;

impl List {
    pub(crate) const fn new() -> Self {
        Self {
            next: AtomicUsize::new(0),
            offset: AtomicIsize::new(OFFSET),
            pending: AtomicUsize::new(0),
        }
    }

    /// Takes the word for the calling thread, one of ours.
    ///
    /// # Safety
    /// The list stays where it is for as long as the thread lives, the word until it is given back.
    pub(crate) unsafe fn take(&self, word: &Held) {
        let head = core::ptr::from_ref(self) as usize;
        // SAFETY: asks for this thread's number.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        word.next.store(head, Relaxed);
        word.owner.store(tid, Release);
        self.next.store(core::ptr::from_ref(word) as usize, Release);
        // SAFETY: the caller's; the list is this thread's.
        unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Self>()) };
    }

    /// Gives it back.
    pub(crate) fn give_back(&self, word: &Held) {
        self.next.store(core::ptr::from_ref(self) as usize, Release);
        word.owner.store(0, Release);
    }
}

impl Held {
    /// Whether whoever held it has died while it did.
    pub(crate) fn is_orphan(&self) -> bool {
        self.owner.load(Acquire) & OWNER_DIED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn a_holder_that_dies_is_seen_and_one_that_gave_back_is_not() {
        static LIST: List = List::new();
        let at = sys::map_shared(sys::PAGE).unwrap() as *const Held;
        // SAFETY: zeros are a word that nobody holds.
        let word = unsafe { &*at };
        for (gives_back, is_orphan) in [(true, false), (false, true)] {
            // SAFETY: the child only makes system calls.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: a static, and a page that stays.
                unsafe { LIST.take(word) };
                if gives_back {
                    LIST.give_back(word);
                }
                // SAFETY: ends this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            let mut status = 0;
            // SAFETY: waits for the child.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(word.is_orphan(), is_orphan);
        }
    }
}
