//! Dapper, first half: slow memory near the processors instead of far away.
//!
//! Xue, Huang, Li and Wu, *Dapper: An Adaptive Manager for Large-Capacity Persistent Memory*.
//! Where programs come to lie is decided in the simulated operating system ([`crate::os`]) by the
//! policies of [`terrace_provision`]; how fast they are there is simulated access by
//! access ([`crate::exact`]). Nothing is fitted: machine and costs are a file with sources,
//! programs are recordings of real ones ([`recorded`]) or algorithms of their kind
//! ([`crate::workload::suite`]), by name, and criteria were written before any result was there. `docs/reproduce-dapper.md` has results, and says where they differ and
//! why.
//!
//! | file | concept |
//! |---|---|
//! | [`tables`] | Tables 3 and 4 on the paper's machine |
//! | [`placing`] | Table 6: where programs lie |
//! | [`timing`] | how fast they are there |
//! | [`recorded`] | a recorded program in place of an algorithm |
//! | `claims` | the paper's statements, judged |
//! | `render` | all of it as text |

mod claims;
pub mod placing;
pub mod recorded;
mod render;
pub mod tables;
pub mod timing;

use std::path::{Path, PathBuf};

use serde::Serialize;
use terrace_core::{Bytes, Machine, Nanos};
use terrace_provision::PolicyKind;

use self::placing::{EXPERIMENTS, Placed, Provider, Start, place};
use self::recorded::Recorded;
use self::tables::{Hour, Thresholds};
use self::timing::{Placement, Shape, Timing, seat, shape, time};
use super::claim::Claim;
use crate::error::SimError;
use crate::exact::Source;
use crate::machines;
use crate::os::costs::{Draw, descriptors};
use crate::workload::catalog::{ProgramName, ProgramSpec};
use crate::workload::graph500::Phase;
use crate::workload::suite::{Half, STAND_INS, StandIn};

/// How much is simulated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DapperConfig {
    /// Accesses of each program that are measured.
    pub accesses: u64,
    /// Graph500's scale: the paper's is 22.
    pub scale: u32,
    /// Accesses of each phase of Graph500 that are measured.
    pub graph_accesses: u64,
    /// By how much less memory programs have when their speed is simulated.
    pub smaller: u64,
    /// Seconds of the demand that Tables 3 and 4 are compared with.
    pub seconds: u64,
    /// Processors of the node that are busy.
    pub processors: u32,
    /// Recordings in place of algorithms, by the name of the suite's program.
    pub recorded: Vec<(&'static str, PathBuf)>,
    /// Where all randomness comes from.
    pub seed: u64,
}

impl DapperConfig {
    /// Programs at their full size.
    pub fn whole() -> Self {
        Self {
            accesses: 8_000_000,
            scale: 22,
            graph_accesses: 40_000_000,
            smaller: 1,
            seconds: 3600,
            processors: 8,
            recorded: Vec::new(),
            seed: 1,
        }
    }

    /// A sixteenth of the memory, and fewer accesses: other figures in the same order, in less
    /// than a minute.
    pub fn quick() -> Self {
        Self {
            accesses: 300_000,
            scale: 16,
            graph_accesses: 1_000_000,
            smaller: 16,
            seconds: 300,
            ..Self::whole()
        }
    }

    /// The recording of a program, where there is one.
    fn recording(&self, program: &str) -> Option<&Path> {
        let of = self.recorded.iter().find(|(name, _)| *name == program);
        of.map(|(_, path)| path.as_path())
    }
}

/// Figure 1: memory near and far.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NearAndFar {
    /// A load that waits for the one before, in nanoseconds.
    pub latency_ns: [f64; 2],
    /// STREAM's loops on all processors, in GB/s of what the program reads and writes.
    pub bandwidth_gb_s: [f64; 2],
}

