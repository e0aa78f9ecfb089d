//! Where huge pages pay, by a profile of an earlier run (`terrace run --profile`).
//!
//! When a large mapping becomes managed, it gets the name that a profile would call it by
//! ([`terrace_profile::Key`]). For each of its chunks the economist is asked with what the
//! profile says: a huge page from the pool of zeros moves in before the first touch where it
//! pays; else base pages are filled with zeros if nearly all of them will be touched; else the
//! chunk is left to base pages, also by walks and collapses. Of mappings that the profile does
//! not know nothing is said, and they are treated as without one.
//!
//! One chunk of 64 for which either would pay is held out. What is touched of it some seconds later,
//! or when most of the profiled run is over if that comes first, says what the others were spared, and
//! what the profile is worth from then on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use core::sync::atomic::Ordering::*;

use terrace_core::{Abort, Action, ActionClass, Bytes, Cycles, Nanos, Outcome, PageSize, Proposal};
use terrace_economics::{Calibration, LookedAt};
use terrace_profile::{
    Advice, Estimate, Key, Place as Where, Profile, Quantity, Share, cbmm, live,
};

use crate::decide::decider::{self, Averts, Judged, Work};
use crate::huge::prezero::{BASES, PAUSE};
use crate::pager::Pager;
use crate::space::page_state::PageState;
use crate::space::proc_maps::{self, MayDo};
use crate::space::regions::{CHUNK, Place, in_window};
use crate::stats::process_page::ProcessPage;
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Chunks that wait for their turn, and chunks that are to have base pages, at most: 128 GiB each.
const MOST: usize = 1 << 16;
/// How long (ns) the manager does this in one go: somebody waits for it, or may.
const IN_ONE_GO: u64 = 2_000_000;
/// A chunk that was held out is looked at after so long (ns) at most: the economist's horizon before
/// it has learnt another.
const HELD_OUT_FOR: u64 = 10_000_000_000;
/// It is looked at earlier if so many quarters of what was left of the profiled run have passed: a
/// run that is a little faster than the profiled one, as it is to be, must not end unjudged.
const QUARTERS: u64 = 3;

/// A mapping that has a name.
#[derive(Clone, Copy)]
struct Known {
    start: usize,
    class: u8,
    order: u32,
}

/// How well the profile fits the run, since that was told last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Fit {
    /// Bytes of large mappings, and of these bytes of which the profile says nothing.
    mapped: u64,
    unknown: u64,
    /// What the profile averts in memory that was mapped, in its own cycles.
    matched: Cycles,
}

/// A chunk that was held out.
#[derive(Clone, Copy)]
struct HeldOut {
    at: usize,
    pages: u32,
    class: ActionClass,
    /// The share of it that was to be touched.
    said: f64,
    since: u64,
    /// In which time (ns) it was to be touched: what was left of the profiled run. 0 if that was over.
    within: u64,
}

impl HeldOut {
    /// When it is looked at.
    fn due(&self) -> u64 {
        let wait = match self.within {
            0 => HELD_OUT_FOR,
            within => HELD_OUT_FOR.min(within / 4 * QUARTERS),
        };
        self.since.saturating_add(wait)
    }

    /// The result of a look at it, at which so many of its pages are touched. Before the time is over a
    /// part of the touches is expected; or as many as there were, if that is more: programs mostly touch
    /// at once what they map.
    fn seen(&self, touched: u32, now: u64) -> LookedAt {
        let was = f64::from(touched) / f64::from(self.pages.max(1));
        let had = now.saturating_sub(self.since) as f64;
        let part = if self.within == 0 { 1.0 } else { (had / self.within as f64).min(1.0) };
        LookedAt { said: (self.said * part).max(self.said.min(was)), was }
    }
}

/// What became of a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    /// It is done.
    Done,
    /// It cannot be done, or not in this way.
    Failed,
    /// A fork has stopped the pager: the task waits for its end.
    Frozen,
}

/// A chunk that waits for its turn.
#[derive(Clone, Copy)]
struct Task {
    at: usize,
    pages: u32,
    advice: Advice,
}

