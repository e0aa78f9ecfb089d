//! The medium itself, without a volume: what a copy costs at best.

use std::fs::File;
use std::io;

use rustix::mm::{MapFlags, ProtFlags};
use terrace_volume::pm::mapped::Mapped;
use terrace_volume::{Cpu, Pm};

use crate::target::{Client, Target};

/// Copies by the C library's `memcpy` to and from a mapped file; nothing is made durable.
#[derive(Debug)]
pub struct Plain {
    base: *mut u8,
    length: usize,
}

// SAFETY: threads copy to and from it at the same time, and nobody looks at the outcome; the
// copies are calls into the C library, which the compiler does not look into.
unsafe impl Send for Plain {}
// SAFETY: the same.
unsafe impl Sync for Plain {}

impl Plain {
    /// Maps a whole file.
    pub fn new(file: &File) -> io::Result<Self> {
        let length = file.metadata()?.len() as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses where, so nothing of ours is replaced.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, file, 0)?
        };
        Ok(Self { base: base.cast(), length })
    }

    fn at(&self, at: u64, length: usize) -> *mut u8 {
        assert!(at as usize + length <= self.length, "beyond the end of the mapping");
        // SAFETY: it lies inside of the mapping.
        unsafe { self.base.add(at as usize) }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody borrows it any more. Failure leaves it mapped.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.length) };
    }
}

impl Target for Plain {
    fn name(&self) -> String {
        "memcpy".into()
    }
    fn capacity(&self) -> u64 {
        self.length as u64
    }
    fn client(&self) -> io::Result<Box<dyn Client + '_>> {
        Ok(Box::new(self))
    }
}

impl Client for &Plain {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let from = self.at(at, bytes.len());
        // SAFETY: `at` has checked the range, and the buffer is not part of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let to = self.at(at, bytes.len());
        // SAFETY: `at` has checked the range, and the buffer is not part of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Non-temporal copies to a mapped file, a fence after each.
#[derive(Debug)]
pub struct NonTemporal(Mapped);

impl NonTemporal {
    /// Maps a whole file.
    pub fn new(file: &File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Mapped::pages(file, length, true).map(Self).map_err(io::Error::other)
    }
}

impl Target for NonTemporal {
    fn name(&self) -> String {
        "non-temporal copy".into()
    }
    fn capacity(&self) -> u64 {
        self.0.size()
    }
    fn client(&self) -> io::Result<Box<dyn Client + '_>> {
        Ok(Box::new(self))
    }
}

impl Client for &NonTemporal {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read(at, bytes).map_err(io::Error::other)
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write(Cpu(0), at, bytes).map_err(io::Error::other)?;
        self.0.fence(Cpu(0)).map_err(io::Error::other)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.fence(Cpu(0)).map_err(io::Error::other)
    }
}
