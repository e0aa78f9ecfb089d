//! The page.

use std::fmt::Write as _;

use terrace_core::{Bytes, Nanos};
use terrace_live::stats::freed_regions::LINES;
use terrace_live::stats::process_page::PARTS;

use super::chart::{self, Axis, Grid, Series, escape};
use super::shell::{clock, count, seconds, table, wrap};
use super::story::{Column, RegionColumn, RegionKey, Story};
use crate::outside::OutsideCause;
use crate::run::{End, FaultClass, FaultReport, Figures, RunReport};

/// Regions in the heat maps.
const MAPPED_REGIONS: usize = 8;
/// Regions in the table.
const LISTED_REGIONS: usize = 20;

/// The whole page.
pub fn page(story: &Story) -> String {
    let Some(report) = &story.report else {
        return wrap("report", "Terrace", "<h1>Nothing was recorded</h1>\n");
    };
    let name = program(report);
    let mut body = head(story, report, name);
    body += &tiles(report);
    if story.columns.len() > 1 {
        body += &residency(story, report);
        body += &maps(story);
        body += &rates(story);
    }
    body += &faults(&report.total);
    body += &stall(&report.total);
    body += &story.decisions.section(&report.total.accounts);
    body += &regions(report);
    body += &freed_regions(report);
    body += &facts(story, report);
    wrap("report", &format!("{name} – Terrace"), &body)
}

fn program(report: &RunReport) -> &str {
    report.program.first().map_or("", |path| path.rsplit('/').next().unwrap_or(path))
}

fn head(story: &Story, report: &RunReport, name: &str) -> String {
    let how = match report.end {
        None => "has run for".to_owned(),
        Some(End::Exited(0)) => "ended well after".to_owned(),
        Some(End::Exited(status)) => format!("ended with status {status} after"),
        Some(End::Killed(signal)) => format!("was killed by signal {signal} after"),
    };
    let mut text = format!(
        "<h1>{} {how} {}</h1>\n<p class=\"sub\"><code>{}</code><br>{} in DRAM, policy {}, \
         economist {}</p>\n",
        escape(name),
        report.elapsed,
        escape(&report.program.join(" ")),
        report.budget,
        escape(&report.policy),
        escape(&report.economist),
    );
    for note in &story.notes {
        let _ = writeln!(text, "<p class=\"note-box\">{}</p>", escape(note));
    }
    text
}

