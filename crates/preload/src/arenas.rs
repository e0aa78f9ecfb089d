//! The C library's per-thread arenas.
//!
//! glibc gives each thread beyond the first a heap of its own: 64 MiB of
//! address space, aligned to its size, made accessible as it grows. It maps
//! them without passing any function that could be interposed, so they are
//! recognised by what `malloc` returns: a flag in front of the block says that
//! it lies in such a heap (`NON_MAIN_ARENA`, `malloc/malloc.c`), and masking
//! its address gives the heap.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use terrace_live::sys::spin::SpinLock;
use terrace_live::workers::command::Command;

use crate::state;

/// `HEAP_MAX_SIZE` of 64-bit glibc.
const HEAP: usize = 64 << 20;
const NON_MAIN_ARENA: usize = 4;
const IS_MMAPPED: usize = 2;
/// How far a heap grows before we look again.
const STEP: usize = 1 << 20;
/// Of an entry: megabytes in use, and whether the pager manages the heap.
const USED: usize = (1 << 8) - 1;
const MANAGED: usize = 1 << 8;
/// Heaps that we keep track of. Of further ones the size is not known, but they are managed.
const HEAPS: usize = 1024;

static ENABLED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// A heap's base plus the megabytes in use (its low bits are free), and whether it is managed.
static KNOWN: [AtomicUsize; HEAPS] = [const { AtomicUsize::new(0) }; HEAPS];
static ADDING: SpinLock<()> = SpinLock::new(());

pub(crate) fn init(is_glibc: bool) {
    ENABLED.store(is_glibc, Release);
}

/// In a forked child, which has one thread.
pub(crate) fn reset() {
    // SAFETY: nobody else exists; a heap is added in one step.
    unsafe { ADDING.force_unlock() };
}

/// Bytes of all heaps, to the megabyte.
pub(crate) fn size() -> usize {
    known().map(|heap| (heap.load(Relaxed) & USED) * STEP).sum()
}

/// Whether an address lies in a heap that we know.
pub(crate) fn contains(address: usize) -> bool {
    known().any(|heap| heap.load(Relaxed) & !(HEAP - 1) == address & !(HEAP - 1))
}

fn known() -> impl Iterator<Item = &'static AtomicUsize> {
    KNOWN[..COUNT.load(Acquire)].iter()
}

/// The pager has begun: it is to manage the heaps that there are. Likewise in a forked child, for
/// which a thread of its parent's may not have come to ask.
pub(crate) fn manage_all() {
    known().filter(|heap| heap.load(Relaxed) & MANAGED == 0).for_each(manage);
}

fn manage(heap: &AtomicUsize) {
    let base = heap.load(Relaxed) & !(HEAP - 1);
    if let Some(pager) = state::pager()
        && state::signals_blocked(|| {
            pager.commands.ask(pager, Command::Manage, base, base + HEAP) != 0
        })
    {
        heap.fetch_or(MANAGED, Relaxed);
    }
}

/// Looks at what the allocator returned.
#[inline]
pub(crate) fn watch(p: *mut c_void) {
    if p.is_null() || !ENABLED.load(Relaxed) {
        return;
    }
    // SAFETY: glibc's allocator keeps a block's size and flags in front of it.
    let flags = unsafe { p.cast::<usize>().sub(1).read() };
    if flags & (NON_MAIN_ARENA | IS_MMAPPED) == NON_MAIN_ARENA {
        grown(p as usize);
    }
}

fn grown(p: usize) {
    let base = p & !(HEAP - 1);
    let used = (p - base) / STEP + 1;
    let entry = known().find(|h| h.load(Relaxed) & !(HEAP - 1) == base);
    match entry {
        Some(heap) if heap.load(Relaxed) & USED >= used => {}
        Some(heap) => {
            let grown = |old: usize| (old & USED < used).then_some(old & !USED | used);
            let _ = heap.fetch_update(Relaxed, Relaxed, grown);
            state::wake_up_if_needed();
        }
        None => add(base, used),
    }
}

#[cold]
fn add(base: usize, used: usize) {
    if state::config().is_none() {
        return;
    }
    let added = state::signals_blocked(|| {
        let _adding = ADDING.lock();
        if known().any(|h| h.load(Relaxed) & !(HEAP - 1) == base) {
            return Added::Known;
        }
        let count = COUNT.load(Relaxed);
        let Some(heap) = KNOWN.get(count) else { return Added::NoRoom };
        heap.store(base | used, Relaxed);
        COUNT.store(count + 1, Release);
        Added::New(heap)
    });
    match added {
        Added::Known => {}
        Added::New(heap) => {
            manage(heap);
            state::wake_up_if_needed();
        }
        Added::NoRoom => {
            // Nobody will notice how they grow.
            state::begin_early();
            if state::regions(|regions| regions.find(base).is_none()) == Some(true) {
                manage(&AtomicUsize::new(base));
            }
        }
    }
}

/// What became of a heap that was found.
enum Added {
    Known,
    New(&'static AtomicUsize),
    /// There are too many.
    NoRoom,
}
