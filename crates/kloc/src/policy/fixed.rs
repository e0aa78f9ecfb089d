//! Everything in one tier.

use terrace_core::{
    Bytes, Done, FaultKind, Heat, PageRange, PageRef, PageSize, Plan, Reason, Region, Sample,
    Telemetry, TierId,
};
use terrace_policy::roster::{Candidate, Next, Roster};
use terrace_policy::{Footprint, Needs, Policy};

/// Everything in one tier, as long as that has room.
#[derive(Debug)]
pub struct Fixed {
    name: &'static str,
    slowest: bool,
    roster: Roster<1>,
}

impl Fixed {
    /// Everything in the fastest tier.
    pub fn fast() -> Self {
        Self { name: "all-fast", slowest: false, roster: Roster::new() }
    }

    /// Everything in the slowest tier.
    pub fn slow() -> Self {
        Self { name: "all-slow", slowest: true, roster: Roster::new() }
    }
}

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        self.name
    }

    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn alloc(&mut self, region: &Region) {
        self.roster.alloc(region);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        let size = self.roster.page_size(page);
        let slowest = TierId(telemetry.tier_count - 1);
        if self.slowest
            && let Some(slot) = self.roster.slot(page)
            && self.roster.tier(slot).is_none()
            && has_room(telemetry, slowest, size)
        {
            self.roster.place(slot, slowest, 0, telemetry);
            return slowest;
        }
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

/// Whether a tier takes another page in place.
pub(super) fn has_room(telemetry: &Telemetry, tier: TierId, size: PageSize) -> bool {
    let tier = telemetry.tier(tier);
    tier.addressable && tier.free >= size.bytes()
}
