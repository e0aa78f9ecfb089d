//! One look at memory whose pages stay mapped, as a screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table};
use terrace_core::{Bytes, BytesPerSecond};
use terrace_report::AttachRates;

use super::attached::AttachHistory;
use super::draw::{BOLD, DIM, Map, areas, rate};
use super::heat::{HeatMap, MapRow};
use crate::output::{count, percent};

/// Draws everything below the headline.
pub(super) fn draw(frame: &mut Frame<'_>, body: Rect, run: &AttachHistory, map: Map) {
    let advice = run.advice();
    let height = Constraint::Length(advice.len() as u16);
    let [line, body] = Layout::vertical([height, Constraint::Min(0)]).areas(body);
    let advice = advice.iter().map(|advice| Line::styled(format!(" {advice}"), BOLD));
    frame.render_widget(Paragraph::new(advice.collect::<Vec<_>>()), line);
    let [tiers, rates, heat, list] = areas(body, run.report.regions.len());
    draw_tiers(frame, tiers, run);
    draw_rates(frame, rates, run);
    draw_map(frame, heat, run, map);
    draw_regions(frame, list, run);
}

/// What lies in which tier.
fn draw_tiers(frame: &mut Frame<'_>, area: Rect, run: &AttachHistory) {
    let rows = run.report.tiers.iter().map(|tier| {
        Row::new([
            tier.title(),
            tier.capacity.map_or("-".to_owned(), |capacity| capacity.to_string()),
            tier.now.to_string(),
            tier.recent_accesses.map_or("-".to_owned(), percent),
        ])
    });
    let widths = [Constraint::Fill(1); 4];
    let header = Row::new(["tier", "capacity", "now", "accesses"]).style(DIM);
    let block = Block::bordered().title(" tiers ");
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

/// What happened since the last look.
fn draw_rates(frame: &mut Frame<'_>, area: Rect, run: &AttachHistory) {
    let block = Block::bordered().title(" now ");
    let Some(rates) = &run.rates else {
        frame.render_widget(Paragraph::new("looking …").block(block), area);
        return;
    };
    frame.render_widget(Paragraph::new(lines(run, rates)).block(block), area);
}

fn lines(run: &AttachHistory, rates: &AttachRates) -> Vec<Line<'static>> {
    let pair = |a: &str, x: String, b: &str, y: String| {
        Line::raw(format!("{a:<12}{x:>12}  {b:<14}{y:>10}"))
    };
    let report = &run.report;
    let unknown = || "unknown".to_owned();
    let traffic = |moved: BytesPerSecond| format!("{}/s", Bytes(moved.get() as u64));
    let traffic = rates.moved.map_or_else(unknown, traffic);
    let per_second =
        report.limit.map_or("-".to_owned(), |limit| format!("{}/s", Bytes(limit.get() as u64)));
    let samplers: Vec<_> = report.samplers.iter().map(|sampler| sampler.name.as_str()).collect();
    let ping_pongs = rates.ping_pongs.map_or("not observed".to_owned(), rate);
    let observed = if samplers.is_empty() { "nothing".to_owned() } else { samplers.join(", ") };
    vec![
        pair(
            "promotions",
            rate(rates.promotions),
            "demotions",
            rates.demotions.map_or_else(unknown, rate),
        ),
        pair("ping-pong", ping_pongs, "back from swap", rate(rates.refaults)),
        pair("traffic", traffic, "at most", per_second),
        pair("sampling", percent(rates.sampling), "at most", percent(report.sampling_cap)),
        pair("samples", rate(rates.samples), "our CPU", format!("{:.2}", rates.own_cpu)),
        Line::raw(format!("observed by {observed}")),
    ]
}

