//! `terrace report`: a recorded run as one HTML page.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use terrace_report::RunReport;
use terrace_report::html::{self, Story};

use crate::failure::Failure;
use crate::output;
use crate::records::{Header, Reader, Record};

/// Draw a recorded run as one HTML page.
///
/// The page needs nothing else: no script, no network. It shows residency over
/// time, heat maps of address over time, fault latency, where the time went,
/// and the economist's decisions.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace report run.terrace -o run.html")]
pub(crate) struct Args {
    /// What `terrace run --record` wrote.
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
struct Answer<'a> {
    complete: bool,
    notes: &'a [String],
    #[serde(flatten)]
    report: &'a RunReport,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let story = read(&self.file, self.partial)?;
        let Some(report) = &story.report else {
            let name = self.file.display();
            return Err(Failure::bad_input(format!("{name}: the recording tells of no moment")));
        };
        if json && self.output.is_none() {
            let answer = Answer { complete: story.complete, notes: &story.notes, report };
            output::print(&output::json("terrace.report", &answer)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let page = html::page(&story);
        match &self.output {
            None => output::print(&page)?,
            Some(path) => std::fs::write(path, page)
                .map_err(|e| Failure::failed(format!("--output: {}: {e}", path.display())))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Draws a recording into a file.
pub(crate) fn draw(recording: &Path, page: &mut impl std::io::Write) -> Result<(), Failure> {
    let story = read(recording, true)?;
    page.write_all(html::page(&story).as_bytes())
        .map_err(|e| Failure::failed(format!("--report-html: {e}")))
}

/// Reads a recording; with `partial`, as far as it goes.
fn read(path: &Path, partial: bool) -> Result<Story, Failure> {
    let name = path.display().to_string();
    let reader = Reader::open(path)?;
    let header = reader.header.clone();
    if header.live.is_none() {
        return Err(Failure::bad_input(format!("{name}: not a recording of a live run")));
    }
    let mut story = Story { machine: machine(&header), ..Story::default() };
    let mut lost = 0;
    for record in reader {
        match record {
            Ok(record) => take_in(&mut story, &header, record, &mut lost),
            Err(failure) if partial => story.notes.push(failure.message()),
            Err(failure) => return Err(failure),
        }
    }
    if lost > 0 {
        let lost = output::count(lost);
        story.notes.push(format!("{lost} decisions were taken faster than they were written"));
    }
    if !story.complete && story.notes.is_empty() {
        story.notes.push("The recording has no end: `terrace run` was killed.".to_owned());
    }
    Ok(story)
}

fn take_in(story: &mut Story, header: &Header, record: Record, lost: &mut u64) {
    match record {
        Record::Decision { decision, .. } => story.decisions.decided(&decision),
        Record::Lost { count, .. } => *lost += count,
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
        Record::Region(_) | Record::Events { .. } | Record::EventsLost { .. } => {}
    }
}

fn machine(header: &Header) -> String {
    let clock = header.machine.clock.map_or(String::new(), |clock| format!(", {clock}"));
    format!("{}{clock}", header.machine.name)
}
