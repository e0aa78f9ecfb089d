//! Processes of a run that have the library, and of which nothing is known all the same: their figures
//! cannot be read.

use serde::{Deserialize, Serialize};
use terrace_live::stats::process_page;

/// A process whose figures cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnreadProcess {
    /// Its number.
    pub pid: u32,
    /// Why.
    pub why: Unread,
}

/// Why a process's figures cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unread {
    /// The library in it is of another version than this command.
    OtherVersion,
    /// They could not be kept where others see them: there was no room, say.
    NotKept,
}

impl Unread {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::OtherVersion => "the library in it is of another version than this command",
            Self::NotKept => "its figures could not be kept",
        }
    }
}

impl From<process_page::Unread> for Unread {
    fn from(why: process_page::Unread) -> Self {
        match why {
            process_page::Unread::OtherVersion => Self::OtherVersion,
            process_page::Unread::NotKept => Self::NotKept,
        }
    }
}

impl UnreadProcess {
    /// Whose figures a file has that cannot be read; `None` of any other file.
    pub fn of(path: &std::path::Path) -> Option<Self> {
        let (pid, why) = process_page::unread(path)?;
        Some(Self { pid, why: why.into() })
    }
}
