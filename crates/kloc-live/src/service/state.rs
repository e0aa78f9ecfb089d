//! The daemon's directory: who runs, and the socket through which it is asked.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::net::{Shutdown, shutdown};
use serde::{Deserialize, Serialize};
use terrace_core::ContextIdentity;

/// Where the daemon keeps its files unless it is told otherwise.
pub const DIRECTORY: &str = "/run/terrace-kloc";

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a question may take.
const SAID: Duration = Duration::from_secs(5);
/// The longest question.
const QUESTION: usize = 4096;
/// Those who are answered at once; others wait until one of them has gone.
const CLIENTS: usize = 8;
/// How long nobody is let in when nobody can be: for want of descriptors, or since there are so many.
const REST: Duration = Duration::from_millis(50);

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
    /// Where they come, and who lets those in who ask.
    listening: Option<(UnixListener, JoinHandle<()>)>,
    stop: Arc<AtomicBool>,
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
        let listener = terrace_sockets::bind(&socket).map_err(io)?;
        fs::set_permissions(&socket, Permissions::from_mode(0o600)).map_err(io)?;
        let (tell, asked) = channel();
        let (silent, stop) = (Some((listener, tell)), Arc::default());
        let directory = directory.to_owned();
        Ok(Self { directory, _lock: lock, asked, silent, listening: None, stop })
    }

    /// Listens for questions, in a thread that has the rights which the caller has by now: those are
    /// a thread's own, so this comes after they were dropped.
    pub fn listen(&mut self) -> io::Result<()> {
        self.listen_for(SAID)
    }

    /// The same, where a question may take so long.
    fn listen_for(&mut self, said: Duration) -> io::Result<()> {
        let Some((listener, tell)) = self.silent.take() else { return Ok(()) };
        let (own, stop) = (listener.try_clone()?, Arc::clone(&self.stop));
        let thread = Builder::new().name("kloc-answers".to_owned()).spawn(move || {
            let mut clients: Vec<JoinHandle<()>> = Vec::new();
            let answer = |stream: UnixStream| {
                let mut are_full = || {
                    clients.retain(|client| !client.is_finished());
                    clients.len() >= CLIENTS && !stop.load(Ordering::Relaxed)
                };
                while are_full() {
                    sleep(REST);
                }
                let tell = tell.clone();
                let client = Builder::new().name("kloc-answer".to_owned()).spawn(move || {
                    // One who asks nonsense, or goes, is none of our business.
                    let _ = serve(&stream, &tell, said);
                });
                // Without a thread there is no answer.
                clients.extend(client);
            };
            let accept = || listener.accept().map(|(stream, _)| stream);
            let_in(accept, answer, || sleep(REST), &stop);
        })?;
        self.listening = Some((own, thread));
        Ok(())
    }

    /// Questions that wait.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.try_iter().collect()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some((listener, thread)) = self.listening.take() {
            // The thread waits for somebody who asks; that ends by this.
            let _ = shutdown(&listener, Shutdown::Both);
            let _ = thread.join();
        }
        // The lock's file stays: removing it would let two take it.
        let _ = fs::remove_file(self.directory.join("socket"));
    }
}

/// Lets those in who ask, until it is told to stop; where that fails, again after a rest.
fn let_in<C>(
    mut accept: impl FnMut() -> io::Result<C>,
    mut serve: impl FnMut(C),
    mut rest: impl FnMut(),
    stop: &AtomicBool,
) {
    loop {
        let client = accept();
        if stop.load(Ordering::Relaxed) {
            return;
        }
        match client {
            Ok(client) => serve(client),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => rest(),
        }
    }
}

/// What is asked, if that is said within this time.
fn question(mut stream: &UnixStream, said: Duration) -> io::Result<Question> {
    let begun = Instant::now();
    let (mut line, mut part) = (Vec::new(), [0; 512]);
    loop {
        let left = said.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let read = match stream.read(&mut part) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        line.extend_from_slice(&part[..read]);
        let end = line.iter().position(|&byte| byte == b'\n');
        if end.is_some() || read == 0 || line.len() > QUESTION {
            return Ok(serde_json::from_slice(&line[..end.unwrap_or(line.len())])?);
        }
    }
}