/// The first answers.
fn tiles(report: &RunReport) -> String {
    let total = &report.total;
    let absent = total.faults.iter().find(|fault| fault.kind == FaultClass::Absent);
    let slowdown = report.slowdown.map(|slowdown| slowdown.factor_in_words());
    let peak = report.processes.iter().map(|process| process.figures.resident_peak).max();
    let threads = report.slowdown.map_or(1.0, |slowdown| slowdown.threads);
    let stalled = crate::share::of_threads(total.waited, report.elapsed, threads);
    let several = report.processes.iter().all(|p| p.figures.thrashing != total.thrashing);
    let thrashing = crate::share::of_processes(total.thrashing, report.elapsed, several);
    let tiles = [
        (slowdown.unwrap_or_else(|| "unknown".into()), "slowdown, estimated"),
        (stalled, "stalled"),
        (absent.map_or("–".into(), |f| f.p99.to_string()), "99 % of refaults within"),
        (peak.unwrap_or(Bytes::ZERO).to_string(), "in DRAM at most"),
        (total.mapped_peak.to_string(), "mapped at most"),
        (count(total.promotions), "promotions"),
        (count(total.demotions), "demotions"),
        (count(total.ping_pongs), "ping-pong: back within 1 s"),
        (thrashing, "thrashing"),
    ]
    .map(|(value, what)| {
        format!("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape(&value), what)
    });
    format!("<div class=\"tiles\">\n{}</div>\n", tiles.concat())
}

fn times(story: &Story) -> (Vec<f64>, f64) {
    let times: Vec<f64> = story.columns.iter().map(|column| seconds(column.at)).collect();
    let most = times.last().copied().unwrap_or(0.0).max(1e-3);
    (times, most)
}

fn residency(story: &Story, report: &RunReport) -> String {
    let (times, end) = times(story);
    let values = |of: fn(&Column) -> Bytes| -> Vec<f64> {
        story.columns.iter().map(|column| of(column).as_f64()).collect()
    };
    let series = [
        Series { name: "in DRAM", class: "a", values: values(|c| c.resident) },
        Series { name: "compressed (content)", class: "b", values: values(|c| c.stored) },
        Series { name: "spill file (compressed)", class: "d", values: values(|c| c.spilled) },
    ];
    let tops = (0..times.len()).map(|i| series.iter().map(|s| s.values[i]).sum::<f64>());
    let budget = report.budget.as_f64();
    let most = chart::above(tops.fold(budget, f64::max));
    let picture = chart::layers(
        "Residency over time",
        260.0,
        &times,
        &Axis { binary: false, most: end, words: &clock },
        &Axis { binary: true, most, words: &|bytes| Bytes(bytes as u64).to_string() },
        &series,
        Some((budget, "budget")),
    );
    format!(
        "<h2>Residency over time</h2>\n<p class=\"sub\">Where the program's touched memory lay. \
         What is compressed takes {} of RAM at most.</p>\n{picture}",
        report.total.store.occupied_peak
    )
}

fn maps(story: &Story) -> String {
    let (_, end) = times(story);
    let axis = Axis { binary: false, most: end, words: &clock };
    let regions = story.regions(MAPPED_REGIONS);
    let resident = grid(story, &regions, |column, _, _| {
        column.resident.map(|percent| f64::from(percent) / 100.0)
    });
    let faults = grid(story, &regions, |column, before, gone| {
        std::array::from_fn(|i| {
            let last = before.map_or(0, |before| before.faults[i]);
            // The root, so that a few are seen beside many.
            (f64::from(column.faults[i].saturating_sub(last)) / gone).sqrt()
        })
    });
    format!(
        "<h2>Where and when</h2>\n<p class=\"sub\">Addresses downwards, time to the right; the \
         regions with the most faults, in proportion to their size.</p>\n<h3>In DRAM</h3>\n{}\
         <h3>Faults</h3>\n{}",
        chart::heat_map("Residency by address and time", &resident, &axis, ("none", "all")),
        chart::heat_map("Faults by address and time", &faults, &axis, ("none", "most")),
    )
}

/// For equal steps of time the moment that each lies before.
fn steps(story: &Story) -> Vec<usize> {
    let (_, end) = times(story);
    let steps = story.columns.len().clamp(60, 300);
    let at = |step: usize| end * (step as f64 + 0.5) / steps as f64;
    (0..steps)
        .map(|step| story.columns.partition_point(|column| seconds(column.at) < at(step)))
        .map(|column| column.min(story.columns.len() - 1))
        .collect()
}

/// Rows of parts of regions by columns of time, brightest is the largest.
/// `of` gets a region at a moment, at the moment before, and the seconds between.
fn grid(
    story: &Story,
    regions: &[(RegionKey, Bytes)],
    of: impl Fn(&RegionColumn, Option<&RegionColumn>, f64) -> [f64; PARTS],
) -> Grid {
    let all: f64 = regions.iter().map(|(_, length)| length.as_f64()).sum();
    let steps = steps(story);
    let columns = steps.len();
    let mut values = Vec::new();
    let mut names = Vec::new();
    for (key, length) in regions {
        // At least some rows, so that a small hot region can be seen.
        let rows = ((length.as_f64() / all.max(1.0) * 96.0).round() as usize).clamp(6, 96);
        names.push((values.len() / columns.max(1), format!("{:x}  {length}", key.1)));
        let mut parts = Vec::with_capacity(story.columns.len());
        let (mut before, mut then) = (None, Nanos::ZERO);
        for column in &story.columns {
            let now = column.regions.get(key);
            let gone = seconds(column.at - then).max(1e-6);
            parts.push(now.map_or([0.0; PARTS], |now| of(now, before, gone)));
            (before, then) = (now.or(before), column.at);
        }
        for row in 0..rows {
            values.extend(steps.iter().map(|&column| parts[column][row * PARTS / rows]));
        }
    }
    let most = values.iter().copied().fold(0.0, f64::max);
    let cells = values.iter().map(|value| (value / most.max(1e-9) * 255.0) as u8).collect();
    Grid { cells, columns, rows: values.len() / columns.max(1), names }
}

fn rates(story: &Story) -> String {
    let (times, end) = times(story);
    let rate = |of: &dyn Fn(&Column) -> u64| -> Vec<f64> {
        let mut before: Option<&Column> = None;
        let rates = story.columns.iter().map(|column| {
            let (then, last) = before.map_or((Nanos::ZERO, 0), |c| (c.at, of(c)));
            before = Some(column);
            let gone = seconds(column.at - then).max(1e-6);
            of(column).saturating_sub(last) as f64 / gone
        });
        rates.collect()
    };
    let draw = |label: &str, series: &[Series<'_>]| {
        let all = series.iter().flat_map(|s| s.values.iter().copied());
        let most = chart::above(all.fold(0.0, f64::max));
        chart::lines(
            label,
            190.0,
            &times,
            &Axis { binary: false, most: end, words: &clock },
            &Axis { binary: false, most, words: &|n| format!("{}/s", count(n as u64)) },
            series,
        )
    };
    let faults = draw(
        "Faults a second",
        &[
            Series { name: "first touches", class: "c", values: rate(&|c| c.faults[0]) },
            Series { name: "refaults (absent)", class: "b", values: rate(&|c| c.faults[1]) },
            Series { name: "hints", class: "d", values: rate(&|c| c.faults[2]) },
        ],
    );
    let moved = draw(
        "Pages moved a second",
        &[
            Series { name: "promotions", class: "a", values: rate(&|c| c.moved[0]) },
            Series { name: "demotions", class: "b", values: rate(&|c| c.moved[1]) },
            Series { name: "ping-pong", class: "d", values: rate(&|c| c.moved[2]) },
        ],
    );
    let stalled = rate(&|c| c.stalled.get()).iter().map(|ns| ns / 1e9).collect::<Vec<_>>();
    let most = chart::above(stalled.iter().copied().fold(0.0, f64::max));
    let stalled = chart::lines(
        "Threads stalled",
        140.0,
        &times,
        &Axis { binary: false, most: end, words: &clock },
        &Axis { binary: false, most, words: &|n| format!("{n:.1}") },
        &[Series { name: "threads that stood still, on average", class: "a", values: stalled }],
    );
    format!("<h2>What happened when</h2>\n{faults}{moved}{stalled}")
}

fn faults(total: &Figures) -> String {
    let kinds: Vec<&FaultReport> = total.faults.iter().filter(|fault| fault.count > 0).collect();
    if kinds.is_empty() {
        return String::new();
    }
    let longest = kinds.iter().map(|fault| fault.max).max().unwrap_or(Nanos::ZERO);
    // From a microsecond to the longest, by doubling.
    let bounds: Vec<Nanos> =
        std::iter::successors(Some(Nanos(1 << 10)), |bound| (*bound < longest).then(|| *bound * 2))
            .collect();
    let series: Vec<_> = kinds
        .iter()
        .map(|fault| Series {
            name: words(fault.kind),
            class: class(fault.kind),
            values: by_bounds(&fault.histogram, &bounds),
        })
        .collect();
    let most = series.iter().flat_map(|s| s.values.iter().copied()).fold(0.0, f64::max);
    let picture = chart::bars(
        "Fault latency",
        230.0,
        &bounds.iter().map(ToString::to_string).collect::<Vec<_>>(),
        &Axis {
            binary: false,
            most: chart::above(most),
            words: &|share| format!("{:.0} %", share * 100.0),
        },
        &series,
    );
    let rows = kinds.iter().map(|fault| {
        let mean = fault.total / fault.count.max(1);
        let cells = [fault.p50, mean, fault.p99, fault.p999, fault.max].map(|t| t.to_string());
        let mut row = vec![words(fault.kind).to_owned(), count(fault.count)];
        row.extend(cells);
        row
    });
    format!(
        "<h2>Fault latency</h2>\n<p class=\"sub\">Service time, without the kernel's part before \
         and after it; the share of faults of each kind, each bar up to twice the time of the one \
         before.</p>\n{picture}{}",
        table(&["kind", "count", "p50", "mean", "p99", "p99.9", "max"], rows)
    )
}

/// Shares of all by coarse bounds.
fn by_bounds(histogram: &[(Nanos, u64)], bounds: &[Nanos]) -> Vec<f64> {
    let all: u64 = histogram.iter().map(|(_, n)| n).sum();
    let mut shares = vec![0.0; bounds.len()];
    for (upper, n) in histogram {
        let at = bounds.partition_point(|bound| bound < upper).min(bounds.len() - 1);
        shares[at] += *n as f64 / all.max(1) as f64;
    }
    shares
}

fn words(kind: FaultClass) -> &'static str {
    match kind {
        FaultClass::FirstTouch => "first touch",
        FaultClass::Absent => "refault (absent)",
        FaultClass::Hint => "hint",
    }
}

