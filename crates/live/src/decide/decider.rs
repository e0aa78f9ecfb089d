//! The decision makers of a process: policy and economist, with what they are
//! told about this world.
//!
//! Whoever holds the decider first reads the notes that fault handlers left, so
//! that a plan is never made on an old picture.

use core::sync::atomic::Ordering::*;

use terrace_core::{
    Abort, Access, Action, ActionClass, Bytes, Cycles, Done, FaultKind, Heat, HugePages, Nanos,
    Outcome, PageSize, Pages, Plan, Proposal, Reason, RegionId, Sample, SampleSource, Telemetry,
    TierId, TierTelemetry, Urgency,
};
use terrace_economics::walks::Became;
use terrace_economics::{LookedAt, Verdict};
use terrace_policy::Brain;

use crate::broker::number;
use crate::decide::event_ring::{self, Placed};
use crate::decide::notes::Note;
use crate::decide::ping_pong::PingPong;
use crate::decide::thrash::Thrash;
use crate::pager::Pager;
use crate::spill::priced::Times;
use crate::stats::process_page::ProcessPage;
use crate::sys::{self, PAGE};

/// DRAM.
pub const DRAM: TierId = TierId(0);
/// Compressed RAM.
pub const COMPRESSED: TierId = TierId(1);

/// The spill file, if there is one.
pub(crate) const FILE: TierId = TierId(2);

/// Load-to-use latency assumed for DRAM where nothing measures it: a typical
/// server's local memory (81 ns idle, Intel MLC on Cascade Lake).
const DRAM_LATENCY: Nanos = Nanos(81);

/// What the economist says of an action of the pager's own.
pub(crate) enum Judged {
    /// It may be carried out.
    Passed(Proposal),
    /// It would pay, and is left out to compare.
    HeldOut,
    /// It does not pay.
    Refused,
}

/// What a huge page averts beside faults: nothing, where nobody says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Averts {
    /// Cycles that the program waits for page walks: for certain, were it all to come about.
    pub(crate) cycles: Cycles,
    /// The time in which that comes about.
    pub(crate) within: Nanos,
    /// What of it is still to come.
    pub(crate) left: Nanos,
}

/// Policy, economist, and the plan in the making.
pub struct Decider {
    brain: Brain,
    plan: Plan,
    samples: Vec<Sample>,
    ping_pong: PingPong,
    thrash: Thrash,
    /// Huge pages walked through that are in the accounts.
    credited: u64,
    /// Accesses that a hardware sample stands for; `None` where faults are what is observed.
    period: Option<u64>,
}

impl Decider {
    /// A decider for a brain.
    pub fn new(brain: Brain) -> Self {
        Self {
            brain,
            plan: Plan::with_capacity(4096),
            samples: Vec::with_capacity(64),
            ping_pong: PingPong::new(),
            thrash: Thrash::default(),
            credited: 0,
            period: None,
        }
    }

    /// The policy and the economist.
    pub fn brain(&self) -> &Brain {
        &self.brain
    }

    /// Reads the notes.
    pub fn listen(&mut self, pager: &Pager) {
        let telemetry = self.telemetry(pager);
        let stats = pager.stats();
        while let Some(note) = pager.decide.notes.pop() {
            match note {
                Note::Alloc(region, start) => {
                    self.brain.alloc(&region);
                    tell_place(pager, region.id.0, start, region.pages);
                }
                Note::Fault { page, kind } => {
                    let placed = self.brain.fault(page, kind, &telemetry);
                    debug_assert_eq!(placed, DRAM, "only DRAM is addressable");
                    if matches!(kind, FaultKind::Absent(_))
                        && self.ping_pong.is_back(page, telemetry.now)
                    {
                        stats.counters.ping_pongs.fetch_add(1, Relaxed);
                    }
                    // A fault is one access, a sample thousands: there is no adding them up.
                    if let Some(sample) = sample_of(page, kind).filter(|_| self.period.is_none()) {
                        self.samples.push(sample);
                        if self.samples.len() == self.samples.capacity() {
                            self.deliver(stats);
                        }
                    }
                }
                Note::Filled(range) => {
                    let kind = FaultKind::FirstTouch(Access::Write);
                    for page in range.pages() {
                        self.brain.fault(page, kind, &telemetry);
                    }
                }
                Note::Discard(range) => {
                    self.deliver(stats);
                    self.brain.free(range, false);
                }
                Note::Free(range) => {
                    self.deliver(stats);
                    self.brain.free(range, true);
                }
                Note::Done(done) => {
                    self.deliver(stats);
                    if let Action::Demote { page, .. } = done.proposal.action
                        && done.outcome.is_completed()
                    {
                        self.ping_pong.left(page, telemetry.now);
                    }
                    self.brain.done(&done, &telemetry);
                }
            }
        }
        self.deliver(stats);
    }

