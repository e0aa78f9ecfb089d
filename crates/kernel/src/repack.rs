//! What compressing idle pages again takes and sets free, turn by turn: the evidence of its price.
//!
//! The kernel does not say which pages are idle, nor how many it has compressed again. So what is counted
//! is the pages that were written to the device and have had the time to become idle, since pages were
//! compressed again last: at most so many are due. What a turn takes and sets free is by that number, which
//! makes up for pages that came back meanwhile.
//!
//! A turn is asked about before it is taken, and the answer holds for one turn ([`Permission`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_core::{Bytes, Nanos};

use crate::files::{Root, read};
use crate::setup::zram;

/// Size of a page.
const PAGE: u64 = 4096;
/// Sectors of a page, in which a device counts.
const SECTORS: u64 = PAGE / 512;
/// Turns whose outcomes are remembered.
const TURNS: usize = 8;
/// What is expected to be set free of what pages take, before any were compressed again, and at most: 3.0
/// bytes in one instead of 2.4, and half. Assumed.
const SAVES: (f64, f64) = (0.2, 0.5);

/// What the economist is asked about: pages that are idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle {
    /// At most so many are due.
    pub pages: u64,
    /// What one takes compressed, by the mean of all.
    pub each: Bytes,
    /// What compressing them again sets free: at least, expected, at most.
    pub saves: [Bytes; 3],
    /// What may be taken where they lie, and what of it is free.
    pub room: (Bytes, Bytes),
    /// Whether pages go to a file where there is no room.
    pub has_file: bool,
    /// Pages that have come back, in all.
    pub returned: u64,
    /// Pages that lie there now.
    pub there: u64,
    /// For how long they have been looked after.
    pub window: Nanos,
}

/// A turn in which pages were compressed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repacked {
    /// How many were due.
    pub pages: u64,
    /// What that set free.
    pub freed: Bytes,
    /// Processor time that it took of the thread that asked for it.
    pub took: Nanos,
}

/// The answer to the last question, for one turn.
#[derive(Debug, Default)]
pub(crate) struct Permission(AtomicBool);

impl Permission {
    /// Answers.
    pub(crate) fn give(&self, may: bool) {
        self.0.store(may, Ordering::Release);
    }

    /// Takes the answer: the next turn is asked about anew.
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::AcqRel)
    }
}

/// Pages that a device has read and written in all, from its statistics; `None` where there are none.
pub(crate) fn traffic(root: &Root, device: u32) -> Option<(u64, u64)> {
    let text = read(&zram::control(root, device).join("stat")).ok()?;
    // `Documentation/block/stat.rst`: requests, merged, sectors, ticks; of reads and then of writes.
    let mut fields = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (read, written) = (fields.nth(2)?.ok()?, fields.nth(3)?.ok()?);
    Some((read / SECTORS, written / SECTORS))
}

/// What is remembered from one turn to the next.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    began: u64,
    /// Pages read before it began.
    before: Option<u64>,
    /// When so many pages had been written in all; oldest first, and the first one is idle.
    written: VecDeque<(u64, u64)>,
    /// Of those, so many had been when pages were compressed again last.
    done: u64,
    /// What the last turns have set free, of each page that was due: bytes.
    freed: VecDeque<f64>,
}

impl Turns {
    pub(crate) fn begin(now: u64) -> Self {
        let (written, freed) = (VecDeque::new(), VecDeque::new());
        Self { began: now, before: None, written, done: 0, freed }
    }

    /// The device has read and written so many pages in all, and a page is idle after so long. Where it
    /// counts none, what lies there is taken for what was written.
    pub(crate) fn count(&mut self, now: u64, idle: Nanos, (read, written): (u64, u64)) {
        self.before.get_or_insert(read);
        self.written.push_back((now, written));
        let is_idle = |&(at, _): &(u64, u64)| at + idle.get() <= now;
        while self.written.get(1).is_some_and(is_idle) {
            self.written.pop_front();
        }
    }

    /// Pages that are due: at most so many as lie there.
    pub(crate) fn due(&self, now: u64, idle: Nanos, there: u64) -> u64 {
        let first = self.written.front().filter(|(at, _)| at + idle.get() <= now);
        first.map_or(0, |&(_, written)| written.saturating_sub(self.done)).min(there)
    }