fn class(kind: FaultClass) -> &'static str {
    match kind {
        FaultClass::FirstTouch => "c",
        FaultClass::Absent => "b",
        FaultClass::Hint => "d",
    }
}

fn stall(total: &Figures) -> String {
    let faults: u64 = total.faults.iter().map(|fault| fault.count).sum();
    if faults == 0 {
        return String::new();
    }
    let stall = &total.stall;
    let parts = [
        ("wake-up (kernel, before and after)", "a", stall.wake_up),
        ("making room", "b", stall.reclaim),
        ("decompress", "c", stall.decompress),
        ("copy and wake", "d", stall.copy),
        ("other (zero-fill, staging, locks)", "e", stall.other),
    ];
    let shares: Vec<_> = parts
        .iter()
        .map(|(name, class, time)| (*name, *class, seconds(*time), time.to_string()))
        .collect();
    let rows = parts.iter().map(|(name, class, time)| {
        vec![
            format!("\u{0}{class}\u{0}{name}"),
            time.to_string(),
            share(*time, total.waited),
            (*time / faults).to_string(),
        ]
    });
    format!(
        "<h2>Where the time went</h2>\n<p class=\"sub\">{} that the program's threads waited in \
         {} faults, {} each.</p>\n{}{}",
        total.waited,
        count(faults),
        total.waited / faults,
        chart::shares("Stall time by part", &shares),
        table(&["part", "time", "share", "a fault"], rows)
    )
}

