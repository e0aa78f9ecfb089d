//! Refault: what leaves is what has been missed least.
//!
//! Pages are *classed* by how they came back. What is brought in for the first time, or after a
//! long absence, is of the lowest class, first in, first out. One that left and is asked for
//! again much sooner than what left the lowest class usually is rises by a class. What a
//! class is worth is not set but measured: the *rate* at which pages that left it come back.
//! Each class gives up pages in proportion to its length and to the inverse fourth power of its
//! rate. So
//!
//! - a hot set that was asked for again stays, because nearly all of its leavers come back;
//! - one pass over cold memory goes through the lowest class, whose leavers do not;
//! - pages that were hot once and are dead leave their class, however high: it gives up a few,
//!   nobody misses them, and more follow;
//! - where what is new is in use and what rose is not (a working set that slides along), what
//!   is new is left alone.
//!
//! A rate is the number of leavers that came back, divided by how long leavers were away; those
//! that have not come back *yet* count with their time so far. Times are refault distances,
//! counted in departures as in Linux' `mm/workingset.c`. There is no threshold to set, and no need of
//! samples or a tick: what observes accesses are the faults that happen anyway.
//!
//! Sources: refault distances, Linux `mm/workingset.c`; classes that are entered by returning,
//! Zhou, Philbin, Li, The Multi-Queue Replacement Algorithm (USENIX ATC 2001); queues that are
//! judged by what returns after it has left them, Megiddo and Modha, ARC (FAST 2003). How the
//! constants were found: `docs/policies/refault.md`.

use terrace_core::{
    Abort, Bytes, Done, FaultKind, Heat, MAX_TIERS, Outcome, PageRange, PageRef, Plan, Reason,
    Region, Sample, Telemetry, TierId,
};

use crate::contract::{Footprint, Needs, Policy};
use crate::roster::{Candidate, End, Next, Roster, Standing};

/// How many classes there are.
const CLASSES: usize = 12;
/// The class of what nothing good is known of.
const LOWEST: usize = 0;

/// A page that comes back rises if of what left the lowest class hardly more than this part
/// is expected back by then. Where nothing is known that is a memory's worth of departures, the
/// furthest at which keeping it would have helped.
const NEAR: f64 = 0.1;
/// One that was away for longer than so many memories' worth of departures starts anew.
const FAR: f64 = 2.0;
/// A class gives up pages in proportion to this power of the inverse of its rate.
const SHARPNESS: i32 = 4;

/// Rates are averages over so many memories' worth of departures.
const REMEMBERED: f64 = 4.0;
/// What is presumed of a class before anything is known of it counts as if one leaver had been
/// away for so many memories' worth of departures.
const PRESUMED: f64 = 1.0;
/// It is presumed of the lowest class that its leavers come back at this rate...
const PRESUMED_RATE: f64 = 0.05;
/// ...and of the others, that theirs do so many times as fast: they rose for some reason.
const PRESUMED_BETTER: f64 = 2.0;
/// A tier counts as holding so many pages at least.
const FEWEST: f64 = 64.0;
/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a tier has learnt of its classes. Times are in departures.
#[derive(Clone, Copy, Debug)]
struct Learnt {
    /// Pages in the tier, as of the last time that it was short of room.
    pages: f64,
    /// Departures so far.
    departed: u64,
    /// Leavers of each class that are away, each with the weight
    /// `exp(-(time away) / pages)`.
    away: [f64; CLASSES],
    /// The sum of that over time: for how long leavers were away.
    waited: [f64; CLASSES],
    /// Leavers of each class that came back, with the same weights.
    returned: [f64; CLASSES],
    /// For the choice of classes: multiples of the golden ratio modulo 1, which are spread
    /// more evenly than random numbers and the same in every run.
    turn: u64,
}

impl Default for Learnt {
    fn default() -> Self {
        let none = [0.0; CLASSES];
        Self { pages: FEWEST, departed: 0, away: none, waited: none, returned: none, turn: 0 }
    }
}

impl Learnt {
    /// A page of a class has left.
    fn left(&mut self, class: usize) {
        self.departed += 1;
        let fade = 1.0 - 1.0 / self.pages;
        let forget = 1.0 - 1.0 / (REMEMBERED * self.pages);
        for away in &mut self.away {
            *away *= fade;
        }
        for (waited, away) in self.waited.iter_mut().zip(&self.away) {
            *waited = *waited * forget + away;
        }
        for returned in &mut self.returned {
            *returned *= forget;
        }
        self.away[class] += 1.0;
    }

    /// A page that had left a class came back after so many departures. Its class now.
    fn came_back(&mut self, class: usize, distance: u64) -> usize {
        let near = (NEAR / self.rate(LOWEST)).min(1.0);
        let distance = distance as f64 / self.pages;
        let weight = (-distance).exp();
        self.away[class] = (self.away[class] - weight).max(0.0);
        self.returned[class] += weight;
        if distance <= near {
            above(class)
        } else if distance <= FAR {
            class
        } else {
            LOWEST
        }
    }

    /// A page of a class was asked for on its way out: it left, and came back at once.
    fn turned_back(&mut self, class: usize) -> usize {
        self.returned[class] += 1.0;
        above(class)
    }

    /// How many leavers of a class come back in a memory's worth of departures, in
    /// proportion to those that are away.
    fn rate(&self, class: usize) -> f64 {
        let presumed =
            if class == LOWEST { PRESUMED_RATE } else { PRESUMED_BETTER * self.rate(LOWEST) };
        let memories = self.waited[class] / self.pages;
        (self.returned[class] + PRESUMED * presumed) / (memories + PRESUMED)
    }