    /// From now on hardware samples accesses, one in so many; or it does not.
    pub fn set_period(&mut self, period: Option<u64>) {
        self.period = period;
    }

    /// Hears of accesses that were sampled; of pages that have left since, or that the policy
    /// has not been told of, it does not.
    pub fn sampled(&mut self, pager: &Pager, samples: &mut Vec<Sample>) {
        self.listen(pager);
        samples.retain(|sample| pager.is_resident(sample.page));
        pager.stats().counters.samples.fetch_add(samples.len() as u64, Relaxed);
        self.brain.samples(samples);
    }

    fn deliver(&mut self, stats: &ProcessPage) {
        if !self.samples.is_empty() {
            stats.counters.samples.fetch_add(self.samples.len() as u64, Relaxed);
            self.brain.samples(&self.samples);
            self.samples.clear();
        }
    }

    /// Asks for demotions worth `bytes` out of DRAM; gives each to `take`.
    pub fn pressure(&mut self, pager: &Pager, bytes: Bytes, mut take: impl FnMut(Proposal)) {
        self.listen(pager);
        let telemetry = self.telemetry(pager);
        let start = sys::now();
        self.brain.pressure(DRAM, bytes, &telemetry, &mut self.plan);
        self.brain.spent(pager.clock.cycles(Nanos(sys::now() - start)));
        self.decided(pager, ActionClass::Demote);
        self.plan.proposals().iter().copied().for_each(&mut take);
    }

    /// Ticks the policy; gives each proposal to `take`. The policy hears at once of what is
    /// not taken: a note would wait for this decider, and who holds it for the note.
    pub fn tick(&mut self, pager: &Pager, mut take: impl FnMut(Proposal) -> Result<(), Abort>) {
        self.listen(pager);
        let telemetry = self.telemetry(pager);
        let start = sys::now();
        self.brain.tick(&telemetry, &mut self.plan);
        self.brain.spent(pager.clock.cycles(Nanos(sys::now() - start)));
        self.record(pager);
        for &proposal in self.plan.proposals() {
            if let Err(why) = take(proposal) {
                let outcome = Outcome::Aborted(why);
                self.brain.done(&Done { proposal, outcome }, &telemetry);
            }
        }
    }

    /// Asks whether to prepare a huge page for a program that walks through fresh memory, of which
    /// so many were used before of so many that are known; the proposal if so. The processors are
    /// as busy as `cpu_load` says.
    pub fn prezero(
        &mut self,
        pager: &Pager,
        walked: Pages,
        (used, known): (u32, u32),
        cpu_load: f64,
    ) -> Option<Proposal> {
        self.listen(pager);
        let action = Action::Prezero { walked, used, known };
        let why = (Urgency::Voluntary, Reason::WalksFreshMemory);
        let telemetry = Telemetry { cpu_load, ..self.telemetry(pager) };
        self.consider(pager, action, PageSize::Huge, Heat::default(), why, &telemetry)
    }

    /// Asks whether to make a huge page of base pages, with what is known of the page
    /// walks that this saves; the proposal if so. The program keeps so many processors
    /// busy.
    pub fn collapse(
        &mut self,
        pager: &Pager,
        action: Action,
        heat: Heat,
        why: (Urgency, Reason),
        busy: f64,
    ) -> Option<Proposal> {
        self.listen(pager);
        let cpus = f64::from(self.brain.economist().calibration().cpus.max(1));
        let telemetry = Telemetry { cpu_load: (busy / cpus).min(1.0), ..self.telemetry(pager) };
        self.consider(pager, action, PageSize::Huge, heat, why, &telemetry)
    }

    /// Asks whether the kernel is to move so many pages together for a huge page that is wanted,
    /// and that averts so much beside faults; the proposal if so. The processors are as busy as
    /// `cpu_load` says.
    pub(crate) fn compact(
        &mut self,
        pager: &Pager,
        pages: Pages,
        averts: Averts,
        cpu_load: f64,
    ) -> Option<Proposal> {
        self.listen(pager);
        let Averts { cycles: brings, within, left } = averts;
        let (blocks, wanted) = (HugePages(1), HugePages(1));
        let action = Action::Compact { blocks, wanted, brings, within, left, pages };
        let why = (Urgency::Voluntary, Reason::NoFreeBlock);
        let telemetry = Telemetry { cpu_load, ..self.telemetry(pager) };
        self.consider(pager, action, PageSize::Huge, Heat::default(), why, &telemetry)
    }

