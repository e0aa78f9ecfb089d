//! Sockets, and a thread for each connection.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::session::{Ended, session};
use crate::pm::Pm;
use crate::volume::Volume;

/// How soon a server notices that it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// A socket in the file system that only its owner may use. Its file is removed at the end.
    Unix(UnixListener, PathBuf),
    /// A port. Whoever reaches it may read and write; nothing is encrypted.
    Tcp(TcpListener),
}

impl Listener {
    /// Makes a socket of which only the owner has the use. One that a server has left behind is
    /// replaced; anything else with the name stays.
    pub fn unix(path: &Path) -> io::Result<Self> {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|there| there.file_type().is_socket());
        if is_socket {
            match UnixStream::connect(path) {
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                _ => return Err(io::ErrorKind::AddrInUse.into()),
            }
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
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        let bound = UnixListener::from(socket);
        rustix::net::listen(&bound, 64)?;
        bound.set_nonblocking(true)?;
        Ok(Self::Unix(bound, path.to_owned()))
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
            Self::Unix(_, path) => format!("nbd+unix:///?socket={}", path.display()),
            Self::Tcp(bound) => {
                bound.local_addr().map_or_else(|_| "nbd://".into(), |at| format!("nbd://{at}"))
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(bound, _) => bound.as_fd(),
            Self::Tcp(bound) => bound.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Connection> {
        Ok(match self {
            Self::Unix(bound, _) => {
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
        if let Self::Unix(_, path) = self {
            // Somebody may have removed it already.
            let _ = fs::remove_file(path);
        }
    }
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

/// Serves a volume until it is stopped, each connection in a thread and a lane of its own. What
/// ends a connection otherwise than in good order is told to `tell`.
pub fn serve<P: Pm>(
    volume: &Volume<P>,
    listeners: &[Listener],
    stop: &Stop,
    tell: &(dyn Fn(String) + Sync),
) -> io::Result<()> {
    let open = Mutex::new(Vec::<(u64, Connection)>::new());
    let open = || open.lock().unwrap_or_else(PoisonError::into_inner);
    let accepted = std::thread::scope(|scope| {
        let mut number = 0u64;
        let result: io::Result<()> = loop {
            if stop.is_set() {
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
                    match session(volume, &connection, &connection) {
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
    if volume.is_read_only() {
        return Ok(());
    }
    let flushed = volume.lane().and_then(|mut lane| lane.flush());
    flushed.map_err(io::Error::other)
}
