//! The marks of what a forked child is to find empty (`terrace_live::fork::wiped`) go where mappings go.

use terrace_live::fork::wiped::{self, Range};
use terrace_live::space::advised;
use terrace_live::space::ordered_ranges::OrderedRanges;
use terrace_live::sys::{self, PAGE};
use terrace_live::workers::idle_priority;

use crate::{mapping, remap, state};

/// A child is to find ranges empty, or no longer. Between copies.
pub(crate) fn advised(ranges: &[Range], empty: bool) {
    for &range in ranges {
        wiped::unmark(range);
    }
    if empty {
        wiped::mark(ranges);
    }
}

/// A range is mapped that was not. What it is marked as is of something that has gone without being seen:
/// by a system call past the C library, or since a child does not inherit it (`MADV_DONTFORK`).
pub(crate) fn mapped_anew(range: Range) {
    if is_marked(range) {
        mapping::between_copies(|| wiped::unmark(range));
    }
}

/// The heap ends at an address, and was longer.
pub(crate) fn heap_shrank(end: usize, before: usize) {
    mapped_anew((end.next_multiple_of(PAGE), before.next_multiple_of(PAGE)));
}

/// Makes a change that unmaps a range, or maps something else there. Where it failed, the marks are back
/// of what is still mapped.
pub(crate) fn unmapped<T, E>(range: Range, change: impl Fn() -> Result<T, E>) -> Result<T, E> {
    if !is_marked(range) {
        return change();
    }
    mapping::between_copies(|| {
        // Before the change: once it is made, others may map something there, and mark it.
        let marks = wiped::unmark(range);
        let changed = change();
        if changed.is_err() {
            mark_again(&marks);
        }
        changed
    })
}

/// Makes a change that moves a range, makes it longer or shorter (`mremap`), and says where it lies then.
/// `onto`: where it is to lie, if that is settled. `stays`: it is mapped at its old place, too: then it is
/// made between copies in any case. A child would have both places mapped, and nothing would show whether
/// it came before its copy.
pub(crate) fn moved<E>(
    from: Range,
    new_len: usize,
    onto: Option<Range>,
    stays: bool,
    change: impl Fn() -> Result<usize, E>,
) -> Result<usize, E> {
    if !is_marked(from) && !onto.is_some_and(is_marked) {
        return if stays { mapping::between_copies(change) } else { change() };
    }
    mapping::between_copies(|| {
        let marks = wiped::unmark(from);
        let lost = onto.map(wiped::unmark).unwrap_or_default();
        let changed = change();
        match changed {
            Ok(at) => {
                wiped::mark(&wiped::at_new_place(&marks, from, (at, at + new_len)));
                if stays && at != from.0 {
                    wiped::mark(&marks);
                }
            }
            // What was to be mapped over may be gone.
            Err(_) => mark_again(&[marks, lost].concat()),
        }
        changed
    })
}

/// Whether anything of a range is marked that the kernel may change: none that begins in a page. Looks with
/// signals blocked: the handler of one that came meanwhile would wait for its own thread. Once management
/// is off for good no child is given anything, and the list stays as it is: changes would no longer be made
/// between copies, nor with signals blocked.
fn is_marked(range: Range) -> bool {
    wiped::is_any()
        && state::config().is_some()
        && !state::borrows()
        && range.0.is_multiple_of(PAGE)
        && state::signals_blocked(|| wiped::is_marked(range))
}

/// After a change that failed. Leaves the error number as it is.
fn mark_again(marks: &[Range]) {
    let error = sys::errno();
    wiped::mark(&still_mapped(marks));
    // SAFETY: this thread's own variable.
    unsafe { *libc::__errno_location() = error };
}

/// What of ranges is still mapped. One may be of several mappings, of which some are gone.
fn still_mapped(marks: &[Range]) -> Vec<Range> {
    let start = marks.iter().map(|mark| mark.0).min();
    let end = marks.iter().map(|mark| mark.1).max();
    let (Some(start), Some(end)) = (start, end) else { return Vec::new() };
    let Some(mapped) = advised::mapped((start, end)) else {
        // A program under a filter might be killed for the question.
        let is_there = |mark: &Range| idle_priority::is_left_alone() || remap::is_mapped(mark.0);
        return marks.iter().copied().filter(is_there).collect();
    };
    let mut there = OrderedRanges::new();
    for part in mapped {
        there.insert(part);
    }
    marks.iter().flat_map(|&mark| there.remove(mark)).collect()
}
