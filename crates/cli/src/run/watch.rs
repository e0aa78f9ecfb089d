//! `--watch`: the counters again and again, a JSON document a line.

use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use terrace_core::Nanos;
use terrace_report::{Moment, RunReport};

use crate::failure::Failure;
use crate::output;

/// The least interval: collecting takes some 100 µs a process.
pub(super) const MIN_WATCH: Nanos = Nanos::millis(10);

/// Tells the counters at an interval.
pub(super) struct Watcher {
    interval: Duration,
    due: Instant,
    out: Box<dyn Write>,
}

impl Watcher {
    /// Tells them to a file, or else on stderr: stdout is the program's.
    pub(super) fn new(interval: Nanos, to: Option<File>) -> Self {
        let interval = Duration::from_nanos(interval.get());
        let out: Box<dyn Write> = match to {
            Some(file) => Box::new(file),
            None => Box::new(io::stderr()),
        };
        Self { interval, due: Instant::now() + interval, out }
    }

    /// Whether the next line's time has come.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.due
    }

    /// How long that is from now.
    pub(super) fn due_in(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Writes a line.
    pub(super) fn tell(&mut self, report: RunReport) -> Result<(), Failure> {
        let line = output::json_line("terrace.watch", &Moment::from(report))?;
        // After a delay the lines go on from now; they do not catch up.
        self.due = (self.due + self.interval).max(Instant::now());
        self.out.write_all(line.as_bytes()).map_err(|e| Failure::failed(format!("--watch: {e}")))
    }
}
