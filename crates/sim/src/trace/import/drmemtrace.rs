//! `DynamoRIO`'s drmemtrace: 12 bytes an entry, little-endian: u16 type, u16 size,
//! u64 address or value (`trace_entry_t` of `clients/drcachesim/common`). An
//! instruction comes before its accesses. Threads are told by entries of their
//! own, or lie in a file each.
//!
//! Kept: loads, stores, which thread, and how many instructions lie between.
//! Prefetches, flushes, markers and encodings are passed over.

use std::collections::HashMap;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use terrace_core::Access as Kind;

use super::{BATCH, bad};
use crate::error::SimError;
use crate::full::{Access, Batch, Source};

const RECORD: usize = 12;

const READ: u16 = 0;
const WRITE: u16 = 1;
/// An instruction, and those that branch.
const INSTRUCTIONS: core::ops::RangeInclusive<u16> = 10..=16;
/// Several instructions after one; the size says how many.
const BUNDLE: u16 = 17;
const THREAD: u16 = 22;
const HEADER: u16 = 25;
const FOOTER: u16 = 26;
/// Instructions that are executed without being fetched, or perhaps so.
const NO_FETCH: core::ops::RangeInclusive<u16> = 29..=31;
const TAKEN: core::ops::RangeInclusive<u16> = 48..=49;
/// The highest type that there is.
const LAST: u16 = 49;

/// Reads a drmemtrace file, as `raw2trace` wrote it.
pub struct DrMemTrace<R> {
    from: BufReader<R>,
    file: PathBuf,
    entries: u64,
    gap: u64,
    /// Threads by the order in which they came.
    threads: HashMap<u64, u32>,
    thread: u32,
    /// The thread that the next batch begins with.
    next_thread: Option<u32>,
    over: bool,
}

impl<R: Read> DrMemTrace<R> {
    /// Begins to read; `file` is for errors.
    pub fn new(from: R, file: &Path) -> Self {
        Self {
            from: BufReader::with_capacity(1 << 16, from),
            file: file.to_owned(),
            entries: 0,
            gap: 0,
            threads: HashMap::new(),
            thread: 0,
            next_thread: None,
            over: false,
        }
    }

    /// Reads an entry: its type, size and value; `None` at the end.
    fn entry(&mut self) -> Result<Option<(u16, u16, u64)>, SimError> {
        let mut bytes = [0; RECORD];
        let mut got = 0;
        while got < RECORD {
            match self.from.read(&mut bytes[got..]) {
                Ok(0) if got == 0 => return Ok(None),
                Ok(0) => {
                    let message = format!(
                        "truncated: entry {} has {got} of {RECORD} bytes",
                        self.entries + 1
                    );
                    return Err(bad(&self.file, self.entries, message).into());
                }
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(bad(&self.file, self.entries, e.to_string()).into()),
            }
        }
        self.entries += 1;
        let [t0, t1, s0, s1, value @ ..] = bytes;
        let (kind, size) = (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([s0, s1]));
        if kind > LAST || (self.entries == 1 && kind != HEADER) {
            let what = if bytes.starts_with(b"PK\x03\x04") {
                "is a zip: unpack it first (unzip -p)".to_owned()
            } else if self.entries == 1 {
                format!("no drmemtrace file: it begins with an entry of type {kind}, not a header")
            } else {
                format!("entry {} has the unknown type {kind}", self.entries)
            };
            return Err(bad(&self.file, self.entries - 1, what).into());
        }
        Ok(Some((kind, size, u64::from_le_bytes(value))))
    }
}

impl<R: Read> Source for DrMemTrace<R> {
    fn describe(&self) -> String {
        self.file.display().to_string()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        if let Some(thread) = self.next_thread.take() {
            self.thread = thread;
        }
        while !self.over && batch.accesses.len() < BATCH {
            let Some((kind, size, value)) = self.entry()? else {
                self.over = true;
                break;
            };
            match kind {
                READ | WRITE => {
                    let kind = if kind == READ { Kind::Read } else { Kind::Write };
                    // The instruction that makes an access counts with it.
                    let between = self.gap.saturating_sub(1);
                    batch.accesses.push(Access::new(value, size.into(), kind).after(between));
                    self.gap = 0;
                }
                BUNDLE => self.gap += u64::from(size),
                _ if INSTRUCTIONS.contains(&kind)
                    || NO_FETCH.contains(&kind)
                    || TAKEN.contains(&kind) =>
                {
                    self.gap += 1;
                }
                THREAD => {
                    let next = self.threads.len() as u32;
                    let thread = *self.threads.entry(value).or_insert(next);
                    if thread != self.thread {
                        self.gap = 0;
                        if batch.accesses.is_empty() {
                            self.thread = thread;
                        } else {
                            // A batch is of one thread.
                            self.next_thread = Some(thread);
                            break;
                        }
                    }
                }
                FOOTER => self.over = true,
                _ => {}
            }
        }
        batch.thread = self.thread;
        Ok(!batch.accesses.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u16, size: u16, value: u64) -> Vec<u8> {
        let (kind, size) = (kind.to_le_bytes(), size.to_le_bytes());
        [kind.as_slice(), &size, &value.to_le_bytes()].concat()
    }

    fn read(entries: &[Vec<u8>]) -> Result<Vec<(u32, Access)>, SimError> {
        let bytes = entries.concat();
        let mut source = DrMemTrace::new(bytes.as_slice(), Path::new("some.drmemtrace"));
        let (mut batch, mut all) = (Batch::default(), Vec::new());
        while source.next(&mut batch)? {
            all.extend(batch.accesses.iter().map(|&access| (batch.thread, access)));
        }
        Ok(all)
    }

    #[test]
    fn accesses_keep_their_thread_kind_size_and_distance() {
        let trace = [
            entry(HEADER, 0, 7),
            entry(THREAD, 0, 901),
            entry(24, 0, 900),
            entry(28, 2, 12345),
            entry(10, 4, 0x40_0000),
            entry(47, 4, 0xdead_beef),
            entry(10, 4, 0x40_0004),
            entry(READ, 8, 0x1000),
            entry(WRITE, 4, 0x2000),
            entry(THREAD, 0, 902),
            entry(48, 2, 0x40_0008),
            entry(BUNDLE, 3, 0),
            entry(WRITE, 16, 0x3038),
            entry(THREAD, 0, 901),
            entry(3, 64, 0x9000),
            entry(READ, 1, 0x4000),
            entry(FOOTER, 0, 0),
        ];
        let access = |address, size, kind, after| Access::new(address, size, kind).after(after);
        let expected = [
            (0, access(0x1000, 8, Kind::Read, 1)),
            (0, access(0x2000, 4, Kind::Write, 0)),
            (1, access(0x3038, 16, Kind::Write, 3)),
            (0, access(0x4000, 1, Kind::Read, 0)),
        ];
        assert_eq!(read(&trace).expect("a trace"), expected);
    }

    #[test]
    fn a_cut_trace_and_what_is_none_are_named() {
        let error = |entries: &[Vec<u8>]| read(entries).expect_err("refused").to_string();
        let cut = [entry(HEADER, 0, 7), entry(10, 4, 1), entry(READ, 8, 1)[..7].to_vec()];
        assert!(error(&cut).contains("entry 3 has 7 of 12"), "{}", error(&cut));
        assert!(error(&[entry(READ, 8, 1)]).contains("no drmemtrace file"));
        assert!(error(&[entry(HEADER, 0, 7), entry(77, 8, 1)]).contains("unknown type 77"));
        assert!(error(&[b"PK\x03\x04 and more".to_vec()]).contains("unzip"));
    }
}
