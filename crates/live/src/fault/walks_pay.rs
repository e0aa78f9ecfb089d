//! Whether it pays to go ahead of walks.
//!
//! Handlers bring pages in ahead of walks as long as the economist is for it. They do not ask it: that
//! would take a lock in the path of a fault. They count, and obey one flag. The manager asks, and keeps the
//! books ([`terrace_economics::walks`], which says how evidence comes about). Before the first answer, which
//! is as far away as the manager's waking up, they go ahead, as walks pay as a rule.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use terrace_core::{Nanos, Reason};
use terrace_economics::walks::{self, Book, Counts, GAP, PLACES};

use crate::decide::decider::COMPRESSED;
use crate::fault::streams::MOST;
use crate::pager::Pager;
use crate::sys;

/// For how long a page is waited for, ns.
const WAITED: u64 = walks::WAITED.get();
/// One window in so many is timed: to ask for a thread's processor time is a system call.
const TIMED: u64 = 8;
/// The least time (ns) between two questions.
const EVERY: u64 = walks::EVERY.get();

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

impl Tally {
    fn counts(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Relaxed);
        let used = of(&self.used);
        Counts {
            asked: of(&self.asked),
            windows: of(&self.windows),
            came: of(&self.came),
            timed: of(&self.timed),
            timed_ns: of(&self.timed_ns),
            known: used + of(&self.unused),
            used,
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
        let asked = before..before + u64::from(pages);
        let known = tally.used.load(Relaxed) + tally.unused.load(Relaxed);
        let left = walks::left_out(asked, tally.next.load(Relaxed), known);
        if let Some((_, next)) = left {
            tally.next.store(next, Relaxed);
        }
        // Without a free place it would cost the program a fault, and nothing would be learnt.
        let left = left.filter(|_| self.places.iter().any(LeftOut::is_free));
        (left.map(|(page, _)| page), before == 0)
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

/// Asks the economist. The manager's.
pub(crate) struct Asker {
    kinds: [Book; 2],
    /// Until when (ns) it does not ask.
    rest_until: u64,
}

impl Asker {
    /// Nothing is asked yet.
    pub(crate) fn new(pager: &Pager) -> Self {
        let of = |kind| Book::since(&pager.fault.pays.tally(kind).counts(), MOST as u32);
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
        let book = &mut self.kinds[kind as usize];
        let Some(question) = book.look(&tally.counts(), pager.clock) else { return false };
        let mut decider = pager.decide.decider.lock();
        decider.walked(pager, &question.became);
        let (from, reason) = match kind {
            Kind::Stored => (Some(COMPRESSED), Reason::WalksUsedMemory),
            Kind::Fresh => (None, Reason::WalksFreshMemory),
        };
        let proposal = decider.prefetch(pager, question.action(from), reason);
        tally.closed.store(proposal.is_none(), Relaxed);
        book.answered(proposal);
        true
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::{Action, ActionClass};
    use terrace_economics::Mode;
    use terrace_economics::walks::{ENOUGH, MEMORY};

    use super::*;
    use crate::pager::fixture::configured;

    const REGION: u32 = 7;

    fn outcomes(pays: &WalksPay, kind: Kind) -> (u64, u64) {
        let counts = pays.tally(kind).counts();
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
        // Nothing was known of the first, but that walks are followed to their end as a rule.
        let without = [&class.held_out_predicted, &class.held_out_observed];
        let without = without.map(|n| n.load(Relaxed));
        assert!(without[0] > 0 && without[0] < without[1], "{without:?}");
    }
}
