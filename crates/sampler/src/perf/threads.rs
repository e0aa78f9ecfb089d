//! The threads of a process, by system calls alone: what the C library allocates for a
//! directory is not for threads that live inside of somebody's program.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Calls `each` with the number of every thread of a process.
///
/// # Errors
/// If they cannot be listed: the process is gone.
pub(super) fn of(process: u32, mut each: impl FnMut(u32)) -> io::Result<()> {
    // `struct linux_dirent64`: where the record's length and the name are.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let path = CString::new(format!("/proc/{process}/task")).map_err(io::Error::other)?;
    // SAFETY: a NUL-terminated path; the descriptor is ours.
    let directory = unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        match libc::open(path.as_ptr(), flags) {
            fd if fd < 0 => return Err(io::Error::last_os_error()),
            fd => OwnedFd::from_raw_fd(fd),
        }
    };
    let mut buffer = [0u8; 2048];
    loop {
        let (at, room) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: writes as much as there is room for.
        let n = unsafe { libc::syscall(libc::SYS_getdents64, directory.as_raw_fd(), at, room) };
        if n < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut rest = &buffer[..n as usize];
        if rest.is_empty() {
            return Ok(());
        }
        while let Some(&[low, high]) = rest.get(LENGTH..LENGTH + 2) {
            let record = &rest[..usize::from(u16::from_ne_bytes([low, high]))];
            let name = record[NAME..].split(|&b| b == 0).next().unwrap_or_default();
            let thread = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            thread.into_iter().for_each(&mut each);
            rest = &rest[record.len()..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_is_listed_and_no_other_entry() {
        let us = std::process::id();
        // More than fit the buffer at once.
        let threads: Vec<_> = (0..120)
            .map(|_| {
                let (ask, asked) = std::sync::mpsc::channel::<()>();
                let (tell, told) = std::sync::mpsc::channel();
                let thread = std::thread::spawn(move || {
                    // SAFETY: has no memory effects.
                    tell.send(unsafe { libc::syscall(libc::SYS_gettid) } as u32).unwrap();
                    let _ = asked.recv();
                });
                (ask, told.recv().unwrap(), thread)
            })
            .collect();
        let mut listed = Vec::new();

        of(us, |thread| listed.push(thread)).unwrap();

        listed.sort_unstable();
        assert!(listed.windows(2).all(|pair| pair[0] != pair[1]), "{listed:?}");
        for (ask, number, thread) in threads {
            assert!(listed.binary_search(&number).is_ok(), "{number}");
            drop(ask);
            thread.join().unwrap();
        }
        assert!(of(u32::MAX, |_| ()).is_err());
    }
}
