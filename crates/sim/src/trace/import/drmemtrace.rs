//! `DynamoRIO`'s drmemtrace: 12 bytes an entry, little-endian: u16 type, u16 size,
//! u64 address or value (`trace_entry_t` of `clients/drcachesim/common`). An
//! instruction comes before its accesses. Threads are told by entries of their
//! own, or lie in a file each.
//!
//! Kept: loads, stores, which thread, and how many instructions lie between.
//! Prefetches, flushes and times are passed over, and told. A footer ends a
//! thread, and not the file: where threads moved between cores, several end in
//! the file of one core.

use std::collections::HashMap;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use terrace_core::Access as Kind;

use super::making::{Checks, Pace};
use super::{BATCH, Importer, bad};
use crate::error::SimError;
use crate::exact::{Access, Batch};
use crate::trace::summary::{Fate, Notes};

const RECORD: usize = 12;

const READ: u16 = 0;
const WRITE: u16 = 1;
/// Prefetches by instructions of their own, and by the hardware.
const PREFETCHES: [core::ops::RangeInclusive<u16>; 3] = [2..=9, 27..=27, 32..=46];
/// An instruction, and those that branch.
const INSTRUCTIONS: core::ops::RangeInclusive<u16> = 10..=16;
/// Several instructions after one; the size says how many.
const BUNDLE: u16 = 17;
/// Flushes of instructions and data, and where they end.
const FLUSHES: core::ops::RangeInclusive<u16> = 18..=21;
const THREAD: u16 = 22;
const HEADER: u16 = 25;
const FOOTER: u16 = 26;
/// Its size says what it marks.
const MARKER: u16 = 28;
/// Instructions that are executed without being fetched, or perhaps so.
const NO_FETCH: core::ops::RangeInclusive<u16> = 29..=31;
const TAKEN: core::ops::RangeInclusive<u16> = 48..=49;
/// The highest type that there is.
const LAST: u16 = 49;

/// Markers: a time, and what kind of file it is.
const TIMESTAMP: u16 = 2;
const FILE_TYPE: u16 = 9;
/// Kinds of files: accesses that hit a cache were left out when it was recorded.
const FILTERED: u64 = 0x1 | 0x80 | 0x100;
/// Only instructions were recorded.
const INSTRUCTIONS_ONLY: u64 = 0x4;

/// Reads a drmemtrace file, as `raw2trace` wrote it.
pub(super) struct DrMemTrace<R> {
    from: BufReader<R>,
    file: PathBuf,
    entries: u64,
    checks: Checks,
    /// Threads by the order in which they came.
    threads: HashMap<u64, u32>,
    /// Each thread's instructions, by its number here.
    paces: Vec<Pace>,
    thread: u32,
    /// The thread that the next batch begins with.
    next_thread: Option<u32>,
    /// Threads whose last instructions were told, when everything was read.
    told: Option<u32>,
    /// The type of the entry before.
    before: u16,
    prefetches: u64,
    flushes: u64,
    timestamps: u64,
    file_type: u64,
}

impl<R: Read> DrMemTrace<R> {
    /// Begins to read; `file` is for errors.
    pub(super) fn new(from: R, file: &Path) -> Self {
        Self {
            from: BufReader::with_capacity(1 << 16, from),
            file: file.to_owned(),
            entries: 0,
            checks: Checks::default(),
            threads: HashMap::new(),
            paces: vec![Pace::default()],
            thread: 0,
            next_thread: None,
            told: None,
            before: HEADER,
            prefetches: 0,
            flushes: 0,
            timestamps: 0,
            file_type: 0,
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
            let what = if self.entries == 1 {
                format!("no drmemtrace file: it begins with an entry of type {kind}, not a header")
            } else {
                format!("entry {} has the unknown type {kind}", self.entries)
            };
            return Err(bad(&self.file, self.entries - 1, what).into());
        }
        Ok(Some((kind, size, u64::from_le_bytes(value))))
    }

    fn data(
        &mut self,
        (kind, size, address): (u16, u16, u64),
        out: &mut Vec<Access>,
    ) -> Result<(), SimError> {
        let kind = if kind == READ { Kind::Read } else { Kind::Write };
        let Self { checks, paces, .. } = self;
        // The instruction that makes an access counts with it.
        let pace = &mut paces[self.thread as usize];
        let made = checks.pieces(address, size.into(), |address, size| {
            pace.push(Access::new(address, size, kind), out);
        });
        made.map_err(|what| {
            bad(&self.file, self.entries - 1, format!("entry {}: {what}", self.entries)).into()
        })
    }

    /// The thread that an entry names; true if it is another one.
    fn switch(&mut self, name: u64) -> bool {
        let next = self.threads.len() as u32;
        let thread = *self.threads.entry(name).or_insert(next);
        if self.paces.len() <= thread as usize {
            self.paces.push(Pace::default());
        }
        let is_other = thread != self.thread;
        self.next_thread = is_other.then_some(thread);
        is_other
    }

