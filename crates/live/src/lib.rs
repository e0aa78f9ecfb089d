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
//! | [`probe`] | what this kernel allows |
//! | [`sys`], [`uffd`] | system calls, each wrapped once |
//! | [`shared`], [`histogram`] | the statistics page that outlives the process |

pub mod config;
pub mod histogram;
pub mod probe;
pub mod shared;
pub mod sys;
pub mod uffd;
