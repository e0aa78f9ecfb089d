//! `terrace kloc report`: kernel objects.

use std::path::PathBuf;
use std::process::ExitCode;

use terrace_kloc_live::observe::hooks::{HookSet, Wanted};
use terrace_kloc_live::report::lifetimes::Times;
use terrace_kloc_live::service::daemon::objects_without_daemon;
use terrace_kloc_live::service::documents::Objects;
use terrace_kloc_live::service::state::{self, Question, StateError};

use super::{amount, time};
use crate::failure::Failure;
use crate::output::{self, count, facts, percent, table};

/// Show what is known of kernel objects: Table 1 and Figure 2 of the KLOCs paper, for what ran.
///
/// Without a daemon, what one could know on this kernel is tried, and nothing has been counted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace kloc report --json")]
pub(crate) struct Args {
    /// Where the daemon keeps its socket.
    #[arg(long, value_name = "DIRECTORY", default_value = state::DIRECTORY)]
    state: PathBuf,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let objects = match state::ask(&self.state, &Question::Report) {
            Ok(objects) => objects,
            Err(StateError::NoneRuns(_)) => objects_without_daemon(&Wanted::default()),
            Err(error) => return Err(Failure::bad_input(format!("--state: {error}"))),
        };
        let text =
            if json { output::json("terrace.kloc.report", &objects)? } else { render(&objects) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn render(objects: &Objects) -> String {
    let hooks = objects.hooks.map_or("none", HookSet::name);
    let mut rows = vec![("hooks", hooks.to_owned())];
    if objects.observed.is_zero() {
        rows.push(("observed", "no daemon runs: nothing has been counted".to_owned()));
    } else {
        rows.push(("observed", time(objects.observed)));
    }
    if let Some(bounds) = objects.hooks.and_then(HookSet::bounds) {
        rows.push(("lower bounds", bounds.to_owned()));
    }
    for filter in &objects.unseen {
        rows.push(("nothing seen", filter.clone()));
    }
    for lack in &objects.lacks {
        rows.push(("not known", lack.clone()));
    }
    let mut text = facts("", &rows);
    let kinds: Vec<_> = objects
        .table
        .iter()
        .map(|row| {
            [
                row.paper.clone(),
                row.knowledge.name().to_owned(),
                row.count.map_or_else(String::new, count),
                row.bytes.map_or_else(String::new, amount),
                row.by.clone(),
                row.action.clone(),
            ]
        })
        .collect();
    text.push('\n');
    text.push_str(&table(["object", "known", "count", "memory", "by", "action"], &kinds));
    if let Some(footprint) = &objects.footprint {
        text.push('\n');
        text.push_str(&facts(
            "",
            &[
                ("anonymous memory", amount(footprint.anonymous)),
                ("page cache", amount(footprint.page_cache)),
                ("slab objects", amount(footprint.slab)),
                ("page tables and stacks", amount(footprint.tables)),
                ("kernel objects' share", percent(footprint.kernel_share())),
            ],
        ));
    }
    let lifetimes = &objects.lifetimes;
    let row = |name: &str, times: &Times| {
        let at = |share| times.quantile(share).map_or_else(String::new, time);
        [name.to_owned(), count(times.count()), at(0.5), at(0.9), at(0.99)]
    };
    let rows = [
        row("open", &lifetimes.open),
        row("idle, until it is opened again", &lifetimes.idle),
        row("life of an inode", &lifetimes.whole),
    ];
    text.push('\n');
    text.push_str(&table(["contexts were", "times", "50 %", "90 %", "99 %"], &rows));
    text
}
