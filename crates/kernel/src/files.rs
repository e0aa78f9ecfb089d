//! The kernel's files below a root directory, so that tests can have a machine of their own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where `/proc`, `/sys` and `/dev` are.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// This machine.
    pub fn machine() -> Self {
        Self::at("/")
    }

    /// A directory that looks like one.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// The place of an absolute path.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file's text.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        read(&self.path(path))
    }

    /// A file's first number; `None` if there is no such file, or none in it.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        number(&self.path(path))
    }
}

/// A file's text; an error names the file.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path).map_err(|e| named(path, &e))
}

/// A file's first number.
pub(crate) fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// Writes to a file of the kernel's, which is there and is not made; an error names it.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    step();
    let mut file = fs::OpenOptions::new().write(true).open(path).map_err(|e| named(path, &e))?;
    file.write_all(text.as_bytes()).map_err(|e| named(path, &e))
}

/// The same error with the path in front.
pub(crate) fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Called before whatever changes the machine, or what is written down of it. A test has it panic
/// at one of these moments: what is left then is what is left of a process that is killed there.
pub(crate) fn step() {
    #[cfg(test)]
    fuse::burn();
}

#[cfg(test)]
pub(crate) mod fuse {
    use std::cell::Cell;

    thread_local! {
        /// Steps until the process is killed; `None` if it is not.
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Has the caller killed at its n-th step from now, or not at all.
    pub(crate) fn set(steps: Option<u32>) {
        LEFT.set(steps);
    }

    pub(super) fn burn() {
        match LEFT.get() {
            Some(0) => panic!("killed"),
            left => LEFT.set(left.map(|steps| steps - 1)),
        }
    }
}
