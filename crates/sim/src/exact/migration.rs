//! The migration engine: one page after the other, write-protected while it is
//! copied. Readers go on; a store waits. A move takes effect when it is done.

use std::collections::VecDeque;

use terrace_core::machine::Costs;
use terrace_core::{
    Abort, Access, Action, Bytes, Cycles, Done, Nanos, Outcome, PageRange, PageRef, Proposal,
    Sample, SampleSource, TierId,
};

use super::address_space::map_size;
use super::machine::ExactMachine;
use super::page_table::{Entry, MapSize, Place};
use super::tiers::Tier;
use crate::analytic::migration::{MigrationConfig, MigrationCounts};

/// Seconds of unused byte rate that may be used later.
const SAVED: f64 = 0.05;
/// An exchange of two huge pages has to fit into any budget.
const LEAST_BUDGET: f64 = (4u64 << 20) as f64;

/// A move under way.
#[derive(Clone, Copy, Debug)]
struct Active {
    proposal: Proposal,
    begin: f64,
    end: f64,
}

/// The engine.
#[derive(Debug)]
pub(super) struct Mover {
    config: MigrationConfig,
    queue: VecDeque<(Proposal, f64)>,
    active: Option<Active>,
    free_at: f64,
    /// Bytes that may be moved now, and since when that holds.
    credit: f64,
    credit_at: f64,
    pub(super) counts: MigrationCounts,
}

/// A page that is to be moved, where it is and where it goes.
#[derive(Clone, Copy, Debug)]
struct Moving {
    address: u64,
    place: Place,
    entry: Entry,
    size: MapSize,
    to: TierId,
}

impl Mover {
    pub(super) fn new(config: MigrationConfig) -> Self {
        Self {
            config,
            queue: VecDeque::new(),
            active: None,
            free_at: 0.0,
            credit: LEAST_BUDGET,
            credit_at: 0.0,
            counts: MigrationCounts::default(),
        }
    }

    /// Bytes that may be planned in a tick.
    pub(super) fn budget(&self, tick: Nanos) -> Bytes {
        Bytes::from_f64(self.config.limit.over(tick).as_f64().max(LEAST_BUDGET))
    }

    pub(super) fn enqueue(&mut self, proposals: &[Proposal], now: f64) {
        self.queue.extend(proposals.iter().map(|proposal| (*proposal, now)));
    }

    /// When the move under way is over, if it makes room in a tier.
    fn end_of_demotion(&self, tier: TierId) -> Option<f64> {
        let active = self.active.as_ref()?;
        let makes_room =
            matches!(active.proposal.action, Action::Demote { from, .. } if from == tier);
        makes_room.then_some(active.end)
    }

    /// When the move under way is over.
    pub(super) fn end_of_move(&self) -> Option<f64> {
        self.active.map(|active| active.end)
    }

    /// When so many bytes may be moved, and takes them off.
    fn allowance(&mut self, bytes: f64, at: f64) -> f64 {
        let rate = self.config.limit.get() / 1e9;
        let most = (rate * SAVED * 1e9).max(LEAST_BUDGET);
        self.credit = (self.credit + (at - self.credit_at).max(0.0) * rate).min(most);
        self.credit_at = self.credit_at.max(at);
        self.credit -= bytes;
        if self.credit >= 0.0 { at } else { at - self.credit / rate }
    }
}

impl ExactMachine {
    /// The engine works until `now`.
    pub(super) fn move_pages(&mut self, now: f64) {
        loop {
            if let Some(active) = self.runtime.mover.active {
                if active.end > now {
                    return;
                }
                self.runtime.mover.active = None;
                self.complete(active);
                continue;
            }
            let Some((proposal, asked)) = self.runtime.mover.queue.pop_front() else { return };
            self.begin(proposal, asked);
        }
    }

