//! userfaultfd: the few requests that we use, each wrapped once.
//!
//! Numbers and layouts are those of `linux/userfaultfd.h`; the `UFFDIO_MOVE`
//! and `/dev/userfaultfd` parts are newer than the C headers of the systems we
//! build on. Read-write protection (RWP) is newer than any kernel that we have: its numbers
//! are those of the series that mm took on 4 August 2026 (its commits
//! `2d427bb01639`, "mm/userfaultfd: add RWP fault delivery and expose
//! `UFFDIO_REGISTER_MODE_RWP`", and `338964881982`, "mm/pagemap: add `PAGE_IS_ACCESSED` for RWP
//! tracking"; message `20260708111417.173443-1-kirill@shutemov.name`).

use core::ffi::c_ulong;
use std::ffi::CStr;

use libc::c_int;

use crate::sys::{PAGE, errno};

const API: u64 = 0xaa;
const UFFDIO_API: c_ulong = 0xc018_aa3f;
/// Registers a range (`linux/userfaultfd.h`).
pub const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: c_ulong = 0x8010_aa01;
const UFFDIO_WAKE: c_ulong = 0x8010_aa02;
const UFFDIO_COPY: c_ulong = 0xc028_aa03;
const UFFDIO_ZEROPAGE: c_ulong = 0xc020_aa04;
const UFFDIO_MOVE: c_ulong = 0xc028_aa05;
const UFFDIO_WRITEPROTECT: c_ulong = 0xc018_aa06;
const UFFDIO_POISON: c_ulong = 0xc020_aa08;
const UFFDIO_RWPROTECT: c_ulong = 0xc018_aa09;
const USERFAULTFD_IOC_NEW: c_ulong = 0xaa00;
/// `UFFDIO_COPY_MODE_DONTWAKE` and `UFFDIO_MOVE_MODE_DONTWAKE`.
const DONTWAKE: u64 = 1;
/// `UFFDIO_RWPROTECT_MODE_RWP`; without it protection ends.
const RWPROTECT: u64 = 1;

/// A handle's features.
pub mod feature {
    /// A fork of the process is told to us, with a handle for the child.
    pub const EVENT_FORK: u64 = 1 << 1;
    /// `mremap` is told to us.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// `madvise` that discards content is told to us.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// `munmap` is told to us.
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// Faults are signals in the faulting thread.
    pub const SIGBUS: u64 = 1 << 7;
    /// Faults name the faulting thread.
    pub const THREAD_ID: u64 = 1 << 8;
    /// Writes can be tracked by the kernel alone.
    pub const WP_ASYNC: u64 = 1 << 15;
    /// Pages can be moved instead of copied.
    pub const MOVE: u64 = 1 << 16;
    /// Pages that are present can be protected against loads and stores.
    pub const RWP: u64 = 1 << 17;
    /// Accesses to such pages can be tracked by the kernel alone.
    pub const RWP_ASYNC: u64 = 1 << 18;
}

/// What a range is registered for: `UFFDIO_REGISTER_MODE_*`.
pub mod mode {
    /// Faults on pages that are not there.
    pub const MISSING: u64 = 1 << 0;
    /// Write protection. Not with [`RWP`]: both use the same bit of a page table's entry.
    pub const WP: u64 = 1 << 1;
    /// Read-write protection; only of memory that may be accessed.
    pub const RWP: u64 = 1 << 3;
}

/// What a read from the handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A thread waits for a page.
    Fault {
        /// The address, rounded down to the page.
        page: usize,
        /// Whether it wanted to write.
        write: bool,
        /// The thread, if the handle was opened with [`feature::THREAD_ID`].
        thread: i32,
    },
    /// The process forked; the child's memory is served through this handle.
    Fork {
        /// The new handle's descriptor, in the reader's table.
        child: c_int,
    },
    /// Mapped memory moved.
    Remap {
        /// From this address.
        from: usize,
        /// To this one.
        to: usize,
        /// So many bytes.
        len: usize,
    },
    /// Content is discarded, the mapping stays.
    Remove {
        /// From this address.
        start: usize,
        /// Up to this one.
        end: usize,
    },
    /// The mapping is gone.
    Unmap {
        /// From this address.
        start: usize,
        /// Up to this one.
        end: usize,
    },
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawMessage {
    event: u8,
    _reserved: [u8; 7],
    arg: [u64; 3],
}

/// The last page below the end of the address space, which is never mapped.
const NOWHERE: usize = 0x7fff_ffff_e000;

/// A userfaultfd. Copies name the same descriptor; nothing closes it implicitly,
/// because a handle that goes away turns absent pages into zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uffd(c_int);

