//! Memory for what the C library may allocate in Terrace's threads, or while the library is loaded.
//!
//! It must not lie in memory that we manage (a handler that faults on its own
//! storage waits for itself), and it must not come from the program's
//! allocator. Nothing that our threads call is known to allocate; should something, the
//! preloaded allocator hooks turn here. Nothing is ever freed.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use crate::workers::threads;

const SIZE: usize = 256 << 10;

#[repr(C, align(64))]
struct Arena(core::cell::UnsafeCell<[u8; SIZE]>);

// SAFETY: parts of it are handed out once each, by an atomic counter.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(core::cell::UnsafeCell::new([0; SIZE]));
static USED: AtomicUsize = AtomicUsize::new(0);
/// Whether an allocation of the calling thread belongs here.
#[inline]
pub fn applies() -> bool {
    threads::is_ours()
}

/// Zeroed memory with a header of 16 bytes that holds its size; null if used up.
pub fn allocate(size: usize, align: usize) -> *mut u8 {
    let align = align.max(16);
    let taken = USED.fetch_update(AcqRel, Relaxed, |used| {
        let at = (used + 16).next_multiple_of(align);
        (at + size <= SIZE).then_some(at + size)
    });
    let Ok(used) = taken else { return core::ptr::null_mut() };
    let at = (used + 16).next_multiple_of(align);
    // SAFETY: inside the arena, and nobody else's.
    unsafe {
        let p = ARENA.0.get().cast::<u8>().add(at);
        p.sub(8).cast::<usize>().write_unaligned(size);
        p
    }
}

/// Whether a pointer came from here; then it is not to be freed.
#[inline]
pub fn owns(p: *const u8) -> bool {
    (p as usize).wrapping_sub(ARENA.0.get() as usize) < SIZE
}

/// The size that was asked for.
///
/// # Safety
/// The pointer came from [`allocate`].
pub unsafe fn size(p: *const u8) -> usize {
    // SAFETY: the caller's.
    unsafe { p.sub(8).cast::<usize>().read_unaligned() }
}