    fn begin(&mut self, proposal: Proposal, asked: f64) {
        let moves = match self.moves(&proposal) {
            Ok(moves) => moves,
            Err(abort) => return self.ended(proposal, Outcome::Aborted(abort)),
        };
        match proposal.action {
            Action::Arm { range } => return self.arm(proposal, range),
            Action::Scan { range } => return self.scan(proposal, range),
            Action::Split { page } => return self.split(proposal, page),
            Action::SetPeriod { period, .. } => {
                self.runtime.sampler.set_period(period);
                let outcome = Outcome::Completed { cost: Cycles::ZERO, moved: Bytes::ZERO };
                return self.ended(proposal, outcome);
            }
            Action::Throttle { limit } => {
                self.runtime.mover.config.limit = limit;
                let outcome = Outcome::Completed { cost: Cycles::ZERO, moved: Bytes::ZERO };
                return self.ended(proposal, outcome);
            }
            _ => {}
        }
        let bytes: f64 = moves.iter().flatten().map(|m| (1u64 << m.size.shift()) as f64).sum();
        let mut time = 0.0;
        let mut copying = 0.0;
        for moving in moves.iter().flatten() {
            copying += self.copy(moving);
            time += self.remapping();
            self.memory.table.set(moving.place, Entry::PROTECTED);
            self.shoot_down(moving.address, moving.size);
        }
        time += copying;
        if let Some(counts) = &mut self.runtime.tlb_counts {
            let moved = moves.iter().flatten().count() as u64;
            counts.costs.copying += Nanos::from_f64(copying);
            counts.costs.selecting += counts.config.select * moved;
            time += (counts.config.select * moved).as_f64();
            for moving in moves.iter().flatten() {
                counts.forget(moving.address);
            }
        }
        if self.runtime.mover.config.in_line {
            self.time_lines(&moves, asked, copying);
            return self.copy_in_line(proposal, asked, time);
        }
        let mover = &mut self.runtime.mover;
        let begin = mover.allowance(bytes, mover.free_at.max(asked));
        self.time_lines(&moves, begin, copying);
        let mover = &mut self.runtime.mover;
        mover.free_at = begin + time;
        mover.counts.busy += Nanos::from_f64(time);
        mover.active = Some(Active { proposal, begin, end: begin + time });
        self.interrupt();
    }

    /// The core that runs the program copies, and nobody sees it half done.
    fn copy_in_line(&mut self, proposal: Proposal, asked: f64, time: f64) {
        let core = &mut self.cores[0];
        core.clock.spend(core.instructions, time);
        let mover = &mut self.runtime.mover;
        mover.counts.busy += Nanos::from_f64(time);
        // Over at once by the clock of the queue; the core's has gone on.
        mover.active = Some(Active { proposal, begin: asked - time, end: asked });
    }

    /// Every core in use answers a shootdown.
    fn interrupt(&mut self) {
        let time = self.runtime.costs.shootdown_per_core.value.as_f64();
        for core in self.cores.iter_mut().filter(|core| core.used) {
            core.clock.spend(core.instructions, time);
            self.runtime.mover.counts.interrupted += Nanos::from_f64(time);
        }
    }

    /// Time that two changes of a mapping take, without the copy.
    fn remapping(&self) -> f64 {
        let Costs { write_protect, shootdown, .. } = &self.runtime.costs;
        2.0 * (write_protect.value.as_f64() + shootdown.value.as_f64())
    }

    /// Traffic of a copy, and the time it takes.
    fn copy(&mut self, moving: &Moving) -> f64 {
        let bytes = (1u64 << moving.size.shift()) as f64;
        let from = self.memory.frames.tier_of(moving.entry.frame()).index();
        let to = moving.to.index();
        self.tiers[from].copy(bytes, false);
        self.tiers[to].copy(bytes, true);
        let threads = f64::from(self.runtime.mover.config.copy_threads);
        let cores = bytes / (self.runtime.costs.copy_bandwidth.value.get() / 1e9 * threads);
        cores
            .max(self.tiers[from].copy_time(bytes, false))
            .max(self.tiers[to].copy_time(bytes, true))
    }

