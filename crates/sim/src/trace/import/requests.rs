//! Requests to memories, a line each, as DRAMSim3 and Ramulator read them.
//!
//! Addresses are physical: nothing beyond 48 bits has a meaning. DRAMSim3's
//! cycles are taken as instructions between requests, as [`export_dramsim3`]
//! writes them.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use terrace_core::Access as Kind;

use super::lines::{Line, Lines};
use super::making::{Pace, physical};
use super::{BATCH, Format, Importer, bad, bad_line};
use crate::error::SimError;
use crate::exact::access::ADDRESSES;
use crate::exact::{Access, Batch, Source};
use crate::trace::summary::{Fate, Notes};

/// Reads requests.
pub(super) struct Requests<R> {
    lines: Lines<R>,
    file: PathBuf,
    format: Format,
    pace: Pace,
    /// The cycle of the request before.
    cycle: Option<u64>,
    /// Requests with an earlier cycle than the one before.
    late: u64,
    made: u64,
    ended: bool,
}

impl<R: Read> Requests<R> {
    /// Begins to read; `file` is for errors.
    pub(super) fn new(from: R, file: &Path, format: Format) -> Self {
        Self {
            lines: Lines::new(from),
            file: file.to_owned(),
            format,
            pace: Pace::default(),
            cycle: None,
            late: 0,
            made: 0,
            ended: false,
        }
    }
}

/// A request, and when it is made.
type Request = (Access, Option<u64>);

fn hex(text: &str) -> Option<u64> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    // `from_str_radix` takes a sign.
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// `0x1FF96FC0 WRITE 160`: address, what, cycle. One line of 64 bytes each.
fn dramsim3(line: &str) -> Result<Request, String> {
    const FORM: &str = "is no request of DRAMSim3 (`0x1FF96FC0 WRITE 160`)";
    let words: Vec<&str> = line.split_whitespace().collect();
    let [address, kind, cycle] = words[..] else { return Err(FORM.to_owned()) };
    let kind = match kind {
        "READ" | "P_MEM_RD" => Kind::Read,
        "WRITE" | "P_MEM_WR" => Kind::Write,
        other => return Err(format!("request: `{other}` is neither READ nor WRITE: {FORM}")),
    };
    let Some(address) = hex(address) else {
        return Err(format!("address: `{address}` is no hexadecimal number of 64 bits: {FORM}"));
    };
    let Some(cycle) = decimal(cycle).filter(|&cycle| cycle < ADDRESSES) else {
        return Err(format!("cycle: `{cycle}` is no decimal number below 2^48: {FORM}"));
    };
    Ok((Access::new(physical(address)? & !63, 64, kind), Some(cycle)))
}

/// `LD 0x12340`, `ST 4096`: hexadecimal with `0x`, else decimal.
fn ramulator(line: &str) -> Result<Request, String> {
    const FORM: &str = "is no request of Ramulator (`LD 0x12340`)";
    let words: Vec<&str> = line.split_whitespace().collect();
    let [kind, address] = words[..] else { return Err(FORM.to_owned()) };
    let kind = match kind {
        "LD" => Kind::Read,
        "ST" => Kind::Write,
        _ => return Err(FORM.to_owned()),
    };
    let is_hex = address.starts_with("0x") || address.starts_with("0X");
    let address = if is_hex { hex(address) } else { decimal(address) };
    Ok((Access::new(physical(address.ok_or(FORM)?)?, 8, kind), None))
}

impl<R: Read> Importer for Requests<R> {
    fn describe(&self) -> String {
        self.file.display().to_string()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        while batch.accesses.len() < BATCH && !self.ended {
            let parsed = match self.lines.next() {
                Ok(Some(Line::Whole(line))) => {
                    let line = line.trim();
                    if line.is_empty() || line.starts_with('#') {
                        continue;
                    }
                    if self.format == Format::DramSim3 { dramsim3(line) } else { ramulator(line) }
                }
                Ok(Some(Line::Long)) => Err("the line is too long for this format".to_owned()),
                Ok(None) => {
                    self.ended = true;
                    break;
                }
                Err(e) => return Err(bad(&self.file, self.made, e.to_string()).into()),
            };
            let number = self.lines.number();
            let (access, cycle) =
                parsed.map_err(|what| bad_line(&self.file, number, self.made, what))?;
            if let Some(cycle) = cycle {
                // The first request is when time begins.
                let before = self.cycle.unwrap_or(cycle.saturating_sub(1));
                self.late += u64::from(cycle < before);
                self.pace.instructions(cycle.saturating_sub(before));
                self.cycle = Some(cycle.max(before));
            } else {
                self.pace.instructions(1);
            }
            self.pace.push(access, &mut batch.accesses);
            self.made += 1;
        }
        Ok(!batch.accesses.is_empty())
    }

    fn tell(&self, notes: &mut Notes) {
        notes.whole(
            Fate::Folded,
            self.cycle.is_some(),
            "cycles into instructions between requests",
        );
        notes.counted(
            Fate::Folded,
            self.late,
            "cycles that go back into that of the request before",
        );
    }
}

/// Writes a stream as requests for DRAMSim3, a line each; instructions are
/// taken as cycles. Returns how many.
pub fn export_dramsim3(source: &mut dyn Source, mut out: impl Write) -> Result<u64, SimError> {
    let mut batch = Batch::default();
    let (mut cycle, mut count) = (0, 0);
    while source.next(&mut batch)? {
        for access in &batch.accesses {
            cycle += access.counted();
            if !access.is_data() {
                continue;
            }
            count += 1;
            let kind = if access.is_store() { "WRITE" } else { "READ" };
            writeln!(out, "0x{:X} {kind} {cycle}", access.address() & !63)
                .map_err(|e| SimError::from(bad(Path::new("output"), 0, e.to_string())))?;
        }
    }
    Ok(count)
}
