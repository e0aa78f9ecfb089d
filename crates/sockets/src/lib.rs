//! UNIX sockets whose paths may be of any length.
//!
//! A socket's address has room for a path of 107 bytes, and a directory of a user's choice may have a
//! longer one. Then the directory is opened, and the socket is named by the handle:
//! `/proc/self/fd/N/NAME`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Bytes that a socket's address has room for, with the zero behind the path.
const ROOM: usize = 108;

/// Where a process finds what it has open.
const OPEN: &str = "/proc/self/fd";

/// Makes a socket and listens on it.
///
/// # Errors
/// The system's; and `InvalidInput`, if the path is too long and cannot be made shorter.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    UnixListener::bind(ShortPath::of(path)?.path())
}

/// Connects to a socket.
///
/// # Errors
/// As of [`bind`].
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    UnixStream::connect(ShortPath::of(path)?.path())
}

/// A path that a socket's address has room for. It holds for as long as this lives.
#[derive(Debug)]
pub struct ShortPath {
    path: PathBuf,
    /// Where the file lies, if the path leads through the handle.
    _directory: Option<File>,
}

impl ShortPath {
    /// One of the file that this path is of.
    ///
    /// # Errors
    /// As of [`bind`].
    pub fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() < ROOM {
            return Ok(Self { path: path.to_owned(), _directory: None });
        }
        let too_long = |what| io::Error::new(io::ErrorKind::InvalidInput, what);
        let name = path.file_name().ok_or_else(|| too_long("the path does not end with a name"))?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(directory.unwrap_or(Path::new(".")))?;
        let short = Path::new(OPEN).join(directory.as_raw_fd().to_string()).join(name);
        if short.as_os_str().len() >= ROOM {
            return Err(too_long("the name is too long for a socket"));
        }
        if !Path::new(OPEN).exists() {
            return Err(too_long("the path is too long for a socket (107 bytes), without /proc"));
        }
        Ok(Self { path: short, _directory: Some(directory) })
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};

    use super::*;

    /// A runtime directory of 200 letters ended the command.
    #[test]
    fn a_socket_may_lie_in_a_directory_whose_path_is_longer_than_its_address() {
        let temporary = tempfile::tempdir().expect("a directory");
        let directory = temporary.path().join("x".repeat(200)).join("y".repeat(200));
        fs::create_dir_all(&directory).expect("a directory");
        for name in ["socket", "a b"] {
            let path = directory.join(name);
            let listener = bind(&path).expect("a socket");
            let mut client = connect(&path).expect("it listens");
            let (mut server, _) = listener.accept().expect("a client");
            client.write_all(b"word").expect("a reader");
            drop(client);
            let mut said = String::new();
            server.read_to_string(&mut said).expect("text");
            assert_eq!(said, "word");
            assert!(path.exists(), "it is where it was to be");
        }
    }

    #[test]
    fn what_cannot_be_shortened_is_refused() {
        let temporary = tempfile::tempdir().expect("a directory");
        let path = temporary.path().join("x".repeat(200));
        for error in [bind(&path).map(drop), connect(&path).map(drop)] {
            let error = error.expect_err("too long");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        let absent = temporary.path().join("x".repeat(200)).join("socket");
        assert_eq!(connect(&absent).expect_err("no directory").kind(), io::ErrorKind::NotFound);
    }
}