    /// Lines of copies, in tiers that time them. Where a page will lie is known only when
    /// it is there, unless two change places: its lines are written where it would lie now.
    fn time_lines(&mut self, moves: &[Option<Moving>; 2], begin: f64, time: f64) {
        if !self.tiers.iter().any(Tier::is_timed) {
            return;
        }
        for (i, moving) in moves.iter().enumerate() {
            let Some(moving) = moving else { continue };
            let order = moving.size.order();
            let frames = &self.memory.frames;
            let own = moving.entry.frame();
            let from = frames.tier_of(own);
            let other = moves[1 - i].map(|other| other.entry.frame());
            let lines = |frame: u64| frame << 6..(frame + (1 << order)) << 6;
            if let Some(frame) = other.or_else(|| frames.next(moving.to, order)) {
                let to = &mut self.tiers[moving.to.index()];
                to.copy_lines(Access::Write, lines(frame), begin, time);
            }
            self.tiers[from.index()].copy_lines(Access::Read, lines(own), begin, time);
        }
    }

    /// The pages that a proposal moves.
    fn moves(&mut self, proposal: &Proposal) -> Result<[Option<Moving>; 2], Abort> {
        match proposal.action {
            Action::Promote { page, from, to } | Action::Demote { page, from, to } => {
                let moving = self.moving(page, from, to)?;
                let room = self.memory.frames.free_in(to, moving.size.order());
                if room.is_zero() {
                    return Err(Abort::NoMemory);
                }
                Ok([Some(moving), None])
            }
            Action::Exchange { promote, demote, fast, slow } => {
                let (up, down) =
                    (self.moving(promote, slow, fast)?, self.moving(demote, fast, slow)?);
                if up.size != down.size {
                    return Err(Abort::Unsupported);
                }
                Ok([Some(up), Some(down)])
            }
            Action::Collapse { .. }
            | Action::Prezero { .. }
            | Action::DemoteContext { .. }
            | Action::FirstTouch { .. }
            | Action::Populate { .. }
            | Action::Place { .. }
            | Action::Compact { .. }
            | Action::Prefetch { .. }
            | Action::Reclaim { .. }
            | Action::Recompress { .. }
            | Action::ZeroAhead { .. } => Err(Abort::Unsupported),
            Action::Arm { .. }
            | Action::Split { .. }
            | Action::Scan { .. }
            | Action::SetPeriod { .. }
            | Action::Throttle { .. } => Ok([None, None]),
        }
    }

    fn moving(&self, page: PageRef, from: TierId, to: TierId) -> Result<Moving, Abort> {
        let (address, size) = self.areas.address(page).ok_or(Abort::Stale)?;
        let place = self.memory.table.place(address).ok_or(Abort::Stale)?;
        let entry = self.memory.table.entry(place);
        // A page that was split meanwhile is not that page any more.
        let is_it = entry.is_present() && place.size() == map_size(size);
        if !is_it || self.memory.frames.tier_of(entry.frame()) != from {
            return Err(Abort::Stale);
        }
        if to.index() >= self.tiers.len() || to == from {
            return Err(Abort::Unsupported);
        }
        Ok(Moving { address, place, entry, size: map_size(size), to })
    }

    fn complete(&mut self, active: Active) {
        let proposal = active.proposal;
        let moves = match self.moves(&proposal) {
            Ok(moves) => moves,
            Err(abort) => {
                self.unprotect(&proposal);
                return self.ended(proposal, Outcome::Aborted(abort));
            }
        };
        let outcome = match moves {
            [Some(up), Some(down)] => {
                self.remap(&up, down.entry.frame());
                self.remap(&down, up.entry.frame());
                self.runtime.mover.counts.exchanges += 1;
                Ok(2u64 << up.size.shift())
            }
            [Some(one), _] => match self.memory.frames.take(one.to, one.size.order()) {
                None => Err(Abort::NoMemory),
                Some(frame) => {
                    self.remap(&one, frame);
                    self.memory.frames.give(one.entry.frame(), one.size.order());
                    let counts = &mut self.runtime.mover.counts;
                    if matches!(proposal.action, Action::Promote { .. }) {
                        counts.promotions += 1;
                    } else {
                        counts.demotions += 1;
                    }
                    Ok(1u64 << one.size.shift())
                }
            },
            _ => Ok(0),
        };
        for moving in moves.iter().flatten() {
            self.memory.table.entry_mut(moving.place).0 &= !Entry::PROTECTED;
            self.shoot_down(moving.address, moving.size);
        }
        self.interrupt();
        match outcome {
            Err(abort) => self.ended(proposal, Outcome::Aborted(abort)),
            Ok(bytes) => {
                self.runtime.mover.counts.moved += Bytes(bytes);
                let cost = self.clock.cycles(Nanos::from_f64(active.end - active.begin));
                self.ended(proposal, Outcome::Completed { cost, moved: Bytes(bytes) });
            }
        }
    }

