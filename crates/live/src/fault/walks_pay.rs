//! Whether it pays to go ahead of walks.
//!
//! Handlers bring pages in ahead of walks as long as the economist is for it. They do not ask it: that
//! would take a lock in the path of a fault. They count, and obey one flag. The manager asks, every
//! [`EVERY`] at most, for as many pages as walks have asked for since it asked last; the answer holds
//! until it asks again. Before the first answer, which is as far away as the manager's waking up,
//! they go ahead, as walks pay as a rule.
//!
//! What it is worth is seen by leaving pages out: of the pages that are to come, one in
//! [`GAP`] does not. If the program faults on it, it would have been of use, and so, by as much, are
//! the others; if it does not within [`WAITED`], the others are for nothing. While the economist is
//! against it, walks are followed all the same and single pages of them are waited for, so that it hears
//! when they have become better.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use terrace_core::{Abort, Action, Cycles, Nanos, Outcome, PageSize, Proposal, Reason};

use crate::decide::decider::COMPRESSED;
use crate::fault::streams::MOST;
use crate::pager::Pager;
use crate::sys;

/// One in so many pages is left out: at first, and once something is known. Each costs the program a
/// fault. No multiples of a window, or it would always be the same page of one.
const GAP: (u64, u64) = (61, 509);
/// So many that were left out are enough to leave out fewer.
const ENOUGH: u64 = 8;
/// Pages that are waited for at once.
const PLACES: usize = 16;
/// For how long (ns): what is used later would have had to leave in between where memory is short.
const WAITED: u64 = 1_000_000_000;
/// Outcomes that are remembered: a program changes what it does.
const MEMORY: u32 = 64;
/// One window in so many is timed: to ask for a thread's processor time is a system call.
const TIMED: u64 = 8;
/// The least time (ns) between two questions.
const EVERY: u64 = 50_000_000;

/// What a walk goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Pages that had left.
    Stored,
    /// Memory that was never touched.
    Fresh,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Stored, Self::Fresh];

    /// By whether the page is fresh that the program faults on.
    pub(crate) fn of(fresh: bool) -> Self {
        if fresh { Self::Fresh } else { Self::Stored }
    }
}

/// What handlers have counted of one kind, since the beginning.
#[derive(Debug)]
struct Tally {
    /// Pages that walks have asked for, and of those, the number of the next that is left out.
    asked: AtomicU64,
    next: AtomicU64,
    /// Pages that came, and at how many times.
    came: AtomicU64,
    windows: AtomicU64,
    /// Of those that were timed: pages, and processor time, ns.
    timed: AtomicU64,
    timed_ns: AtomicU64,
    /// Pages that were left out, of which it is known what came of it: those that were asked for, and
    /// those that were not. An outcome changes one of the two, so that nobody reads half of it.
    used: AtomicU64,
    unused: AtomicU64,
    /// Whether the economist is against it.
    closed: AtomicBool,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            asked: AtomicU64::new(0),
            next: AtomicU64::new(GAP.0),
            came: AtomicU64::new(0),
            windows: AtomicU64::new(0),
            timed: AtomicU64::new(0),
            timed_ns: AtomicU64::new(0),
            used: AtomicU64::new(0),
            unused: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        }
    }
}

/// A page that was left out: present 1 bit, kind 1, region 30, page 32; 0 is none.
fn name(kind: Kind, region: u32, page: u32) -> u64 {
    let kind = u64::from(kind == Kind::Fresh);
    1 << 63 | kind << 62 | u64::from(region & 0x3fff_ffff) << 32 | u64::from(page)
}

/// A page that is waited for.
#[derive(Debug, Default)]
struct LeftOut {
    name: AtomicU64,
    /// Since when, ns.
    since: AtomicU64,
}

impl LeftOut {
    fn is_free(&self) -> bool {
        self.name.load(Relaxed) == 0
    }
}

/// What handlers count and obey.
#[derive(Debug, Default)]
pub(crate) struct WalksPay {
    tallies: [Tally; 2],
    places: [LeftOut; PLACES],
    /// How many of them are in use: mostly none, and no fault is to look at them then.
    waiting: AtomicU64,
}

impl WalksPay {
    fn tally(&self, kind: Kind) -> &Tally {
        &self.tallies[kind as usize]
    }

    /// Whether pages are to come ahead.
    pub(crate) fn is_open(&self, kind: Kind) -> bool {
        !self.tally(kind).closed.load(Relaxed)
    }

