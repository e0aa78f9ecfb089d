//! One budget for a program's memory and its files' pages, and how it is divided.
//!
//! The group of a run is charged for both. While there is room either may have it. When room has to
//! be made, both sides give as much as brings them to their shares, and the shares move by small
//! steps towards the side for which a byte more averts more time (`docs/decisions/0019-files-in-the-budget.md`).
//!
//! | file | concept |
//! |---|---|
//! | [`decide`] | where the budget is divided: pure |
//! | [`take`] | what leaves of either side when room is made: pure |
//! | [`count`] | what a group has, and what came back |
//! | [`absent`] | what of the files that are in use has left lately |
//! | `looker` | a thread that looks at them |
//! | [`device`] | what a page takes that is read from a disk |
//! | [`keep`] | all of it at work |

pub mod absent;
pub mod count;
pub mod decide;
pub mod device;
pub mod keep;
mod looker;
pub mod take;

pub use decide::{Divided, Divider, Look};
pub use keep::{Division, Keeper};
