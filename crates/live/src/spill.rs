//! The spill file: the tier below compressed RAM.
//!
//! A fixed-size slot a page, written and read as blobs come. The file is
//! unlinked when it is opened, so that nothing of the program's memory stays
//! behind, whatever ends it. A slot whose write fails is given back and the
//! page stays in RAM: a full disk costs memory, never content.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use terrace_core::Bytes;

use crate::spin::SpinLock;
use crate::sys::{self, PAGE};

/// A raw page with a blob's kind and length.
const SLOT: usize = PAGE + 8;

/// The file and its free slots.
pub struct Spill {
    fd: AtomicI32,
    most: u32,
    used: AtomicU64,
    /// Whether a write has failed.
    refused: AtomicU32,
    free: SpinLock<Free>,
}

struct Free {
    /// Slots ever used.
    fresh: u32,
    /// Freed slots. Its room is taken when the file is opened.
    slots: Vec<u32>,
}

impl Spill {
    /// No file yet.
    pub fn new(size: Bytes) -> Self {
        Self {
            fd: AtomicI32::new(-1),
            most: u32::try_from(size.get() / SLOT as u64).unwrap_or(u32::MAX),
            used: AtomicU64::new(0),
            refused: AtomicU32::new(0),
            free: SpinLock::new(Free { fresh: 0, slots: Vec::new() }),
        }
    }

    /// Creates the file and unlinks it.
    pub fn open(&self, path: &Path) -> Result<(), i32> {
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| libc::EINVAL)?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        // SAFETY: a NUL-terminated path.
        let fd = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
        if fd < 0 {
            return Err(sys::errno());
        }
        // SAFETY: as above.
        unsafe { libc::unlink(path.as_ptr()) };
        self.fd.store(fd, Release);
        Ok(())
    }

    /// In a child: opens the parent's file, through the parent's thread that
    /// has it open.
    pub fn reopen(&self, parent: i32, thread: i32) -> bool {
        let fd = self.fd.load(Relaxed);
        let path = format!("/proc/{parent}/task/{thread}/fd/{fd}\0");
        // SAFETY: a NUL-terminated path.
        let fd = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC) };
        self.fd.store(fd, Relaxed);
        fd >= 0
    }

    /// Closes the file and forgets its slots.
    pub fn forget(&self) {
        // SAFETY: our own descriptor.
        unsafe { libc::close(self.fd.swap(-1, Relaxed)) };
        self.used.store(0, Relaxed);
        *self.free.lock() = Free { fresh: 0, slots: Vec::new() };
    }

    /// Whether there is a file.
    pub fn is_open(&self) -> bool {
        self.fd.load(Relaxed) >= 0
    }

    /// Bytes in use.
    pub fn used(&self) -> Bytes {
        Bytes(self.used.load(Relaxed))
    }

    /// Writes a blob; `None` if the file is full or refuses.
    pub fn write(&self, raw: bool, bytes: &[u8]) -> Option<u32> {
        let slot = {
            let mut free = self.free.lock();
            match free.slots.pop() {
                Some(slot) => slot,
                None if free.fresh < self.most => {
                    free.fresh += 1;
                    free.fresh - 1
                }
                None => return None,
            }
        };
        self.used.fetch_add(SLOT as u64, Relaxed);
        let mut buffer = [0u8; SLOT];
        buffer[0] = u8::from(raw);
        buffer[2..4].copy_from_slice(&(bytes.len() as u16).to_le_bytes());
        buffer[8..8 + bytes.len()].copy_from_slice(bytes);
        let len = 8 + bytes.len();
        // SAFETY: writes from a buffer of that length.
        let n = unsafe {
            libc::pwrite(
                self.fd.load(Relaxed),
                buffer.as_ptr().cast(),
                len,
                i64::from(slot) * SLOT as i64,
            )
        };
        if n == len as isize {
            Some(slot)
        } else {
            let error = if n < 0 { sys::errno() } else { libc::ENOSPC };
            self.free(slot);
            self.refused(error);
            None
        }
    }

    /// Says once why the file takes no more: from then on memory is used that was
    /// not meant to be.
    fn refused(&self, error: i32) {
        if self.refused.swap(1, Relaxed) != 0 {
            return;
        }
        // Without allocating: this may be a thread on which a fault waits.
        let why = match error {
            libc::ENOSPC => "No space left on device",
            libc::EDQUOT => "Disk quota exceeded",
            libc::EFBIG => "File too large",
            libc::EIO => "Input/output error",
            _ => "it cannot be written",
        };
        sys::complain(&["the spill file refuses more: ", why, "; pages stay in RAM"]);
    }

    /// Reads a slot: whether it is a raw page, and its bytes.
    pub fn read<'a>(&self, slot: u32, buffer: &'a mut [u8; SLOT]) -> Option<(bool, &'a [u8])> {
        // SAFETY: reads into a buffer of that length.
        let n = unsafe {
            libc::pread(
                self.fd.load(Relaxed),
                buffer.as_mut_ptr().cast(),
                SLOT,
                i64::from(slot) * SLOT as i64,
            )
        };
        let len = u16::from_le_bytes([buffer[2], buffer[3]]) as usize;
        (n >= 8 && len <= PAGE && n as usize >= 8 + len)
            .then(|| (buffer[0] != 0, &buffer[8..8 + len]))
    }

    /// A buffer for [`Spill::read`].
    pub const fn buffer() -> [u8; SLOT] {
        [0; SLOT]
    }

    /// Gives a slot back.
    pub fn free(&self, slot: u32) {
        self.free.lock().slots.push(slot);
        self.used.fetch_sub(SLOT as u64, Relaxed);
    }
}
