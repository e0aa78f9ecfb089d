//! A lock for a few instructions, between Terrace's own threads.
//!
//! Not `std::sync::Mutex`: that one may touch thread-local storage which the C
//! library allocates from memory that we manage. Holders never touch managed
//! memory and never block, so a waiter spins briefly and then yields.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use crate::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sys;
use crate::workers::idle_priority;

/// A value behind a lock.
pub struct SpinLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one reference at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Access to the value; unlocks when dropped.
pub struct SpinGuard<'a, T>(&'a SpinLock<T>);

impl<T> SpinLock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock if nobody holds it.
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        // Lazily: a guard that is made unlocks when it is dropped.
        (!self.held.load(Ordering::Relaxed) && !self.held.swap(true, Ordering::Acquire))
            .then(|| SpinGuard(self))
    }

    /// Takes the lock.
    pub fn lock(&self) -> SpinGuard<'_, T> {
        let mut spins = 0u32;
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            backoff(&mut spins);
        }
    }

    /// Declares the lock free.
    ///
    /// # Safety
    /// The holder must no longer exist: a thread of the parent, seen from a
    /// forked child, in which the value was consistent.
    pub unsafe fn force_unlock(&self) {
        self.held.store(false, Ordering::Release);
    }
}

/// A lock that one holds alone, or several share.
///
/// Who waits to hold it alone does not keep others from sharing it: they share it
/// for moments, and a waiter may have lost its processor.
#[derive(Default)]
pub struct SharedLock(AtomicU32);

/// Held alone.
const ALONE: u32 = u32::MAX;

/// The lock is held, alone or shared; given back when dropped.
pub struct SharedGuard<'a> {
    lock: &'a SharedLock,
    alone: bool,
}

impl SharedLock {
    /// Takes the lock alone if nobody holds it.
    pub fn try_lock(&self) -> Option<SharedGuard<'_>> {
        self.0
            .compare_exchange(0, ALONE, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| SharedGuard { lock: self, alone: true })
    }

    /// Takes the lock alone.
    pub fn lock(&self) -> SharedGuard<'_> {
        let mut spins = 0u32;
        loop {
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            backoff(&mut spins);
        }
    }

    /// Shares the lock unless somebody holds it alone.
    pub fn try_share(&self) -> Option<SharedGuard<'_>> {
        self.0
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |n| (n != ALONE).then(|| n + 1))
            .is_ok()
            .then(|| SharedGuard { lock: self, alone: false })
    }

    /// Declares the lock free.
    ///
    /// # Safety
    /// As for [`SpinLock::force_unlock`].
    pub unsafe fn force_unlock(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Drop for SharedGuard<'_> {
    fn drop(&mut self) {
        if self.alone {
            self.lock.0.store(0, Ordering::Release);
        } else {
            self.lock.0.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Who is gone for so long (ns) when it yields, has let another program's
/// thread run, and not only one of ours.
const OTHERS_RUN: u64 = 100_000;

/// Waits a little: spins at first, then lets others run.
pub fn backoff(spins: &mut u32) {
    *spins += 1;
    if *spins < 64 {
        core::hint::spin_loop();
    } else {
        give_way();
        if spins.is_multiple_of(64) {
            idle_priority::call_all();
        }
    }
}

/// Waits for another thread of ours by letting others run.
pub fn give_way() {
    let before = sys::now();
    sys::yield_now();
    // Others want the processors. Whom we wait for may have idle priority.
    if sys::now() - before > OTHERS_RUN {
        idle_priority::call_all();
    }
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard is proof of holding the lock.
        unsafe { &*self.0.value.get() }
    }
}
impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}
impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: u32 = if cfg!(miri) { 20 } else { 10_000 };

    /// A failed attempt once unlocked the lock for everybody.
    #[test]
    fn a_failed_attempt_leaves_the_lock_held() {
        let lock = SpinLock::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn who_shares_keeps_only_those_out_who_want_it_alone() {
        let lock = SharedLock::default();
        let (one, two) = (lock.try_share(), lock.try_share());
        assert!(one.is_some() && two.is_some());
        assert!(lock.try_lock().is_none());
        drop(one);
        assert!(lock.try_lock().is_none(), "one of two still shares it");
        drop(two);
        let alone = lock.try_lock();
        assert!(alone.is_some());
        assert!(lock.try_share().is_none() && lock.try_lock().is_none());
        drop(alone);
        assert!(lock.try_share().is_some());
    }

    /// Two counters that are equal whenever nobody holds the lock alone.
    #[test]
    fn who_shares_sees_no_change_under_way() {
        use core::sync::atomic::AtomicU64;
        // Who waits for a lock calls threads back, whose own tests are elsewhere.
        let _alone = crate::workers::idle_priority::tests::ALONE.lock();
        let (lock, one, two) = (SharedLock::default(), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..TIMES / 2 {
                        let _alone = lock.lock();
                        one.fetch_add(1, Ordering::Relaxed);
                        two.fetch_add(1, Ordering::Relaxed);
                    }
                });
                scope.spawn(|| {
                    for _ in 0..TIMES / 2 {
                        if let Some(_shared) = lock.try_share() {
                            let seen = one.load(Ordering::Relaxed);
                            assert_eq!(seen, two.load(Ordering::Relaxed));
                        }
                    }
                });
            }
        });
        assert_eq!(two.load(Ordering::Relaxed), u64::from(TIMES));
    }

    #[test]
    fn increments_are_not_lost() {
        // Who waits for a lock calls threads back, whose own tests are elsewhere.
        let _alone = crate::workers::idle_priority::tests::ALONE.lock();
        let lock = SpinLock::new(0u32);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..TIMES).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 4 * TIMES);
    }
}