/// A profile, and what is to be done about it. Changed by the manager alone.
pub(crate) struct Guide {
    profile: Option<Profile>,
    /// Cycles here for one of the profile's.
    scale: f64,
    /// Page walks that are under way here at the same time, on average.
    parallelism: f64,
    known: Vec<Known>,
    fit: Fit,
    /// By class and order: what has matched of a region of the profile. A program that maps one more often
    /// than the profiled run did has no more of the benefit than there is.
    matched: BTreeMap<(u8, u32), Cycles>,
    tasks: VecDeque<Task>,
    /// Chunks that are to have base pages.
    plain: BTreeSet<usize>,
    /// Chunks that were held out, oldest first.
    held_out: VecDeque<HeldOut>,
    /// When the program began (ns), for what is left of the profile's run.
    began: u64,
}

impl Guide {
    /// Reads a profile; the command has looked that it is a good one, and a program that cannot
    /// read it any more goes on without.
    pub(crate) fn read(path: Option<&Path>, prices: &Calibration, stats: &ProcessPage) -> Self {
        let profile = path.and_then(|path| {
            let text = terrace_core::text::read_text(path).ok()?;
            Profile::parse("", &text).ok()
        });
        if path.is_some() && profile.is_none() {
            stats.counters.profile_unread.fetch_add(1, Relaxed);
        }
        let benefit = profile.as_ref().map_or(Cycles::ZERO, Profile::total);
        stats.counters.profile_benefit_cycles.store(benefit.get(), Relaxed);
        let scale = profile.as_ref().map_or(1.0, |profile| prices.clock / profile.clock);
        Self {
            profile,
            scale: if scale.is_finite() { scale } else { 1.0 },
            parallelism: prices.parallelism(),
            known: Vec::new(),
            fit: Fit::default(),
            matched: BTreeMap::new(),
            tasks: VecDeque::new(),
            plain: BTreeSet::new(),
            held_out: VecDeque::new(),
            began: sys::now(),
        }
    }

    /// Whether there is a profile.
    pub(crate) fn is_any(&self) -> bool {
        self.profile.is_some()
    }

    /// Whether a chunk is to have base pages.
    pub(crate) fn is_plain(&self, at: usize) -> bool {
        self.plain.contains(&at)
    }

    /// Whether a rule asks what may be done with a mapping. To find out takes a look at all of them.
    fn asks_for_access(&self) -> bool {
        let rules = self.profile.iter().flat_map(|profile| &profile.rules);
        rules.flat_map(|rule| &rule.conditions).any(|c| c.quantity == Quantity::Prot)
    }

    /// A mapping became managed; `access` is what may be done with it, and `is_mapped` says which others
    /// are still there. False if the profile does not know it.
    fn enter(
        &mut self,
        (start, end): (usize, usize),
        access: MayDo,
        is_mapped: impl Fn(usize) -> bool,
    ) -> bool {
        let Some(profile) = &self.profile else { return false };
        self.known.retain(|known| !(start..end).contains(&known.start) && is_mapped(known.start));
        self.plain = {
            let mut rest = core::mem::take(&mut self.plain);
            rest.retain(|at| !(start..end).contains(at));
            rest
        };
        self.tasks.retain(|task| !(start..end).contains(&task.at));
        let len = end - start;
        let class = Key::class_of(Bytes(len as u64));
        let is_used = |order| self.known.iter().any(|k| (k.class, k.order) == (class, order));
        // There are not more of a class than are known.
        let order = (0..self.known.len() as u32).find(|&order| !is_used(order));
        let order = order.unwrap_or(self.known.len() as u32);
        self.known.push(Known { start, class, order });
        let key = Key::Mapping { class, order };
        let region = profile.region(&key);
        if let Some(region) = region {
            let matched = self.matched.entry((class, order)).or_default();
            let now = (*matched + region.averts_in(Bytes(len as u64))).min(region.total());
            self.fit.matched += now - *matched;
            *matched = now;
        }
        let mut is_known = false;
        // Addresses of another run say nothing of this one, and are not given: a rule about them
        // holds nowhere.
        let prot = match access {
            MayDo::ReadAndWrite => Some(live::READ_AND_WRITE),
            MayDo::Nothing => Some(live::RESERVED),
            MayDo::Else => None,
        };
        let facts = live::facts(Bytes(len as u64), prot);
        let mut at = start;
        while at < end {
            // A program may have chosen where it begins (MAP_FIXED): then the first chunk is a part
            // of one, and takes base pages only.
            let next = (at + 1).next_multiple_of(CHUNK).min(end);
            let (here, bytes) = (at, next - at);
            at = next;
            let facts = facts.with(Quantity::SectionOff, (here - start) as u64);
            let place = Where {
                key: &key,
                offset: Bytes((here - start) as u64),
                len: Bytes(bytes as u64),
                facts,
            };
            self.fit.mapped += bytes as u64;
            // Rules may know a part of it.
            let Some(advice) = profile.advise_in(region, &place) else {
                self.fit.unknown += bytes as u64;
                continue;
            };
            is_known = true;
            let nothing = advice.huge.high.is_zero() && advice.touched == Share::known(0.0);
            if nothing {
                self.plain.insert(here);
            } else {
                self.tasks.push_back(Task { at: here, pages: (bytes / PAGE) as u32, advice });
            }
            // The program's thread waits. What is beyond goes without a profile.
            if self.tasks.len() >= MOST || self.plain.len() >= MOST {
                break;
            }
        }
        is_known
    }

