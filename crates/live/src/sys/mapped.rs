//! Files of atomics that processes share.

use std::fs::File;
use std::io;

/// What a file may be mapped as.
///
/// # Safety
/// Every field is an atomic integer, or an array or structure of such: any bytes are a value, and
/// that other processes write them at any time is no data race.
pub unsafe trait Atomics: Sized + 'static {}

/// Maps the beginning of a file, for good.
///
/// # Errors
/// The file is shorter than a `T`: who read beyond its end would be killed. Or the kernel's.
pub fn map<T: Atomics>(file: &File) -> io::Result<&'static T> {
    if file.metadata()?.len() < size_of::<T>() as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "shorter than what it is to hold"));
    }
    let at = super::map_shared_file(file, size_of::<T>())?;
    // SAFETY: a mapping of that size, aligned to pages, which nobody unmaps (but `Opened`, whose
    // maker says that it is its own); any bytes are a value.
    Ok(unsafe { &*at.cast::<T>() })
}
