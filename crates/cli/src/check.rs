//! `terrace check`: validates a file of ours, whatever kind it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, Ladder, LadderFile, Machine};
use terrace_dram::MemoryFile;
use terrace_policy::recording::EventReader;

use crate::failure::Failure;
use crate::output;
use crate::records::{self, Reader, Record};

/// Check a machine file, a ladder file, a memory file, recorded decisions or recorded events.
///
/// The kind is recognised by the content. A fault is reported with file, line
/// and field, and exit code 2.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file.
    file: PathBuf,
}

/// A file that is as it should be.
#[derive(Serialize)]
struct Valid {
    file: PathBuf,
    #[serde(flatten)]
    content: Content,
}

/// What was found in it.
#[derive(Serialize)]
#[serde(tag = "content", rename_all = "kebab-case")]
enum Content {
    Machine { name: String, tiers: Vec<String> },
    Ladder { tiers: Vec<String> },
    Memory { name: String, channels: u32, capacity: Bytes },
    Records { program: Vec<String>, decisions: u64, lost: u64 },
    Events { policy: String, events: u64 },
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let content = check(&self.file)?;
        let text = if json {
            output::json("terrace.check", &Valid { file: self.file, content })?
        } else {
            let what = match content {
                Content::Machine { name, tiers } => {
                    format!("machine file `{name}`, tiers {}", tiers.join(", "))
                }
                Content::Ladder { tiers } => format!("ladder file, tiers {}", tiers.join(", ")),
                Content::Memory { name, channels, capacity } => {
                    format!("memory file `{name}`, {channels} channels, {capacity}")
                }
                Content::Events { policy, events } => {
                    format!("{events} events that `{policy}` was told")
                }
                Content::Records { program, decisions, lost: 0 } => {
                    format!("{decisions} decisions about `{}`", program.join(" "))
                }
                Content::Records { program, decisions, lost } => {
                    format!("{decisions} decisions about `{}`, {lost} lost", program.join(" "))
                }
            };
            format!("{}: {what}\n", self.file.display())
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn check(file: &Path) -> Result<Content, Failure> {
    let name = file.display().to_string();
    let bytes = fs::read(file).map_err(|e| Failure::bad_input(format!("{name}: {e}")))?;
    let unknown = || {
        Failure::bad_input(format!(
            "{name}: neither a machine, ladder or memory file, nor recorded decisions or events"
        ))
    };
    let first = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    if std::str::from_utf8(first).is_ok_and(records::is_header) {
        return check_records(&name, &bytes);
    }
    let text = String::from_utf8(bytes).map_err(|_| unknown())?;
    if text.lines().next().is_some_and(is_event_header) {
        check_events(&name, &text)
    } else if Ladder::is_meant(&text) {
        let ladder = LadderFile::parse(&name, &text).map_err(Failure::bad_input)?;
        Ok(Content::Ladder { tiers: ladder.names() })
    } else if looks_like_memory(&text) {
        let memory = MemoryFile::parse(&name, &text).map_err(Failure::bad_input)?;
        let channels = memory.channel.channels.value;
        let capacity = memory.channel_capacity() * u64::from(channels);
        Ok(Content::Memory { name: memory.name, channels, capacity })
    } else if looks_like_machine(&text) {
        let machine = Machine::parse(&name, &text).map_err(Failure::bad_input)?;
        let tiers = machine.tiers.into_iter().map(|tier| tier.name).collect();
        Ok(Content::Machine { name: machine.name, tiers })
    } else {
        Err(unknown())
    }
}

fn check_records(name: &str, bytes: &[u8]) -> Result<Content, Failure> {
    let mut reader = Reader::new(name, bytes)?;
    let program = std::mem::take(&mut reader.header.program);
    let (mut decisions, mut lost) = (0, 0);
    for record in reader {
        match record? {
            Record::Decision { .. } => decisions += 1,
            Record::Lost { count, .. } => lost += count,
            _ => {}
        }
    }
    Ok(Content::Records { program, decisions, lost })
}

fn check_events(name: &str, text: &str) -> Result<Content, Failure> {
    let mut reader = EventReader::new(name, text.as_bytes()).map_err(Failure::bad_input)?;
    let policy = reader.policy().to_owned();
    let events = reader.try_fold(0, |events, event| event.map(|_| events + 1));
    Ok(Content::Events { policy, events: events.map_err(Failure::bad_input)? })
}

/// Whether a line is, or was meant to be, the header of recorded events.
fn is_event_header(line: &str) -> bool {
    line.trim_start().starts_with('{') && line.contains("\"terrace.events\"")
}

/// Whether a text is meant as a memory file, valid or not.
fn looks_like_memory(text: &str) -> bool {
    text.lines().any(|line| line.split('=').map(str::trim).eq(["kind", "\"memory\""]))
}

/// Whether a text is meant as a machine file, valid or not: it has a line that
/// only machine files have. One that was cut off after its first lines still
/// has `schema`.
fn looks_like_machine(text: &str) -> bool {
    text.lines().map(str::trim).any(|line| {
        ["[cpu]", "[[tier]]", "[costs]"].contains(&line)
            || line.strip_prefix("schema").is_some_and(|rest| rest.trim_start().starts_with('='))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_file_is_recognised_however_early_it_was_cut_off() {
        assert!(looks_like_machine("schema = 1\nname = \"two-ti"));
        assert!(looks_like_machine("# a comment\nschema=1\n"));
        assert!(looks_like_machine("[[tier]]\n"));
    }

    #[test]
    fn another_tool_s_toml_is_not_taken_for_a_machine_file() {
        assert!(!looks_like_machine("[package]\nname = \"x\"\n"));
        assert!(!looks_like_machine("schematic = 1\n"));
        assert!(!looks_like_machine(""));
    }
}
