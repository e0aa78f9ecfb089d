//! Pages by how often they were sampled, in bins of powers of two.
//!
//! A page's count is halved at each cooling, lazily: when it is next sampled,
//! or when a sweep comes by. Its bin, the logarithm of the count, is its list
//! in the roster, so that the most and the least used pages of a tier are found
//! without sorting.

use bytemuck::Zeroable;
use terrace_core::{
    Abort, Bytes, Done, FaultKind, Heat, Nanos, Outcome, PageRange, PageRef, PerSecond, Plan,
    Reason, Region, Telemetry, TierId,
};

use crate::roster::{Candidate, End, Next, PerPage, Raised, Roster, Standing};

/// Bins: 0, 1 to 2, 3 to 6, and so on; the last holds all from 2^15 - 1 on.
pub(crate) const BINS: usize = 16;

/// A full sweep takes at most this many steps, and there is at most one cooling
/// a step: so no page is ever 256 coolings behind.
const SWEEP_STEPS: usize = 128;

/// What is remembered of a page: 3 B.
#[derive(Clone, Copy, Debug, Default, Zeroable)]
struct Count {
    samples: [u8; 2],
    cooled: u8,
}

impl Count {
    fn get(self) -> u16 {
        u16::from_le_bytes(self.samples)
    }
}

const _: () = assert!(size_of::<Count>() == 3, "the documented state per page");

/// A count with the coolings applied that have come since.
fn cooled(count: Count, clock: u8) -> u32 {
    u32::from(count.get()).checked_shr(u32::from(clock.wrapping_sub(count.cooled))).unwrap_or(0)
}

/// The bin of a count: the logarithm of one more.
pub(crate) fn bin_of(count: u32) -> usize {
    ((count + 1).ilog2() as usize).min(BINS - 1)
}

/// What counts stand for: samples in the time since the last cooling and half of the period
/// before (see HeMem's clock).
#[derive(Clone, Copy, Debug)]
struct Memory {
    window: Nanos,
    /// Accesses a sample.
    period: u64,
}

impl Memory {
    fn heat(self, samples: u32) -> Heat {
        let accesses = f64::from(samples) * self.period as f64;
        let loads = PerSecond::from_count(accesses, self.window);
        Heat { loads, samples, window: self.window, ..Heat::default() }
    }
}

/// Counts and bins.
#[derive(Debug, Default)]
pub(crate) struct Bins {
    pub(crate) roster: Roster<BINS>,
    counts: PerPage<Count>,
    /// Coolings so far, modulo 2^8.
    clock: u8,
    /// When the last coolings were, the latest first.
    times: [Nanos; 2],
    now: Nanos,
    /// Samples as they are remembered: halved with the counts.
    total: f64,
    cursor: u32,
    unswept: usize,
}

impl Bins {
    pub(crate) fn alloc(&mut self, region: &Region) -> usize {
        let before = self.roster.slots();
        let slots = self.roster.alloc(region);
        if self.unswept > 0 {
            self.unswept += slots.saturating_sub(before);
        }
        self.counts.grow(slots);
        slots
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.roster.heap_bytes() + self.counts.heap_bytes()
    }

    pub(crate) fn set_now(&mut self, now: Nanos) {
        self.now = self.now.max(now);
    }

    /// A page's samples, due coolings applied.
    pub(crate) fn count(&self, slot: u32) -> u32 {
        cooled(self.counts[slot], self.clock)
    }

    /// All samples that are remembered.
    pub(crate) fn total(&self) -> f64 {
        self.total
    }

    fn store(&mut self, slot: u32, count: u32) {
        let samples = (count.min(u32::from(u16::MAX)) as u16).to_le_bytes();
        self.counts[slot] = Count { samples, cooled: self.clock };
    }

    fn rebin(&mut self, slot: u32) {
        let bin = self.bin(slot);
        if let Standing::Listed(_, list) = self.roster.standing(slot)
            && list != bin
        {
            self.roster.relist(slot, bin, End::Young);
        }
    }

    /// A page was sampled; returns its count. Samples of pages that are not
    /// placed come late, and count for nothing.
    pub(crate) fn sampled(&mut self, slot: u32, weight: u16) -> Option<u32> {
        if matches!(self.roster.standing(slot), Standing::Nowhere | Standing::Away(..)) {
            return None;
        }
        let count = self.count(slot) + u32::from(weight);
        self.store(slot, count);
        self.total += f64::from(weight);
        let bin = bin_of(count);
        if matches!(self.roster.standing(slot), Standing::Listed(..)) {
            // Within a bin the page used last is the youngest.
            self.roster.relist(slot, bin, End::Young);
        }
        Some(count)
    }

    /// The bin that a page deserves.
    pub(crate) fn bin(&self, slot: u32) -> usize {
        bin_of(self.count(slot))
    }

