//! What of a range the kernel has done as it was advised, where it says that something failed.
//!
//! Behind a hole it goes on, and says at the end that there was one (`ENOMEM`). At a mapping of which
//! something else is wrong it stops, and what lies in front is done. It does not say where that was. So
//! advice that may be repeated is: mapping by mapping, or, where nobody may ask which there are, in ever
//! smaller parts.

use core::ops::ControlFlow;

use crate::space::ordered_ranges::Range;
use crate::space::proc_maps;
use crate::sys::PAGE;
use crate::sys::limits::with_more_descriptors;
use crate::workers::idle_priority;

/// The most calls that are made to find that out: for a hole of half as many pages.
const CALLS: usize = 1 << 16;

/// The parts of a range that were done, in order. `again` repeats the advice for a part; it must be such that
/// it may be. What cannot be found out counts as not done.
pub fn parts(
    (at, len): (usize, usize),
    advised: Result<(), i32>,
    again: impl Fn(Range) -> Result<(), i32>,
) -> Vec<Range> {
    let range = whole_pages(at, len);
    let Err(error) = advised else { return vec![range] };
    // Nothing is done of what is no range.
    if !at.is_multiple_of(PAGE) || range.1 == usize::MAX {
        return Vec::new();
    }
    let Some(mapped) = mapped(range) else { return by_halves(range, again) };
    if error == libc::ENOMEM {
        return mapped;
    }
    mapped.into_iter().take_while(|&part| again(part).is_ok()).collect()
}

/// The pages of a range, from the first to behind the last.
pub fn whole_pages(at: usize, len: usize) -> Range {
    (at, at.saturating_add(len).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX))
}

/// What of a range is mapped; `None` if that cannot be had. A program under a filter might be killed for
/// another call than the one that it has made.
pub fn mapped(range: Range) -> Option<Vec<Range>> {
    if idle_priority::is_left_alone() {
        return None;
    }
    let mut parts = Vec::new();
    let are_told = with_more_descriptors(|| {
        parts.clear();
        proc_maps::for_each_mapping(|mapping| {
            let part = (mapping.start.max(range.0), mapping.end.min(range.1));
            if part.0 < part.1 {
                parts.push(part);
            }
        })
    });
    are_told.then_some(parts)
}

/// The same, found by advising halves of what failed. Pages of a hole are skipped.
fn by_halves(range: Range, again: impl Fn(Range) -> Result<(), i32>) -> Vec<Range> {
    let (mut parts, mut calls) = (Vec::new(), CALLS);
    let _ = halve(range, &again, &mut calls, &mut parts);
    parts
}

fn halve(
    range: Range,
    again: &impl Fn(Range) -> Result<(), i32>,
    calls: &mut usize,
    parts: &mut Vec<Range>,
) -> ControlFlow<()> {
    *calls = match calls.checked_sub(1) {
        Some(left) => left,
        None => return ControlFlow::Break(()),
    };
    let pages = (range.1 - range.0) / PAGE;
    match again(range) {
        Ok(()) => match parts.last_mut() {
            Some(last) if last.1 == range.0 => last.1 = range.1,
            _ => parts.push(range),
        },
        Err(_) if pages > 1 => {
            let middle = range.0 + pages / 2 * PAGE;
            halve((range.0, middle), again, calls, parts)?;
            halve((middle, range.1), again, calls, parts)?;
        }
        Err(libc::ENOMEM) => {}
        Err(_) => return ControlFlow::Break(()),
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that has so many pages, of which some are holes and one is wrong.
    fn kernel(holes: &[usize], wrong: Option<usize>) -> impl Fn(Range) -> Result<(), i32> {
        move |(start, end)| {
            let pages = start / PAGE..end / PAGE;
            if wrong.is_some_and(|wrong| pages.contains(&wrong)) {
                Err(libc::EINVAL)
            } else if holes.iter().any(|hole| pages.contains(hole)) {
                Err(libc::ENOMEM)
            } else {
                Ok(())
            }
        }
    }

    fn found(pages: usize, again: impl Fn(Range) -> Result<(), i32>) -> Vec<Range> {
        let parts = by_halves((PAGE, (1 + pages) * PAGE), again);
        parts.into_iter().map(|(start, end)| (start / PAGE, end / PAGE)).collect()
    }

    #[test]
    fn what_lies_around_holes_and_in_front_of_what_is_wrong_is_found() {
        assert_eq!(found(9, kernel(&[], None)), [(1, 10)]);
        assert_eq!(found(9, kernel(&[3, 4], None)), [(1, 3), (5, 10)]);
        assert_eq!(found(9, kernel(&[1, 9], None)), [(2, 9)]);
        assert_eq!(found(9, kernel(&[3], Some(6))), [(1, 3), (4, 6)]);
        assert_eq!(found(9, kernel(&[], Some(1))), []);
        assert_eq!(found(2, kernel(&[1, 2], None)), []);
    }

    #[test]
    fn what_takes_too_long_counts_as_not_done() {
        let calls = core::cell::Cell::new(0);
        let parts = found(1 << 30, |_| {
            calls.set(calls.get() + 1);
            Err(libc::ENOMEM)
        });
        assert_eq!((parts, calls.get()), (vec![], CALLS));
    }

    #[test]
    fn of_what_is_no_range_nothing_is_done() {
        let again = |_: Range| panic!("nothing is repeated");
        assert_eq!(parts((PAGE + 1, PAGE), Err(libc::EINVAL), again), []);
        assert_eq!(parts((PAGE, usize::MAX - 1), Err(libc::EINVAL), again), []);
        assert_eq!(parts((PAGE, PAGE + 1), Ok(()), again), [(PAGE, 3 * PAGE)]);
    }
}
