//! What a policy knows of the run, and what it has put out.
//!
//! Passes over the page tables find what has come and gone; a page that comes back is told at
//! once, by its major fault. Tier 0 is DRAM, tier 1 swap, from which pages come back by faults
//! alone. All pages are base pages here: what is next to each other is put out by one range, so
//! that huge pages go as a whole where all of them goes.

use std::collections::BTreeMap;
use std::io;

use terrace_core::{
    Abort, Access, Action, Bytes, Done, FaultKind, Nanos, Outcome, PageNo, PageRange, PageRef,
    PageSize, Plan, Sample, SampleSource, Telemetry, TierId, TierTelemetry,
};
use terrace_economics::Decision;
use terrace_live::attach::host::is_gone;
use terrace_live::attach::space::{Space, WINDOW};
use terrace_policy::Brain;
use terrace_policy::brain::Recorder;
use terrace_sampler::pagemap::is;
use terrace_sampler::{SamplerError, Watchers};

use super::stats::Stats;
use super::world::{Advice, MajorFault, Run, World};

const DRAM: TierId = TierId(0);
pub(super) const SWAP: TierId = TierId(1);
const PAGE: u64 = 4096;
/// What is put out as a whole where nothing of it is in use: what a page-table page maps.
const COLD_PART: Bytes = Bytes::mib(2);
/// Time that a slice of a pass may take before the engine looks up.
const SLICE: Nanos = Nanos::millis(2);
/// What a load takes in DRAM, and a page from zram and to it: `docs/engines.md`.
const LATENCIES: [(Nanos, Nanos); 2] =
    [(Nanos(100), Nanos(100)), (Nanos::micros(8), Nanos::micros(10))];

/// A policy with what it was told.
pub(super) struct Books {
    brain: Brain,
    /// What observes accesses, if anything does.
    watchers: Watchers,
    /// Samples that were delivered when accesses were laid aside the last time, and before that.
    delivered: [u64; 2],
    /// Mappings smaller than this are left to the kernel.
    min_region: Bytes,
    space: Space,
    plan: Plan,
    /// Windows that the pass has yet to look at, the next one last.
    left: Vec<(u32, u64)>,
    mappings: BTreeMap<u32, Vec<(u64, u64)>>,
    /// When the next pass begins.
    next: Nanos,
    next_tick: Nanos,
    found: Vec<Found>,
    /// Decisions that nobody has taken yet; `None` where nobody will.
    decided: Option<Vec<(u32, Decision)>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Found {
    #[default]
    Nothing,
    Swapped,
    Present,
}

/// One page's way out.
#[derive(Clone, Copy, Debug)]
struct Leg {
    /// The proposal's place in the plan.
    proposal: usize,
    process: u32,
    address: u64,
}

/// What there is of each memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// The budget, and what of it is free.
    pub(super) dram: (Bytes, Bytes),
    /// Swap, and what of it is free.
    pub(super) swap: (Bytes, Bytes),
}

impl Room {
    /// This world, as policies see it.
    pub(super) fn telemetry(&self, now: Nanos) -> Telemetry {
        let mut telemetry = Telemetry { now, tier_count: 2, ..Telemetry::default() };
        for (i, (capacity, free)) in [self.dram, self.swap].into_iter().enumerate() {
            let (read_latency, write_latency) = LATENCIES[i];
            telemetry.tiers[i] = TierTelemetry {
                capacity,
                free,
                addressable: i == 0,
                read_latency,
                write_latency,
                ..TierTelemetry::default()
            };
        }
        telemetry.migration_budget = self.swap.1;
        telemetry
    }

    /// The same at a moment in which DRAM has room for a page that the kernel has put there.
    fn arrival(&self, now: Nanos) -> Telemetry {
        let (capacity, free) = self.dram;
        Self { dram: (capacity, free.max(Bytes::mib(1))), ..*self }.telemetry(now)
    }
}

