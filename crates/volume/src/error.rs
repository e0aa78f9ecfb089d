//! Why a volume cannot be made, mounted or used.

use std::io;

use terrace_core::Bytes;
use thiserror::Error;

use crate::check::Damage;

/// Why something was not done. Each cause has a variant of its own, so that a server can answer
/// its client and a command can choose its exit code.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// Neither end holds a valid superblock.
    #[error("{}", no_superblock(.first, .last))]
    NoSuperblock {
        /// What is wrong with the first one.
        first: String,
        /// What is wrong with the last one.
        last: String,
    },
    /// The two superblocks belong to different volumes.
    #[error(
        "the superblocks belong to different volumes: {first} at the beginning, {last} at the end"
    )]
    ForeignUuid {
        /// The uuid in the first superblock.
        first: uuid::Uuid,
        /// The uuid in the last superblock.
        last: uuid::Uuid,
    },
    /// The medium is smaller than its superblock says.
    #[error("the image is truncated: the superblock says {expected} bytes, there are {found}")]
    Truncated {
        /// Bytes that the superblock promises.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// The map has entries that no correct volume has.
    #[error("the map is damaged ({} entries; the first: {}); only reading is possible", .0.len(), first_of(.0))]
    Damaged(Vec<Damage>),
    /// What was asked for would make no volume.
    #[error("{0}")]
    BadGeometry(String),
    /// A sector number behind the last one.
    #[error("sector {lba} with {count} sectors is beyond the end of {sectors} sectors")]
    OutOfRange {
        /// The first sector that was asked for.
        lba: u64,
        /// How many sectors were asked for.
        count: u64,
        /// Sectors of the volume.
        sectors: u64,
    },
    /// A buffer that holds no whole number of sectors.
    #[error("{length} bytes are no whole number of sectors of {sector} bytes")]
    Unaligned {
        /// Bytes of the buffer.
        length: usize,
        /// Bytes of a sector.
        sector: u32,
    },
    /// The volume was mounted for reading.
    #[error("the volume is mounted read-only")]
    ReadOnly,
    /// The sector's entry is damaged.
    #[error("{damage}, so sector {lba} cannot be read")]
    Unreadable {
        /// The sector.
        lba: u64,
        /// What is wrong.
        damage: Damage,
    },
    /// The sector was lost, and was declared so by a repair.
    #[error("sector {0} was lost: a repair could not tell its content")]
    Lost(u64),
    /// More threads want to write than the volume has spare blocks for.
    #[error("all {0} lanes are taken: a volume with more spare blocks has more")]
    NoLane(usize),
    /// A commit failed; what it held may or may not be durable.
    #[error("an earlier commit failed, so nothing more is written: mount the volume again")]
    Failed,
    /// Somebody has the block device for themselves.
    #[error(
        "the device is in use: a file system on it is mounted, or another program or device has it"
    )]
    Busy,
    /// A device that is to become a volume holds something.
    #[error(
        "the device is not blank (byte {0} is not zero): it may hold a file system or a partition \
         table (`wipefs` and `lsblk -f` name it)"
    )]
    NotBlank(u64),
    /// The kernel takes no writes for the device.
    #[error("the device is read-only, so nothing can be written to it")]
    ReadOnlyDevice,
    /// The image has no bytes.
    #[error("the image is empty")]
    Empty,
    /// Another process has the image.
    #[error("another process uses the image (it holds the lock)")]
    Locked,
    /// The durability that was asked for cannot be had here.
    #[error("{0}")]
    NoDurability(String),
    /// A volume is there already.
    #[error("the image holds a volume already ({0})")]
    Exists(uuid::Uuid),
    /// The simulated power failed.
    #[error("the power failed")]
    PowerFailure,
}

fn no_superblock(first: &str, last: &str) -> String {
    if first == last {
        return format!("no valid superblock at either end: {first}");
    }
    format!("no valid superblock at either end; the first: {first}; the last: {last}")
}

fn first_of(damage: &[Damage]) -> String {
    damage.first().map_or_else(String::new, ToString::to_string)
}

impl VolumeError {
    /// The system's number for it, as a server tells the kernel (`errno.h`).
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::ReadOnly | Self::ReadOnlyDevice => libc::EROFS,
            Self::OutOfRange { .. } | Self::Unaligned { .. } => libc::EINVAL,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => libc::ENOSPC,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::Unsupported => {
                libc::EOPNOTSUPP
            }
            _ => libc::EIO,
        }
    }

    /// Adds to an error of the system what was being done.
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// The same for errors of system calls.
    pub(crate) fn os(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::Io { what, source: errno.into() }
    }
}

/// The result of whatever a volume does.
pub type Result<T = ()> = std::result::Result<T, VolumeError>;

/// Bytes of a superblock, and the alignment of every part of a volume.
pub const PART: Bytes = Bytes(4096);
