//! 2Q by refault distance: a page has to come back soon to be kept.
//!
//! A page that is brought in is on *probation*, first in, first out. If it
//! leaves and is asked for again before many others have left (its *refault
//! distance*), one pass over cold memory does not look like it, so it goes to
//! the *main* queue. Probation is what gives way while it is longer than its
//! target; so a scan passes through it and leaves the main queue alone. The
//! target follows what is missed (as in ARC): pages that come back after they
//! left probation lengthen it, pages that come back after they left the main
//! queue shorten it. It needs no samples, no tick and no setting: what observes accesses are
//! the faults that happen anyway.
//!
//! Sources: Johnson and Shasha, 2Q (VLDB 1994); Megiddo and Modha, ARC (FAST
//! 2003); refault distance as in Linux `mm/workingset.c`.

use bytemuck::Zeroable;
use terrace_core::{
    Abort, Action, Bytes, Done, FaultKind, Heat, MAX_TIERS, OpId, Outcome, PageRange, PageRef,
    Plan, Reason, Region, Sample, Telemetry, TierId, Urgency,
};

use crate::contract::{Footprint, Granularity, Needs, Policy};
use crate::dense::{Dense, InUse};
use crate::fifo::{Fifo, Link, Links};
use crate::regions::{Incoming, Regions, Room, fastest_with_room};

/// A page that comes back within this part of the tier's pages is kept. Among
/// pages that are touched equally seldom, so many of each tier's worth of
/// refaults are kept by mistake, each at the cost of one that was kept rightly:
/// 1/8 keeps that near 1 % where memory is a quarter of the working set.
const NEAR: u64 = 8;
/// Probation keeps at least this part of the tier, so that pages have a chance
/// to be asked for twice; and at most all but as much.
const LEAST: u64 = 64;

/// Where a page is, and when it left: 3 bits of kind, 3 of tier, 26 of the
/// count of departures (wraps after 256 GiB of them; a page that comes back
/// just then is kept by mistake once).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroable)]
struct Mark(u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Not known.
    Nowhere,
    /// In the queue of new pages.
    Probation,
    /// In the queue of pages that came back.
    Main,
    /// A demotion out of probation is under way.
    LeavingProbation,
    /// A demotion out of the main queue is under way.
    LeavingMain,
    /// Demoted from probation.
    GhostProbation,
    /// Demoted from the main queue.
    GhostMain,
}

const CLOCK: u32 = (1 << 26) - 1;
const _: () = assert!(MAX_TIERS <= 8, "three bits of tier");
const _: () = assert!(size_of::<Mark>() + size_of::<Link>() == 12, "the documented state per page");

impl Mark {
    fn new(kind: Kind, tier: TierId, when: u32) -> Self {
        Self(kind as u32 | u32::from(tier.0) << 3 | (when & CLOCK) << 6)
    }
    fn kind(self) -> Kind {
        match self.0 & 7 {
            1 => Kind::Probation,
            2 => Kind::Main,
            3 => Kind::LeavingProbation,
            4 => Kind::LeavingMain,
            5 => Kind::GhostProbation,
            6 => Kind::GhostMain,
            _ => Kind::Nowhere,
        }
    }
    fn tier(self) -> TierId {
        TierId((self.0 >> 3 & 7) as u8)
    }
    fn when(self) -> u32 {
        self.0 >> 6
    }
    fn is_listed(self) -> bool {
        matches!(self.kind(), Kind::Probation | Kind::Main)
    }
    fn is_leaving(self) -> bool {
        matches!(self.kind(), Kind::LeavingProbation | Kind::LeavingMain)
    }
}

/// A tier's two queues.
#[derive(Clone, Copy, Debug)]
struct Queues {
    probation: Fifo,
    main: Fifo,
    in_probation: u64,
    in_main: u64,
    /// How long probation may be, in pages; follows what is missed.
    target: u64,
    /// Departures so far.
    departed: u32,
}

