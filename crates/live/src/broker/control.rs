//! Changing the budget from outside: a socket beside the broker's page.
//!
//! A request is a line, and so is the answer: `budget BYTES`, and `was BYTES` or
//! `error TEXT`. The directory is closed to others already; the broker looks
//! all the same who is asking, and answers nobody but its own user and root.
//!
//! A process of a run asks which one it is for the broker ([`number`](super::number)): `number`, and
//! `number N`. Whoever can ask may know that.

use core::sync::atomic::Ordering::*;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use terrace_core::Bytes;

use super::page::BrokerPage;
use super::share::LEAST;

/// The socket's name in a run's directory.
pub const SOCKET: &str = "broker.sock";
/// Nobody is waited for longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Somebody who may not ask has so long to say it nevertheless.
const STRANGERS: Duration = Duration::from_millis(200);
/// A process that asks for its number waits no longer for the answer.
const HASTE: Duration = Duration::from_millis(200);
/// A longer line is no request.
const LONGEST: u64 = 64;
/// The question of a process for its own number.
const NUMBER: &str = "number\n";

/// Answers requests from a thread of its own for as long as the process lives.
pub(super) fn listen(directory: &Path, page: &'static BrokerPage) -> io::Result<()> {
    listen_for(directory, move |budget| {
        let was = page.budget.swap(budget.get(), AcqRel);
        page.changes.fetch_add(1, Relaxed);
        page.ring();
        Bytes(was)
    })
}

/// Answers requests from a thread of its own for as long as the process lives; `change` takes
/// another budget, and gives the one before.
///
/// # Errors
/// The system's, if the socket cannot be made.
pub fn listen_for(
    directory: &Path,
    change: impl Fn(Bytes) -> Bytes + Send + 'static,
) -> io::Result<()> {
    let listener = terrace_sockets::bind(&directory.join(SOCKET))?;
    std::thread::Builder::new().name("broker-control".to_owned()).spawn(move || {
        crate::workers::processors::block_signals();
        for stream in listener.incoming().flatten() {
            // Who does not listen to the answer need not have one.
            let _ = answer(&stream, &change);
        }
    })?;
    Ok(())
}

fn answer(stream: &UnixStream, change: &impl Fn(Bytes) -> Bytes) -> io::Result<()> {
    // SAFETY: asks for this process's user.
    let us = unsafe { libc::geteuid() };
    let peer = peer(stream)?;
    let may = may_ask(peer.uid, us);
    stream.set_read_timeout(Some(if may { PATIENCE } else { STRANGERS }))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    let read = BufReader::new(stream.take(LONGEST)).read_line(&mut line);
    if line == NUMBER {
        return (&*stream).write_all(format!("number {}\n", peer.pid).as_bytes());
    }
    if !may {
        // Not before the request was read: who still writes it when we hang up loses the answer.
        return (&*stream).write_all(b"error this broker belongs to somebody else\n");
    }
    read?;
    let text = match parse(&line) {
        Ok(budget) => format!("was {}\n", change(budget).get()),
        Err(error) => format!("error {error}\n"),
    };
    (&*stream).write_all(text.as_bytes())
}

/// Whether a user may ask the broker of another.
fn may_ask(who: u32, owner: u32) -> bool {
    who == owner || who == 0
}

/// The process at the other end, by its number here (0 if it has none), and its user.
fn peer(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: writes into `who`, at most `len` bytes.
    let error = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut len,
        )
    };
    if error == 0 { Ok(who) } else { Err(io::Error::last_os_error()) }
}

/// Reads a request.
pub fn parse(line: &str) -> Result<Bytes, String> {
    let line = line.strip_suffix('\n').ok_or("a request ends with a line feed")?;
    let Some(amount) = line.strip_prefix("budget ") else {
        return Err("a request is `budget BYTES`".to_owned());
    };
    let budget = amount.parse().map(Bytes).map_err(|_| "BYTES is a number".to_owned())?;
    if budget < LEAST {
        return Err(format!("the budget must be at least {LEAST}"));
    }
    Ok(budget)
}

/// Asks the broker at a socket by which number it knows this process.
///
/// # Errors
/// The system's, or that the process has no number there (`NotFound`).
pub(super) fn own_number(socket: &Path) -> io::Result<u32> {
    let mut stream = terrace_sockets::connect(socket)?;
    stream.set_read_timeout(Some(HASTE))?;
    // A broker that is gone by now is no reason for a signal in the program.
    // SAFETY: a text that is there.
    let sent = unsafe {
        let (at, len) = (NUMBER.as_ptr().cast(), NUMBER.len());
        libc::send(stream.as_raw_fd(), at, len, libc::MSG_NOSIGNAL)
    };
    if sent != NUMBER.len() as isize {
        return Err(io::Error::last_os_error());
    }
    let (mut text, mut len) = ([0; 32], 0);
    while len < text.len() && !text[..len].ends_with(b"\n") {
        match stream.read(&mut text[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let answer = std::str::from_utf8(&text[..len]).ok();
    let number = answer.and_then(|text| text.strip_prefix("number ")?.trim_end().parse().ok());
    number.filter(|&number| number != 0).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Asks the broker in a directory for another budget; returns the one before, or
/// what the broker says against it.
pub fn set_budget(directory: &Path, budget: Bytes) -> io::Result<Result<Bytes, String>> {
    let mut stream = terrace_sockets::connect(&directory.join(SOCKET))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    writeln!(stream, "budget {}", budget.get())?;
    let mut text = String::new();
    BufReader::new(stream.take(4096)).read_line(&mut text)?;
    let text = text.trim_end();
    if let Some(was) = text.strip_prefix("was ").and_then(|was| was.parse().ok()) {
        return Ok(Ok(Bytes(was)));
    }
    Ok(Err(text.strip_prefix("error ").unwrap_or("no answer").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::page::FILE;

    #[test]
    fn a_request_changes_the_budget_and_nonsense_does_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let page = BrokerPage::create(&directory.path().join(FILE)).expect("a page");
        page.budget.store(Bytes::mib(64).get(), Relaxed);
        listen(directory.path(), page).expect("a socket");

        let was = set_budget(directory.path(), Bytes::mib(32)).expect("an answer");
        let small = set_budget(directory.path(), Bytes::kib(4)).expect("an answer");

        assert_eq!(was, Ok(Bytes::mib(64)));
        assert!(small.expect_err("too small").contains("at least"));
        assert_eq!(page.budget.load(Relaxed), Bytes::mib(32).get());
    }

    /// The kernel says it, in the broker's terms.
    #[test]
    fn a_process_is_told_the_number_that_the_broker_knows_it_by() {
        let directory = tempfile::tempdir().expect("a directory");
        listen_for(directory.path(), |budget| budget).expect("a socket");

        let number = own_number(&directory.path().join(SOCKET)).expect("an answer");

        assert_eq!(number, std::process::id());
        let nobody = own_number(&directory.path().join("none")).expect_err("nobody listens");
        assert_eq!(nobody.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn only_the_owner_and_root_may_ask() {
        assert!(may_ask(1000, 1000) && may_ask(0, 1000));
        assert!(!may_ask(1001, 1000) && !may_ask(1000, 0));
    }

    #[test]
    fn requests_are_read_strictly() {
        assert_eq!(parse("budget 1048576\n"), Ok(Bytes::mib(1)));
        for bad in ["", "budget 1048576", "budget\n", "budget -1\n", "budget 1e9\n", "quit\n"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