    /// A walk asks for so many pages. Which of them is to be left out, counted from 0, and whether
    /// they are the first ever.
    pub(crate) fn ask(&self, kind: Kind, pages: u32) -> (Option<u32>, bool) {
        let tally = self.tally(kind);
        let before = tally.asked.fetch_add(u64::from(pages), Relaxed);
        let next = tally.next.load(Relaxed).max(before);
        if next >= before + u64::from(pages) {
            return (None, before == 0);
        }
        let known = tally.used.load(Relaxed) + tally.unused.load(Relaxed);
        let gap = if known < ENOUGH { GAP.0 } else { GAP.1 };
        tally.next.store(next + gap, Relaxed);
        // It would cost the program a fault, and nothing would be learnt.
        if !self.places.iter().any(LeftOut::is_free) {
            return (None, before == 0);
        }
        (Some((next - before) as u32), before == 0)
    }

    /// A page of a walk does not come, to see whether it is asked for. Without a free place it is not
    /// waited for, and counts as nothing. None that is waited for gives way to it: in a fast walk each
    /// would, before [`WAITED`] is over, and only those would be known that were asked for.
    pub(crate) fn leave_out(&self, kind: Kind, region: u32, page: u32) {
        let now = sys::now();
        let name = name(kind, region, page);
        for place in self.places.iter().filter(|place| place.is_free()) {
            place.since.store(now, Relaxed);
            // Another handler may have taken it meanwhile.
            if place.name.compare_exchange(0, name, AcqRel, Relaxed).is_ok() {
                self.waiting.fetch_add(1, Relaxed);
                return;
            }
        }
    }

    /// The program faults on a page: whether it is one that was left out.
    pub(crate) fn is_left_out(&self, region: u32, page: u32) -> bool {
        if self.waiting.load(Relaxed) == 0 {
            return false;
        }
        for kind in Kind::ALL {
            let name = name(kind, region, page);
            for place in &self.places {
                let took = || place.name.compare_exchange(name, 0, AcqRel, Relaxed).is_ok();
                if place.name.load(Relaxed) == name && took() {
                    self.waiting.fetch_sub(1, Relaxed);
                    self.judge(name, true);
                    return true;
                }
            }
        }
        false
    }

    /// What came of a page that was left out is known.
    fn judge(&self, name: u64, used: bool) {
        let tally = self.tally(Kind::of((name >> 62) & 1 != 0));
        let outcomes = if used { &tally.used } else { &tally.unused };
        outcomes.fetch_add(1, Relaxed);
    }

    /// What was waited for for long enough was not asked for.
    fn expire(&self, now: u64) {
        for place in &self.places {
            let name = place.name.load(Relaxed);
            if name != 0
                && now.saturating_sub(place.since.load(Relaxed)) >= WAITED
                && place.name.compare_exchange(name, 0, AcqRel, Relaxed).is_ok()
            {
                self.waiting.fetch_sub(1, Relaxed);
                self.judge(name, false);
            }
        }
    }

    /// A window is brought in: whether it is to be timed.
    pub(crate) fn begins_window(&self, kind: Kind) -> bool {
        self.tally(kind).windows.fetch_add(1, Relaxed).is_multiple_of(TIMED)
    }

    /// So many pages of it came, and took so much processor time if it was timed.
    pub(crate) fn came(&self, kind: Kind, pages: u32, took: Option<Nanos>) {
        let tally = self.tally(kind);
        tally.came.fetch_add(u64::from(pages), Relaxed);
        if let Some(took) = took {
            tally.timed.fetch_add(u64::from(pages), Relaxed);
            tally.timed_ns.fetch_add(took.get(), Relaxed);
        }
    }
}

/// The counts of one kind at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    asked: u64,
    came: u64,
    windows: u64,
    timed: u64,
    timed_ns: u64,
    known: u64,
    used: u64,
}

impl Counts {
    fn of(tally: &Tally) -> Self {
        let of = |count: &AtomicU64| count.load(Relaxed);
        let used = of(&tally.used);
        Self {
            asked: of(&tally.asked),
            came: of(&tally.came),
            windows: of(&tally.windows),
            timed: of(&tally.timed),
            timed_ns: of(&tally.timed_ns),
            known: used + of(&tally.unused),
            used,
        }
    }

    /// What so many pages took, by those that were timed.
    fn time_of(&self, pages: u64) -> Nanos {
        let each = self.timed_ns as f64 / self.timed.max(1) as f64;
        Nanos::from_f64(each * pages as f64)
    }
}

