//! Writes an attachment down: its decisions for `terrace why`, its figures over time for
//! `terrace report`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use terrace_core::{Ladder, RegionId};
use terrace_economics::{Decision, Mode};
use terrace_live::attach::Attach;
use terrace_live::attach::host::LinuxHost;
use terrace_live::doctor::Facts;
use terrace_policy::Brain;
use terrace_report::AttachReport;

use crate::failure::Failure;
use crate::observing::{create, next_moment};
use crate::records::{Header, MachineFacts, Record, RegionRecord, World, Writer};

/// Writes decisions and figures down.
pub(super) struct Recorder {
    path: PathBuf,
    writer: Writer<BufWriter<File>>,
    started: Instant,
    /// When figures are written next, since the beginning.
    next: Duration,
    /// Regions that are written down already.
    told: BTreeSet<(u32, RegionId)>,
    failed: Option<io::Error>,
}

impl Recorder {
    /// Begins a recording of what is `program` here.
    pub(super) fn create(
        path: &Path,
        (program, mode): (Vec<String>, Mode),
        ladder: &Ladder,
        brain: &Brain,
    ) -> Result<Self, Failure> {
        let file = BufWriter::new(create("--record", path)?);
        let machine = MachineFacts {
            name: Facts::read(Path::new("/")).cpu.model,
            clock: Some(brain.economist().calibration().clock),
            tiers: ladder.tiers.iter().map(|tier| tier.memory.to_string()).collect(),
        };
        let policy = brain.name().to_owned();
        let header = Header::new(World::Live, program, policy, mode, machine).packed();
        let failed = |e| Failure::failed(format!("--record: {}: {e}", path.display()));
        let writer = Writer::new(file, &header).map_err(failed)?;
        let (path, told, failed) = (path.to_owned(), BTreeSet::new(), None);
        Ok(Self { path, writer, started: Instant::now(), next: Duration::ZERO, told, failed })
    }

    fn write(&mut self, record: &Record) {
        if self.failed.is_none() {
            self.failed = self.writer.write(record).err();
        }
    }

    /// Decisions of one step, after the regions that they name.
    pub(super) fn decisions(&mut self, engine: &Attach<LinuxHost>, decided: &[(u32, Decision)]) {
        for &(process, decision) in decided {
            let region = decision.action.page().map(|page| page.region);
            let window = region.and_then(|id| Some((id, engine.space().window(id)?)));
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

    /// How long it is until figures are to be written.
    pub(super) fn due_in(&self) -> Duration {
        self.next.saturating_sub(self.started.elapsed())
    }

    /// Writes figures, if they are due.
    pub(super) fn moment(&mut self, report: &AttachReport) {
        if self.due_in().is_zero() {
            self.next = next_moment(self.started.elapsed());
            self.write(&Record::Attached { report: Box::new(report.clone()), last: false });
        }
    }

    /// Writes the last figures.
    pub(super) fn finish(&mut self, report: &AttachReport) -> Result<(), Failure> {
        self.write(&Record::Attached { report: Box::new(report.clone()), last: true });
        let flushed = self.writer.flush();
        match self.failed.take().or(flushed.err()) {
            None => Ok(()),
            Some(e) => Err(Failure::failed(format!("--record: {}: {e}", self.path.display()))),
        }
    }
}