fn draw_map(frame: &mut Frame<'_>, area: Rect, run: &AttachHistory, map: Map) {
    let columns = &run.columns;
    let (title, most) = match map {
        Map::Residency => {
            (" in the fastest tier, by address and time (dark: none, bright: all) ", 100)
        }
        Map::Faults => {
            let skip = columns.len().saturating_sub(usize::from(area.width));
            let regions = columns.iter().skip(skip).flatten();
            let most = regions.flat_map(|region| region.parts).max().unwrap_or(0);
            (" accesses observed, by address and time (dark: none, bright: most) ", most)
        }
    };
    let value = |column: usize, row: &MapRow| match map {
        Map::Residency => {
            let shares: Vec<u32> = run
                .at(column, row)
                .filter_map(|(region, part)| region.fastest[part].map(u32::from))
                .collect();
            shares.iter().sum::<u32>().checked_div(shares.len() as u32)
        }
        // Where nothing lies there is nothing to be accessed.
        Map::Faults => run
            .at(column, row)
            .filter(|(region, part)| region.fastest[*part].is_some())
            .map(|(region, part)| region.parts[part])
            .max(),
    };
    let regions = run.report.regions.iter();
    let map = HeatMap {
        title,
        regions: regions.map(|region| ((region.process, region.start), region.length())).collect(),
        columns: columns.len(),
        most,
        value: &value,
    };
    frame.render_widget(map, area);
}

