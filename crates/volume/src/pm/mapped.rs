//! Memory that is mapped: DAX, where a store that left the processor's caches is durable; or the
//! kernel's pages of a file, which survive the process and not the power.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::{MembarrierCommand, membarrier};

use super::stores::{self, WriteBack};
use super::view::View;
use super::{Cpu, Pm};
use crate::error::{Result, VolumeError};
use crate::superblock::Superblock;

/// The mapping itself, for as long as somebody reads or writes there.
#[derive(Debug)]
pub(super) struct Mapping {
    base: *mut u8,
    length: usize,
}

impl Mapping {
    /// Where it begins.
    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody has it any more. Failure leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

// SAFETY: it belongs to no thread, and by itself gives no access.
unsafe impl Send for Mapping {}
// SAFETY: the same.
unsafe impl Sync for Mapping {}

/// A mapping of a whole image.
#[derive(Debug)]
pub struct Mapped {
    /// Those of the mapping, one step nearer.
    base: *mut u8,
    length: usize,
    mapping: Arc<Mapping>,
    /// `None` where write-back has no effect on what survives.
    write_back: Option<WriteBack>,
    fence_all: bool,
    writable: bool,
    behind: Option<File>,
}

// SAFETY: the mapping belongs to no thread; all access is by atomics, or by instructions that the
// compiler does not look into.
unsafe impl Send for Mapped {}
// SAFETY: the same.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps a file that supports `MAP_SYNC`, or a DAX device; `Ok(None)` if it is neither.
    pub fn dax(file: &File, length: u64, writable: bool) -> Result<Option<Self>> {
        let write_back = WriteBack::detect();
        if write_back == WriteBack::None {
            return Ok(None);
        }
        match map(file, length, writable, MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
            Ok(base) => Ok(Some(Self::new(base, length, Some(write_back), writable))),
            Err(Errno::OPNOTSUPP | Errno::INVAL) => Ok(None),
            Err(e) => Err(VolumeError::os("cannot map the image")(e)),
        }
    }

    /// Maps the kernel's pages of a file.
    pub fn pages(file: &File, length: u64, writable: bool) -> Result<Self> {
        let base = map(file, length, writable, MapFlags::SHARED)
            .map_err(VolumeError::os("cannot map the image"))?;
        Ok(Self::new(base, length, None, writable))
    }

    /// Maps the kernel's pages of a file and treats them as [`Mapped::dax`] would: lines are
    /// written back and fenced. That costs what it costs on DAX, and makes nothing durable that
    /// was not; it is for measurements where there is no persistent memory.
    pub fn like_dax(file: &File, length: u64) -> Result<Self> {
        let base = map(file, length, true, MapFlags::SHARED)
            .map_err(VolumeError::os("cannot map the image"))?;
        Ok(Self::new(base, length, Some(WriteBack::detect()), true))
    }

    fn new(base: *mut u8, length: u64, write_back: Option<WriteBack>, writable: bool) -> Self {
        // Where power failures do not matter there is nothing to fence.
        let fence_all =
            write_back.is_none() || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        let length = length as usize;
        let mapping = Arc::new(Mapping { base, length });
        Self { base, length, mapping, write_back, fence_all, writable, behind: None }
    }

    /// Keeps another file open for as long: the one behind a loop device, which is locked.
    #[must_use]
    pub(crate) fn with(mut self, behind: Option<File>) -> Self {
        self.behind = behind;
        self
    }

    /// The file behind a loop device, which stays locked.
    pub fn behind(&self) -> Option<&File> {
        self.behind.as_ref()
    }

    #[inline]
    fn check(&self, at: u64, length: usize) -> Result<*mut u8> {
        let most = self.length.checked_sub(length);
        if most.is_none_or(|most| at > most as u64) {
            let (lba, count) = (at, length as u64);
            return Err(VolumeError::OutOfRange { lba, count, sectors: self.length as u64 });
        }
        // SAFETY: it lies inside the mapping.
        Ok(unsafe { self.base.add(at as usize) })
    }

