//! Where pages lie, in which list they wait, and what is proposed about them.
//!
//! What every policy has to keep straight, once: the slots of regions, a place
//! for each page, lists of pages by tier, proposals under way, and the room
//! that plans may use. A policy on top of it says which list a page belongs to
//! and which page goes next.
//!
//! Invariant: a placed page is either in exactly one list of the tier that it
//! lies in, or a proposal about it is under way and it is in none.
//! ([`Roster::audit`] checks it.)

use core::ops::Range;

use bytemuck::Zeroable;
use terrace_core::{
    Abort, Action, Bytes, Done, FaultKind, Heat, MAX_TIERS, OpId, Outcome, PageRange, PageRef,
    PageSize, Plan, Proposal, Reason, Region, Telemetry, TierId, Urgency,
};

use crate::dense::InUse;
pub use crate::dense::PerPage;
use crate::fifo::{Fifo, Link, Links};
use crate::regions::{Incoming, Regions, Room, fastest_with_room};

/// Lists in a tier at most.
pub const MAX_LISTS: usize = 16;

/// At which end of its list a page is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is taken last.
    Young,
    /// It is taken next.
    Old,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It holds nothing and lies nowhere, or nothing is known of it.
    Nowhere,
    /// It lies in a tier and waits in this list there.
    Listed(TierId, usize),
    /// It lies in a tier, and a proposal about it is under way; it was in this
    /// list before.
    UnderWay(TierId, usize),
    /// It has left this tier and is in no list; it was in this list before.
    /// For policies that remember pages of tiers that are not addressable,
    /// from which pages come back by faults alone.
    Away(TierId, usize),
}

/// A [`Standing`]: 3 bits of tier, 4 of list, 2 of kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroable)]
struct Mark(u16);

const _: () = assert!(MAX_TIERS <= 8, "three bits of tier");
const _: () = assert!(size_of::<Mark>() + size_of::<Link>() == 10, "the documented state per page");

impl Mark {
    fn new(kind: u16, tier: TierId, list: usize) -> Self {
        Self(kind << 7 | (list as u16) << 3 | u16::from(tier.0))
    }
    fn standing(self) -> Standing {
        let (tier, list) = (TierId((self.0 & 7) as u8), usize::from(self.0 >> 3 & 15));
        match self.0 >> 7 {
            0 => Standing::Nowhere,
            1 => Standing::Listed(tier, list),
            2 => Standing::UnderWay(tier, list),
            _ => Standing::Away(tier, list),
        }
    }
}

/// A list, and how long it is.
#[derive(Clone, Copy, Debug)]
struct Queue {
    pages: Fifo,
    len: u64,
}

impl Queue {
    const EMPTY: Self = Self { pages: Fifo::EMPTY, len: 0 };
}

/// A page with the evidence about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its slot.
    pub slot: u32,
    /// How much it is used.
    pub heat: Heat,
}

/// What became of a wish to bring a page up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// It was proposed.
    Proposed,
    /// The tier has no room, and no page that should give way.
    NoRoom,
    /// The migration traffic that may be planned is used up.
    NoBudget,
    /// The page is not one that could be moved there: already there, under
    /// way, or in a tier that is not addressable.
    NotMovable,
}

/// A page whose proposal came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its slot.
    pub slot: u32,
    /// The tier it lies in now.
    pub tier: TierId,
    /// The tier it lay in when it was proposed.
    pub from: TierId,
    /// The list it was in then.
    pub list: usize,
    /// What became of the proposal.
    pub outcome: Outcome,
    /// Whether the tier it lies in is not addressable: it comes back by a fault, and only so.
    pub faults: bool,
}

impl Ended {
    /// Whether it has left for a tier from which it comes back by a fault alone.
    pub fn is_away(&self) -> bool {
        self.outcome.is_completed() && self.faults
    }

