//! `terrace convert`: traces from one format to another.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_sim::full::Batch;
use terrace_sim::trace::import::{export_champsim, export_dramsim3};
use terrace_sim::trace::{Format, TraceHeader, TraceWriter, import};

use crate::args::one_of;
use crate::failure::Failure;
use crate::output;

const FROM: &[Format] = &Format::ALL;
const TO: &[Format] = &[Format::Terrace, Format::ChampSim, Format::DramSim3];

/// Convert a trace of memory accesses from one format to another.
///
/// Without `--from` the file's name decides: .champsim, .champsimtrace,
/// .drmemtrace, .lackey, .dramsim3, .ls, .perf, .damo or damon.data (also with .gz,
/// .zst or .xz), else our own format.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace convert mcf.champsimtrace.gz mcf.trace")]
pub(crate) struct Args {
    /// The trace.
    input: PathBuf,

    /// Where the converted one goes.
    output: PathBuf,

    /// The trace's format.
    #[arg(long, value_name = "FORMAT", value_parser = one_of(FROM, Format::name))]
    from: Option<Format>,

    /// The format to convert to.
    #[arg(long, value_name = "FORMAT", default_value = "terrace",
          value_parser = one_of(TO, Format::name))]
    to: Format,
}

#[derive(Serialize)]
struct Document {
    records: u64,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let from = self.from.unwrap_or_else(|| Format::of(&self.input));
        let mut source = import::open(&self.input, from).map_err(Failure::bad_input)?;
        let bad = |e: std::io::Error| Failure::failed(format!("{}: {e}", self.output.display()));
        let mut out = BufWriter::new(File::create(&self.output).map_err(bad)?);
        let records = match self.to {
            Format::ChampSim => {
                export_champsim(source.as_mut(), &mut out).map_err(Failure::bad_input)?
            }
            Format::DramSim3 => {
                export_dramsim3(source.as_mut(), &mut out).map_err(Failure::bad_input)?
            }
            _ => {
                let header = TraceHeader {
                    program: vec![source.describe()],
                    recorder: from.name().to_owned(),
                    fetches: from == Format::Lackey,
                };
                let mut writer = TraceWriter::new(&mut out, &header).map_err(bad)?;
                let mut batch = Batch::default();
                while source.next(&mut batch).map_err(Failure::bad_input)? {
                    writer.write(&batch).map_err(bad)?;
                }
                let accesses = writer.accesses();
                writer.finish().map_err(bad)?;
                accesses
            }
        };
        out.flush().map_err(bad)?;
        let text = if json {
            output::json("terrace.convert", &Document { records })?
        } else {
            format!("{}: {} records\n", self.output.display(), output::count(records))
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