/// What the manager remembers of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// Pages that were asked for, and windows, when it asked last.
    pages: u64,
    windows: u64,
    /// How many pages came at once when some came last.
    window: u32,
    /// Pages that came and are in the accounts.
    settled: u64,
    /// Outcomes that are in `evidence`.
    known: u64,
    used: u64,
    /// Of so many pages that were left out of late, so many were asked for: used, known.
    evidence: (u32, u32),
    /// What came, and what it cost, since something was known of what was left out.
    unjudged: (u64, Cycles),
    /// What the economist has let pass.
    proposal: Option<Proposal>,
}

impl Asked {
    /// What is there already is not new.
    fn since(counts: &Counts) -> Self {
        let share = counts.used as f64 / counts.known.max(1) as f64;
        let known = counts.known.min(u64::from(MEMORY)) as u32;
        Self {
            pages: counts.asked,
            windows: counts.windows,
            window: window_of(counts.asked, counts.windows).unwrap_or(MOST as u32),
            settled: counts.came,
            known: counts.known,
            used: counts.used,
            evidence: ((share * f64::from(known)).round() as u32, known),
            ..Self::default()
        }
    }

    /// Takes in what became of pages that were left out: of how many, and how many were asked for.
    fn learn(&mut self, counts: &Counts) -> (u64, u64) {
        let (used, known) = (counts.used - self.used, counts.known - self.known);
        (self.used, self.known) = (counts.used, counts.known);
        let (good, all) = &mut self.evidence;
        *all = all.saturating_add(known as u32);
        *good = good.saturating_add(used as u32).min(*all);
        while *all > MEMORY {
            (*good, *all) = (*good / 2, *all / 2);
        }
        (used, known)
    }
}

/// How many pages come at once if so many were asked for at so many times; `None` if none came. Walks that
/// are not gone ahead of ask for each page alone, and may be among them.
fn window_of(pages: u64, windows: u64) -> Option<u32> {
    let each = pages.checked_div(windows)?;
    Some(each.clamp(1, MOST as u64) as u32)
}

/// Asks the economist. The manager's.
pub(crate) struct Asker {
    kinds: [Asked; 2],
    /// Until when (ns) it does not ask.
    rest_until: u64,
}

impl Asker {
    /// Nothing is asked yet.
    pub(crate) fn new(pager: &Pager) -> Self {
        let of = |kind| Asked::since(&Counts::of(pager.fault.pays.tally(kind)));
        Self { kinds: Kind::ALL.map(of), rest_until: 0 }
    }

    /// Asks if there is something to ask about, and it is time.
    pub(crate) fn look(&mut self, pager: &Pager) {
        let now = sys::now();
        if now < self.rest_until || pager.freeze.is_on() {
            return;
        }
        pager.fault.pays.expire(now);
        for kind in Kind::ALL {
            if self.ask(pager, kind) {
                self.rest_until = now + EVERY;
            }
        }
    }

