//! Pages by when they were last seen used, and walks over them.
//!
//! As Linux's multi-generational LRU has it: memory is walked in passes, a pass
//! reads and clears accessed bits, and a page's generation is the last pass in
//! which it was seen used. The two youngest generations are *active*; what is
//! older may be demoted. (`lru_gen`: "the youngest generation and the second
//! youngest are active", `Documentation/mm/multigen_lru.rst`.)

use terrace_core::{
    Abort, Action, Bytes, Done, FaultKind, Heat, Nanos, Outcome, PageRange, PageRef, PageSize,
    PerSecond, Plan, Reason, Region, Telemetry, TierId, Urgency,
};

use crate::roster::{Candidate, End, Next, PerPage, Raised, Roster, Standing};

/// Pages in order of use.
pub(crate) const USED: usize = 0;
/// Pages that wait to be promoted.
pub(crate) const WANTED: usize = 1;
/// Pages of a slower tier that were found in use once since they came there:
/// its active list, which nothing ages while that tier is not short of memory.
pub(crate) const SEEN: usize = 2;

/// Slots that a walk visits at most for each page that it finds.
const VISITS: u64 = 8;

/// Walks over all pages in order of their slots, a piece at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    cursor: u32,
}

impl Walk {
    /// Visits the next pages until wanted ones were found whose weights come to
    /// `most`; gives them to `take` in runs of one region. True when the last
    /// page has been passed: the next walk begins anew.
    pub(crate) fn step<const L: usize>(
        &mut self,
        roster: &Roster<L>,
        most: u64,
        weight: impl Fn(PageSize) -> u64,
        mut wanted: impl FnMut(u32) -> bool,
        mut take: impl FnMut(PageRange),
    ) -> bool {
        let slots = roster.slots() as u32;
        let (mut left, mut visits) = (most, most.saturating_mul(VISITS));
        let mut run: Option<PageRange> = None;
        while self.cursor < slots && left > 0 && visits > 0 {
            let (part, any) = roster.first_part(&(self.cursor..slots));
            visits -= 1;
            if !any {
                self.cursor = part.end;
                continue;
            }
            for slot in part {
                self.cursor = slot + 1;
                visits = visits.saturating_sub(1);
                if wanted(slot)
                    && let Some((page, size)) = roster.page(slot)
                {
                    left = left.saturating_sub(weight(size));
                    run = Some(extend(run, page, &mut take));
                }
                if left == 0 || visits == 0 {
                    break;
                }
            }
        }
        if let Some(run) = run {
            take(run);
        }
        let wrapped = self.cursor >= slots;
        if wrapped {
            self.cursor = 0;
        }
        wrapped
    }
}

/// A run with one more page, or a new one after the old was given away.
fn extend(run: Option<PageRange>, page: PageRef, take: &mut impl FnMut(PageRange)) -> PageRange {
    match run {
        Some(run) if run.region == page.region && run.start.0 + run.count == page.page.0 => {
            PageRange { count: run.count + 1, ..run }
        }
        old => {
            if let Some(old) = old {
                take(old);
            }
            PageRange { region: page.region, start: page.page, count: 1 }
        }
    }
}

/// Proposes an action on a range that moves nothing.
pub(crate) fn observe(action: Action, plan: &mut Plan) {
    plan.push(action, PageSize::Base, Heat::default(), Urgency::Voluntary, Reason::Observes);
}

/// Generations of pages, on a roster of three lists: [`USED`] in order of use,
/// [`WANTED`], [`SEEN`].
#[derive(Debug, Default)]
pub(crate) struct Lru {
    pub(crate) roster: Roster<3>,
    /// The pass in which each page was seen used last, modulo 2^8.
    seen: PerPage<u8>,
    /// The pass under way.
    pass: u8,
    walk: Walk,
    /// Ranges that a world is still looking at.
    awaited: u32,
    /// Whether a page had to go that is in use, as far as is known.
    starved: bool,
}

/// A page is remembered to be at most so many passes old.
const OLDEST: u8 = 200;

impl Lru {
    /// The program mapped a region; returns how many slots there are.
    pub(crate) fn alloc(&mut self, region: &Region) -> usize {
        let slots = self.roster.alloc(region);
        self.seen.grow(slots);
        slots
    }

    /// The usual answer to a fault. What is brought in is in use; what is placed
    /// in a slower tier has yet to be seen used there, as new pages begin on the
    /// inactive list.
    pub(crate) fn fault(
        &mut self,
        page: PageRef,
        kind: FaultKind,
        telemetry: &Telemetry,
    ) -> TierId {
        let Self { roster, seen, pass, .. } = self;
        roster.fault(page, kind, telemetry, |_, slot, tier| {
            seen[slot] = if tier == TierId::FASTEST { *pass } else { pass.wrapping_sub(2) };
            USED
        })
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.roster.heap_bytes() + self.seen.heap_bytes()
    }

    /// Passes since the page was seen used.
    pub(crate) fn age(&self, slot: u32) -> u8 {
        self.pass.wrapping_sub(self.seen[slot])
    }

    /// Whether the page is of the two youngest generations.
    pub(crate) fn is_active(&self, slot: u32) -> bool {
        self.age(slot) <= 1
    }

    /// A page was seen used.
    pub(crate) fn touched(&mut self, slot: u32) {
        self.seen[slot] = self.pass;
        if let Standing::Listed(_, USED) = self.roster.standing(slot) {
            self.roster.relist(slot, USED, End::Young);
        }
    }

