//! `terrace why`: explains decisions, recorded ones and those about a page of
//! a running program.

mod division;
mod document;
mod in_place;
mod live;

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use serde::Serialize;
use terrace_core::context::{ContextChange, ContextIdentity};
use terrace_core::{
    Action, ActionClass, ContextEvent, ContextId, Nanos, OpId, PageNo, PageRef, RegionId,
};
use terrace_economics::Decision;

use crate::args::one_of;
use crate::failure::Failure;
use crate::output;
use crate::records::{Header, NOT_RECORDED, Reader, Record, RegionRecord};

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
    #[arg(value_name = "FILE|ADDRESS", required_unless_present = "division")]
    target: Option<Target>,

    /// How the budget of a running program is divided between its memory and its files
    /// (`terrace run --files`).
    #[arg(long, conflicts_with_all = ["target", "page", "op", "class", "context", "process",
                                      "partial", "patience"])]
    division: bool,

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

    /// Only decisions about one file or socket of a simulated kernel, by its number
    /// (`terrace sim --kernel … --record`), and about pages of it.
    #[arg(long, value_name = "NUMBER")]
    context: Option<u32>,

    /// Only decisions about one process.
    #[arg(long, value_name = "PID")]
    process: Option<u32>,

    /// Only the last decisions of those that match.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    last: Option<u64>,
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
    /// The address of the page, or of the first of several, where the recording knows it.
    address: Option<u64>,
    /// The file or socket that it is about, as far as the recording tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<ContextLife>,
    #[serde(serialize_with = "document::decision")]
    decision: Box<Decision>,
}

/// What had become of a file or a socket when something was decided about it.
#[derive(Clone, Copy, Debug, Serialize)]
struct ContextLife {
    context: ContextId,
    identity: ContextIdentity,
    created: Nanos,
    /// How often it was opened until then, and how often closed.
    opened: u64,
    closed: u64,
    /// When it was last opened.
    last_open: Option<Nanos>,
    /// When its last user closed it, if nobody had it open then.
    last_close: Option<Nanos>,
    /// When it was evicted or deleted.
    ended: Option<Nanos>,
}

impl ContextLife {
    fn enter(&mut self, event: &ContextEvent) {
        match event.change {
            ContextChange::Opened => {
                self.opened += 1;
                self.last_open = Some(event.at);
                self.last_close = None;
            }
            ContextChange::Closed => {
                self.closed += 1;
                if self.closed == self.opened {
                    self.last_close = Some(event.at);
                }
            }
            ContextChange::Evicted | ContextChange::Deleted => self.ended = Some(event.at),
            _ => {}
        }
    }

    /// In words, times since `begin` as those of decisions.
    fn words(&self, begin: Nanos) -> String {
        let mut text = format!(
            "context {}: {}, made {}",
            self.context.0,
            self.identity,
            since(self.created, begin)
        );
        match (self.opened, self.last_open) {
            (0, _) | (_, None) => text += ", never opened",
            (1, Some(at)) => {
                let _ = write!(text, ", opened {}", since(at, begin));
            }
            (times, Some(at)) => {
                let _ = write!(text, ", opened {times} times, last {}", since(at, begin));
            }
        }
        match self.last_close {
            Some(at) => {
                let _ = write!(text, ", closed by its last user {}", since(at, begin));
            }
            None if self.opened > self.closed => {
                let _ = write!(text, ", open ({} times)", self.opened - self.closed);
            }
            None => {}
        }
        if let Some(at) = self.ended {
            let _ = write!(text, ", gone {}", since(at, begin));
        }
        text
    }
}

