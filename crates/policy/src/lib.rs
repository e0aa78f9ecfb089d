//! The policy contract, and the policies.
//!
//! A policy turns events into proposed actions. It is pure: the same events
//! give the same proposals, without a clock, a thread or a system call. It
//! never touches a mapping; a world's engine carries out what the economist
//! lets pass, and reports back.
//!
//! | file | concept |
//! |---|---|
//! | [`contract`] | trait [`Policy`], and what a policy [`Needs`] |
//! | [`brain`] | policy and economist together: what both worlds drive |
//! | [`first_touch`] | placement by first touch, no migration |
//! | [`hemem`] | HeMem |
//! | [`autonuma`] | NUMA balancing |
//! | [`tpp`] | TPP |
//! | [`colloid`] | Colloid |
//! | [`memtis`] | MEMTIS |
//! | [`nimble`] | Nimble |
//! | [`hybridtier`] | `HybridTier` |
//! | [`arms`] | ARMS |
//! | [`hscc`] | DRAM as a cache of pages whose misses were counted |
//! | [`oracle`] | knows the future |
//! | [`roster`] | what every policy keeps straight: places, lists, proposals |
//! | `regions` | the regions that a policy knows, and choices along the tiers |
//! | `dense` | state of each page that costs memory only where pages are in use |
//! | `groups` | decisions about several pages at once |
//! | `placing` | where new memory goes, run by run |
//! | `bins` | pages by how often they were sampled |
//! | [`hints`] | hint faults |
//! | `sketch` | how often something was seen, in a few bits |
//! | `fifo` | first-in first-out lists of pages |
//! | `lru` | pages by when they were last seen used |
//! | [`packed`] | the same in few bytes, without allocating |
//! | [`pace`] | how much room was free in a recorded run |
//! | [`whatif`] | what another policy would have done |
//! | [`refault`] | what leaves is what has been missed least |
//! | [`two_queue`] | 2Q by refault distance |
//! | [`recording`] | what a brain was told, as a file |
//! | [`registry`] | policies by name |

pub mod arms;
pub mod autonuma;
mod bins;
pub mod brain;
pub mod colloid;
pub mod contract;
mod dense;
mod fifo;
pub mod first_touch;
mod groups;
pub mod hemem;
pub mod hints;
pub mod hscc;
pub mod hybridtier;
mod lru;
pub mod memtis;
pub mod nimble;
pub mod oracle;
pub mod pace;
pub mod packed;
mod placing;
pub mod recording;
pub mod refault;
mod regions;
pub mod registry;
pub mod roster;
mod sketch;
pub mod tpp;
pub mod two_queue;
pub mod whatif;

pub use arms::{Arms, ArmsConfig};
pub use autonuma::{AutoNuma, AutoNumaConfig};
pub use brain::{Brain, Recorder};
pub use colloid::{Colloid, ColloidConfig};
pub use contract::{Footprint, Granularity, Needs, Policy};
pub use first_touch::FirstTouch;
pub use hemem::{HeMem, HeMemConfig};
pub use hints::HintConfig;
pub use hscc::{Hscc, HsccConfig};
pub use hybridtier::{HybridTier, HybridTierConfig};
pub use memtis::{Memtis, MemtisConfig};
pub use nimble::{Nimble, NimbleConfig};
pub use oracle::{Oracle, OracleConfig};
pub use recording::{EventReader, EventWriter, RecordingError};
pub use refault::Refault;
pub use registry::{PolicyName, UnknownPolicy};
pub use roster::Roster;
pub use tpp::{Tpp, TppConfig};
pub use two_queue::TwoQueue;
