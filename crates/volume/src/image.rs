//! Files and devices that hold a volume: how they are opened, which durability they give, and the
//! lock that keeps a second process out.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, FlockOperation};
use terrace_core::Bytes;

use crate::error::{Result, VolumeError};
use crate::pm::file::Grouped;
use crate::pm::mapped::Mapped;
use crate::pm::stores::WriteBack;
use crate::pm::{Cpu, Durability, Pm};

/// The magic numbers of file systems that are lost with the power (`statfs(2)`).
const VOLATILE: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// A medium of this machine.
#[derive(Debug)]
pub enum Medium {
    /// It is mapped.
    Mapped(Mapped),
    /// It is written with system calls.
    Grouped(Grouped),
}

macro_rules! each {
    ($self:ident, $medium:ident => $what:expr) => {
        match $self {
            Medium::Mapped($medium) => $what,
            Medium::Grouped($medium) => $what,
        }
    };
}

impl Pm for Medium {
    fn size(&self) -> u64 {
        each!(self, medium => medium.size())
    }
    fn is_grouped(&self) -> bool {
        each!(self, medium => medium.is_grouped())
    }
    #[inline]
    fn write(&self, cpu: Cpu, at: u64, bytes: &[u8]) -> Result {
        each!(self, medium => medium.write(cpu, at, bytes))
    }
    #[inline]
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result {
        each!(self, medium => medium.read(at, bytes))
    }
    #[inline]
    fn load(&self, at: u64) -> u64 {
        each!(self, medium => medium.load(at))
    }
    #[inline]
    fn exchange(&self, cpu: Cpu, at: u64, current: u64, new: u64) -> std::result::Result<(), u64> {
        each!(self, medium => medium.exchange(cpu, at, current, new))
    }
    #[inline]
    fn write_back(&self, cpu: Cpu, at: u64, length: u64) -> Result {
        each!(self, medium => medium.write_back(cpu, at, length))
    }
    #[inline]
    fn fence(&self, cpu: Cpu) -> Result {
        each!(self, medium => medium.fence(cpu))
    }
    fn fence_all(&self, cpu: Cpu) -> Result {
        each!(self, medium => medium.fence_all(cpu))
    }
    #[inline]
    fn has_fence_all(&self) -> bool {
        each!(self, medium => medium.has_fence_all())
    }
}

/// An opened image: the medium, and what it gives.
#[derive(Debug)]
pub struct Image {
    /// The medium. Whoever drops it drops the lock.
    pub medium: Medium,
    /// What survives what.
    pub durability: Durability,
    /// Why it is not more.
    pub reason: String,
}

