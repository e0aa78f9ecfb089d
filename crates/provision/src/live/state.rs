//! The daemon's directory: who runs, what it sees, what it did.
//!
//! | file | content |
//! |---|---|
//! | `lock` | locked by the one daemon, for as long as it lives |
//! | `status.json` | what it saw at its last look |
//! | `journal` | everything that it decided and did; `journal.1` is what came before |
//! | `settings.json` | settings of the kernel that it changed, as they were before |
//!
//! The directory is its owner's alone. That one daemon acts on a machine, whatever directory it is
//! given, sees to another lock, `/run/terrace-provision.lock`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::process::{Flock, FlockType, fcntl_getlk};
use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};

use super::manager::Counters;
use crate::journal::{self, Entry, Event};
use crate::policy::PolicyKind;
use crate::view::NodeId;

/// A journal of this size becomes `journal.1`, and a new one is begun.
const JOURNAL: u64 = 8 << 20;
/// What is looked at of a file to tell whether it is a journal.
const BEGIN: u64 = 4096;

/// Where the daemon keeps its files unless it is told otherwise.
pub const DIRECTORY: &str = "/run/terrace-provision";
/// What is locked by the one daemon that acts on a machine, below its root.
const MACHINE: &str = "run/terrace-provision.lock";

/// One node, as `status` shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node with processors.
    pub node: NodeId,
    /// Its DRAM.
    pub dram: Bytes,
    /// Free DRAM.
    pub dram_free: Bytes,
    /// Slow memory near it that is online.
    pub online: Bytes,
    /// The free part of it.
    pub online_free: Bytes,
    /// Slow memory near it that is hidden.
    pub hidden: Bytes,
}

/// What the daemon saw at its last look.
// Each of its flags is a fact of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// Who decides.
    pub policy: PolicyKind,
    /// Whether it only says what it would do.
    pub dry_run: bool,
    /// When it looked last, since 1970 (UTC).
    pub at: Nanos,
    /// How long it had been running then.
    pub running: Nanos,
    /// Whether it looks often.
    pub armed: bool,
    /// Whether the kernel wakes it where programs wait for memory.
    pub pressure: bool,
    /// Whether its own memory is locked.
    pub locked: bool,
    /// The nodes.
    pub nodes: Vec<NodeStatus>,
    /// What is being done.
    pub under_way: Vec<String>,
    /// How often things happened.
    pub counters: Counters,
}

/// The time since 1970.
pub fn wall_clock() -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Nanos(since.as_nanos() as u64)
}

/// Replaces a file as a whole, or not at all.
pub(super) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    let replaced = file.write_all(content).and_then(|()| fs::rename(&new, path));
    if replaced.is_err() {
        // On a full file system not even a part stays.
        let _ = fs::remove_file(new);
    }
    replaced
}

/// The directory of the one daemon that runs. The lock goes with it.
#[derive(Debug)]
pub struct State {
    directory: PathBuf,
    _lock: File,
    /// `None` where it could not be had: it is tried again with each entry.
    journal: Option<(File, u64)>,
}

