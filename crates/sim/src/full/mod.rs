//! The full model: every access of a program through TLBs, page walks, caches
//! and memories, with demand faults and a policy at work.
//!
//! For recorded programs and for questions that the model of independent
//! accesses ([`crate::simulation`]) cannot answer: what misses, what a page
//! size brings, what walks cost, which latency can be hidden. Deterministic.
//!
//! | file | concept |
//! |---|---|
//! | [`access`] | one access in eight bytes |
//! | [`source`] | where accesses come from |
//! | [`sets`] | set-associative arrays, the base of caches and TLBs |
//! | `order` | which entry of a set has to go |
//! | `host` | large arrays in the host's memory |
//! | [`hierarchy`] | private caches and the last level |
//! | [`tlb_counts`] | misses counted beside TLB entries |
//! | [`tlb`] | TLBs and page-walk caches |
//! | [`page_table`] | real page tables in simulated frames |
//! | [`frames`] | buddy allocators |
//! | [`space`] | mappings, regions, pages |
//! | [`clock`] | a core's time: what waits for what |
//! | [`tiers`] | the memories: latency under load, bandwidth |
//! | [`machine`] | the machine |
//! | `threads` | what the program's threads do next |
//! | `schedule` | which core's turn it is |
//! | `front` | an access in the first levels: the hot path |
//! | `filter` | what the hot path need not look up |
//! | `beyond` | what the first levels cannot answer |
//! | [`profile`] | misses by page, for who asks |
//! | [`timeline`] | what happened when, for who asks |
//! | [`fault`] | demand faults and hint faults |
//! | `mover` | the migration engine |
//! | `world` | samples, ticks, telemetry |
//! | `ahead` | what is to come, for a policy that asks for it |
//! | [`setup`] | what to simulate |
//! | [`report`] | what came of it |

pub mod access;
mod ahead;
mod beyond;
pub mod clock;
pub mod fault;
mod filter;
pub mod frames;
mod front;
pub mod hierarchy;
mod host;
pub mod machine;
mod mover;
mod order;
pub mod page_table;
pub mod profile;
pub mod report;
mod schedule;
pub mod sets;
pub mod setup;
pub mod source;
pub mod space;
mod threads;
pub mod tiers;
pub mod timeline;
pub mod tlb;
pub mod tlb_counts;
mod world;

pub use access::Access;
pub use fault::FaultCosts;
pub use machine::FullMachine;
pub use report::FullReport;
pub use setup::FullConfig;
pub use source::{Batch, Source, SpaceEvent, Stream, StreamKind};
pub use tlb_counts::{TlbCountCosts, TlbCounting};
