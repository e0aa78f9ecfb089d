//! Memory of a run's processes that no budget bounds: what the kernel counts of them beyond what
//! is managed.

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;
use terrace_live::unmanaged::Unmanaged;

/// Why memory is not managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// It is shared: anonymous, a memfd, System V's, a file of a tmpfs.
    Shared,
    /// It is private, and nobody asked Terrace for it: mapped by system calls past the C library
    /// (Go, sanitizers, programs with their own), or by the C library itself (threads' stacks).
    NotAsked,
    /// A single mapping is larger than can be managed.
    TooLarge,
    /// As many parts of memory are managed as can be.
    TableFull,
    /// The kernel gives no memory for what is kept of each page, or the address space that is left
    /// is too little.
    NoMemory,
    /// The kernel does not let it be managed: the program has it registered with a userfaultfd of
    /// its own, say.
    Refused,
    /// Its process was managed, and was given up.
    GivenUp,
    /// Its process runs without Terrace.
    OtherProcesses,
    /// Small mappings, code that was changed, libraries' data, the first thread's stack.
    Small,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Shared,
        Self::NotAsked,
        Self::TooLarge,
        Self::TableFull,
        Self::NoMemory,
        Self::Refused,
        Self::GivenUp,
        Self::OtherProcesses,
        Self::Small,
    ];

    /// As metrics and JSON name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::NotAsked => "not-asked",
            Self::TooLarge => "too-large",
            Self::TableFull => "table-full",
            Self::NoMemory => "no-memory",
            Self::Refused => "refused",
            Self::GivenUp => "given-up",
            Self::OtherProcesses => "other-processes",
            Self::Small => "small",
        }
    }

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Shared => "shared memory",
            Self::NotAsked => "private memory that Terrace was not asked for",
            Self::TooLarge => "mappings that are too large to be managed",
            Self::TableFull => "more parts than can be managed",
            Self::NoMemory => "no memory for what is kept of each page",
            Self::Refused => "memory that the kernel does not let be managed",
            Self::GivenUp => "processes that were given up",
            Self::OtherProcesses => "processes without Terrace",
            Self::Small => "stacks, libraries' data and small mappings",
        }
    }
}

impl From<Unmanaged> for Cause {
    fn from(why: Unmanaged) -> Self {
        match why {
            Unmanaged::TableFull => Self::TableFull,
            Unmanaged::NoMemory => Self::NoMemory,
            Unmanaged::Refused => Self::Refused,
            Unmanaged::GivenUp => Self::GivenUp,
        }
    }
}

/// Memory that lies outside of a budget: what is in RAM, is no file's, and is neither managed
/// nor Terrace's own. What several processes share counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideReport {
    /// All of it, at the last look.
    pub now: Bytes,
    /// The most of it that was seen at once.
    pub peak: Bytes,
    /// The most that was seen at once of it and of what is managed and resident.
    pub with_managed_peak: Bytes,
    /// By cause, the largest first.
    pub causes: Vec<OutsideCause>,
    /// What was seen, at the most, of Terrace's own memory in these processes: compressed pages
    /// and its books. It is no part of the above.
    pub own_peak: Bytes,
}

/// What there is for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideCause {
    /// The cause.
    pub cause: Cause,
    /// At the last look.
    pub now: Bytes,
    /// The most that was seen.
    pub peak: Bytes,
}
