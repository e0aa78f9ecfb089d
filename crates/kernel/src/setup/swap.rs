//! The swap that there is: `/proc/swaps`, and whether zswap is in front of it.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use terrace_core::Bytes;

use super::backing;
use crate::files::Root;

/// A swap area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapArea {
    /// Its device or file.
    pub path: PathBuf,
    /// What fits.
    pub size: Bytes,
    /// What is in it.
    pub used: Bytes,
    /// Areas of a higher priority are filled first.
    pub priority: i32,
}

impl SwapArea {
    /// The number of the zram device that it is.
    pub fn zram(&self) -> Option<u32> {
        self.path.to_str()?.strip_prefix("/dev/zram")?.parse().ok()
    }

    /// What still fits.
    pub fn free(&self) -> Bytes {
        self.size - self.used
    }
}

/// The areas in use.
pub fn areas(root: &Root) -> Vec<SwapArea> {
    let text = root.read("/proc/swaps").unwrap_or_default();
    text.lines().skip(1).filter_map(parse).collect()
}

/// `/dev/zram0  partition  1048572  0  100`; of a file that was deleted since, the path has
/// `\040(deleted)` behind it.
fn parse(line: &str) -> Option<SwapArea> {
    let mut fields = line.split_ascii_whitespace();
    let path = fields.next()?.replace("\\040(deleted)", "").replace("\\040", " ").into();
    let _kind = fields.next()?;
    let size = Bytes::kib(fields.next()?.parse().ok()?);
    let used = Bytes::kib(fields.next()?.parse().ok()?);
    let priority = fields.next()?.parse().ok()?;
    Some(SwapArea { path, size, used, priority })
}

/// The system calls that begin and end the use of a swap area.
pub trait Swapping {
    /// Begins to swap to an area.
    ///
    /// # Errors
    /// The system's.
    fn on(&self, area: &Path, priority: i32) -> io::Result<()>;
    /// Brings all that is in an area back, and ends its use.
    ///
    /// # Errors
    /// The system's: `ENOMEM` if what is in it does not fit the memory.
    fn off(&self, area: &Path) -> io::Result<()>;
    /// A block device of a file, and a handle that keeps it until another has opened it.
    ///
    /// # Errors
    /// The system's.
    fn as_device(&self, file: &File) -> io::Result<(PathBuf, File)>;
}

/// This machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux;

/// `SWAP_FLAG_PREFER` of `linux/swap.h`: the low bits are a priority.
const PREFER: i32 = 0x8000;
/// `SWAP_FLAG_PRIO_MASK`: the highest priority.
pub const HIGHEST: i32 = 0x7fff;

impl Swapping for Linux {
    fn on(&self, area: &Path, priority: i32) -> io::Result<()> {
        let path = CString::new(area.as_os_str().as_bytes())?;
        let flags = PREFER | priority.clamp(0, HIGHEST);
        // SAFETY: a NUL-terminated path and a number.
        match unsafe { libc::swapon(path.as_ptr(), flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn off(&self, area: &Path) -> io::Result<()> {
        let path = CString::new(area.as_os_str().as_bytes())?;
        // SAFETY: a NUL-terminated path.
        match unsafe { libc::swapoff(path.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn as_device(&self, file: &File) -> io::Result<(PathBuf, File)> {
        backing::attach(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_read_as_the_kernel_lists_them() {
        let zram = parse("/dev/zram12   partition\t1048572\t4\t\t100").expect("an area");
        assert_eq!(
            (zram.zram(), zram.size, zram.used),
            (Some(12), Bytes::kib(1_048_572), Bytes::kib(4))
        );
        assert_eq!(zram.free(), Bytes::kib(1_048_568));
        let file = parse("/swap\\040file\\040(deleted) file 8 8 -2").expect("an area");
        assert_eq!((file.path, file.priority), (PathBuf::from("/swap file"), -2));
        assert_eq!(parse("rubbish"), None);
    }
}
