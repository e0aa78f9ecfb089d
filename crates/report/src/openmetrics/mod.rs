//! Figures as OpenMetrics text, for Prometheus and what understands it.
//!
//! One set of series for each process of each run, and a few of each run; where pages stay
//! mapped ([`attached`]), one set for all processes together. Counters begin at zero with
//! the process; a process that has ended keeps its last figures until its run
//! ends. A budget is its run's, and not that of each of its processes: series of it add up.

mod attached;
pub mod governed;
mod kloc;
mod provision;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use terrace_core::{Bytes, Nanos};

pub use self::attached::Attached;
pub use self::kloc::{Kloc, kloc};
pub use self::provision::{Provision, ProvisionNode, provision};
use crate::outside::OutsideReport;
use crate::run::{AccountReport, Figures, ProcessReport, RunLevel, RunReport};

/// The media type of what [`encode`] gives.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The runs' figures as text. The number beside each report is that of the
/// process that runs it.
pub fn encode(runs: Vec<(u32, RunReport)>, attached: Vec<Attached>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("terrace");
    registry.register_collector(Box::new(Runs { runs, attached }));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Runs {
    runs: Vec<(u32, RunReport)>,
    /// All series of one name have to stand together, so these are here, too.
    attached: Vec<Attached>,
}

/// What tells series apart.
#[derive(Clone, Debug, EncodeLabelSet)]
struct Process {
    run: u32,
    program: String,
    pid: u32,
    command: String,
}

/// Powers of two, so that they fall on borders of our own finer buckets.
fn bounds() -> impl Iterator<Item = Nanos> {
    (10..=30).map(|power| Nanos(1 << power))
}

type Gauge = (&'static str, &'static str, Option<Unit>, fn(&ProcessReport) -> f64);
type Counter = (&'static str, &'static str, Option<Unit>, fn(&Figures) -> f64);

const GAUGES: &[Gauge] = &[
    ("mapped", "Managed memory that is mapped", Some(Unit::Bytes), |p| p.figures.mapped.as_f64()),
    ("resident", "Managed memory that is in DRAM", Some(Unit::Bytes), |p| {
        p.figures.resident.as_f64()
    }),
    ("resident_peak", "The most managed memory in DRAM at once", Some(Unit::Bytes), |p| {
        p.figures.resident_peak.as_f64()
    }),
    ("store", "Memory that compressed pages occupy", Some(Unit::Bytes), |p| {
        p.figures.store.occupied.as_f64()
    }),
    (
        "store_over_limit_peak",
        "The most that the store held beyond --store-limit",
        Some(Unit::Bytes),
        |p| p.figures.store.over_limit_peak.as_f64(),
    ),
    ("store_content", "Compressed pages' content", Some(Unit::Bytes), |p| {
        p.figures.store.compressed.as_f64()
    }),
    ("spilled", "What lies in the spill file", Some(Unit::Bytes), |p| {
        p.figures.store.spilled.as_f64()
    }),
    ("stored_pages", "Pages held compressed", None, |p| p.figures.store.compressed_pages as f64),
    ("same_filled_pages", "Pages held as one repeated word", None, |p| {
        p.figures.store.same_filled_pages as f64
    }),
    ("policy", "The policy's own memory", Some(Unit::Bytes), |p| p.figures.policy_bytes.as_f64()),
    ("regions", "Managed regions", None, |p| p.regions.len() as f64),
];

const COUNTERS: &[Counter] = &[
    ("promotions", "Pages brought into DRAM", None, |f| f.promotions as f64),
    ("ahead", "Pages brought in before they were touched", None, |f| f.ahead as f64),
    ("huge_backed", "Huge pages put where the program was about to walk", None, |f| {
        f.huge.backed as f64
    }),
    ("huge_collapsed", "Huge pages made of base pages that were in use", None, |f| {
        f.huge.collapsed as f64
    }),
    ("huge_split", "Huge pages split because a part of them left", None, |f| f.huge.split as f64),
    ("demotions", "Pages that left DRAM", None, |f| f.demotions as f64),
    ("moves_uncounted", "Moves of pages that the kernel did not report as done", None, |f| {
        f.moves_uncounted as f64
    }),
    ("demotions_cancelled", "Demotions that a touch stopped", None, |f| {
        f.demotions_cancelled as f64
    }),
    ("demotions_refused", "Demotions that the kernel refused", None, |f| {
        f.demotions_refused as f64
    }),
    ("forks_unmanaged", "Forked children that went on on plain memory", None, |f| {
        f.forks_unmanaged as f64
    }),
    (
        "ping_pongs",
        "Promotions of pages that had left less than a second before; where pages stay mapped, \
         moves of pages that had been moved the other way",
        None,
        |f| f.ping_pongs as f64,
    ),
    (
        "thrashing",
        "Time in which pages came back that had just left, and were waited for",
        Some(Unit::Seconds),
        |f| seconds(f.thrashing),
    ),
    ("packed_tightly", "Pages packed tightly, for room was worth the time", None, |f| {
        f.store.packed_tightly as f64
    }),
    (
        "store_over_limit",
        "Time in which the store held more than --store-limit",
        Some(Unit::Seconds),
        |f| seconds(f.store.over_limit),
    ),
    ("direct_reclaims", "Faults that had to make room themselves", None, |f| {
        f.direct_reclaims as f64
    }),
    ("stall", "Time that the program's threads waited", Some(Unit::Seconds), |f| seconds(f.waited)),
    ("own_cpu", "Processor time of Terrace's threads in the program", Some(Unit::Seconds), |f| {
        seconds(f.own_cpu)
    }),
    ("samples", "Samples that the policy was given", None, |f| f.samples as f64),
    ("samples_lost", "Samples that were lost", None, |f| f.samples_lost as f64),
    ("samples_throttled", "Times that sampling was throttled", None, |f| {
        f.samples_throttled as f64
    }),
];

fn seconds(time: Nanos) -> f64 {
    time.get() as f64 / 1e9
}

impl Runs {
    fn processes(&self) -> impl Iterator<Item = (Process, &RunReport, &ProcessReport)> {
        self.runs.iter().flat_map(|(run, report)| {
            report.processes.iter().map(move |process| {
                let labels = Process {
                    run: *run,
                    program: report.program.first().cloned().unwrap_or_default(),
                    pid: process.pid,
                    command: process.command.clone(),
                };
                (labels, report, process)
            })
        })
    }

    /// One value for each process.
    fn each(
        &self,
        metric: &mut MetricEncoder<'_>,
        mut write: impl FnMut(MetricEncoder<'_>, &RunReport, &ProcessReport) -> fmt::Result,
    ) -> fmt::Result {
        for (labels, report, process) in self.processes() {
            write(metric.encode_family(&labels)?, report, process)?;
        }
        Ok(())
    }
}

// A name without series is left out: some readers take the next for a part of it.
impl Collector for Runs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.levels(&mut encoder)?;
        self.figures(&mut encoder)?;
        if self.processes().any(|(_, _, process)| !process.figures.faults.is_empty()) {
            self.faults(&mut encoder)?;
        }
        let of_runs = self.processes().map(|(_, _, process)| &process.figures.accounts);
        let of_attached = self.attached.iter().map(|attached| &attached.report.accounts);
        if of_runs.chain(of_attached).any(|accounts| !accounts.is_empty()) {
            self.decisions(&mut encoder)?;
        }
        if !self.runs.is_empty() {
            self.command_cpu(&mut encoder)?;
        }
        for (name, help, value) in SLOWDOWNS {
            if self.runs.iter().any(|(_, report)| value(report).is_some()) {
                self.slowdown(name, help, *value, &mut encoder)?;
            }
        }
        if self.all_outside().next().is_some() {
            self.outside(&mut encoder)?;
        }
        if self.runs.iter().any(|(_, report)| report.unseen().is_some()) {
            self.unseen(&mut encoder)?;
        }
        attached::encode(&self.attached, &mut encoder)
    }
}

