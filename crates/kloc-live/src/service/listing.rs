//! A list of files that is made part by part.
//!
//! The kernel tells a file's name only of one that is open. To open thousands of them takes longer
//! than events find room while nobody takes them, and a file's inode may have to be read from a disk.
//! So each turn has an end, and so has the whole.

use std::time::{Duration, Instant};

/// What a list has at most. The answer is written in one go, too.
pub(super) const MOST: usize = 10_000;
/// How long a turn takes: about as long as the daemon sleeps where memory is short.
const TURN: Duration = Duration::from_millis(2);
/// How long all turns may take; whoever asks waits for twice as long.
const ALL: Duration = Duration::from_secs(5);

/// A list of which a part has been made.
#[derive(Debug)]
pub(super) struct Listing<T, F> {
    rest: std::vec::IntoIter<T>,
    files: Vec<F>,
    begun: Instant,
    is_cut: bool,
}

impl<T, F> Listing<T, F> {
    /// Of the first of these, so many of them as are asked for and as one list has.
    pub(super) fn new(all: impl ExactSizeIterator<Item = T>, count: usize, now: Instant) -> Self {
        let is_cut = count.min(all.len()) > MOST;
        let rest: Vec<_> = all.take(count.min(MOST)).collect();
        Self { rest: rest.into_iter(), files: Vec::new(), begun: now, is_cut }
    }

    /// Makes some of it. Says whether that was the last.
    pub(super) fn go_on(
        &mut self,
        mut now: impl FnMut() -> Instant,
        mut file: impl FnMut(&T) -> F,
    ) -> bool {
        let begun = now();
        while let Some(next) = self.rest.next() {
            self.files.push(file(&next));
            let now = now();
            if now.saturating_duration_since(self.begun) >= ALL {
                break;
            }
            if now.saturating_duration_since(begun) >= TURN && self.rest.len() > 0 {
                return false;
            }
        }
        self.is_cut |= self.rest.len() > 0;
        true
    }

    /// What was made, and whether there is less of it than was asked for.
    pub(super) fn into_files(self) -> (Vec<F>, bool) {
        (self.files, self.is_cut)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Makes a list of files that take so long each; what there was after each turn.
    fn turns(files: usize, each: Duration) -> (Vec<usize>, bool) {
        let clock = Cell::new(Instant::now());
        let mut listing = Listing::new(0..files, usize::MAX, clock.get());
        let mut turns = Vec::new();
        loop {
            let is_last = listing.go_on(
                || clock.get(),
                |file| {
                    clock.set(clock.get() + each);
                    *file
                },
            );
            turns.push(listing.files.len());
            if is_last {
                let (made, is_cut) = listing.into_files();
                assert_eq!(made, (0..made.len()).collect::<Vec<_>>());
                return (turns, is_cut);
            }
        }
    }

    /// Events would be lost meanwhile.
    #[test]
    fn a_turn_has_an_end_however_many_files_are_asked_for() {
        let millisecond = Duration::from_millis(1);
        assert_eq!(turns(5, millisecond), (vec![2, 4, 5], false));
        assert_eq!(turns(4, millisecond), (vec![2, 4], false));
        assert_eq!(turns(2, millisecond * 100), (vec![1, 2], false), "one at least");
        assert_eq!(turns(0, millisecond), (vec![0], false));
    }

    #[test]
    fn a_list_that_is_cut_says_so() {
        assert_eq!(turns(10, Duration::from_secs(2)), (vec![1, 2, 3], true), "it takes too long");
        assert_eq!(turns(3, Duration::from_secs(2)), (vec![1, 2, 3], false));
        let of = |files, count| {
            let now = Instant::now();
            let mut listing = Listing::new(0..files, count, now);
            assert!(listing.go_on(|| now, |file| *file));
            let (files, is_cut) = listing.into_files();
            (files.len(), is_cut)
        };
        assert_eq!(of(MOST + 1, MOST), (MOST, false), "no more are asked for");
        assert_eq!(of(MOST, usize::MAX), (MOST, false), "there are no more");
        assert_eq!(of(MOST + 1, MOST + 1), (MOST, true));
    }
}
