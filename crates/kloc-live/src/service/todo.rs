//! In which order the worker does what it was asked for.
//!
//! Dropping clean pages takes half a millisecond, and writing dirty ones as long as the disk takes.
//! So a file that is being written waits at the side, and what is clean does not wait for it. What is
//! only asked, and changes nothing, comes after all that memory is short for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How often a file that is being written is looked at: half as often each time that nothing of it
/// was written meanwhile, down to the second. Each look opens the file, which others see.
const LOOKS: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(64));
/// What is dirty stays if nothing at all was written for so long,
const STUCK: Duration = Duration::from_millis(200);
/// or if this file was not written within this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// A job whose file is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slow<J> {
    pub(super) job: J,
    /// Since when.
    since: Instant,
    looked: Instant,
    /// When it is looked at again, from then on.
    every: Duration,
    /// Pages that were dirty at first.
    pub(super) first: u64,
    /// Pages that were not written when it was looked at last.
    left: u64,
    /// From which byte on nothing has begun to be written yet.
    pub(super) rest: Option<u64>,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn<J> {
    /// A job that nobody has looked at yet.
    New(J),
    /// One whose file may be written by now.
    Look(Slow<J>),
    /// Nothing, until this time, or until there is a new job.
    Wait(Option<Duration>),
}

/// Jobs that wait.
#[derive(Debug)]
pub(super) struct Todo<J> {
    new: VecDeque<J>,
    /// The one that was looked at first is first.
    slow: VecDeque<Slow<J>>,
    questions: VecDeque<J>,
    /// When pages of any file were last seen to be written.
    progress: Option<Instant>,
    /// The last turn was a look.
    looked: bool,
}

impl<J> Todo<J> {
    pub(super) fn new() -> Self {
        let (new, slow, questions) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Self { new, slow, questions, progress: None, looked: false }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.new.len() + self.slow.len() + self.questions.len()
    }

    /// All that waits, when nothing is done any more.
    pub(super) fn rest(self) -> impl Iterator<Item = J> {
        let slow = self.slow.into_iter().map(|slow| slow.job);
        self.new.into_iter().chain(slow).chain(self.questions)
    }

    /// A job that memory is short for.
    pub(super) fn add(&mut self, job: J) {
        self.new.push_back(job);
    }

    /// A job by which nothing leaves: it is the last.
    pub(super) fn add_question(&mut self, job: J) {
        self.questions.push_back(job);
    }

    /// So many pages of a new job's file are being written, or are to be, from a byte on.
    pub(super) fn is_slow(&mut self, job: J, pages: u64, rest: Option<u64>, now: Instant) {
        let (since, every) = (now, LOOKS.0);
        let slow = Slow { job, since, looked: now, every, first: pages, left: pages, rest };
        self.slow.push_back(slow);
    }

    /// So many pages are still not written. Gives it back if it is not waited for any longer.
    pub(super) fn is_still_slow(
        &mut self,
        mut slow: Slow<J>,
        pages: u64,
        now: Instant,
    ) -> Option<Slow<J>> {
        slow.every = (slow.every * 2).min(LOOKS.1);
        if pages < slow.left {
            self.progress = Some(now);
            slow.every = LOOKS.0;
        }
        if now >= self.last_look(&slow) {
            return Some(slow);
        }
        (slow.left, slow.looked) = (pages, now);
        self.slow.push_back(slow);
        None
    }

    /// When it is waited for no longer.
    fn last_look(&self, slow: &Slow<J>) -> Instant {
        let written = self.progress.map_or(slow.since, |progress| progress.max(slow.since));
        (written + STUCK).min(slow.since + PATIENCE)
    }

