//! The books of a world that goes ahead of walks: from what it counts to what the economist is asked.
//!
//! What it is worth to bring pages in ahead of a walk is seen by leaving pages out: of the pages that are
//! to come, one in [`GAP`] does not. If the program faults on it, it would have been of use, and so, by as
//! much, are the others; if it does not within [`WAITED`], the others are for nothing.
//!
//! A world counts ([`Counts`]), asks every [`EVERY`] at most, for as many pages as walks have asked for
//! since it asked last, and obeys the answer until it asks again ([`Book`]). Before the first answer it goes
//! ahead, as walks pay as a rule. While the economist is against it, walks are followed all the same and
//! single pages of them are waited for, so that it hears when they have become better.

use core::ops::Range;

use terrace_core::{Abort, Action, Cycles, Frequency, Nanos, Outcome, PageSize, Proposal, TierId};

/// One in so many pages is left out: at first, and once something is known. Each costs the program a
/// fault. No multiples of a window, or it would always be the same page of one.
pub const GAP: (u64, u64) = (61, 509);
/// So many that were left out are enough to leave out fewer.
pub const ENOUGH: u64 = 8;
/// Pages that are waited for at once. While all places are taken none is left out.
pub const PLACES: usize = 16;
/// For how long: what is used later would have had to leave in between where memory is short.
pub const WAITED: Nanos = Nanos::SECOND;
/// Outcomes that are remembered: a program changes what it does.
pub const MEMORY: u32 = 64;
/// The least time between two questions.
pub const EVERY: Nanos = Nanos::millis(50);

/// Walks ask for pages, which are numbered since the beginning. Which of them is left out, counted from
/// the first of them, and the number of the next one. The one with the number `next` is due, and it is known
/// what came of `known` others.
pub fn left_out(asked: Range<u64>, next: u64, known: u64) -> Option<(u32, u64)> {
    let next = next.max(asked.start);
    let gap = if known < ENOUGH { GAP.0 } else { GAP.1 };
    asked.contains(&next).then(|| ((next - asked.start) as u32, next + gap))
}

/// What a world has counted since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages that walks have asked for, whether they came or not.
    pub asked: u64,
    /// At how many times they did.
    pub windows: u64,
    /// Pages that came.
    pub came: u64,
    /// Pages of these that were timed.
    pub timed: u64,
    /// Processor time that those took, ns.
    pub timed_ns: u64,
    /// Pages that were left out, of which it is known what came of it.
    pub known: u64,
    /// Pages of these that were asked for.
    pub used: u64,
}

impl Counts {
    /// What so many pages took, by those that were timed.
    fn time_of(&self, pages: u64) -> Nanos {
        let each = self.timed_ns as f64 / self.timed.max(1) as f64;
        Nanos::from_f64(each * pages as f64)
    }
}

/// What has become of walks since the economist was asked last. It is told before it is asked again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Became {
    /// What it had let pass, and what came of it.
    pub ended: Option<(Proposal, Outcome)>,
    /// Of pages that came, so many were asked for, as far as can be told by those that were left out;
    /// bringing those in has cost so much.
    pub brought: Option<(f64, Cycles)>,
    /// Those that were left out, as far as something has become known of any.
    pub left_out: Option<LeftOut>,
}

/// Pages that were left out to see what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// So many of those were asked for.
    pub used: u64,
    /// It is known of so many.
    pub known: u64,
    /// What was known before: so many were asked for, of so many.
    pub before: (u32, u32),
}

/// What the economist is to be asked about.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    pages: u32,
    window: u32,
    used: u32,
    known: u32,
    /// What it is to be told first.
    pub became: Became,
}

impl Question {
    /// The action, for pages that lie there; nowhere if they come as zeros.
    pub fn action(&self, from: Option<TierId>) -> Action {
        let Self { pages, window, used, known, .. } = *self;
        Action::Prefetch { from, pages, window, used, known }
    }
}