fn regions(report: &RunReport) -> String {
    let mut all: Vec<_> = report
        .processes
        .iter()
        .flat_map(|process| process.regions.iter().map(move |region| (process, region)))
        .collect();
    if all.is_empty() {
        return String::new();
    }
    all.sort_by_key(|(_, region)| std::cmp::Reverse(region.faults));
    let more = all.len().saturating_sub(LISTED_REGIONS);
    let rows = all.into_iter().take(LISTED_REGIONS).map(|(process, region)| {
        vec![
            format!("{:x}-{:x}", region.start, region.start + region.length.get()),
            format!("{} {}", process.pid, process.command),
            region.length.to_string(),
            region.resident.to_string(),
            count(region.faults),
        ]
    });
    let mut text = String::from("<h2>Regions</h2>\n");
    text += &table(&["addresses", "process", "mapped", "resident", "faults"], rows);
    if more > 0 {
        let _ = writeln!(text, "<p class=\"sub\">and {more} more</p>");
    }
    text
}

/// What was unmapped, or moved, before the end.
fn freed_regions(report: &RunReport) -> String {
    let of = |process| move |region| (process, region);
    let processes = report.processes.iter();
    let mut all: Vec<_> =
        processes.flat_map(|process| process.freed_regions.iter().map(of(process))).collect();
    if all.is_empty() {
        return String::new();
    }
    all.sort_by_key(|(_, region)| std::cmp::Reverse(region.faults));
    let more = all.len().saturating_sub(LISTED_REGIONS);
    let rows = all.into_iter().take(LISTED_REGIONS).map(|(process, region)| {
        vec![
            format!("{:x}-{:x}", region.start, region.start + region.length.get()),
            format!("{} {}", process.pid, process.command),
            region.length.to_string(),
            count(region.times),
            region.after.to_string(),
            count(region.faults),
        ]
    });
    let mut text = format!(
        "<h2>Freed regions</h2>\n<p class=\"sub\">What was unmapped, or moved, before the end: of \
         each process the {LINES} with the most faults.</p>\n"
    );
    let head = ["addresses", "process", "mapped", "times", "last after", "faults"];
    text += &table(&head, rows);
    if more > 0 {
        let _ = writeln!(text, "<p class=\"sub\">and {more} more</p>");
    }
    text
}