/// Why the directory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another daemon runs.
    #[error("process {0} runs already")]
    Runs(i32),
    /// Another daemon acts on the machine.
    #[error("process {0} acts on this machine already, with another directory")]
    Acts(i32),
    /// A file of the directory is somebody else's.
    #[error("{0} is there, and is no journal of `terrace provision run`")]
    Foreign(&'static str),
    /// Somebody else may write to the directory.
    #[error("others than its owner may use it (its mode is {0:o}); the least that works is 700")]
    Open(u32),
    /// It cannot be used.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl State {
    /// Makes the directory where it is not there, and locks it.
    pub fn lock(directory: &Path) -> Result<Self, StateError> {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let mode = fs::metadata(directory)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(StateError::Open(mode));
        }
        let lock = locked(&directory.join("lock"), StateError::Runs)?;
        // What an earlier daemon saw is no longer so.
        match fs::remove_file(directory.join("status.json")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        for name in ["journal", "journal.1"] {
            if !is_journal(&directory.join(name))? {
                return Err(StateError::Foreign(name));
            }
        }
        let journal = match open_journal(directory) {
            Ok(journal) => Some(journal),
            // Memory has to come in all the same. The first entry tells it.
            Err(error) if is_full(&error) => None,
            Err(error) => return Err(error.into()),
        };
        Ok(Self { directory: directory.to_owned(), _lock: lock, journal })
    }

    /// A file of the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Writes down what happened, as a whole line or not at all.
    pub fn note(&mut self, what: &Event) -> io::Result<()> {
        let entry = Entry { at: wall_clock(), what: what.clone() };
        let mut line = serde_json::to_string(&entry)?;
        line.push('\n');
        let more = line.len() as u64;
        let (mut file, mut length) = match self.journal.take() {
            // Somebody may have removed it.
            Some((file, length)) if file.metadata()?.nlink() > 0 => (file, length),
            _ => self.open()?,
        };
        if length + more > JOURNAL {
            let before = self.path("journal.1");
            if !is_journal(&before)? {
                return Err(io::Error::other("journal.1 is there, and is no journal"));
            }
            fs::rename(self.path("journal"), before)?;
            (file, length) = self.open()?;
        }
        if let Err(error) = file.write_all(line.as_bytes()) {
            // A part of a line would spoil what comes after it. Where that fails, too, the part is
            // cut off when the file is opened anew.
            if file.set_len(length).is_ok() {
                self.journal = Some((file, length));
            }
            return Err(error);
        }
        self.journal = Some((file, length + more));
        Ok(())
    }

    fn open(&self) -> io::Result<(File, u64)> {
        if !is_journal(&self.path("journal"))? {
            return Err(io::Error::other("it is no journal any more"));
        }
        open_journal(&self.directory)
    }

    /// Shows what was seen.
    pub fn show(&self, status: &Status) -> io::Result<()> {
        replace(&self.path("status.json"), serde_json::to_string(status)?.as_bytes())
    }
}

/// Opens a file and locks it, for as long as it is open.
fn locked(path: &Path, held: impl Fn(i32) -> StateError) -> Result<File, StateError> {
    let lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(path)?;
    if let Err(error) = fcntl_lock(&lock, FlockOperation::NonBlockingLockExclusive) {
        return Err(match owner(&lock) {
            Some(pid) => held(pid),
            None => io::Error::from(error).into(),
        });
    }
    Ok(lock)
}

/// Locks the machine below a root: one daemon acts on it, whatever directory it is given. The lock
/// goes with the file.
pub fn lock_machine(root: &Path) -> Result<File, StateError> {
    let path = root.join(MACHINE);
    let told = |error: io::Error| io::Error::new(error.kind(), format!("/{MACHINE}: {error}"));
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(told)?;
    }
    locked(&path, StateError::Acts).map_err(|error| match error {
        StateError::Io(error) => told(error).into(),
        other => other,
    })
}

/// Whether what could not be written finds no room.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether a file is a journal, or may become one: it is not there, or is empty. Links are not
/// followed, and what is no file is not opened.
fn is_journal(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
        Ok(there) if !there.is_file() => return Ok(false),
        Ok(_) => {}
    }
    let mut begin = Vec::new();
    File::open(path)?.take(BEGIN).read_to_end(&mut begin)?;
    let header = journal::header();
    // The machine may have stopped in the middle of the first line.
    let is_cut = header.as_bytes().starts_with(&begin);
    let first = begin.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default();
    Ok(is_cut || first == header.as_bytes())
}

fn open_journal(directory: &Path) -> io::Result<(File, u64)> {
    let path = directory.join("journal");
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600).custom_flags(flags);
    let mut file = options.open(&path)?;
    let mut length = file.metadata()?.len();
    // A line that was cut off when the machine stopped would spoil the next one.
    let whole = whole_lines(&mut file, length)?;
    if whole < length {
        file.set_len(whole)?;
        length = whole;
    }
    if length == 0 {
        let header = journal::header();
        if let Err(error) = file.write_all(header.as_bytes()) {
            // A part of it is cut off the next time, if not now.
            let _ = file.set_len(0);
            return Err(error);
        }
        length = header.len() as u64;
    }
    Ok((file, length))
}