/// Figures 2 and 3: a program with all of its memory far away.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// The program of the suite.
    pub program: &'static str,
    /// What stands in for it.
    pub stand_in: String,
    /// Whether that is a recording of a real program.
    pub recorded: bool,
    /// Its half of the suite.
    pub half: Half,
    /// Memory that it had.
    pub memory: Bytes,
    /// With all of it near.
    pub near: Timing,
    /// With all of it far.
    pub far: Timing,
}

impl Bound {
    /// The performance that is lost far away, 0 to 1.
    pub fn lost(&self) -> f64 {
        1.0 - self.near.time / self.far.time
    }
}

/// Figure 4 and section 2.4: what memory draws, and what its descriptors take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Memory that is managed and powered.
    pub memory: Bytes,
    /// What its page descriptors take.
    pub descriptors: Bytes,
    /// Watts while idle.
    pub idle: Draw,
    /// Watts while busy.
    pub busy: Draw,
}

/// A program in an experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// The program, or the phase of Graph500.
    pub program: &'static str,
    /// Number of the experiment.
    pub experiment: u32,
    /// How fast it was with the memory that the policy provided.
    pub dapper: Timing,
    /// How fast with far memory.
    pub baseline: Timing,
}

impl Gain {
    /// How much more work is done in the same time, as a share: 0.3 for 30 %.
    pub fn share(&self) -> f64 {
        self.baseline.time / self.dapper.time - 1.0
    }
}

/// Programs that were started one after the other: the mean over all of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InTurn {
    /// Which programs.
    pub programs: &'static str,
    /// Number of the experiment.
    pub experiment: u32,
    /// The gain over far memory, as a share: what each program takes longer with all of its
    /// memory far, times how many of its instances lie there.
    pub gain: f64,
}

/// Table 6: an experiment with some programs under somebody who provides memory.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which programs.
    pub programs: &'static str,
    /// Number of the experiment.
    pub experiment: u32,
    /// Instances of all programs together.
    pub instances: u32,
    /// What they fill together.
    pub wanted: Bytes,
    /// Who provides the memory.
    pub provider: Provider,
    /// How they are started.
    pub start: Start,
    /// What came of it.
    pub placed: Placed,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct DapperTable {
    /// Version of this structure.
    pub schema: u32,
    /// The machine.
    pub machine: String,
    /// Accesses of each program that were measured.
    pub accesses: u64,
    /// By how much less memory programs had than the paper's.
    pub smaller: u64,
    /// Graph500's scale.
    pub scale: u32,
    /// Processors of the node that were busy.
    pub processors: u32,
    /// Figure 1.
    pub near_and_far: NearAndFar,
    /// Figures 2 and 3.
    pub bound: Vec<Bound>,
    /// Figure 4.
    pub costs: Vec<Cost>,
    /// Table 3.
    pub thresholds: Vec<Thresholds>,
    /// Table 4: free memory beside a terabyte, and what leaves.
    pub removals: Vec<(Bytes, Option<Bytes>)>,
    /// Tables 3 and 4 at work.
    pub hours: Vec<Hour>,
    /// Table 6.
    pub rows: Vec<Row>,
    /// Figure 10.
    pub mcf: Vec<Gain>,
    /// The same with two busy processors: Table 6 says "CPU: 0, 1".
    pub mcf_of_two: Vec<Gain>,
    /// Figures 10 to 13 where programs are started one after the other.
    pub in_turn: Vec<InTurn>,
    /// Figures 11 and 12.
    pub mixes: Vec<(Half, Vec<Gain>)>,
    /// Figures 13 and 14.
    pub graph500: Vec<Gain>,
    /// The paper's statements, judged.
    pub claims: Vec<Claim>,
}

/// The programs of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    Mcf,
    Half(Half),
    Graph500,
}

impl Group {
    const ALL: [Self; 4] =
        [Self::Mcf, Self::Half(Half::Integer), Self::Half(Half::Floating), Self::Graph500];