fn draw_regions(frame: &mut Frame<'_>, area: Rect, run: &AttachHistory) {
    let mut regions: Vec<_> = run.report.regions.iter().collect();
    regions.sort_by_key(|region| std::cmp::Reverse((region.accesses, region.placed())));
    let rows = regions.into_iter().map(|region| {
        let held: Vec<_> = region.held.iter().map(ToString::to_string).collect();
        Row::new([
            format!("{:x}-{:x}", region.start, region.end),
            region.process.to_string(),
            region.page_size_name().to_owned(),
            held.join(" + "),
            count(region.accesses),
        ])
    });
    let widths = [
        Constraint::Length(27),
        Constraint::Length(11),
        Constraint::Length(7),
        Constraint::Fill(1),
        Constraint::Length(14),
    ];
    let header = Row::new(["region", "process", "pages", "in tiers", "accesses"]).style(DIM);
    let block = Block::bordered().title(" hottest regions ");
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrace_core::{BytesPerSecond, Cycles, Nanos, PageSize};
    use terrace_economics::Balance;
    use terrace_live::stats::process_page::PARTS;
    use terrace_report::AttachReport;
    use terrace_report::attach::{ProcessLine, RegionLine, SamplerLine, TierLine};

    use super::*;
    use crate::runs::Manifest;
    use crate::top::draw::tests::drawn;
    use crate::top::history::Seen;

    /// An attachment at its n-th look: the hot part wanders upwards and is promoted.
    fn report(n: usize) -> AttachReport {
        let tier = |memory: &str, now, share| TierLine {
            memory: memory.to_owned(),
            node: None,
            capacity: (memory == "numa:0").then_some(Bytes::mib(32)),
            at_begin: Bytes::mib(32),
            now,
            recent_accesses: share,
            all_accesses: share,
            latency: None,
            latency_from: None,
        };
        let mut region = RegionLine {
            process: 4711,
            start: 0x7000_0000_0000,
            end: 0x7000_0800_0000,
            page_size: PageSize::Base,
            held: vec![Bytes::mib(32), Bytes::mib(64), Bytes::mib(16)],
            accesses: 90,
            parts: std::array::from_fn(|i| if i == n { 90 } else { 0 }),
            fastest: std::array::from_fn(|i| (i < 28).then_some(if i <= n { 100 } else { 0 })),
        };
        let mut regions = vec![region.clone()];
        (region.start, region.end) = (0x7100_0000_0000, 0x7100_0400_0000);
        (region.accesses, region.parts) = (0, [0; PARTS]);
        regions.push(region);
        let n = n as u64;
        AttachReport {
            processes: vec![ProcessLine { process: 4711, command: "redis-server".into() }],
            elapsed: Nanos::seconds(n + 1),
            dry_run: false,
            tiers: vec![
                tier("numa:0", Bytes::mib(32), Some(0.75)),
                tier("numa:1", Bytes::mib(64), Some(0.25)),
                tier("swap", Bytes::mib(16), None),
            ],
            promotions: 512 * n,
            demotions: Some(600 * n),
            ping_pongs: Some(3 * n),
            moved_by_others: Some(0),
            refaults: n,
            slowdown: None,
            moved: Some(Bytes::mib(4) * n),
            limit: Some(BytesPerSecond(Bytes::gib(1).as_f64())),
            moving: Nanos::millis(20) * n,
            movers: 1,
            aborted: BTreeMap::new(),
            own_cpu: Nanos::millis(15) * n,
            policy: "hemem".into(),
            samples: 2_000 * n,
            policy_bytes: Bytes::kib(64),
            samplers: vec![SamplerLine {
                name: "DAMON".into(),
                samples: 2_000 * n,
                lost: 0,
                throttled: 0,
            }],
            sampler_reason: String::new(),
            sampling: Nanos::millis(21) * n,
            sampling_cap: 0.03,
            economist: "enforce".into(),
            no_kill_switch: None,
            accounts: Vec::new(),
            deciding: Cycles::ZERO,
            balance: Balance::default(),
            regions,
            kernel: None,
        }
    }

    fn run(looks: usize) -> AttachHistory {
        let (program, tiers) = (vec!["redis-server".to_owned()], Vec::new());
        let budget = Bytes::mib(32);
        let mut manifest =
            Manifest::new(program, "hemem", "enforce", budget, Nanos::ZERO, tiers, None);
        (manifest.pid, manifest.in_place) = (815, true);
        let mut run = None;
        for n in 0..looks {
            run = Some(AttachHistory::after(run, manifest.clone(), report(n)));
        }
        run.expect("at least one look")
    }

    #[test]
    fn a_screen_of_usual_size_looks_as_agreed() {
        let text = drawn(&[Seen::Attached(Box::new(run(20)))], 100, 40, Map::Residency);

        snapbox::assert_data_eq!(text, snapbox::file!["screen-attached.txt"].raw());
    }

    /// Of a run whose faults the kernel serves.
    #[test]
    fn what_would_help_stands_above_the_figures() {
        let mut run = run(3);
        assert_eq!(run.advice(), [], "its pages stay mapped, and no budget bounds it");
        let kernel = serde_json::json!({
            "program": ["redis-server"], "end": null, "elapsed": 3_000_000_000_u64,
            "budget": 32 << 20, "swap": { "kind": "zram", "what": "zram0", "devices": [0] },
            "store": null, "chooser": "kernel", "policy_bytes": 0, "charged_peak": null,
            "faults_lost": 0, "lacks": [],
            "resident": 48 << 20, "resident_peak": 48 << 20, "faults": 0, "reclaimed": 0,
            "short": 0, "put_out": 0, "stayed": 0, "ahead": 0, "braked": 0, "braked_time": 0,
            "passes": 0, "own_cpu": 0, "observing_cpu": 0,
            "run_level": {
                "budget": 32 << 20, "resident": 48 << 20, "resident_peak": 48 << 20,
                "exceeded": 16 << 20, "exceeded_peak": 16 << 20,
            },
        });
        run.report.kernel = Some(serde_json::from_value(kernel).unwrap());
        run.rates.as_mut().unwrap().thrashing = 0.9;

        let text = drawn(&[Seen::Attached(Box::new(run))], 100, 40, Map::Residency);

        let line = |n: usize| text.lines().nth(n).unwrap_or_default();
        assert!(line(1).contains("48.0 MiB are resident in a budget of 32.0 MiB"), "{text}");
        assert!(line(2).contains("the program thrashes"), "{text}");
        assert!(line(3).contains("tiers"), "{text}");
    }

    #[test]
    fn no_size_is_too_small() {
        let runs = [Seen::Attached(Box::new(run(3)))];
        for (width, height) in [(1, 1), (3, 40), (100, 2), (20, 10), (14, 14), (300, 120)] {
            drawn(&runs, width, height, Map::Faults);
        }
    }

    #[test]
    fn rates_stay_while_nothing_new_is_published() {
        let before = run(3);
        let rates = before.rates.clone();
        let manifest = before.manifest.clone();

        let after = AttachHistory::after(Some(before), manifest, report(2));

        assert!(rates.is_some() && after.rates == rates, "{:?}", after.rates);
        assert_eq!(after.columns.len(), 4);
    }
}
