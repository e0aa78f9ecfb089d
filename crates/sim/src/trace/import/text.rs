//! Traces in lines of text.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use terrace_core::Access as Kind;

use super::{BATCH, Format, bad};
use crate::error::SimError;
use crate::full::{Access, Batch, Source};

/// The longest line that is read: no format has longer ones.
const LONGEST: u64 = 4096;

/// Reads a trace in lines.
pub struct TextTrace<R> {
    from: BufReader<R>,
    file: PathBuf,
    format: Format,
    line: u64,
    text: String,
    gap: u64,
    accesses: u64,
}

impl<R: Read> TextTrace<R> {
    /// Begins to read; `file` is for errors.
    pub fn new(from: R, file: &Path, format: Format) -> Self {
        Self {
            from: BufReader::with_capacity(1 << 16, from),
            file: file.to_owned(),
            format,
            line: 0,
            text: String::new(),
            gap: 0,
            accesses: 0,
        }
    }

    fn bad(&self, message: &str) -> SimError {
        let mut bad = bad(&self.file, self.accesses, message.to_owned());
        bad.file.as_mut_os_string().push(format!(":{}", self.line));
        bad.into()
    }

    /// Reads a line; false at the end.
    fn advance(&mut self) -> Result<bool, SimError> {
        self.text.clear();
        self.line += 1;
        let mut limited = self.from.by_ref().take(LONGEST);
        match limited.read_line(&mut self.text) {
            Ok(0) => Ok(false),
            Ok(n) if n as u64 == LONGEST => Err(self.bad("the line is too long for this format")),
            Ok(_) => Ok(true),
            Err(e) => Err(self.bad(&e.to_string())),
        }
    }

    /// Takes the accesses of the line; true if it is one of the format's.
    fn take(&mut self, out: &mut Vec<Access>) -> Result<(), SimError> {
        let line = self.text.trim_end();
        let trimmed = line.trim_start();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return Ok(());
        }
        let accesses = match self.format {
            Format::Lackey => match lackey(line) {
                Some(accesses) => accesses,
                // Valgrind's own words, and the program's, stand in between.
                None if !line.starts_with([' ', 'I']) => return Ok(()),
                None => return Err(self.bad("is no line of lackey (` L 1ffe,8`)")),
            },
            Format::DramSim3 => {
                let access = dramsim3(trimmed).ok_or_else(|| {
                    self.bad("is no request of DRAMSim3 (`0x1FF96FC0 WRITE 160`)")
                })?;
                [Some(access), None]
            }
            Format::Ramulator => {
                let access = ramulator(trimmed)
                    .ok_or_else(|| self.bad("is no request of Ramulator (`LD 0x12340`)"))?;
                [Some(access), None]
            }
            _ => {
                let access = perf_script(trimmed).ok_or_else(|| {
                    self.bad("has no hexadecimal address (`perf script -F addr`)")
                })?;
                // A sample without an address is no access.
                [(access.address() != 0).then_some(access), None]
            }
        };
        for access in accesses.into_iter().flatten() {
            if access.is_fetch() {
                out.push(access);
                self.gap += 1;
                continue;
            }
            // Lackey tells of the instruction before its accesses.
            out.push(access.after(self.gap.saturating_sub(1)));
            self.gap = 0;
        }
        Ok(())
    }
}

fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    u64::from_str_radix(digits, 16).ok()
}

/// `I  04016b80,3`, ` L 1ffefff7f8,8`, ` S …`, ` M …` (a load and a store).
fn lackey(line: &str) -> Option<[Option<Access>; 2]> {
    let (kind, rest) = line.split_at_checked(3)?;
    let (address, size) = rest.trim_start().split_once(',')?;
    let (address, size) = (hex(address)?, size.trim().parse::<u64>().ok()?);
    Some(match kind {
        "I  " => [Some(Access::fetch(address, size)), None],
        " L " => [Some(Access::new(address, size, Kind::Read)), None],
        " S " => [Some(Access::new(address, size, Kind::Write)), None],
        " M " => [Kind::Read, Kind::Write].map(|kind| Some(Access::new(address, size, kind))),
        _ => return None,
    })
}

/// `0x1FF96FC0 WRITE 160`: address, what, cycle. One line of 64 bytes each.
fn dramsim3(line: &str) -> Option<Access> {
    let mut words = line.split_whitespace();
    let address = hex(words.next()?)?;
    let kind = match words.next()? {
        "READ" | "P_MEM_RD" => Kind::Read,
        "WRITE" | "P_MEM_WR" => Kind::Write,
        _ => return None,
    };
    words.next()?.parse::<u64>().ok()?;
    words.next().is_none().then(|| Access::new(address & !63, 64, kind))
}

/// `LD 0x12340`, `ST 4096`: hexadecimal with `0x`, else decimal.
fn ramulator(line: &str) -> Option<Access> {
    let (kind, address) = line.split_once(char::is_whitespace)?;
    let address = address.trim();
    let address = if address.starts_with("0x") || address.starts_with("0X") {
        hex(address)?
    } else {
        address.parse().ok()?
    };
    match kind {
        "LD" => Some(Access::new(address, 8, Kind::Read)),
        "ST" => Some(Access::new(address, 8, Kind::Write)),
        _ => None,
    }
}

/// The first hexadecimal number of at least five digits behind the event's name
/// or the time, which end with a colon: `perf script` prints the address there,
/// before the instruction's, whatever the order of `-F`. The line is a store if
/// it says `store` anywhere.
fn perf_script(line: &str) -> Option<Access> {
    let mut head = line.rmatch_indices(':').map(|(at, _)| &line[at + 1..]);
    let rest = head.find(|rest| rest.starts_with(char::is_whitespace));
    let mut words = rest.unwrap_or(line).split_whitespace();
    let word = words.find(|word| (*word == "0" || word.len() >= 5) && hex(word).is_some())?;
    let address = hex(word)?;
    let kind = if line.contains("store") { Kind::Write } else { Kind::Read };
    Some(Access::new(address, 8, kind))
}

impl<R: Read> Source for TextTrace<R> {
    fn describe(&self) -> String {
        self.file.display().to_string()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        while batch.accesses.len() < BATCH {
            if !self.advance()? {
                break;
            }
            let before = batch.accesses.len();
            self.take(&mut batch.accesses)?;
            self.accesses += (batch.accesses.len() - before) as u64;
        }
        Ok(!batch.accesses.is_empty())
    }
}

/// Writes a stream as requests for DRAMSim3, a line each; instructions are
/// taken as cycles. Returns how many.
pub fn export_dramsim3(source: &mut dyn Source, mut out: impl Write) -> Result<u64, SimError> {
    let mut batch = Batch::default();
    let (mut cycle, mut count) = (0, 0);
    while source.next(&mut batch)? {
        for access in batch.accesses.iter().filter(|access| !access.is_fetch()) {
            cycle += access.instructions() + 1;
            count += 1;
            let kind = if access.is_store() { "WRITE" } else { "READ" };
            writeln!(out, "0x{:X} {kind} {cycle}", access.address() & !63)
                .map_err(|e| SimError::from(bad(Path::new("output"), 0, e.to_string())))?;
        }
    }
    Ok(count)
}