    /// Asks whether to go on bringing pages in ahead of walks; the proposal if so. Whoever has
    /// faulted waits for all that comes with its page, so that its time counts in full.
    pub(crate) fn prefetch(
        &mut self,
        pager: &Pager,
        action: Action,
        reason: Reason,
    ) -> Option<Proposal> {
        self.listen(pager);
        let telemetry = Telemetry { cpu_load: 1.0, ..self.telemetry(pager) };
        let why = (Urgency::Voluntary, reason);
        self.consider(pager, action, PageSize::Base, Heat::default(), why, &telemetry)
    }

    /// Pages went to the file, since the store holds as much as it may. How often a page comes back
    /// from there is in `heat`. The processors are as busy as the first of `spent` says, and it took as
    /// long as the second.
    pub(crate) fn reclaimed(
        &mut self,
        pager: &Pager,
        action: Action,
        heat: Heat,
        times: Times,
        spent: (f64, Nanos),
    ) {
        let Action::Reclaim { pages, .. } = action else { return };
        self.listen(pager);
        let (cpu_load, took) = spent;
        let mut telemetry = Telemetry { cpu_load, ..self.telemetry(pager) };
        // The store's room is what is scarce.
        let (limit, held) = (Bytes(pager.store_limit()), Bytes(pager.store.occupied()));
        let store = &mut telemetry.tiers[COMPRESSED.index()];
        (store.capacity, store.free) = (limit.max(Bytes(1)), limit - held);
        let file = &mut telemetry.tiers[FILE.index()];
        (file.read_latency, file.write_latency) = (times.read, times.write);
        file.capacity = pager.config.spill_size;
        file.free = file.capacity - pager.spill.used();
        telemetry.tier_count = 3;
        let why = (Urgency::Forced, Reason::StoreFull);
        if let Some(proposal) = self.consider(pager, action, PageSize::Base, heat, why, &telemetry)
        {
            let outcome = completed(pager, took.get(), u64::from(pages));
            self.carried_out(pager, proposal, outcome);
        }
    }

    /// What has become of walks: of those that were gone ahead of, and of pages that were left out.
    pub(crate) fn walked(&mut self, pager: &Pager, became: &Became) {
        if let Some((proposal, outcome)) = became.ended {
            self.carried_out(pager, proposal, outcome);
        }
        // Of pages that came, so many were asked for; bringing them in had cost so much.
        if let Some((used, cost)) = became.brought {
            self.brain.walked_into(used, cost);
        }
        if let Some(pages) = &became.left_out {
            self.brain.left_out(pages);
        }
        self.publish_class(pager.stats(), ActionClass::Prefetch);
    }

    /// So many pages have come back from the file, each after such a time of reading.
    pub(crate) fn came_back(&mut self, stats: &ProcessPage, pages: u64, each: Nanos) {
        self.brain.came_back(pages, each);
        self.publish_class(stats, ActionClass::Reclaim);
    }

    /// A huge page is wanted, and the kernel has a free block for it or has none.
    pub(crate) fn saw_blocks(&mut self, stats: &ProcessPage, is_any: bool) {
        self.brain.saw_blocks(is_any, Nanos(sys::now()));
        self.publish_class(stats, ActionClass::Compact);
    }

    /// Asks the economist about an action of the pager's own, and charges what asking took; the
    /// proposal if it may be carried out.
    fn consider(
        &mut self,
        pager: &Pager,
        action: Action,
        size: PageSize,
        heat: Heat,
        why: (Urgency, Reason),
        telemetry: &Telemetry,
    ) -> Option<Proposal> {
        let start = sys::now();
        let passed = self.brain.consider(action, size, heat, why, telemetry);
        self.brain.spent(pager.clock.cycles(Nanos(sys::now() - start)));
        self.decided(pager, action.class());
        passed
    }

    /// What became of a proposal of the pager's own.
    pub fn carried_out(&mut self, pager: &Pager, proposal: Proposal, outcome: Outcome) {
        let telemetry = self.telemetry(pager);
        self.brain.carried_out(&Done { proposal, outcome }, &telemetry);
        self.publish_class(pager.stats(), proposal.action.class());
    }

    /// What was let pass came to nothing, after so much work.
    pub(crate) fn in_vain(&mut self, pager: &Pager, proposal: Proposal, abort: Abort, took: Nanos) {
        self.brain.in_vain(&proposal, pager.clock.cycles(took));
        self.carried_out(pager, proposal, Outcome::Aborted(abort));
    }

    /// Asks about memory that a profile says something of. The processors are as busy as
    /// `cpu_load` says.
    pub(crate) fn profiled(
        &mut self,
        pager: &Pager,
        action: Action,
        size: PageSize,
        cpu_load: f64,
    ) -> Judged {
        self.listen(pager);
        let why = (Urgency::Voluntary, Reason::Profiled);
        let telemetry = Telemetry { cpu_load, ..self.telemetry(pager) };
        let passed = self.consider(pager, action, size, Heat::default(), why, &telemetry);
        let held_out = self.brain.decisions().last().map(|decision| decision.verdict);
        match passed {
            Some(proposal) => Judged::Passed(proposal),
            None if held_out == Some(Verdict::HeldOut) => Judged::HeldOut,
            None => Judged::Refused,
        }
    }

