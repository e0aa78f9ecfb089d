//! The allocator that this library itself uses.
//!
//! Not the program's: a fault handler that allocated from memory that it
//! manages could wait for itself, and a hook is called from the middle of the
//! program's allocator. Doug Lea's allocator (the `dlmalloc` crate) on memory
//! mapped straight from the kernel, under a spin lock.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;

use dlmalloc::{Allocator, Dlmalloc};
use terrace_live::spare;
use terrace_live::spin::SpinLock;
use terrace_live::sys;

struct Kernel;

// SAFETY: hands out mappings that nobody else has.
unsafe impl Allocator for Kernel {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match spare::map(size) {
            Ok(at) => (at as *mut u8, size, 0),
            Err(_) => (null_mut(), 0, 0),
        }
    }
    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }
    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }
    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: a mapping of ours that the allocator gives up.
        unsafe { sys::munmap(at as usize, size).is_ok() }
    }
    fn can_release_part(&self, _: u32) -> bool {
        false
    }
    fn allocates_zeros(&self) -> bool {
        true
    }
    fn page_size(&self) -> usize {
        sys::PAGE
    }
}

/// The allocator.
pub(crate) struct OwnHeap(SpinLock<Dlmalloc<Kernel>>);

impl OwnHeap {
    pub(crate) const fn new() -> Self {
        Self(SpinLock::new(Dlmalloc::new_with_allocator(Kernel)))
    }

    /// For a forked child.
    ///
    /// # Safety
    /// Only the calling thread may exist, and the heap was in order when the
    /// parent forked: its users were at rest.
    pub(crate) unsafe fn after_fork(&self) {
        // SAFETY: the caller's.
        unsafe { self.0.force_unlock() };
    }
}

/// From this size on a block is a mapping of its own: zeros cost nothing until
/// they are touched (tables for every page of a mapping that is mostly
/// untouched are large), and what is freed goes back to the kernel.
const LARGE: usize = 128 << 10;

fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= sys::PAGE
}

fn map(size: usize) -> *mut u8 {
    spare::map(size).map_or(null_mut(), |at| at as *mut u8)
}

// SAFETY: the allocator is called by one thread at a time; large blocks are
// mappings that nobody else has.
unsafe impl GlobalAlloc for OwnHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's layout is not empty.
        unsafe { self.0.lock().malloc(layout.size(), layout.align()) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return map(layout.size());
        }
        // SAFETY: as above.
        unsafe { self.0.lock().calloc(layout.size(), layout.align()) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_large(&layout) {
            // SAFETY: a mapping of ours of that size, which its user gives up.
            let _ = unsafe { sys::munmap(at as usize, layout.size()) };
            return;
        }
        // SAFETY: the caller's pointer came from here.
        unsafe { self.0.lock().free(at, layout.size(), layout.align()) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller's, with a size that is not zero.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if is_large(&layout) && is_large(&new) {
            // SAFETY: a mapping of ours of that size.
            if let Ok(at) = unsafe { sys::grow_private(at as usize, layout.size(), size) } {
                return at as *mut u8;
            }
        }
        if is_large(&layout) || is_large(&new) {
            // SAFETY: two blocks, of at least so many bytes.
            unsafe {
                let to = self.alloc(new);
                if !to.is_null() {
                    to.copy_from_nonoverlapping(at, layout.size().min(size));
                    self.dealloc(at, layout);
                }
                return to;
            }
        }
        // SAFETY: as above.
        unsafe { self.0.lock().realloc(at, layout.size(), layout.align(), size) }
    }
}