type Estimate = (&'static str, &'static str, fn(&RunReport) -> Option<f64>);

/// The estimated slowdown, where there is an estimate.
const SLOWDOWNS: &[Estimate] = &[
    ("slowdown_ratio", "Estimated run time by that on plain memory", |report| {
        report.slowdown.and_then(|slowdown| slowdown.factor)
    }),
    ("slowdown_at_least_ratio", "The least that the slowdown can have been", |report| {
        report.slowdown.and_then(|slowdown| slowdown.at_least)
    }),
];

type Level = (&'static str, &'static str, fn(&RunLevel) -> Bytes);

/// What is told of a run as a whole, in bytes; with `--total` what compressed pages take is in it. A run that
/// has joined another has no budget of its own, and what is resident counts there.
const LEVELS: &[Level] = &[
    (BUDGET, "DRAM that all managed memory of a run may use", |level| level.budget),
    ("run_resident", "What of it is in use by all processes together", |level| level.resident),
    ("run_resident_peak", "The most of it in use at once", |level| level.resident_peak),
    ("budget_exceeded", "What of it is in use beyond the budget", |level| level.exceeded),
    ("budget_exceeded_peak", "The most that was in use beyond the budget", |level| {
        level.exceeded_peak
    }),
];
const BUDGET: &str = "budget";

