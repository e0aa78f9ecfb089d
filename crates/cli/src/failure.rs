//! Errors: one line on stderr that names what and where, and the exit code.

use std::fmt::Display;
use std::process::ExitCode;

use crate::output;

/// Why a command did not do its work.
///
/// A program that `terrace run` started has an exit status of its own, which
/// passes through; these are the statuses of Terrace itself.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The work was begun and failed: exit code 1.
    Failed(String),
    /// Wrong usage or bad input: exit code 2. Nothing was begun.
    BadInput(String),
    /// This machine lacks something that is named: exit code 3.
    Unsupported(String),
    /// Whoever reads our output went away (`terrace … | head`): not an error.
    ReaderGone,
}

impl Failure {
    /// The work was begun and failed.
    pub(crate) fn failed(what: impl Display) -> Self {
        Self::Failed(what.to_string())
    }

    /// Wrong usage or bad input.
    pub(crate) fn bad_input(what: impl Display) -> Self {
        Self::BadInput(what.to_string())
    }

    /// Something that this machine lacks.
    pub(crate) fn unsupported(what: impl Display) -> Self {
        Self::Unsupported(what.to_string())
    }

    /// What it says.
    pub(crate) fn message(self) -> String {
        match self {
            Self::Failed(message) | Self::BadInput(message) | Self::Unsupported(message) => message,
            Self::ReaderGone => String::new(),
        }
    }

    /// The same in one line.
    pub(crate) fn line(self) -> String {
        one_line(&self.message())
    }

    /// Says it on stderr, and turns it into the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (message, code) = match self {
            Self::Failed(message) => (message, 1),
            Self::BadInput(message) => (message, 2),
            Self::Unsupported(message) => (message, 3),
            Self::ReaderGone => return ExitCode::SUCCESS,
        };
        output::say(one_line(&message));
        ExitCode::from(code)
    }
}

/// Joins the lines of a message, so that an error is always one line.
fn one_line(message: &str) -> String {
    message.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_several_lines_becomes_one_so_that_scripts_can_read_it() {
        assert_eq!(one_line("first\n   second\n\nthird\n"), "first second third");
    }
}
