//! The page of memory whose pages stay mapped: `terrace attach`, and `terrace run` with
//! slower memories.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use terrace_core::{Bytes, Nanos};

use super::chart::{self, Axis, Grid, Series, escape};
use super::decisions::Decisions;
use super::shell::{clock, count, percent, seconds, table, tiles, wrap};
use super::story::thin_out;
use crate::attach::{AttachReport, RegionLine};
use crate::kernel::KernelReport;
use crate::share;

/// Colours of tiers, fastest first.
const CLASSES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Regions that are kept of each moment, and drawn: those with the most accesses.
const DRAWN_REGIONS: usize = 8;
/// Regions in the table.
const LISTED_REGIONS: usize = 20;
/// Rows of a heat map, about.
const ROWS: f64 = 96.0;

/// Everything that the page tells of, in bounded memory however long it was.
#[derive(Debug)]
pub struct AttachStory {
    /// The command that writes the page.
    verb: &'static str,
    /// What it is called: the program with its arguments, or the control group.
    program: String,
    /// The machine, in words.
    machine: String,
    /// Moments, in order; each with the regions that it is about only.
    moments: Vec<AttachReport>,
    /// Decisions by what was decided, and why.
    pub decisions: Decisions,
    /// What has to be said of the recording: that it is cut off, what is missing.
    pub notes: Vec<String>,
}

impl AttachStory {
    /// A story without moments, of a program or a control group on a machine; `verb` is the
    /// command that tells it.
    pub fn new(verb: &'static str, program: &str, machine: String) -> Self {
        let program = program.to_owned();
        let (moments, notes) = (Vec::new(), Vec::new());
        Self { verb, program, machine, moments, decisions: Decisions::default(), notes }
    }

    /// Takes in a moment.
    pub fn moment(&mut self, mut report: AttachReport) {
        let key = |region: &RegionLine| std::cmp::Reverse((region.accesses, region.placed()));
        report.regions.sort_by_key(key);
        report.regions.truncate(DRAWN_REGIONS);
        report.accounts.clear();
        self.moments.push(report);
        thin_out(&mut self.moments);
    }
}

/// The whole page; `report` is the last one.
pub fn attach_page(story: &AttachStory, report: &AttachReport) -> String {
    let mut body = head(story, report);
    body += &answers(report);
    if story.moments.len() > 1 {
        let pictures = Pictures::new(story, report);
        body += &pictures.residency();
        body += &pictures.maps();
        body += &pictures.rates();
    }
    body += &tier_table(report);
    body += &story.decisions.section(&report.accounts);
    body += &regions(report);
    body += &facts(story, report);
    wrap(story.verb, &format!("{} – Terrace", story.program), &body)
}

fn head(story: &AttachStory, report: &AttachReport) -> String {
    let tiers: Vec<_> = report
        .tiers
        .iter()
        .map(|tier| match tier.capacity {
            Some(capacity) => format!("{} ({capacity})", tier.title()),
            None => tier.title(),
        })
        .collect();
    let dry = if report.dry_run { ", moving nothing" } else { "" };
    let mut text = format!(
        "<h1>Attached to {} for {}{dry}</h1>\n<p class=\"sub\"><code>{}</code><br>{}; policy {}, \
         economist {}</p>\n",
        escape(&report.whom()),
        report.elapsed,
        escape(&story.program),
        escape(&tiers.join(", ")),
        escape(&report.policy),
        escape(&report.economist),
    );
    for note in &story.notes {
        let _ = writeln!(text, "<p class=\"note-box\">{}</p>", escape(note));
    }
    text
}

