//! Programs in the shape of the paper's, at its sizes.
//!
//! The paper's programs need 150 GB and hours. Each stand-in here maps as much memory in the same
//! manner, and does as much work as the paper's counters say (`figures/fig1-*.csv` of its
//! artifact, read: medians of five runs with base pages). What it accesses is drawn at random in
//! the program's shape. How many instructions lie between two accesses far away is such that page
//! walks for a thousand instructions in base pages are those counted; everything else comes out
//! of the simulation. Nothing is fitted to a run time, or to huge pages.
//!
//! Work is sampled: a few hundred thousand accesses stand for all of an epoch.

use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde::Serialize;
use terrace_core::Bytes;

use super::program::{MmProgram, Step};
use super::space::Section;
use crate::error::SimError;
use crate::exact::Access;
use crate::workload::SimRng;

/// Where the memory of each process begins.
const START: u64 = 0x7e00_0000_0000;
/// Bytes that are populated in one step.
const CHUNK: u64 = 2 << 20;
/// Instructions a cycle of the paper's machine at most: waiting is told in instructions.
const WIDTH: f64 = 4.0;
/// Cycles of a nanosecond.
const CLOCK: f64 = 2.2;
/// Filling a base page: 4 KiB at 5 GB/s of one core, in nanoseconds. Derived from the machine
/// file's copy bandwidth.
const FILL: f64 = 820.0;

/// A program of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StandIn {
    /// SPEC CPU2017's mcf, 13 GiB.
    Mcf,
    /// SPEC CPU2017's xz, scaled up to 150 GiB.
    Xz,
    /// PARSEC's canneal with 530 million elements, 156 GiB.
    Canneal,
    /// memcached with 150 GB of records of 16 KB, YCSB, 99 % reads.
    Memcached,
    /// `MongoDB`, YCSB, 25 % reads.
    Mongodb,
    /// redis, a matrix product and a program that only takes memory, a third each.
    Mix,
}

/// What the paper's counters say of a program with base pages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Published {
    /// Instructions of user mode.
    pub instructions: f64,
    /// Page walks by loads for a thousand of them.
    pub walks_per_thousand: f64,
    /// Cycles of such a walk.
    pub cycles_per_walk: f64,
}

impl StandIn {
    /// All of them, in the order of the paper's Figure 5.
    pub const ALL: [Self; 6] =
        [Self::Canneal, Self::Mcf, Self::Memcached, Self::Mix, Self::Mongodb, Self::Xz];

