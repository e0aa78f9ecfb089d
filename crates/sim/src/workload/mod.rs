//! What the simulated program does.
//!
//! Two kinds. A [`Workload`] draws independent accesses for the model at full
//! scale ([`crate::analytic::simulation`]). A [`observed::Kernel`] is an algorithm whose
//! accesses are observed one by one, for the exact engine ([`crate::exact`]);
//! [`catalog`] has them by name.
//!
//! | file | program |
//! |---|---|
//! | [`gups`] | independent random updates |
//! | [`observed`] | algorithms on observed memory |
//! | [`catalog`] | observed algorithms by name |
//! | `share` | work divided over threads |
//! | [`updates`] | random updates: hot set, shifting, warm, sparse |
//! | [`chase`] | a pointer chase |
//! | [`bfs`] | breadth-first search as in Graph500 |
//! | [`btree`] | look-ups in a B+ tree |
//! | [`xsbench`] | XSBench's look-ups |
//! | [`stream`] | STREAM |
//! | [`graph500`] | Graph500 beside its searches |
//! | [`kronecker`] | graphs for the next two |
//! | [`pagerank`] | `PageRank` |
//! | [`sssp`] | shortest paths by delta-stepping |
//! | [`suite`] | stand-ins for the programs of SPEC CPU2006 |
//! | [`ycsb`] | YCSB's workload B on a key-value store |

pub mod bfs;
pub mod btree;
pub mod catalog;
pub mod chase;
pub mod graph500;
pub mod gups;
pub mod kronecker;
pub mod observed;
pub mod pagerank;
mod share;
pub mod sssp;
pub mod stream;
pub mod suite;
pub mod updates;
pub mod xsbench;
pub mod ycsb;

use rand_xoshiro::Xoshiro256PlusPlus;
use terrace_core::{Cycles, Nanos, Region};

use crate::analytic::cache::ReuseClass;

/// The random numbers of one simulated thread.
pub type SimRng = Xoshiro256PlusPlus;

/// What an access does to its line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessKind {
    /// A load.
    Load,
    /// A store; a store that misses the cache reads its line first.
    Store,
    /// A load and a store to the same place.
    #[default]
    Update,
}

impl AccessKind {
    /// Whether the program loads.
    pub const fn loads(self) -> bool {
        matches!(self, Self::Load | Self::Update)
    }
    /// Whether the program stores, so that the line has to be written back.
    pub const fn stores(self) -> bool {
        matches!(self, Self::Store | Self::Update)
    }
}

/// One access of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The page, counted through all regions in the order of
    /// [`Workload::regions`].
    pub page: u32,
    /// The byte within the page.
    pub offset: u32,
    /// Its class in [`Workload::classes`].
    pub class: u8,
    /// What it does.
    pub kind: AccessKind,
}

/// A program to simulate: threads that access memory.
///
/// A simulated access may stand for many real ones (see
/// [`crate::SimConfig::scale`]); a workload that draws its accesses at random
/// from a distribution that changes slowly is not affected by that.
pub trait Workload: Send {
    /// What people call it.
    fn name(&self) -> &'static str;

    /// What it does, with its parameters, in one line.
    fn describe(&self) -> String;

    /// How many threads it has.
    fn threads(&self) -> usize;

    /// The memory that it maps, before it begins.
    fn regions(&self) -> Vec<Region>;

    /// Processor time of one access, waiting for memory not included.
    fn compute(&self) -> Cycles;

    /// How many accesses a thread has in flight; `None` if nothing but the
    /// processor limits them.
    fn in_flight(&self) -> Option<f64>;

    /// Memory by how often it is accessed, for the last-level cache.
    fn classes(&self) -> Vec<ReuseClass>;

    /// The next accesses of a thread.
    fn fill(&mut self, thread: usize, now: Nanos, rng: &mut SimRng, accesses: &mut [Access]);

    /// The share of a thread's accesses that touch this page: how soon it runs
    /// into a page that was made to fault, and sets its accessed bit.
    fn share(&self, thread: usize, page: u32, now: Nanos) -> f64;

    /// When the shares of pages change next, if they do.
    fn next_change(&self, _now: Nanos) -> Option<Nanos> {
        None
    }

    /// The share of a thread's accesses that store to this page: how likely a
    /// thread is to run into a page that is write-protected while it moves.
    fn store_share(&self, thread: usize, page: u32, now: Nanos) -> f64;
}
