//! The medium under a volume: bytes, and the order in which they become durable.
//!
//! | file | concept |
//! |---|---|
//! | [`stores`] | the processor's instructions that write past and out of its caches |
//! | [`mapped`] | memory that is mapped: DAX, or a file whose pages the kernel keeps |
//! | [`mod@file`] | a file that is written with system calls and committed in groups |
//! | [`simulated`] | a memory that loses power |
//! | [`view`] | where a mapped volume's entries and blocks lie, for reads of one sector |

pub mod file;
pub mod mapped;
pub mod simulated;
pub mod stores;
pub mod view;

use core::fmt;
use core::str::FromStr;

use crate::error::Result;
use crate::superblock::Superblock;
use view::View;

/// What survives what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A completed flush survives a power failure: processor caches are written back to memory
    /// that persists.
    Dax,
    /// A completed flush survives a power failure: the file is synchronised, for all writes since
    /// the last time at once.
    GroupCommit,
    /// What was written survives the end of the process, and is lost with the power.
    ProcessCrashOnly,
}

impl Durability {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Dax, Self::GroupCommit, Self::ProcessCrashOnly];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dax => "dax",
            Self::GroupCommit => "group-commit",
            Self::ProcessCrashOnly => "process-crash-only",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Durability {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|one| one.name() == text)
            .ok_or_else(|| format!("`{text}` is none of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Who stores: a fence orders the stores of one processor only, and a lane stands for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpu(pub usize);

/// A mistake in the order of a write, made on purpose: the tests ask that crashes find each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A sector is overwritten where it is.
    InPlace,
    /// The map may become durable before the data.
    NoDataFence,
    /// A changed entry of the map is not written back.
    NoMapWriteBack,
    /// An entry of the map is stored in two halves.
    TwoStoreMap,
    /// A block is used again before the entry that releases it is durable.
    EarlyReuse,
    /// A flush makes only the writes of its own lane durable.
    OwnLaneFlush,
    /// A mount relies on entries that are visible and not durable.
    MountWithoutWriteBack,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::InPlace,
        Self::NoDataFence,
        Self::NoMapWriteBack,
        Self::TwoStoreMap,
        Self::EarlyReuse,
        Self::OwnLaneFlush,
        Self::MountWithoutWriteBack,
    ];
}

/// A medium. Offsets are in bytes from its beginning; entries of the map lie at multiples of 8.
///
/// There are two kinds. A *direct* medium has loads and stores: entries are replaced in place by
/// [`Pm::exchange`], written back by [`Pm::write_back`], and ordered by [`Pm::fence`]. On a
/// *grouped* one ([`Pm::is_grouped`]) whatever was written may become durable at any time and in
/// any order until a fence, and a fence is expensive.
pub trait Pm: Send + Sync {
    /// Bytes of the medium.
    fn size(&self) -> u64;

    /// Whether fences are so expensive that writes share them.
    fn is_grouped(&self) -> bool;

    /// Writes bytes past the caches; durable after the next fence of the same processor.
    fn write(&self, cpu: Cpu, at: u64, bytes: &[u8]) -> Result;

    /// Reads bytes as they are visible now. They may be changing meanwhile.
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result;

    /// Bytes will be read soon: a hint, for media where their lines are far away.
    fn expect_read(&self, _at: u64, _length: u64) {}

    /// Reads an entry. Whoever reads a new one sees what was written before it was exchanged.
    fn load(&self, at: u64) -> u64;

    /// An entry will be exchanged soon: a hint, for media where its line is far away.
    fn expect_exchange(&self, _at: u64) {}

    /// Replaces an entry if it is still `current`; else says what it is.
    fn exchange(&self, cpu: Cpu, at: u64, current: u64, new: u64) -> std::result::Result<(), u64>;

    /// Begins to make the cache lines of a range durable; done after the next fence.
    fn write_back(&self, cpu: Cpu, at: u64, length: u64) -> Result;

    /// Waits until all that this processor has written, and written back, is durable.
    fn fence(&self, cpu: Cpu) -> Result;

    /// The same for every processor that this process runs on.
    fn fence_all(&self, cpu: Cpu) -> Result;

    /// Whether [`Pm::fence_all`] can be had. Without it, each write fences twice.
    fn has_fence_all(&self) -> bool {
        true
    }

    /// A shorter way to read a volume's sectors, where the medium has one.
    fn view(&self, _volume: &Superblock) -> Option<View> {
        None
    }

    /// Whether to make a mistake on purpose. Real media make none, at no cost.
    fn has_fault(&self, _fault: Fault) -> bool {
        false
    }
}
