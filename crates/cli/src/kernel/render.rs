//! The report as people read it.

use terrace_core::{Bytes, Cycles, Nanos};
use terrace_kernel::division::Divided;
use terrace_report::kernel::{AtOnce, KernelReport};
use terrace_report::outside::{OutsideCause, OutsideReport};
use terrace_report::{End, RunLevel, share};

use crate::output::{count, counted, facts, percent};

/// The report as people read it.
pub(crate) fn render(report: &KernelReport) -> String {
    let name = report.program.first().map_or("", String::as_str);
    let name = name.rsplit('/').next().unwrap_or(name);
    let stats = &report.stats;
    let ended = ended(report.end, report.elapsed);
    let chooser = match report.chooser.as_str() {
        "kernel" => "the kernel's lists choose what leaves".to_owned(),
        policy => format!("{policy} chooses what leaves, {} of its own", report.policy_bytes),
    };
    let mut rows = budget(report);
    rows.extend(report.outside.as_ref().map(|all| ("outside", outside(report, all))));
    let peak = report.total_peak.filter(|_| !report.keeps_covered());
    rows.extend(peak.map(|peak| ("at its peak", at_peak(peak, report.budget))));
    rows.push(("swap", report.swap.what.clone()));
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
    if let Some(held) = report.stored() {
        let ratio = report.ratio().map_or(String::new(), |ratio| format!(" at {ratio:.2} : 1"));
        let (about, all) = match report.store_of_all {
            Some(all) => (
                "about ",
                format!(
                    "; {} in {} with what others have there, by whose mean it is estimated",
                    all.original, all.memory
                ),
            ),
            None => ("", String::new()),
        };
        let now = match held.original {
            Bytes::ZERO => "nothing now".to_owned(),
            original => format!("{original} in {about}{}{ratio}", held.memory),
        };
        rows.push(("store", format!("{now}; {} at most{all}", held.peak)));
    }
    if let Some(tables) = report.tables.filter(|_| report.holds_store) {
        rows.push((
            "tables",
            format!("about {tables} of the kernel's for that device, beside the budget"),
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
    rows.extend(report.demotions.map(|pages| ("demotions", demotions(report, pages))));
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

/// Pages that left, and whether that is most of what was asked for.
fn demotions(report: &KernelReport, pages: u64) -> String {
    let stayed = match report.most_stayed() {
        Some(true) => {
            "; most of what was asked for did not leave for swap: it is locked, in use, or files' \
             pages"
        }
        _ => "",
    };
    format!("{} left{stayed}", counted(pages, "page", "pages"))
}

/// What the run may have and has; of a share of a budget, and then what all have that share it.
fn budget(report: &KernelReport) -> Vec<(&'static str, String)> {
    let stats = &report.stats;
    let held = if report.keeps_budget() {
        "held".to_owned()
    } else if report.keeps_covered() {
        "held, but for what lies outside of it".to_owned()
    } else if stats.settled {
        format!("exceeded by {}", percent(report.exceeded()))
    } else {
        "not reached yet".to_owned()
    };
    // What was there before is no contradiction then.
    let (held, before) = match report.peak_before().filter(|_| stats.settled) {
        Some(since) => (format!("{held} from {since} on"), ", before that"),
        None => (held, ""),
    };
    let level = &report.run_level;
    let has = if report.holds_store {
        format!(
            "{} resident and compressed at most{before}; {} now, {} resident and {} compressed",
            level.resident_peak,
            level.resident,
            stats.resident,
            level.resident - stats.resident
        )
    } else {
        let separator = if before.is_empty() { "," } else { ";" };
        format!(
            "{} resident at most{before}{separator} {} now",
            stats.resident_peak, stats.resident
        )
    };
    let whose = match report.budget_of {
        Some(broker) => format!(", the run's share of the budget of {broker} as it was last"),
        None => String::new(),
    };
    let mut rows = vec![(
        "budget",
        format!(
            "{}{}{}{whose}, {held}: {has}",
            report.budget,
            if report.holds_store { " with the store" } else { "" },
            if report.division.is_some() { " with files" } else { "" },
        ),
    )];
    if let Some(broker) = report.budget_of {
        let RunLevel { budget, resident, resident_peak, .. } = report.run_level;
        rows.push((
            "shared",
            format!(
                "{budget} is the budget of {broker}: all that share it, this run among them, have \
                 {resident_peak} resident at most, {resident} now"
            ),
        ));
    }
    rows
}

/// Memory that no budget bounds.
fn outside(report: &KernelReport, all: &OutsideReport) -> String {
    let cause = |part: &OutsideCause| format!("{}, {}", part.cause.words(), part.peak);
    let mut parts: Vec<_> = all.causes.iter().map(cause).collect();
    if let Some(left) = report.left_group.filter(|left| *left > 0) {
        parts.push(format!(
            "{} left in all; what is still charged to the group is not counted",
            counted(left, "process", "processes")
        ));
    }
    let now = if report.end.is_some() { String::new() } else { format!("{} now, ", all.now) };
    format!("{now}{} at most: {}", all.peak, parts.join("; "))
}

/// The parts of a `--total` at its peak, and why they were more than it.
fn at_peak(peak: AtOnce, total: Bytes) -> String {
    let AtOnce { resident, store } = peak;
    let why = if store > total / 4 * 3 {
        "compressed pages took more than three quarters of the total, of which no more is taken off"
    } else {
        "compressed pages came to take more, faster than others left for them"
    };
    format!("{resident} resident and {store} compressed: {why}")
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
    let how = |is_measured| if is_measured { "measured" } else { "assumed" };
    rows.push((
        "came back",
        format!(
            "{} pages of files, at {} each ({}); {} of the program, at {} each ({})",
            count(divided.files_came_back),
            divided.file_page,
            how(divided.file_page_measured),
            count(divided.program_came_back),
            divided.program_page,
            how(divided.program_page_measured)
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

#[cfg(test)]
mod tests {
    use terrace_kernel::setup::zram::Held;

    use super::*;

    /// A report of a run with 48 MiB in a budget of 64 MiB.
    fn report() -> KernelReport {
        let mib = |n: u64| n << 20;
        let level = |budget, resident| {
            serde_json::json!({
                "budget": budget, "resident": resident, "resident_peak": resident,
                "exceeded": 0, "exceeded_peak": 0,
            })
        };
        let report = serde_json::json!({
            "program": ["/bin/redis-server"], "end": null, "elapsed": 3_000_000_000_u64,
            "budget": mib(64), "swap": { "kind": "zram", "what": "zram0", "devices": [0] },
            "store": null, "chooser": "kernel", "policy_bytes": 0, "charged_peak": null,
            "faults_lost": 0, "lacks": [], "settled": true,
            "resident": mib(48), "resident_peak": mib(50), "faults": 0, "reclaimed": 0,
            "short": 0, "put_out": 0, "stayed": 0, "ahead": 0, "braked": 0, "braked_time": 0,
            "passes": 0, "own_cpu": 0, "observing_cpu": 0,
            "run_level": level(mib(64), mib(48)),
        });
        serde_json::from_value(report).unwrap()
    }

    fn rows(report: &KernelReport) -> Vec<String> {
        let text = render(report);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    }

    fn has(report: &KernelReport, row: &str) -> bool {
        rows(report).iter().any(|line| line == row)
    }

    #[test]
    fn a_share_is_told_apart_from_the_budget_that_it_is_of() {
        let own = "budget 64.0 MiB, held: 50.0 MiB resident at most, 48.0 MiB now";
        assert!(has(&report(), own), "{:?}", rows(&report()));
        let mut shares = report();
        shares.budget_of = Some(4711);
        shares.run_level.budget = Bytes::gib(1);
        shares.run_level.resident = Bytes::mib(900);
        shares.run_level.resident_peak = Bytes::mib(950);
        let share = "budget 64.0 MiB, the run's share of the budget of 4711 as it was last, held: \
                     50.0 MiB resident at most, 48.0 MiB now";
        assert!(has(&shares, share), "{:?}", rows(&shares));
        let of_all = "shared 1.00 GiB is the budget of 4711: all that share it, this run among \
                      them, have 950 MiB resident at most, 900 MiB now";
        assert!(has(&shares, of_all), "{:?}", rows(&shares));
    }

    #[test]
    fn what_was_resident_before_the_budget_held_is_told_as_that() {
        let mut taken_over = report();
        taken_over.stats.resident_peak = Bytes::mib(100);
        taken_over.kept_since = Some(Nanos::millis(1_200));
        let budget = "budget 64.0 MiB, held from 1.20 s on: 100 MiB resident at most, before that; 48.0 \
                      MiB now";
        assert!(has(&taken_over, budget), "{:?}", rows(&taken_over));
        taken_over.stats.exceeded = Bytes::mib(16);
        let budget = "budget 64.0 MiB, exceeded by 25.0 % from 1.20 s on: 100 MiB resident at most, \
                      before that; 48.0 MiB now";
        assert!(has(&taken_over, budget), "{:?}", rows(&taken_over));
        taken_over.stats.resident_peak = Bytes::mib(80);
        let budget = "budget 64.0 MiB, exceeded by 25.0 %: 80.0 MiB resident at most, 48.0 MiB now";
        assert!(has(&taken_over, budget), "{:?}", rows(&taken_over));
    }

    #[test]
    fn a_store_in_which_nothing_lies_has_no_size() {
        let mut idle = report();
        let held = |original, memory, peak| Held { original, memory, peak };
        let kib = Bytes::kib;
        idle.store = Some(held(kib(4), kib(20), kib(20)));
        assert!(!rows(&idle).iter().any(|line| line.starts_with("store")), "{:?}", rows(&idle));
        idle.store = Some(held(kib(4), kib(20), Bytes::mib(4)));
        assert!(has(&idle, "store nothing now; 4.00 MiB at most"), "{:?}", rows(&idle));
        idle.store = Some(held(kib(4) + Bytes::mib(4), Bytes::mib(2), Bytes::mib(4)));
        let store = "store 4.00 MiB in 2.00 MiB at 2.00 : 1; 4.00 MiB at most";
        assert!(has(&idle, store), "{:?}", rows(&idle));
    }

    #[test]
    fn what_was_asked_for_and_stayed_is_told_beside_what_left() {
        let mut locked = report();
        let told = |report: &KernelReport| {
            rows(report).into_iter().find(|line| line.starts_with("demotions"))
        };
        assert_eq!(told(&locked), None, "nobody knows");
        locked.demotions = Some(3_660);
        assert_eq!(told(&locked).as_deref(), Some("demotions 3 660 pages left"));
        locked.stats.reclaimed = Bytes::gib(19);
        let stayed = "demotions 3 660 pages left; most of what was asked for did not leave for swap: it \
                      is locked, in use, or files' pages";
        assert_eq!(told(&locked).as_deref(), Some(stayed));
        assert!(has(
            &locked,
            "room 19.0 GiB asked of the kernel; the kernel's lists choose what leaves"
        ));
    }

    #[test]
    fn who_left_the_control_group_is_told_and_the_budget_is_not_said_to_be_held() {
        let mut left = report();
        let (peak, now) = (Bytes::mib(30), Bytes::mib(20));
        let cause = terrace_report::outside::Cause::LeftGroup;
        left.outside = Some(Box::new(OutsideReport {
            now,
            peak,
            with_managed_peak: Bytes::mib(78),
            causes: vec![OutsideCause { cause, now, peak }],
            own_peak: Bytes::ZERO,
        }));
        left.left_group = Some(3);
        let budget = "budget 64.0 MiB, held, but for what lies outside of it: 50.0 MiB resident at \
                      most, 48.0 MiB now";
        assert!(has(&left, budget), "{:?}", rows(&left));
        let outside = "outside 20.0 MiB now, 30.0 MiB at most: processes that have left the control \
                       group, 30.0 MiB; 3 processes left in all; what is still charged to the group is \
                       not counted";
        assert!(has(&left, outside), "{:?}", rows(&left));
    }

    #[test]
    fn what_others_have_in_the_device_is_told_beside_the_run_s_share() {
        let mut shared = report();
        let held = |original, memory| Held {
            original: Bytes::mib(original),
            memory: Bytes::mib(memory),
            peak: Bytes::mib(memory),
        };
        shared.store = Some(held(30, 10));
        assert!(has(&shared, "store 30.0 MiB in 10.0 MiB at 3.00 : 1; 10.0 MiB at most"));
        shared.store_of_all = Some(held(120, 40));
        let row = "store 30.0 MiB in about 10.0 MiB at 3.00 : 1; 10.0 MiB at most; 120 MiB in 40.0 MiB \
                   with what others have there, by whose mean it is estimated";
        assert!(has(&shared, row), "{:?}", rows(&shared));
    }

    #[test]
    fn both_parts_of_a_total_are_its_sum_and_why_it_was_exceeded_is_told() {
        let mut total = report();
        total.holds_store = true;
        total.run_level.resident = Bytes::mib(60);
        total.run_level.resident_peak = Bytes::mib(72);
        total.run_level.exceeded_peak = Bytes::mib(8);
        let peak = |resident, store| {
            Some(AtOnce { resident: Bytes::mib(resident), store: Bytes::mib(store) })
        };
        total.total_peak = peak(56, 16);
        total.tables = Some(Bytes::mib(5));
        let budget = "budget 64.0 MiB with the store, exceeded by 12.5 %: 72.0 MiB resident and \
                      compressed at most; 60.0 MiB now, 48.0 MiB resident and 12.0 MiB compressed";
        assert!(has(&total, budget), "{:?}", rows(&total));
        let why = |total: &KernelReport| {
            let told = rows(total).into_iter().find(|line| line.starts_with("at its peak"));
            told.unwrap_or_default()
        };
        assert!(
            why(&total).contains("56.0 MiB resident and 16.0 MiB compressed: compressed pages")
        );
        total.total_peak = peak(20, 52);
        assert!(why(&total).contains("more than three quarters"), "{}", why(&total));
        let tables = "tables about 5.00 MiB of the kernel's for that device, beside the budget";
        assert!(has(&total, tables), "{:?}", rows(&total));
        total.run_level.exceeded_peak = Bytes::mib(1);
        assert_eq!(why(&total), "", "it was kept");
    }
}
