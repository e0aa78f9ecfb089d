//! The extents that ext4 keeps of a file.

use std::fs::File;
use std::io;

use super::sys;

/// `EXT4_IOC_CLEAR_ES_CACHE`, `_IO('f', 40)`, Linux 5.4
const CLEAR: u64 = 0x6628;
/// `EXT4_IOC_PRECACHE_EXTENTS`, `_IO('f', 18)`
const PRECACHE: u64 = 0x6612;

/// Frees what ext4 keeps of a file's extents; they are read again when they are needed.
pub fn clear(file: &File) -> io::Result<()> {
    sys::control(file, CLEAR)
}

/// Reads all extents of a file at once.
pub fn precache(file: &File) -> io::Result<()> {
    sys::control(file, PRECACHE)
}
