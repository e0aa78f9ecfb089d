//! What is not complete when somebody interrupts the command, and is of no use then.

use std::cell::RefCell;
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

/// Does what an interrupt must not end half-way. However it comes out, an interrupt afterwards
/// leaves the draft alone.
pub(super) fn undisturbed<T>(draft: Option<&Path>, work: impl FnOnce() -> T) -> T {
    with(|drafts| {
        let done = work();
        drafts.retain(|path| Some(path.as_path()) != draft);
        done
    })
}

/// A file or a directory that is of no use until it is complete: an interrupt removes it, and so
/// does the end of the command before that.
#[derive(Debug, Default)]
pub(crate) struct Draft(RefCell<Option<PathBuf>>);

impl Draft {
    /// It has just been made.
    pub(crate) fn begin(&self, path: &Path) {
        begin(path);
        self.0.replace(Some(path.to_owned()));
    }

    /// It stays.
    pub(crate) fn complete(&self) {
        self.0.take().inspect(|path| end(path));
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            end(&path);
            // Nothing can be done about one that cannot be removed; it may be gone, too.
            if fs::remove_file(&path).is_err() {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
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
                    if fs::remove_file(draft).is_err() {
                        let _ = fs::remove_dir_all(draft);
                    }
                }
                let _ = emulate_default_handler(signal);
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interrupt goes through the same list.
    #[test]
    fn what_was_begun_and_is_not_complete_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let [file, whole, room] = ["file", "whole", "room"].map(|name| directory.path().join(name));
        fs::write(&file, "begun").unwrap();
        fs::write(&whole, "complete").unwrap();
        fs::create_dir(&room).unwrap();
        fs::write(room.join("inside"), "begun").unwrap();
        let [one, two, three] = [&file, &whole, &room].map(|path| {
            let draft = Draft::default();
            draft.begin(path);
            draft
        });
        assert!(with(|drafts| [&file, &whole, &room].iter().all(|path| drafts.contains(path))));
        two.complete();
        drop([one, two, three]);
        assert!(!file.exists() && whole.exists() && !room.exists());
        assert!(!with(|drafts| [&file, &whole, &room].iter().any(|path| drafts.contains(path))));
    }
}
