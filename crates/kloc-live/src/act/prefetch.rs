//! A file's pages come back before they are asked for.

use std::fs::File;
use std::io;

use terrace_core::Bytes;

use super::sys;

/// A call reads no more than the device's read-ahead, 128 KiB unless somebody has changed it;
/// with larger ones most of a file would be left out.
const CHUNK: u64 = 128 << 10;

/// Asks for the first `limit` bytes of a file, part by part. Gives how much was asked for.
pub fn prefetch(file: &File, limit: Bytes) -> io::Result<Bytes> {
    let length = file.metadata()?.len().min(limit.get());
    let mut offset = 0;
    while offset < length {
        sys::advise(file, offset, CHUNK.min(length - offset), libc::POSIX_FADV_WILLNEED)?;
        offset += CHUNK;
    }
    Ok(Bytes(length))
}
