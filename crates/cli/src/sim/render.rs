//! The report of a simulation as people read it.

use std::fmt::Write as _;

use terrace_economics::Mode;
use terrace_report::run::AccountReport;
use terrace_sim::SimReport;
use terrace_sim::analytic::report::ClassAccount;

use crate::output::{count, facts, percent, table};
use crate::run::render::{accounts, advice, advised, checks};

/// Accounts as reports of other worlds have them.
pub(super) fn lines(accounts: &[ClassAccount]) -> Vec<AccountReport> {
    accounts.iter().map(|line| AccountReport::new(line.class, &line.account)).collect()
}

/// The economist's tables, each after an empty line, as far as there is anything in them.
pub(super) fn of_economist(mode: &str, lines: &[AccountReport], text: &mut String) {
    for table in [accounts(lines), checks(lines), advised(mode, lines)] {
        if !table.is_empty() {
            text.push('\n');
            text.push_str(&table);
        }
    }
}

/// The whole report of a run in which the economist was to do this.
pub(crate) fn render(report: &SimReport, economist: Mode) -> String {
    let mut text = format!("{} on {}, policy {}\n", report.workload, report.machine, report.policy);
    let lines = lines(&report.accounts);
    let mut rows = summary(report);
    rows.extend(advice(economist.name(), &lines));
    text.push_str(&facts("  ", &rows));
    let mut section = |lines: &str| {
        text.push('\n');
        for line in lines.lines() {
            let _ = writeln!(text, "  {line}");
        }
    };
    section(&tiers(report));
    for table in [accounts(&lines), checks(&lines), advised(economist.name(), &lines)] {
        if !table.is_empty() {
            section(&table);
        }
    }
    text
}

fn summary(report: &SimReport) -> Vec<(&'static str, String)> {
    let runs = report.runs.len();
    let throughput = if runs > 1 {
        format!("{}, of {runs} runs, spread {}", report.throughput, report.spread)
    } else {
        report.throughput.to_string()
    };
    let measured = &report.migrated_measured;
    let mut rows = vec![
        ("throughput", throughput),
        ("simulated", format!("{}, seed {}", report.time, report.seed)),
        ("cache hits", percent(report.llc_hit_ratio)),
    ];
    if let Some(ratio) = report.memory_mode_hit_ratio {
        rows.push(("memory mode hits", percent(ratio)));
    }
    rows.push((
        "migrated",
        format!(
            "{} promotions, {} demotions, {} exchanges, {} ({} while measured)",
            count(report.migrated.promotions),
            count(report.migrated.demotions),
            count(report.migrated.exchanges),
            report.migrated.moved,
            measured.moved,
        ),
    ));
    if let Some(footprint) = &report.footprint {
        rows.push((
            "policy state",
            format!("{}, {:.1} B a page", footprint.bytes, footprint.bytes_per_page),
        ));
    }
    rows.push(("host speed", format!("{} simulated accesses", report.host_speed)));
    rows
}

fn tiers(report: &SimReport) -> String {
    let rows: Vec<_> = report
        .tiers
        .iter()
        .map(|tier| {
            [
                tier.name.clone(),
                tier.capacity.to_string(),
                count(tier.pages.get()),
                percent(tier.share),
                tier.latency.to_string(),
                tier.bandwidth.to_string(),
                percent(tier.load),
            ]
        })
        .collect();
    table(["tiers", "capacity", "pages", "accesses", "latency", "bandwidth", "load"], &rows)
}