    /// A tier has no room for a page that faults: the policy says what goes instead,
    /// and the program waits while that is demoted.
    pub(super) fn reclaim(&mut self, core: usize, tier: TierId, page: PageRef, size: MapSize) {
        let room = |me: &Self| !me.memory.frames.free_in(tier, size.order()).is_zero();
        if let Some(end) = self.runtime.mover.end_of_demotion(tier) {
            let me = &mut self.cores[core];
            let waiting = (end - me.clock.time(me.instructions)).max(0.0);
            me.clock.spend(me.instructions, waiting);
            self.runtime.faults.reclaiming += Nanos::from_f64(waiting);
            self.move_pages(end);
        }
        while !room(self) {
            let telemetry = self.telemetry();
            let runtime = &mut self.runtime;
            let Some(brain) = &mut runtime.brain else { return };
            let bytes = Bytes(1 << size.shift());
            brain.pressure(tier, bytes, &telemetry, &mut runtime.plan);
            runtime.tell_decisions();
            let proposals = runtime.plan.proposals().to_vec();
            let before = runtime.faults.forced;
            for proposal in proposals {
                if proposal.action.page() == Some(page) {
                    // It is what waits for the room.
                    self.ended(proposal, Outcome::Aborted(Abort::Busy));
                } else {
                    self.demote_now(core, proposal);
                }
            }
            if self.runtime.faults.forced == before {
                return;
            }
        }
    }

    /// Moves a page while a core waits.
    fn demote_now(&mut self, core: usize, proposal: Proposal) {
        let moves = match self.moves(&proposal) {
            Ok(moves) => moves,
            Err(abort) => return self.ended(proposal, Outcome::Aborted(abort)),
        };
        let (mut time, mut copying) = (0.0, 0.0);
        for moving in moves.iter().flatten() {
            let copy = self.copy(moving);
            copying += copy;
            time += copy + self.remapping();
        }
        let me = &self.cores[core];
        let begin = me.clock.time(me.instructions);
        self.time_lines(&moves, begin, copying);
        let me = &mut self.cores[core];
        me.clock.spend(me.instructions, time);
        let demotions = self.runtime.mover.counts.demotions;
        self.runtime.mover.counts.busy += Nanos::from_f64(time);
        self.complete(Active { proposal, begin, end: begin + time });
        let runtime = &mut self.runtime;
        runtime.faults.forced += runtime.mover.counts.demotions - demotions;
        runtime.faults.reclaiming += Nanos::from_f64(time);
    }

    /// A move came to nothing because one of its pages is gone: what is left
    /// of them may be stored to again.
    fn unprotect(&mut self, proposal: &Proposal) {
        let pages = match proposal.action {
            Action::Exchange { promote, demote, .. } => [Some(promote), Some(demote)],
            action => [action.page(), None],
        };
        for page in pages.into_iter().flatten() {
            let Some((address, size)) = self.areas.address(page) else { continue };
            if let Some(place) = self.memory.table.place(address) {
                self.memory.table.entry_mut(place).0 &= !Entry::PROTECTED;
                self.shoot_down(address, map_size(size));
            }
        }
    }

