//! `terrace kloc top`: what the daemon does, again and again.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use terrace_core::Nanos;
use terrace_kloc_live::service::documents::{List, Status};
use terrace_kloc_live::service::state::{self, Question};

use super::{amount, ask, list, time};
use crate::failure::Failure;
use crate::output::{self, count, facts, percent, table};

/// Show what the daemon does, and the files with most pages, again and again.
///
/// Exit code 1 where none runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace kloc top --times 1")]
pub(crate) struct Args {
    /// How often it is asked.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    every: Nanos,

    /// End after so many times.
    #[arg(long, value_name = "COUNT")]
    times: Option<u32>,

    /// How many files are shown.
    #[arg(long, value_name = "COUNT", default_value = "10")]
    count: usize,

    /// Where the daemon keeps its socket.
    #[arg(long, value_name = "DIRECTORY", default_value = state::DIRECTORY)]
    state: PathBuf,
}

#[derive(serde::Serialize)]
struct Document {
    status: Status,
    files: List,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.every < Nanos::millis(100) {
            return Err(Failure::bad_input("--every: the least is 100 ms"));
        }
        if self.times == Some(0) {
            return Err(Failure::bad_input("--times: the least is 1"));
        }
        // From home down, so that what was longer before does not stay.
        let clear = if !json && std::io::stdout().is_terminal() { "\x1b[H\x1b[J" } else { "" };
        let mut left = self.times;
        loop {
            let status: Status = ask(&self.state, &Question::Status)?;
            let files: List = ask(&self.state, &Question::List { count: self.count })?;
            let text = if json {
                output::json_line("terrace.kloc.top", &Document { status, files })?
            } else {
                format!("{clear}{}\n{}", render(&status), list::render_files(&files))
            };
            output::print(&text)?;
            left = left.map(|left| left - 1);
            if left == Some(0) {
                return Ok(ExitCode::SUCCESS);
            }
            std::thread::sleep(Duration::from_nanos(self.every.get()));
        }
    }
}

/// The status as people read it.
pub(super) fn render(status: &Status) -> String {
    let totals = &status.totals;
    let left = if status.enforce { "left" } else { "would have left" };
    let regret = if totals.left_bytes.is_zero() {
        "0 B".to_owned()
    } else {
        let share = totals.regretted_bytes.as_f64() / totals.left_bytes.as_f64();
        format!(
            "{} in {} files, {} of that",
            amount(totals.regretted_bytes),
            count(totals.regretted),
            percent(share)
        )
    };
    let mut rows = vec![
        ("mode", if status.enforce { "enforce" } else { "observe" }.to_owned()),
        ("hooks", status.hooks.name().to_owned()),
        ("running", time(status.running)),
        ("processor time", time(status.processor)),
        (
            "files known",
            format!("{}, {} of them open", count(status.contexts), count(status.active)),
        ),
        ("cached", amount(status.cached)),
        ("events", format!("{}, {} lost", count(totals.events), count(status.lost))),
        (left, format!("{} in {} files", amount(totals.left_bytes), count(totals.left))),
        ("regret", regret),
    ];
    if status.enforce {
        rows.push(("written first", amount(totals.written_bytes)));
        rows.push(("in use after all", count(totals.in_use)));
        rows.push(("left alone", count(totals.left_alone)));
        rows.push(("put back", count(totals.put_back)));
        rows.push((
            "prefetched",
            format!("{} in {} files", amount(totals.prefetched_bytes), count(totals.prefetched)),
        ));
    }
    rows.push(("pages are", status.way.clone()));
    rows.push(("memory locked", if status.locked { "yes" } else { "no" }.to_owned()));
    rows.push(("rights kept", status.rights.join(" ")));
    for (name, files) in &status.left_alone {
        rows.push(("left alone", format!("{} events of files on {name}", count(*files))));
    }
    if status.full > 0 {
        let times = count(status.full);
        rows.push((
            "not counted",
            format!("{times} times transfers, blocks, names or a use of a file"),
        ));
    }
    let doubts = &status.doubts;
    if doubts.forgotten > 0 {
        rows.push(("forgotten", format!("{} files", count(doubts.forgotten))));
    }
    if doubts.opened_unseen > 0 {
        rows.push(("opened unseen", count(doubts.opened_unseen)));
    }
    if doubts.closes_unseen > 0 {
        rows.push(("closed unseen", count(doubts.closes_unseen)));
    }
    for filter in &status.unseen {
        rows.push(("nothing seen", filter.clone()));
    }
    for lack in &status.lacks {
        rows.push(("not known", lack.clone()));
    }
    let mut text = facts("", &rows);
    let memories: Vec<_> = status
        .memories
        .iter()
        .map(|memory| {
            [
                memory.name.clone(),
                amount(memory.used),
                amount(memory.limit),
                percent(memory.used.as_f64() / memory.limit.as_f64()),
                amount(memory.high),
                count(memory.waiting),
            ]
        })
        .collect();
    text.push('\n');
    text.push_str(&table(
        ["memory", "in use", "size", "share", "short above", "waiting"],
        &memories,
    ));
    text
}
