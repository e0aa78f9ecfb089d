//! `terrace convert`: traces from one format to another.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use terrace_sim::exact::{Batch, Source};
use terrace_sim::trace::import::{export_champsim, export_dramsim3};
use terrace_sim::trace::partial::Cut;
use terrace_sim::trace::{Format, Summary, TraceHeader, TraceWriter, import};

use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, Files, Kind, Output};
use crate::sim::input::{failure, tell, tell_calls, told};

const FROM: &[Format] = &Format::ALL;
const TO: &[Format] = &[Format::Terrace, Format::ChampSim, Format::DramSim3];

/// Convert a trace of memory accesses from one format to another.
///
/// Without `--from` the file's name decides: .champsim, .champsimtrace,
/// .drmemtrace, .lackey, .dramsim3, .ls, .perf, .damo or damon.data (also with .gz,
/// .zst or .xz), else our own format. Without `--to` the output's name does. `-` is
/// standard input, or standard output. What of a trace is skipped, dropped or folded
/// is said on stderr.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace convert mcf.champsimtrace.gz mcf.trace")]
pub(crate) struct Args {
    /// The trace.
    input: PathBuf,

    /// Where the converted one goes.
    output: PathBuf,

    /// Use what can be read of a trace that is cut off or damaged.
    #[arg(long)]
    partial: bool,

    /// The trace's format.
    #[arg(long, value_name = "FORMAT", value_parser = one_of(FROM, Format::name))]
    from: Option<Format>,

    /// The format to convert to.
    #[arg(long, value_name = "FORMAT", value_parser = one_of(TO, Format::name))]
    to: Option<Format>,
}

#[derive(Serialize)]
struct Document {
    /// Accesses, instructions of ChampSim's, or requests that were written.
    records: u64,
    /// Why the trace was not read to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    cut: Option<String>,
    input: Summary,
}

impl Args {
    pub(crate) fn execute(mut self, json: bool) -> Result<ExitCode, Failure> {
        let from = self.from.unwrap_or_else(|| Format::of(&self.input));
        if self.input == Path::new("-") {
            self.input = PathBuf::from("/dev/stdin");
        }
        let mut files = Files::new();
        files.reads("INPUT", &self.input);
        let out = files.writes("OUTPUT", &self.output, Kind::Whole)?;
        let to = self.to.map_or_else(|| named(&self.output), Ok)?;
        let mut out = BufWriter::new(out);
        output::remove_when_interrupted();
        let cut = Cut::default();
        let source = if self.partial {
            import::open_partial(&self.input, from, cut.clone())
        } else {
            import::open(&self.input, from)
        };
        let mut source = source.map_err(failure)?;
        let written = write(source.as_mut(), (from, to), &mut out)
            .and_then(|records| out.flush().map(|()| records).map_err(Failure::failed));
        let records = written.map_err(|failure| out.get_ref().broken().unwrap_or(failure))?;
        // An importer that found not one access has said so.
        let Some(input) = source.summary() else {
            return Err(Failure::failed("nothing tells what was read"));
        };
        out.get_mut().complete()?;
        let cut = told(Some(&cut));
        if to == Format::DramSim3 && from != Format::DramSim3 {
            output::say(
                "a trace of DRAMSim3 ends with its last request: instructions before the first and \
                 after the last are not in it",
            );
        }
        let name = self.input.display().to_string();
        tell(&name, Some(&input));
        if to != Format::Terrace {
            tell_calls(&name, Some(&input));
        }
        let text = if json {
            output::json("terrace.convert", &Document { records, cut, input })?
        } else {
            let records = output::count(records);
            format!("{}: {records} records, from {}\n", self.output.display(), words(&input))
        };
        if out.get_ref().path().is_some() {
            output::print(&text)?;
        } else {
            // The trace itself may be what goes to stdout.
            output::show(&text);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The format that an output's name says.
fn named(output: &Path) -> Result<Format, Failure> {
    let format = Format::of(output);
    let refuse = |what: &str| {
        let (name, format) = (output.display(), format.name());
        Err(Failure::bad_input(format!(
            "OUTPUT: {name}: is named as a trace of {format} is, {what}; --to says which format is meant"
        )))
    };
    let is_packed =
        output.extension().is_some_and(|end| end == "gz" || end == "zst" || end == "xz");
    match format {
        Format::Terrace => Ok(format),
        _ if !TO.contains(&format) => refuse("which cannot be written"),
        _ if is_packed => refuse("and compressed, which is not done here"),
        _ => Ok(format),
    }
}

/// Converts all of it; how many records that are.
fn write(
    source: &mut dyn Source,
    (from, to): (Format, Format),
    mut out: &mut BufWriter<Output>,
) -> Result<u64, Failure> {
    match to {
        Format::ChampSim => export_champsim(source, out).map_err(failure),
        Format::DramSim3 => export_dramsim3(source, out).map_err(failure),
        _ => {
            let header = TraceHeader {
                program: vec![source.describe()],
                recorder: from.name().to_owned(),
                fetches: false,
            };
            let mut writer = TraceWriter::new(&mut out, &header).map_err(Failure::failed)?;
            let mut batch = Batch::default();
            while source.next(&mut batch).map_err(failure)? {
                writer.write(&batch).map_err(Failure::failed)?;
            }
            let accesses = writer.accesses();
            writer.finish().map_err(Failure::failed)?;
            Ok(accesses)
        }
    }
}

/// Threads that are told one by one.
const SHOWN: usize = 4;

/// What was read, in words.
fn words(input: &Summary) -> String {
    let count = output::count;
    let threads = match input.threads.len() {
        1 => "one thread".to_owned(),
        n @ 2..=SHOWN => {
            let each: Vec<String> = input.threads.values().copied().map(count).collect();
            format!("{n} threads ({})", each.join(", "))
        }
        n => format!("{n} threads"),
    };
    format!(
        "{} accesses ({} loads, {} stores) of {threads} in {} instructions",
        count(input.accesses()),
        count(input.loads),
        count(input.stores),
        count(input.instructions)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_s_name_says_the_format_unless_that_cannot_be_written() {
        for (name, format) in [
            ("a.trace", Format::Terrace),
            ("-", Format::Terrace),
            ("a", Format::Terrace),
            ("a.champsim", Format::ChampSim),
            ("a.dramsim3", Format::DramSim3),
        ] {
            assert_eq!(named(Path::new(name)).ok(), Some(format), "{name}");
        }
        for name in ["a.lackey", "a.champsim.gz", "damon.data", "a.dramsim3.xz"] {
            let message = named(Path::new(name)).map_err(Failure::message).expect_err(name);
            assert!(message.starts_with(&format!("OUTPUT: {name}: ")), "{message}");
        }
    }
}
