//! The figures of memory that comes and goes: of `terrace provision run`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use terrace_core::Bytes;

/// Memory of one node with processors, and of slow memory near it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProvisionNode {
    /// The kernel's number of the node.
    pub node: u32,
    /// Its DRAM.
    pub dram: Bytes,
    /// The free part of it.
    pub dram_free: Bytes,
    /// Slow memory near it that is online.
    pub slow: Bytes,
    /// The free part of it.
    pub slow_free: Bytes,
    /// Slow memory near it that is hidden.
    pub hidden: Bytes,
}

/// What the daemon saw at its last look, and how often things have happened since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provision {
    /// The nodes.
    pub nodes: Vec<ProvisionNode>,
    /// Whether it looks often.
    pub armed: bool,
    /// Looks at the machine.
    pub looks: u64,
    /// Decisions that changed something.
    pub decisions: u64,
    /// Memory brought in.
    pub brought: Bytes,
    /// Memory given back.
    pub given_back: Bytes,
    /// Steps that failed.
    pub failures: u64,
    /// Steps that were not begun for want of room.
    pub refusals: u64,
    /// Times that the kernel told of pressure.
    pub pressure: u64,
}

type Gauge = (&'static str, &'static str, fn(&ProvisionNode) -> Bytes);
type Counter = (&'static str, &'static str, Option<Unit>, fn(&Provision) -> u64);

const GAUGES: &[Gauge] = &[
    ("provision_dram", "DRAM of a node", |n| n.dram),
    ("provision_dram_free", "Free DRAM of a node", |n| n.dram_free),
    ("provision_slow", "Slow memory near a node that is online", |n| n.slow),
    ("provision_slow_free", "Free slow memory near a node", |n| n.slow_free),
    ("provision_hidden", "Slow memory near a node that is hidden", |n| n.hidden),
];

const COUNTERS: &[Counter] = &[
    ("provision_looks", "Looks at the machine", None, |p| p.looks),
    ("provision_decisions", "Decisions that changed something", None, |p| p.decisions),
    ("provision_brought", "Slow memory brought in", Some(Unit::Bytes), |p| p.brought.get()),
    ("provision_given_back", "Slow memory given back", Some(Unit::Bytes), |p| p.given_back.get()),
    ("provision_failures", "Steps that failed", None, |p| p.failures),
    ("provision_refusals", "Steps that were not begun for want of room", None, |p| p.refusals),
    ("provision_pressure", "Times that the kernel told of pressure", None, |p| p.pressure),
];

#[derive(Clone, Debug, EncodeLabelSet)]
struct Labels {
    node: u32,
}

impl Collector for Provision {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if !self.nodes.is_empty() {
            for (name, help, value) in GAUGES {
                let unit = Some(&Unit::Bytes);
                let mut gauge = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
                for node in &self.nodes {
                    let labels = Labels { node: node.node };
                    gauge.encode_family(&labels)?.encode_gauge(&value(node).as_f64())?;
                }
            }
        }
        let (name, help) = ("provision_armed", "Whether memory is looked at often");
        let mut armed = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        armed.encode_gauge(&i64::from(self.armed))?;
        for (name, help, unit, value) in COUNTERS {
            let unit = unit.as_ref();
            let mut to = encoder.encode_descriptor(name, help, unit, MetricType::Counter)?;
            to.encode_counter::<NoLabelSet, _, u64>(&value(self), None)?;
        }
        Ok(())
    }
}

/// The figures as text.
pub fn provision(figures: Provision) -> Result<String, fmt::Error> {
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
    fn each_node_has_its_series_and_counters_are_totals() {
        let node = |node| ProvisionNode { node, slow: Bytes::mib(128), ..Default::default() };
        let figures =
            Provision { nodes: vec![node(0), node(2)], brought: Bytes(7), ..Default::default() };
        let text = provision(figures).unwrap();
        for line in [
            "terrace_provision_slow_bytes{node=\"2\"} 134217728.0",
            "terrace_provision_brought_bytes_total 7",
            "terrace_provision_armed 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}: {text}");
        }
    }
}
