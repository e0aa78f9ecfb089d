//! Writes the decisions of an attachment down, for `terrace why`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use terrace_core::{Ladder, RegionId};
use terrace_economics::{Decision, Mode};
use terrace_live::attach::Attach;
use terrace_live::attach::host::LinuxHost;
use terrace_live::doctor::Facts;
use terrace_policy::Brain;

use crate::failure::Failure;
use crate::observing::create;
use crate::records::{Header, MachineFacts, Record, RegionRecord, World, Writer};

/// Writes decisions down.
pub(super) struct Recorder {
    path: PathBuf,
    writer: Writer<BufWriter<File>>,
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
        let header = Header::new(World::Live, program, policy, mode, machine);
        let failed = |e| Failure::failed(format!("--record: {}: {e}", path.display()));
        let writer = Writer::new(file, &header).map_err(failed)?;
        Ok(Self { path: path.to_owned(), writer, told: BTreeSet::new(), failed: None })
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

    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        let flushed = self.writer.flush();
        match self.failed.take().or(flushed.err()) {
            None => Ok(()),
            Some(e) => Err(Failure::failed(format!("--record: {}: {e}", self.path.display()))),
        }
    }
}
