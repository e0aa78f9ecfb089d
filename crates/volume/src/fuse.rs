//! A volume as a file: for `losetup`, and for programs that open disk images.
//!
//! The file is mounted over an empty one (FUSE, by the crate `fuser`), belongs to whoever serves
//! it, and is open to nobody else. The kernel caches nothing of it, so that what a program has
//! written is in the volume. Writes are whole sectors; reads are any bytes.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, INodeNo, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyEmpty, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session, TimeOrNow,
    WriteFlags,
};

use crate::error::VolumeError;
use crate::lane::Lane;
use crate::pm::Pm;
use crate::volume::Volume;

/// How long the kernel may rely on the file's attributes: they do not change.
const ATTRIBUTES: Duration = Duration::from_hours(1);
/// Bytes of the largest request, and of a buffer that begins inside of a page.
const MOST: u32 = 1 << 20;
/// Threads that answer requests, where there are as many lanes.
const THREADS: usize = 4;

/// A volume that is mounted as a file.
#[derive(Debug)]
pub struct Mounted {
    session: BackgroundSession,
    at: PathBuf,
}

/// Mounts a volume over a file that is there.
pub fn mount<P: Pm + 'static>(volume: Arc<Volume<P>>, at: &Path) -> io::Result<Mounted> {
    let mut config = Config::default();
    config.mount_options.extend([
        MountOption::FSName("terrace".into()),
        MountOption::Subtype("volume".into()),
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
    ]);
    if volume.is_read_only() {
        config.mount_options.push(MountOption::RO);
    }
    // Clients of a server of the same volume must not take the last one: a file system that cannot
    // write is damaged.
    config.n_threads = Some(volume.keep_lanes(THREADS));
    config.clone_fd = true;
    let session = Session::new(Served(volume), at, &config)?.spawn()?;
    Ok(Mounted { session, at: at.to_owned() })
}

impl Mounted {
    /// Whether somebody has unmounted it.
    pub fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Unmounts it. If it is still used, it disappears, its users get errors from then on,
    /// and the result is `false`.
    pub fn end(self) -> io::Result<bool> {
        if self.is_over() {
            return self.session.join().map(|()| true);
        }
        match rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::empty()) {
            Ok(()) => self.session.join().map(|()| true),
            Err(rustix::io::Errno::BUSY) => {
                rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH)?;
                // Its threads wait for requests of users who do not leave.
                Ok(false)
            }
            // Without the right to unmount there is a program that has it.
            Err(rustix::io::Errno::PERM) => self.session.umount_and_join().map(|()| true),
            Err(e) => Err(e.into()),
        }
    }
}

