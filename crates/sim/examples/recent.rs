//! A policy in one file: the example of `docs/policies/adding.md`.
//!
//! What was sampled most recently lies in the fast tier: a page of a slower tier
//! that is sampled is brought up in place of the page of the fast tier that was
//! not sampled for the longest time.

use terrace_core::{
    Bytes, Done, FaultKind, Heat, Nanos, PageRange, PageRef, Plan, Reason, Region, Sample,
    Telemetry, TierId,
};
use terrace_policy::roster::{Candidate, End, Next, Raised, Standing};
use terrace_policy::{Footprint, Needs, Policy, Roster};
use terrace_sim::{
    Gups, GupsConfig, Phases, SimConfig, SimError, SimPolicy, SimReport, Simulation,
};
use terrace_sim::{Span, machines};

/// Pages in the order of their last samples.
const SEEN: usize = 0;
/// Pages of a slower tier that were sampled there.
const WANTED: usize = 1;

/// The policy: two lists in each tier, in the order of their last samples.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    roster: Roster<2>,
}

/// No more is known of a page than the order.
fn candidate(slot: u32) -> Candidate {
    Candidate { slot, heat: Heat::default() }
}

impl Policy for Recent {
    fn name(&self) -> &'static str {
        "recent"
    }

    fn needs(&self) -> Needs {
        Needs { samples: true, tick: Some(Nanos::millis(10)), ..Needs::default() }
    }

    fn alloc(&mut self, region: &Region) {
        self.roster.alloc(region);
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        self.roster.fault(page, kind, telemetry, |_, _, _| SEEN)
    }

    fn samples(&mut self, samples: &[Sample]) {
        for sample in samples {
            let Some(slot) = self.roster.slot(sample.page) else { continue };
            match self.roster.standing(slot) {
                // In the fast tier the order is all there is.
                Standing::Listed(TierId::FASTEST, _) => self.roster.relist(slot, SEEN, End::Young),
                // Who waits keeps its turn: else the busiest would wait for ever.
                Standing::Listed(_, SEEN) => self.roster.relist(slot, WANTED, End::Young),
                _ => {}
            }
        }
    }

    fn free(&mut self, range: PageRange, whole: bool) {
        self.roster.free(range, whole, |_| ());
    }

    fn tick(&mut self, telemetry: &Telemetry, plan: &mut Plan) {
        self.roster.survey(telemetry);
        let fast = TierId::FASTEST;
        for slow in (1..telemetry.tier_count).map(TierId) {
            // At most a hundredth of the fast tier in a tick.
            for _ in 0..(self.roster.len(fast, SEEN) / 100).max(1) {
                let Some(slot) = self.roster.oldest(slow, WANTED) else { break };
                let page = candidate(slot);
                let reason = Reason::OftenUsed;
                let raised = self.roster.raise(page, fast, reason, telemetry, plan, |roster| {
                    roster.oldest(fast, SEEN).map(candidate)
                });
                if raised != Raised::Proposed {
                    return;
                }
            }
        }
    }

    fn pressure(&mut self, tier: TierId, bytes: Bytes, telemetry: &Telemetry, plan: &mut Plan) {
        self.roster.relieve(tier, bytes, telemetry, plan, |roster| {
            let oldest = |list| roster.oldest(tier, list);
            let slot = oldest(SEEN).or_else(|| oldest(WANTED))?;
            Some((candidate(slot), Reason::PressureOldest))
        });
    }

    fn done(&mut self, done: &Done) {
        self.roster.done(done, |ended| Next::List(SEEN, ended.usual_end()));
    }

    fn footprint(&self) -> Footprint {
        Footprint::of(size_of::<Self>(), self.roster.heap_bytes(), self.roster.slots())
    }
}

/// Runs it on GUPS: 4 GiB, of which an eighth is hot and a quarter fits.
pub(crate) fn simulate(policy: Option<Recent>) -> Result<SimReport, SimError> {
    let mut machine = machines::optane_cascade_lake();
    machine.tiers[0].capacity.value = Bytes::gib(1);
    machine.cpu.llc.value = Bytes::mib(1);
    let gups = GupsConfig { working_set: Bytes::gib(4), ..GupsConfig::hemem(Bytes::mib(512)) };
    let second = Span::Time(Nanos::SECOND);
    let config = SimConfig {
        phases: Phases { warm_up: Span::Time(Nanos::seconds(4)), runs: 1, run: second },
        scale: 256,
        ..SimConfig::new(machine, Box::new(Gups::new(gups)?), SimPolicy::AllSlow)
    };
    let simulation = match policy {
        Some(policy) => Simulation::with_policy(config, Box::new(policy))?,
        None => Simulation::new(config)?,
    };
    Ok(simulation.run(&mut |_| ()))
}

fn main() -> Result<(), SimError> {
    for report in [simulate(None)?, simulate(Some(Recent::default()))?] {
        let share = report.tiers[0].share * 100.0;
        println!("{:>10}: {}, {share:.0} % from DRAM", report.policy, report.throughput);
    }
    Ok(())
}
