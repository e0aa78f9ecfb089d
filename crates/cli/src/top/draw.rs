//! One look as a screen.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Row, Table};
use terrace_core::{Bytes, Nanos, PageSize, PerSecond};
use terrace_report::Rates;
use terrace_report::run::FaultClass;

use super::draw_attached;
use super::heat::{HeatMap, MapRow};
use super::history::{RegionKey, RunHistory, Seen};
use crate::output::count;
use crate::runs::Manifest;

/// What the heat map shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Map {
    /// What is in DRAM, or in the fastest tier.
    Residency,
    /// Where faults happen, or accesses are observed.
    Faults,
}

impl Map {
    /// The other one.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Residency => Self::Faults,
            Self::Faults => Self::Residency,
        }
    }
}

pub(super) const DIM: Style = Style::new().add_modifier(Modifier::DIM);
pub(super) const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);

/// Draws everything.
pub(super) fn screen(
    frame: &mut Frame<'_>,
    runs: &[Seen],
    shown: usize,
    map: Map,
    interval: Duration,
    held: bool,
) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    let activity = match runs.get(shown) {
        Some(Seen::Attached(_)) => "accesses",
        _ => "faults",
    };
    let keys = format!(
        " q quit  Tab next program  h {}  +/- interval {interval:?}  space {}",
        if map == Map::Residency { activity } else { "residency" },
        if held { "go on" } else { "hold" },
    );
    frame.render_widget(Line::styled(keys, DIM), foot);
    let which =
        if runs.len() > 1 { format!("  ({} of {})", shown + 1, runs.len()) } else { String::new() };
    match runs.get(shown) {
        None => {
            let nothing = " no program runs under `terrace run` or is attached to";
            frame.render_widget(Line::styled(nothing, BOLD), head);
        }
        Some(Seen::Run(run)) => {
            let slowdown = run.report.slowdown.map_or(String::new(), |slowdown| {
                format!(", slowdown {}", slowdown.factor_in_words())
            });
            let line = headline(&run.manifest, run.report.elapsed, &(slowdown + &which));
            frame.render_widget(line, head);
            draw_run(frame, body, run, map);
        }
        Some(Seen::Attached(run)) => {
            let how = if run.report.dry_run { ", moving nothing" } else { ", in place" };
            let line = headline(&run.manifest, run.report.elapsed, &format!("{how}{which}"));
            frame.render_widget(line, head);
            draw_attached::draw(frame, body, run, map);
        }
    }
}

fn headline(manifest: &Manifest, elapsed: Nanos, more: &str) -> Line<'static> {
    Line::from(vec![
        Span::styled(format!(" {}", manifest.name()), BOLD),
        Span::raw(format!(
            " [{}], {} {}, {elapsed}{more}",
            manifest.pid, manifest.policy, manifest.economist,
        )),
    ])
}

/// A run whose memory is compressed.
fn draw_run(frame: &mut Frame<'_>, body: Rect, run: &RunHistory, map: Map) {
    let regions = hottest(run);
    let advice = run.advice();
    let height = Constraint::Length(advice.len() as u16);
    let [line, body] = Layout::vertical([height, Constraint::Min(0)]).areas(body);
    let advice = advice.iter().map(|advice| Line::styled(format!(" {advice}"), BOLD));
    frame.render_widget(Paragraph::new(advice.collect::<Vec<_>>()), line);
    let [tiers, rates, heat, list] = areas(body, regions.len());
    draw_tiers(frame, tiers, run);
    draw_rates(frame, rates, run.rates.as_ref(), run.signs().thrashes().is_some());
    draw_map(frame, heat, run, map);
    draw_regions(frame, list, run, &regions);
}

