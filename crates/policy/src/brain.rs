//! Policy and economist together: the one object that both worlds drive.
//!
//! A world calls these methods as events happen and carries out the plan that
//! comes back; what the economist vetoed has already been reported to the
//! policy and is not in the plan.
//!
//! What a brain is told can be recorded ([`Brain::record`]) and fed to another
//! brain later ([`Brain::replay`]): with the same policy and economist the
//! same plans come out, in whichever world the recording was made.

use terrace_core::{
    Abort, Action, ActionClass, Bytes, ContextEvent, Cycles, Done, Event, EventRef, FaultKind,
    Heat, Nanos, Outcome, PageRange, PageRef, PageSize, Plan, Proposal, Reason, Region, Sample,
    Telemetry, TierId, Upcoming, Urgency,
};
use terrace_economics::walks::LeftOut;
use terrace_economics::{Decision, Economist, LookedAt, Mode};

use crate::groups::Groups;
use crate::placing::{self, Choice, Placing};

use crate::contract::{Footprint, Needs, Policy};

/// Receives everything that a brain is told, before the brain acts on it.
///
/// It is called where the world calls, during page faults too, so it is bound
/// by the same rules there: a recorder for a live world copies into memory
/// that it has prepared.
pub type Recorder = Box<dyn FnMut(EventRef<'_>) + Send>;

/// A policy under an economist.
///
/// All plans of one brain are made in one [`Plan`], or in one after the other:
/// proposals are told apart by the numbers that it gives.
pub struct Brain {
    policy: Box<dyn Policy>,
    economist: Economist,
    /// Decisions of the last `tick` or `pressure`, in the order of the proposals.
    decisions: Vec<Decision>,
    vetoed: Vec<Done>,
    recorder: Option<Recorder>,
    /// Decisions about several pages that are under way.
    groups: Groups,
    /// First touches for which one answer of the economist holds.
    placing: Placing,
}

impl Brain {
    /// Puts a policy under an economist.
    pub fn new(policy: Box<dyn Policy>, economist: Economist) -> Self {
        Self {
            policy,
            economist,
            decisions: Vec::new(),
            vetoed: Vec::new(),
            recorder: None,
            groups: Groups::default(),
            placing: Placing::default(),
        }
    }

    /// From now on tells a recorder what happens, or no longer. A recording
    /// that is to be replayed begins before the first region is entered.
    pub fn record(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    #[inline]
    fn tell(&mut self, event: EventRef<'_>) {
        if let Some(recorder) = &mut self.recorder {
            recorder(event);
        }
    }

    /// The policy's name.
    pub fn name(&self) -> &'static str {
        self.policy.name()
    }
    /// What the policy needs.
    pub fn needs(&self) -> Needs {
        self.policy.needs()
    }
    /// The economist, for its accounts.
    pub fn economist(&self) -> &Economist {
        &self.economist
    }
    /// The policy's own memory.
    pub fn footprint(&self) -> Footprint {
        self.policy.footprint()
    }
    /// The economist's decisions on the last plan, vetoed proposals included.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// The program mapped a region.
    pub fn alloc(&mut self, region: &Region) {
        self.tell(EventRef::Alloc { region });
        self.placing.map(region);
        self.policy.alloc(region);
    }
    /// A page has to be placed.
    pub fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        self.tell(EventRef::Fault { page, kind, telemetry });
        self.policy.fault(page, kind, telemetry)
    }

    /// A page is touched for the first time in a world that has a choice of memories: where it goes,
    /// and whether the economist was asked, whose answer is in [`Brain::decisions`] then. It is asked
    /// once for a run of pages. The page that it is asked about goes where the
    /// policy said; the rest of a run that it refuses, elsewhere.
    pub fn place(
        &mut self,
        page: PageRef,
        size: PageSize,
        kind: FaultKind,
        telemetry: &Telemetry,
    ) -> (TierId, bool) {
        if self.economist.mode() == Mode::Off {
            return (self.fault(page, kind, telemetry), false);
        }
        let ample = self.economist.calibration().parameters.ample_free;
        if let Some(tier) = self.placing.refused(page.region, size, telemetry, ample) {
            return (self.fault(page, kind, &placing::without(telemetry, tier)), false);
        }
        let tier = self.fault(page, kind, telemetry);
        let Some(choice) = Choice::of(tier, size, telemetry, ample) else { return (tier, false) };
        if self.placing.goes_on(page.region, choice) {
            return (tier, false);
        }
        let urgency = if choice.is_free() { Urgency::Voluntary } else { Urgency::Forced };
        let mapped = self.placing.mapped();
        let action = Action::Place { page, to: tier, instead: choice.instead, mapped };
        let why = (urgency, Reason::NewMemory);
        let passes = self.consider(action, size, Heat::default(), why, telemetry).is_some();
        self.placing.begin(page.region, choice, !passes);
        (tier, true)
    }

    /// Accesses were observed.
    pub fn samples(&mut self, samples: &[Sample]) {
        self.tell(EventRef::Samples { samples });
        self.economist.observe(samples);
        self.policy.samples(samples);
    }
    /// The same, with the number of the base page within each sample's page.
    pub fn base_samples(&mut self, samples: &[Sample], bases: &[u16]) {
        self.tell(EventRef::BaseSamples { samples, bases });
        self.economist.observe(samples);
        self.policy.base_samples(samples, bases);
    }
    /// The world has seen accesses that the policy is not told of: the economist's accounts have what they
    /// gain.
    pub fn witness(&mut self, samples: &[Sample]) {
        self.economist.witness(samples);
    }
    /// The program's next accesses, for a policy that wants to know them. The
    /// economist is told nothing: it judges by what has been seen.
    pub fn foresee(&mut self, upcoming: &[Upcoming]) {
        self.tell(EventRef::Foresight { upcoming });
        self.policy.foresee(upcoming);
    }
    /// A page was split into the base pages of a region of its own.
    pub fn split(&mut self, page: PageRef, into: &Region) {
        self.tell(EventRef::Split { page, into });
        let range = PageRange { region: page.region, start: page.page, count: 1 };
        self.economist.forget(range);
        self.policy.split(page, into);
    }
    /// Something happened to a file or a socket.
    pub fn context(&mut self, event: &ContextEvent) {
        self.tell(EventRef::Context { event });
        self.policy.context(event);
    }
    /// Pages were given back, or a whole region unmapped.
    pub fn free(&mut self, range: PageRange, whole: bool) {
        self.tell(if whole { EventRef::Free { range } } else { EventRef::Discard { range } });
        if whole {
            self.placing.unmap(range.region);
        }
        self.economist.forget(range);
        self.policy.free(range, whole);
    }

    /// The policy's clock ticked; `plan` comes back with what may be done.
    pub fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.tell(EventRef::Tick { telemetry });
        plan.clear();
        self.policy.tick(telemetry, plan);
        self.review(telemetry, plan);
    }

    /// A tier is short of memory; `plan` comes back with what may be done.
    pub fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.tell(EventRef::Pressure { tier, bytes, telemetry });
        plan.clear();
        self.policy.pressure(tier, bytes, telemetry, plan);
        self.review(telemetry, plan);
    }

    /// A planned action came to its end.
    pub fn done(&mut self, done: &Done, telemetry: &Telemetry) {
        self.tell(EventRef::Done { done, telemetry });
        if self.groups.has(done.proposal.op) {
            if let Some(whole) = self.groups.ended(done) {
                self.economist.settle(&whole, telemetry);
                self.policy.done(&whole);
            }
        } else {
            self.economist.settle(done, telemetry);
        }
        self.policy.done(done);
    }

    /// The world has something to propose that is no policy's business; the proposal if
    /// the economist lets it pass ([`Economist::consider`]).
    pub fn consider(
        &mut self,
        action: Action,
        page_size: PageSize,
        heat: Heat,
        why: (Urgency, Reason),
        telemetry: &Telemetry,
    ) -> Option<Proposal> {
        let (proposal, decision) = self.economist.consider(action, page_size, heat, why, telemetry);
        self.decisions.clear();
        self.decisions.push(decision);
        decision.passes.then_some(proposal)
    }

    /// The program has walked through pages that were zeroed for it.
    pub fn walked_through(&mut self, pages: u64, size: PageSize) {
        self.economist.walked_through(pages, size);
    }

    /// Of pages that came in ahead of walks, so many were asked for; bringing them in had cost so
    /// much.
    pub fn walked_into(&mut self, used: f64, cost: Cycles) {
        self.economist.walked_into(used, cost);
    }

    /// It is known what came of pages that were left out of those that walks had ahead.
    pub fn left_out(&mut self, pages: &LeftOut) {
        self.economist.left_out(pages);
    }

    /// So many pages have come back from the file, each after such a time of reading.
    pub fn came_back(&mut self, pages: u64, each: Nanos) {
        self.economist.came_back(pages, each);
    }

    /// A huge page is wanted, and there is a free block for it or is none.
    pub fn saw_blocks(&mut self, is_any: bool, now: Nanos) {
        self.economist.saw_blocks(is_any, now);
    }

    /// A place that a profile speaks of was held out, and looked at later.
    pub fn looked_at(&mut self, class: ActionClass, place: LookedAt) {
        self.economist.looked_at(class, place);
    }

    /// It decides for this process.
    pub fn set_process(&mut self, process: u32) {
        self.economist.set_process(process);
    }

    /// It goes on in a forked child, with accounts of its own.
    pub fn forked(&mut self, process: u32) {
        self.economist.forked(process);
    }

    /// Deciding has cost so much.
    pub fn spent(&mut self, cost: Cycles) {
        self.economist.spent(cost);
    }

    /// What a page walk costs was measured.
    pub fn set_page_walk(&mut self, cost: Nanos) {
        self.economist.set_page_walk(cost);
    }

    /// What the world proposed has cost so much, and came to nothing.
    pub fn in_vain(&mut self, proposal: &Proposal, cost: Cycles) {
        self.economist.in_vain(proposal, 0.0, cost);
    }

    /// What the world proposed came to its end.
    pub fn carried_out(&mut self, done: &Done, telemetry: &Telemetry) {
        self.economist.settle(done, telemetry);
    }

    /// The run is over: what is still being watched is judged by the time it
    /// had, so that the accounts are complete.
    pub fn finish(&mut self, now: Nanos) {
        self.economist.finish(now);
    }

    /// Feeds one recorded event, and says whether `plan` was renewed by it.
    pub fn replay(&mut self, event: &Event, plan: &mut Plan) -> bool {
        match event {
            Event::Alloc { region } => self.alloc(region),
            Event::Fault { page, kind, telemetry } => {
                self.fault(*page, *kind, telemetry);
            }
            Event::Samples { samples } => self.samples(samples),
            Event::BaseSamples { samples, bases } => self.base_samples(samples, bases),
            Event::Foresight { upcoming } => self.foresee(upcoming),
            Event::Split { page, into } => self.split(*page, into),
            Event::Context { event } => self.context(event),
            Event::Discard { range } => self.free(*range, false),
            Event::Free { range } => self.free(*range, true),
            Event::Tick { telemetry } => {
                self.tick(telemetry, plan);
                return true;
            }
            Event::Pressure { tier, bytes, telemetry } => {
                self.pressure(*tier, *bytes, telemetry, plan);
                return true;
            }
            Event::Done { done, telemetry } => self.done(done, telemetry),
        }
        false
    }

    /// Nobody judges the parts of a decision about a whole context.
    fn survey(economist: &mut Economist, plan: &Plan, telemetry: &Telemetry) {
        let mut rest = plan.proposals();
        if !rest.iter().any(|p| matches!(p.action, Action::DemoteContext { .. })) {
            economist.survey(rest, telemetry);
            return;
        }
        while let Some(first) = rest.first() {
            let is_head = |p: &Proposal| matches!(p.action, Action::DemoteContext { .. });
            if let Action::DemoteContext { pages, .. } = first.action {
                economist.survey(&rest[..1], telemetry);
                rest = &rest[(1 + pages as usize).min(rest.len())..];
            } else {
                let end = rest.iter().position(is_head).unwrap_or(rest.len());
                economist.survey(&rest[..end], telemetry);
                rest = &rest[end..];
            }
        }
    }

    fn review(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.decisions.clear();
        self.vetoed.clear();
        Self::survey(&mut self.economist, plan, telemetry);
        let (economist, decisions, vetoed) =
            (&mut self.economist, &mut self.decisions, &mut self.vetoed);
        let groups = &mut self.groups;
        let mut members = Members::default();
        plan.retain(|proposal| {
            if let Some(passes) = members.next() {
                // What was said of the whole is said of its parts.
                let outcome = Outcome::Aborted(Abort::Vetoed);
                vetoed.extend((!passes).then_some(Done { proposal: *proposal, outcome }));
                return passes;
            }
            let decision = economist.decide(proposal, telemetry);
            let passes = decision.passes;
            decisions.push(decision);
            if !passes {
                vetoed.push(Done { proposal: *proposal, outcome: Outcome::Aborted(Abort::Vetoed) });
            }
            if let Action::DemoteContext { pages, .. } = proposal.action {
                members = Members { left: pages, passes };
                if passes {
                    groups.begin(proposal, pages);
                }
                // The world moves pages; of the whole there is nothing to carry out.
                return false;
            }
            passes
        });
        for done in self.vetoed.drain(..) {
            self.policy.done(&done);
        }
    }
}

/// The proposals that a decision about a whole context has spoken for.
#[derive(Clone, Copy, Debug, Default)]
struct Members {
    left: u32,
    passes: bool,
}

impl Members {
    /// What was decided of the next proposal, if it is one of them.
    fn next(&mut self) -> Option<bool> {
        self.left = self.left.checked_sub(1)?;
        Some(self.passes)
    }
}