    /// A chunk that a profile speaks of was held out, and looked at later.
    pub(crate) fn looked_at(&mut self, stats: &ProcessPage, class: ActionClass, place: LookedAt) {
        self.brain.looked_at(class, place);
        self.publish_class(stats, class);
    }

    /// In a forked child: what has been done and paid for is in the parent's books.
    pub(crate) fn forked(&mut self, pager: &Pager) {
        self.brain.forked(number::shown());
        self.credited = pager.stats().counters.huge_used.load(Relaxed);
        self.thrash = Thrash::default();
    }

    /// What a page walk costs here was measured.
    pub fn set_page_walk(&mut self, cost: Nanos) {
        self.brain.set_page_walk(cost);
    }

    /// That is done, and took so long; or the kernel had no huge page.
    pub fn prezeroed(&mut self, pager: &Pager, proposal: Proposal, took: Option<Nanos>) {
        let moved = proposal.page_size.bytes();
        let outcome = took.map_or(Outcome::Aborted(Abort::NoMemory), |took| Outcome::Completed {
            cost: pager.clock.cycles(took),
            moved,
        });
        self.carried_out(pager, proposal, outcome);
    }

    /// Feeds one recorded event instead of what happens here; gives each
    /// proposal of a plan that it led to to `take`, and says whether it did.
    pub fn replay(&mut self, event: &terrace_core::Event, mut take: impl FnMut(Proposal)) -> bool {
        let planned = self.brain.replay(event, &mut self.plan);
        if planned {
            self.plan.proposals().iter().copied().for_each(&mut take);
        }
        planned
    }

    fn telemetry(&self, pager: &Pager) -> Telemetry {
        Telemetry { sample_period: self.period.unwrap_or(1), ..telemetry(pager) }
    }

    /// A decision on something of the pager's own: it is in the books at once. A program may end
    /// before the next tick.
    fn decided(&self, pager: &Pager, class: ActionClass) {
        self.record(pager);
        self.publish_class(pager.stats(), class);
    }

    fn record(&self, pager: &Pager) {
        let wanted = || {
            let until = &pager.stats().counters.decisions_wanted_until_ns;
            // The clock is only read while somebody looks or has looked.
            until.load(Relaxed) != 0 && sys::now() < until.load(Relaxed)
        };
        if let Some(ring) = event_ring::decisions().filter(|_| pager.config.record) {
            self.brain.decisions().iter().for_each(|decision| ring.push_decision(decision));
        } else if pager.config.record || wanted() {
            for decision in self.brain.decisions() {
                pager.stats().push_decision(decision);
            }
        }
    }

    /// Writes the accounts into the statistics page.
    pub fn publish(&mut self, stats: &ProcessPage) {
        self.thrash.look(stats, Nanos(sys::now()));
        let used = stats.counters.huge_used.load(Relaxed);
        self.brain.walked_through(used.saturating_sub(self.credited), PageSize::Huge);
        self.credited = used;
        let footprint = self.brain.footprint();
        stats.counters.policy_bytes.store(footprint.bytes.get(), Relaxed);
        stats.counters.policy_pages.store(footprint.pages, Relaxed);
        for class in ActionClass::ALL {
            self.publish_account(stats, class);
        }
        self.publish_balance(stats);
    }

    /// Writes one account, and what all of them come to, into the statistics page.
    fn publish_class(&self, stats: &ProcessPage, class: ActionClass) {
        self.publish_account(stats, class);
        self.publish_balance(stats);
    }

    /// Writes what deciding has cost, and what all classes have brought and taken.
    fn publish_balance(&self, stats: &ProcessPage) {
        let own = self.brain.economist().own_cost();
        stats.counters.deciding_cycles.store(own.get(), Relaxed);
        let balance = self.brain.economist().balance();
        stats.counters.brought_ns.store(balance.brought.get(), Relaxed);
        stats.counters.took_ns.store(balance.took.get(), Relaxed);
        stats.counters.judging_ns.store(balance.deciding.get(), Relaxed);
    }

