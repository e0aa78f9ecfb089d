//! Demand that was recorded, as lines of JSON.
//!
//! The first line is a header; each further line is one moment: when it was,
//! and the nodes' free memory and watermarks as `/proc/zoneinfo` told them.
//! A file that ends in the middle of a line is read up to there only if the
//! reader is told to.

use std::io::{self, BufRead, Read, Write};

use serde::{Deserialize, Serialize};
use terrace_core::{Bytes, Nanos};
use thiserror::Error;

use crate::view::NodeId;
use crate::zoneinfo::{NodeMemory, ZoneInfo};

/// What the first line names the format.
const FORMAT: &str = "terrace.zoneinfo";
/// The version of the format that is written, and the newest that is read.
const VERSION: u32 = 1;
/// The longest line: room for more nodes than Linux has (1024), with all that is told of each.
const LONGEST: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    version: u32,
    /// Size of a memory block.
    block: Bytes,
}

/// One node at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSample {
    /// The node.
    pub node: NodeId,
    /// Its memory.
    pub memory: NodeMemory,
    /// The node with processors whose slow memory it is; `None` for one with processors. Older
    /// recordings do not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<NodeId>,
}

/// All nodes at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// When, since the recording began.
    pub at: Nanos,
    /// The nodes that have memory.
    pub nodes: Vec<NodeSample>,
}

impl Sample {
    /// A moment as `/proc/zoneinfo` tells it; `page` is the size of a base page, `near` tells whose
    /// slow memory a node is.
    pub fn of(
        info: &ZoneInfo,
        at: Nanos,
        page: Bytes,
        near: impl Fn(NodeId) -> Option<NodeId>,
    ) -> Self {
        let of = |node| NodeSample { node, memory: info.memory(node, page), near: near(node) };
        Self { at, nodes: info.nodes().into_iter().map(of).collect() }
    }
}

/// A recording in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Size of a memory block of the machine that was recorded.
    pub block: Bytes,
    /// The moments, in order of time; never empty.
    pub samples: Vec<Sample>,
}

/// Why a recording cannot be read.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The file could not be read.
    #[error("line {line}: {error}")]
    Io {
        /// The line that was to be read, from 1.
        line: usize,
        /// What the system said.
        error: io::Error,
    },
    /// A line is not what it should be.
    #[error("line {line}: {what}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// Writes a recording, line by line.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    pub fn new(mut out: W, block: Bytes) -> io::Result<Self> {
        let header = Header { format: FORMAT.to_owned(), version: VERSION, block };
        serde_json::to_writer(&mut out, &header)?;
        out.write_all(b"\n")?;
        Ok(Self { out })
    }

    /// Writes one moment, and hands it to the system.
    pub fn write(&mut self, sample: &Sample) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, sample)?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    /// What it wrote to.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl Recording {
    /// Whether a first line is meant to be a recording's header.
    pub fn is_header(line: &str) -> bool {
        line.starts_with('{') && line.contains(&format!("\"{FORMAT}\""))
    }

    /// Reads a recording.
    ///
    /// With `partial`, a last line that is cut short is left out.
    pub fn read(mut from: impl BufRead, partial: bool) -> Result<Self, RecordingError> {
        let mut text = String::new();
        let mut line = 1;
        let mut next = |line: usize, text: &mut String| {
            text.clear();
            let read = from.by_ref().take(LONGEST + 1).read_line(text);
            let read = read.map_err(|error| RecordingError::Io { line, error })?;
            if read as u64 > LONGEST {
                let what =
                    format!("longer than {} MiB: no recording has such a line", LONGEST >> 20);
                return Err(RecordingError::Line { line, what });
            }
            Ok(read)
        };
        let bad = |line, what: String| RecordingError::Line { line, what };
        next(line, &mut text)?;
        let header: Header = serde_json::from_str(&text)
            .map_err(|e| bad(1, format!("no header of a recording: {}", told(&e))))?;
        if header.format != FORMAT {
            return Err(bad(1, format!("field `format`: `{}` is not `{FORMAT}`", header.format)));
        }
        if header.version != VERSION {
            let what = format!("field `version`: {} is not {VERSION}", header.version);
            return Err(bad(1, what));
        }
        if header.block.is_zero() || !header.block.0.is_power_of_two() {
            let what = format!("field `block`: {} is not a power of two", header.block.0);
            return Err(bad(1, what));
        }
        let mut samples: Vec<Sample> = Vec::new();
        loop {
            line += 1;
            if next(line, &mut text)? == 0 {
                break;
            }
            let sample: Sample = match serde_json::from_str(&text) {
                Ok(sample) => sample,
                Err(_) if partial && !text.ends_with('\n') => break,
                Err(e) => return Err(bad(line, told(&e))),
            };
            check(&sample, samples.last()).map_err(|what| bad(line, what))?;
            samples.push(sample);
        }
        if samples.is_empty() {
            return Err(bad(line, "the recording has no moment".to_owned()));
        }
        Ok(Self { block: header.block, samples })
    }
}

