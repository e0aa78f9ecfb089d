//! The report of an attachment as people read it.

use std::fmt::Write as _;

use terrace_core::Bytes;
use terrace_report::{AttachReport, InPlaceSlowdown, share};

use crate::output::{count, counted, facts, percent, table};
use crate::run::render::{accounts, advice, advised, checks, deciding, more, net_loss, section};

/// Regions that the report shows; JSON has them all.
const TOP_REGIONS: usize = 8;

/// Where no memory was seen.
const NOTHING_SEEN: &str = "no mapping was large enough while its memory was looked at: it may have \
                            ended between two looks";

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
    section(&mut text, &checks(&report.accounts));
    section(&mut text, &advised(&report.economist, &report.accounts));
    section(&mut text, &region_table(report));
    text
}

fn summary(report: &AttachReport) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    if report.regions.is_empty() && report.tiers.iter().all(|tier| tier.at_begin == Bytes::ZERO) {
        rows.push(("nothing seen", NOTHING_SEEN.to_owned()));
    }
    rows.extend([
        ("promotions", count(report.promotions)),
        (
            "demotions",
            match (report.demotions, report.ping_pongs) {
                (Some(demotions), Some(times)) => {
                    format!("{}, {} ping-pongs", count(demotions), count(times))
                }
                (Some(demotions), None) => count(demotions),
                (None, _) => "unknown".to_owned(),
            },
        ),
        ("traffic", traffic(report)),
    ]);
    if report.refaults > 0 {
        rows.push((
            "came back",
            format!("{} from swap", counted(report.refaults, "page", "pages")),
        ));
    }
    if let Some(moved) = report.moved_by_others.filter(|moved| *moved > 0) {
        rows.push(("moved by others", counted(moved, "page", "pages")));
    }
    if !report.aborted.is_empty() {
        let reasons: Vec<_> = report
            .aborted
            .iter()
            .map(|(reason, number)| format!("{} {reason}", count(*number)))
            .collect();
        rows.push(("not carried out", reasons.join(", ")));
    }
    if let Some(estimate) = &report.slowdown {
        rows.push(("slowdown", slowdown(estimate, report)));
        if report.refaults > 0 {
            let stall = estimate.swap_stall.map(|time| {
                let all = share::of_threads(time, report.elapsed, 1.0);
                format!("{all}, estimated: {} a page", time / report.refaults)
            });
            rows.push(("waited for swap", stall.unwrap_or_else(|| "unknown".to_owned())));
        }
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
            "{}, {} at most",
            share::processors(report.sampling, report.elapsed),
            percent(report.sampling_cap)
        ),
    ));
    rows.push(("our processors", share::processors(report.own_cpu, report.elapsed)));
    let decisions: u64 = report.accounts.iter().map(|line| line.proposed).sum();
    let decisions = counted(decisions, "decision", "decisions");
    let took = deciding(report.deciding);
    rows.push(("economist", format!("{}, {decisions}{took}", report.economist)));
    rows.extend(advice(&report.economist, &report.accounts));
    rows.extend(net_loss(report.balance, report.elapsed));
    if let Some(why) = &report.no_kill_switch {
        rows.push(("no kill switch", format!("{why}: what loses cannot be told")));
    }
    rows
}

/// The bound with what it rests on. [`terrace_report::in_place`] says how.
fn slowdown(estimate: &InPlaceSlowdown, report: &AttachReport) -> String {
    let (Some(at_most), Some(ratio)) = (estimate.at_most, estimate.latency_ratio) else {
        let why = estimate.unknown.as_deref().unwrap_or("nothing is known");
        return format!("unknown: {why}");
    };
    let fastest = report.tiers.first().map_or("the fastest tier", |tier| &tier.memory);
    let from = if estimate.assumed { ", as distances suggest" } else { "" };
    format!(
        "at most {at_most:.2} x, estimated: observed accesses took {ratio:.2} times as long as in \
         {fastest}{from}"
    )
}

fn traffic(report: &AttachReport) -> String {
    let threads = match report.movers {
        0 | 1 => String::new(),
        n => format!(" by up to {n} threads"),
    };
    let bound = report.limit.map_or(String::new(), |limit| format!(", at most {limit}"));
    let moved = report.moved.map_or("unknown".to_owned(), |moved| moved.to_string());
    format!("{moved} in {}{threads}{bound}", report.moving)
}

