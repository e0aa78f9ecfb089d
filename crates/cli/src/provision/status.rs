//! `terrace provision status`: what the daemon sees and does.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Nanos;
use terrace_provision::live::state::{running, wall_clock};
use terrace_provision::live::{self, Status};
use terrace_report::openmetrics::{Provision, ProvisionNode};

use crate::failure::Failure;
use crate::output::{self, facts, table};

/// Show what the daemon saw at its last look, and what it is doing.
///
/// Exit code 1 where none runs.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace provision status")]
pub(crate) struct Args {
    /// Where the daemon keeps lock, status and journal.
    #[arg(long, value_name = "DIRECTORY", default_value = live::DIRECTORY)]
    state: PathBuf,
}

#[derive(Serialize)]
struct Document {
    /// Whether the daemon runs.
    runs: bool,
    status: Option<Status>,
}

/// The status as figures for Prometheus.
pub(super) fn figures(status: &Status) -> Provision {
    let counters = &status.counters;
    Provision {
        nodes: status
            .nodes
            .iter()
            .map(|node| ProvisionNode {
                node: node.node.0,
                dram: node.dram,
                dram_free: node.dram_free,
                slow: node.online,
                slow_free: node.online_free,
                hidden: node.hidden,
            })
            .collect(),
        armed: status.armed,
        looks: counters.looks,
        decisions: counters.decisions,
        brought: counters.brought,
        given_back: counters.given_back,
        failures: counters.failures,
        refusals: counters.refusals,
        pressure: counters.pressure,
    }
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let name = self.state.display();
        let bad = |e: std::io::Error| Failure::bad_input(format!("--state: {name}: {e}"));
        let runs = running(&self.state).map_err(bad)?.is_some();
        let path = self.state.join("status.json");
        let status = match fs::read_to_string(&path) {
            Ok(text) => Some(serde_json::from_str::<Status>(&text).map_err(|e| {
                Failure::bad_input(format!("{}: line {}: {e}", path.display(), e.line()))
            })?),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(bad(e)),
        };
        let document = Document { runs, status };
        let text = if json {
            output::json("terrace.provision.status", &document)?
        } else {
            match &document.status {
                Some(status) => render(status, runs),
                None if runs => "it has just begun, and has not looked yet\n".to_owned(),
                None => String::new(),
            }
        };
        output::print(&text)?;
        if runs {
            Ok(ExitCode::SUCCESS)
        } else {
            Err(Failure::failed(format!("no daemon runs with {name}")))
        }
    }
}

fn render(status: &Status, runs: bool) -> String {
    let ago = wall_clock().saturating_sub(status.at);
    let counters = &status.counters;
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let mut rows = vec![
        ("process", status.pid.to_string()),
        ("policy", status.policy.to_string()),
        ("running", seconds(status.running)),
        ("last look", format!("{} ago", seconds(ago))),
        ("looks often now", yes(status.armed)),
        ("woken by memory pressure", yes(status.pressure)),
        ("memory locked", yes(status.locked)),
        ("decisions", counters.decisions.to_string()),
        ("brought in", counters.brought.to_string()),
        ("given back", counters.given_back.to_string()),
        ("steps that failed", counters.failures.to_string()),
        ("steps without room", counters.refusals.to_string()),
    ];
    if status.dry_run {
        rows.push(("dry run", "nothing is changed".to_owned()));
    }
    if !runs {
        rows.push(("ended", "this is its last look".to_owned()));
    }
    let mut text = facts("", &rows);
    let nodes: Vec<_> = status
        .nodes
        .iter()
        .map(|node| {
            [
                node.node.to_string(),
                node.dram.to_string(),
                node.dram_free.to_string(),
                node.online.to_string(),
                node.online_free.to_string(),
                node.hidden.to_string(),
            ]
        })
        .collect();
    text.push('\n');
    text += &table(["node", "DRAM", "free", "slow online", "free of it", "hidden"], &nodes);
    for what in &status.under_way {
        let _ = writeln!(text, "under way: {what}");
    }
    text
}

fn seconds(time: Nanos) -> String {
    format!("{:.1} s", time.as_secs())
}
