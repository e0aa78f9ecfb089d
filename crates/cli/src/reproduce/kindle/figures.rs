//! Kindle's figures as pictures.

use terrace_persist::SchemeKind;
use terrace_persist::kindle::beyond::{AllocationRow, MEMORIES, PolicyRow, SchemeRow};
use terrace_persist::kindle::programs::{HsccRow, PROGRAMS, SspRow};
use terrace_persist::kindle::{Case, Row};
use terrace_report::html::{Figure, figures_page};
use terrace_sim::workload::catalog::ProgramName;

use super::Document;

/// The page: a picture a figure, of the parts that were run.
pub(super) fn page(document: &Document) -> String {
    let Document { rows, ssp, hscc, allocation, schemes, policies, .. } = document;
    let mut figures = Vec::new();
    if !rows.is_empty() {
        figures.push(cases(
            "Figure 4a: sequential allocation",
            "Milliseconds, one store a page. P is the persistent scheme, R the published rebuild. Published times hold some 90 ms of console input and output, which is not modelled.",
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
        figures.push(recovery_figure(rows));
    }
    for folded in [true, false] {
        let rows: Vec<&SspRow> = ssp.iter().filter(|row| row.folded == folded).collect();
        if !rows.is_empty() {
            figures.push(ssp_figure(&rows, folded));
        }
    }
    for folded in [true, false] {
        let rows: Vec<&HsccRow> = hscc.iter().filter(|row| row.folded == folded).collect();
        if !rows.is_empty() {
            figures.extend(hscc_figures(&rows, folded));
        }
    }
    if !allocation.is_empty() {
        figures.push(allocation_figure(allocation));
    }
    for program in PROGRAMS {
        let of_program: Vec<&SchemeRow> =
            schemes.iter().filter(|row| row.program == program).collect();
        if !of_program.is_empty() {
            figures.extend(scheme_figures(program, &of_program));
        }
        let of_program: Vec<&PolicyRow> =
            policies.iter().filter(|row| row.program == program).collect();
        if !of_program.is_empty() {
            figures.push(policy_figure(program, &of_program));
        }
    }
    // Cases may have been left out.
    figures.retain(|figure| !figure.places.is_empty());
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
    series.push(("published P".into(), theirs(0)));
    series.push(("published R".into(), theirs(1)));
    let pairs = |name: &str, times: &dyn Fn(&Row) -> Option<[f64; 2]>| {
        let cell = |row: &&Row| {
            let times = times(row).map(|times| times.map(|time| format!("{time:.0}")).join("/"));
            times.unwrap_or_default()
        };
        (format!("{name} P/R"), rows.iter().map(cell).collect::<Vec<String>>())
    };
    let also = vec![
        pairs("as shipped", &|row| Some(row.shipped.map(|run| run.time.as_f64() / 1e6))),
        pairs("rerun", &|row| Some(row.published.rerun)),
        pairs("first set", &|row| row.published.first),
    ];
    Figure {
        title: title.into(),
        note: note.into(),
        unit: "ms",
        logarithmic: true,
        places: rows.iter().map(|row| row.case.to_string()).collect(),
        series,
        also,
        across: None,
        top: None,
    }
}

/// Recovery time against size.
fn recovery_figure(rows: &[Row]) -> Figure {
    let sized: Vec<&Row> =
        rows.iter().filter(|row| !matches!(row.case, Case::Stride(..))).collect();
    let series = SchemeKind::MAPPING.iter().enumerate().map(|(i, kind)| {
        let values = sized.iter().map(|row| row.ours[i].recovery.as_f64() / 1e6).collect();
        (kind.name().to_owned(), values)
    });
    Figure {
        title: "Recovery".into(),
        note: "Milliseconds from power-up until the process goes on, after a failure at the end \
               of each run. Nothing was published to compare with."
            .into(),
        unit: "ms",
        logarithmic: false,
        places: sized.iter().map(|row| row.case.to_string()).collect(),
        series: series.collect(),
        also: Vec::new(),
        across: None,
        top: None,
    }
}

fn ssp_figure(rows: &[&SspRow], folded: bool) -> Figure {
    let values = |value: &dyn Fn(&SspRow) -> f64| rows.iter().map(|row| value(row)).collect();
    Figure {
        title: format!("Figure 5: SSP, programs {}", footprint(folded)),
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
        also: vec![(
            "rerun".into(),
            rows.iter()
                .map(|row| row.rerun.map_or_else(String::new, |rerun| format!("{rerun:.2}")))
                .collect(),
        )],
        across: Some(1.0),
        top: None,
    }
}

fn hscc_figures(rows: &[&HsccRow], folded: bool) -> [Figure; 3] {
    let values = |value: &dyn Fn(&HsccRow) -> f64| -> Vec<f64> {
        rows.iter().map(|row| value(row)).collect()
    };
    let footprint = footprint(folded);
    let figure = |title: &str, note: &str, unit, series| Figure {
        title: format!("{title}, programs {footprint}"),
        note: note.to_owned(),
        unit,
        logarithmic: false,
        places: rows
            .iter()
            .map(|row| format!("{} Th-{}", short(row.program), row.threshold))
            .collect(),
        series,
        also: Vec::new(),
        across: None,
        top: None,
    };
    let time = figure(
        "Figure 6: HSCC, time",
        "Time with migration over time without; unflushed: without the flushes of what was \
         copied, which hit the kernel's stack in the artifact.",
        "ratio",
        vec![
            ("ours".into(), values(&|row| row.time)),
            ("ours, unflushed".into(), values(&|row| row.unflushed)),
            ("rerun".into(), values(&|row| row.published[0])),
            ("first set".into(), values(&|row| row.published[1])),
        ],
    );
    let pages = figure(
        "HSCC, pages migrated",
        "Kindle's recordings take some 4 s of simulated time; the programs here run shorter, and \
         their data differ.",
        "pages",
        vec![
            ("ours".into(), values(&|row| row.pages as f64)),
            ("slide".into(), values(&|row| row.published_pages[0] as f64)),
            ("expected results".into(), values(&|row| row.published_pages[1] as f64)),
            ("rerun".into(), values(&|row| row.published_pages[2] as f64)),
        ],
    );
    let split = figure(
        "HSCC, where a migration's time goes",
        "Percent of the time of selecting and copying that the copy takes; published for the \
         first program alone.",
        "% copy",
        vec![
            ("ours".into(), values(&|row| row.copy)),
            ("slide".into(), values(&|row| row.published_copy.unwrap_or(0.0))),
        ],
    );
    [
        Figure { across: Some(1.0), ..time },
        Figure { logarithmic: true, ..pages },
        Figure { across: Some(90.0), ..split },
    ]
}

/// How large programs are, as titles say it.
fn footprint(folded: bool) -> &'static str {
    if folded { "folded into 6 MiB, as Kindle's" } else { "at their own footprint" }
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

/// The largest allocation on every memory.
fn allocation_figure(rows: &[AllocationRow]) -> Figure {
    let largest = rows.iter().map(|row| row.size).max().unwrap_or_default();
    let rows: Vec<&AllocationRow> = rows.iter().filter(|row| row.size == largest).collect();
    let values = |kind: usize| rows.iter().map(|row| row.runs[kind].time.as_f64() / 1e6).collect();
    let named = |(i, kind): (usize, &SchemeKind)| (kind.name().to_owned(), values(i));
    Figure {
        title: format!("Beyond: sequential allocation of {largest} on every memory"),
        note: "Milliseconds, one store a page.".into(),
        unit: "ms",
        logarithmic: true,
        places: rows.iter().map(|row| row.memory.to_owned()).collect(),
        series: SchemeKind::MAPPING.iter().enumerate().map(named).collect(),
        also: Vec::new(),
        across: None,
        top: None,
    }
}

/// What a run under a scheme came to, memory by memory.
fn scheme_figure(
    rows: &[&SchemeRow],
    title: String,
    note: &str,
    unit: &'static str,
    value: impl Fn(&SchemeRow) -> f64,
) -> Figure {
    Figure {
        title,
        note: note.into(),
        unit,
        logarithmic: false,
        places: MEMORIES.map(str::to_owned).to_vec(),
        series: by_memory(rows, |row| row.run.scheme, |row| row.memory, |row| value(row)),
        also: Vec::new(),
        across: None,
        top: None,
    }
}

fn scheme_figures(program: ProgramName, rows: &[&SchemeRow]) -> Vec<Figure> {
    let mut time = scheme_figure(
        rows,
        format!("Beyond: {program} under every scheme"),
        "Time over the time without persistence, at the program's own footprint, with a \
         checkpoint each 10 ms. What is cut off says how high it is.",
        "ratio",
        |row| row.time,
    );
    time.series.retain(|(name, _)| name != "none");
    (time.across, time.top) = (Some(1.0), Some(4.0));
    let mut energy = scheme_figure(
        rows,
        format!("Beyond: energy of {program}"),
        "Microjoules of DRAM and non-volatile memory, accesses alone: neither refresh nor what \
         idle circuits draw.",
        "µJ",
        |row| row.run.energy.map_or(0.0, |energy| energy.total()),
    );
    // As many columns as there are colours; without a scheme it is in the table.
    let none = |(name, _): &(String, Vec<f64>)| name == "none";
    energy.also = energy
        .series
        .iter()
        .filter(|one| none(one))
        .map(|(name, values)| {
            (name.clone(), values.iter().map(|value| format!("{value:.0}")).collect())
        })
        .collect();
    energy.series.retain(|one| !none(one));
    let mut figures = vec![time, energy];
    let here: Vec<&&SchemeRow> =
        rows.iter().filter(|row| row.memory == MEMORIES[0] && row.run.scheme != "none").collect();
    let classes = here.iter().map(|row| row.run.wear.histogram.len()).max().unwrap_or(0);
    let place = |class: usize| match class {
        0 => "1".to_owned(),
        _ => format!("{}–{}", 1u64 << class, (2u64 << class) - 1),
    };
    let histogram = |row: &SchemeRow| -> Vec<f64> {
        let lines = &row.run.wear.histogram;
        (0..classes).map(|class| lines.get(class).map_or(0.0, |lines| *lines as f64)).collect()
    };
    figures.push(Figure {
        title: format!("Beyond: wear of {program} on {}", MEMORIES[0]),
        note: "Lines of non-volatile memory by how often each was written. A line that is written \
               thousands of times is worn out first, unless something moves it about."
            .into(),
        unit: "lines",
        logarithmic: true,
        places: (0..classes).map(place).collect(),
        series: here.iter().map(|row| (row.run.scheme.to_owned(), histogram(row))).collect(),
        also: Vec::new(),
        across: None,
        top: None,
    });
    figures
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
               program fits into DRAM. The oracle knows what is to come. What is cut off says how \
               high it is."
            .into(),
        unit: "ratio",
        logarithmic: false,
        places,
        series,
        also: Vec::new(),
        across: Some(1.0),
        top: Some(1.5),
    }
}
