//! First touch: a page lies where it was first placed.
//!
//! The fastest addressable tier with room at the first touch, and no voluntary
//! migration ever. It needs no samples and no tick. What a tier that is not
//! addressable forces on it, it does in order of arrival: the page that was
//! placed first is demoted first. The baseline that every policy has to beat.

use terrace_core::{
    Bytes, Done, FaultKind, Heat, PageRange, PageRef, Plan, Reason, Region, Sample, Telemetry,
    TierId,
};

use crate::contract::{Footprint, Needs, Policy};
use crate::roster::{Candidate, Next, Roster};

/// The first-touch policy.
#[derive(Debug, Default)]
pub struct FirstTouch {
    /// One list in each tier: its pages in order of arrival.
    roster: Roster<1>,
}

impl FirstTouch {
    /// The policy without regions.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Policy for FirstTouch {
    fn name(&self) -> &'static str {
        "first-touch"
    }

    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn alloc(&mut self, region: &Region) {
        self.roster.alloc(region);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        self.roster.fault(page, kind, telemetry, |_, _, _| 0)
    }

    fn samples(&mut self, _samples: &[Sample]) {}

    fn free(&mut self, range: PageRange, whole: bool) {
        self.roster.free(range, whole, |_| ());
    }

    fn tick(&mut self, _telemetry: &Telemetry, _plan: &mut Plan) {}

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.roster.relieve(tier, bytes, telemetry, plan, |roster| {
            let slot = roster.oldest(tier, 0)?;
            Some((Candidate { slot, heat: Heat::default() }, Reason::PressureOldest))
        });
    }

    fn done(&mut self, done: &Done) {
        self.roster.done(done, |ended| Next::List(0, ended.usual_end()));
    }

    fn footprint(&self) -> Footprint {
        Footprint::of(size_of::<Self>(), self.roster.heap_bytes(), self.roster.slots())
    }
}
