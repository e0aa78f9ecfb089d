//! Ways to observe which pages of a program are in use, behind one trait.
//!
//! Every sampler delivers [`terrace_core::Sample`]s, says how many accesses
//! one sample stands for, what was lost, and what it cost; a [`Governor`]
//! keeps that cost below a share of one processor. Which ways there are on a
//! machine, which is the best, and why, says [`choose`]. `docs/samplers.md`
//! compares them.
//!
//! | file | concept |
//! |---|---|
//! | [`sampler`] | trait [`Sampler`], and what a world tells it about pages |
//! | [`governor`] | the cap on what sampling may cost |
//! | [`choose`] | what there is here, what is best, and why |
//! | [`perf`] | hardware sampling by `perf_event_open`: PEBS, IBS |
//! | [`damon`] | the kernel's own access monitor |
//! | [`attribution`] | whose the accesses are that it found in a region |
//! | [`soft_dirty`] | writes, seen from outside |
//! | [`pagemap`] | a process's page table, as the kernel shows it |
//! | [`watchers`] | several samplers under a common cap |
//! | [`proc_stat`] | a process's line in `/proc/PID/stat` |
//! | `sys` | clocks, and the processor time of a process of the kernel |

pub mod attribution;
pub mod choose;
pub mod damon;
pub mod governor;
pub mod pagemap;
pub mod perf;
pub mod proc_stat;
pub mod sampler;
pub mod soft_dirty;
mod sys;
pub mod watchers;

pub use attribution::Stores;
pub use choose::{Capabilities, Choice, Kind};
pub use governor::Governor;
pub use proc_stat::{ProcStat, proc_text};
pub use sampler::{Health, Pages, ProcessRange, Sampler, SamplerError};
pub use sys::ticks_of as cpu_time;
pub use watchers::Watchers;
