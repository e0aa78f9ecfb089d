//! Collapsing: base pages that are in use become one huge page, when that pays.
//!
//! The manager looks for aligned ranges of which every base page is resident, makes a few
//! pages of each fault, and from how soon they are touched tells how many page walks the
//! program would be spared ([`crate::huge::tlb_model`], or what the processor counts). The
//! economist compares that with what `MADV_COLLAPSE` costs; decision 0007 has the figures.
//!
//! Nothing is collapsed while memory is short: a page that leaves would split it again.
//! Nor is anything that is shared with a child, or is the kernel's page of zeros: the
//! huge page would be a copy that nobody has accounted for.

use core::cell::OnceCell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use terrace_core::{Abort, Action, Heat, Nanos, Outcome, PerSecond, Reason, Urgency, Xorshift};
use terrace_sampler::perf::walks::Counter;

use crate::config::HugePages;
use crate::decide::decider::Work;
use crate::failsafe::inject::{self, Point};
use crate::huge::page_walk_cost;
use crate::huge::prezero::BASES;
use crate::huge::tlb_model::{Look, Visits};
use crate::pager::Pager;
use crate::space::page_state::PageState;
use crate::space::proc_maps::free_huge_pages;
use crate::space::regions::{CHUNK, Place, Region, in_window};
use crate::sys::{self, PAGE};
use crate::workers::worker::Worker;

/// Ranges that are looked at together.
const RANGES: usize = 8;
/// Pages of each that are made to fault, each in a part of its own.
const PROBES: usize = 4;
/// How long a touch is waited for (ns): as long as an armed page stays in the staging ring.
const LOOK_FOR: u64 = 100_000_000;
/// How often it is seen whether all have been touched (ns).
const LOOK_EVERY: u64 = 10_000_000;
/// Ranges whose page words are read in one step.
const SEARCHED: usize = 64;
/// After a step that took so long, the next waits so many times as long: 3 % of a
/// processor, and 20 % where the user wants huge pages whatever they cost.
const PACE: u64 = 32;
const PACE_ALWAYS: u64 = 4;
/// How long (ns) no page may have left. What leaves now and then will do so again.
const CALM: u64 = 1_000_000_000;
/// How long (ns) to wait after all ranges were seen, or the kernel had no huge page: at
/// least, and at most, as it doubles while nothing comes of it.
const REST: (u64, u64) = (100_000_000, 10_000_000_000);
/// A program that uses less of a processor has no page walks worth a look.
const IDLE: f64 = 0.02;

/// `MADV_COLLAPSE` (Linux 6.1).
pub const MADV_COLLAPSE: i32 = 25;

/// Pages that were made to fault, and when they were touched. Shared with the handlers.
#[derive(Default)]
pub struct Probes {
    /// How many there are; a fault looks no further while there are none.
    count: AtomicU32,
    probes: [Probe; RANGES * PROBES],
}

#[derive(Default)]
struct Probe {
    /// Its address; 0 if there is none.
    page: AtomicUsize,
    /// When it was touched (ns); 0 if it was not yet.
    touched: AtomicU64,
}

impl Probes {
    /// A page that was made to fault was touched. A handler's to call.
    pub fn touched(&self, page: usize) {
        if self.count.load(Relaxed) == 0 {
            return;
        }
        if let Some(probe) = self.probes.iter().find(|probe| probe.page.load(Relaxed) == page) {
            probe.touched.store(sys::now(), Relaxed);
        }
    }