    /// The paper's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mcf => "mcf",
            Self::Xz => "xz",
            Self::Canneal => "canneal",
            Self::Memcached => "memcached",
            Self::Mongodb => "mongodb",
            Self::Mix => "mix",
        }
    }

    /// What stands in for it, in a phrase.
    pub const fn what(self) -> &'static str {
        match self {
            Self::Mcf => "arcs in order, their nodes anywhere, 13 GiB",
            Self::Xz => "a dictionary's hash chains behind a window in order, 3 rounds of 150 GiB",
            Self::Canneal => "pairs of elements and their neighbours anywhere, 156 GiB",
            Self::Memcached => "an index and records of 16 KB by a Zipfian distribution, 150 GiB",
            Self::Mongodb => "a heap that grows by 256 KiB, look-ups through three levels, 80 GiB",
            Self::Mix => {
                "records, a matrix by columns, and memory that is only filled, 50 GiB each"
            }
        }
    }

    /// The paper's counters; `None` for the mix, for which there are none.
    pub fn published(self) -> Option<Published> {
        let of = |instructions, walks, cycles| Published {
            instructions,
            walks_per_thousand: walks * 1000.0 / instructions,
            cycles_per_walk: cycles / walks,
        };
        match self {
            Self::Mcf => Some(of(1.707e12, 3.43e9, 1.422e11)),
            Self::Xz => Some(of(5.674e13, 5.227e10, 1.416e12)),
            Self::Canneal => Some(of(1.037e13, 1.893e11, 1.902e13)),
            Self::Memcached => Some(of(6.76e10, 2.41e7, 1.049e10)),
            Self::Mongodb => Some(of(3.308e12, 4.082e9, 4.914e11)),
            Self::Mix => None,
        }
    }

    /// The programs, of a part of their size.
    pub fn build(self, size: &Size) -> Script {
        let gib = |count: u64| Bytes(Bytes::gib(count).get() / size.smaller);
        let part = |of: f64| of / size.smaller as f64;
        let map = |start, len| Phase::Map { start, len, section: Section::Mmap };
        let fill = |start, len, work| Phase::Populate { start, len, work, grow: None };
        let work = |pattern, instructions| Phase::Work { pattern, instructions };
        let every = |of: Option<Published>, far: f64| {
            // Instructions for `far` accesses that walk.
            of.map_or(500.0, |of| far * 1000.0 / of.walks_per_thousand)
        };
        let published = self.published();
        let instructions = part(published.map_or(1e12, |of| of.instructions));
        let processes = match self {
            Self::Mcf => {
                let (nodes, arcs) = (gib(3), gib(10));
                let arcs_at = START + nodes.get().next_multiple_of(CHUNK);
                let pattern = Pattern::Network {
                    nodes: Span { start: START, len: nodes.get() },
                    arcs: Span { start: arcs_at, len: arcs.get() },
                    work: every(published, 1.0),
                };
                vec![vec![
                    map(START, nodes + arcs),
                    fill(START, nodes + arcs, FILL),
                    work(pattern, instructions),
                ]]
            }
            Self::Canneal => {
                let all = gib(156);
                let pattern = Pattern::Anywhere {
                    memory: Span { start: START, len: all.get() },
                    chain: 2,
                    work: every(published, 1.0),
                };
                // Elements are made one by one from a file: the heap grows with them.
                vec![vec![
                    Phase::Populate {
                        start: START,
                        len: all,
                        // Parsing some 30 elements of a page (assumed: 1 us each).
                        work: FILL + 30_000.0,
                        grow: Some(Bytes::mib(64)),
                    },
                    work(pattern, instructions),
                ]]
            }
            Self::Xz => {
                let all = gib(150);
                let mut phases = Vec::new();
                for _ in 0..3 {
                    let pattern = Pattern::Dictionary {
                        memory: Span { start: START, len: all.get() },
                        work: every(published, 1.0),
                    };
                    phases.extend([
                        map(START, all),
                        fill(START, all, FILL),
                        work(pattern, instructions / 3.0),
                        Phase::Unmap { start: START, len: all },
                    ]);
                }
                vec![phases]
            }
            Self::Memcached => {
                // 9.4 million operations and as many records, in 588 s on unfragmented Linux: 31
                // us each, in which the server mostly waits for its clients.
                let each = 31_000.0;
                let all = gib(150);
                let index = gib(1);
                let records = Span { start: START + index.get(), len: (all - index).get() };
                let pattern = Pattern::Records {
                    index: Span { start: START, len: index.get() },
                    records,
                    bytes: 16 << 10,
                    work: each * CLOCK * WIDTH,
                };
                let operations = part(9.4e6);
                vec![vec![
                    map(START, all),
                    fill(START, all, each / 4.0),
                    work(pattern, operations * each * CLOCK * WIDTH),
                ]]
            }
            Self::Mongodb => {
                let all = gib(80);
                let pattern = Pattern::Anywhere {
                    memory: Span { start: START, len: all.get() },
                    chain: 3,
                    work: every(published, 1.0),
                };
                vec![vec![
                    Phase::Populate {
                        start: START,
                        len: all,
                        // 7689 s, of which a third is loading (assumed): 100 us a page.
                        work: 100_000.0,
                        grow: Some(Bytes::kib(256)),
                    },
                    work(pattern, instructions),
                ]]
            }
            Self::Mix => {
                // 1166 s on unfragmented Linux: a third loads, the rest works (assumed).
                let third = gib(50);
                let pages = third.get() as f64 / 4096.0;
                let load = part(3.9e11) / pages;
                let rest = part(7.8e11) * CLOCK;
                let records = Pattern::Records {
                    index: Span { start: START, len: gib(1).get() },
                    records: Span { start: START + gib(1).get(), len: (third - gib(1)).get() },
                    bytes: 16 << 10,
                    work: 31_000.0 * CLOCK * WIDTH,
                };
                let matrix =
                    Pattern::Columns { memory: Span { start: START, len: third.get() }, work: 4.0 };
                let mut takes = Vec::new();
                for _ in 0..4 {
                    takes.extend([
                        map(START, third),
                        fill(START, third, load),
                        Phase::Unmap { start: START, len: third },
                    ]);
                }
                vec![
                    vec![map(START, third), fill(START, third, load), work(records, rest * WIDTH)],
                    vec![map(START, third), fill(START, third, FILL), work(matrix, rest)],
                    takes,
                ]
            }
        };
        Script::new(self.name(), processes, size)
    }
}

