//! Whether it pays to go ahead of walks: the engine's part of [`terrace_economics::walks`].
//!
//! There are two kinds of windows, each with its own evidence and its own answer ([`Kind`]). Of the
//! program's own pages what counts is those that lie in swap, by the page table. Pages of files, and memory
//! that processes share, do not look like that: of them all count that are not mapped.
//!
//! A page that was left out was asked for if the program faulted on it. One of the program's own was also if
//! it is in memory when the time is over: not all faults are told. A file's page may be mapped beside another
//! one, or read with it, so that its presence says nothing. Where no faults are told, there are no walks
//! either. As long as little is known, walks pay as a rule: the economist begins with 8 outcomes of which
//! 90 % were of use.
//!
//! The page that is left out before a chunk, so that a walk tells where it is, is no evidence. It lies behind
//! all of the chunk before: a walk that ends within that one would seem to have used nothing of it.

use std::collections::VecDeque;

use terrace_core::{Bytes, Heat, Nanos, Reason, TierId, Urgency};
use terrace_economics::walks::{self, Book, Counts, EVERY, GAP, PLACES, WAITED};
use terrace_sampler::pagemap::is;

use super::PAGE;
use super::books::{Room, SWAP};
use super::desk::{Desk, MAPPED};
use super::streams::MOST;
use super::world::World;

/// What the pages of a window are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The program's own, of which some lie in swap. The rest was never touched, or is there.
    Swapped,
    /// A file's, or memory that processes share: where they lie the page table does not say. Memory that was
    /// never touched looks alike; bringing that in does nothing.
    Mapped,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Swapped, Self::Mapped];

    /// Where the pages lie.
    fn tier(self) -> TierId {
        match self {
            Self::Swapped => SWAP,
            Self::Mapped => MAPPED,
        }
    }
}

/// A window of a walk, and what is known of its pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    process: u32,
    start: u64,
    end: u64,
    /// Pages that are in memory.
    present: u64,
    /// What the others are, and how many; `None` of those of which nothing is known.
    away: Option<(Kind, u64)>,
    /// The address of the page that is left out.
    leave: Option<u64>,
}

impl Window {
    /// A window of whose pages nothing is known.
    pub(super) fn of(process: u32, (start, end): (u64, u64)) -> Self {
        Self { process, start, end, present: 0, away: None, leave: None }
    }

    /// Whether all of it is in memory.
    pub(super) fn is_there(&self) -> bool {
        self.present * PAGE == self.end - self.start
    }

