//! Memory that the kernel brings in before a call returns: new memory that the program wants at once
//! (`MAP_POPULATE`), and locked memory that becomes writable. Within those calls it does not wait for memory
//! that is managed, so it is asked afterwards. What it cannot bring in it passes over in silence, and so
//! do we.

use core::sync::atomic::{AtomicU8, Ordering::*};

use libc::c_int;
use terrace_live::fork::wiped::Range;
use terrace_live::space::advised::whole_pages;
use terrace_live::space::proc_maps;
use terrace_live::sys::limits::with_more_descriptors;
use terrace_live::sys::{self, PAGE};
use terrace_live::workers::{idle_priority, threads};

use crate::state;

/// Which locks the program has asked for so far: [`WHOLE`], [`ON_FAULT`].
static LOCKS: AtomicU8 = AtomicU8::new(0);
/// Of memory that is brought in at once.
const WHOLE: u8 = 1;
/// Of memory of which each page is locked when it is touched.
const ON_FAULT: u8 = 2;

/// Memory was mapped, and is managed or going to be, of which the kernel was not told to bring it in.
pub(crate) fn mapped(start: usize, len: usize, flags: c_int) {
    // With the other flag it does nothing.
    let is_asked = flags & (libc::MAP_POPULATE | libc::MAP_NONBLOCK) == libc::MAP_POPULATE;
    // Of more than that, much would have left again before the call returns. Of a budget that
    // several processes have, it is this one's part.
    let fits = || {
        let whole = state::config().map_or(0, |config| config.fast.get());
        let part = state::pager().map_or(whole, |pager| pager.granted() * PAGE as u64);
        len as u64 <= whole.min(part) / 2
    };
    // A program under a filter might be killed for another call than the one that it has made.
    if is_asked && !idle_priority::is_left_alone() && fits() {
        bring_in((start, start + len));
    }
}

/// The program is about to lock memory, of which each page may be locked when it is touched only.
pub(crate) fn locks(on_fault: bool) {
    LOCKS.fetch_or(if on_fault { ON_FAULT } else { WHOLE }, Relaxed);
}

/// The kernel has changed what may be done with a range. What is locked and becomes writable it brings in. Where
/// the program has ever locked memory page by page, nobody could tell that from the rest.
pub(crate) fn protected(at: usize, len: usize, access: c_int) {
    let range = whole_pages(at, len);
    if access & libc::PROT_WRITE == 0
        || LOCKS.load(Relaxed) != WHOLE
        || threads::is_ours()
        || idle_priority::is_left_alone()
        || !state::is_managed(range.0, range.1)
        || !is_any_locked(range)
    {
        return;
    }
    let error = sys::errno();
    with_more_descriptors(|| {
        proc_maps::for_each_mapping(|m| {
            let part = (m.start.max(range.0), m.end.min(range.1));
            if part.0 < part.1 && m.anonymous && is_any_locked(part) {
                bring_in(part);
            }
        })
    });
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
}

/// Whether any of a range is locked: the kernel refuses then to forget what it holds of files.
fn is_any_locked((start, end): Range) -> bool {
    let flags = libc::MS_INVALIDATE as usize;
    // SAFETY: changes nothing.
    let result = unsafe { sys::raw(libc::SYS_msync, [start, end - start, flags, 0, 0, 0]) };
    result == -i64::from(libc::EBUSY)
}

/// Brings a range in that may be written.
fn bring_in((start, end): Range) {
    /// How often at most: a signal may come, or the pager be busy with a page.
    const TRIES: u32 = 16;
    for _ in 0..TRIES {
        // SAFETY: changes no content.
        match unsafe { sys::madvise(start, end - start, libc::MADV_POPULATE_WRITE) } {
            Err(libc::EINTR | libc::EAGAIN) => {}
            _ => return,
        }
    }
}
