//! A simulated kernel that does I/O: page cache, file system, block layer, sockets.
//!
//! Programs make [`Call`]s. Each allocates, touches and frees what Linux would: pages of files
//! with their index, inodes, names, extents, journal buffers, bios, requests, sockets, packets.
//! All of that lies in frames of the machine's tiers, where a policy places it; the thread that
//! calls waits for the memory and the disk. The policy is told of every object by
//! [`terrace_core::ContextEvent`]s, of every page by the contract's own calls, and its plans are
//! carried out by a thread of the kernel.
//!
//! | file | concept |
//! |---|---|
//! | `kernel` | threads, their calls, what happens by itself |
//! | `call` | what can be asked for, and why it may be refused |
//! | `costs` | what calls cost and touch: a file with sources |
//! | [`measured_costs`] | such a file for the kernel that runs here |
//! | `memory` | frames, pages, and what an access takes |
//! | `sockets` | two sockets in Memory Mode, and what streams through one |
//! | `mover` | the thread that carries out plans |
//! | `slab` | slab caches |
//! | `file` | inodes and names |
//! | `index` | which pages of a file are cached |
//! | `page_cache` | reading, writing, read-ahead, write-back, reclaim, the journal |
//! | `advice` | what programs say of their files |
//! | `lists` | the active and the inactive list |
//! | `disk` | the disk's queue |
//! | `socket` | sockets and packets |
//! | `counts` | what came of it |
//! | [`programs`] | calls of the paper's five programs |
//! | [`recorded`] | calls that a program made on a running kernel |
//! | [`played`] | a recorded program: its accesses and its calls |
//!
//! `docs/kloc.md` says what is modelled, and what is not.

mod advice;
mod call;
mod costs;
mod counts;
mod disk;
mod file;
mod index;
#[allow(clippy::module_inception)] // the kernel is what the room is named for
mod kernel;
mod lists;
pub mod measured_costs;
mod memory;
mod mover;
mod page_cache;
pub mod played;
pub mod programs;
pub mod recorded;
mod slab;
mod socket;
mod sockets;

pub use call::{Advice, Call, CallError, Calls, MOST};
pub use costs::{Costs, DeviceCosts, Lines, Objects, Pace, Times};
pub use counts::{Class, ClassCounts, Counts, Lifetimes};
pub use kernel::{DecisionListener, Detail, Kernel, KernelConfig, KernelReport, Refused};
pub use lists::FileReplacement;
pub use sockets::SocketsConfig;
