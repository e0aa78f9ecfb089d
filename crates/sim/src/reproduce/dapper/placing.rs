//! Where the paper's programs come to lie: Table 6 in the simulated operating system.

use serde::Serialize;
use terrace_core::{Bytes, Machine, Nanos, Pages};
use terrace_provision::{BlockState, NodeId, PolicyKind};

use super::timing::Placement;
use crate::error::SimError;
use crate::os::populate::Pace;
use crate::os::{
    Daemon, Event, Instance, MarkSettings, PageDescriptors, Populated, Setup, System, ZoneKind,
    populate,
};

/// A row of Table 6: memory beside the local DRAM, and how many instances run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Experiment {
    /// Its number in the paper.
    pub number: u32,
    /// Slow memory: near under Dapper, far in the baseline.
    pub slow: Bytes,
    /// Instances of mcf.
    pub mcf: u32,
    /// Instances of Graph500.
    pub tiny: u32,
    /// Instances of each integer program (section 6.1.2).
    pub integer: u32,
    /// Instances of each floating program (section 6.1.2).
    pub floating: u32,
}

/// Table 6, with the instances of section 6.1.2.
pub const EXPERIMENTS: [Experiment; 4] = [
    Experiment { number: 1, slow: Bytes::gib(32), mcf: 62, tiny: 25, integer: 15, floating: 12 },
    Experiment { number: 2, slow: Bytes::gib(48), mcf: 78, tiny: 33, integer: 19, floating: 16 },
    Experiment { number: 3, slow: Bytes::gib(64), mcf: 94, tiny: 36, integer: 23, floating: 19 },
    Experiment { number: 4, slow: Bytes::gib(96), mcf: 126, tiny: 50, integer: 31, floating: 25 },
];

/// Memory of the table that its instances leave: 62 instances of 64 GB, 78 of 80, 94 of 96 and
/// 126 of 128 are 1 GB each with this.
pub const LEFT: Bytes = Bytes::gib(2);

impl Experiment {
    /// What all instances together may fill.
    pub fn memory(&self) -> Bytes {
        Bytes::gib(32) + self.slow - LEFT
    }
}

/// Who provides the memory beside the local DRAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// A policy, near, by demand.
    Daemon(PolicyKind),
    /// Somebody before, far.
    Baseline,
}

/// How the programs of an experiment are started; the paper does not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// All at once: each has some of its memory near and, where it is large, some far.
    AtOnce,
    /// One after the other in any order: each lies wholly near or wholly far.
    InTurn,
}

/// Where the programs of an experiment lie.
#[derive(Clone, Debug, Serialize)]
pub struct Placed {
    /// Slow memory that was online at the end.
    pub online: Bytes,
    /// What of the programs' memory lies in near DRAM.
    pub dram: Bytes,
    /// What lies in near slow memory.
    pub near: Bytes,
    /// What lies at other nodes.
    pub far: Bytes,
    /// DRAM of the node that page descriptors of slow memory took.
    pub descriptors: Bytes,
    /// How long the programs took to fill their memory.
    pub took: Nanos,
    /// Blocks that came online.
    pub blocks: u64,
    /// Programs that found no memory.
    pub killed: usize,
    /// For each kind of program, the share of its memory that lies far, 0 to 1.
    pub far_shares: Vec<f64>,
    /// For each kind of program, the median instance's placement.
    #[serde(skip)]
    pub placements: Vec<Placement>,
}

