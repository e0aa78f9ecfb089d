//! `terrace sim`: one policy on a simulated machine.
//!
//! | file | concept |
//! |---|---|
//! | [`setup`] | machine, workload and phases from the command line |
//! | [`render`] | the report as people read it |
//! | [`full`] | recorded programs, access by access |
//! | [`input`] | what runs access by access |
//! | [`persist`] | the same under a persistence scheme |
//! | [`recorder`] | programs under a recorder |

pub(crate) mod full;
pub(crate) mod input;
mod persist;
pub(crate) mod recorder;
mod render;
pub(crate) mod setup;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use terrace_core::Event;
use terrace_economics::Decision;
use terrace_sim::{Recorder, SimConfig, SimPolicy, SimReport, Simulation};

use self::setup::Setup;
use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, Files, Kind, Output};
use crate::progress::{Bar, Progress};
use crate::records::{Header, MachineFacts, Record, World, Writer};

/// Simulate a policy on a machine with tiered memory.
///
/// By itself a workload of independent accesses at full scale; with a trace, an
/// algorithm or a program, every access through caches, TLBs and page tables.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace sim --machine optane-cascade-lake --policy hemem \
                        --working-set 512GiB --hot 64GiB")]
pub(crate) struct Args {
    /// What decides where pages lie.
    #[arg(long, value_name = "NAME", default_value = "hemem",
          value_parser = one_of(setup::POLICIES, SimPolicy::name))]
    policy: SimPolicy,

    #[command(flatten)]
    setup: Setup,

    #[command(flatten)]
    traced: full::Traced,

    #[command(flatten)]
    persist: persist::Persist,

    /// Write every decision to a file, for `terrace why`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

#[derive(Serialize)]
struct Document {
    report: SimReport,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.persist.is_wanted() {
            return self.persist.execute(&self.traced.input, self.setup.seed(), json);
        }
        if self.traced.is_wanted() {
            if self.record.is_some() {
                return Err(Failure::bad_input("--record: not with a recorded program yet"));
            }
            return self.traced.execute(&self.setup.shared(self.policy), json);
        }
        if self.traced.wants_page() {
            let what = "--html: needs a trace, an algorithm or a program";
            return Err(Failure::bad_input(what));
        }
        let config = self.setup.config(self.policy)?;
        let record = match &self.record {
            None => None,
            Some(path) => Some(self.open_record(path, &config)?),
        };
        let recorder = record
            .as_ref()
            .map(|shared| Box::new(DecisionRecorder(Arc::clone(shared))) as Box<dyn Recorder>);
        let simulation = Simulation::with_recorder(config, recorder).map_err(Failure::bad_input)?;
        let report = run(simulation, &Progress::new().bar(self.policy.name()));
        if let Some(shared) = record {
            finish(&shared)?;
        }
        let text = if json {
            output::json("terrace.sim", &Document { report })?
        } else {
            render::render(&report)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn open_record(&self, path: &Path, config: &SimConfig) -> Result<SharedFile, Failure> {
        let mut files = Files::new();
        self.setup.names(&mut files);
        let out = files.writes("--record", path, Kind::Recording)?;
        let header = Header::new(
            World::Sim,
            vec![config.workload.describe()],
            self.policy.name().to_owned(),
            config.economist,
            MachineFacts {
                name: config.machine.name.clone(),
                clock: Some(config.machine.cpu.clock.value),
                tiers: config.machine.tiers.iter().map(|tier| tier.name.clone()).collect(),
            },
        );
        let bad = |e: io::Error| Failure::failed(format!("--record: {}: {e}", path.display()));
        let writer = Writer::new(BufWriter::new(out), &header).map_err(bad)?;
        Ok(Arc::new(Mutex::new(RecordFile { writer, failed: None })))
    }
}

/// Runs a simulation to its end, and shows how far it is.
pub(crate) fn run(simulation: Simulation, bar: &Bar) -> SimReport {
    let report = simulation.run(&mut |progress| {
        bar.set(progress.fraction, format!("{} at {}", progress.throughput, progress.now));
    });
    bar.finish();
    report
}

/// The simulation owns its recorder; the file is shared so that its errors can
/// be asked for when the simulation is over.
type SharedFile = Arc<Mutex<RecordFile>>;

struct RecordFile {
    writer: Writer<BufWriter<Output>>,
    /// The first error; after it nothing more is written.
    failed: Option<io::Error>,
}

struct DecisionRecorder(SharedFile);

impl Recorder for DecisionRecorder {
    fn event(&mut self, _event: &Event) {}

    fn decisions(&mut self, decisions: &[Decision]) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for decision in decisions {
            if file.failed.is_some() {
                return;
            }
            // A simulated program is one process; no real one has number 0.
            let record = Record::Decision { process: 0, decision: Box::new(*decision) };
            file.failed = file.writer.write(&record).err();
            file.writer.get_mut().get_mut().keep();
        }
    }
}

/// Writes out what is buffered; the first error of the whole recording counts.
fn finish(shared: &SharedFile) -> Result<(), Failure> {
    let mut file = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let flushed = file.writer.flush().and_then(|()| file.writer.get_mut().flush());
    let written = file.failed.take().map_or(flushed, Err);
    let output = file.writer.get_mut().get_mut();
    written.map_err(|e| output.failure(&e))?;
    output.complete()
}
