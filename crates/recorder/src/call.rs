//! System calls for I/O: what they are about, as the kernel tells this process.
//!
//! The emulated program's descriptors are QEMU's own, and its addresses are too (QEMU maps a
//! program of this processor's kind where it asks to be). So `fstat` tells which file a descriptor
//! stands for, without a path; paths are read only of calls that name a file by nothing else.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, Ordering};

/// Words of a call, as `terrace_sim::trace::raw` reads them.
const WORDS: usize = 20;

// System calls of x86-64 that a recording is about.
const READ: i64 = 0;
const WRITE: i64 = 1;
const OPEN: i64 = 2;
const CLOSE: i64 = 3;
const STAT: i64 = 4;
const FSTAT: i64 = 5;
const LSTAT: i64 = 6;
const LSEEK: i64 = 8;
const MMAP: i64 = 9;
const MUNMAP: i64 = 11;
const PREAD: i64 = 17;
const PWRITE: i64 = 18;
const READV: i64 = 19;
const WRITEV: i64 = 20;
const DUP: i64 = 32;
const DUP2: i64 = 33;
const SENDFILE: i64 = 40;
const SOCKET: i64 = 41;
const CONNECT: i64 = 42;
const ACCEPT: i64 = 43;
const SENDTO: i64 = 44;
const RECVFROM: i64 = 45;
const SENDMSG: i64 = 46;
const RECVMSG: i64 = 47;
const FCNTL: i64 = 72;
const FSYNC: i64 = 74;
const FDATASYNC: i64 = 75;
const TRUNCATE: i64 = 76;
const FTRUNCATE: i64 = 77;
const GETDENTS: i64 = 78;
const RENAME: i64 = 82;
const CREAT: i64 = 85;
const UNLINK: i64 = 87;
const IO_SUBMIT: i64 = 209;
const GETDENTS64: i64 = 217;
const FADVISE: i64 = 221;
const OPENAT: i64 = 257;
const NEWFSTATAT: i64 = 262;
const UNLINKAT: i64 = 263;
const RENAMEAT: i64 = 264;
const SPLICE: i64 = 275;
const ACCEPT4: i64 = 288;
const DUP3: i64 = 292;
const PREADV: i64 = 295;
const PWRITEV: i64 = 296;
const RECVMMSG: i64 = 299;
const SENDMMSG: i64 = 307;
const RENAMEAT2: i64 = 316;
const COPY_FILE_RANGE: i64 = 326;
const PREADV2: i64 = 327;
const PWRITEV2: i64 = 328;
const STATX: i64 = 332;
const IO_URING_ENTER: i64 = 426;
const CLOSE_RANGE: i64 = 436;
const OPENAT2: i64 = 437;

/// `AT_EMPTY_PATH`: an empty path stands for the descriptor itself.
const EMPTY_PATH: u64 = 0x1000;
/// Bytes of the longest path (`PATH_MAX`).
const LONGEST_PATH: usize = 4096;
const PAGE: u64 = 4096;

/// A system call under way.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) arguments: [u64; 6],
    begin: u64,
    /// The file that the path stood for before the call, and the one that loses its name.
    named: Option<Object>,
    replaced: Option<Object>,
}

/// What a descriptor or a path stands for.
#[derive(Clone, Copy)]
struct Object {
    /// 1 a file, 2 a socket to other machines, 3 something else.
    what: u64,
    device: u64,
    inode: u64,
    bytes: u64,
    names: u64,
}

impl Call {
    /// No call.
    pub(crate) const NONE: Self = Self { arguments: [0; 6], begin: 0, named: None, replaced: None };

    /// A call begins.
    pub(crate) fn begin(number: i64, arguments: [u64; 6]) -> Self {
        let mut call = Self { arguments, ..Self::NONE };
        if !is_recorded(number) {
            return call;
        }
        let [a, b, c, d, ..] = arguments;
        // A failure leaves `errno` alone that way: the program's own call comes next.
        let kept = errno();
        call.named = match number {
            OPEN | CREAT | STAT => at_path(libc::AT_FDCWD, a, true),
            LSTAT | RENAME | UNLINK => at_path(libc::AT_FDCWD, a, false),
            UNLINKAT | RENAMEAT | RENAMEAT2 => at_path(a as c_int, b, false),
            NEWFSTATAT if d & EMPTY_PATH != 0 && is_empty(b) => of_descriptor(a),
            STATX if c & EMPTY_PATH != 0 && is_empty(b) => of_descriptor(a),
            OPENAT | OPENAT2 | NEWFSTATAT | STATX => at_path(a as c_int, b, true),
            _ => None,
        };
        call.replaced = match number {
            RENAME => at_path(libc::AT_FDCWD, b, false),
            RENAMEAT | RENAMEAT2 => at_path(c as c_int, d, false),
            _ => None,
        };
        set_errno(kept);
        call.begin = now();
        call
    }