fn serve(mut stream: &UnixStream, tell: &Sender<Asked>, said: Duration) -> io::Result<()> {
    let question = question(stream, said)?;
    let (answer, answered) = channel();
    tell.send(Asked { question, answer }).map_err(|_| io::ErrorKind::BrokenPipe)?;
    let text = answered.recv_timeout(PATIENCE).map_err(|_| io::ErrorKind::TimedOut)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

/// Asks the daemon of a directory.
pub fn ask<T: for<'a> Deserialize<'a>>(
    directory: &Path,
    question: &Question,
) -> Result<T, StateError> {
    let io = |e: io::Error| StateError::Io(directory.to_owned(), e);
    let connected = terrace_sockets::connect(&directory.join("socket"));
    let mut stream = connected.map_err(|e| match e.kind() {
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

    /// Otherwise one program that hangs would keep all others from an answer.
    #[test]
    fn who_says_nothing_keeps_nobody_waiting() {
        let temporary = tempfile::tempdir().expect("a directory");
        let directory = temporary.path().join("state");
        let mut state = State::take(&directory).expect("it is free");
        state.listen_for(Duration::from_hours(1)).expect("a thread");
        let connect = |_| UnixStream::connect(directory.join("socket")).expect("it listens");
        let silent: Vec<_> = (1..CLIENTS).map(connect).collect();
        let asking = std::thread::spawn({
            let directory = directory.clone();
            move || ask::<Question>(&directory, &Question::Report)
        });
        let begun = Instant::now();
        let asked = loop {
            if let Some(asked) = state.asked().pop() {
                break asked;
            }
            assert!(begun.elapsed() < Duration::from_mins(1), "it waits for others");
            sleep(Duration::from_millis(1));
        };
        let question = asked.question.clone();
        asked.answer(&question);
        assert_eq!(asking.join().unwrap().expect("answered"), Question::Report);
        drop(silent);
    }

    #[test]
    fn who_does_not_come_to_an_end_is_not_waited_for() {
        let of = |said: &[u8], time| {
            let (stream, mut client) = UnixStream::pair().expect("sockets");
            client.write_all(said).expect("there is room");
            question(&stream, time)
        };
        let (little, long) = (Duration::from_millis(1), Duration::from_mins(1));
        of(b"", little).expect_err("nothing is said");
        of(b"\"sta", little).expect_err("and nothing more");
        let status = of(b"\"status\"\nand more", long).expect("it is all there");
        assert_eq!(status, Question::Status);
        of(&[b' '; QUESTION + 1], long).expect_err("that is no question");
    }

    /// A process without descriptors to spare would spin otherwise.
    #[test]
    fn where_nobody_can_be_let_in_that_is_tried_again_after_a_rest() {
        let stop = AtomicBool::new(false);
        let error = |code| Err(io::Error::from_raw_os_error(code));
        let mut come = [error(libc::EMFILE), error(libc::EINTR), Ok(1), error(libc::EMFILE), Ok(2)]
            .into_iter();
        let (mut served, mut rests) = (Vec::new(), 0);
        let accept = || {
            let next = come.next();
            stop.store(come.len() == 0, Ordering::Relaxed);
            next.expect("it stops before")
        };
        let_in(accept, |client| served.push(client), || rests += 1, &stop);
        assert_eq!((served, rests), (vec![1], 2), "the last one comes when it is told to stop");
    }

    #[test]
    fn the_thread_that_listens_ends_with_the_state() {
        let temporary = tempfile::tempdir().expect("a directory");
        let mut state = State::take(&temporary.path().join("state")).expect("it is free");
        state.listen().expect("a thread");
        let stop = Arc::clone(&state.stop);
        assert_eq!(Arc::strong_count(&stop), 3);
        drop(state);
        assert_eq!(Arc::strong_count(&stop), 1);
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
