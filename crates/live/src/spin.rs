//! A lock for a few instructions, between Terrace's own threads.
//!
//! Not `std::sync::Mutex`: that one may touch thread-local storage which the C
//! library allocates from memory that we manage. Holders never touch managed
//! memory and never block, so a waiter spins briefly and then yields.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::sys;

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

/// Waits a little: spins at first, then lets others run.
pub fn backoff(spins: &mut u32) {
    *spins += 1;
    if *spins < 64 {
        core::hint::spin_loop();
    } else {
        sys::yield_now();
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
    fn increments_are_not_lost() {
        let lock = SpinLock::new(0u32);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }
}
