//! Just enough of an HTTP server: one question, one answer, one connection at
//! a time. Whoever asks slowly or too much is hung up on.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use httparse::{EMPTY_HEADER, Request, Status};
use rustix::fs::Mode;
use terrace_report::openmetrics::CONTENT_TYPE;

use super::Listen;
use crate::failure::Failure;

/// The longest question.
const QUESTION: usize = 8 << 10;
/// The most header fields in it.
const FIELDS: usize = 64;
/// How long a connection may take altogether.
const PATIENCE: Duration = Duration::from_secs(2);

/// A socket on which the figures are asked for.
pub(super) struct Server {
    socket: Socket,
    address: String,
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The file of a UNIX socket; gone when this is dropped. Kept apart from the
/// server, which may live in a thread that nobody waits for.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
}

impl SocketFile {
    /// The file of a socket that was bound, if it has one.
    pub(super) fn of(listen: &Listen) -> Option<Self> {
        match listen {
            Listen::Tcp(_) => None,
            Listen::Unix(path) => Some(Self { path: path.clone(), identity: identity(path).ok()? }),
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody else may have removed it, and put something else there.
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Server {
    /// Begins to listen where an option says.
    pub(super) fn bind(option: &str, listen: &Listen) -> Result<Self, Failure> {
        match listen {
            Listen::Tcp(address) => {
                let failed = |e: io::Error| {
                    let what = match e.kind() {
                        io::ErrorKind::AddrInUse => "another program listens there".to_owned(),
                        io::ErrorKind::AddrNotAvailable => {
                            "this machine has no such address".to_owned()
                        }
                        _ => e.to_string(),
                    };
                    Failure::bad_input(format!("{option}: {address}: {what}"))
                };
                let socket = TcpListener::bind(address).map_err(failed)?;
                let address = format!("http://{}/metrics", socket.local_addr().map_err(failed)?);
                Ok(Self { socket: Socket::Tcp(socket), address })
            }
            Listen::Unix(path) => {
                let failed = |what: String| {
                    Failure::bad_input(format!("{option}: unix:{}: {what}", path.display()))
                };
                remove_stale(path).map_err(failed)?;
                // The socket is made with the rights that it keeps.
                let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
                let socket = terrace_sockets::bind(path);
                rustix::process::umask(before);
                let address = format!("unix:{}", path.display());
                let socket = socket.map_err(|e| failed(e.to_string()))?;
                Ok(Self { socket: Socket::Unix(socket), address })
            }
        }
    }

    /// Where it can be asked.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Answers for ever with what `figures` gives.
    pub(super) fn serve(&self, figures: impl Fn() -> Option<String>) -> Result<ExitCode, Failure> {
        loop {
            let outcome = match &self.socket {
                Socket::Tcp(socket) => socket.accept().map(|(connection, _)| {
                    let limit = |rest| {
                        connection.set_read_timeout(Some(rest))?;
                        connection.set_write_timeout(Some(rest))
                    };
                    answer(&connection, limit, &figures)
                }),
                Socket::Unix(socket) => socket.accept().map(|(connection, _)| {
                    let limit = |rest| {
                        connection.set_read_timeout(Some(rest))?;
                        connection.set_write_timeout(Some(rest))
                    };
                    answer(&connection, limit, &figures)
                }),
            };
            match outcome {
                // What went wrong with one who asks is not our failure.
                Ok(Ok(()) | Err(_)) => {}
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => return Err(Failure::failed(format!("{}: {e}", self.address))),
            }
        }
    }
}

/// Removes a socket that nobody listens on any more; anything else stays, and is said.
fn remove_stale(path: &Path) -> Result<(), String> {
    let Ok(there) = fs::symlink_metadata(path) else { return Ok(()) };
    if there.is_dir() {
        return Err("is a directory".to_owned());
    }
    if !there.file_type().is_socket() {
        return Err("a file that is no socket is there".to_owned());
    }
    if terrace_sockets::connect(path).is_ok() {
        return Err("another program listens there".to_owned());
    }
    fs::remove_file(path).map_err(|e| format!("the socket that was left there: {e}"))
}

/// Reads one question and answers it.
fn answer<C>(
    mut connection: C,
    limit: impl Fn(Duration) -> io::Result<()>,
    figures: impl Fn() -> Option<String>,
) -> io::Result<()>
where
    C: Read + Write,
{
    let deadline = Instant::now() + PATIENCE;
    let mut question = Vec::with_capacity(1024);
    let response = loop {
        if let Some(response) = respond(&question, &figures) {
            break response;
        }
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        limit(rest)?;
        let mut part = [0; 1024];
        let length = connection.read(&mut part)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        question.extend_from_slice(&part[..length]);
    };
    limit(PATIENCE)?;
    connection.write_all(response.as_bytes())?;
    connection.flush()
}

/// The response to a question; `None` while it is not complete.
fn respond(question: &[u8], figures: impl Fn() -> Option<String>) -> Option<String> {
    let mut fields = [EMPTY_HEADER; FIELDS];
    let mut request = Request::new(&mut fields);
    let status = match request.parse(question) {
        Ok(Status::Partial) if question.len() < QUESTION => return None,
        Ok(Status::Partial) => "431 Request Header Fields Too Large",
        Err(_) => "400 Bad Request",
        Ok(Status::Complete(_)) => {
            let path = request.path.unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default();
            match (request.method, path) {
                (Some("GET" | "HEAD"), "/metrics") => match figures() {
                    Some(text) => {
                        let length = text.len();
                        let text = if request.method == Some("HEAD") { "" } else { &text };
                        return Some(format!(
                            "HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\n\
                             Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
                        ));
                    }
                    None => "500 Internal Server Error",
                },
                (Some("GET" | "HEAD"), _) => "404 Not Found",
                _ => "405 Method Not Allowed\r\nAllow: GET, HEAD",
            }
        }
    };
    Some(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(question: &[u8]) -> Option<String> {
        let response = respond(question, || Some("figures\n".to_owned()))?;
        Some(response.split(' ').nth(1).unwrap().to_owned())
    }

    #[test]
    fn only_a_complete_question_for_the_metrics_is_answered_with_them() {
        let good = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";

        let response = respond(good, || Some("figures\n".to_owned())).unwrap();

        assert!(response.ends_with("Content-Length: 8\r\nConnection: close\r\n\r\nfigures\n"));
        assert_eq!(status(&good[..good.len() - 1]), None);
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n").as_deref(), Some("404"));
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n").as_deref(), Some("405"));
        assert_eq!(status(b"\0\0\0\0\r\n\r\n").as_deref(), Some("400"));
    }

    #[test]
    fn a_socket_takes_its_own_file_away_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        for replaced in [false, true] {
            let listen = Listen::Unix(path.clone());
            let _server = Server::bind("--metrics", &listen).unwrap();
            let socket = SocketFile::of(&listen).unwrap();
            if replaced {
                let other = dir.path().join("other");
                fs::write(&other, "a report").unwrap();
                fs::rename(&other, &path).unwrap();
            }
            drop(socket);
            assert_eq!(path.exists(), replaced);
        }
    }

    #[test]
    fn a_question_without_end_is_refused_rather_than_kept() {
        let mut endless = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        endless.resize(QUESTION, b'a');

        assert_eq!(status(&endless).as_deref(), Some("431"));
    }
}