    /// What each thread did after its last access, a thread a batch.
    fn ends(&mut self, batch: &mut Batch) -> bool {
        let mut thread = self.told.unwrap_or(0);
        while let Some(pace) = self.paces.get_mut(thread as usize) {
            pace.end(&mut batch.accesses);
            batch.thread = thread;
            thread += 1;
            self.told = Some(thread);
            if !batch.accesses.is_empty() {
                return true;
            }
        }
        false
    }
}

impl<R: Read> Importer for DrMemTrace<R> {
    fn describe(&self) -> String {
        self.file.display().to_string()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        if let Some(thread) = self.next_thread.take() {
            self.thread = thread;
        }
        while self.told.is_none() && batch.accesses.len() < BATCH {
            let Some((kind, size, value)) = self.entry()? else {
                self.told = Some(0);
                break;
            };
            let pace = &mut self.paces[self.thread as usize];
            match kind {
                READ | WRITE => self.data((kind, size, value), &mut batch.accesses)?,
                BUNDLE => pace.instructions(size.into()),
                _ if INSTRUCTIONS.contains(&kind)
                    || NO_FETCH.contains(&kind)
                    || TAKEN.contains(&kind) =>
                {
                    pace.instructions(1);
                }
                _ if FLUSHES.contains(&kind) => self.flushes += 1,
                _ if PREFETCHES.iter().any(|kinds| kinds.contains(&kind)) => self.prefetches += 1,
                MARKER if size == TIMESTAMP => self.timestamps += 1,
                MARKER if size == FILE_TYPE => self.file_type |= value,
                THREAD => {
                    // A batch is of one thread.
                    if self.switch(value) && !batch.accesses.is_empty() {
                        self.before = kind;
                        break;
                    }
                    self.thread = self.next_thread.take().unwrap_or(self.thread);
                }
                _ => {}
            }
            self.before = kind;
        }
        if batch.accesses.is_empty() && self.told.is_some() {
            return Ok(self.ends(batch));
        }
        batch.thread = self.thread;
        Ok(!batch.accesses.is_empty())
    }

    fn tell(&self, notes: &mut Notes) {
        notes.counted(Fate::Dropped, self.prefetches, "prefetches");
        notes.counted(Fate::Dropped, self.flushes, "flushes of caches");
        notes.counted(Fate::Dropped, self.timestamps, "times at which something happened");
        self.checks.tell(notes);
        let filtered = "accesses that hit a cache when it was recorded: they are not in the file";
        notes.whole(Fate::Dropped, self.file_type & FILTERED != 0, filtered);
        let cut = "what may have been cut off: the last thread has no end mark";
        notes.whole(Fate::Dropped, self.told.is_some() && self.before != FOOTER, cut);
    }

    fn nothing(&self) -> String {
        if self.file_type & INSTRUCTIONS_ONLY != 0 {
            return "was recorded without accesses of data (-instr_only_trace)".to_owned();
        }
        format!("not one of its {} entries is a load or store", self.entries)
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
            (0, access(0x2000, 4, Kind::Write, 0).of_same_instruction()),
            (1, access(0x3038, 16, Kind::Write, 3)),
            (0, access(0x4000, 1, Kind::Read, 0).of_same_instruction()),
        ];
        assert_eq!(read(&trace).expect("a trace"), expected);
    }

    /// As a core's file has them: threads that end in it, and go on in it.
    #[test]
    fn the_end_of_a_thread_is_not_the_end_of_the_file() {
        let one = |thread, address, then: &[Vec<u8>]| {
            let begin = [
                entry(THREAD, 0, thread),
                entry(10, 4, 1),
                entry(10, 4, 1),
                entry(READ, 8, address),
                entry(10, 4, 1),
            ];
            [&begin, then].concat()
        };
        let footer = [entry(FOOTER, 0, 0)];
        let header = [entry(HEADER, 0, 7)];
        let trace = [
            header.to_vec(),
            one(901, 1, &[]),
            header.to_vec(),
            one(902, 2, &footer),
            one(901, 3, &footer),
        ];
        let expected = [
            (0, Access::load(1).after(1)),
            (1, Access::load(2).after(1)),
            (0, Access::load(3).after(2)),
            (0, Access::pass(1)),
            (1, Access::pass(1)),
        ];
        assert_eq!(read(&trace.concat()).expect("a trace"), expected);
    }

    #[test]
    fn a_cut_trace_and_what_is_none_are_named() {
        let error = |entries: &[Vec<u8>]| read(entries).expect_err("refused").to_string();
        let cut = [entry(HEADER, 0, 7), entry(10, 4, 1), entry(READ, 8, 1)[..7].to_vec()];
        assert!(error(&cut).contains("entry 3 has 7 of 12"), "{}", error(&cut));
        assert!(error(&[entry(READ, 8, 1)]).contains("no drmemtrace file"));
        assert!(error(&[entry(HEADER, 0, 7), entry(77, 8, 1)]).contains("unknown type 77"));
        assert!(error(&[entry(HEADER, 0, 7), entry(READ, 0, 1)]).contains("entry 2: "));
        assert!(error(&[entry(HEADER, 0, 7), entry(READ, 8, 1 << 50)]).contains("48 bits"));
    }
}