    /// Begins to wait for a page.
    fn begin(&self, nth: usize, page: usize) {
        self.probes[nth].touched.store(0, Relaxed);
        self.probes[nth].page.store(page, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    /// When the page was touched; `None` if it was not.
    fn when(&self, nth: usize) -> Option<u64> {
        Some(self.probes[nth].touched.load(Relaxed)).filter(|&when| when != 0)
    }

    /// Waits for none any more.
    pub fn clear(&self) {
        self.count.store(0, Relaxed);
        self.probes.iter().for_each(|probe| probe.page.store(0, Relaxed));
    }
}

/// A range that is looked at: its region and first page, and when each of its probes
/// began.
#[derive(Clone, Copy)]
struct Watched {
    range: (u32, u32),
    since: [u64; PROBES],
}

/// What became of a search.
enum Found {
    Range(u32, u32),
    /// Not all ranges have been seen.
    NotYet,
    /// All have.
    Nothing,
}

/// The manager's memory of what it has looked at.
pub(crate) struct Collapser {
    when: HugePages,
    /// When (ns) there is something to do.
    pub(crate) due: u64,
    /// Where the search goes on: region and page.
    next: (u32, u32),
    /// Huge pages among the managed memory, as the last round has seen them, and so far
    /// in this one.
    huge: (u64, u64),
    /// Whether something was collapsed in this round.
    fruitful: bool,
    rest: u64,
    watched: Vec<Watched>,
    /// Ranges that were touched, the hottest last.
    chosen: Vec<((u32, u32), Look)>,
    visits: Visits,
    /// Counts page walks, where that can be; opened when first needed.
    counter: OnceCell<Option<Counter>>,
    /// What it had counted when (ns), and how many a second those were.
    counted: (u64, u64),
    walks: Option<f64>,
    /// The program's processor time (ns) when (ns), and how many processors that was.
    cpu: (u64, u64),
    busy: f64,
    /// Pages that had left, and when (ns) that was last seen to change.
    left: (u64, u64),
    /// What the program did when the last round ended.
    activity: u64,
    random: Xorshift,
    /// Whether it is known what a page walk costs, as far as that can be.
    timed: bool,
}

impl Collapser {
    /// In a forked child, of its parent's manager. A counter's descriptor is the parent's.
    pub(crate) fn give_back(&mut self) {
        drop(core::mem::take(&mut self.watched));
        drop(core::mem::take(&mut self.chosen));
    }

    pub(crate) fn new(pager: &Pager) -> Self {
        let now = sys::now();
        Self {
            when: pager.config.huge_pages,
            due: if pager.config.huge_pages == HugePages::Never { u64::MAX } else { now },
            next: (0, 0),
            huge: (0, 0),
            fruitful: false,
            rest: REST.0,
            watched: Vec::with_capacity(RANGES),
            chosen: Vec::with_capacity(RANGES),
            visits: Visits::new(),
            counter: OnceCell::new(),
            counted: (0, now),
            walks: None,
            cpu: (cpu_of_program(pager), now),
            busy: 0.0,
            left: (pager.stats().counters.demotions.load(Relaxed), 0),
            activity: 0,
            random: Xorshift::new(now),
            timed: false,
        }
    }

    /// The next range of which every base page is resident. No region's words are taken
    /// away meanwhile: only the manager does that ([`crate::space::regions::Regions::reclaim`]).
    fn search(&mut self, pager: &Pager) -> Found {
        for _ in 0..SEARCHED {
            let (id, page) = self.next;
            let Some((id, region)) = pager.regions.iter().find(|&(other, _)| other >= id) else {
                self.next = (0, 0);
                self.huge = (self.huge.1, 0);
                return Found::Nothing;
            };
            let start = region.start();
            let from = if id == self.next.0 { page } else { 0 };
            let at = (start + from as usize * PAGE).next_multiple_of(CHUNK);
            let first = ((at - start) / PAGE) as u32;
            if !in_window(at)
                || first + BASES > region.pages()
                || region.resident.load(Relaxed) < BASES
            {
                self.next = (id + 1, 0);
                continue;
            }
            self.next = (id, first + BASES);
            if pager.regions.is_huge(at) {
                self.huge.1 += 1;
            } else if !pager.huge.is_plain(at) && is_resident(region, first) {
                return Found::Range(id, first);
            }
        }
        Found::NotYet
    }

    /// Whether memory is not short, and has not been of late.
    fn is_calm(&mut self, pager: &Pager, now: u64) -> bool {
        let left = pager.stats().counters.demotions.load(Relaxed);
        if left != self.left.0 {
            self.left = (left, now);
        }
        let room = u64::from(BASES) + 2 * pager.headroom();
        pager.resident() + room <= pager.budget()
            && (self.when == HugePages::Always || now >= self.left.1 + CALM || self.left.1 == 0)
    }

    /// All ranges have been seen.
    fn end_round(&mut self, activity: u64, now: u64) {
        let anew = self.fruitful || activity != self.activity;
        self.rest = if anew { REST.0 } else { (self.rest * 2).min(REST.1) };
        (self.fruitful, self.activity) = (false, activity);
        self.due = now + self.rest;
    }

    /// A page of the part that a probe is for.
    fn random_below(&mut self) -> u32 {
        self.random.below(u64::from(BASES) / PROBES as u64).unwrap_or(0) as u32
    }

    /// How many processors the program keeps busy, since this was last asked.
    fn measure_load(&mut self, pager: &Pager, now: u64) {
        let cpu = cpu_of_program(pager);
        let (before, then) = core::mem::replace(&mut self.cpu, (cpu, now));
        self.busy = cpu.saturating_sub(before) as f64 / now.saturating_sub(then).max(1) as f64;
    }

    /// How many page walks a second the processor counted since this was last asked.
    fn count_walks(&mut self, pager: &Pager, now: u64) {
        let ours = |thread: u32| {
            pager.workers.iter().any(|worker| worker.tid.load(Relaxed) as u32 == thread)
        };
        let counter = self.counter.get_or_init(|| Counter::page_walks(ours).ok());
        let Some(count) = counter.as_ref().and_then(|counter| counter.read().ok()) else {
            self.walks = None;
            return;
        };
        let (before, then) = core::mem::replace(&mut self.counted, (count, now));
        let elapsed = now.saturating_sub(then).max(1) as f64 / 1e9;
        // What was counted before the first look is of another time.
        self.walks = (before != 0).then(|| count.saturating_sub(before) as f64 / elapsed);
    }

    /// What is known of the page walks that a range would save, and how.
    fn evidence(&self, pager: &Pager, look: &Look) -> (Heat, Reason) {
        let huge = (self.huge.0.max(self.huge.1)) * u64::from(BASES);
        let pages = pager.resident().saturating_sub(huge) as f64;
        let mut saved = self.visits.saved(look.rate(), pages);
        let reason = match self.walks {
            // The visits say how they are spread, the processor how many there are.
            Some(counted) => {
                let estimated = self.visits.walks(pages);
                if estimated > 0.0 {
                    saved *= counted / estimated;
                }
                Reason::PageWalksCounted
            }
            None => Reason::PageWalksEstimated,
        };
        let heat = Heat {
            loads: PerSecond(saved),
            samples: look.touched,
            window: Nanos(look.exposed),
            ..Heat::default()
        };
        (heat, reason)
    }
}

/// Whether all base pages of a range are resident, and nobody has one.
fn is_resident(region: &Region, first: u32) -> bool {
    let resident = PageState::Resident.word();
    (first..first + BASES).all(|page| region.word(page).load(Relaxed) == resident)
}

/// Processor time of the program, ours left out (ns).
fn cpu_of_program(pager: &Pager) -> u64 {
    let tids = pager.workers.iter().map(|worker| worker.tid.load(Relaxed));
    let own: u64 = tids.filter(|&tid| tid != 0).map(sys::cpu_of_thread).sum();
    sys::cpu_of_process().saturating_sub(own)
}

impl Pager {
    /// A page leaves: if it is a part of a huge page, the kernel splits that.
    pub fn splits(&self, address: usize) {
        if self.regions.set_huge(address, false) {
            self.stats().counters.huge_split.fetch_add(1, Relaxed);
        }
    }

    /// The program has had a range made huge pages, as far as it is a whole number of them. The
    /// manager's to call.
    pub(crate) fn became_huge(&self, start: usize, end: usize) {
        for at in (start.next_multiple_of(CHUNK)..end).step_by(CHUNK) {
            let whole = at + CHUNK <= end && self.regions.find(at).is_some();
            if whole && !self.regions.set_huge(at, true) {
                self.stats().counters.huge_collapsed.fetch_add(1, Relaxed);
            }
        }
    }
}

impl Worker<'_> {
    /// A step towards fewer page walks, if it is time for one. The manager's to call.
    pub(crate) fn collapse(&mut self, c: &mut Collapser) {
        let start = sys::now();
        if start < c.due {
            return;
        }
        let pager = self.pager;
        c.due = start + LOOK_EVERY;
        if pager.freeze.is_on() {
            return;
        }
        if !c.is_calm(pager, start) {
            self.end_look(c);
            c.chosen.clear();
            c.due = start + REST.0;
            return;
        }
        if c.when == HugePages::Always {
            self.collapse_next(c, start);
        } else if !c.watched.is_empty() {
            self.see(c, start);
        } else if let Some((range, look)) = c.chosen.pop() {
            c.due = 0;
            self.consider(c, range, &look);
        } else {
            self.begin_look(c, start);
        }
        let now = sys::now();
        let pace = if c.when == HugePages::Always { PACE_ALWAYS } else { PACE };
        c.due = c.due.max(now + (now - start) * pace);
    }

    /// Collapses what is next, at whatever cost.
    fn collapse_next(&mut self, c: &mut Collapser, now: u64) {
        match c.search(self.pager) {
            Found::Range(id, first) => {
                c.due = now;
                let why = (Urgency::Forced, Reason::AskedFor);
                self.propose(c, (id, first), Heat::default(), why);
            }
            Found::NotYet => c.due = now,
            Found::Nothing => c.end_round(self.activity(), now),
        }
    }

    /// Begins to look at the next ranges.
    fn begin_look(&mut self, c: &mut Collapser, now: u64) {
        let pager = self.pager;
        if now < c.cpu.1 + LOOK_EVERY {
            return;
        }
        c.measure_load(pager, now);
        if c.busy < IDLE {
            c.due = now + CALM;
            return;
        }
        c.count_walks(pager, now);
        let Some(mut ring) = pager.evict.ring.try_lock() else { return };
        if pager.uffd().is_changing() {
            // No page would move, which says nothing of the pages.
            return;
        }
        if !pager.enter(self.id) {
            pager.leave(self.id);
            return;
        }
        let began = sys::thread_cpu();
        while c.watched.len() < RANGES {
            let (id, first) = match c.search(self.pager) {
                Found::Range(id, first) => (id, first),
                Found::NotYet => break,
                Found::Nothing => {
                    c.end_round(self.activity(), now);
                    break;
                }
            };
            let mut watched = Watched { range: (id, first), since: [0; PROBES] };
            for (nth, since) in watched.since.iter_mut().enumerate() {
                let probe = c.watched.len() * PROBES + nth;
                let page = first + nth as u32 * (BASES / PROBES as u32) + c.random_below();
                let Some(region) = pager.regions.get(id) else { break };
                pager.huge.probes.begin(probe, region.start() + page as usize * PAGE);
                *since = sys::now();
                if !self.arm(&mut ring, id, page) {
                    // Shared with a child, or not to be moved: nor to be collapsed.
                    *since = 0;
                    break;
                }
            }
            if watched.since[0] != 0 {
                c.watched.push(watched);
            }
        }
        drop(ring);
        pager.leave(self.id);
        let spent = (sys::thread_cpu() - began).get();
        pager.stats().counters.sampling_ns.fetch_add(spent, Relaxed);
        if !c.watched.is_empty() {
            c.due = now + LOOK_EVERY;
        }
    }

    /// Sees what has been touched. When there is no more to wait for, what it comes to.
    fn see(&mut self, c: &mut Collapser, now: u64) {
        let probes = &self.pager.huge.probes;
        let mut waiting = false;
        for (range, watched) in c.watched.iter().enumerate() {
            for (nth, &since) in watched.since.iter().enumerate() {
                let untouched = probes.when(range * PROBES + nth).is_none();
                waiting |= since != 0 && untouched && now < since + LOOK_FOR;
            }
        }
        if waiting {
            c.due = now + LOOK_EVERY;
            return;
        }
        for (range, watched) in c.watched.iter().enumerate() {
            let mut look = Look::default();
            for (nth, &since) in watched.since.iter().enumerate().filter(|(_, since)| **since != 0)
            {
                let when = probes.when(range * PROBES + nth);
                look.touched += u32::from(when.is_some());
                look.exposed += when.unwrap_or(now).saturating_sub(since);
            }
            c.visits.note(look);
            if look.touched > 0 {
                c.chosen.push((watched.range, look));
            }
        }
        c.chosen.sort_unstable_by(|(_, a), (_, b)| a.rate().total_cmp(&b.rate()));
        self.end_look(c);
        c.due = 0;
    }

    /// Waits for no touch any more; what was not touched goes back where it was.
    fn end_look(&mut self, c: &mut Collapser) {
        if !c.watched.is_empty() {
            c.watched.clear();
            self.pager.huge.probes.clear();
            self.disarm_old();
        }
    }

    /// Asks the economist about a range that is in use.
    fn consider(&mut self, c: &mut Collapser, range: (u32, u32), look: &Look) {
        let (heat, reason) = c.evidence(self.pager, look);
        self.propose(c, range, heat, (Urgency::Voluntary, reason));
    }

    /// Proposes to collapse a range, and does so if the economist lets it pass.
    fn propose(
        &mut self,
        c: &mut Collapser,
        (id, first): (u32, u32),
        heat: Heat,
        why: (Urgency, Reason),
    ) {
        let pager = self.pager;
        if !core::mem::replace(&mut c.timed, true)
            && let Some(cost) = page_walk_cost::measure()
        {
            pager.decide.decider.lock().set_page_walk(cost);
        }
        let action = Action::Collapse { range: Pager::page_range(id, first, BASES) };
        let Some(proposal) = pager.decide.decider.lock().collapse(pager, action, heat, why, c.busy)
        else {
            return;
        };
        let work = Work::begin();
        let outcome = self.carry_out_collapse(id, first);
        match outcome {
            Outcome::Completed { .. } => (c.fruitful, c.rest) = (true, REST.0),
            Outcome::Aborted(Abort::NoMemory) => {
                c.rest = (c.rest * 2).min(REST.1);
                c.chosen.clear();
                c.due = sys::now() + c.rest;
            }
            Outcome::Aborted(_) => {}
        }
        let mut decider = pager.decide.decider.lock();
        match outcome {
            Outcome::Completed { .. } => decider.carried_out(pager, proposal, outcome),
            Outcome::Aborted(abort) => decider.in_vain(pager, proposal, abort, work.took()),
        }
    }

    /// Collapses a range, if it is as it was when it was chosen.
    fn carry_out_collapse(&mut self, id: u32, first: u32) -> Outcome {
        let pager = self.pager;
        // While it lasts there are both, the huge page and the base pages.
        if !free_huge_pages() || !pager.try_reserve(u64::from(BASES)) {
            return Outcome::Aborted(Abort::NoMemory);
        }
        // A fork waits until this is over, and none is under way.
        let outcome = if pager.enter(self.id) {
            match pager.regions.get(id).filter(|region| first + BASES <= region.pages()) {
                Some(region) => self.collapse_range(id, region, first),
                None => Outcome::Aborted(Abort::Stale),
            }
        } else {
            Outcome::Aborted(Abort::Busy)
        };
        pager.leave(self.id);
        pager.release(u64::from(BASES));
        outcome
    }

    /// With every page of the range taken, so that none leaves meanwhile. Of the faults,
    /// only those on its own pages could wait for that, and they are resident. Should the
    /// program have unmapped it already, whatever is there now keeps its content.
    fn collapse_range(&mut self, id: u32, region: &Region, first: u32) -> Outcome {
        let pager = self.pager;
        let resident = PageState::Resident.word();
        let place = |page| Place { id, region, page, word: region.word(page) };
        let taken = (first..first + BASES)
            .take_while(|&page| pager.try_lock_page(&place(page), PageState::Resident))
            .count() as u32;
        let at = region.start() + first as usize * PAGE;
        let outcome = if taken < BASES {
            Outcome::Aborted(Abort::Busy)
        } else if !self.pagemap.all_exclusive::<{ BASES as usize }>(at) {
            Outcome::Aborted(Abort::Stale)
        } else {
            inject::at(Point::Collapse);
            let work = Work::begin();
            // SAFETY: changes no content.
            match unsafe { sys::madvise(at, CHUNK, MADV_COLLAPSE) } {
                Ok(()) => {
                    pager.regions.set_huge(at, true);
                    pager.stats().counters.huge_collapsed.fetch_add(1, Relaxed);
                    work.completed(pager, BASES)
                }
                Err(libc::ENOMEM) => Outcome::Aborted(Abort::NoMemory),
                Err(_) => Outcome::Aborted(Abort::Busy),
            }
        };
        for page in first..first + taken {
            region.word(page).store(resident, Release);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::fixture::{pager, touch};

    /// A range with one page that is not in DRAM cannot become a huge page; what has been seen is not
    /// looked at again in the same round.
    #[test]
    fn a_round_finds_each_range_whose_base_pages_are_all_resident_once() {
        let bases = BASES as usize;
        let pager = pager(4 * bases);
        (0..bases).for_each(|page| touch(pager, page));
        (2 * bases..3 * bases - 1).for_each(|page| touch(pager, page));
        (3 * bases..4 * bases).for_each(|page| touch(pager, page));
        let mut collapser = Collapser::new(pager);
        let mut found = Vec::new();
        loop {
            match collapser.search(pager) {
                Found::Range(_, first) => found.push(first),
                Found::NotYet => {}
                Found::Nothing => break,
            }
        }
        assert_eq!(found, [0, 3 * BASES]);
        assert!(matches!(collapser.search(pager), Found::Range(_, 0)), "the next round");
    }

    #[test]
    fn rounds_without_fruit_come_less_and_less_often_until_the_program_does_something_else() {
        let mut collapser = Collapser::new(pager(1));
        collapser.activity = 7;
        let mut rests = Vec::new();
        for _ in 0..10 {
            collapser.end_round(7, 0);
            rests.push(collapser.due);
        }
        assert!(rests.windows(2).all(|pair| pair[1] == (2 * pair[0]).min(REST.1)), "{rests:?}");
        assert_eq!(rests.last(), Some(&REST.1));
        collapser.end_round(8, 5);
        assert_eq!(collapser.due, 5 + REST.0);
        collapser.end_round(8, 0);
        collapser.fruitful = true;
        collapser.end_round(8, 0);
        assert_eq!(collapser.due, REST.0, "what pays goes on");
    }

    #[test]
    fn where_memory_is_short_or_was_a_moment_ago_nothing_is_made_of_it() {
        let pager = pager(1);
        let mut collapser = Collapser::new(pager);
        assert!(collapser.is_calm(pager, 1), "nothing has left yet");
        pager.stats().counters.demotions.fetch_add(1, Relaxed);
        assert!(!collapser.is_calm(pager, 1));
        assert!(!collapser.is_calm(pager, CALM));
        assert!(collapser.is_calm(pager, CALM + 1));
        pager.reserve_over(pager.budget());
        assert!(!collapser.is_calm(pager, 2 * CALM));
    }
}