/// Runs an experiment in the simulated operating system. `kinds` says for each kind of program
/// how many instances there are and what each fills; all run on node 0.
///
/// As in the paper, slow memory joins a zone for anything, its page descriptors lie in DRAM, and
/// watermarks are those of its kernel.
///
/// # Errors
///
/// Where the machine file has no nodes.
pub fn place(
    machine: &Machine,
    experiment: &Experiment,
    provider: Provider,
    (kinds, start): (&[(u32, Bytes)], Start),
    every: Nanos,
) -> Result<Placed, SimError> {
    let mut setup = Setup::of(machine)?;
    setup.zone = ZoneKind::Normal;
    setup.page_descriptors = PageDescriptors::Dram;
    setup.marks = MarkSettings::LINUX_4_5;
    let home = NodeId(0);
    let near = setup.slow_near(home).unwrap_or(home);
    let far = setup.slow_near(NodeId(1)).unwrap_or(home);
    let mut system = System::new(setup)?;
    let (kind, allowed) = match provider {
        Provider::Daemon(kind) => (Some(kind), Vec::new()),
        Provider::Baseline => {
            let pool = system.pools().iter().find(|pool| pool.target_node == far);
            let blocks: Vec<usize> = pool
                .map(|pool| {
                    let count = (experiment.slow.get() / pool.block.get()) as usize;
                    pool.blocks.iter().take(count).map(|block| block.number as usize).collect()
                })
                .unwrap_or_default();
            for block in blocks {
                let done = system.online(block);
                done.map_err(|why| {
                    SimError::parameter("machine", format!("block {block}: {why}"))
                })?;
            }
            (None, vec![home, far])
        }
    };
    // Without a daemon nothing more comes: a policy that never asks.
    let policy = kind.map_or_else(|| Box::new(Nothing) as _, PolicyKind::build);
    let mut daemon = Daemon::new(policy, &system, every);
    let most = kinds.iter().map(|(count, _)| *count).max().unwrap_or(0);
    let mut instances: Vec<(usize, Instance)> = Vec::new();
    for round in 0..most {
        for (kind, &(count, memory)) in kinds.iter().enumerate() {
            if round < count {
                let process = system.process(home, &allowed);
                let memory = Pages(memory.get().div_ceil(4096));
                instances.push((kind, Instance { process, memory }));
            }
        }
    }
    let mut all: Vec<Instance> = instances.iter().map(|(_, one)| *one).collect();
    let page = machine.costs.kernel_fault.value
        + machine.costs.copy_bandwidth.value.time_for(Bytes::kib(4));
    let pace = Pace { processors: machine.cpu.cores.value, page, turn: Nanos::millis(10) };
    let populated = match start {
        Start::AtOnce => populate(&mut system, &mut daemon, &all, pace),
        Start::InTurn => {
            // Any order: sorted by numbers without a pattern.
            all.sort_by_key(|one| (one.process.0 as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut sum = Populated::default();
            for one in all {
                let populated = populate(&mut system, &mut daemon, &[one], pace);
                sum.took += populated.took;
                sum.killed.extend(populated.killed);
            }
            sum
        }
    };
    system.audit().map_err(|why| SimError::parameter("nodes", why))?;
    Ok(summary(&system, &daemon, &instances, kinds.len(), &populated, (home, near)))
}

/// Asks for nothing.
#[derive(Debug)]
struct Nothing;

impl terrace_provision::Provisioner for Nothing {
    fn tick(&mut self, view: &terrace_provision::NodeView) -> terrace_provision::Decision {
        use terrace_provision::{Change, Decision, Reason};
        Decision::about(view, Change::Nothing, Reason::Enough)
    }
}

fn summary(
    system: &System,
    daemon: &Daemon,
    instances: &[(usize, Instance)],
    kinds: usize,
    populated: &Populated,
    (home, near): (NodeId, NodeId),
) -> Placed {
    let mut placed = Placed {
        online: Bytes::ZERO,
        dram: Bytes::ZERO,
        near: Bytes::ZERO,
        far: Bytes::ZERO,
        descriptors: Bytes::ZERO,
        took: populated.took,
        blocks: daemon.journal.iter().filter(|e| matches!(e, Event::Online { .. })).count() as u64,
        killed: populated.killed.len(),
        far_shares: Vec::new(),
        placements: Vec::new(),
    };
    for pool in system.pools() {
        placed.online += pool.amount(|state| state != BlockState::Hidden);
    }
    let mut by_kind: Vec<Vec<Placement>> = vec![Vec::new(); kinds];
    for &(kind, Instance { process, .. }) in instances {
        let places = system.placement(process);
        if places.is_empty() {
            continue;
        }
        for &(node, pages) in &places {
            let amount = Bytes(pages.0 * 4096);
            let sum = if node == home {
                &mut placed.dram
            } else if node == near {
                &mut placed.near
            } else {
                &mut placed.far
            };
            *sum += amount;
        }
        let amounts: Vec<(u64, bool)> =
            places.iter().map(|(node, pages)| (pages.0, *node != home && *node != near)).collect();
        by_kind[kind].push(Placement::of(&amounts));
    }
    placed.descriptors = system.descriptors_in(home);
    placed.far_shares = by_kind
        .iter()
        .map(|kind| kind.iter().map(Placement::far).sum::<f64>() / kind.len().max(1) as f64)
        .collect();
    placed.placements = by_kind
        .into_iter()
        .map(|mut kind| {
            kind.sort_by(|a, b| a.far().total_cmp(&b.far()));
            let middle = kind.len() / 2;
            kind.into_iter().nth(middle).unwrap_or_else(|| Placement::all(false))
        })
        .collect();
    placed
}
