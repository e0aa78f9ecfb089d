//! A simulated kernel's memory management: what backs a program's memory, and what that costs.
//!
//! For questions about huge pages: how long faults take to the very longest, what fragmented
//! memory changes, and what each policy makes of it. Everything is metadata, so that machines of
//! hundreds of gigabytes are simulated at their full size. Deterministic by seed.
//!
//! | file | concept |
//! |---|---|
//! | [`costs`] | what each piece of work costs, with sources |
//! | [`measured`] | a file of costs that were measured |
//! | [`physical`] | frames, their owners, blocks of 2 MiB, the fragmenter |
//! | [`space`] | mappings, cut into slots of 2 MiB |
//! | [`kernel`] | all of it together: faults, what programs map and unmap |
//! | `fault` | the fault handler: every path, and what it costs |
//! | `eager` | base pages that are filled before they are touched |
//! | [`outcome`] | how a fault ended |
//! | [`compaction`] | movable pages go up, free blocks remain below |
//! | `kcompactd` | the thread that compacts for those who come later |
//! | [`reclaim`] | pages of files, unsplit huge pages, swap |
//! | [`background`] | the kernel's threads: reclaim, khugepaged, prezeroing |
//! | [`policy`] | which memory gets huge pages: one contract, several policies |
//! | [`benefit`] | what huge pages are worth, by range; CBMM's profiles |
//! | [`histogram`] | latencies to the maximum |
//! | [`machine`] | a processor before it: caches, TLBs, page walks, time |
//! | [`program`] | what programs do |
//! | [`stand_ins`] | programs in the shape of the paper's |
//! | [`mod@run`] | a program under a policy |
//!
//! Not modelled: NUMA, control groups, the lists of free pages that processors keep, locks (a
//! fault never waits for khugepaged's or another thread's), writing pages of files back.

pub mod background;
pub mod benefit;
pub mod compaction;
pub mod costs;
mod eager;
mod fault;
pub mod histogram;
mod kcompactd;
pub mod kernel;
pub mod machine;
pub mod measured;
pub mod outcome;
pub mod physical;
pub mod policy;
pub mod program;
pub mod reclaim;
pub mod run;
pub mod space;
pub mod stand_ins;

#[cfg(test)]
mod tests;

pub use benefit::{Benefit, Profile};
pub use costs::Costs;
pub use histogram::{Histogram, Quantiles};
pub use kernel::{Mm, MmConfig};
pub use measured::MeasuredCosts;
pub use outcome::{Fault, Outcome};
pub use physical::Fragmentation;
pub use policy::{MmPolicy, MmPolicyName};
pub use run::{RunReport, run};
