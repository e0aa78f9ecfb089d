//! Walks: how far a program has gone through memory that it never touched before.
//!
//! A walk is a row of first touches, each where the one before left off (streams, see
//! [`crate::fault::streams`], which only know where they are). Its length says how likely it is
//! to go on, and what was backed ahead of it was used if it arrives behind that.

use terrace_core::Pages;

use crate::huge::prezero::BASES;

/// Walks that are followed at once: more threads than that seldom fill memory together.
const WALKS: usize = 8;
/// A walk may skip so many pages that are there already.
const SKIP: u32 = 64;

#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    region: u32,
    /// First page, and the next that is expected; 0 if there is no walk.
    start: u32,
    next: u32,
    /// The huge pages in front of it: first page, one past the last.
    ahead: (u32, u32),
    /// When it was last seen, in steps of all walks.
    seen: u32,
}

impl Walk {
    fn huge_pages(&self) -> u32 {
        (self.ahead.1 - self.ahead.0) / BASES
    }
}

/// The walks of a program, and what became of the huge pages put in front of them.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    followed: [Walk; WALKS],
    steps: u32,
    used: u32,
    known: u32,
}

/// Where a walk is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// How far it has come.
    pub walked: Pages,
    /// Huge pages in front of it that it has just gone through.
    pub used: u32,
    /// Those that are still in front of it: first page, one past the last.
    pub ahead: (u32, u32),
}

impl Walks {
    /// Takes in a first touch of a page, with which all before `next` come in.
    pub(crate) fn step(&mut self, region: u32, page: u32, next: u32) -> Step {
        self.steps = self.steps.wrapping_add(1);
        let steps = self.steps;
        let soon = |from: u32| (from..=from.saturating_add(SKIP)).contains(&page);
        let passed = |w: &Walk| w.ahead.1 != 0 && soon(w.ahead.1);
        let goes_on =
            |w: &&mut Walk| w.next != 0 && w.region == region && (soon(w.next) || passed(w));
        let step = if let Some(walk) = self.followed.iter_mut().find(goes_on) {
            let used = if passed(walk) { walk.huge_pages() } else { 0 };
            if used > 0 {
                walk.ahead = (0, 0);
            }
            (walk.seen, walk.next) = (steps, next);
            self.used += used;
            self.known += used;
            Step { walked: Pages(u64::from(page - walk.start)), used, ahead: walk.ahead }
        } else {
            // The one not seen for longest has ended, and did not use what was before it.
            let age = |w: &&mut Walk| {
                if w.next == 0 { u32::MAX } else { steps.wrapping_sub(w.seen) }
            };
            if let Some(walk) = self.followed.iter_mut().max_by_key(age) {
                self.known += walk.huge_pages();
                *walk = Walk { region, start: page, next, ahead: (0, 0), seen: steps };
            }
            Step::default()
        };
        self.forget();
        step
    }

    /// Huge pages were put in front of the walk that is expected at `next`.
    pub(crate) fn backed(&mut self, region: u32, next: u32, ahead: (u32, u32)) {
        let here = |w: &&mut Walk| w.region == region && w.next == next;
        if let Some(walk) = self.followed.iter_mut().find(here) {
            walk.ahead = ahead;
        }
    }

    /// Of so many huge pages put in front of walks, and of which it is known, so many
    /// were used: `(used, known)`.
    pub(crate) fn outcomes(&self) -> (u32, u32) {
        (self.used, self.known)
    }

    /// What is long ago counts less: a program changes what it does.
    fn forget(&mut self) {
        const MEMORY: u32 = 64;
        if self.known > MEMORY {
            self.known /= 2;
            self.used /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_grows_and_tells_what_it_went_through() {
        let mut walks = Walks::default();
        assert_eq!(walks.step(3, 100, 133).walked, Pages(0));
        assert_eq!(walks.step(3, 133, 166).walked, Pages(33));
        walks.backed(3, 166, (512, 1536));
        assert_eq!(walks.step(3, 166, 199).ahead, (512, 1536), "not there yet");
        let arrived = Step { walked: Pages(1436), used: 2, ahead: (0, 0) };
        assert_eq!(walks.step(3, 1536, 1537), arrived);
        assert_eq!(walks.outcomes(), (2, 2));
    }

    #[test]
    fn interleaved_walks_are_kept_apart() {
        let mut walks = Walks::default();
        for i in 0..50 {
            for (region, base) in [(1, 0), (1, 100_000), (2, 0)] {
                let page = base + i * 33;
                let step = walks.step(region, page, page + 33);
                assert_eq!(step.walked, Pages(u64::from(i) * 33), "{region} {base}");
            }
        }
    }

    #[test]
    fn what_was_put_before_a_walk_that_ended_was_for_nothing() {
        let mut walks = Walks::default();
        walks.step(1, 0, 33);
        walks.backed(1, 33, (512, 512 * 5));
        for i in 1..=WALKS as u32 {
            walks.step(9, i * 50_000, i * 50_000 + 1);
        }
        assert_eq!(walks.outcomes(), (0, 4));
    }
}
