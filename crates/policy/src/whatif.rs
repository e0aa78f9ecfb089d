//! What another policy would have done with the touches of a recorded run: a
//! world of page states alone, driven by recorded events.
//!
//! It follows the live pager as far as that decides which pages stay: room is
//! made ahead of need and in batches; a page that leaves waits in a ring of
//! staging slots first, where a touch still stops it; a page that is not there
//! is brought in when it is touched. How much room is free at each moment is what was free in the
//! recorded run ([`crate::pace`]), in proportion to the budget.
//!
//! What it cannot know: a live run sees a touch of a resident page only if the
//! page was made to fault on purpose. A policy that demotes a page which the
//! recorded one kept is thus charged for those touches only that were seen. So
//! the recorded policy's own replay stands beside every other one: what differs
//! between the two is the policy's doing, what differs between the recording
//! and its replay is the model's.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use terrace_core::{
    Abort, Access, Action, Bytes, Cycles, Done, Event, FaultKind, Nanos, OpId, Outcome, PageRange,
    PageRef, PageSize, Plan, Proposal, Region, RegionId, Sample, SampleSource, Telemetry, TierId,
    TierTelemetry,
};

use crate::brain::Brain;
use crate::pace::{Pace, budget_at};

const DRAM: TierId = TierId(0);
/// Pages staged at once, as in the live pager, which keeps so many in staging slots for a policy
/// that has no use for what their touches tell.
const BATCH: usize = 32;
/// With fewer free slots pages are not staged, as in the live pager.
const LEAST_ROOM: usize = 8;
/// Demotions asked of the policy at once, as in the live pager.
const ASK: usize = 256;
/// What of a budget the pager keeps free at least: one part of so many.
const HEADROOM: u64 = 32;
/// Pages of all regions together: 4 TiB of base pages, the live pager's window.
const MOST_PAGES: u64 = 1 << 30;
/// A page that is back after so short a time has left for nothing.
const SOON: Nanos = Nanos::SECOND;

/// What happened to pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Touches of memory never touched before.
    pub first_touches: u64,
    /// Touches that found their page in DRAM.
    pub hits: u64,
    /// Of these, touches of pages that were about to leave, or that fault on purpose: somebody
    /// waits for them, too.
    pub hint_faults: u64,
    /// Touches that had to bring their page in: promotions.
    pub misses: u64,
    /// Of these, touches that the recorded run cannot have seen, for its page was in DRAM: as many
    /// as there must have been by how soon these pages came back otherwise.
    pub unseen: u64,
    /// Pages that left.
    pub demotions: u64,
    /// Demotions that a touch stopped.
    pub cancelled: u64,
    /// Misses of pages that had left less than a second before.
    pub ping_pongs: u64,
    /// Touches for which nothing could leave, so that the budget was exceeded.
    pub over_budget: u64,
    /// Events about memory that the recording does not tell of.
    pub unknown: u64,
}

/// What the recording itself tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Recorded {
    /// The same counts, as they really were. Hits are those that were seen.
    pub counts: Counts,
    /// Cost of all demotions together.
    pub demotion_cost: Cycles,
    /// The first and the last event's time.
    pub span: Option<(Nanos, Nanos)>,
}

