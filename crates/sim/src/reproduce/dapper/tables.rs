//! Tables 3 and 4: where their rows lie on the paper's machine, and what the policies make of a
//! demand that rises and falls, in the simulated operating system.

use serde::Serialize;
use terrace_core::{Bytes, Machine, Nanos, PageSize, Pages};
use terrace_provision::economist::{Bill, Figures, Held};
use terrace_provision::policy::tables::{integration, removal};
use terrace_provision::view::Watermarks;
use terrace_provision::{NodeId, PolicyKind};

use crate::error::SimError;
use crate::os::{Daemon, Event, MarkSettings, Setup, System};

/// Table 3 on a node of the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Thresholds {
    /// The kernel.
    pub kernel: &'static str,
    /// Watermarks of the node.
    pub watermarks: Watermarks,
    /// The rows' upper ends (free memory at most this), and how many times the DRAM each brings
    /// in; the first has no upper end.
    pub rows: Vec<(Bytes, u64)>,
    /// What it brings in on an idle node, in multiples of the DRAM.
    pub idle: Option<u64>,
}

/// Table 3 with the watermarks of two kernels.
///
/// # Errors
///
/// Where the machine file has no nodes.
pub fn thresholds(machine: &Machine) -> Result<Vec<Thresholds>, SimError> {
    let kernels = [("Linux 4.5", MarkSettings::LINUX_4_5), ("Linux 6.12", MarkSettings::default())];
    let of = |(kernel, marks)| {
        let system = System::new(Setup { marks, ..Setup::of(machine)? })?;
        let view = system.view(NodeId(0));
        let Watermarks { min, low, high } = view.watermarks;
        let ends = [high * 2048, high * 1024, low * 1024, min * 1024, high];
        let rows =
            ends.into_iter().filter_map(|end| Some((end, integration(end, view.watermarks)?)));
        Ok(Thresholds {
            kernel,
            watermarks: view.watermarks,
            rows: rows.collect(),
            idle: integration(view.local_free(), view.watermarks),
        })
    };
    kernels.into_iter().map(of).collect()
}

/// Table 4 for the paper's own example: so much is free beside 1 TB; what leaves.
pub fn removals() -> Vec<(Bytes, Option<Bytes>)> {
    let capacity = Bytes::gib(1024);
    let free = [1088, 1024, 768, 512, 256, 128, 65];
    free.map(|free| (Bytes::gib(free), removal(Bytes::gib(free), capacity))).to_vec()
}

/// What a policy did with an hour of demand.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hour {
    /// The policy.
    pub policy: PolicyKind,
    /// Decisions that changed something.
    pub decisions: u64,
    /// Memory that changed its state, both ways together.
    pub moved: Bytes,
    /// Blocks that stayed as they were, although the policy wanted otherwise.
    pub refused: u64,
    /// Slow memory that was online, on average.
    pub online: Bytes,
    /// The most of the demand that lay at another node, although near memory was hidden.
    pub far: Bytes,
    /// Times that the program was killed for want of memory.
    pub killed: u64,
    /// What the slow memory cost and saved, where the machine file has the figures.
    pub bill: Option<Bill>,
}

/// An hour on one node: a program's memory rises and falls between 10 and 100 GiB every twenty
/// minutes, and a policy looks once a second.
///
/// # Errors
///
/// Where the machine file has no nodes.
pub fn hour(machine: &Machine, kind: PolicyKind, seconds: u64) -> Result<Hour, SimError> {
    let setup = Setup::of(machine)?;
    let block = setup.block;
    let home = NodeId(0);
    let near = setup.slow_near(home).unwrap_or(home);
    let mut system = System::new(setup)?;
    let mut daemon = Daemon::new(kind.build(), &system, Nanos::SECOND);
    let program = system.process(home, &[]);
    let (mut online, mut used, mut far, mut killed) = (0.0, 0.0, Bytes::ZERO, 0);
    for second in 1..=seconds {
        let phase = second as f64 / 1200.0 * core::f64::consts::TAU;
        let wanted = Bytes::from_f64((55.0 - 45.0 * phase.cos()) * f64::from(1 << 30)).get() / 4096;
        let held = system.held(program).0;
        if wanted < held {
            system.free(program, Pages(held - wanted));
        } else if system.touch(program, Pages(wanted - held)).is_err() {
            system.end(program);
            killed += 1;
        }
        daemon.run(&mut system, Nanos::seconds(second));
        let view = system.view(home);
        online += view.integrated.as_f64();
        let places = system.placement(program);
        let amount = |is: &dyn Fn(NodeId) -> bool| {
            let some = places.iter().filter(|(node, _)| is(*node));
            Bytes(some.map(|(_, pages)| pages.0).sum::<u64>() * 4096)
        };
        used += amount(&|node| node == near && node != home).as_f64();
        let away = amount(&|node| node != home && node != near);
        far = far.max(away.min(view.hidden));
    }
    system.audit().map_err(|why| SimError::parameter("nodes", why))?;
    let refused = daemon.journal.iter().filter(|event| matches!(event, Event::Refused { .. }));
    let moved = daemon.moved(block);
    let gib = Bytes::gib(1).as_f64();
    // Coming and going are a change each.
    let held = Held { online: online / gib, used: used / gib, blocks: moved / block / 2.0 };
    let figures = Figures::of(machine, None).ok();
    Ok(Hour {
        policy: kind,
        decisions: daemon.decisions().count() as u64,
        moved,
        refused: refused.count() as u64,
        online: Bytes::from_f64(online / seconds as f64),
        far,
        killed,
        bill: figures.map(|figures| figures.bill(held, PageSize::Base.bytes())),
    })
}
