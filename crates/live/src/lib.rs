//! The live world: runs an unmodified program with a part of its memory in
//! DRAM and the rest compressed (or in a file), by userfaultfd.
//!
//! How a fault is served, why it is done so, and what was rejected:
//! `docs/decisions/0002-fault-path.md`. In one paragraph: managed memory is
//! ordinary private anonymous memory that is registered with userfaultfd for
//! missing pages. Whoever touches an absent page, program or kernel, waits in
//! the kernel until one of our handler threads (one a processor) has brought it
//! in. Pages leave by `UFFDIO_MOVE`, which keeps the frame, so no write is ever
//! lost; and everything that changes the address space is told to us by the
//! kernel, so no system call can pass us by.
//!
//! # Rooms
//!
//! Each is a folder; its `mod.rs` says what each file in it is about.
//!
//! | room | concept |
//! |---|---|
//! | [`config`] | what `terrace run` asks for |
//! | [`interface`] | by what the command and the library see that they belong together |
//! | [`activate`] | from nothing to a running pager |
//! | [`pager`] | what all threads of it share |
//! | [`fault`] | the hot path: a thread waits for a page |
//! | [`evict`] | the way out of DRAM |
//! | [`store`], [`spill`] | where pages are while they are not in DRAM |
//! | [`space`] | which memory is managed, and the state of each page |
//! | [`fork`] | a child gets a pager of its own |
//! | [`decide`] | policy and economist, and what they are told |
//! | [`observe`] | samples of what the program accesses |
//! | [`huge`] | huge pages |
//! | [`workers`] | Terrace's threads in the program |
//! | [`failsafe`] | what happens when something of Terrace's breaks |
//! | [`broker`] | one budget for several processes |
//! | [`numa`], [`attach`] | byte-addressable tiers; programs that run already |
//! | [`stats`] | the statistics page that outlives the process |
//! | [`costs`] | what the mechanisms cost on this machine, measured once |
//! | [`doctor`] | what this kernel and machine allow |
//! | [`sys`] | system calls, locks, limits |
//!
//! What is public is what other crates use: the preloaded library runs a pager in the program, the
//! command reads its pages, `terrace-dump` its tables, `terrace-kernel` and attach share the broker
//! and the nodes.

pub mod activate;
/// The atomics of [`decide::notes`], [`fork::turns`] and [`sys::spin`]; `tests/models` gives them others.
mod atomic {
    pub(crate) use core::sync::atomic::*;
}
pub mod attach;
pub mod broker;
pub mod config;
pub mod costs;
pub mod decide;
pub mod doctor;
pub mod evict;
pub mod failsafe;
mod fault;
pub mod fork;
pub mod huge;
pub mod interface;
pub mod numa;
pub mod observe;
pub mod pager;
pub mod space;
pub mod spill;
pub mod stats;
pub mod store;
pub mod sys;
pub mod workers;
