//! Whole programs under `terrace run`: what the integration tests share.
//!
//! | file | concept |
//! |---|---|
//! | [`harness`] | cases, filters and result lines as the standard test harness prints them |
//! | [`inputs`] | our parsers as functions of bytes, for fuzzing |
//! | [`process`] | a child with a deadline, its use of memory, and what it hangs in |
//! | [`hazards`] | compiles and runs the C programs in `tests/hazards` |
//! | `sweep` | hazards in which something of Terrace's breaks at random |
//! | [`outside`] | hazards of the kernel engine |
//! | [`programs`] | real programs, unmanaged and in a quarter of their memory |
//! | [`foreign`] | test suites that others wrote |
//! | `stress` | of these, stress-ng's stressors of memory |
//! | `large` | of these, large programs: a database, a browser, a virtual machine, a compiler |
//! | [`soak`] | real programs at once under budgets that change |
//! | [`report`] | reads what `terrace run --json` says |
//! | [`terrace`] | finds or builds the programs under test |

pub mod foreign;
pub mod harness;
pub mod hazards;
pub mod inputs;
mod large;
pub mod outside;
pub mod process;
pub mod programs;
pub mod report;
pub mod soak;
mod stress;
mod sweep;
pub mod terrace;
