//! The page of a simulated run, access by access.

use terrace_core::{Bytes, Nanos};
use terrace_sim::exact::ExactReport;
use terrace_sim::exact::timeline::{EMPTY, Moment, PARTS, Timeline, bucket_end};

use super::chart::{self, Axis, Grid, Series, escape};
use super::shell::{account_table, clock, count, percent, seconds, table, tiles, wrap};
use crate::run::AccountReport;

/// Colours of memories, fastest first.
const CLASSES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The whole page.
pub fn sim_page(report: &ExactReport, timeline: &Timeline) -> String {
    let mut body = format!(
        "<h1>{} under {}</h1>\n<p class=\"sub\">simulated access by access on {}, cores in use: {}, {} measured</p>\n",
        escape(&report.workload),
        escape(report.policy.name()),
        escape(&report.machine),
        timeline.cores,
        report.time,
    );
    body += &answers(report);
    if timeline.moments.len() > 2 {
        body += &over_time(report, timeline);
        body += &residency(timeline);
    }
    body += &latency(report, timeline);
    body += &cycles(report, timeline);
    body += &decisions(report);
    wrap("sim --html", &format!("{} – Terrace", report.workload), &body)
}

fn answers(report: &ExactReport) -> String {
    let accesses = report.accesses.max(1) as f64;
    let mut values = vec![
        (report.throughput.to_string(), "accesses of simulated time".to_owned()),
        ((report.time / report.accesses.max(1)).to_string(), "an access".to_owned()),
        (percent(report.tlb.walks as f64 / accesses), "of the accesses walk page tables".into()),
    ];
    for tier in &report.tiers {
        let what = format!("of the misses from {}, {} each", tier.name, tier.latency);
        values.push((percent(tier.share), what));
    }
    let moved = &report.migrated;
    values.push((count(moved.promotions + moved.exchanges), "promotions".to_owned()));
    values.push((count(moved.demotions + moved.exchanges), "demotions".to_owned()));
    values.push((count(report.faults.first_touches), "first touches".to_owned()));
    tiles(&values)
}

/// Changes of a counter from moment to moment, a second.
fn rates(timeline: &Timeline, of: impl Fn(&Moment) -> f64) -> Vec<f64> {
    let mut before = (0.0, 0.0);
    let rate = |moment: &Moment| {
        let (at, value) = (seconds(moment.at), of(moment));
        let (gone, change) = (at - before.0, value - before.1);
        before = (at, value);
        if gone > 0.0 { change.max(0.0) / gone } else { 0.0 }
    };
    timeline.moments.iter().map(rate).collect()
}

