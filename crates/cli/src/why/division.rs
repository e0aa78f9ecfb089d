//! How the budget of a running program is divided between its memory and its files' pages, and why.

use std::process::ExitCode;

use serde::Serialize;
use terrace_kernel::division::Divided;

use super::Args;
use crate::failure::Failure;
use crate::kernel;
use crate::output::{self, facts};
use crate::runs::{self, LiveRun};

/// What is known of a division.
#[derive(Serialize)]
struct Answer<'a> {
    program: &'a [String],
    #[serde(flatten)]
    division: &'a Divided,
}

fn division_of(run: &LiveRun) -> Option<Divided> {
    Some(*run.attached()?.kernel?.division?)
}

/// Prints the last decisions of the one run that is meant.
pub(super) fn explain(args: &Args, json: bool) -> Result<ExitCode, Failure> {
    let runs = runs::choose(args.of.as_deref())?;
    let mut found: Vec<_> = runs.iter().filter_map(|run| Some((run, division_of(run)?))).collect();
    let (Some((run, mut divided)), true) = (found.pop(), found.is_empty()) else {
        let what = if found.is_empty() {
            "--division: no program with `--files` runs here"
        } else {
            "--division: several programs with `--files` run here; choose one with --of"
        };
        return Err(Failure::bad_input(what));
    };
    if let Some(last) = args.last {
        let all = divided.decisions.len();
        divided.decisions.drain(..all.saturating_sub(usize::try_from(last).unwrap_or(all)));
    }
    let program = &run.manifest.program;
    let text = if json {
        output::json("terrace.why-division", &Answer { program, division: &divided })?
    } else {
        let mut text = format!("{}\n", run.manifest.name());
        text.push_str(&facts("  ", &kernel::division(&divided)));
        for decision in &divided.decisions {
            text.push_str(&format!("{decision}\n"));
        }
        if divided.decisions.is_empty() {
            text.push_str("nothing was decided yet: the budget was not full for long enough\n");
        }
        text
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