/// Where tiers, rates, the heat map and a list of so many regions go.
pub(super) fn areas(body: Rect, regions: usize) -> [Rect; 4] {
    let table = (regions as u16).saturating_add(3).min(body.height / 3);
    let [figures, heat, list] =
        Layout::vertical([Constraint::Length(9), Constraint::Min(0), Constraint::Length(table)])
            .areas(body);
    let [tiers, rates] =
        Layout::horizontal([Constraint::Percentage(45), Constraint::Percentage(55)]).areas(figures);
    [tiers, rates, heat, list]
}

fn draw_map(frame: &mut Frame<'_>, area: Rect, run: &RunHistory, map: Map) {
    let columns = &run.columns;
    let (title, most) = match map {
        Map::Residency => (" in DRAM, by address and time (dark: none, bright: all) ", 100),
        Map::Faults => {
            let skip = columns.len().saturating_sub(usize::from(area.width));
            let cells = columns.iter().skip(skip).flat_map(|column| column.regions.values());
            let most = cells.flat_map(|cells| cells.faults).max().unwrap_or(0);
            (" faults, by address and time (dark: none, bright: most) ", most)
        }
    };
    let value = |column: usize, row: &MapRow| {
        let cells = columns.get(column)?.regions.get(&row.key)?;
        Some(match map {
            Map::Residency => {
                let parts = &cells.resident[row.from..row.to];
                parts.iter().map(|&part| u32::from(part)).sum::<u32>() / parts.len().max(1) as u32
            }
            Map::Faults => cells.faults[row.from..row.to].iter().copied().max().unwrap_or(0),
        })
    };
    let processes = run.report.processes.iter();
    let regions = processes.flat_map(|process| {
        process.regions.iter().map(|region| ((process.pid, region.start), region.length))
    });
    let map =
        HeatMap { title, regions: regions.collect(), columns: columns.len(), most, value: &value };
    frame.render_widget(map, area);
}

/// What lies in which tier.
fn draw_tiers(frame: &mut Frame<'_>, area: Rect, run: &RunHistory) {
    let level = run.report.level();
    let exceeded = level.exceeds();
    let title = if exceeded { " tiers: the budget is exceeded " } else { " tiers " };
    let block = Block::bordered().title(title);
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let [dram, gauge, store, content, file, mapped, outside] =
        Layout::vertical([Constraint::Length(1); 7]).areas(inside);
    let total = &run.report.total;
    let (resident, budget) = (level.resident, level.budget);
    let whose = run.report.budget_of.map_or(String::new(), |run| format!(" of run {run}"));
    let line = |name: &str, text: String| Line::raw(format!("{name:<11}{text}"));
    frame.render_widget(line("DRAM", format!("{resident} of {budget}{whose}")), dram);
    let full = if budget.is_zero() { 0.0 } else { (resident / budget).clamp(0.0, 1.0) };
    let filled = Style::new().fg(Color::Cyan);
    frame.render_widget(Gauge::default().ratio(full).gauge_style(filled), gauge);
    let held =
        PageSize::Base.bytes() * (total.store.compressed_pages + total.store.same_filled_pages);
    let ratio = total.store.ratio().map_or(String::new(), |r| format!(", {r:.2} : 1"));
    frame.render_widget(
        line("compressed", format!("{held} in {}{ratio}", total.store.occupied)),
        store,
    );
    let same = count(total.store.same_filled_pages);
    frame.render_widget(line("", format!("{same} pages same-filled")), content);
    let over = over_limit(total.store.over_limit_peak);
    frame.render_widget(line("file", format!("{}{over}", total.store.spilled)), file);
    frame.render_widget(line("mapped", total.mapped.to_string()), mapped);
    if let Some(all) = &run.report.outside {
        let most = all.causes.iter().max_by_key(|part| part.now);
        let cause = most.map_or(String::new(), |part| format!(": {}", part.cause.words()));
        frame.render_widget(line("outside", format!("{}{cause}", all.now)), outside);
    }
}

