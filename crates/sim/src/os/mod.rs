//! A simulated operating system: where the pages of many programs come to lie on a machine with
//! several nodes, while slow memory comes and goes.
//!
//! Whole machines at full size: hundreds of GiB, hundreds of programs. A page is not an object
//! here but one of a block's, so that time goes with the number of changes and not of pages;
//! a test compares it with a model that has every page. The policies that decide how much slow
//! memory is online are those of [`terrace_provision`], and none of them is here.
//!
//! | file | concept |
//! |---|---|
//! | [`setup`] | nodes, distances, settings of the kernel |
//! | [`watermarks`] | how much of a zone stays free, by the kernel's formulas |
//! | [`fallback`] | in which order a node's processors allocate |
//! | [`system`] | zones, blocks, processes: allocation, and memory that is given back |
//! | `hotplug` | blocks that come online and go offline |
//! | `demotion` | pages that make room in DRAM |
//! | [`daemon`] | a policy at work: looks, decisions, what became of them |
//! | [`mod@populate`] | programs that fill their memory side by side |
//! | [`costs`] | page descriptors and watts: arithmetic |
//!
//! Not modelled: the page cache and swap (there is none), zones below 4 GiB, reserves of lower
//! zones, per-processor lists of pages, huge pages, fragmentation (every page can be moved
//! but the kernel's own).

pub mod costs;
pub mod daemon;
mod demotion;
pub mod fallback;
mod hotplug;
pub mod populate;
pub mod setup;
pub mod system;
pub mod watermarks;

pub use daemon::{Daemon, Event};
pub use hotplug::{Moved, Refusal};
pub use populate::{Instance, Populated, populate};
pub use setup::{NodeSetup, PageDescriptors, Setup, ZoneKind};
pub use system::{OutOfMemory, ProcessId, Run, System};
pub use watermarks::{MarkSettings, Marks};