/// What a world remembers of walks from one question to the next.
#[derive(Clone, Copy, Debug)]
pub struct Book {
    /// The most pages that come at once.
    most: u32,
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

impl Book {
    /// What is counted already is not new. At most `most` pages come at once.
    pub fn since(counts: &Counts, most: u32) -> Self {
        let most = most.max(1);
        let share = counts.used as f64 / counts.known.max(1) as f64;
        let known = counts.known.min(u64::from(MEMORY)) as u32;
        Self {
            most,
            pages: counts.asked,
            windows: counts.windows,
            window: window_of(counts.asked, counts.windows, most).unwrap_or(most),
            settled: counts.came,
            known: counts.known,
            used: counts.used,
            evidence: ((share * f64::from(known)).round() as u32, known),
            unjudged: (0, Cycles::ZERO),
            proposal: None,
        }
    }

    /// Takes in what was counted since the last question, and says what to ask about now; `None` if no
    /// walk has asked for anything. The answer goes to [`Book::answered`].
    pub fn look(&mut self, counts: &Counts, clock: Frequency) -> Option<Question> {
        let pages = counts.asked - self.pages;
        if pages == 0 {
            return None;
        }
        if let Some(window) = window_of(pages, counts.windows - self.windows, self.most) {
            self.window = window;
        }
        (self.pages, self.windows) = (counts.asked, counts.windows);
        let became = self.settle(counts, clock);
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let (used, known) = self.evidence;
        Some(Question { pages, window: self.window, used, known, became })
    }

    /// Takes in what has become of walks, without a question: for the end of a run, whose last pages
    /// would be in no account.
    pub fn settle(&mut self, counts: &Counts, clock: Frequency) -> Became {
        let before = self.evidence;
        let (used, known) = self.learn(counts);
        let left_out = (known > 0).then_some(LeftOut { used, known, before });
        let ended = self.proposal.take().map(|proposal| {
            let came = counts.came - self.settled;
            self.settled = counts.came;
            let cost = clock.cycles(counts.time_of(came));
            self.unjudged = (self.unjudged.0 + came, self.unjudged.1 + cost);
            let moved = PageSize::Base.bytes() * came;
            let done = Outcome::Completed { cost, moved };
            (proposal, if came == 0 { Outcome::Aborted(Abort::NoMemory) } else { done })
        });
        let brought = (known > 0).then(|| {
            let share = used as f64 / known as f64;
            let (came, cost) = core::mem::take(&mut self.unjudged);
            (came as f64 * share, Cycles::from_f64(cost.as_f64() * share))
        });
        Became { ended, brought, left_out }
    }

    /// The economist has answered: with the proposal if it lets that pass.
    pub fn answered(&mut self, proposal: Option<Proposal>) {
        self.proposal = proposal;
    }

    /// Takes in what became of pages that were left out: how many were asked for, and of how many.
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
/// are not gone ahead of may ask for each page alone, and be among them.
fn window_of(pages: u64, windows: u64, most: u32) -> Option<u32> {
    let each = pages.checked_div(windows)?;
    Some(each.clamp(1, u64::from(most)) as u32)
}

#[cfg(test)]
mod tests {
    use terrace_core::{Heat, OpId, Reason, Urgency};

    use super::*;

    const CLOCK: Frequency = Frequency::ghz(1.0);

    fn proposal(action: Action) -> Proposal {
        Proposal {
            op: OpId(1),
            action,
            page_size: PageSize::Base,
            heat: Heat::default(),
            victim_heat: Heat::default(),
            urgency: Urgency::Voluntary,
            reason: Reason::WalksUsedMemory,
        }
    }

    #[test]
    fn pages_are_left_out_more_rarely_once_something_is_known() {
        assert_eq!(left_out(0..GAP.0, GAP.0, 0), None);
        assert_eq!(left_out(32..64, GAP.0, 0), Some((29, 2 * GAP.0)));
        assert_eq!(left_out(32..64, GAP.0, ENOUGH), Some((29, GAP.0 + GAP.1)));
        // Where another handler has asked meanwhile, the first of these is.
        assert_eq!(left_out(100..132, GAP.0, 0), Some((0, 100 + GAP.0)));
        assert_eq!(left_out(100..100, GAP.0, 0), None, "nothing is asked for");
    }

