//! Kernel objects by file and socket: the structures of KLOCs.
//!
//! Kannan, Ren and Bhattacharjee, *KLOCs: Kernel-Level Object Contexts for
//! Heterogeneous Memory Systems*, ASPLOS 2021. A file or a socket has a
//! [`Knode`], the table of contents of its kernel objects; the [`Kmap`] has all
//! knodes, and short lists of those that each processor used last. They say
//! which objects become cold together, without a scan of memory.
//!
//! Structures and policies are pure code: no I/O, no clock. Worlds tell them what happens to
//! contexts ([`terrace_core::ContextEvent`]). [`tracing`] reads the running kernel.
//!
//! | file | concept |
//! |---|---|
//! | `knode` | the members of one context, in two ordered sets |
//! | `ordered` | one such set |
//! | `kmap` | all knodes; which were least recently used; limits by tier |
//! | `per_cpu` | bounded lists of knodes that each processor used |
//! | `reuse_guard` | which closed contexts may leave, and when |
//! | [`policy`] | policies on kernel objects |
//! | [`measure`] | what calls take on the running kernel |
//! | [`tracing`] | calls of running programs, by the kernel's tracepoints |
//!
//! `docs/kloc.md` has the calls of the paper beside ours.

mod kmap;
mod knode;
pub mod measure;
mod ordered;
mod per_cpu;
pub mod policy;
mod reuse_guard;
pub mod tracing;

pub use kmap::{Footprint, Kmap, KmapConfig, KmapError};
pub use knode::{Knode, Member};
pub use per_cpu::{LookupCounts, PerCpuLists};
pub use reuse_guard::{GuardConfig, ReuseGuard};
