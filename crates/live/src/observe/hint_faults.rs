//! Hint faults: pages that are made to fault at their next touch, to see whether they are
//! in use, within what observing may cost.
//!
//! Which pages is for the policy to say ([`Action::Arm`], [`Action::Scan`]). One that wants
//! samples and says nothing of where from gets them of random pages. How many follows from
//! what they really cost, see [`Pace`].
//!
//! There are no accessed bits to be read here, so a range that is to be scanned is armed: what
//! is touched within [`ARMED_FOR`] comes as a sample before the outcome, as from a
//! scan, and the rest has not been in use. A large range takes many ticks. Its policy
//! waits for the outcome.

use core::sync::atomic::Ordering::*;
use std::collections::VecDeque;

use terrace_core::{
    Abort, Action, Bytes, Cycles, Done, Nanos, Outcome, PageNo, PageRange, PageRef, Proposal,
    RegionId, Xorshift,
};
use terrace_sampler::Governor;

use crate::decide::notes::Note;
use crate::evict::pinned_pages::PINNED;
use crate::evict::staging::{NOBODY, Purpose, StagingRing, owner};
use crate::space::page_state::PageState;
use crate::space::regions::Place;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// What arming a page and the fault at its touch take together, as long as nothing is
/// measured: `bench/mechanisms`.
const USUAL: Nanos = Nanos::micros(15);
/// Pages whose mean cost is believed.
const ENOUGH: u64 = 64;
/// What is saved up for later is what so long a time allows: two of the manager's ticks. More
/// would become a burst of faults after the program was idle.
const SAVED: Nanos = Nanos::millis(20);

/// Ranges that wait to be looked at, at most; and that have been, and wait for touches.
const RANGES: usize = 1024;
/// Page words read in one step at most: a range may hold few resident pages.
const WORDS: u32 = 4096;
/// Pages armed in one step at most, whatever the cap: whoever needs room waits for the lock.
const MOST: u32 = 256;
/// Random pages tried for each that is wanted.
const TRIES: u32 = 4;

/// How many pages may be made to fault, so that what observing really costs stays below
/// the cap.
///
/// Two means: pages are armed as often as the cap divided by their mean cost allows; and what was
/// spent beyond the cap is a debt that the governor has paid off first, since
/// faults come after the arming, and may cost more than those before.
#[derive(Debug)]
pub struct Pace {
    /// The cap as it was asked for: the governor's own may not be as small.
    cap: f64,
    governor: Governor,
    /// What a page is expected to cost, ns.
    each: f64,
    /// What may be spent now, ns.
    credit: f64,
    asked: Option<Nanos>,
    /// What had been spent, and how many pages armed, when the mean was last taken.
    known: (Nanos, u64),
}

impl Pace {
    /// For a share of one processor.
    pub fn new(cap: f64) -> Self {
        let governor = Governor::new(cap);
        Self {
            cap: if cap.is_finite() { cap.clamp(0.0, 1.0) } else { governor.cap() },
            governor,
            each: USUAL.as_f64(),
            credit: 0.0,
            asked: None,
            known: (Nanos::ZERO, 0),
        }
    }

    /// How many pages may be armed now; observing has cost `spent` so far, for `armed` pages.
    pub fn allowance(&mut self, now: Nanos, spent: Nanos, armed: u64) -> u32 {
        let (before, pages) = self.known;
        // In a forked child both begin anew.
        if spent < before || armed < pages {
            self.known = (spent, armed);
        } else if armed - pages >= ENOUGH {
            let mean = (spent - before).as_f64() / (armed - pages) as f64;
            // Half of what was known before: faults come later than what is armed for them.
            self.each = self.each.midpoint(mean).max(1.0);
            self.known = (spent, armed);
        }
        let elapsed = now.saturating_sub(self.asked.replace(now).unwrap_or(now)).as_f64();
        let most = (SAVED.as_f64() * self.cap).max(self.each);
        self.credit = (self.credit + elapsed * self.cap).min(most);
        if now < self.governor.judge(now, spent).rest_until {
            self.credit = 0.0;
        }
        (self.credit / self.each) as u32
    }

    /// So many were armed.
    pub fn armed(&mut self, pages: u32) {
        self.credit -= f64::from(pages) * self.each;
    }
}