/// What came of a move of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes that have arrived, from the first on.
    pub(crate) bytes: usize,
    /// Bytes of them that the kernel had not counted.
    pub(crate) uncounted: usize,
    /// Why not all of them have; 0 if they have.
    pub(crate) error: i32,
}

/// What has arrived of a move (to, from, how many bytes) of which the kernel says so much (bytes,
/// error).
fn recounted(
    (to, from, len): (usize, usize, usize),
    (bytes, error): (usize, i32),
    is_present: impl Fn(usize) -> Option<bool>,
) -> Moved {
    if !matches!(error, libc::EEXIST | libc::ENOENT | libc::EAGAIN) {
        return Moved { bytes, uncounted: 0, error };
    }
    let arrived =
        |n: usize| is_present(from + n) == Some(false) && is_present(to + n) == Some(true);
    let uncounted = (bytes..len).step_by(PAGE).take_while(|&n| arrived(n)).count() * PAGE;
    let bytes = bytes + uncounted;
    Moved { bytes, uncounted, error: if bytes == len { 0 } else { error } }
}

/// How a handle was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedBy {
    /// Through `/dev/userfaultfd`.
    Device,
    /// Through the system call.
    Syscall,
}

impl Uffd {
    /// Opens a handle that also serves faults of system calls. Tries the
    /// device first: it needs no privilege beyond its file mode.
    pub fn open() -> Result<(Self, OpenedBy), i32> {
        const DEVICE: &CStr = c"/dev/userfaultfd";
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: opens a path; no memory is involved.
        let dev = unsafe { libc::open(DEVICE.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if dev >= 0 {
            // SAFETY: this request takes flags and returns a descriptor.
            let fd = unsafe { libc::ioctl(dev, USERFAULTFD_IOC_NEW, flags) };
            // SAFETY: our own descriptor.
            unsafe { libc::close(dev) };
            if fd >= 0 {
                return Ok((Self(fd), OpenedBy::Device));
            }
        }
        // SAFETY: takes flags and returns a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd >= 0 { Ok((Self(fd as c_int), OpenedBy::Syscall)) } else { Err(errno()) }
    }

    /// Takes over a descriptor that the kernel made (a child's).
    pub const fn from_raw(fd: c_int) -> Self {
        Self(fd)
    }

    /// The descriptor.
    pub const fn raw(self) -> c_int {
        self.0
    }

    /// Closes the handle: its ranges become plain memory.
    pub fn close(self) {
        // SAFETY: closes a descriptor of ours.
        unsafe { libc::close(self.0) };
    }

    fn ioctl<T>(self, request: c_ulong, arg: &mut T) -> Result<(), i32> {
        // SAFETY: `arg` is the structure that the request reads and writes.
        let r = unsafe { libc::ioctl(self.0, request, core::ptr::from_mut(arg)) };
        if r == 0 { Ok(()) } else { Err(errno()) }
    }

    /// Agrees on features, and returns all that the kernel has.
    pub fn handshake(self, features: u64) -> Result<u64, i32> {
        let mut api = [API, features, 0];
        self.ioctl(UFFDIO_API, &mut api)?;
        Ok(api[1])
    }

    /// Registers a range for what `modes` says (bits of [`mode`]).
    pub fn register(self, start: usize, len: usize, modes: u64) -> Result<(), i32> {
        self.ioctl(UFFDIO_REGISTER, &mut [start as u64, len as u64, modes, 0])
    }

    /// Ends write protection in a range.
    pub fn write_unprotect(self, start: usize, len: usize) -> Result<(), i32> {
        self.ioctl(UFFDIO_WRITEPROTECT, &mut [start as u64, len as u64, 0])
    }

    /// Protects what is present in a range against loads and stores, or ends that.
    pub fn read_write_protect(self, start: usize, len: usize, on: bool) -> Result<(), i32> {
        let mode = if on { RWPROTECT } else { 0 };
        self.ioctl(UFFDIO_RWPROTECT, &mut [start as u64, len as u64, mode])
    }

    /// Makes a range plain memory again.
    pub fn unregister(self, start: usize, len: usize) -> Result<(), i32> {
        self.ioctl(UFFDIO_UNREGISTER, &mut [start as u64, len as u64])
    }

    /// Lets the threads that wait for a page try again.
    pub fn wake(self, start: usize, len: usize) -> Result<(), i32> {
        self.ioctl(UFFDIO_WAKE, &mut [start as u64, len as u64])
    }

    /// Fills missing pages with copies, and wakes who waits for them. Returns
    /// how many bytes were filled, with the error that stopped it, if any.
    pub fn copy(self, to: usize, from: usize, len: usize) -> (usize, i32) {
        self.copy_in(to, from, len, 0)
    }

    /// The same, and wakes nobody: who is woken may take this thread's processor at once.
    pub(crate) fn copy_unwoken(self, to: usize, from: usize, len: usize) -> (usize, i32) {
        self.copy_in(to, from, len, DONTWAKE)
    }

    fn copy_in(self, to: usize, from: usize, len: usize, mode: u64) -> (usize, i32) {
        let mut arg = [to as u64, from as u64, len as u64, mode, 0];
        match self.ioctl(UFFDIO_COPY, &mut arg) {
            Ok(()) => (len, 0),
            // The fifth word is the amount, or a negated error number.
            Err(e) => ((arg[4] as i64).max(0) as usize, e),
        }
    }

    /// Whether the memory that the handle is for no longer exists: its last
    /// process has ended.
    pub fn is_orphan(self) -> bool {
        // The kernel looks for the memory first.
        self.copy_nothing() == libc::ESRCH
    }

    /// Whether the address space is changing, or being copied: something that will be told is
    /// not read yet, or its thread does not know.
    pub fn is_changing(self) -> bool {
        self.copy_nothing() == libc::EAGAIN
    }

    fn copy_nothing(self) -> i32 {
        static PAGE_OF_ZEROS: [u8; PAGE] = [0; PAGE];
        self.copy(NOWHERE, PAGE_OF_ZEROS.as_ptr() as usize, PAGE).1
    }

    /// Whether a page is registered with this handle. Changes nothing: the kernel looks for the
    /// place before it reads what is to be copied there, and there is nothing to read.
    pub fn is_registered(self, page: usize) -> bool {
        self.knows_registered(page) == Some(true)
    }

    /// The same; `None` while the address space is changing, and the kernel does not say.
    pub(crate) fn knows_registered(self, page: usize) -> Option<bool> {
        match self.copy(page, NOWHERE, PAGE).1 {
            libc::EFAULT | libc::EEXIST => Some(true),
            libc::EAGAIN => None,
            _ => Some(false),
        }
    }

    /// Fills a missing page with the shared zero page, and wakes who waits.
    pub fn zero(self, to: usize, len: usize) -> Result<(), i32> {
        self.ioctl(UFFDIO_ZEROPAGE, &mut [to as u64, len as u64, 0, 0])
    }

    /// Has whoever reads or writes a missing page get an error, and wakes who waits for it. What marks
    /// the page takes no memory, and goes with `MADV_DONTNEED`.
    pub(crate) fn poison(self, at: usize, len: usize) -> Result<(), i32> {
        self.ioctl(UFFDIO_POISON, &mut [at as u64, len as u64, 0, 0])
    }

    /// Moves present pages to a missing place that is registered with this
    /// handle, and wakes who waits there. The pages keep their frames: nothing
    /// that is written meanwhile, by the program or by a device, is lost.
    pub fn mv(self, to: usize, from: usize, len: usize) -> (usize, i32) {
        self.move_in(to, from, len, 0)
    }

    fn move_in(self, to: usize, from: usize, len: usize, mode: u64) -> (usize, i32) {
        let mut arg = [to as u64, from as u64, len as u64, mode, 0];
        match self.ioctl(UFFDIO_MOVE, &mut arg) {
            Ok(()) => (len, 0),
            Err(e) => ((arg[4] as i64).max(0) as usize, e),
        }
    }

    /// Moves frames as [`Self::mv`], and counts those right that have arrived. `is_present`: whether
    /// a page of the caller's has content; `None` if the kernel does not say.
    ///
    /// Linux from 6.18 on loses count. Once a move has met something that is
    /// under way (a page being migrated, `EAGAIN`), `move_pages()` in
    /// `mm/userfaultfd.c` keeps that error beyond the next success. It then tries the same page
    /// again, and reports that it is gone or that its new place is taken (`ENOENT`,
    /// `EEXIST`). To believe that is to lose the page.
    ///
    /// Without `wakes` nobody is woken who waits there.
    pub(crate) fn move_frames(
        self,
        to: usize,
        from: usize,
        len: usize,
        wakes: bool,
        is_present: impl Fn(usize) -> Option<bool>,
    ) -> Moved {
        let (bytes, error) = self.move_in(to, from, len, if wakes { 0 } else { DONTWAKE });
        let moved = recounted((to, from, len), (bytes, error), is_present);
        if wakes && moved.uncounted > 0 {
            // It wakes nobody for what it has not counted.
            let _ = self.wake(to + bytes, moved.uncounted);
        }
        moved
    }

    /// Whether the process may have one more descriptor, its limit raised for a moment if that
    /// can be: a message about a fork comes with one, and waits for ever where it may not.
    pub(crate) fn can_be_doubled(self) -> bool {
        // SAFETY: a descriptor of ours; the new one is closed at once.
        let double = || unsafe {
            let new = libc::fcntl(self.0, libc::F_DUPFD_CLOEXEC, 0);
            new >= 0 && libc::close(new) == 0
        };
        double()
            || errno() != libc::EMFILE && errno() != libc::EINVAL
            || crate::sys::limits::with_more_descriptors(double)
    }

    /// Whether there is a message to read, without reading it.
    pub fn has_message(self) -> bool {
        let mut polls = [libc::pollfd { fd: self.0, events: libc::POLLIN, revents: 0 }];
        crate::sys::poll(&mut polls, Some(0));
        polls[0].revents & libc::POLLIN != 0
    }

    /// Reads one message; `None` if there is none.
    pub fn read(self) -> Option<Message> {
        let mut raw = RawMessage { event: 0, _reserved: [0; 7], arg: [0; 3] };
        let size = size_of::<RawMessage>();
        // SAFETY: reads one message into a structure of its size.
        let mut read = || unsafe { libc::read(self.0, (&raw mut raw).cast(), size) };
        let mut n = read();
        if n < 0 && errno() == libc::EMFILE {
            // A fork's message comes with a descriptor, and the program has
            // left itself, and so us, no room for one.
            n = crate::sys::limits::with_more_descriptors(read);
        }
        if n != size as isize {
            if n < 0 && matches!(errno(), libc::EPERM | libc::EACCES | libc::ENOSYS) {
                // A filter on system calls: whoever waits for us would wait for ever.
                crate::failsafe::give_up::refused(errno());
            }
            return None;
        }
        let [a, b, c] = raw.arg.map(|x| x as usize);
        match raw.event {
            0x12 => Some(Message::Fault {
                page: b & !(PAGE - 1),
                write: a & 1 != 0,
                thread: c as u32 as i32,
            }),
            0x13 => Some(Message::Fork { child: a as u32 as c_int }),
            0x14 => Some(Message::Remap { from: a, to: b, len: c }),
            0x15 => Some(Message::Remove { start: a, end: b }),
            0x16 => Some(Message::Unmap { start: a, end: b }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A move of four pages of which the kernel says that it stopped at the second.
    #[test]
    fn a_move_is_as_long_as_its_pages_have_arrived_whatever_the_kernel_counted() {
        const TO: usize = 0x10_0000;
        const FROM: usize = 0x20_0000;
        let moved = |arrived: usize, error: i32| {
            let is_present = |at: usize| {
                let there = at < FROM;
                let page = (at - if there { TO } else { FROM }) / PAGE;
                Some((page < arrived) == there)
            };
            recounted((TO, FROM, 4 * PAGE), (PAGE, error), is_present)
        };
        let is = |bytes: usize, error| Moved { bytes, uncounted: bytes - PAGE, error };
        for error in [libc::EEXIST, libc::ENOENT, libc::EAGAIN] {
            assert_eq!(moved(1, error), is(PAGE, error), "the kernel is right");
            assert_eq!(moved(3, error), is(3 * PAGE, error));
            assert_eq!(moved(4, error), is(4 * PAGE, 0), "all of them: nothing went wrong");
        }
        assert_eq!(moved(4, libc::EBUSY), is(PAGE, libc::EBUSY), "of this one it does not");
        let silent = recounted((TO, FROM, 4 * PAGE), (PAGE, libc::ENOENT), |_| None);
        assert_eq!(silent, is(PAGE, libc::ENOENT), "what cannot be seen has not arrived");
    }

    /// By the formula of `asm-generic/ioctl.h`, with the sizes of the structures as they are
    /// passed: a wrong number is another request, or none.
    #[test]
    fn the_requests_are_the_kernel_s() {
        const WRITE: c_ulong = 1;
        const READ: c_ulong = 2;
        let ioc = |direction: c_ulong, nr: c_ulong, words: usize| {
            direction << 30 | ((words * size_of::<u64>()) as c_ulong) << 16 | 0xaa << 8 | nr
        };
        for (request, direction, nr, words) in [
            (UFFDIO_API, READ | WRITE, 0x3f, 3),
            (UFFDIO_REGISTER, READ | WRITE, 0x00, 4),
            (UFFDIO_UNREGISTER, READ, 0x01, 2),
            (UFFDIO_WAKE, READ, 0x02, 2),
            (UFFDIO_COPY, READ | WRITE, 0x03, 5),
            (UFFDIO_ZEROPAGE, READ | WRITE, 0x04, 4),
            (UFFDIO_MOVE, READ | WRITE, 0x05, 5),
            (UFFDIO_WRITEPROTECT, READ | WRITE, 0x06, 3),
            (UFFDIO_POISON, READ | WRITE, 0x08, 4),
            (UFFDIO_RWPROTECT, READ | WRITE, 0x09, 3),
        ] {
            assert_eq!(request, ioc(direction, nr, words), "request {nr:#x}");
        }
    }
}
