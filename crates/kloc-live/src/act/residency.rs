//! What of a file is cached.

use std::fs::File;
use std::io;

use super::sys::{self, Mapped};

/// Pages of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// In the page cache.
    pub cached: u64,
    /// Of them, not yet written; `None` where the kernel does not say so (before 6.5).
    pub dirty: Option<u64>,
    /// Of them, being written.
    pub writeback: Option<u64>,
}

impl Residency {
    /// Pages that cannot be dropped yet; `None` where the kernel does not say so.
    pub fn unwritten(&self) -> Option<u64> {
        self.dirty.zip(self.writeback).map(|(dirty, writeback)| dirty + writeback)
    }
}

/// How much is mapped at once to look at it.
pub(super) const WINDOW: u64 = 256 << 20;

/// Looks at a whole file: by `cachestat`, or page by page where the kernel lacks it.
pub fn residency(file: &File) -> io::Result<Residency> {
    match sys::cachestat(file) {
        Ok(stat) => Ok(Residency {
            cached: stat.cached,
            dirty: Some(stat.dirty),
            writeback: Some(stat.writeback),
        }),
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {
            let mut cached = 0;
            windows(file, |_, _, there| {
                cached += there.iter().filter(|&&is| is).count() as u64;
                Ok(())
            })?;
            Ok(Residency { cached, dirty: None, writeback: None })
        }
        Err(e) => Err(e),
    }
}

/// Maps a file part by part, and tells which pages of each are cached.
pub(super) fn windows(
    file: &File,
    mut each: impl FnMut(&Mapped, u64, &[bool]) -> io::Result<()>,
) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut offset = 0;
    while offset < length {
        let part = (length - offset).min(WINDOW);
        let mapped = Mapped::new(file, offset, part as usize)?;
        let there = mapped.resident()?;
        each(&mapped, offset, &there)?;
        offset += part;
    }
    Ok(())
}

/// Runs of pages that are cached: the first one's number, and how many.
pub(super) fn runs(there: &[bool]) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut at = 0;
    for group in there.chunk_by(|a, b| a == b) {
        if group[0] {
            runs.push((at, group.len()));
        }
        at += group.len();
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_is_cached() {
        assert_eq!(runs(&[true, true, false, true]), [(0, 2), (3, 1)]);
        assert!(runs(&[false, false]).is_empty());
        assert!(runs(&[]).is_empty());
    }

    #[test]
    fn both_ways_count_the_same_pages() {
        let directory = tempfile::tempdir_in(".").expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; 10 * 4096 + 1]).expect("written");
        let file = File::open(&path).expect("there");
        let mut pages = 0;
        windows(&file, |_, _, there| {
            pages += there.iter().filter(|&&is| is).count();
            Ok(())
        })
        .expect("mapped");
        assert_eq!(pages, 11);
        assert_eq!(residency(&file).expect("it is ours").cached, 11);
    }
}
