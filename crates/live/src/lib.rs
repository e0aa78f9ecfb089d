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
//! | file | concept |
//! |---|---|
//! | [`config`] | what `terrace run` asks for |
//! | [`probe`], [`doctor`] | what this kernel and machine allow |
//! | [`activate`] | from nothing to a running pager |
//! | [`costs`] | what the mechanisms cost on this machine, measured once |
//! | [`threads`] | the manager and the fault handlers, and how they are isolated |
//! | `spawn`, [`tls`], [`credentials`] | how they come without the C library, and whose they are |
//! | [`duty`] | waiting for faults: asleep, polling, parked |
//! | [`serve`] | the hot path: a fault |
//! | [`reclaim`], [`limbo`] | the way out of DRAM |
//! | [`events`], [`deferred`], [`fork`] | unmapped, moved, discarded, forked |
//! | [`manager`], [`command`] | what happens in the background or on request |
//! | [`mind`], [`queue`] | policy and economist, and what they are told |
//! | [`hints`] | pages that are made to fault, within what observing may cost |
//! | `sight`, [`tracking`] | samples of what the program accesses: by hardware, by protecting pages |
//! | [`ahead`], [`fetch`] | streams, and bringing pages in ahead of them |
//! | [`huge`], [`walks`] | huge pages ahead of walks through fresh memory |
//! | [`collapse`], [`visits`], [`walk_cost`] | huge pages made of base pages that are in use |
//! | [`ping_pong`] | pages that left for nothing |
//! | [`thrash`] | a program that needs more than it may have |
//! | [`pager`], [`regions`], [`page_state`] | what all threads share |
//! | [`store`], [`codec`], [`unpack`], [`zbe`], [`spill`] | where pages are while they are not in DRAM |
//! | [`density`] | how tightly they are packed |
//! | [`aside`], [`dying`] | threads that let others run first, and are helped on when somebody waits |
//! | [`kept`] | pages that stay |
//! | [`limits`] | what the process's own limits leave |
//! | `common` | pages that forked processes have in common |
//! | [`broker`] | one budget for several processes |
//! | [`core_tables`] | where a core dump has what completes it |
//! | [`give_up`], [`inject`] | what happens when something of ours breaks, and breaking it for tests |
//! | [`filters`] | programs that forbid themselves system calls |
//! | [`presence`], [`ranges`] | what is really mapped; sets of ranges |
//! | [`reservations`], [`unmanaged`] | what is too large to be managed as a whole; what is not managed, and why |
//! | [`numa`], [`attach`] | byte-addressable tiers; programs that run already |
//! | [`event_ring`] | what the policy was told, on its way out |
//! | [`shared`], [`histogram`] | the statistics page that outlives the process |
//! | [`sys`], [`uffd`], [`spin`], [`scratch`] | system calls, a lock, and memory for threads |

pub mod activate;
pub mod ahead;
pub mod aside;
/// The atomics of [`queue`] and [`spin`]; `tests/models` gives them others.
mod atomic {
    pub(crate) use core::sync::atomic::*;
}
pub mod attach;
pub mod broker;
pub mod codec;
pub mod collapse;
pub mod command;
mod common;
pub mod config;
pub mod core_tables;
pub mod costs;
pub mod credentials;
pub mod deferred;
pub mod density;
pub mod doctor;
pub mod duty;
pub mod dying;
pub mod event_ring;
pub mod events;
pub mod fetch;
pub mod filters;
pub mod fork;
pub mod give_up;
pub mod hints;
pub mod histogram;
pub mod huge;
pub mod inject;
pub mod kept;
pub mod limbo;
pub mod limits;
pub mod manager;
pub mod mind;
pub mod numa;
pub mod opened;
pub mod page_state;
pub mod pager;
pub mod ping_pong;
pub mod prepared;
pub mod presence;
pub mod probe;
pub mod processors;
pub mod queue;
pub mod quiet;
pub mod ranges;
pub mod reclaim;
pub mod regions;
pub mod reservations;
mod robust;
pub mod scratch;
pub mod serve;
pub mod shared;
mod sight;
pub mod spare;
mod spawn;
pub mod spill;
pub mod spin;
mod stage;
pub mod store;
pub mod sys;
pub mod thrash;
pub mod threads;
pub mod tls;
pub mod tracking;
pub mod uffd;
pub mod unmanaged;
pub mod unpack;
pub mod visits;
pub mod waits;
pub mod walk_cost;
pub mod walks;
pub mod zbe;