impl Books {
    pub(super) fn new(brain: Brain, min_region: Bytes, watchers: Watchers) -> Self {
        Self {
            min_region,
            watchers,
            delivered: [0; 2],
            brain,
            space: Space::new(),
            plan: Plan::with_capacity(4096),
            left: Vec::new(),
            mappings: BTreeMap::new(),
            next: Nanos::ZERO,
            next_tick: Nanos::ZERO,
            found: Vec::new(),
            decided: None,
        }
    }

    pub(super) fn brain(&self) -> &Brain {
        &self.brain
    }

    /// What it knows to be in DRAM.
    pub(super) fn known(&self) -> Bytes {
        Bytes(self.space.used(DRAM))
    }

    pub(super) fn space(&self) -> &Space {
        &self.space
    }

    pub(super) fn record(&mut self, recorder: Recorder) {
        self.brain.record(Some(recorder));
    }

    pub(super) fn keep_decisions(&mut self, keep: bool) {
        self.decided = keep.then(Vec::new);
    }

    pub(super) fn take_decided(&mut self) -> Vec<(u32, Decision)> {
        self.decided.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn age_accesses(&mut self) {
        self.space.age_accesses();
        self.delivered = [self.watchers.health().delivered, self.delivered[0]];
    }

    pub(super) fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    pub(super) fn take_degraded(&mut self) -> Vec<SamplerError> {
        self.watchers.take_degraded()
    }

    /// Tells the policy what samplers have seen since the last time.
    pub(super) fn sample(&mut self, now: Nanos, stats: &mut Stats) {
        if self.watchers.is_empty() {
            return;
        }
        let samples = self.watchers.collect(now, &self.space).to_vec();
        for sample in &samples {
            self.space.observe(sample.page, u32::from(sample.weight));
        }
        if !samples.is_empty() {
            stats.samples += samples.len() as u64;
            self.brain.samples(&samples);
        }
        stats.sampling_cpu = self.watchers.health().cpu;
    }

    /// Puts out parts of 2 MiB to which no access was seen lately, as a whole and those first that
    /// have most to give, until so much has left. They cost half of what single pages do
    /// (`MADV_PAGEOUT` flushes TLBs once for each page-table page), and huge pages stay whole.
    ///
    /// Only what somebody would have seen: nothing is taken for cold while no samples come. The policy
    /// is told as of pages that the kernel has put out.
    pub(super) fn leave_cold(
        &mut self,
        world: &mut dyn World,
        room: &Room,
        bytes: Bytes,
        stats: &mut Stats,
    ) -> io::Result<Bytes> {
        let delivered = self.watchers.health().delivered;
        if !self.watchers.see_loads() || delivered == self.delivered[1] {
            return Ok(Bytes::ZERO);
        }
        let mut cold: Vec<(Bytes, u32, u64, u64)> = Vec::new();
        for (_, window) in self.space.windows() {
            for (i, part) in window.parts().iter().enumerate() {
                let held = part.held(DRAM);
                if part.accesses() == 0 && held >= COLD_PART / 2 {
                    let start = window.base + i as u64 * COLD_PART.get();
                    cold.push((held, window.process, window.base, start));
                }
            }
        }
        cold.sort_unstable_by(|a, b| b.cmp(a));
        let mut left = Bytes::ZERO;
        for (held, process, base, start) in cold {
            if left >= bytes {
                break;
            }
            let before = self.space.used(DRAM);
            let done = world
                .advise(process, Advice::PageOut, &[(start, COLD_PART.get())])
                .and_then(|()| self.look(world, room, process, base));
            match done {
                Ok(()) => {
                    stats.cold_parts += 1;
                    left += Bytes(before.saturating_sub(self.space.used(DRAM))).min(held);
                }
                // It has ended, was unmapped in part, or is somebody else's: a policy chooses.
                Err(e) if is_gone(&e) || e.kind() == io::ErrorKind::PermissionDenied => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => {}
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {}
                Err(e) => return Err(e),
            }
        }
        Ok(left)
    }

    /// Keeps what was decided on the last plan.
    fn note_decisions(&mut self) {
        let Some(decided) = &mut self.decided else { return };
        for decision in self.brain.decisions() {
            let window = decision.action.page().and_then(|page| self.space.window(page.region));
            decided.push((window.map_or(0, |window| window.process), *decision));
        }
    }

    /// Deciding has taken so much processor time.
    fn charge(&mut self, took: Nanos) {
        let clock = self.brain.economist().calibration().clock;
        self.brain.spent(clock.cycles(took));
    }

    /// The run is over.
    pub(super) fn finish(&mut self, now: Nanos) {
        self.brain.finish(now);
    }

    /// A page has come back.
    pub(super) fn fault(&mut self, now: Nanos, room: &Room, fault: MajorFault) {
        let Some(region) = self.space.find(fault.process, fault.address & !(WINDOW - 1)) else {
            // Nothing is known of this memory yet; or it is none that a policy decides about.
            return;
        };
        let page = PageNo(((fault.address % WINDOW) / PAGE) as u32);
        let page = PageRef { region, page };
        let kind = match self.space.word(page).tier() {
            Some(DRAM) => return,
            Some(_) => FaultKind::Absent(Access::Read),
            None => FaultKind::FirstTouch(Access::Read),
        };
        self.arrive(now, room, page, kind);
        if matches!(kind, FaultKind::Absent(_)) {
            let source = SampleSource::Refault;
            self.brain.samples(&[Sample { page, access: Access::Read, source, weight: 1 }]);
        }
    }

    fn arrive(&mut self, now: Nanos, room: &Room, page: PageRef, kind: FaultKind) {
        if self.brain.fault(page, kind, &room.arrival(now)) == DRAM {
            self.space.place(page, Some(DRAM));
            // What is new was touched, whether a sampler saw it or not.
            self.space.observe(page, 1);
        }
    }

    /// Goes on with the pass at hand, or begins the next one when it is due, or `now` if the engine
    /// is short of pages to choose from. Returns what that took of the caller's processor time.
    pub(super) fn pass(
        &mut self,
        world: &mut dyn World,
        processes: &[u32],
        room: &Room,
        urgent: bool,
        stats: &mut Stats,
    ) -> io::Result<Nanos> {
        let (now, cpu) = (world.now(), world.cpu());
        if self.left.is_empty() {
            if now < self.next && !urgent {
                return Ok(Nanos::ZERO);
            }
            self.begin(world, processes)?;
        }
        while let Some((process, base)) = self.left.pop() {
            match self.look(world, room, process, base) {
                Ok(()) => {}
                Err(e) if is_gone(&e) || e.kind() == io::ErrorKind::PermissionDenied => {
                    self.left.retain(|(other, _)| *other != process);
                }
                Err(e) => return Err(e),
            }
            if world.now() >= now + SLICE {
                break;
            }
        }
        if self.left.is_empty() {
            stats.passes += 1;
        }
        Ok(world.cpu().saturating_sub(cpu))
    }

    /// No pass begins before this.
    pub(super) fn rest_until(&mut self, next: Nanos) {
        self.next = next;
    }

    fn begin(&mut self, world: &mut dyn World, processes: &[u32]) -> io::Result<()> {
        self.mappings.clear();
        for &process in processes {
            match world.mappings(process) {
                Ok(mut mappings) => {
                    mappings.retain(|(start, end)| end - start >= self.min_region.get());
                    self.mappings.insert(process, mappings);
                }
                Err(e) if is_gone(&e) || e.kind() == io::ErrorKind::PermissionDenied => {}
                Err(e) => return Err(e),
            }
        }
        let mut wanted: Vec<(u32, u64)> = Vec::new();
        for (&process, mappings) in &self.mappings {
            for &(start, end) in mappings {
                for base in (start & !(WINDOW - 1)..end).step_by(WINDOW as usize) {
                    if wanted.last().is_none_or(|last| *last < (process, base)) {
                        wanted.push((process, base));
                    }
                }
            }
        }
        let gone: Vec<_> = self
            .space
            .windows()
            .filter(|(_, window)| wanted.binary_search(&(window.process, window.base)).is_err())
            .map(|(id, _)| id)
            .collect();
        for id in gone {
            if let Some(range) = self.space.remove(id) {
                self.brain.free(range, true);
            }
        }
        wanted.reverse();
        self.left = wanted;
        Ok(())
    }

    /// Brings one window's books up to date.
    fn look(
        &mut self,
        world: &mut dyn World,
        room: &Room,
        process: u32,
        base: u64,
    ) -> io::Result<()> {
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        found.resize((WINDOW / PAGE) as usize, Found::Nothing);
        let mut any = false;
        for &(start, end) in self.mappings.get(&process).map_or(&[][..], Vec::as_slice) {
            let (start, end) = (start.max(base), end.min(base + WINDOW));
            if start < end {
                world.content(process, start, end, &mut |run: Run| {
                    // The page of zeros is everybody's, and files' pages are the kernel's to drop.
                    if run.flags & (is::FILE | is::ZERO) == 0 {
                        let is = if run.flags & is::PRESENT != 0 {
                            Found::Present
                        } else {
                            Found::Swapped
                        };
                        let range = (run.start - base) / PAGE..(run.end - base) / PAGE;
                        found[range.start as usize..range.end as usize].fill(is);
                        any = true;
                    }
                })?;
            }
        }
        let id = match self.space.find(process, base) {
            Some(id) => id,
            None if !any => {
                self.found = found;
                return Ok(());
            }
            None => {
                let region = self.space.insert(process, base, PageSize::Base);
                self.brain.alloc(&region);
                region.id
            }
        };
        let now = world.now();
        for (i, found) in found.iter().enumerate() {
            let page = PageRef { region: id, page: PageNo(i as u32) };
            match (self.space.word(page).tier(), *found) {
                (None, Found::Nothing | Found::Swapped)
                | (Some(DRAM), Found::Present)
                | (Some(SWAP), Found::Swapped) => {}
                (None, Found::Present) => {
                    self.arrive(now, room, page, FaultKind::FirstTouch(Access::Write));
                }
                // It came without a fault that was told: ahead of a walk, or a page of zeros.
                (Some(_), Found::Present) => {
                    self.arrive(now, room, page, FaultKind::Absent(Access::Read));
                }
                // Given back; or the kernel has put it out, of which no policy can be told but
                // by forgetting it.
                (Some(_), Found::Nothing | Found::Swapped) => {
                    let range = PageRange { region: id, start: page.page, count: 1 };
                    self.brain.free(range, false);
                    self.space.place(page, None);
                }
            }
        }
        self.found = found;
        Ok(())
    }

    /// Lets the policy's clock tick, if it has one, and carries out what it wants out.
    pub(super) fn tick(
        &mut self,
        world: &mut dyn World,
        room: &Room,
        stats: &mut Stats,
    ) -> io::Result<()> {
        let now = world.now();
        let Some(tick) = self.brain.needs().tick else { return Ok(()) };
        if now < self.next_tick {
            return Ok(());
        }
        self.next_tick = now + tick;
        let mut plan = std::mem::take(&mut self.plan);
        let begin = world.cpu();
        self.brain.tick(&room.telemetry(now), &mut plan);
        self.charge(world.cpu().saturating_sub(begin));
        self.note_decisions();
        let done = self.execute(world, room, &plan, stats);
        self.plan = plan;
        done.map(|_| ())
    }

    /// Has the policy choose so much that is to leave, and puts it out; what has left.
    pub(super) fn leave(
        &mut self,
        world: &mut dyn World,
        room: &Room,
        bytes: Bytes,
        stats: &mut Stats,
    ) -> io::Result<Bytes> {
        let mut plan = std::mem::take(&mut self.plan);
        let telemetry = room.telemetry(world.now());
        let begin = world.cpu();
        self.brain.pressure(DRAM, bytes, &telemetry, &mut plan);
        self.charge(world.cpu().saturating_sub(begin));
        self.note_decisions();
        let left = self.execute(world, room, &plan, stats);
        self.plan = plan;
        left
    }

    fn execute(
        &mut self,
        world: &mut dyn World,
        room: &Room,
        plan: &Plan,
        stats: &mut Stats,
    ) -> io::Result<Bytes> {
        let proposals = plan.proposals();
        let mut fates = vec![Err(Abort::Unsupported); proposals.len()];
        let mut legs = Vec::new();
        for (i, proposal) in proposals.iter().enumerate() {
            let Action::Demote { page, from: DRAM, to: SWAP } = proposal.action else { continue };
            let window = self.space.window(page.region);
            fates[i] = Err(Abort::Stale);
            if let Some(window) = window.filter(|w| w.word(page.page).tier() == Some(DRAM)) {
                let (process, address) = (window.process, window.address(page.page));
                legs.push(Leg { proposal: i, process, address });
            }
        }
        // In the order of addresses, so that what is next to each other shares a flush of TLBs.
        legs.sort_by_key(|leg| (leg.process, leg.address));
        let mut result = Ok(());
        for batch in legs.chunk_by(|a, b| a.process == b.process) {
            match put_out(world, batch, &mut fates) {
                Ok(()) => {}
                Err(e) if is_gone(&e) => {}
                Err(e) => result = Err(e),
            }
        }
        let now = world.now();
        let mut left = Bytes::ZERO;
        for (proposal, fate) in proposals.iter().zip(fates) {
            let outcome = match (fate, proposal.action) {
                (Ok(time), Action::Demote { page, to, .. }) => {
                    self.space.place(page, Some(to));
                    stats.put_out += 1;
                    left += PageSize::Base.bytes();
                    let cost = self.brain.economist().calibration().clock.cycles(time);
                    Outcome::Completed { cost, moved: PageSize::Base.bytes() }
                }
                (Ok(_), _) => Outcome::Aborted(Abort::Unsupported),
                (Err(abort), _) => {
                    stats.stayed += 1;
                    Outcome::Aborted(abort)
                }
            };
            let telemetry = room.telemetry(now);
            self.brain.done(&Done { proposal: *proposal, outcome }, &telemetry);
        }
        result.map(|()| left)
    }
}

/// What became of a leg: what it cost, or why it was not made.
type Fate = Result<Nanos, Abort>;

/// Puts pages of one process out, and looks what went.
fn put_out(world: &mut dyn World, legs: &[Leg], fates: &mut [Fate]) -> io::Result<()> {
    let Some(first) = legs.first() else { return Ok(()) };
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for leg in legs {
        match ranges.last_mut() {
            Some((start, length)) if *start + *length == leg.address => *length += PAGE,
            _ => ranges.push((leg.address, PAGE)),
        }
    }
    let begin = world.now();
    world.advise(first.process, Advice::PageOut, &ranges)?;
    let each = world.now().saturating_sub(begin) / legs.len() as u64;
    let mut runs: Vec<Run> = Vec::new();
    // A question covers ranges that are near each other: what lies between is told as well.
    let mut near = ranges.iter().copied();
    let mut question = near.next();
    while let Some((start, length)) = question {
        let mut end = start + length;
        question = None;
        for (next, length) in near.by_ref() {
            if next - end > 16 * PAGE {
                question = Some((next, length));
                break;
            }
            end = next + length;
        }
        world.content(first.process, start, end, &mut |run| runs.push(run))?;
    }
    for leg in legs {
        let at = runs.partition_point(|run| run.end <= leg.address);
        let flags = runs.get(at).filter(|run| run.start <= leg.address).map_or(0, |run| run.flags);
        fates[leg.proposal] = match (flags & is::PRESENT != 0, flags & is::SWAPPED != 0) {
            (true, _) => Err(Abort::Touched),
            (false, true) => Ok(each),
            (false, false) => Err(Abort::Stale),
        };
    }
    Ok(())
}
