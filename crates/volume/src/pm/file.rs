//! A file (or a block device) that is written with system calls and synchronised for many writes
//! at once. The kernel writes its pages back in any order, so nothing may point to data that are
//! not durable yet; the volume sees to that (see `group`).

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{Cpu, Pm};
use crate::error::{Result, VolumeError};

/// A file under group commit.
#[derive(Debug)]
pub struct Grouped {
    file: File,
    size: u64,
    _behind: Option<File>,
}

impl Grouped {
    /// Takes a file of so many bytes.
    pub fn new(file: File, size: u64) -> Self {
        Self { file, size, _behind: None }
    }

    /// Keeps another file open for as long: the one behind a loop device, which is locked.
    #[must_use]
    pub(crate) fn with(self, behind: Option<File>) -> Self {
        Self { _behind: behind, ..self }
    }
}

impl Pm for Grouped {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_grouped(&self) -> bool {
        true
    }

    fn write(&self, _cpu: Cpu, at: u64, bytes: &[u8]) -> Result {
        self.file.write_all_at(bytes, at).map_err(VolumeError::io("cannot write to the image"))
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> Result {
        self.file.read_exact_at(bytes, at).map_err(VolumeError::io("cannot read the image"))
    }

    fn load(&self, _at: u64) -> u64 {
        unreachable!("a grouped medium's map is kept in memory")
    }

    fn exchange(&self, _: Cpu, _: u64, _: u64, _: u64) -> std::result::Result<(), u64> {
        unreachable!("a grouped medium's map is kept in memory")
    }

    fn write_back(&self, _cpu: Cpu, _at: u64, _length: u64) -> Result {
        Ok(())
    }

    fn fence(&self, _cpu: Cpu) -> Result {
        rustix::fs::fdatasync(&self.file).map_err(VolumeError::os("cannot synchronise the image"))
    }

    fn fence_all(&self, cpu: Cpu) -> Result {
        self.fence(cpu)
    }
}
