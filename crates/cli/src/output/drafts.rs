//! What is not complete when somebody interrupts the command, and is of no use then.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

static DRAFTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn with<T>(work: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
    work(&mut DRAFTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A file is being written beside its place.
pub(super) fn begin(path: &Path) {
    with(|drafts| drafts.push(path.to_owned()));
}

/// It is no longer.
pub(super) fn end(path: &Path) {
    with(|drafts| drafts.retain(|draft| draft != path));
}

/// From now on an interrupt removes what is not complete, and ends the command as it would have
/// without that. For commands that have no other way to end.
pub(crate) fn remove_when_interrupted() {
    let wanted = [SIGHUP, SIGINT, SIGTERM].into_iter();
    let wanted = wanted.filter(|&signal| !terrace_signals::was_ignored(signal));
    // Without that a file with a name that says what it is stays behind.
    let Ok(mut signals) = Signals::new(wanted) else { return };
    let _ = thread::Builder::new().spawn(move || {
        for signal in signals.forever() {
            with(|drafts| {
                for draft in drafts.iter() {
                    let _ = fs::remove_file(draft);
                }
                let _ = emulate_default_handler(signal);
            });
        }
    });
}