    /// Pages that were due have been compressed again, and set so much free.
    pub(crate) fn took(&mut self, pages: u64, freed: Bytes) {
        self.done = self.written.front().map_or(self.done, |&(_, written)| written);
        if pages == 0 {
            return;
        }
        if self.freed.len() == TURNS {
            self.freed.pop_front();
        }
        self.freed.push_back(freed.as_f64() / pages as f64);
    }

    /// What compressing so many again sets free, of which each takes so much: at least, expected, at most.
    /// By what the last turns did.
    pub(crate) fn saves(&self, pages: u64, each: Bytes) -> [Bytes; 3] {
        let all = |of_one: f64| Bytes::from_f64(of_one * pages as f64);
        if self.freed.is_empty() {
            return [0.0, SAVES.0, SAVES.1].map(|part| all(each.as_f64() * part));
        }
        let least = self.freed.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.freed.iter().copied().fold(0.0, f64::max);
        let mean = self.freed.iter().sum::<f64>() / self.freed.len() as f64;
        [least, mean, most].map(all)
    }

    /// Pages read since it began, and how long ago that was.
    pub(crate) fn returned(&self, now: u64, read: u64) -> (u64, Nanos) {
        let before = self.before.unwrap_or(read);
        (read.saturating_sub(before), Nanos(now.saturating_sub(self.began)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Nanos = Nanos::seconds(30);

    fn at(seconds: u64) -> u64 {
        Nanos::seconds(seconds).get()
    }

    #[test]
    fn what_was_written_long_ago_is_due_once() {
        let mut turns = Turns::begin(at(0));
        for (when, written, due) in [(5, 100, 0), (10, 300, 0), (35, 900, 100), (40, 900, 300)] {
            turns.count(at(when), IDLE, (0, written));
            assert_eq!(turns.due(at(when), IDLE, 1000), due, "{when} s");
        }
        assert_eq!(turns.due(at(40), IDLE, 20), 20, "no more than lie there");
        turns.took(300, Bytes(300 * 200));
        assert_eq!(turns.due(at(40), IDLE, 1000), 0);
        turns.count(at(70), IDLE, (0, 900));
        assert_eq!(turns.due(at(70), IDLE, 1000), 600);
    }

    #[test]
    fn what_turns_have_set_free_is_what_the_next_one_is_expected_to() {
        let mut turns = Turns::begin(at(0));
        let each = Bytes(1000);
        assert_eq!(turns.saves(10, each), [Bytes::ZERO, Bytes(2000), Bytes(5000)]);
        for freed in [100, 300] {
            turns.took(1, Bytes(freed));
        }
        assert_eq!(turns.saves(10, each), [Bytes(1000), Bytes(2000), Bytes(3000)]);
        for _ in 0..TURNS {
            turns.took(2, Bytes(800));
        }
        assert_eq!(turns.saves(10, each), [Bytes(4000); 3], "what is long ago is forgotten");
        turns.took(0, Bytes(1));
        assert_eq!(turns.saves(1, each), [Bytes(400); 3], "of nothing nothing is learnt");
    }

    #[test]
    fn what_came_back_before_does_not_count() {
        let mut turns = Turns::begin(at(10));
        turns.count(at(15), IDLE, (50, 0));
        assert_eq!(turns.returned(at(40), 80), (30, Nanos::seconds(30)));
    }

    #[test]
    fn an_answer_holds_for_one_turn() {
        let permission = Permission::default();
        assert!(!permission.take(), "nobody has answered");
        permission.give(true);
        assert!(permission.take() && !permission.take());
    }

    #[test]
    fn a_device_counts_sectors() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        let control = zram::control(&root, 3);
        std::fs::create_dir_all(&control).unwrap();
        assert_eq!(traffic(&root, 3), None);
        let text = "   10  0   80  1   20  0  160  2  0  0  0\n";
        std::fs::write(control.join("stat"), text).unwrap();
        assert_eq!(traffic(&root, 3), Some((10, 20)));
    }
}
