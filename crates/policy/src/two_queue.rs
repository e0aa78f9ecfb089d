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

use terrace_core::{
    Abort, Bytes, Done, FaultKind, Heat, MAX_TIERS, Outcome, PageRange, PageRef, Plan, Reason,
    Region, Sample, Telemetry, TierId,
};

use crate::contract::{Footprint, Needs, Policy};
use crate::roster::{Candidate, End, Next, Roster, Standing};

/// A page that comes back within this part of the tier's pages is kept. Among
/// pages that are touched equally seldom, so many of each tier's worth of
/// refaults are kept by mistake, each at the cost of one that was kept rightly:
/// 1/8 keeps that near 1 % where memory is a quarter of the working set.
const NEAR: u64 = 8;
/// Probation keeps at least this part of the tier, so that pages have a chance
/// to be asked for twice; and at most all but as much.
const LEAST: u64 = 64;

/// The queue of new pages.
const PROBATION: usize = 0;
/// The queue of pages that came back.
const MAIN: usize = 1;

/// What a tier has learnt.
#[derive(Clone, Copy, Debug, Default)]
struct Learnt {
    /// How long probation may be, in pages; follows what is missed.
    target: u64,
    /// Departures so far.
    departed: u64,
}

impl Learnt {
    fn clamp(&mut self, pages: u64) {
        let least = (pages / LEAST).max(1);
        self.target = self.target.clamp(least, pages.saturating_sub(least).max(least));
    }
}

/// The 2Q policy.
#[derive(Debug, Default)]
pub struct TwoQueue {
    /// Pages that have left are [`Standing::Away`], with the number of the
    /// departure as the note.
    roster: Roster<2>,
    learnt: [Learnt; MAX_TIERS],
}

impl TwoQueue {
    /// A policy that knows no region yet.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Pages in both queues of a tier.
fn pages(roster: &Roster<2>, tier: TierId) -> u64 {
    roster.len(tier, PROBATION) + roster.len(tier, MAIN)
}

/// Which queue a page that is brought in is for. Learns from it if it had left.
fn queue_for(
    roster: &Roster<2>,
    learnt: &mut [Learnt; MAX_TIERS],
    slot: u32,
    tier: TierId,
) -> usize {
    let Standing::Away(left, queue) = roster.standing(slot) else { return PROBATION };
    if left != tier {
        return PROBATION;
    }
    let learnt = &mut learnt[tier.index()];
    let distance = learnt.departed - roster.note(slot);
    let pages = pages(roster, tier);
    if queue == MAIN && distance <= pages {
        // It was evicted too early: the main queue is too short.
        learnt.target = learnt.target.saturating_sub(1);
        learnt.clamp(pages);
        MAIN
    } else if queue == PROBATION && distance <= pages / NEAR {
        // A somewhat longer probation would have kept it.
        learnt.target += 1;
        learnt.clamp(pages);
        MAIN
    } else {
        PROBATION
    }
}

impl Policy for TwoQueue {
    fn name(&self) -> &'static str {
        "2q"
    }

    fn needs(&self) -> Needs {
        Needs { refaults: true, ..Needs::default() }
    }

    fn alloc(&mut self, region: &Region) {
        self.roster.alloc(region);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        let learnt = &mut self.learnt;
        self.roster.fault(page, kind, telemetry, |roster, slot, tier| match kind {
            FaultKind::Absent(_) => queue_for(roster, learnt, slot, tier),
            _ => PROBATION,
        })
    }

    fn samples(&mut self, _samples: &[Sample]) {}

    fn free(&mut self, range: PageRange, whole: bool) {
        self.roster.free(range, whole, |_| ());
    }

    fn tick(&mut self, _telemetry: &Telemetry, _plan: &mut Plan) {}

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        let learnt = &mut self.learnt[tier.index()];
        learnt.clamp(pages(&self.roster, tier));
        let target = learnt.target;
        self.roster.relieve(tier, bytes, telemetry, plan, |roster| {
            let from_probation =
                roster.len(tier, PROBATION) > target || roster.len(tier, MAIN) == 0;
            let (queue, reason) = if from_probation {
                (PROBATION, Reason::PressureOldest)
            } else {
                (MAIN, Reason::PressureNoneCold)
            };
            let slot = roster.oldest(tier, queue)?;
            Some((Candidate { slot, heat: Heat::default() }, reason))
        });
    }

    fn done(&mut self, done: &Done) {
        let learnt = &mut self.learnt;
        self.roster.done(done, |ended| match ended.outcome {
            _ if ended.is_away() => {
                let learnt = &mut learnt[ended.from.index()];
                learnt.departed += 1;
                Next::Away(learnt.departed)
            }
            // It was asked for on its way out: as good as a refault.
            Outcome::Aborted(Abort::Touched) => Next::List(MAIN, End::Young),
            // In place where it is, it will not be asked for again.
            Outcome::Completed { .. } => Next::List(PROBATION, End::Young),
            Outcome::Aborted(_) => Next::List(ended.list, ended.usual_end()),
        });
    }

    fn footprint(&self) -> Footprint {
        Footprint::of(size_of::<Self>(), self.roster.heap_bytes(), self.roster.slots())
    }
}
