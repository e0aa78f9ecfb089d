//! How much a program has mapped that is to be managed, as long as nothing is.
//!
//! It is counted as mappings come and go. Once the program reserves memory, or maps some over
//! other, that is too much, and never too little: what is made accessible time and again counts as
//! often, and nobody knows how much of what is unmapped was accessible. Then the kernel's list of
//! mappings is read where the number matters: before others are asked for room and before management
//! begins, and now and then, so that the broker does not take much for in use that is not. Not
//! each time that something is unmapped: the list of a program with many mappings takes as long to
//! read as a thousand of its calls.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

use terrace_live::sys;
use terrace_live::workers::idle_priority;

use crate::{malloc, places};

/// Bytes that are accessible in the window and in places that the program chose: so many at most.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Whether that may be too much.
static ROUGHLY: AtomicBool = AtomicBool::new(false);
/// Bytes that have ever become accessible: counted first.
static ADDED: AtomicUsize = AtomicUsize::new(0);
/// Bytes that came and went since the list was read, while the number may be too much.
static CHANGED: AtomicUsize = AtomicUsize::new(0);
/// When (`CLOCK_MONOTONIC`, ns) the list may be read again for the broker's sake.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// So much may come and go before the list is read for the broker's sake, or a part of what is
/// mapped.
const LITTLE: usize = 8 << 20;
const PART: usize = 8;
/// It is read then if that took less than one part in so many of the time since.
const RARELY: u64 = 100;

/// So many bytes have become accessible.
pub(crate) fn add(len: usize) {
    ADDED.fetch_add(len, AcqRel);
    BYTES.fetch_add(len, AcqRel);
    if is_rough() {
        CHANGED.fetch_add(len, Relaxed);
    }
}

/// So many bytes were unmapped. Whether the number is less now.
pub(crate) fn remove(len: usize) -> bool {
    if is_rough() {
        CHANGED.fetch_add(len, Relaxed);
        return false;
    }
    let _ = BYTES.fetch_update(AcqRel, Relaxed, |bytes| Some(bytes.saturating_sub(len)));
    if is_rough() {
        // Since just now: the list may have been read in between, without what was unmapped.
        BYTES.fetch_add(len, AcqRel);
        CHANGED.fetch_add(len, Relaxed);
        return false;
    }
    true
}

/// The number, with the heap.
pub(crate) fn bytes() -> usize {
    BYTES.load(Acquire) + malloc::heap_size()
}

/// The same without the heap.
pub(crate) fn without_heap() -> usize {
    BYTES.load(Acquire)
}

/// The number, with the heap, from the kernel's list if it may be too much.
pub(crate) fn counted() -> usize {
    if CHANGED.load(Relaxed) != 0 {
        look();
    }
    bytes()
}

/// The program has reserved memory, or mapped some over other.
pub(crate) fn count_roughly() {
    ROUGHLY.store(true, Release);
}

/// Whether the number may be too much.
pub(crate) fn is_rough() -> bool {
    ROUGHLY.load(Acquire)
}

/// Reads the kernel's list. The number stays what it was if the kernel does not say (the program is
/// out of descriptors, say), or might kill the program for the question.
pub(crate) fn look() {
    if idle_priority::is_left_alone() {
        return;
    }
    let began = sys::now();
    let changed = CHANGED.swap(0, Relaxed);
    let before = ADDED.load(Acquire);
    if let Some(bytes) = places::accessible() {
        // What has been added meanwhile may not be in the list.
        let since = || ADDED.load(Acquire).wrapping_sub(before);
        let _ = BYTES.fetch_update(AcqRel, Acquire, |_| Some(bytes.saturating_add(since())));
    } else {
        // The number may be too much as before.
        CHANGED.fetch_add(changed, Relaxed);
    }
    let now = sys::now();
    NEXT.store(now + (now - began) * RARELY, Relaxed);
}

/// Whether it is time to read it although what is counted fits.
pub(crate) fn is_look_due() -> bool {
    let much = (BYTES.load(Acquire) / PART).max(LITTLE);
    CHANGED.load(Relaxed) > much && sys::now() >= NEXT.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of it in one test: the numbers are the process's.
    #[test]
    fn what_is_counted_roughly_is_never_too_little_and_read_anew_now_and_then() {
        add(1 << 20);
        assert!(remove(1 << 18));
        assert_eq!(without_heap(), 3 << 18);
        assert_eq!(CHANGED.load(Relaxed), 0, "exact");
        count_roughly();
        assert!(!remove(1 << 20), "it may have been only reserved");
        assert_eq!(without_heap(), 3 << 18);
        assert!(!is_look_due(), "little has changed");
        remove(LITTLE);
        assert!(is_look_due());
        look();
        assert_eq!(without_heap(), 0, "nothing is mapped that is to be managed");
        assert!(!is_look_due());
        add(2 * LITTLE);
        NEXT.store(u64::MAX, Relaxed);
        assert!(!is_look_due(), "it was read just now");
        assert_eq!(counted(), malloc::heap_size(), "unless it matters");
    }
}
