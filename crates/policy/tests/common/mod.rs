//! A world small enough to be checked at every step: it knows the truth about
//! placement, carries plans out and asserts that the policy never asks for
//! something that the truth does not allow.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use terrace_core::{
    Abort, Access, Action, Bytes, ContextId, Cycles, Done, FaultKind, Nanos, OpId, Outcome, PageNo,
    PageRange, PageRef, PageSize, PerSecond, Plan, Proposal, Region, RegionId, Sample,
    SampleSource, Telemetry, TierId, TierTelemetry, Upcoming, Urgency,
};
pub(crate) mod random;

pub(crate) use random::Random;
use terrace_policy::{Footprint, Needs, Policy, PolicyName};

pub(crate) const DRAM: TierId = TierId(0);
pub(crate) const SLOW: TierId = TierId(1);

/// A tier of the toy world.
#[derive(Clone, Copy)]
pub(crate) struct Tier {
    pub(crate) capacity: Bytes,
    pub(crate) addressable: bool,
}

/// The toy world.
pub(crate) struct Toy<P> {
    pub(crate) policy: P,
    pub(crate) tiers: Vec<Tier>,
    /// Where each page lies: changed by [`Toy::put`] and [`Toy::take`] alone.
    pub(crate) placed: BTreeMap<PageRef, TierId>,
    /// Memory of each tier that pages lie in: what `placed` adds up to, of which policies are told at
    /// every fault.
    used: [Bytes; 3],
    pub(crate) regions: BTreeMap<RegionId, Region>,
    pub(crate) under_way: VecDeque<Proposal>,
    pub(crate) now: Nanos,
    pub(crate) sample_period: u64,
    pub(crate) migration_budget: Bytes,
    /// Pages that were freed since a proposal about them was made: it is void.
    void: BTreeSet<(OpId, PageRef)>,
    /// The page whose fault waits for room: the policy has placed it already.
    faulting: Option<(PageRef, TierId)>,
    /// Migration traffic that was carried out.
    pub(crate) migrated: Bytes,
    /// Pages that fault when they are touched next.
    armed: BTreeSet<PageRef>,
    /// Pages that were touched since their accessed bit was cleared.
    accessed: BTreeSet<PageRef>,
    /// Accesses that each tier has served since the last tick, and before.
    served: [u64; 3],
    serves: [u64; 3],
    /// Accesses until the next sample, if the policy asks for samples.
    until_sample: u64,
    plan: Plan,
}

pub(crate) fn page(region: u32, page: u32) -> PageRef {
    PageRef { region: RegionId(region), page: PageNo(page) }
}

pub(crate) fn sample(page: PageRef, access: Access, weight: u16) -> Sample {
    Sample { page, access, source: SampleSource::Pmu, weight }
}

impl<P: Policy> Toy<P> {
    /// A world with tiers of so many huge pages; the last is addressable or not.
    pub(crate) fn new(policy: P, huge_pages: &[u64], last_addressable: bool) -> Self {
        let last = huge_pages.len() - 1;
        let tier = |(i, &pages): (usize, &u64)| Tier {
            capacity: PageSize::Huge.bytes() * pages,
            addressable: i != last || last_addressable,
        };
        Self {
            policy,
            tiers: huge_pages.iter().enumerate().map(tier).collect(),
            placed: BTreeMap::new(),
            used: [Bytes::ZERO; 3],
            regions: BTreeMap::new(),
            under_way: VecDeque::new(),
            void: BTreeSet::new(),
            faulting: None,
            now: Nanos::ZERO,
            sample_period: 5_003,
            migration_budget: Bytes::MAX,
            migrated: Bytes::ZERO,
            armed: BTreeSet::new(),
            accessed: BTreeSet::new(),
            served: [0; 3],
            serves: [0; 3],
            until_sample: 1,
            plan: Plan::new(),
        }
    }

    pub(crate) fn telemetry(&self) -> Telemetry {
        let mut telemetry = Telemetry {
            now: self.now,
            tier_count: self.tiers.len() as u8,
            migration_budget: self.migration_budget,
            migrated: self.migrated,
            sample_period: self.sample_period,
            ..Telemetry::default()
        };
        for (i, tier) in self.tiers.iter().enumerate() {
            telemetry.tiers[i] = TierTelemetry {
                capacity: tier.capacity,
                free: tier.capacity - self.used(TierId(i as u8)),
                addressable: tier.addressable,
                // Local DDR4 and Optane; each further tier is slower still.
                read_latency: [Nanos(81), Nanos(305), Nanos(1000)][i],
                write_latency: [Nanos(81), Nanos(305), Nanos(1000)][i],
                accesses: PerSecond::from_count(self.serves[i] as f64, Nanos::millis(10)),
                ..TierTelemetry::default()
            };
        }
        telemetry
    }

