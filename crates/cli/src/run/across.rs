//! `terrace run --slow`: the program's memory lies in several memories, all of
//! them mapped. Nothing is loaded into the program: it is started and attached
//! to, with everything that it starts.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use terrace_core::{LadderTier, Memory};
use terrace_live::attach::targets::Targets;
use terrace_live::doctor::facts::Facts;
use terrace_policy::PolicyName;

use super::child::{Running, Watch, exit_code};
use super::program::Program;
use super::{Args, not_started};
use crate::attach::{self, How, Session};
use crate::calibrate;
use crate::failure::Failure;
use crate::output;

/// A run across memories that is under way.
struct Across {
    session: Session,
    json: bool,
    /// After an error the program goes on alone.
    failed: Option<Failure>,
}

impl Watch for Across {
    fn poll(&mut self) -> Duration {
        const IDLE: Duration = Duration::from_secs(1);
        if self.failed.is_some() {
            return IDLE;
        }
        match self.session.step() {
            Ok(wait) => wait,
            Err(failure) => {
                self.failed = Some(failure);
                IDLE
            }
        }
    }

    fn report(&mut self) {
        match self.session.report(self.json) {
            Ok(text) => output::show(&text),
            Err(failure) => {
                failure.report();
            }
        }
    }
}

/// Runs a program across memories.
pub(super) fn run(args: &Args, program: &Program, json: bool) -> Result<ExitCode, Failure> {
    let fast =
        args.fast.map(|fast| LadderTier { capacity: Some(fast), ..LadderTier::new(nearest()) });
    let ladder = attach::ladder(args.tiers.as_deref(), fast, &args.slow, &args.moving)?;
    let mut files = args.files(program);
    let report_to = args.open_report(&mut files)?;
    let session = Session::new(How {
        verb: "run",
        program: args.shown(),
        ladder,
        // Our own descendants: the program, and what it starts. Ourselves the list
        // leaves out.
        targets: Targets::Process { process: std::process::id(), tree: true },
        // Pages stay mapped, so no fault tells what is in use: `refault` would learn nothing.
        policy: args.policy.unwrap_or(PolicyName::HeMem),
        economist: args.economist,
        prices: calibrate::for_run(args.quiet)?,
        moving: args.moving.clone(),
        min_region: args.min_region,
        dry_run: false,
        record: args.record.clone(),
        observing: args.observing.clone(),
        files,
        quiet: args.quiet,
    })?;
    let mut across = Across { session, json, failed: None };
    let running =
        Running::start(&mut args.command(program)).map_err(|e| not_started(program, &e))?;
    let end = running
        .wait(&mut across)
        .map_err(|e| Failure::failed(format!("waiting for the program: {e}")))?
        .end;
    let told = across.session.finish(json).and_then(|text| {
        match report_to {
            Some(report) => report.write_whole(text.as_bytes())?,
            None if !args.quiet => output::show(&text),
            None => {}
        }
        Ok(())
    });
    for failure in across.failed.into_iter().chain(told.err()) {
        // The program's own status is worth more than ours.
        failure.report();
    }
    Ok(exit_code(end))
}

/// The first node with processors: where the kernel puts memory by itself.
fn nearest() -> Memory {
    let nodes = Facts::read(Path::new("/")).nodes;
    let first = nodes.iter().find(|node| !node.cpus.is_empty());
    Memory::Numa(first.map_or(0, |node| node.id))
}
