//! ChampSim: 64 bytes an instruction, little-endian: u64 address of the
//! instruction; u8 is it a branch, u8 was it taken; u8 destination registers
//! `[2]`; u8 source registers `[4]`; u64 destination memory `[2]`; u64 source memory
//! `[4]`. Zero is none.
//!
//! It has registers, so dependences are known: a load whose source registers
//! were written by the load before it depends on it. Sizes are not in it; eight
//! bytes are taken. Nothing marks such a file, so every record is checked.

use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use super::making::{Checks, Pace};
use super::{BATCH, Importer, bad};
use crate::error::SimError;
use crate::exact::{Access, Batch, Source};
use crate::trace::summary::Notes;

const RECORD: usize = 64;
/// The stack pointer and the flags, in ChampSim's numbering, carry no data of
/// a load from one instruction to the next.
const IGNORED: [u8; 2] = [6, 25];

/// Reads a ChampSim trace.
pub(super) struct ChampSim<R> {
    from: BufReader<R>,
    file: PathBuf,
    records: u64,
    pace: Pace,
    checks: Checks,
    /// Registers that the last load wrote.
    loaded: [u8; 2],
    ended: bool,
}

impl<R: Read> ChampSim<R> {
    /// Begins to read; `file` is for errors.
    pub(super) fn new(from: R, file: &Path) -> Self {
        Self {
            from: BufReader::with_capacity(1 << 16, from),
            file: file.to_owned(),
            records: 0,
            pace: Pace::default(),
            checks: Checks::default(),
            loaded: [0; 2],
            ended: false,
        }
    }

    /// Reads a record; false at the end.
    fn record(&mut self, record: &mut [u8; RECORD]) -> Result<bool, SimError> {
        let mut got = 0;
        while got < RECORD {
            match self.from.read(&mut record[got..]) {
                Ok(0) if got == 0 => return Ok(false),
                Ok(0) => {
                    let message = format!(
                        "truncated: record {} has {got} of {RECORD} bytes",
                        self.records + 1
                    );
                    return Err(bad(&self.file, self.records, message).into());
                }
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(bad(&self.file, self.records, e.to_string()).into()),
            }
        }
        self.records += 1;
        Ok(true)
    }

    fn take(&mut self, record: &[u8; RECORD], out: &mut Vec<Access>) -> Result<(), String> {
        let [is_branch, taken] = [record[8], record[9]];
        if is_branch > 1 || taken > 1 {
            return Err(format!(
                "is no instruction: `is_branch` is {is_branch} and `branch_taken` {taken}, \
                 which can be 0 or 1"
            ));
        }
        if record.iter().all(|byte| *byte == 0) {
            return Err("is no instruction: all of it is zero".to_owned());
        }
        let destinations = [record[10], record[11]];
        let sources = &record[12..16];
        let depends =
            self.loaded.iter().any(|r| *r != 0 && !IGNORED.contains(r) && sources.contains(r));
        self.pace.instructions(1);
        for (loads, memory) in [(true, &record[32..64]), (false, &record[16..32])] {
            for address in memory.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok()) {
                let address = u64::from_le_bytes(address);
                if address == 0 {
                    continue;
                }
                let address = self.checks.address(address)?;
                let mut access = if loads { Access::load(address) } else { Access::store(address) };
                if loads && depends {
                    access = access.dependent();
                }
                self.pace.push(access, out);
            }
        }
        if record[32..64].iter().any(|byte| *byte != 0) {
            self.loaded = destinations;
        } else {
            // What another instruction overwrites is not loaded any more.
            for register in &mut self.loaded {
                if destinations.contains(register) {
                    *register = 0;
                }
            }
        }
        Ok(())
    }
}

impl<R: Read> Importer for ChampSim<R> {
    fn describe(&self) -> String {
        self.file.display().to_string()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        let mut record = [0; RECORD];
        while batch.accesses.len() < BATCH && !self.ended {
            if !self.record(&mut record)? {
                self.ended = true;
                self.pace.end(&mut batch.accesses);
                break;
            }
            self.take(&record, &mut batch.accesses).map_err(|what| {
                let message = format!("record {} {what}", self.records);
                SimError::from(bad(&self.file, self.records - 1, message))
            })?;
        }
        Ok(!batch.accesses.is_empty())
    }

    fn tell(&self, notes: &mut Notes) {
        self.checks.tell(notes);
    }

    fn nothing(&self) -> String {
        format!("not one of its {} instructions accesses memory", self.records)
    }
}

/// An instruction that accesses memory, as it is written.
#[derive(Clone, Copy, Debug)]
struct Instruction {
    record: [u8; RECORD],
    loads: usize,
    stores: usize,
    dependent: bool,
}

impl Instruction {
    /// An instruction that makes an access. Its address is made up: those of a kind share one.
    fn new(access: Access) -> Self {
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&0x40_0010u64.to_le_bytes());
        let mut made = Self { record, loads: 0, stores: 0, dependent: access.is_dependent() };
        made.add(access);
        made
    }

    /// Adds an access of the same; false if its record cannot say that. Loads come first in one.
    fn add(&mut self, access: Access) -> bool {
        let (at, full) = if access.is_store() {
            (16 + 8 * self.stores, self.stores == 2)
        } else {
            let other = self.loads > 0 && self.dependent != access.is_dependent();
            (32 + 8 * self.loads, self.loads == 4 || self.stores > 0 || other)
        };
        // An address of zero is none.
        if full || access.address() == 0 && self.loads + self.stores > 0 {
            return false;
        }
        self.record[at..at + 8].copy_from_slice(&access.address().to_le_bytes());
        if access.is_store() {
            self.stores += 1;
        } else {
            self.loads += 1;
            self.dependent = access.is_dependent();
            // A register for what is loaded, read again by a dependent load.
            self.record[10] = 3;
            self.record[12] = if access.is_dependent() { 3 } else { 0 };
        }
        true
    }
}

/// Writes a stream as a ChampSim trace: its instructions, those without an access
/// between them. Returns how many instructions were written. Where one makes more accesses than a
/// record has room for, or in another order, that is more than there were.
pub fn export_champsim(source: &mut dyn Source, mut out: impl Write) -> Result<u64, SimError> {
    let mut batch = Batch::default();
    let mut instructions = 0;
    let mut emit = |record: &[u8; RECORD]| {
        instructions += 1;
        out.write_all(record)
            .map_err(|e| SimError::from(bad(Path::new("output"), 0, e.to_string())))
    };
    let mut plain = [0; RECORD];
    plain[..8].copy_from_slice(&0x40_0000u64.to_le_bytes());
    let mut last: Option<Instruction> = None;
    while source.next(&mut batch)? {
        for access in &batch.accesses {
            if access.is_data()
                && access.is_of_same_instruction()
                && last.as_mut().is_some_and(|last| last.add(*access))
            {
                continue;
            }
            if let Some(last) = last.take() {
                emit(&last.record)?;
            }
            for _ in 0..access.counted().saturating_sub(u64::from(access.is_data())) {
                emit(&plain)?;
            }
            last = access.is_data().then(|| Instruction::new(*access));
        }
    }
    if let Some(last) = last {
        emit(&last.record)?;
    }
    Ok(instructions)
}