    fn publish_account(&self, stats: &ProcessPage, class: ActionClass) {
        let account = self.brain.economist().account(class);
        let to = &stats.classes[class.index()];
        to.proposed.store(account.proposed, Relaxed);
        to.vetoed.store(account.vetoed, Relaxed);
        to.completed.store(account.completed, Relaxed);
        to.aborted.store(account.aborted, Relaxed);
        to.predicted_cost.store(account.predicted_cost.get(), Relaxed);
        // Its page has one figure for all that was paid.
        to.realised_cost.store(account.whole_cost().get(), Relaxed);
        to.predicted_benefit.store(account.predicted_benefit.get(), Relaxed);
        to.realised_benefit.store(account.realised_benefit.get(), Relaxed);
        to.explored.store(account.explored, Relaxed);
        to.held_out.store(account.held_out, Relaxed);
        to.held_out_predicted.store(account.held_out_predicted.get(), Relaxed);
        to.held_out_observed.store(account.held_out_observed.get(), Relaxed);
        to.judged_predicted_benefit.store(account.judged_predicted_benefit.get(), Relaxed);
        to.judged_realised_benefit.store(account.judged_realised_benefit.get(), Relaxed);
        to.predicted_harm.store(account.predicted_harm.get(), Relaxed);
        to.realised_harm.store(account.realised_harm.get(), Relaxed);
        to.would_veto.store(account.would_veto, Relaxed);
        to.would_veto_cost.store(account.would_veto_cost.get(), Relaxed);
        to.would_veto_benefit.store(account.would_veto_benefit.get(), Relaxed);
    }
}

/// In a forked child, once it has a ring of its own: its parent was told of these regions, in the
/// parent's recording. For whoever holds the decider, for a ring has one writer at a time.
pub(crate) fn tell_places(pager: &Pager) {
    for (id, region) in pager.regions.iter() {
        tell_place(pager, id, region.start(), region.pages());
    }
}

/// Says in the recording, if there is one, where a region lies. A program that is over in a moment,
/// or gives its memory back in one, is told of by nobody later.
fn tell_place(pager: &Pager, id: u32, start: usize, pages: u32) {
    if let Some(ring) = event_ring::decisions().filter(|_| pager.config.record) {
        ring.push_region(Placed { region: RegionId(id), start: start as u64, pages });
    }
}

/// A fault on a page that had been placed before is an observed access; the
/// first touch of a page says nothing about the future.
fn sample_of(page: terrace_core::PageRef, kind: FaultKind) -> Option<Sample> {
    let (access, source) = match kind {
        FaultKind::Absent(access) => (access, SampleSource::Refault),
        FaultKind::Hint(access) => (access, SampleSource::HintFault),
        FaultKind::FirstTouch(_) | FaultKind::WriteProtected | FaultKind::Ahead => {
            return None;
        }
    };
    Some(Sample { page, access, source, weight: 1 })
}

/// Load or store, from a fault's flag.
pub fn access(write: bool) -> Access {
    if write { Access::Write } else { Access::Read }
}

/// This world, as policies see it: DRAM up to the budget, then compressed RAM.
fn telemetry(pager: &Pager) -> Telemetry {
    let page = PAGE as u64;
    let counters = &pager.stats().counters;
    let budget = Bytes(pager.budget() * page);
    let resident = Bytes(pager.resident() * page);
    let mut t = Telemetry {
        now: Nanos(sys::now()),
        tier_count: 2,
        migration_budget: Bytes::gib(1),
        sample_period: 1,
        ..Telemetry::default()
    };
    t.tiers[0] = TierTelemetry {
        capacity: budget,
        free: budget - resident,
        addressable: true,
        read_latency: DRAM_LATENCY,
        write_latency: DRAM_LATENCY,
        ..TierTelemetry::default()
    };
    let stored = Pages(counters.stored_pages.load(Relaxed) + counters.same_pages.load(Relaxed));
    let capacity = Bytes(counters.mapped_bytes.load(Relaxed)) + budget;
    let mean = |total: &core::sync::atomic::AtomicU64, n: &core::sync::atomic::AtomicU64| {
        Nanos(total.load(Relaxed).checked_div(n.load(Relaxed)).unwrap_or(0))
    };
    t.tiers[1] = TierTelemetry {
        capacity,
        free: capacity - PageSize::Base.bytes() * stored.get(),
        addressable: false,
        read_latency: mean(&counters.decompress_ns, &counters.decompressed),
        write_latency: mean(&counters.compress_ns, &counters.compressed),
        ..TierTelemetry::default()
    };
    t
}

/// Work of the manager's own, by its thread's processor time: what it waits for a processor costs
/// the program nothing, and says nothing of the mechanism.
pub(crate) struct Work(Nanos);

impl Work {
    /// It begins now, in this thread.
    pub(crate) fn begin() -> Self {
        Self(sys::thread_cpu())
    }

    /// What it has taken.
    pub(crate) fn took(&self) -> Nanos {
        sys::thread_cpu().saturating_sub(self.0)
    }

    /// It is done, and so many pages have moved.
    pub(crate) fn completed(&self, pager: &Pager, pages: u32) -> Outcome {
        completed(pager, self.took().get(), u64::from(pages))
    }
}