/// The first answers.
fn answers(report: &AttachReport) -> String {
    let mut values = Vec::new();
    for tier in &report.tiers {
        if let Some(share) = tier.all_accesses {
            let what = format!("of the accesses observed were to {}", tier.memory);
            values.push((percent(share), what));
        }
    }
    if let Some(estimate) = &report.slowdown {
        let told = estimate.at_most.map_or("?".to_owned(), |most| format!("{most:.2} x"));
        let what = "slowdown at most, estimated from observed accesses and latencies";
        let why =
            estimate.unknown.as_ref().map_or(String::new(), |why| format!(": unknown, {why}"));
        values.push((told, format!("{what}{why}")));
    }
    let processors = |time: Nanos| share::processors(time, report.elapsed);
    let known = |n: Option<u64>| n.map_or("not observed".to_owned(), count);
    values.extend([
        (count(report.promotions), "promotions".to_owned()),
        (or_unknown(report.demotions.map(count)), "demotions".to_owned()),
        (known(report.ping_pongs), "ping-pong: moved back".to_owned()),
        (count(report.refaults), "pages came back from swap".to_owned()),
        (
            or_unknown(report.moved.map(|moved| moved.to_string())),
            "traffic between tiers".to_owned(),
        ),
        (processors(report.sampling), "for sampling".to_owned()),
        (processors(report.own_cpu), "for the rest of Terrace".to_owned()),
    ]);
    tiles(&values)
}

/// The moments over time.
struct Pictures<'a> {
    moments: &'a [AttachReport],
    report: &'a AttachReport,
    times: Vec<f64>,
    end: f64,
}

impl<'a> Pictures<'a> {
    fn new(story: &'a AttachStory, report: &'a AttachReport) -> Self {
        let times: Vec<_> = story.moments.iter().map(|moment| seconds(moment.elapsed)).collect();
        let end = times.last().copied().unwrap_or(0.0).max(1e-3);
        Self { moments: &story.moments, report, times, end }
    }

