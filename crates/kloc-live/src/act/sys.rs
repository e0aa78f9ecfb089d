//! System calls that no library has, each wrapped once.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::ptr::NonNull;

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The longest handle that is used here.
pub(super) const HANDLE: usize = 24;

/// `struct file_handle` with room for its bytes.
#[repr(C)]
pub(super) struct Handle {
    pub(super) bytes: u32,
    pub(super) kind: i32,
    pub(super) content: [u8; HANDLE],
}

/// `name_to_handle_at(2)`: the handle of a file, which is not opened for it.
pub(super) fn handle_of(path: &CStr) -> io::Result<Handle> {
    let mut handle = Handle { bytes: HANDLE as u32, kind: 0, content: [0; HANDLE] };
    let mut mount = 0i32;
    // SAFETY: the handle has room for as many bytes as it says; all live during the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_SYMLINK_FOLLOW,
        )
    };
    checked(done).map(|_| handle)
}

/// `open_by_handle_at(2)`
pub(super) fn open_by_handle(
    mount: BorrowedFd<'_>,
    handle: &mut Handle,
    flags: i32,
) -> io::Result<File> {
    // SAFETY: the handle has as many bytes as it says, and lives during the call; the descriptor
    // that is returned is nobody else's.
    unsafe {
        let at = std::ptr::from_mut(handle);
        let fd = libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), at, flags);
        Ok(File::from_raw_fd(checked(fd)? as i32))
    }
}

/// `fcntl(F_SETLEASE)`
pub(super) fn set_lease(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: takes numbers.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    checked(done.into()).map(|_| ())
}

/// The answer of `cachestat(2)`, in pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheStat {
    pub(super) cached: u64,
    pub(super) dirty: u64,
    pub(super) writeback: u64,
    pub(super) evicted: u64,
    pub(super) recently_evicted: u64,
}

/// `SYS_cachestat`, which is one number on all architectures.
const CACHESTAT: libc::c_long = 451;

/// `cachestat(2)` of a whole file, Linux 6.5.
pub(super) fn cachestat(file: &File) -> io::Result<CacheStat> {
    let (range, mut stat) = ([0u64; 2], CacheStat::default());
    // SAFETY: both structures are of the sizes that the call takes, and live during it.
    let done = unsafe {
        let (range, stat) = (range.as_ptr(), &raw mut stat);
        libc::syscall(CACHESTAT, file.as_raw_fd(), range, stat, 0)
    };
    checked(done).map(|_| stat)
}

/// `sync_file_range(2)` of a part of a file, or from there to its end if the length is 0: dirty pages
/// begin to be written; metadata is not.
///
/// It is not waited for by this call: whoever waits is told of a write error, and whoever opens the
/// file and syncs it after that is not (`file_check_and_advance_wb_err`). The error is the program's.
pub(super) fn begin_write_back(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: takes numbers.
    let done =
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, length as i64, flags) };
    checked(done.into()).map(|_| ())
}

/// `posix_fadvise(2)`
pub(super) fn advise(file: &File, offset: u64, length: u64, advice: i32) -> io::Result<()> {
    // SAFETY: takes numbers.
    let error =
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as i64, length as i64, advice) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// An `ioctl` without an argument.
pub(super) fn control(file: &File, request: u64) -> io::Result<()> {
    // SAFETY: the requests that are made here take no argument.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), request as _, 0) };
    checked(done.into()).map(|_| ())
}

/// Signals that a lease is asked back by (`SIGIO`) do not end this process.
pub(super) fn ignore_lease_signals() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
}

/// A part of a file that is mapped for reading.
pub(super) struct Mapped {
    at: NonNull<libc::c_void>,
    length: usize,
}

/// `MADV_POPULATE_READ`, Linux 5.14
const POPULATE_READ: i32 = 22;
/// `MPOL_MF_MOVE_ALL`: pages that others map, too.
const MOVE_ALL: i32 = 1 << 2;
/// What a page takes on this machine.
fn page() -> usize {
    rustix::param::page_size()
}

impl Mapped {
    pub(super) fn new(file: &File, offset: u64, length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe {
            let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), length, read, shared, file.as_raw_fd(), offset as i64)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at).ok_or(io::ErrorKind::Other)?;
        Ok(Self { at, length })
    }

    /// Which of its pages are cached.
    pub(super) fn resident(&self) -> io::Result<Vec<bool>> {
        let mut there = vec![0u8; self.length.div_ceil(page())];
        // SAFETY: there is a byte for each page of the mapping.
        let done = unsafe { libc::mincore(self.at.as_ptr(), self.length, there.as_mut_ptr()) };
        checked(done.into())?;
        Ok(there.into_iter().map(|byte| byte & 1 != 0).collect())
    }

    fn advise(&self, first: usize, pages: usize, advice: i32) -> io::Result<()> {
        let (offset, length) = (first * page(), pages * page());
        assert!(offset + length <= self.length.next_multiple_of(page()), "within the mapping");
        // SAFETY: a part of this mapping; none of the advices that are given changes content.
        let done = unsafe { libc::madvise(self.at.as_ptr().byte_add(offset), length, advice) };
        checked(done.into()).map(|_| ())
    }

    /// Maps pages that are cached; it would read others.
    pub(super) fn populate(&self, first: usize, pages: usize) -> io::Result<()> {
        self.advise(first, pages, POPULATE_READ)
    }

    /// Pages go before others when memory is short.
    pub(super) fn cold(&self, first: usize, pages: usize) -> io::Result<()> {
        self.advise(first, pages, libc::MADV_COLD)
    }

    /// Moves pages to a node, also those that others map; how many are there then.
    pub(super) fn move_to(&self, pages: &[usize], node: u32) -> io::Result<usize> {
        let at: Vec<usize> =
            pages.iter().map(|number| self.at.as_ptr() as usize + number * page()).collect();
        let nodes = vec![node as i32; at.len()];
        let mut status = vec![i32::MIN; at.len()];
        // SAFETY: three arrays of this length, which live during the call. Moving keeps content.
        let moved = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                at.len(),
                at.as_ptr(),
                nodes.as_ptr(),
                status.as_mut_ptr(),
                MOVE_ALL,
            )
        };
        checked(moved)?;
        Ok(status.iter().filter(|&&is| is == node as i32).count())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has a reference into it.
        unsafe { libc::munmap(self.at.as_ptr(), self.length) };
    }
}

/// `statfs(2)`: of which kind a file system is.
pub(super) fn kind_of_file_system(path: &CStr) -> io::Result<u64> {
    // SAFETY: zeroes are a valid `statfs`; the path ends, and both live during the call.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        checked(libc::statfs(path.as_ptr(), &raw mut stat).into())?;
        Ok(stat.f_type as u64)
    }
}

/// An `ioctl` that gives a number.
pub(super) fn read_number(file: &File, request: u64) -> io::Result<u32> {
    // Some file systems write eight bytes, as the request's definition says, though the number
    // has four.
    let mut number = [0u32; 2];
    // SAFETY: there is room for what the request writes.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), request as _, number.as_mut_ptr()) };
    checked(done.into()).map(|_| number[0])
}
