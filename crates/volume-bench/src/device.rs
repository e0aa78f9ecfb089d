//! Files and block devices, read and written past the kernel's cache where they allow it.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::target::{Client, Target};

/// An opened file or device.
#[derive(Debug)]
pub struct Device {
    name: String,
    file: File,
    capacity: u64,
}

impl Device {
    /// Opens it; `direct` goes past the kernel's cache.
    pub fn open(name: &str, path: &Path, direct: bool) -> io::Result<Self> {
        let flags = if direct { OFlags::DIRECT.bits() as i32 } else { 0 };
        let mut file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        let capacity = file.seek(SeekFrom::End(0))?;
        Ok(Self { name: name.into(), file, capacity })
    }
}

impl Target for Device {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn capacity(&self) -> u64 {
        self.capacity
    }
    fn client(&self) -> io::Result<Box<dyn Client + '_>> {
        Ok(Box::new(self))
    }
}

impl Client for &Device {
    fn read(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, at)
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}
