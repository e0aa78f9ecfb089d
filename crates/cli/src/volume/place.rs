//! Where what is measured keeps its files, and that nothing of it stays.
//!
//! Volumes and pools in memory are gigabytes, and servers, mounts and loop devices hold them. Each has
//! an owner that takes it away, but a signal ends a process without asking owners.

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use terrace_volume_bench::abandon::abandon;

/// Held by who takes everything away.
static ENDING: Mutex<()> = Mutex::new(());

/// A directory, which is removed when this is dropped, or when the command is told to end.
#[derive(Debug)]
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    /// Makes one in a directory, whose name begins with this.
    pub(crate) fn make(directory: &Path, prefix: &str) -> io::Result<Self> {
        let made = tempfile::Builder::new().prefix(prefix).tempdir_in(directory)?;
        let wanted = [SIGHUP, SIGINT, SIGTERM].into_iter();
        let wanted = wanted.filter(|&signal| !terrace_signals::was_ignored(signal));
        let mut signals = Signals::new(wanted)?;
        let path = made.path().to_owned();
        thread::Builder::new().spawn(move || {
            for signal in signals.forever() {
                // It is kept: the command waits here for its end instead of telling what it misses.
                let _ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
                abandon(&path);
                let _ = emulate_default_handler(signal);
            }
        })?;
        Ok(Self(made))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(ENDING.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