/// How much of a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// By how much its memory and its work are smaller.
    pub smaller: u64,
    /// Epochs of each piece of work.
    pub epochs: u32,
    /// Accesses that are simulated of each.
    pub sample: u32,
    /// Where randomness comes from.
    pub seed: u64,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    len: u64,
}

/// What is accessed, and how many instructions pass with it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pattern {
    /// Arcs in order, 64 B each, and for each one of its nodes, nine of ten among the thirtieth
    /// of nodes that a simplex works on.
    Network { nodes: Span, arcs: Span, work: f64 },
    /// Chains of accesses anywhere, each of which needs the one before; two lines each.
    Anywhere { memory: Span, chain: u32, work: f64 },
    /// A window in order in the first half; a hash chain in the second.
    Dictionary { memory: Span, work: f64 },
    /// An index's line, then a record from its first line to its last.
    Records { index: Span, records: Span, bytes: u64, work: f64 },
    /// A matrix by columns, a row of 64 KiB, and another by rows.
    Columns { memory: Span, work: f64 },
}

/// What a process does, one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Map { start: u64, len: Bytes, section: Section },
    Unmap { start: u64, len: Bytes },
    Populate { start: u64, len: Bytes, work: f64, grow: Option<Bytes> },
    Work { pattern: Pattern, instructions: f64 },
}

/// Where a process is.
#[derive(Clone, Debug)]
struct At {
    phase: usize,
    /// Bytes or epochs of the phase that are done.
    done: u64,
    /// A growing heap was mapped up to here.
    mapped: u64,
    /// Place of what goes in order.
    place: u64,
    rng: SimRng,
}

/// Processes that follow a script.
#[derive(Clone, Debug)]
pub struct Script {
    name: &'static str,
    processes: Vec<Vec<Phase>>,
    at: Vec<At>,
    size: Size,
}

/// A random number below `n`.
fn below(rng: &mut SimRng, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}

/// An item of `n` by a Zipfian distribution with exponent 0.99 (YCSB's), by inversion of its
/// integral: items are so many that the sum and the integral agree.
fn zipf(rng: &mut SimRng, n: u64) -> u64 {
    let u = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    // The integral of x^-0.99 from 1 to n + 1 is 100 ((n + 1)^0.01 - 1).
    let all = (n as f64 + 1.0).powf(0.01) - 1.0;
    let x = (1.0 + u * all).powf(100.0);
    (x as u64 - 1).min(n - 1)
}

/// Scatters ranks over items.
const fn scatter(rank: u64, n: u64) -> u64 {
    terrace_core::splitmix64(rank) % n
}