/// Tells the kernel that this thread, and those that it starts, serve its own writes: where memory
/// runs short, their allocations do not wait for writes to the very file that they serve.
pub fn flusher() -> io::Result<()> {
    /// `PR_SET_IO_FLUSHER` of `linux/prctl.h`, which the crate `libc` does not have.
    const SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: it takes a number, and changes nothing that Rust knows of.
    let done = unsafe { libc::prctl(SET_IO_FLUSHER, 1, 0, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[derive(Debug)]
struct Served<P: Pm>(Arc<Volume<P>>);

thread_local! {
    /// What is read.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl<P: Pm> Served<P> {
    fn sector(&self) -> u64 {
        u64::from(self.0.sector_size().bytes())
    }

    fn attributes(&self) -> FileAttr {
        let size = self.0.capacity().0;
        FileAttr {
            ino: INodeNo::ROOT,
            size,
            blocks: size / 512,
            // A volume does not keep times.
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: if self.0.is_read_only() { 0o400 } else { 0o600 },
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: self.0.sector_size().bytes(),
            flags: 0,
        }
    }

    /// The sectors of a range that is changed: whole ones, inside of the volume.
    fn sectors(&self, offset: u64, length: u64) -> Result<(u64, u64), Errno> {
        let size = self.sector();
        if !offset.is_multiple_of(size) || !length.is_multiple_of(size) {
            return Err(Errno::EINVAL);
        }
        if offset.checked_add(length).is_none_or(|end| end > self.0.capacity().0) {
            return Err(Errno::ENOSPC);
        }
        Ok((offset / size, length / size))
    }

    /// A lane for one request: requests come on any thread.
    fn lane(&self) -> Result<Lane<'_, P>, Errno> {
        self.0.kept_lane().map_err(|e| number(&e))
    }

    fn read_at(&self, offset: u64, length: usize, reply: ReplyData) {
        let capacity = self.0.capacity().0;
        let length = (length as u64).min(capacity.saturating_sub(offset));
        if length == 0 {
            return reply.data(&[]);
        }
        let size = self.sector();
        let first = offset / size;
        let end = (offset + length).div_ceil(size);
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(((end - first) * size) as usize, 0);
            match self.0.read(first, buffer) {
                Ok(()) => {
                    let from = (offset - first * size) as usize;
                    reply.data(&buffer[from..from + length as usize]);
                }
                Err(e) => reply.error(number(&e)),
            }
        });
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let (lba, _) = self.sectors(offset, data.len() as u64)?;
        self.lane()?.write(lba, data, false).map_err(|e| number(&e))
    }

    fn zero(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let (lba, count) = self.sectors(offset, length)?;
        self.lane()?.zero(lba, count, false).map_err(|e| number(&e))
    }

    /// The next offset, from one on, with data or without.
    fn seek(&self, offset: i64, whence: i32) -> Result<i64, Errno> {
        let capacity = self.0.capacity().0;
        let offset = u64::try_from(offset).ok().filter(|at| *at < capacity).ok_or(Errno::ENXIO)?;
        let wants_hole = match whence {
            libc::SEEK_HOLE => true,
            libc::SEEK_DATA => false,
            _ => return Err(Errno::EINVAL),
        };
        let mut lba = offset / self.sector();
        while lba < self.0.sectors() {
            let left = self.0.sectors() - lba;
            let (is_hole, count) = self.0.extent(lba, left).map_err(|e| number(&e))?;
            if is_hole == wants_hole {
                return Ok((lba * self.sector()).max(offset) as i64);
            }
            lba += count;
        }
        // There is a hole behind the end of every file.
        if wants_hole { Ok(capacity as i64) } else { Err(Errno::ENXIO) }
    }

    fn flush_all(&self) -> Result<(), Errno> {
        if self.0.is_read_only() {
            return Ok(());
        }
        self.lane()?.flush().map_err(|e| number(&e))
    }
}

/// For requests of so many bytes in whole pages: those, and the largest write.
///
/// The kernel cuts a write where the pages of a request end, or behind the most bytes, whatever comes
/// first. A buffer that begins inside of a page takes one page more than its bytes; without room for
/// that the cut would be inside of a sector, and the write fail. The crate `fuser` tells the kernel a
/// number of pages that holds the larger of the write and the read-ahead, so the write is a page less.
fn request_size(most: u32) -> Option<(u32, u32)> {
    let page = u32::try_from(rustix::param::page_size()).ok()?;
    let pages = most / page * page;
    let bytes = pages.checked_sub(page).filter(|bytes| *bytes > 0)?;
    Some((pages, bytes))
}

/// The system's number for an error.
fn number(error: &VolumeError) -> Errno {
    Errno::from_i32(error.errno())
}

fn answer(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(e),
    }
}

impl<P: Pm + 'static> Filesystem for Served<P> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let (pages, bytes) = request_size(config.set_max_readahead(MOST).err().unwrap_or(MOST))
            .ok_or_else(|| io::Error::other("the kernel's requests hold less than two pages"))?;
        let wrong = |most| io::Error::other(format!("requests have at most {most} bytes"));
        config.set_max_readahead(pages).map_err(wrong)?;
        config.set_max_write(bytes).map(|_| ()).map_err(wrong)
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES, &self.attributes());
    }

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // Owner, mode and size stay; times are not kept, and programs set them unasked.
        let changes = mode.is_some() || uid.is_some() || gid.is_some();
        if changes || size.is_some_and(|size| size != self.0.capacity().0) {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&ATTRIBUTES, &self.attributes());
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read_at(offset, size as usize, reply);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_at(offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(e) => reply.error(e),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // That is `close`; durable is what `fsync` was called for.
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(self.flush_all(), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let zeroes = [libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE];
        let done = if zeroes.contains(&(mode & !keep)) {
            self.zero(offset, length)
        } else if mode & !keep == 0 {
            // Every sector has its block already.
            let end = offset.checked_add(length);
            let inside = end.is_some_and(|end| end <= self.0.capacity().0);
            if inside { Ok(()) } else { Err(Errno::ENOSPC) }
        } else {
            Err(Errno::EOPNOTSUPP)
        };
        answer(done, reply);
    }

    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.seek(offset, whence) {
            Ok(at) => reply.offset(at),
            Err(e) => reply.error(e),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let usage = self.0.sectors();
        reply.statfs(usage, 0, 0, 1, 0, self.0.sector_size().bytes(), 255, 0);
    }
}
