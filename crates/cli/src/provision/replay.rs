//! `terrace provision replay`: what each policy would have done with a recorded demand.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, Nanos};
use terrace_provision::{Decision, Hardware, PolicyKind, Recording, Replayed, replay};

use crate::args::one_of;
use crate::failure::Failure;
use crate::output::{self, table};

/// Play a recorded demand for memory to each policy: how often would it have acted?
///
/// The machine of the replay has the recorded nodes, with DRAM and slow memory as
/// given. Its slow memory is hidden at the beginning.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace provision replay --dram 8GiB --slow 32GiB monday.zones")]
pub(crate) struct Args {
    /// What `terrace provision record` has written.
    file: PathBuf,

    /// DRAM of each node; without it what the node had when the recording began.
    #[arg(long, value_name = "SIZE")]
    dram: Option<Bytes>,

    /// Slow memory near each node; without it three times the DRAM.
    #[arg(long, value_name = "SIZE")]
    slow: Option<Bytes>,

    /// Only this policy.
    #[arg(long, value_name = "POLICY", value_parser = one_of(&PolicyKind::ALL, PolicyKind::name))]
    policy: Option<PolicyKind>,

    /// Print each decision that changes something, and why.
    #[arg(long)]
    decisions: bool,

    /// Use what can be read of a recording whose last line is cut off.
    #[arg(long)]
    partial: bool,
}

#[derive(Serialize)]
struct Row {
    policy: PolicyKind,
    #[serde(flatten)]
    result: Replayed,
    events_an_hour: f64,
    moved_an_hour: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    decisions: Option<Vec<Decision>>,
}

#[derive(Serialize)]
struct Document {
    policies: Vec<Row>,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        for (option, size) in [("--dram", self.dram), ("--slow", self.slow)] {
            if size.is_some_and(Bytes::is_zero) {
                return Err(Failure::bad_input(format!("{option}: a node has more than none")));
            }
        }
        let name = self.file.display();
        let bad = |what: String| Failure::bad_input(format!("{name}: {what}"));
        let file = File::open(&self.file).map_err(|e| bad(e.to_string()))?;
        let recording =
            Recording::read(BufReader::new(file), self.partial).map_err(|e| bad(e.to_string()))?;
        if recording.samples.len() < 2 {
            return Err(bad("has a single moment, so that nothing happens in it".to_owned()));
        }
        let hardware = Hardware { dram: self.dram, slow: self.slow };
        let kinds =
            PolicyKind::ALL.into_iter().filter(|&kind| self.policy.is_none_or(|p| p == kind));
        let policies = kinds
            .map(|policy| {
                let mut result = replay(&recording, hardware, policy.build().as_mut());
                Row {
                    policy,
                    events_an_hour: result.an_hour(result.events as f64),
                    moved_an_hour: Bytes::from_f64(result.an_hour(result.moved.as_f64())),
                    decisions: self.decisions.then(|| std::mem::take(&mut result.journal)),
                    result,
                }
            })
            .collect();
        let document = Document { policies };
        let text = if json {
            output::json("terrace.provision.replay", &document)?
        } else {
            render(&document)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn render(document: &Document) -> String {
    let rows: Vec<_> = document
        .policies
        .iter()
        .map(|row| {
            [
                row.policy.to_string(),
                row.result.events.to_string(),
                format!("{:.1}", row.events_an_hour),
                row.moved_an_hour.to_string(),
                row.result.online.to_string(),
                row.result.remote.to_string(),
                row.result.unmet.to_string(),
            ]
        })
        .collect();
    let header = [
        "policy",
        "changes",
        "an hour",
        "moved an hour",
        "online, mean",
        "remote, mean",
        "unmet, most",
    ];
    let mut text = table(header, &rows);
    for row in &document.policies {
        let Some(decisions) = &row.decisions else { continue };
        text += &format!("\n{}:\n", row.policy);
        for decision in decisions {
            text += &format!("  {:>8}  {decision}\n", seconds(decision.at));
        }
    }
    text
}

fn seconds(at: Nanos) -> String {
    format!("{:.0} s", at.as_secs())
}