impl Runs {
    fn levels(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let own: Vec<_> = self.runs.iter().filter(|(_, run)| run.budget_of.is_none()).collect();
        for (name, help, value) in LEVELS {
            let of_attached = attached::levels(&self.attached, *name == BUDGET, *value);
            if own.is_empty() && of_attached.is_empty() {
                continue;
            }
            let unit = Some(&Unit::Bytes);
            let mut gauge = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            for (run, report) in &own {
                let value = value(&report.level()).as_f64();
                gauge.encode_family(&run_labels(*run, report))?.encode_gauge(&value)?;
            }
            for (one, value) in of_attached {
                gauge.encode_family(&one.labels())?.encode_gauge(&value.as_f64())?;
            }
        }
        Ok(())
    }

    fn figures(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let any = self.processes().next().is_some();
        for (name, help, unit, value) in GAUGES {
            if !any && !attached::have_gauge(&self.attached, name) {
                continue;
            }
            let mut gauge =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            self.each(&mut gauge, |mut to, _, process| to.encode_gauge(&value(process)))?;
            attached::shared_gauge(&self.attached, name, &mut gauge)?;
        }
        for (name, help, unit, value) in COUNTERS {
            if !any && !attached::have_counter(&self.attached, name) {
                continue;
            }
            let mut counter =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
            self.each(&mut counter, |mut to, _, process| {
                to.encode_counter::<NoLabelSet, _, f64>(&value(&process.figures), None)
            })?;
            attached::shared_counter(&self.attached, name, &mut counter)?;
        }
        Ok(())
    }

    fn faults(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut faults = encoder.encode_descriptor(
            // Not as a unit: some readers refuse one for histograms.
            "fault_duration_seconds",
            "Time to serve a fault, without the kernel's part",
            None,
            MetricType::Histogram,
        )?;
        for (labels, _, process) in self.processes() {
            for fault in &process.figures.faults {
                let labels = (labels.clone(), [("kind", fault.kind.name())]);
                let mut to = faults.encode_family(&labels)?;
                let (buckets, sum) = (buckets(&fault.histogram), seconds(fault.total));
                to.encode_histogram::<NoLabelSet>(sum, fault.count, &buckets, None)?;
            }
        }
        Ok(())
    }

    fn decisions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut decisions = encoder.encode_descriptor(
            "decisions",
            "What became of proposed actions",
            None,
            MetricType::Counter,
        )?;
        for (labels, _, process) in self.processes() {
            encode_accounts(&mut decisions, &labels, &process.figures.accounts)?;
        }
        for attached in &self.attached {
            encode_accounts(&mut decisions, &attached.labels(), &attached.report.accounts)?;
        }
        Ok(())
    }
}