    /// Base pages that will be touched, and by how many more or fewer.
    fn touched(task: &Task) -> (u16, u16) {
        let of = |share: f64| (share * f64::from(task.pages)).round() as u16;
        (of(task.advice.touched.expected), of(task.advice.touched.unsure))
    }

    /// What a profile's cycles of page walks are in cycles here that the program waits.
    fn waited(&self, cycles: Cycles, of: &Estimate) -> Cycles {
        let overlap = of.walk_time.overlap(self.parallelism);
        Cycles::from_f64(cycles.as_f64() * self.scale / overlap)
    }

    /// What is still to come of the time in which a profile's benefit comes about.
    fn left(&self, of: &Estimate, now: u64) -> Nanos {
        of.horizon.saturating_sub(Nanos(now.saturating_sub(self.began)))
    }

    /// What a huge page averts of page walks at least, in cycles here, and in which time.
    fn averts(&self, task: &Task, now: u64) -> Averts {
        let huge = task.advice.huge;
        Averts {
            cycles: self.waited(huge.low, &huge),
            within: huge.horizon,
            left: self.left(&huge, now),
        }
    }

    /// The proposal of a huge page.
    fn huge(&self, task: &Task, id: u32, first: u32, now: u64) -> Action {
        let huge = task.advice.huge;
        let here = |cycles| self.waited(cycles, &huge);
        let (touched, unsure) = Self::touched(task);
        Action::FirstTouch {
            range: Pager::page_range(id, first, BASES),
            touched,
            unsure,
            left: self.left(&huge, now),
            // The manager does it ahead.
            waits: Cycles::ZERO,
            least: here(huge.low),
            averted: here(huge.expected),
            most: here(huge.high),
            within: huge.horizon,
        }
    }
}

/// The pages of a chunk.
struct Chunk<'a> {
    place: Place<'a>,
    first: u32,
}

impl Pager {
    /// A chunk of which no page was ever touched.
    fn fresh_chunk(&self, at: usize, pages: u32) -> Option<Chunk<'_>> {
        let place = self.regions.find(at)?;
        let first = place.page;
        let fresh = PageState::Fresh.word();
        let is_fresh =
            |page| place.region.get(page).is_some_and(|word| word.load(Relaxed) == fresh);
        (first..first + pages).all(is_fresh).then_some(Chunk { place, first })
    }

    /// How many of so many pages have been touched; `None` if they are no longer there.
    fn touched_of(&self, at: usize, pages: u32) -> Option<u32> {
        let place = self.regions.find(at)?;
        let fresh = PageState::Fresh.word();
        let words = (place.page..place.page + pages).map_while(|page| place.region.get(page));
        Some(words.filter(|word| word.load(Relaxed) != fresh).count() as u32)
    }
}

