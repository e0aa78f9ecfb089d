//! Room ahead of need: some of the budget is kept free, so that a fault finds room.

use crate::evict::reclaim::{Pace, Progress};
use crate::fault::messages::Pending;
use crate::sys;
use crate::sys::spin::give_way;
use crate::workers::worker::Worker;

/// How long (ns) the manager leaves making room when the writer of the spill file is far behind.
const HOLD_BACK: u64 = 1_000_000;

/// How long the background rests when nothing could leave.
const STUCK: u64 = 5_000_000;

/// Rounds in a row that only made pages this process's alone, after which something else holds them
/// ([`Progress::Unshared`]). Where nothing does they leave in the next round.
const UNSHARED_IN_VAIN: u32 = 4;

impl Worker<'_> {
    pub(crate) fn short_of_room(&self) -> bool {
        self.lacks_headroom() && self.pager.fault.handlers.has_spare_processor()
    }

    fn lacks_headroom(&self) -> bool {
        let pager = self.pager;
        pager.resident() + pager.headroom().min(pager.may_come()) > pager.budget()
            && !self.pager.freeze.is_on()
            && !self.nothing_leaves()
    }

    /// Makes some room, if that is wanted and nobody else is doing it; whether it did. The
    /// manager's work, and that of a handler with time to spare.
    pub(crate) fn make_headroom(&mut self) -> bool {
        if !self.lacks_headroom() || self.pager.should_hold_back() {
            return false;
        }
        let Some(ring) = self.pager.evict.ring.try_lock() else { return false };
        let progress = self.make_room(ring, Pace::BACKGROUND);
        self.gets_on(progress, STUCK)
    }

    /// Whether a round of making room gives hope for the next; if it does not, the background rests
    /// for so long (ns).
    pub(crate) fn gets_on(&mut self, progress: Progress, rest: u64) -> bool {
        if progress == Progress::Changing {
            // Over in some microseconds, when this thread or another has read what has changed.
            return false;
        }
        self.unshared = match progress {
            Progress::Unshared => self.unshared + 1,
            Progress::Made | Progress::Nothing | Progress::Changing => 0,
        };
        if progress != Progress::Nothing && self.unshared < UNSHARED_IN_VAIN {
            return true;
        }
        self.unshared = 0;
        self.stuck_until = sys::now() + rest;
        false
    }

    /// Whether making room has failed a moment ago.
    fn nothing_leaves(&self) -> bool {
        self.stuck_until > sys::now() || !self.pager.may_leave()
    }

    /// Makes room until a fault finds some.
    pub(crate) fn keep_headroom(&mut self, pending: &mut Pending) {
        let pager = self.pager;
        while self.short_of_room() {
            if pager.huge.drop_one(pager) {
                continue;
            }
            if pager.should_hold_back() {
                // Faults wait for the writer; the manager has other things to do.
                sys::sleep(HOLD_BACK);
                break;
            }
            if !self.make_headroom() {
                give_way();
                if pager.uffd().is_changing() {
                    // The manager reads messages, too, where nobody else does.
                    break;
                }
            }
            if pager.commands.pending().is_some() {
                self.obey(pending);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::MANAGER;
    use crate::pager::fixture::{pager, touch};

    /// Otherwise the manager would do nothing else.
    #[test]
    fn where_nothing_can_leave_the_background_rests() {
        let pager = pager(4096);
        let budget = pager.budget() as usize;
        (0..budget).for_each(|page| touch(pager, page));
        let mut worker = Worker::new(pager, MANAGER);
        assert!(worker.lacks_headroom());
        // The fixture's kernel moves no page.
        let before = sys::now();
        while worker.make_headroom() {}
        assert!(worker.stuck_until >= before + STUCK);
        // However long this thread had no processor.
        worker.stuck_until = u64::MAX;
        assert!(!worker.lacks_headroom());
    }

    /// The manager would ask pages of a device to leave for ever, and stand still meanwhile.
    #[test]
    fn where_pages_are_held_by_something_else_the_background_rests_too() {
        let mut worker = Worker::new(pager(1), MANAGER);
        let mut round = |progress| worker.gets_on(progress, STUCK);
        for _ in 0..2 {
            assert!((1..UNSHARED_IN_VAIN).all(|_| round(Progress::Unshared)));
            assert!(round(Progress::Made), "they have left");
        }
        assert!((1..UNSHARED_IN_VAIN).all(|_| round(Progress::Unshared)));
        assert!(!round(Progress::Unshared));
        assert!(round(Progress::Unshared), "once more, later");
        assert!(worker.stuck_until > 0);
    }

    /// It would rest for milliseconds, hundreds of times a second, beside a program that discards
    /// memory now and then.
    #[test]
    fn a_change_of_the_address_space_does_not_have_the_background_rest() {
        let mut worker = Worker::new(pager(1), MANAGER);
        assert!(worker.gets_on(Progress::Unshared, STUCK));
        for _ in 0..2 * UNSHARED_IN_VAIN {
            assert!(!worker.gets_on(Progress::Changing, STUCK), "not at once");
        }
        assert_eq!((worker.stuck_until, worker.unshared), (0, 1), "but it is no failure");
    }

    #[test]
    fn no_room_is_made_ahead_while_a_fork_copies_the_books_or_where_there_is_some() {
        let pager = pager(4096);
        let worker = Worker::new(pager, MANAGER);
        assert!(!worker.lacks_headroom());
        let budget = pager.budget() as usize;
        (0..budget).for_each(|page| touch(pager, page));
        pager.freeze.begin(crate::pager::freeze::Why::Fork);
        assert!(!worker.lacks_headroom());
    }
}