    /// What of it is not there, and has a price.
    pub(super) fn away(&self) -> Bytes {
        Bytes(self.away.map_or(0, |(_, pages)| pages) * PAGE)
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

/// What is counted of walks of one kind, and the answer that is obeyed there.
#[derive(Debug)]
struct Lane {
    kind: Kind,
    counts: Counts,
    /// The number of the page that is left out next.
    next: u64,
    /// Those that are waited for; the one that is waited for longest is the first.
    waiting: VecDeque<LeftOut>,
    book: Book,
    /// Whether the economist is against it.
    closed: bool,
}

impl Lane {
    fn new(kind: Kind) -> Self {
        let counts = Counts::default();
        Self {
            kind,
            counts,
            next: GAP.0,
            waiting: VecDeque::with_capacity(PLACES),
            book: Book::since(&counts, MOST as u32),
            closed: false,
        }
    }

    /// Walks ask for so many pages, which lie in these runs; the address of the one that is left out.
    fn ask(&mut self, pages: u64, runs: &[(u64, u64)]) -> Option<u64> {
        let before = self.counts.asked;
        self.counts.asked += pages;
        self.counts.windows += 1;
        let (n, next) = walks::left_out(before..self.counts.asked, self.next, self.counts.known)?;
        self.next = next;
        // Without a free place nothing would be learnt for the fault that it costs. Were others to give
        // way, those that are asked for late would count as not asked for.
        (self.waiting.len() < PLACES).then(|| page_of(runs, u64::from(n))).flatten()
    }

    /// So many pages have come, which took so much processor time.
    fn came(&mut self, pages: u64, took: Nanos) {
        self.counts.came += pages;
        self.counts.timed += pages;
        self.counts.timed_ns += took.get();
    }

    /// Whether a page was waited for on which a process has faulted.
    fn fault(&mut self, process: u32, page: u64) -> bool {
        let is_it = |left: &LeftOut| (left.process, left.page) == (process, page);
        let at = self.waiting.iter().position(is_it);
        if let Some(at) = at {
            self.waiting.remove(at);
            self.learn(true);
        }
        at.is_some()
    }

    /// No fault was told of a page that was left out.
    fn judge(&mut self, world: &mut dyn World, left: LeftOut) {
        let mut is_there = false;
        if self.kind == Kind::Swapped {
            // Of a process that has ended, nothing is there.
            let _ = world.content(left.process, left.page, left.page + PAGE, &mut |run| {
                is_there |= run.flags & is::PRESENT != 0;
            });
        }
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

    /// What bringing in one of these pages takes. Of the program's own that is measured elsewhere; of what
    /// comes from a file nobody knows it before some have come.
    fn each(&self) -> Option<Nanos> {
        let is_known = self.kind == Kind::Mapped && self.counts.timed > 0;
        is_known.then(|| Nanos(self.counts.timed_ns / self.counts.timed))
    }

    /// Asks the economist if walks have asked for anything; whether they have.
    fn look(&mut self, desk: &mut Desk, world: &mut dyn World, room: &Room) -> bool {
        let Some(question) = self.book.look(&self.counts, desk.clock()) else { return false };
        let telemetry = desk.telemetry(world, room, self.each());
        desk.became(&question.became, &telemetry);
        let why = (Urgency::Voluntary, Reason::WalksUsedMemory);
        let action = question.action(Some(self.kind.tier()));
        let proposal = desk.consider(world, action, Heat::default(), why, &telemetry);
        self.closed = proposal.is_none();
        self.book.answered(proposal);
        true
    }
}

/// What the engine counts of walks, and the answers that it obeys.
#[derive(Debug)]
pub(super) struct Pays {
    /// In the order of [`Kind::ALL`].
    lanes: [Lane; 2],
    /// Until when the economist is not asked.
    rest_until: Nanos,
}

impl Pays {
    pub(super) fn new() -> Self {
        Self { lanes: Kind::ALL.map(Lane::new), rest_until: Nanos::ZERO }
    }

    /// The books that a window is in, and how many of its pages are.
    fn lane(&mut self, window: &Window) -> Option<(&mut Lane, u64)> {
        let (kind, pages) = window.away?;
        Some((&mut self.lanes[kind as usize], pages))
    }

    /// Whether a window is not to come.
    pub(super) fn refuses(&self, window: &Window) -> bool {
        window.away.is_some_and(|(kind, _)| self.lanes[kind as usize].closed)
    }

    /// A walk asks for what lies between two addresses.
    pub(super) fn ask(
        &mut self,
        world: &mut dyn World,
        process: u32,
        (start, end): (u64, u64),
    ) -> Window {
        let mut window = Window::of(process, (start, end));
        // Those in swap, and those that are in neither.
        let (mut swapped, mut others) = (Vec::new(), Vec::new());
        let mut behind = start;
        let looked = world.content(process, start, end, &mut |run| {
            if run.flags & is::PRESENT != 0 {
                window.present += (run.end - run.start) / PAGE;
            } else if run.flags & is::SWAPPED != 0 {
                swapped.push((run.start, run.end));
            }
            if run.start > behind {
                others.push((behind, run.start));
            }
            behind = run.end;
        });
        if looked.is_err() {
            // It has ended, or may not be looked at.
            return Window::of(process, (start, end));
        }
        if behind < end {
            others.push((behind, end));
        }
        // Where some are in swap, the memory is the program's own.
        let (kind, runs) =
            if swapped.is_empty() { (Kind::Mapped, others) } else { (Kind::Swapped, swapped) };
        let pages: u64 = runs.iter().map(|(start, end)| (end - start) / PAGE).sum();
        if pages > 0 {
            window.away = Some((kind, pages));
            window.leave = self.lanes[kind as usize].ask(pages, &runs);
        }
        window
    }

    /// A window has come, which took so much processor time.
    pub(super) fn came(&mut self, world: &mut dyn World, window: &Window, took: Nanos) {
        if let Some((lane, pages)) = self.lane(window) {
            lane.came(pages - u64::from(window.leave.is_some()), took);
        }
        self.wait(world, window);
    }

    /// The page of a window that is left out is waited for: also where nothing else of it comes.
    pub(super) fn wait(&mut self, world: &mut dyn World, window: &Window) {
        if let (Some(page), Some((lane, _))) = (window.leave, self.lane(window)) {
            let since = world.now();
            lane.waiting.push_back(LeftOut { process: window.process, page, since });
        }
    }

    /// A process faulted at an address.
    pub(super) fn fault(&mut self, process: u32, address: u64) {
        let page = address & !(PAGE - 1);
        let _ = self.lanes.iter_mut().any(|lane| lane.fault(process, page));
    }

    /// Asks the economist if walks have asked for anything, and it is time.
    pub(super) fn look(&mut self, desk: &mut Desk, world: &mut dyn World, room: &Room) {
        let now = world.now();
        if now < self.rest_until {
            return;
        }
        for lane in &mut self.lanes {
            lane.expire(world, now);
            if lane.look(desk, world, room) {
                self.rest_until = now + EVERY;
            }
        }
    }

    /// The run is over: what came last is put down.
    pub(super) fn finish(&mut self, desk: &mut Desk, world: &mut dyn World, room: &Room) {
        for lane in &mut self.lanes {
            let became = lane.book.settle(&lane.counts, desk.clock());
            let telemetry = desk.telemetry(world, room, lane.each());
            desk.became(&became, &telemetry);
        }
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