    #[inline]
    fn entry(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at < self.length as u64, "no entry is at {at}");
        // SAFETY: it is aligned and mapped for as long as `self` lives, and all access to entries
        // that are in use is atomic.
        unsafe { AtomicU64::from_ptr(self.base.add(at as usize).cast()) }
    }
}

fn map(
    file: &File,
    length: u64,
    writable: bool,
    flags: MapFlags,
) -> std::result::Result<*mut u8, Errno> {
    let length = usize::try_from(length).map_err(|_| Errno::NOMEM)?;
    let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: the kernel chooses where, so nothing of ours is replaced.
    let base =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, protection, flags, file, 0) };
    base.map(<*mut _>::cast)
}

impl Pm for Mapped {
    fn size(&self) -> u64 {
        self.length as u64
    }

    fn is_grouped(&self) -> bool {
        false
    }

    #[inline]
    fn write(&self, _cpu: Cpu, at: u64, bytes: &[u8]) -> Result {
        if !self.writable {
            return Err(VolumeError::ReadOnly);
        }
        assert!(at.is_multiple_of(8) && bytes.len().is_multiple_of(8), "words are written whole");
        let to = self.check(at, bytes.len())?;
        // SAFETY: the range is mapped and writable, and both ends are multiples of 8.
        unsafe { stores::copy_in(to, bytes) };
        Ok(())
    }

    #[inline]
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result {
        let from = self.check(at, bytes.len())?;
        // SAFETY: the range is mapped.
        unsafe { stores::copy_out(from, bytes) };
        // What is read after this is not older.
        std::sync::atomic::fence(Ordering::Acquire);
        Ok(())
    }

    #[inline]
    fn expect_read(&self, at: u64, length: u64) {
        let end = at.saturating_add(length).min(self.length as u64);
        let mut at = at;
        while at < end {
            // SAFETY: it lies inside of the mapping.
            stores::prefetch(unsafe { self.base.add(at as usize) });
            at += 64;
        }
    }

    #[inline]
    fn expect_exchange(&self, at: u64) {
        if at < self.length as u64 {
            // SAFETY: it lies inside of the mapping.
            stores::prefetch_changed(unsafe { self.base.add(at as usize) });
        }
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        u64::from_le(self.entry(at).load(Ordering::Acquire))
    }

    #[inline]
    fn exchange(&self, _cpu: Cpu, at: u64, current: u64, new: u64) -> std::result::Result<(), u64> {
        let entry = self.entry(at);
        entry
            .compare_exchange(current.to_le(), new.to_le(), Ordering::SeqCst, Ordering::Acquire)
            .map(|_| ())
            .map_err(u64::from_le)
    }

    #[inline]
    fn write_back(&self, _cpu: Cpu, at: u64, length: u64) -> Result {
        let Some(how) = self.write_back else { return Ok(()) };
        let from = self.check(at, length as usize)?;
        let before = from.addr() % 64;
        let mut done = 0;
        while done < length as usize + before {
            // SAFETY: the line holds a byte of the range, so it is mapped.
            unsafe { stores::write_back(how, from.wrapping_sub(before).wrapping_add(done)) };
            done += 64;
        }
        Ok(())
    }

    #[inline]
    fn fence(&self, _cpu: Cpu) -> Result {
        // Also where nothing outlives the power: non-temporal stores must be visible before the
        // entry that leads to them.
        stores::fence();
        Ok(())
    }

    fn fence_all(&self, _cpu: Cpu) -> Result {
        stores::fence();
        if self.write_back.is_some() {
            // An interrupt has every processor that runs a thread of ours execute a full barrier,
            // which orders write-backs and non-temporal stores as `sfence` does. A thread that
            // does not run has passed one when it was switched away from.
            membarrier(MembarrierCommand::PrivateExpedited)
                .map_err(VolumeError::os("membarrier"))?;
        }
        Ok(())
    }

    fn has_fence_all(&self) -> bool {
        self.fence_all
    }

    fn view(&self, volume: &Superblock) -> Option<View> {
        View::of(&self.mapping, volume)
    }
}
