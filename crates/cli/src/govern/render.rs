//! The report as people read it.

use terrace_core::{Bytes, PageSize};
use terrace_kernel::govern::beside::Beside;
use terrace_report::End;
use terrace_report::govern::GovernReport;

use crate::output::{count, facts, percent, table};

pub(super) fn render(report: &GovernReport) -> String {
    let done = &report.done;
    let ended = match report.end {
        None => format!("was {} for {}", did(report), done.elapsed),
        Some(End::Exited(0)) => format!("ended well after {}", done.elapsed),
        Some(End::Exited(code)) => format!("ended with {code} after {}", done.elapsed),
        Some(End::Killed(signal)) => {
            format!("was killed by signal {signal} after {}", done.elapsed)
        }
    };
    let mut rows = vec![(
        "resident",
        if done.resident_begin.is_zero() {
            format!("{} now, {} at most", done.resident, done.resident_peak)
        } else {
            format!(
                "{} now, {} at the beginning, {} at most",
                done.resident, done.resident_begin, done.resident_peak
            )
        },
    )];
    let share = done.saved_share().map_or(String::new(), |s| format!(", {} of all", percent(s)));
    rows.push(("out", format!("{} in swap{share}; {} of late", done.swapped, done.swapped_lately)));
    if !done.beside.all().is_zero() {
        rows.push(("beside", beside(&done.beside)));
    }
    // A device has the header of a swap area in it.
    let header = PageSize::Base.bytes();
    if let Some(held) = report.store.filter(|held| held.original > header) {
        rows.push(("store", format!("{} in {}, of all groups", held.original, held.memory)));
    }
    if let (Some(mean), Some(peak), Some(source)) = (done.slowdown, done.slowdown_peak, done.source)
    {
        let source = match source {
            terrace_kernel::govern::slowdown::Source::Pressure => "the kernel's stall times",
            terrace_kernel::govern::slowdown::Source::Refaults => "pages that came back",
        };
        rows.push((
            "slowdown",
            format!(
                "{} ({} is allowed), {} in the worst second; by {source}",
                percent(mean),
                percent(report.target),
                percent(peak)
            ),
        ));
        rows.push((
            "refaults",
            format!(
                "{}; {} of {} seconds above the target",
                count(done.refaults),
                count(done.above),
                count(done.intervals)
            ),
        ));
    }
    if report.enforced {
        let less = match done.found_less {
            0 => String::new(),
            times => format!("; {} times less was found", count(times)),
        };
        rows.push(("asked", format!("{} of the kernel{less}", done.asked)));
        let leaves = match done.age {
            Some(age) => format!("what was not touched for {age}"),
            None => "what the kernel chooses".to_owned(),
        };
        rows.push(("leaves", leaves));
    }
    if let Some(recommended) = report.recommended() {
        let by = if report.enforced { "what is left" } else { "the forecast" };
        rows.push((
            "recommended",
            format!("{recommended} of DRAM, files' pages beside it, by {by}"),
        ));
    }
    if let Some(error) = report.error() {
        let sign = if error < 0.0 { "less" } else { "more" };
        rows.push((
            "forecast",
            format!("{} {sign} is out than was forecast at the target", percent(error.abs())),
        ));
    }
    rows.push(("terrace", format!("{} of processor time", report.own_cpu)));
    for lack in &report.lacks {
        rows.push(("lacking", lack.clone()));
    }
    let mut text = format!("terrace: {} {ended}\n{}", report.group, facts("  ", &rows));
    if !report.forecasts.is_empty() {
        let curves = match report.curves {
            0 => "the beginning of one".to_owned(),
            n => count(n as u64),
        };
        text += &format!("\nforecast, from {curves} measured (least, median, most):\n");
        let rows: Vec<_> = report
            .forecasts
            .iter()
            .map(|f| {
                [
                    percent(f.slowdown),
                    f.least.to_string(),
                    f.middle.to_string(),
                    f.most.to_string(),
                    f.left.to_string(),
                ]
            })
            .collect();
        text += &table(["slowdown", "out", "", "", "left"], &rows);
    }
    if report.idle.iter().any(|idle| idle.memory > Bytes::ZERO) {
        text += "\nnot touched for\n";
        let rows: Vec<_> = report
            .idle
            .iter()
            .map(|idle| [idle.time.to_string(), idle.memory.to_string()])
            .collect();
        text += &table(["time", "memory"], &rows);
    }
    text
}

/// What the group has that is in neither sum.
fn beside(of: &Beside) -> String {
    let kinds = [
        (of.files, "of files"),
        (of.kernel, "the kernel's own for it"),
        (of.unmapped, "read ahead or on its way out"),
        (of.rest, "charged ahead"),
    ];
    let kinds: Vec<_> = kinds
        .into_iter()
        .filter(|(bytes, _)| !bytes.is_zero())
        .map(|(bytes, kind)| format!("{bytes} {kind}"))
        .collect();
    format!("{} of the group are neither: {}", of.all(), kinds.join(", "))
}

fn did(report: &GovernReport) -> &'static str {
    if report.enforced { "governed" } else { "observed" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_neither_sum_is_named_by_its_kinds() {
        let (files, kernel) = (Bytes::mib(1), Bytes::kib(512));
        let of = Beside { files, kernel, ..Beside::default() };
        assert_eq!(
            beside(&of),
            "1.50 MiB of the group are neither: 1.00 MiB of files, 512 KiB the kernel's own for it"
        );
    }
}