    pub(crate) fn used(&self, tier: TierId) -> Bytes {
        self.used[tier.index()]
    }

    /// A page lies there from now on.
    fn put(&mut self, page: PageRef, tier: TierId) {
        self.take(page);
        self.placed.insert(page, tier);
        let size = self.size(page).bytes();
        self.used[tier.index()] += size;
    }

    /// A page lies nowhere from now on. Its region must be there still.
    fn take(&mut self, page: PageRef) {
        if let Some(tier) = self.placed.remove(&page) {
            let size = self.size(page).bytes();
            self.used[tier.index()] -= size;
        }
    }

    pub(crate) fn size(&self, page: PageRef) -> PageSize {
        self.regions[&page.region].page_size
    }

    fn has_room(&self, tier: TierId, size: PageSize) -> bool {
        self.tiers[tier.index()].capacity - self.used(tier) >= size.bytes()
    }

    pub(crate) fn alloc(&mut self, id: u32, pages: u32, page_size: PageSize) -> Region {
        let region = Region { id: RegionId(id), pages, page_size, context: ContextId::ANONYMOUS };
        self.regions.insert(region.id, region);
        self.policy.alloc(&region);
        region
    }

    /// Allocates a region of huge pages and touches all of them in order.
    pub(crate) fn alloc_and_touch(&mut self, id: u32, pages: u32) -> Region {
        let region = self.alloc(id, pages, PageSize::Huge);
        for page in region.range().pages() {
            self.touch(page);
        }
        region
    }

    /// The program touches a page; says where it lies afterwards.
    pub(crate) fn touch(&mut self, page: PageRef) -> TierId {
        let kind = match self.placed.get(&page) {
            None => FaultKind::FirstTouch(Access::Write),
            Some(&tier) if !self.tiers[tier.index()].addressable => {
                FaultKind::Absent(Access::Write)
            }
            Some(&tier) => return tier,
        };
        let size = self.size(page);
        let tier = self.policy.fault(page, kind, &self.telemetry());
        assert!(self.tiers[tier.index()].addressable, "a fault must be answered in place");
        if !self.has_room(tier, size) {
            let some_room = (0..self.tiers.len() as u8)
                .map(TierId)
                .any(|t| self.tiers[t.index()].addressable && self.has_room(t, size));
            assert!(!some_room, "another addressable tier had room");
            self.faulting = Some((page, tier));
            for _ in 0..100 {
                if self.has_room(tier, size) {
                    break;
                }
                self.pressure(tier, size.bytes());
                self.complete_all();
            }
        }
        self.faulting = None;
        assert!(self.has_room(tier, size), "pressure did not deliver");
        self.put(page, tier);
        tier
    }

    /// The program accesses a page, which is seen in every way that the policy
    /// asked for.
    pub(crate) fn access(&mut self, page: PageRef, access: Access) {
        let tier = self.touch(page);
        self.served[tier.index()] += 1;
        self.accessed.insert(page);
        if self.armed.remove(&page) {
            let telemetry = self.telemetry();
            self.policy.fault(page, FaultKind::Hint(access), &telemetry);
            let sample = Sample { source: SampleSource::HintFault, ..sample(page, access, 1) };
            self.policy.samples(&[sample]);
        }
        self.until_sample -= 1;
        if self.until_sample == 0 {
            self.until_sample = self.sample_period;
            if self.policy.needs().samples {
                self.policy.samples(&[sample(page, access, 1)]);
            }
        }
    }

    pub(crate) fn sample(&mut self, page: PageRef, access: Access, count: u32) {
        for _ in 0..count {
            self.policy.samples(&[sample(page, access, 1)]);
        }
    }

    /// Lets 10 ms pass and ticks the policy; returns what it proposed.
    pub(crate) fn tick(&mut self) -> Vec<Proposal> {
        self.now += Nanos::millis(10);
        self.serves = core::mem::take(&mut self.served);
        self.plan.clear();
        let telemetry = self.telemetry();
        self.policy.tick(&telemetry, &mut self.plan);
        self.accept()
    }

