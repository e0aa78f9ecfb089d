//! What the recorder sends while the program runs: blocks of accesses as they
//! are, through a pipe.
//!
//! ```text
//! block   u32 kind, u32 thread, u64 count, then `count` times eight bytes:
//!         kind 1: accesses; kind 2: start and length of what was mapped, in
//!         turn; kind 3: of what was unmapped; kind 4: the end, no content
//! ```
//!
//! Among accesses there are entries that access nothing and say how many
//! instructions pass ([`Access::pass`]).

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::format::TraceError;
use super::import::Importer;
use super::summary::{Fate, Notes};
use crate::error::SimError;
use crate::full::{Access, Batch, SpaceEvent};

/// Words in a block, at most.
const MOST: u64 = 1 << 20;

/// Reads what a recorder sends.
pub(super) struct RawReader<R> {
    from: R,
    name: PathBuf,
    program: String,
    events: Vec<SpaceEvent>,
    bytes: Vec<u8>,
    read: u64,
    /// The recorder said that the program came to its end.
    ended: bool,
    /// It went away before: programs that are killed do not say so.
    cut: bool,
}

impl<R: Read> RawReader<R> {
    /// Begins to read; `program` is what it describes itself as.
    pub(super) fn new(from: R, program: &str) -> Self {
        Self {
            from,
            name: Path::new("the recorder").to_owned(),
            program: program.to_owned(),
            events: Vec::new(),
            bytes: Vec::new(),
            read: 0,
            ended: false,
            cut: false,
        }
    }

    fn bad(&self, message: &str) -> SimError {
        TraceError {
            file: self.name.clone(),
            readable: self.read,
            message: message.to_owned(),
            source: None,
        }
        .into()
    }
}

impl<R: Read> Importer for RawReader<R> {
    fn describe(&self) -> String {
        self.program.clone()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        loop {
            let mut head = [0; 16];
            if self.ended {
                return Ok(false);
            }
            match self.from.read_exact(&mut head) {
                Ok(()) => {}
                // A program that was killed: what came so far counts.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    self.cut = true;
                    return Ok(false);
                }
                Err(e) => return Err(self.bad(&e.to_string())),
            }
            let word = |at: usize| {
                u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
            };
            let (kind, thread) = (word(0), word(4));
            let count = u64::from(word(8)) | u64::from(word(12)) << 32;
            if count > MOST || !(1..=4).contains(&kind) {
                return Err(self.bad("sent something that is no block"));
            }
            self.bytes.resize(count as usize * 8, 0);
            if self.from.read_exact(&mut self.bytes).is_err() {
                self.cut = true;
                return Ok(false);
            }
            let mut words = self.bytes.chunks_exact(8).map(|bytes| {
                let mut eight = [0; 8];
                eight.copy_from_slice(bytes);
                u64::from_le_bytes(eight)
            });
            match kind {
                1 => {
                    batch.thread = thread;
                    batch.events.append(&mut self.events);
                    batch.accesses.extend(words.map(Access::from_bits));
                    self.read += count;
                    return Ok(true);
                }
                4 => self.ended = true,
                _ => {
                    while let (Some(start), Some(len)) = (words.next(), words.next()) {
                        self.events.push(if kind == 2 {
                            SpaceEvent::Map { start, len }
                        } else {
                            SpaceEvent::Unmap { start, len }
                        });
                    }
                }
            }
        }
    }

    fn tell(&self, notes: &mut Notes) {
        let cut =
            "what threads had not sent when the program was killed (up to 4096 accesses each)";
        notes.whole(Fate::Dropped, self.cut, cut);
    }
}
