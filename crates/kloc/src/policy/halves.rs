//! Two policies: one for the program's pages, one for the kernel's.

use std::collections::BTreeSet;

use terrace_core::{
    Action, Bytes, ContextEvent, ContextId, Done, FaultKind, OpId, PageRange, PageRef, Plan,
    Proposal, Region, RegionId, Sample, Telemetry, TierId,
};
use terrace_policy::{Footprint, Needs, Policy};

/// Two policies under one name. Regions of [`ContextId::SHARED`] are the kernel's.
pub struct Halves {
    name: &'static str,
    program: Box<dyn Policy>,
    kernel: Box<dyn Policy>,
    kernel_regions: BTreeSet<RegionId>,
    /// Proposals without a page, by who made them: those of the kernel's policy.
    kernel_ops: BTreeSet<OpId>,
    /// Whether the kernel's policy is shown as free what the program's leaves of it.
    program_first: bool,
}

impl Halves {
    /// The program's pages under one policy, the kernel's under another.
    pub fn new(name: &'static str, program: Box<dyn Policy>, kernel: Box<dyn Policy>) -> Self {
        let (kernel_regions, kernel_ops) = (BTreeSet::new(), BTreeSet::new());
        Self { name, program, kernel, kernel_regions, kernel_ops, program_first: false }
    }

    /// The program's pages come first: what they lack in the fastest tier is not free for the
    /// kernel's.
    #[must_use]
    pub fn program_first(self) -> Self {
        Self { program_first: true, ..self }
    }

    /// What the kernel's policy is shown, if that is not all that there is.
    fn left_by_program(&self, telemetry: &Telemetry) -> Option<Telemetry> {
        let lacks = if self.program_first { self.program.lacks() } else { Bytes::ZERO };
        (!lacks.is_zero()).then(|| {
            let mut left = *telemetry;
            left.tiers[TierId::FASTEST.index()].free -= lacks;
            left
        })
    }

    fn of(&mut self, region: RegionId) -> &mut dyn Policy {
        if self.kernel_regions.contains(&region) { &mut *self.kernel } else { &mut *self.program }
    }
}

/// The pages or the range that an action is about, as the region that they lie in.
fn region(action: &Action) -> Option<RegionId> {
    match action {
        Action::Scan { range }
        | Action::Arm { range }
        | Action::Collapse { range }
        | Action::FirstTouch { range, .. }
        | Action::Populate { range, .. } => Some(range.region),
        other => other.page().map(|page| page.region),
    }
}

/// What a proposal moves. That about a whole context is followed by those that move its pages.
fn moves(proposal: &Proposal) -> Bytes {
    match proposal.action {
        Action::DemoteContext { .. } => Bytes::ZERO,
        _ => proposal.page_size.bytes(),
    }
}

impl Policy for Halves {
    fn name(&self) -> &'static str {
        self.name
    }

    fn needs(&self) -> Needs {
        let (a, b) = (self.program.needs(), self.kernel.needs());
        Needs {
            samples: a.samples || b.samples,
            scans: a.scans || b.scans,
            reads_and_writes: a.reads_and_writes || b.reads_and_writes,
            tick: match (a.tick, b.tick) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            ..Needs::default()
        }
    }

    fn alloc(&mut self, region: &Region) {
        if region.context == ContextId::SHARED {
            self.kernel_regions.insert(region.id);
        }
        self.of(region.id).alloc(region);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        if !self.kernel_regions.contains(&page.region) {
            return self.program.fault(page, kind, telemetry);
        }
        let left = self.left_by_program(telemetry);
        self.kernel.fault(page, kind, left.as_ref().unwrap_or(telemetry))
    }

    fn samples(&mut self, samples: &[Sample]) {
        // A world's samples are of one region at a time, mostly.
        for run in samples.chunk_by(|a, b| a.page.region == b.page.region) {
            self.of(run[0].page.region).samples(run);
        }
    }

    fn context(&mut self, event: &ContextEvent) {
        self.program.context(event);
        self.kernel.context(event);
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        self.of(range.region).free(range, whole);
        if whole {
            self.kernel_regions.remove(&range.region);
        }
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        // Kernel pages that leave make room for the program's: they go first.
        let left = self.left_by_program(telemetry);
        self.kernel.tick(left.as_ref().unwrap_or(telemetry), plan);
        for proposal in plan.proposals() {
            if region(&proposal.action).is_none() {
                self.kernel_ops.insert(proposal.op);
            }
        }
        let planned: Bytes = plan.proposals().iter().map(moves).sum();
        let mut left = *telemetry;
        left.migration_budget = left.migration_budget.saturating_sub(planned);
        self.program.tick(&left, plan);
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.kernel.pressure(tier, bytes, telemetry, plan);
        let freed: Bytes = plan.proposals().iter().map(moves).sum();
        if freed < bytes {
            self.program.pressure(tier, bytes.saturating_sub(freed), telemetry, plan);
        }
    }

    fn done(&mut self, done: &Done) {
        match region(&done.proposal.action) {
            Some(region) => self.of(region).done(done),
            None if self.kernel_ops.remove(&done.proposal.op) => self.kernel.done(done),
            None => self.program.done(done),
        }
    }

    fn footprint(&self) -> Footprint {
        let (a, b) = (self.program.footprint(), self.kernel.footprint());
        Footprint { bytes: a.bytes + b.bytes, pages: a.pages + b.pages }
    }
}