impl Recorded {
    /// Takes in an event.
    pub fn feed(&mut self, event: &Event) {
        let now = match event {
            Event::Fault { kind, telemetry, .. } => {
                match kind {
                    FaultKind::FirstTouch(_) => self.counts.first_touches += 1,
                    FaultKind::Absent(_) => self.counts.misses += 1,
                    FaultKind::Hint(_) => {
                        self.counts.hits += 1;
                        self.counts.hint_faults += 1;
                    }
                    FaultKind::WriteProtected | FaultKind::Ahead => {}
                }
                telemetry.now
            }
            Event::Done { done, telemetry } => {
                if matches!(done.proposal.action, Action::Demote { .. }) {
                    match done.outcome {
                        Outcome::Completed { cost, .. } => {
                            self.counts.demotions += 1;
                            self.demotion_cost += cost;
                        }
                        Outcome::Aborted(Abort::Touched) => self.counts.cancelled += 1,
                        Outcome::Aborted(_) => {}
                    }
                }
                telemetry.now
            }
            Event::Tick { telemetry } | Event::Pressure { telemetry, .. } => telemetry.now,
            _ => return,
        };
        let (first, last) = self.span.unwrap_or((now, now));
        self.span = Some((first, last.max(now)));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum State {
    Fresh = 0,
    Resident,
    Staged,
    Stored,
}

/// A touch that is expected of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Unseen {
    at: Nanos,
    region: u32,
    page: u32,
    /// When the page left.
    left: Nanos,
    /// Whether it is another page's touch that brings it.
    ahead: bool,
}

/// A policy in such a world.
///
/// More than twenty fields: what a world is made of (frames, clocks, what observes), its counters, and what
/// a replay is told of the run; an event changes several of them at once.
pub struct WhatIf {
    brain: Brain,
    plan: Plan,
    budget: u64,
    resident: u64,
    /// Of the recorded budget, if that is followed.
    proportion: Option<f64>,
    /// Pages that are kept free.
    headroom: u64,
    slots: usize,
    /// Pages that stay in staging slots while there is room.
    staged_enough: usize,
    /// Page states by region; the numbers are those of [`State`].
    regions: HashMap<RegionId, Vec<u8>>,
    pages: u64,
    victims: VecDeque<Proposal>,
    /// Pages in staging slots, and the order in which they came.
    staged: HashMap<PageRef, Proposal>,
    order: VecDeque<(PageRef, OpId)>,
    /// Pages that have left since the recorded run was last looked at.
    gone: Vec<PageRef>,
    /// Touches that are expected of pages that the recorded run has in DRAM, the next first.
    unseen: BinaryHeap<Reverse<Unseen>>,
    /// Touches of pages of which nothing is known, that are due and not expected yet.
    owed: f64,
    /// When these pages left.
    left_at: HashMap<PageRef, Nanos>,
    /// When pages left, as long as that is not long ago.
    left: HashMap<PageRef, Nanos>,
    departures: VecDeque<(PageRef, Nanos)>,
    telemetry: Telemetry,
    demotion_cost: Cycles,
    counts: Counts,
}

impl WhatIf {
    /// A world with so much DRAM. A demotion is charged the given cost.
    pub fn new(brain: Brain, budget: Bytes, demotion_cost: Cycles) -> Self {
        let budget = (budget.get() >> PageSize::Base.shift()).max(1);
        let mut world = Self {
            brain,
            plan: Plan::new(),
            budget: 0,
            proportion: None,
            resident: 0,
            headroom: (budget / HEADROOM).clamp(8, 2048),
            slots: 0,
            staged_enough: 0,
            regions: HashMap::new(),
            pages: 0,
            victims: VecDeque::new(),
            staged: HashMap::new(),
            order: VecDeque::new(),
            gone: Vec::new(),
            unseen: BinaryHeap::new(),
            owed: 0.0,
            left_at: HashMap::new(),
            left: HashMap::new(),
            departures: VecDeque::new(),
            telemetry: Telemetry::default(),
            demotion_cost,
            counts: Counts::default(),
        };
        world.set_budget(budget);
        world
    }

    fn set_budget(&mut self, pages: u64) {
        self.budget = pages.max(1);
        self.slots = (self.budget / 10).clamp(32, 8192) as usize;
        let samples = self.brain.needs().samples;
        self.staged_enough =
            if samples { self.slots / 2 + BATCH.min(self.slots / 4) } else { BATCH };
    }

