//! Where bytes are read from: a file, or bytes in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes that can be read from any place.
pub trait Source {
    /// How many there are.
    fn size(&self) -> io::Result<u64>;
    /// Fills a buffer with those from a place on; an error if there are not so many.
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()>;
    /// The first place from this one on that may hold something else than zeros, at most the
    /// size: a file may have holes.
    fn next_data(&self, at: u64) -> io::Result<u64> {
        Ok(at)
    }
}

impl Source for [u8] {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..to.len()));
        to.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Source for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(to, at)
    }
}
