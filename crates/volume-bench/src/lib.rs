//! Volumes measured beside what else there is: memory copies, libpmemblk, other block servers.
//!
//! For `terrace volume bench` and `terrace reproduce dapper`. Everything that is compared runs the
//! same loop in the same process, in turns, so that what else the machine does falls on all alike.
//!
//! | file | concept |
//! |---|---|
//! | [`target`] | something that takes reads and writes |
//! | [`memory`] | the medium itself: plain and non-temporal copies |
//! | [`ours`] | a volume by the library |
//! | [`pmemblk`] | the same by libpmemblk, if the machine has it |
//! | [`nbd`] | a client of a network block device |
//! | [`server`] | servers that are started for the measurement |
//! | [`served`] | a volume behind its servers, beside other servers |
//! | [`device`] | files and devices, past the kernel's cache |
//! | [`files`] | work on a file system on a volume |
//! | [`mod@abandon`] | what is let go when a signal ends it |
//! | [`mod@measure`] | turns, medians, spread |
//! | [`mount`] | how long a mount takes |
//! | [`suite`] | all of the library at once |

pub mod abandon;
pub mod device;
pub mod files;
pub mod measure;
pub mod memory;
pub mod mount;
pub mod nbd;
pub mod ours;
pub mod pmemblk;
pub mod served;
pub mod server;
pub mod suite;
pub mod target;

pub use measure::{Job, Order, Plan, Row, Spread, Way, measure};
pub use served::{Load, Served};
pub use suite::{Section, Suite};
pub use target::{Client, Queue, Target};
