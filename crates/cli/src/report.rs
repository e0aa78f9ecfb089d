//! `terrace report`: a recorded run as one HTML page.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use terrace_report::AttachReport;
use terrace_report::html::{self, AttachStory, Story};

use crate::failure::Failure;
use crate::output::{self, Files, Kind, Output};
use crate::records::{Header, NOT_RECORDED, Reader, Record, World};

/// Draw a recorded run as one HTML page.
///
/// The page needs nothing else: no script, no network. It shows residency over
/// time, heat maps of address over time, fault latency, where the time went,
/// and the economist's decisions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace report run.terrace -o run.html")]
pub(crate) struct Args {
    /// What `terrace run --record` or `terrace attach --record` wrote.
    file: PathBuf,

    /// The page; stdout without it.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Use what can be read of a recording that is cut off or damaged.
    #[arg(long)]
    partial: bool,
}

/// The answer with `--json`: what the page's numbers are.
#[derive(Serialize)]
struct Answer<'a, R> {
    complete: bool,
    notes: &'a [String],
    #[serde(flatten)]
    report: &'a R,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let mut files = Files::new();
        files.reads("FILE", &self.file);
        let output = self.output.as_deref();
        let output = output.map(|path| files.writes("--output", path, Kind::Whole)).transpose()?;
        let name = self.file.display();
        let nothing = || Failure::bad_input(format!("{name}: the recording tells of no moment"));
        let reader = Reader::open(&self.file)?;
        let header = &reader.header;
        let is_paged = header.live.is_some() && !header.kernel_engine;
        let text = match (header.world, is_paged) {
            (World::Live, true) => {
                let story = read(reader, self.partial)?;
                let Some(report) = &story.report else { return Err(nothing()) };
                if json {
                    let answer = Answer { complete: story.complete, notes: &story.notes, report };
                    output::json("terrace.report", &answer)?
                } else {
                    html::page(&story)
                }
            }
            (World::Live, false) => {
                let Attached { story, report, complete } = Attached::read(reader, self.partial)?;
                let Some(report) = &report else { return Err(nothing()) };
                if json {
                    let answer = Answer { complete, notes: &story.notes, report };
                    output::json("terrace.attach-report", &answer)?
                } else {
                    html::attach_page(&story, report)
                }
            }
            (World::Sim, _) => {
                let what = "a recording of a simulation has no page (`terrace why` reads it)";
                return Err(Failure::bad_input(format!("{name}: {what}")));
            }
        };
        match output {
            None => output::print(&text)?,
            Some(output) => output.write_whole(text.as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Draws a run's recording into a file.
pub(crate) fn draw(recording: &Path, page: Output) -> Result<(), Failure> {
    let story = read(Reader::open(recording)?, true)?;
    page.write_whole(html::page(&story).as_bytes())
}

type Records = Reader<std::io::BufReader<std::io::Take<std::fs::File>>>;

/// Takes in every record; with `partial`, as far as the recording goes. What is to be said
/// of what is missing.
fn each(
    reader: Records,
    partial: bool,
    mut take_in: impl FnMut(Record),
) -> Result<Vec<String>, Failure> {
    let (mut notes, mut lost) = (Vec::new(), 0);
    for record in reader {
        match record {
            Ok(Record::Lost { count, .. }) => lost += count,
            Ok(record) => take_in(record),
            Err(failure) if partial => notes.push(failure.message()),
            Err(failure) => return Err(failure),
        }
    }
    if lost > 0 {
        let lost = output::count(lost);
        notes.push(format!("{lost} decisions were {NOT_RECORDED}"));
    }
    Ok(notes)
}

/// What is said of a recording without an end.
fn cut_short(complete: bool, notes: &mut Vec<String>) {
    if !complete && notes.is_empty() {
        notes.push("The recording has no end: `terrace` was killed, or still runs.".to_owned());
    }
}

/// A run whose memory is compressed.
fn read(reader: Records, partial: bool) -> Result<Story, Failure> {
    let header = reader.header.clone();
    let mut story = Story { machine: machine(&header), ..Story::default() };
    let mut notes = each(reader, partial, |record| take_in(&mut story, &header, record))?;
    cut_short(story.complete, &mut notes);
    story.notes = notes;
    Ok(story)
}

fn take_in(story: &mut Story, header: &Header, record: Record) {
    match record {
        Record::Decision { decision, .. } => story.decisions.decided(&decision),
        Record::Moment { moment, residency } => {
            let residency: BTreeMap<_, _> = residency
                .into_iter()
                .map(|region| ((region.process, region.start), region.parts))
                .collect();
            story.moment(&moment, &residency);
            story.report = Some(moment.into_report(
                header.program.clone(),
                header.policy.clone(),
                crate::args::mode_name(header.economist).to_owned(),
                header.live.as_ref().map(|live| live.budget).unwrap_or_default(),
            ));
        }
        Record::End { report } => {
            story.complete = true;
            story.report = Some(*report);
        }
        _ => {}
    }
}

/// Programs whose pages stay mapped.
struct Attached {
    story: AttachStory,
    /// The last figures.
    report: Option<AttachReport>,
    complete: bool,
}

impl Attached {
    fn read(reader: Records, partial: bool) -> Result<Self, Failure> {
        let header = &reader.header;
        let story = AttachStory::new("report", &header.program.join(" "), machine(header));
        let mut told = Self { story, report: None, complete: false };
        let mut notes = each(reader, partial, |record| match record {
            Record::Decision { decision, .. } => told.story.decisions.decided(&decision),
            Record::Attached { report, last } => {
                told.story.moment((*report).clone());
                told.report = Some(*report);
                told.complete = last;
            }
            _ => {}
        })?;
        cut_short(told.complete, &mut notes);
        told.story.notes = notes;
        Ok(told)
    }
}

fn machine(header: &Header) -> String {
    let clock = header.machine.clock.map_or(String::new(), |clock| format!(", {clock}"));
    format!("{}{clock}", header.machine.name)
}
