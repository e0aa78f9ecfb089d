//! Stand-ins for the programs of SPEC CPU2006, which is sold and cannot be run here.
//!
//! Each is an algorithm of the kind that the program spends its time with, in as much
//! memory as the program is known to use. They are no models of those programs: how
//! many instructions lie between two accesses is that of the algorithm as it is written here, or
//! assumed where it is a constant. [`STAND_INS`] says for each what it is.
//!
//! | file | algorithm |
//! |---|---|
//! | [`network_simplex`] | the network simplex |
//! | [`event_queue`] | a heap of events |
//! | [`path_search`] | ways on a map |
//! | [`game_tree`] | positions of a game, seen before or not |
//! | [`sweep`] | passes over elements in order |
//! | [`motion`] | blocks of pictures that moved |
//! | [`alignment`] | dynamic programming |
//! | [`block_sort`] | rotations of text in order |
//! | [`document`] | a walk through a tree |
//! | [`lattice`] | fields on a lattice |
//! | [`sparse`] | a sparse matrix times a vector |
//! | [`neighbours`] | forces between particles |
//! | [`dense`] | small dense matrices |

pub mod alignment;
pub mod block_sort;
pub mod dense;
pub mod document;
pub mod event_queue;
pub mod game_tree;
pub mod lattice;
pub mod motion;
pub mod neighbours;
pub mod network_simplex;
pub mod path_search;
pub mod sparse;
pub mod sweep;

use serde::Serialize;
use terrace_core::Bytes;

use self::lattice::Method;
use super::observed::{Kernel, Observer, Program};
use super::ycsb::Ycsb;

/// Which half of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Half {
    /// CINT2006.
    Integer,
    /// CFP2006.
    Floating,
}

/// The algorithm that stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Store,
    BlockSort,
    Tree { node: u64, work: u64 },
    NetworkSimplex,
    GameTree,
    Alignment,
    Sweep,
    Motion,
    EventQueue,
    PathSearch,
    Lattice(Method),
    Sparse { band: u64 },
    Neighbours,
    Dense,
}

/// A program of the suite, and what stands in for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StandIn {
    /// The program's name, without its number.
    pub program: &'static str,
    /// Its half of the suite.
    pub half: Half,
    /// The most memory that it uses, in MB (10^6 bytes). Recalled: Henning, *SPEC CPU2006 memory
    /// footprint*, Computer Architecture News 35(1), 2007; sums agree with Dapper's Table 2 (a
    /// test), from which those of libquantum and calculix are derived.
    pub peak_mb: u64,
    algorithm: Algorithm,
    /// The algorithm in a few words.
    pub what: &'static str,
}

const fn stand_in(
    program: &'static str,
    half: Half,
    peak_mb: u64,
    algorithm: Algorithm,
    what: &'static str,
) -> StandIn {
    StandIn { program, half, peak_mb, algorithm, what }
}

const fn method(around: u64, here: u64, written: u64, work: u64) -> Algorithm {
    Algorithm::Lattice(Method { around, here, written, work })
}

use Algorithm::{
    Alignment, BlockSort, Dense, EventQueue, GameTree, Motion, Neighbours, NetworkSimplex,
    PathSearch, Sparse, Store, Sweep, Tree,
};
use Half::{Floating, Integer};

/// Programs, and what stands in for each. Dapper runs 12 integer programs and 15 of the 17
/// floating ones (its counts of instances divide by 12 and 15) and does not say which; gamess
/// and sphinx3, both small, are left out here. Fields and operations of lattices are assumed
/// from each method (lbm: 19 distributions; cactusADM: some 24 fields and a thousand operations).
pub const STAND_INS: [StandIn; 27] = [
    stand_in("perlbench", Integer, 575, Store, "look-ups of strings in a hash table"),
    stand_in("bzip2", Integer, 847, BlockSort, "rotations of blocks in order"),
    stand_in(
        "gcc",
        Integer,
        939,
        Tree { node: 256, work: 160 },
        "walks through trees of 256-byte nodes",
    ),
    stand_in("mcf", Integer, 1682, NetworkSimplex, "the network simplex"),
    stand_in("gobmk", Integer, 28, GameTree, "positions of a game in a table"),
    stand_in("hmmer", Integer, 25, Alignment, "alignment by dynamic programming"),
    stand_in("sjeng", Integer, 172, GameTree, "positions of a game in a table"),
    stand_in("libquantum", Integer, 57, Sweep, "gates on a register, in order"),
    stand_in("h264ref", Integer, 64, Motion, "blocks of pictures that moved"),
    stand_in("omnetpp", Integer, 170, EventQueue, "a heap of events, messages, modules"),
    stand_in("astar", Integer, 325, PathSearch, "ways on a map by a wave"),
    stand_in(
        "xalancbmk",
        Integer,
        420,
        Tree { node: 128, work: 60 },
        "walks through a document's tree",
    ),
    stand_in(
        "bwaves",
        Floating,
        874,
        method(5, 20, 5, 250),
        "25 fields in blocks of five, implicit",
    ),
    stand_in("milc", Floating, 679, method(4, 14, 6, 200), "3 by 3 complex matrices on a lattice"),
    stand_in("zeusmp", Floating, 502, method(6, 4, 3, 150), "magnetohydrodynamics on a lattice"),
    stand_in("gromacs", Floating, 14, Neighbours, "forces between near particles"),
    stand_in(
        "cactusADM",
        Floating,
        623,
        method(12, 12, 12, 1000),
        "Einstein's equations on a lattice",
    ),
    stand_in("leslie3d", Floating, 124, method(5, 5, 5, 150), "eddies on a lattice"),
    stand_in("namd", Floating, 45, Neighbours, "forces between near particles"),
    stand_in("dealII", Floating, 788, Sparse { band: 4096 }, "a sparse matrix near its diagonal"),
    stand_in("soplex", Floating, 429, Sparse { band: 0 }, "a sparse matrix, elements anywhere"),
    stand_in("povray", Floating, 3, Dense, "small dense matrices"),
    stand_in("calculix", Floating, 48, Dense, "small dense matrices"),
    stand_in("GemsFDTD", Floating, 828, method(3, 3, 3, 40), "Maxwell's equations on a lattice"),
    stand_in("tonto", Floating, 31, Dense, "small dense matrices"),
    stand_in("lbm", Floating, 409, method(0, 19, 19, 200), "19 distributions on a lattice"),
    stand_in("wrf", Floating, 686, method(6, 6, 4, 200), "weather on a lattice"),
];