impl Pattern {
    /// A few accesses with their instructions.
    fn push(&self, place: &mut u64, rng: &mut SimRng, out: &mut Vec<Access>) {
        match *self {
            Self::Network { nodes, arcs, work } => {
                let arc = *place % (arcs.len / 64);
                *place += 1;
                Access::load(arcs.start + arc * 64).push_after(out, (work / 2.0) as u64);
                let hot = nodes.len / 30;
                let span = if below(rng, 10) < 9 { hot } else { nodes.len };
                let node = nodes.start + (below(rng, span) & !63);
                Access::load(node).push_after(out, (work / 2.0) as u64);
                out.push(Access::store(node + 8).after(2));
            }
            Self::Anywhere { memory, chain, work } => {
                for step in 0..chain {
                    let address = memory.start + (below(rng, memory.len - 128) & !63);
                    let access = Access::load(address);
                    let access = if step == 0 { access } else { access.dependent() };
                    access.push_after(out, work as u64);
                    out.push(Access::load(address + 64).after(4));
                }
            }
            Self::Dictionary { memory, work } => {
                let half = memory.len / 2;
                let at = *place % half;
                *place += 8;
                Access::load(memory.start + (at & !7)).push_after(out, (work / 2.0) as u64);
                // Half of the matches are within the last 64 MiB of the chain.
                let near = below(rng, 2) == 0;
                let span = if near { half.min(64 << 20) } else { half };
                let end = if near { at.max(span) } else { half };
                let chain = memory.start + half + end - span + (below(rng, span) & !7);
                Access::load(chain).dependent().push_after(out, (work / 2.0) as u64);
                out.push(Access::store(chain).after(2));
            }
            Self::Records { index, records, bytes, work } => {
                let count = records.len / bytes;
                let record = scatter(zipf(rng, count), count);
                let line = scatter(record, index.len / 64) * 64;
                Access::load(index.start + line).push_after(out, work as u64);
                let first = records.start + record * bytes;
                out.push(Access::load(first).dependent().after(4));
                out.extend((1..bytes / 64).map(|line| Access::load(first + line * 64).after(4)));
            }
            Self::Columns { memory, work } => {
                let half = memory.len / 2;
                let rows = half >> 16;
                let (row, column) = (*place % rows, *place / rows % (1 << 13));
                *place += 1;
                let address = memory.start + (row << 16) + column * 8;
                out.push(Access::load(address).after(work as u64));
                let other = memory.start + half + (*place * 8) % half;
                out.push(Access::load(other & !7).after(work as u64));
            }
        }
    }
}

impl Script {
    fn new(name: &'static str, processes: Vec<Vec<Phase>>, size: &Size) -> Self {
        let at = (0..processes.len() as u64)
            .map(|number| At {
                phase: 0,
                done: 0,
                mapped: 0,
                place: 0,
                rng: SimRng::seed_from_u64(size.seed ^ (number << 32)),
            })
            .collect();
        Self { name, processes, at, size: *size }
    }

    /// The most memory that is mapped at once, all processes together.
    pub fn footprint(&self) -> Bytes {
        let of = |phases: &Vec<Phase>| {
            let (mut now, mut most) = (0u64, 0u64);
            for phase in phases {
                match *phase {
                    Phase::Map { len, .. } | Phase::Populate { len, grow: Some(_), .. } => {
                        now += len.get();
                    }
                    Phase::Unmap { len, .. } => now -= len.get(),
                    _ => {}
                }
                most = most.max(now);
            }
            Bytes(most)
        };
        self.processes.iter().map(of).sum()
    }
}

impl MmProgram for Script {
    fn describe(&self) -> String {
        format!("{}, {}", self.name, self.footprint())
    }

    fn processes(&self) -> u32 {
        self.processes.len() as u32
    }

