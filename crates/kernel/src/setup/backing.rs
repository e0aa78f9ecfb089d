//! A file that a zram device writes idle pages to: without a name, as a loop device that goes with
//! the zram device.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use terrace_core::Bytes;

use crate::files::named;

/// `linux/loop.h`: the number of a free device; and a device's file and settings at once (Linux
/// 5.8).
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
/// `LO_FLAGS_AUTOCLEAR`: the device lets go of its file when nobody has it open any more.
const AUTOCLEAR: u32 = 4;
/// `LO_FLAGS_DIRECT_IO`: not through the page cache, which would hold in memory what is to leave it.
const DIRECT_IO: u32 = 16;
/// Tries for a device that somebody else took in between.
const TRIES: u32 = 16;

/// `struct loop_config` with `struct loop_info64`, of which only the flags are set.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// Device, inode, device, offset, size limit.
    numbers: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    /// Names, key and further numbers: 64 + 64 + 32 + 16 bytes.
    rest: [u8; 176],
    reserved: [u64; 8],
}

/// A file of this size in a directory that has no name, and goes with whoever has it open last.
pub(super) fn file_in(directory: &Path, size: Bytes) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(directory)
        .map_err(|e| named(directory, &e))?;
    file.set_len(size.get()).map_err(|e| named(directory, &e))?;
    Ok(file)
}

/// A loop device of a file, and a handle that keeps it as it is until another has opened it.
///
/// # Errors
/// The system's: there may be no loop devices (`modprobe loop`), or not for this user.
pub(super) fn attach(file: &File) -> io::Result<(PathBuf, File)> {
    let control = Path::new("/dev/loop-control");
    let controls =
        File::options().read(true).write(true).open(control).map_err(|e| named(control, &e))?;
    for _ in 0..TRIES {
        // SAFETY: takes no argument, and gives a number.
        let number = unsafe { libc::ioctl(controls.as_raw_fd(), LOOP_CTL_GET_FREE as _) };
        if number < 0 {
            return Err(named(control, &io::Error::last_os_error()));
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device =
            File::options().read(true).write(true).open(&path).map_err(|e| named(&path, &e))?;
        for flags in [AUTOCLEAR | DIRECT_IO, AUTOCLEAR] {
            let config = LoopConfig {
                fd: file.as_raw_fd().cast_unsigned(),
                block_size: 4096,
                numbers: [0; 5],
                number: 0,
                encryption: [0; 2],
                flags,
                rest: [0; 176],
                reserved: [0; 8],
            };
            // SAFETY: reads the structure that the call is defined with.
            let done =
                unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) };
            if done == 0 {
                return Ok((path, device));
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // Somebody else was faster.
                Some(libc::EBUSY) => break,
                // This file system does nothing past its cache.
                Some(libc::EINVAL) if flags & DIRECT_IO != 0 => {}
                _ => return Err(named(&path, &error)),
            }
        }
    }
    Err(named(control, &io::Error::new(io::ErrorKind::ResourceBusy, "no device stays free")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_is_as_large_as_the_kernels() {
        // `struct loop_info64` is 232 bytes, with 8 in front and 64 behind.
        assert_eq!(size_of::<LoopConfig>(), 8 + 232 + 64);
    }

    #[test]
    fn a_file_without_a_name_has_its_size_and_no_entry() {
        let directory = tempfile::tempdir().unwrap();
        let file = match file_in(directory.path(), Bytes::mib(4)) {
            Ok(file) => file,
            Err(e) => return terrace_shown::is_missing(&format!("O_TMPFILE ({e})")),
        };
        assert_eq!(file.metadata().unwrap().len(), 4 << 20);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
