//! Standard output and standard error. Neither may end a command in another way than its work
//! does: the macros of the standard library panic where a stream is full or its reader is gone.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Arc;

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

/// Writes to stderr, as it is. What cannot be written is lost: there is nobody left to tell.
pub(crate) fn show(text: &str) {
    // In one piece, so that lines of several processes do not get mixed up.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Says a line on stderr. What is in it of files and arguments does not command the terminal.
pub(crate) fn say(line: impl Display) {
    show(&format!("terrace: {}\n", super::plain(&line.to_string())));
}

/// Says on stderr what goes otherwise than one might expect.
pub(crate) fn warn(line: impl Display) {
    say(format_args!("warning: {line}"));
}