    /// Goes on with the pass: asks for the accessed bits of so many pages of
    /// some tiers. True when the pass has come to its end. Nothing is asked for while
    /// the world is still looking: passes that go faster than it does would make
    /// everything look unused.
    pub(crate) fn scan(
        &mut self,
        pages: u64,
        tiers: impl Fn(TierId) -> bool,
        plan: &mut Plan,
    ) -> bool {
        if self.awaited > 0 {
            return false;
        }
        self.starved = false;
        let Self { roster, seen, pass, walk, awaited, .. } = self;
        let wanted = |slot: u32| match roster.standing(slot) {
            Standing::Listed(tier, _) if tiers(tier) => {
                if pass.wrapping_sub(seen[slot]) > OLDEST {
                    seen[slot] = pass.wrapping_sub(OLDEST);
                }
                true
            }
            _ => false,
        };
        let done = walk.step(
            roster,
            pages,
            |_| 1,
            wanted,
            |range| {
                *awaited += 1;
                observe(Action::Scan { range }, plan);
            },
        );
        if done {
            *pass = pass.wrapping_add(1);
        }
        done
    }

    /// Demotes what is not active until so much of a tier is free. True if
    /// there was not enough of it: more has to be known about what is used.
    pub(crate) fn keep_free(
        &mut self,
        tier: TierId,
        target: Bytes,
        telemetry: &Telemetry,
        plan: &mut Plan,
    ) -> bool {
        let coming = self.roster.leaving(tier);
        let mut freed = Bytes::ZERO;
        while telemetry.tier(tier).free + coming + freed < target {
            let Some(slot) = self.oldest_inactive(tier) else { return true };
            let size = self.roster.page(slot).map_or(PageSize::Base, |(_, size)| size);
            if !self.roster.demote(unknown(slot), Reason::KeepsHeadroom, telemetry, plan) {
                return false;
            }
            freed += size.bytes();
        }
        false
    }

    /// Proposes what waits to be promoted; what finds no room goes to list
    /// `refused_to` and has to be asked for again. Says how many found none.
    pub(crate) fn promote_wanted(
        &mut self,
        refused_to: usize,
        heat: impl Fn(u32) -> Heat,
        reason: Reason,
        telemetry: &Telemetry,
        plan: &mut Plan,
    ) -> u32 {
        let mut refused = 0;
        for tier in (1..telemetry.tier_count).map(TierId) {
            while let Some(slot) = self.roster.oldest(tier, WANTED) {
                let page = Candidate { slot, heat: heat(slot) };
                let raised =
                    self.roster.raise(page, TierId::FASTEST, reason, telemetry, plan, |_| None);
                if raised != Raised::Proposed {
                    refused += u32::from(raised == Raised::NoRoom);
                    self.roster.relist(slot, refused_to, End::Young);
                }
            }
        }
        refused
    }

    /// The answer to pressure: what was not used for the longest time.
    pub(crate) fn relieve(
        &mut self,
        tier: TierId,
        bytes: Bytes,
        telemetry: &Telemetry,
        plan: &mut Plan,
    ) {
        let Self { roster, seen, pass, starved, .. } = self;
        // Where there is a slower tier that is addressable, room is made ahead of need.
        let only = !(1..telemetry.tier_count).any(|t| telemetry.tier(TierId(t)).addressable);
        roster.relieve(tier, bytes, telemetry, plan, |roster| {
            let slot = [USED, SEEN, WANTED].into_iter().find_map(|l| roster.oldest(tier, l))?;
            let active = pass.wrapping_sub(seen[slot]) <= 1;
            *starved |= active && only;
            let reason = if active { Reason::PressureNoneCold } else { Reason::PressureCold };
            Some((unknown(slot), reason))
        });
    }

    /// Whether pressure found nothing that is not in use, since the last scan: reclaim has to
    /// look again at what is, as when [`Lru::keep_free`] says so.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved
    }

    /// A proposal came to its end.
    pub(crate) fn done(&mut self, done: &Done) {
        if matches!(done.proposal.action, Action::Scan { .. }) {
            self.awaited = self.awaited.saturating_sub(1);
        }
        let Self { roster, seen, pass, .. } = self;
        roster.done(done, |ended| {
            if ended.outcome == Outcome::Aborted(Abort::Touched) {
                seen[ended.slot] = *pass;
            }
            Next::List(USED, ended.usual_end())
        });
    }

    /// The page of a tier that was not used for the longest time.
    pub(crate) fn oldest(&self, tier: TierId) -> Option<u32> {
        self.roster.oldest(tier, USED)
    }

    /// The same, if it is not active.
    pub(crate) fn oldest_inactive(&self, tier: TierId) -> Option<u32> {
        self.oldest(tier).filter(|&slot| !self.is_active(slot))
    }
}

/// Evidence that a page is used about so many times in some time.
pub(crate) fn seen_within(time: Nanos, samples: u32) -> Heat {
    let window = time.max(Nanos::millis(1));
    let loads = PerSecond::from_count(f64::from(samples), window);
    Heat { loads, samples, window, ..Heat::default() }
}

/// A page of which no rate is known.
pub(crate) fn unknown(slot: u32) -> Candidate {
    Candidate { slot, heat: Heat::default() }
}
