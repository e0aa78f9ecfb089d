//! The exact engine: every access of a program through TLBs, page walks, caches
//! and memories, with demand faults and a policy at work.
//!
//! For recorded programs and for questions that the model of independent
//! accesses ([`crate::analytic::simulation`]) cannot answer: what misses, what a page
//! size brings, what walks cost, which latency can be hidden. Deterministic.
//!
//! | file | concept |
//! |---|---|
//! | [`access`] | one access in eight bytes |
//! | [`source`] | where accesses come from |
//! | [`sets`] | set-associative arrays, the base of caches and TLBs |
//! | `replacement` | which entry of a set has to go |
//! | `host_arrays` | large arrays in the host's memory |
//! | [`hierarchy`] | private caches and the last level |
//! | [`tlb_counts`] | misses counted beside TLB entries |
//! | [`tlb`] | TLBs and page-walk caches |
//! | [`page_table`] | real page tables in simulated frames |
//! | [`frames`] | buddy allocators |
//! | [`address_space`] | mappings, regions, pages |
//! | [`clock`] | a core's time: what waits for what |
//! | [`tiers`] | the memories: latency under load, bandwidth |
//! | `lanes` | work that was asked of a memory and is not done |
//! | `timed_memory` | a memory that is timed by its controller's commands |
//! | [`machine`] | the machine |
//! | `threads` | what the program's threads do next |
//! | `schedule` | which core's turn it is |
//! | `first_levels` | an access in the first levels: the hot path |
//! | `last_used` | what the hot path need not look up |
//! | `beyond_first` | what the first levels cannot answer |
//! | [`profile`] | misses by page, for who asks |
//! | [`walk_profile`] | walks that huge pages avert, by place |
//! | [`timeline`] | what happened when, for who asks |
//! | [`page_fault`] | demand faults and hint faults |
//! | `migration` | the migration engine |
//! | `policy_runtime` | what runs the policy: samples, ticks, telemetry |
//! | `lookahead` | what is to come, for a policy that asks for it |
//! | [`setup`] | what to simulate |
//! | [`report`] | what came of it |

pub mod access;
pub mod address_space;
mod beyond_first;
pub mod clock;
mod first_levels;
pub mod frames;
pub mod hierarchy;
mod host_arrays;
mod lanes;
mod last_used;
mod lookahead;
pub mod machine;
mod migration;
pub mod page_fault;
pub mod page_table;
mod policy_runtime;
pub mod profile;
mod replacement;
pub mod report;
mod schedule;
pub mod sets;
pub mod setup;
pub mod source;
mod threads;
pub mod tiers;
pub(crate) mod timed_memory;
pub mod timeline;
pub mod tlb;
pub mod tlb_counts;
pub mod walk_profile;

pub use access::Access;
pub use machine::ExactMachine;
pub use page_fault::FaultCosts;
pub use report::ExactReport;
pub use setup::ExactConfig;
pub use source::{Batch, Image, Origin, Source, SpaceEvent, Stream, StreamKind};
pub use tlb_counts::{TlbCountCosts, TlbCounting};
