//! The kernel tells when programs have to wait for memory.
//!
//! A trigger on `/proc/pressure/memory` costs nothing until it fires.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use terrace_core::Nanos;

/// A trigger that the kernel holds for as long as this lives.
#[derive(Debug)]
pub struct Pressure(File);

impl Pressure {
    /// Fires when at least one task has waited for memory for `stall` within `window`.
    pub fn open(root: &Path, stall: Nanos, window: Nanos) -> io::Result<Self> {
        let path = root.join("proc/pressure/memory");
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        // The kernel takes the text with its end.
        let text = format!("some {} {}\0", stall.get() / 1000, window.get() / 1000);
        file.write_all(text.as_bytes())?;
        Ok(Self(file))
    }
}

impl AsFd for Pressure {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