    #[test]
    fn a_question_is_about_what_walks_asked_for_since_the_last_one() {
        let mut counts = Counts { asked: 64, windows: 2, ..Counts::default() };
        let mut book = Book::since(&Counts::default(), 32);
        assert!(book.look(&Counts::default(), CLOCK).is_none(), "no walk, no question");
        let question = book.look(&counts, CLOCK).expect("a walk");
        let from = Some(TierId(1));
        let wanted = Action::Prefetch { from, pages: 64, window: 32, used: 0, known: 0 };
        assert_eq!(question.action(from), wanted);
        assert!(question.became.ended.is_none() && question.became.brought.is_none());
        book.answered(Some(proposal(wanted)));

        // 2 µs each, by half of them, which are half of what came; and three of four were asked for.
        counts.asked += 8;
        counts.windows += 1;
        (counts.came, counts.timed, counts.timed_ns) = (40, 20, 40_000);
        (counts.known, counts.used) = (4, 3);
        let question = book.look(&counts, CLOCK).expect("a walk");
        let wanted = Action::Prefetch { from: None, pages: 8, window: 8, used: 3, known: 4 };
        assert_eq!(question.action(None), wanted);
        let (_, outcome) = question.became.ended.expect("it was let pass");
        let moved = PageSize::Base.bytes() * 40;
        assert_eq!(outcome, Outcome::Completed { cost: Cycles(80_000), moved });
        let (used, cost) = question.became.brought.expect("something is known");
        assert!((used - 30.0).abs() < 1e-9 && cost == Cycles(60_000), "{used} {cost}");
        let left_out = LeftOut { used: 3, known: 4, before: (0, 0) };
        assert_eq!(question.became.left_out, Some(left_out));
        assert!(book.look(&counts, CLOCK).is_none(), "nothing is new");
    }

    /// What was let pass and came to nothing is no success; and the end of a run is no question.
    #[test]
    fn what_is_under_way_at_the_end_is_in_the_accounts() {
        let mut counts = Counts { asked: 64, windows: 2, ..Counts::default() };
        let mut book = Book::since(&Counts::default(), 32);
        let settled = |book: &mut Book, counts: &Counts| book.settle(counts, CLOCK).ended;
        assert!(settled(&mut book, &counts).is_none(), "nothing was let pass");
        for came in [0, 64] {
            let question = book.look(&counts, CLOCK).expect("a walk");
            book.answered(Some(proposal(question.action(None))));
            counts.came += came;
            let (_, outcome) = settled(&mut book, &counts).expect("it was let pass");
            assert_eq!(matches!(outcome, Outcome::Completed { .. }), came > 0, "{outcome:?}");
            counts.asked += 64;
        }
    }

    /// A program changes what it does.
    #[test]
    fn what_is_long_ago_is_forgotten() {
        let mut counts = Counts { asked: 1, windows: 1, known: 60, ..Counts::default() };
        let mut book = Book::since(&Counts::default(), 32);
        book.look(&counts, CLOCK);
        (counts.asked, counts.known, counts.used) = (2, 120, 60);
        match book.look(&counts, CLOCK).map(|question| question.action(None)) {
            Some(Action::Prefetch { used, known, .. }) => {
                assert_eq!((used, known), (30, 60), "half of them, as all that there were");
            }
            other => panic!("{other:?}"),
        }
        counts.known += 1000;
        counts.asked += 1;
        let evidence = match book.look(&counts, CLOCK).map(|question| question.action(None)) {
            Some(Action::Prefetch { used, known, .. }) => (used, known),
            other => panic!("{other:?}"),
        };
        assert!(evidence.0 <= 1 && evidence.1 <= MEMORY, "{evidence:?}");
    }
}
