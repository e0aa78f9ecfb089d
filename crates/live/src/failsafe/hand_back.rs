//! Giving back what managing takes of the address space.
//!
//! What Terrace maps counts against the limits of the program (`RLIMIT_AS`, `RLIMIT_DATA`): some
//! 50 MiB, and what the store has. A program that asks for memory that it would get without that is put
//! on plain memory for good ([`crate::failsafe::give_up::Retires::Limit`]); then nobody needs the books any more.

use core::sync::atomic::{AtomicU32, Ordering::*};

use crate::failsafe::give_up::Retires;
use crate::failsafe::reserve_memory;
use crate::pager::Pager;
use crate::sys;
use crate::sys::spin::SpinLock;
use crate::workers::threads;
use crate::workers::worker::Worker;

const NOTHING: u32 = 0;
const UNDER_WAY: u32 = 1;
const DONE: u32 = 2;

/// Whether it was given back. Of threads that are refused memory at once, the first one sees to
/// that, and the others wait.
#[derive(Debug)]
pub struct GivenBack(AtomicU32);

impl GivenBack {
    /// It was not.
    pub const fn new() -> Self {
        Self(AtomicU32::new(NOTHING))
    }

    /// Whether it was.
    pub fn is_done(&self) -> bool {
        self.0.load(Acquire) == DONE
    }

    /// Has it given back, by this thread or another; whether the caller, who was refused memory, is
    /// to ask once more. `reason` says why it would help, if it would; `give` is called once in a
    /// process, and says whether it was given back.
    pub fn once(
        &self,
        reason: impl Fn() -> Option<Retires>,
        give: impl FnOnce(Retires) -> bool,
    ) -> bool {
        loop {
            match self.0.load(Acquire) {
                NOTHING => {}
                // By another thread, since this one was refused.
                DONE => return true,
                _ => {
                    sys::sleep(100_000);
                    continue;
                }
            }
            let Some(because) = reason() else {
                // Where another thread has given it back while this one looked, there was nothing
                // left to find, and what was refused fits by now.
                if self.0.load(Acquire) == NOTHING {
                    return false;
                }
                continue;
            };
            if self.0.compare_exchange(NOTHING, UNDER_WAY, AcqRel, Acquire).is_ok() {
                let done = give(because);
                self.0.store(DONE, Release);
                return done;
            }
        }
    }

    /// In a forked child, which has one thread: another of the parent's may have been at it. What
    /// the child has by itself it can give back.
    pub fn reset(&self) {
        let _ = self.0.compare_exchange(UNDER_WAY, NOTHING, Relaxed, Relaxed);
    }
}

impl Default for GivenBack {
    fn default() -> Self {
        Self::new()
    }
}

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
    use super::*;
    use crate::pager::fixture::{hold, pager, state};

    /// Two threads are refused memory at once. One of them was told that there is none, after the
    /// other had made room for both.
    #[test]
    fn who_finds_nothing_to_give_back_since_another_has_given_it_back_asks_again() {
        fn never(_: Retires) -> bool {
            unreachable!("there is no reason")
        }
        let given = GivenBack::new();
        assert!(!given.once(|| None, never) && !given.is_done(), "it would not help");

        let done_meanwhile = || {
            given.0.store(DONE, Release);
            None
        };
        assert!(given.once(done_meanwhile, never));

        let given = GivenBack::new();
        let state = &given.0;
        std::thread::scope(|threads| {
            let begun_meanwhile = move || {
                state.store(UNDER_WAY, Release);
                threads.spawn(move || state.store(DONE, Release));
                None
            };
            assert!(given.once(begun_meanwhile, never), "it is waited for");
        });
    }

    #[test]
    fn it_is_given_back_once_and_told_of_as_done_although_it_failed() {
        let given = GivenBack::new();
        let limit = || Some(Retires::Limit);
        assert!(!given.once(limit, |_| false), "a thread of ours was still there");
        assert!(given.is_done());
        assert!(given.once(limit, |_| unreachable!("once")));

        let child = GivenBack(AtomicU32::new(UNDER_WAY));
        child.reset();
        assert!(child.once(limit, |because| because == Retires::Limit));
    }

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
