//! Memory of our own for when the kernel gives no more.
//!
//! A program may use its address space up (`ulimit -v`, strict overcommit) after managing has
//! begun. What our books need then, a few pages for a mapping that moved, comes from a mapping
//! that was made at the beginning and never touched. When half of it is gone the program is put
//! on plain memory ([`crate::workers::manager`]): that needs some, too, and an allocation that failed
//! would end the program.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use crate::sys::{self, PAGE};

/// Bytes kept. Policies keep up to 26 bytes a page (`memtis`), in blocks of 262 144 pages: 6.5 MiB
/// when one more is begun; a forked child with a spill file of its own needs some 4 MiB. For a
/// large region it is seen beforehand whether there is more
/// ([`crate::space::regions::Regions::insert`]).
pub const RESERVE: usize = 16 << 20;

/// Its first address; 0 while there is none.
static START: AtomicUsize = AtomicUsize::new(0);
/// Bytes that were given out.
static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// Keeps memory, unless that was done. A forked child has its parent's, and goes on with it.
pub fn keep() -> Result<(), i32> {
    if START.load(Acquire) == 0 {
        START.store(sys::map_private(RESERVE)?, Release);
    }
    Ok(())
}

/// Whole pages of it, zeroed; `None` if there are not so many left. What is unmapped again is
/// gone: this is for a program that will not be managed for long.
pub fn take(len: usize) -> Option<usize> {
    let start = Some(START.load(Acquire)).filter(|&start| start != 0)?;
    let given = GIVEN.fetch_update(AcqRel, Acquire, |given| {
        let after = given.checked_add(len.checked_next_multiple_of(PAGE)?)?;
        (after <= RESERVE).then_some(after)
    });
    given.ok().map(|given| start + given)
}

/// Whether so little is left that it is time to go without.
pub fn runs_low() -> bool {
    GIVEN.load(Relaxed) > RESERVE / 2
}

/// Bytes that stay where the rest is given back: what hooks of a program that is managed no more
/// may still need.
const LAST: usize = 256 << 10;

/// Gives what is left of it back to the kernel, but for a little.
pub(crate) fn give_back() {
    let start = START.load(Acquire);
    let taken = GIVEN.fetch_update(AcqRel, Acquire, |given| {
        (start != 0 && given + LAST < RESERVE).then_some(RESERVE)
    });
    let Ok(given) = taken else { return };
    // What stays is at the end, where it is handed out as before: who just takes some reads one
    // word that does not change.
    // SAFETY: nobody was given it, nor will be.
    let _ = unsafe { sys::munmap(start + given, RESERVE - LAST - given) };
    GIVEN.store(RESERVE - LAST, Release);
}

/// New memory of our own, from what was kept if the kernel gives none.
pub fn map(len: usize) -> Result<usize, i32> {
    sys::map_private(len).or_else(|error| take(len).ok_or(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_given_out_once_and_runs_low_at_half() {
        keep().unwrap();

        let first = take(1).unwrap();
        let second = take(PAGE + 1).unwrap();
        assert_eq!(second, first + PAGE);
        assert!(!runs_low());

        let third = take(RESERVE / 2).unwrap();
        assert_eq!(third, second + 2 * PAGE);
        assert!(runs_low());
        assert_eq!(take(RESERVE / 2), None, "three pages are gone");
        assert!(take(usize::MAX).is_none());
        assert!(take(PAGE).is_some(), "what is left is still to be had");
    }
}
