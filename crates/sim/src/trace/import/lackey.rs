//! `valgrind --tool=lackey --trace-mem=yes`: a line an access or instruction.
//!
//! Lackey writes where the program writes its errors, so that lines of others
//! stand in between, and some of its own may be damaged: what a program writes without
//! the end of a line goes on in lackey's. Both are skipped, and counted apart. But a line that a
//! program writes takes many instructions: where lackey's lines are not the most, the file is none
//! of its traces, and refused. A fetch is an instruction and no access of data.

use std::io::Read;
use std::path::{Path, PathBuf};

use terrace_core::Access as Kind;

use super::lines::{Line, Lines};
use super::making::{Checks, Pace};
use super::{BATCH, Importer, bad, bad_line};
use crate::error::SimError;
use crate::exact::{Access, Batch};
use crate::trace::summary::{Fate, Notes};

/// So many lines of others are read before it is asked whether lackey's are the most, which come
/// from a program's first instruction on: what has no end would be read for ever.
const MOST_BEFORE: u64 = 1 << 20;

/// Reads lackey's lines.
pub(super) struct Lackey<R> {
    lines: Lines<R>,
    file: PathBuf,
    pace: Pace,
    checks: Checks,
    accesses: u64,
    fetches: u64,
    /// Lines of the program's and of Valgrind's own.
    foreign: u64,
    /// Lines that begin as lackey's and go on otherwise, and the number of the first.
    damaged: u64,
    first_damaged: u64,
    valgrinds: u64,
    keeps_fetches: bool,
    ended: bool,
}

/// What a line of lackey's says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Fetch,
    Load,
    Store,
    /// A load and a store of one instruction.
    Modify,
}

impl<R: Read> Lackey<R> {
    /// Begins to read; `file` is for errors.
    pub(super) fn new(from: R, file: &Path) -> Self {
        Self {
            lines: Lines::new(from),
            file: file.to_owned(),
            pace: Pace::default(),
            checks: Checks::default(),
            accesses: 0,
            fetches: 0,
            foreign: 0,
            damaged: 0,
            first_damaged: 0,
            valgrinds: 0,
            keeps_fetches: false,
            ended: false,
        }
    }

    /// Fetches are entries of their own.
    pub(super) fn with_fetches(mut self) -> Self {
        self.keeps_fetches = true;
        self
    }

    /// What is wrong with the file as a whole, if lackey's lines are not the most.
    fn wrong(&self) -> Option<String> {
        let (own, others) = (self.fetches + self.accesses, self.foreign + self.damaged);
        if own >= others {
            return None;
        }
        let lines = self.lines.number();
        let damaged = match self.damaged {
            0 => String::new(),
            damaged => format!(
                "; {damaged} begin as its lines do and are damaged, line {} first",
                self.first_damaged
            ),
        };
        Some(match own {
            0 => format!("not one of its first {lines} lines is lackey's (` L 1ffe,8`){damaged}"),
            _ => format!(
                "is no trace of lackey: {others} of its first {lines} lines are not lackey's \
                 (` L 1ffe,8`){damaged}"
            ),
        })
    }

    fn take(
        &mut self,
        (what, address, size): (What, u64, u64),
        out: &mut Vec<Access>,
    ) -> Result<(), String> {
        if what == What::Fetch {
            self.fetches += 1;
            self.pace.instructions(1);
            if self.keeps_fetches {
                out.push(Access::fetch(self.checks.address(address)?, size));
            }
            return Ok(());
        }
        let kinds: &[Kind] = match what {
            What::Load => &[Kind::Read],
            What::Store => &[Kind::Write],
            _ => &[Kind::Read, Kind::Write],
        };
        for &kind in kinds {
            if self.keeps_fetches {
                // As cachegrind has it: a large access is one.
                let address = self.checks.address(address)?;
                self.pace.push(Access::new(address, size, kind), out);
            } else {
                let Self { checks, pace, .. } = self;
                checks.pieces(address, size, |address, size| {
                    pace.push(Access::new(address, size, kind), out);
                })?;
            }
            self.accesses += 1;
        }
        Ok(())
    }
}

