//! `terrace profile diff`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_core::{Bytes, Cycles};
use terrace_profile::Difference;

use super::read;
use crate::failure::Failure;
use crate::output::{self, facts, percent, table};

/// Compare two profiles: how much of the first one's benefit the second has as well.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace profile diff monday.profile tuesday.profile")]
pub(crate) struct Args {
    /// A profile.
    before: PathBuf,

    /// Another one.
    after: PathBuf,
}

#[derive(Serialize)]
struct Document {
    before: Cycles,
    after: Cycles,
    matched: Cycles,
    matched_share: Option<f64>,
    keys_matched: Cycles,
    regions: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    key: String,
    len_before: Option<Bytes>,
    len_after: Option<Bytes>,
    before: Cycles,
    after: Cycles,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let (before, after) = (read(&self.before)?, read(&self.after)?);
        for (path, profile) in [(&self.before, &before), (&self.after, &after)] {
            let name = path.display();
            if profile.rules.is_empty() {
                continue;
            }
            if profile.regions.is_empty() {
                return Err(Failure::bad_input(format!(
                    "{name}: has imported rules alone, which are not compared: a rule is of no \
                     place that another profile has"
                )));
            }
            output::warn(format_args!("{name}: its imported rules are not compared"));
        }
        if before.clock != after.clock || before.machine != after.machine {
            output::warn("the profiles count cycles of different machines");
        }
        if before.walk_time != after.walk_time {
            output::warn(
                "the profiles have walks of different kinds (`walk-time`): one counts each walk, the \
                 other the time in which any is under way",
            );
        }
        let difference = Difference::new(&before, &after);
        let document = Document {
            before: difference.before,
            after: difference.after,
            matched: difference.matched,
            matched_share: difference.share(),
            keys_matched: difference.keys_matched,
            regions: difference
                .regions
                .iter()
                .map(|region| Row {
                    key: region.key.to_string(),
                    len_before: region.len_before,
                    len_after: region.len_after,
                    before: region.before,
                    after: region.after,
                })
                .collect(),
        };
        let text =
            if json { output::json("terrace.profile.diff", &document)? } else { words(&document) };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn words(document: &Document) -> String {
    let share = document.matched_share.map_or("nothing to match".to_owned(), |share| {
        format!("{}, {}", percent(share), document.matched)
    });
    let mut text = facts(
        "",
        &[
            ("averted, first", document.before.to_string()),
            ("averted, second", document.after.to_string()),
            ("of the first matched", share),
            ("in regions of both", document.keys_matched.to_string()),
        ],
    );
    let len = |len: Option<Bytes>| len.map_or("-".to_owned(), |len| len.to_string());
    let rows: Vec<_> = document
        .regions
        .iter()
        .map(|row| {
            [
                row.key.clone(),
                len(row.len_before),
                len(row.len_after),
                row.before.to_string(),
                row.after.to_string(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        text.push('\n');
        text += &table(["region", "length", "second", "averted", "second"], &rows);
    }
    text
}
