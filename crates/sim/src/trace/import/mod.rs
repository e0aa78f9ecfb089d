//! Traces of other tools, as a stream of accesses.
//!
//! None of these formats says what the program mapped; memory is brought into
//! being as it is touched. No importer guesses: a field is what stands in its
//! column, a value out of its range is refused with file and line (or record),
//! and what is not an access is counted and told ([`Summary`](super::Summary)).
//!
//! | file | concept |
//! |---|---|
//! | `imported` | any of them as a [`Source`], counted |
//! | `magic` | files of other kinds, told by their first bytes |
//! | `making` | addresses, sizes and instructions, checked |
//! | `lines` | texts, line by line |
//! | `champsim`, `drmemtrace` | records of fixed size |
//! | `lackey`, `requests`, `perf_script` | lines |
//! | `damo` | lines or JSON |

mod champsim;
mod damo;
mod drmemtrace;
mod imported;
mod lackey;
mod lines;
mod magic;
mod making;
mod perf_script;
mod requests;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use lzma_rust2::XzReader;

use super::format::TraceError;
use super::partial::{Cut, Partial};
use super::raw::RawReader;
use super::reader::TraceReader;
use super::summary::Notes;
use crate::error::SimError;
use crate::exact::{Batch, Source};

use self::imported::Imported;

pub use champsim::export_champsim;
pub use magic::packed;
pub use requests::export_dramsim3;

/// Memory that unpacking xz may take, in KiB: `xz -9` needs 64 MiB, and a corrupt
/// file may ask for anything.
const XZ_MEMORY: u32 = 1 << 20;

/// Accesses in a batch of an importer, about.
pub(super) const BATCH: usize = 4096;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Ours.
    Terrace,
    /// ChampSim: 64 bytes an instruction.
    ChampSim,
    /// `DynamoRIO`'s drmemtrace: 12 bytes an entry.
    DrMemTrace,
    /// `valgrind --tool=lackey --trace-mem=yes`.
    Lackey,
    /// DRAMSim3: `0x1FF96FC0 WRITE 160`.
    DramSim3,
    /// Ramulator's load-store trace: `LD 0x12340`.
    Ramulator,
    /// `perf script -F +addr` and the like.
    PerfScript,
    /// What DAMON saw, as `damo` records or prints it.
    Damo,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 8] = [
        Self::Terrace,
        Self::ChampSim,
        Self::DrMemTrace,
        Self::Lackey,
        Self::DramSim3,
        Self::Ramulator,
        Self::PerfScript,
        Self::Damo,
    ];

    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Terrace => "terrace",
            Self::ChampSim => "champsim",
            Self::DrMemTrace => "drmemtrace",
            Self::Lackey => "lackey",
            Self::DramSim3 => "dramsim3",
            Self::Ramulator => "ramulator",
            Self::PerfScript => "perf-script",
            Self::Damo => "damo",
        }
    }

    /// The format that a file's name suggests.
    pub fn of(path: &Path) -> Self {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let name = name.trim_end_matches(".gz").trim_end_matches(".zst").trim_end_matches(".xz");
        match name.rsplit('.').next() {
            Some("champsim" | "champsimtrace") => Self::ChampSim,
            Some("drmemtrace") => Self::DrMemTrace,
            Some("lackey") => Self::Lackey,
            Some("dramsim3") => Self::DramSim3,
            Some("ls" | "ramulator") => Self::Ramulator,
            Some("perf" | "perf-script") => Self::PerfScript,
            Some("damo" | "damon") => Self::Damo,
            // As `damo record` calls it.
            Some("data") if name == "damon.data" => Self::Damo,
            _ => Self::Terrace,
        }
    }
}

/// Reads a format.
pub(super) trait Importer {
    /// What it is, in a phrase.
    fn describe(&self) -> String;

    /// Replaces a batch's content by what comes next; false at the end.
    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError>;

    /// Tells what was skipped, dropped or folded up to now.
    fn tell(&self, notes: &mut Notes);

    /// What is wrong with a trace that has come to its end without one access.
    fn nothing(&self) -> String {
        "holds not one access".to_owned()
    }
}

/// Opens a trace of any format. Files that gzip, zstd or xz compressed are
/// decompressed on the way. One of ours must be whole: what ends early would be
/// simulated for as long as it goes, and then thrown away.
pub fn open(path: &Path, format: Format) -> Result<Box<dyn Source>, SimError> {
    if format == Format::Terrace {
        let mut reader = TraceReader::open(path)?;
        if path.is_file() {
            reader.survey()?;
        }
        return Ok(Box::new(Imported::new(reader, path, format)));
    }
    begin(path, format)
}

