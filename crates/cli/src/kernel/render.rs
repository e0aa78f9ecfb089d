//! The report as people read it.

use terrace_core::{Bytes, Cycles, Nanos};
use terrace_kernel::division::Divided;
use terrace_report::kernel::KernelReport;
use terrace_report::{End, share};

use crate::output::{count, counted, facts, percent};

/// The report as people read it.
pub(crate) fn render(report: &KernelReport) -> String {
    let name = report.program.first().map_or("", String::as_str);
    let name = name.rsplit('/').next().unwrap_or(name);
    let stats = &report.stats;
    let ended = ended(report.end, report.elapsed);
    let held = if report.keeps_budget() {
        "held".to_owned()
    } else if stats.settled {
        format!("exceeded by {}", percent(report.exceeded()))
    } else {
        "not reached yet".to_owned()
    };
    let level = &report.run_level;
    let has = if report.holds_store {
        format!(
            "{} resident and compressed at most, {} now, of which {} are resident",
            level.resident_peak, level.resident, stats.resident
        )
    } else {
        format!("{} resident at most, {} now", stats.resident_peak, stats.resident)
    };
    let chooser = match report.chooser.as_str() {
        "kernel" => "the kernel's lists choose what leaves".to_owned(),
        policy => format!("{policy} chooses what leaves, {} of its own", report.policy_bytes),
    };
    let mut rows = vec![
        (
            "budget",
            format!(
                "{}{}{}, {held}: {has}",
                report.budget,
                if report.holds_store { " with the store" } else { "" },
                if report.division.is_some() { " with files" } else { "" },
            ),
        ),
        ("swap", report.swap.what.clone()),
    ];
    if !stats.kernel_beside_peak.is_zero() {
        let most = stats.kernel_beside_peak;
        rows.push((
            "kernel",
            format!(
                "{most} of its own beside the budget at most, for threads and page tables: \
                 that cannot leave"
            ),
        ));
    }
    if let Some(divided) = &report.division {
        rows.extend(division(divided));
    }
    if let Some(held) = report.store {
        let ratio = report.ratio().map_or(String::new(), |ratio| format!(" at {ratio:.2} : 1"));
        rows.push((
            "store",
            format!("{} in {}{ratio}; {} at most", held.original, held.memory, held.peak),
        ));
    }
    if report.swap.recompresses {
        rows.push(("recompressed", "idle pages are, by zstd, where that pays".to_owned()));
    }
    if let Some(backed) = report.backed {
        rows.push((
            "file",
            format!("{} in it; {} written, {} read", backed.held, backed.written, backed.read),
        ));
    }
    if let Some(swapped) = report.swapped {
        rows.push(("out", format!("{swapped} of the program lie in swap")));
    }
    let lost = match report.faults_lost {
        0 => String::new(),
        lost => format!(", {} more were not told", count(lost)),
    };
    rows.push(("faults", format!("{}{lost}", count(stats.faults))));
    if !stats.thrashing.is_zero() {
        let time = share::of_processes(stats.thrashing, report.elapsed, false);
        rows.push((
            "thrashing",
            format!("{time}: what left came back at once; the budget is too small"),
        ));
    }
    rows.push(("room", format!("{} asked of the kernel; {chooser}", stats.reclaimed)));
    if let Some(direct) = report.reclaimed_by_itself {
        let times = match stats.direct {
            0 => String::new(),
            times => format!(", {} times", count(times)),
        };
        let lost = match report.direct_lost {
            0 => String::new(),
            lost => format!(", {} more were not told", count(lost)),
        };
        rows.push((
            "by itself",
            format!("the program had to put {direct} out to go on{times}{lost}"),
        ));
    }
    if report.chooser != "kernel" {
        let kinds: Vec<_> = report.observing.kinds.iter().map(|kind| kind.name()).collect();
        let by = if kinds.is_empty() { "nothing".to_owned() } else { kinds.join(" and ") };
        rows.push((
            "observing",
            format!(
                "refaults, and {by}: {}; {} samples",
                report.observing.reason,
                count(stats.samples)
            ),
        ));
        if stats.cold_parts > 0 {
            rows.push((
                "cold",
                format!("{} parts of 2 MiB left as a whole", count(stats.cold_parts)),
            ));
        }
        rows.push((
            "put out",
            format!("{}, {} stayed", counted(stats.put_out, "page", "pages"), count(stats.stayed)),
        ));
    }
    if !(stats.ahead + stats.ahead_refused).is_zero() {
        let refused = match stats.ahead_refused {
            Bytes::ZERO => String::new(),
            refused => format!(", {refused} not, as that would not pay"),
        };
        rows.push(("ahead", format!("{} asked for ahead of walks{refused}", stats.ahead)));
    }
    if stats.braked > 0 {
        rows.push((
            "slowed down",
            format!(
                "{} times, {} in all, above the budget",
                count(stats.braked),
                stats.braked_time
            ),
        ));
    }
    rows.push((
        "terrace",
        format!(
            "{}; {} observing",
            share::processors(stats.own_cpu, report.elapsed),
            stats.observing_cpu
        ),
    ));
    for lack in &report.lacks {
        rows.push(("lacking", lack.clone()));
    }
    format!("terrace: {name} {ended}\n{}", facts("  ", &rows))
}

/// How the budget is divided, in rows.
pub(crate) fn division(divided: &Divided) -> Vec<(&'static str, String)> {
    let Divided { files, program, share, to_files, to_program, .. } = divided;
    let mut rows = vec![(
        "files",
        format!(
            "{files} of the budget, the program {program}; {share} are for files when it is full"
        ),
    )];
    if let Some((of_files, of_program)) = divided.averts {
        rows.push((
            "division",
            format!(
                "a MiB more for files would avert {} a second, for the program {}",
                Cycles::from_f64(of_files),
                Cycles::from_f64(of_program)
            ),
        ));
    }
    rows.push((
        "moved",
        format!(
            "{} to files in {} steps, {} to the program in {}",
            to_files.1,
            count(to_files.0),
            to_program.1,
            count(to_program.0)
        ),
    ));
    let how = if divided.file_page_measured { "measured" } else { "assumed" };
    rows.push((
        "came back",
        format!(
            "{} pages of files, at {} each ({how}); {} of the program",
            count(divided.files_came_back),
            divided.file_page,
            count(divided.program_came_back)
        ),
    ));
    if divided.files_unread > 0 {
        let files = count(divided.files_unread);
        rows.push((
            "not known",
            format!(
                "what has left of {files} files or mappings: they cannot be opened, lie on a \
                 network, or are too many"
            ),
        ));
    }
    rows
}

/// How a program ended, or that it runs.
pub(super) fn ended(end: Option<End>, elapsed: Nanos) -> String {
    match end {
        None => format!("has run for {elapsed}"),
        Some(End::Exited(0)) => format!("ended well after {elapsed}"),
        Some(End::Exited(code)) => format!("ended with {code} after {elapsed}"),
        Some(End::Killed(signal)) => format!("was killed by signal {signal} after {elapsed}"),
    }
}
