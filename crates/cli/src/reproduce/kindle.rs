//! `terrace reproduce kindle`.

use std::process::ExitCode;

use serde::Serialize;
use terrace_core::Nanos;
use terrace_persist::SchemeKind;
use terrace_persist::kindle::{KindleConfig, Row, Shape, reproduce, shapes};

use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;

/// Kindle's process persistence: Figures 4a and 4b and Table 3.
///
/// Each measurement beside the artifact's expected results, its rerun, and the
/// first set that was committed; they differ from each other. SSP and HSCC
/// (Figures 5 and 6) are not reproduced yet.
#[derive(Debug, clap::Args)]
pub(super) struct KindleArgs {
    /// Time from the end of a checkpoint to the next.
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    interval: Nanos,
}

#[derive(Serialize)]
struct Document {
    paper: &'static str,
    rows: Vec<Row>,
    shapes: Vec<Shape>,
}

impl KindleArgs {
    pub(super) fn execute(self, json: bool) -> Result<ExitCode, Failure> {
        if self.interval < Nanos::micros(10) {
            return Err(Failure::bad_input("--interval: must be at least 10us"));
        }
        let config = KindleConfig { interval: self.interval, ..KindleConfig::default() };
        let progress = Progress::new();
        let bar = progress.bar("reproduce kindle");
        let rows = reproduce(&config, &|done, total| {
            bar.set(done as f64 / total as f64, format!("{done}/{total}"));
        });
        bar.finish();
        let shapes = shapes(&rows);
        let text = if json {
            let paper = "Kindle, IISWC 2024";
            output::json("terrace.reproduce", &Document { paper, rows, shapes })?
        } else {
            render(&rows, &shapes)
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn millis(time: Nanos) -> String {
    format!("{:.1}", time.as_f64() / 1e6)
}

fn pair(pair: Option<[f64; 2]>) -> String {
    pair.map_or_else(|| "-".into(), |[persistent, rebuild]| format!("{persistent:.0}/{rebuild:.0}"))
}

fn render(rows: &[Row], shapes: &[Shape]) -> String {
    let times: Vec<_> = rows
        .iter()
        .map(|row| {
            let [persistent, list, indexed] = row.ours.map(|run| millis(run.time));
            let published = row.published;
            [
                row.case.to_string(),
                persistent,
                list,
                indexed,
                pair(Some(published.expected)),
                pair(Some(published.rerun)),
                pair(published.first),
            ]
        })
        .collect();
    let header = [
        "ms",
        SchemeKind::MAPPING[0].name(),
        SchemeKind::MAPPING[1].name(),
        SchemeKind::MAPPING[2].name(),
        "expected P/R",
        "rerun P/R",
        "first set P/R",
    ];
    let mut text = output::table(header, &times);
    let recovery: Vec<_> = rows
        .iter()
        .map(|row| {
            let [persistent, list, indexed] = row.ours.map(|run| millis(run.recovery));
            let checkpoints = row.ours.map(|run| run.checkpoints.to_string()).join("/");
            let lines = row.ours.map(|run| format!("{:.2}", run.lines_written as f64 / 1e6));
            [row.case.to_string(), persistent, list, indexed, checkpoints, lines.join("/")]
        })
        .collect();
    text += "\nTime from power-up until the process goes on, after a failure at the end:\n\n";
    text += &output::table(
        ["ms", header[1], header[2], header[3], "checkpoints", "M lines written"],
        &recovery,
    );
    text += "\n";
    for shape in shapes {
        let verdict = if shape.holds { "holds  " } else { "differs" };
        text += &format!(
            "{verdict}  {}\n         {}; ours {:.2}\n",
            shape.statement, shape.criterion, shape.value
        );
    }
    text
}
