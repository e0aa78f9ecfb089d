//! The figures of groups that are governed.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use terrace_core::Bytes;

use crate::govern::GovernReport;

type Figure<L> = Family<L, Gauge<f64, AtomicU64>>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Group {
    group: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AtSlowdown {
    group: String,
    /// A share.
    slowdown: String,
    /// `least`, `middle` or `most`.
    bound: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct IdleFor {
    group: String,
    /// Seconds.
    idle: String,
}

type Own = (&'static str, &'static str, Option<Unit>, fn(&GovernReport) -> Option<f64>);

/// What there is of each group, as far as it is known.
const GAUGES: &[Own] = &[
    ("resident", "What can be swapped and is in DRAM", Some(Unit::Bytes), |r| {
        Some(r.done.resident.as_f64())
    }),
    ("swapped", "What is in swap", Some(Unit::Bytes), |r| Some(r.done.swapped.as_f64())),
    (
        "beside",
        "What the group has in DRAM beside that: pages of files, the kernel's own",
        Some(Unit::Bytes),
        |r| Some(r.done.beside.all().as_f64()),
    ),
    ("asked", "What the kernel was asked to put out", Some(Unit::Bytes), |r| {
        Some(r.done.asked.as_f64())
    }),
    ("recommended", "How much DRAM the group should have", Some(Unit::Bytes), |r| {
        r.recommended().map(Bytes::as_f64)
    }),
    ("target", "The slowdown that is allowed", Some(Unit::Ratios), |r| Some(r.target)),
    ("slowdown", "By how much longer everything took", Some(Unit::Ratios), |r| r.done.slowdown),
    ("slowdown_now", "The same in the last second", Some(Unit::Ratios), |r| r.done.slowdown_now),
    ("refaults", "Pages that came back", None, |r| Some(r.done.refaults as f64)),
];

/// The groups' figures as OpenMetrics text.
///
/// # Errors
/// None of its own: the encoder's.
pub fn encode(reports: &[GovernReport]) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("terrace_govern");
    for (name, help, unit, value) in GAUGES {
        let family = Figure::<Group>::default();
        let mut any = false;
        for report in reports {
            let Some(value) = value(report) else { continue };
            any = true;
            family.get_or_create(&Group { group: report.group.clone() }).set(value);
        }
        match unit {
            _ if !any => {}
            Some(unit) => registry.register_with_unit(*name, *help, unit.clone(), family),
            None => registry.register(*name, *help, family),
        }
    }
    let forecasts = Figure::<AtSlowdown>::default();
    let idle = Figure::<IdleFor>::default();
    for report in reports {
        for forecast in &report.forecasts {
            let bounds =
                [("least", forecast.least), ("middle", forecast.middle), ("most", forecast.most)];
            for (bound, out) in bounds {
                let slowdown = forecast.slowdown.to_string();
                let labels = AtSlowdown { group: report.group.clone(), slowdown, bound };
                forecasts.get_or_create(&labels).set(out.as_f64());
            }
        }
        for age in &report.idle {
            let seconds = age.time.as_secs().round().to_string();
            let labels = IdleFor { group: report.group.clone(), idle: seconds };
            idle.get_or_create(&labels).set(age.memory.as_f64());
        }
    }
    let help = "What could be out at a slowdown";
    registry.register_with_unit("forecast", help, Unit::Bytes, forecasts);
    registry.register_with_unit("idle", "What was not touched for so long", Unit::Bytes, idle);
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}
