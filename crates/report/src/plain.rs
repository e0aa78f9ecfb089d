//! Processes of a run that nothing was loaded into: their memory counts nowhere else.

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;

/// What ran on plain memory beside what is managed, as far as it was worth telling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainReport {
    /// Processes that were seen.
    pub processes: u64,
    /// Anonymous memory that they had resident, the most that was seen at once.
    pub resident_peak: Bytes,
    /// The programs, those with most memory first.
    pub programs: Vec<PlainProgram>,
}

/// One program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlainProgram {
    /// Its command's name.
    pub command: String,
    /// Why it was not managed.
    pub why: String,
    /// Processes that ran it.
    pub processes: u64,
    /// Anonymous memory that one of them had resident, the most that was seen.
    pub resident_peak: Bytes,
}