    /// How readily a page of each class is given up.
    fn readiness(&self) -> [f64; CLASSES] {
        core::array::from_fn(|class| self.rate(class).powi(-SHARPNESS))
    }

    /// The class that gives up a page next; `len` says how long each is.
    fn next(&mut self, readiness: &[f64; CLASSES], len: impl Fn(usize) -> u64) -> Option<usize> {
        let shares: [f64; CLASSES] =
            core::array::from_fn(|class| len(class) as f64 * readiness[class]);
        self.turn = self.turn.wrapping_add(GOLDEN);
        let turn = self.turn as f64 / 2_f64.powi(64);
        let mut left = turn * shares.iter().sum::<f64>();
        let mut chosen = None;
        for (class, share) in shares.into_iter().enumerate().filter(|(_, share)| *share > 0.0) {
            chosen = Some(class);
            left -= share;
            if left < 0.0 {
                break;
            }
        }
        chosen
    }
}

/// The class above.
fn above(class: usize) -> usize {
    (class + 1).min(CLASSES - 1)
}

/// The policy.
#[derive(Debug, Default)]
pub struct Refault {
    /// Pages that have left are [`Standing::Away`], with the number of the
    /// departure as the note.
    roster: Roster<CLASSES>,
    learnt: [Learnt; MAX_TIERS],
}

impl Refault {
    /// A policy that knows no region yet.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Policy for Refault {
    fn name(&self) -> &'static str {
        "refault"
    }

    fn needs(&self) -> Needs {
        Needs { refaults: true, ..Needs::default() }
    }

    fn alloc(&mut self, region: &Region) {
        self.roster.alloc(region);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        let Self { roster, learnt } = self;
        roster.fault(page, kind, telemetry, |roster, slot, tier| {
            match (kind, roster.standing(slot)) {
                (FaultKind::Absent(_) | FaultKind::Ahead, Standing::Away(left, class))
                    if left == tier =>
                {
                    let learnt = &mut learnt[tier.index()];
                    let to = learnt.came_back(class, learnt.departed - roster.note(slot));
                    if kind == FaultKind::Ahead { to.min(class) } else { to }
                }
                _ => LOWEST,
            }
        })
    }

    fn samples(&mut self, _samples: &[Sample]) {}

    fn free(&mut self, range: PageRange, whole: bool) {
        self.roster.free(range, whole, |_| ());
    }

    fn tick(&mut self, _telemetry: &Telemetry, _plan: &mut Plan) {}

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        let learnt = &mut self.learnt[tier.index()];
        let pages: u64 = (0..CLASSES).map(|class| self.roster.len(tier, class)).sum();
        learnt.pages = (pages as f64).max(FEWEST);
        let readiness = learnt.readiness();
        self.roster.relieve(tier, bytes, telemetry, plan, |roster| {
            let class = learnt.next(&readiness, |class| roster.len(tier, class))?;
            let slot = roster.oldest(tier, class)?;
            let reason =
                if class == LOWEST { Reason::PressureOldest } else { Reason::PressureNoneCold };
            Some((Candidate { slot, heat: Heat::default() }, reason))
        });
    }

    fn done(&mut self, done: &Done) {
        let learnt = &mut self.learnt;
        self.roster.done(done, |ended| {
            let learnt = &mut learnt[ended.from.index()];
            match ended.outcome {
                _ if ended.is_away() => {
                    learnt.left(ended.list);
                    Next::Away(learnt.departed)
                }
                Outcome::Aborted(Abort::Touched) => {
                    Next::List(learnt.turned_back(ended.list), End::Young)
                }
                // In place where it is, it will not be asked for again.
                Outcome::Completed { .. } => Next::List(LOWEST, End::Young),
                Outcome::Aborted(_) => Next::List(ended.list, ended.usual_end()),
            }
        });
    }

    fn footprint(&self) -> Footprint {
        Footprint::of(size_of::<Self>(), self.roster.heap_bytes(), self.roster.slots())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What a class is judged by. If leavers that have not returned yet were taken for ones that
    /// never will, or left out, a rate would depend on how much the class gave up lately.
    #[test]
    fn a_rate_is_measured_while_most_leavers_are_still_away() {
        for rate in [0.2, 1.0, 5.0] {
            let mut learnt = Learnt { pages: 1000.0, ..Learnt::default() };
            let mut due = BTreeMap::<u64, Vec<u64>>::default();
            let mut turn = 0.5;

            for now in 1..=12_000 {
                for left in due.remove(&now).unwrap_or_default() {
                    learnt.came_back(1, now - left);
                }
                // Every third page is of the class; each is away for as long as one of
                // those that return at this rate might be.
                let class = usize::from(now % 3 == 0);
                learnt.left(class);
                turn = (turn + 0.618_033_988_75) % 1.0;
                let away = -f64::ln(1.0 - turn) / rate * learnt.pages;
                if class == 1 {
                    due.entry(now + 1 + away as u64).or_default().push(now);
                }
            }

            let measured = learnt.rate(1);
            assert!((measured / rate - 1.0).abs() < 0.1, "{measured} instead of {rate}");
            assert!(learnt.rate(0) < 0.01, "none came back: {}", learnt.rate(0));
        }
    }

    #[test]
    fn classes_take_turns_in_proportion() {
        let mut learnt = Learnt::default();
        let mut given = [0; CLASSES];
        for _ in 0..1000 {
            let len = |class| [300, 0, 100, 0, 600].get(class).copied().unwrap_or(0);
            given[learnt.next(&[0.5; CLASSES], len).unwrap()] += 1;
        }
        assert_eq!(given.map(|n: i32| (n + 5) / 10)[..5], [30, 0, 10, 0, 60]);
        assert_eq!(learnt.next(&[0.5; CLASSES], |_| 0), None);
    }
}
