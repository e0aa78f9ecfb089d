//! `terrace provision`: slow memory that grows and shrinks with demand.
//!
//! | file | concept |
//! |---|---|
//! | [`plan`] | what slow memory there is, and what would happen to it |
//! | [`hide`], [`reload`] | out of the kernel's sight at boot, and into reach again |
//! | [`run`] | the daemon |
//! | [`status`], [`why`] | what it does, and why |
//! | [`record`], [`replay`] | a demand that was recorded, played to each policy |

mod hide;
mod plan;
mod record;
mod reload;
mod replay;
mod run;
mod status;
mod why;

pub(crate) use self::why::time;

use std::path::Path;
use std::process::ExitCode;

use terrace_core::text::read_text;
use terrace_provision::Config;

use crate::failure::Failure;
use crate::verbs::verbs;

/// Slow memory that grows and shrinks with demand.
///
/// Slow memory that is hidden costs nothing. A policy decides how much of it the
/// kernel manages, for each node with processors: `plan` shows what it would do, `run` is
/// the daemon that does it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

verbs! {
    Plan(plan),
    Hide(hide),
    Reload(reload),
    Run(run),
    Status(status),
    Why(why),
    Record(record),
    Replay(replay),
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        self.what.execute(json)
    }
}

/// Reads a configuration.
fn config(path: &Path) -> Result<Config, Failure> {
    let name = path.display().to_string();
    let text = read_text(path).map_err(|e| Failure::bad_input(format!("{name}: {e}")))?;
    Config::parse(&name, &text).map_err(Failure::bad_input)
}
