//! What a brain is told, packed: some ten bytes an event, without allocating.
//!
//! For worlds that record while a program waits. Telemetry, which is large and
//! the same for many events in a row, is told once and left out until it
//! changes; everything else is `postcard`. A stream is a sequence of items, each
//! an [`Item`] after its length (two bytes, least first). [`Unpacker`] turns
//! them back into [`Event`]s.
//!
//! Items can get lost where a reader is too slow. What a stream then lacks is
//! counted by whoever lost it; telemetry is told again after a loss
//! ([`Packer::lost`]), so that what follows is read rightly.

use serde::{Deserialize, Serialize};
use terrace_core::{
    Bytes, ContextChange, ContextEvent, Done, Event, EventRef, FaultKind, MAX_TIERS, Nanos,
    PageRange, PageRef, Region, Sample, Telemetry, TierId, TierTelemetry, Upcoming,
};
use thiserror::Error;

/// The longest item: telemetry of all tiers, or a batch of samples.
pub const LONGEST: usize = 2048;
/// Samples that one item holds; larger batches become several.
const SAMPLES: usize = 64;

/// A stream's items. Borrows where there is something to borrow, so that
/// packing allocates nothing; what is read owns its data.
#[derive(Debug, Serialize)]
enum Item<'a> {
    Telemetry(Shared),
    Tiers { count: u8, first: [TierTelemetry; 2] },
    Tier { index: u8, tier: TierTelemetry },
    Alloc(Region),
    Fault(PageRef, FaultKind),
    Samples(&'a [Sample]),
    Discard(PageRange),
    Free(PageRange),
    Tick,
    Pressure(TierId, Bytes),
    Done(Done),
    Foresight(&'a [Upcoming]),
    Split(PageRef, Region),
    BaseSamples(&'a [Sample], &'a [u16]),
    Context(ContextEvent),
}

/// The same when it is read.
#[derive(Debug, Deserialize)]
enum OwnedItem {
    Telemetry(Shared),
    Tiers { count: u8, first: [TierTelemetry; 2] },
    Tier { index: u8, tier: TierTelemetry },
    Alloc(Region),
    Fault(PageRef, FaultKind),
    Samples(Vec<Sample>),
    Discard(PageRange),
    Free(PageRange),
    Tick,
    Pressure(TierId, Bytes),
    Done(Box<Done>),
    Foresight(Vec<Upcoming>),
    Split(PageRef, Region),
    BaseSamples(Vec<Sample>, Vec<u16>),
    Context(ContextEvent),
}

/// Telemetry without tiers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Shared {
    now: Nanos,
    migrated: Bytes,
    migration_budget: Bytes,
    cpu_load: f64,
    sample_period: u64,
}

impl Shared {
    fn of(telemetry: &Telemetry) -> Self {
        Self {
            now: telemetry.now,
            migrated: telemetry.migrated,
            migration_budget: telemetry.migration_budget,
            cpu_load: telemetry.cpu_load,
            sample_period: telemetry.sample_period,
        }
    }
}

/// How much an event matters to one who has lost others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// One of very many: a fault, samples, the end of an action.
    Bulk,
    /// Without it, what follows cannot be understood.
    Structure,
}

/// Packs events.
#[derive(Clone, Debug)]
pub struct Packer {
    told: Telemetry,
    all: bool,
    buffer: [u8; LONGEST + 2],
}

impl Packer {
    /// Nothing was told yet.
    pub fn new() -> Self {
        Self { told: Telemetry::default(), all: true, buffer: [0; LONGEST + 2] }
    }

    /// Something that was packed did not arrive.
    pub fn lost(&mut self) {
        self.all = true;
    }

