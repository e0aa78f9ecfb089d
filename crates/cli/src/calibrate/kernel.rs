//! `terrace calibrate kernel`: what calls for I/O take on this kernel.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use serde::Serialize;
use terrace_core::Nanos;
use terrace_kloc::measure::{MeasureError, measure};
use terrace_kloc::tracing::TracingError;
use terrace_sim::kernel::measured_costs::text_of;

use crate::failure::Failure;
use crate::output::{self, Files, Kind, facts};
use crate::progress::Progress;
use crate::provision;

/// Measure what calls for I/O take on this kernel: objects and time.
///
/// Makes file and socket calls, counts what the kernel allocates for them by its tracepoints, times
/// them, and writes a file of costs for the simulated kernel
/// (`terrace reproduce klocs --costs FILE`). What cannot be measured keeps its built-in value, and
/// is named. Needs root, tracefs, and a directory on the file system to be measured. To be run when
/// the machine is idle.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace calibrate kernel -o kernel.toml --directory /var/tmp")]
pub(super) struct KernelArgs {
    /// Where to write the costs.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// A directory on the file system to be measured; files are made in one of their own in it.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    directory: PathBuf,
}

#[derive(Serialize)]
struct Document {
    file: String,
    kernel: String,
    /// Nanoseconds, by call.
    times: std::collections::BTreeMap<&'static str, f64>,
    /// Events a call, by call.
    objects: std::collections::BTreeMap<&'static str, std::collections::BTreeMap<String, f64>>,
    /// Numbers that were not measured.
    kept: Vec<String>,
    /// Tracepoints that this kernel does not have.
    missing: Vec<&'static str>,
}

impl KernelArgs {
    pub(super) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if !self.directory.is_dir() {
            let name = self.directory.display();
            return Err(Failure::bad_input(format!("--directory: {name} is no directory")));
        }
        let out = Files::new().writes("--output", &self.output, Kind::Whole)?;
        output::remove_when_interrupted();
        let bar = Progress::new().bar("calibrate kernel");
        let mut part = 0;
        let measured = measure(&self.directory, &mut |what| {
            bar.set(f64::from(part) / 2.0, what);
            part += 1;
        });
        bar.finish();
        let measured = measured.map_err(|error| match error {
            MeasureError::Tracing(TracingError::NotMounted | TracingError::File { .. }) => {
                Failure::unsupported(error)
            }
            MeasureError::File { .. } => Failure::bad_input(format!("--directory: {error}")),
            _ => Failure::failed(error),
        })?;
        let (text, kept) = text_of(&measured, &today());
        out.write_whole(text.as_bytes())?;
        for event in &measured.missing {
            output::warn(format_args!("this kernel has no tracepoint {event}"));
        }
        let document = Document {
            file: self.output.display().to_string(),
            kernel: measured.kernel,
            times: measured.times,
            objects: measured.objects,
            kept,
            missing: measured.missing,
        };
        let text = if json {
            output::json("terrace.calibrate-kernel", &document)?
        } else {
            render(&document)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn render(document: &Document) -> String {
    let times: Vec<(&str, String)> =
        document.times.iter().map(|(call, nanos)| (*call, format!("{nanos:.0} ns"))).collect();
    let objects: Vec<(&str, String)> = document
        .objects
        .iter()
        .map(|(call, events)| {
            let slabs = events.iter().filter_map(|(event, count)| {
                Some(format!("{count:.2} {}", event.strip_prefix("kmem_cache_alloc.")?))
            });
            let slabs: Vec<String> = slabs.collect();
            (*call, if slabs.is_empty() { "nothing".to_owned() } else { slabs.join(", ") })
        })
        .collect();
    format!(
        "Linux {}\na call takes\n{}\nand allocates from slab caches\n{}\nnot measured, as built \
         in: {}\n{}\n",
        document.kernel,
        facts("  ", &times),
        facts("  ", &objects),
        document.kept.join(", "),
        document.file
    )
}

/// The day, as the file's sources name it.
fn today() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = provision::time(Nanos::seconds(since.as_secs()));
    time.split('T').next().unwrap_or_default().to_owned()
}
