//! The figures of kernel objects by file: of `terrace kloc run`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use terrace_core::Bytes;

/// What the daemon knows, and what has happened since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kloc {
    /// Files that are known.
    pub contexts: u64,
    /// Of them, files that somebody has open.
    pub active: u64,
    /// What their pages take.
    pub cached: Bytes,
    /// Opens, closes and ends.
    pub events: u64,
    /// Of them, those that were lost.
    pub lost: u64,
    /// Pages that have left, or would have.
    pub left: Bytes,
    /// Of them, those of files that were opened again soon after.
    pub regretted: Bytes,
    /// Files that somebody had open when they were to leave.
    pub in_use: u64,
}

type Series = (&'static str, &'static str, Option<Unit>, MetricType, fn(&Kloc) -> u64);

const SERIES: &[Series] = &[
    ("kloc_contexts", "Files that are known", None, MetricType::Gauge, |k| k.contexts),
    ("kloc_active", "Files that somebody has open", None, MetricType::Gauge, |k| k.active),
    ("kloc_cached", "Pages of known files", Some(Unit::Bytes), MetricType::Gauge, |k| {
        k.cached.get()
    }),
    ("kloc_events", "Opens, closes and ends", None, MetricType::Counter, |k| k.events),
    ("kloc_lost", "Events that were lost", None, MetricType::Counter, |k| k.lost),
    ("kloc_left", "Pages that have left", Some(Unit::Bytes), MetricType::Counter, |k| k.left.get()),
    ("kloc_regretted", "Of them, opened again", Some(Unit::Bytes), MetricType::Counter, |k| {
        k.regretted.get()
    }),
    ("kloc_in_use", "Files in use when they were to leave", None, MetricType::Counter, |k| {
        k.in_use
    }),
];

impl Collector for Kloc {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, unit, kind, value) in SERIES {
            let mut to = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
            if matches!(kind, MetricType::Counter) {
                to.encode_counter::<NoLabelSet, _, u64>(&value(self), None)?;
            } else {
                to.encode_gauge(&Bytes(value(self)).as_f64())?;
            }
        }
        Ok(())
    }
}

/// The figures as text.
pub fn kloc(figures: Kloc) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("terrace");
    registry.register_collector(Box::new(figures));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_a_total_and_what_is_a_gauge() {
        let figures = Kloc { contexts: 3, left: Bytes(7), ..Kloc::default() };
        let text = kloc(figures).unwrap();
        for line in ["terrace_kloc_contexts 3.0", "terrace_kloc_left_bytes_total 7", "# EOF"] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }
}
