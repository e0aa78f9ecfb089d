//! `terrace profile export`.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use terrace_profile::cbmm;

use super::{read, tell, write};
use crate::failure::Failure;
use crate::output::{self, Files};

/// Write a profile as CBMM's CSV.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: terrace profile export -o sort.csv sort.profile")]
pub(crate) struct Args {
    /// Where the CSV goes.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The profile.
    file: PathBuf,
}

#[derive(Serialize)]
struct Document {
    rows: usize,
    merged_mappings: usize,
    orders_lost: usize,
    uneven_mappings: usize,
    deviations_lost: usize,
    touched_lost: usize,
    build_ids_lost: usize,
    walk_time_lost: bool,
}

impl Args {
    pub(crate) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        let mut files = Files::new();
        files.reads("FILE", &self.file);
        let profile = read(&self.file)?;
        let (csv, lost) = cbmm::export(&profile);
        let document = Document {
            rows: csv.lines().count(),
            merged_mappings: lost.merged_mappings,
            orders_lost: lost.orders,
            uneven_mappings: lost.uneven_mappings,
            deviations_lost: lost.deviations,
            touched_lost: lost.touched,
            build_ids_lost: lost.build_ids,
            walk_time_lost: lost.walk_time,
        };
        let named = write(&mut files, &self.output, &csv)?;
        let told = [
            (
                lost.merged_mappings,
                ["mapping of a like length is", "mappings of like lengths are"],
                "merged: CBMM's CSV has no order, and the rule of a length has their mean",
            ),
            (
                lost.orders,
                ["mapping is", "mappings are"],
                "known by length alone: CBMM's CSV has no order",
            ),
            (
                lost.uneven_mappings,
                ["mapping averts", "mappings avert"],
                "more in one part than in another: CBMM's CSV has no parts of mappings, and the rule \
                 of a length has the mean",
            ),
            (
                lost.deviations,
                ["region has", "regions have"],
                "lost how far runs differ: CBMM's CSV has no deviations",
            ),
            (
                lost.touched,
                ["region has", "regions have"],
                "lost how much is touched: CBMM's CSV has nine of ten pages and more as all, and does \
                 not tell less",
            ),
            (
                lost.build_ids,
                ["region of a file has", "regions of files have"],
                "lost the file's build identifier",
            ),
        ];
        for (lost, [one, many], what) in told.into_iter().filter(|(lost, ..)| *lost > 0) {
            output::warn(format_args!("{} {what}", output::several(lost, one, many)));
        }
        if lost.walk_time {
            output::warn(
                "benefits are sums of page walks, and CBMM counts the time in which any is under \
                 way: whoever reads the CSV takes them for more than they are",
            );
        }
        let text = if json {
            output::json("terrace.profile.export", &document)?
        } else {
            output::several(document.rows, "row", "rows") + "\n"
        };
        tell(named, &text)?;
        Ok(ExitCode::SUCCESS)
    }
}