    /// Packs an event: gives one item after the other to `take`, with its
    /// length before it. Stops if `take` says that it could not.
    pub fn pack(&mut self, event: EventRef<'_>, mut take: impl FnMut(&[u8], Weight) -> bool) {
        let weight = match event {
            EventRef::Fault { .. } | EventRef::Samples { .. } | EventRef::Done { .. } => {
                Weight::Bulk
            }
            EventRef::Context { event }
                if matches!(
                    event.change,
                    ContextChange::Accessed | ContextChange::Ahead { .. }
                ) =>
            {
                Weight::Bulk
            }
            _ => Weight::Structure,
        };
        let telemetry = match event {
            EventRef::Fault { telemetry, .. }
            | EventRef::Tick { telemetry }
            | EventRef::Pressure { telemetry, .. }
            | EventRef::Done { telemetry, .. } => Some(telemetry),
            _ => None,
        };
        let delivered = telemetry.is_none_or(|telemetry| self.tell(telemetry, weight, &mut take))
            && match event {
                EventRef::Alloc { region } => self.put(&Item::Alloc(*region), weight, &mut take),
                EventRef::Fault { page, kind, .. } => {
                    self.put(&Item::Fault(page, kind), weight, &mut take)
                }
                EventRef::Samples { samples } => samples
                    .chunks(SAMPLES)
                    .all(|part| self.put(&Item::Samples(part), weight, &mut take)),
                EventRef::Discard { range } => self.put(&Item::Discard(range), weight, &mut take),
                EventRef::Free { range } => self.put(&Item::Free(range), weight, &mut take),
                EventRef::Tick { .. } => self.put(&Item::Tick, weight, &mut take),
                EventRef::Pressure { tier, bytes, .. } => {
                    self.put(&Item::Pressure(tier, bytes), weight, &mut take)
                }
                EventRef::Done { done, .. } => self.put(&Item::Done(*done), weight, &mut take),
                EventRef::Foresight { upcoming } => upcoming
                    .chunks(SAMPLES)
                    .all(|part| self.put(&Item::Foresight(part), weight, &mut take)),
                EventRef::BaseSamples { samples, bases } => {
                    samples.chunks(SAMPLES).zip(bases.chunks(SAMPLES)).all(|(part, bases)| {
                        self.put(&Item::BaseSamples(part, bases), weight, &mut take)
                    })
                }
                EventRef::Split { page, into } => {
                    self.put(&Item::Split(page, *into), weight, &mut take)
                }
                EventRef::Context { event } => self.put(&Item::Context(*event), weight, &mut take),
            };
        if !delivered {
            self.lost();
        }
    }

    /// Tells what of the telemetry has changed.
    fn tell(
        &mut self,
        telemetry: &Telemetry,
        weight: Weight,
        take: &mut impl FnMut(&[u8], Weight) -> bool,
    ) -> bool {
        let (told, all) = (self.told, self.all);
        let shared = Shared::of(telemetry);
        let mut delivered = true;
        if all || shared != Shared::of(&told) {
            delivered &= self.put(&Item::Telemetry(shared), weight, take);
        }
        let (first, more) = telemetry.tiers.split_at(2);
        let first = [first[0], first[1]];
        if all || told.tier_count != telemetry.tier_count || told.tiers[..2] != first {
            let item = Item::Tiers { count: telemetry.tier_count, first };
            delivered &= self.put(&item, weight, take);
        }
        for (index, tier) in (2..).zip(more) {
            if all || told.tiers[usize::from(index)] != *tier {
                delivered &= self.put(&Item::Tier { index, tier: *tier }, weight, take);
            }
        }
        self.told = *telemetry;
        self.all = !delivered;
        delivered
    }

    fn put(
        &mut self,
        item: &Item<'_>,
        weight: Weight,
        take: &mut impl FnMut(&[u8], Weight) -> bool,
    ) -> bool {
        // Everything fits: the longest item is far shorter than the buffer.
        let Ok(used) = postcard::to_slice(item, &mut self.buffer[2..]) else { return false };
        let length = used.len();
        self.buffer[..2].copy_from_slice(&(length as u16).to_le_bytes());
        take(&self.buffer[..length + 2], weight)
    }
}

impl Default for Packer {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a stream cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UnpackError {
    /// An item makes no sense.
    #[error("event {0} makes no sense")]
    Damaged(u64),
}

/// Turns a stream that comes in pieces back into events.
#[derive(Debug)]
pub struct Unpacker {
    pending: Vec<u8>,
    telemetry: Telemetry,
    events: u64,
}

impl Unpacker {
    /// The beginning of a stream.
    pub fn new() -> Self {
        Self { pending: Vec::new(), telemetry: Telemetry::default(), events: 0 }
    }

