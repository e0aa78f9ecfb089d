//! `terrace why`: explains decisions, recorded ones and those about a page of
//! a running program.

mod in_place;
mod live;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use serde::Serialize;
use terrace_core::{Action, ActionClass, Nanos, OpId, PageNo, PageRef, RegionId};
use terrace_economics::Decision;

use crate::args::one_of;
use crate::failure::Failure;
use crate::output;
use crate::records::{Header, Reader, Record, RegionRecord};

/// Explain why pages were moved, or not.
///
/// Of a recording (`terrace run --record`, `terrace sim --record`), or of an
/// address in a running program. Prints each decision with its evidence, its
/// price, and what would have turned it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: terrace why records.jsonl --class promote --last 3\n         \
                        terrace why 0x120000200000 --of redis-server")]
pub(crate) struct Args {
    /// The recorded decisions, or an address (0x7f…) in a running program.
    #[arg(value_name = "FILE|ADDRESS")]
    target: Target,

    /// Which running program: a process's number or a program's name.
    #[arg(long, value_name = "PID|NAME")]
    of: Option<String>,

    /// How long to wait for decisions about an address in a running program
    /// that is not being recorded.
    #[arg(long = "for", value_name = "TIME", default_value = "2s")]
    patience: Nanos,

    /// Use what can be read of a recording that is cut off or damaged.
    #[arg(long)]
    partial: bool,

    /// Only decisions about one page: an address (0x7f…) or REGION:PAGE.
    #[arg(long, value_name = "ADDRESS|REGION:PAGE")]
    page: Option<PageChoice>,

    /// Only the decision of this number.
    #[arg(long, value_name = "NUMBER")]
    op: Option<u64>,

    /// Only decisions about one class of action.
    #[arg(long, value_parser = one_of(&ActionClass::ALL, ActionClass::name))]
    class: Option<ActionClass>,

    /// Only decisions about one process.
    #[arg(long, value_name = "PID")]
    process: Option<u32>,

    /// Only the last decisions of those that match.
    #[arg(long, value_name = "COUNT")]
    last: Option<usize>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    File(PathBuf),
    Address(u64),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A file of such a name can still be named as `./0x…`.
        match text.parse() {
            Ok(PageChoice::Address(address)) => Ok(Self::Address(address)),
            _ if text.is_empty() => Err("a file or an address is needed".to_owned()),
            _ => Ok(Self::File(PathBuf::from(text))),
        }
    }
}

/// Which page is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageChoice {
    Address(u64),
    Page(PageRef),
}

impl FromStr for PageChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is neither an address (0x7f…) nor REGION:PAGE");
        if let Some(digits) = text.strip_prefix("0x") {
            return u64::from_str_radix(digits, 16).map(Self::Address).map_err(|_| bad());
        }
        let (region, page) = text.split_once(':').ok_or_else(bad)?;
        match (region.parse(), page.parse()) {
            (Ok(region), Ok(page)) => {
                Ok(Self::Page(PageRef { region: RegionId(region), page: PageNo(page) }))
            }
            _ => Err(bad()),
        }
    }
}

/// A decision with where it was taken.
#[derive(Debug, Serialize)]
struct Found {
    process: u32,
    /// The page's address, where the recording knows it.
    address: Option<u64>,
    decision: Box<Decision>,
}

