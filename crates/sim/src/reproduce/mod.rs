//! Published results, ours beside theirs.

pub mod cbmm;
pub mod claim;
pub mod dapper;
pub mod hemem;
pub mod klocs;
pub mod orderings;

pub use cbmm::{CbmmConfig, CbmmTable, cbmm, cbmm_heard};
pub use claim::{Bound, Claim};
pub use dapper::{DapperConfig, DapperTable, dapper};
pub use hemem::{HememConfig, HememTable, hemem};
pub use klocs::{KlocsConfig, KlocsTable, klocs};
pub use orderings::{Length, orderings};
