//! `terrace sim`: one policy on a simulated machine.
//!
//! | file | concept |
//! |---|---|
//! | [`setup`] | machine, workload and phases from the command line |
//! | [`render`] | the report as people read it |
//! | [`exact`] | recorded programs, access by access |
//! | [`input`] | what runs access by access |
//! | [`persist`] | the same under a persistence scheme |
//! | [`played`] | accesses and calls for I/O in a simulated kernel |
//! | [`recorder`] | programs under a recorder |

pub(crate) mod exact;
pub(crate) mod input;
mod persist;
mod played;
pub(crate) mod recorder;
mod render;
pub(crate) mod setup;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use terrace_core::Machine;
use terrace_economics::Decision;
use terrace_sim::exact::ExactConfig;
use terrace_sim::kernel::KernelConfig;
use terrace_sim::{Listeners, OnDecisions, SimPolicy, SimReport, Simulation};

use self::setup::Setup;
use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, Files, Kind, Output};
use crate::progress::{Bar, Progress};
use crate::records::{Header, MachineFacts, Record, World, Writer};

/// Simulate a policy on a machine with tiered memory.
///
/// By itself a workload of independent accesses at full scale; with a trace, an
/// algorithm or a program, every access through caches, TLBs and page tables; with `--kernel`, a
/// program's accesses and its calls for I/O in a simulated kernel.
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
    traced: exact::Traced,

    #[command(flatten)]
    played: played::Played,

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
        if let Some(strategy) = self.played.strategy() {
            let around = played::Around {
                input: &self.traced.input,
                machine: self.setup.machine(),
                fast: self.traced.fast(),
                economist: self.setup.economist(),
            };
            let record = |program: String, config: &KernelConfig| {
                let header = |facts| {
                    let economist = config.economist;
                    let policy = strategy.name().to_owned();
                    Header::new(World::Sim, vec![program], policy, economist, facts)
                };
                let path = self.record.as_deref();
                let files = &mut Files::new();
                path.map(|path| self.open_record(files, path, &config.machine, header)).transpose()
            };
            return self.played.execute(strategy, &around, record, json);
        }
        if self.traced.is_wanted() {
            let record = |files: &mut Files, program: String, config: &ExactConfig| {
                let header = |facts| {
                    let policy = self.policy.name().to_owned();
                    Header::new(World::Sim, vec![program], policy, config.economist, facts)
                };
                let path = self.record.as_deref();
                path.map(|path| self.open_record(files, path, &config.machine, header)).transpose()
            };
            return self.traced.execute(&self.setup.shared(self.policy), record, json);
        }
        if self.traced.wants_page() {
            let what = "--html: needs a trace, an algorithm or a program";
            return Err(Failure::bad_input(what));
        }
        let config = self.setup.config(self.policy)?;
        let record = match &self.record {
            None => None,
            Some(path) => {
                let header = |facts| {
                    let program = vec![config.workload.describe()];
                    let policy = self.policy.name().to_owned();
                    Header::new(World::Sim, program, policy, config.economist, facts)
                };
                Some(self.open_record(&mut Files::new(), path, &config.machine, header)?)
            }
        };
        let decisions = record.as_ref().map(|file| listener(file, ONLY));
        let listeners = Listeners { decisions, ..Listeners::default() };
        let simulation = Simulation::heard(config, listeners).map_err(input::failure)?;
        let report = run(simulation, &Progress::new().bar(self.policy.name()));
        if let Some(shared) = record {
            finish(&shared)?;
        }
        let text = if json {
            output::json("terrace.sim", &Document { report })?
        } else {
            render::render(&report, self.setup.economist())
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Opens the file of decisions, if one is wanted, beside the other files of the command.
    fn open_record(
        &self,
        files: &mut Files,
        path: &Path,
        machine: &Machine,
        header: impl FnOnce(MachineFacts) -> Header,
    ) -> Result<SharedFile, Failure> {
        self.setup.names(files);
        self.traced.input.names(files);
        self.played.names(files);
        let out = files.writes("--record", path, Kind::Recording)?;
        let header = header(MachineFacts {
            name: machine.name.clone(),
            clock: Some(machine.cpu.clock.value),
            tiers: machine.tiers.iter().map(|tier| tier.name.clone()).collect(),
        });
        begin_record(path, out, &header)
    }
}

/// Begins the file of decisions at a path.
pub(crate) fn begin_record(
    path: &Path,
    out: Output,
    header: &Header,
) -> Result<SharedFile, Failure> {
    let bad = |e: io::Error| Failure::failed(format!("--record: {}: {e}", path.display()));
    let writer = Writer::new(BufWriter::new(out), header).map_err(bad)?;
    Ok(Arc::new(Mutex::new(RecordFile { writer, failed: None })))
}

/// Runs a simulation to its end, and shows how far it is.
pub(crate) fn run(simulation: Simulation, bar: &Bar) -> SimReport {
    let report = simulation.run(&mut |progress| {
        bar.set(progress.fraction, format!("{} at {}", progress.throughput, progress.now));
    });
    bar.finish();
    report
}

/// The simulation owns its listeners; the file is shared so that its errors can
/// be asked for when the simulation is over.
pub(crate) type SharedFile = Arc<Mutex<RecordFile>>;

pub(crate) struct RecordFile {
    writer: Writer<BufWriter<Output>>,
    /// The first error; after it nothing more is written.
    failed: Option<io::Error>,
}

impl RecordFile {
    fn write(&mut self, record: &Record) {
        if self.failed.is_none() {
            self.failed = self.writer.write(record).err();
            self.writer.get_mut().get_mut().keep();
        }
    }
}

/// The number of a simulated program that is one process; no real one has it.
const ONLY: u32 = 0;

/// Writes decisions about a process to a file.
pub(crate) fn listener(shared: &SharedFile, process: u32) -> OnDecisions {
    let shared = SharedFile::clone(shared);
    Box::new(move |decisions| write_decisions(&shared, process, decisions))
}

fn write_decisions(shared: &SharedFile, process: u32, decisions: &[Decision]) {
    let mut file = shared.lock().unwrap_or_else(PoisonError::into_inner);
    for decision in decisions {
        file.write(&Record::Decision { process, decision: Box::new(*decision) });
    }
}

/// Writes out what is buffered; the first error of the whole recording counts.
pub(crate) fn finish(shared: &SharedFile) -> Result<(), Failure> {
    let mut file = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let flushed = file.writer.flush().and_then(|()| file.writer.get_mut().flush());
    let written = file.failed.take().map_or(flushed, Err);
    let output = file.writer.get_mut().get_mut();
    written.map_err(|e| output.failure(&e))?;
    output.complete()
}