    /// The usual answer to a fault; a page that was never seen begins with
    /// `first` samples, one that comes back with those it had.
    pub(crate) fn fault(
        &mut self,
        page: PageRef,
        kind: FaultKind,
        telemetry: &Telemetry,
        first: u32,
    ) -> TierId {
        let new = matches!(kind, FaultKind::FirstTouch(_));
        if let (true, Some(slot)) = (new, self.roster.slot(page)) {
            self.store(slot, first);
        }
        let (counts, clock) = (&self.counts, self.clock);
        self.roster.fault(page, kind, telemetry, |_, slot, _| bin_of(cooled(counts[slot], clock)))
    }

    /// A page lies in a tier and has so many samples.
    pub(crate) fn enter(&mut self, slot: u32, tier: TierId, count: u32) {
        self.store(slot, count);
        self.roster.enter(slot, tier, bin_of(count));
    }

    /// Pages were given back.
    pub(crate) fn free(&mut self, range: PageRange, whole: bool) {
        let counts = &mut self.counts;
        self.roster.free(range, whole, |slot| counts[slot] = Count::default());
    }

    /// A proposal came to its end: its pages go back to their bins. A page that
    /// was touched on its way out counts as sampled.
    pub(crate) fn done(&mut self, done: &Done) {
        let (counts, clock) = (&mut self.counts, self.clock);
        self.roster.done(done, |ended| {
            let mut count = cooled(counts[ended.slot], clock);
            if ended.outcome == Outcome::Aborted(Abort::Touched) {
                count = (count + 1).min(u32::from(u16::MAX));
                let samples = (count as u16).to_le_bytes();
                counts[ended.slot] = Count { samples, cooled: clock };
            }
            Next::List(bin_of(count), ended.usual_end())
        });
    }

    /// The answer to pressure: what was sampled least.
    pub(crate) fn relieve(
        &mut self,
        tier: TierId,
        bytes: Bytes,
        telemetry: &Telemetry,
        plan: &mut Plan,
    ) {
        let memory = self.memory(telemetry);
        let Self { roster, counts, clock, .. } = self;
        roster.relieve(tier, bytes, telemetry, plan, |roster| {
            let (bin, slot) =
                (0..BINS).find_map(|bin| roster.oldest(tier, bin).map(|slot| (bin, slot)))?;
            let reason = if bin == 0 { Reason::PressureCold } else { Reason::PressureNoneCold };
            let heat = memory.heat(cooled(counts[slot], *clock));
            Some((Candidate { slot, heat }, reason))
        });
    }

    /// All counts are halved from now on.
    pub(crate) fn cool(&mut self) {
        self.clock = self.clock.wrapping_add(1);
        self.total /= 2.0;
        self.times = [self.now, self.times[0]];
        self.unswept = self.roster.slots();
    }

    /// Lets coolings reach pages that nobody samples.
    pub(crate) fn sweep(&mut self, pages: u32) {
        let slots = self.roster.slots();
        let share = slots.div_ceil(SWEEP_STEPS);
        let mut left = share.max(pages as usize).min(self.unswept) as u32;
        while left > 0 && self.unswept > 0 {
            if self.cursor as usize >= slots {
                self.cursor = 0;
            }
            let end = slots.min(self.cursor as usize + self.unswept) as u32;
            let (mut part, any) = self.roster.first_part(&(self.cursor..end));
            if any {
                part.end = part.end.min(part.start + left);
                left -= part.len() as u32;
                for slot in part.clone() {
                    if self.roster.standing(slot) != Standing::Nowhere {
                        self.store(slot, self.count(slot));
                        self.rebin(slot);
                    }
                }
            } else {
                left -= 1;
            }
            self.unswept -= part.len();
            self.cursor = part.end;
        }
    }

    /// How much a page is used, as far as its count tells.
    pub(crate) fn heat(&self, slot: u32, telemetry: &Telemetry) -> Heat {
        self.memory(telemetry).heat(self.count(slot))
    }

    fn memory(&self, telemetry: &Telemetry) -> Memory {
        let since = self.now - self.times[0];
        let before = self.times[0] - self.times[1];
        Memory {
            window: (since + Nanos(before.get())).max(Nanos::millis(10)),
            period: telemetry.sample_period.max(1),
        }
    }

    /// Proposes to bring a listed page up; see [`Roster::raise`].
    pub(crate) fn raise(
        &mut self,
        slot: u32,
        to: TierId,
        reason: Reason,
        telemetry: &Telemetry,
        plan: &mut Plan,
        mut victim: impl FnMut(&Roster<BINS>) -> Option<u32>,
    ) -> Raised {
        let page = self.candidate(slot, telemetry);
        let memory = self.memory(telemetry);
        let Self { roster, counts, clock, .. } = self;
        roster.raise(page, to, reason, telemetry, plan, |roster| {
            let slot = victim(roster)?;
            Some(Candidate { slot, heat: memory.heat(cooled(counts[slot], *clock)) })
        })
    }

    pub(crate) fn candidate(&self, slot: u32, telemetry: &Telemetry) -> Candidate {
        Candidate { slot, heat: self.heat(slot, telemetry) }
    }
}