    /// The usual end of a list for it: a page that moved is the youngest of its
    /// new list; one with which nothing is wrong keeps its turn; one that itself
    /// stands in the way lets the others go first.
    pub fn usual_end(&self) -> End {
        match self.outcome {
            Outcome::Aborted(Abort::NoMemory | Abort::RateLimited | Abort::Vetoed) => End::Old,
            Outcome::Completed { .. } | Outcome::Aborted(_) => End::Young,
        }
    }
}

/// Where a page goes whose proposal came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Into a list of the tier it lies in.
    List(usize, End),
    /// Into none: [`Standing::Away`], with a note of the policy's.
    Away(u64),
}

/// Pages, their lists, and proposals about them, for a policy with `LISTS`
/// lists in each tier.
#[derive(Debug)]
pub struct Roster<const LISTS: usize> {
    regions: Regions,
    marks: PerPage<Mark>,
    in_use: InUse,
    links: Links,
    lists: [[Queue; LISTS]; MAX_TIERS],
    incoming: Incoming,
    /// Bytes of proposals under way out of each tier.
    outgoing: Incoming,
    room: Room,
    /// Migration traffic that may still be planned in this tick.
    budget: Bytes,
    /// Whether the world can exchange pages; true until it says no.
    can_exchange: bool,
    /// Tiers that were not addressable when room was last made.
    not_addressable: [bool; MAX_TIERS],
    /// The page that a fault placed last, if there was no room: it waits for that, and cannot
    /// make it itself.
    waits: Option<u32>,
}

impl<const LISTS: usize> Default for Roster<LISTS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const LISTS: usize> Roster<LISTS> {
    /// A roster without regions.
    pub fn new() -> Self {
        const { assert!(LISTS >= 1 && LISTS <= MAX_LISTS) };
        Self {
            regions: Regions::default(),
            marks: PerPage::default(),
            in_use: InUse::default(),
            links: Links::default(),
            lists: [[Queue::EMPTY; LISTS]; MAX_TIERS],
            incoming: Incoming::default(),
            outgoing: Incoming::default(),
            room: Room::default(),
            budget: Bytes::ZERO,
            can_exchange: true,
            not_addressable: [false; MAX_TIERS],
            waits: None,
        }
    }

    // --- regions and pages -------------------------------------------------

    /// Enters a region; returns how many slots there are now, so that the
    /// policy can grow what it keeps for each page.
    pub fn alloc(&mut self, region: &Region) -> usize {
        let slots = self.regions.insert(region);
        self.marks.grow(slots);
        self.in_use.grow(slots);
        self.links.grow(slots);
        slots
    }

    /// A page's slot, if its region is known.
    #[inline]
    pub fn slot(&self, page: PageRef) -> Option<u32> {
        self.regions.slot(page)
    }

    /// The page in a slot, with its size.
    pub fn page(&self, slot: u32) -> Option<(PageRef, PageSize)> {
        self.regions.page(slot)
    }

    /// The size of a page.
    pub fn page_size(&self, page: PageRef) -> PageSize {
        self.regions.page_size(page)
    }

    /// The slots of a range of pages, as far as the region has them.
    pub fn run(&self, range: PageRange) -> Range<u32> {
        self.regions.run(range)
    }

    /// How many slots there are, used or not.
    pub fn slots(&self) -> usize {
        self.marks.len()
    }

    /// Where a page is.
    #[inline]
    pub fn standing(&self, slot: u32) -> Standing {
        self.marks[slot].standing()
    }

    /// The tier that a page lies in, if it is placed.
    pub fn tier(&self, slot: u32) -> Option<TierId> {
        match self.standing(slot) {
            Standing::Listed(tier, _) | Standing::UnderWay(tier, _) => Some(tier),
            Standing::Nowhere | Standing::Away(..) => None,
        }
    }

    /// The part of a run of slots, from its start, in which either no page is
    /// placed or some are; and which. Lets a walk skip what nobody uses.
    pub fn first_part(&self, run: &Range<u32>) -> (Range<u32>, bool) {
        self.in_use.first_part(run)
    }

