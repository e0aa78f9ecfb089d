//! Published results, ours beside theirs.

pub mod claim;
pub mod hemem;
pub mod orderings;

pub use claim::{Bound, Claim};
pub use hemem::{HememConfig, HememTable, hemem};
pub use orderings::{Length, orderings};
