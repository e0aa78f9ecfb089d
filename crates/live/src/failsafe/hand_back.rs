//! Giving back what managing takes of the address space.
//!
//! What Terrace maps counts against the limits of the program (`RLIMIT_AS`, `RLIMIT_DATA`): some
//! 50 MiB, and what the store has. A program that asks for memory that it would get without that is put
//! on plain memory for good ([`crate::failsafe::give_up::Retires::Limit`]); then nobody needs the books any more.

use core::sync::atomic::Ordering::*;

use crate::failsafe::reserve_memory;
use crate::pager::Pager;
use crate::sys;
use crate::sys::spin::SpinLock;
use crate::workers::threads;
use crate::workers::worker::Worker;

impl Pager {
    /// Gives it back, of a program that was [put on plain memory](Pager::retire); false, and nothing
    /// has changed, if one of our threads is still there.
    ///
    /// # Safety
    /// The caller is the only one to do so, and no thread of the program's looks at regions any more.
    pub unsafe fn give_back_memory(&self) -> bool {
        let is_left = |tid: i32| tid != 0 && sys::is_thread(tid);
        if !self.phase.is_over()
            || self.workers.iter().any(|worker| is_left(worker.tid.load(Acquire)))
        {
            return false;
        }
        // SAFETY: all content is in the program's memory, and those who used this are gone.
        unsafe {
            // What they had beside it was given back as their work ended.
            self.workers.iter().for_each(|worker| worker.beside.store(0, Release));
            Worker::disband(self);
            self.store.give_back();
            self.spill.give_back();
            self.evict.staging.give_back();
            self.huge.give_back();
            self.regions.give_back();
            threads::give_back();
            drop_for_good(&self.decide.decider);
            drop_for_good(&self.evict.ring);
        }
        self.freeze.give_back();
        self.fork.keep_apart();
        reserve_memory::give_back();
        true
    }
}

/// Drops what a lock guards, which stays locked.
///
/// # Safety
/// Nobody takes the lock any more.
unsafe fn drop_for_good<T>(lock: &SpinLock<T>) {
    let mut guard = lock.lock();
    // SAFETY: nobody sees it afterwards: the lock is never given back.
    unsafe { core::ptr::drop_in_place(&raw mut *guard) };
    core::mem::forget(guard);
}

#[cfg(test)]
mod tests {
    use crate::pager::fixture::{hold, pager, state};

    /// Of a pager that still manages nothing may be taken away.
    #[test]
    fn while_pages_are_held_nothing_is_given_back() {
        let pager = pager(2);
        let held = hold(pager, 1, 3);
        // SAFETY: it is refused before anything is touched.
        assert!(!unsafe { pager.give_back_memory() });
        assert_eq!(state(pager, 1), held);
    }
}