fn facts(story: &Story, report: &RunReport) -> String {
    let total = &report.total;
    let mut rows = vec![
        vec!["machine".to_owned(), story.machine.clone()],
        vec!["processes".to_owned(), report.processes.len().to_string()],
        vec!["Terrace's own processor time, in the program".to_owned(), total.own_cpu.to_string()],
        vec!["the same, of `terrace run`".to_owned(), report.command_cpu.to_string()],
        vec![
            "demotions cancelled by a touch".to_owned(),
            format!(
                "{}, refused {}",
                count(total.demotions_cancelled),
                count(total.demotions_refused)
            ),
        ],
        vec![
            "store beyond its limit".to_owned(),
            format!("{} at most, {} in all", total.store.over_limit_peak, total.store.over_limit),
        ],
        vec!["faults that made room themselves".to_owned(), count(total.direct_reclaims)],
        vec![
            "samples".to_owned(),
            format!("{}, lost {}", count(total.samples), count(total.samples_lost)),
        ],
    ];
    if let Some(outside) = &report.outside {
        let part = |part: &OutsideCause| format!("{} {}", part.cause.words(), part.peak);
        let parts: Vec<_> = outside.causes.iter().map(part).collect();
        rows.push(vec![
            "memory outside of the budget".to_owned(),
            format!("{} at most: {}", outside.peak, parts.join("; ")),
        ]);
    }
    for process in report.processes.iter().take(1) {
        rows.push(vec!["sampler".to_owned(), process.sampler.clone()]);
    }
    if let Some(slowdown) = &report.slowdown {
        let without =
            slowdown.without.map_or_else(|| "unknown".to_owned(), |time| time.to_string());
        rows.push(vec!["run time on plain memory, estimated".into(), without]);
        rows.push(vec![
            "waits spread over".into(),
            format!("{:.1} threads (processor time {})", slowdown.threads, slowdown.program_cpu),
        ]);
    }
    format!(
        "<h2>Facts</h2>\n{}<p class=\"sub\">The slowdown is the run time by the run time less the \
         stalls: spread evenly over the threads at work, without what first touches cost on plain \
         memory here, and taking Terrace's work in the background for free.</p>\n",
        table(&["", ""], rows)
    )
}

fn share(part: Nanos, whole: Nanos) -> String {
    if whole.is_zero() { "–".to_owned() } else { format!("{:.1} %", part / whole * 100.0) }
}
