//! Published results, ours beside theirs.

pub mod claim;
pub mod hemem;

pub use claim::Claim;
pub use hemem::{HememConfig, HememTable, hemem};
