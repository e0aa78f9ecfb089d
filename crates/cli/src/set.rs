//! `terrace set`: another budget for a run that is under way.

use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Bytes;
use terrace_live::broker::control;

use crate::broker::no_budget;
use crate::failure::Failure;
use crate::output;
use crate::runs;

/// Change the budget of a running program.
///
/// Memory beyond a smaller budget leaves DRAM in the background; the program
/// does not wait for that. Only the user who runs the program, or root, may.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace set redis-server --fast 512MiB")]
pub(crate) struct Args {
    /// The run: a process's number or a program's name.
    #[arg(value_name = "PID|NAME")]
    run: String,

    /// DRAM that managed memory of all its processes together may use from now
    /// on, at least 1MiB.
    #[arg(long, value_name = "SIZE")]
    fast: Bytes,
}

/// What was changed, as a document.
#[derive(Serialize)]
struct Change {
    run: u32,
    before: Bytes,
    after: Bytes,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let run = runs::the_one(&self.run, "PID|NAME")?;
        let answer = control::set_budget(run.directory(), self.fast);
        let before = answer
            .map_err(|_| no_budget(&self.run))?
            .map_err(|what| Failure::bad_input(format!("--fast: {what}")))?;
        let change = Change { run: run.manifest.pid, before, after: self.fast };
        output::print(&if json {
            output::json("terrace.set", &change)?
        } else {
            format!("{}: {} instead of {before}\n", run.manifest.name(), self.fast)
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
