//! The decision makers of a process: policy and economist, with what they are
//! told about this world.
//!
//! Whoever holds the mind first reads the notes that fault handlers left, so
//! that a plan is never made on an old picture.

use core::sync::atomic::Ordering::*;

use terrace_core::{
    Abort, Access, Action, ActionClass, Bytes, Done, FaultKind, Heat, Nanos, Outcome, PageSize,
    Pages, Plan, Proposal, Reason, Sample, SampleSource, Telemetry, TierId, TierTelemetry, Urgency,
};
use terrace_policy::Brain;

use crate::event_ring;
use crate::pager::Pager;
use crate::ping_pong::PingPong;
use crate::queue::Note;
use crate::shared::ProcessPage;
use crate::sys::{self, PAGE};
use crate::thrash::Thrash;

/// DRAM.
pub const DRAM: TierId = TierId(0);
/// Compressed RAM.
pub const COMPRESSED: TierId = TierId(1);

/// Load-to-use latency assumed for DRAM where nothing measures it: a typical
/// server's local memory (81 ns idle, Intel MLC on Cascade Lake).
const DRAM_LATENCY: Nanos = Nanos(81);

/// Policy, economist, and the plan in the making.
pub struct Mind {
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

impl Mind {
    /// A mind for a brain.
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
        while let Some(note) = pager.queue.pop() {
            match note {
                Note::Alloc(region) => self.brain.alloc(&region),
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
        self.brain.pressure(DRAM, bytes, &telemetry, &mut self.plan);
        self.record(pager);
        self.plan.proposals().iter().copied().for_each(&mut take);
    }

    /// Ticks the policy; gives each proposal to `take`. The policy hears at once of what is
    /// not taken: a note would wait for this mind, and who holds it for the note.
    pub fn tick(&mut self, pager: &Pager, mut take: impl FnMut(Proposal) -> Result<(), Abort>) {
        self.listen(pager);
        let telemetry = self.telemetry(pager);
        self.brain.tick(&telemetry, &mut self.plan);
        self.record(pager);
        for &proposal in self.plan.proposals() {
            if let Err(why) = take(proposal) {
                let outcome = Outcome::Aborted(why);
                self.brain.done(&Done { proposal, outcome }, &telemetry);
            }
        }
    }

    /// Asks whether to prepare a huge page for a program that walks through fresh
    /// memory; the proposal if so.
    pub fn prezero(
        &mut self,
        pager: &Pager,
        walked: Pages,
        used: u32,
        known: u32,
    ) -> Option<Proposal> {
        self.listen(pager);
        let action = Action::Prezero { walked, used, known };
        let passed = self.brain.consider(
            action,
            PageSize::Huge,
            Heat::default(),
            (Urgency::Voluntary, Reason::WalksFreshMemory),
            &self.telemetry(pager),
        );
        self.record(pager);
        passed
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
        let passed = self.brain.consider(action, PageSize::Huge, heat, why, &telemetry);
        self.record(pager);
        passed
    }

    /// What became of a proposal of the pager's own.
    pub fn carried_out(&mut self, pager: &Pager, proposal: Proposal, outcome: Outcome) {
        let telemetry = self.telemetry(pager);
        self.brain.carried_out(&Done { proposal, outcome }, &telemetry);
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
            let account = self.brain.economist().account(class);
            let to = &stats.classes[class.index()];
            to.proposed.store(account.proposed, Relaxed);
            to.vetoed.store(account.vetoed, Relaxed);
            to.completed.store(account.completed, Relaxed);
            to.aborted.store(account.aborted, Relaxed);
            to.predicted_cost.store(account.predicted_cost.get(), Relaxed);
            to.realised_cost.store(account.realised_cost.get(), Relaxed);
            to.predicted_benefit.store(account.predicted_benefit.get(), Relaxed);
            to.realised_benefit.store(account.realised_benefit.get(), Relaxed);
        }
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

/// What an action cost and moved.
pub fn completed(pager: &Pager, nanos: u64, pages: u64) -> Outcome {
    Outcome::Completed {
        cost: pager.clock.cycles(Nanos(nanos)),
        moved: PageSize::Base.bytes() * pages,
    }
}
