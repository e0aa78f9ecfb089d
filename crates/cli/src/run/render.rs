//! The report of a run as people read it.

use std::fmt::Write as _;

use terrace_core::{Bytes, Cycles, Nanos};
use terrace_economics::{Balance, Mode};
use terrace_live::broker::share::LEAST;
use terrace_report::outside::{OutsideCause, OutsideReport};
use terrace_report::plain::{PlainProgram, PlainReport};
use terrace_report::run::{
    AccountReport, AdviceReport, CoreDumpReport, Figures, HugeReport, NothingManaged,
    ProcessReport, ProcessState, RunReport,
};
use terrace_report::unread::UnreadProcess;
use terrace_report::{End, Slowdown, share};

use crate::advice::Loss;
use crate::attach;
use crate::output::{count, counted, facts, percent, table};
use crate::records::NOT_RECORDED;

/// Regions that the report shows; JSON has them all.
const TOP_REGIONS: usize = 8;
/// The report shows regions that are gone if one of so many faults was in them; JSON has them all.
const FREED_PART: u64 = 100;
/// Processes that the report shows; JSON has them all.
const TOP_PROCESSES: usize = 12;
/// Programs on plain memory that the report names; JSON has more.
const PLAIN_PROGRAMS: usize = 3;
/// The report names causes for which one of so many parts of what lies outside of the budget does;
/// JSON has all.
const OUTSIDE_PART: u64 = 16;

/// The whole report.
pub(crate) fn render(report: &RunReport) -> String {
    let mut text = format!("terrace: {}\n", headline(report));
    if let Some(why) = &report.unmanaged {
        let _ = writeln!(text, "  not managed: {why}");
        return text;
    }
    if let Some(why) = report.nothing_managed {
        let mut rows = Vec::new();
        if why == NothingManaged::Unknown {
            text.push_str("  what was managed is not known\n");
            rows.extend(unread(report).map(|text| ("not known", text)));
            rows.extend(report.plain.iter().map(|plain| ("not managed", on_plain(plain))));
        } else {
            let _ = writeln!(text, "  nothing was managed: {}", nothing_managed(report, why));
        }
        if let Some(all) = &report.outside {
            let budget = format!("{}, {}", report.budget, outside_of(report, all));
            rows.extend([("budget", budget), ("outside", outside(report, all))]);
        }
        rows.extend(largest_process(report).map(|text| ("largest", text)));
        text.push_str(&facts("  ", &rows));
        return text;
    }
    for process in &report.processes {
        if let Some(failure) = &process.failure {
            let _ = writeln!(
                text,
                "  process {} ({}) went on unmanaged: {failure}",
                process.pid, process.command
            );
        }
    }
    text.push_str(&facts("  ", &summary(report)));
    section(&mut text, &faults(&report.total));
    section(&mut text, &stall(&report.total));
    section(&mut text, &accounts(&report.total.accounts));
    section(&mut text, &checks(&report.total.accounts));
    section(&mut text, &advised(&report.economist, &report.total.accounts));
    section(&mut text, &regions(report));
    section(&mut text, &freed_regions(report));
    if report.processes.len() > 1 {
        section(&mut text, &processes(report));
    }
    if let Some(nodes) = &report.nodes {
        text.push_str("\nterrace: where resident pages lay\n");
        text.push_str(&attach::render::body(nodes));
    }
    text
}

