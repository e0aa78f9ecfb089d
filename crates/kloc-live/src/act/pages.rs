//! A file's pages leave.

use std::fs::File;
use std::io;

use super::residency::{residency, runs, windows};
use super::sys;

/// What has become of a file's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Pages that were cached before.
    pub before: u64,
    /// Of them, pages that have left: dropped, moved, or marked.
    pub left: u64,
}

/// Has what is dirty begin to be written, and does not wait for it.
pub fn begin_write_back(file: &File) -> io::Result<()> {
    sys::begin_write_back(file, 0, 0)
}

/// The bytes that one call of [`begin_write_back_part`] covers: some milliseconds of a disk.
const PART: u64 = 4 << 20;

/// The same for a part of the file that begins at this byte. Gives where the next one begins, if
/// there is more.
pub fn begin_write_back_part(file: &File, offset: u64) -> io::Result<Option<u64>> {
    sys::begin_write_back(file, offset, PART)?;
    let next = offset + PART;
    Ok(Some(next).filter(|&next| file.metadata().is_ok_and(|is| next < is.len())))
}

/// Drops what is clean. What is dirty, is being written, or is mapped stays.
pub fn drop_clean(file: &File) -> io::Result<Left> {
    let before = residency(file)?;
    sys::advise(file, 0, 0, libc::POSIX_FADV_DONTNEED)?;
    let after = residency(file)?;
    let left = before.cached.saturating_sub(after.cached);
    Ok(Left { before: before.cached, left })
}

/// Has a file's cached pages go before others when memory is short. For files that somebody may
/// have open: nothing is lost, should it be used after all.
pub fn mark_cold(file: &File) -> io::Result<Left> {
    let mut left = Left::default();
    windows(file, |mapped, _, there| {
        for (first, pages) in runs(there) {
            left.before += pages as u64;
            // Only what this mapping has is marked.
            mapped.populate(first, pages)?;
            mapped.cold(first, pages)?;
            left.left += pages as u64;
        }
        Ok(())
    })?;
    Ok(left)
}

/// Pages that are moved with one call.
const MOVED: usize = 2048;

/// Moves a file's cached pages to another node, where they stay when this mapping is gone. Content
/// is kept, and so are mappings of others.
pub fn move_to_node(file: &File, node: u32) -> io::Result<Left> {
    let mut left = Left::default();
    windows(file, |mapped, _, there| {
        for (first, pages) in runs(there) {
            left.before += pages as u64;
            mapped.populate(first, pages)?;
            let all: Vec<usize> = (first..first + pages).collect();
            for part in all.chunks(MOVED) {
                left.left += mapped.move_to(part, node)? as u64;
            }
        }
        Ok(())
    })?;
    Ok(left)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom, Write};

    use super::*;

    /// On a file system with a disk; on others nothing can be dropped.
    fn file(bytes: usize) -> (tempfile::TempDir, File) {
        let directory = tempfile::tempdir_in(".").expect("a directory");
        let path = directory.path().join("file");
        let mut file =
            File::options().create_new(true).read(true).write(true).open(path).expect("made");
        let content: Vec<u8> = (0..bytes).map(|i| (i / 7) as u8).collect();
        file.write_all(&content).expect("written");
        (directory, file)
    }

    fn content(file: &mut File) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).expect("seek");
        file.read_to_end(&mut bytes).expect("read");
        bytes
    }

    /// Dropping a page that was not written would lose it.
    #[test]
    fn what_is_dirty_stays_until_it_is_written() {
        let (_directory, mut file) = file(9 << 20);
        let expected = content(&mut file);
        let first = drop_clean(&file).expect("dropped");
        assert_eq!(first.before, 9 << 8);
        assert_eq!(content(&mut file), expected);
        let mut parts = 1;
        let mut at = 0;
        while let Some(next) = begin_write_back_part(&file, at).expect("begun") {
            (parts, at) = (parts + 1, next);
        }
        assert_eq!((parts, at), (3, 8 << 20));
        file.sync_data().expect("written");
        let left = drop_clean(&file).expect("dropped");
        let is_tmpfs = rustix::fs::fstatfs(&file).expect("there").f_type == 0x0102_1994;
        if !is_tmpfs {
            assert_eq!(left.left, 9 << 8, "{left:?}");
        }
        assert_eq!(content(&mut file), expected);
    }

    #[test]
    fn a_page_that_is_mapped_stays() {
        let (_directory, file) = file(16 * 4096);
        let mapped = sys::Mapped::new(&file, 0, 4096).expect("mapped");
        mapped.populate(0, 1).expect("read");
        drop_clean(&file).expect("dropped");
        assert!(residency(&file).expect("ours").cached >= 1);
    }

    #[test]
    fn cold_pages_are_still_there() {
        let (_directory, mut file) = file(64 * 4096);
        let expected = content(&mut file);
        let left = mark_cold(&file).expect("marked");
        assert_eq!((left.before, left.left), (64, 64));
        assert_eq!(residency(&file).expect("ours").cached, 64);
        assert_eq!(content(&mut file), expected);
    }

    /// All pages are on node 0 of a machine with one node; on others, too, after that.
    #[test]
    fn pages_are_on_the_node_that_they_were_moved_to() {
        let (_directory, mut file) = file(64 * 4096);
        let expected = content(&mut file);
        match move_to_node(&file, 0) {
            Ok(left) => assert_eq!((left.before, left.left), (64, 64)),
            // Moving what others map is for those who may.
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EPERM), "{e}"),
        }
        assert_eq!(content(&mut file), expected);
    }
}