impl StandIn {
    /// Everything of one half.
    pub fn of(half: Half) -> impl Iterator<Item = &'static Self> {
        STAND_INS.iter().filter(move |one| one.half == half)
    }

    /// By the program's name.
    pub fn named(program: &str) -> Option<&'static Self> {
        STAND_INS.iter().find(|one| one.program == program)
    }

    /// The most memory that the program uses.
    pub fn peak(&self) -> Bytes {
        Bytes(self.peak_mb * 1_000_000)
    }

    /// The stand-in in so much memory, which makes so many accesses after its initialisation.
    pub fn build(&self, size: Bytes, accesses: u64, seed: u64) -> Program {
        let mut observer = Observer::default();
        let see = &mut observer;
        let kernel: Box<dyn Kernel> = match self.algorithm {
            Store => Box::new(Ycsb::new(size, seed, 1, see)),
            BlockSort => Box::new(block_sort::BlockSort::new(size, seed, see)),
            Tree { node, work } => Box::new(document::Document::new(size, node, work, seed, see)),
            NetworkSimplex => Box::new(network_simplex::NetworkSimplex::new(size, seed, see)),
            GameTree => Box::new(game_tree::GameTree::new(size, seed, see)),
            Alignment => Box::new(alignment::Alignment::new(size, see)),
            Sweep => Box::new(sweep::Sweep::new(size, see)),
            Motion => Box::new(motion::Motion::new(size, seed, see)),
            EventQueue => Box::new(event_queue::EventQueue::new(size, seed, see)),
            PathSearch => Box::new(path_search::PathSearch::new(size, seed, see)),
            Algorithm::Lattice(method) => Box::new(lattice::Lattice::new(size, method, see)),
            Sparse { band } => Box::new(sparse::Sparse::new(size, band, seed, see)),
            Neighbours => Box::new(neighbours::Neighbours::new(size, seed, see)),
            Dense => Box::new(dense::Dense::new(size, see)),
        };
        Program::new(kernel, observer, accesses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::{Batch, Source, SpaceEvent};

    /// An access outside would be mapped by the simulator, and nobody would see that the
    /// algorithm computes wrong addresses.
    #[test]
    fn every_stand_in_stays_in_its_memory_uses_what_it_was_given_and_repeats() {
        for one in &STAND_INS {
            let size = Bytes::mib(6);
            let run = || {
                let mut program = one.build(size, 200_000, 3);
                let (mut batch, mut maps) = (Batch::default(), Vec::new());
                let (mut hash, mut count, mut touched) = (0_u64, 0_u64, 0_u64);
                while program.next(&mut batch).expect("no input") {
                    for event in &batch.events {
                        let SpaceEvent::Map { start, len } = *event else { continue };
                        maps.push((start, len));
                        touched += len;
                    }
                    for access in &batch.accesses {
                        let address = access.address();
                        let inside = |&(start, len): &(u64, u64)| address.wrapping_sub(start) < len;
                        let program = one.program;
                        assert!(maps.iter().any(inside), "{program}: {address:x} is outside");
                        hash = hash.rotate_left(5) ^ access.bits();
                        count += 1;
                    }
                }
                (hash, count, touched)
            };
            let (hash, count, touched) = run();
            let share = touched as f64 / size.as_f64();
            assert!((0.5..1.5).contains(&share), "{}: {share} of its size", one.program);
            assert!(count >= 200_000, "{}: {count} accesses", one.program);
            assert_eq!(run().0, hash, "{}", one.program);
        }
    }

    /// Dapper's Table 2, in MB.
    #[test]
    fn sums_of_memory_are_those_of_the_paper() {
        for (programs, paper) in [
            (["gobmk", "hmmer", "libquantum"], 110),
            (["h264ref", "gromacs", "namd"], 127),
            (["povray", "calculix", "tonto"], 82),
            (["zeusmp", "cactusADM", "xalancbmk"], 1548),
            (["bzip2", "wrf", "milc"], 2214),
            (["mcf", "bwaves", "GemsFDTD"], 3262),
        ] {
            let named = |name| StandIn::named(name).expect("one of them").peak_mb;
            let sum: u64 = programs.into_iter().map(named).sum();
            let off = sum.abs_diff(paper) as f64 / paper as f64;
            assert!(off < 0.05, "{programs:?}: {sum} and {paper}");
        }
        assert_eq!(StandIn::of(Half::Integer).count(), 12);
        assert_eq!(StandIn::of(Half::Floating).count(), 15);
    }
}