    /// Of a run that was recorded with another budget: this one changes as that one did, in
    /// proportion.
    #[must_use]
    pub fn in_place_of(mut self, recorded: Bytes) -> Self {
        let budget = PageSize::Base.bytes() * self.budget;
        self.proportion = (!recorded.is_zero()).then(|| budget / recorded);
        self
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Pages in DRAM.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// After an event: keeps as much of the budget free as the pager did in the recorded run, and
    /// touches what the program will have touched unseen.
    pub fn follow(&mut self, recorded: &Pace) {
        if let Some(share) = recorded.free() {
            self.headroom = (share * self.budget as f64) as u64;
            self.keep_headroom();
        }
        let now = self.telemetry.now;
        for page in core::mem::take(&mut self.gone) {
            if !recorded.is_resident(page) {
                continue;
            }
            let away = recorded.away(page).or_else(|| {
                let (share, away) = recorded.come_back();
                self.owed += share;
                (self.owed >= 1.0).then(|| {
                    self.owed -= 1.0;
                    (away, false)
                })
            });
            if let Some((away, ahead)) = away {
                let (region, page) = (page.region.0, page.page.0);
                self.unseen.push(Reverse(Unseen {
                    at: now + away,
                    region,
                    page,
                    left: now,
                    ahead,
                }));
            }
        }
        while let Some(&Reverse(touch)) = self.unseen.peek() {
            if touch.at > now {
                break;
            }
            self.unseen.pop();
            let Unseen { region, page, left, ahead, .. } = touch;
            let page = PageRef { region: RegionId(region), page: terrace_core::PageNo(page) };
            // If it has left the recorded run's DRAM since, its touch is seen.
            if recorded.is_resident(page)
                && self.state(page) == Some(State::Stored)
                && self.left_at.get(&page) == Some(&left)
            {
                if ahead {
                    self.brought_ahead(page);
                } else {
                    self.counts.unseen += 1;
                    self.touched(page, FaultKind::Absent(Access::Read));
                }
            }
        }
    }

    /// Lets an event happen.
    pub fn feed(&mut self, event: &Event) {
        if let Some((proportion, budget)) = self.proportion.zip(budget_at(event)) {
            let pages = budget.get() >> PageSize::Base.shift();
            self.set_budget((pages as f64 * proportion) as u64);
        }
        match event {
            Event::Alloc { region } => self.alloc(region),
            Event::Fault { page, kind, telemetry } => {
                self.observe(telemetry);
                self.touched(*page, *kind);
            }
            Event::Samples { samples } => {
                // What faults told is told anew, by the faults of this world.
                let seen = |s: &&Sample| {
                    !matches!(s.source, SampleSource::Refault | SampleSource::HintFault)
                        && self.state(s.page).is_some()
                };
                let others: Vec<_> = samples.iter().filter(seen).copied().collect();
                if !others.is_empty() {
                    self.brain.samples(&others);
                }
            }
            Event::Discard { range } => self.free(*range, false),
            Event::Free { range } => self.free(*range, true),
            Event::Tick { telemetry } => {
                self.observe(telemetry);
                self.tick();
            }
            // Nothing is known of the future here, and nothing is split.
            Event::Foresight { .. } | Event::Split { .. } | Event::BaseSamples { .. } => {}
            Event::Context { event } => self.brain.context(event),
            // Pressure and ends are this world's own.
            Event::Pressure { telemetry, .. } | Event::Done { telemetry, .. } => {
                self.observe(telemetry);
            }
        }
    }

    /// The world as this policy makes it, at the recorded time.
    fn observe(&mut self, recorded: &Telemetry) {
        let page = PageSize::Base.bytes();
        let now = self.telemetry.now.max(recorded.now);
        let of = |tier: usize, capacity: u64, used: u64, addressable| TierTelemetry {
            capacity: page * capacity,
            free: page * capacity.saturating_sub(used),
            addressable,
            read_latency: recorded.tiers[tier].read_latency,
            write_latency: recorded.tiers[tier].write_latency,
            ..TierTelemetry::default()
        };
        let mut telemetry = Telemetry {
            now,
            tier_count: 2,
            migration_budget: Bytes::gib(1),
            sample_period: recorded.sample_period,
            ..Telemetry::default()
        };
        if recorded.cpu_load.is_finite() {
            telemetry.cpu_load = recorded.cpu_load.clamp(0.0, 1.0);
        }
        telemetry.tiers[0] = of(0, self.budget, self.resident, true);
        telemetry.tiers[1] = of(1, self.pages + self.budget, self.pages, false);
        self.telemetry = telemetry;
        while let Some(&(page, at)) = self.departures.front() {
            if now - at < SOON {
                break;
            }
            self.departures.pop_front();
            if self.left.get(&page) == Some(&at) {
                self.left.remove(&page);
            }
        }
    }

    fn alloc(&mut self, region: &Region) {
        if region.page_size != PageSize::Base
            || self.pages + u64::from(region.pages) > MOST_PAGES
            || region.pages == 0
        {
            self.counts.unknown += 1;
            return;
        }
        // A number that is used again although its end was lost.
        if let Some(old) = self.regions.get(&region.id) {
            let count = old.len() as u32;
            let range = PageRange { region: region.id, start: terrace_core::PageNo(0), count };
            self.free(range, true);
        }
        self.pages += u64::from(region.pages);
        self.regions.insert(region.id, vec![State::Fresh as u8; region.pages as usize]);
        self.brain.alloc(region);
    }

    fn state(&self, page: PageRef) -> Option<State> {
        let state = *self.regions.get(&page.region)?.get(page.page.0 as usize)?;
        [State::Fresh, State::Resident, State::Staged, State::Stored]
            .get(usize::from(state))
            .copied()
    }

    fn set(&mut self, page: PageRef, state: State) {
        let pages = self.regions.get_mut(&page.region);
        if let Some(slot) = pages.and_then(|pages| pages.get_mut(page.page.0 as usize)) {
            *slot = state as u8;
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        let Some(pages) = self.regions.get(&range.region) else {
            self.counts.unknown += 1;
            return;
        };
        let length = pages.len() as u32;
        let range = if whole {
            PageRange { start: terrace_core::PageNo(0), count: length, ..range }
        } else {
            let start = range.start.0.min(length);
            let count = range.count.min(length - start);
            PageRange { start: terrace_core::PageNo(start), count, ..range }
        };
        for number in range.start.0..range.start.0 + range.count {
            let page = PageRef { region: range.region, page: terrace_core::PageNo(number) };
            match self.state(page) {
                Some(State::Resident) => self.resident -= 1,
                Some(State::Staged) => {
                    self.resident -= 1;
                    if let Some(proposal) = self.staged.remove(&page) {
                        self.end(proposal, Outcome::Aborted(Abort::Stale));
                    }
                }
                _ => {}
            }
            self.set(page, State::Fresh);
        }
        if whole {
            self.regions.remove(&range.region);
            self.pages -= u64::from(length);
        }
        self.brain.free(range, whole);
    }

    /// A page came in with another one that was missed.
    fn brought_ahead(&mut self, page: PageRef) {
        if self.state(page) == Some(State::Stored) {
            self.reserve();
            self.resident += 1;
            self.set(page, State::Resident);
            self.left.remove(&page);
            self.brain.fault(page, FaultKind::Ahead, &self.telemetry);
            self.keep_headroom();
        }
    }

    fn touched(&mut self, page: PageRef, kind: FaultKind) {
        let access = match kind {
            FaultKind::FirstTouch(access) | FaultKind::Absent(access) | FaultKind::Hint(access) => {
                access
            }
            FaultKind::WriteProtected => return,
            FaultKind::Ahead => return self.brought_ahead(page),
        };
        let Some(state) = self.state(page) else {
            self.counts.unknown += 1;
            return;
        };
        let seen = |source| Sample { page, access, source, weight: 1 };
        match state {
            State::Fresh | State::Stored => {
                self.reserve();
                let kind = if state == State::Fresh {
                    self.counts.first_touches += 1;
                    FaultKind::FirstTouch(access)
                } else {
                    self.counts.misses += 1;
                    self.counts.ping_pongs += u64::from(self.left.remove(&page).is_some());
                    FaultKind::Absent(access)
                };
                self.resident += 1;
                self.set(page, State::Resident);
                self.brain.fault(page, kind, &self.telemetry);
                if state == State::Stored {
                    self.brain.samples(&[seen(SampleSource::Refault)]);
                }
                self.keep_headroom();
            }
            State::Staged => {
                self.counts.hits += 1;
                self.counts.hint_faults += 1;
                self.counts.cancelled += 1;
                self.set(page, State::Resident);
                self.brain.fault(page, FaultKind::Hint(access), &self.telemetry);
                self.brain.samples(&[seen(SampleSource::HintFault)]);
                if let Some(proposal) = self.staged.remove(&page) {
                    self.end(proposal, Outcome::Aborted(Abort::Touched));
                }
            }
            State::Resident => {
                self.counts.hits += 1;
                if matches!(kind, FaultKind::Hint(_)) {
                    self.counts.hint_faults += 1;
                    self.brain.fault(page, kind, &self.telemetry);
                    self.brain.samples(&[seen(SampleSource::HintFault)]);
                }
            }
        }
    }

    fn tick(&mut self) {
        let mut plan = core::mem::take(&mut self.plan);
        self.brain.tick(&self.telemetry, &mut plan);
        for proposal in plan.proposals() {
            if matches!(proposal.action, Action::Demote { .. }) {
                self.victims.push_back(*proposal);
            } else {
                self.end(*proposal, Outcome::Aborted(Abort::Unsupported));
            }
        }
        self.plan = plan;
    }

    fn end(&mut self, proposal: Proposal, outcome: Outcome) {
        self.brain.done(&Done { proposal, outcome }, &self.telemetry);
    }

    fn reserve(&mut self) {
        while self.resident >= self.budget {
            if !self.make_room() {
                self.counts.over_budget += 1;
                return;
            }
        }
    }

    fn keep_headroom(&mut self) {
        while self.resident + self.headroom > self.budget && self.make_room() {}
    }

    /// One round; false if nothing could be done.
    fn make_room(&mut self) -> bool {
        let room = self.slots.saturating_sub(self.staged.len());
        let full = self.staged.len() >= self.staged_enough;
        let staged = if room >= LEAST_ROOM && !full { self.stage(room.min(BATCH)) } else { 0 };
        staged > 0 || self.compress()
    }

    fn stage(&mut self, most: usize) -> usize {
        if self.victims.len() < most {
            let mut plan = core::mem::take(&mut self.plan);
            let bytes = PageSize::Base.bytes() * (ASK - self.victims.len()) as u64;
            self.brain.pressure(DRAM, bytes, &self.telemetry, &mut plan);
            self.victims.extend(plan.proposals());
            self.plan = plan;
        }
        let mut staged = 0;
        while staged < most {
            let Some(proposal) = self.victims.pop_front() else { break };
            let Action::Demote { page, .. } = proposal.action else {
                self.end(proposal, Outcome::Aborted(Abort::Unsupported));
                continue;
            };
            if self.state(page) != Some(State::Resident) {
                self.end(proposal, Outcome::Aborted(Abort::Stale));
                continue;
            }
            self.set(page, State::Staged);
            self.order.push_back((page, proposal.op));
            self.staged.insert(page, proposal);
            staged += 1;
        }
        staged
    }

    /// The oldest in a staging slot leaves; false if there is none.
    fn compress(&mut self) -> bool {
        loop {
            let Some((page, op)) = self.order.pop_front() else { return false };
            // Touched or freed meanwhile, and perhaps staged again.
            if self.staged.get(&page).is_none_or(|proposal| proposal.op != op) {
                continue;
            }
            let Some(proposal) = self.staged.remove(&page) else { continue };
            self.set(page, State::Stored);
            self.resident -= 1;
            self.counts.demotions += 1;
            self.gone.push(page);
            self.left_at.insert(page, self.telemetry.now);
            self.left.insert(page, self.telemetry.now);
            self.departures.push_back((page, self.telemetry.now));
            let moved = PageSize::Base.bytes();
            self.end(proposal, Outcome::Completed { cost: self.demotion_cost, moved });
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::{ContextId, PageNo};
    use terrace_economics::{Calibration, Economist, Mode};

    use super::*;
    use crate::PolicyName;

    const REGION: RegionId = RegionId(1);

    fn brain(policy: PolicyName) -> Brain {
        let machine = terrace_core::Machine::parse(
            "optane.toml",
            include_str!("../../../machines/optane-cascade-lake.toml"),
        )
        .unwrap();
        let calibration = Calibration::from_machine(&machine);
        Brain::new(policy.build(), Economist::new(Mode::Enforce, calibration))
    }

    fn world(policy: PolicyName, budget: Bytes) -> WhatIf {
        let mut world = WhatIf::new(brain(policy), budget, Cycles(10_000));
        let context = ContextId::ANONYMOUS;
        let region = Region { id: REGION, pages: 4096, page_size: PageSize::Base, context };
        world.feed(&Event::Alloc { region });
        world
    }

    fn touch(world: &mut WhatIf, number: u32, kind: fn(Access) -> FaultKind, now: Nanos) {
        let page = PageRef { region: REGION, page: PageNo(number) };
        let telemetry = Box::new(Telemetry { now, tier_count: 2, ..Telemetry::default() });
        world.feed(&Event::Fault { page, kind: kind(Access::Write), telemetry });
    }

    #[test]
    fn what_fits_is_never_demoted_and_every_touch_is_a_hit() {
        let mut world = world(PolicyName::HeMem, Bytes::mib(4));
        for n in 0..512 {
            touch(&mut world, n, FaultKind::FirstTouch, Nanos(u64::from(n) * 1000));
        }
        for n in 0..512 {
            touch(&mut world, n, FaultKind::Absent, Nanos::millis(10));
        }

        let expected = Counts { first_touches: 512, hits: 512, ..Counts::default() };
        assert_eq!(world.counts(), expected);
        assert_eq!(world.resident(), 512);
    }

    #[test]
    fn a_walk_over_twice_the_budget_misses_and_keeps_to_the_budget() {
        for policy in PolicyName::ALL {
            let mut world = world(policy, Bytes::mib(4));
            for n in 0..2048 {
                touch(&mut world, n, FaultKind::FirstTouch, Nanos(u64::from(n) * 1000));
                assert!(world.resident() <= 1024, "{policy}: {}", world.resident());
            }
            for n in 0..2048 {
                touch(&mut world, n, FaultKind::Absent, Nanos::millis(10 + u64::from(n)));
            }

            let counts = world.counts();
            assert!(counts.misses > 1000, "{policy}: {counts:?}");
            assert_eq!(counts.misses + counts.hits, 2048, "{policy}: {counts:?}");
            assert!(counts.demotions >= 1024 + counts.misses - 200, "{policy}: {counts:?}");
            assert_eq!(counts.over_budget, 0, "{policy}: {counts:?}");
        }
    }

    #[test]
    fn more_memory_means_fewer_misses() {
        let misses = |budget| {
            let mut world = world(PolicyName::HeMem, budget);
            // At random: a loop over more than fits misses always, whatever fits.
            let mut random = terrace_core::Xorshift::new(88_172_645_463_325_252);
            for n in 0..20_000 {
                touch(
                    &mut world,
                    (random.draw() >> 32) as u32 % 2048,
                    FaultKind::Absent,
                    Nanos::millis(n),
                );
            }
            world.counts().misses
        };

        let (small, large, ample) =
            (misses(Bytes::mib(2)), misses(Bytes::mib(6)), misses(Bytes::mib(16)));

        assert!(small > large && large > ample && ample == 0, "{small} {large} {ample}");
    }

    #[test]
    fn freed_memory_gives_its_room_back() {
        let mut world = world(PolicyName::HeMem, Bytes::mib(4));
        for n in 0..2048 {
            touch(&mut world, n, FaultKind::FirstTouch, Nanos(u64::from(n)));
        }

        let range = PageRange { region: REGION, start: PageNo(0), count: 4096 };
        world.feed(&Event::Free { range });

        assert_eq!(world.resident(), 0);
        touch(&mut world, 0, FaultKind::Absent, Nanos(1));
        assert_eq!(world.counts().unknown, 1, "the region is gone");
    }
}