    /// What is next.
    pub(super) fn next(&mut self, now: Instant) -> Turn<J> {
        let due_at = |slow: &Slow<J>| (slow.looked + slow.every).min(self.last_look(slow));
        let first = self.slow.iter().map(due_at).enumerate().min_by_key(|&(_, at)| at);
        let due = first.map(|(_, at)| at.saturating_duration_since(now));
        // What is clean has every other turn, however much is slow.
        let others_turn = std::mem::take(&mut self.looked) && !self.new.is_empty();
        if due == Some(Duration::ZERO)
            && !others_turn
            && let Some(slow) = first.and_then(|(index, _)| self.slow.remove(index))
        {
            self.looked = true;
            return Turn::Look(slow);
        }
        if let Some(job) = self.new.pop_front() {
            return Turn::New(job);
        }
        self.questions.pop_front().map_or(Turn::Wait(due), Turn::New)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a slow disk would keep the memory of files on a fast one.
    #[test]
    fn what_is_clean_does_not_wait_for_what_is_being_written() {
        let mut todo = Todo::new();
        let now = Instant::now();
        todo.add("dirty");
        todo.add("clean");
        assert_eq!(todo.next(now), Turn::New("dirty"));
        todo.is_slow("dirty", 8, None, now);
        assert_eq!(todo.next(now), Turn::New("clean"));
        assert_eq!((todo.next(now), todo.len()), (Turn::Wait(Some(LOOKS.0)), 1));
        let Turn::Look(slow) = todo.next(now + LOOKS.0) else { panic!("it is due") };
        assert_eq!((slow.job, slow.first), ("dirty", 8));
        assert_eq!(todo.next(now + LOOKS.0), Turn::Wait(None));
    }

    /// Each question opens a file, and there may be many.
    #[test]
    fn what_is_only_asked_comes_last() {
        let mut todo = Todo::new();
        todo.add_question("asked");
        todo.add("clean");
        assert_eq!(todo.len(), 2);
        let now = Instant::now();
        let turns = [Turn::New("clean"), Turn::New("asked")];
        assert_eq!([(); 2].map(|()| todo.next(now)), turns);
        assert_eq!((todo.next(now), todo.len()), (Turn::Wait(None), 0));
    }

    /// Hundreds of them would have each turn otherwise.
    #[test]
    fn many_slow_files_leave_every_other_turn_to_what_is_clean() {
        let begin = Instant::now();
        let mut todo = Todo::new();
        (0..500).for_each(|_| todo.is_slow("slow", 8, None, begin));
        (0..3).for_each(|_| todo.add("clean"));
        let at = begin + PATIENCE / 2;
        let turns: Vec<_> = (0..6).map(|_| matches!(todo.next(at), Turn::New(_))).collect();
        assert_eq!(turns, [false, true, false, true, false, true]);
    }

    /// A disk takes one file after the other: the last one waits as long as others are written, but
    /// not for ever.
    #[test]
    fn a_file_is_waited_for_as_long_as_anything_is_written() {
        let begin = Instant::now();
        let mut todo = Todo::new();
        todo.is_slow("stuck", 8, None, begin);
        todo.is_slow("written", 10_000, None, begin);
        let (mut at, mut pages) = (begin, 10_000);
        let gave_up = loop {
            at += LOOKS.0;
            let mut gave_up = false;
            while let Turn::Look(slow) = todo.next(at) {
                pages -= 1;
                let left = if slow.job == "stuck" { 8 } else { pages };
                gave_up |= todo.is_still_slow(slow, left, at).is_some_and(|s| s.job == "stuck");
            }
            if gave_up {
                break at - begin;
            }
        };
        assert_eq!(gave_up, PATIENCE);
        let mut alone = Todo::new();
        alone.is_slow("stuck", 8, None, begin);
        let mut at = begin;
        let mut looks = 0;
        loop {
            at += LOOKS.0;
            let Turn::Look(slow) = alone.next(at) else { continue };
            looks += 1;
            if alone.is_still_slow(slow, 8, at).is_some() {
                break;
            }
        }
        assert_eq!(at - begin, STUCK);
        // 2, 4, 8, 16, 32 and 64 ms after the one before, and at the end.
        assert_eq!(looks, 8, "what does not change is looked at ever more rarely");
    }
}