    /// It has ended: its words, if it is of those that are recorded.
    pub(crate) fn end(&self, number: i64, result: i64) -> Option<[u64; WORDS]> {
        // What failed asked for nothing that a kernel then does; addresses may be negative.
        if !is_recorded(number) || (-4095..0).contains(&result) {
            return None;
        }
        let end = now();
        let [first, _, _, _, fifth, _] = self.arguments;
        let (kept, done) = (errno(), result as u64);
        let object = match number {
            OPEN | CREAT | OPENAT | OPENAT2 => {
                // As long as it was before: opening it may have cut it.
                let opened = of_descriptor(done);
                opened.map(|opened| Object {
                    bytes: self.named.map_or(0, |named| named.bytes),
                    ..opened
                })
            }
            SOCKET | ACCEPT | ACCEPT4 => of_descriptor(done),
            MMAP if fifth < 1 << 20 => of_descriptor(fifth),
            READ | WRITE | PREAD | PWRITE | READV | WRITEV | PREADV | PWRITEV | PREADV2
            | PWRITEV2 | FSYNC | FDATASYNC | FADVISE | FSTAT | SENDTO | RECVFROM | SENDMSG
            | RECVMSG => of_descriptor(first),
            _ => self.named,
        };
        let is_file = object.is_some_and(|object| object.what == 1);
        let offset = match number {
            READ | WRITE | READV | WRITEV if is_file => position(first).map(|at| {
                // It stands behind what was just transferred.
                at.saturating_sub(done)
            }),
            _ => None,
        };
        set_errno(kept);
        let existed = self.named.is_some();
        let last_name = self.named.is_none_or(|named| named.names <= 1);
        let replaced = self.replaced.filter(|other| other.what == 1 && other.names <= 1);
        let bits =
            u64::from(existed) | u64::from(last_name) << 1 | u64::from(replaced.is_some()) << 2;
        let (what, device, inode, bytes) =
            object.map_or((0, 0, 0, 0), |o| (o.what, o.device, o.inode, o.bytes));
        let (other_device, other_inode, other_bytes) =
            replaced.map_or((0, 0, 0), |o| (o.device, o.inode, o.bytes));
        // SAFETY: it only asks for a number.
        let cpu = unsafe { libc::sched_getcpu() };
        let mut words = [0; WORDS];
        words[..2].copy_from_slice(&[number as u64, done]);
        words[2..8].copy_from_slice(&self.arguments);
        words[8..].copy_from_slice(&[
            u64::try_from(cpu).unwrap_or(0),
            self.begin,
            end,
            what,
            bits,
            device,
            inode,
            bytes,
            offset.unwrap_or(u64::MAX),
            other_device,
            other_inode,
            other_bytes,
        ]);
        Some(words)
    }
}

fn is_recorded(number: i64) -> bool {
    matches!(
        number,
        READ | WRITE
            | OPEN
            | CLOSE
            | STAT
            | FSTAT
            | LSTAT
            | LSEEK
            | MMAP
            | MUNMAP
            | PREAD
            | PWRITE
            | READV
            | WRITEV
            | DUP
            | DUP2
            | SENDFILE
            | SOCKET
            | CONNECT
            | ACCEPT
            | SENDTO
            | RECVFROM
            | SENDMSG
            | RECVMSG
            | FCNTL
            | FSYNC
            | FDATASYNC
            | TRUNCATE
            | FTRUNCATE
            | GETDENTS
            | RENAME
            | CREAT
            | UNLINK
            | IO_SUBMIT
            | GETDENTS64
            | FADVISE
            | OPENAT
            | NEWFSTATAT
            | UNLINKAT
            | RENAMEAT
            | SPLICE
            | ACCEPT4
            | DUP3
            | PREADV
            | PWRITEV
            | RECVMMSG
            | SENDMMSG
            | RENAMEAT2
            | COPY_FILE_RANGE
            | PREADV2
            | PWRITEV2
            | STATX
            | IO_URING_ENTER
            | CLOSE_RANGE
            | OPENAT2
    )
}

