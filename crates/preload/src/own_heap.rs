//! The allocator that this library itself uses.
//!
//! Not the program's: a fault handler that allocated from memory that it
//! manages could wait for itself, and a hook is called from the middle of the
//! program's allocator. Doug Lea's allocator (the `dlmalloc` crate) on memory
//! mapped straight from the kernel, under a spin lock.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use dlmalloc::{Allocator, Dlmalloc};
use terrace_live::failsafe::reserve_memory;
use terrace_live::sys;
use terrace_live::sys::spin::{SpinGuard, SpinLock, backoff};
use terrace_live::workers::threads;

struct Kernel;

// SAFETY: hands out mappings that nobody else has.
unsafe impl Allocator for Kernel {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match reserve_memory::map(size) {
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
pub(crate) struct OwnHeap {
    heap: SpinLock<Dlmalloc<Kernel>>,
    /// Whether a thread of the program's holds the lock while it forks.
    forking: AtomicBool,
    fork_arena: ForkArena,
}

/// What our own threads get while the heap is locked for a fork, which may have to wait for them.
/// They are at rest then: that is for one that breaks. Nothing of it is freed.
struct ForkArena {
    /// Its first address; 0 until it is needed.
    base: AtomicUsize,
    used: AtomicUsize,
}

/// Its length: several times what bringing everything in takes.
const FORK_ARENA: usize = 8 << 20;

impl ForkArena {
    /// Where it is, mapped if it was not; 0 if there is no memory for it.
    fn base(&self) -> usize {
        let base = self.base.load(Acquire);
        if base != 0 {
            return base;
        }
        let Ok(new) = reserve_memory::map(FORK_ARENA) else { return 0 };
        match self.base.compare_exchange(0, new, AcqRel, Acquire) {
            Ok(_) => new,
            Err(base) => {
                // SAFETY: nobody else knows of it.
                let _ = unsafe { sys::munmap(new, FORK_ARENA) };
                base
            }
        }
    }
    fn allocate(&self, layout: Layout) -> *mut u8 {
        let base = self.base();
        let end = |used: usize| {
            let at = (base + used).checked_next_multiple_of(layout.align())?;
            at.checked_add(layout.size()).map(|end| end - base).filter(|&end| end <= FORK_ARENA)
        };
        match self.used.fetch_update(AcqRel, Relaxed, |used| end(used).filter(|_| base != 0)) {
            Ok(used) => (base + used).next_multiple_of(layout.align()) as *mut u8,
            Err(_) => null_mut(),
        }
    }
    fn owns(&self, at: *const u8) -> bool {
        let base = self.base.load(Acquire);
        base != 0 && (at as usize).wrapping_sub(base) < FORK_ARENA
    }
}

impl OwnHeap {
    pub(crate) const fn new() -> Self {
        Self {
            heap: SpinLock::new(Dlmalloc::new_with_allocator(Kernel)),
            forking: AtomicBool::new(false),
            fork_arena: ForkArena { base: AtomicUsize::new(0), used: AtomicUsize::new(0) },
        }
    }

    /// Takes the heap for the thread that forks: it is in order when the copy is made.
    pub(crate) fn hold(&self) {
        core::mem::forget(self.heap.lock());
        self.forking.store(true, Release);
    }

    /// Gives it back, in whichever process.
    ///
    /// # Safety
    /// Once after [`OwnHeap::hold`], in the same thread.
    pub(crate) unsafe fn let_go(&self) {
        self.forking.store(false, Release);
        // SAFETY: the caller's.
        unsafe { self.heap.force_unlock() };
    }

    /// The heap; `None` for a thread of ours that a thread which forks may have to wait for.
    fn heap(&self) -> Option<SpinGuard<'_, Dlmalloc<Kernel>>> {
        let mut spins = 0;
        loop {
            if let Some(heap) = self.heap.try_lock() {
                return Some(heap);
            }
            if self.forking.load(Acquire) && threads::is_ours() {
                return None;
            }
            backoff(&mut spins);
        }
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
    reserve_memory::map(size).map_or(null_mut(), |at| at as *mut u8)
}

// SAFETY: the allocator is called by one thread at a time; large blocks are
// mappings that nobody else has.
unsafe impl GlobalAlloc for OwnHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return map(layout.size());
        }
        match self.heap() {
            // SAFETY: the caller's layout is not empty.
            Some(mut heap) => unsafe { heap.malloc(layout.size(), layout.align()) },
            None => self.fork_arena.allocate(layout),
        }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return map(layout.size());
        }
        match self.heap() {
            // SAFETY: as above.
            Some(mut heap) => unsafe { heap.calloc(layout.size(), layout.align()) },
            // It is handed out once, and so still is as it was.
            None => self.fork_arena.allocate(layout),
        }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_large(&layout) {
            // SAFETY: a mapping of ours of that size, which its user gives up.
            let _ = unsafe { sys::munmap(at as usize, layout.size()) };
            return;
        }
        if self.fork_arena.owns(at) {
            return;
        }
        // What could not be given back stays: that happens once, to a thread that breaks.
        if let Some(mut heap) = self.heap() {
            // SAFETY: the caller's pointer came from here.
            unsafe { heap.free(at, layout.size(), layout.align()) }
        }
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
        let moves = is_large(&layout) || is_large(&new) || self.fork_arena.owns(at);
        if !moves && let Some(mut heap) = self.heap() {
            // SAFETY: as above.
            return unsafe { heap.realloc(at, layout.size(), layout.align(), size) };
        }
        // SAFETY: two blocks, of at least so many bytes.
        unsafe {
            let to = self.alloc(new);
            if !to.is_null() {
                to.copy_from_nonoverlapping(at, layout.size().min(size));
                self.dealloc(at, layout);
            }
            to
        }
    }
}
