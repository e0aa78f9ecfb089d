//! First touch: a page lies where it was first placed.
//!
//! The fastest addressable tier with room at the first touch, and no voluntary
//! migration ever. It needs no samples and no tick. What a tier that is not
//! addressable forces on it, it does in order of arrival: the page that was
//! placed first is demoted first. The baseline that every policy has to beat.

use bytemuck::Zeroable;
use terrace_core::{
    Abort, Action, Bytes, Done, FaultKind, Heat, MAX_TIERS, OpId, Outcome, PageRange, PageRef,
    Plan, Reason, Region, Sample, Telemetry, TierId, Urgency,
};

use crate::contract::{Footprint, Granularity, Needs, Policy};
use crate::dense::{Dense, InUse};
use crate::fifo::{Fifo, Link, Links};
use crate::regions::{Incoming, Regions, Room, fastest_with_room};

/// Where a page is: one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Zeroable)]
struct Place(u8);

impl Place {
    const NOWHERE: Self = Self(0);
    const PLACED: u8 = 1 << 7;
    const MOVING: u8 = 1 << 6;

    fn at(tier: TierId) -> Self {
        Self(Self::PLACED | tier.0)
    }
    fn is_placed(self) -> bool {
        self.0 & Self::PLACED != 0
    }
    fn is_moving(self) -> bool {
        self.0 & Self::MOVING != 0
    }
    fn moving(self) -> Self {
        Self(self.0 | Self::MOVING)
    }
    fn tier(self) -> TierId {
        TierId(self.0 & (MAX_TIERS as u8 - 1))
    }
}

const _: () = assert!(size_of::<Place>() + size_of::<Link>() == 9, "the documented state per page");

/// The first-touch policy.
#[derive(Debug)]
pub struct FirstTouch {
    regions: Regions,
    places: Dense<Place>,
    in_use: InUse,
    links: Links,
    /// The pages of each tier in order of arrival.
    arrivals: [Fifo; MAX_TIERS],
    incoming: Incoming,
}

impl Default for FirstTouch {
    fn default() -> Self {
        Self::new()
    }
}

impl FirstTouch {
    /// The policy without regions.
    pub fn new() -> Self {
        Self {
            regions: Regions::default(),
            places: Dense::default(),
            in_use: InUse::default(),
            links: Links::default(),
            arrivals: [Fifo::EMPTY; MAX_TIERS],
            incoming: Incoming::default(),
        }
    }

    /// Forgets where a page lies.
    fn unplace(&mut self, slot: u32) {
        let place = self.places[slot];
        if !place.is_placed() {
            return;
        }
        if !place.is_moving() {
            self.arrivals[place.tier().index()].remove(&mut self.links, slot);
        }
        self.places[slot] = Place::NOWHERE;
        self.in_use.remove(slot);
    }

    /// Enters a page as the youngest of a tier.
    fn place(&mut self, slot: u32, tier: TierId) {
        self.places[slot] = Place::at(tier);
        self.arrivals[tier.index()].push(&mut self.links, slot);
    }

    /// The demotion of a page, if it is the one that is waited for, ended.
    fn finish(&mut self, page: PageRef, op: OpId, to: TierId, outcome: Outcome) {
        let Some(slot) = self.regions.slot(page) else { return };
        let place = self.places[slot];
        if !place.is_moving() || self.links.op(slot) != op {
            return;
        }
        match outcome {
            Outcome::Completed { .. } => self.place(slot, to),
            // Nothing is wrong with the page: it is still the oldest.
            Outcome::Aborted(Abort::NoMemory | Abort::RateLimited | Abort::Vetoed) => {
                self.places[slot] = Place::at(place.tier());
                self.arrivals[place.tier().index()].push_oldest(&mut self.links, slot);
            }
            // The page itself stands in the way: try the others first.
            Outcome::Aborted(_) => self.place(slot, place.tier()),
        }
    }
}

impl Policy for FirstTouch {
    fn name(&self) -> &'static str {
        "first-touch"
    }

    fn needs(&self) -> Needs {
        Needs { granularity: Granularity::Any, samples: false, reads_and_writes: false, tick: None }
    }

    fn alloc(&mut self, region: &Region) {
        let slots = self.regions.insert(region);
        self.places.grow(slots);
        self.in_use.grow(slots);
        self.links.grow(slots);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        let slot = self.regions.slot(page);
        if let (Some(slot), FaultKind::Hint(_) | FaultKind::WriteProtected) = (slot, kind) {
            let place = self.places[slot];
            if place.is_placed() && telemetry.tier(place.tier()).addressable {
                return place.tier();
            }
        }
        let tier = fastest_with_room(telemetry, self.regions.page_size(page));
        if let Some(slot) = slot {
            self.unplace(slot);
            self.in_use.add(slot);
            self.place(slot, tier);
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
                part.for_each(|slot| self.unplace(slot));
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
        while freed < bytes {
            let Some(slot) = self.arrivals[tier.index()].oldest() else { return };
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
                Reason::PressureOldest,
            );
            self.arrivals[tier.index()].remove(&mut self.links, slot);
            self.places[slot] = Place::at(tier).moving();
            self.links.set_op(slot, op);
            self.incoming.begin(to, size);
            room.moved(tier, to, size);
            freed += size.bytes();
        }
    }

    fn done(&mut self, done: &Done) {
        if let Action::Demote { page, to, .. } = done.proposal.action {
            self.incoming.end(to, done.proposal.page_size);
            self.finish(page, done.proposal.op, to, done.outcome);
        }
    }

    fn footprint(&self) -> Footprint {
        let bytes = size_of::<Self>()
            + self.regions.heap_bytes()
            + self.places.heap_bytes()
            + self.in_use.heap_bytes()
            + self.links.heap_bytes();
        Footprint { bytes: Bytes(bytes as u64), pages: self.regions.capacity() as u64 }
    }
}
