//! Everything that a measurement holds is let go, before the process ends by a signal.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::server::kill_all;

/// How often a directory is removed in which somebody may still make files.
const ATTEMPTS: u32 = 20;

/// Whoever attaches a loop device has this: what is attached after it was looked for would stay.
static ATTACHING: Mutex<()> = Mutex::new(());
/// How long an end waits for a device that is being attached.
const ATTACHED: Duration = Duration::from_secs(5);

/// Held while a loop device is attached. Nobody gets it once everything is being let go.
pub(crate) fn attaching() -> MutexGuard<'static, ()> {
    ATTACHING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Detaches loop devices of a directory's files, unmounts what is mounted below it, kills the servers
/// of this process, and removes it. What cannot be taken away is listed by `mount` and `losetup`.
pub fn abandon(directory: &Path) {
    let begun = Instant::now();
    let _none_more = loop {
        match ATTACHING.try_lock() {
            Err(TryLockError::WouldBlock) if begun.elapsed() < ATTACHED => {
                sleep(Duration::from_millis(1));
            }
            held => break held,
        }
    };
    for _ in 0..ATTEMPTS {
        // First, as they are found by their files, and a file of what is unmounted has no path. A
        // device that somebody has open is detached when it is closed.
        for device in attached_below(directory) {
            quietly(Command::new("losetup").arg("--detach").arg(device));
        }
        // A lazy unmount does not wait for who uses it.
        for mounted in mounted_below(directory) {
            quietly(Command::new("umount").arg("-l").arg(mounted));
        }
        kill_all();
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != ErrorKind::NotFound => sleep(Duration::from_millis(50)),
            _ => return,
        }
    }
}

fn quietly(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).output().ok()
}

/// What is mounted below a directory, the last first.
fn mounted_below(directory: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut mounted: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .filter(|path| path.starts_with(directory))
        .collect();
    mounted.reverse();
    mounted
}

/// The loop devices of files below a directory.
fn attached_below(directory: &Path) -> Vec<String> {
    let mut list = Command::new("losetup");
    let listed = quietly(list.args(["--list", "--noheadings", "--output", "NAME,BACK-FILE"]));
    let text = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    let devices = text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    devices
        .filter(|(_, file)| Path::new(file.trim()).starts_with(directory))
        .map(|(device, _)| device.to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_directory_stays_and_nothing_else_goes() {
        let around = tempfile::tempdir().unwrap();
        let (ours, other) = (around.path().join("ours"), around.path().join("other"));
        for directory in [&ours, &other] {
            fs::create_dir_all(directory.join("below")).unwrap();
            fs::write(directory.join("below/file"), "content").unwrap();
        }
        abandon(&ours);
        assert!(!ours.exists());
        assert!(other.join("below/file").exists());
        assert_eq!(mounted_below(Path::new("/proc")).last(), Some(&PathBuf::from("/proc")));
        assert!(mounted_below(&other).is_empty());
    }
}
