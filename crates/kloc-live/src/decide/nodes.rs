//! The machine's memory by node.

use std::fs::{self, File};

use terrace_core::Bytes;

use crate::observe::event::page;

const NODES: &str = "/sys/devices/system/node";

fn list(name: &str) -> Option<Vec<u32>> {
    Some(numbers(&fs::read_to_string(format!("{NODES}/{name}")).ok()?))
}

/// The node that pages are moved to: the first that has memory and no processors.
pub fn slow_node() -> Option<u32> {
    let processors = list("has_cpu")?;
    list("has_memory")?.into_iter().find(|node| !processors.contains(node))
}

/// The nodes where programs' pages lie first: all with processors. Other slow ones than that which
/// pages are moved to are the kernel's to fill.
pub(super) fn fast_nodes(slow: u32) -> Vec<u32> {
    let nodes = list("has_cpu").unwrap_or_default();
    nodes.into_iter().filter(|&node| node != slow).collect()
}

/// The files that tell the use of nodes.
pub(super) fn meminfo_of(nodes: &[u32]) -> Vec<File> {
    let open = |node: &u32| File::open(format!("{NODES}/node{node}/meminfo")).ok();
    nodes.iter().filter_map(open).collect()
}

/// What is free, and all, from the texts of `/proc/meminfo` or of nodes' (`Node 0 MemFree: …`).
pub(super) fn free_and_all(texts: impl Iterator<Item = String>) -> Option<(Bytes, Bytes)> {
    let mut sum = None;
    for text in texts {
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.split_once(name)?.1.strip_prefix(':'))?;
            value.split_ascii_whitespace().next()?.parse::<u64>().ok().map(Bytes::kib)
        };
        let (free, all) = sum.unwrap_or((Bytes::ZERO, Bytes::ZERO));
        sum = Some((free + field("MemFree")?, all + field("MemTotal")?));
    }
    sum
}

/// What the kernel keeps free of these nodes by itself (all if there are none): the `high` marks of
/// their zones, from the text of `/proc/zoneinfo`. It evicts pages until so much is free.
pub(super) fn kept_by_the_kernel(text: &str, nodes: Option<&[u32]>) -> Bytes {
    let (mut pages, mut counts) = (0u64, false);
    for line in text.lines() {
        if let Some(zone) = line.strip_prefix("Node ") {
            let node = zone.split(',').next().and_then(|node| node.parse().ok());
            counts = nodes.is_none_or(|nodes| node.is_some_and(|node| nodes.contains(&node)));
        }
        let mut words = line.split_ascii_whitespace();
        if counts && words.next() == Some("high") {
            let of_zone = words.next().and_then(|word| word.parse::<u64>().ok());
            pages = of_zone.map_or(pages, |of_zone| of_zone.saturating_add(pages));
        }
    }
    page() * pages
}

/// `0-2,5` and the like.
fn numbers(text: &str) -> Vec<u32> {
    let parts = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse::<u32>().ok()?)
    });
    parts.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_read() {
        assert_eq!(numbers("0-2,5\n"), [0, 1, 2, 5]);
        assert!(numbers("\n").is_empty());
    }

    /// A full fast node is short, however much the slow one has.
    #[test]
    fn nodes_are_counted_apart_and_the_machine_as_a_whole() {
        let node = |node: u32, free: u64| {
            format!("Node {node} MemTotal:  1000 kB\nNode {node} MemFree:  {free} kB\n")
        };
        let of = |texts: &[String]| free_and_all(texts.iter().cloned());
        assert_eq!(of(&[node(0, 10)]), Some((Bytes::kib(10), Bytes::kib(1000))));
        assert_eq!(of(&[node(0, 10), node(2, 90)]), Some((Bytes::kib(100), Bytes::kib(2000))));
        let whole = "MemTotal:     1000 kB\nMemFree:       100 kB\nCached: 5 kB\n".to_owned();
        assert_eq!(of(&[whole]), Some((Bytes::kib(100), Bytes::kib(1000))));
        assert_eq!((of(&["nonsense".to_owned()]), of(&[])), (None, None));
    }

    #[test]
    fn what_the_kernel_keeps_free_is_the_sum_of_its_zones() {
        let zone = |node: u32, high: u64| {
            format!(
                "Node {node}, zone   Normal\n  pages free     2816\n        min      6\n        \
                 high     {high}\n  pagesets\n    cpu: 0\n              high:  999\n"
            )
        };
        let text = format!("{}{}{}", zone(0, 3), zone(0, 4), zone(1, 100));
        assert_eq!(kept_by_the_kernel(&text, None), page() * 107);
        assert_eq!(kept_by_the_kernel(&text, Some(&[0])), page() * 7);
        assert_eq!(kept_by_the_kernel("nonsense", None), Bytes::ZERO);
    }
}
