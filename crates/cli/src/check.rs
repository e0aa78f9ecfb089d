//! `terrace check`: validates a file of ours, whatever kind it is.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, Ladder, LadderFile, Nanos};
use terrace_dram::MemoryFile;
use terrace_live::costs::{CostsFile, Fingerprint};
use terrace_policy::recording::EventReader;
use terrace_profile::Profile;
use terrace_provision::{Config, Recording, journal};
use terrace_sim::kernel::Costs as KernelCosts;
use terrace_sim::kernel::recorded::{self, Recording as Recorded};
use terrace_sim::mm::MeasuredCosts;
use terrace_sim::trace::{TraceReader, format, import};

use crate::failure::Failure;
use crate::output;
use crate::records::{self, Reader, Record};

/// Check a machine file, a ladder file, a memory file, measured costs (of Terrace's mechanisms,
/// of the kernel's calls, or of its memory management), recorded decisions, recorded events, a trace, a profile, recorded
/// calls, a recording of the nodes' memory, or a
/// configuration or journal of `terrace provision`.
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
    Costs { processor: String, kernel: String },
    KernelCosts,
    MmCosts { pieces: usize },
    Records { program: Vec<String>, decisions: u64, lost: u64 },
    Events { policy: String, events: u64 },
    Trace { program: Vec<String>, accesses: u64, calls: u64 },
    Zones { samples: usize, duration: Nanos },
    Calls { program: Vec<String>, calls: usize, lost: u64 },
    Provision { policy: String },
    Profile { program: Vec<String>, regions: usize, rules: usize },
    Journal { entries: usize },
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
                Content::Costs { processor, kernel } => {
                    format!("measured costs of {processor}, Linux {kernel}")
                }
                Content::KernelCosts => "what calls cost in the simulated kernel".to_owned(),
                Content::MmCosts { pieces } => {
                    format!("what {pieces} pieces of memory management cost a kernel")
                }
                Content::Events { policy, events } => {
                    format!("{events} events that `{policy}` was told")
                }
                Content::Zones { samples, duration } => {
                    format!("{samples} looks at the nodes' memory in {duration}")
                }
                Content::Calls { program, calls, lost: 0 } => {
                    format!("{calls} calls of `{}`", program.join(" "))
                }
                Content::Calls { program, calls, lost } => {
                    format!("{calls} calls of `{}`, {lost} events lost", program.join(" "))
                }
                Content::Provision { policy } => {
                    format!("configuration of `terrace provision run`, policy {policy}")
                }
                Content::Journal { entries } => {
                    format!("{entries} entries of a journal of `terrace provision run`")
                }
                Content::Profile { program, regions, rules: 0 } => {
                    let regions = output::several(regions, "region", "regions");
                    format!("profile of `{}`, {regions}", program.join(" "))
                }
                Content::Profile { regions, rules, .. } => {
                    let regions = output::several(regions, "region", "regions");
                    let rules = output::several(rules, "imported rule", "imported rules");
                    format!("profile, {regions}, {rules}")
                }
                Content::Trace { program, accesses, calls: 0 } => {
                    format!("{accesses} accesses of `{}`", program.join(" "))
                }
                Content::Trace { program, accesses, calls } => {
                    format!("{accesses} accesses and {calls} calls of `{}`", program.join(" "))
                }
                Content::Records { program, decisions, lost: 0 } => {
                    format!("{decisions} decisions about `{}`", program.join(" "))
                }
                Content::Records { program, decisions, lost } => {
                    format!("{decisions} decisions about `{}`, {lost} lost", program.join(" "))
                }
            };
            // A file says what it likes, of a program, say.
            output::plain(&format!("{}: {what}\n", self.file.display()))
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// How much of a file says what it is.
const BEGIN: u64 = 64 << 10;