impl Image {
    /// Opens an image that is there. Without a wish for a durability the best one is taken that
    /// the medium gives; `process-crash-only` is taken by itself only where files are lost with
    /// the power anyway.
    pub fn open(path: &Path, writable: bool, wish: Option<Durability>) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .open(path)
            .map_err(VolumeError::io("cannot open the image"))?;
        Self::of(file, writable, wish)
    }

    /// Makes a file of so many bytes, all of them allocated, or opens a device; a file that is
    /// there is refused unless `replace` says otherwise, and grows to that size.
    pub fn create(
        path: &Path,
        size: Option<Bytes>,
        replace: bool,
        wish: Option<Durability>,
    ) -> Result<Self> {
        let is_file = std::fs::metadata(path).map_or(true, |there| there.is_file());
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if is_file && !replace {
            options.create_new(true);
        } else if is_file {
            options.create(true).truncate(false);
        }
        let file = options.open(path).map_err(VolumeError::io("cannot make the image"))?;
        let made = is_file && !replace;
        let image = Self::sized(file, is_file, size, wish);
        if made && image.is_err() {
            // It is ours, and holds nothing.
            let _ = std::fs::remove_file(path);
        }
        image
    }

    fn sized(
        file: File,
        is_file: bool,
        size: Option<Bytes>,
        wish: Option<Durability>,
    ) -> Result<Self> {
        lock(&file, true)?;
        if let (true, Some(size)) = (is_file, size) {
            let there = file.metadata().map_err(VolumeError::io("cannot look at the image"))?.len();
            if there > size.0 {
                return Err(VolumeError::BadGeometry(format!(
                    "the file has {there} bytes, more than {}; it is not made smaller",
                    size.0
                )));
            }
            allocate(&file, size.0)?;
        }
        Self::of(file, true, wish)
    }

    /// Grows a file to so many bytes, all of them allocated.
    pub fn extend(path: &Path, size: Bytes) -> Result {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(VolumeError::io("cannot open the image"))?;
        lock(&file, true)?;
        allocate(&file, size.0)
    }

    fn of(file: File, writable: bool, wish: Option<Durability>) -> Result<Self> {
        lock(&file, writable)?;
        let there = file.metadata().map_err(VolumeError::io("cannot look at the image"))?;
        let kind = there.file_type();
        if !(kind.is_file() || kind.is_block_device() || kind.is_char_device()) {
            return Err(VolumeError::BadGeometry("an image is a file or a device".into()));
        }
        let size = size_of(&file, &there)?;
        let mapped = if wish.is_none_or(|wish| wish == Durability::Dax) && size > 0 {
            Mapped::dax(&file, size, writable)?
        } else {
            None
        };
        if let Some(mapped) = mapped {
            let reason = format!(
                "the medium is mapped with MAP_SYNC, lines are written back with {}",
                WriteBack::detect().name()
            );
            let medium = Medium::Mapped(mapped);
            return Ok(Self { medium, durability: Durability::Dax, reason });
        }
        if wish == Some(Durability::Dax) {
            return Err(VolumeError::NoDurability(
                "dax: the kernel refuses MAP_SYNC for this image, or the processor cannot write \
                 lines back"
                    .into(),
            ));
        }
        let is_volatile = rustix::fs::fstatfs(&file)
            .is_ok_and(|system| VOLATILE.contains(&(system.f_type as u64)))
            && kind.is_file();
        if is_volatile && wish == Some(Durability::GroupCommit) {
            return Err(VolumeError::NoDurability(
                "group-commit: the file system is in memory, and is lost with the power".into(),
            ));
        }
        if is_volatile || wish == Some(Durability::ProcessCrashOnly) {
            if kind.is_file() && writable {
                // A page that cannot be had would end the process, not the write.
                allocate(&file, size)?;
            }
            let reason =
                if is_volatile { "the file system is in memory" } else { "it was asked for" };
            return Ok(Self {
                medium: Medium::Mapped(Mapped::pages(&file, size, writable)?),
                durability: Durability::ProcessCrashOnly,
                reason: reason.into(),
            });
        }
        Ok(Self {
            medium: Medium::Grouped(Grouped::new(file, size)),
            durability: Durability::GroupCommit,
            reason: "the image is no DAX: the kernel writes its pages in any order".into(),
        })
    }
}

/// Keeps other processes out: writers alone, readers with other readers.
fn lock(file: &File, alone: bool) -> Result {
    let how = if alone {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(file, how) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(VolumeError::Locked),
        Err(e) => Err(VolumeError::os("cannot lock the image")(e)),
    }
}

fn allocate(file: &File, size: u64) -> Result {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => {
            // Without it, a full disk is an error of the write that meets it.
            let there = file.metadata().map_err(VolumeError::io("cannot look at the image"))?.len();
            file.set_len(size.max(there)).map_err(VolumeError::io("cannot grow the image"))
        }
        Err(e) => Err(VolumeError::os("cannot allocate the image")(e)),
    }
}

fn size_of(mut file: &File, there: &std::fs::Metadata) -> Result<u64> {
    if there.file_type().is_char_device() {
        let (major, minor) = (rustix::fs::major(there.rdev()), rustix::fs::minor(there.rdev()));
        let path = format!("/sys/dev/char/{major}:{minor}/size");
        let text = std::fs::read_to_string(path)
            .map_err(VolumeError::io("not a DAX device: the kernel does not tell its size"))?;
        return text.trim().parse().map_err(|_| {
            VolumeError::BadGeometry(format!("the kernel says that its size is `{}`", text.trim()))
        });
    }
    file.seek(SeekFrom::End(0)).map_err(VolumeError::io("cannot tell the size of the image"))
}
