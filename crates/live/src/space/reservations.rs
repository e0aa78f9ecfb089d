//! Reservations that are too large to be managed as a whole.
//!
//! Of each page of a region we keep a word, and the policy some ten bytes: for a terabyte of
//! addresses, of which the program will use a few hundred MiB, that is too much. Run-time
//! systems (V8, the JVM, Go, sanitizers) reserve as much. So such a range is noted here when it is
//! mapped, and managed by parts: one becomes a region when any of it becomes accessible.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use crate::space::ranges::Ranges;
use crate::sys::spin::SpinLock;

/// Reservations from this length on are managed by parts.
pub const LARGE: usize = 64 << 30;
/// How long a part is, at most: what a region of as many pages takes is little, and a reservation
/// of terabytes has some thousand.
pub const PART: usize = 1 << 30;

static NOTED: SpinLock<Ranges> = SpinLock::new(Ranges::new());
/// Held by a thread of the program's that changes them, and by one that forks: the copy is made between
/// changes. Terrace's own threads only look, and so need not wait for who forks.
static CHANGING: SpinLock<()> = SpinLock::new(());
/// How many there are, for those who only want to know whether there are any.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn noted<T>(work: impl FnOnce(&mut Ranges) -> T) -> T {
    let mut ranges = NOTED.lock();
    let result = work(&mut ranges);
    COUNT.store(ranges.len(), Release);
    result
}

fn changed<T>(change: impl FnOnce(&mut Ranges) -> T) -> T {
    let _changing = CHANGING.lock();
    noted(change)
}

/// Notes a range; false if there are too many. To be called with signals blocked, like all that
/// follows.
#[must_use]
pub fn note(start: usize, end: usize) -> bool {
    changed(|ranges| ranges.add(start, end))
}

/// A range is no longer what it was. Of a reservation with more than a thousand holes, returns a part
/// beside it that can be noted no longer.
#[must_use]
pub fn forget(start: usize, end: usize) -> Option<(usize, usize)> {
    if any() { changed(|ranges| ranges.remove(start, end)) } else { None }
}

/// Whether there are any.
pub fn any() -> bool {
    COUNT.load(Acquire) != 0
}

/// Whether any of a range is in such a reservation.
pub fn overlap(start: usize, end: usize) -> bool {
    any() && noted(|ranges| ranges.overlaps(start, end))
}

/// How much of a range is.
pub fn shared_with(start: usize, end: usize) -> usize {
    if any() { noted(|ranges| ranges.shared_with(start, end)) } else { 0 }
}

/// The part of a reservation that an address lies in; `None` of an address in no reservation.
pub fn part_of(address: usize) -> Option<(usize, usize)> {
    if !any() {
        return None;
    }
    let (start, end) = noted(|ranges| ranges.find(address))?;
    let first = address - address % PART;
    Some((first.max(start), first.saturating_add(PART).min(end)))
}

/// The end of the longest range that begins at an address, ends at `end` at the latest, and lies
/// in one such reservation or in none.
pub fn until(address: usize, end: usize) -> usize {
    if !any() {
        return end;
    }
    noted(|ranges| match ranges.find(address) {
        Some((_, until)) => until.min(end),
        None => ranges.next_start(address).map_or(end, |start| start.min(end)),
    })
}

/// What of such a reservation begins at an address, or behind it first; `None` behind the last one.
pub fn next(address: usize) -> Option<(usize, usize)> {
    if !any() {
        return None;
    }
    noted(|ranges| {
        let start = match ranges.find(address) {
            Some(_) => address,
            None => ranges.next_start(address)?,
        };
        ranges.find(start).map(|(_, end)| (start, end))
    })
}

/// Takes them for the thread that forks: no other changes them while the copy is made.
pub fn hold() {
    core::mem::forget(CHANGING.lock());
}

/// Gives them back, in whichever process.
///
/// # Safety
/// Once after [`hold`], in the same thread.
pub unsafe fn let_go() {
    // SAFETY: the caller's.
    unsafe { CHANGING.force_unlock() };
}

/// In a forked child, which has one thread: another of the parent's may have had the lock.
///
/// # Safety
/// Only the calling thread may exist.
pub unsafe fn after_fork() {
    // SAFETY: the caller's; whoever had it while the copy was made was looking.
    unsafe { NOTED.force_unlock() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::ranges::MOST;
    use crate::sys::PAGE;

    /// All of it in one test: the list is the process's.
    #[test]
    fn an_address_has_the_part_that_it_lies_in() {
        let (start, end) = (5 * PART + 4096, 9 * PART);
        assert!(note(start, end));

        assert_eq!(part_of(start), Some((start, 6 * PART)), "the first one begins later");
        assert_eq!(part_of(7 * PART + 1), Some((7 * PART, 8 * PART)));
        assert_eq!(part_of(start - 1), None);
        assert_eq!(until(start - 4096, end + 9), start);
        assert_eq!(until(start, end + 9), end);
        assert_eq!(until(end, end + 9), end + 9);
        assert_eq!((next(0), next(start)), (Some((start, end)), Some((start, end))));
        assert_eq!((next(end - 4096), next(end)), (Some((end - 4096, end)), None));
        assert!(overlap(start - 4096, start + 1) && !overlap(end, end + PART));
        assert_eq!(forget(start, end), None);
        assert_eq!((part_of(7 * PART), COUNT.load(Relaxed)), (None, 0));

        // One hole more than can be noted: somebody else has to see to what lies before it.
        let hole = |i: usize| (5 * PART + 3 * i * PAGE, 5 * PART + (3 * i + 1) * PAGE);
        assert!(note(5 * PART, end));
        assert!((1..MOST).all(|i| forget(hole(i).0, hole(i).1).is_none()));
        let (start, end_of_hole) = hole(MOST);
        let before = (hole(MOST - 1).1, start);
        assert_eq!(forget(start, end_of_hole), Some(before));
        assert!(!overlap(before.0, before.1) && overlap(end_of_hole, end));
        assert_eq!((forget(5 * PART, end), COUNT.load(Relaxed)), (None, 0));
    }
}
