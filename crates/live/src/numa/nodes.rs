//! What a node holds, and how far away it is.

use std::fs;
use std::path::{Path, PathBuf};

use terrace_core::{Bytes, Nanos};

/// Load-to-use latency assumed for a node at distance 10 (one's own) where the
/// firmware gives none: 81 ns, a typical server's local memory (Intel MLC on
/// Cascade Lake).
const LOCAL_LATENCY: Nanos = Nanos(81);
/// The distance of a node to itself (ACPI's SLIT).
const LOCAL_DISTANCE: u64 = 10;

/// The nodes of the machine whose sysfs lies below a root.
#[derive(Clone, Debug)]
pub struct Nodes {
    root: PathBuf,
}

/// Latencies of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Of a load.
    pub read: Nanos,
    /// Of a store.
    pub write: Nanos,
    /// Whether the firmware says so (HMAT), or they are derived from distances.
    pub from_firmware: bool,
}

impl Nodes {
    /// The nodes below a root (`/` for this machine).
    pub fn new(root: &Path) -> Self {
        Self { root: root.join("sys/devices/system/node") }
    }

    fn text(&self, node: u32, file: &str) -> Option<String> {
        fs::read_to_string(self.root.join(format!("node{node}/{file}"))).ok()
    }

    /// Whether there is such a node.
    pub fn exists(&self, node: u32) -> bool {
        self.root.join(format!("node{node}")).is_dir()
    }

    /// What a node has, and what of it is free; nothing of a node that is not there.
    pub fn memory(&self, node: u32) -> (Bytes, Bytes) {
        let text = self.text(node, "meminfo").unwrap_or_default();
        // Lines read `Node 0 MemTotal:  16384 kB`.
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.split_once(name)?.1.split_ascii_whitespace().next())
                .and_then(|amount| amount.parse().ok())
                .map_or(Bytes::ZERO, Bytes::kib)
        };
        (field(" MemTotal:"), field(" MemFree:"))
    }

    /// How long an access from the nearest processors takes, without load.
    pub fn latency(&self, node: u32) -> Latency {
        // Nanoseconds, from the firmware's table (HMAT), where it has one.
        let firmware = |name: &str| -> Option<Nanos> {
            let text = self.text(node, &format!("access0/initiators/{name}"))?;
            text.trim().parse().ok().filter(|&ns: &u64| ns > 0).map(Nanos)
        };
        if let (Some(read), Some(write)) = (firmware("read_latency"), firmware("write_latency")) {
            return Latency { read, write, from_firmware: true };
        }
        let assumed = Nanos(LOCAL_LATENCY.get() * self.distance(node) / LOCAL_DISTANCE);
        Latency { read: assumed, write: assumed, from_firmware: false }
    }

    /// The distance of a node to the nearest one with processors.
    fn distance(&self, node: u32) -> u64 {
        let distances: Vec<u64> = self
            .text(node, "distance")
            .unwrap_or_default()
            .split_ascii_whitespace()
            .filter_map(|distance| distance.parse().ok())
            .collect();
        // Distances are listed in the order of the nodes that exist.
        let mut nodes: Vec<u32> = fs::read_dir(&self.root)
            .into_iter()
            .flatten()
            .filter_map(|e| e.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
            .collect();
        nodes.sort_unstable();
        let has_processors =
            |node: u32| self.text(node, "cpulist").is_some_and(|list| !list.trim().is_empty());
        nodes
            .into_iter()
            .zip(distances)
            .filter(|&(other, _)| has_processors(other))
            .map(|(_, distance)| distance)
            .min()
            .unwrap_or(LOCAL_DISTANCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let nodes = root.path().join("sys/devices/system/node");
        for (node, cpus, distance, free) in
            [(0, "0-3\n", "10 25\n", 1000), (2, "\n", "25 10\n", 4000)]
        {
            let node_dir = nodes.join(format!("node{node}"));
            fs::create_dir_all(&node_dir).expect("directories");
            fs::write(node_dir.join("cpulist"), cpus).expect("a file");
            fs::write(node_dir.join("distance"), distance).expect("a file");
            let meminfo =
                format!("\nNode {node} MemTotal:   8000 kB\nNode {node} MemFree: {free} kB\n");
            fs::write(node_dir.join("meminfo"), meminfo).expect("a file");
        }
        root
    }

    /// A memory-only node is at distance 10 of itself; what counts is how far
    /// the processors are.
    #[test]
    fn a_node_without_processors_is_as_far_as_the_nearest_that_has_some() {
        let root = tree();
        let nodes = Nodes::new(root.path());
        assert_eq!(nodes.latency(0).read, Nanos(81));
        assert_eq!(nodes.latency(2).read, Nanos(81 * 25 / 10));
        assert!(!nodes.latency(2).from_firmware);
        assert_eq!(nodes.memory(2), (Bytes::kib(8000), Bytes::kib(4000)));
        assert!(nodes.exists(2) && !nodes.exists(1));
        assert_eq!(nodes.memory(1), (Bytes::ZERO, Bytes::ZERO));
    }

    #[test]
    fn what_the_firmware_says_counts_more_than_distances() {
        let root = tree();
        let initiators = root.path().join("sys/devices/system/node/node2/access0/initiators");
        fs::create_dir_all(&initiators).expect("directories");
        fs::write(initiators.join("read_latency"), "250\n").expect("a file");
        fs::write(initiators.join("write_latency"), "300\n").expect("a file");

        let latency = Nodes::new(root.path()).latency(2);

        let expected = Latency { read: Nanos(250), write: Nanos(300), from_firmware: true };
        assert_eq!(latency, expected);
    }
}
