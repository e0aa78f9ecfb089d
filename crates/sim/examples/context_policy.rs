//! A context policy in one file: the example of `docs/kloc.md`.
//!
//! Pages of sockets are placed in the fast memory, pages of files in the slow one, whatever else
//! is known. It needs two things of the contract: `context`, which says whose an object is and
//! in which page it lies, and `fault`, which comes after it and places that page.

use std::collections::BTreeSet;

use terrace_core::context::{ContextChange, ContextKind};
use terrace_core::{
    Bytes, ContextEvent, ContextId, Done, FaultKind, Heat, PageRange, PageRef, Plan, Reason,
    Region, Sample, Telemetry, TierId,
};
use terrace_policy::roster::{Candidate, Next, Roster};
use terrace_policy::{Footprint, Needs, Policy};
use terrace_sim::kernel::programs::{Amount, Program, Shapes};
use terrace_sim::kernel::{Class, Kernel, KernelConfig};
use terrace_sim::machines;

/// The policy: which contexts are files, and which pages have objects of files.
#[derive(Debug, Default)]
struct SocketsFirst {
    files: BTreeSet<ContextId>,
    of_files: BTreeSet<PageRef>,
    roster: Roster<1>,
}

impl Policy for SocketsFirst {
    fn name(&self) -> &'static str {
        "sockets-first"
    }

    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn alloc(&mut self, region: &Region) {
        self.roster.alloc(region);
    }

    fn context(&mut self, event: &ContextEvent) {
        match event.change {
            ContextChange::Created { identity } if identity.kind() == ContextKind::File => {
                self.files.insert(event.context);
            }
            ContextChange::Added { page, .. } if self.files.contains(&event.context) => {
                self.of_files.insert(page);
            }
            ContextChange::Deleted | ContextChange::Evicted => {
                self.files.remove(&event.context);
            }
            _ => {}
        }
    }

    fn fault(&mut self, page: PageRef, kind: FaultKind, telemetry: &Telemetry) -> TierId {
        let slowest = TierId(telemetry.tier_count - 1);
        let room = telemetry.tier(slowest).free >= self.roster.page_size(page).bytes();
        if self.of_files.contains(&page)
            && room
            && let Some(slot) = self.roster.slot(page)
        {
            self.roster.place(slot, slowest, 0, telemetry);
            return slowest;
        }
        self.roster.fault(page, kind, telemetry, |_, _, _| 0)
    }

    fn samples(&mut self, _samples: &[Sample]) {}

    fn free(&mut self, range: PageRange, whole: bool) {
        for page in range.pages() {
            self.of_files.remove(&page);
        }
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
        let sets = self.of_files.len() * size_of::<PageRef>();
        Footprint::of(size_of::<Self>(), self.roster.heap_bytes() + sets, self.roster.slots())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut machine = machines::load("kloc-two-tier")?;
    machine.tiers[0].capacity.value = Bytes::mib(32);
    machine.tiers[1].capacity.value = Bytes::mib(96);
    let amount = Amount { data: Bytes::mib(32), scale: 1024, operations: 1000, seed: 1 };
    let mut calls = Program::Redis.calls(&Shapes::builtin(), &amount);
    let policy = Box::new(SocketsFirst::default());
    let config = KernelConfig::new(machine);
    let mut kernel = Kernel::new(&config, policy, calls.threads(), calls.pages())?;
    let report = kernel.run(calls.as_mut())?;
    kernel.audit()?;
    let cache = report.all.class(Class::PageCache).placed;
    println!("{:.0} operations a second", report.throughput());
    println!("pages of files: {} in fast memory, {} in slow memory", cache[0], cache[1]);
    Ok(())
}