    /// Ticks, and carries everything out at once.
    pub(crate) fn tick_and_complete(&mut self) -> Vec<Proposal> {
        let proposals = self.tick();
        self.complete_all();
        proposals
    }

    pub(crate) fn pressure(&mut self, tier: TierId, bytes: Bytes) -> Vec<Proposal> {
        self.plan.clear();
        let telemetry = self.telemetry();
        self.policy.pressure(tier, bytes, &telemetry, &mut self.plan);
        let proposals = self.accept();
        assert!(proposals.iter().all(|p| p.urgency == Urgency::Forced));
        proposals
    }

    /// Pages about which a proposal is under way.
    pub(crate) fn busy(&self) -> impl Iterator<Item = PageRef> {
        let pages = |p: &Proposal| {
            let op = p.op;
            let split = match p.action {
                Action::Split { page } => Some(page),
                _ => None,
            };
            moves(&p.action).map(|(page, ..)| page).chain(split).map(move |page| (op, page))
        };
        self.under_way
            .iter()
            .flat_map(pages)
            .filter(|about| !self.void.contains(about))
            .map(|a| a.1)
    }

    fn make_void(&mut self, range: PageRange) {
        for proposal in &self.under_way {
            let split = match proposal.action {
                Action::Split { page } => Some(page),
                _ => None,
            };
            let about = moves(&proposal.action).map(|(page, ..)| page).chain(split);
            for page in about.filter(|&page| range.contains(page)) {
                self.void.insert((proposal.op, page));
            }
        }
    }

    /// Checks a plan against the truth and takes it over.
    fn accept(&mut self) -> Vec<Proposal> {
        let mut busy: BTreeSet<PageRef> = self.busy().collect();
        let proposals = self.plan.proposals().to_vec();
        for proposal in &proposals {
            for (page, from, to) in moves(&proposal.action) {
                assert!(busy.insert(page), "{page} was proposed twice: {proposal:?}");
                let waits = self.faulting == Some((page, from));
                let lies = self.tier_of(page) == Some(from);
                assert!(waits || lies, "{page} does not lie there: {proposal:?}");
                assert_ne!(from, to);
                assert_eq!(proposal.page_size, self.size(page));
            }
            for heat in [proposal.heat, proposal.victim_heat] {
                assert!(heat.loads.get().is_finite() && heat.loads.get() >= 0.0);
                assert!(heat.stores.get().is_finite() && heat.stores.get() >= 0.0);
            }
        }
        self.under_way.extend(&proposals);
        proposals
    }

    /// Carries out everything under way, in order. Nothing may fail for want
    /// of room: that would be a plan that exceeds a tier's capacity.
    pub(crate) fn complete_all(&mut self) {
        while let Some(proposal) = self.under_way.pop_front() {
            let outcome = self.carry_out(&proposal);
            assert_ne!(outcome, Outcome::Aborted(Abort::NoMemory), "exceeds a tier: {proposal:?}");
            self.report(proposal, outcome);
        }
    }

    /// Ends the oldest action under way with an abort.
    pub(crate) fn abort_next(&mut self, abort: Abort) {
        if let Some(proposal) = self.under_way.pop_front() {
            self.report(proposal, Outcome::Aborted(abort));
        }
    }

    /// Carries out one action, if the truth still allows it.
    pub(crate) fn carry_out(&mut self, proposal: &Proposal) -> Outcome {
        self.observe(&proposal.action);
        if let Action::Split { page } = proposal.action {
            return self.split(proposal.op, page);
        }
        let moves: Vec<_> = moves(&proposal.action).collect();
        let op = proposal.op;
        if moves.iter().any(|(page, ..)| self.void.contains(&(op, *page))) {
            return Outcome::Aborted(Abort::Stale);
        }
        if moves.iter().any(|&(page, from, _)| self.faulting == Some((page, from))) {
            return Outcome::Aborted(Abort::Busy);
        }
        if let [(_, _, to)] = moves[..]
            && !self.has_room(to, proposal.page_size)
        {
            return Outcome::Aborted(Abort::NoMemory);
        }
        let traffic = proposal.page_size.bytes() * moves.len() as u64;
        self.migrated += traffic;
        for (page, _, to) in moves {
            self.put(page, to);
        }
        Outcome::Completed { cost: Cycles(1_000), moved: traffic }
    }

