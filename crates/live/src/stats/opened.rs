//! A file of atomics that another process writes, mapped for as long as it is looked at.

use core::ops::Deref;

use crate::sys;

/// Unmapped when dropped.
pub struct Opened<T: 'static>(&'static T);

impl<T> Opened<T> {
    /// Of what was just mapped.
    ///
    /// # Safety
    /// It is a mapping of its own, as long as a `T`, and nobody else refers to it.
    pub(crate) unsafe fn new(mapped: &'static T) -> Self {
        Self(mapped)
    }
}

impl<T> Deref for Opened<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T> Drop for Opened<T> {
    fn drop(&mut self) {
        // SAFETY: a mapping of its own that nobody refers to any more: what was lent by
        // `deref` was lent for no longer than `self` lives.
        let _ = unsafe { sys::munmap(core::ptr::from_ref(self.0) as usize, size_of::<T>()) };
    }
}
