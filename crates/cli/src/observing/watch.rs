//! `--watch`: the counters again and again, a JSON document a line.

use std::io::Write;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_core::Nanos;

use crate::failure::Failure;
use crate::output::{self, Output};

/// The least interval: collecting takes some 100 µs a process.
const MIN_WATCH: Nanos = Nanos::millis(10);

/// Tells the counters at an interval.
pub(crate) struct Watcher {
    interval: Duration,
    due: Instant,
    out: To,
}

/// Where lines go.
enum To {
    File(Output),
    Stderr,
}

impl Watcher {
    /// Tells them to a file, or else on stderr: stdout is the program's, or the report's.
    pub(crate) fn new(interval: Nanos, to: Option<Output>) -> Result<Self, Failure> {
        if interval < MIN_WATCH {
            return Err(Failure::bad_input(format!("--watch: at least {MIN_WATCH}")));
        }
        let interval = Duration::from_nanos(interval.get());
        let out = to.map_or(To::Stderr, To::File);
        Ok(Self { interval, due: Instant::now() + interval, out })
    }

    /// Whether the next line's time has come.
    pub(crate) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// How long that is from now.
    pub(crate) fn due_in(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Writes a line; `kind` says what it is.
    pub(crate) fn tell(&mut self, kind: &str, body: &impl Serialize) -> Result<(), Failure> {
        let line = output::json_line(kind, body)?;
        // After a delay the lines go on from now; they do not catch up.
        self.due = (self.due + self.interval).max(Instant::now());
        match &mut self.out {
            To::File(file) => file.write_all(line.as_bytes()).map_err(|e| file.failure(&e)),
            To::Stderr => {
                output::try_show(&line).map_err(|e| Failure::failed(format!("--watch: {e}")))
            }
        }
    }
}
