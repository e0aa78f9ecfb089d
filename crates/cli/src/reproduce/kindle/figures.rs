//! Kindle's figures as pictures.

use terrace_persist::SchemeKind;
use terrace_persist::kindle::beyond::{MEMORIES, PolicyRow, SchemeRow};
use terrace_persist::kindle::programs::{HsccRow, PROGRAMS, SspRow};
use terrace_persist::kindle::{Case, Row};
use terrace_report::html::{Figure, figures_page};
use terrace_sim::workload::catalog::ProgramName;

use super::Document;

/// The page: a picture a figure, of the parts that were run.
pub(super) fn page(document: &Document) -> String {
    let Document { rows, ssp, hscc, schemes, policies, .. } = document;
    let mut figures = Vec::new();
    if !rows.is_empty() {
        figures.push(cases(
            "Figure 4a: sequential allocation",
            "Milliseconds, one store a page. Published times hold some 90 ms of console input and output, which is not modelled.",
            rows,
            |case| matches!(case, Case::Sequential(_)),
        ));
        figures.push(cases(
            "Figure 4b: strides",
            "Milliseconds. System calls and console waits take nearly all of the published time; neither is modelled, so only the order of the schemes can be compared.",
            rows,
            |case| matches!(case, Case::Stride(..)),
        ));
        figures.push(cases(
            "Table 3: allocating and freeing",
            "Milliseconds, 512 MB of which parts are unmapped and mapped anew.",
            rows,
            |case| matches!(case, Case::Churn(..)),
        ));
    }
    for folded in [true, false] {
        let rows: Vec<&SspRow> = ssp.iter().filter(|row| row.folded == folded).collect();
        if !rows.is_empty() {
            figures.push(ssp_figure(&rows, folded));
        }
    }
    if !hscc.is_empty() {
        figures.extend(hscc_figures(hscc));
    }
    for program in PROGRAMS {
        let of_program: Vec<&SchemeRow> =
            schemes.iter().filter(|row| row.program == program).collect();
        if !of_program.is_empty() {
            figures.push(scheme_figure(program, &of_program));
        }
        let of_program: Vec<&PolicyRow> =
            policies.iter().filter(|row| row.program == program).collect();
        if !of_program.is_empty() {
            figures.push(policy_figure(program, &of_program));
        }
    }
    figures_page(
        "reproduce kindle",
        "Kindle (IISWC 2024), ours beside theirs",
        "Computed by the run that wrote this page; the published values are the slides' or the artifact's.",
        &figures,
    )
}

fn cases(title: &str, note: &str, rows: &[Row], wanted: impl Fn(&Case) -> bool) -> Figure {
    let rows: Vec<&Row> = rows.iter().filter(|row| wanted(&row.case)).collect();
    let ours = |kind: usize| -> Vec<f64> {
        rows.iter().map(|row| row.ours[kind].time.as_f64() / 1e6).collect()
    };
    let theirs = |which: usize| -> Vec<f64> {
        rows.iter().map(|row| row.published.expected[which]).collect()
    };
    let mut series: Vec<(String, Vec<f64>)> = SchemeKind::MAPPING
        .iter()
        .enumerate()
        .map(|(i, kind)| (kind.name().to_owned(), ours(i)))
        .collect();
    series.push(("published persistent".into(), theirs(0)));
    series.push(("published rebuild".into(), theirs(1)));
    Figure {
        title: title.into(),
        note: note.into(),
        unit: "ms",
        logarithmic: true,
        places: rows.iter().map(|row| row.case.to_string()).collect(),
        series,
    }
}

fn ssp_figure(rows: &[&SspRow], folded: bool) -> Figure {
    let values = |value: &dyn Fn(&SspRow) -> f64| rows.iter().map(|row| value(row)).collect();
    let footprint =
        if folded { "folded into 6 MiB, as Kindle's" } else { "at their own footprint" };
    Figure {
        title: format!("Figure 5: SSP, programs {footprint}"),
        note: "Time over the time without any consistency. Kindle flushes every line of every \
               page at each interval's end (flush all), and its kernel as shipped flushes a line \
               of its own stack as often; ours flushes what was updated."
            .into(),
        unit: "ratio",
        logarithmic: false,
        places: rows
            .iter()
            .map(|row| format!("{} {} ms", short(row.program), row.interval.as_f64() / 1e6))
            .collect(),
        series: vec![
            ("ssp".into(), values(&|row| row.ours)),
            ("ssp, flush all".into(), values(&|row| row.everything)),
            ("ssp as shipped".into(), values(&|row| row.stack_slot)),
            ("softwrap".into(), values(&|row| row.softwrap)),
            ("published".into(), values(&|row| row.published)),
        ],
    }
}

