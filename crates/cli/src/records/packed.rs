//! The packed form of a recording: after the header's line, chunks in frames
//! of Zstandard.
//!
//! | what | bytes |
//! |---|---|
//! | chunk | kind (1), length (4, least first), content |
//! | kind 1 | a [`Record`] as JSON |
//! | kind 2 | a process's number (4, least first) and packed events of it |
//! | kind 3 | the same and decisions, each after its length (2), as they come out of the process |
//!
//! Since schema 4, regions come between decisions: their length has its highest bit set. Since
//! schema 5, decisions on compaction say in which time comes about what it brings. Alternatives are the
//! end of a decision since 29 November 2026; whoever does not know them does not read on, and decisions
//! of before are read as if they had none, so that the schema is the same.
//!
//! Frames are closed every second, each with a checksum: what a killed run
//! leaves is readable up to its last second, and what was damaged is noticed.

use std::collections::VecDeque;
use std::io::{self, BufRead, Read, Write};
use std::time::{Duration, Instant};

use terrace_core::PageSize;
use terrace_live::decide::event_ring::{Told, unpack_decisions};
use zstd::stream::read::Decoder;

use super::{Record, RegionRecord};
use crate::failure::Failure;

/// Bytes after which a frame is closed.
const FRAME: usize = 1 << 20;
/// Time after which it is.
const OPEN_FOR: Duration = Duration::from_secs(1);
/// The longest chunk: a report of many processes with many regions.
const CHUNK: usize = 64 << 20;
/// Level 3 is Zstandard's default; recording must not slow the program down.
const LEVEL: i32 = 3;

const JSON: u8 = 1;
const EVENTS: u8 = 2;
const DECISIONS: u8 = 3;

/// Writes chunks.
pub(super) struct PackedWriter<W> {
    out: W,
    frame: Vec<u8>,
    opened: Instant,
}

impl<W: Write> PackedWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, frame: Vec::with_capacity(2 * FRAME), opened: Instant::now() }
    }

    pub(super) fn write(&mut self, record: &Record) -> io::Result<()> {
        let before = self.frame.len();
        self.frame.extend_from_slice(&[0; 5]);
        let mut of_process = |process: &u32, bytes: &[u8]| {
            self.frame.extend_from_slice(&process.to_le_bytes());
            self.frame.extend_from_slice(bytes);
        };
        let kind = match record {
            Record::Events { process, bytes } => {
                of_process(process, bytes);
                EVENTS
            }
            Record::Decisions { process, bytes } => {
                of_process(process, bytes);
                DECISIONS
            }
            record => {
                serde_json::to_writer(&mut self.frame, record)?;
                JSON
            }
        };
        let length = (self.frame.len() - before - 5) as u32;
        self.frame[before] = kind;
        self.frame[before + 1..before + 5].copy_from_slice(&length.to_le_bytes());
        self.flush_if_due()
    }

    fn flush_if_due(&mut self) -> io::Result<()> {
        if self.frame.len() >= FRAME || self.opened.elapsed() >= OPEN_FOR {
            self.flush()?;
        }
        Ok(())
    }

    /// What it is written to.
    pub(super) fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Closes the frame.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.opened = Instant::now();
        if self.frame.is_empty() {
            return Ok(());
        }
        let mut frame = zstd::stream::write::Encoder::new(&mut self.out, LEVEL)?;
        frame.include_checksum(true)?;
        frame.write_all(&self.frame)?;
        frame.finish()?;
        self.frame.clear();
        self.out.flush()
    }
}

/// Reads chunks, one in memory at a time.
pub(super) struct PackedReader<R: BufRead> {
    name: String,
    input: Decoder<'static, R>,
    content: Vec<u8>,
    /// Decisions of the last chunk, and where regions lie, that are still to be told.
    decisions: VecDeque<Record>,
    /// Records read so far.
    read: u64,
    ended: bool,
}

impl<R: BufRead> PackedReader<R> {
    pub(super) fn new(name: &str, input: R) -> Result<Self, Failure> {
        let input =
            Decoder::with_buffer(input).map_err(|e| Failure::bad_input(format!("{name}: {e}")))?;
        let (content, decisions) = (Vec::new(), VecDeque::new());
        Ok(Self { name: name.to_owned(), input, content, decisions, read: 0, ended: false })
    }

    pub(super) fn next(&mut self) -> Option<Result<Record, Failure>> {
        if let Some(record) = self.decisions.pop_front() {
            self.read += 1;
            return Some(Ok(record));
        }
        if self.ended {
            return None;
        }
        match self.chunk() {
            Ok(Some(Record::Decisions { .. })) => self.next(),
            Ok(Some(record)) => {
                self.read += 1;
                Some(Ok(record))
            }
            Ok(None) => {
                self.ended = true;
                None
            }
            Err(what) => {
                self.ended = true;
                self.decisions.clear();
                Some(Err(Failure::bad_input(format!(
                    "{}: {what} after {} records (--partial reads those)",
                    self.name, self.read
                ))))
            }
        }
    }

    /// The next chunk's record; `None` at a proper end.
    fn chunk(&mut self) -> Result<Option<Record>, String> {
        let mut head = [0; 5];
        let mut length = 0;
        while length < head.len() {
            match self.input.read(&mut head[length..]) {
                Ok(0) if length == 0 => return Ok(None),
                Ok(0) => return Err("the recording is cut off".to_owned()),
                Ok(n) => length += n,
                Err(e) => return Err(cause(&e)),
            }
        }
        let [kind, length @ ..] = head;
        let length = u32::from_le_bytes(length) as usize;
        if length > CHUNK {
            return Err("the recording is damaged".to_owned());
        }
        self.content.clear();
        let limited = &mut (&mut self.input).take(length as u64);
        let read = limited.read_to_end(&mut self.content).map_err(|e| cause(&e))?;
        if read < length {
            return Err("the recording is cut off".to_owned());
        }
        match kind {
            JSON => serde_json::from_slice(&self.content)
                .map(Some)
                .map_err(|e| format!("the recording is damaged (a record cannot be read: {e})")),
            EVENTS | DECISIONS => {
                let damaged = || "the recording is damaged".to_owned();
                let (process, bytes) = self.content.split_first_chunk().ok_or_else(damaged)?;
                let process = u32::from_le_bytes(*process);
                if kind == EVENTS {
                    return Ok(Some(Record::Events { process, bytes: bytes.to_vec() }));
                }
                let decisions = &mut self.decisions;
                let whole = unpack_decisions(bytes, |told| {
                    decisions.push_back(match told {
                        Told::Decision(decision) => Record::Decision { process, decision },
                        Told::Region(placed) => Record::Region(RegionRecord {
                            process,
                            region: placed.region,
                            start: placed.start,
                            pages: placed.pages,
                            page_size: PageSize::Base,
                        }),
                    });
                });
                let told = Record::Decisions { process, bytes: Vec::new() };
                if whole { Ok(Some(told)) } else { Err(damaged()) }
            }
            _ => Err("the recording is damaged".to_owned()),
        }
    }
}

fn cause(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        "the recording is cut off".to_owned()
    } else {
        format!("the recording is damaged ({error})")
    }
}
