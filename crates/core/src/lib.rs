//! The words every other room uses.
//!
//! `core` has no I/O and no clock: time enters as an argument, files enter as
//! text. Policies, the economist and both worlds (simulated and live) speak in
//! these types, so a bare number can never be bytes in one place and pages in
//! another.
//!
//! | file | concept |
//! |---|---|
//! | [`units`] | quantities: [`Bytes`], [`Pages`], [`HugePages`], [`Nanos`], [`Cycles`], rates |
//! | [`parse`] | the one parser for `256MiB`, `10ms`, `17.8GB/s`, `25%` |
//! | [`tier`] | a memory with its own latency, bandwidth and capacity |
//! | [`page`] | the unit of placement |
//! | [`region`] | a mapped range of one address space, and its context |
//! | [`sample`] | one observed access |
//! | [`action`] | what a policy may ask for, and what became of it |
//! | [`telemetry`] | what a world tells a policy about itself |
//! | [`event`] | everything a policy is told, as data that can be recorded |
//! | [`slots`] | dense per-page numbering across regions |
//! | [`machine`] | machine files |
//! | [`detail`] | their part about cores, caches and TLBs |
//! | [`numa`] | their parts about several sockets, hidden memory and power |
//! | [`dram_cache`] | their part about DRAM as a cache of slower memory |
//! | [`text`] | files that people write |
//! | [`shelf`] | machine, memory and ladder files by name |
//! | [`ladder`] | ladder files: the tiers of a running program |
//! | [`by_kernel`] | ladders whose faults the kernel serves |
//! | [`compressing`] | ladders with compressed memory |
//! | [`dax`] | DAX devices by name |
//! | [`random`] | numbers without a pattern, the same in every run |
//! | [`mod@outcomes`] | what independent choices can come to |
//! | [`context`] | files and sockets, with the kernel objects that belong to them |

pub mod action;
pub mod by_kernel;
pub mod compressing;
pub mod context;
pub mod dax;
pub mod detail;
pub mod dram_cache;
pub mod event;
pub mod ladder;
pub mod machine;
pub mod numa;
pub mod outcomes;
pub mod page;
pub mod parse;
pub mod random;
pub mod region;
pub mod sample;
pub mod shelf;
pub mod slots;
pub mod telemetry;
pub mod text;
pub mod tier;
pub mod units;

pub use action::{
    Abort, Action, ActionClass, Done, Heat, OpId, Outcome, Plan, Proposal, Reason, Urgency,
};
pub use by_kernel::{ByKernel, LadderEngine};
pub use compressing::{Compressing, SpillTier};
pub use context::{Context, ContextChange, ContextEvent, ContextIdentity, ContextKind, ObjectKind};
pub use dax::{DaxDevice, ParseDaxError};
pub use detail::{Detail, Inclusion, Replacement};
pub use dram_cache::DramCache;
pub use event::{Event, EventRef};
pub use ladder::{Home, Ladder, LadderFile, LadderTier, Memory, Migration, NoLadder};
pub use machine::{Machine, MachineError};
pub use numa::{Numa, Power};
pub use outcomes::outcomes;
pub use page::{PageNo, PageRange, PageRef, PageSize};
pub use parse::ParseUnitError;
pub use random::{Xorshift, splitmix64};
pub use region::{ContextId, Region, RegionId};
pub use sample::{Access, FaultKind, Sample, SampleSource, Upcoming};
pub use shelf::{NotFound, Shelf};
pub use slots::SlotMap;
pub use telemetry::{MAX_TIERS, Telemetry, TierTelemetry};
pub use text::read_text;
pub use tier::{TierId, TierKind, TierSpec};
pub use units::{Bytes, BytesPerSecond, Cycles, Frequency, HugePages, Nanos, Pages, PerSecond};