/// Opens a trace of which as much is read as can be; why it ends is told in `cut`.
pub fn open_partial(path: &Path, format: Format, cut: Cut) -> Result<Box<dyn Source>, SimError> {
    let source = match format {
        Format::Terrace => Imported::boxed(TraceReader::open(path)?, path, format),
        _ => begin(path, format)?,
    };
    Ok(Box::new(Partial::new(source, cut)))
}

fn begin(path: &Path, format: Format) -> Result<Box<dyn Source>, SimError> {
    let error = |source: io::Error| TraceError {
        file: path.to_owned(),
        readable: 0,
        message: source.to_string(),
        source: Some(source),
    };
    let mut file = BufReader::with_capacity(1 << 16, File::open(path).map_err(error)?);
    let begin = file.fill_buf().map_err(error)?;
    let reader: Box<dyn Read> = if begin.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::MultiGzDecoder::new(file))
    } else if begin.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(zstd::Decoder::with_buffer(file).map_err(error)?)
    } else if begin.starts_with(b"\xfd7zXZ") {
        let reader = XzReader::new_mem_limit(file, true, XZ_MEMORY);
        Box::new(BufReader::with_capacity(1 << 16, reader))
    } else {
        Box::new(file)
    };
    checked(reader, path, format)
}

/// Reads a trace of another tool; `file` is for errors and descriptions.
pub fn read<'a>(from: impl Read + 'a, file: &Path, format: Format) -> Box<dyn Source + 'a> {
    checked(from, file, format).unwrap_or_else(|error| Box::new(Refused(Some(error))))
}

/// The same, refused at once where it is a file of another kind.
fn checked<'a>(
    from: impl Read + 'a,
    file: &Path,
    format: Format,
) -> Result<Box<dyn Source + 'a>, SimError> {
    if format == Format::Terrace {
        return Ok(Box::new(Imported::new(TraceReader::new(from, file)?, file, format)));
    }
    let from = magic::checked(from)
        .map_err(|e| e.to_string())
        .and_then(|whole| whole.map_err(|what| format!("is {what}")))
        .map_err(|message| bad(file, 0, message))?;
    Ok(imported(from, file, format))
}

fn imported<'a>(from: impl Read + 'a, file: &Path, format: Format) -> Box<dyn Source + 'a> {
    match format {
        Format::ChampSim => Imported::boxed(champsim::ChampSim::new(from, file), file, format),
        Format::DrMemTrace => {
            Imported::boxed(drmemtrace::DrMemTrace::new(from, file), file, format)
        }
        Format::Damo => Imported::boxed(damo::Damo::new(from, file), file, format),
        Format::Lackey => Imported::boxed(lackey::Lackey::new(from, file), file, format),
        Format::PerfScript => {
            Imported::boxed(perf_script::PerfScript::new(from, file), file, format)
        }
        Format::Terrace | Format::DramSim3 | Format::Ramulator => {
            Imported::boxed(requests::Requests::new(from, file, format), file, format)
        }
    }
}

/// What a recorder's plugin sends while a program runs. That a program made no
/// access is for the caller to say.
pub fn recorded<'a>(from: impl Read + 'a, program: &str) -> Box<dyn Source + 'a> {
    let reader = RawReader::new(from, program);
    Box::new(Imported::new(reader, Path::new("the recorder"), Format::Terrace).may_be_empty())
}

/// What lackey sends while a program runs under it.
pub fn recorded_by_lackey<'a>(from: impl Read + 'a, program: &str) -> Box<dyn Source + 'a> {
    let file = Path::new(program);
    let lackey = lackey::Lackey::new(from, file);
    Box::new(Imported::new(lackey, file, Format::Lackey).may_be_empty())
}

/// Lackey's lines with the fetches as entries of their own, for a comparison with
/// a tool that simulates them. No other way into the simulator has them.
pub fn lackey_with_fetches<'a>(from: impl Read + 'a, file: &Path) -> Box<dyn Source + 'a> {
    let lackey = lackey::Lackey::new(from, file).with_fetches();
    Box::new(Imported::new(lackey, file, Format::Lackey).with_fetches())
}

/// A trace that could not be opened: says so at the first batch.
struct Refused(Option<SimError>);

impl Source for Refused {
    fn describe(&self) -> String {
        String::new()
    }
    fn next(&mut self, _batch: &mut Batch) -> Result<bool, SimError> {
        self.0.take().map_or(Ok(false), Err)
    }
}

pub(super) fn bad(file: &Path, readable: u64, message: String) -> TraceError {
    TraceError { file: PathBuf::from(file), readable, message, source: None }
}

/// The same about a line.
fn bad_line(file: &Path, line: u64, readable: u64, message: String) -> SimError {
    let mut bad = bad(file, readable, message);
    bad.file.as_mut_os_string().push(format!(":{line}"));
    bad.into()
}