    /// A page's entry points to another frame from now on.
    fn remap(&mut self, moving: &Moving, frame: u64) {
        self.forget_lines(moving.entry.frame(), moving.size);
        let entry = self.memory.table.entry_mut(moving.place);
        let bits = entry.0 & ((1 << 12) - 1);
        *entry = Entry(frame << 12 | bits);
    }

    /// Pages of a range fault at their next access.
    fn arm(&mut self, proposal: Proposal, range: PageRange) {
        let mut armed = 0u64;
        for page in range.pages() {
            let Some((address, size)) = self.areas.address(page) else { break };
            let Some(place) = self.memory.table.place(address) else { continue };
            let whole = place.size() == map_size(size);
            if whole && self.memory.table.entry(place).is_present() {
                self.memory.table.set(place, Entry::ARMED);
                self.shoot_down(address, map_size(size));
                armed += 1;
            }
        }
        self.observed(proposal, armed);
    }

    /// Entries of the page table were changed: one shootdown for all of them.
    fn observed(&mut self, proposal: Proposal, pages: u64) {
        let costs = &self.runtime.costs;
        let time = costs.write_protect.value + costs.shootdown.value;
        let cost = if pages > 0 { self.clock.cycles(time) } else { Cycles::ZERO };
        if pages > 0 {
            self.interrupt();
        }
        self.ended(proposal, Outcome::Completed { cost, moved: Bytes::ZERO });
    }

    /// Maps a huge page by base pages from now on, in the same frames.
    fn split(&mut self, proposal: Proposal, page: PageRef) {
        let found = self.areas.address(page).and_then(|(address, _)| {
            let place = self.memory.table.place(address)?;
            let entry = self.memory.table.entry(place);
            let is_it = entry.is_present() && place.size() == MapSize::Huge;
            is_it.then_some((address, entry))
        });
        let Some((address, entry)) = found else {
            return self.ended(proposal, Outcome::Aborted(Abort::Stale));
        };
        let Some(into) = self.areas.split(page) else {
            return self.ended(proposal, Outcome::Aborted(Abort::Stale));
        };
        self.memory.table.unmap(address);
        self.shoot_down(address, MapSize::Huge);
        for base in 0..1u64 << MapSize::Huge.order() {
            let at = address + (base << MapSize::Base.shift());
            if self.memory.map(at, MapSize::Base, entry.frame() + base).is_none() {
                // Not even a page for the table: as without memory at all.
                self.error = Some(self.out_of_memory(at));
                return;
            }
            if let Some(place) = self.memory.table.place(at) {
                self.memory.table.set(place, entry.0 & (Entry::ACCESSED | Entry::DIRTY));
            }
        }
        if let Some(brain) = &mut self.runtime.brain {
            brain.split(page, &into);
        }
        self.observed(proposal, 1);
    }

    /// Reads and clears the accessed and dirty bits of a range.
    fn scan(&mut self, proposal: Proposal, range: PageRange) {
        const BITS: u64 = Entry::ACCESSED | Entry::DIRTY;
        let (mut cleared, mut samples) = (0u64, Vec::new());
        for page in range.pages() {
            let Some((address, size)) = self.areas.address(page) else { break };
            let Some(place) = self.memory.table.place(address) else { continue };
            let entry = self.memory.table.entry(place);
            if !entry.is_present() || place.size() != map_size(size) {
                continue;
            }
            self.runtime.sampler.counts.scanned += 1;
            if !entry.has(Entry::ACCESSED) {
                continue;
            }
            self.memory.table.entry_mut(place).0 &= !BITS;
            self.shoot_down(address, map_size(size));
            cleared += 1;
            let access = if entry.has(Entry::DIRTY) { Access::Write } else { Access::Read };
            samples.push(Sample { page, access, source: SampleSource::AccessedBit, weight: 1 });
        }
        if let Some(brain) = &mut self.runtime.brain {
            brain.samples(&samples);
        }
        self.observed(proposal, cleared);
    }

