//! Files and devices that hold a volume: how they are opened, which durability they give, and the
//! lock that keeps a second process out.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, FlockOperation};
use terrace_core::Bytes;

use crate::check::Superblocks;
use crate::device::{is_read_only, lock_behind, must_be_blank, open};
use crate::error::{PART, Result, VolumeError};
use crate::pm::file::Grouped;
use crate::pm::mapped::Mapped;
use crate::pm::stores::WriteBack;
use crate::pm::view::View;
use crate::pm::{Cpu, Durability, Pm};
use crate::superblock::Superblock;

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
    fn expect_read(&self, at: u64, length: u64) {
        each!(self, medium => medium.expect_read(at, length));
    }
    #[inline]
    fn load(&self, at: u64) -> u64 {
        each!(self, medium => medium.load(at))
    }
    #[inline]
    fn expect_exchange(&self, at: u64) {
        each!(self, medium => medium.expect_exchange(at));
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
    fn view(&self, volume: &Superblock) -> Option<View> {
        each!(self, medium => medium.view(volume))
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
        Self::of(open(path, writable)?, writable, wish)
    }

    /// Makes a file of so many bytes, all of them allocated, or opens a device. A file that is
    /// there, and a device that is not blank, are refused unless `replace` says otherwise; a file
    /// grows to that size.
    pub fn create(
        path: &Path,
        size: Option<Bytes>,
        replace: bool,
        wish: Option<Durability>,
    ) -> Result<Self> {
        Self::create_and_tell(path, size, replace, wish, &|| ())
    }

    /// The same; a file that is made is told to `made` at once, before it is complete.
    pub fn create_and_tell(
        path: &Path,
        size: Option<Bytes>,
        replace: bool,
        wish: Option<Durability>,
        made: &dyn Fn(),
    ) -> Result<Self> {
        let there = std::fs::metadata(path).ok();
        if there.is_some_and(|there| !there.is_file()) {
            let image = Self::of(open(path, true)?, true, wish)?;
            if !replace {
                if let Ok(there) = Superblocks::read(&image.medium) {
                    return Err(VolumeError::Exists(there.current.uuid));
                }
                must_be_blank(&image.medium)?;
            }
            return Ok(image);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if replace {
            options.create(true).truncate(false).custom_flags(libc::O_NONBLOCK);
        } else {
            options.create_new(true);
        }
        let file = options.open(path).map_err(VolumeError::io("cannot make the image"))?;
        if !replace {
            made();
        }
        let image = Self::sized(file, size, wish);
        if !replace && image.is_err() {
            // It is ours, and holds nothing.
            let _ = std::fs::remove_file(path);
        }
        image
    }

    fn sized(file: File, size: Option<Bytes>, wish: Option<Durability>) -> Result<Self> {
        lock(&file, true)?;
        let Some(size) = size else { return Self::of(file, true, wish) };
        let there = file.metadata().map_err(VolumeError::io("cannot look at the image"))?.len();
        if there > size.0 {
            return Err(VolumeError::BadGeometry(format!(
                "the file has {there} bytes, more than {}; it is not made smaller",
                size.0
            )));
        }
        or_shorten(&file, there, || {
            allocate(&file, size.0)?;
            let copy = file.try_clone().map_err(VolumeError::io("cannot open the image"))?;
            Self::of(copy, true, wish)
        })
    }

    /// Opens an image and has it grow: `plan` looks at it as it is, and says how many bytes the
    /// file is to have, all of them allocated; `grow` does the rest on the larger medium. Nobody
    /// else gets at the image in between, and a file that could not grow is as long as before.
    pub fn grow<T>(
        path: &Path,
        plan: impl FnOnce(&Medium) -> Result<Option<Bytes>>,
        grow: impl FnOnce(&Medium) -> Result<T>,
    ) -> Result<(Self, T)> {
        let file = open(path, true)?;
        // Copies share the lock, which lasts until all are closed.
        let copy = || file.try_clone().map_err(VolumeError::io("cannot open the image"));
        let size = plan(&Self::of(copy()?, true, None)?.medium)?;
        let there = file.metadata().map_err(VolumeError::io("cannot look at the image"))?;
        let change = || -> Result<(Self, T)> {
            if let Some(size) = size {
                allocate(&file, size.0)?;
            }
            let image = Self::of(copy()?, true, None)?;
            let grown = grow(&image.medium)?;
            Ok((image, grown))
        };
        if there.is_file() { or_shorten(&file, there.len(), change) } else { change() }
    }

    fn of(file: File, writable: bool, wish: Option<Durability>) -> Result<Self> {
        let there = file.metadata().map_err(VolumeError::io("cannot look at the image"))?;
        let kind = there.file_type();
        if !(kind.is_file() || kind.is_block_device() || kind.is_char_device()) {
            return Err(VolumeError::BadGeometry("an image is a file or a device".into()));
        }
        lock(&file, writable)?;
        let behind = lock_behind(&there, writable)?;
        if writable && is_read_only(&there) {
            return Err(VolumeError::ReadOnlyDevice);
        }
        let size = size_of(&file, &there)?;
        if size == 0 {
            return Err(VolumeError::Empty);
        }
        let mapped = if wish.is_none_or(|wish| wish == Durability::Dax) {
            Mapped::dax(&file, size, writable)?
        } else {
            None
        };
        if let Some(mapped) = mapped {
            let reason = format!(
                "the medium is mapped with MAP_SYNC, lines are written back with {}",
                WriteBack::detect().name()
            );
            let medium = Medium::Mapped(mapped.with(behind));
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
                medium: Medium::Mapped(Mapped::pages(&file, size, writable)?.with(behind)),
                durability: Durability::ProcessCrashOnly,
                reason: reason.into(),
            });
        }
        Ok(Self {
            medium: Medium::Grouped(Grouped::new(file, size).with(behind)),
            durability: Durability::GroupCommit,
            reason: "the image is no DAX: the kernel writes its pages in any order".into(),
        })
    }
}

/// Does something to a file that makes it longer; if that fails, the file gets its length back.
fn or_shorten<T>(file: &File, length: u64, change: impl FnOnce() -> Result<T>) -> Result<T> {
    change().inspect_err(|_| {
        // Where the first superblock says already that the volume is longer, it must stay so.
        let mut first = [0; PART.0 as usize];
        let is_needed = file.read_exact_at(&mut first, 0).is_ok()
            && Superblock::decode(&first).is_ok_and(|first| first.total > length);
        if !is_needed {
            // The error that is on its way says more than a second one.
            let _ = file.set_len(length);
        }
    })
}

/// Keeps other processes out: writers alone, readers with other readers.
pub(crate) fn lock(file: &File, alone: bool) -> Result {
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
