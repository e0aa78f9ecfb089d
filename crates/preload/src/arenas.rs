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

use terrace_live::command::Command;
use terrace_live::spin::SpinLock;

use crate::state;

/// `HEAP_MAX_SIZE` of 64-bit glibc.
const HEAP: usize = 64 << 20;
const NON_MAIN_ARENA: usize = 4;
const IS_MMAPPED: usize = 2;
/// How far a heap grows before we look again.
const STEP: usize = 1 << 20;
/// Heaps that we keep track of. Of further ones the size is not known, but they are managed.
const HEAPS: usize = 1024;

static ENABLED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// A heap's base plus the megabytes in use (its low bits are free).
static KNOWN: [AtomicUsize; HEAPS] = [const { AtomicUsize::new(0) }; HEAPS];
static ADDING: SpinLock<()> = SpinLock::new(());

pub(crate) fn init(is_glibc: bool) {
    ENABLED.store(is_glibc, Release);
}

/// Bytes of all heaps, to the megabyte.
pub(crate) fn size() -> usize {
    known().map(|heap| (heap.load(Relaxed) & (HEAP - 1)) * STEP).sum()
}

/// Whether an address lies in a heap that we know.
pub(crate) fn contains(address: usize) -> bool {
    known().any(|heap| heap.load(Relaxed) & !(HEAP - 1) == address & !(HEAP - 1))
}

fn known() -> impl Iterator<Item = &'static AtomicUsize> {
    KNOWN[..COUNT.load(Acquire)].iter()
}

/// The pager has begun: it is to manage the heaps that there are.
pub(crate) fn manage_all() {
    for heap in known() {
        manage(heap.load(Relaxed) & !(HEAP - 1));
    }
}

fn manage(base: usize) {
    if let Some(pager) = state::pager() {
        state::signals_blocked(|| pager.commands.ask(pager, Command::Manage, base, base + HEAP));
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
        Some(heap) if heap.load(Relaxed) & (HEAP - 1) >= used => {}
        Some(heap) => {
            heap.store(base | used, Relaxed);
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
        if count == HEAPS {
            return Added::NoRoom;
        }
        KNOWN[count].store(base | used, Relaxed);
        COUNT.store(count + 1, Release);
        Added::New
    });
    match added {
        Added::Known => {}
        Added::New => {
            manage(base);
            state::wake_up_if_needed();
        }
        Added::NoRoom => {
            // Nobody will notice how they grow.
            state::begin_early();
            if state::pager().is_some_and(|pager| pager.regions.find(base).is_none()) {
                manage(base);
            }
        }
    }
}

/// What became of a heap that was found.
enum Added {
    Known,
    New,
    /// There are too many.
    NoRoom,
}