/// What became of proposed actions, by class.
fn encode_accounts<L>(
    decisions: &mut MetricEncoder<'_>,
    labels: &L,
    accounts: &[AccountReport],
) -> fmt::Result
where
    L: Clone + EncodeLabelSet,
{
    for account in accounts {
        for (outcome, count) in [
            ("vetoed", account.vetoed),
            ("completed", account.completed),
            ("aborted", account.aborted),
        ] {
            let about = [("class", account.class.name()), ("outcome", outcome)];
            let labels = (labels.clone(), about);
            let mut to = decisions.encode_family(&labels)?;
            to.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
    }
    Ok(())
}

/// What a whole run's series are told apart by.
type RunLabels = [(&'static str, String); 2];

/// Those of a run that a pager serves.
fn run_labels(run: u32, report: &RunReport) -> RunLabels {
    let program = report.program.first().cloned().unwrap_or_default();
    [("run", run.to_string()), ("program", program)]
}

impl Runs {
    fn command_cpu(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut counter = encoder.encode_descriptor(
            "command_cpu",
            "Processor time of the `terrace run` process itself",
            Some(&Unit::Seconds),
            MetricType::Counter,
        )?;
        for (run, report) in &self.runs {
            let labels = run_labels(*run, report);
            let mut to = counter.encode_family(&labels)?;
            to.encode_counter::<NoLabelSet, _, f64>(&seconds(report.command_cpu), None)?;
        }
        Ok(())
    }

    fn unseen(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut peak = encoder.encode_descriptor(
            "unseen_peak",
            "The most that one process of a run had in RAM beyond what was seen at any look",
            Some(&Unit::Bytes),
            MetricType::Gauge,
        )?;
        for (run, report) in &self.runs {
            if let Some(unseen) = report.unseen() {
                peak.encode_family(&run_labels(*run, report))?.encode_gauge(&unseen.as_f64())?;
            }
        }
        Ok(())
    }

    /// What lies outside of budgets, of runs of either engine.
    fn all_outside(&self) -> impl Iterator<Item = (RunLabels, &OutsideReport)> {
        let by_pager = self.runs.iter().filter_map(|(run, report)| {
            Some((run_labels(*run, report), report.outside.as_deref()?))
        });
        let by_kernel = self.attached.iter().filter_map(|one| {
            let outside = one.report.kernel.as_ref()?.outside.as_deref()?;
            Some(([("run", one.run.to_string()), ("program", one.program.clone())], outside))
        });
        by_pager.chain(by_kernel)
    }

    fn outside(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut now = encoder.encode_descriptor(
            "outside",
            "Memory of a run's processes that no budget bounds",
            Some(&Unit::Bytes),
            MetricType::Gauge,
        )?;
        for (labels, outside) in self.all_outside() {
            for part in &outside.causes {
                let labels = (labels.clone(), [("cause", part.cause.name())]);
                now.encode_family(&labels)?.encode_gauge(&part.now.as_f64())?;
            }
        }
        let mut peak = encoder.encode_descriptor(
            "outside_peak",
            "The most of it that was seen at once",
            Some(&Unit::Bytes),
            MetricType::Gauge,
        )?;
        for (labels, outside) in self.all_outside() {
            peak.encode_family(&labels)?.encode_gauge(&outside.peak.as_f64())?;
        }
        Ok(())
    }

    fn slowdown(
        &self,
        name: &str,
        help: &str,
        value: fn(&RunReport) -> Option<f64>,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        let mut gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (run, report) in &self.runs {
            let Some(factor) = value(report) else { continue };
            gauge.encode_family(&run_labels(*run, report))?.encode_gauge(&factor)?;
        }
        Ok(())
    }
}

/// Counts by our coarse bounds, the last one for everything above.
fn buckets(histogram: &[(Nanos, u64)]) -> Vec<(f64, u64)> {
    let mut rest = histogram.iter().peekable();
    let mut counts: Vec<_> = bounds()
        .map(|bound| {
            let mut count = 0;
            while let Some((_, n)) = rest.next_if(|(upper, _)| *upper <= bound) {
                count += n;
            }
            (seconds(bound), count)
        })
        .collect();
    counts.push((f64::INFINITY, rest.map(|(_, n)| n).sum()));
    counts
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use terrace_live::stats::process_page::ProcessPage;

    use super::*;
    use crate::run::{Head, SharedReport, Usage};

    const MIB: u64 = 1 << 20;

    /// A run of two processes that have 20 MiB each, 8 of them in common, of 24 that they may.
    fn two_processes(budget_of: Option<u32>) -> RunReport {
        let pages = [1, 2].map(|pid| {
            let page = ProcessPage::anonymous().expect("memory");
            page.pid.store(pid, Relaxed);
            page.counters.resident_bytes.store(20 * MIB, Relaxed);
            page.counters.resident_peak_bytes.store(20 * MIB, Relaxed);
            page
        });
        let shared = SharedReport {
            processes: 2,
            granted_peak: Bytes(24 * MIB),
            resident_peak: Bytes(33 * MIB),
            resident: Bytes(32 * MIB),
            budget_peak: Bytes(24 * MIB),
            changes: 0,
        };
        let head = Head {
            program: vec!["sort".into()],
            end: None,
            elapsed: Nanos::SECOND,
            policy: "refault".into(),
            economist: "enforce".into(),
            sampling_cap: None,
            budget: Bytes(24 * MIB),
            shared: Some(shared),
            budget_of,
            holds_store: false,
            unmanaged: None,
            unread: Vec::new(),
        };
        RunReport::collect(head, pages, &Usage::default(), None)
    }

    /// The values of a series, in MiB.
    fn values(text: &str, series: &str) -> Vec<u64> {
        let lines = text.lines().filter(|line| line.starts_with(&format!("terrace_{series}{{")));
        let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
        lines.map(|line| (value(line).expect("a number") as u64) / MIB).collect()
    }

    /// Each process had the budget of all: 48 MiB of 24.
    #[test]
    fn a_budget_is_told_once_for_all_processes_with_what_they_have_together() {
        let text = encode(vec![(7, two_processes(None))], Vec::new()).expect("text");

        assert_eq!(values(&text, "budget_bytes"), [24]);
        assert_eq!(values(&text, "run_resident_bytes"), [32], "frames in common count once");
        assert_eq!(values(&text, "run_resident_peak_bytes"), [33]);
        assert_eq!(values(&text, "budget_exceeded_bytes"), [8]);
        assert_eq!(values(&text, "budget_exceeded_peak_bytes"), [9]);
        assert_eq!(values(&text, "resident_bytes"), [20, 20]);
        assert!(text.contains("terrace_budget_bytes{run=\"7\",program=\"sort\"} "), "{text}");
    }

    #[test]
    fn a_run_that_has_joined_another_has_no_budget_of_its_own() {
        let text = encode(vec![(8, two_processes(Some(7)))], Vec::new()).expect("text");

        assert!(!text.contains("terrace_budget") && !text.contains("terrace_run_"), "{text}");
        assert_eq!(values(&text, "resident_bytes"), [20, 20]);
    }

    #[test]
    fn every_fault_falls_into_one_bucket_and_the_longest_into_the_last() {
        let histogram = [(Nanos(900), 2), (Nanos(1023), 3), (Nanos(1151), 5), (Nanos(1 << 35), 7)];

        let counts = buckets(&histogram);

        assert_eq!(counts.iter().map(|(_, n)| n).sum::<u64>(), 17);
        assert_eq!(counts[0], (1024e-9, 5));
        assert_eq!(counts[1].1, 5);
        assert_eq!(*counts.last().unwrap(), (f64::INFINITY, 7));
    }
}