fn tier_table(report: &AttachReport) -> String {
    let share = |share: Option<f64>| share.map_or("-".to_owned(), percent);
    let rows: Vec<_> = report
        .tiers
        .iter()
        .map(|tier| {
            [
                tier.title(),
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
                region.page_size_name().to_owned(),
                held.join(" + "),
            ]
        })
        .collect();
    table(["regions", "process", "pages", "in tiers"], &rows)
        + &more(report.regions.len(), rows.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrace_core::{Bytes, BytesPerSecond, Cycles, Nanos};
    use terrace_economics::Balance;
    use terrace_live::attach::LatencyFrom;
    use terrace_report::attach::TierLine;

    use super::*;

    fn tier(memory: &str, latency: u64, share: Option<f64>) -> TierLine {
        TierLine {
            memory: memory.to_owned(),
            node: None,
            capacity: None,
            at_begin: Bytes::ZERO,
            now: Bytes::ZERO,
            recent_accesses: share,
            all_accesses: share,
            latency: Some(Nanos(latency)),
            latency_from: Some(LatencyFrom::Distance),
        }
    }

    fn report(tiers: Vec<TierLine>, refaults: u64) -> AttachReport {
        let elapsed = Nanos::seconds(10);
        AttachReport {
            processes: Vec::new(),
            elapsed,
            dry_run: false,
            promotions: 0,
            demotions: Some(0),
            ping_pongs: Some(0),
            moved_by_others: Some(0),
            refaults,
            slowdown: Some(InPlaceSlowdown::estimate(elapsed, &tiers, refaults)),
            tiers,
            moved: Some(Bytes::ZERO),
            limit: Some(BytesPerSecond(1e9)),
            moving: Nanos::ZERO,
            movers: 1,
            aborted: BTreeMap::new(),
            own_cpu: Nanos::ZERO,
            policy: "hemem".into(),
            samples: 10,
            policy_bytes: Bytes::ZERO,
            samplers: Vec::new(),
            sampler_reason: "as asked for".into(),
            sampling: Nanos::ZERO,
            sampling_cap: 0.03,
            economist: "enforce".into(),
            no_kill_switch: None,
            accounts: Vec::new(),
            deciding: Cycles::ZERO,
            balance: Balance::default(),
            regions: Vec::new(),
            kernel: None,
        }
    }

    /// A line of the report without the spaces that align it.
    fn line(report: &AttachReport, name: &str) -> String {
        let text = render(report);
        let line = text.lines().map(str::trim).find(|line| line.starts_with(name));
        line.unwrap_or_default()[name.len()..].trim().to_owned()
    }

    /// Who reads it sees that it is a bound, an estimate, and what it rests on.
    #[test]
    fn the_slowdown_is_told_with_how_it_was_estimated() {
        let mut swap = tier("swap", 5_000, None);
        swap.latency_from = Some(LatencyFrom::Zram);
        let nodes = vec![tier("numa:0", 100, Some(0.9)), tier("numa:1", 200, Some(0.1)), swap];

        let known = report(nodes, 200_000);

        // A tenth of the accesses takes twice as long; 1 s of 10 went into swap.
        let expected = "at most 1.22 x, estimated: observed accesses took 1.10 times as long as in \
                        numa:0, as distances suggest";
        assert_eq!(line(&known, "slowdown"), expected);
        let expected = "1.00 s, 10.0 % of the run, estimated: 5.00 µs a page";
        assert_eq!(line(&known, "waited for swap"), expected);
    }

    /// A reader who sees a class of action lose has to know why nothing is done about it.
    #[test]
    fn that_nothing_is_stopped_is_told_with_the_reason() {
        let mut report = report(Vec::new(), 0);
        assert!(!render(&report).contains("no kill switch"));
        report.no_kill_switch = Some("damon tells that a page is in use, and not how much".into());
        let told = line(&report, "no kill switch");
        assert!(told.starts_with("damon tells") && told.ends_with("cannot be told"), "{told}");
    }

    #[test]
    fn a_slowdown_that_nobody_knows_is_called_unknown() {
        let nodes = vec![tier("numa:0", 100, None), tier("numa:1", 200, None)];

        let unknown = report(nodes, 3);

        assert_eq!(line(&unknown, "slowdown"), "unknown: no access was observed");
        assert_eq!(line(&unknown, "waited for swap"), "unknown");
    }
}