fn over_time(report: &ExactReport, timeline: &Timeline) -> String {
    let times: Vec<f64> = timeline.moments.iter().map(|moment| seconds(moment.at)).collect();
    let end = times.last().copied().unwrap_or(0.0).max(1e-9);
    let x = Axis { binary: false, most: end, words: &clock };
    let tiers = |of: &dyn Fn(usize) -> Vec<f64>| -> Vec<Series<'_>> {
        let names = report.tiers.iter().zip(CLASSES.iter().cycle()).enumerate();
        names.map(|(i, (tier, class))| Series { name: &tier.name, class, values: of(i) }).collect()
    };
    let top = |series: &[Series<'_>]| {
        chart::above(series.iter().flat_map(|s| s.values.iter().copied()).fold(0.0, f64::max))
    };
    let used = tiers(&|i| timeline.moments.iter().map(|m| m.tiers[i].used.as_f64()).collect());
    let sums = (0..times.len()).map(|at| used.iter().map(|s| s.values[at]).sum::<f64>());
    let most = chart::above(sums.fold(0.0, f64::max));
    let bytes = |bytes: f64| Bytes(bytes as u64).to_string();
    let used = chart::layers(
        "Memory in use",
        200.0,
        &times,
        &x,
        &Axis { binary: true, most, words: &bytes },
        &used,
        None,
    );
    let per_second = |n: f64| format!("{}/s", short(n));
    let lines = |label: &str, series: &[Series<'_>], words: &dyn Fn(f64) -> String| {
        let y = Axis { binary: false, most: top(series), words };
        chart::lines(label, 170.0, &times, &x, &y, series)
    };
    let reads = tiers(&|i| rates(timeline, |m| m.tiers[i].reads as f64));
    let traffic = tiers(&|i| rates(timeline, |m| m.tiers[i].moved.iter().sum()));
    let latencies = tiers(&|i| {
        // Where nothing was read the last figure stands.
        let (mut before, mut last) = ((0.0, 0), 0.0);
        let mut mean = |m: &Moment| {
            let (sum, number) = m.tiers[i].latency;
            if number > before.1 {
                last = (sum - before.0) / (number - before.1) as f64;
            }
            before = (sum, number);
            last
        };
        timeline.moments.iter().map(&mut mean).collect()
    });
    let speed = [Series {
        name: "accesses",
        class: "c",
        values: rates(timeline, |moment| moment.accesses as f64),
    }];
    let moved = [
        Series { name: "promotions", class: "a", values: rates(timeline, |m| m.moved[0] as f64) },
        Series { name: "demotions", class: "b", values: rates(timeline, |m| m.moved[1] as f64) },
        Series { name: "first touches", class: "c", values: rates(timeline, |m| m.faults as f64) },
    ];
    let nanos = |n: f64| Nanos(n as u64).to_string();
    format!(
        "<h2>Over time</h2>\n<p class=\"sub\">The whole run, warm-up included.</p>\n\
         <h3>Accesses</h3>\n{}<h3>Memory in use</h3>\n{used}<h3>Lines read for the program</h3>\n{}\
         <h3>Latency of reads, mean</h3>\n{}<h3>Traffic in bytes, migration included</h3>\n{}\
         <h3>Pages</h3>\n{}",
        lines("Accesses", &speed, &per_second),
        lines("Lines read", &reads, &per_second),
        lines("Latency", &latencies, &nanos),
        lines("Traffic", &traffic, &per_second),
        lines("Pages", &moved, &per_second),
    )
}

/// A number with a decimal prefix.
fn short(n: f64) -> String {
    let (value, prefix) = match n {
        n if n >= 1e9 => (n / 1e9, " G"),
        n if n >= 1e6 => (n / 1e6, " M"),
        n if n >= 1e3 => (n / 1e3, " K"),
        n => (n, ""),
    };
    let digits = usize::from(value < 10.0 && !prefix.is_empty());
    format!("{value:.digits$}{prefix}")
}

fn residency(timeline: &Timeline) -> String {
    let Some(last) = timeline.moments.last() else { return String::new() };
    let end = seconds(last.at).max(1e-9);
    // Equal steps of time; moments are equal steps of accesses.
    let columns = timeline.moments.len().clamp(60, 300);
    let moments: Vec<&Moment> = (0..columns)
        .map(|column| {
            let at = end * (column as f64 + 0.5) / columns as f64;
            let moment = timeline.moments.partition_point(|moment| seconds(moment.at) < at);
            &timeline.moments[moment.min(timeline.moments.len() - 1)]
        })
        .collect();
    let all: f64 = last.regions.iter().map(|region| region.length.as_f64()).sum();
    let (mut cells, mut names) = (Vec::new(), Vec::new());
    for region in &last.regions {
        let rows = ((region.length.as_f64() / all.max(1.0) * 96.0) as usize).clamp(4, 96);
        names.push((cells.len() / columns, format!("{:x}  {}", region.start, region.length)));
        for row in 0..rows {
            cells.extend(moments.iter().map(|moment| {
                let found = moment.regions.iter().find(|one| one.start == region.start);
                match found.map(|one| one.parts[row * PARTS / rows]) {
                    None | Some(EMPTY) => 0,
                    // Apart from what is not there: from a third on upwards.
                    Some(share) => (85.0 + f64::from(share) * 1.7) as u8,
                }
            }));
        }
    }
    let grid = Grid { rows: cells.len() / columns, cells, columns, names };
    let x = Axis { binary: false, most: end, words: &clock };
    format!(
        "<h2>Where and when</h2>\n<p class=\"sub\">Addresses downwards, time to the right. Dark: \
         not touched yet. Blue: in slow memory. Bright: in the fastest.</p>\n{}",
        chart::heat_map("Residency", &grid, &x, ("not touched, then slow", "fastest"))
    )
}

