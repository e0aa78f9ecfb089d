//! Whether it pays to go ahead of walks: the engine's part of [`terrace_economics::walks`].
//!
//! What counts of a window is the pages that lie in swap, by the page table. Files' pages and memory that
//! processes share do not look like that, and come without a price. A page that was left out was asked for
//! if the program faulted on it, or if it is in memory when the time is over: not all faults are told. Where
//! none are told, there are no walks either. As long as little is known, walks pay as a rule: the
//! economist begins with 8 outcomes of which 90 % were of use.
//!
//! The page that is left out before a chunk, so that a walk tells where it is, is no evidence. It lies behind
//! all of the chunk before: a walk that ends within that one would seem to have used nothing of it.

use std::collections::VecDeque;

use terrace_core::{Bytes, Heat, Nanos, Reason, Urgency};
use terrace_economics::walks::{self, Book, Counts, EVERY, GAP, PLACES, WAITED};
use terrace_sampler::pagemap::is;

use super::PAGE;
use super::books::{Room, SWAP};
use super::desk::Desk;
use super::streams::MOST;
use super::world::World;

/// A window of a walk, and what is known of its pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    process: u32,
    start: u64,
    end: u64,
    /// Pages that are in memory, and in swap. Of neither kind are those of which nothing is known.
    present: u64,
    swapped: u64,
    /// The address of the page that is left out.
    leave: Option<u64>,
}

impl Window {
    /// A window of whose pages nothing is known.
    pub(super) fn of(process: u32, (start, end): (u64, u64)) -> Self {
        Self { process, start, end, present: 0, swapped: 0, leave: None }
    }

    /// Whether all of it is in memory.
    pub(super) fn is_there(&self) -> bool {
        self.present * PAGE == self.end - self.start
    }

    /// What of it lies in swap.
    pub(super) fn swapped(&self) -> Bytes {
        Bytes(self.swapped * PAGE)
    }

    /// What is asked for: ranges (start, length).
    pub(super) fn ranges(&self) -> Vec<(u64, u64)> {
        let parts = match self.leave {
            Some(page) => [(self.start, page), (page + PAGE, self.end)],
            None => [(self.start, self.end), (self.end, self.end)],
        };
        let parts = parts.into_iter().filter(|(start, end)| start < end);
        parts.map(|(start, end)| (start, end - start)).collect()
    }
}

/// A page that is waited for.
#[derive(Clone, Copy, Debug)]
struct LeftOut {
    process: u32,
    page: u64,
    since: Nanos,
}

/// What the engine counts of walks, and the answer that it obeys.
#[derive(Debug)]
pub(super) struct Pays {
    counts: Counts,
    /// The number of the page that is left out next.
    next: u64,
    /// Those that are waited for; the one that is waited for longest is the first.
    waiting: VecDeque<LeftOut>,
    book: Book,
    /// Whether the economist is against it.
    closed: bool,
    /// Until when it is not asked.
    rest_until: Nanos,
}

impl Pays {
    pub(super) fn new() -> Self {
        let counts = Counts::default();
        Self {
            counts,
            next: GAP.0,
            waiting: VecDeque::with_capacity(PLACES),
            book: Book::since(&counts, MOST as u32),
            closed: false,
            rest_until: Nanos::ZERO,
        }
    }

    /// Whether a window is not to come.
    pub(super) fn refuses(&self, window: &Window) -> bool {
        self.closed && window.swapped > 0
    }

    /// A walk asks for what lies between two addresses.
    pub(super) fn ask(
        &mut self,
        world: &mut dyn World,
        process: u32,
        (start, end): (u64, u64),
    ) -> Window {
        let mut window = Window::of(process, (start, end));
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let looked = world.content(process, start, end, &mut |run| {
            let pages = (run.end - run.start) / PAGE;
            if run.flags & is::PRESENT != 0 {
                window.present += pages;
            } else if run.flags & is::SWAPPED != 0 {
                window.swapped += pages;
                runs.push((run.start, run.end));
            }
        });
        if looked.is_err() {
            // It has ended, or may not be looked at.
            return Window::of(process, (start, end));
        }
        if window.swapped > 0 {
            let before = self.counts.asked;
            self.counts.asked += window.swapped;
            self.counts.windows += 1;
            let asked = before..self.counts.asked;
            if let Some((n, next)) = walks::left_out(asked, self.next, self.counts.known) {
                self.next = next;
                // Without a free place nothing would be learnt for the fault that it costs. Were others to
                // give way, those that are asked for late would count as not asked for.
                if self.waiting.len() < PLACES {
                    window.leave = page_of(&runs, u64::from(n));
                }
            }
        }
        window
    }