/// A time as decisions have theirs: since the first of them.
fn since(at: Nanos, begin: Nanos) -> String {
    if at >= begin { format!("at +{}", at - begin) } else { format!("at -{}", begin - at) }
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
            Some(Target::Address(address)) => live::explain(&self, *address, json),
            Some(Target::File(file)) => self.explain_file(file, json),
            None => division::explain(&self, json),
        }
    }

    fn explain_file(&self, file: &Path, json: bool) -> Result<ExitCode, Failure> {
        let mut search = Search::new(self);
        let (header, cut) = search.read(file, self.partial)?;
        if let Some(what) = search.unknown() {
            return Err(Failure::bad_input(match cut {
                Some(failure) => format!("{what}, as far as it can be read: {}", failure.message()),
                None => format!("{what} in {}", file.display()),
            }));
        }
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
    /// Files and sockets, and whose pages are.
    contexts: BTreeMap<ContextId, ContextLife>,
    pages: BTreeMap<PageRef, ContextId>,
    found: VecDeque<Found>,
    /// When the first decision was taken: clocks of machines begin anywhere.
    begin: Option<Nanos>,
    recorded: u64,
    lost: u64,
    /// Whether the process, the page and the decision that are asked for are in it.
    has_process: bool,
    has_page: bool,
    has_op: bool,
}

impl<'a> Search<'a> {
    fn new(wanted: &'a Args) -> Self {
        Self {
            wanted,
            regions: BTreeMap::new(),
            contexts: BTreeMap::new(),
            pages: BTreeMap::new(),
            found: VecDeque::new(),
            begin: None,
            recorded: 0,
            lost: 0,
            has_process: false,
            has_page: false,
            has_op: false,
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
                self.has_process |= self.wanted.process == Some(region.process);
                self.has_page |= self.wanted.page.is_some_and(|choice| match choice {
                    PageChoice::Address(address) => region.page_at(address).is_some(),
                    PageChoice::Page(page) => {
                        page.region == region.region && page.page.0 < region.pages
                    }
                });
                self.enter(region);
            }
            Record::Context { event } => {
                let id = event.context;
                if let ContextChange::Created { identity } = event.change {
                    let life = ContextLife {
                        context: id,
                        identity,
                        created: event.at,
                        opened: 0,
                        closed: 0,
                        last_open: None,
                        last_close: None,
                        ended: None,
                    };
                    self.contexts.insert(id, life);
                } else if let Some(life) = self.contexts.get_mut(&id) {
                    life.enter(&event);
                }
            }
            Record::PageOf { page, context } => {
                self.pages.insert(page, context);
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
                self.has_process |= self.wanted.process == Some(process);
                self.has_op |= self.wanted.op == Some(decision.op.0);
                if self.matches(process, &decision) {
                    let address = self.address(process, &decision);
                    let context = self.context_of(&decision.action);
                    let context = context.and_then(|id| self.contexts.get(&id)).copied();
                    self.found.push_back(Found { process, address, context, decision });
                    if self.wanted.last.is_some_and(|last| self.found.len() as u64 > last) {
                        self.found.pop_front();
                    }
                }
            }
        }
    }

    /// What is asked for and is not in the recording at all; that nothing was decided about
    /// something that is in it is an answer.
    fn unknown(&self) -> Option<String> {
        let Args { process, page, op, .. } = self.wanted;
        if let Some(process) = process.filter(|_| !self.has_process) {
            return Some(format!("--process: there is no process {process}"));
        }
        // A simulation's does not say which regions there were.
        if page.is_some() && !self.has_page && !self.regions.is_empty() {
            return Some("--page: there is no such page".to_owned());
        }
        if let Some(context) =
            self.wanted.context.filter(|id| !self.contexts.contains_key(&ContextId(*id)))
        {
            return Some(format!("--context: there is no file or socket {context}"));
        }
        let op = op.filter(|_| !self.has_op);
        op.map(|op| format!("--op: there is no decision {op}"))
    }

    fn matches(&self, process: u32, decision: &Decision) -> bool {
        let wanted = self.wanted;
        wanted.process.is_none_or(|pid| pid == process)
            && wanted.op.is_none_or(|op| OpId(op) == decision.op)
            && wanted.class.is_none_or(|class| class == decision.action.class())
            && wanted
                .context
                .is_none_or(|id| self.context_of(&decision.action) == Some(ContextId(id)))
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
            Action::Collapse { range }
            | Action::Arm { range }
            | Action::Scan { range }
            | Action::FirstTouch { range, .. }
            | Action::Populate { range, .. } => range.contains(page),
            other => other.page() == Some(page),
        }
    }

    /// The file or socket that an action is about.
    fn context_of(&self, action: &Action) -> Option<ContextId> {
        match action {
            Action::DemoteContext { context, .. } => Some(*context),
            other => self.pages.get(&other.page()?).copied(),
        }
    }

    fn address(&self, process: u32, decision: &Decision) -> Option<u64> {
        let page = first_page(&decision.action)?;
        Some(self.regions.get(&(process, page.region))?.address_of(page.page))
    }

    /// A region became known. What was decided about a new one before the recorder looked has its
    /// address from now on.
    fn enter(&mut self, region: RegionRecord) {
        let key = (region.process, region.region);
        if self.regions.insert(key, region).is_none() {
            for found in self.found.iter_mut().filter(|found| found.address.is_none()) {
                let page = first_page(&found.decision.action);
                let page = page.filter(|page| (found.process, page.region) == key);
                found.address = page.map(|page| region.address_of(page.page));
            }
        }
    }
}

