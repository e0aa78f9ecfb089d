//! The extents that ext4 keeps of a file.

use std::fs::File;
use std::io;

use super::sys;

/// `EXT4_IOC_CLEAR_ES_CACHE`, `_IO('f', 40)`, Linux 5.4
const CLEAR: u64 = 0x6628;

/// Frees what ext4 keeps of a file's extents; they are read again when they are needed.
pub fn clear(file: &File) -> io::Result<()> {
    sys::control(file, CLEAR)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::act::handle::EXT4;

    /// They are read again, and lead to the same blocks.
    #[test]
    fn a_file_whose_extents_were_freed_is_read_as_before() {
        let directory = tempfile::tempdir_in(".").expect("a directory");
        let path = directory.path().join("file");
        let content: Vec<u8> = (0..1u32 << 20).map(|i| (i / 7) as u8).collect();
        let mut file =
            File::options().create_new(true).read(true).write(true).open(&path).expect("made");
        file.write_all(&content).expect("written");
        file.sync_all().expect("written");
        let is_ext4 = rustix::fs::fstatfs(&file).expect("there").f_type as u64 == EXT4;
        if let Err(e) = clear(&file) {
            // An older ext4 has no such call, as other file systems.
            assert!(!is_ext4 || e.raw_os_error() == Some(libc::ENOTTY), "{e}");
        }
        crate::act::pages::drop_clean(&file).expect("dropped");
        assert!(std::fs::read(&path).expect("there") == content);
    }
}