    /// Events read so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Reads the stream's next piece, and gives its events to `take`. What is
    /// not complete yet is kept for the next.
    pub fn read(&mut self, piece: &[u8], mut take: impl FnMut(&Event)) -> Result<(), UnpackError> {
        self.pending.extend_from_slice(piece);
        let mut at = 0;
        while let Some(head) = self.pending.get(at..at + 2) {
            let length = usize::from(u16::from_le_bytes([head[0], head[1]]));
            if length > LONGEST {
                return Err(UnpackError::Damaged(self.events));
            }
            let Some(item) = self.pending.get(at + 2..at + 2 + length) else { break };
            let item: OwnedItem =
                postcard::from_bytes(item).map_err(|_| UnpackError::Damaged(self.events))?;
            at += 2 + length;
            if let Some(event) = Self::event(&mut self.telemetry, item)
                .map_err(|()| UnpackError::Damaged(self.events))?
            {
                self.events += 1;
                take(&event);
            }
        }
        self.pending.drain(..at);
        Ok(())
    }

    /// The event that an item stands for; none for telemetry. An error if the
    /// item makes no sense.
    fn event(told: &mut Telemetry, item: OwnedItem) -> Result<Option<Event>, ()> {
        let telemetry = |told: &Telemetry| Box::new(*told);
        Ok(Some(match item {
            OwnedItem::Telemetry(shared) => {
                told.now = shared.now;
                told.migrated = shared.migrated;
                told.migration_budget = shared.migration_budget;
                told.cpu_load = shared.cpu_load;
                told.sample_period = shared.sample_period;
                return Ok(None);
            }
            OwnedItem::Tiers { count, first } => {
                if usize::from(count) > MAX_TIERS {
                    return Err(());
                }
                told.tier_count = count;
                told.tiers[..2].copy_from_slice(&first);
                return Ok(None);
            }
            OwnedItem::Tier { index, tier } => {
                *told.tiers.get_mut(usize::from(index)).ok_or(())? = tier;
                return Ok(None);
            }
            OwnedItem::Alloc(region) => Event::Alloc { region },
            OwnedItem::Fault(page, kind) => Event::Fault { page, kind, telemetry: telemetry(told) },
            OwnedItem::Samples(samples) => Event::Samples { samples },
            OwnedItem::Discard(range) => Event::Discard { range },
            OwnedItem::Free(range) => Event::Free { range },
            OwnedItem::Tick => Event::Tick { telemetry: telemetry(told) },
            OwnedItem::Pressure(tier, bytes) => {
                Event::Pressure { tier, bytes, telemetry: telemetry(told) }
            }
            OwnedItem::Done(done) => Event::Done { done: *done, telemetry: telemetry(told) },
            OwnedItem::Foresight(upcoming) => Event::Foresight { upcoming },
            OwnedItem::Split(page, into) => Event::Split { page, into },
            OwnedItem::BaseSamples(samples, bases) => Event::BaseSamples { samples, bases },
            OwnedItem::Context(event) => Event::Context { event },
        }))
    }
}

impl Default for Unpacker {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::context::{ContextIdentity, Cpu, ObjectId, ObjectKind};
    use terrace_core::{
        Abort, Access, Action, ContextId, Heat, OpId, Outcome, PageNo, PageSize, PerSecond,
        Proposal, Reason, RegionId, SampleSource, Urgency,
    };

    fn events() -> Vec<Event> {
        let region = Region {
            id: RegionId(3),
            pages: 700,
            page_size: PageSize::Base,
            context: ContextId::ANONYMOUS,
        };
        let page = PageRef { region: region.id, page: PageNo(5) };
        let mut telemetry = Telemetry { now: Nanos(7), tier_count: 3, ..Telemetry::default() };
        telemetry.cpu_load = 0.1 + 0.2;
        telemetry.tiers[2].accesses = PerSecond(1.0 / 3.0);
        let sample =
            Sample { page, access: Access::Write, source: SampleSource::Refault, weight: 9 };
        let proposal = Proposal {
            op: OpId(u64::MAX),
            action: Action::Demote { page, from: TierId(0), to: TierId(1) },
            page_size: PageSize::Base,
            heat: Heat { loads: PerSecond(1e300), ..Heat::default() },
            victim_heat: Heat::default(),
            urgency: Urgency::Forced,
            reason: Reason::PressureCold,
        };
        let done = Done { proposal, outcome: Outcome::Aborted(Abort::Touched) };
        let kind = FaultKind::Absent(Access::Read);
        let later = Telemetry { now: Nanos(9), ..telemetry };
        let context = |change| {
            let event = ContextEvent { at: Nanos(5), cpu: Cpu(3), context: ContextId(9), change };
            Event::Context { event }
        };
        vec![
            Event::Alloc { region },
            Event::Fault { page, kind, telemetry: Box::new(telemetry) },
            Event::Fault { page, kind, telemetry: Box::new(telemetry) },
            Event::Samples { samples: vec![sample; 3] },
            Event::Tick { telemetry: Box::new(later) },
            Event::Pressure { tier: TierId(0), bytes: Bytes::MAX, telemetry: Box::new(later) },
            Event::Done { done, telemetry: Box::new(telemetry) },
            Event::Discard { range: region.range() },
            Event::Free { range: region.range() },
            Event::Foresight { upcoming: vec![Upcoming { page, loads: 0.1, stores: 3e9 }; 2] },
            Event::Split { page, into: region },
            Event::BaseSamples { samples: vec![sample; 2], bases: vec![3, 511] },
            context(ContextChange::Created {
                identity: ContextIdentity::File { device: 1 << 40, inode: u64::MAX, generation: 3 },
            }),
            context(ContextChange::Added {
                object: ObjectId(u64::MAX),
                kind: ObjectKind::ReceiveBuffer,
                page,
            }),
            context(ContextChange::Accessed),
            context(ContextChange::Ahead { object: ObjectId(77) }),
        ]
    }

