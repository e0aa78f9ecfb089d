//! ChampSim: 64 bytes an instruction, little-endian: u64 address of the
//! instruction; u8 is it a branch, u8 was it taken; u8 destination registers
//! `[2]`; u8 source registers `[4]`; u64 destination memory `[2]`; u64 source memory
//! `[4]`. Zero is none.
//!
//! It has registers, so dependences are known: a load whose source registers
//! were written by the load before it depends on it. Sizes are not in it; eight
//! bytes are taken.

use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use super::{BATCH, bad};
use crate::error::SimError;
use crate::full::{Access, Batch, Source};

const RECORD: usize = 64;
/// The stack pointer and the flags, in ChampSim's numbering, carry no data of
/// a load from one instruction to the next.
const IGNORED: [u8; 2] = [6, 25];

/// Reads a ChampSim trace.
pub struct ChampSim<R> {
    from: BufReader<R>,
    file: PathBuf,
    records: u64,
    gap: u64,
    /// Registers that the last load wrote.
    loaded: [u8; 2],
}

impl<R: Read> ChampSim<R> {
    /// Begins to read; `file` is for errors.
    pub fn new(from: R, file: &Path) -> Self {
        Self {
            from: BufReader::with_capacity(1 << 16, from),
            file: file.to_owned(),
            records: 0,
            gap: 0,
            loaded: [0; 2],
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

    fn take(&mut self, record: &[u8; RECORD], out: &mut Vec<Access>) {
        let destinations = [record[10], record[11]];
        let sources = &record[12..16];
        let depends =
            self.loaded.iter().any(|r| *r != 0 && !IGNORED.contains(r) && sources.contains(r));
        let mut any = false;
        for (loads, memory) in [(true, &record[32..64]), (false, &record[16..32])] {
            for address in memory.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok()) {
                let address = u64::from_le_bytes(address);
                if address == 0 {
                    continue;
                }
                let mut access = if loads { Access::load(address) } else { Access::store(address) };
                if loads && depends {
                    access = access.dependent();
                }
                out.push(access.after(if any { 0 } else { self.gap }));
                any = true;
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
        self.gap = if any { 0 } else { self.gap + 1 };
    }
}

impl<R: Read> Source for ChampSim<R> {
    fn describe(&self) -> String {
        self.file.display().to_string()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        let mut record = [0; RECORD];
        while batch.accesses.len() < BATCH {
            if !self.record(&mut record)? {
                break;
            }
            self.take(&record, &mut batch.accesses);
        }
        Ok(!batch.accesses.is_empty())
    }
}

/// Writes a stream as a ChampSim trace: one instruction an access, others
/// between them without memory. Instruction addresses are made up: accesses of
/// a kind share one. Returns how many instructions were written.
pub fn export_champsim(source: &mut dyn Source, mut out: impl Write) -> Result<u64, SimError> {
    let mut batch = Batch::default();
    let mut instructions = 0;
    let mut emit = |record: &[u8; RECORD]| {
        out.write_all(record)
            .map_err(|e| SimError::from(bad(Path::new("output"), 0, e.to_string())))
    };
    while source.next(&mut batch)? {
        for access in batch.accesses.iter().filter(|access| !access.is_fetch()) {
            let mut record = [0; RECORD];
            for _ in 0..access.instructions() {
                record[..8].copy_from_slice(&0x40_0000u64.to_le_bytes());
                emit(&record)?;
            }
            record[..8].copy_from_slice(&0x40_0010u64.to_le_bytes());
            let at = if access.is_store() { 16 } else { 32 };
            record[at..at + 8].copy_from_slice(&access.address().to_le_bytes());
            if !access.is_store() {
                // A register for what is loaded, read again by a dependent load.
                record[10] = 3;
                record[12] = if access.is_dependent() { 3 } else { 0 };
            }
            emit(&record)?;
            instructions += access.instructions() + 1;
        }
    }
    Ok(instructions)
}