/// What happened since the last look.
fn draw_rates(frame: &mut Frame<'_>, area: Rect, rates: Option<&Rates>, thrashes: bool) {
    let title = if thrashes { " now: thrashing, the budget is too small " } else { " now " };
    let block = Block::bordered().title(title);
    let Some(rates) = rates else {
        frame.render_widget(Paragraph::new("looking …").block(block), area);
        return;
    };
    let mut lines = vec![Line::styled(
        format!("{:<14}{:>12}{:>12}{:>12}", "faults", "rate", "p50", "p99"),
        DIM,
    )];
    for fault in &rates.faults {
        let (p50, p99) = (fault.p50.to_string(), fault.p99.to_string());
        let rate = rate(fault.rate);
        let style = if fault.kind == FaultClass::Absent { BOLD } else { Style::new() };
        let text = format!("{:<14}{rate:>12}{p50:>12}{p99:>12}", fault.kind.name());
        lines.push(Line::styled(text, style));
    }
    let pair = |a: &str, x: String, b: &str, y: String| {
        Line::raw(format!("{a:<14}{x:>12}  {b:<12}{y:>10}"))
    };
    let (promotions, demotions) = (rate(rates.promotions), rate(rates.demotions));
    lines.push(pair("promotions", promotions, "demotions", demotions));
    let (ping_pongs, waits) = (rate(rates.ping_pongs), rate(rates.direct_reclaims));
    lines.push(pair("ping-pong", ping_pongs, "room waited", waits));
    let (stalled, own) = (rates.stalled, rates.own_cpu);
    lines.push(pair("stalled", format!("{stalled:.2} threads"), "our CPU", format!("{own:.2}")));
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// How far the store has been beyond its limit at most; nothing if it has not.
fn over_limit(peak: Bytes) -> String {
    if peak.is_zero() { String::new() } else { format!("; store over by {peak}") }
}

pub(super) fn rate(rate: PerSecond) -> String {
    format!("{}/s", count(rate.0.round() as u64))
}

/// The regions, most faults since the last look first.
fn hottest(run: &RunHistory) -> Vec<(RegionKey, u64)> {
    let mut regions: Vec<_> = run
        .report
        .processes
        .iter()
        .flat_map(|process| process.regions.iter().map(|region| (process.pid, region.start)))
        .map(|key| (key, run.faults(key)))
        .collect();
    regions.sort_by_key(|&(key, faults)| (std::cmp::Reverse(faults), key));
    regions
}

fn draw_regions(frame: &mut Frame<'_>, area: Rect, run: &RunHistory, regions: &[(RegionKey, u64)]) {
    let seconds = run.rates.as_ref().map_or(1.0, |rates| rates.interval.get() as f64 / 1e9);
    let rows = regions.iter().filter_map(|&((pid, start), faults)| {
        let process = run.report.processes.iter().find(|process| process.pid == pid)?;
        let region = process.regions.iter().find(|region| region.start == start)?;
        let end = region.start + region.length.get();
        Some(Row::new([
            format!("{start:x}-{end:x}"),
            pid.to_string(),
            region.length.to_string(),
            region.resident.to_string(),
            rate(PerSecond(faults as f64 / seconds)),
            count(region.faults),
        ]))
    });
    let widths = [
        Constraint::Length(27),
        Constraint::Length(11),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(12),
        Constraint::Length(14),
    ];
    let header = Row::new(["region", "process", "mapped", "resident", "faults now", "faults"]);
    let block = Block::bordered().title(" hottest regions ");
    frame.render_widget(Table::new(rows, widths).header(header.style(DIM)).block(block), area);
}

#[cfg(test)]
pub(super) mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use terrace_live::stats::process_page::PARTS;
    use terrace_report::outside::{Cause, OutsideCause, OutsideReport};
    use terrace_report::run::{FaultReport, Figures, ProcessReport, ProcessState, RegionReport};
    use terrace_report::{RunReport, SharedReport, Slowdown};

    use super::*;

    /// A run at its n-th look: faults wander upwards through its first region.
    fn report(n: u32) -> RunReport {
        let mut parts = [0; PARTS];
        for (i, part) in parts.iter_mut().enumerate() {
            *part = if (i as u32) < n { 400 } else { 0 };
        }
        let faults: u32 = parts.iter().sum();
        let region = |start, length, faults, parts| RegionReport {
            start,
            length,
            resident: length / 4,
            faults,
            parts,
        };
        let fault = |kind, count| FaultReport {
            kind,
            count,
            p50: Nanos(9_000),
            p99: Nanos(41_000),
            p999: Nanos(900_000),
            max: Nanos(1_000_000),
            total: Nanos(count * 10_000),
            histogram: vec![(Nanos(9_215), count * 9 / 10), (Nanos(40_959), count / 10)],
        };
        let figures = Figures {
            mapped: Bytes::mib(136),
            resident: Bytes::mib(30),
            faults: vec![
                fault(FaultClass::FirstTouch, 30_000),
                fault(FaultClass::Absent, u64::from(faults)),
                fault(FaultClass::Hint, 70),
            ],
            promotions: u64::from(faults),
            demotions: u64::from(faults) + 20,
            ping_pongs: u64::from(faults) / 4,
            waited: Nanos::millis(300) * u64::from(n),
            own_cpu: Nanos::millis(400) * u64::from(n),
            ..Figures::default()
        };
        let process = ProcessReport {
            pid: u32::MAX,
            command: "sort".into(),
            ended: false,
            state: ProcessState::Managed,
            failure: None,
            sampler: String::new(),
            figures: figures.clone(),
            regions: vec![
                region(0x1200_0000_0000, Bytes::mib(128), u64::from(faults), parts),
                region(0x1200_0a00_0000, Bytes::mib(8), 3, [0; PARTS]),
            ],
            freed_regions: Vec::new(),
        };
        RunReport {
            program: vec!["/usr/bin/sort".into()],
            end: None,
            elapsed: Nanos::seconds(u64::from(n)),
            policy: "hemem".into(),
            economist: "enforce".into(),
            sampling_cap: Some(0.03),
            budget: Bytes::mib(32),
            budget_holds_store: false,
            budget_kept: true,
            budget_kept_managed: true,
            shared: None,
            budget_of: None,
            unmanaged: None,
            slowdown: Some(Slowdown {
                factor: Some(1.43),
                at_least: Some(1.4),
                without: Some(Nanos::seconds(7)),
                stalled: Nanos::seconds(3),
                plain_faults: Nanos::ZERO,
                program_cpu: Nanos::seconds(7),
                threads: 1.0,
            }),
            total: figures,
            command_cpu: Nanos::millis(100) * u64::from(n),
            processes: vec![process],
            ended_processes: 0,
            unread_processes: Vec::new(),
            decisions_lost: None,
            nodes: None,
            core_dump: None,
            plain: None,
            outside: None,
            process_peak: Bytes::ZERO,
            unseen_peak: Bytes::ZERO,
            nothing_managed: None,
        }
    }

    fn run(looks: u32) -> Seen {
        let program = vec!["/usr/bin/sort".to_owned()];
        let mut manifest =
            Manifest::new(program, "hemem", "enforce", Bytes::mib(32), Nanos(500), vec![], None);
        manifest.pid = 4711;
        Seen::Run(Box::new(RunHistory::of_looks(&manifest, (1..=looks).map(report).collect())))
    }

    pub(in crate::top) fn drawn(runs: &[Seen], width: u16, height: u16, map: Map) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen(frame, runs, 0, map, Duration::from_secs(1), false)).unwrap();
        let buffer = terminal.backend().buffer();
        let mut text = String::new();
        for y in 0..height {
            let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    #[test]
    fn a_screen_of_usual_size_looks_as_agreed() {
        let text = drawn(&[run(30)], 100, 40, Map::Faults);

        snapbox::assert_data_eq!(text, snapbox::file!["screen.txt"].raw());
    }

    /// Whoever set the limit sees that the disk was slower than the program.
    #[test]
    fn a_store_that_was_over_its_limit_is_told_beside_the_file() {
        let mut over = report(30);
        over.total.store.spilled = Bytes::mib(64);
        over.total.store.over_limit_peak = Bytes::mib(6);
        let program = vec!["/usr/bin/sort".to_owned()];
        let manifest =
            Manifest::new(program, "hemem", "enforce", Bytes::mib(32), Nanos(500), vec![], None);
        let run = RunHistory::of_looks(&manifest, vec![report(29), over]);

        let text = drawn(&[Seen::Run(Box::new(run))], 100, 40, Map::Faults);

        assert!(text.contains("file       64.0 MiB; store over by 6.00 MiB"), "{text}");
    }

    /// It was told once for each process: 48 MiB of 24.
    #[test]
    fn the_budget_is_that_of_all_processes_together() {
        let mut family = report(30);
        family.processes.push(ProcessReport { pid: 7, ..family.processes[0].clone() });
        family.total.resident = Bytes::mib(60);
        family.shared = Some(SharedReport {
            processes: 2,
            granted_peak: Bytes::mib(32),
            resident_peak: Bytes::mib(40),
            resident: Bytes::mib(36),
            budget_peak: Bytes::mib(32),
            changes: 0,
        });
        let program = vec!["/usr/bin/sort".to_owned()];
        let manifest =
            Manifest::new(program, "hemem", "enforce", Bytes::mib(32), Nanos(500), vec![], None);
        let run = RunHistory::of_looks(&manifest, vec![family]);

        let text = drawn(&[Seen::Run(Box::new(run))], 100, 40, Map::Faults);

        assert!(text.contains("DRAM       36.0 MiB of 32.0 MiB "), "{text}");
        assert!(text.contains("tiers: the budget is exceeded"), "{text}");
        let advice = "36.0 MiB are resident in a budget of 32.0 MiB; `terrace set ";
        assert!(text.contains(advice), "{text}");
    }

    #[test]
    fn a_program_that_thrashes_is_told_to_have_more() {
        let mut last = report(30);
        last.total.thrashing = Nanos::millis(800);
        let program = vec!["/usr/bin/sort".to_owned()];
        let manifest =
            Manifest::new(program, "hemem", "enforce", Bytes::mib(32), Nanos(500), vec![], None);
        let run = RunHistory::of_looks(&manifest, vec![report(29), last]);

        let text = drawn(&[Seen::Run(Box::new(run))], 130, 40, Map::Faults);

        assert!(text.contains(" now: thrashing, the budget is too small "), "{text}");
        assert!(text.contains("--fast 64MiB` gives it more"), "{text}");
    }

    #[test]
    fn memory_that_no_budget_bounds_is_told_below_the_tiers() {
        let part = |cause, mib| OutsideCause { cause, now: Bytes::mib(mib), peak: Bytes::mib(mib) };
        let outside = OutsideReport {
            now: Bytes::mib(402),
            causes: vec![part(Cause::Small, 2), part(Cause::Shared, 400)],
            ..OutsideReport::default()
        };
        let last = report(30).beside(None, Some(Box::new(outside)));
        let program = vec!["/usr/bin/sort".to_owned()];
        let manifest =
            Manifest::new(program, "hemem", "enforce", Bytes::mib(32), Nanos(500), vec![], None);
        let run = RunHistory::of_looks(&manifest, vec![report(29), last]);

        let text = drawn(&[Seen::Run(Box::new(run))], 100, 40, Map::Faults);

        assert!(text.contains("outside    402 MiB: shared memory "), "{text}");
    }

    /// A terminal can be resized to anything at any time.
    #[test]
    fn no_size_is_too_small() {
        let runs = [run(3)];
        for (width, height) in [(1, 1), (3, 40), (100, 2), (20, 10), (14, 14), (300, 120)] {
            drawn(&runs, width, height, Map::Residency);
        }
        assert!(drawn(&[], 60, 5, Map::Faults).contains("no program runs"));
    }
}
