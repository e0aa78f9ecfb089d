//! `terrace provision record`: a machine's demand for memory, for `replay`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use terrace_core::Nanos;
use terrace_provision::recording::Writer;
use terrace_provision::{NodeId, Sample, ZoneInfo};
use terrace_signals::may_stop;

use super::plan::{discover, page};
use crate::failure::Failure;
use crate::output::{self, Files, Kind};

/// Record how much memory each node has free, for `terrace provision replay`.
///
/// It ends after the time given by --for, or when it is interrupted. The file is
/// complete after each line.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace provision record --for 1h -o monday.zones")]
pub(crate) struct Args {
    /// Where the recording goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// How long to record; without it until interrupted.
    #[arg(long = "for", value_name = "TIME")]
    duration: Option<Nanos>,

    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    every: Nanos,
}

#[derive(Serialize)]
struct Document {
    samples: u64,
    duration: Nanos,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.every < Nanos::millis(1) {
            return Err(Failure::bad_input("--every: the least is 1 ms"));
        }
        if self.duration.is_some_and(|duration| duration < self.every) {
            return Err(Failure::bad_input(
                "--for: is shorter than --every, so that nothing would be recorded",
            ));
        }
        if json && self.output == Path::new("-") {
            return Err(Failure::bad_input(
                "--output: `-` is standard output, where the document of --json goes",
            ));
        }
        let mut machine = discover(None)?;
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&s| may_stop(s)))
                .map_err(|e| Failure::failed(format!("signals: {e}")))?;
        let mut out = Files::new().writes("--output", &self.output, Kind::Recording)?;
        let (stop, stopped) = mpsc::channel();
        thread::spawn(move || {
            signals.forever().next();
            let _ = stop.send(());
        });
        let bad = |e: std::io::Error| {
            Failure::failed(format!("--output: {}: {e}", self.output.display()))
        };
        let mut writer = Writer::new(&mut out, machine.block).map_err(bad)?;
        let (begun, every) = (Instant::now(), Duration::from_nanos(self.every.get()));
        let (mut samples, mut last) = (0_u64, Nanos::ZERO);
        loop {
            let due = begun + every * u32::try_from(samples + 1).unwrap_or(u32::MAX);
            match stopped.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            }
            let at = Nanos(begun.elapsed().as_nanos() as u64);
            let text = fs::read_to_string("/proc/zoneinfo")
                .map_err(|e| Failure::failed(format!("/proc/zoneinfo: {e}")))?;
            let zones = ZoneInfo::parse(&text)
                .map_err(|e| Failure::failed(format!("/proc/zoneinfo: {e}")))?;
            // A node that was not there has come.
            let is_known = |&node: &NodeId| machine.nodes.iter().any(|known| known.node == node);
            if !zones.nodes().iter().all(is_known) {
                machine = discover(None)?;
            }
            let near = |node| machine.slow_of(node);
            writer.write(&Sample::of(&zones, at, page(), near)).map_err(bad)?;
            (samples, last) = (samples + 1, at);
            if self.duration.is_some_and(|duration| at >= duration) {
                break;
            }
        }
        if samples == 0 {
            return Err(Failure::failed("interrupted before anything was recorded"));
        }
        out.complete()?;
        let document = Document { samples, duration: last };
        if json {
            output::print(&output::json("terrace.provision.record", &document)?)?;
        } else {
            output::say(format_args!("{samples} looks in {last}"));
        }
        Ok(ExitCode::SUCCESS)
    }
}
