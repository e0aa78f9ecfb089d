//! The proof that nobody else has a file open.

use std::fs::File;
use std::io;

use super::sys;

/// Whether this descriptor is the only one by which the file is open or mapped. Opens that no
/// hook told of are seen, too: the kernel itself counts them.
///
/// The kernel gives a lease to the only opener, and to nobody else. It is given back at once: for
/// about a microsecond, somebody who opens the file would wait for it.
///
/// # Errors
/// If the file system has no leases, or this process may not have them.
pub fn nobody_else(file: &File) -> io::Result<bool> {
    match sys::set_lease(file, libc::F_WRLCK) {
        Ok(()) => {
            sys::set_lease(file, libc::F_UNLCK)?;
            Ok(true)
        }
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Has a lease that is asked back end nothing.
pub fn prepare() {
    sys::ignore_lease_signals();
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    /// Also a file that is only mapped is open: its mapping holds it.
    #[test]
    fn another_descriptor_or_a_mapping_is_somebody_else() {
        prepare();
        let directory = tempfile::tempdir_in(".").expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 4096]).expect("written");
        let file = File::open(&path).expect("there");
        assert!(nobody_else(&file).expect("leases"));
        for writes in [false, true] {
            let other = OpenOptions::new().read(true).write(writes).open(&path).expect("there");
            assert!(!nobody_else(&file).expect("leases"), "writes: {writes}");
            let mapped = sys::Mapped::new(&other, 0, 4096).expect("mapped");
            drop(other);
            assert!(!nobody_else(&file).expect("leases"), "mapped; writes: {writes}");
            drop(mapped);
            assert!(nobody_else(&file).expect("leases"));
        }
    }
}