impl Worker<'_> {
    /// A mapping became managed: what a profile says of it comes to be, as far as that can be
    /// done at once. The manager's to call.
    pub(crate) fn guided(&mut self, start: usize, end: usize) {
        let pager = self.pager;
        // Smaller ones have no huge pages, and outside of the window pages are not moved in.
        if !pager.huge.is_guided || !in_window(start) || end - start < CHUNK {
            return;
        }
        let is_mapped = |at| pager.regions.find(at).is_some();
        let asks = pager.huge.guide.lock().asks_for_access();
        let access = if asks { proc_maps::access_at(start) } else { MayDo::Else };
        let (known, fit) = {
            let mut guide = pager.huge.guide.lock();
            let known = guide.enter((start, end), access, is_mapped);
            (known, core::mem::take(&mut guide.fit))
        };
        let counters = &pager.stats().counters;
        let which = if known { &counters.profile_known } else { &counters.profile_unknown };
        which.fetch_add(1, Relaxed);
        counters.profile_mapped_bytes.fetch_add(fit.mapped, Relaxed);
        counters.profile_unknown_bytes.fetch_add(fit.unknown, Relaxed);
        counters.profile_matched_cycles.fetch_add(fit.matched.get(), Relaxed);
        self.follow_profile();
    }

    /// Carries out a part of what is to be done; true if there is more. The manager's to call.
    pub(crate) fn follow_profile(&mut self) -> bool {
        let pager = self.pager;
        if !pager.huge.is_guided || pager.freeze.is_on() {
            return false;
        }
        self.look_at_held_out();
        let until = sys::now() + IN_ONE_GO;
        loop {
            let room = u64::from(BASES) + 2 * pager.headroom();
            if pager.resident() + room > pager.budget() {
                // What is short is not to be filled ahead.
                return false;
            }
            let task = {
                let mut guide = pager.huge.guide.lock();
                let Some(task) = guide.tasks.pop_front() else { return false };
                task
            };
            if self.do_task(&task) == Tried::Frozen {
                pager.huge.guide.lock().tasks.push_front(task);
                return false;
            }
            if sys::now() >= until {
                return !pager.huge.guide.lock().tasks.is_empty();
            }
        }
    }

    /// Does what the profile says of a chunk.
    fn do_task(&mut self, task: &Task) -> Tried {
        let pager = self.pager;
        let entered = pager.enter(self.id);
        let found = if entered {
            pager.fresh_chunk(task.at, task.pages).map(|chunk| (chunk.place.id, chunk.first))
        } else {
            None
        };
        pager.leave(self.id);
        if !entered {
            return Tried::Frozen;
        }
        // The program was faster.
        let Some((id, first)) = found else { return Tried::Done };
        if task.pages == BASES && task.at.is_multiple_of(CHUNK) {
            let action = pager.huge.guide.lock().huge(task, id, first, sys::now());
            let load = pager.huge.cpu_load();
            let judged = pager.decide.decider.lock().profiled(pager, action, PageSize::Huge, load);
            match judged {
                Judged::Passed(proposal) => match self.put_huge(task, proposal) {
                    Tried::Failed => {}
                    other => return other,
                },
                Judged::HeldOut => {
                    self.hold_out(task, ActionClass::FirstTouch);
                    return Tried::Done;
                }
                Judged::Refused => {
                    pager.huge.guide.lock().plain.insert(task.at);
                }
            }
        }
        let (touched, unsure) = Guide::touched(task);
        let part = f64::from(touched) / f64::from(task.pages.max(1));
        if task.advice.touched.is_known() && cbmm::nearly_all((part * 512.0) as u32) {
            let range = Pager::page_range(id, first, task.pages);
            let action = Action::Populate { range, touched, unsure };
            let load = pager.huge.cpu_load();
            let judged = pager.decide.decider.lock().profiled(pager, action, PageSize::Base, load);
            match judged {
                Judged::Passed(proposal) => return self.populate(task, proposal),
                Judged::HeldOut => self.hold_out(task, ActionClass::Populate),
                Judged::Refused => {}
            }
        }
        Tried::Done
    }

    /// Leaves a chunk to the program, to see what it does with it.
    fn hold_out(&self, task: &Task, class: ActionClass) {
        let mut guide = self.pager.huge.guide.lock();
        let (at, pages, said) = (task.at, task.pages, task.advice.touched.expected);
        let since = sys::now();
        let within = guide.left(&task.advice.huge, since).get();
        guide.held_out.push_back(HeldOut { at, pages, class, said, since, within });
        guide.plain.insert(at);
    }

    /// Moves a huge page to a chunk, if that can be done.
    fn put_huge(&mut self, task: &Task, proposal: Proposal) -> Tried {
        let pager = self.pager;
        let (start, work) = (sys::now(), Work::begin());
        // Where the kernel had none a moment ago, it is not asked to make one while others wait.
        let rests = start < pager.huge.pause.load(Relaxed);
        // A block that has to be made first is worth what the page averts for certain.
        let averts = pager.huge.guide.lock().averts(task, start);
        let made = if rests { None } else { self.make_one(averts) };
        let (outcome, tried) = if let Some(made) = made {
            let entered = pager.enter(self.id);
            let put = entered
                && pager
                    .fresh_chunk(task.at, BASES)
                    .is_some_and(|chunk| self.back(&chunk.place, chunk.first));
            pager.leave(self.id);
            // A page that found no place is given back when no walk asks for it.
            if put {
                pager.stats().counters.huge_profiled.fetch_add(1, Relaxed);
                // That pages had to move is in the account of compaction.
                let took = work.took().saturating_sub(made.moving);
                (decider::completed(pager, took.get(), u64::from(BASES)), Tried::Done)
            } else {
                let tried = if entered { Tried::Failed } else { Tried::Frozen };
                (Outcome::Aborted(Abort::Busy), tried)
            }
        } else {
            if !rests {
                pager.huge.pause.store(start + PAUSE, Relaxed);
            }
            (Outcome::Aborted(Abort::NoMemory), Tried::Failed)
        };
        pager.decide.decider.lock().carried_out(pager, proposal, outcome);
        tried
    }

    /// Fills the base pages of a chunk.
    fn populate(&mut self, task: &Task, proposal: Proposal) -> Tried {
        let pager = self.pager;
        let work = Work::begin();
        let (outcome, tried) = if !pager.try_reserve(u64::from(task.pages)) {
            (Outcome::Aborted(Abort::NoMemory), Tried::Failed)
        } else if pager.enter(self.id) {
            let filled = match pager.regions.find(task.at) {
                Some(place) => {
                    let count = task.pages.min(place.region.pages().saturating_sub(place.page));
                    self.fill_fresh(&place, place.page, count)
                }
                None => 0,
            };
            pager.leave(self.id);
            pager.release(u64::from(task.pages.saturating_sub(filled)));
            pager.stats().counters.populated.fetch_add(u64::from(filled), Relaxed);
            (work.completed(pager, filled), Tried::Done)
        } else {
            pager.leave(self.id);
            pager.release(u64::from(task.pages));
            (Outcome::Aborted(Abort::Busy), Tried::Frozen)
        };
        pager.decide.decider.lock().carried_out(pager, proposal, outcome);
        tried
    }

    /// Looks at the chunks that were held out whose time has come.
    fn look_at_held_out(&mut self) {
        let until = sys::now() + IN_ONE_GO;
        while self.look_at_oldest() && sys::now() < until {}
    }

    /// What was touched of the chunk that was held out first says what the others were spared. False
    /// if nothing is to be looked at now.
    fn look_at_oldest(&mut self) -> bool {
        let pager = self.pager;
        let now = sys::now();
        let held_out = {
            let mut guide = pager.huge.guide.lock();
            match guide.held_out.front() {
                Some(&it) if it.due() <= now => {
                    guide.held_out.pop_front();
                    it
                }
                _ => return false,
            }
        };
        let entered = pager.enter(self.id);
        let touched = if entered { pager.touched_of(held_out.at, held_out.pages) } else { None };
        pager.leave(self.id);
        match touched {
            Some(touched) => {
                let place = held_out.seen(touched, now);
                pager.decide.decider.lock().looked_at(pager.stats(), held_out.class, place);
            }
            // It is looked at when the fork is over.
            None if !entered => {
                pager.huge.guide.lock().held_out.push_front(held_out);
                return false;
            }
            // Gone: the next one speaks for those that wait.
            None => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::MANAGER;
    use crate::pager::fixture::{START, pager, place, touch};
    use terrace_core::Frequency;
    use terrace_profile::{Range, Region, SLOT, WalkTime};

    const RW: MayDo = MayDo::ReadAndWrite;

    fn guide() -> Guide {
        let mut profile = Profile::new(Vec::new(), "m".into(), Frequency::ghz(2.0), Nanos::SECOND);
        let range = |offset: u64, averted, touched| Range {
            offset: SLOT * offset,
            len: SLOT,
            averted: Cycles(averted),
            deviation: Cycles::ZERO,
            touched,
        };
        profile.regions.push(Region {
            key: Key::Mapping { class: 23, order: 1 },
            len: Bytes::mib(8),
            seen: 1,
            instances: 1,
            ranges: vec![range(0, 1_000_000, 512), range(1, 0, 512), range(3, 500, 1)],
        });
        Guide {
            profile: Some(profile),
            scale: 2.0,
            parallelism: 4.0,
            known: Vec::new(),
            fit: Fit::default(),
            matched: BTreeMap::new(),
            tasks: VecDeque::new(),
            plain: BTreeSet::new(),
            held_out: VecDeque::new(),
            began: 1_000,
        }
    }

    /// The same, of a processor's counters.
    fn counted() -> Guide {
        let mut guide = guide();
        guide.profile.as_mut().expect("one").walk_time = WalkTime::Elapsed;
        guide
    }

    /// A sum of walks is more than a program waits for them; time in which walks are under way is
    /// what it waits, and would be divided twice.
    #[test]
    fn sums_of_walks_are_shared_out_and_counted_time_is_not() {
        let averts = |mut guide: Guide| {
            guide.enter((START, START + (8 << 20)), RW, |_| true);
            let at = START + (1 << 30);
            guide.enter((at, at + (8 << 20)), RW, |_| true);
            let task = guide.tasks[0];
            let Action::FirstTouch { least, averted, most, .. } = guide.huge(&task, 3, 0, 0) else {
                panic!("a huge page");
            };
            assert_eq!(guide.averts(&task, 0).cycles, least, "compaction counts with the same");
            [least, averted, most]
        };
        // Half a run's uncertainty, and a factor of two of the model's.
        assert_eq!(averts(guide()), [125_000, 500_000, 1_500_000].map(Cycles));
        assert_eq!(averts(counted()), [500_000, 2_000_000, 6_000_000].map(Cycles));
        // Rules are of counters, whatever made the rest.
        let mut rules = guide();
        let text = "huge,mmap,1000000\n";
        let profile = cbmm::import("a", text, Nanos::SECOND, Frequency::ghz(2.0)).expect("good");
        rules.profile = Some(profile);
        assert_eq!(averts(rules), [500_000, 2_000_000, 6_000_000].map(Cycles));
    }

    #[test]
    fn mappings_get_the_names_that_a_recording_gives_them() {
        let mut guide = guide();
        let end = |start| start + (8 << 20);
        let second = START + (1 << 30);
        assert!(
            !guide.enter((START, end(START)), RW, |_| true),
            "the first of its class is unknown"
        );
        assert!(guide.enter((second, end(second)), RW, |_| true), "the second is known");
        let offsets: Vec<_> = guide.tasks.iter().map(|task| task.at - second).collect();
        assert_eq!(offsets, [0, CHUNK, 3 * CHUNK]);
        assert!(guide.is_plain(second + 2 * CHUNK), "it was not touched");
        // The second is unmapped; what comes then is the second again, wherever it lies.
        let third = START + (2 << 30);
        assert!(guide.enter((third, end(third)), RW, |at| at != second));
        // And if the first goes, the next one is the first.
        assert!(!guide.enter((START, end(START)), RW, |at| at == third));
    }

    #[test]
    fn cycles_of_another_clock_are_converted() {
        let mut guide = counted();
        guide.enter((START, START + (8 << 20)), RW, |_| true);
        let at = START + (1 << 30);
        guide.enter((at, at + (8 << 20)), RW, |_| true);
        let task = guide.tasks[0];
        let at = |now| match guide.huge(&task, 3, 0, now) {
            Action::FirstTouch { averted, touched, within, left, .. } => {
                let block = guide.averts(&task, now);
                assert_eq!((block.within, block.left), (within, left), "a block's are the same");
                (averted, touched, within, left)
            }
            other => panic!("{other:?}"),
        };
        let (all, second) = (Cycles(2_000_000), Nanos::SECOND);
        assert_eq!(at(1_000), (all, 512, second, second));
        assert_eq!(at(400_001_000).3, Nanos::millis(600), "a part of the profiled run is over");
        assert_eq!(at(u64::MAX).3, Nanos::ZERO);
    }

    /// A huge page can only lie where huge pages do.
    #[test]
    fn a_mapping_that_begins_anywhere_has_whole_chunks_where_chunks_are() {
        let mut guide = guide();
        guide.enter((START, START + (8 << 20)), RW, |_| true);
        let start = START + (1 << 30) + 0x5000;
        assert!(guide.enter((start, start + (8 << 20)), RW, |_| true));
        let chunks: Vec<_> = guide.tasks.iter().map(|task| (task.at, task.pages)).collect();
        let bases = BASES as usize;
        assert_eq!(chunks[0], (start, (bases - 5) as u32));
        assert_eq!(chunks[1], (start + CHUNK - 0x5000, BASES));
        assert!(chunks[1..].iter().all(|(at, _)| at.is_multiple_of(CHUNK)));
        // The profile's first MiBs are mostly in the first part, the rest of them in the second.
        let averted: Vec<_> = guide.tasks.iter().map(|task| task.advice.huge.expected).collect();
        assert_eq!(averted[0], Cycles(1_000_000));
        assert!(averted[1] > Cycles(9_000) && averted[1] < Cycles(11_000), "{averted:?}");
    }

    /// A profile must be judged in a run that is as long as the profiled one, and not by what that had
    /// not touched yet either.
    #[test]
    fn what_is_held_out_is_looked_at_before_the_profiled_run_is_over() {
        let of = |within| HeldOut {
            at: START,
            pages: 512,
            class: ActionClass::FirstTouch,
            said: 0.5,
            since: 1_000,
            within,
        };
        let second = 1_000_000_000;
        assert_eq!(of(2 * second).due(), 1_000 + second * 3 / 2);
        assert_eq!(of(3600 * second).due(), 1_000 + HELD_OUT_FOR, "a long one is not waited for");
        assert_eq!(of(0).due(), 1_000 + HELD_OUT_FOR, "it has outlived its profile");

        let seen = |touched| {
            let LookedAt { said, was } = of(4 * second).seen(touched, 1_000 + second);
            (said, was)
        };
        let all = f64::from(512);
        let same = |(said, was): (f64, f64), expected: (f64, f64)| {
            assert!((said - expected.0 / all).abs() < 1e-9, "{said}");
            assert!((was - expected.1 / all).abs() < 1e-9, "{was}");
        };
        same(seen(0), (64.0, 0.0));
        same(seen(64), (64.0, 64.0));
        same(seen(200), (200.0, 200.0));
        same(seen(500), (256.0, 500.0));
        let late = of(4 * second).seen(200, u64::MAX);
        same((late.said, late.was), (256.0, 200.0));
        let outlived = of(0).seen(200, 1_000);
        same((outlived.said, outlived.was), (256.0, 200.0));
    }

    /// Also in a run of a second, and not only in one that takes ten.
    #[test]
    fn what_was_touched_of_a_chunk_that_was_held_out_is_in_the_accounts() {
        let pager = pager(1024);
        let class = ActionClass::Populate;
        let range = Pager::page_range(place(pager, 0).id, 512, 512);
        let action = Action::Populate { range, touched: 512, unsure: 0 };
        let judged = pager.decide.decider.lock().profiled(pager, action, PageSize::Base, 0.0);
        let Judged::Passed(proposal) = judged else { panic!("512 faults are spared for little") };
        let outcome = decider::completed(pager, 1000, 512);
        pager.decide.decider.lock().carried_out(pager, proposal, outcome);
        (0..512).for_each(|page| touch(pager, page));
        let now = sys::now();
        let held_out =
            |since, within| HeldOut { at: START, pages: 512, class, said: 1.0, since, within };
        // Of a profile of a second. The last is held out in an hour.
        let (second, long_ago) = (1_000_000_000, now.saturating_sub(900_000_000));
        let chunks = [long_ago, long_ago, now + 3600 * second].map(|since| held_out(since, second));
        pager.huge.guide.lock().held_out.extend(chunks);

        let mut worker = Worker::new(pager, MANAGER);
        while worker.look_at_oldest() {}

        assert_eq!(pager.huge.guide.lock().held_out.len(), 1);
        let account = &pager.stats().classes[class.index()];
        let [said, brought] = [&account.predicted_benefit, &account.realised_benefit];
        assert_eq!(said.load(Relaxed), brought.load(Relaxed), "all of it came true");
        assert!(brought.load(Relaxed) > 0);
    }

    #[test]
    fn what_matches_of_a_profile_is_what_it_averts_where_memory_was_mapped() {
        let mut guide = guide();
        let mapped = |guide: &mut Guide, start: usize, mib: usize| {
            guide.enter((start, start + (mib << 20)), RW, |_| true);
            core::mem::take(&mut guide.fit)
        };
        let fit = |mapped: usize, unknown: usize, matched| Fit {
            mapped: (mapped << 20) as u64,
            unknown: (unknown << 20) as u64,
            matched: Cycles(matched),
        };
        assert_eq!(mapped(&mut guide, START, 8), fit(8, 8, 0), "the first of its class");
        // The profile's 500 cycles lie beyond the end of this one.
        let second = START + (1 << 30);
        assert_eq!(mapped(&mut guide, second, 6), fit(6, 0, 1_000_000));
        // It comes once more, as a whole: there is no more than there was in the profiled run.
        assert_eq!(mapped(&mut guide, second, 8), fit(8, 0, 500));
        assert_eq!(mapped(&mut guide, second, 8), fit(8, 0, 0));
        let total = guide.profile.as_ref().map(Profile::total);
        assert_eq!(total, Some(Cycles(1_000_500)));
    }

    /// Rules of another run's addresses hold nowhere; what nobody says of touches is not all.
    #[test]
    fn rules_about_addresses_hold_nowhere_and_rules_without_touches_leave_them_open() {
        let mut guide = guide();
        let text = "huge,mmap,5000,addr,>,0x0\nhuge,mmap,7000,len,>,0x1000000\n";
        let profile = cbmm::import("a", text, Nanos::SECOND, Frequency::ghz(2.0)).expect("good");
        guide.profile = Some(profile);
        assert!(!guide.enter((START, START + (8 << 20)), RW, |_| true), "not by its address");
        assert!(guide.enter((START, START + (32 << 20)), RW, |_| true));
        assert_eq!(Guide::touched(&guide.tasks[0]), (256, 256));
    }

    /// What is not known does not hold, but what a mapping was made with is.
    #[test]
    fn rules_about_protection_flags_and_offsets_hold_for_mappings_that_have_them() {
        let mut guide = guide();
        assert!(!guide.asks_for_access());
        let text = "huge,mmap,5000,prot,=,3,flags,=,34,off,=,0\n";
        let profile = cbmm::import("a", text, Nanos::SECOND, Frequency::ghz(2.0)).expect("good");
        guide.profile = Some(profile);
        assert!(guide.asks_for_access());
        assert!(guide.enter((START, START + (8 << 20)), RW, |_| true));
        assert!(!guide.enter((START, START + (8 << 20)), MayDo::Nothing, |_| true));
        assert!(!guide.enter((START, START + (8 << 20)), MayDo::Else, |_| true), "nobody knows");
    }
}