/// A range that the policy wants to know of.
#[derive(Clone, Copy, Debug)]
struct Asked {
    proposal: Proposal,
    range: PageRange,
    /// Pages of it that have been looked at.
    looked: u32,
    /// When the last of them had been (ns).
    since: u64,
}

/// What is to be made to fault.
#[derive(Debug)]
pub struct Hints {
    /// The pace of it.
    pub pace: Pace,
    /// Ranges that wait, the first of them under way.
    asked: VecDeque<Asked>,
    /// Ranges whose pages are armed, and of which touches are waited for.
    awaited: VecDeque<Asked>,
}

impl Hints {
    /// Nothing, for a share of one processor.
    pub fn new(cap: f64) -> Self {
        Self {
            pace: Pace::new(cap),
            asked: VecDeque::with_capacity(RANGES),
            awaited: VecDeque::with_capacity(RANGES),
        }
    }

    /// Takes up a proposal to observe a range, or says why not.
    pub fn ask(&mut self, proposal: Proposal) -> Result<(), Abort> {
        let (Action::Arm { range } | Action::Scan { range }) = proposal.action else {
            return Err(Abort::Unsupported);
        };
        if self.asked.len() + self.awaited.len() >= RANGES {
            return Err(Abort::RateLimited);
        }
        self.asked.push_back(Asked { proposal, range, looked: 0, since: 0 });
        Ok(())
    }

    /// The next page to look at.
    fn next_page(&mut self, now: u64) -> Option<PageRef> {
        loop {
            let first = self.asked.front_mut()?;
            if first.looked < first.range.count {
                let page = PageNo(first.range.start.0 + first.looked);
                first.looked += 1;
                return Some(PageRef { region: first.range.region, page });
            }
            first.since = now;
            let first = *first;
            self.asked.pop_front();
            self.awaited.push_back(first);
        }
    }

    /// The next proposal that is carried out: an arming at once, a scan when there are no
    /// more touches to wait for.
    fn next_done(&mut self, now: u64) -> Option<Proposal> {
        let over = |asked: &Asked| {
            matches!(asked.proposal.action, Action::Arm { .. })
                || now >= asked.since.saturating_add(ARMED_FOR)
        };
        let first = self.awaited.iter().position(over)?;
        self.awaited.remove(first).map(|asked| asked.proposal)
    }

    /// Whether no range waits for anything.
    fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.awaited.is_empty()
    }
}

/// An armed page that is not touched for so long (ns) goes back: its sample is "no".
pub(crate) const ARMED_FOR: u64 = 100_000_000;

