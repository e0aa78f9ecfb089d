//! Block devices that hold a volume: what is behind them, and whether they hold something else.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Result, VolumeError};
use crate::image::{Medium, lock};
use crate::pm::Pm;

/// Bytes at each end of a device that are zeros where no file system, partition table, or member of
/// a pool is. The farthest from an end that is known lies 1 MiB inside (VMFS, `util-linux`'s
/// `libblkid`).
const ENDS: u64 = 2 << 20;
/// Bytes that are looked at, at a time.
const CHUNK: u64 = 64 << 10;

/// A place for bytes, however it is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A file: the device it is on, and its number there.
    File(u64, u64),
    /// A block device.
    Block(u64),
    /// A device whose bytes are mapped.
    Character(u64),
}

impl Place {
    fn of(there: &Metadata) -> Self {
        let kind = there.file_type();
        if kind.is_block_device() {
            Self::Block(there.rdev())
        } else if kind.is_char_device() {
            Self::Character(there.rdev())
        } else {
            Self::File(there.dev(), there.ino())
        }
    }

    /// That of the file behind a loop device.
    fn behind(there: &Metadata) -> Option<Self> {
        let behind = std::fs::metadata(backing_file(there)?).ok()?;
        Some(Self::of(&behind))
    }
}

/// Whether two files or devices have bytes in common, as far as loop devices are followed: the same
/// one, a device and the file behind it, or two devices with one file that are not two partitions.
pub fn overlap(a: &Metadata, b: &Metadata) -> bool {
    let (own, behind) = ([Place::of(a), Place::of(b)], [Place::behind(a), Place::behind(b)]);
    let are_partitions = [a, b].iter().all(|there| is_partition(there));
    own[0] == own[1]
        || behind[0] == Some(own[1])
        || behind[1] == Some(own[0])
        || behind[0].is_some() && behind[0] == behind[1] && !are_partitions
}

/// Whether it is a part of something: a partition, or a loop device for a range of a file.
fn is_partition(there: &Metadata) -> bool {
    let is_range = |name| said(there, name).is_some_and(|number| number.trim() != "0");
    said(there, "partition").is_some() || is_range("loop/offset") || is_range("loop/sizelimit")
}

/// What the kernel says about a block device, in a file of `sysfs`.
fn said(there: &Metadata, name: &str) -> Option<String> {
    if !there.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (rustix::fs::major(there.rdev()), rustix::fs::minor(there.rdev()));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{name}")).ok()?;
    Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

/// The file behind a loop device, or behind that of a partition.
fn backing_file(there: &Metadata) -> Option<PathBuf> {
    let of = |name| said(there, name).map(PathBuf::from);
    of("loop/backing_file").or_else(|| of("../loop/backing_file"))
}

/// Whether the kernel takes no writes for a device.
pub(crate) fn is_read_only(there: &Metadata) -> bool {
    said(there, "ro").is_some_and(|text| text.trim() == "1")
}

/// The file behind a loop device, locked as the device is: whoever opens the one meets whoever has
/// the other.
pub(crate) fn lock_behind(there: &Metadata, alone: bool) -> Result<Option<File>> {
    let Some(path) = backing_file(there) else { return Ok(None) };
    // Partitions of one device hold a volume each; from the device as a whole, `O_EXCL` keeps them.
    match open(&path, false) {
        Ok(file) => lock(&file, alone && !is_partition(there)).map(|()| Some(file)),
        // It was removed, or lies where this process sees nothing: nor does a volume's user find it
        // by that name.
        Err(VolumeError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Opens an image. For writing, a block device is opened for ourselves alone: that is refused while
/// a file system on it is mounted, or another layer of the kernel has it. A FIFO is not waited for.
pub(crate) fn open(path: &Path, writable: bool) -> Result<File> {
    let alone = if writable { libc::O_EXCL } else { 0 };
    OpenOptions::new()
        .read(true)
        .write(writable)
        // Without `O_CREAT`, Linux gives `O_EXCL` a meaning for block devices only (`open(2)`).
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | alone)
        .open(path)
        .map_err(|e| match e.kind() {
            io::ErrorKind::ResourceBusy => VolumeError::Busy,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                if writable && std::fs::metadata(path).is_ok_and(|there| is_read_only(&there)) =>
            {
                VolumeError::ReadOnlyDevice
            }
            _ => VolumeError::io("cannot open the image")(e),
        })
}

/// Refuses a medium that holds anything near its ends.
pub(crate) fn must_be_blank(medium: &Medium) -> Result {
    let size = medium.size();
    let mut bytes = vec![0; CHUNK as usize];
    let ends = [0..size.min(ENDS), size.saturating_sub(ENDS)..size];
    for end in ends {
        let mut at = end.start;
        while at < end.end {
            let part = &mut bytes[..(end.end - at).min(CHUNK) as usize];
            medium.read(at, part)?;
            if let Some(first) = part.iter().position(|byte| *byte != 0) {
                return Err(VolumeError::NotBlank(at + first as u64));
            }
            at += part.len() as u64;
        }
    }
    Ok(())
}