    fn time(&self) -> Axis<'static> {
        Axis { binary: false, most: self.end, words: &clock }
    }

    fn residency(&self) -> String {
        let series: Vec<_> = self
            .report
            .tiers
            .iter()
            .enumerate()
            .zip(CLASSES.iter().cycle())
            .map(|((i, tier), class)| Series {
                name: &tier.memory,
                class,
                values: self.moments.iter().map(|moment| moment.tiers[i].now.as_f64()).collect(),
            })
            .collect();
        let capacity = self.report.tiers.first().and_then(|tier| tier.capacity);
        let across = capacity.map(|capacity| (capacity.as_f64(), "capacity of the fastest"));
        let tops = (0..self.times.len()).map(|at| series.iter().map(|s| s.values[at]).sum::<f64>());
        let most = chart::above(tops.fold(across.map_or(0.0, |(bytes, _)| bytes), f64::max));
        let picture = chart::layers(
            "Residency over time",
            260.0,
            &self.times,
            &self.time(),
            &Axis { binary: true, most, words: &|bytes| Bytes(bytes as u64).to_string() },
            &series,
            across,
        );
        format!(
            "<h2>Residency over time</h2>\n<p class=\"sub\">Where the programs' memory lay.</p>\n\
             {picture}"
        )
    }

    fn maps(&self) -> String {
        let regions = self.regions();
        let fastest = self.grid(&regions, |region, part| match region.fastest[part] {
            None => 0.0,
            // Apart from what is not there: from a third on upwards.
            Some(percent) => 1.0 + f64::from(percent) / 50.0,
        });
        // The root, so that a few are seen beside many.
        let accesses = self.grid(&regions, |region, part| f64::from(region.parts[part]).sqrt());
        format!(
            "<h2>Where and when</h2>\n<p class=\"sub\">Addresses downwards, time to the right; the \
             regions with the most accesses, in proportion to their size.</p>\n\
             <h3>In the fastest tier</h3>\n{}<h3>Accesses observed</h3>\n{}",
            chart::heat_map(
                "Residency by address and time",
                &fastest,
                &self.time(),
                ("nothing there, then slow", "fastest")
            ),
            chart::heat_map(
                "Accesses by address and time",
                &accesses,
                &self.time(),
                ("none", "most")
            ),
        )
    }

    /// The address ranges that are drawn, by process: the hottest regions of all moments.
    /// Regions grow and merge, so overlapping ones are one.
    fn regions(&self) -> Vec<(u32, u64, u64)> {
        let mut heat = BTreeMap::<(u32, u64), (u64, u64, Bytes)>::new();
        for region in self.moments.iter().flat_map(|moment| &moment.regions) {
            let entry = heat.entry((region.process, region.start)).or_default();
            entry.0 = entry.0.max(region.end);
            entry.1 += region.accesses;
            entry.2 = entry.2.max(region.placed());
        }
        let mut merged: Vec<(u32, u64, u64, u64, Bytes)> = Vec::new();
        for ((process, start), (end, accesses, placed)) in heat {
            match merged.last_mut() {
                Some(last) if last.0 == process && start < last.2 => {
                    last.2 = last.2.max(end);
                    last.3 += accesses;
                    last.4 = last.4.max(placed);
                }
                _ => merged.push((process, start, end, accesses, placed)),
            }
        }
        merged.sort_by_key(|&(.., accesses, placed)| std::cmp::Reverse((accesses, placed)));
        merged.truncate(DRAWN_REGIONS);
        merged.sort_unstable();
        merged.into_iter().map(|(process, start, end, ..)| (process, start, end)).collect()
    }

    /// Rows of equal parts of the regions by columns of equal time, brightest is the
    /// largest. `of` is asked for parts of regions.
    fn grid(&self, regions: &[(u32, u64, u64)], of: impl Fn(&RegionLine, usize) -> f64) -> Grid {
        let columns = self.moments.len().clamp(60, 300);
        let moments: Vec<&AttachReport> = (0..columns)
            .map(|column| {
                let at = self.end * (column as f64 + 0.5) / columns as f64;
                let moment = self.times.partition_point(|time| *time < at);
                &self.moments[moment.min(self.moments.len() - 1)]
            })
            .collect();
        let all: u64 = regions.iter().map(|(_, start, end)| end - start).sum();
        let (mut values, mut names) = (Vec::new(), Vec::new());
        for &(process, start, end) in regions {
            let length = end - start;
            // At least some rows, so that a small hot region can be seen.
            let rows = (length as f64 / all as f64 * ROWS).round().clamp(6.0, ROWS) as u64;
            names.push((values.len() / columns, format!("{start:x}  {}", Bytes(length))));
            for row in 0..rows {
                // In its middle.
                let address = start + length * (2 * row + 1) / (2 * rows);
                values.extend(moments.iter().map(|moment| {
                    let part =
                        |region: &RegionLine| Some(of(region, region.part_at(process, address)?));
                    moment.regions.iter().find_map(part).unwrap_or(0.0)
                }));
            }
        }
        let most = values.iter().copied().fold(0.0, f64::max).max(1e-9);
        let cells = values.iter().map(|value| (value / most * 255.0) as u8).collect();
        Grid { cells, columns, rows: values.len() / columns, names }
    }

    /// A counter's change from moment to moment, a second.
    fn rate(&self, of: impl Fn(&AttachReport) -> f64) -> Vec<f64> {
        let mut before = (0.0, 0.0);
        let rate = |(moment, time): (&AttachReport, &f64)| {
            let value = of(moment);
            let (gone, change) = (time - before.0, value - before.1);
            before = (*time, value);
            if gone > 0.0 { change.max(0.0) / gone } else { 0.0 }
        };
        self.moments.iter().zip(&self.times).map(rate).collect()
    }

    fn lines(&self, label: &str, words: &dyn Fn(f64) -> String, series: &[Series<'_>]) -> String {
        let all = series.iter().flat_map(|s| s.values.iter().copied());
        let most = chart::above(all.fold(0.0, f64::max));
        let y = Axis { binary: false, most, words };
        chart::lines(label, 190.0, &self.times, &self.time(), &y, series)
    }

    fn rates(&self) -> String {
        let line = |name, class, values| Series { name, class, values };
        let mut moved = vec![
            line("promotions", "a", self.rate(|r| r.promotions as f64)),
            line("came back from swap", "c", self.rate(|r| r.refaults as f64)),
        ];
        // Where nobody knows of any there is no line of zeros.
        if self.moments.iter().any(|moment| moment.demotions.is_some()) {
            let values = self.rate(|r| r.demotions.unwrap_or(0) as f64);
            moved.insert(1, line("demotions", "b", values));
        }
        if self.moments.iter().any(|moment| moment.ping_pongs.is_some()) {
            let values = self.rate(|r| r.ping_pongs.unwrap_or(0) as f64);
            moved.insert(moved.len() - 1, line("ping-pong", "d", values));
        }
        let traffic = [line(
            "traffic between tiers",
            "a",
            self.rate(|r| r.moved.unwrap_or_default().as_f64()),
        )];
        let cpu = |of: fn(&AttachReport) -> Nanos| self.rate(move |r| seconds(of(r)));
        let cost = [
            line("sampling", "b", cpu(|r| r.sampling)),
            line("planning, moving, showing", "a", cpu(|r| r.own_cpu)),
        ];
        let bytes = |n: f64| format!("{}/s", Bytes(n as u64));
        format!(
            "<h2>What happened when</h2>\n<h3>Pages moved a second</h3>\n{}<h3>Traffic</h3>\n{}\
             <h3>Our share of one processor</h3>\n{}",
            self.lines("Pages moved a second", &|n| format!("{}/s", count(n as u64)), &moved),
            self.lines("Traffic", &bytes, &traffic),
            self.lines("Our share of one processor", &percent, &cost),
        )
    }
}

