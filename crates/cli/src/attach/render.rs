//! The report of an attachment as people read it.

use std::fmt::Write as _;

use terrace_report::AttachReport;

use crate::output::{count, facts, percent, table};
use crate::run::render::{accounts, section};

/// Regions that the report shows; JSON has them all.
const TOP_REGIONS: usize = 8;

/// The report as people read it.
pub(crate) fn render(report: &AttachReport) -> String {
    let whom = report.whom();
    let dry = if report.dry_run { ", moving nothing" } else { "" };
    let mut text = format!("terrace: attached to {whom} for {}{dry}\n", report.elapsed);
    text.push_str(&body(report));
    text
}

/// All of it below the first line.
pub(crate) fn body(report: &AttachReport) -> String {
    let mut text = String::new();
    section(&mut text, &tier_table(report));
    text.push('\n');
    text.push_str(&facts("  ", &summary(report)));
    section(&mut text, &accounts(&report.accounts));
    section(&mut text, &region_table(report));
    text
}

fn summary(report: &AttachReport) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("promotions", count(report.promotions)),
        (
            "demotions",
            format!("{}, {} ping-pongs", count(report.demotions), count(report.ping_pongs)),
        ),
        ("traffic", traffic(report)),
    ];
    if report.refaults > 0 {
        rows.push(("came back", format!("{} pages from swap", count(report.refaults))));
    }
    if report.moved_by_others > 0 {
        rows.push(("moved by others", format!("{} pages", count(report.moved_by_others))));
    }
    if !report.aborted.is_empty() {
        let reasons: Vec<_> = report
            .aborted
            .iter()
            .map(|(reason, number)| format!("{} {reason}", count(*number)))
            .collect();
        rows.push(("not carried out", reasons.join(", ")));
    }
    rows.push((
        "policy",
        format!(
            "{}, {} samples, {} of its own",
            report.policy,
            count(report.samples),
            report.policy_bytes
        ),
    ));
    for sampler in &report.samplers {
        let mut line = format!("{}, {} samples", sampler.name, count(sampler.samples));
        if sampler.lost > 0 {
            let _ = write!(line, " ({} lost)", count(sampler.lost));
        }
        if sampler.throttled > 0 {
            let _ = write!(line, ", throttled {} times", count(sampler.throttled));
        }
        rows.push(("sampler", line));
    }
    rows.push(("chosen because", report.sampler_reason.clone()));
    rows.push((
        "sampling",
        format!(
            "{}, {} of one processor, {} at most",
            report.sampling,
            percent(report.share(report.sampling)),
            percent(report.sampling_cap)
        ),
    ));
    rows.push((
        "our processors",
        format!("{}, {} of the time", report.own_cpu, percent(report.share(report.own_cpu))),
    ));
    let decisions: u64 = report.accounts.iter().map(|line| line.proposed).sum();
    rows.push(("economist", format!("{}, {} decisions", report.economist, count(decisions))));
    rows
}

fn traffic(report: &AttachReport) -> String {
    let threads = match report.movers {
        0 | 1 => String::new(),
        n => format!(" by up to {n} threads"),
    };
    format!("{} in {}{threads}, at most {}", report.moved, report.moving, report.limit)
}

fn tier_table(report: &AttachReport) -> String {
    let share = |share: Option<f64>| share.map_or("-".to_owned(), percent);
    let rows: Vec<_> = report
        .tiers
        .iter()
        .map(|tier| {
            [
                tier.memory.clone(),
                tier.capacity.map_or("-".to_owned(), |capacity| capacity.to_string()),
                tier.at_begin.to_string(),
                tier.now.to_string(),
                share(tier.all_accesses),
                share(tier.recent_accesses),
            ]
        })
        .collect();
    table(["tiers", "capacity", "at begin", "now", "accesses", "lately"], &rows)
}

fn region_table(report: &AttachReport) -> String {
    if report.regions.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = report
        .regions
        .iter()
        .take(TOP_REGIONS)
        .map(|region| {
            let held: Vec<_> = region.held.iter().map(ToString::to_string).collect();
            [
                format!("{:x}-{:x}", region.start, region.end),
                region.process.to_string(),
                region.page_size.clone(),
                held.join(" + "),
            ]
        })
        .collect();
    let more = report.regions.len().saturating_sub(TOP_REGIONS);
    let tail = if more > 0 { format!("and {more} more\n") } else { String::new() };
    table(["regions", "process", "pages", "in tiers"], &rows) + &tail
}