/// How much of a file is whole lines.
fn whole_lines(file: &mut File, length: u64) -> io::Result<u64> {
    let (mut end, mut part) = (length, vec![0; 64 << 10]);
    while end > 0 {
        let begin = end.saturating_sub(part.len() as u64);
        let part = &mut part[..(end - begin) as usize];
        file.seek(SeekFrom::Start(begin))?;
        file.read_exact(part)?;
        if let Some(at) = part.iter().rposition(|&byte| byte == b'\n') {
            return Ok(begin + at as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
}

/// The process that holds the lock.
fn owner(lock: &File) -> Option<i32> {
    let held = fcntl_getlk(lock, &Flock::from(FlockType::WriteLock)).ok()??;
    held.pid.map(rustix::process::Pid::as_raw_pid)
}

/// The daemon that runs with this directory, if one does.
pub fn running(directory: &Path) -> io::Result<Option<i32>> {
    match OpenOptions::new().read(true).write(true).open(directory.join("lock")) {
        Ok(lock) => Ok(owner(&lock)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn told(what: &str) -> Event {
        Event::Told { what: what.to_owned() }
    }

    fn entries(path: &Path) -> Vec<String> {
        let read = journal::read(&fs::read(path).unwrap()[..]).unwrap();
        read.into_iter().map(|entry| entry.what.to_string()).collect()
    }

    #[test]
    fn what_is_no_journal_is_refused_and_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let of_ours = directory.path().join("mine");
        for (name, content) in
            [("journal", "notes\n"), ("journal", "no end of line"), ("journal.1", "notes\n")]
        {
            let state = directory.path().join("state");
            let _ = fs::remove_dir_all(&state);
            drop(State::lock(&state).unwrap());
            fs::write(state.join(name), content).unwrap();
            let error = State::lock(&state).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("{name} is there, and is no journal of `terrace provision run`")
            );
            assert_eq!(fs::read_to_string(state.join(name)).unwrap(), content);
            // Nor is a link followed, wherever it leads.
            fs::write(&of_ours, journal::header()).unwrap();
            fs::remove_file(state.join(name)).unwrap();
            symlink(&of_ours, state.join(name)).unwrap();
            assert!(matches!(State::lock(&state), Err(StateError::Foreign(_))));
        }
    }

    #[test]
    fn a_journal_that_grows_large_takes_nobody_s_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut state = State::lock(&path).unwrap();
        let large = told(&"x".repeat(3 << 20));
        for _ in 0..2 {
            state.note(&large).unwrap();
        }
        fs::write(path.join("journal.1"), "notes\n").unwrap();
        assert!(state.note(&large).is_err());
        assert_eq!(fs::read_to_string(path.join("journal.1")).unwrap(), "notes\n");
        // And goes on as soon as it may.
        fs::remove_file(path.join("journal.1")).unwrap();
        state.note(&large).unwrap();
        state.note(&told("last")).unwrap();
        assert_eq!(entries(&path.join("journal.1")).len(), 2);
        assert_eq!(entries(&path.join("journal"))[1], "last");
    }

    #[test]
    fn what_a_stop_of_the_machine_has_cut_off_is_made_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut state = State::lock(&path).unwrap();
        state.note(&told("first")).unwrap();
        drop(state);
        let whole = fs::read(path.join("journal")).unwrap();
        for cut in 0..whole.len() {
            fs::write(path.join("journal"), &whole[..cut]).unwrap();
            State::lock(&path).unwrap().note(&told("second")).unwrap();
            assert_eq!(entries(&path.join("journal")), ["second"], "{cut}");
        }
        // One that is removed while it is written is begun anew.
        let mut state = State::lock(&path).unwrap();
        fs::remove_file(path.join("journal")).unwrap();
        state.note(&told("third")).unwrap();
        assert_eq!(entries(&path.join("journal")), ["third"]);
    }

    #[test]
    fn a_machine_is_locked_whatever_the_directory() {
        let root = tempfile::tempdir().unwrap();
        let lock = lock_machine(root.path()).unwrap();
        let path = root.path().join(MACHINE);
        // The lock is a process's: another one has to ask.
        let python =
            "import fcntl,sys; fcntl.lockf(open(sys.argv[1],'r+'), fcntl.LOCK_EX|fcntl.LOCK_NB)";
        let other = || {
            let asked =
                std::process::Command::new("python3").args(["-c", python]).arg(&path).output();
            asked.map(|output| output.status.success())
        };
        let Ok(given) = other() else { return };
        assert!(!given, "somebody else was given the lock");
        drop(lock);
        assert!(other().unwrap());
    }
}
