//! Kindle's figures and tables as text.

use terrace_core::Nanos;
use terrace_persist::SchemeKind;
use terrace_persist::kindle::Row;
use terrace_persist::kindle::beyond::{AllocationRow, PolicyRow, SchemeRow};
use terrace_persist::kindle::programs::{HsccRow, SspRow};
use terrace_persist::run::RunReport;

use super::Document;
use crate::output;

fn millis(time: Nanos) -> String {
    format!("{:.1}", time.as_f64() / 1e6)
}

fn pair(pair: Option<[f64; 2]>) -> String {
    pair.map_or_else(|| "-".into(), |[persistent, rebuild]| format!("{persistent:.0}/{rebuild:.0}"))
}

fn persistence(rows: &[Row]) -> String {
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
                row.shipped.map(|run| millis(run.time)).join("/"),
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
        "as shipped P/R",
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
    text
}

fn ssp(rows: &[SspRow]) -> String {
    let ratio = |value: f64| format!("{value:.3}");
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            let ours = &row.runs[1];
            let wear = |run: &RunReport| run.wear.writes as f64 / 1e6;
            [
                format!("{}{}", row.program, if row.folded { ", folded" } else { "" }),
                row.interval.to_string(),
                ratio(row.ours),
                ratio(row.everything),
                ratio(row.stack_slot),
                ratio(row.softwrap),
                ratio(row.published),
                row.rerun.map_or_else(|| "-".into(), |rerun| format!("{rerun:.2}")),
                format!("{:.2}/{:.2}", wear(&row.runs[0]), wear(ours)),
                ours.recovery.map_or_else(|| "-".into(), |time| time.to_string()),
            ]
        })
        .collect();
    let header = [
        "time / without",
        "interval",
        "ssp",
        "flush all",
        "as shipped",
        "softwrap",
        "published",
        "rerun",
        "M lines written, without/ssp",
        "recovery",
    ];
    "Figure 5, SSP. A column for our form, for the published design (every line is\n\
     flushed), for the artifact as shipped (its flushes hit the kernel's stack), and\n\
     for SoftWrAP:\n\n"
        .to_owned()
        + &output::table(header, &cells)
}

fn hscc(rows: &[HsccRow]) -> String {
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            [
                format!("{}{}", row.program, if row.folded { ", folded" } else { "" }),
                row.threshold.to_string(),
                format!("{:.4}", row.time),
                format!("{:.4}", row.unflushed),
                format!("{:.4}", row.published[0]),
                format!("{:.4}", row.published[1]),
                format!("{}/{}", row.pages, row.unflushed_pages),
                row.published_pages.map(|pages| pages.to_string()).join("/"),
                if row.pages > 0 {
                    format!("{:.2}/{:.2}", 100.0 - row.copy, row.copy)
                } else {
                    "-".into()
                },
                row.published_copy
                    .map_or_else(|| "-".into(), |copy| format!("{:.2}/{:.2}", 100.0 - copy, copy)),
                output::percent(row.scanning),
                row.page_copy.map(|time| format!("{:.1}", time.as_f64() / 1e3)).join("/"),
            ]
        })
        .collect();
    let header = [
        "",
        "threshold",
        "time",
        "unflushed",
        "rerun",
        "first set",
        "pages, both",
        "slide/expected/rerun",
        "% select/copy",
        "slide",
        "reading counts",
        "µs a page, both",
    ];
    "Figure 6 and its tables, HSCC: time over time without migration, pages migrated,\n\
     and how a migration's time is split:\n\n"
        .to_owned()
        + &output::table(header, &cells)
}

/// Years, shortly.
fn years(years: Option<f64>) -> String {
    match years {
        None => "no wear".into(),
        Some(years) if years >= 10_000.0 => format!("{years:.0e}"),
        Some(years) => format!("{years:.3}"),
    }
}