fn check(file: &Path) -> Result<Content, Failure> {
    let name = file.display().to_string();
    let bad = |e: io::Error| Failure::bad_input(format!("{name}: {e}"));
    let unknown = || {
        Failure::bad_input(format!(
            "{name}: neither a machine, ladder or memory file, nor a profile, nor recorded \
             decisions, events, accesses, calls or nodes' memory, nor a configuration \
             (`provision = 1`) or journal of `terrace provision`"
        ))
    };
    let mut rest = File::open(file).map_err(bad)?;
    let kind = rest.metadata().map_err(bad)?.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        return Err(Failure::bad_input(format!("{name}: is a device, not a file")));
    }
    let mut begin = Vec::new();
    rest.by_ref().take(BEGIN).read_to_end(&mut begin).map_err(bad)?;
    let first = begin.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first).into_owned();
    let is_calls = recorded::is_meant(&begin);
    let is_trace = format::is_meant(&begin);
    let packed = import::packed(&begin);
    let whole = BufReader::new(Cursor::new(begin).chain(rest));
    if is_trace {
        return check_trace(file, whole);
    }
    if is_calls {
        let recording = recorded::read(&name, whole).map_err(Failure::bad_input)?;
        let Recorded { program, calls, lost, .. } = recording;
        return Ok(Content::Calls { program, calls: calls.len(), lost });
    }
    if let Some(what) = packed {
        return Err(Failure::bad_input(format!("{name}: is {what}")));
    }
    if records::is_header(&first) {
        return check_records(&name, whole);
    }
    if Recording::is_header(&first) {
        return check_zones(&name, whole);
    }
    if journal::is_header(&first) {
        let entries =
            journal::read(whole).map_err(|error| Failure::bad_input(format!("{name}: {error}")))?;
        return Ok(Content::Journal { entries: entries.len() });
    }
    if is_event_header(&first) {
        return check_events(&name, whole);
    }
    let text = terrace_core::text::read_text_from(whole).map_err(|error| {
        if terrace_profile::text::is_meant(&first) { bad(error) } else { unknown() }
    })?;
    if text.trim().is_empty() {
        return Err(Failure::bad_input(format!("{name}: the file is empty")));
    }
    let content = check_text(&name, &text)?.ok_or_else(unknown)?;
    // Not everybody's editor ends the last line.
    if !text.ends_with('\n') {
        output::warn(format_args!("{name}: its last line has no end: the file may have been cut"));
    }
    Ok(content)
}

/// Checks a file that people write, or can; `None` of what is none that is known.
fn check_text(name: &str, text: &str) -> Result<Option<Content>, Failure> {
    let content = if terrace_profile::text::is_meant(text) {
        let profile = Profile::parse(name, text).map_err(Failure::bad_input)?;
        let (regions, rules) = (profile.regions.len(), profile.rules.len());
        Content::Profile { program: profile.program, regions, rules }
    } else if CostsFile::is_meant(text) {
        let costs = CostsFile::parse(name, text).map_err(Failure::bad_input)?;
        let Fingerprint { processor, kernel, .. } = costs.machine;
        Content::Costs { processor, kernel }
    } else if MeasuredCosts::is_meant(text) {
        let costs = MeasuredCosts::parse(name, text).map_err(Failure::bad_input)?;
        Content::MmCosts { pieces: costs.costs.len() }
    } else if KernelCosts::is_meant(text) {
        KernelCosts::parse(name, text).map_err(Failure::bad_input)?;
        Content::KernelCosts
    } else if Ladder::is_meant(text) {
        let ladder = LadderFile::parse(name, text).map_err(Failure::bad_input)?;
        Content::Ladder { tiers: ladder.names() }
    } else if Config::is_meant(text) {
        let config = Config::parse(name, text).map_err(Failure::bad_input)?;
        Content::Provision { policy: config.policy.to_string() }
    } else if looks_like_memory(text) {
        let memory = MemoryFile::parse(name, text).map_err(Failure::bad_input)?;
        let channels = memory.channel.channels.value;
        let capacity = memory.channel_capacity() * u64::from(channels);
        Content::Memory { name: memory.name, channels, capacity }
    } else if looks_like_machine(text) {
        let machine = terrace_sim::machines::parse(name, text).map_err(Failure::bad_input)?;
        let tiers = machine.tiers.into_iter().map(|tier| tier.name).collect();
        Content::Machine { name: machine.name, tiers }
    } else {
        return Ok(None);
    };
    Ok(Some(content))
}

fn check_zones(name: &str, input: impl BufRead) -> Result<Content, Failure> {
    let recording = Recording::read(input, false)
        .map_err(|error| Failure::bad_input(format!("{name}: {error}")))?;
    let [first, .., last] = &recording.samples[..] else {
        return Ok(Content::Zones { samples: recording.samples.len(), duration: Nanos::ZERO });
    };
    let duration = last.at - first.at;
    Ok(Content::Zones { samples: recording.samples.len(), duration })
}

fn check_trace(file: &Path, input: impl Read) -> Result<Content, Failure> {
    let mut reader = TraceReader::new(input, file).map_err(Failure::bad_input)?;
    while reader.next_batch().map_err(Failure::bad_input)?.is_some() {}
    let program = reader.header().program.clone();
    Ok(Content::Trace { program, accesses: reader.accesses(), calls: reader.calls() })
}

fn check_records(name: &str, input: impl BufRead) -> Result<Content, Failure> {
    let mut reader = Reader::new(name, input)?;
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

fn check_events(name: &str, input: impl BufRead) -> Result<Content, Failure> {
    let mut reader = EventReader::new(name, input).map_err(Failure::bad_input)?;
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
