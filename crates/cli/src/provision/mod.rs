//! `terrace provision`: slow memory that grows and shrinks with demand.

mod plan;
mod record;
mod replay;

use std::process::ExitCode;

use clap::Subcommand;

use crate::failure::Failure;

/// Slow memory that grows and shrinks with demand.
///
/// Slow memory that is hidden costs nothing. A policy decides how much of it the
/// kernel manages, for each node with processors. Nothing is changed yet by these
/// commands: they show what a policy would do.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

/// What is asked for.
#[derive(Debug, Subcommand)]
enum What {
    Plan(plan::Args),
    Record(record::Args),
    Replay(replay::Args),
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        match self.what {
            What::Plan(args) => args.execute(json),
            What::Record(args) => args.execute(json),
            What::Replay(args) => args.execute(json),
        }
    }
}