fn allocation(rows: &[AllocationRow]) -> String {
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            let [persistent, list, indexed] = row.runs.map(|run| millis(run.time));
            let lines = row.runs.map(|run| format!("{:.2}", run.lines_written as f64 / 1e6));
            [
                row.memory.to_owned(),
                row.size.to_string(),
                persistent,
                list,
                indexed,
                format!("{:.1}", row.runs[1].time / row.runs[0].time),
                row.runs.map(|run| millis(run.recovery)).join("/"),
                lines.join("/"),
            ]
        })
        .collect();
    let names = SchemeKind::MAPPING.map(SchemeKind::name);
    let header = [
        "memory",
        "ms",
        names[0],
        names[1],
        names[2],
        "list/persistent",
        "recovery",
        "M lines written",
    ];
    "Figure 4a on every memory: sequential allocation, and recovery after a failure at\n\
     the end:\n\n"
        .to_owned()
        + &output::table(header, &cells)
}

fn schemes(rows: &[SchemeRow]) -> String {
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            let run = &row.run;
            let energy = run.energy.map_or_else(|| "-".into(), |e| format!("{:.0}", e.total()));
            [
                row.memory.to_owned(),
                row.program.to_string(),
                run.scheme.to_owned(),
                format!("{:.3}", row.time),
                output::percent(run.in_checkpoints / run.time),
                energy,
                format!("{:.3}", run.wear.writes as f64 / 1e6),
                run.wear.most.to_string(),
                years(run.wear.years_as_is),
                years(run.wear.years_levelled),
                run.recovery.map_or_else(|| "-".into(), |time| time.to_string()),
            ]
        })
        .collect();
    let header = [
        "memory",
        "program",
        "scheme",
        "time / without",
        "in checkpoints",
        "µJ",
        "M lines written",
        "most of one",
        "years as is",
        "levelled",
        "recovery",
    ];
    "Every scheme on every memory, programs at their own footprint, a checkpoint each\n\
     10 ms; endurance until the line that is written most is worn out, and if writes\n\
     were spread evenly:\n\n"
        .to_owned()
        + &output::table(header, &cells)
}

fn policies(rows: &[PolicyRow]) -> String {
    let cells: Vec<_> = rows
        .iter()
        .map(|row| {
            [
                row.memory.to_owned(),
                row.program.to_string(),
                row.policy.clone(),
                format!("{:.3}", row.time),
                row.enforced.map_or_else(|| "-".into(), |time| format!("{time:.3}")),
                output::percent(row.from_dram),
                row.moved.to_string(),
                row.energy.map_or_else(|| "-".into(), |e| format!("{:.0}", e.total())),
                row.nvm_written.to_string(),
                years(row.years_levelled),
            ]
        })
        .collect();
    let header = [
        "memory",
        "program",
        "policy",
        "time / all slow",
        "with economist",
        "from DRAM",
        "moved",
        "µJ",
        "written to NVM",
        "years levelled",
    ];
    "Every policy on every memory, a quarter of the program in DRAM; the oracle knows\n\
     what is to come:\n\n"
        .to_owned()
        + &output::table(header, &cells)
}

pub(super) fn render(document: &Document) -> String {
    let mut parts = Vec::new();
    if !document.rows.is_empty() {
        parts.push(persistence(&document.rows));
    }
    if !document.ssp.is_empty() {
        parts.push(ssp(&document.ssp));
    }
    if !document.hscc.is_empty() {
        parts.push(hscc(&document.hscc));
    }
    if !document.allocation.is_empty() {
        parts.push(allocation(&document.allocation));
    }
    if !document.schemes.is_empty() {
        parts.push(schemes(&document.schemes));
    }
    if !document.policies.is_empty() {
        parts.push(policies(&document.policies));
    }
    let mut text = parts.join("\n") + "\n";
    for shape in &document.shapes {
        let verdict = if shape.holds { "holds  " } else { "differs" };
        text += &format!(
            "{verdict}  {}\n         {}; ours {:.4}\n",
            shape.statement, shape.criterion, shape.value
        );
    }
    text
}