    const fn name(self) -> &'static str {
        match self {
            Self::Mcf => "mcf",
            Self::Half(Half::Integer) => "integer",
            Self::Half(Half::Floating) => "floating",
            Self::Graph500 => "graph500",
        }
    }

    /// For each kind of program its instances in an experiment, and what each fills: the
    /// most that it is known to use, times what makes all of them fill the table's memory.
    fn kinds(self, experiment: &placing::Experiment) -> Vec<(u32, Bytes)> {
        let (count, peaks): (u32, Vec<Bytes>) = match self {
            Self::Mcf => (experiment.mcf, vec![Bytes::gib(1)]),
            Self::Half(half) => {
                let count = match half {
                    Half::Integer => experiment.integer,
                    Half::Floating => experiment.floating,
                };
                (count, StandIn::of(half).map(StandIn::peak).collect())
            }
            Self::Graph500 => (experiment.tiny, vec![Bytes::gib(1)]),
        };
        let all: Bytes = peaks.iter().map(|peak| *peak * u64::from(count)).sum();
        let factor = experiment.memory() / all;
        peaks.into_iter().map(|peak| (count, Bytes::from_f64(peak.as_f64() * factor))).collect()
    }
}

/// Looks of the daemon: its sampling while memory is short.
const LOOKS: Nanos = Nanos::millis(100);