/// The page that an action is about, or the first of them.
fn first_page(action: &Action) -> Option<PageRef> {
    match action {
        Action::Collapse { range }
        | Action::Arm { range }
        | Action::Scan { range }
        | Action::FirstTouch { range, .. }
        | Action::Populate { range, .. } => {
            Some(PageRef { region: range.region, page: range.start })
        }
        other => other.page(),
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
        let _ = writeln!(text, "{} more were taken but {NOT_RECORDED}", output::count(lost));
    }
    text + &render_decisions(header, found, begin)
}

fn render_decisions(header: &Header, found: &[Found], begin: Nanos) -> String {
    let mut text = String::new();
    for Found { process, address, context, decision } in found {
        let _ = write!(text, "\nop {}, +{}", decision.op.0, decision.at - begin);
        if *process != 0 {
            let _ = write!(text, ", process {process}");
        }
        if let Some(address) = address {
            let _ = write!(text, ", at {address:#x}");
        }
        let _ = writeln!(text, "\n  {}", decision.explain(&header.machine.tiers));
        if let Some(life) = context {
            let _ = writeln!(text, "    {}", life.words(begin));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use terrace_core::{Heat, PageRange, PageSize, Proposal, Reason, Urgency};
    use terrace_economics::{Economist, Mode};

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

    /// A mapping's first chunks are decided on before a recorder can have seen it.
    #[test]
    fn what_is_about_several_pages_has_the_first_ones_address_as_soon_as_it_is_known() {
        let wanted = Args {
            target: Some(Target::File(PathBuf::from("f"))),
            division: false,
            of: None,
            patience: Nanos::ZERO,
            partial: false,
            page: None,
            op: None,
            class: None,
            context: None,
            process: None,
            last: None,
        };
        let proposal = |region| Proposal {
            op: OpId(1),
            action: Action::Populate {
                range: PageRange { region: RegionId(region), start: PageNo(512), count: 256 },
                touched: 256,
                unsure: 0,
            },
            page_size: PageSize::Base,
            heat: Heat::default(),
            victim_heat: Heat::default(),
            urgency: Urgency::Voluntary,
            reason: Reason::Profiled,
        };
        let machine = terrace_core::Telemetry::default();
        let mut economist = Economist::new(Mode::Off, terrace_live::activate::calibrate());
        let mut decided = |region| Record::Decision {
            process: 7,
            decision: Box::new(economist.decide(&proposal(region), &machine)),
        };
        let lies = |process, region, start| {
            let (region, page_size) = (RegionId(region), PageSize::Base);
            Record::Region(RegionRecord { process, region, start, pages: 1024, page_size })
        };
        let mut search = Search::new(&wanted);
        search.look_at(lies(7, 3, 0x1000_0000));
        search.look_at(decided(3));
        search.look_at(decided(4));
        let addresses = |search: &Search<'_>| -> Vec<_> {
            search.found.iter().map(|found| found.address).collect()
        };
        assert_eq!(addresses(&search), [Some(0x1020_0000), None]);
        search.look_at(lies(8, 4, 0x5000_0000));
        assert_eq!(addresses(&search)[1], None, "another process's");
        search.look_at(lies(7, 4, 0x2000_0000));
        assert_eq!(addresses(&search), [Some(0x1020_0000), Some(0x2020_0000)]);
        // The number is given to another one.
        search.look_at(lies(7, 4, 0x3000_0000));
        assert_eq!(addresses(&search)[1], Some(0x2020_0000));
    }
}