    /// A window has come, which took so much processor time.
    pub(super) fn came(&mut self, world: &mut dyn World, window: &Window, took: Nanos) {
        if window.swapped > 0 {
            let pages = window.swapped - u64::from(window.leave.is_some());
            self.counts.came += pages;
            self.counts.timed += pages;
            self.counts.timed_ns += took.get();
            self.wait(world, window);
        }
    }

    /// The page of a window that is left out is waited for: also where nothing else of it comes.
    pub(super) fn wait(&mut self, world: &mut dyn World, window: &Window) {
        if let Some(page) = window.leave {
            let since = world.now();
            self.waiting.push_back(LeftOut { process: window.process, page, since });
        }
    }

    /// A process faulted at an address.
    pub(super) fn fault(&mut self, process: u32, address: u64) {
        let page = address & !(PAGE - 1);
        let is_it = |left: &LeftOut| (left.process, left.page) == (process, page);
        if let Some(at) = self.waiting.iter().position(is_it) {
            self.waiting.remove(at);
            self.learn(true);
        }
    }

    /// No fault was told of a page that was left out.
    fn judge(&mut self, world: &mut dyn World, left: LeftOut) {
        let mut is_there = false;
        // Of a process that has ended, nothing is there.
        let _ = world.content(left.process, left.page, left.page + PAGE, &mut |run| {
            is_there |= run.flags & is::PRESENT != 0;
        });
        self.learn(is_there);
    }

    fn learn(&mut self, used: bool) {
        self.counts.known += 1;
        self.counts.used += u64::from(used);
    }

    fn expire(&mut self, world: &mut dyn World, now: Nanos) {
        let is_over = |left: &LeftOut| now >= left.since + WAITED;
        while let Some(first) = self.waiting.front().copied().filter(is_over) {
            self.waiting.pop_front();
            self.judge(world, first);
        }
    }

    /// Asks the economist if walks have asked for anything, and it is time.
    pub(super) fn look(&mut self, desk: &mut Desk, world: &mut dyn World, room: &Room) {
        let now = world.now();
        if now < self.rest_until {
            return;
        }
        self.expire(world, now);
        let Some(question) = self.book.look(&self.counts, desk.clock()) else { return };
        self.rest_until = now + EVERY;
        let telemetry = desk.telemetry(world, room);
        desk.became(&question.became, &telemetry);
        let why = (Urgency::Voluntary, Reason::WalksUsedMemory);
        let action = question.action(Some(SWAP));
        let proposal = desk.consider(world, action, Heat::default(), why, &telemetry);
        self.closed = proposal.is_none();
        self.book.answered(proposal);
    }

    /// The run is over: what came last is put down.
    pub(super) fn finish(&mut self, desk: &mut Desk, world: &mut dyn World, room: &Room) {
        let became = self.book.settle(&self.counts, desk.clock());
        let telemetry = desk.telemetry(world, room);
        desk.became(&became, &telemetry);
    }
}

/// The address of the n-th page of several runs.
fn page_of(runs: &[(u64, u64)], mut n: u64) -> Option<u64> {
    for &(start, end) in runs {
        let pages = (end - start) / PAGE;
        if n < pages {
            return Some(start + n * PAGE);
        }
        n -= pages;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_window_is_asked_for_but_the_page_that_is_left_out() {
        let of = |leave| {
            let window = Window { leave, ..Window::of(7, (PAGE, 5 * PAGE)) };
            window.ranges()
        };
        assert_eq!(of(None), [(PAGE, 4 * PAGE)]);
        assert_eq!(of(Some(2 * PAGE)), [(PAGE, PAGE), (3 * PAGE, 2 * PAGE)]);
        assert_eq!(of(Some(PAGE)), [(2 * PAGE, 3 * PAGE)]);
        assert_eq!(of(Some(4 * PAGE)), [(PAGE, 3 * PAGE)]);
        let one = Window { leave: Some(PAGE), ..Window::of(7, (PAGE, 2 * PAGE)) };
        assert_eq!(one.ranges(), []);
    }

    #[test]
    fn the_page_is_one_of_those_that_would_come() {
        let runs = [(0, 2 * PAGE), (7 * PAGE, 8 * PAGE)];
        let found: Vec<_> = (0..4).map(|n| page_of(&runs, n)).collect();
        assert_eq!(found, [Some(0), Some(PAGE), Some(7 * PAGE), None]);
    }
}
