//! `terrace kloc`: kernel objects by file, on the kernel that runs.
//!
//! | file | concept |
//! |---|---|
//! | [`run`] | the daemon |
//! | [`top`] | what it does, again and again |
//! | [`list`] | files and sockets that it knows |
//! | [`why`] | why a file is where it is |
//! | [`report`] | kernel objects: Table 1 and Figure 2 of the paper |

mod list;
mod report;
mod run;
mod top;
mod why;

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use serde::Deserialize;
use terrace_core::{Bytes, Nanos};
use terrace_kloc_live::service::state::{self, Question, StateError};

use crate::failure::Failure;

/// Keep files that streaming jobs push out in the page cache, on a stock kernel.
///
/// A file and its kernel objects become cold together when the last program closes it. eBPF tells
/// of opens and closes. When memory is short, pages of the files that were closed first leave,
/// unless they were used again in place, or anybody has them open.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

/// What is asked for.
#[derive(Debug, Subcommand)]
enum What {
    Run(run::Args),
    Top(top::Args),
    List(list::Args),
    Why(why::Args),
    Report(report::Args),
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        match self.what {
            What::Run(args) => args.execute(json),
            What::Top(args) => args.execute(json),
            What::List(args) => args.execute(json),
            What::Why(args) => args.execute(json),
            What::Report(args) => args.execute(json),
        }
    }
}

/// Asks the daemon of a directory.
fn ask<T: for<'a> Deserialize<'a>>(directory: &Path, question: &Question) -> Result<T, Failure> {
    state::ask(directory, question).map_err(|error| match error {
        StateError::NoneRuns(_) => {
            Failure::failed(format!("{error} (`terrace kloc run` begins one)"))
        }
        StateError::Io(..) | StateError::Open(_) | StateError::NoDirectory(_) => {
            Failure::bad_input(format!("--state: {error}"))
        }
        StateError::Runs(..) | StateError::Answer(_) => Failure::failed(error),
    })
}

/// A time as people read it, with no more digits than they look at.
fn time(nanos: Nanos) -> String {
    let seconds = nanos.as_secs();
    match seconds {
        s if s >= 3600.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 60.0 => format!("{:.1} min", s / 60.0),
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

/// An amount as people read it.
fn amount(bytes: Bytes) -> String {
    let bytes = bytes.as_f64();
    match bytes {
        b if b >= f64::from(1 << 30) => format!("{:.1} GiB", b / f64::from(1 << 30)),
        b if b >= f64::from(1 << 20) => format!("{:.1} MiB", b / f64::from(1 << 20)),
        b if b >= 1024.0 => format!("{:.1} KiB", b / 1024.0),
        b => format!("{b:.0} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_amounts_have_a_unit_that_fits() {
        assert_eq!(time(Nanos::seconds(90)), "1.5 min");
        assert_eq!(time(Nanos(1500)), "1.5 µs");
        assert_eq!(amount(Bytes::mib(3)), "3.0 MiB");
        assert_eq!(amount(Bytes(7)), "7 B");
    }
}