/// What JSON's reader says, with the column and without the line, which is ours to tell.
pub(crate) fn told(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    format!("{what} (column {})", error.column())
}

fn check(sample: &Sample, before: Option<&Sample>) -> Result<(), String> {
    if let Some(before) = before
        && sample.at <= before.at
    {
        return Err(format!("field `at`: {} is not after {}", sample.at, before.at));
    }
    if sample.nodes.is_empty() {
        return Err("field `nodes`: there is none".to_owned());
    }
    for (i, node) in sample.nodes.iter().enumerate() {
        if sample.nodes[..i].iter().any(|other| other.node == node.node) {
            return Err(format!("field `nodes`: {} is there twice", node.node));
        }
        let NodeMemory { managed, free, watermarks } = node.memory;
        if free > managed {
            return Err(format!("{}: field `free`: {free} of {managed}", node.node));
        }
        if watermarks.min > watermarks.low || watermarks.low > watermarks.high {
            return Err(format!("{}: field `watermarks`: min, low, high do not rise", node.node));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Watermarks;

    fn sample(seconds: u64) -> Sample {
        let memory = NodeMemory {
            managed: Bytes::gib(4),
            free: Bytes::gib(1),
            watermarks: Watermarks { min: Bytes::mib(1), low: Bytes::mib(2), high: Bytes::mib(3) },
        };
        let node = NodeSample { node: NodeId(0), memory, near: None };
        Sample { at: Nanos::seconds(seconds), nodes: vec![node] }
    }

    fn written() -> String {
        let mut writer = Writer::new(Vec::new(), Bytes::mib(128)).unwrap();
        for second in 1..4 {
            writer.write(&sample(second)).unwrap();
        }
        String::from_utf8(writer.into_inner()).unwrap()
    }

    fn error(text: &str) -> String {
        Recording::read(text.as_bytes(), false).unwrap_err().to_string()
    }

    #[test]
    fn what_was_written_is_read() {
        let recording = Recording::read(written().as_bytes(), false).unwrap();
        assert_eq!(recording.block, Bytes::mib(128));
        assert_eq!(recording.samples, [sample(1), sample(2), sample(3)]);
    }

    #[test]
    fn a_cut_line_is_an_error_unless_a_part_will_do() {
        let text = written();
        let cut = &text[..text.len() - 10];
        assert!(error(cut).starts_with("line 4: EOF while parsing"), "{}", error(cut));
        let recording = Recording::read(cut.as_bytes(), true).unwrap();
        assert_eq!(recording.samples.len(), 2);
    }

    #[test]
    fn each_error_names_line_and_field() {
        let text = written();
        for (from, to, message) in [
            ("\"version\":1", "\"version\":9", "line 1: field `version`: 9 is not 1"),
            ("terrace.zoneinfo", "other", "line 1: field `format`: `other` is not `terrace.zon"),
            ("134217728", "0", "line 1: field `block`: 0 is not a power of two"),
            ("3000000000", "2000000000", "line 4: field `at`: 2.00 s is not after 2.00 s"),
            ("\"free\":1073741824", "\"free\":9073741824", "line 2: node 0: field `free`: 8.45"),
            ("\"min\":1048576", "\"min\":5048576", "line 2: node 0: field `watermarks`: min"),
            ("\"managed\"", "\"mangaed\"", "line 2: unknown field `mangaed`"),
        ] {
            let broken = text.replacen(from, to, 1);
            assert_ne!(broken, text, "{from}");
            assert!(error(&broken).starts_with(message), "{}", error(&broken));
        }
        // What has no end is not read to its end: neither as the header nor later.
        let endless = |begin: &str| {
            let from = io::BufReader::new(begin.as_bytes().chain(io::repeat(0)));
            Recording::read(from, true).unwrap_err().to_string()
        };
        assert!(endless("").starts_with("line 1: longer than 1 MiB"), "{}", endless(""));
        assert!(endless(&text).starts_with("line 5: longer than 1 MiB"), "{}", endless(&text));
        assert!(error("").starts_with("line 1: no header of a recording"));
        assert_eq!(error(text.lines().next().unwrap()), "line 2: the recording has no moment");
    }
}
