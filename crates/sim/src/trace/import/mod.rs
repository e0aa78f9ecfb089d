//! Traces of other tools, as a stream of accesses.
//!
//! None of these formats says what the program mapped; memory is brought into
//! being as it is touched. Each reader names file and line (or record) of what
//! it does not understand.

mod champsim;
mod damo;
mod drmemtrace;
mod text;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use lzma_rust2::XzReader;

use super::format::TraceError;
use super::partial::{Cut, Partial};
use super::reader::TraceReader;
use crate::error::SimError;
use crate::full::{Batch, Source};

pub use champsim::{ChampSim, export_champsim};
pub use damo::Damo;
pub use drmemtrace::DrMemTrace;
pub use text::{TextTrace, export_dramsim3};

/// Memory that unpacking xz may take, in KiB: `xz -9` needs 64 MiB, and a corrupt
/// file may ask for anything.
const XZ_MEMORY: u32 = 1 << 20;

/// Accesses in a batch of an importer.
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
    /// `perf script -F event,addr` and the like: the first hexadecimal number
    /// behind the event's name is the address.
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
            Some("perf") => Self::PerfScript,
            Some("damo" | "damon") => Self::Damo,
            // As `damo record` calls it.
            Some("data") if name == "damon.data" => Self::Damo,
            _ => Self::Terrace,
        }
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
        return Ok(Box::new(reader));
    }
    begin(path, format)
}

/// Opens a trace of which as much is read as can be; why it ends is told in `cut`.
pub fn open_partial(path: &Path, format: Format, cut: Cut) -> Result<Box<dyn Source>, SimError> {
    let source = match format {
        Format::Terrace => Box::new(TraceReader::open(path)?),
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
    Ok(read(reader, path, format))
}

/// Reads a trace of another tool; `file` is for errors and descriptions.
pub fn read<'a>(from: impl Read + 'a, file: &Path, format: Format) -> Box<dyn Source + 'a> {
    match format {
        Format::ChampSim => Box::new(ChampSim::new(from, file)),
        Format::DrMemTrace => Box::new(DrMemTrace::new(from, file)),
        Format::Damo => Box::new(Damo::new(from, file)),
        Format::Terrace => match TraceReader::new(from, file) {
            Ok(reader) => Box::new(reader),
            Err(error) => Box::new(Refused(Some(error))),
        },
        _ => Box::new(TextTrace::new(from, file, format)),
    }
}

/// A trace whose header could not be read: says so at the first batch.
struct Refused(Option<TraceError>);

impl Source for Refused {
    fn describe(&self) -> String {
        String::new()
    }
    fn next(&mut self, _batch: &mut Batch) -> Result<bool, SimError> {
        self.0.take().map_or(Ok(false), |error| Err(error.into()))
    }
}

pub(super) fn bad(file: &Path, readable: u64, message: String) -> TraceError {
    TraceError { file: PathBuf::from(file), readable, message, source: None }
}
