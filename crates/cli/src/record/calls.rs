//! `terrace record --calls`: what a program asks the kernel for.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::{Command, ExitCode};

use serde::Serialize;
use terrace_core::Bytes;
use terrace_kloc::tracing::{Tracefs, TracingError};
use terrace_sim::kernel::recorded::{self, Counted, Recording, Translator};

use crate::failure::Failure;
use crate::output::{self, Files, Kind, count, facts};
use crate::run::program;

/// Calls in a recording that has no limit of its own: they are kept in memory until the program
/// ends, some 64 bytes each.
const MOST: u64 = 20_000_000;

#[derive(Serialize)]
struct Document<'a> {
    calls: u64,
    threads: u32,
    files: usize,
    sockets: u32,
    bytes: Bytes,
    lost: u64,
    skipped: &'a std::collections::BTreeMap<String, u64>,
    counted: &'a Counted,
    /// Tracepoints that this kernel does not have.
    missing: &'a [&'static str],
    exit_code: Option<i32>,
}

/// Runs a program and records its calls.
pub(super) fn record(
    command_line: &[OsString],
    to: &Path,
    limit: Option<u64>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let mut files = Files::new();
    program::names(&mut files, command_line);
    let out = files.writes("--output", to, Kind::Recording)?;
    let tracefs = Tracefs::find().map_err(Failure::unsupported)?;
    let mut translator = Translator::new(Some(limit.unwrap_or(MOST)));
    let mut command = Command::new(&command_line[0]);
    command.args(&command_line[1..]);
    let traced = tracefs.trace(&mut command, |line| translator.line(line));
    let traced = traced.map_err(|error| match error {
        TracingError::Program { .. } => Failure::bad_input(error),
        TracingError::NotMounted | TracingError::File { .. } => Failure::unsupported(error),
    })?;
    let words = command_line.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let recorder = format!("terrace {}", env!("CARGO_PKG_VERSION"));
    let recording = translator.finish(words, recorder, kernel.trim().to_owned());
    let bad = |e: io::Error| Failure::failed(format!("--output: {}: {e}", to.display()));
    let mut out = BufWriter::new(out);
    recorded::write(&mut out, &recording).map_err(bad)?;
    out.flush().map_err(bad)?;
    let output = out.get_mut();
    output.complete()?;
    let bytes = Bytes(output.written());
    let document = Document {
        calls: recording.calls.len() as u64,
        threads: recording.threads,
        files: recording.files.len(),
        sockets: recording.sockets,
        bytes,
        lost: recording.lost,
        skipped: &recording.skipped,
        counted: &recording.counted,
        missing: &traced.missing,
        exit_code: traced.status.code(),
    };
    if json {
        output::print(&output::json("terrace.record-calls", &document)?)?;
    } else {
        // The program's own output goes to stdout; ours must not mix with it.
        output::show(&render(&document));
    }
    tell(&recording, &traced.missing);
    if recording.calls.is_empty() {
        return Err(Failure::failed("nothing was recorded: the program made no call for I/O"));
    }
    Ok(match traced.status.code() {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => ExitCode::FAILURE,
    })
}

fn render(document: &Document<'_>) -> String {
    facts(
        "",
        &[
            ("calls", count(document.calls)),
            ("threads", count(document.threads.into())),
            ("files", count(document.files as u64)),
            ("sockets", count(document.sockets.into())),
            ("recording", document.bytes.to_string()),
        ],
    )
}

/// What is not in the recording.
fn tell(recording: &Recording, missing: &[&str]) {
    if recording.lost > 0 {
        let lost = count(recording.lost);
        output::warn(format_args!("the kernel lost {lost} events: calls are missing"));
    }
    for (why, calls) in &recording.skipped {
        output::warn(format_args!("not recorded: {}: {why}", count(*calls)));
    }
    for event in missing {
        output::warn(format_args!("this kernel has no tracepoint {event}"));
    }
}
