//! Slow memory that grows and shrinks with demand (Dapper).
//!
//! A large, slow memory costs page descriptors and energy while the operating
//! system manages it. It is therefore hidden at boot, brought in where a node
//! runs short, and given back when it is idle. The policies that decide how much,
//! when and where are pure. They are driven by recorded `/proc/zoneinfo`, by a
//! simulated operating system, and by the live daemon, without a changed line.
//!
//! | file | concept |
//! |---|---|
//! | [`zoneinfo`] | the kernel's count of free pages and watermarks, parsed |
//! | [`view`] | what a policy is told about one processor's node |
//! | [`policy`] | how much to bring in or to give back: `resolved`, `paper-literal` |
//! | [`rotation`] | the nodes by turns |
//! | [`blocks`] | which memory blocks serve an amount, nearest first |
//! | [`decision`] | what was decided, and why, in a form that is kept |
//! | [`recording`] | demand that was recorded, as lines of JSON |
//! | [`system`] | a simulated operating system: nodes, zones, fallback lists |
//! | [`mod@replay`] | a recording against a policy: events and memory moved |
//! | [`action`] | what is done to memory, one step at a time |
//! | [`journal`] | everything that was decided and done, and why, as lines of JSON |
//! | [`config`] | what the daemon is told by its operator, as a TOML file |
//! | [`economist`] | whether slow memory is worth what it costs |
//! | [`hiding`] | boot arguments that keep slow memory out of the kernel's sight |
//! | [`live`] | the daemon, and what it acts by |
//! | [`discover`] | what slow memory a machine has, and whether it is hidden |

pub mod action;
pub mod blocks;
pub mod config;
pub mod decision;
pub mod discover;
pub mod economist;
#[cfg(test)]
mod fixture;
pub mod hiding;
pub mod journal;
pub mod live;
pub mod policy;
pub mod recording;
pub mod replay;
pub mod rotation;
pub mod system;
pub mod view;
pub mod zoneinfo;

pub use action::{Action, Setting, Use};
pub use blocks::{Block, BlockState, Pool, PoolId};
pub use config::Config;
pub use decision::{Change, Decision, Reason};
pub use policy::{PolicyKind, Provisioner};
pub use recording::{Recording, RecordingError, Sample};
pub use replay::{Hardware, Prices, ReplayError, Replayed, replay};
pub use rotation::Rotation;
pub use system::System;
pub use view::{NodeId, NodeView, Watermarks};
pub use zoneinfo::{ZoneInfo, ZoneInfoError};