fn latency(report: &ExactReport, timeline: &Timeline) -> String {
    let counts = |bucket: usize| timeline.latencies.iter().map(|l| l[bucket]).sum::<u64>();
    let buckets = timeline.latencies.first().map_or(0, |l| l.len());
    let present: Vec<usize> = (0..buckets).filter(|&bucket| counts(bucket) > 0).collect();
    let (Some(&first), Some(&last)) = (present.first(), present.last()) else {
        return String::new();
    };
    let all: u64 = (first..=last).map(counts).sum();
    let series: Vec<Series<'_>> = report
        .tiers
        .iter()
        .zip(&timeline.latencies)
        .zip(CLASSES.iter().cycle())
        .map(|((tier, latencies), class)| Series {
            name: &tier.name,
            class,
            values: latencies[first..=last].iter().map(|&n| n as f64 / all as f64).collect(),
        })
        .collect();
    let most = series.iter().flat_map(|s| s.values.iter().copied()).fold(0.0, f64::max);
    let places: Vec<String> = (first..=last).map(|bucket| bucket_end(bucket).to_string()).collect();
    let y = Axis { binary: false, most: chart::above(most), words: &percent };
    let rows = report.tiers.iter().zip(&timeline.latencies).map(|(tier, latencies)| {
        let number: u64 = latencies.iter().sum();
        let within = |share: f64| {
            let mut left = (number as f64 * share).ceil() as u64;
            let bucket = latencies.iter().position(|&n| {
                left = left.saturating_sub(n);
                left == 0
            });
            bucket.filter(|_| number > 0).map_or("–".into(), |b| bucket_end(b).to_string())
        };
        vec![tier.name.clone(), count(number), within(0.5), within(0.99), within(0.999)]
    });
    format!(
        "<h2>Latency of reads from memory</h2>\n<p class=\"sub\">Share of all reads, page walks \
         included, up to the time below each bar.</p>\n{}{}",
        chart::bars("Latency", 220.0, &places, &y, &series),
        table(&["memory", "reads", "half within", "99 % within", "99.9 % within"], rows)
    )
}

fn cycles(report: &ExactReport, timeline: &Timeline) -> String {
    let Some(last) = timeline.moments.last() else { return String::new() };
    let all = seconds(last.at) * timeline.cores.max(1) as f64;
    let faults = &report.faults;
    let kernel = faults.trap + faults.zeroing + faults.table_zeroing;
    let waited = seconds(last.waited).min(all);
    let moving = faults.waiting + faults.reclaiming;
    let known = seconds(kernel + moving).min(waited);
    let parts = [
        ("instructions and what overlaps with them", "c", all - waited),
        ("waiting for memory and page walks", "a", waited - known),
        ("faults: trap, clearing, tables", "b", seconds(kernel)),
        ("waiting for pages that moved, or made room", "d", seconds(moving)),
    ];
    let words = |part: f64| percent(if all > 0.0 { part / all } else { 0.0 });
    let shares: Vec<_> =
        parts.iter().map(|(name, class, part)| (*name, *class, *part, words(*part))).collect();
    let rows = parts
        .iter()
        .map(|(name, class, part)| vec![format!("\0{class}\0{name}"), clock(*part), words(*part)]);
    format!(
        "<h2>Where the cycles went</h2>\n<p class=\"sub\">Time of {} cores over the whole run.</p>\n{}{}",
        timeline.cores,
        chart::shares("Where the cycles went", &shares),
        table(&["part", "time", "share"], rows)
    )
}

fn decisions(report: &ExactReport) -> String {
    let text = String::from("<h2>Decisions</h2>\n");
    if report.accounts.is_empty() {
        return text + "<p class=\"empty\">none were taken</p>\n";
    }
    let lines: Vec<_> =
        report.accounts.iter().map(|line| AccountReport::new(line.class, &line.account)).collect();
    text + &account_table(&lines)
}
