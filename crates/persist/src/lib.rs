//! Processes that survive power failures in non-volatile memory, and crashes
//! everywhere to prove it.
//!
//! For who designs or compares schemes of persistence: a process's registers,
//! areas, files and mapping are brought back to the last checkpoint after a
//! power failure; how the mapping survives is a [`Scheme`]; and [`crash`] lets
//! the power fail at every point at which something can be lost.
//!
//! | file | concept |
//! |---|---|
//! | [`pmem`] | stores, cache lines, `clwb`, `sfence`, and what a failure leaves |
//! | [`nvm`] | what lies where: header, contexts, log, allocator |
//! | [`table`] | four-level tables in non-volatile memory |
//! | [`scheme`] | how the mapping survives |
//! | [`system`] | the process: areas, faults, checkpoints, recovery |
//! | [`program`] | small programs, and what must be found after a failure |
//! | [`crash`] | failures everywhere |
//! | [`fault`] | mistakes that crashes must find |
//! | [`clock`] | simulated time: caches and memories |
//! | `lru` | which of a few keys was used least recently: what a small TLB knows |
//! | `touched` | which lines were stored to |
//! | `volatile` | pages in DRAM, which a failure takes away |
//! | [`costs`] | what processors take |
//! | [`run`] | whole programs under a scheme, timed |
//! | [`folded`] | programs folded into few megabytes |
//! | [`replay`] | what Kindle's replay does between two recorded accesses |
//! | [`wear`] | energy, and how often cells are written |
//! | [`kindle`] | Kindle's measurements, ours beside theirs |
//!
//! `docs/persistence-schemes.md` shows how to add a scheme.

pub mod clock;
pub mod costs;
pub mod crash;
pub mod fault;
pub mod folded;
pub mod kindle;
mod lru;
pub mod nvm;
pub mod pmem;
pub mod program;
pub mod replay;
pub mod run;
pub mod scheme;
pub mod system;
pub mod table;
mod touched;
mod volatile;
pub mod wear;

pub use crash::{Effort, Finding, Tried, explore, minimise};
pub use fault::Fault;
pub use nvm::{Frame, Nvm};
pub use pmem::{Persist, Pmem, PowerFailure};
pub use program::Op;
pub use scheme::{Scheme, SchemeKind};
pub use system::{Area, Context, Home, System};
