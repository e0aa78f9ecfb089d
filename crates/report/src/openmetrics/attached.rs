//! The figures of memory whose pages stay mapped: of `terrace attach`, and of
//! `terrace run` with slower memories. Figures that mean the same have the names
//! that they have for compressed memory; the others have names of their own.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use terrace_core::Bytes;

use super::seconds;
use crate::attach::{AttachReport, TierLine};
use crate::kernel::KernelReport;
use crate::run::RunLevel;

/// An attachment with what tells it apart from others.
#[derive(Clone, Debug)]
pub struct Attached {
    /// The process of `terrace`.
    pub run: u32,
    /// What it is called: the program, or the control group.
    pub program: String,
    /// Its figures.
    pub report: AttachReport,
}

/// What tells series apart: its figures are those of all its processes together.
#[derive(Clone, Debug, EncodeLabelSet)]
pub(super) struct Labels {
    run: u32,
    program: String,
}

impl Attached {
    pub(super) fn labels(&self) -> Labels {
        Labels { run: self.run, program: self.program.clone() }
    }
}

type Figure = (&'static str, fn(&AttachReport) -> Option<f64>);

/// Gauges that compressed memory has, too.
const SHARED_GAUGES: &[Figure] =
    &[("policy", |r| Some(r.policy_bytes.as_f64())), ("regions", |r| Some(r.regions.len() as f64))];

/// Counters that compressed memory has, too.
const SHARED_COUNTERS: &[Figure] = &[
    ("promotions", |r| Some(r.promotions as f64)),
    ("demotions", |r| Some(r.demotions? as f64)),
    ("ping_pongs", |r| Some(r.ping_pongs? as f64)),
    ("own_cpu", |r| Some(seconds(r.own_cpu))),
    ("samples", |r| Some(r.samples as f64)),
    ("samples_lost", |r| Some(r.samplers.iter().map(|sampler| sampler.lost).sum::<u64>() as f64)),
];

type Own = (&'static str, &'static str, Option<Unit>, fn(&AttachReport) -> Option<f64>);

/// Counters of mapped memory alone.
const COUNTERS: &[Own] = &[
    ("moved", "Traffic between tiers", Some(Unit::Bytes), |r| Some(r.moved?.as_f64())),
    ("moving", "Time in the system calls that move pages", Some(Unit::Seconds), |r| {
        Some(seconds(r.moving))
    }),
    ("moved_by_others", "Pages that somebody else moved", None, |r| {
        Some(r.moved_by_others? as f64)
    }),
    ("refaults", "Pages that came back from swap", None, |r| Some(r.refaults as f64)),
    ("sampling", "Processor time of the samplers", Some(Unit::Seconds), |r| {
        Some(seconds(r.sampling))
    }),
];

type OfKernel = (&'static str, &'static str, Option<Unit>, fn(&KernelReport) -> Option<f64>);

/// Gauges of the kernel engine alone.
const KERNEL_GAUGES: &[OfKernel] = &[
    ("kernel_resident_peak", "The most in DRAM at once", Some(Unit::Bytes), |k| {
        Some(k.stats.resident_peak.as_f64())
    }),
    ("kernel_exceeded", "The most above the budget, since it was kept", Some(Unit::Bytes), |k| {
        Some(k.most_above().as_f64())
    }),
    (
        "kernel_budget_kept",
        "Whether the budget was kept (1) or not (0); with --total a 32nd above it counts as kept",
        None,
        |k| Some(f64::from(u8::from(k.budget_kept))),
    ),
    ("kernel_store", "Memory that the compressed pages take", Some(Unit::Bytes), |k| {
        Some(k.store?.memory.as_f64())
    }),
    ("kernel_files", "Files' pages in the budget", Some(Unit::Bytes), |k| {
        Some(k.division.as_ref()?.files.as_f64())
    }),
    ("kernel_files_share", "What of the budget is for files", Some(Unit::Bytes), |k| {
        Some(k.division.as_ref()?.share.as_f64())
    }),
    ("kernel_program", "The program's memory in the budget", Some(Unit::Bytes), |k| {
        Some(k.division.as_ref()?.program.as_f64())
    }),
];

/// Counters of the kernel engine alone.
const KERNEL_COUNTERS: &[OfKernel] = &[
    ("kernel_files_came_back", "Pages of files that had left and were read again", None, |k| {
        Some(k.division.as_ref()?.files_came_back as f64)
    }),
    ("kernel_program_came_back", "Pages of the program that came back from swap", None, |k| {
        Some(k.division.as_ref()?.program_came_back as f64)
    }),
    ("kernel_faults", "Major faults: pages that were waited for", None, |k| {
        Some(k.stats.faults as f64)
    }),
    (
        "kernel_reclaim_asked",
        "Memory that the kernel was asked to put out",
        Some(Unit::Bytes),
        |k| Some(k.stats.reclaimed.as_f64()),
    ),
    ("kernel_reclaim_short", "Times that it found less", None, |k| Some(k.stats.short as f64)),
    ("kernel_ahead", "Memory asked for ahead of walks", Some(Unit::Bytes), |k| {
        Some(k.stats.ahead.as_f64())
    }),
    (
        "kernel_direct_reclaim",
        "Memory that the programs' own threads had to put out",
        Some(Unit::Bytes),
        |k| Some(k.reclaimed_by_itself?.as_f64()),
    ),
    (
        "kernel_thrashing",
        "Time in which pages came back that had just left, and were waited for",
        Some(Unit::Seconds),
        |k| Some(seconds(k.stats.thrashing)),
    ),
    ("kernel_braked", "Time in which programs were slowed down", Some(Unit::Seconds), |k| {
        Some(seconds(k.stats.braked_time))
    }),
];

type OfTier = (&'static str, &'static str, Option<Unit>, fn(&TierLine) -> Option<f64>);

/// What is told of each tier, as far as it is known.
const TIERS: &[OfTier] = &[
    ("tier", "What lies in a tier", Some(Unit::Bytes), |t| Some(t.now.as_f64())),
    ("tier_capacity", "What may lie in a tier", Some(Unit::Bytes), |t| {
        t.capacity.map(Bytes::as_f64)
    }),
    (
        "tier_accesses_ratio",
        "The share of the accesses observed lately that a tier served",
        None,
        |t| t.recent_accesses,
    ),
];

/// A figure of each as a whole, as far as it is known: without the kernel's engine the budget only, which is
/// what the fastest tier may hold. Where the kernel serves the faults that is what the budget leaves at the
/// moment; and of a budget that a broker divides there is only the run's share.
pub(super) fn levels(
    attached: &[Attached],
    is_budget: bool,
    value: fn(&RunLevel) -> Bytes,
) -> Vec<(&Attached, Bytes)> {
    let of = |report: &AttachReport| match &report.kernel {
        Some(kernel) if kernel.budget_of.is_some() => is_budget.then_some(kernel.budget),
        Some(kernel) => Some(value(&kernel.run_level)),
        None => report.tiers.first().filter(|_| is_budget).and_then(|tier| tier.capacity),
    };
    attached.iter().filter_map(|one| Some((one, of(&one.report)?))).collect()
}

/// Whether there is a gauge of this name here.
pub(super) fn have_gauge(attached: &[Attached], name: &str) -> bool {
    has(attached, SHARED_GAUGES, name)
}

/// Whether there is a counter of this name here.
pub(super) fn have_counter(attached: &[Attached], name: &str) -> bool {
    has(attached, SHARED_COUNTERS, name)
}

/// Whether any knows a figure of this name.
fn has(attached: &[Attached], figures: &[Figure], name: &str) -> bool {
    find(figures, name).is_some_and(|value| attached.iter().any(|one| value(&one.report).is_some()))
}

fn find(figures: &[Figure], name: &str) -> Option<fn(&AttachReport) -> Option<f64>> {
    figures.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
}

/// A gauge that compressed memory has, if there is one of this name here.
pub(super) fn shared_gauge(
    attached: &[Attached],
    name: &str,
    metric: &mut MetricEncoder<'_>,
) -> fmt::Result {
    let Some(value) = find(SHARED_GAUGES, name) else { return Ok(()) };
    for one in attached {
        let Some(value) = value(&one.report) else { continue };
        metric.encode_family(&one.labels())?.encode_gauge(&value)?;
    }
    Ok(())
}

/// A counter that compressed memory has, if there is one of this name here.
pub(super) fn shared_counter(
    attached: &[Attached],
    name: &str,
    metric: &mut MetricEncoder<'_>,
) -> fmt::Result {
    let Some(value) = find(SHARED_COUNTERS, name) else { return Ok(()) };
    counters(attached, value, metric)
}

/// A counter of each that knows it.
fn counters(
    attached: &[Attached],
    value: impl Fn(&AttachReport) -> Option<f64>,
    metric: &mut MetricEncoder<'_>,
) -> fmt::Result {
    for one in attached {
        let Some(value) = value(&one.report) else { continue };
        let labels = one.labels();
        let mut to = metric.encode_family(&labels)?;
        to.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
    }
    Ok(())
}

/// What there is of mapped memory alone.
pub(super) fn encode(attached: &[Attached], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if attached.is_empty() {
        return Ok(());
    }
    let tiers = || attached.iter().flat_map(|one| &one.report.tiers);
    for (name, help, unit, value) in TIERS {
        if tiers().all(|tier| value(tier).is_none()) {
            continue;
        }
        let mut gauge = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for one in attached {
            for tier in &one.report.tiers {
                let Some(value) = value(tier) else { continue };
                let labels = (one.labels(), [("tier", tier.memory.clone())]);
                gauge.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
    }
    for (name, help, unit, value) in COUNTERS {
        if attached.iter().all(|one| value(&one.report).is_none()) {
            continue;
        }
        let mut counter =
            encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        counters(attached, value, &mut counter)?;
    }
    estimates(attached, encoder)?;
    of_kernel(attached, encoder)?;
    let mut cap = encoder.encode_descriptor(
        "sampling_cap_ratio",
        "The most of one processor that the samplers may use",
        None,
        MetricType::Gauge,
    )?;
    for one in attached {
        cap.encode_family(&one.labels())?.encode_gauge(&one.report.sampling_cap)?;
    }
    if attached.iter().all(|one| one.report.aborted.is_empty()) {
        return Ok(());
    }
    let mut aborted = encoder.encode_descriptor(
        "aborted",
        "Actions that were not carried out, by reason",
        None,
        MetricType::Counter,
    )?;
    for one in attached {
        for (reason, count) in &one.report.aborted {
            let labels = (one.labels(), [("reason", reason.clone())]);
            let mut to = aborted.encode_family(&labels)?;
            to.encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
    }
    Ok(())
}

/// What there is of those whose faults the kernel serves.
fn of_kernel(attached: &[Attached], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let ours = || attached.iter().filter_map(|one| Some((one, one.report.kernel.as_ref()?)));
    let kinds = [(MetricType::Gauge, KERNEL_GAUGES), (MetricType::Counter, KERNEL_COUNTERS)];
    for (kind, figures) in kinds {
        for (name, help, unit, value) in figures {
            if ours().all(|(_, report)| value(report).is_none()) {
                continue;
            }
            let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            for (one, report) in ours() {
                let Some(value) = value(report) else { continue };
                let labels = one.labels();
                let mut to = metric.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => to.encode_counter::<NoLabelSet, _, f64>(&value, None)?,
                    _ => to.encode_gauge(&value)?,
                }
            }
        }
    }
    Ok(())
}

/// What is estimated of each, as far as it is known.
fn estimates(attached: &[Attached], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let of = |one: &Attached| one.report.slowdown.clone().unwrap_or_default();
    if attached.iter().any(|one| of(one).at_most.is_some()) {
        let mut gauge = encoder.encode_descriptor(
            "slowdown_at_most_ratio",
            "Run time by that in the fastest memory alone, at most: estimated from observed \
             accesses and latencies",
            None,
            MetricType::Gauge,
        )?;
        for one in attached {
            let Some(factor) = of(one).at_most else { continue };
            gauge.encode_family(&one.labels())?.encode_gauge(&factor)?;
        }
    }
    if attached.iter().any(|one| of(one).swap_stall.is_some()) {
        let mut counter = encoder.encode_descriptor(
            "swap_stall",
            "Time waited for pages from swap, estimated from what one takes",
            Some(&Unit::Seconds),
            MetricType::Counter,
        )?;
        for one in attached {
            let Some(time) = of(one).swap_stall else { continue };
            let labels = one.labels();
            let mut to = counter.encode_family(&labels)?;
            to.encode_counter::<NoLabelSet, _, f64>(&seconds(time), None)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use terrace_core::Bytes;

    use crate::attach::tests::report;
    use crate::openmetrics::{Attached, encode};
    use crate::run::RunLevel;

    /// Series of the kernel engine stand beside the others, for the run that has it alone.
    #[test]
    fn the_kernel_engine_has_series_of_its_own() {
        let plain = Attached { run: 7, program: "redis".into(), report: report(3) };
        let mut by_kernel = plain.clone();
        by_kernel.run = 8;
        let mut kernel = crate::kernel::tests::report();
        kernel.stats.faults = 5;
        (by_kernel.report.moved_by_others, by_kernel.report.demotions) = (None, None);
        by_kernel.report.kernel = Some(Box::new(kernel));

        let text = encode(vec![], vec![plain, by_kernel]).unwrap();

        let lines: Vec<_> =
            text.lines().filter(|line| line.starts_with("terrace_kernel_")).collect();
        assert!(lines.iter().all(|line| line.contains("run=\"8\"")), "{lines:?}");
        let faults = "terrace_kernel_faults_total{run=\"8\",program=\"redis\"} 5.0";
        assert!(lines.contains(&faults), "{lines:?}");
        assert!(!text.contains("terrace_kernel_store"), "nothing is known of it: {text}");
        for name in ["terrace_moved_by_others_total", "terrace_demotions_total"] {
            let of = |run: u32| text.contains(&format!("{name}{{run=\"{run}\""));
            assert!(of(7) && !of(8), "what is not known is not told: {text}");
        }
    }

    /// What is left of it for what is resident at the moment is the tier's.
    #[test]
    fn a_total_is_told_as_it_was_asked_for_with_what_exceeded_it() {
        let mut total = Attached { run: 8, program: "redis".into(), report: report(3) };
        let mut kernel = crate::kernel::tests::report();
        let mib = Bytes::mib;
        (kernel.budget, kernel.holds_store) = (mib(48), true);
        kernel.stats.exceeded = mib(9);
        kernel.run_level = RunLevel {
            budget: mib(48),
            resident: mib(47),
            resident_peak: mib(49),
            exceeded: Bytes::ZERO,
            exceeded_peak: mib(1),
        };
        total.report.kernel = Some(Box::new(kernel.clone()));
        let mut share = total.clone();
        share.run = 9;
        (kernel.budget_of, kernel.budget) = (Some(5), mib(20));
        share.report.kernel = Some(Box::new(kernel));

        let text = encode(vec![], vec![total, share]).unwrap();

        let has = |series: &str, run: u32, value: Option<Bytes>| {
            let line = format!("terrace_{series}_bytes{{run=\"{run}\",program=\"redis\"}} ");
            let found = text.lines().find_map(|told| told.strip_prefix(&line));
            let value = value.map(|bytes| format!("{:?}", bytes.as_f64()));
            assert_eq!(found, value.as_deref(), "{series} of {run}: {text}");
        };
        has("budget", 8, Some(mib(48)));
        has("run_resident", 8, Some(mib(47)));
        has("run_resident_peak", 8, Some(mib(49)));
        has("budget_exceeded", 8, Some(Bytes::ZERO));
        has("budget_exceeded_peak", 8, Some(mib(1)));
        has("kernel_exceeded", 8, Some(mib(1)));
        has("budget", 9, Some(mib(20)));
        has("run_resident", 9, None);
        assert!(text.contains("terrace_kernel_budget_kept{run=\"8\",program=\"redis\"} 1.0"));
        assert_eq!(text.matches("# TYPE terrace_budget_bytes ").count(), 1, "{text}");
    }

    #[test]
    fn tiers_have_a_label_and_what_is_not_known_of_one_is_not_told() {
        let program = "redis".to_owned();
        let text = encode(vec![], vec![Attached { run: 7, program, report: report(3) }]).unwrap();

        let value = |series: &str| -> Option<f64> {
            let line = text.lines().find(|line| line.starts_with(series))?;
            line.rsplit(' ').next()?.parse().ok()
        };
        let who = "{run=\"7\",program=\"redis\"";
        let fast = format!("{who},tier=\"numa:0\"}}");
        let slow = format!("{who},tier=\"numa:1\"}}");
        assert_eq!(value(&format!("terrace_tier_bytes{fast}")), Some(f64::from(8 << 20)), "{text}");
        assert_eq!(value(&format!("terrace_tier_bytes{slow}")), Some(f64::from(24 << 20)));
        assert_eq!(value(&format!("terrace_tier_capacity_bytes{fast}")), Some(f64::from(8 << 20)));
        assert_eq!(value(&format!("terrace_tier_capacity_bytes{slow}")), None, "{text}");
        assert_eq!(value(&format!("terrace_promotions_total{who}}}")), Some(30.0), "{text}");
        assert_eq!(value(&format!("terrace_sampling_seconds_total{who}}}")), Some(0.03), "{text}");
        assert_eq!(value(&format!("terrace_slowdown_at_most_ratio{who}}}")), Some(2.0), "{text}");
        assert_eq!(value(&format!("terrace_swap_stall_seconds_total{who}}}")), Some(0.0), "{text}");
        assert_eq!(value("terrace_aborted_total"), Some(3.0), "{text}");
        // Every name stands in one place.
        assert_eq!(text.matches("# TYPE terrace_promotions ").count(), 1, "{text}");
    }
}
