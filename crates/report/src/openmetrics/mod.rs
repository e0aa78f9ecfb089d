//! Figures as OpenMetrics text, for Prometheus and what understands it.
//!
//! One set of series for each process of each run; where pages stay mapped
//! ([`attached`]), one for all processes together. Counters begin at zero with
//! the process; a process that has ended keeps its last figures until its run
//! ends.

mod attached;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use terrace_core::Nanos;

pub use self::attached::Attached;
use crate::run::{AccountReport, Figures, ProcessReport, RunReport};

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
        if self.processes().next().is_some() || attached::have_budget(&self.attached) {
            self.budget(&mut encoder)?;
        }
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
        if self.runs.iter().any(|(_, report)| factor(report).is_some()) {
            self.slowdown(&mut encoder)?;
        }
        attached::encode(&self.attached, &mut encoder)
    }
}

/// The estimated slowdown, where there is an estimate.
fn factor(report: &RunReport) -> Option<f64> {
    report.slowdown.and_then(|slowdown| slowdown.factor)
}

impl Runs {
    fn budget(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut budget = encoder.encode_descriptor(
            "budget",
            "DRAM that managed memory may use",
            Some(&Unit::Bytes),
            MetricType::Gauge,
        )?;
        self.each(&mut budget, |mut to, report, _| to.encode_gauge(&report.budget.as_f64()))?;
        attached::budget(&self.attached, &mut budget)
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
fn run_labels(run: u32, report: &RunReport) -> [(&'static str, String); 2] {
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

    fn slowdown(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = encoder.encode_descriptor(
            "slowdown_ratio",
            "Estimated run time by that on plain memory",
            None,
            MetricType::Gauge,
        )?;
        for (run, report) in &self.runs {
            let Some(factor) = factor(report) else { continue };
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
    use super::*;

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
