//! The sampler contract.

use std::ops::Range;

use terrace_core::{Nanos, PageRef, Sample};
use thiserror::Error;

/// Accesses that a set bit of a page table stands for.
///
/// A bit says "at least once since it was cleared", which can be one access or
/// a million. We take it for one pass over the page's 64 cache lines: programs
/// that touch a page mostly touch more of it than one line, and the economist
/// treats the number as uncertain in any case.
pub const ACCESSES_A_BIT: u64 = 64;

/// Memory of one process that is being observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRange {
    /// The process.
    pub process: u32,
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// What a world tells a sampler about the pages that it manages.
pub trait Pages {
    /// The managed page that an address lies in.
    fn page_at(&self, process: u32, address: u64) -> Option<PageRef>;

    /// Every managed page in a range that has content somewhere, in order, with the addresses of
    /// all that it is: of a huge page more of it may lie outside of the range.
    fn pages_in(&self, range: ProcessRange, each: &mut dyn FnMut(PageRef, Range<u64>));

    /// All managed memory that may have content, in the order of processes and addresses.
    fn ranges(&self) -> Vec<ProcessRange>;
}

/// How a sampler fares, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Samples that were delivered.
    pub delivered: u64,
    /// Samples that the kernel or the hardware lost.
    pub lost: u64,
    /// Times that the kernel throttled the sampler.
    pub throttled: u64,
    /// Samples of memory that is not managed: dropped.
    pub foreign: u64,
    /// Processor time spent on sampling, the kernel's included as far as it
    /// can be told.
    pub cpu: Nanos,
}

impl core::ops::AddAssign for Health {
    fn add_assign(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.throttled += other.throttled;
        self.foreign += other.foreign;
        self.cpu += other.cpu;
    }
}

/// A sampler that cannot go on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{sampler}: {what}")]
pub struct SamplerError {
    /// Which.
    pub sampler: &'static str,
    /// What went wrong, and where.
    pub what: String,
}

impl SamplerError {
    /// An error of a sampler.
    pub fn new(sampler: &'static str, what: impl core::fmt::Display) -> Self {
        Self { sampler, what: what.to_string() }
    }
}

/// A way to observe accesses.
pub trait Sampler: Send {
    /// What people call it.
    fn name(&self) -> &'static str;

    /// How many accesses one sample stands for, at present.
    fn period(&self) -> u64;

    /// Adds what was observed since the last call. A sampler that has to wait
    /// between two looks returns at once when it is not time yet.
    fn collect(
        &mut self,
        now: Nanos,
        pages: &dyn Pages,
        out: &mut Vec<Sample>,
    ) -> Result<(), SamplerError>;

    /// Makes every sample `factor` times as rare as configured, so that
    /// sampling costs about as much less.
    fn set_rarity(&mut self, factor: u32);

    /// Whether it costs less when it is not asked for a while. If not, only being rarer makes it
    /// cheaper.
    fn rests(&self) -> bool {
        true
    }

    /// Whether it sees loads as well as stores: what is only loaded from is not idle.
    fn sees_loads(&self) -> bool {
        true
    }

    /// How it fares.
    fn health(&self) -> Health;
}
