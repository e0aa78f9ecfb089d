//! Writes an attachment down: its decisions for `terrace why`, its figures over time for
//! `terrace report`.

use std::collections::BTreeSet;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use terrace_core::RegionId;
use terrace_economics::{Decision, Mode};
use terrace_live::attach::space::Space;
use terrace_live::doctor::facts::Facts;
use terrace_policy::Brain;
use terrace_report::AttachReport;

use crate::failure::Failure;
use crate::observing::next_moment;
use crate::output::{self, Output};
use crate::records::{Header, MachineFacts, Record, RegionRecord, World, Writer};

/// What the recording of a program begins with whose pages lie in these tiers.
pub(crate) fn header(
    program: Vec<String>,
    mode: Mode,
    tiers: Vec<String>,
    brain: &Brain,
) -> Header {
    let machine = MachineFacts {
        name: Facts::read(Path::new("/")).cpu.model,
        clock: Some(brain.economist().calibration().clock),
        tiers,
    };
    Header::new(World::Live, program, brain.name().to_owned(), mode, machine).packed()
}

/// Writes decisions and figures down.
pub(crate) struct Recorder {
    writer: Writer<BufWriter<Output>>,
    started: Instant,
    /// When figures are written next, since the beginning.
    next: Duration,
    /// Regions that are written down already.
    told: BTreeSet<(u32, RegionId)>,
    /// After an error nothing more is written.
    failed: bool,
}

impl Recorder {
    /// Begins a recording.
    pub(crate) fn create(out: Output, header: &Header) -> Self {
        let (writer, begun) = Writer::begin(BufWriter::new(out), header);
        let (told, started) = (BTreeSet::new(), Instant::now());
        let mut recorder = Self { writer, started, next: Duration::ZERO, told, failed: false };
        recorder.note(begun);
        recorder
    }

    fn output(&mut self) -> &mut Output {
        self.writer.get_mut().get_mut()
    }

    /// Where the recording is while it is being written.
    pub(crate) fn path(&mut self) -> Option<&Path> {
        self.output().path()
    }

    fn write(&mut self, record: &Record) {
        if !self.failed {
            let written = self.writer.write(record);
            self.output().keep();
            self.note(written);
        }
    }

    /// An error is told at once; the programs go on.
    fn note(&mut self, result: io::Result<()>) {
        if let Err(e) = result {
            self.failed = true;
            self.output().failure(&e).report();
            output::warn("nothing more is recorded; the programs go on");
        }
    }

    /// Decisions of one step, after the regions that they name; without a space they name none.
    pub(crate) fn decisions(&mut self, space: Option<&Space>, decided: &[(u32, Decision)]) {
        for &(process, decision) in decided {
            let region = decision.action.page().map(|page| page.region);
            let window = region.and_then(|id| Some((id, space?.window(id)?)));
            if let Some((region, window)) = window
                && self.told.insert((process, region))
            {
                let (start, pages, page_size) = (window.base, window.pages(), window.page_size);
                let record = RegionRecord { process, region, start, pages, page_size };
                self.write(&Record::Region(record));
            }
            self.write(&Record::Decision { process, decision: Box::new(decision) });
        }
    }

    /// What a policy was told since the last time, packed.
    pub(crate) fn events(&mut self, process: u32, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.write(&Record::Events { process, bytes });
        }
    }

    /// How long it is until figures are to be written.
    pub(crate) fn due_in(&self) -> Duration {
        self.next.saturating_sub(self.started.elapsed())
    }

    /// Writes figures, if they are due.
    pub(crate) fn moment(&mut self, report: &AttachReport) {
        if self.due_in().is_zero() {
            self.next = next_moment(self.started.elapsed());
            self.write(&Record::Attached { report: Box::new(report.clone()), last: false });
        }
    }

    /// Writes the last figures.
    pub(crate) fn finish(&mut self, report: &AttachReport) -> Result<(), Failure> {
        self.write(&Record::Attached { report: Box::new(report.clone()), last: true });
        if !self.failed {
            let flushed = self.writer.flush().and_then(|()| self.writer.get_mut().flush());
            self.note(flushed);
        }
        if self.failed {
            // Which was told when it happened.
            return Err(Failure::failed("the recording is not complete"));
        }
        self.output().complete()
    }
}