impl Queues {
    const EMPTY: Self = Self {
        probation: Fifo::EMPTY,
        main: Fifo::EMPTY,
        in_probation: 0,
        in_main: 0,
        target: 0,
        departed: 0,
    };
    fn pages(&self) -> u64 {
        self.in_probation + self.in_main
    }
    fn clamp_target(&mut self) {
        let pages = self.pages();
        let least = (pages / LEAST).max(1);
        self.target = self.target.clamp(least, pages.saturating_sub(least).max(least));
    }
}

/// The 2Q policy.
#[derive(Debug)]
pub struct TwoQueue {
    regions: Regions,
    marks: Dense<Mark>,
    in_use: InUse,
    links: Links,
    queues: [Queues; MAX_TIERS],
    incoming: Incoming,
}

impl Default for TwoQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl TwoQueue {
    /// A policy that knows no region yet.
    pub fn new() -> Self {
        Self {
            regions: Regions::default(),
            marks: Dense::default(),
            in_use: InUse::default(),
            links: Links::default(),
            queues: [Queues::EMPTY; MAX_TIERS],
            incoming: Incoming::default(),
        }
    }

    /// Takes a page off its queue, if it is in one.
    fn unlist(&mut self, slot: u32) {
        let mark = self.marks[slot];
        let queues = &mut self.queues[mark.tier().index()];
        match mark.kind() {
            Kind::Probation => {
                queues.probation.remove(&mut self.links, slot);
                queues.in_probation -= 1;
            }
            Kind::Main => {
                queues.main.remove(&mut self.links, slot);
                queues.in_main -= 1;
            }
            _ => {}
        }
    }

    /// Forgets a page, ghost included.
    fn forget(&mut self, slot: u32) {
        if self.marks[slot].kind() != Kind::Nowhere {
            self.unlist(slot);
            self.marks[slot] = Mark::default();
            self.in_use.remove(slot);
        }
    }

    fn list(&mut self, slot: u32, tier: TierId, main: bool, oldest: bool) {
        let queues = &mut self.queues[tier.index()];
        let (queue, count, kind) = if main {
            (&mut queues.main, &mut queues.in_main, Kind::Main)
        } else {
            (&mut queues.probation, &mut queues.in_probation, Kind::Probation)
        };
        *count += 1;
        if oldest {
            queue.push_oldest(&mut self.links, slot);
        } else {
            queue.push(&mut self.links, slot);
        }
        self.marks[slot] = Mark::new(kind, tier, 0);
    }

    /// A page that had left comes back: which queue is it for? Learns from it.
    fn returns(&mut self, mark: Mark, tier: TierId) -> bool {
        if mark.tier() != tier {
            return false;
        }
        let queues = &mut self.queues[tier.index()];
        let distance = u64::from(queues.departed.wrapping_sub(mark.when()) & CLOCK);
        let pages = queues.pages();
        match mark.kind() {
            Kind::GhostMain if distance <= pages => {
                // It was evicted too early: the main queue is too short.
                queues.target = queues.target.saturating_sub(1);
                queues.clamp_target();
                true
            }
            Kind::GhostProbation if distance <= pages / NEAR => {
                // A somewhat longer probation would have kept it.
                queues.target += 1;
                queues.clamp_target();
                true
            }
            _ => false,
        }
    }

    /// An outcome of a demotion.
    fn finish(&mut self, page: PageRef, op: OpId, outcome: Outcome) {
        let Some(slot) = self.regions.slot(page) else { return };
        let mark = self.marks[slot];
        if !mark.is_leaving() || self.links.op(slot) != op {
            return;
        }
        let from = mark.tier();
        let was_main = mark.kind() == Kind::LeavingMain;
        match outcome {
            Outcome::Completed { .. } => {
                let queues = &mut self.queues[from.index()];
                queues.departed = queues.departed.wrapping_add(1) & CLOCK;
                let kind = if was_main { Kind::GhostMain } else { Kind::GhostProbation };
                self.marks[slot] = Mark::new(kind, from, queues.departed);
            }
            // It was asked for on its way out: as good as a refault.
            Outcome::Aborted(Abort::Touched) => self.list(slot, from, true, false),
            // Nothing is wrong with the page: it is still the oldest.
            Outcome::Aborted(Abort::NoMemory | Abort::RateLimited | Abort::Vetoed) => {
                self.list(slot, from, was_main, true);
            }
            // The page itself stands in the way: try the others first.
            Outcome::Aborted(_) => self.list(slot, from, was_main, false),
        }
    }
}