/// Nanoseconds since some time.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it fills the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn errno() -> c_int {
    // SAFETY: it is this thread's.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: it is this thread's.
    unsafe { *libc::__errno_location() = value }
}

/// Where a descriptor stands in its file.
fn position(descriptor: u64) -> Option<u64> {
    // SAFETY: it only asks.
    let at = unsafe { libc::lseek(descriptor as c_int, 0, libc::SEEK_CUR) };
    u64::try_from(at).ok()
}

fn of_descriptor(descriptor: u64) -> Option<Object> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: it fills the structure, or fails.
    let done = unsafe { libc::fstat(descriptor as c_int, stat.as_mut_ptr()) };
    // SAFETY: it was filled.
    let object = (done == 0).then(|| Object::of(unsafe { stat.assume_init_ref() }))?;
    if object.what == 2 { Some(socket(descriptor as c_int, object)) } else { Some(object) }
}

/// A socket to other machines has its cookie; one within this machine is something else.
fn socket(descriptor: c_int, object: Object) -> Object {
    let option = |name: c_int, value: *mut c_void, mut length: libc::socklen_t| {
        // SAFETY: `value` has room for `length` bytes.
        unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, name, value, &raw mut length) == 0 }
    };
    let (mut domain, mut cookie) = (0 as c_int, 0u64);
    let told = option(libc::SO_DOMAIN, (&raw mut domain).cast(), size_of::<c_int>() as u32);
    if !told || ![libc::AF_INET, libc::AF_INET6].contains(&domain) {
        return Object { what: 3, ..object };
    }
    // 0 where the kernel does not tell.
    option(libc::SO_COOKIE, (&raw mut cookie).cast(), size_of::<u64>() as u32);
    Object { inode: cookie, device: 0, bytes: 0, ..object }
}

fn at_path(directory: c_int, path: u64, follows: bool) -> Option<Object> {
    let mut text = [0u8; LONGEST_PATH + 1];
    let length = read_text(path, &mut text)?;
    text[length] = 0;
    let flags = if follows { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the text ends with zero; the structure is filled, or it fails.
    let done = unsafe { libc::fstatat(directory, text.as_ptr().cast(), stat.as_mut_ptr(), flags) };
    // SAFETY: it was filled.
    (done == 0).then(|| Object::of(unsafe { stat.assume_init_ref() }))
}

fn is_empty(path: u64) -> bool {
    // A null path stands for an empty one, too.
    path == 0 || read_text(path, &mut [0; LONGEST_PATH + 1]) == Some(0)
}

/// Reads the program's text at an address, up to its zero. The kernel reads, so that an address
/// where nothing is, is an error and no fault.
fn read_text(address: u64, text: &mut [u8; LONGEST_PATH + 1]) -> Option<usize> {
    // Up to the end of the page, and then from there: what follows may not be there.
    let first = ((PAGE - address % PAGE) as usize).min(LONGEST_PATH);
    let local = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: LONGEST_PATH };
    let at = |address: u64| core::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
    let remote = [
        libc::iovec { iov_base: at(address), iov_len: first },
        libc::iovec { iov_base: at(address + first as u64), iov_len: LONGEST_PATH - first },
    ];
    // SAFETY: `text` has room for what is read; what is read is checked by the kernel.
    let read =
        unsafe { libc::process_vm_readv(own_number(), &raw const local, 1, remote.as_ptr(), 2, 0) };
    let read = usize::try_from(read).ok()?;
    text[..read].iter().position(|&byte| byte == 0)
}

fn own_number() -> libc::pid_t {
    static NUMBER: AtomicI32 = AtomicI32::new(0);
    let known = NUMBER.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: it only asks for a number.
    let number = unsafe { libc::getpid() };
    NUMBER.store(number, Ordering::Relaxed);
    number
}

impl Object {
    fn of(stat: &libc::stat) -> Self {
        let what = match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => 1,
            libc::S_IFSOCK => 2,
            _ => 3,
        };
        Self {
            what,
            device: stat.st_dev,
            inode: stat.st_ino,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            names: stat.st_nlink,
        }
    }
}
