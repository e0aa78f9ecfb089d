//! Memory for what the C library allocates on behalf of Terrace's threads:
//! their thread-local storage.
//!
//! It must not lie in memory that we manage (a handler that faults on its own
//! storage waits for itself), and it must not come from the program's
//! allocator (which may be the very caller in whose middle a thread is
//! created). So the preloaded allocator hooks turn here when they are called
//! by one of our threads, or while one is being created. Nothing is ever freed.

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering::*};

use crate::threads;

const SIZE: usize = 256 << 10;

#[repr(C, align(64))]
struct Arena(core::cell::UnsafeCell<[u8; SIZE]>);

// SAFETY: parts of it are handed out once each, by an atomic counter.
unsafe impl Sync for Arena {}

static ARENA: Arena = Arena(core::cell::UnsafeCell::new([0; SIZE]));
static USED: AtomicUsize = AtomicUsize::new(0);
/// The thread that is creating a thread of ours; 0 for none.
static CREATOR: AtomicI32 = AtomicI32::new(0);

fn tid() -> i32 {
    // SAFETY: has no memory effects.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Runs `create`, a call that makes a thread of ours; what it allocates comes
/// from here.
pub fn while_creating<T>(create: impl FnOnce() -> T) -> T {
    if threads::is_ours() {
        return create();
    }
    // One thread of the program's at a time creates threads of ours.
    CREATOR.store(tid(), Release);
    let result = create();
    CREATOR.store(0, Release);
    result
}

/// In a forked child: who was creating a thread is not here.
pub(crate) fn reset() {
    CREATOR.store(0, Release);
}

/// Whether an allocation of the calling thread belongs here.
#[inline]
pub fn applies() -> bool {
    threads::is_ours() || {
        let creator = CREATOR.load(Relaxed);
        creator != 0 && creator == tid()
    }
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