    /// Pages were given back, or a whole region unmapped. `forget` is told each
    /// slot of which something was known.
    pub fn free(&mut self, range: PageRange, whole: bool, mut forget: impl FnMut(u32)) {
        let mut run = self.regions.run(range);
        while !run.is_empty() {
            let (part, any) = self.in_use.first_part(&run);
            run.start = part.end;
            if any {
                for slot in part {
                    if self.standing(slot) != Standing::Nowhere {
                        self.unlist(slot);
                        self.marks[slot] = Mark::default();
                        self.in_use.remove(slot);
                        forget(slot);
                    }
                }
            }
        }
        if whole {
            self.regions.remove(range.region);
        }
    }

    /// Memory on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.regions.heap_bytes()
            + self.marks.heap_bytes()
            + self.in_use.heap_bytes()
            + self.links.heap_bytes()
    }

    // --- lists --------------------------------------------------------------

    /// How many pages wait in a list.
    pub fn len(&self, tier: TierId, list: usize) -> u64 {
        self.lists[tier.index()][list].len
    }

    /// The page of a list that is taken next.
    pub fn oldest(&self, tier: TierId, list: usize) -> Option<u32> {
        self.lists[tier.index()][list].pages.oldest()
    }

    /// The pages of a list, oldest first.
    pub fn iter(&self, tier: TierId, list: usize) -> impl Iterator<Item = u32> {
        self.lists[tier.index()][list].pages.iter(&self.links)
    }

    /// Enters a page that a fault placed, whatever it was before.
    pub fn place(&mut self, slot: u32, tier: TierId, list: usize, telemetry: &Telemetry) {
        self.enter(slot, tier, list);
        let has_room = telemetry.tier(tier).free >= self.size(slot).bytes();
        self.waits = (!has_room).then_some(slot);
    }

    /// Enters a page that lies in a tier, whatever it was before.
    pub fn enter(&mut self, slot: u32, tier: TierId, list: usize) {
        if self.standing(slot) == Standing::Nowhere {
            self.in_use.add(slot);
        } else {
            self.unlist(slot);
        }
        self.list(slot, tier, list, End::Young);
    }

    /// Moves a listed page to another list of its tier, or to another end of
    /// its own; does nothing for a page that is in no list.
    pub fn relist(&mut self, slot: u32, list: usize, end: End) {
        if let Standing::Listed(tier, _) = self.standing(slot) {
            self.unlist(slot);
            self.list(slot, tier, list, end);
        }
    }

    /// What a policy noted of a page when it went [`Next::Away`].
    pub fn note(&self, slot: u32) -> u64 {
        self.links.op(slot).0
    }

    fn size(&self, slot: u32) -> PageSize {
        self.regions.page(slot).map_or(PageSize::Base, |(_, size)| size)
    }

    fn unlist(&mut self, slot: u32) {
        if let Standing::Listed(tier, list) = self.standing(slot) {
            let queue = &mut self.lists[tier.index()][list];
            queue.pages.remove(&mut self.links, slot);
            queue.len -= 1;
        }
    }

    fn list(&mut self, slot: u32, tier: TierId, list: usize, end: End) {
        let queue = &mut self.lists[tier.index()][list];
        match end {
            End::Young => queue.pages.push(&mut self.links, slot),
            End::Old => queue.pages.push_oldest(&mut self.links, slot),
        }
        queue.len += 1;
        self.marks[slot] = Mark::new(1, tier, list);
    }

    // --- faults ------------------------------------------------------------

    /// The usual answer to a fault: a page that is in place stays there,
    /// another goes to the fastest addressable tier with room. `list` names the
    /// list for a page that is placed by it, and may learn from what the page
    /// was before.
    pub fn fault(
        &mut self,
        page: PageRef,
        kind: FaultKind,
        telemetry: &Telemetry,
        list: impl FnOnce(&Self, u32, TierId) -> usize,
    ) -> TierId {
        let slot = self.slot(page);
        if let (Some(slot), FaultKind::Hint(_) | FaultKind::WriteProtected) = (slot, kind)
            && let Some(tier) = self.tier(slot)
            && telemetry.tier(tier).addressable
        {
            return tier;
        }
        let tier = fastest_with_room(telemetry, self.page_size(page));
        if let Some(slot) = slot {
            let list = list(self, slot, tier);
            self.place(slot, tier, list, telemetry);
        }
        tier
    }

    // --- proposals -----------------------------------------------------------

    /// A plan is about to be made: what room there is, and how much may be
    /// moved. To be called first in `tick` and `pressure`.
    pub fn survey(&mut self, telemetry: &Telemetry) {
        self.room = Room::new(telemetry, &self.incoming);
        self.budget = telemetry.migration_budget;
    }

    /// Bounds what may still be moved by voluntary proposals of this plan.
    pub fn limit(&mut self, bytes: Bytes) {
        self.budget = self.budget.min(bytes);
    }

    /// Migration traffic that may still be planned.
    pub fn budget(&self) -> Bytes {
        self.budget
    }

    /// Whether a tier takes another page of this size in this plan.
    pub fn fits(&self, tier: TierId, size: PageSize) -> bool {
        self.room.fits(tier, size)
    }

    /// What is free in a tier, as this plan leaves it.
    pub fn free_in(&self, tier: TierId) -> Bytes {
        self.room.free(tier)
    }

    /// What proposals under way, those of this plan included, will take in a tier.
    pub fn coming(&self, tier: TierId) -> Bytes {
        self.incoming.bytes(tier)
    }

    /// What proposals under way, those of this plan included, will free in a tier.
    pub fn leaving(&self, tier: TierId) -> Bytes {
        self.outgoing.bytes(tier)
    }

    fn begin(&mut self, slot: u32, op: OpId) {
        if let Standing::Listed(tier, list) = self.standing(slot) {
            self.unlist(slot);
            self.marks[slot] = Mark::new(2, tier, list);
            self.links.set_op(slot, op);
        }
    }

    /// Proposes to move a listed page to a slower tier that takes it.
    fn push_demote(
        &mut self,
        page: Candidate,
        to: TierId,
        urgency: Urgency,
        reason: Reason,
        plan: &mut Plan,
    ) -> Option<Bytes> {
        let Standing::Listed(from, _) = self.standing(page.slot) else { return None };
        let (name, size) = self.page(page.slot)?;
        let action = Action::Demote { page: name, from, to };
        let op = plan.push(action, size, page.heat, urgency, reason);
        self.begin(page.slot, op);
        self.incoming.begin(to, size);
        self.outgoing.begin(from, size);
        self.room.moved(from, to, size);
        Some(size.bytes())
    }

    /// Proposes, of one's own accord, to move a listed page to the nearest
    /// slower tier with room. False if there is none, or no budget left.
    pub fn demote(
        &mut self,
        page: Candidate,
        reason: Reason,
        telemetry: &Telemetry,
        plan: &mut Plan,
    ) -> bool {
        let Standing::Listed(from, _) = self.standing(page.slot) else { return false };
        let size = self.size(page.slot);
        let Some(to) = self.room.below(from, size, telemetry) else { return false };
        if !self.room.fits(to, size) || self.budget < size.bytes() {
            return false;
        }
        self.budget -= size.bytes();
        self.push_demote(page, to, Urgency::Voluntary, reason, plan).is_some()
    }

    /// Proposes to bring a listed page up into a faster tier: into free room,
    /// else in place of pages that `victim` names one by one. `victim` names
    /// listed pages of that tier, or none when all that is left should stay.
    pub fn raise(
        &mut self,
        page: Candidate,
        to: TierId,
        reason: Reason,
        telemetry: &Telemetry,
        plan: &mut Plan,
        mut victim: impl FnMut(&Self) -> Option<Candidate>,
    ) -> Raised {
        let Standing::Listed(from, _) = self.standing(page.slot) else { return Raised::NotMovable };
        let Some((name, size)) = self.page(page.slot) else { return Raised::NotMovable };
        if from <= to || !telemetry.tier(from).addressable {
            return Raised::NotMovable;
        }
        while !self.room.fits(to, size) {
            let Some(loser) = victim(self) else { return Raised::NoRoom };
            let Some((loser_name, loser_size)) = self.page(loser.slot) else {
                return Raised::NoRoom;
            };
            if !matches!(self.standing(loser.slot), Standing::Listed(tier, _) if tier == to) {
                debug_assert!(false, "a victim waits in the tier that has no room");
                return Raised::NoRoom;
            }
            if loser_size == size && self.can_exchange {
                if self.budget < size.bytes() * 2 {
                    return Raised::NoBudget;
                }
                self.budget -= size.bytes() * 2;
                let action =
                    Action::Exchange { promote: name, demote: loser_name, fast: to, slow: from };
                let urgency = Urgency::Voluntary;
                let op =
                    plan.push_with_victim(action, size, page.heat, loser.heat, urgency, reason);
                self.begin(page.slot, op);
                self.begin(loser.slot, op);
                return Raised::Proposed;
            }
            if self.budget < size.bytes() + loser_size.bytes() {
                return Raised::NoBudget;
            }
            if !self.demote(loser, Reason::MakesRoom, telemetry, plan) {
                return Raised::NoRoom;
            }
        }
        if self.budget < size.bytes() {
            return Raised::NoBudget;
        }
        self.budget -= size.bytes();
        let action = Action::Promote { page: name, from, to };
        let op = plan.push(action, size, page.heat, Urgency::Voluntary, reason);
        self.begin(page.slot, op);
        self.incoming.begin(to, size);
        self.outgoing.begin(from, size);
        self.room.moved(from, to, size);
        Raised::Proposed
    }

    /// Proposes to split a listed huge page; while that is under way the page is
    /// in no list. False if it is none.
    pub fn split(&mut self, page: Candidate, reason: Reason, plan: &mut Plan) -> bool {
        let Some((name, PageSize::Huge)) = self.page(page.slot) else { return false };
        if !matches!(self.standing(page.slot), Standing::Listed(..)) {
            return false;
        }
        let action = Action::Split { page: name };
        let op = plan.push(action, PageSize::Huge, page.heat, Urgency::Voluntary, reason);
        self.begin(page.slot, op);
        true
    }

    /// Proposes to free `bytes` of a tier, whatever it holds: the answer to
    /// [`crate::Policy::pressure`]. `victim` names the page that goes next, and
    /// why; `None` when the tier is empty.
    ///
    /// The page that was placed last, if there was no room for it, is named when no other is
    /// left: its fault is what the room is for. Were it the coldest of all, it would be
    /// proposed, refused as busy and proposed again, for ever.
    pub fn relieve(
        &mut self,
        tier: TierId,
        bytes: Bytes,
        telemetry: &Telemetry,
        plan: &mut Plan,
        mut victim: impl FnMut(&Self) -> Option<(Candidate, Reason)>,
    ) {
        self.survey(telemetry);
        for (tier, known) in telemetry.ladder() {
            self.not_addressable[tier.index()] = !known.addressable;
        }
        let mut waits = self.unlist_waiting(tier);
        let mut freed = Bytes::ZERO;
        while freed < bytes {
            let Some((page, reason)) = victim(self) else {
                let Some((slot, list)) = waits.take() else { break };
                self.list(slot, tier, list, End::Young);
                continue;
            };
            let Some(to) = self.room.below(tier, self.size(page.slot), telemetry) else { break };
            let Some(size) = self.push_demote(page, to, Urgency::Forced, reason, plan) else {
                debug_assert!(false, "a victim waits in a list");
                break;
            };
            freed += size;
        }
        if let Some((slot, list)) = waits {
            self.list(slot, tier, list, End::Young);
        }
    }

    /// Takes the page that waits for room, if it is in a list of this tier, out of that for a
    /// while.
    fn unlist_waiting(&mut self, tier: TierId) -> Option<(u32, usize)> {
        let slot = self.waits?;
        let Standing::Listed(at, list) = self.standing(slot) else { return None };
        if at != tier {
            return None;
        }
        self.unlist(slot);
        self.marks[slot] = Mark::new(2, tier, list);
        Some((slot, list))
    }

    /// A proposal came to its end. `next` says for each of its pages, unless it
    /// was freed meanwhile, where it goes; it is told once a page.
    pub fn done(&mut self, done: &Done, mut next: impl FnMut(Ended) -> Next) {
        let Proposal { op, action, page_size, .. } = done.proposal;
        let moves = match action {
            Action::Promote { page, from, to } | Action::Demote { page, from, to } => {
                self.incoming.end(to, page_size);
                self.outgoing.end(from, page_size);
                [Some((page, to)), None]
            }
            Action::Exchange { promote, demote, fast, slow } => {
                if done.outcome == Outcome::Aborted(Abort::Unsupported) {
                    self.can_exchange = false;
                }
                [Some((promote, fast)), Some((demote, slow))]
            }
            // A page that was split is nowhere; one that was not lies where it lay.
            Action::Split { page } => {
                let tier = self.slot(page).and_then(|slot| self.tier(slot));
                [tier.map(|tier| (page, tier)), None]
            }
            _ => [None, None],
        };
        for (page, to) in moves.into_iter().flatten() {
            let Some(slot) = self.slot(page) else { continue };
            let Standing::UnderWay(from, list) = self.standing(slot) else { continue };
            if self.links.op(slot) != op {
                continue;
            }
            let tier = if done.outcome.is_completed() { to } else { from };
            let faults = self.not_addressable[tier.index()];
            let ended = Ended { slot, tier, from, list, outcome: done.outcome, faults };
            match next(ended) {
                Next::List(list, end) => self.list(slot, tier, list, end),
                Next::Away(note) => {
                    self.marks[slot] = Mark::new(3, from, list);
                    self.links.set_op(slot, OpId(note));
                }
            }
        }
    }

    // --- checks ----------------------------------------------------------------

    /// Whether a proposal about a page is under way.
    pub fn is_under_way(&self, page: PageRef) -> bool {
        self.slot(page).is_some_and(|slot| matches!(self.standing(slot), Standing::UnderWay(..)))
    }

    /// Checks that every listed page is in exactly the list that its mark
    /// names, and that lengths are right. Visits all pages.
    pub fn audit(&self) -> Result<(), String> {
        let mut listed = 0;
        for tier in (0..MAX_TIERS as u8).map(TierId) {
            for list in 0..LISTS {
                let mut len = 0;
                for slot in self.iter(tier, list) {
                    len += 1;
                    if len > self.slots() as u64 {
                        return Err(format!("list {list} of {tier:?} has a loop"));
                    }
                    if self.standing(slot) != Standing::Listed(tier, list) {
                        let is = self.standing(slot);
                        return Err(format!("slot {slot} in list {list} of {tier:?} is {is:?}"));
                    }
                    if self.page(slot).is_none() {
                        return Err(format!("slot {slot} belongs to no region"));
                    }
                }
                if len != self.len(tier, list) {
                    return Err(format!("list {list} of {tier:?} is not as long as it says"));
                }
                listed += len;
            }
        }
        let marked = (0..self.slots() as u32)
            .filter(|&slot| matches!(self.standing(slot), Standing::Listed(..)))
            .count() as u64;
        if listed == marked {
            Ok(())
        } else {
            Err(format!("{marked} pages should be in lists, {listed} are"))
        }
    }
}