/// `I  04016b80,3`, ` L 1ffefff7f8,8`, ` S …`, ` M …`; nothing where a line is
/// not lackey's.
fn parse(line: &str) -> Option<(What, u64, u64)> {
    let (kind, rest) = line.split_at_checked(3)?;
    let what = match kind {
        "I  " => What::Fetch,
        " L " => What::Load,
        " S " => What::Store,
        " M " => What::Modify,
        _ => return None,
    };
    let (address, size) = rest.split_once(',')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    if !digits(address) || !digits(size) {
        return None;
    }
    Some((what, u64::from_str_radix(address, 16).ok()?, size.parse().ok()?))
}

/// Whether a line that is none of lackey's begins as one: it was damaged.
fn begins_as_one(line: &str) -> bool {
    let rest = ["I  ", " L ", " S ", " M "].iter().find_map(|kind| line.strip_prefix(kind));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()))
}

impl<R: Read> Importer for Lackey<R> {
    fn describe(&self) -> String {
        self.file.display().to_string()
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool, SimError> {
        batch.clear();
        while batch.accesses.len() < BATCH && !self.ended {
            let mut damaged = false;
            let parsed = match self.lines.next() {
                Ok(Some(Line::Whole(line))) => {
                    let line = line.trim_end();
                    let parsed = parse(line);
                    if parsed.is_none() && line.starts_with("==") {
                        self.valgrinds += 1;
                        continue;
                    }
                    if parsed.is_none() && line.is_empty() {
                        continue;
                    }
                    damaged = parsed.is_none() && begins_as_one(line);
                    parsed
                }
                Ok(Some(Line::Long)) => None,
                Ok(None) => {
                    self.ended = true;
                    self.pace.end(&mut batch.accesses);
                    break;
                }
                Err(e) => return Err(bad(&self.file, self.accesses, e.to_string()).into()),
            };
            let Some(parsed) = parsed else {
                if damaged {
                    self.damaged += 1;
                    if self.damaged == 1 {
                        self.first_damaged = self.lines.number();
                    }
                } else {
                    self.foreign += 1;
                }
                if self.foreign + self.damaged > MOST_BEFORE
                    && let Some(what) = self.wrong()
                {
                    return Err(bad(&self.file, self.accesses, what).into());
                }
                continue;
            };
            self.take(parsed, &mut batch.accesses)
                .map_err(|what| bad_line(&self.file, self.lines.number(), self.accesses, what))?;
        }
        // A file without any access is told of by `nothing`.
        if self.ended
            && self.accesses > 0
            && let Some(what) = self.wrong()
        {
            return Err(bad(&self.file, self.accesses, what).into());
        }
        Ok(!batch.accesses.is_empty())
    }

    fn tell(&self, notes: &mut Notes) {
        let fetches = "instruction fetches into counts of instructions";
        notes.counted(Fate::Folded, self.fetches, fetches);
        notes.counted(Fate::Skipped, self.foreign, "lines that are not lackey's");
        notes.counted(
            Fate::Skipped,
            self.damaged,
            "damaged lines, which begin as lackey's: what they told is lost",
        );
        notes.counted(Fate::Skipped, self.valgrinds, "messages of Valgrind's");
        self.checks.tell(notes);
    }

    fn nothing(&self) -> String {
        let lines = self.lines.number();
        match self.fetches {
            0 => format!("not one of its {lines} lines is lackey's (` L 1ffe,8`)"),
            fetches => format!("holds {fetches} instruction fetches, and not one access of data"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_lackey_s_only_if_every_column_is() {
        assert_eq!(parse("I  04016b80,3"), Some((What::Fetch, 0x0401_6b80, 3)));
        assert_eq!(parse(" M 1ffe,16"), Some((What::Modify, 0x1ffe, 16)));
        for foreign in [
            "Initialising tables",
            "I  am here,3",
            " L 1ffe",
            " L 1ffe,",
            " L +1ffe,8",
            " L 1ffe,a8",
            " L  1ffe,8",
            " X 10,8",
            "L 10,8",
            " L 10000000000000000,8",
            "done L 10,8",
            "",
        ] {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_line_that_begins_as_lackey_s_and_goes_on_otherwise_is_damaged() {
        for damaged in [" L 1ffe", " L 1ffe,", " L 1ffe,a8", " S 1f done", "I  04016b80 L 1ffe,8"] {
            assert!(parse(damaged).is_none() && begins_as_one(damaged), "{damaged}");
        }
        for foreign in ["Initialising tables", " L  1ffe,8", " L +1ffe,8", " X 10,8", "L 10,8", ""]
        {
            assert!(!begins_as_one(foreign), "{foreign}");
        }
    }
}