    fn next(&mut self, process: u32, accesses: &mut Vec<Access>) -> Result<Option<Step>, SimError> {
        let at = &mut self.at[process as usize];
        let phases = &self.processes[process as usize];
        loop {
            let Some(&phase) = phases.get(at.phase) else { return Ok(None) };
            let step = match phase {
                Phase::Map { start, len, section } => {
                    at.phase += 1;
                    return Ok(Some(Step::Map { start, len, section }));
                }
                Phase::Unmap { start, len } => {
                    at.phase += 1;
                    return Ok(Some(Step::Unmap { start, len }));
                }
                Phase::Populate { start, len, work, grow } => {
                    if at.done >= len.get() {
                        None
                    } else if let Some(grow) = grow.filter(|_| at.mapped <= at.done) {
                        let more = grow.get().min(len.get() - at.mapped);
                        let step = Step::Map {
                            start: start + at.mapped,
                            len: Bytes(more),
                            section: Section::Heap,
                        };
                        at.mapped += more;
                        Some(step)
                    } else {
                        let limit = if grow.is_some() { at.mapped } else { len.get() };
                        let some = CHUNK.min(limit - at.done);
                        let step =
                            Step::Populate { start: start + at.done, len: Bytes(some), work };
                        at.done += some;
                        Some(step)
                    }
                }
                Phase::Work { pattern, instructions } => {
                    if at.done >= u64::from(self.size.epochs) {
                        None
                    } else {
                        at.done += 1;
                        while accesses.len() < self.size.sample as usize {
                            pattern.push(&mut at.place, &mut at.rng, accesses);
                        }
                        let stand_for = instructions / f64::from(self.size.epochs);
                        // What goes in order goes on as if all had been done.
                        at.place = at.place.wrapping_add(below(&mut at.rng, 1 << 30));
                        Some(Step::Work { stand_for: Some(stand_for) })
                    }
                }
            };
            if step.is_some() {
                return Ok(step);
            }
            (at.phase, at.done, at.mapped) = (at.phase + 1, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_stays_in_what_it_has_mapped() {
        let size = Size { smaller: 256, epochs: 2, sample: 4000, seed: 1 };
        for one in StandIn::ALL {
            let mut script = one.build(&size);
            assert!(script.footprint() > Bytes::mib(40), "{}", one.name());
            for process in 0..script.processes() {
                let mut mapped = std::collections::BTreeMap::new();
                let mut accesses = Vec::new();
                let mut populated = 0;
                while let Some(step) = script.next(process, &mut accesses).expect("no file") {
                    let is_mapped = |address: u64| {
                        let before = mapped.range(..=address).next_back();
                        before.is_some_and(|(start, len)| address < start + len)
                    };
                    match step {
                        Step::Map { start, len, .. } => {
                            mapped.insert(start, len.get());
                        }
                        Step::Unmap { start, .. } => {
                            mapped.remove(&start);
                        }
                        Step::Populate { start, len, .. } => {
                            assert!(is_mapped(start) && is_mapped(start + len.get() - 1));
                            populated += len.get();
                        }
                        Step::Work { stand_for } => {
                            assert!(stand_for.is_some_and(|count| count > 0.0));
                            let data = accesses.iter().filter(|access| access.is_data());
                            for access in data {
                                assert!(is_mapped(access.address()), "{} {access:?}", one.name());
                            }
                            accesses.clear();
                        }
                        Step::Advise { .. } => {}
                    }
                }
                assert!(populated > 0);
            }
        }
    }

    #[test]
    fn records_are_drawn_as_ycsb_draws_them() {
        let mut rng = SimRng::seed_from_u64(1);
        let n = 1_000_000;
        let first = (0..200_000).filter(|_| zipf(&mut rng, n) < n / 10).count() as f64 / 2e5;
        // The sum of i^-0.99 up to a tenth over that up to all.
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-0.99)).sum::<f64>();
        let exact = zeta(n / 10) / zeta(n);
        assert!((first - exact).abs() < 0.02, "{first} and {exact}");
    }
}
