//! `terrace record`: the memory accesses of an unmodified program, as a trace.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use terrace_core::{Bytes, PerSecond};
use terrace_sim::full::Batch;
use terrace_sim::trace::{TraceHeader, TraceWriter};

use crate::failure::Failure;
use crate::output::{self, count, facts};
use crate::sim::recorder::{self, Via};

/// Record the memory accesses of a program, for `terrace sim --trace`.
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

    /// Stop recording after so many accesses (the program goes on).
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,

    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Serialize)]
struct Document {
    accesses: u64,
    bytes: Bytes,
    bytes_per_access: f64,
    speed: PerSecond,
    exit_code: Option<i32>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let bad = |e: std::io::Error| {
            Failure::failed(format!("--output: {}: {e}", self.output.display()))
        };
        let mut recording = recorder::start(&self.program, self.via)?;
        let header = TraceHeader {
            program: self.program.iter().map(|arg| arg.to_string_lossy().into_owned()).collect(),
            recorder: format!("terrace {}", env!("CARGO_PKG_VERSION")),
            fetches: false,
        };
        let file = File::create(&self.output)
            .map_err(|e| Failure::bad_input(format!("--output: {}: {e}", self.output.display())))?;
        let mut writer = TraceWriter::new(BufWriter::new(file), &header).map_err(bad)?;
        let begun = Instant::now();
        let mut batch = Batch::default();
        while recording.source.next(&mut batch).map_err(Failure::failed)? {
            batch.accesses.retain(|access| !access.is_fetch());
            if let Some(limit) = self.limit {
                let left = limit.saturating_sub(writer.accesses());
                batch.accesses.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            }
            writer.write(&batch).map_err(bad)?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let status = recording.end()?;
        let accesses = writer.accesses();
        writer.finish().map_err(bad)?;
        let bytes = Bytes(std::fs::metadata(&self.output).map_err(bad)?.len());
        let document = Document {
            accesses,
            bytes,
            bytes_per_access: bytes.as_f64() / accesses.max(1) as f64,
            speed: PerSecond(accesses as f64 / seconds.max(f64::MIN_POSITIVE)),
            exit_code: status.code(),
        };
        let text = if json {
            output::json("terrace.record", &document)?
        } else {
            let each = format!("{bytes}, {:.2} B an access", document.bytes_per_access);
            facts(
                "",
                &[
                    ("accesses", count(accesses)),
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
        if accesses == 0 {
            return Err(Failure::failed("nothing was recorded: is it an x86-64 program?"));
        }
        Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
    }
}