impl Policy for TwoQueue {
    fn name(&self) -> &'static str {
        "2q"
    }

    fn needs(&self) -> Needs {
        Needs { granularity: Granularity::Any, samples: false, reads_and_writes: false, tick: None }
    }

    fn alloc(&mut self, region: &Region) {
        let slots = self.regions.insert(region);
        self.marks.grow(slots);
        self.in_use.grow(slots);
        self.links.grow(slots);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        let slot = self.regions.slot(page);
        if let (Some(slot), FaultKind::Hint(_) | FaultKind::WriteProtected) = (slot, kind) {
            let mark = self.marks[slot];
            // On its way out and touched: its outcome will say so.
            if mark.is_listed() || mark.is_leaving() {
                return mark.tier();
            }
        }
        let tier = fastest_with_room(telemetry, self.regions.page_size(page));
        if let Some(slot) = slot {
            let mark = self.marks[slot];
            let main = matches!(kind, FaultKind::Absent(_)) && self.returns(mark, tier);
            if mark.kind() == Kind::Nowhere {
                self.in_use.add(slot);
            } else {
                self.unlist(slot);
            }
            self.list(slot, tier, main, false);
        }
        tier
    }

    fn samples(&mut self, _samples: &[Sample]) {}

    fn free(&mut self, range: PageRange, whole: bool) {
        let mut run = self.regions.run(range);
        while !run.is_empty() {
            let (part, any) = self.in_use.first_part(&run);
            run.start = part.end;
            if any {
                part.for_each(|slot| self.forget(slot));
            }
        }
        if whole {
            self.regions.remove(range.region);
        }
    }

    fn tick(&mut self, _telemetry: &Telemetry, _plan: &mut Plan) {}

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        let mut room = Room::new(telemetry, &self.incoming);
        let mut freed = Bytes::ZERO;
        self.queues[tier.index()].clamp_target();
        while freed < bytes {
            let queues = &self.queues[tier.index()];
            let from_probation = queues.in_probation > queues.target || queues.in_main == 0;
            let oldest =
                if from_probation { queues.probation.oldest() } else { queues.main.oldest() };
            let Some(slot) = oldest else { return };
            let Some((page, size)) = self.regions.page(slot) else {
                debug_assert!(false, "a listed page belongs to a region");
                return;
            };
            let Some(to) = room.below(tier, size, telemetry) else { return };
            let op = plan.push(
                Action::Demote { page, from: tier, to },
                size,
                Heat::default(),
                Urgency::Forced,
                if from_probation { Reason::PressureOldest } else { Reason::PressureNoneCold },
            );
            self.unlist(slot);
            let kind = if from_probation { Kind::LeavingProbation } else { Kind::LeavingMain };
            self.marks[slot] = Mark::new(kind, tier, 0);
            self.links.set_op(slot, op);
            self.incoming.begin(to, size);
            room.moved(tier, to, size);
            freed += size.bytes();
        }
    }

    fn done(&mut self, done: &Done) {
        if let Action::Demote { page, to, .. } = done.proposal.action {
            self.incoming.end(to, done.proposal.page_size);
            self.finish(page, done.proposal.op, done.outcome);
        }
    }

    fn footprint(&self) -> Footprint {
        let bytes = size_of::<Self>()
            + self.regions.heap_bytes()
            + self.marks.heap_bytes()
            + self.in_use.heap_bytes()
            + self.links.heap_bytes();
        Footprint { bytes: Bytes(bytes as u64), pages: self.regions.capacity() as u64 }
    }
}