    /// False if no walk has asked for anything.
    fn ask(&mut self, pager: &Pager, kind: Kind) -> bool {
        let tally = pager.fault.pays.tally(kind);
        let counts = Counts::of(tally);
        let book = &mut self.kinds[kind as usize];
        let pages = counts.asked - book.pages;
        if pages == 0 {
            return false;
        }
        if let Some(window) = window_of(pages, counts.windows - book.windows) {
            book.window = window;
        }
        (book.pages, book.windows) = (counts.asked, counts.windows);
        let (used, known) = book.learn(&counts);
        let mut decider = pager.decide.decider.lock();
        if let Some(proposal) = book.proposal.take() {
            let came = counts.came - book.settled;
            book.settled = counts.came;
            let cost = pager.clock.cycles(counts.time_of(came));
            let moved = PageSize::Base.bytes() * came;
            let done = Outcome::Completed { cost, moved };
            let outcome = if came == 0 { Outcome::Aborted(Abort::NoMemory) } else { done };
            decider.carried_out(pager, proposal, outcome);
            book.unjudged = (book.unjudged.0 + came, book.unjudged.1 + cost);
        }
        if known > 0 {
            let share = used as f64 / known as f64;
            let (came, cost) = core::mem::take(&mut book.unjudged);
            let cost = Cycles::from_f64(cost.as_f64() * share);
            decider.walked_into(pager.stats(), came as f64 * share, cost);
        }
        let (from, reason) = match kind {
            Kind::Stored => (Some(COMPRESSED), Reason::WalksUsedMemory),
            Kind::Fresh => (None, Reason::WalksFreshMemory),
        };
        let (used, known) = book.evidence;
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let action = Action::Prefetch { from, pages, window: book.window, used, known };
        book.proposal = decider.prefetch(pager, action, reason);
        tally.closed.store(book.proposal.is_none(), Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::ActionClass;
    use terrace_economics::Mode;

    use super::*;
    use crate::pager::fixture::configured;

    const REGION: u32 = 7;

    fn outcomes(pays: &WalksPay, kind: Kind) -> (u64, u64) {
        let counts = Counts::of(pays.tally(kind));
        (counts.used, counts.known)
    }

    /// A pager whose pages take 2 µs to unpack.
    fn pager() -> &'static Pager {
        let pager = configured(64, |config| config.economist = Mode::Enforce);
        let counters = &pager.stats().counters;
        counters.decompressed.store(1000, Relaxed);
        counters.decompress_ns.store(2_000_000, Relaxed);
        pager
    }

    /// So many pages are left out, and none of them is asked for.
    fn waste(pays: &WalksPay, kind: Kind, pages: u32) {
        for page in 0..pages {
            pays.leave_out(kind, REGION, page);
            pays.expire(sys::now() + 2 * WAITED);
        }
    }

    #[test]
    fn one_page_in_so_many_is_left_out_and_not_always_the_same_of_a_window() {
        let pays = WalksPay::default();
        let mut left_out = Vec::new();
        for window in 0..2000 {
            let (page, first) = pays.ask(Kind::Stored, 32);
            assert_eq!(first, window == 0);
            left_out.extend(page);
            // What came of the first ones is known.
            if page.is_some() && left_out.len() <= ENOUGH as usize {
                pays.judge(name(Kind::Stored, REGION, 1), true);
            }
        }
        assert!(left_out.iter().all(|&page| page < 32));
        let pages = 2000 * 32;
        let most = ENOUGH + pages / GAP.1 + 2;
        assert!((pages / GAP.1..most).contains(&(left_out.len() as u64)), "{}", left_out.len());
        let kinds: std::collections::BTreeSet<_> = left_out.iter().collect();
        assert!(kinds.len() > 16, "{kinds:?}");
        assert_eq!(pays.ask(Kind::Fresh, 4), (None, true), "each kind for itself");
    }

    #[test]
    fn a_page_that_is_asked_for_was_of_use_and_one_that_is_not_in_time_was_not() {
        let pays = WalksPay::default();
        assert!(!pays.is_left_out(REGION, 5));
        pays.leave_out(Kind::Stored, REGION, 5);
        pays.leave_out(Kind::Fresh, REGION, 6);
        assert!(!pays.is_left_out(REGION + 1, 5), "another region's");
        assert!(pays.is_left_out(REGION, 5));
        assert!(!pays.is_left_out(REGION, 5), "once");
        assert_eq!(outcomes(&pays, Kind::Stored), (1, 1));
        pays.expire(sys::now());
        assert_eq!(outcomes(&pays, Kind::Fresh), (0, 0), "it may still be");
        pays.expire(sys::now() + 2 * WAITED);
        assert_eq!(outcomes(&pays, Kind::Fresh), (0, 1));
        assert_eq!(pays.waiting.load(Relaxed), 0);
    }

    /// If others gave way to it, what is asked for at once would be all that is ever known.
    #[test]
    fn a_page_that_no_place_is_free_for_is_not_left_out_and_says_nothing() {
        let pays = WalksPay::default();
        for page in 0..PLACES as u32 + 3 {
            pays.leave_out(Kind::Stored, REGION, page);
        }
        assert_eq!(outcomes(&pays, Kind::Stored), (0, 0), "nothing is known of any");
        assert_eq!(pays.waiting.load(Relaxed), PLACES as u64);
        assert!(!pays.is_left_out(REGION, PLACES as u32), "it is not waited for");
        let left_out = || (0..2 * GAP.1).find_map(|_| pays.ask(Kind::Stored, 1).0);
        assert_eq!(left_out(), None);
        assert!(pays.is_left_out(REGION, 0), "the first ones are still waited for");
        assert_eq!(outcomes(&pays, Kind::Stored), (1, 1));
        assert_eq!(left_out(), Some(0));
        pays.expire(sys::now() + 2 * WAITED);
        assert_eq!(outcomes(&pays, Kind::Stored), (1, PLACES as u64));
        assert_eq!(pays.waiting.load(Relaxed), 0);
    }

    /// Handlers count while the manager reads.
    #[test]
    fn no_half_of_an_outcome_is_seen() {
        let pays = WalksPay::default();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    pays.judge(name(Kind::Stored, REGION, 1), true);
                }
                ended.store(true, Release);
            });
            while !ended.load(Acquire) {
                let (used, known) = outcomes(&pays, Kind::Stored);
                assert_eq!(used, known, "all were asked for");
            }
        });
    }

    /// The whole round: asked at once, settled with what came, refused when it is for nothing, and let
    /// pass again when it is not.
    #[test]
    fn walks_that_waste_are_not_gone_ahead_of_until_they_are_better() {
        let pager = pager();
        let pays = &pager.fault.pays;
        let class = &pager.stats().classes[ActionClass::Prefetch.index()];
        let seen = || [&class.proposed, &class.vetoed, &class.completed].map(|n| n.load(Relaxed));
        let mut asker = Asker::new(pager);
        let mut look = || {
            asker.rest_until = 0;
            asker.look(pager);
        };
        look();
        assert_eq!(seen(), [0, 0, 0], "no walk, no question");

        let walk = |kind, windows| {
            for _ in 0..windows {
                pays.ask(kind, 32);
                let took = pays.begins_window(kind).then_some(Nanos::micros(80));
                pays.came(kind, 32, took);
            }
        };
        walk(Kind::Stored, 3);
        look();
        assert_eq!(seen(), [1, 0, 0]);
        assert!(pays.is_open(Kind::Stored), "nothing speaks against it");
        {
            let decider = pager.decide.decider.lock();
            let decision = decider.brain().decisions().last().expect("just decided");
            let wanted = Action::Prefetch {
                from: Some(COMPRESSED),
                pages: 96,
                window: 32,
                used: 0,
                known: 0,
            };
            assert_eq!(decision.action, wanted);
        }
        // What came before the first answer is settled with what came after it.
        walk(Kind::Stored, 2);
        look();
        assert_eq!(seen(), [2, 0, 1]);
        let cost = class.realised_cost.load(Relaxed);
        let each = pager.clock.cycles(Nanos::micros(80)).get();
        assert!(cost.abs_diff(5 * each) <= 5, "{cost} of 5 x {each}");

        waste(pays, Kind::Stored, MEMORY);
        walk(Kind::Stored, 1);
        walk(Kind::Fresh, 1);
        look();
        assert!(!pays.is_open(Kind::Stored), "all for nothing");
        assert!(pays.is_open(Kind::Fresh), "of other memory nothing is known");
        assert_eq!(class.realised_benefit.load(Relaxed), 0);

        for page in 0..2 * MEMORY {
            pays.leave_out(Kind::Stored, REGION, page);
            assert!(pays.is_left_out(REGION, page));
        }
        pays.ask(Kind::Stored, 32);
        look();
        assert!(pays.is_open(Kind::Stored), "they go on now");
    }

    /// While nothing is brought in each page of a walk is asked for alone. How many would come at once
    /// is what did before: the calls that this takes are a part of the price.
    #[test]
    fn while_nothing_comes_as_many_would_come_at_once_as_did_before() {
        let pager = pager();
        let pays = &pager.fault.pays;
        let mut asker = Asker::new(pager);
        let mut asked = || {
            asker.rest_until = 0;
            asker.look(pager);
            let decider = pager.decide.decider.lock();
            let action = decider.brain().decisions().last().map(|decision| decision.action);
            match action {
                Some(Action::Prefetch { pages, window, .. }) => (pages, window),
                other => panic!("{other:?}"),
            }
        };
        pays.ask(Kind::Stored, 8);
        assert_eq!(asked(), (8, MOST as u32), "nothing came so far");
        for _ in 0..4 {
            pays.ask(Kind::Stored, 16);
            pays.begins_window(Kind::Stored);
            pays.came(Kind::Stored, 16, None);
        }
        assert_eq!(asked(), (64, 16));
        for _ in 0..1000 {
            pays.ask(Kind::Stored, 1);
        }
        assert_eq!(asked(), (1000, 16));
    }

    #[test]
    fn pages_that_are_asked_for_are_what_it_has_brought() {
        let pager = pager();
        let pays = &pager.fault.pays;
        let class = &pager.stats().classes[ActionClass::Prefetch.index()];
        let mut asker = Asker::new(pager);
        for _ in 0..3 {
            pays.ask(Kind::Stored, 32);
            pays.begins_window(Kind::Stored);
            pays.came(Kind::Stored, 32, Some(Nanos::micros(64)));
            pays.leave_out(Kind::Stored, REGION, 1);
            assert!(pays.is_left_out(REGION, 1));
            asker.rest_until = 0;
            asker.look(pager);
        }
        let brought = class.realised_benefit.load(Relaxed);
        let fault = {
            let decider = pager.decide.decider.lock();
            let calibration = *decider.brain().economist().calibration();
            calibration.clock.cycles(calibration.user_fault).get()
        };
        assert!(brought >= 64 * fault, "{brought}: 64 faults of {fault} at least");
    }
}