/// Adds a table below what is there.
pub(crate) fn section(text: &mut String, lines: &str) {
    if !lines.is_empty() {
        text.push('\n');
        for line in lines.lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
}

fn headline(report: &RunReport) -> String {
    let program = report.program.first().map_or("", |name| name.rsplit('/').next().unwrap_or(name));
    let how = match report.end {
        None => "has run for".to_owned(),
        Some(End::Exited(0)) => "ended well after".to_owned(),
        Some(End::Exited(status)) => format!("ended with status {status} after"),
        Some(End::Killed(signal)) => format!("was killed by signal {signal} after"),
    };
    format!("{program} {how} {}", report.elapsed)
}

/// What a dump lacks, and the command that completes it.
fn core_dump(dump: &CoreDumpReport) -> String {
    let pages = count(dump.absent + dump.spilled_pages);
    let mut text = format!(
        "{pages} absent pages read as zeros in it; `terrace core FILE --output FULL` puts them in \
         their place"
    );
    if !dump.spilled.is_zero() {
        let _ = write!(
            text,
            ", but not {} of them: these were in the spill file ({}), which is gone",
            count(dump.spilled_pages),
            dump.spilled
        );
    }
    text
}

/// The part that answers the first questions: was the budget kept, and at what price.
fn summary(report: &RunReport) -> Vec<(&'static str, String)> {
    let total = &report.total;
    let mut rows = vec![
        ("budget", budget(report)),
        ("managed", format!("{} now, {} at most", total.mapped, total.mapped_peak)),
        ("promotions", promotions(total)),
        ("demotions", demotions(total)),
        ("store", store(total)),
    ];
    if let Some(plain) = &report.plain {
        rows.insert(2, ("not managed", on_plain(plain)));
    }
    if let Some(all) = &report.outside {
        rows.insert(1, ("outside", outside(report, all)));
    }
    if let Some(text) = unread(report) {
        rows.insert(1, ("not known", text));
    }
    if let Some(text) = largest_process(report) {
        let at = rows.len() - 3;
        rows.insert(at, ("largest", text));
    }
    if let Some(dump) = &report.core_dump {
        rows.insert(0, ("core dump", core_dump(dump)));
    }
    if let Some(text) = huge_pages(total) {
        let at = rows.len() - 2;
        rows.insert(at, ("huge pages", text));
    }
    if !total.store.spill_written.is_zero() || !total.store.spilled.is_zero() {
        let store = &total.store;
        let (written, read) = (store.spill_written, store.spill_read);
        rows.push(("spill file", format!("{} ({written} written, {read} read)", store.spilled)));
    }
    if !total.store.over_limit_peak.is_zero() {
        let (peak, time) = (total.store.over_limit_peak, total.store.over_limit);
        let time = of_processes(report, time, |figures| figures.store.over_limit);
        rows.push(("store limit", format!("exceeded by {peak} at most, for {time}")));
    }
    if !total.thrashing.is_zero() {
        rows.push(("thrashing", thrashing(report)));
    }
    if total.forks_unmanaged > 0 {
        let children = count(total.forks_unmanaged);
        let why = "not made by the C library's fork, went on on plain memory";
        rows.push(("children", format!("{children} {why}")));
    }
    rows.extend([
        ("waited for us", waited(report)),
        ("slowdown", report.slowdown.as_ref().map_or_else(|| "unknown".to_owned(), slowdown)),
        ("our processors", own_processors(report)),
        (
            "policy",
            format!(
                "{}, {} samples{}, {:.1} B a page",
                report.policy,
                count(total.samples),
                lost(total.samples_lost),
                total.policy_bytes_per_page(),
            ),
        ),
        ("sampler", samplers(report)),
        (
            "economist",
            format!(
                "{}, {}{}{}",
                report.economist,
                counted(total.decisions(), "decision", "decisions"),
                deciding(total.deciding),
                unrecorded(report.decisions_lost.unwrap_or(0)),
            ),
        ),
    ]);
    rows.extend(advice(&report.economist, &total.accounts));
    rows.extend(net_loss(total.balance, report.elapsed));
    rows
}

/// Processes whose figures cannot be read, and so are in none of the others.
fn unread(report: &RunReport) -> Option<String> {
    let all = &report.unread_processes;
    let process = |one: &UnreadProcess| format!("process {}: {}", one.pid, one.why.words());
    let mut named: Vec<_> = all.iter().take(PLAIN_PROGRAMS).map(process).collect();
    if all.len() > named.len() {
        named.push(format!("{} others", count((all.len() - named.len()) as u64)));
    }
    (!named.is_empty()).then(|| named.join("; "))
}

/// Why nothing was managed, with what there was instead.
fn nothing_managed(report: &RunReport, why: NothingManaged) -> String {
    let most = report.shared.map_or(Bytes::ZERO, |shared| shared.resident_peak);
    match (why, &report.plain) {
        (NothingManaged::OtherProcesses, Some(plain)) => {
            format!("on plain memory {}", on_plain(plain))
        }
        (NothingManaged::Outside, _) => {
            "what could be managed fits into the budget; other memory does not count".to_owned()
        }
        // A single process is looked at seldom: what was there for a moment may have been missed.
        _ if most.is_zero() => format!(
            "all that was mapped fits into the budget; no process was seen to map as much as {LEAST}"
        ),
        _ => format!("all that was mapped fits into the budget, {most} of {}", report.budget),
    }
}

/// Whether a budget would have been enough for what lies outside of it, too.
fn outside_of(report: &RunReport, outside: &OutsideReport) -> String {
    let peak = outside.peak;
    if report.budget_kept {
        format!("kept: {peak} lie outside of what is managed")
    } else {
        format!("exceeded: {peak} lie outside of it")
    }
}

/// What no budget bounds, the largest parts.
fn outside(report: &RunReport, outside: &OutsideReport) -> String {
    let is_much = |part: &&OutsideCause| part.peak * OUTSIDE_PART >= outside.peak;
    let cause = |part: &OutsideCause| format!("{}, {}", part.cause.words(), part.peak);
    let parts: Vec<_> = outside.causes.iter().filter(is_much).map(cause).collect();
    // Of a program that has ended nothing is left.
    let now = if report.end.is_some() { String::new() } else { format!("{} now, ", outside.now) };
    format!("{now}{} at most: {}", outside.peak, parts.join("; "))
}

/// What the kernel has counted of the largest process, where the other figures do not show it all:
/// what came and went between two looks, Terrace's own books, and files that are mapped.
fn largest_process(report: &RunReport) -> Option<String> {
    let more = report.not_shown()?;
    let own = report.outside.as_ref().map_or(Bytes::ZERO, |outside| outside.own_peak);
    let own = if own.is_zero() { String::new() } else { format!(" ({own} were seen)") };
    let unseen = report.unseen().map_or(String::new(), |unseen| format!(" ({unseen} at most)"));
    Some(format!(
        "one process had {} in RAM at most, by the kernel's count: {more} beyond these figures, for \
         files it maps, Terrace's own{own}, and what was not seen in time{unseen}",
        report.process_peak
    ))
}

/// Who ran without us, and with how much.
fn on_plain(plain: &PlainReport) -> String {
    let program = |program: &PlainProgram| {
        let PlainProgram { command, why, processes, resident_peak } = program;
        let times = if *processes > 1 { format!(" {processes} times") } else { String::new() };
        format!("{command}{times}, {resident_peak} ({why})")
    };
    let mut named: Vec<_> = plain.programs.iter().take(PLAIN_PROGRAMS).map(program).collect();
    if plain.programs.len() > named.len() {
        named.push("others".to_owned());
    }
    format!("{} resident at most: {}", plain.resident_peak, named.join("; "))
}

fn lost(count: u64) -> String {
    if count == 0 { String::new() } else { format!(" ({} lost)", crate::output::count(count)) }
}

/// Decisions that the recording lacks, and what helps.
fn unrecorded(count: u64) -> String {
    if count == 0 {
        return String::new();
    }
    let count = crate::output::count(count);
    format!(" ({count} {NOT_RECORDED})")
}

fn budget(report: &RunReport) -> String {
    let single = report.processes.iter().map(|process| process.figures.resident_peak);
    let shared = report.shared.as_ref();
    let peak = shared.map_or_else(|| single.max().unwrap_or_default(), |all| all.resident_peak);
    let largest = shared.map_or(report.budget, |all| all.budget_peak);
    let whose = match (shared, report.budget_of) {
        (_, Some(run)) => format!(" for all that share run {run}'s"),
        _ if report.processes.len() < 2 => String::new(),
        (Some(_), None) => " for all".to_owned(),
        (None, None) => " each".to_owned(),
    };
    let verdict = if report.budget_kept {
        "kept".to_owned()
    } else if report.budget_kept_managed {
        "kept by what is managed".to_owned()
    } else {
        format!("exceeded by {}", percent(peak / largest - 1.0))
    };
    let beside = report
        .outside
        .as_ref()
        .map_or(String::new(), |outside| format!("; {} more lie outside of it", outside.peak));
    let held = if report.budget_holds_store { "resident and compressed" } else { "resident" };
    let mut text = format!("{}{whose}, {verdict}: {peak} {held} at most", report.budget);
    if let Some(all) = shared {
        if all.processes > 1 {
            let _ = write!(text, " in {} processes at once", all.processes);
        }
        if all.changes > 0 {
            let times = match all.changes {
                1 => "once".to_owned(),
                n => format!("{n} times"),
            };
            let _ = write!(text, "; changed {times}, {largest} at most");
        }
    }
    text + &beside
}

fn promotions(total: &Figures) -> String {
    let mut text = count(total.promotions);
    if total.ahead > 0 {
        let _ = write!(text, ", {} came ahead of a touch", counted(total.ahead, "page", "pages"));
    }
    if total.ping_pongs > 0 {
        let _ = write!(text, ", {} of pages that had just left", count(total.ping_pongs));
    }
    text
}

/// The estimate with what it rests on. [`terrace_report::slowdown`] says how.
fn slowdown(slowdown: &Slowdown) -> String {
    let factor = slowdown.factor_in_words();
    let (Some(_), Some(without)) = (slowdown.factor, slowdown.without) else {
        return format!(
            "{factor}, estimated: the program did hardly anything but wait; it had processors for \
             {} at most, {} of first touches on plain memory beside",
            slowdown.program_cpu, slowdown.plain_faults,
        );
    };
    format!(
        "{factor}, estimated: {without} on plain memory, {} of it first touches; waits spread over \
         {:.1} threads",
        slowdown.first_touches(),
        slowdown.threads,
    )
}

/// How well a profile fits the run: the share of its benefit that lies in memory that was mapped, and of
/// that memory the share of which it says nothing.
fn fit(huge: &HugeReport) -> String {
    let mut text = String::new();
    if !huge.profile_benefit.is_zero() {
        let share = percent(huge.profile_matched / huge.profile_benefit);
        let _ = write!(text, ", with {share} of its benefit");
    }
    if !huge.profile_mapped.is_zero() {
        let share = percent(huge.profile_unknown / huge.profile_mapped);
        let _ = write!(text, "; {share} of the {} in them unknown to it", huge.profile_mapped);
    }
    text
}

/// What became of huge pages; nothing if there were none.
fn huge_pages(total: &Figures) -> Option<String> {
    let huge = &total.huge;
    let profiled = huge.profiled + huge.populated + huge.mappings_known + huge.mappings_unknown;
    (huge.backed + huge.collapsed + profiled + huge.profile_unread > 0).then(|| {
        let mut text = format!(
            "{} of 2 MiB came ahead of a walk, {} walked through",
            count(huge.backed),
            count(huge.walked_through)
        );
        if profiled > 0 {
            let _ = write!(
                text,
                ", {} by the profile and {}; it knows {} of {}",
                count(huge.profiled),
                counted(huge.populated, "base page", "base pages"),
                count(huge.mappings_known),
                counted(huge.mappings_known + huge.mappings_unknown, "mapping", "mappings")
            );
            text += &fit(huge);
        }
        if huge.profile_unread > 0 {
            let processes = counted(huge.profile_unread, "process", "processes");
            let _ = write!(text, ", {processes} could not read it");
        }
        if huge.collapsed > 0 {
            let _ = write!(text, ", {} collapsed", count(huge.collapsed));
        }
        if huge.split > 0 {
            let _ = write!(text, ", {} split since", count(huge.split));
        }
        text
    })
}

fn demotions(total: &Figures) -> String {
    let mut text = count(total.demotions);
    if total.demotions_cancelled > 0 {
        let _ = write!(text, ", {} cancelled by a touch", count(total.demotions_cancelled));
    }
    if total.demotions_refused > 0 {
        let _ = write!(text, ", {} refused", count(total.demotions_refused));
    }
    if total.direct_reclaims > 0 {
        let _ = write!(text, ", {} while a fault waited", count(total.direct_reclaims));
    }
    text
}

fn store(total: &Figures) -> String {
    let store = &total.store;
    let ratio = store.ratio().map_or(String::new(), |ratio| format!(" at {ratio:.2} : 1"));
    let mut text = format!(
        "{} compressed{ratio}, {} same-filled; {} + {} overhead, {} at most",
        counted(store.compressed_pages, "page", "pages"),
        count(store.same_filled_pages),
        store.compressed,
        store.overhead(),
        store.occupied_peak,
    );
    if store.refused > 0 {
        text.push_str(
            "; it had no memory for more (ulimit -v, ulimit -d), and pages stayed in DRAM",
        );
    }
    if store.packed_tightly > 0 {
        let share = store.packed_tightly as f64 / store.compressions.max(1) as f64;
        let _ = write!(text, "; {} packed tightly, for room was worth it", percent(share));
    }
    text
}

/// Several threads can wait at once.
fn waited(report: &RunReport) -> String {
    let threads = report.slowdown.map_or(1.0, |slowdown| slowdown.threads);
    share::of_threads(report.total.waited, report.elapsed, threads)
}

/// A time of all processes together, of which each has such a part.
fn of_processes(report: &RunReport, time: Nanos, part: fn(&Figures) -> Nanos) -> String {
    let single = report.processes.iter().any(|process| part(&process.figures) == time);
    share::of_processes(time, report.elapsed, !single)
}

/// What Terrace took of all processors, and where: in the program's own processes, and in
/// `terrace run`, which keeps quiet windows, divides the budget, and records.
fn own_processors(report: &RunReport) -> String {
    let all = share::processors(report.all_own_cpu(), report.elapsed);
    format!(
        "{all}: {} in the program, {} in `terrace run`",
        report.total.own_cpu, report.command_cpu
    )
}

/// What no policy can help with, and how to recognise it.
fn thrashing(report: &RunReport) -> String {
    let time = of_processes(report, report.total.thrashing, |figures| figures.thrashing);
    format!("{time}: what left came back at once; the budget is too small")
}

/// Each sampler that was used, once.
fn samplers(report: &RunReport) -> String {
    let mut names: Vec<&str> = Vec::new();
    for process in &report.processes {
        if !process.sampler.is_empty() && !names.contains(&process.sampler.as_str()) {
            names.push(&process.sampler);
        }
    }
    let mut text = if names.is_empty() { "none".to_owned() } else { names.join("; ") };
    let total = &report.total;
    if !total.sampling.is_zero() {
        let _ = write!(text, "; {}", share::processors(total.sampling, report.elapsed));
        if let Some(cap) = report.sampling_cap {
            let each = if report.processes.len() > 1 { " in each process" } else { "" };
            let _ = write!(text, ", {} at most{each}", percent(cap));
        }
    }
    if total.samples_throttled > 0 {
        let _ = write!(text, ", throttled {} times", count(total.samples_throttled));
    }
    text
}

fn faults(total: &Figures) -> String {
    let rows: Vec<_> = total
        .faults
        .iter()
        .filter(|fault| fault.count > 0)
        .map(|fault| {
            [
                fault.kind.name().to_owned(),
                count(fault.count),
                fault.p50.to_string(),
                fault.p99.to_string(),
                fault.p999.to_string(),
                fault.max.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    table(["faults", "count", "p50", "p99", "p99.9", "max"], &rows)
}

/// Where the time went that threads waited, a fault on average.
fn stall(total: &Figures) -> String {
    let faults: u64 = total.faults.iter().map(|fault| fault.count).sum();
    if faults == 0 {
        return String::new();
    }
    let stall = &total.stall;
    let rows: Vec<_> = [
        ("wake-up", stall.wake_up),
        ("making room", stall.reclaim),
        ("decompress", stall.decompress),
        ("copy and wake", stall.copy),
        ("other", stall.other),
    ]
    .into_iter()
    .map(|(part, time)| {
        let share = if total.waited.is_zero() { 0.0 } else { time / total.waited };
        [part.to_owned(), time.to_string(), percent(share), (time / faults).to_string()]
    })
    .collect();
    table(["waited for", "time", "share", "a fault"], &rows)
}

/// The economist's accounts, by class of action.
pub(crate) fn accounts(lines: &[AccountReport]) -> String {
    let rows: Vec<_> = lines
        .iter()
        .map(|line| {
            [
                line.class.name().to_owned(),
                count(line.proposed),
                count(line.vetoed),
                count(line.completed),
                count(line.aborted),
                count(line.unfinished),
                pair(line.predicted_cost, Some(line.realised_cost)),
                pair(line.predicted_benefit, line.realised_benefit),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    table(
        [
            "actions",
            "proposed",
            "vetoed",
            "completed",
            "aborted",
            "unfinished",
            "cost, cycles (realised)",
            "benefit, cycles (realised)",
        ],
        &rows,
    )
}

/// What the economist has tried out, and how far its predictions held, by class of action; nothing
/// where there is nothing to tell.
pub(crate) fn checks(lines: &[AccountReport]) -> String {
    let rows: Vec<_> = lines
        .iter()
        .filter(|line| line.checks.is_any())
        .map(|line| {
            let checks = &line.checks;
            let part = |share: Option<f64>| share.map_or_else(|| "-".to_owned(), percent);
            [
                line.class.name().to_owned(),
                count(checks.explored),
                count(checks.held_out),
                part(checks.came_true()),
                part(checks.held_out_came_true()),
                pair(checks.predicted_harm, checks.realised_harm),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    table(
        ["checks", "explored", "held out", "came true", "missed", "regret, cycles (realised)"],
        &rows,
    )
}

/// What the economist would have refused, if it is to advise and no more.
pub(crate) fn advice(mode: &str, lines: &[AccountReport]) -> Option<(&'static str, String)> {
    if mode != Mode::Advise.name() {
        return None;
    }
    let decisions: u64 = lines.iter().map(|line| line.proposed).sum();
    let all = lines.iter().map(|line| line.advice).fold(AdviceReport::default(), AdviceReport::and);
    let AdviceReport { refusals, cost, benefit } = all;
    let would = "`--economist enforce` would have refused";
    let text = if refusals == 0 {
        format!("{would} nothing")
    } else {
        format!(
            "{would} {} of {}: together they were expected to cost {cost}, and to bring {benefit}",
            count(refusals),
            counted(decisions, "decision", "decisions"),
        )
    };
    Some(("advice", text))
}

/// The same by class of action; nothing where there is nothing to tell.
pub(crate) fn advised(mode: &str, lines: &[AccountReport]) -> String {
    let rows: Vec<_> = lines
        .iter()
        .filter(|line| mode == Mode::Advise.name() && line.advice.refusals > 0)
        .map(|line| {
            let AdviceReport { refusals, cost, benefit } = line.advice;
            [
                line.class.name().to_owned(),
                count(refusals),
                count(line.proposed),
                cost.to_string(),
                benefit.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    table(["advice", "vetoed", "decisions", "cost", "benefit"], &rows)
}

/// That what was done has taken more than it brought, where it has.
pub(crate) fn net_loss(balance: Balance, elapsed: Nanos) -> Option<(&'static str, String)> {
    balance.loses(elapsed).then(|| ("net loss", Loss(balance).to_string()))
}

/// What deciding itself took, behind the number of decisions; nothing where it was not timed.
pub(crate) fn deciding(took: Cycles) -> String {
    if took.is_zero() { String::new() } else { format!(", which took {took}") }
}

/// A predicted amount with the realised one, which nobody may have observed.
fn pair(predicted: Cycles, realised: Option<Cycles>) -> String {
    let short = |cycles: Cycles| cycles.to_string().replace(" cycles", "").replace("cycles", "");
    let realised = realised.map_or_else(|| "not observed".to_owned(), short);
    format!("{} ({realised})", short(predicted))
}

fn regions(report: &RunReport) -> String {
    let all: Vec<_> = report
        .processes
        .iter()
        .flat_map(|process| process.regions.iter().map(move |region| (process, region)))
        .collect();
    region_table(
        ["regions", "process", "mapped", "resident", "faults"],
        all,
        |region| region.faults,
        |process, region| {
            [
                addresses(region.start, region.length),
                process.pid.to_string(),
                region.length.to_string(),
                region.resident.to_string(),
                count(region.faults),
            ]
        },
    )
}

/// What was unmapped, or moved, before the end.
fn freed_regions(report: &RunReport) -> String {
    let faults: u64 = report.total.faults.iter().map(|fault| fault.count).sum();
    let of = |process| move |region| (process, region);
    let processes = report.processes.iter();
    let all: Vec<_> = processes
        .flat_map(|process| process.freed_regions.iter().map(of(process)))
        .filter(|(_, region)| region.faults * FREED_PART >= faults)
        .collect();
    region_table(
        ["freed regions", "process", "mapped", "times", "last after", "faults"],
        all,
        |region| region.faults,
        |process, region| {
            [
                addresses(region.start, region.length),
                process.pid.to_string(),
                region.length.to_string(),
                count(region.times),
                region.after.to_string(),
                count(region.faults),
            ]
        },
    )
}

/// A table of regions of all processes: those in which most faults were, and how many more there
/// are.
fn region_table<R, const N: usize>(
    header: [&str; N],
    mut all: Vec<(&ProcessReport, &R)>,
    faults: fn(&R) -> u64,
    row: fn(&ProcessReport, &R) -> [String; N],
) -> String {
    if all.is_empty() {
        return String::new();
    }
    all.sort_by_key(|(_, region)| std::cmp::Reverse(faults(region)));
    let shown = all.iter().take(TOP_REGIONS);
    let rows: Vec<_> = shown.map(|(process, region)| row(process, region)).collect();
    table(header, &rows) + &more(all.len(), rows.len())
}

/// A range of addresses, as the kernel writes it.
fn addresses(start: u64, length: Bytes) -> String {
    format!("{start:x}-{:x}", start + length.get())
}

fn processes(report: &RunReport) -> String {
    let mut all: Vec<_> = report.processes.iter().collect();
    all.sort_by_key(|process| std::cmp::Reverse(process.figures.mapped_peak));
    let rows: Vec<_> = all
        .iter()
        .take(TOP_PROCESSES)
        .map(|process| {
            let faults: u64 = process.figures.faults.iter().map(|fault| fault.count).sum();
            [
                format!("{} {}", process.pid, process.command),
                match process.state {
                    ProcessState::Dormant => "not needed",
                    ProcessState::Managed => "managed",
                    ProcessState::Failed => "given up",
                }
                .to_owned(),
                process.figures.mapped_peak.to_string(),
                process.figures.resident_peak.to_string(),
                count(faults),
                process.figures.waited.to_string(),
            ]
        })
        .collect();
    table(["processes", "state", "mapped, most", "resident, most", "faults", "waited"], &rows)
        + &more(all.len() + report.ended_processes as usize, rows.len())
}

/// Says that a list goes on.
pub(crate) fn more(all: usize, shown: usize) -> String {
    if all > shown { format!("and {} more\n", all - shown) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use terrace_core::{ActionClass, Bytes};
    use terrace_report::unread::Unread;

    use super::*;
    use terrace_report::SharedReport;
    use terrace_report::outside::Cause;
    use terrace_report::run::{
        CheckReport, FaultClass, FaultReport, FreedRegionReport, RegionReport, StallReport,
        StoreReport,
    };

    fn figures() -> Figures {
        Figures {
            mapped: Bytes::gib(1),
            mapped_peak: Bytes(Bytes::gib(1).get() + 12_582_912),
            resident: Bytes::mib(250),
            resident_peak: Bytes::mib(255),
            held_peak: Bytes::ZERO,
            given_up: Bytes::ZERO,
            faults: vec![
                FaultReport {
                    kind: FaultClass::FirstTouch,
                    count: 262_144,
                    p50: Nanos(3_100),
                    p99: Nanos(9_700),
                    p999: Nanos(41_000),
                    max: Nanos(1_250_000),
                    total: Nanos(900_000_000),
                    histogram: Vec::new(),
                },
                FaultReport {
                    kind: FaultClass::Absent,
                    count: 1_048_577,
                    p50: Nanos(5_600),
                    p99: Nanos(18_400),
                    p999: Nanos(96_000),
                    max: Nanos(7_340_000),
                    total: Nanos(6_100_000_000),
                    histogram: Vec::new(),
                },
                FaultReport {
                    kind: FaultClass::Hint,
                    count: 0,
                    p50: Nanos::ZERO,
                    p99: Nanos::ZERO,
                    p999: Nanos::ZERO,
                    max: Nanos::ZERO,
                    total: Nanos::ZERO,
                    histogram: Vec::new(),
                },
            ],
            faults_spurious: 4,
            direct_reclaims: 17,
            promotions: 1_048_577,
            ahead: 20_480,
            moves_uncounted: 0,
            huge: terrace_report::run::HugeReport {
                zeroed: 96,
                backed: 90,
                walked_through: 88,
                split: 12,
                collapsed: 7,
                ..Default::default()
            },
            demotions: 1_248_001,
            demotions_cancelled: 3_002,
            demotions_refused: 0,
            forks_unmanaged: 0,
            store: StoreReport {
                compressed_pages: 190_000,
                same_filled_pages: 8_000,
                compressed: Bytes::mib(301),
                occupied: Bytes::mib(322),
                occupied_peak: Bytes::mib(330),
                over_limit_peak: Bytes::ZERO,
                over_limit: Nanos::ZERO,
                spilled: Bytes::ZERO,
                spill_read: Bytes::ZERO,
                spill_written: Bytes::ZERO,
                compressions: 1_240_000,
                compress_time: Nanos::seconds(6),
                decompressions: 1_040_000,
                decompress_time: Nanos::seconds(2),
                packed_tightly: 0,
                incompressible: 12,
                refused: 0,
            },
            ping_pongs: 41_200,
            thrashing: Nanos::millis(2_250),
            waited: Nanos::millis(9_120),
            waited_running: Nanos::millis(1_500),
            stall: StallReport {
                wake_up: Nanos::millis(2_120),
                reclaim: Nanos::millis(300),
                decompress: Nanos::seconds(2),
                copy: Nanos::millis(2_500),
                other: Nanos::millis(2_200),
            },
            own_cpu: Nanos::millis(11_400),
            samples: 1_310_721,
            samples_lost: 0,
            samples_throttled: 0,
            sampling: Nanos::ZERO,
            policy_bytes: Bytes(4_194_304),
            policy_pages: 262_144,
            accounts: vec![AccountReport {
                class: ActionClass::Demote,
                proposed: 1_251_003,
                vetoed: 0,
                completed: 1_248_001,
                aborted: 3_002,
                unfinished: 0,
                predicted_cost: Cycles(14_976_012_000),
                realised_cost: Cycles(15_212_000_400),
                predicted_benefit: Cycles(88_000_000_000),
                realised_benefit: Some(Cycles(61_500_000_000)),
                checks: CheckReport::default(),
                advice: AdviceReport::default(),
            }],
            deciding: Cycles::ZERO,
            balance: Balance::default(),
        }
    }

    fn process(pid: u32, command: &str) -> ProcessReport {
        ProcessReport {
            pid,
            command: command.to_owned(),
            ended: false,
            state: ProcessState::Managed,
            failure: None,
            sampler: "refaults (no hardware sampling here)".to_owned(),
            figures: figures(),
            regions: vec![
                RegionReport {
                    start: 0x7f3a_4000_0000,
                    length: Bytes::gib(1),
                    resident: Bytes::mib(246),
                    faults: 1_300_000,
                    parts: [40_625; 32],
                },
                RegionReport {
                    start: 0x7f3a_3f40_0000,
                    length: Bytes::mib(12),
                    resident: Bytes::mib(4),
                    faults: 10_721,
                    parts: [335; 32],
                },
            ],
            freed_regions: vec![
                FreedRegionReport {
                    start: 0x7f3a_2000_0000,
                    length: Bytes::mib(128),
                    faults: 98_304,
                    parts: [3_072; 32],
                    times: 3,
                    after: Nanos::millis(12_340),
                },
                // Hardly any.
                FreedRegionReport {
                    start: 0x7f3a_1f00_0000,
                    length: Bytes::mib(2),
                    faults: 512,
                    parts: [16; 32],
                    times: 1,
                    after: Nanos::millis(340),
                },
            ],
        }
    }

    fn report() -> RunReport {
        RunReport {
            program: vec!["/usr/bin/sort".into(), "big.txt".into()],
            end: Some(End::Exited(0)),
            elapsed: Nanos::millis(38_250),
            policy: "hemem".into(),
            economist: "enforce".into(),
            sampling_cap: Some(0.03),
            budget: Bytes::mib(256),
            budget_holds_store: false,
            budget_kept: true,
            budget_kept_managed: true,
            shared: None,
            budget_of: None,
            unmanaged: None,
            slowdown: Some(Slowdown {
                factor: Some(1.3),
                at_least: Some(1.28),
                without: Some(Nanos::millis(29_391)),
                stalled: Nanos::millis(9_120),
                plain_faults: Nanos::millis(262),
                program_cpu: Nanos::millis(29_000),
                threads: 1.0,
            }),
            total: figures(),
            command_cpu: Nanos::millis(600),
            processes: vec![process(4711, "sort")],
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

    /// A part is never told with less than it is a part of.
    #[test]
    fn without_an_estimate_the_least_slowdown_alone_is_told() {
        let known = report().slowdown.expect("one");
        let unknown = Slowdown {
            factor: None,
            at_least: Some(5.3),
            without: None,
            plain_faults: Nanos::millis(18),
            ..known
        };
        let text = slowdown(&unknown);
        assert!(text.starts_with("at least 5.3 x, estimated: "), "{text}");
        assert!(!text.contains(" of it first touches"), "{text}");
        // The threads' first touches are side by side, as their waits are.
        let text = slowdown(&Slowdown { threads: 2.0, ..known });
        assert!(text.contains("29.4 s on plain memory, 131 ms of it first touches"), "{text}");
    }

    #[test]
    fn the_report_of_one_process_reads_as_agreed() {
        let text = render(&report());

        snapbox::assert_data_eq!(text, snapbox::file!["report-one.txt"].raw());
    }

    /// Of rules nobody knows how much benefit there is; and what was not asked about has no share.
    #[test]
    fn a_profile_s_part_in_a_run_is_told_both_ways() {
        let whole = HugeReport {
            mappings_known: 3,
            mappings_unknown: 1,
            profile_mapped: Bytes::mib(96),
            profile_unknown: Bytes::mib(12),
            profile_benefit: Cycles(8_000),
            profile_matched: Cycles(5_000),
            ..HugeReport::default()
        };
        let unknown = "; 12.5 % of the 96.0 MiB in them unknown to it";
        assert_eq!(fit(&whole), format!(", with 62.5 % of its benefit{unknown}"));
        let rules = HugeReport { profile_benefit: Cycles::ZERO, ..whole };
        assert_eq!(fit(&rules), unknown);
        assert_eq!(fit(&HugeReport::default()), "");
        let mut report = report();
        report.total.huge = whole;
        let told = huge_pages(&report.total).expect("there is a profile");
        assert!(
            told.contains("; it knows 3 of 4 mappings, with 62.5 % of its benefit; "),
            "{told}"
        );
    }

    /// Whoever is to trust the accounts wants to know what they are checked by.
    #[test]
    fn what_was_tried_and_regretted_and_what_deciding_took_are_told_where_there_is_any() {
        let mut report = report();
        assert!(checks(&report.total.accounts).is_empty());
        report.total.accounts[0].checks = CheckReport {
            explored: 2,
            held_out: 1_234,
            judged_predicted_benefit: Cycles(8_000),
            judged_realised_benefit: Cycles(6_000),
            predicted_harm: Cycles(4_000_000),
            realised_harm: Some(Cycles(6_000_000)),
            held_out_predicted: Cycles(500),
            held_out_observed: Cycles(450),
        };
        report.total.deciding = Cycles(12_300_000);
        let text = render(&report);
        let line = text.lines().find(|line| line.contains("4.00 M (6.00 M)")).unwrap_or_default();
        let words: Vec<_> = line.split_whitespace().collect();
        let told = ["demote", "2", "1", "234", "75.0", "%", "90.0", "%"];
        assert_eq!(words[..8], told, "{text}");
        let accounts = &mut report.total.accounts;
        (accounts[0].realised_benefit, accounts[0].checks.realised_harm) = (None, None);
        for told in ["88.0 G (not observed)", "4.00 M (not observed)"] {
            assert!(render(&report).contains(told), "{told}: {}", render(&report));
        }
        assert!(text.contains("1 251 003 decisions, which took 12.3 Mcycles\n"), "{text}");
    }

    /// To advise is to say it; whoever only wants it written down chooses `shadow`.
    #[test]
    fn what_would_have_been_refused_is_told_where_the_economist_is_to_advise() {
        let mut report = report();
        report.total.accounts[0].advice = AdviceReport {
            refusals: 1_002,
            cost: Cycles(12_300_000_000),
            benefit: Cycles(4_560_000),
        };
        for silent in ["off", "shadow", "enforce"] {
            report.economist = silent.into();
            assert!(!render(&report).contains("advice"), "{silent}");
        }
        report.economist = "advise".into();
        let text = render(&report);
        let told = "would have refused 1 002 of 1 251 003 decisions: together they were expected to \
                    cost 12.3 Gcycles, and to bring 4.56 Mcycles\n";
        assert!(text.contains(told), "{text}");
        let line =
            text.lines().find(|line| line.contains("4.56 Mcycles") && !line.contains("would"));
        let words: Vec<_> = line.unwrap_or_default().split_whitespace().collect();
        assert_eq!(words[..3], ["demote", "1", "002"], "{text}");
        report.total.accounts[0].advice = AdviceReport::default();
        let text = render(&report);
        assert!(text.contains("`--economist enforce` would have refused nothing\n"), "{text}");
    }

    #[test]
    fn that_more_was_spent_than_it_brought_is_told_where_it_was() {
        let mut report = report();
        report.elapsed = Nanos::seconds(200);
        assert!(!render(&report).contains("net loss"));
        let (brought, took, deciding) = (Nanos::seconds(2), Nanos::seconds(1), Nanos::seconds(4));
        report.total.balance = Balance { brought, took, deciding };
        let text = render(&report);
        let line = text.lines().find(|line| line.contains("net loss")).unwrap_or_default();
        assert!(line.contains("--economist off") && line.contains("took 4.00 s"), "{text}");
    }

    #[test]
    fn the_report_of_a_family_shows_each_process_and_who_was_given_up() {
        let mut report = report();
        let mut other = process(4712, "gzip");
        other.state = ProcessState::Failed;
        other.failure = Some("userfaultfd: too many open files".into());
        report.processes.push(other);
        report.end = Some(End::Killed(15));
        report.budget_kept_managed = false;
        report.processes[0].figures.resident_peak = Bytes::mib(270);
        report.total.samples_lost = 12;
        report.decisions_lost = Some(4);
        report.total.store.spilled = Bytes::mib(64);
        report.total.store.spill_written = Bytes::mib(80);
        report.total.store.spill_read = Bytes::mib(16);
        report.total.store.over_limit_peak = Bytes::mib(6);
        report.total.store.over_limit = Nanos::millis(765);
        let report = report.beside(Some(Box::new(plain())), None);

        let text = render(&report);

        snapbox::assert_data_eq!(text, snapbox::file!["report-family.txt"].raw());
    }

    fn plain() -> PlainReport {
        let program = |command: &str, why: &str, processes, mib| PlainProgram {
            command: command.into(),
            why: why.into(),
            processes,
            resident_peak: Bytes::mib(mib),
        };
        PlainReport {
            processes: 7,
            resident_peak: Bytes::mib(212),
            programs: vec![
                program("compile", "statically linked", 4, 150),
                program("link", "statically linked", 1, 120),
                program("sudo", "setuid", 1, 17),
                program("agent", "without the library", 1, 16),
            ],
        }
    }

    /// It said that all had fitted.
    #[test]
    fn where_figures_cannot_be_read_it_is_not_said_that_nothing_was_managed() {
        let one = |pid, why| UnreadProcess { pid, why };
        let (other, none) = (Unread::OtherVersion, Unread::NotKept);
        let unread_processes = vec![one(7, other), one(8, none)];
        let mut alone = RunReport { processes: vec![], ..report() };
        assert!(render(&alone.clone().beside(None, None)).contains("nothing was managed: all"));
        alone.unread_processes.clone_from(&unread_processes);
        let alone = alone.beside(None, None);
        assert_eq!(alone.nothing_managed, Some(NothingManaged::Unknown));
        let beside = RunReport { unread_processes, ..report() }.beside(None, None);
        assert_eq!(beside.nothing_managed, None);
        for text in [render(&alone), render(&beside)] {
            assert!(!text.contains("nothing was managed"), "{text}");
            let told = "process 7: the library in it is of another version than this command; \
                        process 8: its figures could not be kept\n";
            assert!(text.contains(told), "{text}");
        }
    }

    #[test]
    fn where_all_ran_on_plain_memory_nobody_is_said_to_have_had_little() {
        let mut report = report();
        report.processes.clear();
        let report = report.beside(
            Some(Box::new(PlainReport {
                resident_peak: Bytes::mib(17),
                programs: vec![plain().programs.swap_remove(2)],
                processes: 1,
            })),
            None,
        );

        assert_eq!(
            render(&report),
            "terrace: sort ended well after 38.2 s\n  nothing was managed: on plain memory \
             17.0 MiB resident at most: sudo, 17.0 MiB (setuid)\n"
        );
    }

    /// Much shared memory, most of which is still there, and other kinds.
    fn shared_memory(with_managed: Bytes) -> OutsideReport {
        let part =
            |cause, now, peak| OutsideCause { cause, now: Bytes::mib(now), peak: Bytes::mib(peak) };
        OutsideReport {
            now: Bytes::mib(303),
            peak: Bytes::mib(404),
            with_managed_peak: with_managed,
            causes: vec![
                part(Cause::Shared, 300, 360),
                part(Cause::NotAsked, 0, 40),
                part(Cause::Small, 3, 4),
            ],
            own_peak: Bytes::mib(12),
        }
    }

    #[test]
    fn a_budget_is_not_kept_if_what_lies_outside_of_it_does_not_fit() {
        let all = Bytes::mib(255 + 404);

        let exceeded = render(&report().beside(None, Some(Box::new(shared_memory(all)))));

        let lines: Vec<_> = exceeded.lines().skip(1).take(2).collect();
        assert_eq!(
            lines,
            [
                "  budget          256 MiB, kept by what is managed: 255 MiB resident at most; \
                 404 MiB more lie outside of it",
                "  outside         404 MiB at most: shared memory, 360 MiB; private memory that \
                 Terrace was not asked for, 40.0 MiB",
            ]
        );
        let mut large = report();
        large.budget = Bytes::gib(1);
        let large = large.beside(None, Some(Box::new(shared_memory(all))));
        assert!(large.budget_kept, "there is room for both");
        let text = render(&large);
        let kept = "1.00 GiB, kept: 255 MiB resident at most; 404 MiB more lie outside of it\n";
        assert!(text.contains(kept), "{text}");
    }

    #[test]
    fn where_nothing_was_managed_the_report_says_for_which_reason() {
        let mut report = report();
        report.processes.clear();
        report.end = None;
        let text = |report: &RunReport| render(report).split_once('\n').unwrap().1.to_owned();

        let little = text(&report.clone().beside(None, None));
        report.shared = Some(SharedReport {
            processes: 1,
            granted_peak: Bytes::mib(200),
            resident_peak: Bytes::mib(200),
            resident: Bytes::mib(200),
            budget_peak: Bytes::mib(256),
            changes: 0,
        });
        let fits = text(&report.clone().beside(None, None));
        let outside =
            text(&report.clone().beside(None, Some(Box::new(shared_memory(Bytes::mib(604))))));
        let both_fit = text(&report.beside(None, Some(Box::new(shared_memory(Bytes::mib(256))))));

        assert_eq!(
            little,
            "  nothing was managed: all that was mapped fits into the budget; no process was seen to \
             map as much as 1.00 MiB\n"
        );
        assert_eq!(
            fits,
            "  nothing was managed: all that was mapped fits into the budget, 200 MiB of 256 MiB\n"
        );
        let parts = "303 MiB now, 404 MiB at most: shared memory, 360 MiB; private memory that \
                     Terrace was not asked for, 40.0 MiB\n";
        assert_eq!(
            outside,
            "  nothing was managed: what could be managed fits into the budget; other memory does \
             not count\n  budget   256 MiB, exceeded: 404 MiB lie outside of it\n  outside  "
                .to_owned()
                + parts
        );
        assert!(both_fit.contains("256 MiB, kept: 404 MiB lie outside of what is"), "{both_fit}");
    }

    #[test]
    fn a_run_that_was_not_managed_says_so_and_no_figures() {
        let mut report = report();
        report.processes.clear();
        report.unmanaged = Some("userfaultfd is refused".into());
        report.end = None;

        assert_eq!(
            render(&report),
            "terrace: sort has run for 38.2 s\n  not managed: userfaultfd is refused\n"
        );
    }
}
