//! Recording what a policy was told and what the economist decided.

use std::io::{self, Write};

use serde::Serialize;
use terrace_core::Event;
use terrace_economics::Decision;

/// Listens to a simulation. Everything that the policy is told comes here, in
/// order, so that [`terrace_policy::Brain::replay`] can repeat the run without
/// the simulator; and every decision of the economist, so that it can be
/// explained.
pub trait Recorder: Send {
    /// The policy was told this.
    fn event(&mut self, event: &Event);
    /// The economist decided this, about the last tick's proposals.
    fn decisions(&mut self, decisions: &[Decision]);
}

/// One line of a recording.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Line<'a> {
    Event(&'a Event),
    Decision(&'a Decision),
}

/// Writes a recording as JSON lines: `{"event": …}` or `{"decision": …}`.
///
/// A write that fails ends the recording; [`JsonLines::finish`] says so.
#[derive(Debug)]
pub struct JsonLines<W> {
    output: W,
    error: Option<io::Error>,
}

impl<W: Write + Send> JsonLines<W> {
    /// A recording into `output`, which should be buffered.
    pub fn new(output: W) -> Self {
        Self { output, error: None }
    }

    fn line(&mut self, line: &Line<'_>) {
        if self.error.is_some() {
            return;
        }
        let written = serde_json::to_writer(&mut self.output, line)
            .map_err(io::Error::from)
            .and_then(|()| self.output.write_all(b"\n"));
        self.error = written.err();
    }

    /// Flushes; returns the first error there was.
    pub fn finish(mut self) -> io::Result<W> {
        match self.error {
            Some(error) => Err(error),
            None => self.output.flush().map(|()| self.output),
        }
    }
}

impl<W: Write + Send> Recorder for JsonLines<W> {
    fn event(&mut self, event: &Event) {
        self.line(&Line::Event(event));
    }

    fn decisions(&mut self, decisions: &[Decision]) {
        for decision in decisions {
            self.line(&Line::Decision(decision));
        }
    }
}