fn tier_table(report: &AttachReport) -> String {
    let share = |share: Option<f64>| share.map_or("–".to_owned(), percent);
    let rows = report.tiers.iter().zip(CLASSES.iter().cycle()).map(|(tier, class)| {
        vec![
            format!("\0{class}\0{}", tier.memory),
            tier.capacity.map_or("–".to_owned(), |capacity| capacity.to_string()),
            tier.at_begin.to_string(),
            tier.now.to_string(),
            share(tier.all_accesses),
            share(tier.recent_accesses),
        ]
    });
    let head = ["tier", "capacity", "at begin", "now", "accesses", "lately"];
    format!("<h2>Tiers</h2>\n{}", table(&head, rows))
}

fn regions(report: &AttachReport) -> String {
    if report.regions.is_empty() {
        return String::new();
    }
    let rows = report.regions.iter().take(LISTED_REGIONS).map(|region| {
        let held: Vec<_> = region.held.iter().map(ToString::to_string).collect();
        vec![
            format!("{:x}-{:x}", region.start, region.end),
            region.process.to_string(),
            region.page_size_name().to_owned(),
            held.join(" + "),
            count(region.accesses),
        ]
    });
    let head = ["addresses", "process", "pages", "in tiers", "accesses lately"];
    let mut text = format!("<h2>Regions</h2>\n{}", table(&head, rows));
    let more = report.regions.len().saturating_sub(LISTED_REGIONS);
    if more > 0 {
        let _ = writeln!(text, "<p class=\"sub\">and {more} more</p>");
    }
    text
}

/// A figure in words, where there is one.
fn or_unknown(words: Option<String>) -> String {
    words.unwrap_or_else(|| "unknown".to_owned())
}

fn swap_stall(report: &AttachReport) -> Option<Nanos> {
    report.slowdown.as_ref().and_then(|estimate| estimate.swap_stall)
}

/// What only the kernel engine tells.
fn of_kernel(report: &KernelReport) -> Vec<Vec<String>> {
    let stats = &report.stats;
    let mut rows = vec![
        vec!["swap".to_owned(), report.swap.what.clone()],
        vec!["resident at most".to_owned(), stats.resident_peak.to_string()],
        vec!["above the budget at most".to_owned(), percent(report.exceeded())],
        vec!["thrashing".to_owned(), stats.thrashing.to_string()],
        vec!["asked of the kernel".to_owned(), stats.reclaimed.to_string()],
        vec!["asked for ahead of walks".to_owned(), stats.ahead.to_string()],
        vec![
            "slowed down above the budget".to_owned(),
            format!("{} times, {} in all", count(stats.braked), stats.braked_time),
        ],
    ];
    if let Some(direct) = report.reclaimed_by_itself {
        rows.push(vec!["put out by the programs' own threads".to_owned(), direct.to_string()]);
    }
    if let Some(held) = report.stored() {
        let estimated = if report.store_of_all.is_some() { ", estimated" } else { "" };
        let (original, memory, peak) = (held.original, held.memory, held.peak);
        let what = format!("{original} in {memory}, {peak} at most{estimated}");
        rows.push(vec!["the compressed store".to_owned(), what]);
    }
    if let Some(all) = report.store_of_all {
        let what = format!("{} in {}", all.original, all.memory);
        rows.push(vec!["the same with what others have there".to_owned(), what]);
    }
    rows.extend(report.lacks.iter().map(|lack| vec!["lacking".to_owned(), lack.clone()]));
    rows
}

