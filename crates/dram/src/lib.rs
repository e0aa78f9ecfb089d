//! Memory timing at the level of commands: what a DRAM or NVM device does in
//! each clock cycle, simulated by events.
//!
//! For questions that an average latency cannot answer: row buffers, bank
//! conflicts, refresh, turnaround of the bus, two kinds of memory on one
//! channel. A [`Channel`] takes requests, decides by FR-FCFS which command is
//! sent next, and jumps to the cycle in which that command may go; nothing is
//! done for cycles in which nothing happens. Every request that was accepted
//! completes.
//!
//! | file | concept |
//! |---|---|
//! | [`duration`] | times as data sheets give them: `16nCK`, `7.5ns`, `max(4nCK, 7.5ns)` |
//! | [`mod@file`] | memory files: geometry, timing and controller, with the source of every number |
//! | [`presets`] | the memory files that come with Terrace |
//! | [`timing`] | a memory file's times in cycles of its clock |
//! | [`address`] | which bank, row and column an address is |
//! | [`command`] | commands, and who may watch them |
//! | [`checker`] | an independent judge of commands |
//! | [`channel`] | queues, scheduler and devices of one channel |
//! | [`memory`] | several channels behind one address space, in picoseconds |
//! | [`traffic`] | request patterns whose result is known |
//! | [`validation`] | ours beside formulas and published figures |
//!
//! `docs/memory-timing.md` says what is modelled and what is not.

pub mod address;
pub mod channel;
pub mod checker;
pub mod command;
pub mod duration;
pub mod file;
pub mod memory;
pub mod presets;
pub mod timing;
pub mod traffic;
pub mod validation;

pub use channel::{Accept, Channel, ChannelStats, Completion};
pub use checker::{Checker, Violation};
pub use command::{Command, CommandKind, Observer};
pub use duration::{Clock, ClockTime};
pub use file::MemoryFile;
pub use memory::{Memory, MemoryStats, Picos, Submitted, Ticket};