/// Runs everything. `progress` is told how much is done, of how much.
///
/// # Errors
///
/// Where the machine cannot be simulated.
pub fn dapper(
    config: &DapperConfig,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<DapperTable, SimError> {
    let machine = machines::load("four-node")?;
    // Tables, placement, Figure 1, mcf alone.
    let all = 4 + STAND_INS.len() + Phase::ALL.len();
    let mut done = 0;
    let mut next = |what: &str| {
        progress(done, all, what);
        done += 1;
    };
    next("tables");
    let thresholds = tables::thresholds(&machine)?;
    let mut hours = Vec::new();
    for kind in PolicyKind::ALL {
        hours.push(tables::hour(&machine, kind, config.seconds)?);
    }
    next("placement");
    let mut rows = Vec::new();
    for group in Group::ALL {
        for experiment in &EXPERIMENTS {
            let kinds = group.kinds(experiment);
            let mut add = |provider, start, every| -> Result<(), SimError> {
                rows.push(Row {
                    programs: group.name(),
                    experiment: experiment.number,
                    instances: kinds.iter().map(|(count, _)| count).sum(),
                    wanted: kinds.iter().map(|(count, each)| *each * u64::from(*count)).sum(),
                    provider,
                    start,
                    placed: place(&machine, experiment, provider, (&kinds, start), every)?,
                });
                Ok(())
            };
            for start in [Start::AtOnce, Start::InTurn] {
                add(Provider::Daemon(PolicyKind::Resolved), start, LOOKS)?;
                add(Provider::Baseline, start, LOOKS)?;
            }
            if group == Group::Mcf {
                let literal = Provider::Daemon(PolicyKind::PaperLiteralInstalled);
                add(literal, Start::AtOnce, Nanos::SECOND)?;
            }
        }
    }
    next("near and far");
    let near_and_far = near_and_far(&machine, config)?;
    let (mut bound, mut mixes) = (Vec::new(), Vec::new());
    for half in [Half::Integer, Half::Floating] {
        let mut gains = Vec::new();
        let memories = Group::Half(half).kinds(&EXPERIMENTS[0]);
        for (at, (one, &(_, memory))) in StandIn::of(half).zip(&memories).enumerate() {
            next(one.program);
            let places = placements(&rows, Group::Half(half), at);
            let memory = memory / config.smaller;
            let Ran { what, memory, ends, gains: found } =
                run_stand_in(&machine, config, one, memory, &places)?;
            let recorded = config.recording(one.program).is_some();
            let stand_in = if recorded { what } else { one.what.to_owned() };
            let [near, far] = ends;
            bound.push(Bound { program: one.program, stand_in, recorded, half, memory, near, far });
            gains.extend(found);
        }
        mixes.push((half, gains));
    }
    next("mcf alone");
    let one = StandIn::named("mcf").expect("it is one of them");
    let places = placements(&rows, Group::Mcf, 0);
    let memory = Group::Mcf.kinds(&EXPERIMENTS[0])[0].1 / config.smaller;
    let Ran { ends, gains: mcf, .. } = run_stand_in(&machine, config, one, memory, &places)?;
    let of_two = DapperConfig { processors: 2, ..config.clone() };
    let mcf_of_two = run_stand_in(&machine, &of_two, one, memory, &places)?.gains;
    let longer = |ends: &[Timing; 2]| ends[1].time / ends[0].time - 1.0;
    let mut in_turn = Vec::new();
    for (group, longer) in [
        (Group::Mcf, vec![longer(&ends)]),
        (Group::Half(Half::Integer), slower(&bound, Half::Integer)),
        (Group::Half(Half::Floating), slower(&bound, Half::Floating)),
    ] {
        in_turn.extend(started_in_turn(&rows, group, &longer));
    }
    let mut graph500 = Vec::new();
    let places = placements(&rows, Group::Graph500, 0);
    for phase in Phase::ALL {
        next(phase.name());
        let program = phase.build(config.scale, config.graph_accesses, config.seed);
        let shape = shape(&program);
        let Ran { ends, gains, .. } =
            run(&machine, config, phase.name(), Box::new(program), &shape, &places)?;
        graph500.extend(gains);
        if matches!(phase, Phase::Bfs | Phase::Sssp) {
            let gains = started_in_turn(&rows, Group::Graph500, &[longer(&ends)]);
            in_turn.extend(gains.into_iter().map(|gain| InTurn { programs: phase.name(), ..gain }));
        }
    }
    let costs = costs(&machine);
    let mut table = DapperTable {
        schema: 1,
        machine: machine.name,
        accesses: config.accesses,
        smaller: config.smaller,
        scale: config.scale,
        processors: config.processors,
        near_and_far,
        bound,
        costs,
        thresholds,
        removals: tables::removals(),
        hours,
        rows,
        mcf,
        mcf_of_two,
        in_turn,
        mixes,
        graph500,
        claims: Vec::new(),
    };
    table.claims = claims::claims(&table);
    Ok(table)
}

/// For each experiment, where a kind of program lies under Dapper and in the baseline.
fn placements(rows: &[Row], group: Group, kind: usize) -> Vec<(u32, [Placement; 2])> {
    let find = |number: u32, provider: Provider| {
        let row = rows.iter().find(|row| {
            row.programs == group.name()
                && row.experiment == number
                && row.provider == provider
                && row.start == Start::AtOnce
        });
        row.and_then(|row| row.placed.placements.get(kind)).cloned()
    };
    let both = |number: u32| {
        let dapper = find(number, Provider::Daemon(PolicyKind::Resolved))?;
        Some((number, [dapper, find(number, Provider::Baseline)?]))
    };
    EXPERIMENTS.iter().filter_map(|experiment| both(experiment.number)).collect()
}

/// How much longer each program of a half takes with all of its memory far.
fn slower(bound: &[Bound], half: Half) -> Vec<f64> {
    let some = bound.iter().filter(|bound| bound.half == half);
    some.map(|bound| bound.far.time / bound.near.time - 1.0).collect()
}

/// What programs gain that were started one after the other, from how much longer each kind
/// takes with all of its memory far.
fn started_in_turn(rows: &[Row], group: Group, longer: &[f64]) -> Vec<InTurn> {
    let mut gains = Vec::new();
    for experiment in &EXPERIMENTS {
        let time = |provider| {
            let row = rows.iter().find(|row| {
                row.programs == group.name()
                    && row.experiment == experiment.number
                    && row.start == Start::InTurn
                    && row.provider == provider
            })?;
            let shares = row.placed.far_shares.iter().zip(longer);
            Some(shares.map(|(far, longer)| 1.0 + far * longer).collect::<Vec<f64>>())
        };
        let both = time(Provider::Baseline).zip(time(Provider::Daemon(PolicyKind::Resolved)));
        let Some((baseline, dapper)) = both else { continue };
        let each = baseline.iter().zip(&dapper).map(|(baseline, dapper)| baseline / dapper - 1.0);
        let gain = each.sum::<f64>() / baseline.len().max(1) as f64;
        gains.push(InTurn { programs: group.name(), experiment: experiment.number, gain });
    }
    gains
}

fn run_stand_in(
    machine: &Machine,
    config: &DapperConfig,
    one: &'static StandIn,
    memory: Bytes,
    places: &[(u32, [Placement; 2])],
) -> Result<Ran, SimError> {
    if let Some(path) = config.recording(one.program) {
        let (recorded, shape) = Recorded::open(path, config.accesses)?;
        return run(machine, config, one.program, Box::new(recorded), &shape, places);
    }
    let program = one.build(memory, config.accesses, config.seed);
    let shape = shape(&program);
    run(machine, config, one.program, Box::new(program), &shape, places)
}

/// A program that was run in every way.
struct Ran {
    /// What it is.
    what: String,
    /// The memory that it had.
    memory: Bytes,
    /// With all of its memory near, and all of it far.
    ends: [Timing; 2],
    /// In each experiment.
    gains: Vec<Gain>,
}

/// A program with all of its memory near, all of it far, and in each experiment.
fn run(
    machine: &Machine,
    config: &DapperConfig,
    name: &'static str,
    program: Box<dyn Source>,
    shape: &Shape,
    places: &[(u32, [Placement; 2])],
) -> Result<Ran, SimError> {
    let mut all = vec![Placement::all(false), Placement::all(true)];
    for placement in places.iter().flat_map(|(_, both)| both) {
        if !all.contains(placement) {
            all.push(placement.clone());
        }
    }
    let what = program.describe();
    let seat = seat(machine, config.processors, shape.memory);
    let times = time(&seat, 1, program, shape, &all, config.seed)?;
    let of = |placement: &Placement| {
        let at = all.iter().position(|other| other == placement);
        times[at.expect("all of them were run")].clone()
    };
    let gain = |(experiment, [dapper, baseline]): &(u32, [Placement; 2])| Gain {
        program: name,
        experiment: *experiment,
        dapper: of(dapper),
        baseline: of(baseline),
    };
    Ok(Ran {
        what,
        memory: shape.memory,
        ends: [times[0].clone(), times[1].clone()],
        gains: places.iter().map(gain).collect(),
    })
}

/// Figure 1, on the whole node: a chase on one processor, STREAM on all.
fn near_and_far(machine: &Machine, config: &DapperConfig) -> Result<NearAndFar, SimError> {
    let both = [Placement::all(false), Placement::all(true)];
    let cores = machine.cpu.cores.value as usize;
    let go = |name, threads: usize| {
        let spec = ProgramSpec {
            threads,
            seed: config.seed,
            ..ProgramSpec::new(name, Bytes::mib(256), config.accesses)
        };
        let program = spec.build()?;
        let shape = shape(&program);
        let whole = seat(machine, 1, shape.memory);
        time(&whole, threads, Box::new(program), &shape, &both, config.seed)
    };
    let chase = go(ProgramName::Chase, 1)?;
    let stream = go(ProgramName::Stream, cores)?;
    let each = |timing: &Timing| timing.time.as_f64() / timing.accesses as f64;
    // STREAM counts what its loops read and write: eight bytes an access.
    let rate = |timing: &Timing| timing.accesses as f64 * 8.0 / timing.time.as_f64();
    Ok(NearAndFar {
        latency_ns: [each(&chase[0]), each(&chase[1])],
        bandwidth_gb_s: [rate(&stream[0]), rate(&stream[1])],
    })
}

/// Figure 4: DRAM alone, then with the slow memory of two nodes and of all.
fn costs(machine: &Machine) -> Vec<Cost> {
    let (Some(numa), Some(power)) = (&machine.numa, &machine.power) else { return Vec::new() };
    let sockets = numa.nodes.value;
    let of = |memory: Bytes| Cost {
        memory,
        descriptors: descriptors(memory, numa.page_descriptor.value),
        idle: Draw::of(power, sockets, memory, 0.0),
        busy: Draw::of(power, sockets, memory, 1.0),
    };
    let [dram, slow] = [0, 1].map(|tier: usize| machine.tiers[tier].capacity.value);
    let sockets = u64::from(sockets);
    (0..=sockets).map(|with| of(dram * sockets + slow * with)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes at which nothing is said about speed; every figure is there, and placement is that
    /// of the whole form.
    #[test]
    fn a_tiny_form_has_every_figure_and_every_program() {
        let directory = tempfile::tempdir().expect("a directory");
        let recording = directory.path().join("small.lackey");
        let line = |at: u64| format!("I  0400d7d4,8\n L {:08x},8\n", 0x1000_0000 + at * 64);
        let text: String = (0..60_000).map(|at| line(at * 7919 % 65_536)).collect();
        std::fs::write(&recording, text).expect("it can be written");
        let config = DapperConfig {
            accesses: 20_000,
            scale: 10,
            graph_accesses: 20_000,
            smaller: 512,
            seconds: 60,
            recorded: vec![("bzip2", recording.clone())],
            ..DapperConfig::whole()
        };
        let (mut steps, mut most) = (0, 0);
        let table = dapper(&config, &mut |done, all, _| {
            assert_eq!(done, steps);
            (steps, most) = (done + 1, all);
        });
        let table = table.expect("it can be simulated");
        assert_eq!(steps, most, "progress comes to its end");
        assert_eq!(table.bound.len(), STAND_INS.len());
        let recorded: Vec<_> = table.bound.iter().filter(|bound| bound.recorded).collect();
        assert!(recorded.len() == 1 && recorded[0].program == "bzip2", "{recorded:?}");
        assert_eq!(recorded[0].memory, Bytes::mib(4), "that of the recording");
        assert!(recorded[0].stand_in.starts_with("recorded: "), "{recorded:?}");
        assert!(recorded[0].lost() > 0.05, "{recorded:?}");
        assert_eq!(table.mcf.len(), 4);
        assert_eq!(table.graph500.len(), 4 * Phase::ALL.len());
        assert_eq!(table.in_turn.len(), 4 * 5);
        for (half, gains) in &table.mixes {
            assert_eq!(gains.len(), 4 * StandIn::of(*half).count());
        }
        for row in &table.rows {
            let placed = &row.placed;
            let held = placed.dram + placed.near + placed.far;
            let off = held / row.wanted;
            assert!((0.98..1.001).contains(&off), "{} {}: {off}", row.programs, row.experiment);
            if row.provider == Provider::Baseline {
                assert!(placed.near.is_zero(), "nothing near was provided");
                // All but the local DRAM lies far.
                let far = placed.far / (row.wanted - placed.dram);
                assert!((0.999..1.001).contains(&far), "{far}");
            }
        }
        let far = |experiment| {
            let gain = table.mcf.iter().find(|gain| gain.experiment == experiment);
            gain.map_or(f64::NAN, |gain| gain.baseline.far)
        };
        // 30.6 of 62 GiB, and 94.6 of 126.
        assert!((far(1) - 0.49).abs() < 0.01 && (far(4) - 0.75).abs() < 0.01);
        let text = table.to_string();
        for figure in ["Figure 1:", "Figures 2 and 3", "Figure 4:", "Table 3", "Table 4", "Table 6"]
        {
            assert!(text.contains(figure), "{figure}");
        }
        for figure in
            ["Figure 10:", "Figure 11:", "Figure 12:", "Figures 13 and 14", "recorded alone"]
        {
            assert!(text.contains(figure), "{figure}");
        }
        assert!(serde_json::to_value(&table).expect("it is data")["claims"].is_array());
    }
}