fn facts(story: &AttachStory, report: &AttachReport) -> String {
    let mut rows = vec![
        vec!["machine".to_owned(), story.machine.clone()],
        vec!["processes".to_owned(), report.processes.len().to_string()],
        vec![
            "traffic at most".to_owned(),
            report.limit.map_or("not bounded".to_owned(), |limit| limit.to_string()),
        ],
        vec!["time in calls that move pages".to_owned(), report.moving.to_string()],
        vec![
            "waited for swap, estimated".to_owned(),
            swap_stall(report).map_or("unknown".to_owned(), |time| time.to_string()),
        ],
        vec!["moved by others".to_owned(), or_unknown(report.moved_by_others.map(count))],
        vec!["samples".to_owned(), count(report.samples)],
        vec!["the policy's memory".to_owned(), report.policy_bytes.to_string()],
        vec!["sampling at most".to_owned(), percent(report.sampling_cap)],
        vec!["samplers chosen because".to_owned(), report.sampler_reason.clone()],
    ];
    if let Some(why) = &report.no_kill_switch {
        rows.push(vec!["no kill switch".to_owned(), why.clone()]);
    }
    for sampler in &report.samplers {
        let lost = count(sampler.lost);
        let what = format!("{} samples, lost {lost}", count(sampler.samples));
        rows.push(vec![format!("sampler {}", sampler.name), what]);
    }
    if let Some(kernel) = &report.kernel {
        rows.extend(of_kernel(kernel));
    }
    for (reason, number) in &report.aborted {
        rows.push(vec![format!("not carried out: {reason}"), count(*number)]);
    }
    format!("<h2>Facts</h2>\n{}", table(&["", ""], rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::tests::report;

    fn story(moments: u64) -> AttachStory {
        let mut story = AttachStory::new("attach", "redis<", "a machine".to_owned());
        (1..=moments).for_each(|n| story.moment(report(n)));
        story
    }

    #[test]
    fn the_page_needs_nothing_else_and_has_every_section() {
        let page = attach_page(&story(30), &report(31));

        for outside in ["http:", "https:", "<script", "<link", "@import", "src=", "redis<"] {
            assert!(!page.contains(outside), "the page contains {outside}");
        }
        for title in ["Residency over time", "Where and when", "What happened when", "Decisions"] {
            assert!(page.contains(title), "no {title}");
        }
        assert_eq!(page.matches("data:image/png;base64,").count(), 2);
        assert!(page.contains("<b>310</b><span>promotions</span>"), "{page}");
        // Half of the accesses at 100 ns, half at 300.
        assert!(page.contains("<b>2.00 x</b><span>slowdown at most, estimated"), "{page}");
        assert!(page.contains("waited for swap, estimated"), "{page}");
    }

    #[test]
    fn a_long_story_is_thinned_out_and_a_short_one_has_no_pictures() {
        let long = story(5_000);
        assert!(long.moments.len() < 1_000, "{} moments", long.moments.len());
        assert_eq!(long.moments.last().map(|m| m.promotions), Some(50_000));

        let short = attach_page(&story(0), &report(1));
        assert!(!short.contains("Where and when") && short.contains("Facts"), "{short}");
    }

    #[test]
    fn a_region_that_grows_downwards_keeps_its_place_in_the_map() {
        let mut story = story(0);
        let mut first = report(1);
        story.moment(first.clone());
        // The same pages, and a window in front of them.
        let region = &mut first.regions[0];
        region.start -= 64 << 20;
        region.fastest = [None; 32];
        region.fastest[16] = Some(100);
        first.elapsed = Nanos::seconds(2);
        story.moment(first.clone());
        let pictures = Pictures::new(&story, &first);

        let regions = pictures.regions();
        let grid =
            pictures.grid(&regions, |region, part| f64::from(region.fastest[part].unwrap_or(0)));

        assert_eq!(regions, [(42, first.regions[0].start, first.regions[0].end)]);
        // What is bright at first and at last is the same row: the middle.
        let middle = grid.rows / 2 * grid.columns;
        assert_eq!((grid.cells[middle], grid.cells[middle + grid.columns - 1]), (255, 255));
        assert_eq!(grid.cells[0], 0);
    }
}