    fn borrowed(event: &Event) -> EventRef<'_> {
        match event {
            Event::Alloc { region } => EventRef::Alloc { region },
            Event::Fault { page, kind, telemetry } => {
                EventRef::Fault { page: *page, kind: *kind, telemetry }
            }
            Event::Samples { samples } => EventRef::Samples { samples },
            Event::Discard { range } => EventRef::Discard { range: *range },
            Event::Free { range } => EventRef::Free { range: *range },
            Event::Tick { telemetry } => EventRef::Tick { telemetry },
            Event::Pressure { tier, bytes, telemetry } => {
                EventRef::Pressure { tier: *tier, bytes: *bytes, telemetry }
            }
            Event::Done { done, telemetry } => EventRef::Done { done, telemetry },
            Event::Foresight { upcoming } => EventRef::Foresight { upcoming },
            Event::Split { page, into } => EventRef::Split { page: *page, into },
            Event::BaseSamples { samples, bases } => EventRef::BaseSamples { samples, bases },
            Event::Context { event } => EventRef::Context { event },
        }
    }

    fn packed(events: &[Event]) -> Vec<u8> {
        let mut packer = Packer::new();
        let mut stream = Vec::new();
        for event in events {
            packer.pack(borrowed(event), |item, _| {
                stream.extend_from_slice(item);
                true
            });
        }
        stream
    }

    fn unpacked(pieces: &[&[u8]]) -> Result<Vec<Event>, UnpackError> {
        let (mut unpacker, mut events) = (Unpacker::new(), Vec::new());
        for piece in pieces {
            unpacker.read(piece, |event| events.push(event.clone()))?;
        }
        Ok(events)
    }

    /// An event that came back changed would make a replay differ.
    #[test]
    fn every_kind_of_event_comes_back_as_it_was_wherever_the_stream_is_cut() {
        let events = events();
        let stream = packed(&events);

        for cut in 0..stream.len() {
            let (a, b) = stream.split_at(cut);
            assert_eq!(unpacked(&[a, b]).as_deref(), Ok(&events[..]), "cut at {cut}");
        }
    }

    #[test]
    fn telemetry_is_told_once_until_it_changes() {
        let events = events();

        let fault = |n: usize| packed(&events[..n]).len();

        assert!(fault(2) - fault(1) > 200, "the first fault brings telemetry");
        assert!(fault(3) - fault(2) < 16, "the second one takes {}", fault(3) - fault(2));
    }

    /// Otherwise faults after a loss would be read with another moment's world.
    #[test]
    fn after_a_loss_telemetry_is_told_again() {
        let events = events();
        let mut packer = Packer::new();
        let mut stream = Vec::new();
        packer.pack(borrowed(&events[1]), |_, _| false);
        packer.pack(borrowed(&events[2]), |item, _| {
            stream.extend_from_slice(item);
            true
        });

        assert_eq!(unpacked(&[&stream]).as_deref(), Ok(&events[2..3]));
    }

    #[test]
    fn nonsense_is_an_error_with_its_place() {
        let mut stream = packed(&events()[..1]);
        stream.extend_from_slice(&[1, 0, 0xff]);

        assert_eq!(unpacked(&[&stream]), Err(UnpackError::Damaged(1)));
        assert_eq!(unpacked(&[&[0xff, 0xff]]), Err(UnpackError::Damaged(0)));
    }
}
