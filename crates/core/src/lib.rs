//! The words every other room uses.
//!
//! `core` has no I/O and no clock: time enters as an argument, files enter as
//! text. Policies, the economist and both worlds (simulated and live) speak in
//! these types, so a bare number can never be bytes in one place and pages in
//! another.
//!
//! | file | concept |
//! |---|---|
//! | [`units`] | quantities: [`Bytes`], [`Pages`], [`Nanos`], [`Cycles`], rates |
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
//! | [`text`] | files that people write |
//! | [`ladder`] | ladder files: the tiers of a running program |
//! | [`compressing`] | ladders with compressed memory |
//! | [`dax`] | DAX devices by name |
//! | [`mod@outcomes`] | what independent choices can come to |
//! | [`context`] | files and sockets, with the kernel objects that belong to them |

pub mod action;
pub mod compressing;
pub mod context;
pub mod dax;
pub mod detail;
pub mod event;
pub mod ladder;
pub mod machine;
pub mod outcomes;
pub mod page;
pub mod parse;
pub mod region;
pub mod sample;
pub mod slots;
pub mod telemetry;
pub mod text;
pub mod tier;
pub mod units;

pub use action::{
    Abort, Action, ActionClass, Done, Heat, OpId, Outcome, Plan, Proposal, Reason, Urgency,
};
pub use compressing::{Compressing, SpillTier};
pub use context::{Context, ContextChange, ContextEvent, ContextIdentity, ContextKind, ObjectKind};
pub use dax::{DaxDevice, ParseDaxError};
pub use detail::{Detail, Inclusion, Replacement};
pub use event::{Event, EventRef};
pub use ladder::{Home, Ladder, LadderFile, LadderTier, Memory, Migration, NoLadder};
pub use machine::{Machine, MachineError};
pub use outcomes::outcomes;
pub use page::{PageNo, PageRange, PageRef, PageSize};
pub use parse::ParseUnitError;
pub use region::{ContextId, Region, RegionId};
pub use sample::{Access, FaultKind, Sample, SampleSource, Upcoming};
pub use slots::SlotMap;
pub use telemetry::{MAX_TIERS, Telemetry, TierTelemetry};
pub use text::read_text;
pub use tier::{TierId, TierKind, TierSpec};
pub use units::{Bytes, BytesPerSecond, Cycles, Frequency, Nanos, Pages, PerSecond};