fn hscc_figures(rows: &[HsccRow]) -> [Figure; 3] {
    let values = |value: &dyn Fn(&HsccRow) -> f64| -> Vec<f64> { rows.iter().map(value).collect() };
    let places: Vec<String> =
        rows.iter().map(|row| format!("{} Th-{}", short(row.program), row.threshold)).collect();
    let figure = |title: &str, note: &str, unit, logarithmic, series| Figure {
        title: title.into(),
        note: note.into(),
        unit,
        logarithmic,
        places: places.clone(),
        series,
    };
    [
        figure(
            "Figure 6: HSCC, time",
            "Time with migration over time without.",
            "ratio",
            false,
            vec![
                ("ours".into(), values(&|row| row.time)),
                ("rerun".into(), values(&|row| row.published[0])),
                ("first set".into(), values(&|row| row.published[1])),
            ],
        ),
        figure(
            "HSCC, pages migrated",
            "Kindle's recordings take some 4 s of simulated time; the programs here run shorter, and their data differ.",
            "pages",
            true,
            vec![
                ("ours".into(), values(&|row| row.pages as f64)),
                ("slide".into(), values(&|row| row.published_pages[0] as f64)),
                ("expected results".into(), values(&|row| row.published_pages[1] as f64)),
                ("rerun".into(), values(&|row| row.published_pages[2] as f64)),
            ],
        ),
        figure(
            "HSCC, where a migration's time goes",
            "Percent of the time of selecting and copying that the copy takes; published for the first program alone.",
            "% copy",
            false,
            vec![
                ("ours".into(), values(&|row| row.copy)),
                ("slide".into(), values(&|row| row.published_copy.unwrap_or(0.0))),
            ],
        ),
    ]
}

/// A program's name where there is little room.
fn short(program: ProgramName) -> &'static str {
    match program {
        ProgramName::PageRank => "PR",
        ProgramName::Sssp => "SSSP",
        ProgramName::Ycsb => "YCSB",
        other => other.name(),
    }
}

/// The rows' values by memory, a series for each of their names.
fn by_memory<'a, T>(
    rows: &[&'a T],
    name: impl Fn(&'a T) -> &'a str,
    memory: impl Fn(&T) -> &'static str,
    value: impl Fn(&T) -> f64,
) -> Vec<(String, Vec<f64>)> {
    let mut series: Vec<(String, Vec<f64>)> = Vec::new();
    for row in rows {
        if series.iter().any(|(known, _)| known == name(row)) {
            continue;
        }
        let of = |place: &str| {
            rows.iter()
                .copied()
                .find(|other| name(other) == name(row) && memory(other) == place)
                .map_or(0.0, &value)
        };
        series.push((name(row).to_owned(), MEMORIES.iter().map(|place| of(place)).collect()));
    }
    series
}

fn scheme_figure(program: ProgramName, rows: &[&SchemeRow]) -> Figure {
    Figure {
        title: format!("Beyond: {program} under every scheme"),
        note: "Time over the time without persistence, at the program's own footprint, with a \
               checkpoint each 10 ms."
            .into(),
        unit: "ratio",
        logarithmic: false,
        places: MEMORIES.map(str::to_owned).to_vec(),
        series: by_memory(rows, |row| row.run.scheme, |row| row.memory, |row| row.time)
            .into_iter()
            .filter(|(name, _)| name != "none")
            .collect(),
    }
}

fn policy_figure(program: ProgramName, rows: &[&PolicyRow]) -> Figure {
    let mut series = by_memory(rows, |row| row.policy.as_str(), |row| row.memory, |row| row.time);
    series.retain(|(name, _)| name != "all-slow");
    // A picture has room for places, not for ten series: the policies are the places.
    let places = series.iter().map(|(name, _)| name.clone()).collect();
    let series = MEMORIES
        .iter()
        .enumerate()
        .map(|(i, memory)| {
            ((*memory).to_owned(), series.iter().map(|(_, values)| values[i]).collect())
        })
        .collect();
    Figure {
        title: format!("Beyond: {program} under every policy"),
        note: "Time over the time with everything in the non-volatile memory; a quarter of the \
               program fits into DRAM. The oracle knows what is to come."
            .into(),
        unit: "ratio",
        logarithmic: false,
        places,
        series,
    }
}
