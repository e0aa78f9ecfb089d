//! Sockets, and a thread for each connection.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use terrace_sockets::ShortPath;

use super::session::{Ended, session_of};
use crate::pm::Pm;
use crate::volume::Volume;

/// How soon a server notices that it is to stop.
const LOOK: Duration = Duration::from_millis(100);
/// How long a client that negotiates may say nothing.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which file a socket is: its device, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFile(u64, u64);

impl SocketFile {
    fn at(path: &Path) -> io::Result<Self> {
        let there = fs::symlink_metadata(path)?;
        Ok(Self(there.dev(), there.ino()))
    }
}

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// A socket in the file system that only its owner may use. Its file is removed at the end, if it
    /// is still this one.
    Unix(UnixListener, PathBuf, SocketFile),
    /// A port. Whoever reaches it may read and write; nothing is encrypted.
    Tcp(TcpListener),
}

impl Listener {
    /// Makes a socket of which only the owner has the use. One that a server has left behind is
    /// replaced; anything else with the name stays.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let error = |kind, what| Err(io::Error::new(kind, what));
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return error(io::ErrorKind::AlreadyExists, "it is there already, and no socket");
            }
            Ok(_) => match terrace_sockets::connect(path) {
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                _ => return error(io::ErrorKind::AddrInUse, "another server has this socket"),
            },
            // Whether it can be made is found by making it.
            Err(_) => {}
        }
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // Linux gives the file the socket's own mode (`unix_bind_bsd`), so it is never open to
        // others, and the mask of permissions, which all threads share, is left alone.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        let short = ShortPath::of(path)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(short.path())?)?;
        let bound = UnixListener::from(socket);
        let made = Self::Unix(bound, path.to_owned(), SocketFile::at(path)?);
        rustix::net::listen(made.fd(), 64)?;
        if let Self::Unix(bound, ..) = &made {
            bound.set_nonblocking(true)?;
        }
        Ok(made)
    }

    /// Listens on an address.
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let bound = TcpListener::bind(address)?;
        bound.set_nonblocking(true)?;
        Ok(Self::Tcp(bound))
    }

    /// As a client names it.
    pub fn uri(&self) -> String {
        match self {
            Self::Unix(_, path, _) => {
                // A client may be in another directory.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                format!("nbd+unix:///?socket={}", encoded(path.as_os_str().as_bytes()))
            }
            Self::Tcp(bound) => {
                bound.local_addr().map_or_else(|_| "nbd://".into(), |at| format!("nbd://{at}"))
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(bound, ..) => bound.as_fd(),
            Self::Tcp(bound) => bound.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Connection> {
        Ok(match self {
            Self::Unix(bound, ..) => {
                let (stream, _) = bound.accept()?;
                stream.set_nonblocking(false)?;
                Connection::Unix(stream)
            }
            Self::Tcp(bound) => {
                let (stream, _) = bound.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                Connection::Tcp(stream)
            }
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path, file) = self
            // Somebody may have removed it already, and another server may have made one.
            && SocketFile::at(path).is_ok_and(|there| there == *file)
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// A path as part of a URI (RFC 3986): bytes that may mean something else there become `%` and their
/// number.
fn encoded(path: &[u8]) -> String {
    let mut text = String::new();
    for &byte in path {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text += &format!("%{byte:02X}");
        }
    }
    text
}

#[derive(Debug)]
enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connection {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// How long to wait for what the client says; `None` is for ever.
    fn wait_at_most(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(time),
            Self::Tcp(stream) => stream.set_read_timeout(time),
        }
    }

    fn end(&self) {
        // It may have ended by itself.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Read for &Connection {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Connection::Unix(stream) => (&mut &*stream).read(bytes),
            Connection::Tcp(stream) => (&mut &*stream).read(bytes),
        }
    }
}

impl Write for &Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Connection::Unix(stream) => (&mut &*stream).write(bytes),
            Connection::Tcp(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Tells a server to stop.
#[derive(Debug, Default)]
pub struct Stop(AtomicBool);

impl Stop {
    /// Ends connections, makes everything durable, and has [`serve`] return.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Serves a volume until it is stopped, or until `is_over` says that nobody has a use for it, each
/// connection in a thread and a lane of its own. What ends a connection otherwise than in good
/// order is told to `tell`.
pub fn serve<P: Pm>(
    volume: &Volume<P>,
    listeners: &[Listener],
    stop: &Stop,
    tell: &(dyn Fn(String) + Sync),
    is_over: &dyn Fn() -> bool,
) -> io::Result<()> {
    let open = Mutex::new(Vec::<(u64, Connection)>::new());
    let open = || open.lock().unwrap_or_else(PoisonError::into_inner);
    let accepted = std::thread::scope(|scope| {
        let mut number = 0u64;
        let result: io::Result<()> = loop {
            if stop.is_set() || is_over() {
                break Ok(());
            }
            let mut fds: Vec<_> = listeners
                .iter()
                .map(|one| PollFd::from_borrowed_fd(one.fd(), PollFlags::IN))
                .collect();
            let look = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK.subsec_nanos()) };
            match poll(&mut fds, Some(&look)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => break Err(e.into()),
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (listener, _) in listeners.iter().zip(ready).filter(|(_, ready)| *ready) {
                let connection = match listener.accept() {
                    Ok(connection) => connection,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(e) => {
                        tell(format!("a client could not connect: {e}"));
                        // Not a busy loop where descriptors are exhausted.
                        std::thread::sleep(LOOK);
                        continue;
                    }
                };
                number += 1;
                match connection.try_clone() {
                    Ok(clone) => open().push((number, clone)),
                    Err(e) => {
                        tell(format!("a client could not connect: {e}"));
                        continue;
                    }
                }
                scope.spawn(move || {
                    let agreed = || connection.wait_at_most(None);
                    let served = connection
                        .wait_at_most(Some(PATIENCE))
                        .and_then(|()| session_of(volume, &connection, &connection, agreed));
                    match served {
                        Ok(Ended::InOrder) => {}
                        Ok(Ended::Gone) if stop.is_set() => {}
                        Ok(Ended::Gone) => tell(format!("client {number} went away")),
                        Err(e) => tell(format!("client {number}: {e}; the connection is ended")),
                    }
                    connection.end();
                    open().retain(|(other, _)| *other != number);
                });
            }
        };
        for (_, connection) in open().iter() {
            connection.end();
        }
        result
    });
    accepted?;
    volume.flush().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A URI ends at `#`, and `%` and `&` mean something in it.
    #[test]
    fn a_path_in_a_uri_is_that_path_for_whoever_reads_it() {
        assert_eq!(encoded(b"/run/a b#1%&\xff.sock"), "/run/a%20b%231%25%26%FF.sock");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a b");
        let uri = Listener::unix(&path).unwrap().uri();
        assert!(uri.starts_with("nbd+unix:///?socket=/") && uri.ends_with("/a%20b"), "{uri}");
    }

    /// Two servers that were given one path, the first of which lost its socket.
    #[test]
    fn a_server_that_ends_leaves_the_socket_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let first = Listener::unix(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = Listener::unix(&path).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok());
        drop(second);
        assert!(!path.exists());
    }
}
