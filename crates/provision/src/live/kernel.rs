//! Small files of sysfs and procfs, written and read back.
//!
//! A trait, so that tests have a kernel that refuses, is out of memory, takes
//! for ever, or loses a device in the middle.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// The files by which the kernel is told what to do. Paths are below a root.
pub trait Kernel: Send + Sync {
    /// Writes a text in one system call. It may be interrupted by a signal, and is not begun
    /// anew then.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;

    /// What a file says, without the space around it.
    fn read(&self, path: &str) -> io::Result<String>;

    /// The last part of where a link leads; `None` where there is no link.
    fn link(&self, path: &str) -> Option<String>;
}

/// The files below a directory: `/`, or one that looks like it.
#[derive(Clone, Debug)]
pub struct Files {
    root: PathBuf,
}

impl Files {
    /// The files below a directory.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }
}

impl Kernel for Files {
    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        // Nothing is created: a file that is not there is a device that has gone.
        let mut file = OpenOptions::new().write(true).open(self.root.join(path))?;
        let written = file.write(text.as_bytes())?;
        if written < text.len() {
            return Err(io::Error::new(io::ErrorKind::WriteZero, "only a part was written"));
        }
        Ok(())
    }

    fn read(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.root.join(path))?.trim().to_owned())
    }

    fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.root.join(path)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}