impl Worker<'_> {
    /// Makes as many pages fault as the cap allows: those that the policy asked for, and with
    /// random numbers such as are chosen by these, if it wants samples. The manager's to call.
    pub(crate) fn observe(&mut self, random: Option<&mut Xorshift>) {
        let pager = self.pager;
        let Some(mut ring) = pager.evict.ring.try_lock() else { return };
        let random = random.filter(|_| {
            pager.resident() >= pager.budget() / 2
                && pager.decide.decider.lock().brain().needs().samples
        });
        if random.is_none() && ring.hints.is_idle() {
            return;
        }
        if pager.uffd().is_changing() {
            // No page would move; what was asked for is looked at the next time.
            return;
        }
        let began = sys::thread_cpu();
        if pager.enter(self.id) {
            ring.clear_marks(&pager.evict.staging, pager.uffd());
            let counters = &pager.stats().counters;
            let spent = Nanos(counters.sampling_ns.load(Relaxed));
            let before = counters.armed.load(Relaxed);
            let now = sys::now();
            let most = ring.hints.pace.allowance(Nanos(now), spent, before).min(MOST);
            let armed = match random {
                Some(random) if ring.hints.is_idle() => self.arm_random(&mut ring, most, random),
                _ => self.arm_asked(&mut ring, most, now),
            };
            ring.hints.pace.armed(armed);
            while let Some(proposal) = ring.hints.next_done(now) {
                // What it costs is in the account of observing, together with the faults.
                let outcome = Outcome::Completed { cost: Cycles::ZERO, moved: Bytes::ZERO };
                pager.note(Note::Done(Done { proposal, outcome }));
            }
        }
        pager.leave(self.id);
        drop(ring);
        let spent = (sys::thread_cpu() - began).get();
        pager.stats().counters.sampling_ns.fetch_add(spent, Relaxed);
    }

    /// Arms what was asked for, at most so many pages; how many that were.
    fn arm_asked(&mut self, ring: &mut StagingRing, most: u32, now: u64) -> u32 {
        let mut armed = 0;
        for _ in 0..WORDS {
            if armed >= most || !ring.has_room() {
                break;
            }
            let Some(PageRef { region: RegionId(id), page }) = ring.hints.next_page(now) else {
                break;
            };
            armed += u32::from(self.arm(ring, id, page.0));
        }
        armed
    }

    /// Arms resident pages, chosen at random: where nothing else samples accesses, this is how a
    /// page that never leaves is known to be in use.
    fn arm_random(&mut self, ring: &mut StagingRing, most: u32, random: &mut Xorshift) -> u32 {
        let pager = self.pager;
        let mut armed = 0;
        let total: u64 = pager.regions.iter().map(|(_, r)| u64::from(r.pages())).sum();
        for _ in 0..most * TRIES {
            if armed >= most {
                break;
            }
            let Some(mut nth) = random.below(total) else { break };
            for (id, region) in pager.regions.iter() {
                let pages = u64::from(region.pages());
                if nth < pages {
                    let word = region.word(nth as u32);
                    if word.load(Relaxed) == PageState::Resident.word() {
                        armed += u32::from(self.arm(ring, id, nth as u32));
                    }
                    break;
                }
                nth -= pages;
            }
        }
        armed
    }

    /// Makes a resident page fault at its next touch, to see whether it is used.
    pub(crate) fn arm(&mut self, ring: &mut StagingRing, id: u32, page: u32) -> bool {
        let pager = self.pager;
        let Some(region) = pager.regions.get(id).filter(|r| page < r.pages()) else { return false };
        let place = Place { id, region, page, word: region.word(page) };
        // As in `Worker::move_pages`.
        let Some(reading) = self.no_events() else { return false };
        // A sample is not worth a huge page, unless memory is short and it will be split.
        let spare = pager.resident() + 2 * pager.headroom() < pager.budget();
        if spare && pager.regions.is_huge(place.address()) {
            return false;
        }
        if !ring.has_room()
            || PINNED.contains(place.address())
            || !pager.try_lock_page(&place, PageState::Resident)
        {
            return false;
        }
        let slot = ring.push(Purpose::Armed, sys::now());
        let to = pager.evict.staging.address(slot);
        pager.evict.staging.give(slot, owner(id, page), Purpose::Armed);
        pager.departs(place.address());
        let (_, error) = self.move_frames(pager.uffd(), to, place.address(), PAGE);
        drop(reading);
        if error == 0 {
            pager.splits(place.address());
            place.word.store(PageState::Staged(slot).word(), Release);
            pager.stats().counters.armed.fetch_add(1, Relaxed);
            return true;
        }
        pager.evict.staging.owner_of(slot).store(NOBODY, Release);
        ring.unpush();
        place.word.store(PageState::Resident.word(), Release);
        false
    }

    /// Gives armed pages back whose time is over.
    pub(crate) fn disarm_old(&mut self) {
        let pager = self.pager;
        let Some(mut ring) = pager.evict.ring.try_lock() else { return };
        if !pager.enter(self.id) {
            pager.leave(self.id);
            return;
        }
        let now = sys::now();
        while ring.waiting() > 0 {
            let (_, purpose, since) = ring.at(0);
            if !matches!(purpose, Purpose::Armed) || now - since < ARMED_FOR {
                break;
            }
            if self.compress_oldest(&mut ring, 1) == 0 {
                break;
            }
        }
        ring.drop_done(&pager.evict.staging, pager.uffd());
        pager.leave(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use terrace_core::{Heat, OpId, PageSize, Reason, Urgency};

    const TICK: Nanos = Nanos::millis(10);

    /// What observing cost in a world that exists only here, and for how many pages.
    struct Emulated {
        share: f64,
        armed: u64,
        /// The dearest page.
        dearest: Nanos,
        length: Nanos,
    }

    /// Pages that cost `arming` when they are armed, and `fault` when they are touched,
    /// `later` ticks after that; both as they are at that moment.
    fn drive(
        pace: &mut Pace,
        seconds: u64,
        later: usize,
        cost: impl Fn(Nanos) -> (Nanos, Nanos),
    ) -> Emulated {
        let length = Nanos::seconds(seconds);
        let (mut now, mut spent, mut armed) = (Nanos::ZERO, Nanos::ZERO, 0);
        let mut dearest = Nanos::ZERO;
        let mut to_come: VecDeque<u32> = core::iter::repeat_n(0, later + 1).collect();
        while now < length {
            let (arming, fault) = cost(now);
            dearest = dearest.max(arming + fault);
            let pages = pace.allowance(now, spent, armed).min(MOST);
            pace.armed(pages);
            armed += u64::from(pages);
            to_come.push_back(pages);
            spent += arming * u64::from(pages);
            spent += fault * u64::from(to_come.pop_front().unwrap_or(0));
            now += TICK;
        }
        Emulated { share: spent / now, armed, dearest, length }
    }

    proptest! {
        /// The promise to the operator, whatever a page costs, also if that changes and the
        /// faults come late. By numbers alone, pages ten times as dear would take ten times
        /// the cap.
        #[test]
        fn what_observing_costs_stays_below_the_cap(
            cap in 0.000_1f64..0.5,
            arming in 200u64..50_000,
            fault in 1_000u64..500_000,
            later in 0usize..10,
            dearer in 1u64..20,
            period in 1u64..20,
        ) {
            let mut pace = Pace::new(cap);
            let cost = |now: Nanos| {
                let dear = (now.get() / 1_000_000_000 / period) % 2 == 1;
                let times = if dear { dearer } else { 1 };
                (Nanos(arming * times), Nanos(fault * times))
            };

            let seen = drive(&mut pace, 120, later, cost);

            // What was armed when it was cheap and is touched when it is dear is beyond the
            // cap for that long, and paid off afterwards: the last such time may be at the end.
            let under_way = (later as f64 + 3.0) * (cap * TICK.as_f64() / USUAL.as_f64().min((arming + fault) as f64) + 1.0);
            let last = under_way * seen.dearest.as_f64() / seen.length.as_f64();
            prop_assert!(seen.share <= cap * 1.02 + last, "{} of {cap}, {last} of it late", seen.share);
        }

        /// A cap that nothing comes close to would be no use: what costs the same all the time
        /// gets most of it.
        #[test]
        fn what_the_cap_allows_is_used(
            cap in 0.005f64..0.2, arming in 1_000u64..20_000, fault in 1_000u64..100_000,
        ) {
            let mut pace = Pace::new(cap);

            let seen = drive(&mut pace, 60, 3, |_| (Nanos(arming), Nanos(fault)));

            let most = f64::from(MOST) * seen.dearest.as_f64() / TICK.as_f64();
            prop_assert!(seen.share > 0.6 * cap.min(most), "{} of {cap}", seen.share);
        }
    }

    #[test]
    fn pages_that_cost_ten_times_as_much_are_a_tenth_as_many() {
        let cheap = drive(&mut Pace::new(0.03), 60, 2, |_| (Nanos(5_000), Nanos(10_000)));
        let dear = drive(&mut Pace::new(0.03), 60, 2, |_| (Nanos(50_000), Nanos(100_000)));

        let ratio = cheap.armed as f64 / dear.armed as f64;
        assert!((7.0..14.0).contains(&ratio), "{} and {}", cheap.armed, dear.armed);
    }

    /// A cap of nothing is kept, not taken for the least that the governor knows; one of
    /// everything does not arm without end.
    #[test]
    fn a_cap_at_either_end_is_kept() {
        for cap in [0.0, -1.0] {
            let none = drive(&mut Pace::new(cap), 60, 0, |_| (Nanos(5_000), Nanos(10_000)));
            assert_eq!(none.armed, 0);
        }
        let little = drive(&mut Pace::new(1e-6), 600, 0, |_| (Nanos(5_000), Nanos(10_000)));
        assert!((1..=41).contains(&little.armed), "600 us in 600 s: {}", little.armed);
        let all = drive(&mut Pace::new(1.0), 60, 0, |_| (Nanos(5_000), Nanos(10_000)));
        assert!(all.share > 0.2 && all.share <= 1.0, "{}", all.share);
        let unknown = drive(&mut Pace::new(f64::NAN), 60, 0, |_| (Nanos(5_000), Nanos(10_000)));
        assert!(unknown.share <= Governor::DEFAULT_CAP * 1.02, "{}", unknown.share);
    }

    /// Faults come after the arming: what they cost beyond what was expected is only known then.
    #[test]
    fn what_was_spent_beyond_the_cap_is_paid_off_first() {
        let mut pace = Pace::new(0.03);
        pace.allowance(Nanos::ZERO, Nanos::ZERO, 0);
        assert_eq!(pace.allowance(TICK, Nanos::ZERO, 0), 20);

        let spent = Nanos::millis(30);

        for tick in 2..100 {
            assert_eq!(pace.allowance(TICK * tick, spent, 20), 0, "30 ms are 3 % of a second");
        }
        assert!(pace.allowance(Nanos::millis(1_010), spent, 20) > 0);
    }

    #[test]
    fn nothing_is_saved_up_while_the_program_is_idle() {
        let mut pace = Pace::new(0.03);
        pace.allowance(Nanos::ZERO, Nanos::ZERO, 0);

        let burst = pace.allowance(Nanos::seconds(3600), Nanos::ZERO, 0);

        assert_eq!(burst, 40, "two ticks' worth, not an hour's");
    }

    /// Otherwise its first pages would seem to cost nothing, or more than everything.
    #[test]
    fn a_forked_child_whose_counters_begin_anew_goes_on() {
        let mut pace = Pace::new(0.03);
        for tick in 1..100 {
            let pages = pace.allowance(TICK * tick, Nanos::micros(300) * tick, 20 * tick);
            pace.armed(pages);
        }
        let each = pace.each;

        pace.allowance(TICK * 100, Nanos::ZERO, 0);

        assert!((pace.each - each).abs() < f64::EPSILON, "{} and {each}", pace.each);
    }

    fn proposal(op: u64, action: Action) -> Proposal {
        Proposal {
            op: OpId(op),
            action,
            page_size: PageSize::Base,
            heat: Heat::default(),
            victim_heat: Heat::default(),
            urgency: Urgency::Voluntary,
            reason: Reason::Observes,
        }
    }

    fn range(start: u32, count: u32) -> PageRange {
        PageRange { region: RegionId(3), start: PageNo(start), count }
    }

    /// Who is told that a range was looked at before its touches can have come takes
    /// everything in it for unused.
    #[test]
    fn a_scan_is_over_when_no_more_touches_can_come_and_an_arming_at_once() {
        let mut hints = Hints::new(0.03);
        let scan = proposal(0, Action::Scan { range: range(7, 2) });
        let arm = proposal(1, Action::Arm { range: range(90, 1) });
        hints.ask(scan).expect("room");
        hints.ask(arm).expect("room");

        let pages: Vec<_> =
            core::iter::from_fn(|| hints.next_page(1_000)).map(|page| page.page.0).collect();

        assert_eq!(pages, [7, 8, 90]);
        assert_eq!(hints.next_done(1_000), Some(arm));
        assert_eq!(hints.next_done(1_000 + ARMED_FOR - 1), None);
        assert!(!hints.is_idle());
        assert_eq!(hints.next_done(1_000 + ARMED_FOR), Some(scan));
        assert!(hints.is_idle());
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_the_reason() {
        let mut hints = Hints::new(0.03);
        let page = PageRef { region: RegionId(3), page: PageNo(0) };
        let promote =
            Action::Promote { page, from: terrace_core::TierId(1), to: terrace_core::TierId(0) };
        assert_eq!(hints.ask(proposal(0, promote)), Err(Abort::Unsupported));
        for op in 0..RANGES as u64 {
            hints.ask(proposal(op, Action::Scan { range: range(0, 1) })).expect("room");
        }

        let full = hints.ask(proposal(9_999, Action::Scan { range: range(0, 1) }));

        assert_eq!(full, Err(Abort::RateLimited));
        assert_eq!(hints.asked.capacity(), RANGES, "nothing was allocated");
    }
}