/// What an action cost and moved.
pub fn completed(pager: &Pager, nanos: u64, pages: u64) -> Outcome {
    Outcome::Completed {
        cost: pager.clock.cycles(Nanos(nanos)),
        moved: PageSize::Base.bytes() * pages,
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::PageRef;

    use super::*;
    use crate::pager::fixture::{START, configured, demotion, hold, pager, place, touch};

    fn page(pager: &Pager, page: usize) -> PageRef {
        Pager::page_ref(&place(pager, page))
    }

    fn listen(pager: &Pager) {
        pager.decide.decider.lock().listen(pager);
    }

    #[test]
    fn a_page_that_comes_back_was_accessed_and_one_that_is_new_says_nothing() {
        let pager = pager(8);
        let samples = || pager.stats().counters.samples.load(Relaxed);
        let fault = |n, kind| pager.note(Note::Fault { page: page(pager, n), kind });
        fault(0, FaultKind::FirstTouch(Access::Write));
        fault(1, FaultKind::Ahead);
        listen(pager);
        assert_eq!(samples(), 0);
        fault(2, FaultKind::Absent(Access::Read));
        fault(3, FaultKind::Hint(Access::Write));
        listen(pager);
        assert_eq!(samples(), 2);
        // With hardware samples, each of which is thousands of accesses, faults are none.
        pager.decide.decider.lock().set_period(Some(1000));
        fault(4, FaultKind::Absent(Access::Read));
        listen(pager);
        assert_eq!(samples(), 2);
        let of = |n, kind| sample_of(page(pager, n), kind).map(|s| (s.access, s.source));
        let refault = Some((Access::Read, SampleSource::Refault));
        assert_eq!(of(2, FaultKind::Absent(Access::Read)), refault);
        let hint = Some((Access::Write, SampleSource::HintFault));
        assert_eq!(of(2, FaultKind::Hint(Access::Write)), hint);
    }

    #[test]
    fn more_accesses_than_are_delivered_at_once_are_all_counted() {
        let pager = pager(200);
        (0..200).for_each(|n| {
            let kind = FaultKind::Absent(Access::Read);
            pager.note(Note::Fault { page: page(pager, n), kind });
        });
        listen(pager);
        assert_eq!(pager.stats().counters.samples.load(Relaxed), 200);
    }

    /// The policy would move what is not in DRAM, or what it was told to forget.
    #[test]
    fn accesses_that_were_sampled_before_their_page_left_are_not_heard_of() {
        let pager = pager(8);
        touch(pager, 1);
        hold(pager, 2, 7);
        let sample = |n| Sample {
            page: page(pager, n),
            access: Access::Read,
            source: SampleSource::Refault,
            weight: 1,
        };
        let mut samples = vec![sample(1), sample(2), sample(3)];
        pager.decide.decider.lock().sampled(pager, &mut samples);
        assert_eq!(samples.iter().map(|s| s.page.page.0).collect::<Vec<_>>(), [1]);
        assert_eq!(pager.stats().counters.samples.load(Relaxed), 1);
    }

    #[test]
    fn a_page_that_left_and_is_back_at_once_is_a_ping_pong_unless_it_did_not_leave() {
        let pager = pager(8);
        let done =
            |n, outcome| pager.note(Note::Done(Done { proposal: demotion(pager, n), outcome }));
        let back = |n| {
            let kind = FaultKind::Absent(Access::Read);
            pager.note(Note::Fault { page: page(pager, n), kind });
        };
        done(1, completed(pager, 1000, 1));
        done(2, Outcome::Aborted(Abort::NoMemory));
        [1, 2, 3].into_iter().for_each(back);
        // Once for each time that it left.
        back(1);
        listen(pager);
        assert_eq!(pager.stats().counters.ping_pongs.load(Relaxed), 1);
    }

    #[test]
    fn policies_see_the_budget_and_what_is_left_of_it() {
        let pager = pager(64);
        let tiers = |pager| telemetry(pager).tiers;
        let empty = tiers(pager);
        assert_eq!((empty[0].capacity, empty[0].free), (Bytes::mib(8), Bytes::mib(8)));
        (0..5).for_each(|n| touch(pager, n));
        for n in 5..8 {
            hold(pager, n, 1);
        }
        let now = tiers(pager);
        assert_eq!(now[0].free, Bytes::mib(8) - Bytes::kib(4 * 5));
        assert_eq!(now[1].capacity - now[1].free, Bytes::kib(4 * 3));
        assert_eq!(now[1].capacity, Bytes::mib(8) + Bytes::kib(4 * 64), "all could leave");
        assert!(now[0].addressable && !now[1].addressable);
        // What nothing has been measured of takes no time; then it is the mean.
        assert_eq!(now[1].read_latency, Nanos::ZERO);
        let counters = &pager.stats().counters;
        counters.decompress_ns.store(900, Relaxed);
        counters.decompressed.store(3, Relaxed);
        assert_eq!(tiers(pager)[1].read_latency, Nanos(300));
    }

    /// A program ends when it likes, and nothing comes after it.
    #[test]
    fn what_was_decided_and_done_is_in_the_report_before_the_next_tick() {
        let pager = pager(1024);
        let class = &pager.stats().classes[ActionClass::Populate.index()];
        let seen = || [&class.proposed, &class.vetoed, &class.completed].map(|n| n.load(Relaxed));
        let range = Pager::page_range(place(pager, 0).id, 0, 512);
        let action = Action::Populate { range, touched: 512, unsure: 0 };
        let judged = pager.decide.decider.lock().profiled(pager, action, PageSize::Base, 0.0);
        let Judged::Passed(proposal) = judged else { panic!("512 faults are spared for little") };
        assert_eq!(seen(), [1, 0, 0]);
        assert!(proposal.op.0 < 1 << 53, "readers of JSON with doubles could not give it back");
        let outcome = completed(pager, 1000, 512);
        pager.decide.decider.lock().carried_out(pager, proposal, outcome);
        assert_eq!(seen(), [1, 0, 1]);
        assert!(class.realised_cost.load(Relaxed) > 0);
    }

    /// What was regretted is in no total of the program's.
    #[test]
    fn what_pages_that_left_were_missed_for_is_in_the_report() {
        let pager = pager(64);
        for n in 0..8 {
            touch(pager, n);
            let kind = FaultKind::FirstTouch(Access::Write);
            pager.note(Note::Fault { page: page(pager, n), kind });
        }
        let mut leaving = Vec::new();
        let bytes = PageSize::Base.bytes() * 4;
        pager.decide.decider.lock().pressure(pager, bytes, |proposal| leaving.push(proposal));
        assert!(!leaving.is_empty(), "something has to leave");
        for proposal in leaving {
            let Action::Demote { page, .. } = proposal.action else { panic!("{proposal:?}") };
            let outcome = completed(pager, 1000, 1);
            pager.note(Note::Done(Done { proposal, outcome }));
            pager.note(Note::Fault { page, kind: FaultKind::Absent(Access::Read) });
        }
        listen(pager);
        pager.decide.decider.lock().publish(pager.stats());
        let class = &pager.stats().classes[ActionClass::Demote.index()];
        assert!(class.realised_harm.load(Relaxed) > 0);
    }

    /// On a machine with more to do than processors the manager waits for one longer than it works.
    #[test]
    fn what_a_thread_waits_is_no_cost_of_what_it_does() {
        let pager = pager(1);
        let (start, work) = (sys::now(), Work::begin());
        sys::sleep(50_000_000);
        let Outcome::Completed { cost, moved } = work.completed(pager, 3) else { panic!("done") };
        let waited = pager.clock.cycles(Nanos(sys::now() - start));
        assert!(cost < waited / 2, "{cost} of {waited}");
        assert_eq!(moved, Bytes::kib(12));
    }

    /// Zeros that nobody reads cost nothing on idle processors, and their time on busy ones.
    #[test]
    fn base_pages_are_filled_at_the_price_of_processor_time() {
        let pager = pager(1024);
        let range = Pager::page_range(place(pager, 0).id, 0, 512);
        let action = Action::Populate { range, touched: 500, unsure: 0 };
        let cost = |load| {
            let mut decider = pager.decide.decider.lock();
            decider.profiled(pager, action, PageSize::Base, load);
            decider.brain().decisions().last().expect("just decided").cost
        };
        let (idle, half, busy) = (cost(0.0), cost(0.5), cost(1.0));
        assert!(busy.low > 0.0 && half.expected > idle.expected && busy.expected > half.expected);
    }

    /// On idle processors nobody misses the time of a thread that zeroes; on busy ones it is the
    /// program's.
    #[test]
    fn zeroing_ahead_of_a_walk_costs_what_the_processors_are_busy() {
        let pager = pager(1024);
        let priced = |load| {
            let mut decider = pager.decide.decider.lock();
            decider.prezero(pager, Pages(1 << 20), (8, 8), load);
            let decision = *decider.brain().decisions().last().expect("just decided");
            let zeroing =
                |term: &&terrace_economics::Term| term.kind == terrace_economics::TermKind::Zero;
            let zeroing = decision.terms.iter().flatten().find(zeroing);
            (zeroing.map_or(0.0, |term| term.cycles().expected), decision.benefit.low)
        };
        let (idle, half, busy) = (priced(0.0), priced(0.5), priced(1.0));
        assert!(idle.0 <= 0.0 && half.0 > 0.0, "{idle:?} {half:?}");
        assert!((busy.0 / half.0 - 2.0).abs() < 1e-3, "{half:?} {busy:?}");
        assert!((idle.1 - busy.1).abs() <= 1.0, "what it brings is the same: {idle:?} {busy:?}");
    }

    /// What deciding takes is in the accounts, whatever is decided about.
    #[test]
    fn asking_about_something_of_the_pager_s_own_is_charged() {
        let pager = pager(1024);
        let mut decider = pager.decide.decider.lock();
        let mut before = decider.brain().economist().own_cost();
        let mut is_charged = |decider: &Decider| {
            let now = decider.brain().economist().own_cost();
            now > core::mem::replace(&mut before, now)
        };
        decider.prezero(pager, Pages(1 << 20), (8, 8), 1.0);
        assert!(is_charged(&decider), "prezero");
        decider.compact(pager, Pages(100), Averts::default(), 1.0);
        assert!(is_charged(&decider), "compact");
        let range = Pager::page_range(place(pager, 0).id, 0, 512);
        let why = (Urgency::Voluntary, Reason::PageWalksEstimated);
        decider.collapse(pager, Action::Collapse { range }, Heat::default(), why, 1.0);
        assert!(is_charged(&decider), "collapse");
        decider.profiled(
            pager,
            Action::Populate { range, touched: 512, unsure: 0 },
            PageSize::Base,
            1.0,
        );
        assert!(is_charged(&decider), "populate");
    }

    /// The kernel moves pages in the manager's thread, which takes the program's processor time where
    /// there is none to spare.
    #[test]
    fn moving_pages_together_costs_what_the_processors_are_busy() {
        let pager = pager(1);
        let copying = |load| {
            let mut decider = pager.decide.decider.lock();
            decider.compact(pager, Pages(100), Averts::default(), load);
            let decision = *decider.brain().decisions().last().expect("just decided");
            let copy =
                |term: &&terrace_economics::Term| term.kind == terrace_economics::TermKind::Copy;
            let copy = decision.terms.iter().flatten().find(copy);
            copy.map_or(0.0, |term| term.cycles().expected)
        };
        let (idle, half, busy) = (copying(0.0), copying(0.5), copying(1.0));
        assert!(idle <= 0.0 && half > 0.0, "{idle} {half}");
        assert!((busy / half - 2.0).abs() < 1e-3, "{half} {busy}");
    }

    /// A program may be over before anybody looks at its regions, or have given them back.
    #[test]
    fn where_memory_lies_is_recorded_before_what_is_decided_about_it() {
        use event_ring::{DECISIONS_EXTENSION, DecisionRing, Told};
        use terrace_core::Bytes;

        use crate::config::RunConfig;

        let directory = tempfile::tempdir().expect("a directory");
        let (budget, of_run) = (Bytes::mib(16), directory.path().to_owned());
        event_ring::prepare_decisions(&RunConfig::new(budget, of_run));
        let made = std::fs::read_dir(directory.path()).expect("a directory").flatten();
        let mut made = made.map(|entry| entry.path());
        let is_ring = |path: &std::path::PathBuf| {
            path.extension().is_some_and(|extension| extension == DECISIONS_EXTENSION)
        };
        let ring = DecisionRing::open(&made.find(is_ring).expect("made")).expect("a ring");
        let told = || {
            let (mut bytes, mut told) = (Vec::new(), Vec::new());
            ring.drain(&mut bytes);
            assert!(event_ring::unpack_decisions(&bytes, |one| told.push(one)));
            told
        };
        let pager = configured(1024, |config| config.record = true);
        let id = place(pager, 0).id;
        let range = Pager::page_range(id, 512, 512);
        let action = Action::Populate { range, touched: 512, unsure: 0 };
        pager.decide.decider.lock().profiled(pager, action, PageSize::Base, 0.0);
        let lies = Placed { region: RegionId(id), start: START as u64, pages: 1024 };
        let first = told();
        assert_eq!(first[0], Told::Region(lies));
        assert!(matches!(&first[1..], [Told::Decision(one)] if one.action == action), "{first:?}");
        // What a child has before it has one of its own is its parent's, which writes to it.
        pager.decide.decider.lock().forked(pager);
        assert_eq!(told(), []);
        pager.tell_places();
        assert_eq!(told(), [Told::Region(lies)]);
    }

    /// What was done before the fork, and paid for, is in the parent's books.
    #[test]
    fn a_child_does_not_credit_again_what_its_parent_has() {
        let pager = pager(1);
        let stats = pager.stats();
        let mut decider = pager.decide.decider.lock();
        stats.counters.huge_used.store(7, Relaxed);
        decider.publish(stats);
        assert_eq!(decider.credited, 7);
        stats.counters.huge_used.store(9, Relaxed);
        decider.forked(pager);
        assert_eq!(decider.credited, 9);
    }
}
