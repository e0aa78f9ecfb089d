//! Which ranges a forked child is to find empty (`MADV_WIPEONFORK`): the kernel marks its mappings, and
//! whoever brings a child's memory in has this list. A mark goes with its mapping: it ends where that is
//! unmapped or mapped over, and moves where that is moved. Left in the list it would be of whatever is
//! mapped there later, and a child would find that empty, too.
//!
//! There is one list, whether memory is managed yet or not. It changes between copies only
//! ([`Turns`](super::turns::Turns)), in the hooks of the calls by which mappings change. It is ordered:
//! it is looked at for each call that unmaps something, and for each page that a child is given, and a program
//! may mark many ranges one by one. Each look takes time with the logarithm of their number.

use core::sync::atomic::{AtomicBool, Ordering::*};

use crate::space::ordered_ranges::OrderedRanges;
use crate::sys::spin::SpinLock;

pub use crate::space::ordered_ranges::Range;

static WIPED: SpinLock<OrderedRanges> = SpinLock::new(OrderedRanges::new());

/// Whether anything was ever marked: hardly a program does that, and the others need not look.
static EVER: AtomicBool = AtomicBool::new(false);

/// In a forked child: who looked at the list is not here. Nobody changed it.
///
/// # Safety
/// Nobody else runs.
pub(super) unsafe fn reset() {
    // SAFETY: the caller's.
    unsafe { WIPED.force_unlock() };
}

/// Whether there may be anything marked.
pub fn is_any() -> bool {
    EVER.load(Acquire)
}

/// A child is to find ranges empty.
pub fn mark(ranges: &[Range]) {
    if ranges.is_empty() {
        return;
    }
    EVER.store(true, Release);
    let mut wiped = WIPED.lock();
    for &range in ranges {
        wiped.insert(range);
    }
}

/// A child is no longer to find a range empty; returns what of it was marked.
pub fn unmark(range: Range) -> Vec<Range> {
    if is_any() { WIPED.lock().remove(range) } else { Vec::new() }
}

/// Whether anything of a range is marked.
pub fn is_marked(range: Range) -> bool {
    is_any() && WIPED.lock().overlaps(range)
}

/// What is marked.
pub(super) fn marked() -> Vec<Range> {
    WIPED.lock().iter().collect()
}

/// Where the marks of a range are once it has moved. What a mapping has grown by is marked as its end is.
pub fn at_new_place(marks: &[Range], from: Range, to: Range) -> Vec<Range> {
    marks
        .iter()
        .map(|&(start, end)| {
            let end = if end == from.1 { to.1 } else { to.0 + (end - from.0) };
            (to.0 + (start - from.0), end.min(to.1))
        })
        .filter(|(start, end)| start < end)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_go_along_and_end_where_the_mapping_does() {
        let marks = [(10, 12), (15, 20)];
        assert_eq!(at_new_place(&marks, (10, 20), (110, 120)), [(110, 112), (115, 120)]);
        // Longer: what is new is as the end was.
        assert_eq!(at_new_place(&marks, (10, 20), (110, 130)), [(110, 112), (115, 130)]);
        assert_eq!(at_new_place(&marks[..1], (10, 20), (110, 130)), [(110, 112)]);
        // Shorter.
        assert_eq!(at_new_place(&marks, (10, 20), (10, 16)), [(10, 12), (15, 16)]);
        assert_eq!(at_new_place(&marks, (10, 20), (10, 14)), [(10, 12)]);
    }
}