    /// A huge page becomes a region of base pages that lie where it lay.
    fn split(&mut self, op: OpId, page: PageRef) -> Outcome {
        let Some(tier) = self.tier_of(page).filter(|_| !self.void.contains(&(op, page))) else {
            return Outcome::Aborted(Abort::Stale);
        };
        let id = RegionId(1000 + page.region.0 * 1000 + page.page.0);
        let context = ContextId::ANONYMOUS;
        let into = Region { id, pages: 512, page_size: PageSize::Base, context };
        self.take(page);
        self.regions.insert(id, into);
        for page in into.range().pages() {
            self.put(page, tier);
        }
        self.policy.split(page, &into);
        Outcome::Completed { cost: Cycles(1_000), moved: Bytes::ZERO }
    }

    /// Arms pages, or tells which were accessed.
    fn observe(&mut self, action: &Action) {
        match action {
            Action::Arm { range } => self.armed.extend(range.pages()),
            Action::Scan { range } => {
                let samples: Vec<_> = range
                    .pages()
                    .filter(|page| self.accessed.remove(page))
                    .map(|page| Sample {
                        source: SampleSource::AccessedBit,
                        ..sample(page, Access::Read, 1)
                    })
                    .collect();
                self.policy.samples(&samples);
            }
            _ => {}
        }
    }

    pub(crate) fn report(&mut self, proposal: Proposal, outcome: Outcome) {
        self.policy.done(&Done { proposal, outcome });
    }

    pub(crate) fn discard(&mut self, range: PageRange) {
        self.make_void(range);
        for page in range.pages() {
            self.take(page);
        }
        self.policy.free(range, false);
    }

    pub(crate) fn free(&mut self, id: u32) {
        let Some(&region) = self.regions.get(&RegionId(id)) else { return };
        self.make_void(region.range());
        for page in region.range().pages() {
            self.take(page);
        }
        self.regions.remove(&region.id);
        self.policy.free(region.range(), true);
    }

    pub(crate) fn tier_of(&self, page: PageRef) -> Option<TierId> {
        self.placed.get(&page).copied()
    }

    /// How many of some pages lie in DRAM.
    pub(crate) fn in_dram(&self, pages: impl IntoIterator<Item = PageRef>) -> usize {
        pages.into_iter().filter(|&p| self.tier_of(p) == Some(DRAM)).count()
    }
}

/// A policy by its name, so that a test can go through all of them.
pub(crate) struct Named(Box<dyn Policy>);

impl Named {
    pub(crate) fn new(name: PolicyName) -> Self {
        Self(name.build())
    }

    pub(crate) fn of(policy: Box<dyn Policy>) -> Self {
        Self(policy)
    }
}

impl Policy for Named {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn needs(&self) -> Needs {
        self.0.needs()
    }
    fn alloc(&mut self, region: &Region) {
        self.0.alloc(region);
    }
    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        self.0.fault(page, kind, telemetry)
    }
    fn samples(&mut self, samples: &[Sample]) {
        self.0.samples(samples);
    }
    fn base_samples(&mut self, samples: &[Sample], bases: &[u16]) {
        self.0.base_samples(samples, bases);
    }
    fn foresee(&mut self, upcoming: &[Upcoming]) {
        self.0.foresee(upcoming);
    }
    fn split(&mut self, page: PageRef, into: &Region) {
        self.0.split(page, into);
    }
    fn free(&mut self, range: PageRange, whole: bool) {
        self.0.free(range, whole);
    }
    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.0.tick(telemetry, plan);
    }
    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.0.pressure(tier, bytes, telemetry, plan);
    }
    fn done(&mut self, done: &Done) {
        self.0.done(done);
    }
    fn footprint(&self) -> Footprint {
        self.0.footprint()
    }
}

/// The pages that an action moves, from where, to where.
pub(crate) fn moves(action: &Action) -> impl Iterator<Item = (PageRef, TierId, TierId)> + use<> {
    let pair = match *action {
        Action::Promote { page, from, to } | Action::Demote { page, from, to } => {
            [Some((page, from, to)), None]
        }
        Action::Exchange { promote, demote, fast, slow } => {
            [Some((promote, slow, fast)), Some((demote, fast, slow))]
        }
        _ => [None, None],
    };
    pair.into_iter().flatten()
}

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
