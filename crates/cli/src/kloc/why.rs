//! `terrace kloc why`: why a file is where it is.

use std::path::PathBuf;
use std::process::ExitCode;

use terrace_kloc_live::act::handle;
use terrace_kloc_live::decide::journal::{Decision, Outcome};
use terrace_kloc_live::service::documents::Why;
use terrace_kloc_live::service::state::{self, Question};

use super::{amount, ask, list, time};
use crate::failure::Failure;
use crate::output::{self, count, percent};

/// Say why a file stays in memory, waits to leave, or has left, and what was decided about it.
///
/// Exit code 1 where no daemon runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace kloc why /etc/hostname")]
pub(crate) struct Args {
    /// The file.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Where the daemon keeps its socket.
    #[arg(long, value_name = "DIRECTORY", default_value = state::DIRECTORY)]
    state: PathBuf,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let path = self.file.display();
        let bad = |what: &dyn std::fmt::Display| Failure::bad_input(format!("{path}: {what}"));
        let is = std::fs::metadata(&self.file).map_err(|e| bad(&e))?;
        if !is.is_file() {
            return Err(bad(&"no regular file"));
        }
        let (file, magic) = handle::identity(&self.file).map_err(|e| bad(&e))?;
        if !handle::is_supported(magic) {
            // What is cached of a file on an overlay is of the file below it.
            let below = match magic {
                handle::OVERLAYFS => "; ask for the file below it, which is the one that leaves",
                _ => "",
            };
            return Err(Failure::unsupported(format!(
                "{path}: files on {} are left alone{below}",
                handle::file_system_name(magic)
            )));
        }
        let why: Why = ask(&self.state, &Question::Why { file })?;
        let text = if json { output::json("terrace.kloc.why", &why)? } else { render(&why) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn render(why: &Why) -> String {
    let mut text = String::new();
    if let Some(file) = &why.file {
        text.push_str(&format!("{}\n", list::name(file)));
    }
    if let Some(cached) = why.cached {
        text.push_str(&format!("cached now: {}\n", amount(cached)));
    }
    if let Some(names) = why.file.as_ref().and_then(|file| file.names) {
        text.push_str(&format!("names in the kernel's cache: {}\n", list::names(names)));
    }
    if let Some(file) = why.file.as_ref().filter(|file| file.journal_handles > 0) {
        text.push_str(&format!(
            "journal: {} handles asked for {} blocks\n",
            count(file.journal_handles),
            count(file.journal_blocks)
        ));
    }
    for line in &why.because {
        text.push_str(&format!("- {line}\n"));
    }
    for decision in &why.decisions {
        text.push_str(&format!("decision {}: {}\n", decision.number, sentence(decision)));
    }
    text
}

fn sentence(decision: &Decision) -> String {
    let what = match &decision.outcome {
        Outcome::Observed => format!("{} would have left", amount(decision.bytes)),
        Outcome::UnderWay => "it is being done".to_owned(),
        Outcome::Dropped { bytes, written, stays } => {
            let mut text = format!(
                "{} were dropped, {} of the file written first",
                amount(*bytes),
                amount(*written)
            );
            if !stays.is_zero() {
                text.push_str(&format!(
                    ", {} stayed: not written yet, or used meanwhile",
                    amount(*stays)
                ));
            }
            text
        }
        Outcome::Moved { bytes, node } => format!("{} were moved to node {node}", amount(*bytes)),
        Outcome::MarkedCold { bytes } => format!("{} were marked cold", amount(*bytes)),
        Outcome::Prefetched { bytes } => {
            format!("{} were fetched, since it was opened soon after", amount(*bytes))
        }
        Outcome::InUse => "it stayed: somebody had it open".to_owned(),
        Outcome::LeftAlone { reason } => format!("it stayed: {reason}"),
    };
    let mut text = what;
    if !decision.limit.is_zero() {
        let share = decision.used.as_f64() / decision.limit.as_f64();
        text.push_str(&format!(
            "; {} was {} full, the file had been closed for {} and had come back {} times",
            decision.memory,
            percent(share),
            time(decision.closed_for),
            decision.hits
        ));
    }
    if let Some(after) = decision.came_back {
        text.push_str(&format!("; opened again {} later", time(after)));
    }
    text
}
