//! The best placement that never moves a page, as a policy: it was told which
//! pages go to the fastest memory.

use std::collections::HashSet;

use terrace_core::{
    Bytes, Done, FaultKind, PageRange, PageRef, Plan, Region, Sample, Telemetry, TierId,
};
use terrace_policy::Policy;
use terrace_policy::contract::{Footprint, Needs};

/// Pages of the fastest memory; all others lie in the slowest.
pub(super) struct Pinned(pub(super) HashSet<PageRef>);

impl Policy for Pinned {
    fn name(&self) -> &'static str {
        "best-placement"
    }

    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn alloc(&mut self, _region: &Region) {}

    fn fault(&mut self, page: PageRef, _kind: FaultKind, telemetry: &Telemetry) -> TierId {
        if self.0.contains(&page) { TierId::FASTEST } else { TierId(telemetry.tier_count - 1) }
    }

    fn samples(&mut self, _samples: &[Sample]) {}
    fn free(&mut self, _range: PageRange, _whole: bool) {}
    fn tick(&mut self, _telemetry: &Telemetry, _plan: &mut Plan) {}
    fn pressure(&mut self, _tier: TierId, _bytes: Bytes, _: &Telemetry, _plan: &mut Plan) {}
    fn done(&mut self, _done: &Done) {}

    fn footprint(&self) -> Footprint {
        let bytes = self.0.len() * size_of::<PageRef>();
        Footprint { bytes: Bytes(bytes as u64), pages: self.0.len() as u64 }
    }
}