/// What was found.
#[derive(Serialize)]
struct Answer<'a> {
    header: &'a Header,
    /// Decisions in the file.
    decisions_recorded: u64,
    /// Decisions that were taken but could not be recorded.
    decisions_lost: u64,
    /// Those that were asked for.
    decisions: &'a [Found],
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        match &self.target {
            Target::Address(address) => live::explain(&self, *address, json),
            Target::File(file) => self.explain_file(file, json),
        }
    }

    fn explain_file(&self, file: &Path, json: bool) -> Result<ExitCode, Failure> {
        let mut search = Search::new(self);
        let (header, cut) = search.read(file, self.partial)?;
        if let Some(failure) = cut {
            output::warn(failure.message());
        }
        let Search { found, begin, recorded, lost, .. } = search;
        let begin = begin.unwrap_or(Nanos::ZERO);
        let found = Vec::from(found);
        let text = if json {
            let answer = Answer {
                header: &header,
                decisions_recorded: recorded,
                decisions_lost: lost,
                decisions: &found,
            };
            output::json("terrace.why", &answer)?
        } else {
            render(&header, &found, begin, recorded, lost)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// A walk through a file.
struct Search<'a> {
    wanted: &'a Args,
    /// Where regions lie now, by process and number.
    regions: BTreeMap<(u32, RegionId), RegionRecord>,
    found: VecDeque<Found>,
    /// When the first decision was taken: clocks of machines begin anywhere.
    begin: Option<Nanos>,
    recorded: u64,
    lost: u64,
}

impl<'a> Search<'a> {
    fn new(wanted: &'a Args) -> Self {
        Self {
            wanted,
            regions: BTreeMap::new(),
            found: VecDeque::new(),
            begin: None,
            recorded: 0,
            lost: 0,
        }
    }

    /// Reads a recording; with `partial` as far as it goes, and says why no further.
    fn read(&mut self, path: &Path, partial: bool) -> Result<(Header, Option<Failure>), Failure> {
        let reader = Reader::open(path)?;
        let header = reader.header.clone();
        for record in reader {
            match record {
                Ok(record) => self.look_at(record),
                Err(failure) if partial => return Ok((header, Some(failure))),
                Err(failure) => return Err(failure),
            }
        }
        Ok((header, None))
    }

    fn look_at(&mut self, record: Record) {
        match record {
            Record::Region(region) => {
                self.regions.insert((region.process, region.region), region);
            }
            Record::Lost { count, .. } => self.lost += count,
            Record::Moment { .. }
            | Record::End { .. }
            | Record::Attached { .. }
            | Record::Events { .. }
            | Record::Decisions { .. }
            | Record::EventsLost { .. } => {}
            Record::Decision { process, decision } => {
                self.recorded += 1;
                self.begin.get_or_insert(decision.at);
                if self.matches(process, &decision) {
                    let address = self.address(process, &decision);
                    self.found.push_back(Found { process, address, decision });
                    if self.wanted.last.is_some_and(|last| self.found.len() > last) {
                        self.found.pop_front();
                    }
                }
            }
        }
    }

    fn matches(&self, process: u32, decision: &Decision) -> bool {
        let wanted = self.wanted;
        wanted.process.is_none_or(|pid| pid == process)
            && wanted.op.is_none_or(|op| OpId(op) == decision.op)
            && wanted.class.is_none_or(|class| class == decision.action.class())
            && wanted.page.is_none_or(|choice| self.is_about(process, &decision.action, choice))
    }

    fn is_about(&self, process: u32, action: &Action, choice: PageChoice) -> bool {
        let page = match choice {
            PageChoice::Page(page) => page,
            PageChoice::Address(address) => {
                let mut regions = self.regions.range((process, RegionId(0))..);
                let page = regions
                    .by_ref()
                    .take_while(|((pid, _), _)| *pid == process)
                    .find_map(|(_, region)| region.page_at(address));
                match page {
                    Some(page) => page,
                    None => return false,
                }
            }
        };
        match action {
            Action::Exchange { promote, demote, .. } => page == *promote || page == *demote,
            Action::Collapse { range } | Action::Arm { range } | Action::Scan { range } => {
                range.contains(page)
            }
            other => other.page() == Some(page),
        }
    }

    fn address(&self, process: u32, decision: &Decision) -> Option<u64> {
        let page = decision.action.page()?;
        Some(self.regions.get(&(process, page.region))?.address_of(page.page))
    }
}

fn render(header: &Header, found: &[Found], begin: Nanos, recorded: u64, lost: u64) -> String {
    let mut text = format!(
        "{} of {} recorded decisions about `{}` ({}{}, policy {}, economist {})\n",
        output::count(found.len() as u64),
        output::count(recorded),
        header.program.join(" "),
        header.machine.name,
        header.machine.clock.map_or(String::new(), |clock| format!(" at {clock}")),
        header.policy,
        crate::args::mode_name(header.economist),
    );
    if lost > 0 {
        let _ = writeln!(text, "{} more were taken but not recorded", output::count(lost));
    }
    text + &render_decisions(header, found, begin)
}

fn render_decisions(header: &Header, found: &[Found], begin: Nanos) -> String {
    let mut text = String::new();
    for Found { process, address, decision } in found {
        let _ = write!(text, "\nop {}, +{}", decision.op.0, decision.at - begin);
        if *process != 0 {
            let _ = write!(text, ", process {process}");
        }
        if let Some(address) = address {
            let _ = write!(text, ", at {address:#x}");
        }
        let _ = writeln!(text, "\n  {}", decision.explain(&header.machine.tiers));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_named_by_its_address_or_by_region_and_number() {
        let page = PageRef { region: RegionId(3), page: PageNo(17) };

        assert_eq!("3:17".parse(), Ok(PageChoice::Page(page)));
        assert_eq!("0x7f00".parse(), Ok(PageChoice::Address(0x7f00)));
        for nonsense in ["", "17", "3:", ":17", "0x", "0xg", "3:17:1", "-1:0"] {
            assert!(nonsense.parse::<PageChoice>().is_err(), "{nonsense}");
        }
    }
}
