//! Standard output and standard error. Neither may end a command in another way than its work
//! does: the macros of the standard library panic where a stream is full or its reader is gone.
//! Nor may a reader of standard error who does not read hold it up.

use std::fmt::Display;
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use signal_hook::consts::SIGXFSZ;

use crate::failure::Failure;

/// Has a file that has come to its limit (`ulimit -f`) be an error of writing, and not this
/// process's end. The programs that it starts have what they would have without it.
pub(crate) fn outlive_limits() {
    // Where it cannot be had, the limit ends the command, as it did before.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

/// Writes to stdout. A reader that went away is told apart from a full disk.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => Failure::ReaderGone,
        _ => Failure::failed(format!("stdout: {e}")),
    })
}

/// For how long a reader of stderr that does not read is waited for: so long in all, until it has read.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is left of it.
static LEFT: Mutex<Duration> = Mutex::new(PATIENCE);

/// Lines that stderr did not take.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Writes to stderr, as it is. What cannot be written is lost, and counted: nobody is left to be told
/// now.
pub(crate) fn show(text: &str) {
    let _ = try_show(text);
}

/// The same; says whether it was written.
pub(crate) fn try_show(text: &str) -> io::Result<()> {
    // In one piece, so that lines of several processes do not get mixed up.
    let stderr = io::stderr().lock();
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    let written = put(stderr.as_fd(), text.as_bytes(), &mut left);
    if written.is_ok() {
        *left = PATIENCE;
    } else {
        LOST.fetch_add(text.lines().count() as u64, Relaxed);
    }
    written
}

/// Lines that stderr did not take so far; `None` if it took all.
pub(crate) fn lines_lost() -> Option<u64> {
    Some(LOST.load(Relaxed)).filter(|&lost| lost > 0)
}

/// What a report says of them.
pub(crate) fn lost_row() -> Option<(&'static str, String)> {
    let lines = |lost| super::counted(lost, "line was", "lines were");
    lines_lost().map(|lost| ("messages", format!("{} not taken by standard error", lines(lost))))
}

/// Writes to a stream that others may have, too. Of a pipe or a socket the other end is waited for no
/// longer than what is left; whoever stops a terminal goes on with it.
fn put(to: BorrowedFd<'_>, bytes: &[u8], left: &mut Duration) -> io::Result<()> {
    let kind = rustix::fs::fstat(to).map(|stat| FileType::from_raw_mode(stat.st_mode));
    let is_pipe = kind == Ok(FileType::Fifo);
    if is_pipe {
        // Opened once more it does not wait, and whoever else has it sees nothing of that.
        let path = format!("/proc/self/fd/{}", to.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(own) => {
                return in_time(own.as_fd(), bytes, left, |rest| rustix::io::write(&own, rest));
            }
            Err(Errno::NXIO) => return Err(io::ErrorKind::BrokenPipe.into()),
            // Another user's, say.
            Err(_) => {}
        }
    }
    if is_pipe || kind == Ok(FileType::Socket) {
        in_time(to, bytes, left, |rest| write_now(to, rest))
    } else {
        in_time(to, bytes, left, |rest| rustix::io::write(to, rest))
    }
}

/// Writes what can be written without waiting.
fn write_now(to: BorrowedFd<'_>, bytes: &[u8]) -> rustix::io::Result<usize> {
    /// A pipe that is ready takes so much.
    const PIECE: usize = 4096;
    // At no position: it is a stream.
    match pwritev2(to, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
        // Named pipes cannot be asked that, nor any pipe before Linux 6.4.
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
            let mut ready = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
            if poll(&mut ready, Some(&Timespec::default()))? == 0 {
                return Err(Errno::AGAIN);
            }
            rustix::io::write(to, &bytes[..bytes.len().min(PIECE)])
        }
        written => written,
    }
}

/// Writes all, and waits where that cannot be done now.
fn in_time(
    to: BorrowedFd<'_>,
    mut rest: &[u8],
    left: &mut Duration,
    write: impl Fn(&[u8]) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    while !rest.is_empty() {
        match write(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait(to, left)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Waits until something can be written, and takes the time off what is left.
fn wait(to: BorrowedFd<'_>, left: &mut Duration) -> io::Result<()> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, "standard error is not read");
    if left.is_zero() {
        return Err(late());
    }
    let began = Instant::now();
    let most = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut ready = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
    let found = poll(&mut ready, Some(&most));
    *left = left.saturating_sub(began.elapsed());
    match found {
        Ok(0) => {
            *left = Duration::ZERO;
            Err(late())
        }
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Says a line on stderr. What is in it of files and arguments does not command the terminal.
pub(crate) fn say(line: impl Display) {
    show(&format!("terrace: {}\n", super::plain(&line.to_string())));
}

/// Says on stderr what goes otherwise than one might expect.
pub(crate) fn warn(line: impl Display) {
    say(format_args!("warning: {line}"));
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter, Read, pipe};
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A pipe that has no room.
    fn full() -> (PipeReader, PipeWriter) {
        let (reader, writer) = pipe().unwrap();
        // Not the pipe's own handle, which stays as it was made.
        let own = format!("/proc/self/fd/{}", writer.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let own = rustix::fs::open(own, flags, Mode::empty()).unwrap();
        while rustix::io::write(&own, &[b'x'; 4096]).is_ok() {}
        (reader, writer)
    }

    fn late(written: io::Result<()>) -> bool {
        written.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody_up() {
        let (mut reader, writer) = full();
        let mut left = Duration::from_millis(20);
        assert!(late(put(writer.as_fd(), b"line\n", &mut left)));
        assert!(left.is_zero());
        assert!(late(put(writer.as_fd(), b"line\n", &mut left)), "and at once from then on");
        let text = vec![b'y'; 100_000];
        let mut left = Duration::from_millis(20);
        assert!(late(in_time(writer.as_fd(), &text, &mut left, |rest| {
            write_now(writer.as_fd(), rest)
        })));
        let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "the others' handle is as it was");

        let mut all = vec![0; 4096];
        reader.read_exact(&mut all).unwrap();
        put(writer.as_fd(), b"line\n", &mut left).unwrap();
        drop(writer);
        reader.read_to_end(&mut all).unwrap();
        assert!(all.ends_with(b"line\n"));
    }

    #[test]
    fn a_pipe_that_is_read_takes_all_however_much_that_is() {
        let (mut reader, writer) = full();
        let text: Vec<u8> = (0..1_000_000u32).map(|n| n as u8 | 1).collect();
        let reads = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        let mut left = Duration::from_mins(10);
        put(writer.as_fd(), &text, &mut left).unwrap();
        drop(writer);
        assert!(reads.join().unwrap().unwrap().ends_with(&text));
    }

    #[test]
    fn a_socket_that_nobody_reads_holds_nobody_up() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let text = vec![b'y'; 64 << 20];
        let mut left = Duration::from_millis(20);
        assert!(late(put(ours.as_fd(), &text, &mut left)));
        drop(theirs);
        let gone = put(ours.as_fd(), b"line\n", &mut left);
        assert!(gone.is_err_and(|error| error.kind() != io::ErrorKind::TimedOut));
    }

    #[test]
    fn who_reads_no_more_is_not_waited_for() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let mut left = Duration::from_mins(10);
        let gone = put(writer.as_fd(), b"line\n", &mut left).unwrap_err();
        assert_eq!((gone.kind(), left), (io::ErrorKind::BrokenPipe, Duration::from_mins(10)));
    }
}
