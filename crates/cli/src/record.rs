//! `terrace record`: the memory accesses of an unmodified program, as a trace; or its calls.

mod calls;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use terrace_core::{Bytes, PerSecond};
use terrace_report::End;
use terrace_sim::SimError;
use terrace_sim::exact::{Access, Batch, Source};
use terrace_sim::trace::{TraceHeader, TraceWriter};

use crate::args::whole;
use crate::failure::Failure;
use crate::output::{self, Files, Kind, Output, count, facts};
use crate::run::child::exit_code;
use crate::sim::input::tell;
use crate::sim::recorder::{self, Via};

/// Record the memory accesses of a program and its calls for I/O, for `terrace sim --trace`; or
/// its calls alone.
///
/// The program runs under QEMU's user mode with a plugin, or under Valgrind's
/// lackey; it must be an x86-64 program, and needs no change. Children that it
/// starts are not recorded. Memory use is bounded, however long it runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace record -o sort.trace -- sort -n numbers.txt")]
pub(crate) struct Args {
    /// Where the trace goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// What records; without it QEMU where it is installed, else lackey.
    #[arg(long, value_name = "TOOL")]
    via: Option<Via>,

    /// Stop recording after so many accesses or calls (the program goes on).
    #[arg(long, value_name = "COUNT", value_parser = whole(1..=u64::MAX))]
    limit: Option<u64>,

    /// Record calls for I/O alone: of files and sockets, by the kernel's
    /// tracepoints, of any program and its children. Needs root and tracefs.
    #[arg(long, conflicts_with = "via")]
    calls: bool,

    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Serialize)]
struct Document {
    accesses: u64,
    /// Calls for I/O between them.
    calls: u64,
    bytes: Bytes,
    bytes_per_access: f64,
    speed: PerSecond,
    exit_code: Option<i32>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.calls {
            return calls::record(&self.program, &self.output, self.limit, json);
        }
        let mut files = Files::new();
        recorder::names(&mut files, &self.program)?;
        let out = files.writes("--output", &self.output, Kind::Recording)?;
        let header = TraceHeader {
            program: self.program.iter().map(|arg| arg.to_string_lossy().into_owned()).collect(),
            recorder: format!("terrace {}", env!("CARGO_PKG_VERSION")),
            fetches: false,
        };
        let bad =
            |e: io::Error| Failure::failed(format!("--output: {}: {e}", self.output.display()));
        let mut trace = Trace {
            writer: TraceWriter::new(BufWriter::new(out), &header).map_err(bad)?,
            flushed: Instant::now(),
            failed: None,
        };
        let mut recording = recorder::start(&self.program, self.via)?;
        let begun = Instant::now();
        let broken = self.read(recording.source.as_mut(), &mut trace);
        let seconds = begun.elapsed().as_secs_f64();
        let summary = recording.source.summary();
        let end = recording.end()?;
        let (accesses, calls) = (trace.writer.accesses(), trace.writer.calls());
        let bytes = Bytes(trace.finish()?);
        match broken {
            // What a program was about to access when it was killed.
            Some(broken) if matches!(end, End::Killed(_)) => {
                output::warn(format_args!("the last accesses are missing: {broken}"));
            }
            Some(broken) => return Err(Failure::failed(broken)),
            None => {}
        }
        let document = Document {
            accesses,
            calls,
            bytes,
            bytes_per_access: bytes.as_f64() / accesses.max(1) as f64,
            speed: PerSecond(accesses as f64 / seconds.max(f64::MIN_POSITIVE)),
            exit_code: match end {
                End::Exited(code) => Some(i32::from(code)),
                End::Killed(_) => None,
            },
        };
        let text = if json {
            output::json("terrace.record", &document)?
        } else {
            let each = format!("{bytes}, {:.2} B an access", document.bytes_per_access);
            facts(
                "",
                &[
                    ("accesses", count(accesses)),
                    ("calls", count(calls)),
                    ("trace", each),
                    ("speed", document.speed.to_string()),
                ],
            )
        };
        // The program's own output goes to stdout; ours must not mix with it.
        if json {
            output::print(&text)?;
        } else {
            output::show(&text);
        }
        let name = self.program[0].to_string_lossy();
        tell(&name, summary.as_ref());
        if accesses == 0 {
            return Err(recorder::nothing_recorded(&self.program[0], end));
        }
        Ok(exit_code(end))
    }

    /// Reads what the program accesses to its end, or to what is no access.
    fn read(&self, source: &mut dyn Source, trace: &mut Trace) -> Option<SimError> {
        let mut batch = Batch::default();
        loop {
            match source.next(&mut batch) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(broken) => return Some(broken),
            }
            if let Some(limit) = self.limit {
                let left = limit.saturating_sub(trace.writer.accesses());
                truncate(&mut batch, usize::try_from(left).unwrap_or(usize::MAX));
            }
            trace.write(&batch);
        }
    }
}

/// A trace that is being written.
struct Trace {
    writer: TraceWriter<BufWriter<Output>>,
    /// When it was last readable as far as it went.
    flushed: Instant,
    /// The first error; after it nothing more is written, and the program goes on.
    failed: Option<io::Error>,
}

/// How much of a trace is lost if its command is killed.
const FLUSH: Duration = Duration::from_secs(1);

impl Trace {
    fn write(&mut self, batch: &Batch) {
        if self.failed.is_some() {
            return;
        }
        let mut written = self.writer.write(batch);
        if written.is_ok() && self.flushed.elapsed() >= FLUSH {
            written = self.writer.flush();
            self.flushed = Instant::now();
        }
        let output = self.writer.get_mut().get_mut();
        output.keep();
        if let Err(e) = written {
            output.failure(&e).report();
            output::warn("nothing more is recorded; the program goes on");
            self.failed = Some(e);
        }
    }

    /// Completes it; how many bytes it has.
    fn finish(self) -> Result<u64, Failure> {
        if self.failed.is_some() {
            return Err(Failure::failed("--output: the trace is not complete"));
        }
        let mut out =
            self.writer.finish().map_err(|e| Failure::failed(format!("--output: {e}")))?;
        let written = out.flush();
        let output = out.get_mut();
        written.map_err(|e| output.failure(&e))?;
        output.complete()?;
        Ok(output.written())
    }
}

/// Leaves a batch its first accesses, and what stands between them.
fn truncate(batch: &mut Batch, accesses: usize) {
    let is_data = |(_, access): &(usize, &Access)| access.is_data();
    let after = batch.accesses.iter().enumerate().filter(is_data).nth(accesses);
    match after.map(|(at, _)| at) {
        // What is asked for behind the last access is behind the limit, too.
        _ if accesses == 0 => {
            batch.accesses.clear();
            batch.io.clear();
        }
        Some(end) => batch.accesses.truncate(end),
        None => {}
    }
}
