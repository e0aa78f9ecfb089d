//! Which files' pages leave, and why.
//!
//! | file | concept |
//! |---|---|
//! | `contexts` | the files that are known: a bounded table |
//! | `scope` | memories that can be short: control groups, the machine, a slow node |
//! | `nodes` | the machine's memory by node |
//! | `marks` | from where on a memory counts as short |
//! | `decider` | from events and pressure to what is to be done |
//! | `journal` | what was decided of late, and why |
//!
//! All of it but [`scope`] and [`nodes`] is pure: the same events and the same sizes of memory lead to the same
//! decisions. Who may leave, and when, is said by [`terrace_kloc::ReuseGuard`], which the simulated
//! kernel's policy `klocs-guarded` asks, too.

pub mod contexts;
pub mod decider;
pub mod journal;
pub mod marks;
pub mod nodes;
pub mod scope;
