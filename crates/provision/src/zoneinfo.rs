//! The kernel's count of free pages and watermarks, parsed.
//!
//! `/proc/zoneinfo` has one section for each zone of each node. Lines with the
//! same words occur twice: `high:` (with a colon) belongs to the lists of a
//! processor, `high` (without) is the zone's watermark. Only the latter counts.

use core::fmt;

use serde::{Deserialize, Serialize};
use terrace_core::Bytes;
use thiserror::Error;

use crate::view::{NodeId, Watermarks};

/// One zone of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Zone {
    /// The node that the zone belongs to.
    pub node: NodeId,
    /// The kernel's name: `DMA`, `DMA32`, `Normal`, `Movable`, `Device`.
    pub name: String,
    /// Free pages.
    pub free: u64,
    /// Watermark `min`, in pages.
    pub min: u64,
    /// Watermark `low`, in pages.
    pub low: u64,
    /// Watermark `high`, in pages.
    pub high: u64,
    /// Pages that the page allocator manages.
    pub managed: u64,
}

/// All zones of a machine at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneInfo {
    /// The zones, in the kernel's order. Zones without a page are left out.
    pub zones: Vec<Zone>,
}

/// A node's zones, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeMemory {
    /// Memory that the page allocator manages.
    pub managed: Bytes,
    /// The free part of it.
    pub free: Bytes,
    /// The zones' watermarks.
    pub watermarks: Watermarks,
}

/// Why a text is not a `/proc/zoneinfo`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {line}: {what}")]
pub struct ZoneInfoError {
    /// Line of the text, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: Wrong,
}

/// What can be wrong with a line of `/proc/zoneinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A section's head does not read `Node N, zone NAME`.
    Head(String),
    /// The value behind a field is not a number of pages.
    Number {
        /// Name of the field.
        field: &'static str,
        /// What stands there.
        text: String,
    },
    /// The section that begins at this line lacks a field.
    Missing(&'static str),
    /// The text has no section at all.
    Empty,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(text) => write!(f, "`{text}` is not `Node N, zone NAME`"),
            Self::Number { field, text } => {
                write!(f, "field `{field}`: `{text}` is not a number of pages")
            }
            Self::Missing(field) => write!(f, "the zone that begins here has no field `{field}`"),
            Self::Empty => write!(f, "the text has no zone"),
        }
    }
}

/// Fields of the section that is being read.
#[derive(Default)]
struct Open {
    line: usize,
    node: NodeId,
    name: String,
    fields: [Option<u64>; 5],
}

const FIELDS: [&str; 5] = ["pages free", "min", "low", "high", "managed"];

impl Open {
    fn close(self) -> Result<Zone, ZoneInfoError> {
        let mut values = [0; 5];
        for (i, field) in self.fields.iter().enumerate() {
            values[i] =
                field.ok_or(ZoneInfoError { line: self.line, what: Wrong::Missing(FIELDS[i]) })?;
        }
        let [free, min, low, high, managed] = values;
        Ok(Zone { node: self.node, name: self.name, free, min, low, high, managed })
    }
}

impl ZoneInfo {
    /// Reads the text of `/proc/zoneinfo`.
    pub fn parse(text: &str) -> Result<Self, ZoneInfoError> {
        let mut zones = Vec::new();
        let mut open: Option<Open> = None;
        for (index, raw) in text.lines().enumerate() {
            let line = index + 1;
            let wrong = |what| ZoneInfoError { line, what };
            if raw.starts_with("Node") {
                zones.extend(open.take().map(Open::close).transpose()?);
                let (node, name) = head(raw).ok_or_else(|| wrong(Wrong::Head(raw.to_owned())))?;
                open = Some(Open { line, node, name, ..Open::default() });
                continue;
            }
            let Some(open) = open.as_mut() else { continue };
            let mut words = raw.split_whitespace();
            let field = match words.next() {
                Some("pages") if words.next() == Some("free") => 0,
                Some("min") => 1,
                Some("low") => 2,
                Some("high") => 3,
                Some("managed") => 4,
                _ => continue,
            };
            // The first of a name counts: what follows belongs to lists of processors.
            if open.fields[field].is_some() {
                continue;
            }
            let text = words.next().unwrap_or("");
            let pages = text.parse().map_err(|_| {
                wrong(Wrong::Number { field: FIELDS[field], text: text.to_owned() })
            })?;
            open.fields[field] = Some(pages);
        }
        zones.extend(open.take().map(Open::close).transpose()?);
        if zones.is_empty() {
            return Err(ZoneInfoError { line: 1, what: Wrong::Empty });
        }
        zones.retain(|zone| zone.managed > 0);
        Ok(Self { zones })
    }

    /// The nodes that have memory, in ascending order.
    pub fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.zones.iter().map(|zone| zone.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The sum over a node's zones; all zero for a node that has none.
    ///
    /// `page` is the size of a base page.
    pub fn memory(&self, node: NodeId, page: Bytes) -> NodeMemory {
        let mut sum = NodeMemory::default();
        for zone in self.zones.iter().filter(|zone| zone.node == node) {
            sum.managed += page * zone.managed;
            sum.free += page * zone.free;
            sum.watermarks.min += page * zone.min;
            sum.watermarks.low += page * zone.low;
            sum.watermarks.high += page * zone.high;
        }
        sum
    }
}

/// `Node 0, zone   Normal`.
fn head(line: &str) -> Option<(NodeId, String)> {
    let (node, zone) = line.strip_prefix("Node")?.split_once(',')?;
    let name = zone.trim().strip_prefix("zone")?.trim();
    (!name.is_empty()).then_some(())?;
    Some((NodeId(node.trim().parse().ok()?), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 37235
  pages free     3840
        boost    0
        min      39
        low      48
        high     57
        managed  3840
  pagesets
    cpu: 0
              count:    0
              high:     13
              high_min: 13
  vm stats threshold: 4
Node 0, zone   Normal
  pages free     1000
        min      10
        low      12
        high     14
        managed  5000
Node 1, zone  Movable
  pages free     0
        min      0
        low      0
        high     0
        managed  0
";

    #[test]
    fn zones_of_a_node_are_summed_and_lists_of_processors_do_not_count() {
        let info = ZoneInfo::parse(TWO).unwrap();
        assert_eq!(info.nodes(), [NodeId(0)], "a zone without pages is no memory");
        let memory = info.memory(NodeId(0), Bytes::kib(4));
        assert_eq!(memory.free, Bytes::kib(4) * 4840);
        assert_eq!(memory.managed, Bytes::kib(4) * 8840);
        assert_eq!(memory.watermarks.high, Bytes::kib(4) * 71);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let broken = TWO.replace("low      12", "low      many");
        let error = ZoneInfo::parse(&broken).unwrap_err();
        assert_eq!(error.to_string(), "line 19: field `low`: `many` is not a number of pages");
        let short = TWO.replace("        managed  5000\n", "");
        let error = ZoneInfo::parse(&short).unwrap_err();
        assert_eq!(error.to_string(), "line 16: the zone that begins here has no field `managed`");
        assert!(ZoneInfo::parse("").is_err());
        let head = TWO.replace("Node 0, zone   Normal", "Node zero, zone Normal");
        assert!(ZoneInfo::parse(&head).unwrap_err().to_string().starts_with("line 16: `Node zero"));
    }

    #[test]
    fn this_machine_is_read() {
        let Ok(text) = std::fs::read_to_string("/proc/zoneinfo") else { return };
        let info = ZoneInfo::parse(&text).unwrap();
        let all: u64 = info.zones.iter().map(|zone| zone.managed).sum();
        assert!(all > 0);
    }
}
