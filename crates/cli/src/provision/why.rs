//! `terrace provision why`: what the daemon decided and did, and why.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Nanos;
use terrace_provision::NodeId;
use terrace_provision::journal::{self, Entry, Event};
use terrace_provision::live;

use crate::failure::Failure;
use crate::output;

/// Explain what the daemon decided and did.
///
/// Everything is in its journal, which is kept when the daemon ends: each decision with
/// what it was based on, each step with how long it took, and why a step was not done.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace provision why --node 0 --last 20")]
pub(crate) struct Args {
    /// A journal, instead of that of the daemon of this machine.
    #[arg(conflicts_with = "state")]
    journal: Option<PathBuf>,

    /// Only what is about this node.
    #[arg(long, value_name = "NODE")]
    node: Option<u32>,

    /// Only steps that failed, were refused or given up, and changes that could not be made.
    #[arg(long)]
    failed: bool,

    /// Only so many, the newest.
    #[arg(long, value_name = "COUNT")]
    last: Option<usize>,

    /// Where the daemon keeps lock, status and journal.
    #[arg(long, value_name = "DIRECTORY", default_value = live::DIRECTORY)]
    state: PathBuf,
}

#[derive(Serialize)]
struct Document {
    entries: Vec<Entry>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let mut entries = if let Some(path) = &self.journal {
            read(path, false)?
        } else {
            // What came before is there once the journal has grown large.
            let mut before = read(&self.state.join("journal.1"), true)?;
            before.extend(read(&self.state.join("journal"), false)?);
            before
        };
        if let Some(node) = self.node {
            entries.retain(|entry| entry.node() == Some(NodeId(node)));
        }
        if self.failed {
            entries.retain(|entry| {
                matches!(
                    entry.what,
                    Event::Failed { .. }
                        | Event::Refused { .. }
                        | Event::Dropped { .. }
                        | Event::Nothing { .. }
                        | Event::Priced { vetoed: true, .. }
                )
            });
        }
        if let Some(last) = self.last {
            entries.drain(..entries.len().saturating_sub(last));
        }
        let text = if json {
            output::json("terrace.provision.why", &Document { entries })?
        } else {
            let mut text = String::new();
            for entry in &entries {
                let _ = writeln!(text, "{}  {}", time(entry.at), entry.what);
            }
            text
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn read(path: &PathBuf, may_lack: bool) -> Result<Vec<Entry>, Failure> {
    let name = path.display();
    match File::open(path) {
        Ok(file) => {
            let kind = file.metadata().map(|there| there.file_type());
            if kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device()) {
                return Err(Failure::bad_input(format!("{name}: is a device, not a file")));
            }
            journal::read(BufReader::new(file))
                .map_err(|e| Failure::bad_input(format!("{name}: {e}")))
        }
        Err(e) if may_lack && e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(Failure::bad_input(format!("{name}: no daemon has run there")))
        }
        Err(e) => Err(Failure::bad_input(format!("{name}: {e}"))),
    }
}

/// A time as people write it, in UTC (Howard Hinnant's `civil_from_days`).
pub(crate) fn time(at: Nanos) -> String {
    let seconds = at.get() / 1_000_000_000;
    let millis = at.get() / 1_000_000 % 1000;
    let days = (seconds / 86_400) as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        // `date -u -d @N`.
        for (seconds, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_795_766_944, "2026-11-27T08:09:04.000Z"),
        ] {
            assert_eq!(time(Nanos::seconds(seconds)), shown);
        }
    }
}