    fn ended(&mut self, proposal: Proposal, outcome: Outcome) {
        if !outcome.is_completed() {
            self.runtime.mover.counts.aborted += 1;
        }
        let telemetry = self.telemetry();
        if let Some(brain) = &mut self.runtime.brain {
            brain.done(&Done { proposal, outcome }, &telemetry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analytic::config::SimPolicy;
    use crate::exact::source::{Batch, Source, SpaceEvent};
    use crate::exact::{Access as One, ExactConfig, ExactReport, setup};
    use crate::{SimError, machines};

    /// Stores to each page of two ranges, one after the other.
    struct Touch(Vec<(u64, u64)>);

    impl Source for Touch {
        fn describe(&self) -> String {
            "a test".into()
        }
        fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
            batch.clear();
            let Some((start, len)) = self.0.pop() else { return Ok(false) };
            batch.events.push(SpaceEvent::Map { start, len });
            batch.accesses.extend((0..len >> 12).map(|page| One::store(start + (page << 12))));
            Ok(true)
        }
    }

    const PINNED: (u64, u64) = (1 << 40, 2 << 20);

    /// Memory that fills the fast tier, and then some that has to lie there.
    fn ran(policy: &str, slow: Bytes) -> Result<(ExactReport, ExactMachine), SimError> {
        let mut machine = machines::builtin("cxl").expect("built in");
        machine.tiers[1].capacity.value = slow;
        let policy: SimPolicy = policy.parse().expect("a policy");
        let mut config = ExactConfig::new(machine, policy);
        config.fast = Some(Bytes::mib(8));
        let mut machine = ExactMachine::new(&config).expect("set up");
        machine.pin(PINNED.0, PINNED.1);
        let mut source = Touch(vec![PINNED, (1 << 30, 12 << 20)]);
        let report = setup::run(&mut machine, &config, &mut source, &mut |_, _| ())?;
        Ok((report, machine))
    }

    /// The same, and what of that lies there.
    fn run(policy: &str, slow: Bytes) -> Result<(ExactReport, Bytes), SimError> {
        let (report, machine) = ran(policy, slow)?;
        let mut fast = Bytes::ZERO;
        for page in 0..PINNED.1 >> 12 {
            let frame = machine.memory.table.frame_of(PINNED.0 + (page << 12)).expect("mapped");
            if machine.memory.frames.tier_of(frame) == TierId::FASTEST {
                fast += Bytes::kib(4);
            }
        }
        Ok((report, fast))
    }

    /// A tier that has to take a page and is full gives another one up. Every policy
    /// has an answer to that.
    #[test]
    fn a_full_tier_makes_room_by_demoting_what_the_policy_names() {
        for policy in ["first-touch", "hemem", "tpp", "autonuma", "memtis", "nimble"] {
            let (report, fast) = run(policy, Bytes::mib(64)).expect("it fits");
            assert_eq!(fast, Bytes(PINNED.1), "{policy}");
            let faults = &report.faults;
            assert!((500..600).contains(&faults.forced), "{policy}: {} forced", faults.forced);
            assert!(report.migrated.demotions >= faults.forced);
            assert!(faults.reclaiming > Nanos::ZERO && faults.reclaiming < report.time);
        }
    }

    /// What the program was too short for is in the accounts.
    #[test]
    fn what_waits_at_a_program_s_end_is_unfinished() {
        for policy in ["hemem", "tpp", "autonuma", "memtis"] {
            let (report, machine) = ran(policy, Bytes::mib(64)).expect("it fits");
            let mover = &machine.runtime.mover;
            let waits = mover.queue.len() as u64 + u64::from(mover.active.is_some());
            let told: u64 = report.accounts.iter().map(|line| line.account.unfinished()).sum();
            assert_eq!(told, waits, "{policy}: {:?}", report.accounts);
        }
    }

    #[test]
    fn what_nothing_can_be_reclaimed_for_is_an_error() {
        let error = run("first-touch", Bytes::mib(4)).expect_err("14 MiB in 12");
        assert!(error.to_string().contains("no memory left"), "{error}");
    }
}
