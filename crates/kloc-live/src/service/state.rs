//! The daemon's directory: who runs, and the socket through which it is asked.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use terrace_core::ContextIdentity;

/// Where the daemon keeps its files unless it is told otherwise.
pub const DIRECTORY: &str = "/run/terrace-kloc";

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest question.
const QUESTION: u64 = 4096;

/// A question to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// What it does.
    Status,
    /// Files, those with most pages first.
    List {
        /// How many at most.
        count: usize,
    },
    /// Why a file is where it is.
    Why {
        /// Which file.
        file: ContextIdentity,
    },
    /// Kernel objects.
    Report,
    /// Sockets, those with most memory first.
    Sockets {
        /// How many at most.
        count: usize,
    },
}

/// Why there is no state, or no answer.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another daemon runs with this directory.
    #[error("another daemon runs with {} (process {})", .0.display(), .1)]
    Runs(PathBuf, String),
    /// None runs.
    #[error("no daemon runs with {}", .0.display())]
    NoneRuns(PathBuf),
    /// The directory cannot be used.
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, io::Error),
    /// Others may write to the directory.
    #[error("{}: others than this user may use this directory", .0.display())]
    Open(PathBuf),
    /// It is no directory, but something that may lead to one.
    #[error("{}: is no directory; a symbolic link is not followed", .0.display())]
    NoDirectory(PathBuf),
    /// The answer makes no sense.
    #[error("the daemon's answer cannot be read: {0}")]
    Answer(String),
}

/// A question that waits for its answer.
#[derive(Debug)]
pub struct Asked {
    /// What is asked.
    pub question: Question,
    answer: Sender<String>,
}

impl Asked {
    /// Answers it.
    pub fn answer(self, answer: &impl Serialize) {
        let text =
            serde_json::to_string(answer).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"));
        // Whoever asked may have gone.
        let _ = self.answer.send(text);
    }
}

/// The directory of a daemon that runs.
#[derive(Debug)]
pub struct State {
    directory: PathBuf,
    _lock: File,
    asked: Receiver<Asked>,
    /// Where questions come, until they are listened to.
    silent: Option<(UnixListener, Sender<Asked>)>,
}

impl State {
    /// Takes the directory; questions wait until [`State::listen`].
    pub fn take(directory: &Path) -> Result<Self, StateError> {
        let io = |e: io::Error| StateError::Io(directory.to_owned(), e);
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(io(e)),
            _ => {}
        }
        let metadata = fs::symlink_metadata(directory).map_err(io)?;
        if !metadata.is_dir() {
            return Err(StateError::NoDirectory(directory.to_owned()));
        }
        let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
        if !is_ours || metadata.permissions().mode() & 0o022 != 0 {
            return Err(StateError::Open(directory.to_owned()));
        }
        let path = directory.join("lock");
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            // A link that was put here before the directory was this user's would have another
            // file emptied.
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path);
        let mut lock = open.map_err(|e| StateError::Io(path.clone(), e))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let pid = fs::read_to_string(&path).unwrap_or_default();
            return Err(StateError::Runs(directory.to_owned(), pid.trim().to_owned()));
        }
        lock.set_len(0).map_err(io)?;
        writeln!(lock, "{}", std::process::id()).map_err(io)?;
        let socket = directory.join("socket");
        // What is there is of a daemon that was killed: the lock is ours.
        match fs::remove_file(&socket) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io(e)),
            _ => {}
        }
        let listener = UnixListener::bind(&socket).map_err(io)?;
        fs::set_permissions(&socket, Permissions::from_mode(0o600)).map_err(io)?;
        let (tell, asked) = channel();
        let silent = Some((listener, tell));
        Ok(Self { directory: directory.to_owned(), _lock: lock, asked, silent })
    }

    /// Listens for questions, in a thread that has the rights which the caller has by now: those are
    /// a thread's own, so this comes after they were dropped.
    pub fn listen(&mut self) -> io::Result<()> {
        let Some((listener, tell)) = self.silent.take() else { return Ok(()) };
        let answers = std::thread::Builder::new().name("kloc-answers".to_owned());
        answers.spawn(move || {
            for stream in listener.incoming().flatten() {
                // One who asks nonsense, or goes, is none of our business.
                let _ = serve(&stream, &tell);
            }
        })?;
        Ok(())
    }

    /// Questions that wait.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.try_iter().collect()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The lock's file stays: removing it would let two take it.
        let _ = fs::remove_file(self.directory.join("socket"));
    }
}

fn serve(stream: &UnixStream, tell: &Sender<Asked>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(QUESTION)).read_line(&mut line)?;
    let question: Question = serde_json::from_str(&line)?;
    let (answer, answered) = channel();
    tell.send(Asked { question, answer }).map_err(|_| io::ErrorKind::BrokenPipe)?;
    let text = answered.recv_timeout(PATIENCE).map_err(|_| io::ErrorKind::TimedOut)?;
    let mut stream = stream;
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

/// Asks the daemon of a directory.
pub fn ask<T: for<'a> Deserialize<'a>>(
    directory: &Path,
    question: &Question,
) -> Result<T, StateError> {
    let io = |e: io::Error| StateError::Io(directory.to_owned(), e);
    let mut stream = UnixStream::connect(directory.join("socket")).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            StateError::NoneRuns(directory.to_owned())
        }
        _ => io(e),
    })?;
    stream.set_read_timeout(Some(2 * PATIENCE)).map_err(io)?;
    let text = serde_json::to_string(question).map_err(|e| StateError::Answer(e.to_string()))?;
    stream.write_all(format!("{text}\n").as_bytes()).map_err(io)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(io)?;
    serde_json::from_str(&answer).map_err(|e| StateError::Answer(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_has_a_directory_and_what_it_left_is_taken_over() {
        let temporary = tempfile::tempdir().expect("a directory");
        let directory = temporary.path().join("state");
        let mut state = State::take(&directory).expect("it is free");
        state.listen().expect("a thread");
        let mode = |name: &str| fs::metadata(directory.join(name)).unwrap().permissions().mode();
        assert_eq!((mode(".") & 0o777, mode("socket") & 0o777), (0o700, 0o600));
        let second = State::take(&directory).expect_err("it is taken");
        let own = std::process::id();
        assert!(second.to_string().ends_with(&format!("(process {own})")), "{second}");
        let asking = std::thread::spawn({
            let directory = directory.clone();
            move || ask::<Question>(&directory, &Question::List { count: 3 })
        });
        let asked = loop {
            if let Some(asked) = state.asked().pop() {
                break asked;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let question = asked.question.clone();
        asked.answer(&question);
        assert_eq!(asking.join().unwrap().expect("answered"), Question::List { count: 3 });
        drop(state);
        let none = ask::<Question>(&directory, &Question::Status).expect_err("it has ended");
        assert!(matches!(none, StateError::NoneRuns(_)), "{none}");
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(State::take(&directory), Err(StateError::Open(_))));
    }

    #[test]
    fn links_are_not_followed() {
        let temporary = tempfile::tempdir().expect("a directory");
        let directory = temporary.path().join("state");
        let link = temporary.path().join("link");
        drop(State::take(&directory).expect("it is free"));
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(matches!(State::take(&link), Err(StateError::NoDirectory(_))));
        let precious = temporary.path().join("precious");
        fs::write(&precious, "content").unwrap();
        fs::remove_file(directory.join("lock")).unwrap();
        std::os::unix::fs::symlink(&precious, directory.join("lock")).unwrap();
        assert!(matches!(State::take(&directory), Err(StateError::Io(..))));
        assert_eq!(fs::read_to_string(&precious).unwrap(), "content");
    }
}
